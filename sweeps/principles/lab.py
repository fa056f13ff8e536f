"""Figures of runs, and the arms of entries run once each on common seeds; or the reason why an arm cannot run."""

from __future__ import annotations

import json
import math
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from itertools import combinations
from typing import TYPE_CHECKING, Any

import numpy as np

import sweeps.claims.grammar  # noqa: F401  (registers the metrics of searches)
from blis_jax.cluster.config import ClusterConfig
from blis_jax.core.arrays import ratio
from blis_jax.core.outcome import WHOLE
from blis_jax.core.types import CLASS_NAMES
from blis_jax.errors import ConfigError
from blis_jax.metrics.kv import cached_tokens
from blis_jax.metrics.metric import (
    ALL,
    HIGHER,
    LOWER,
    MeasuredRequests,
    Metric,
    name_in,
    names_in,
    split_name,
)
from blis_jax.metrics.run_summary import RunSummary, kept_tails, lives_of
from blis_jax.metrics.scalars import lookup
from blis_jax.metrics.summaries import SloTargets, Target, select
from blis_jax.records.record import RunRecord, Status
from blis_jax.workload.spec import WorkloadSpec
from sweeps.principles.catalogue import (
    Catalogue,
    Entry,
    PrincipleClaim,
    WorkloadChoice,
    missing,
    workload_named,
)
from sweeps.runs.experiment import Experiment
from sweeps.runs.measured import metric_values
from sweeps.strategies.file import converted
from sweeps.strategies.moved import changed, is_setting

if TYPE_CHECKING:
    from jaxtyping import Float, Int

    from blis_jax.runs.driver import Runner


# --- what is kept of one run ----------------------------------------------------------------------


NUM_SHUFFLES = 200
SHUFFLE_SEED = 7
# budgets of the routing track's predictive admission, ms
TRACK_TARGETS = SloTargets(
    {
        "critical": Target(ttft_ms=200.0),
        "standard": Target(ttft_ms=500.0),
        "sheddable": Target(ttft_ms=300.0),
    }
)
POOLED = "pooled_ttft_p99_ms"
OF_ARM = ("ttft_p99_ms", "worst_ttft_p99_ms", "completion_rate", "rejected_share")
OF_CLASS = ("ttft_p99_ms", "completion_rate", "rejected_share")


def figures_of(record: RunRecord, names: Collection[str], keeps_requests: bool) -> RunSummary:
    """Return the named figures of a run; a name may end in `[class]`."""
    if record.outcome not in WHOLE:
        return RunSummary(record.outcome)
    classes = [CLASS_NAMES[code] for code in np.unique(record.requests.slo_class).tolist()]
    return RunSummary(
        record.outcome,
        {name: _value(record, name) for name in names},
        tails=kept_tails(select(record), classes),
        lives=lives_of(record) if keeps_requests else None,
    )


def pooled_figures(
    runs: Sequence[RunSummary], spec: WorkloadSpec
) -> dict[str, Float[np.ndarray, "seed"]]:
    """Return each seed's contribution to the TTFT P99 of all runs' pooled requests, of all and by class."""
    names = names_in([POOLED], (ALL, *spec.slo_classes))
    return {name: metric_values(runs, name) for name in names}


def _value(record: RunRecord, metric: str) -> float:
    metric_found, slo_class = metric_of(metric)
    return float(metric_found.compute(select(record, TRACK_TARGETS).of_name(slo_class or ALL)))


def reported_names(spec: WorkloadSpec) -> tuple[str, ...]:
    """Return the metrics that every check reports: both P99, completion and rejections, of all and by class."""
    return (*OF_ARM, *names_in(OF_CLASS, spec.slo_classes))


def metric_of(name: str) -> tuple[Metric, str | None]:
    """Return the metric and class of a name in the catalogue; refuse a name without a metric."""
    base, slo_class = split_name(name)
    return lookup(name_in(THEIR_NAMES.get(base, base), slo_class), OWN)


