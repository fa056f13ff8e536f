"""How to run, apart from what is simulated, and what the machine at hand suggests."""

from __future__ import annotations

import os
from dataclasses import dataclass


@dataclass(frozen=True)
class Options:
    """How to run, apart from what is simulated."""

    num_slots: int | None = None  # per instance; found by itself if None
    log_capacity: int | None = None
    clock: str = "int32"  # or int64, float64, or continuous: float64 without truncation to whole µs
    form: str = "rows"  # "rows": branches, for CPUs; "lanes": one vectorised loop, for GPUs
    num_lanes: int | None = None  # of a call in lanes; further rows wait for one. None: one a row
    resolve_ties: bool = True
    max_scan_steps: int = 2**30
    kv_model: str = "auto"  # "no-eviction" where it is provably enough, else "block-level"
    window: int | None = None  # blocks moved in one scan step at block level; by the form if None
    num_copies: int = 4  # to begin with, of one shared block on one instance
    num_chains: int = 2  # to begin with, step events pending on one instance
    # least sizes at block level, so that several runs share a compilation
    num_blocks: int = 64
    list_blocks: int = 16
    num_shared_blocks: int = 16
    num_evictions: int = 256


def default_form() -> str:
    """The loop form for the machine at hand."""
    import jax

    return "lanes" if jax.default_backend() in ("gpu", "tpu") else "rows"


def num_workers() -> int:
    """Cores that this process may use."""
    if hasattr(os, "sched_getaffinity"):
        return max(len(os.sched_getaffinity(0)), 1)
    return os.cpu_count() or 1
