"""A comparison of arms as a document: the plain data from which the report, the figure and other programs work."""

from __future__ import annotations

import dataclasses
import hashlib
import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from itertools import combinations
from typing import Any

import numpy as np

from blis_jax.cluster.config import ClusterConfig
from blis_jax.cluster.named_policies import numbered
from blis_jax.core.kinds import NONE
from blis_jax.files.atomic_write import plain
from blis_jax.files.formats import number_of
from blis_jax.metrics.metric import names_in
from blis_jax.metrics.run_summary import RunSummary, together
from blis_jax.metrics.scalars import lookup
from blis_jax.metrics.summaries import ALL, VIEWS, grouped
from blis_jax.records.record import TTFT_PARTS
from blis_jax.reports.words import cluster_line, headline_metric
from blis_jax.statistics.intervals import Inference
from blis_jax.statistics.paired import Difference
from sweeps.claims.words import MET
from sweeps.compare.ablation.inert import MechanismFinding
from sweeps.compare.judge import Judge, comparison_json, figures_json, inference_json, judge_of
from sweeps.compare.ranking import one_of_each, ranking
from sweeps.runs.measured import failure_of, metric_values, same_lives, versions
from sweeps.strategies.arms import Arm, policy_files, settings_anywhere
from sweeps.strategies.crossover import Crossover, crossovers
from sweeps.strategies.moved import arguments
from sweeps.strategies.parts import SuccessCriterion
from sweeps.tracks.criteria import CriterionVerdict, judge_success

OF_CLASS = ("ttft_mean_ms", "ttft_p99_ms", "tpot_mean_ms", "e2e_p99_ms", "goodput_rps")
POOLED = {"ttft_p99_ms": "pooled_ttft_p99_ms", "e2e_p99_ms": "pooled_e2e_p99_ms"}
OF_RUN = ("output_tokens_per_s",)
SURVIVORS = ("num_completed", "num_arrived")
COST = ("instance_seconds", "idle_share", "num_scale_downs")  # where instances come and go


@dataclass(frozen=True)
class Compared:
    """One arm with its runs, the effects of its mechanisms, and the criteria for judging it."""

    arm: Arm
    runs: tuple[RunSummary, ...]
    mechanisms: tuple[MechanismFinding, ...]
    criteria: tuple[SuccessCriterion, ...] = ()


@dataclass(frozen=True)
class CommonSetting:
    """The setting that all arms share: requests, metrics, seeds and inference."""

    workload: str
    num_requests: int | None
    classes: tuple[str, ...]
    seeds: tuple[int, ...]
    stream: str
    targets: Mapping[str, Mapping[str, float]]
    metrics: tuple[str, ...]  # of the comparisons, `[class]` behind where they are of a class
    inference: Inference
    trace: Mapping[str, Any] | None = None  # what the requests are of, see `TraceSource.about`
    block_s: float | None = None  # of the resampling of one trace; None: by its own rule

    @property
    def is_one_trace(self) -> bool:
        """Return whether the runs are of one trace without windows: intervals then come from resampled requests."""
        return self.trace is not None and self.trace["windows"] is None

    @property
    def run_word(self) -> str:
        """Return the word for that in which the runs of an arm differ: `window` or `seed`."""
        return "window" if self.trace is not None and self.trace["windows"] else "seed"


def default_metrics(
    classes: Sequence[str], configs: Sequence[ClusterConfig], is_one_trace: bool = False
) -> tuple[str, ...]:
    """Return the default metrics: latencies and goodput of all requests and of each class, throughput; rejections and
    cost if arms can differ in them.

    Each P99 by run comes with the P99 of the pooled requests. For one trace the P99 is over its requests already, and
    the share within targets, which is a mean over single requests, replaces goodput.
    """
    names = []
    for name in OF_CLASS:
        if name in POOLED and not is_one_trace:
            names.append(POOLED[name])
        names.append("attainment" if is_one_trace and name == "goodput_rps" else name)
    if any(config.admission_policy != "always-admit" for config in configs):
        names.append("reject_rate")
    by_class = names_in(names, classes)
    is_elastic = any(config.cluster_policy != NONE for config in configs) and not is_one_trace
    sources = (numbered(config).source for config in configs)
    counters = dict.fromkeys(
        name for source in sources if source is not None for name in source.figure_names
    )
    gaps = () if is_one_trace else ("itl_mean_ms",)
    return (*names, *OF_RUN, *gaps, *(COST if is_elastic else ()), *counters, *by_class)


