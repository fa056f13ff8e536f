"""The arms and workload that a hypothesis needs, and their runs on every seed."""

from __future__ import annotations

import dataclasses
import platform
import re
import subprocess
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from types import MappingProxyType
from typing import TYPE_CHECKING, Any

import jax
import numpy as np

from blis_jax.cluster.config import ClusterConfig
from blis_jax.core.outcome import WHOLE_NAMES
from blis_jax.errors import ConfigError
from blis_jax.files.atomic_write import version_of
from blis_jax.files.content import digest
from blis_jax.metrics.compiled import RunFigures
from blis_jax.metrics.measure import Measure, window_of
from blis_jax.metrics.metric import name_in
from blis_jax.metrics.run_summary import RunSummary, Tails, kept_tails, lives_of
from blis_jax.metrics.scalars import pooled_latency
from blis_jax.metrics.summaries import ALL, select
from blis_jax.policies.seeds import ALL_ALIKE, BY_WORKLOAD
from blis_jax.statistics.pooled import contributions_ms, only, whole
from blis_jax.workload.spec import WorkloadSpec
from sweeps.claims.grammar import reported_names
from sweeps.claims.judge import Figures
from sweeps.claims.words import REFERENCE_RUNS
from sweeps.ledger.hypothesis import ArmRecord, Hypothesis, WorkloadRecord
from sweeps.runs.experiment import Experiment
from sweeps.runs.measured import metric_values, pooled_tails
from sweeps.runs.requests import StudyRequests
from sweeps.strategies.arms import arm_of, key_of, settings_of
from sweeps.strategies.moved import changed
from sweeps.tracks.problem import workload_named

if TYPE_CHECKING:
    from blis_jax.records.record import RunRecord

STRATEGY, BASELINE, REFERENCE = "strategy", "baseline", "reference"
RATE = "rate"
POOLED = {"ttft": "pooled_ttft_p99_ms", "e2e": "pooled_e2e_p99_ms"}
ALSO_REPORTED = ("scheduling_delay_p99_ms", "num_rejected", "duration_s")
CONFIGS_PER_BATCH = 4
FATES = ("instance", "status", "ttft_us", "e2e_us")


@dataclass(frozen=True)
class ArmRuns:
    """One arm on every seed."""

    outcomes: tuple[str, ...]
    figures: Figures
    num_broken_invariants: int
    tails: Mapping[str, Tails]  # by the name of the pooled metric that they are for
    fates: tuple[np.ndarray, ...]  # per seed: what became of each request, [request, fact]


def config_of(settings: Mapping[str, Any]) -> ClusterConfig:
    """Return the cluster configuration that recorded settings give."""
    values = {k: tuple(v) if isinstance(v, list) else v for k, v in settings.items()}
    return changed(ClusterConfig(), values)


def arm_record(text: str) -> ArmRecord:
    """Return an arm as records hold it: its text, strategy, settings and their hash."""
    arm = arm_of(text)
    settings = settings_of(arm.config)
    name = arm.strategy.name if arm.strategy is not None else arm.name
    return ArmRecord(text=text, strategy=name, settings=settings, hash=digest(settings))


def arm_records(
    strategy: str, baseline: str, reference: str | None, over: str
) -> dict[str, ArmRecord]:
    """Return the arms that a hypothesis needs, by role; those along a setting by `NAME=VALUE`."""
    arms = {STRATEGY: arm_record(strategy), BASELINE: arm_record(baseline)}
    if reference:
        arms[REFERENCE] = arm_record(reference)
    name, values = levels_of(over)
    for value in values:
        text = (
            strategy
            if name == RATE
            else f"{strategy}{';' if ':' in strategy else ':'}{name}={value}"
        )
        arms[f"{name}={value}"] = arm_record(text)
    return arms


def levels_of(over: str) -> tuple[str, tuple[str, ...]]:
    """Read the name and the values in `NAME=V1,V2,…`; both are empty for an empty text.

    Raises:
        ConfigError: the text has another form, a value twice, or a rate that is not above 0.
    """
    if not over:
        return "", ()
    match = re.fullmatch(r"([A-Za-z_][\w.-]*)=([^,]+(?:,[^,]+)+)", over.strip())
    if match is None:
        raise ConfigError(f"--over: {over!r} is not NAME=V1,V2,… with two values or more")
    values = tuple(value.strip() for value in match[2].split(","))
    if len(set(values)) != len(values):
        raise ConfigError(f"--over: {over!r} has a value twice; give each once")
    for value in values if match[1] == RATE else ():
        if not re.fullmatch(r"\d+(\.\d+)?", value) or float(value) <= 0:
            raise ConfigError(f"--over: {value!r} is no rate; give requests per second above 0")
    return match[1], values


def workload_record(name: str, folder: Path, rate: float | None) -> WorkloadRecord:
    """Return a workload as records hold it: its name, hash and rate."""
    spec = workload_named(name, folder, rate)
    return WorkloadRecord(name=name, hash=workload_hash(spec), rate=rate)