def _completion_rate(measured: MeasuredRequests) -> float:
    """Return completed ÷ all requests."""
    return float(ratio(measured.count(Status.COMPLETED), measured.num_requests, math.nan))


def _mean_waiting(record: RunRecord) -> float:
    """Wait-queue length in the mean over the steps begun until the last arrival."""
    steps = record.steps
    is_early = steps.start_us <= int(record.requests.arrival_us.max(initial=0))
    weight = np.where(is_early, steps.num_steps, 0)
    return float((steps.waiting * weight).sum() / weight.sum()) if weight.any() else 0.0


def _busiest_share(record: RunRecord) -> float:
    """Return requests of the busiest instance ÷ those of an instance in the mean: 1 is even."""
    instance = record.requests.instance
    counts = np.bincount(instance[instance >= 0], minlength=len(record.instances.step_count))
    return float(counts.max() / counts.mean()) if counts.any() else math.nan


def _same_instance_rate(record: RunRecord) -> float:
    """Return how often a request goes to the instance of the one before it."""
    instance = record.requests.instance[record.requests.instance >= 0]
    return float(np.mean(instance[1:] == instance[:-1])) if len(instance) > 1 else math.nan


def _load_swing(record: RunRecord) -> float:
    """Largest minus smallest number of requests on an instance ÷ their mean, over all arrivals."""
    requests = record.requests
    counts = []
    for instance in range(len(record.instances.step_count)):
        is_here = requests.instance == instance
        left = requests.left_us[is_here & (requests.left_us >= 0)]
        came = np.searchsorted(np.sort(requests.arrival_us[is_here]), requests.arrival_us, "right")
        counts.append(came - np.searchsorted(np.sort(left), requests.arrival_us, "right"))
    loads = np.array(counts)
    apart = loads.max(axis=0) - loads.min(axis=0)
    return float(apart.mean() / max(loads.mean(), 1e-9)) if loads.size else math.nan


def _utilization_spread(record: RunRecord) -> float:
    """Largest difference between two instances' KV utilisation, over the starts of all steps."""
    steps, total = record.steps, record.instances.total_kv_blocks
    order = np.argsort(steps.start_us, kind="stable")
    used = np.zeros(len(total))
    widest = 0.0
    for instance, blocks in zip(steps.instance[order], steps.used_blocks[order], strict=True):
        used[instance] = blocks / total[instance]
        widest = max(widest, float(used.max() - used.min()))
    return widest


def _phantom_request_rate(record: RunRecord) -> float:
    """Scheduled requests that found fewer cached tokens than the router predicted ÷ scheduled ones."""
    is_scheduled = record.requests.first_sched_delay_us >= 0
    is_phantom = cached_tokens(record).phantom > 0
    return float(is_phantom.sum() / is_scheduled.sum()) if is_scheduled.any() else math.nan


def information(
    first: Int[np.ndarray, "request"], second: Int[np.ndarray, "request"]
) -> tuple[float, float]:
    """Return the mutual information of two labels and the entropy of the first, in bits."""
    joint = np.zeros((first.max(initial=0) + 1, second.max(initial=0) + 1))
    np.add.at(joint, (first, second), 1.0 / max(len(first), 1))
    of_first, of_second = _entropy(joint.sum(1)), _entropy(joint.sum(0))
    return of_first + of_second - _entropy(joint.ravel()), of_first


def _entropy(shares: Float[np.ndarray, "label"]) -> float:
    shares = shares[shares > 0]
    return float(-(shares * np.log2(shares)).sum())


def _token_hit_rate(record: RunRecord) -> float:
    """Prompt tokens found in the cache ÷ prompt tokens of the scheduled requests."""
    is_scheduled = record.requests.first_sched_delay_us >= 0
    prompts = int(record.requests.input_len[is_scheduled].sum())
    return int(cached_tokens(record).actual.sum()) / prompts if prompts else math.nan


def _routed(record: RunRecord) -> tuple[np.ndarray, np.ndarray]:
    is_routed = record.requests.instance >= 0
    return record.requests.slo_class[is_routed], record.requests.instance[is_routed]