def _ranked_by(setting: CommonSetting, num_pairs: int) -> str:
    """Return the metric by which arms are ranked, where the ranking compares `num_pairs` pairs."""
    error = 1 - setting.inference.confidence
    return headline_metric(setting.metrics, len(setting.seeds), num_pairs, error)


def to_document(
    setting: CommonSetting, compared: Sequence[Compared], is_ranked: bool = False
) -> dict[str, Any]:
    """Return a comparison as plain data; every other arm is compared with the first."""
    distinct = one_of_each(compared) if is_ranked else compared
    distinct = distinct if len(distinct) > 1 else compared
    judge = judge_of(setting, [arm.runs for arm in compared])
    pairs = list(combinations(range(len(distinct)), 2)) if is_ranked else []
    ranked = _ranked_by(setting, len(pairs)) if is_ranked else None
    names = [name for name in setting.metrics if name != ranked]
    families = [[(0, other, name) for other in range(1, len(distinct)) for name in names]]
    if ranked is not None:
        families += [[(*pair, ranked) for pair in pairs]]
    differences: dict[tuple[int, int, str], Difference] = {}
    for family in families:
        each = [
            (distinct[first].runs, distinct[second].runs, name) for first, second, name in family
        ]
        differences |= zip(family, judge.differences(each), strict=True)
    reference, *others = distinct
    return plain(
        {
            "format": number_of("comparison"),
            "kind": "comparison",
            "versions": versions(),
            **setting_json(setting),
            "inference": _inference(setting, differences, judge, ranked),
            "cluster": cluster_line({arm.arm.name: arm.arm.config for arm in compared}),
            "reference": reference.arm.name,
            "arms": [_arm(setting, arm, compared, judge) for arm in compared],
            "ranking": ranking(ranked, distinct, judge, differences) if ranked else None,
            "comparisons": [
                comparison_json(
                    distinct[other].arm.name, reference.arm.name, name, differences[0, other, name]
                )
                for other in range(1, len(distinct))
                for name in setting.metrics
            ],
            "ttft_changes": [
                change for other in others for change in _part_changes(setting, reference, other)
            ],
            "criteria": [
                _judged(arm.arm.name, entry)
                for arm in others
                for entry in judge_success(
                    arm.criteria, setting.classes, arm.runs, reference.runs, setting.inference
                )
            ],
        }
    )


def setting_json(setting: CommonSetting) -> dict[str, Any]:
    """Return what all arms have in common, as plain data."""
    return {
        "workload": setting.workload,
        "num_requests": setting.num_requests,
        "classes": list(setting.classes),
        "seeds": list(setting.seeds),
        "rng": setting.stream,
        "trace": setting.trace,
        "targets": {name: dict(limits) for name, limits in setting.targets.items()},
    }


def _inference(
    setting: CommonSetting,
    differences: Mapping[tuple[int, int, str], Difference],
    judge: Judge,
    ranked: str | None,
) -> dict[str, Any]:
    made = list(differences.values())
    num_ranked = sum(name == ranked for _, _, name in differences)
    others = f"{len(made) - num_ranked} comparisons: every metric and class of every arm against the reference"
    pairs = f"{num_ranked} comparisons: every two arms in {ranked}; beside it, a family of {others}"
    family = {"family": pairs if num_ranked else others, "family_size": num_ranked or len(made)}
    return inference_json(judge, made, family, setting.run_word)


# --- arms -----------------------------------------------------------------------------------------


def _arm(
    setting: CommonSetting, arm: Compared, compared: Sequence[Compared], judge: Judge
) -> dict[str, Any]:
    config, runs = arm.arm.config, arm.runs
    failure = failure_of(setting.seeds, runs)
    return {
        "name": arm.arm.name,
        "strategy": arm.arm.strategy.name if arm.arm.strategy is not None else None,
        "profile": config.profile,
        "settings": settings_anywhere(config),
        "files": policy_files(config),
        "cli_args": arguments(config),
        "outcomes": [run.outcome.name for run in runs],
        "fingerprint": _together(runs),
        "failure": failure.to_json() if failure is not None else None,
        "num_broken_invariants": sum(run.num_broken_invariants for run in runs),
        "acted": totals(runs),
        "survivors": survivors(runs),
        "figures": _figures(setting, runs, judge),
        "ttft_parts": {name: _parts(runs, name) for name in (ALL, *setting.classes)},
        "crossovers": [_crossover(entry, runs) for entry in crossovers(config)],
        "mechanisms": [dataclasses.asdict(finding) for finding in arm.mechanisms],
        "same_as": [
            other.arm.name
            for other in compared
            if other is not arm and same_lives(runs, other.runs)
        ],
    }