def workload_hash(spec: WorkloadSpec) -> str:
    """Return a hash that is equal for workloads that draw the same requests from a seed."""
    return digest(spec.model_dump(mode="json"))


def spec_of(hypothesis: Hypothesis, folder: Path, rate: float | None = None) -> WorkloadSpec:
    """Return the workload of a hypothesis, at another rate if `rate` is given.

    Raises:
        ConfigError: the workload has changed since the hypothesis was written.
    """
    assert hypothesis.workload is not None
    recorded = hypothesis.workload
    spec = workload_named(recorded.name, folder, recorded.rate)
    if workload_hash(spec) != recorded.hash:
        raise ConfigError(
            f"{hypothesis.id}: the workload {recorded.name} has changed since the hypothesis was "
            "written; restore it, or plan again under another id"
        )
    return spec if rate is None else workload_named(recorded.name, folder, rate)


Asked = Sequence[tuple[Experiment, Mapping[str, ClusterConfig]]]  # what is to be run, by role
Known = Mapping[str, Sequence[RunSummary]]  # runs that are there, by `Experiments.key_of`


class Experiments:
    """Keep one experiment for each workload, seeds and metrics, so that rows share requests and compiled programs."""

    def __init__(self, extra: Sequence[str] = (), known: Known = MappingProxyType({})) -> None:
        """Take `extra`, metrics besides those that every row reports, and `known`, runs that are not made again."""
        self.extra, self.known = tuple(extra), known
        self._kept: dict[Any, Experiment] = {}
        self._names: dict[Experiment, str] = {}

    def of(
        self,
        spec: WorkloadSpec,
        seeds: Sequence[int],
        stream: str,
        names: Sequence[str],
        window: str | None = None,
        policy_seeds: str = BY_WORKLOAD,
    ) -> Experiment:
        """Return the experiment on a workload that also keeps the metrics `names`; the same one for equal arguments."""
        all_names = (*reported_names(spec), *ALSO_REPORTED, *self.extra, *names)
        wanted = tuple(name for name in dict.fromkeys(all_names) if pooled_latency(name) is None)
        key = workload_hash(spec), tuple(seeds), stream, wanted, window, policy_seeds
        if key not in self._kept:
            self._kept[key] = Experiment(
                StudyRequests(spec, tuple(seeds), stream),
                wanted,
                window=window,
                configs_per_batch=CONFIGS_PER_BATCH,
                policy_seeds=policy_seeds,
            )
            self._names[self._kept[key]] = digest([*key[:1], *map(str, key[1:])])[:16]
        return self._kept[key]

    def key_of(self, experiment: Experiment, config: ClusterConfig) -> str:
        """Return a text that is equal for equal configurations on equal requests with equal kept metrics."""
        return f"{self._names[experiment]}-{key_of(config)}"

    def run(self, experiment: Experiment, configs: Sequence[ClusterConfig]) -> list[ArmRuns]:
        """Run every configuration on every seed as `run_arms` does; runs in `known` are not made again."""
        keys = {config: self.key_of(experiment, config) for config in configs}
        known = {config: self.known[key] for config, key in keys.items() if key in self.known}
        return run_arms(experiment, configs, known)


@dataclass(frozen=True)
class RowFigures:
    """Reduce a run's record to the figures that a row keeps; can be pickled for another machine."""

    figures: RunFigures
    measure: Measure
    classes: tuple[str, ...]

    @classmethod
    def of(cls, experiment: Experiment) -> RowFigures:
        """Return the reducer for the runs of an experiment."""
        classes = tuple(experiment.requests.source.slo_classes)
        return cls(experiment.result, experiment.measure, classes)

    def __call__(self, record: RunRecord) -> RunSummary:
        """Return the figures that a row keeps of one run."""
        summary = dataclasses.replace(self.figures(record), lives=lives_of(record, FATES))
        if not summary.is_whole:
            return summary
        measured = select(record, window=window_of(self.measure, record))
        return dataclasses.replace(summary, tails=kept_tails(measured, self.classes))


def run_arms(
    experiment: Experiment,
    configs: Sequence[ClusterConfig],
    known: Mapping[ClusterConfig, Sequence[RunSummary]] = MappingProxyType({}),
) -> list[ArmRuns]:
    """Run every configuration on every seed; equal configurations are run once, and runs in `known` not at all."""
    missing = [config for config in dict.fromkeys(configs) if config not in known]
    made = experiment.summaries(missing, RowFigures.of(experiment)) if missing else []
    runs, classes = (
        {**known, **dict(zip(missing, made, strict=True))},
        experiment.requests.source.slo_classes,
    )
    return [_arm_runs(experiment.names, classes, runs[config]) for config in configs]