def _class_information(record: RunRecord) -> float:
    """Return the information of the instance about the class ÷ the class's entropy: 1 if classes have their own."""
    bits, entropy = information(*_routed(record))
    return bits / entropy if entropy else math.nan


def _shuffled_information(record: RunRecord) -> float:
    """Return the same with the classes shuffled, the largest of 200: what chance alone reaches."""
    codes, instance = _routed(record)
    generator = np.random.default_rng(SHUFFLE_SEED)
    shuffled = [information(generator.permutation(codes), instance) for _ in range(NUM_SHUFFLES)]
    return max(bits for bits, _ in shuffled) / shuffled[0][1] if shuffled[0][1] else math.nan


def _own() -> Iterator[Metric]:
    yield Metric("completion_rate", _completion_rate, "1", HIGHER, "completed ÷ all requests")
    for figure, direction in {
        _mean_waiting: LOWER,
        _busiest_share: LOWER,
        _same_instance_rate: LOWER,
        _load_swing: LOWER,
        _utilization_spread: LOWER,
        _token_hit_rate: HIGHER,
        _phantom_request_rate: LOWER,
        _class_information: HIGHER,
        _shuffled_information: HIGHER,
    }.items():
        name, what = figure.__name__.removeprefix("_"), (figure.__doc__ or "").rstrip(".")
        yield Metric(name, partial(_of_run, figure), "1", direction, what, has_classes=False)


def _of_run(figure: Callable[[RunRecord], float], measured: MeasuredRequests) -> float:
    return figure(measured.record)


OWN: Mapping[str, Metric] = {metric.name: metric for metric in _own()}
# names of the catalogue for metrics that there are
THEIR_NAMES = {
    "rejected_share": "reject_rate",
    "goodput_share": "attainment",
    "preemptions": "num_preemptions",
}


# --- the lab --------------------------------------------------------------------------------------


FOLDER = "workloads"


@dataclass(frozen=True)
class LabArm:
    """A configuration and its workload, or the reason why the arm cannot run."""

    name: str
    config: ClusterConfig | None
    spec: WorkloadSpec
    choice: WorkloadChoice
    missing: str = ""


def arm_of(catalogue: Catalogue, entry: Entry, name: str) -> LabArm:
    """Return one arm of an entry, or the reason why it cannot run."""
    choice = entry.workload_of(name)
    settings = catalogue.settings_of(entry, name)
    reason = missing(settings)
    try:
        spec = workload_named(choice)
        values = {key: converted(key, value) for key, value in settings.items() if is_setting(key)}
        if spec.horizon:  # requests and the run end together, as with BLIS's --horizon
            values["horizon"] = min(values.get("horizon", spec.horizon), spec.horizon)
        config = None if reason else changed(ClusterConfig(), values)
    except ConfigError as error:
        raise ConfigError(f"{entry.source}: {entry.id}: arms.{name}: {error}") from None
    return LabArm(name, config, spec, choice, reason)


