"""XLA's flags, its log, and the cache of compiled programs; importing `blis_jax` sets them.

XLA reads its flags when JAX first computes, so `blis_jax` must be imported before that.
"""

from __future__ import annotations

import os
import sys
import time
import warnings
from pathlib import Path
from typing import Any

from blis_jax.errors import ConfigWarning
from blis_jax.lazy import jax

EXTRA_OPTIONS = "--xla_backend_extra_options"
# The whole scan is one function instead of one per operation, ten times faster; unrolled, its loops over slots would
# run slower, and take longer to compile.
CPU_OPTIONS = "xla_cpu_small_while_loop_byte_threshold=1000000000000,xla_cpu_disable_loop_unrolling"
# Loops over slots run faster in the widest vectors; a processor that lacks them takes its own.
VECTOR_WIDTH = "--xla_cpu_prefer_vector_width"
CPU_FLAGS = {EXTRA_OPTIONS: CPU_OPTIONS, VECTOR_WIDTH: "512"}
CPU_FLAG = " ".join(f"{name}={value}" for name, value in CPU_FLAGS.items())
SECONDS_WORTH_CACHING = 0.2
# XLA logs its alarms (slow compilations, programs kept by another machine) as errors; what fails raises in Python.
LOG_LEVEL, FATAL_ONLY = "TF_CPP_MIN_LOG_LEVEL", "3"
TOO_LATE = (
    "JAX had computed something before blis_jax was imported, so XLA's option for long loops came too late and "
    "runs on this CPU take several times as long; restart Python (or the notebook's kernel) and import blis_jax "
    "before JAX computes, or set XLA_FLAGS={flag}"
)

IMPORTED_AT = time.time()
keeps_programs = False  # a command says so: there this package's files alone make a program
_is_late = False  # JAX had started without the flags


def cache_folder() -> Path:
    """Return the folder in which compiled programs are kept between runs."""
    base = os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache"
    return Path(base) / "blis_jax" / "xla"


def prepare_backend(*, use_cache: bool = True) -> None:
    """Set XLA's flags and the compilation cache, where the user has not set them.

    Importing `blis_jax` calls this function; commands call it again with their own choice of `use_cache`. The flags are
    appended to a user's own `XLA_FLAGS`; `XLA_FLAGS=""` keeps them out. XLA logs fatal errors only, unless the user has
    set `TF_CPP_MIN_LOG_LEVEL` or imported JAX first.

    Args:
        use_cache: keep compiled programs in `cache_folder()` between runs.
    """
    global _is_late
    flags = os.environ.get("XLA_FLAGS")
    missing = [f"{name}={value}" for name, value in CPU_FLAGS.items() if name not in (flags or "")]
    if flags != "" and missing:
        _is_late = _is_late or (EXTRA_OPTIONS not in (flags or "") and _has_started())
        os.environ["XLA_FLAGS"] = " ".join([flags, *missing] if flags else missing)
    if "jax" in sys.modules:
        _set_cache_of_jax()
        return
    os.environ.setdefault(LOG_LEVEL, FATAL_ONLY)  # JAX sets its own as it is imported
    if not use_cache:
        os.environ["JAX_ENABLE_COMPILATION_CACHE"] = "false"
        return
    folder = os.environ.setdefault("JAX_COMPILATION_CACHE_DIR", str(cache_folder()))
    seconds = str(SECONDS_WORTH_CACHING)
    os.environ.setdefault("JAX_PERSISTENT_CACHE_MIN_COMPILE_TIME_SECS", seconds)
    if not _is_made(Path(folder)):
        os.environ["JAX_ENABLE_COMPILATION_CACHE"] = "false"


def warn_if_late() -> None:
    """Warn once per process, if JAX started before the flag was set, that compiled runs will be slow on the CPU."""
    global _is_late
    if not _is_late:
        return
    if jax.default_backend() == "cpu":
        _is_late = False
        warnings.warn(TOO_LATE.format(flag=CPU_FLAG), ConfigWarning, stacklevel=2)


def _has_started() -> bool:
    if "jax" not in sys.modules:
        return False
    # no public function says it; where this one is gone, nothing is warned of
    started = getattr(jax._src.xla_bridge, "backends_are_initialized", None)
    return bool(started is not None and started())


def _set_cache_of_jax() -> None:
    """Set the compilation cache of a JAX that was imported before `blis_jax`, unless it has a cache already."""
    settings: Any = jax.config
    is_off = not settings.jax_enable_compilation_cache
    if is_off or settings.jax_compilation_cache_dir or not _is_made(cache_folder()):
        return
    settings.update("jax_compilation_cache_dir", str(cache_folder()))
    settings.update("jax_persistent_cache_min_compile_time_secs", SECONDS_WORTH_CACHING)


def _is_made(folder: Path) -> bool:
    try:
        folder.mkdir(parents=True, exist_ok=True)
    except OSError:  # a read-only home: compile every time instead of failing
        return False
    return True
