"""The dataset that a surrogate learns from, and saved sweeps in its layout."""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np
import xarray as xr
import yaml

from blis_jax.errors import ConfigError, refusing_damage
from blis_jax.files.atomic_write import fingerprint
from blis_jax.metrics import further  # noqa: F401  (registers metrics that datasets have)
from blis_jax.metrics.metric import ALL, name_in
from blis_jax.metrics.scalars import lookup
from blis_jax.results.dataset import load_or_refuse, refuse_unlike
from blis_jax.results.schema import NOT_RUN, SWEEP
from blis_jax.statistics.pooled import values_of
from blis_jax.traces.source import STREAM
from surrogate.columns import FEWEST_POINTS, UNLIMITED_SETTINGS, InputColumn, from_json, to_json

if TYPE_CHECKING:
    import xarray as xr


# --- the dataset that a surrogate learns from ----------------------------------------------------


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
    """What is known of each seed: numbers that describe its requests, and the baseline's run on it."""

    seeds: np.ndarray  # [seed]
    covariates: np.ndarray  # [seed, covariate]
    baseline: np.ndarray  # [seed, output]
    name: str  # of the baseline

    def places(self, seeds: np.ndarray) -> np.ndarray:
        """Return the index of each seed in the table, which must have all of these seeds."""
        order = np.argsort(self.seeds)
        return np.asarray(order[np.searchsorted(self.seeds, seeds, sorter=order)])

    def of(self, is_chosen: np.ndarray) -> SeedTable:
        """Return the table with only the chosen seeds."""
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
    # SLO targets in ms by class; none: the default ones
    targets: Mapping[str, Any] = field(default_factory=dict)


def load_data(path: str | Path, roles: Sequence[str] = ROLES) -> Data:
    """Read a dataset; refuse a file that is no dataset, or whose points of `roles` are not finished."""
    return load_all([path], roles)


def load_all(paths: Sequence[str | Path], roles: Sequence[str] = ROLES) -> Data:
    """Read a dataset, or saved sweeps of the same requests as one.

    Raises:
        ConfigError: a path has neither, one of several is no sweep, or points of `roles` are too few or unfinished.
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


def refuse_unfinished(path: str | Path, outcomes: np.ndarray) -> None:
    """Refuse a dataset some of whose runs have no outcome yet."""
    if num_left := int((outcomes == NOT_RUN).sum()):
        raise ConfigError(
            f"{path} is not finished: {num_left} runs are missing; go on with --resume of the command that makes it"
        )


def _data_of(path: Path, dataset: xr.Dataset, roles: Sequence[str]) -> Data:
    outcome = dataset["outcome"].values
    of_role = dataset["role"].values
    needed = {*roles, BASELINE, *(BRANCH[role] for role in roles if role in BRANCH)}
    refuse_unfinished(path, outcome[np.isin(of_role, [*needed])])
    columns = from_json(dataset.attrs["parameters"])
    names = [str(name) for name in dataset["metric"].values]
    units = [str(unit) for unit in dataset["unit"].values]
    values, names, units = with_failures(dataset["value"].values, outcome, names, units)
    inputs = dataset["inputs"].values
    is_other = dataset["is_other_seed"].values
    has_run = np.isin(outcome, WHOLE_CODES)
    is_usable = has_run[:, ~is_other].any(axis=1) & (outcome != NOT_RUN).all(axis=1)

    def part(is_chosen: np.ndarray, seeds: np.ndarray) -> Part:
        """Return some points on some seeds, without seeds that none of these points has."""
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
    """Return the baseline's rows of a dataset whose runs are `values[point, seed, output]`; None without such rows."""
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
    """Append a metric to values, names and units: 1 for a run that did not come to its end, else 0."""
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


# --- saved sweeps in the layout of `surrogate.data` ----------------------------------------------


KIND_OF_ROLES = ("train", "train", "calibration", "test")  # by the last digit of a fingerprint
OF_RUN = ("tokens_per_sec", "jain_fairness", "preemption_rate", "cache_hit_rate")
OF_CLASS = (
    *(f"{latency}_{what}_ms" for latency in ("ttft", "e2e") for what in ("mean", "p50", "p90", "p99")),
    "requests_per_s", "goodput_rps", "attainment", "reject_rate",
)  # fmt: skip
WIDE = 32.0  # a range above 0 that spans such a factor is logarithmic
STRATEGY = "strategy"


class _Point(NamedTuple):
    """One strategy at one place of the grid of one sweep."""

    fingerprint: str
    strategy: str
    settings: Mapping[str, Any]
    place: Mapping[str, Any]
    values: np.ndarray  # [seed, metric]
    outcome: np.ndarray  # [seed]


