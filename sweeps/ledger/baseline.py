"""A track's baseline, measured: per seed and as means with intervals, in all and by class."""

from __future__ import annotations

import math
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from blis_jax.core.outcome import WHOLE_NAMES
from blis_jax.errors import ConfigError
from blis_jax.files.atomic_write import finite
from blis_jax.metrics.metric import ALL, names_in, split_name
from blis_jax.metrics.scalars import TOKEN_RATES, lookup
from blis_jax.statistics.intervals import METHOD, estimate
from sweeps.claims.grammar import Claim
from sweeps.ledger.trial import (
    ArmRuns,
    Experiments,
    arm_record,
    config_of,
    run_arms,
    versions,
    workload_hash,
)
from sweeps.tracks.criteria import by_class
from sweeps.tracks.problem import MAIN, Criterion, Problem, workload_named

OF_RUN = {  # names of the published file, and ours
    "ttft_p99_ms": "ttft_p99_ms",
    "e2e_p99_ms": "e2e_p99_ms",
    "throughput_tps": "tokens_per_sec",
    "scheduling_delay_p99_ms": "scheduling_delay_p99_ms",
    "preemption_count": "num_preemptions",
}
TAIL = "ttft_p99_ms"
_LABELS = {
    "ttft_p99_ms": "TTFT P99, ms",
    "e2e_p99_ms": "E2E P99, ms",
    "tokens_per_sec": f"throughput, {TOKEN_RATES['tokens_per_sec']}",
    "scheduling_delay_p99_ms": "scheduling delay P99, ms",
    "goodput_rps": lookup("goodput_rps")[0].axis,
}


def measure_baseline(problem: Problem, folder: Path) -> dict[str, Any]:
    """Measure the document `baseline.json`.

    Raises:
        ConfigError: a run of the baseline does not come to its end.
    """
    spec = workload_named(problem.workload, folder, problem.rate)
    arm = arm_record(problem.baseline)
    experiment = Experiments().of(spec, problem.seeds, problem.rng, ())
    (runs,) = run_arms(experiment, [config_of(arm.settings)])
    for seed, outcome in zip(problem.seeds, runs.outcomes, strict=True):
        if outcome not in WHOLE_NAMES:
            raise ConfigError(
                f"the baseline {problem.baseline} ended on seed {seed} with {outcome}; a track needs "
                "one that ends, choose another workload or --baseline"
            )
    classes = spec.slo_classes
    return {
        "description": f"Baseline of the track {problem.name}",
        "baseline": arm.model_dump(),
        "config": arm.settings,
        "workload": problem.workload,
        "rate": problem.rate,
        "workload_hash": workload_hash(spec),
        "rng": problem.rng,
        "seeds": list(problem.seeds),
        "versions": versions(),
        "results": _results(problem.seeds, runs, classes),
        "interval_method": METHOD.replace(", paired by seed", ""),
        "intervals": _intervals(runs, classes),
        "targets": _targets(problem.criteria, runs, classes),
    }


def _results(seeds: Sequence[int], runs: ArmRuns, classes: Sequence[str]) -> dict[str, Any]:
    """Figures of every seed, and their means, under the names of the published file."""
    results: dict[str, dict[str, Any]] = {}
    for place, seed in enumerate(seeds):
        figures = {name: values[place] for name, values in runs.figures.items()}
        tails = {name: finite(figures[f"{TAIL}[{name}]"]) for name in classes}
        results[f"seed_{seed}"] = {
            **{theirs: finite(figures[ours]) for theirs, ours in OF_RUN.items()},
            "slo_ttft_p99_ms": tails,
            "slo_differentiation_pct": _spread(list(tails.values())),
        }
    names = [name for name in results[f"seed_{seeds[0]}"] if name != "slo_ttft_p99_ms"]
    by_seed = list(results.values())
    results["mean"] = {name: _mean([entry[name] for entry in by_seed]) for name in names}
    results["mean"]["slo_ttft_p99_ms"] = {
        name: _mean([entry["slo_ttft_p99_ms"][name] for entry in by_seed]) for name in classes
    }
    return results


def _intervals(runs: ArmRuns, classes: Sequence[str]) -> list[dict[str, Any]]:
    """Means with their intervals, labelled for a table."""
    names = ["tokens_per_sec", "scheduling_delay_p99_ms"]
    for metric in ("ttft_p99_ms", "e2e_p99_ms", "goodput_rps"):
        names += names_in([metric], (ALL, *classes))
    intervals = []
    for name in names:
        base, slo_class = split_name(name)
        value = estimate(runs.figures[name])
        label = _LABELS[base] + (f", {slo_class}" if slo_class else "")
        intervals.append(
            {
                "label": label,
                "metric": name,
                "unit": lookup(name)[0].unit,
                "mean": finite(value.mean),
                "low": finite(value.low),
                "high": finite(value.high),
                "decimals": 0 if base == "tokens_per_sec" else 1,
            }
        )
    return intervals


def _targets(
    criteria: Sequence[Criterion], runs: ArmRuns, classes: Sequence[str]
) -> dict[str, str]:
    """What goals that are changes mean in the metric's unit, by criterion."""
    targets = {}
    for criterion in criteria:
        claim = criterion.claim
        if claim is None or not claim.is_change or criterion.condition != MAIN:
            continue
        parts = []
        for slo_class, own in by_class(criterion, classes):
            values = runs.figures.get(own.metric)
            if values is not None and math.isfinite(values.mean()):
                where = f"{slo_class} " if "[" in own.metric and criterion.each_class else ""
                parts.append(f"{where}{_bound(own, float(values.mean()))}")
        if parts:
            targets[criterion.name] = ", ".join(parts)
    return targets


def _bound(claim: Claim, mean: float) -> str:
    low, high = (mean * (1 + bound / 100) for bound in (claim.low, claim.high))
    if math.isinf(claim.low):
        return f"≤ {high:,.1f}"
    return f"≥ {low:,.1f}" if math.isinf(claim.high) else f"{low:,.1f} to {high:,.1f}"


def _spread(values: Sequence[float | None]) -> float | None:
    """How far the worst class is above the best, %."""
    known = [value for value in values if value is not None]
    if len(known) != len(values) or not known or min(known) <= 0:
        return None
    return 100 * (max(known) / min(known) - 1)


def _mean(values: Sequence[float | None]) -> float | None:
    known = [value for value in values if value is not None]
    return sum(known) / len(known) if known and len(known) == len(values) else None