class Lab:
    """Run arms on the seeds of one stream, and keep the runs."""

    def __init__(self, stream: str, names: Collection[str]) -> None:
        """Take the `stream` that draws requests, and the `names` of the figures kept of every run."""
        self.stream, self.names = stream, tuple(dict.fromkeys(names))
        self.runs: dict[tuple[str, str, tuple[int, ...]], tuple[RunSummary, ...]] = {}
        self.experiments: dict[tuple[str, tuple[int, ...]], Experiment] = {}
        self.runners: dict[tuple[str, int], Runner] = {}

    def measure(
        self, arms: Sequence[LabArm], seeds: tuple[int, ...], whole: Collection[str] = ()
    ) -> None:
        """Run the arms that lack runs on these seeds; `whole` names the arms whose requests are compared one by one."""
        groups: dict[tuple[str, bool], dict[ClusterConfig, LabArm]] = {}
        for arm in arms:
            is_whole = arm.name in whole
            if arm.config is not None and not self._has(arm, seeds, is_whole):
                groups.setdefault((_text_of(arm.spec), is_whole), {})[arm.config] = arm
        for (text, is_whole), members in groups.items():
            self._run(text, is_whole, members, seeds)

    def _run(
        self,
        text: str,
        is_whole: bool,
        members: dict[ClusterConfig, LabArm],
        seeds: tuple[int, ...],
    ) -> None:
        first = next(iter(members.values()))
        names = tuple(dict.fromkeys((*self.names, *reported_names(first.spec))))
        made = self._experiment(text, first, seeds).summaries(
            list(members), lambda record: figures_of(record, names, is_whole)
        )
        for config, runs in zip(members, made, strict=True):
            self.runs[text, repr(config), seeds] = runs

    def _has(self, arm: LabArm, seeds: tuple[int, ...], is_whole: bool) -> bool:
        runs = self.runs.get(self._key(arm, seeds))
        if runs is None:
            return False
        return not is_whole or all(run.lives is not None for run in runs if run.is_whole)

    def of(self, arm: LabArm, seeds: tuple[int, ...]) -> tuple[RunSummary, ...]:
        """Return the runs of an arm, one per seed."""
        return self.runs[self._key(arm, seeds)]

    def _key(self, arm: LabArm, seeds: tuple[int, ...]) -> tuple[str, str, tuple[int, ...]]:
        return _text_of(arm.spec), repr(arm.config), seeds

    def _experiment(self, text: str, arm: LabArm, seeds: tuple[int, ...]) -> Experiment:
        if (text, seeds) not in self.experiments:
            # sizes of one workload's programs are alike, so that they are compiled once
            sizes = arm.choice.name, arm.spec.num_requests
            shared = self.runners.get(sizes)
            experiment = Experiment.on(arm.spec, seeds, self.stream, shared=shared)
            self.runners[sizes] = experiment.runner
            self.experiments[text, seeds] = experiment
        return self.experiments[text, seeds]


def _text_of(spec: WorkloadSpec) -> str:
    return json.dumps(spec.model_dump(mode="json"), sort_keys=True)


PAIRS = ("gain_change", "change_share")  # compare within pairs, and then the pairs
COLUMNS = ("least_regret",)  # compare within every column


def check_fair(entry: Entry, arms: Mapping[str, LabArm]) -> None:
    """Refuse an entry that compares runs of unequal size.

    Arms compared directly need the same number of requests and the same horizon; where the rate or the number of
    instances differs, and between pairs of arms, arrivals must last equally long.
    """
    for claim in entry.claims:
        for group in _direct(claim):
            for arm, other_arm in combinations((arms[name] for name in group), 2):
                _demand(
                    entry, arm, other_arm, _size(arm) == _size(other_arm), "requests or horizon"
                )
                _demand(entry, arm, other_arm, _duration(arm) == _duration(other_arm), "duration")
        if claim.kind in PAIRS:
            first, second = arms[claim.of[0]], arms[claim.to[0]]
            _demand(entry, first, second, _duration(first) == _duration(second), "duration")


def _direct(claim: PrincipleClaim) -> list[Sequence[str]]:
    if claim.kind in PAIRS:
        return [claim.of, claim.to]
    return list(claim.of) if claim.kind in COLUMNS else [claim.arms()]


def _size(arm: LabArm) -> tuple[int, int]:
    return arm.spec.num_requests, arm.spec.horizon


def _duration(arm: LabArm) -> Any:
    """Return the duration of the arrivals, s."""
    if arm.spec.horizon:
        return arm.spec.horizon / 1e6
    return round(arm.spec.num_requests / (arm.spec.aggregate_rate or 1.0), 9)


def _demand(entry: Entry, arm: LabArm, other: LabArm, is_equal: bool, what: str) -> None:
    if not is_equal:
        raise ConfigError(
            f"{entry.source}: {entry.id}: arms {arm.name} and {other.name} are compared, but differ "
            f"in {what}; give both the same"
        )
