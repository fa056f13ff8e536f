"""Robustness maps made of chosen numbers, for tests."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
import xarray as xr

from blis_jax.core.outcome import Outcome
from sweeps.robustness.cells import KINDS
from sweeps.robustness.store import KIND

SEEDS = tuple(range(8))
# what the seeds do to all strategies alike, in parts of the mean
COMMON = np.array([-0.2, -0.12, -0.05, 0.0, 0.03, 0.08, 0.11, 0.15])
NOISE = np.array([0.4, -0.3, 0.1, -0.2, 0.2, -0.4, 0.3, -0.1])
METRICS = {"ttft_p99_ms": "ms", "tokens_per_sec": "1/s", "num_dropped": "1"}


def values(mean: float, noise: float = 0.001) -> np.ndarray:
    """One value a seed with that mean: common changes, and a part of the strategy's own."""
    shaken = mean * (1 + COMMON) + mean * noise * np.roll(NOISE, int(mean) % 7)
    return np.asarray(shaken - shaken.mean() + mean)


def made_map(
    cells: Sequence[Mapping[str, Any]],
    strategies: Sequence[str] = ("baseline", "tuned"),
) -> xr.Dataset:
    """A map with the cells given: axis values, and by strategy critical, sheddable and tokens a second.

    A strategy's entry may have `noise`, `outcome` (of its last seed) and `dropped`.
    """
    shape = (len(cells), len(strategies), len(SEEDS))
    latency = np.full((*shape, 3), np.nan)
    tokens, dropped = np.full(shape, np.nan), np.zeros((*shape, 3))
    outcome = np.full(shape, int(Outcome.COMPLETED), np.int8)
    for cell, entry in enumerate(cells):
        for arm, name in enumerate(strategies):
            one = entry[name]
            critical, sheddable, speed = one["means"]
            latency[cell, arm, :, 1] = values(critical, one.get("noise", 0.001))
            latency[cell, arm, :, 2] = values(sheddable)
            tokens[cell, arm] = values(speed)
            dropped[cell, arm, -1, 0] = one.get("dropped", 0)
            if "outcome" in one:
                outcome[cell, arm, -1] = one["outcome"]
                latency[cell, arm, -1] = tokens[cell, arm, -1] = np.nan
    dims = ("cell", "strategy", "seed")
    dataset = xr.Dataset(
        {
            "ttft_p99_ms": ((*dims, "slo_class"), latency),
            "tokens_per_sec": (dims, tokens),
            "num_dropped": ((*dims, "slo_class"), dropped),
            "outcome": (dims, outcome),
        },
        coords={
            "strategy": list(strategies),
            "seed": list(SEEDS),
            "slo_class": ["all", "critical", "sheddable"],
        },
        attrs={"kind": KIND, "reference_cell": json.dumps(place_of(cells[0]))},
    )
    for name, unit in METRICS.items():
        dataset[name].attrs["units"] = unit
    for kind in KINDS:
        dataset.coords[kind.name] = (
            "cell",
            np.array([place_of(cell)[kind.name] for cell in cells]),
        )
    return dataset


def place_of(cell: Mapping[str, Any]) -> dict[str, Any]:
    """The cell's axis values, the ledger's where it says nothing."""
    return {kind.name: cell.get(kind.name, kind.published) for kind in KINDS}


def cell(baseline: tuple[float, ...], tuned: tuple[float, ...], **further: Any) -> dict[str, Any]:
    """A cell of two strategies; `baseline_…` and `tuned_…` are further entries, the rest axis values."""
    made: dict[str, Any] = {"baseline": {"means": baseline}, "tuned": {"means": tuned}}
    for name, value in further.items():
        strategy, underscore, entry = name.partition("_")
        if strategy in ("baseline", "tuned") and underscore:
            made[strategy][entry] = value
        else:
            made[name] = value
    return made
