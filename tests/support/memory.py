"""What a test process holds, and how it lets go of the programs that it has compiled."""

from __future__ import annotations

import ctypes
import gc
import os
import sys
from pathlib import Path

MOST_BYTES = int(os.environ.get("BLIS_JAX_TEST_MEMORY", 5 * 2**30))


def resident_bytes() -> int:
    """Return the bytes of memory that this process holds now; 0 where the system does not say."""
    try:
        pages = int(Path("/proc/self/statm").read_text().split()[1])
    except (OSError, ValueError):
        return 0
    return pages * os.sysconf("SC_PAGE_SIZE")


def forget_programs() -> None:
    """Drop every compiled program, and give the memory back to the system where that can be asked."""
    jax, programs = sys.modules.get("jax"), sys.modules.get("blis_jax.runs.programs")
    if programs is not None:
        programs.compiled.cache_clear()
    if jax is not None:
        jax.clear_caches()
    gc.collect()
    if sys.platform == "linux":
        trim = getattr(ctypes.CDLL(None), "malloc_trim", None)
        if trim is not None:
            trim(0)