def _arm_runs(names: Sequence[str], classes: Sequence[str], runs: Sequence[RunSummary]) -> ArmRuns:
    pooled = [name_in(name, of) for name in POOLED.values() for of in (ALL, *classes)]
    return ArmRuns(
        outcomes=tuple(run.outcome.name for run in runs),
        figures={name: metric_values(runs, name) for name in names},
        num_broken_invariants=sum(run.num_broken_invariants for run in runs),
        tails={name: pooled_tails(runs, name) for name in pooled},
        fates=tuple(run.lives for run in runs if run.lives is not None),
    )


def with_pooled(runs: Mapping[str, ArmRuns]) -> dict[str, Figures]:
    """Return the figures of every arm, with each seed's contribution to the pooled percentiles.

    Only seeds on which the runs of all arms finished are pooled.
    """
    is_common = np.all(
        [whole(tails) for arm in runs.values() for tails in arm.tails.values()], axis=0
    )
    return {
        role: {
            **arm.figures,
            **{name: contributions_ms(only(tail, is_common)) for name, tail in arm.tails.items()},
        }
        for role, arm in runs.items()
    }


def num_changed(arm: ArmRuns, reference: ArmRuns) -> np.ndarray:
    """Count per seed the requests with another instance, end, TTFT or E2E latency; NaN for unfinished runs."""
    counts = np.full(len(arm.fates), np.nan)
    for place, outcomes in enumerate(zip(arm.outcomes, reference.outcomes, strict=True)):
        if all(outcome in WHOLE_NAMES for outcome in outcomes):
            differs = arm.fates[place] != reference.fates[place]
            counts[place] = np.count_nonzero(differs.any(axis=1))
    return counts


def arms_asked(
    hypothesis: Hypothesis, folder: Path, experiments: Experiments, policy_seeds: str = BY_WORKLOAD
) -> Asked:
    """Return a hypothesis's experiments and configurations, by role or `NAME=VALUE`; see `run_hypothesis`."""

    def on(spec: WorkloadSpec) -> Experiment:
        return experiments.of(spec, hypothesis.seeds, stream, names, policy_seeds=policy_seeds)

    spec = spec_of(hypothesis, folder)
    stream = "reference" if hypothesis.evidence == REFERENCE_RUNS else "jax"
    names = [name for claim in _claims(hypothesis) for name in claim.names]
    name, values = levels_of(hypothesis.over)
    rates = {f"{name}={value}": float(value) for value in values} if name == RATE else {}
    configs = {role: config_of(arm.settings) for role, arm in hypothesis.arms.items()}
    others = {role: config for role, config in configs.items() if role not in rates}
    at_rates = [
        (on(spec_of(hypothesis, folder, rate)), {role: configs[role]})
        for role, rate in rates.items()
    ]
    return [(on(spec), others), *at_rates]


def run_hypothesis(
    hypothesis: Hypothesis, folder: Path, experiments: Experiments, policy_seeds: str = BY_WORKLOAD
) -> dict[str, ArmRuns]:
    """Run every arm, by role or `NAME=VALUE`; `policy_seeds` is the rule that seeds random policies."""
    runs: dict[str, ArmRuns] = {}
    for experiment, configs in arms_asked(hypothesis, folder, experiments, policy_seeds):
        made = experiments.run(experiment, list(configs.values()))
        runs |= zip(configs, made, strict=True)
    return runs


def policy_seeds_of(result: Mapping[str, Any]) -> str:
    """Return the rule that seeded random policies; results of the first version do not state theirs."""
    return str(result.get("policy_seeds", ALL_ALIKE))


def _claims(hypothesis: Hypothesis) -> tuple[Any, ...]:
    return hypothesis.claims + hypothesis.published_claims


def versions() -> dict[str, str]:
    """Return the versions of the packages, the backend, and the commit of the code if it is in a repository."""
    version_by_package = {
        "blis_jax": version_of("blis-jax"),
        "jax": jax.__version__,
        "numpy": np.__version__,
        "python": platform.python_version(),
        "backend": jax.default_backend(),
    }
    commit = _commit()
    return version_by_package | ({"commit": commit} if commit else {})


def _commit() -> str:
    """Return the commit, followed by + if the code has uncommitted changes; empty outside of a repository."""
    root = Path(__file__).resolve().parents[2]
    commit = (git_says(root, "rev-parse", "HEAD") or b"").decode().strip()
    if not commit:
        return ""
    code = ("blis_jax", "sweeps")
    changes = git_says(root, "status", "--porcelain", "--untracked-files=all", "--", *code)
    return commit + ("+" if changes else "")


def git_says(folder: Path, *words: str) -> bytes | None:
    """Return the output of a git command; None if the command fails."""
    try:
        done = subprocess.run(
            ["git", "-C", str(folder), *words], capture_output=True, timeout=60, check=False
        )
    except (OSError, subprocess.TimeoutExpired):
        return None
    return done.stdout if done.returncode == 0 else None
