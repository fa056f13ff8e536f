"""A search as a document: the reference's result schema, and behind it everything that was measured."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from blis_jax.files.atomic_write import finite
from blis_jax.metrics.run_summary import RunSummary
from blis_jax.metrics.scalars import lookup
from blis_jax.reports.words import cluster_line
from blis_jax.statistics.intervals import METHOD, estimate
from sweeps.search.objectives import AT, Valuation, hypervolume, nondominated, reference_point
from sweeps.search.racing import Tried, best_of
from sweeps.strategies.reference_arguments import arguments
from sweeps.strategies.space import Space

THEIR_METRICS = {  # the reference's names of what it reports of the best point
    "ttft_p99_ms": "ttft_p99_ms",
    "ttft_mean_ms": "ttft_mean_ms",
    "e2e_p99_ms": "e2e_p99_ms",
    "e2e_mean_ms": "e2e_mean_ms",
    "throughput_tps": "tokens_per_sec",
    "dropped": "num_dropped",
    "preemptions": "num_preemptions",
}


@dataclass(frozen=True)
class SearchFrame:
    """The part of a result besides its points."""

    space: Space
    valuation: Valuation
    seeds: tuple[int, ...]
    stream: str
    baseline: tuple[RunSummary, ...] | None = None


def to_document(
    frame: SearchFrame, tried: Sequence[Tried], place: int | None = None
) -> dict[str, Any]:
    """Make the result file: `convergence` has the score of every call, as in the reference's files.

    `place` is that of the point that the engine recommends; without one the lowest score decides. With rungs a point
    without all runs has `is_estimate`, and is never the best one.
    """
    lowest = best_of(tried)
    best = lowest if place is None else tried[place]
    strategy = frame.valuation.strategy
    document: dict[str, Any] = {
        "strategy": strategy.name,
        "cluster": cluster_line({strategy.name: frame.space.base}, frame.space.settings),
        "best_parameters": None,
        "best_score": None,
        "best_metrics": None,
        "cli_args": None,
        "n_calls": len(tried),
        "seeds": list(frame.seeds),
        "convergence": [point.worth.score for point in tried],
    }
    if best is not None:
        metrics = figures(best.runs)
        document |= {
            "best_parameters": dict(zip(frame.space.names, best.point, strict=True)),
            "best_score": best.worth.score,
            "best_metrics": {
                theirs: metrics[ours]["mean"]
                for theirs, ours in THEIR_METRICS.items()
                if ours in metrics
            },
            "cli_args": arguments(frame.space.config_at(best.point)),
            "best_call": list(tried).index(best) if place is None else place,
            "best_figures": by_class(metrics),
            "success": _success(frame, best),
        }
    if place is not None and lowest is not None:
        document |= {
            "is_recommended": True,
            "lowest_score": lowest.worth.score,
            "lowest_call": list(tried).index(lowest),
        }
    document |= {
        "search": strategy.search.model_dump(),
        "rng": frame.stream,
        "objectives": [entry.model_dump(exclude_none=True) for entry in strategy.objectives],
        "constraints": [entry.model_dump(exclude_none=True) for entry in strategy.constraints],
        "intervals": METHOD.replace(", paired by seed", ""),
        "failures": failures(tried),
        "num_broken_invariants": sum(
            r.num_broken_invariants for point in tried for r in point.runs
        ),
        "points": [_point(frame, point) for point in tried],
    }
    if len(strategy.objectives) > 1:
        document["front"] = front(frame, tried)
    return document


def figures(runs: Sequence[RunSummary]) -> dict[str, dict[str, Any]]:
    """Return per metric mean, 95 % interval and the value of each seed; None for what does not exist."""
    names = runs[0].metrics if runs and all(run.is_whole for run in runs) else ()
    by_metric = {}
    for name in names:
        values = np.array([run.metrics[name] for run in runs])
        interval = estimate(values)
        by_metric[name] = {
            "mean": finite(interval.mean),
            "low": finite(interval.low),
            "high": finite(interval.high),
            "per_seed": [finite(value) for value in values.tolist()],
        }
    return by_metric


def by_class(metrics: Mapping[str, Any]) -> dict[str, dict[str, Any]]:
    """Group figures by SLO class; those of all requests and of the run come under `all`."""
    grouped: dict[str, dict[str, Any]] = {}
    for name, value in metrics.items():
        plain, at, load = name.partition(AT)
        metric, slo_class = lookup(plain)
        grouped.setdefault(slo_class or "all", {})[metric.name + at + load] = value
    return grouped


def failures(tried: Sequence[Tried]) -> dict[str, int]:
    """Count the points that failed, by outcome."""
    names = [name for point in tried for name in point.worth.failures]
    return {name: names.count(name) for name in sorted(set(names))}


def front(frame: SearchFrame, tried: Sequence[Tried]) -> dict[str, Any]:
    """Return the calls on the Pareto front of points without penalty, and the hypervolume call by call."""
    kept = [place for place, point in enumerate(tried) if point.worth.is_feasible]
    metrics = [goal.metric for goal in frame.valuation.goals]
    signs = [goal.sign for goal in frame.valuation.goals]
    if not kept:
        return {"calls": [], "metrics": metrics, "hypervolume": 0.0}
    objectives = np.array([tried[place].worth.objectives for place in kept])
    reference = reference_point(objectives)
    volumes, seen = [], 0
    for place in range(len(tried)):
        seen += seen < len(kept) and kept[seen] == place
        volumes.append(hypervolume(objectives[:seen], reference))
    on_front = nondominated(objectives)
    return {
        "calls": [place for place, is_on in zip(kept, on_front, strict=True) if is_on],
        "metrics": metrics,
        "reference_point": [s * value for s, value in zip(signs, reference.tolist(), strict=True)],
        "hypervolume": volumes[-1],
        "hypervolume_by_call": volumes,
    }


def _point(frame: SearchFrame, one: Tried) -> dict[str, Any]:
    return {
        "parameters": dict(zip(frame.space.names, one.point, strict=True)),
        "score": one.worth.score,
        "penalties": dict(one.worth.penalties),
        "is_feasible": one.worth.is_feasible,
        "failures": list(one.worth.failures),
        **({"is_estimate": True} if _is_estimate(frame, one) else {}),
        "outcomes": [run.outcome.name for run in one.runs],
        "figures": by_class(figures(one.runs)),
    }


def _is_estimate(frame: SearchFrame, one: Tried) -> bool:
    """Return whether the score stands for seeds that the point did not run on."""
    return not one.worth.failures and len(one.runs) < len(frame.seeds)


def _success(frame: SearchFrame, best: Tried) -> list[dict[str, Any]]:
    """Return every success criterion with what the best point reached."""
    reached = figures(best.runs)
    before = figures(frame.baseline) if frame.baseline is not None else {}
    verdicts = []
    for criterion in frame.valuation.strategy.success_criteria:
        claim = criterion.claim
        value = reached[claim.metric]["mean"]
        entry: dict[str, Any] = criterion.model_dump(exclude_none=True)
        if claim.is_change:
            base = before.get(claim.metric, {}).get("mean")
            entry["baseline"] = base
            has_change = value is not None and base is not None and base != 0
            value = 100 * (value / base - 1) if has_change else None
        is_met = value is not None and claim.holds(value)
        verdicts.append({**entry, "reached": value, "is_met": is_met})
    return verdicts
