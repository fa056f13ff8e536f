"""Datasets whose response is a formula, for tests."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import xarray as xr

from blis_jax.results.dataset import save
from surrogate.columns import InputColumn, to_json
from surrogate.data import KIND, NOT_PLANNED, ROLES, Data, load_data

COLUMNS = (
    InputColumn("load", "real", 0.5, 2.0, unit="1"),
    InputColumn("chunk", "integer", 0, 100, unlimited_at=0.0),
    InputColumn("order", "categorical", 0, 1, categories=("first", "last")),
)
METRICS = {"latency_ms": "ms", "share": "1", "rejections": "1"}


def expected(inputs: np.ndarray) -> np.ndarray:
    """The mean of latency and share over all seeds, `[point, metric]`; nothing is ever rejected."""
    load, chunk, order = inputs.T
    size = np.where(chunk == 0, 100.0, chunk)
    latency = 20.0 * np.exp(0.8 * load) * (1 + 3 / size) * (1 + 0.3 * order)
    share = 0.4 + 0.2 * load - 0.1 * order
    return np.stack([latency, share, np.zeros_like(load)], axis=1)


def runs_at(inputs: np.ndarray, seeds: np.ndarray, noise: float) -> np.ndarray:
    """Runs with an effect of the seed and noise of their own, `[point, seed, metric]`."""
    rng = np.random.default_rng([len(inputs), int(seeds.sum())])
    effect = np.random.default_rng(7).normal(0.0, 0.1, 1000)[seeds]
    own = rng.normal(0.0, noise, (len(inputs), len(seeds)))
    runs = np.repeat(expected(inputs)[:, None, :], len(seeds), axis=1)
    runs[..., 0] *= np.exp(effect[None, :] + own)
    runs[..., 1] += 0.05 * (effect[None, :] + own)
    return runs


def write(
    path: Path,
    sizes: tuple[int, int, int] = (96, 64, 64),
    num_seeds: int = 8,
    train_seeds: int = 4,
    noise: float = 0.02,
    random_state: int = 3,
    population: str = "made",
) -> Path:
    """A dataset as `sweeps.dataset` writes it."""
    rng = np.random.default_rng(random_state)
    count = sum(sizes)
    inputs = np.stack(
        [rng.uniform(0.5, 2.0, count), rng.integers(0, 101, count), rng.integers(0, 2, count)],
        axis=1,
    )
    value = runs_at(inputs, np.arange(num_seeds), noise)
    outcome = np.zeros(value.shape[:2], np.int8)
    for point in range(sizes[0]):
        left_out = rng.permutation(num_seeds)[train_seeds:]
        outcome[point, left_out] = NOT_PLANNED
    value[outcome == NOT_PLANNED] = np.nan
    dataset = xr.Dataset(
        {
            "inputs": (("point", "parameter"), inputs),
            "value": (("point", "seed", "metric"), value.astype(np.float32)),
            "outcome": (("point", "seed"), outcome),
        },
        {
            "parameter": [column.name for column in COLUMNS],
            "metric": list(METRICS),
            "unit": ("metric", list(METRICS.values())),
            "seed": np.arange(num_seeds),
            "is_other_seed": ("seed", np.zeros(num_seeds, bool)),
            "role": ("point", np.repeat(ROLES, sizes).tolist()),
        },
        {
            "kind": KIND,
            "parameters": to_json(COLUMNS),
            "strategy": "made",
            "identity": f"{sizes} {random_state}",
            "population": population,
        },
    )
    save(dataset, path)
    return path


def data_at(folder: Path, **settings: object) -> Data:
    """Such a dataset, read."""
    return load_data(write(folder / "made.zarr", **settings))  # type: ignore[arg-type]
