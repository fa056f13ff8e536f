"""Saved sweeps as what a comparison judges: the runs of their Datasets in place of fresh ones."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import xarray as xr
import yaml

from blis_jax.commands import cli
from blis_jax.core.outcome import WHOLE, Outcome
from blis_jax.core.types import CLASS_NAMES
from blis_jax.errors import ConfigError, refusing_damage
from blis_jax.metrics.run_summary import RunSummary
from blis_jax.metrics.scalars import POOLED_LATENCIES, lookup, pooled_latency
from blis_jax.metrics.summaries import ALL
from blis_jax.results.dataset import FORMATS, load_kind, refuse_unlike
from blis_jax.results.schema import NOT_RUN, SWEEP
from blis_jax.statistics.compared import values_of
from blis_jax.traces.source import STREAM
from blis_jax.workload.spec import parse_spec
from sweeps.compare.document import CommonSetting, default_metrics
from sweeps.runs.experiment import Experiment, metrics_for
from sweeps.runs.options import ComparisonOptions, inference_of
from sweeps.runs.workloads import WORKLOAD_PREFIX
from sweeps.strategies.arms import Arm
from sweeps.strategies.file import converted
from sweeps.strategies.moved import config_of_record
from sweeps.strategies.reference_arguments import replaced

WANTED = "a Dataset of blis-jax sweep"
USED = {  # options that say how runs are judged and shown, not how they are made
    "arms", "criteria", "metrics", "confidence", "bootstrap", "random_state", "output", "figure", "report",
    "timeline", "overwrite", "quiet", "all", "no_cache",
}  # fmt: skip


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
            ConfigError: the points have other requests each, or settings that are not known here.
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
        """Return a metric of single runs `[point, seed]`; None if the Dataset has not kept it."""
        metric, slo_class = lookup(name)
        try:
            values = values_of(self.dataset, metric.name)
        except KeyError:
            return None
        if "slo_class" in values.dims:
            values = values.isel(slo_class=self._row(slo_class or ALL))
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
        columns = {name: self.column(name) for name in names}
        violations = self._by_point(self.dataset["invariant_violations"], "invariant").sum(axis=-1)
        tails = {latency: self._tails(latency) for latency in POOLED_LATENCIES}

        def _run(at: tuple[int, int]) -> RunSummary:
            outcome = Outcome(int(outcomes[at]))
            if outcome not in WHOLE:
                return RunSummary(outcome)
            return RunSummary(
                outcome,
                {name: float(values[at]) for name, values in columns.items() if values is not None},
                {"any": int(violations[at])} if violations[at] else {},
                {latency: {name: kept[at] for name, kept in of.items()} for latency, of in tails.items()},
            )  # fmt: skip

        points, seeds = outcomes.shape
        return [tuple(_run((point, seed)) for seed in range(seeds)) for point in range(points)]

    def _tails(self, latency: str) -> dict[str, np.ndarray]:
        """Return how many requests and the largest latencies, µs, `[point, seed, rank]`, by class."""
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


def sweeps_of(options: ComparisonOptions, texts: Sequence[str]) -> tuple[SavedSweep, ...]:
    """Return the Datasets, which must be of the same requests.

    Raises:
        ConfigError: an arm or an option is about runs, or a Dataset is damaged, no sweep's, or of other requests.
    """
    for text in texts:
        if Path(text).suffix not in FORMATS:
            raise ConfigError(
                f"{text!r} is an arm to run beside a Dataset of runs; give Datasets alone, or arms alone"
            )
    for name in options.given():
        if name not in USED:
            raise ConfigError(
                f"--{name.replace('_', '-')} says how arms are run, but {texts[0]} has its runs; leave it out, "
                "or name the arms"
            )
    sweeps = tuple(SavedSweep(Path(text), load_kind(text, SWEEP, WANTED)) for text in texts)
    refuse_unlike([sweep.path for sweep in sweeps], [sweep.dataset for sweep in sweeps])
    return sweeps


def setting_of(
    options: ComparisonOptions, sweeps: Sequence[SavedSweep], arms: Sequence[Arm]
) -> CommonSetting:
    """Return what the arms of saved sweeps have in common."""
    first = sweeps[0]
    attributes, classes = first.dataset.attrs, first.classes
    is_trace = attributes["random_stream"] == STREAM
    about: Mapping[str, Any] = yaml.safe_load(attributes["spec"])
    if is_trace and about["windows"] is None:
        raise ConfigError(
            f"{first.path} was made from one trace, and a Dataset does not keep the requests that such a comparison "
            "resamples; sweep with --trace-windows, or compare with --trace"
        )
    classes = () if is_trace and len(classes) == 1 else classes
    metrics = metrics_for(options.metrics, classes)
    names = metrics or default_metrics(classes, [arm.config for arm in arms])
    lacking = [name for name in names if not all(_has(sweep, name) for sweep in sweeps)]
    if metrics and lacking:
        raise ConfigError(
            f"--metrics: {first.path} does not contain {lacking[0]}; leave it out, or name the arms to run them"
        )
    return CommonSetting(
        workload=attributes["workload"],
        num_requests=about.get("num_requests"),
        classes=classes,
        seeds=first.seeds,
        stream=STREAM if is_trace else "jax",
        targets=json.loads(attributes["slo_targets"]),
        metrics=tuple(name for name in names if name not in lacking),
        inference=inference_of(options),
        trace=about if is_trace else None,
    )


def _has(sweep: SavedSweep, name: str) -> bool:
    latency = pooled_latency(name)
    if latency is not None:
        return f"{latency}_top_us" in sweep.dataset
    return sweep.column(name) is not None


def arms_of(sweeps: Sequence[SavedSweep], command: str) -> list[tuple[SavedSweep, int, Arm]]:
    """Return the arms of all Datasets, each with its Dataset and place; an arm that two Datasets have counts once.

    Raises:
        ConfigError: there is only one arm, or two different arms have one name.
    """
    arm_by_name: dict[str, tuple[SavedSweep, int, Arm]] = {}
    fingerprints: dict[str, str] = {}
    for sweep in sweeps:
        with refusing_damage(sweep.path, "sweep again"):
            arms = sweep.arms()
        for place, (arm, fingerprint) in enumerate(arms):
            if fingerprints.setdefault(arm.name, fingerprint) != fingerprint:
                raise ConfigError(
                    f"{sweep.path} and {arm_by_name[arm.name][0].path} have different arms named {arm.name!r}; "
                    "rename one strategy and sweep it again"
                )
            if arm.name in arm_by_name:
                cli.say(
                    command,
                    f"note: {sweep.path} has {arm.name} too; the runs of the first are taken",
                )
            else:
                arm_by_name[arm.name] = sweep, place, arm
    if len(arm_by_name) < 2:
        raise ConfigError(
            f"{sweeps[0].path} has one arm, {next(iter(arm_by_name))}, and nothing to compare it with; give another "
            "sweep of the same requests beside it"
        )
    return list(arm_by_name.values())


def experiment_of(setting: CommonSetting, sweep: SavedSweep) -> Experiment | None:
    """Return what makes a run of a saved sweep again, for its page; None where that takes a trace."""
    if setting.trace is not None:
        return None
    spec = parse_spec(sweep.dataset.attrs["spec"], str(sweep.path))
    return Experiment.on(spec, setting.seeds, setting.stream, targets=setting.targets)
