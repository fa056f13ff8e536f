"""What is kept of a run to compare strategies: figures, what TTFT is made of, what acted, and a fingerprint."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass, field
from typing import TYPE_CHECKING, Any

import numpy as np

from blis_jax.cluster.config import ClusterConfig
from blis_jax.cluster.setting_values import values_for_hash
from blis_jax.commands.sweep.data import slo_targets
from blis_jax.core.outcome import WHOLE
from blis_jax.metrics.measure import Measure, window_of
from blis_jax.metrics.reference import class_code
from blis_jax.metrics.scalars import evaluate, lookup, pooled_latency
from blis_jax.metrics.summaries import ALL, select
from blis_jax.metrics.tails import Tails, kept_tails, tails_of_runs
from blis_jax.metrics.ttft_parts import ttft_parts_ms
from blis_jax.reports.study import CURVE_LEVELS
from blis_jax.results.records import TTFT_PARTS, RunRecord, Status
from blis_jax.statistics.pooled import contributions_ms, only, whole
from sweeps.compare import crossover
from sweeps.compare.crossover import Overtaking
from sweeps.runs.outcomes import Outcomes, outcomes_of

if TYPE_CHECKING:
    from blis_jax.files.journal import Journal
    from sweeps.runs.bench import Bench

RESULTS = (  # what two runs must have in common, request by request, to be the same
    "admitted",
    "instance",
    "status",
    "queued_at_us",
    "first_sched_delay_us",
    "sched_delay_us",
    "ttft_us",
    "e2e_us",
    "left_us",
    "preemptions",
    "cached_tokens_first_sched",
)


@dataclass(frozen=True)
class Measured:
    """One run; everything but `outcome` is empty if it did not come to its end."""

    outcome: str
    metrics: Mapping[str, float] = field(default_factory=dict)
    ttft_parts: Mapping[str, Mapping[str, Sequence[float]]] = field(default_factory=dict)
    overtaking: Mapping[str, Overtaking] = field(default_factory=dict)  # by `lower>higher`
    acted: Mapping[str, int] = field(default_factory=dict)  # how often a mechanism did something
    fingerprint: str = ""  # equal for runs in which every request had the same life
    num_broken_invariants: int = 0
    ttft_curve_ms: Mapping[str, Sequence[float]] = field(default_factory=dict)  # at CURVE_LEVELS
    tails: Mapping[str, Mapping[str, Sequence[int]]] = field(default_factory=dict)  # `kept_tails`
    requests: Outcomes | None = None  # of every request, where those of one trace are resampled

    @property
    def is_whole(self) -> bool:
        """Whether there is anything to measure."""
        return bool(self.fingerprint)


def measured_from(entry: Mapping[str, Any]) -> Measured:
    """Of its `asdict`, after a way through JSON."""
    passed = {name: Overtaking(**numbers) for name, numbers in entry["overtaking"].items()}
    requests = Outcomes(**entry["requests"]) if entry.get("requests") else None
    return Measured(**{**entry, "overtaking": passed, "requests": requests})


@dataclass(frozen=True)
class Recorder:
    """Makes a `Measured` of each record."""

    names: tuple[str, ...]  # metrics
    measure: Measure
    classes: tuple[str, ...]
    has_requests: bool = False  # whether the outcome of every request is kept

    def __call__(self, record: RunRecord) -> Measured:
        """What is kept of one run."""
        if record.outcome not in WHOLE:
            return Measured(record.outcome.name)
        targets, window = slo_targets(self.measure), window_of(self.measure, record)
        return Measured(
            outcome=record.outcome.name,
            metrics=evaluate(record, self.names, targets, window),
            ttft_parts=self._ttft_parts(record),
            overtaking={
                f"{lower}>{higher}": crossover.overtaking(record, lower, higher)
                for lower, higher in crossover.PAIRS
                if lower in self.classes and higher in self.classes
            },
            acted=acted(record),
            fingerprint=fingerprint(record),
            num_broken_invariants=sum(record.invariant_failures.values()),
            ttft_curve_ms=self._ttft_curves(record),
            tails=kept_tails(select(record, window=window), self.classes),
            requests=outcomes_of(record, targets, window) if self.has_requests else None,
        )

    def _ttft_curves(self, record: RunRecord) -> dict[str, list[float]]:
        everything = select(record, window=window_of(self.measure, record))
        found = {}
        for name in (ALL, *self.classes):
            chosen = everything
            if name != ALL:
                chosen = everything.where(record.requests.slo_class == class_code(name))
            if chosen.ttft.count:
                curve = np.quantile(chosen.ttft.values / 1000, CURVE_LEVELS)
                found[name] = np.round(curve, 3).tolist()
        return found

    def _ttft_parts(self, record: RunRecord) -> dict[str, dict[str, list[float]]]:
        everything = select(record, window=window_of(self.measure, record))
        found = {ALL: ttft_parts_ms(everything)}
        for name in self.classes:
            is_class = record.requests.slo_class == class_code(name)
            found[name] = ttft_parts_ms(everything.where(is_class))
        return found


def acted(record: RunRecord) -> dict[str, int]:
    """How often each mechanism that leaves a trace did something."""
    requests, instances = record.requests, record.instances
    overhead = requests.ttft_parts_us[:, TTFT_PARTS.index("chunk_overhead")]
    return {
        "num_rejected": int(np.count_nonzero(requests.status == Status.REJECTED)),
        "num_split_prompts": int(np.count_nonzero(overhead > 0)),
        "num_preemptions": int(instances.preemption_count.sum()),
        "cpu_offloads": int(instances.cpu_offloads.sum()),
        "cpu_reloads": int(instances.cpu_reloads.sum()),
    }


def fingerprint(record: RunRecord) -> str:
    """Of the life of every request; equal lives, equal text."""
    digest = hashlib.sha256()
    for name in RESULTS:
        digest.update(np.ascontiguousarray(getattr(record.requests, name), np.int64).tobytes())
    return digest.hexdigest()[:16]


def same_lives(first: Sequence[Measured], second: Sequence[Measured]) -> bool:
    """Whether all runs came to their end, and every request had the same life in both."""
    return all(
        one.is_whole and one.fingerprint == other.fingerprint
        for one, other in zip(first, second, strict=True)
    )


class KeptRuns:
    """Runs configurations, each once; what the journal has is not run again."""

    def __init__(
        self,
        bench: Bench,
        recorder: Recorder,
        journal: Journal | None = None,
        on_run: Callable[[str], None] | None = None,
    ) -> None:
        """`on_run` is told the name of each configuration before it runs."""
        self.benches, self.recorder, self.journal = [bench], recorder, journal
        self.on_run = on_run or (lambda name: None)
        self.runs: dict[str, tuple[Measured, ...]] = {}
        if journal is not None:
            self.runs = {
                key: tuple(measured_from(run) for run in runs) for key, runs in journal.lines()
            }
            journal.begin()

    @property
    def bench(self) -> Bench:
        """That of the first seeds."""
        return self.benches[0]

    @property
    def seeds(self) -> tuple[int, ...]:
        """All seeds on which `of` runs a configuration."""
        return tuple(seed for bench in self.benches for seed in bench.seeds)

    def add_seeds(self, seeds: Sequence[int]) -> None:
        """From now on configurations are run on these seeds, too."""
        self.benches.append(self.bench.on_seeds(seeds))

    def of(self, config: ClusterConfig, name: str) -> tuple[Measured, ...]:
        """The runs of a configuration, one a seed."""
        return tuple(run for bench in self.benches for run in self._on(bench, config, name))

    def on_first_seeds(self, config: ClusterConfig, name: str) -> tuple[Measured, ...]:
        """The same without the seeds that were added."""
        return self._on(self.bench, config, name)

    def _on(self, bench: Bench, config: ClusterConfig, name: str) -> tuple[Measured, ...]:
        key = key_of(config)
        if bench is not self.bench:
            key += f"@{bench.seeds[0]}-{bench.seeds[-1]}"
        if key not in self.runs:
            self.on_run(name)
            (runs,) = bench.summaries([config], self.recorder)
            self.runs[key] = runs
            if self.journal is not None:
                self.journal.append([key, [asdict(run) for run in runs]])
        return self.runs[key]


def key_of(config: ClusterConfig) -> str:
    """Equal for equal configurations."""
    text = json.dumps(values_for_hash(config), sort_keys=True)
    return hashlib.sha256(text.encode()).hexdigest()[:16]


def paired_values(
    first: Sequence[Measured], second: Sequence[Measured], name: str
) -> tuple[np.ndarray, np.ndarray]:
    """A metric of two arms by seed; what is pooled is pooled over the seeds on which both ended."""
    if pooled_latency(name) is None:
        return metric_values(first, name), metric_values(second, name)
    tails = pooled_tails(first, name), pooled_tails(second, name)
    is_common = whole(tails[0]) & whole(tails[1])
    before, after = (contributions_ms(only(one, is_common)) for one in tails)
    return before, after


def pooled_tails(runs: Sequence[Measured], name: str) -> Tails:
    """What is kept of each run's latencies for the pooled percentile of that name."""
    latency, slo_class = pooled_latency(name), lookup(name)[1] or ALL
    return tails_of_runs([run.tails.get(latency or "", {}).get(slo_class) for run in runs])


def metric_values(runs: Sequence[Measured], name: str) -> np.ndarray:
    """A metric by seed, of a pooled one each seed's contribution to it; NaN where a run has none."""
    if pooled_latency(name) is not None:
        return contributions_ms(pooled_tails(runs, name))
    return np.array([run.metrics.get(name, np.nan) for run in runs], np.float64)
