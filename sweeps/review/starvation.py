"""Judge of the least urgent: does every class still get through, and how long can it be passed over?"""

from __future__ import annotations

import math
from typing import Any

from blis_jax.cluster.config import ClusterConfig
from sweeps.review.candidates import Candidate
from sweeps.review.opinion import CONCERN, PASS, REJECT, Exhibit, Judge, Opinion, worst

CEILING = 2.0  # times the baseline's P99, as registered by the record
LONG_S = 5.0  # after which an old request passes a new, more urgent one
MOST_REJECTED, MANY_REJECTED = 0.95, 0.5
BASELINE = "baseline"
BY_CLASS = ("slo-tiered", "load-adaptive", "slo-class")


def configs(candidate: Candidate) -> dict[str, ClusterConfig]:
    """The baseline that the strategy names, or the ledger's."""
    from sweeps.strategies.file import load_strategy
    from sweeps.strategies.space import space_of

    name = candidate.strategy.baseline if candidate.strategy is not None else "iter00_baseline"
    return {BASELINE: space_of(load_strategy(name)).base}


def judge(exhibit: Exhibit) -> Opinion:
    """Rejects a strategy under which a class does not get through."""
    candidate = exhibit.candidate
    verdicts, reasons = [PASS], []
    evidence: dict[str, Any] = {}
    for slo_class in candidate.classes:
        figures, found = _on_class(exhibit, slo_class)
        evidence[slo_class] = figures
        for verdict, reason in found:
            verdicts.append(verdict)
            reasons.append(reason)
    seconds = crossover_s(candidate.config)
    evidence["an old sheddable request passes a new critical one after, s"] = (
        seconds if seconds is None or math.isfinite(seconds) else "never"
    )
    if seconds is not None and seconds > LONG_S:
        verdict = REJECT if math.isinf(seconds) else CONCERN
        words = "never" if math.isinf(seconds) else f"only after {seconds:.3g} s"
        verdicts.append(verdict)
        reasons.append(f"an old sheddable request passes new critical ones {words}")
    failed = [run.outcome for run in exhibit.own if not run.is_whole]
    if failed:
        verdicts.append(REJECT)
        reasons.append(f"{len(failed)} of {len(exhibit.own)} runs ended with {failed[0]}")
    return Opinion(
        "starvation",
        candidate.name,
        worst(verdicts),
        tuple(reasons) or ("every class completes within twice its time under the baseline",),
        evidence,
        "runs of the candidate and of the baseline on common seeds; gap of base scores ÷ age weight",
    )


def crossover_s(config: ClusterConfig) -> float | None:
    """Age at which a sheddable request passes a critical one that has just come; None without classes."""
    if config.priority_policy not in BY_CLASS or config.scheduler != "priority-fcfs":
        return None
    if config.priority_policy == "slo-class":
        from blis_jax.policies.registry import find

        numbers = find("priority", "slo-class").values()
        return float((numbers.base_critical - numbers.base_sheddable) / numbers.age_weight / 1e6)
    gap = config.slo_base_critical - config.slo_base_sheddable
    if gap <= 0:
        return 0.0
    if not config.slo_age_weight:
        return math.inf
    return (gap / config.slo_age_weight + config.slo_threshold_sheddable) / 1e6


def _on_class(exhibit: Exhibit, slo_class: str) -> tuple[dict[str, Any], list[tuple[str, str]]]:
    """Figures of one class, and what is wrong with them."""
    config, base = exhibit.candidate.config, configs(exhibit.candidate)[BASELINE]
    done = exhibit.mean(config, f"completion_rate[{slo_class}]")
    rejected = exhibit.mean(config, f"rejected_share[{slo_class}]")
    tail = exhibit.mean(config, f"ttft_p99_ms[{slo_class}]")
    before = exhibit.mean(base, f"ttft_p99_ms[{slo_class}]")
    ratio = tail / before if before else math.nan
    figures = {
        "completed": _finite(done),
        "rejected": _finite(rejected),
        "TTFT P99, ms": _finite(tail),
        "TTFT P99 of the baseline, ms": _finite(before),
    }
    found = []
    let_in = 1 - rejected
    if let_in > 0 and done < 0.9 * let_in:
        words = f"{done / let_in:.0%} of the {slo_class} requests that were let in complete"
        found.append((REJECT if done < 0.5 * let_in else CONCERN, words))
    if rejected > MANY_REJECTED:
        words = f"{rejected:.0%} of the {slo_class} requests are turned away"
        found.append((REJECT if rejected > MOST_REJECTED else CONCERN, words))
    if ratio > CEILING:
        words = (
            f"{slo_class} TTFT P99 is {ratio:.2f} times the baseline's, the ceiling is {CEILING:g}"
        )
        found.append((CONCERN, words))
    return figures, found


def _finite(value: float) -> float | None:
    return value if math.isfinite(value) else None


STARVATION = Judge("starvation", "classes that do not get through", configs, judge)
