"""XLA's flags and the cache of compiled programs, set before JAX starts."""

from __future__ import annotations

import os
import sys
from pathlib import Path

# Compiles the whole scan into one function instead of one per operation: ten times faster.
WHOLE_LOOP_FLAG = (
    "--xla_backend_extra_options=xla_cpu_small_while_loop_byte_threshold=1000000000000"
)
SECONDS_WORTH_CACHING = "0.2"


def cache_folder() -> Path:
    """Where compiled programs are kept between runs."""
    base = os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache"
    return Path(base) / "blis_jax" / "xla"


def prepare_backend(*, use_cache: bool = True) -> None:
    """Set XLA's flags, unless the user has, and the compilation cache; before JAX is imported.

    Where JAX is imported already, as in a notebook or a test, the cache stays as it is; the flags
    still count if JAX has not computed anything.
    """
    os.environ.setdefault("XLA_FLAGS", WHOLE_LOOP_FLAG)
    if "jax" in sys.modules:
        return
    if not use_cache:
        os.environ["JAX_ENABLE_COMPILATION_CACHE"] = "false"
        return
    folder = os.environ.setdefault("JAX_COMPILATION_CACHE_DIR", str(cache_folder()))
    os.environ.setdefault("JAX_PERSISTENT_CACHE_MIN_COMPILE_TIME_SECS", SECONDS_WORTH_CACHING)
    try:
        Path(folder).mkdir(parents=True, exist_ok=True)
    except OSError:  # a read-only home: compile every time instead of failing
        os.environ["JAX_ENABLE_COMPILATION_CACHE"] = "false"
