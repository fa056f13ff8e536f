"""What is kept of one run: metrics by name, those that only the catalogue asks for, and its records."""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

import numpy as np

from blis_jax.errors import ConfigError
from blis_jax.metrics.kv import cached_tokens
from blis_jax.metrics.reference import CLASS_NAMES, class_code
from blis_jax.metrics.scalars import evaluate, lookup
from blis_jax.metrics.summaries import ALL, SloTargets, Target, select
from blis_jax.metrics.tails import kept_tails, tails_of_runs
from blis_jax.results.records import RequestRecords, RunRecord, Status
from blis_jax.statistics.pooled import contributions_ms
from sweeps.runs.metrics import worst_p99_ms

if TYPE_CHECKING:
    from jaxtyping import Bool, Float, Int

    from blis_jax.workload.spec import WorkloadSpec

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
ENDED = ("COMPLETED", "HORIZON")
OF_ARM = ("ttft_p99_ms", "worst_ttft_p99_ms", "completion_rate", "rejected_share")
OF_CLASS = ("ttft_p99_ms", "completion_rate", "rejected_share")


@dataclass(frozen=True)
class LabFigures:
    """One run: how it ended, its figures by name, and what is recorded of every request."""

    outcome: str
    values: Mapping[str, float]
    requests: Int[np.ndarray, "request field"] | None = None  # kept where runs are compared whole
    tails: Mapping[str, Sequence[int]] = field(
        default_factory=dict
    )  # of TTFT by class, `kept_tails`

    @property
    def is_whole(self) -> bool:
        """Whether it came to its end."""
        return self.outcome in ENDED

    def value(self, metric: str) -> float:
        """One figure by name; NaN if the run did not come to its end."""
        return self.values.get(metric, math.nan)


def figures_of(record: RunRecord, names: Collection[str], keeps_requests: bool) -> LabFigures:
    """The named figures of a run, `[class]` behind a name or not."""
    outcome = record.outcome.name
    if outcome not in ENDED:
        return LabFigures(outcome, {}, None)
    values = {name: _value(record, name) for name in names}
    classes = [CLASS_NAMES[code] for code in np.unique(record.requests.slo_class).tolist()]
    tails = kept_tails(select(record), classes)["ttft"]
    return LabFigures(outcome, values, whole_requests(record) if keeps_requests else None, tails)


def pooled_figures(
    runs: Sequence[LabFigures], spec: WorkloadSpec
) -> dict[str, Float[np.ndarray, "seed"]]:
    """What each seed contributes to the TTFT P99 of the requests of all runs, of all and by class."""
    classes = dict.fromkeys(client.slo_class or "default" for client in spec.clients)
    return {
        POOLED if of == ALL else f"{POOLED}[{of}]": contributions_ms(
            tails_of_runs([run.tails.get(of) if run.is_whole else None for run in runs])
        )
        for of in (ALL, *classes)
    }


def whole_requests(record: RunRecord) -> Int[np.ndarray, "request field"]:
    """All that is recorded of every request, side by side; -1 where a run has no such record."""
    requests = record.requests
    missing = np.full(len(requests.arrival_us), -1)
    columns = [getattr(requests, field.name) for field in dataclasses.fields(RequestRecords)]
    return np.column_stack(
        [np.asarray(missing if one is None else one, np.int64) for one in columns]
    )


def _value(record: RunRecord, metric: str) -> float:
    base, bracket, rest = metric.partition("[")
    if base in OWN:
        return OWN[base](record, rest[:-1] if bracket else None)
    return evaluate(record, [metric], TRACK_TARGETS)[metric]


def reported_names(spec: WorkloadSpec) -> tuple[str, ...]:
    """What every check reports of an arm: both P99, completion and rejections, for all and by class."""
    classes = list(dict.fromkeys(client.slo_class or "default" for client in spec.clients))
    by_class = [f"{name}[{slo_class}]" for slo_class in classes for name in OF_CLASS]
    return (*OF_ARM, *by_class)


def check_metric(name: str) -> None:
    """Refuses a metric that nobody computes."""
    base, bracket, rest = name.partition("[")
    if base not in OWN:
        lookup(name)
    elif bracket:
        class_code(rest[:-1])
        if base not in WITH_CLASSES:
            raise ConfigError(f"metric {base!r} covers the whole cluster; leave [{rest} out")


def _chosen(record: RunRecord, slo_class: str | None) -> Bool[np.ndarray, "request"]:
    codes = record.requests.slo_class
    return np.ones(len(codes), bool) if slo_class is None else codes == class_code(slo_class)


def _worst_ttft_p99_ms(record: RunRecord, slo_class: str | None) -> float:
    """The largest of the instances' TTFT P99 and the cluster's."""
    return worst_p99_ms(record, record.requests.ttft_us, _chosen(record, slo_class))


def _completion_rate(record: RunRecord, slo_class: str | None) -> float:
    """Completed ÷ all requests."""
    is_chosen = _chosen(record, slo_class)
    is_done = is_chosen & (record.requests.status == Status.COMPLETED)
    return float(is_done.sum() / is_chosen.sum()) if is_chosen.any() else math.nan


def _share_rejected(record: RunRecord, slo_class: str | None) -> float:
    """Rejected ÷ all requests."""
    is_chosen = _chosen(record, slo_class)
    is_out = is_chosen & (record.requests.status == Status.REJECTED)
    return float(is_out.sum() / is_chosen.sum()) if is_chosen.any() else math.nan


