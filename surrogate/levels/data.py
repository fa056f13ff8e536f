"""Runs on seeds of their own, as `sweeps.dataset --own-seeds` writes them: `[point, run, output]`.

The layout is that of `surrogate.data`, but the dim `seed` has places only: `run_seed[point, seed]` are
the seeds. No seed of one role comes in another, and none in the pool of the dataset that goes with it.
"""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

import numpy as np

from blis_jax.errors import ConfigError, reads_store
from blis_jax.results.dataset import load_kind
from blis_jax.results.schema import NOT_RUN
from surrogate.data import (
    BRANCH_CALIBRATION,
    BRANCH_TEST,
    CALIBRATION,
    OWN_KIND,
    TEST,
    TRAIN,
    Data,
    SeedTable,
    seed_table,
    with_failures,
)


@dataclass(frozen=True)
class OwnPart:
    """Points of one role: inputs, runs `[point, run, output]`, places of their seeds in the table."""

    inputs: np.ndarray
    runs: np.ndarray
    at: np.ndarray  # [point, run]


@dataclass(frozen=True)
class OwnData:
    """A dataset of own seeds in memory; parts of the branch are in those of their kind."""

    train: OwnPart
    calibration: OwnPart
    test: OwnPart
    seeds: SeedTable
    num_runs: int
    world: str


@reads_store("make the dataset again")
def load_own(path: str | Path, data: Data) -> OwnData:
    """Reads the runs that go with a dataset; refuses those of another world, or on its pool's seeds."""
    dataset = load_kind(path, OWN_KIND, "the .zarr that sweeps.dataset --own-seeds writes")
    outcome, role = dataset["outcome"].values, dataset["role"].values
    num_left = int((outcome == NOT_RUN).sum())
    if num_left:
        raise ConfigError(
            f"{path} is not finished: {num_left} runs are missing; go on with --resume of the "
            "command that makes it"
        )
    world = str(dataset.attrs.get("world", ""))
    if data.seeds is None:
        raise ConfigError(
            f"{path} cannot be used with a dataset that has no baseline; make that again with the same --baseline"
        )
    if world != data.world:
        raise ConfigError(
            f"{path} is of another strategy, workload, baseline or version than the dataset; make "
            "both with the same options"
        )
    names = [str(name) for name in dataset["metric"].values]
    units = [str(unit) for unit in dataset["unit"].values]
    values, names, _ = with_failures(dataset["value"].values, outcome, names, units)
    seeds = seed_table(dataset, values)
    assert seeds is not None
    both = np.intersect1d(seeds.seeds, data.seeds.seeds)
    if len(both):
        raise ConfigError(
            f"{path} has seed {both[0]}, which the dataset has too; make it with another --first-seed"
        )
    run_seed, inputs = dataset["run_seed"].values, dataset["inputs"].values

    def part(*roles: str) -> OwnPart:
        """The points of some roles all of whose seeds have a run of the baseline."""
        chosen = np.isin(role, roles) & np.isin(run_seed, seeds.seeds).all(axis=1)
        return OwnPart(inputs[chosen], values[chosen], seeds.places(run_seed[chosen]))

    return OwnData(
        part(TRAIN), part(CALIBRATION, BRANCH_CALIBRATION), part(TEST, BRANCH_TEST), seeds,
        int((outcome >= 0).sum()), world,
    )  # fmt: skip
