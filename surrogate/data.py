"""The dataset that a surrogate learns from: what a store must hold, and how it is read.

A `.zarr` with the dims `point`, `parameter`, `seed` and `metric`: `inputs[point, parameter]`,
categorical ones as places of their values; `value[point, seed, metric]`, NaN where there is no run
or it did not come to its end; `outcome[point, seed]`, an outcome's code, NOT_RUN or NOT_PLANNED;
`role[point]`, one of ROLES; `is_other_seed[seed]`, seeds that nothing is fitted to. The attribute
`parameters` has the columns as JSON. `sweeps.dataset` writes such stores.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from blis_jax.errors import ConfigError, reads_store
from blis_jax.results.dataset import load_kind
from blis_jax.results.schema import NOT_RUN
from surrogate.columns import InputColumn, from_json

KIND = "surrogate dataset"
TRAIN, CALIBRATION, TEST = ROLES = ("train", "calibration", "test")
NOT_PLANNED = -2  # code beside the outcomes and NOT_RUN
FAILED = "failed_share"  # output made here: the share of runs that did not come to their end
WHOLE_CODES = (0, 1)  # completed, or ended by the horizon
FEWEST_POINTS = 16  # of each role


@dataclass(frozen=True)
class Part:
    """The points of one role: `inputs[point, column]` and `runs[point, seed, output]`."""

    inputs: np.ndarray
    runs: np.ndarray

    @property
    def means(self) -> np.ndarray:
        """Means over the seeds that were run, `[point, output]`."""
        return np.asarray(np.nanmean(self.runs, axis=1))


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
    num_left_out: int  # points without any run that came to its end
    num_runs: int
    name: str = ""
    about: str = ""  # equal for the same points on the same seeds
    population: str = ""  # equal for other points of the same space on the same seeds


@reads_store("make the dataset again")
def load_data(path: str | Path, roles: Sequence[str] = ROLES) -> Data:
    """Reads a dataset; refuses one that is none, or in which points of `roles` are not finished."""
    dataset = load_kind(path, KIND, "the .zarr that sweeps.dataset writes")
    outcome = dataset["outcome"].values
    of_role = dataset["role"].values
    num_left = int((outcome[np.isin(of_role, roles)] == NOT_RUN).sum())
    if num_left:
        raise ConfigError(
            f"{path} is not finished: {num_left} runs are missing; go on with --resume of the "
            "command that makes it"
        )
    columns = from_json(dataset.attrs["parameters"])
    names = [str(name) for name in dataset["metric"].values]
    units = [str(unit) for unit in dataset["unit"].values]
    values, names, units = _with_failures(dataset["value"].values, outcome, names, units)
    inputs = dataset["inputs"].values
    is_other = dataset["is_other_seed"].values
    has_run = np.isin(outcome, WHOLE_CODES)
    is_usable = has_run[:, ~is_other].any(axis=1) & (outcome != NOT_RUN).all(axis=1)

    def part(is_chosen: np.ndarray, seeds: np.ndarray) -> Part:
        """Some points on some seeds, without columns of seeds that none of them has."""
        chosen = values[is_chosen][:, seeds]
        return Part(inputs[is_chosen], _packed(chosen))

    parts = {role: part((of_role == role) & is_usable, ~is_other) for role in ROLES}
    for role in roles:
        if len(parts[role].inputs) < FEWEST_POINTS:
            raise ConfigError(
                f"{path} has {len(parts[role].inputs)} {role} points with runs, at least {FEWEST_POINTS} "
                "are needed"
            )
    has_others = (of_role == TEST) & is_usable & has_run[:, is_other].any(axis=1)
    return Data(
        columns, tuple(names), tuple(units), parts[TRAIN], parts[CALIBRATION], parts[TEST],
        part(has_others, is_other), int((~is_usable).sum()), int((outcome >= 0).sum()),
        str(dataset.attrs.get("strategy", "")), str(dataset.attrs.get("identity", "")),
        str(dataset.attrs.get("population", "")),
    )  # fmt: skip


def _with_failures(
    values: np.ndarray, outcome: np.ndarray, names: Sequence[str], units: Sequence[str]
) -> tuple[np.ndarray, list[str], list[str]]:
    """Values with a further metric: 1 for a run that did not come to its end."""
    failed = np.where(outcome >= 0, ~np.isin(outcome, WHOLE_CODES), np.nan)
    return (
        np.concatenate([values, failed[..., None].astype(values.dtype)], axis=2),
        [*names, FAILED],
        [*units, "1"],
    )


def _packed(values: np.ndarray) -> np.ndarray:
    """The runs of every point; where all have all seeds of some, the others are dropped."""
    has_any = ~np.isnan(values).all(axis=2)
    if not has_any.size:
        return values
    return values[:, has_any.any(axis=0)]
