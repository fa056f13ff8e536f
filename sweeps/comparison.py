"""A comparison of arms as a document: everything that the report, the figure and other programs need."""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from blis_jax.config import FIELDS, ClusterConfig
from blis_jax.records import TTFT_PARTS
from blis_jax.scalar_metrics import lookup
from blis_jax.setting_values import plain_value
from blis_jax.summaries import ALL
from sweeps import crossover, paired
from sweeps.arms import Arm
from sweeps.failures import failure_of
from sweeps.inert import Finding
from sweeps.measured import Measured, metric_values, same_lives
from sweeps.paired import Difference, Inference, Interval, Pair
from sweeps.search_result import arguments
from sweeps.strategy_file import SuccessCriterion
from sweeps.success_criteria import Judged, judged
from sweeps.ttft_parts import VIEWS, grouped

OF_CLASS = ("ttft_mean_ms", "ttft_p99_ms", "e2e_p99_ms", "goodput_rps")
OF_RUN = ("output_tokens_per_s",)
FORMAT = 1
SIMULTANEOUS = "Student's t at Bonferroni's level, cut at 0 by Holm's verdict"


@dataclass(frozen=True)
class Compared:
    """One arm with its runs, what its mechanisms did, and the criteria that it is judged by."""

    arm: Arm
    runs: tuple[Measured, ...]
    mechanisms: tuple[Finding, ...]
    criteria: tuple[SuccessCriterion, ...] = ()


@dataclass(frozen=True)
class Setting:
    """What all arms have in common."""

    workload: str
    num_requests: int | None
    classes: tuple[str, ...]
    seeds: tuple[int, ...]
    stream: str
    targets: Mapping[str, Mapping[str, float]]
    metrics: tuple[str, ...]  # of the comparisons, `[class]` behind where they are of a class
    inference: Inference


def default_metrics(classes: Sequence[str], configs: Sequence[ClusterConfig]) -> tuple[str, ...]:
    """Latencies and goodput of all requests and of each class, and throughput; rejections if any can be."""
    names = [*OF_CLASS]
    if any(config.admission_policy != "always-admit" for config in configs):
        names.append("reject_rate")
    by_class = [f"{name}[{slo_class}]" for slo_class in classes for name in names]
    return (*names, *OF_RUN, *by_class)


def to_document(setting: Setting, compared: Sequence[Compared]) -> dict[str, Any]:
    """The comparison; the first arm is the reference of the others."""
    reference, *others = compared
    inference = setting.inference
    asked = [(other, name) for other in others for name in setting.metrics]
    pairs = [
        Pair(
            metric_values(reference.runs, name),
            metric_values(other.runs, name),
            lookup(name)[0].direction,
        )
        for other, name in asked
    ]
    found = paired.differences(pairs, inference)
    comparisons = [
        _comparison(reference, other, name, difference)
        for (other, name), difference in zip(asked, found, strict=True)
    ]
    return plain(
        {
            "format": FORMAT,
            "kind": "comparison",
            "versions": versions(),
            **setting_json(setting),
            "inference": _inference(setting, len(asked), found),
            "reference": reference.arm.name,
            "arms": [_arm(setting, one, compared) for one in compared],
            "comparisons": comparisons,
            "ttft_changes": [
                change for other in others for change in _part_changes(setting, reference, other)
            ],
            "criteria": [
                _judged(one.arm.name, entry)
                for one in others
                for entry in judged(
                    one.criteria, setting.classes, one.runs, reference.runs, inference
                )
            ],
        }
    )


def setting_json(setting: Setting) -> dict[str, Any]:
    """What all arms have in common, as plain data."""
    return {
        "workload": setting.workload,
        "num_requests": setting.num_requests,
        "classes": list(setting.classes),
        "seeds": list(setting.seeds),
        "rng": setting.stream,
        "targets": {name: dict(limits) for name, limits in setting.targets.items()},
    }


