"""Workloads of measured runs that their collection names and does not write out."""

from __future__ import annotations

from blis_jax.errors import ConfigError
from blis_jax.predict.scene import LoadStage, StagedLoad


def _load(
    rates: tuple[float, ...], duration_s: float, users: int, prompt: int, output: int
) -> StagedLoad:
    return StagedLoad(tuple(LoadStage(rate, duration_s) for rate in rates), users, prompt, output)


# inference-perf's profiles with shared prefixes; every user sends one prompt again and again. Longer names first.
SHARED_PREFIX = {
    "general-lite": _load((2.5, 6.0), 600, 9 * 5, 100 + 447, 248),
    "reasoning-lite": _load((1.0,), 1200, 23 * 1, 100 + 934, 1448),
    "general": _load((8.0, 20.0), 600, 9 * 5, 100 + 447, 248),
    "codegen": _load((5.0, 10.0), 600, 11 * 4, 100 + 466, 247),
    "roleplay": _load((6.0,), 1200, 10 * 5, 150 + 600, 251),
}


def shared_prefix_load(run: str) -> tuple[str, StagedLoad]:
    """The workload that a run's name holds, and its load.

    Raises:
        ConfigError: it holds none that is known.
    """
    lower = run.lower()
    for name, load in SHARED_PREFIX.items():
        if name in lower:
            return name, load
    known = ", ".join(sorted(SHARED_PREFIX))
    raise ConfigError(f"run {run!r} names no known workload; its name must hold one of {known}")