def as_points(paths: Sequence[Path], sweeps: Sequence[xr.Dataset]) -> xr.Dataset:
    """Return the points of all sweeps as a dataset; a point that two sweeps have counts once.

    Raises:
        ConfigError: the sweeps are not of the same requests, or their points are too few or do not differ.
    """
    refuse_unlike(paths, sweeps)
    first = sweeps[0]
    _refuse_lacking(paths, sweeps)
    classes = [str(name) for name in first["slo_class"].values]
    names = [*OF_RUN, *(name_in(name, slo_class) for slo_class in classes for name in OF_CLASS)]
    points = {
        point.fingerprint: point for sweep in sweeps for point in _points(sweep, names)
    }.values()
    columns, inputs = _inputs(list(points))
    if not columns:
        raise ConfigError(
            f"{paths[0]}: its points differ in nothing to learn from; sweep a setting, such as "
            "--grid max_num_scheduled_tokens=512:4096:32"
        )
    values = np.stack([point.values for point in points])
    outcome = np.stack([point.outcome for point in points])
    is_known = ~np.isnan(values[np.isin(outcome, (0, 1))]).any(axis=0)
    kept = [name for name, known in zip(names, is_known, strict=True) if known]
    roles = [KIND_OF_ROLES[int(point.fingerprint, 16) % len(KIND_OF_ROLES)] for point in points]
    for role in dict.fromkeys(KIND_OF_ROLES):
        if roles.count(role) < FEWEST_POINTS:
            raise ConfigError(
                f"{paths[0]} has {len(roles)} points, of which {roles.count(role)} are for {role}, and {FEWEST_POINTS} "
                "are needed; sweep 100 points or more with --grid, or give further sweeps of the same requests"
            )
    about = {
        name: first.attrs[name] for name in ("seeds", "spec", "slo_targets", "measure", "profile")
    }
    is_drawn = first.attrs["random_stream"] != STREAM
    return xr.Dataset(
        {
            "inputs": (("point", "parameter"), inputs),
            "value": (("point", "seed", "metric"), values[..., is_known]),
            "outcome": (("point", "seed"), outcome),
        },
        {
            "parameter": [column.name for column in columns],
            "metric": kept,
            "unit": ("metric", [lookup(name)[0].unit for name in kept]),
            "seed": first["seed"].values,
            "is_other_seed": ("seed", np.zeros(first.sizes["seed"], bool)),
            "role": ("point", roles),
        },
        {
            "parameters": to_json(columns),
            "strategy": ", ".join(dict.fromkeys(point.strategy for point in points)),
            "identity": fingerprint([sorted(point.fingerprint for point in points), about, kept]),
            "population": fingerprint([to_json(columns), about]),
            "world": fingerprint([to_json(columns), about["spec"], about["profile"]]),
            "workload": json.dumps(yaml.safe_load(about["spec"])) if is_drawn else "",
        },
    )  # fmt: skip


def _refuse_lacking(paths: Sequence[Path], sweeps: Sequence[xr.Dataset]) -> None:
    """Refuse a sweep that does not vary a workload's setting that another sweep varies: its value is not saved."""
    axes = [{name for name in json.loads(sweep.attrs["grid"]) if "." in name} for sweep in sweeps]
    for path, there in zip(paths, axes, strict=True):
        for name in set().union(*axes) - there:
            raise ConfigError(
                f"{path} does not vary {name}, as another sweep does; sweep it there too"
            )


def _points(sweep: xr.Dataset, names: Sequence[str]) -> Iterator[_Point]:
    axes = json.loads(sweep.attrs["grid"])
    settings = json.loads(sweep.attrs["config"])
    dims = (STRATEGY, *axes)
    values = np.stack([_column(sweep, name, (*dims, "seed")) for name in names], axis=-1)
    outcome = sweep["outcome"].transpose(*dims, "seed").values
    fingerprints = sweep["fingerprint"].transpose(*dims).values
    for at in np.ndindex(*fingerprints.shape):
        name = str(sweep[STRATEGY].values[at[0]])
        place = {axis: axes[axis][i] for axis, i in zip(axes, at[1:], strict=True)}
        yield _Point(str(fingerprints[at]), name, settings[name], place, values[at], outcome[at])


def _column(sweep: xr.Dataset, name: str, dims: Sequence[str]) -> np.ndarray:
    """Return a metric, NaN where the sweep has not kept it."""
    metric, slo_class = lookup(name)
    try:
        values = values_of(sweep, metric.name)
    except KeyError:
        return np.full([sweep.sizes[dim] for dim in dims], np.nan)
    if "slo_class" in values.dims:
        values = values.sel(slo_class=slo_class or ALL)
    return np.asarray(values.transpose(*dims).values, float)


def _inputs(points: Sequence[_Point]) -> tuple[tuple[InputColumn, ...], np.ndarray]:
    """Return the columns in which points differ, and their codes `[point, column]`."""
    rows = [_values_of(point) for point in points]
    names = list(dict.fromkeys(name for row in rows for name in row))
    if len({point.strategy for point in points}) < FEWEST_POINTS:
        axes = {axis for point in points for axis in point.place}
        names = [STRATEGY, *(name for name in names if name in axes)]
        rows = [{STRATEGY: point.strategy, **row} for point, row in zip(points, rows, strict=True)]
    columns, codes = [], []
    for name in names:
        values = [_plain(row.get(name)) for row in rows]
        if len(set(values)) > 1:
            column = _column_of(name, values)
            columns.append(column)
            codes.append([column.code(value) for value in values])
    return tuple(columns), np.array(codes).T


def _values_of(point: _Point) -> dict[str, Any]:
    """Return a point's settings of cluster and workload, by name."""
    numbers = dict(point.settings.get("policy_numbers", ()))
    settings = {name: value for name, value in point.settings.items() if name != "policy_numbers"}
    return {**settings, **numbers, **point.place}


def _plain(value: Any) -> Any:
    return value if isinstance(value, int | float | str) else json.dumps(value)


def _column_of(name: str, values: Sequence[Any]) -> InputColumn:
    """Return the column of a setting that takes these values."""
    if not all(isinstance(value, int | float) and not isinstance(value, bool) for value in values):
        texts = sorted({str(value) for value in values})
        return InputColumn(name, "categorical", 0.0, len(texts) - 1.0, categories=tuple(texts))
    low, high = float(min(values)), float(max(values))
    is_whole = all(isinstance(value, int) for value in values)
    return InputColumn(
        name, "integer" if is_whole else "real", low, high, low > 0 and high >= WIDE * low,
        unlimited_at=0.0 if name in UNLIMITED_SETTINGS and low == 0 else None,
    )  # fmt: skip