def _goodput_share(record: RunRecord, slo_class: str | None) -> float:
    """Completed within the track's TTFT budgets ÷ all requests."""
    suffix = f"[{slo_class}]" if slo_class else ""
    return evaluate(record, [f"attainment{suffix}"], TRACK_TARGETS)[f"attainment{suffix}"]


def _mean_waiting(record: RunRecord, slo_class: str | None) -> float:
    """Wait-queue length in the mean over the steps begun until the last arrival."""
    steps = record.steps
    is_early = steps.start_us <= int(record.requests.arrival_us.max(initial=0))
    weight = np.where(is_early, steps.num_steps, 0)
    return float((steps.waiting * weight).sum() / weight.sum()) if weight.any() else 0.0


def _busiest_share(record: RunRecord, slo_class: str | None) -> float:
    """Requests of the busiest instance ÷ those of an instance in the mean: 1 is even."""
    instance = record.requests.instance
    counts = np.bincount(instance[instance >= 0], minlength=len(record.instances.step_count))
    return float(counts.max() / counts.mean()) if counts.any() else math.nan


def _same_instance_rate(record: RunRecord, slo_class: str | None) -> float:
    """How often a request goes to the instance of the one before it."""
    instance = record.requests.instance[record.requests.instance >= 0]
    return float(np.mean(instance[1:] == instance[:-1])) if len(instance) > 1 else math.nan


def _load_swing(record: RunRecord, slo_class: str | None) -> float:
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


def _utilization_spread(record: RunRecord, slo_class: str | None) -> float:
    """Largest difference between two instances' KV utilisation, over the starts of all steps."""
    steps, total = record.steps, record.instances.total_kv_blocks
    order = np.argsort(steps.start_us, kind="stable")
    used = np.zeros(len(total))
    widest = 0.0
    for instance, blocks in zip(steps.instance[order], steps.used_blocks[order], strict=True):
        used[instance] = blocks / total[instance]
        widest = max(widest, float(used.max() - used.min()))
    return widest


def _phantom_request_rate(record: RunRecord, slo_class: str | None) -> float:
    """Scheduled requests that found fewer cached tokens than the router predicted ÷ scheduled ones."""
    is_scheduled = record.requests.first_sched_delay_us >= 0
    is_phantom = cached_tokens(record).phantom > 0
    return float(is_phantom.sum() / is_scheduled.sum()) if is_scheduled.any() else math.nan


def information(
    first: Int[np.ndarray, "request"], second: Int[np.ndarray, "request"]
) -> tuple[float, float]:
    """Mutual information of two labels and the entropy of the first, in bits."""
    joint = np.zeros((first.max(initial=0) + 1, second.max(initial=0) + 1))
    np.add.at(joint, (first, second), 1.0 / max(len(first), 1))
    one, other = _entropy(joint.sum(1)), _entropy(joint.sum(0))
    return one + other - _entropy(joint.ravel()), one


def _entropy(shares: Float[np.ndarray, "label"]) -> float:
    shares = shares[shares > 0]
    return float(-(shares * np.log2(shares)).sum())


def _token_hit_rate(record: RunRecord, slo_class: str | None) -> float:
    """Prompt tokens found in the cache ÷ prompt tokens of the scheduled requests."""
    is_scheduled = record.requests.first_sched_delay_us >= 0
    prompts = int(record.requests.input_len[is_scheduled].sum())
    return int(cached_tokens(record).actual.sum()) / prompts if prompts else math.nan


def _routed(record: RunRecord) -> tuple[np.ndarray, np.ndarray]:
    is_routed = record.requests.instance >= 0
    return record.requests.slo_class[is_routed], record.requests.instance[is_routed]


def _class_information(record: RunRecord, slo_class: str | None) -> float:
    """What the instance says of the class ÷ what there is to say: 1 if classes have their own."""
    bits, entropy = information(*_routed(record))
    return bits / entropy if entropy else math.nan


def _shuffled_information(record: RunRecord, slo_class: str | None) -> float:
    """The same with the classes shuffled, the largest of 200: what chance alone reaches."""
    codes, instance = _routed(record)
    generator = np.random.default_rng(SHUFFLE_SEED)
    found = [information(generator.permutation(codes), instance) for _ in range(NUM_SHUFFLES)]
    return max(bits for bits, _ in found) / found[0][1] if found[0][1] else math.nan


def _num_preemptions(record: RunRecord, slo_class: str | None) -> float:
    return float(record.instances.preemption_count.sum())


OWN: Mapping[str, Callable[[RunRecord, str | None], float]] = {
    "worst_ttft_p99_ms": _worst_ttft_p99_ms,
    "completion_rate": _completion_rate,
    "rejected_share": _share_rejected,
    "goodput_share": _goodput_share,
    "mean_waiting": _mean_waiting,
    "busiest_share": _busiest_share,
    "same_instance_rate": _same_instance_rate,
    "load_swing": _load_swing,
    "utilization_spread": _utilization_spread,
    "token_hit_rate": _token_hit_rate,
    "phantom_request_rate": _phantom_request_rate,
    "class_information": _class_information,
    "shuffled_information": _shuffled_information,
    "preemptions": _num_preemptions,
}
WITH_CLASSES = ("worst_ttft_p99_ms", "completion_rate", "rejected_share", "goodput_share")
