"""Saved sweeps in the layout of `surrogate.data`: every strategy at every place of the grid is a point.

Inputs are what differs: the axes of the grid, and of fewer than FEWEST_POINTS strategies which one it is, else the
settings in which they differ. A point's fingerprint says its role, so that it has the same one in every collection.
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import xarray as xr
import yaml

from blis_jax.errors import ConfigError
from blis_jax.files.atomic_write import fingerprint
from blis_jax.metrics import further  # noqa: F401  (registers metrics that datasets have)
from blis_jax.metrics.metric import ALL, name_in
from blis_jax.metrics.scalars import lookup
from blis_jax.results.dataset import refuse_unlike
from blis_jax.statistics.pooled import values_of
from blis_jax.traces.source import STREAM
from surrogate.columns import FEWEST_POINTS, UNLIMITED_SETTINGS, InputColumn, to_json

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
    """Return the points of all sweeps as a dataset; a point that two have counts once.

    Raises:
        ConfigError: the sweeps are not of the same requests, or their points are too few or do not differ.
    """
    refuse_unlike(paths, sweeps)
    first = sweeps[0]
    _refuse_lacking(paths, sweeps)
    classes = [str(name) for name in first["slo_class"].values]
    names = [*OF_RUN, *(name_in(name, one) for one in classes for name in OF_CLASS)]
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
    """Refuse a sweep that does not vary what another does of the workload: its settings do not have it."""
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
    """Return what a point's cluster and workload have, by setting."""
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
