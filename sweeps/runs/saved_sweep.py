"""A sweep's Dataset as runs, which the sweep itself and a comparison of saved sweeps judge."""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from enum import IntEnum
from pathlib import Path
from typing import Any

import numpy as np

from blis_jax.core.outcome import WHOLE, Outcome
from blis_jax.core.types import CLASS_NAMES
from blis_jax.errors import ConfigError
from blis_jax.lazy import xarray as xr
from blis_jax.metrics.compiled import VIOLATIONS
from blis_jax.metrics.run_summary import RunSummary
from blis_jax.metrics.scalars import POOLED_LATENCIES, lookup, pooled_latency
from blis_jax.metrics.summaries import ALL
from blis_jax.results.schema import NOT_RUN, SWEEP
from blis_jax.statistics.pooled import values_of
from sweeps.runs.requests import WORKLOAD_PREFIX
from sweeps.strategies.arms import Arm
from sweeps.strategies.file import converted
from sweeps.strategies.moved import config_of_record, replaced


class Missing(IntEnum):
    """The code, besides the outcomes, of a run that was not made."""

    NOT_RUN = NOT_RUN


def totals_of(runs: Mapping[Any, Any] | np.ndarray) -> dict[str, Any]:
    """Return a sweep's totals over all its runs, from their table or Dataset; empty for other commands' Datasets."""
    if isinstance(runs, xr.Dataset) and runs.attrs["kind"] != SWEEP:
        return {}
    outcomes, ties, violations = (
        np.asarray(runs[name]) for name in ("outcome", "num_open_ties", "invariant_violations")
    )
    totals = violations.sum(axis=tuple(range(violations.ndim - 1)))
    return {
        "outcome_counts": json.dumps(outcome_counts(outcomes)),
        "invariant_violation_counts": json.dumps(
            dict(zip(VIOLATIONS, map(int, totals), strict=True))
        ),
        "num_open_ties_total": int(ties.sum()),
    }


def outcome_counts(outcomes: np.ndarray) -> dict[str, int]:
    """Return the number of runs by outcome, those not made included."""
    codes, counts = np.unique(outcomes, return_counts=True)
    return {
        "not_run" if code == NOT_RUN else Outcome(code).name.lower(): int(count)
        for code, count in zip(codes.tolist(), counts.tolist(), strict=True)
    }