def _together(runs: Sequence[RunSummary]) -> str:
    """Return a hash that is equal for arms in which every request had the same life on every seed."""
    return hashlib.sha256(" ".join(run.fingerprint for run in runs).encode()).hexdigest()[:16]


def survivors(runs: Sequence[RunSummary]) -> list[int] | None:
    """Return the numbers of completed and of arrived requests, over all seeds; None where runs did not keep them."""
    sums = [sum(run.value(name) for run in runs if run.is_whole) for name in SURVIVORS]
    return [int(count) for count in sums] if all(map(math.isfinite, sums)) else None


def totals(runs: Sequence[RunSummary]) -> dict[str, int]:
    """Return for each mechanism that leaves a trace how often it acted, over all seeds whose runs finished."""
    whole = [run.acted for run in runs if run.is_whole]
    return {name: sum(acted[name] for acted in whole) for name in (whole[0] if whole else ())}


def _figures(
    setting: CommonSetting, runs: Sequence[RunSummary], judge: Judge
) -> dict[str, dict[str, Any]]:
    figures = figures_json(judge, runs, setting.metrics)
    for name in setting.metrics:
        metric, slo_class = lookup(name)
        figures[slo_class or ALL][metric.name]["per_seed"] = metric_values(runs, name).tolist()
    return figures


def _parts(runs: Sequence[RunSummary], slo_class: str) -> dict[str, Any]:
    """Return by view of the TTFT the means over the seeds, ms, of each part and of the sum of the parts."""
    parts = {}
    for view in VIEWS:
        table = part_table(runs, slo_class, view)
        table = table[np.isfinite(table).all(axis=1)]
        if not len(table):
            continue
        means = table.mean(axis=0)
        parts[view] = {
            "total": float(means.sum()),
            "num_seeds": len(table),
            "parts": dict(zip(TTFT_PARTS, means.tolist(), strict=True)),
            "groups": {name: float(value) for name, value in grouped(means).items()},
        }
    return parts


def part_table(runs: Sequence[RunSummary], slo_class: str, view: str) -> np.ndarray:
    """Return the parts of a view of the TTFT, ms, `[seed, part]`; NaN where a run has none."""
    nothing = [math.nan] * len(TTFT_PARTS)
    return np.array([run.ttft_parts.get(slo_class, {}).get(view, nothing) for run in runs], float)


def _crossover(entry: Crossover, runs: Sequence[RunSummary]) -> dict[str, Any]:
    key = f"{entry.lower}>{entry.higher}"
    seen = [run.overtaking[key] for run in runs if key in run.overtaking]
    observed = dataclasses.asdict(together(seen)) if seen else None
    return {**dataclasses.asdict(entry), "observed": observed}


# --- comparisons ----------------------------------------------------------------------------------


def _part_changes(
    setting: CommonSetting, reference: Compared, other: Compared
) -> list[dict[str, Any]]:
    """Return the change of a class's TTFT by group of parts, as a mean over the seeds that both arms have."""
    changes = []
    for slo_class in (ALL, *setting.classes):
        for view in VIEWS:
            change = part_table(other.runs, slo_class, view)
            change = change - part_table(reference.runs, slo_class, view)
            change = change[np.isfinite(change).all(axis=1)]
            if len(change):
                groups = grouped(change)
                changes.append(
                    {
                        "arm": other.arm.name,
                        "class": slo_class,
                        "view": view,
                        "num_pairs": len(change),
                        "total": float(change.sum(axis=1).mean()),
                        "groups": {name: float(values.mean()) for name, values in groups.items()},
                    }
                )
    return changes


def _judged(arm: str, entry: CriterionVerdict[SuccessCriterion]) -> dict[str, Any]:
    verdict = entry.verdict
    assert verdict.claim is not None and verdict.reading is not None
    return {
        "arm": arm,
        **entry.criterion.model_dump(exclude_none=True),
        "metric": lookup(verdict.claim.metric)[0].name,
        "class": entry.slo_class,
        "is_asked": entry.is_asked,
        "reached": verdict.reading.mean.to_json(),
        "num_seeds": len(verdict.reading.per_seed) - verdict.reading.num_missing,
        "num_seeds_met": verdict.num_holding,
        "is_met": verdict.word == MET,
        "is_sure": verdict.is_clear,
    }