def versions() -> dict[str, str]:
    """What the figures were made with."""
    import platform

    import jax
    import scipy

    from blis_jax import __version__
    from blis_jax.config import PROFILE

    return {
        "blis_jax": __version__,
        "profile": PROFILE,
        "python": platform.python_version(),
        "jax": jax.__version__,
        "numpy": np.__version__,
        "scipy": scipy.__version__,
    }


def _inference(setting: Setting, size: int, found: Sequence[Difference]) -> dict[str, Any]:
    most = max((one.num_pairs for one in found), default=0)
    return {
        **dataclasses.asdict(setting.inference),
        "family": f"{size} comparisons: every metric and class of every arm against the reference",
        "family_size": size,
        "p_values": "paired t-test by seed, two-sided; adjusted by Holm's method over the family",
        "simultaneous_intervals": SIMULTANEOUS,
        "intervals": interval_sentence(most, setting.inference),
    }


def interval_sentence(num_pairs: int, inference: Inference) -> str:
    """How single intervals are made of so many seeds."""
    level = f"{100 * inference.confidence:g} %"
    if num_pairs < 2:
        return "none: one seed has no spread; give more seeds"
    if num_pairs >= paired.LEAST_PAIRS_FOR_BOOTSTRAP:
        return f"bootstrap of the seeds (BCa, {inference.num_resamples} resamples), {level}"
    return (
        f"Student's t, {level}: {num_pairs} seeds are too few for a bootstrap interval, which needs "
        f"{paired.LEAST_PAIRS_FOR_BOOTSTRAP}; it is right only if differences scatter normally"
    )


# --- arms -----------------------------------------------------------------------------------------


def _arm(setting: Setting, one: Compared, compared: Sequence[Compared]) -> dict[str, Any]:
    config, runs = one.arm.config, one.runs
    failure = failure_of(setting.seeds, [run.outcome for run in runs])
    default = ClusterConfig()
    return {
        "name": one.arm.name,
        "strategy": one.arm.strategy.name if one.arm.strategy is not None else None,
        "profile": config.profile,
        "settings": {
            name: plain_value(getattr(config, name))
            for name in FIELDS
            if getattr(config, name) != getattr(default, name)
        },
        "cli_args": arguments(config),
        "outcomes": [run.outcome for run in runs],
        "failure": failure.to_json() if failure is not None else None,
        "num_broken_invariants": sum(run.num_broken_invariants for run in runs),
        "acted": totals(runs),
        "figures": _figures(setting, runs),
        "ttft_parts": {name: _parts(runs, name) for name in (ALL, *setting.classes)},
        "crossovers": [_crossover(entry, runs) for entry in crossover.crossovers(config)],
        "mechanisms": [dataclasses.asdict(finding) for finding in one.mechanisms],
        "same_as": [
            other.arm.name
            for other in compared
            if other is not one and same_lives(runs, other.runs)
        ],
    }


def totals(runs: Sequence[Measured]) -> dict[str, int]:
    """How often each mechanism that leaves a trace did something, over all seeds."""
    whole = [run.acted for run in runs if run.is_whole]
    return {name: sum(acted[name] for acted in whole) for name in (whole[0] if whole else ())}


def _figures(setting: Setting, runs: Sequence[Measured]) -> dict[str, dict[str, Any]]:
    found: dict[str, dict[str, Any]] = {}
    for name in setting.metrics:
        metric, slo_class = lookup(name)
        values = metric_values(runs, name)
        known = values[np.isfinite(values)]
        interval = paired.interval_of(paired.seed_mean, [known], setting.inference)
        entry = {
            "unit": metric.unit,
            **interval_json(interval),
            "num_seeds": len(known),
            "per_seed": values.tolist(),
        }
        found.setdefault(slo_class or ALL, {})[metric.name] = entry
    return found


def _parts(runs: Sequence[Measured], slo_class: str) -> dict[str, Any]:
    """Per view of the TTFT the mean over the seeds of each part, ms, and of their sum."""
    found = {}
    for view in VIEWS:
        table = part_table(runs, slo_class, view)
        table = table[np.isfinite(table).all(axis=1)]
        if not len(table):
            continue
        means = table.mean(axis=0)
        found[view] = {
            "total": float(means.sum()),
            "num_seeds": len(table),
            "parts": dict(zip(TTFT_PARTS, means.tolist(), strict=True)),
            "groups": {name: float(value) for name, value in grouped(means).items()},
        }
    return found


