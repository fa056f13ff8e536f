"""Datasets whose response is a formula, for tests."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import xarray as xr

from blis_jax.results.dataset import save
from surrogate.columns import InputColumn, to_json
from surrogate.data import BASELINE, KIND, NOT_PLANNED, OWN_KIND, ROLES, Data, load_data
from surrogate.levels.model import COVARIATES

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
    effect = seed_effects(seeds)
    own = rng.normal(0.0, noise, (len(inputs), len(seeds)))
    runs = np.repeat(expected(inputs)[:, None, :], len(seeds), axis=1)
    runs[..., 0] *= np.exp(effect[None, :] + own)
    runs[..., 1] += 0.05 * (effect[None, :] + own)
    return runs


def covariates_of(seeds: np.ndarray) -> np.ndarray:
    """Requests whose first number tells half of what a seed does, `[..., covariate]`."""
    rng = np.random.default_rng(11)
    known = seed_effects(seeds) + rng.normal(0.0, 0.1, 2000)[seeds]
    found = np.zeros((*np.shape(seeds), len(COVARIATES)))
    found[..., 0] = 500 + 100 * known
    return found


def seed_effects(seeds: np.ndarray) -> np.ndarray:
    """What each seed does to every point, as a logarithm."""
    return np.random.default_rng(7).normal(0.0, 0.1, 2000)[seeds]


def _with_baseline(dataset: xr.Dataset, seeds: np.ndarray, noise: float) -> xr.Dataset:
    """With further rows, in which every seed has one run of the baseline."""
    width = dataset.sizes["seed"]
    every = seeds.reshape(-1, width)
    count = len(every)
    value = runs_at(np.array([[1.0, 0.0, 0.0]]), seeds, noise)[0].reshape(count, width, -1)
    rows = xr.Dataset(
        {
            "inputs": (("point", "parameter"), np.full((count, len(COLUMNS)), np.nan)),
            "value": (("point", "seed", "metric"), value.astype(np.float32)),
            "outcome": (("point", "seed"), np.zeros(every.shape, np.int8)),
            "run_seed": (("point", "seed"), every),
            "covariates": (("point", "seed", "covariate"), covariates_of(every)),
        },
        {"role": ("point", [BASELINE] * count)},
    )
    whole = dataset.drop_vars("role")
    filled = whole.assign(
        covariates=(
            ("point", "seed", "covariate"),
            np.full((*dataset["outcome"].shape, len(COVARIATES)), np.nan),
        )
    )
    if "run_seed" not in filled:
        shape = dataset["outcome"].shape
        filled["run_seed"] = (("point", "seed"), np.broadcast_to(seeds[:width], shape).copy())
    names = list(rows.data_vars)
    joined = xr.concat(
        [filled[names], rows.drop_vars("role")], "point", coords="minimal", compat="override"
    )
    joined = joined.assign_coords(role=("point", [*dataset["role"].values, *rows["role"].values]))
    return joined.assign_attrs(dataset.attrs | {"baseline": "made baseline"})


def write_own(
    path: Path, sizes: tuple[int, int, int] = (64, 128, 128), each: int = 8, deck: int = 256
) -> Path:
    """A dataset of own seeds, `each` a point of the decks of its role, that goes with one with a baseline."""
    rng = np.random.default_rng(5)
    count = sum(sizes)
    inputs = _inputs(rng, count)
    roles = np.repeat(ROLES, sizes)
    first = np.repeat(1000 + deck * np.arange(3), sizes)
    seeds = np.array([start + rng.permutation(deck)[:each] for start in first])
    value = np.stack([runs_at(inputs[row : row + 1], seeds[row], 0.02)[0] for row in range(count)])
    dataset = xr.Dataset(
        {
            "inputs": (("point", "parameter"), inputs),
            "value": (("point", "seed", "metric"), value.astype(np.float32)),
            "outcome": (("point", "seed"), np.zeros(seeds.shape, np.int8)),
            "run_seed": (("point", "seed"), seeds),
        },
        {
            "parameter": [column.name for column in COLUMNS],
            "metric": list(METRICS),
            "unit": ("metric", list(METRICS.values())),
            "role": ("point", roles.tolist()),
        },
        {"kind": OWN_KIND, "parameters": to_json(COLUMNS), "world": "made"},
    )
    save(_with_baseline(dataset, 1000 + np.arange(3 * deck), 0.02), path)
    return path


def _inputs(rng: np.random.Generator, count: int) -> np.ndarray:
    return np.stack(
        [rng.uniform(0.5, 2.0, count), rng.integers(0, 101, count), rng.integers(0, 2, count)],
        axis=1,
    )


def write(
    path: Path,
    sizes: tuple[int, int, int] = (96, 64, 64),
    num_seeds: int = 8,
    train_seeds: int = 4,
    noise: float = 0.02,
    random_state: int = 3,
    population: str = "made",
    has_baseline: bool = False,
) -> Path:
    """A dataset as `sweeps.dataset` writes it."""
    rng = np.random.default_rng(random_state)
    count = sum(sizes)
    inputs = _inputs(rng, count)
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
            "world": "made",
            "workload": json.dumps({"aggregate_rate": 2000.0}),
        },
    )
    if has_baseline:
        dataset = _with_baseline(dataset, np.arange(num_seeds), noise)
    save(dataset, path)
    return path


def data_at(folder: Path, **settings: object) -> Data:
    """Such a dataset, read."""
    return load_data(write(folder / "made.zarr", **settings))  # type: ignore[arg-type]