@dataclass(frozen=True)
class SavedSweep:
    """One Dataset, its points in order."""

    path: Path
    dataset: xr.Dataset

    @property
    def seeds(self) -> tuple[int, ...]:
        """Return the seeds of the sweep's runs."""
        return tuple(self.dataset["seed"].values.tolist())

    @property
    def classes(self) -> tuple[str, ...]:
        """Return the sweep's SLO classes, the most urgent first."""
        there = [str(name) for name in self.dataset["slo_class"].values]
        order = [name for name in CLASS_NAMES if name != "default"] + ["default"]
        return tuple(name for name in order if name in there)

    @property
    def axes(self) -> dict[str, list[Any]]:
        """Return the values of each axis of the grid, by name."""
        axes: dict[str, list[Any]] = json.loads(self.dataset.attrs["grid"])
        return axes

    def arms(self) -> list[tuple[Arm, str]]:
        """Return the points as arms, and the fingerprint of each.

        Raises:
            ConfigError: the points differ in their requests, or have settings that this version lacks.
        """
        for name in self.axes:
            if name.startswith(WORKLOAD_PREFIX):
                raise ConfigError(
                    f"{self.path}: its points differ in {name}, so they have no common requests; compare "
                    "sweeps of one workload"
                )
        names = [str(name) for name in self.dataset["strategy"].values]
        written, axes = json.loads(self.dataset.attrs["config"]), list(self.axes.items())
        shape = (len(names), *(len(values) for _, values in axes))
        fingerprints = self.dataset["fingerprint"].transpose("strategy", *self.axes).values
        arms = []
        for at in np.ndindex(*shape):
            place = {name: values[i] for (name, values), i in zip(axes, at[1:], strict=True)}
            where = ", ".join(f"{name}={value}" for name, value in place.items())
            try:
                config = config_of_record(written[names[at[0]]])
                config = replaced(config, {name: converted(name, v) for name, v in place.items()})
            except ConfigError as error:
                raise ConfigError(f"{self.path}: {names[at[0]]}: {error}") from None
            label = " at ".join(filter(None, (names[at[0]], where)))
            arms.append(
                (Arm(where if where and len(names) == 1 else label, config), str(fingerprints[at]))
            )
        return arms

    def column(self, name: str) -> np.ndarray | None:
        """Return a metric of single runs `[point, seed]`; None if the Dataset lacks it."""
        metric, slo_class = lookup(name)
        dataset = self.dataset
        if pooled_latency(metric.name) is not None:  # which takes long: of the one class alone
            dataset = dataset.isel(slo_class=[self._row(slo_class or ALL)])
        try:
            values = values_of(dataset, metric.name)
        except KeyError:
            return None
        if "slo_class" in values.dims:
            values = values.sel(slo_class=slo_class or ALL)
        elif slo_class is not None:
            return None
        return self._by_point(values)

    def runs(self, names: Sequence[str]) -> list[tuple[RunSummary, ...]]:
        """Return the runs of each point, with these metrics of single runs."""
        outcomes = self._by_point(self.dataset["outcome"])
        num_missing = int((outcomes == NOT_RUN).sum())
        if num_missing:
            raise ConfigError(
                f"{self.path} lacks {num_missing} of {outcomes.size} runs; finish the sweep with --resume"
            )
        return list(self.runs_by_point(names))

    def runs_by_point(self, names: Sequence[str]) -> Iterator[tuple[RunSummary, ...]]:
        """Yield the runs point by point, runs not made included; all points at once may not fit into memory."""
        outcomes = self._by_point(self.dataset["outcome"])
        of_single = [name for name in names if pooled_latency(name) is None]
        columns = {name: self.column(name) for name in of_single}
        violations = self._by_point(self.dataset["invariant_violations"], "invariant").sum(axis=-1)
        tails = {latency: self._tails(latency) for latency in POOLED_LATENCIES}

        def run(at: tuple[int, int]) -> RunSummary:
            """Return the run at these indices of point and seed."""
            code = int(outcomes[at])
            if code not in WHOLE:
                return RunSummary(Missing.NOT_RUN if code == NOT_RUN else Outcome(code))
            return RunSummary(
                Outcome(code),
                {name: float(values[at]) for name, values in columns.items() if values is not None},
                {"any": int(violations[at])} if violations[at] else {},
                {latency: {name: kept[at] for name, kept in of.items()} for latency, of in tails.items()},
            )  # fmt: skip

        for point in range(len(outcomes)):
            yield tuple(run((point, seed)) for seed in range(len(self.seeds)))

    def _tails(self, latency: str) -> dict[str, np.ndarray]:
        """Return by class the number of requests, then the largest latencies, µs: `[point, seed, 1 + rank]`."""
        if f"{latency}_top_us" not in self.dataset:
            return {}
        tails = {}
        for name in (ALL, *self.classes):
            row = {"slo_class": self._row(name)}
            count = self._by_point(self.dataset[f"{latency}_count"].isel(row))
            largest = self._by_point(self.dataset[f"{latency}_top_us"].isel(row), "rank")
            tails[name] = np.concatenate([count[..., None], largest], axis=-1)
        return tails

    def _row(self, slo_class: str) -> int:
        return [str(name) for name in self.dataset["slo_class"].values].index(slo_class)

    def _by_point(self, values: xr.DataArray, *inner: str) -> np.ndarray:
        ordered = values.transpose("strategy", *self.axes, "seed", *inner).values
        return ordered.reshape(-1, len(self.seeds), *ordered.shape[len(self.axes) + 2 :])