def part_table(runs: Sequence[Measured], slo_class: str, view: str) -> np.ndarray:
    """Parts of a view, ms, `[seed part]`; NaN where a run has none."""
    nothing = [math.nan] * len(TTFT_PARTS)
    rows = [run.ttft_parts.get(slo_class, {}).get(view, nothing) for run in runs]
    return np.array(rows, np.float64)


def _crossover(entry: crossover.Crossover, runs: Sequence[Measured]) -> dict[str, Any]:
    key = f"{entry.lower}>{entry.higher}"
    seen = [run.overtaking[key] for run in runs if key in run.overtaking]
    observed = dataclasses.asdict(crossover.together(seen)) if seen else None
    return {**dataclasses.asdict(entry), "observed": observed}


# --- comparisons ----------------------------------------------------------------------------------


def _comparison(
    reference: Compared, other: Compared, name: str, found: Difference
) -> dict[str, Any]:
    metric, slo_class = lookup(name)
    return {
        "arm": other.arm.name,
        "reference": reference.arm.name,
        "class": slo_class or ALL,
        "metric": metric.name,
        "unit": metric.unit,
        "better": metric.direction,
        **difference_json(found),
    }


def difference_json(found: Difference) -> dict[str, Any]:
    """A difference as plain data."""
    return {
        "num_pairs": found.num_pairs,
        "reference_mean": found.first_mean,
        "mean": found.second_mean,
        "difference": interval_json(found.absolute),
        "percent": interval_json(found.percent),
        "simultaneous": interval_json(found.simultaneous),
        "simultaneous_percent": interval_json(found.simultaneous_percent),
        "p_value": found.p_value,
        "p_adjusted": found.p_adjusted,
        "verdict": found.verdict,
    }


def interval_json(interval: Interval) -> dict[str, Any]:
    """An interval as plain data."""
    return {
        "mean": interval.value,
        "low": interval.low,
        "high": interval.high,
        "method": interval.method,
    }


def _part_changes(setting: Setting, reference: Compared, other: Compared) -> list[dict[str, Any]]:
    """Where a class's TTFT changed: by group of parts, mean over the seeds that both have."""
    found = []
    for slo_class in (ALL, *setting.classes):
        for view in VIEWS:
            change = part_table(other.runs, slo_class, view)
            change = change - part_table(reference.runs, slo_class, view)
            change = change[np.isfinite(change).all(axis=1)]
            if len(change):
                groups = grouped(change)
                found.append(
                    {
                        "arm": other.arm.name,
                        "class": slo_class,
                        "view": view,
                        "num_pairs": len(change),
                        "total": float(change.sum(axis=1).mean()),
                        "groups": {name: float(values.mean()) for name, values in groups.items()},
                    }
                )
    return found


def _judged(arm: str, entry: Judged) -> dict[str, Any]:
    return {
        "arm": arm,
        **entry.criterion.model_dump(exclude_none=True),
        "metric": lookup(entry.metric)[0].name,
        "class": entry.slo_class,
        "is_asked": entry.is_asked,
        "reached": interval_json(entry.reached),
        "num_seeds": entry.num_seeds,
        "num_seeds_met": entry.num_seeds_met,
        "is_met": entry.is_met,
        "is_sure": entry.is_sure,
    }


def plain(value: Any) -> Any:
    """JSON values alone: None for NaN and infinities, lists for tuples."""
    if isinstance(value, Mapping):
        return {str(name): plain(entry) for name, entry in value.items()}
    if isinstance(value, list | tuple):
        return [plain(entry) for entry in value]
    if isinstance(value, np.generic):
        return plain(value.item())
    if isinstance(value, float) and not math.isfinite(value):
        return None
    return value
