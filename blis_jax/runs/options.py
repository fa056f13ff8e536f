"""Options of execution, which do not describe the simulated cluster, and their defaults on this machine."""

from __future__ import annotations

import os
import threading
import time
import warnings
from collections.abc import Callable, Generator, Iterable, Iterator
from dataclasses import dataclass
from typing import Any, TypeVar

from blis_jax.errors import ConfigError, choices
from blis_jax.lazy import jax, joblib

T = TypeVar("T")

WORDS = {
    "clock": ("int32", "int64", "float64", "continuous"),
    "form": ("rows", "lanes"),
    "kv_model": ("auto", "no-eviction", "block-level"),
}


@dataclass(frozen=True)
class Options:
    """Options of execution, which do not describe the simulated cluster.

    `clock` and `resolve_ties` may change times. The other options affect time and memory, or end a run early.

    Attributes:
        num_slots: requests that an instance holds at once; None chooses by the requests, and grows if needed.
        log_capacity: records of the step log; None chooses by the requests, and grows if needed.
        clock: dtype of times: `int32`, `int64` or `float64` hold whole µs, `continuous` is float64 without
            truncation to whole µs.
        form: `rows` enters a phase only where it applies, for CPUs; `lanes` runs all in one loop, for GPUs.
        num_lanes: lanes of a call on each device in form `lanes`; None means one for each row.
        resolve_ties: repeat a run until events of one µs are in BLIS's order.
        max_scan_steps: scan steps after which a run ends with `ITERATIONS_EXHAUSTED`.
        kv_model: `no-eviction`, `block-level`, or `auto`, which takes the first where it is exact.
        window: KV blocks moved at a time at block level; None takes the form's.
        num_copies: first capacity for copies of one shared block on one instance.
        num_chains: first capacity for step events pending on one instance.
        num_blocks: least number of KV blocks at block level.
        list_blocks: least number of KV blocks of one request at block level.
        num_shared_blocks: least number of shared KV blocks at block level.
        num_evictions: least number of preemptions recorded at block level.

    Raises:
        ConfigError: `clock`, `form` or `kv_model` is none of these words.
    """

    num_slots: int | None = None  # per instance; found by itself if None
    log_capacity: int | None = None
    clock: str = "int32"  # or int64, float64, or continuous: float64 without truncation to whole µs
    form: str = "rows"  # "rows": branches, for CPUs; "lanes": one vectorised loop, for GPUs
    num_lanes: int | None = None  # of a call on a device; further rows wait. None: one a row
    resolve_ties: bool = True
    max_scan_steps: int = 2**30
    kv_model: str = "auto"  # "no-eviction" where it is provably enough, else "block-level"
    window: int | None = None  # blocks moved at a time at block level; by the form if None
    num_copies: int = 4  # to begin with, of one shared block on one instance
    num_chains: int = 2  # to begin with, step events pending on one instance
    # least sizes at block level, so that several runs share a compilation
    num_blocks: int = 64
    list_blocks: int = 16
    num_shared_blocks: int = 16
    num_evictions: int = 256

    def __post_init__(self) -> None:
        """Refuse unknown words for `clock`, `form` and `kv_model`."""
        for name, words in WORDS.items():
            if getattr(self, name) not in words:
                raise ConfigError(
                    f"{name} {getattr(self, name)!r}: {choices(getattr(self, name), words)}"
                )


def default_form() -> str:
    """Return the loop form for the machine at hand: `lanes` on a GPU or TPU, else `rows`."""
    return "lanes" if jax.default_backend() in ("gpu", "tpu") else "rows"


def num_workers() -> int:
    """Return the number of cores that this process may use."""
    if hasattr(os, "sched_getaffinity"):
        return max(len(os.sched_getaffinity(0)), 1)
    return os.cpu_count() or 1


def side_by_side(
    function: Callable[..., T], arguments: Iterable[tuple[object, ...]]
) -> Iterator[T]:
    """Yield a function's result for each tuple of arguments, in order, computed by one process per core.

    A process starts in half a second if the function's module does not import JAX. The function's errors are raised.
    """
    pool = joblib.Parallel(
        n_jobs=num_workers(), return_as="generator", initializer=_end_with, initargs=(os.getpid(),)
    )
    results: Generator[T] = pool(joblib.delayed(function)(*values) for values in arguments)
    try:
        for result in results:  # noqa: UP028 - it would close the results before the filter stands
            yield result
    finally:
        with warnings.catch_warnings():  # of results that nobody asks for any more
            warnings.simplefilter("ignore")
            results.close()


def _end_with(parent: int) -> None:
    """Make this process exit soon after its parent, which may be killed without notice."""

    def watch() -> None:
        while os.getppid() == parent:
            time.sleep(1.0)
        os._exit(1)

    threading.Thread(target=watch, daemon=True).start()


def num_devices() -> int:
    """Return the number of devices that share the rows of a call in lanes: all that JAX uses in this process.

    It is one where `jax_default_device` names a device.
    """
    settings: Any = jax.config
    return 1 if settings.jax_default_device is not None else len(jax.local_devices())
