"""The dataset that a surrogate learns from: what a store must hold, and how it is read.

A `.zarr` with the dims `point`, `parameter`, `seed` and `metric`: `inputs[point, parameter]`,
categorical ones as places of their values; `value[point, seed, metric]`, NaN where there is no run
or it did not come to its end; `outcome[point, seed]`, an outcome's code, NOT_RUN or NOT_PLANNED;
`role[point]`, one of ROLES, of BRANCH_ROLES (a limit is off) or BASELINE; `is_other_seed[seed]`, seeds
that nothing is fitted to. Rows of the baseline have every seed once, with `run_seed[point, seed]` and
`covariates[point, seed, covariate]`. The attribute `parameters` has the columns as JSON.
`sweeps.dataset` writes such stores; sweeps of `blis_jax.sweep` are read as such.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from blis_jax.errors import ConfigError, refusing_damage
from blis_jax.results.dataset import load_or_refuse
from blis_jax.results.schema import NOT_RUN, SWEEP
from surrogate.columns import FEWEST_POINTS, InputColumn, from_json
from surrogate.saved_sweeps import as_points

if TYPE_CHECKING:
    import xarray as xr

KIND = "surrogate dataset"
OWN_KIND = "surrogate dataset of own seeds"
TRAIN, CALIBRATION, TEST = ROLES = ("train", "calibration", "test")
BRANCH_CALIBRATION, BRANCH_TEST = BRANCH_ROLES = ("branch calibration", "branch test")
BRANCH = {CALIBRATION: BRANCH_CALIBRATION, TEST: BRANCH_TEST}
BASELINE = "baseline"  # runs of the baseline, every seed once
NOT_PLANNED = -2  # code beside the outcomes and NOT_RUN
FAILED = "failed_share"  # output made here: the share of runs that did not come to their end
WHOLE_CODES = (0, 1)  # completed, or ended by the horizon
_NAMES = ("strategy", "identity", "population", "world", "workload")
WANTED = "the .zarr that sweeps.dataset or blis_jax.sweep writes"


@dataclass(frozen=True)
class Part:
    """The points of one role: `inputs[point, column]` and `runs[point, seed, output]`."""

    inputs: np.ndarray
    runs: np.ndarray

    @property
    def means(self) -> np.ndarray:
        """Return the means over the seeds that were run, `[point, output]`."""
        return np.asarray(np.nanmean(self.runs, axis=1))

    def with_others(self, other: Part) -> Part:
        """Return these points, then those of another part on the same seeds."""
        if not len(other.inputs):
            return self
        runs = np.concatenate([self.runs, other.runs])
        return Part(np.concatenate([self.inputs, other.inputs]), runs)


@dataclass(frozen=True)
class SeedTable:
    """The known facts of seeds: their requests in numbers, and the runs of the baseline on them."""

    seeds: np.ndarray  # [seed]
    covariates: np.ndarray  # [seed, covariate]
    baseline: np.ndarray  # [seed, output]
    name: str  # of the baseline

    def places(self, seeds: np.ndarray) -> np.ndarray:
        """Return where seeds are in the table; all of them must be there."""
        order = np.argsort(self.seeds)
        return np.asarray(order[np.searchsorted(self.seeds, seeds, sorter=order)])

    def of(self, is_chosen: np.ndarray) -> SeedTable:
        """Return the table of some of the seeds."""
        chosen = (self.seeds[is_chosen], self.covariates[is_chosen], self.baseline[is_chosen])
        return SeedTable(*chosen, self.name)


@dataclass(frozen=True)
class Data:
    """A dataset in memory; `other` has the test points that were also run on other seeds."""

    columns: tuple[InputColumn, ...]
    outputs: tuple[str, ...]
    units: tuple[str, ...]
    train: Part
    calibration: Part
    test: Part
    other: Part
    branch_calibration: Part
    branch_test: Part
    seeds: SeedTable | None
    pool: np.ndarray  # the seeds that all points share
    num_left_out: int  # points without any run that came to its end
    num_runs: int
    name: str = ""
    about: str = ""  # equal for the same points on the same seeds
    population: str = ""  # equal for other points of the same space on the same seeds
    world: str = ""  # equal for other points of the same space on any seeds
    workload: str = ""  # as JSON
    stream: str = "jax"  # who draws its requests
    baseline: Mapping[str, Any] = field(default_factory=dict)  # its settings, if they are known
    targets: Mapping[str, Any] = field(
        default_factory=dict
    )  # SLO targets in ms by class; none: the default ones


def load_data(path: str | Path, roles: Sequence[str] = ROLES) -> Data:
    """Read a dataset; refuse one that is none, or in which points of `roles` are not finished."""
    return load_all([path], roles)


def load_all(paths: Sequence[str | Path], roles: Sequence[str] = ROLES) -> Data:
    """Read a dataset, or saved sweeps of the same requests as one.

    Raises:
        ConfigError: a path has neither, several are no sweeps, or points of `roles` are too few or not finished.
    """
    first = Path(paths[0])
    with refusing_damage(first, "make the dataset again"):
        return _data_of(first, _dataset_at([Path(path) for path in paths]), roles)


def _dataset_at(paths: Sequence[Path]) -> xr.Dataset:
    for path in paths:
        if not path.exists():
            raise ConfigError(f"{path} does not exist; give {WANTED}")
    datasets = [load_or_refuse(path, "make it again") for path in paths]
    kinds = [dataset.attrs.get("kind") for dataset in datasets]
    for path, kind in zip(paths, kinds, strict=True):
        if kind not in (KIND, SWEEP):
            raise ConfigError(f"{path} is something else; give {WANTED}")
    if KIND not in kinds:
        return as_points(paths, datasets)
    if len(paths) > 1:
        raise ConfigError(
            f"{paths[kinds.index(KIND)]} was made by sweeps.dataset, and such a dataset is learned from alone; give "
            "only it, or sweeps of blis_jax.sweep only"
        )
    return datasets[0]


def _data_of(path: Path, dataset: xr.Dataset, roles: Sequence[str]) -> Data:
    outcome = dataset["outcome"].values
    of_role = dataset["role"].values
    needed = {*roles, BASELINE, *(BRANCH[role] for role in roles if role in BRANCH)}
    num_left = int((outcome[np.isin(of_role, [*needed])] == NOT_RUN).sum())
    if num_left:
        raise ConfigError(
            f"{path} is not finished: {num_left} runs are missing; go on with --resume of the "
            "command that makes it"
        )
    columns = from_json(dataset.attrs["parameters"])
    names = [str(name) for name in dataset["metric"].values]
    units = [str(unit) for unit in dataset["unit"].values]
    values, names, units = with_failures(dataset["value"].values, outcome, names, units)
    inputs = dataset["inputs"].values
    is_other = dataset["is_other_seed"].values
    has_run = np.isin(outcome, WHOLE_CODES)
    is_usable = has_run[:, ~is_other].any(axis=1) & (outcome != NOT_RUN).all(axis=1)

    def part(is_chosen: np.ndarray, seeds: np.ndarray) -> Part:
        """Return some points on some seeds, without columns of seeds that none of them has."""
        chosen = values[is_chosen][:, seeds]
        return Part(inputs[is_chosen], _packed(chosen))

    parts = {
        role: part((of_role == role) & is_usable, ~is_other) for role in (*ROLES, *BRANCH_ROLES)
    }
    for role in roles:
        if len(parts[role].inputs) < FEWEST_POINTS:
            raise ConfigError(
                f"{path} has {len(parts[role].inputs)} {role} points with runs, at least {FEWEST_POINTS} "
                "are needed"
            )
    has_others = (of_role == TEST) & is_usable & has_run[:, is_other].any(axis=1)
    name, about, population, world, workload = (str(dataset.attrs.get(key, "")) for key in _NAMES)
    content = json.loads(dataset.attrs.get("content", "{}"))
    return Data(
        columns, tuple(names), tuple(units), parts[TRAIN], parts[CALIBRATION], parts[TEST],
        part(has_others, is_other), parts[BRANCH_CALIBRATION], parts[BRANCH_TEST],
        seed_table(dataset, values), np.asarray(dataset["seed"].values)[~is_other],
        int((~is_usable & (of_role != BASELINE)).sum()), int((outcome >= 0).sum()),
        name, about, population, world, workload,
        str(content.get("rng", "jax")), content.get("baseline") or {}, content.get("targets") or {},
    )  # fmt: skip


def seed_table(dataset: xr.Dataset, values: np.ndarray) -> SeedTable | None:
    """Return the baseline's rows of a dataset whose runs are `values[point, seed, output]`; None if it has none."""
    rows = dataset["role"].values == BASELINE
    if not rows.any():
        return None
    is_there = np.isin(dataset["outcome"].values[rows], WHOLE_CODES)
    return SeedTable(
        dataset["run_seed"].values[rows][is_there],
        dataset["covariates"].values[rows][is_there].astype(float),
        values[rows][is_there].astype(float),
        str(dataset.attrs["baseline"]),
    )


def with_failures(
    values: np.ndarray, outcome: np.ndarray, names: Sequence[str], units: Sequence[str]
) -> tuple[np.ndarray, list[str], list[str]]:
    """Add a further metric to values: 1 for a run that did not come to its end, else 0."""
    failed = np.where(outcome >= 0, ~np.isin(outcome, WHOLE_CODES), np.nan)
    return (
        np.concatenate([values, failed[..., None].astype(values.dtype)], axis=2),
        [*names, FAILED],
        [*units, "1"],
    )


def _packed(values: np.ndarray) -> np.ndarray:
    """Return the runs of every point, without the seeds that no point has."""
    has_any = ~np.isnan(values).all(axis=2)
    if not has_any.size:
        return values
    return values[:, has_any.any(axis=0)]
