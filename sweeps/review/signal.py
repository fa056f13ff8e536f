"""Judge of signals: does what a strategy looks at differ where it is looked at?"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np

from blis_jax.cluster.config import ClusterConfig
from sweeps.review.candidates import Candidate
from sweeps.review.opinion import CONCERN, PASS, REJECT, Exhibit, Judge, Opinion, worst

MOSTLY = 0.99  # of the decisions
SELDOM = 0.02
REDUNDANT = 0.98  # pairs of instances ordered alike by two scorers
WITHOUT, CONSTANT = "without ", "constant priority"


def configs(candidate: Candidate) -> dict[str, ClusterConfig]:
    """The candidate without each of its scorers, and with a constant priority."""
    config, found = candidate.config, {}
    for name, _ in config.scorers():
        changes = _without(config, name)
        if changes:
            found[WITHOUT + name] = config.replace(**changes)
    if config.priority_policy != "constant":
        found[CONSTANT] = config.replace(priority_policy="constant")
    return found


def _without(config: ClusterConfig, name: str) -> dict[str, Any]:
    rest = [f"{other}:{weight!r}" for other, weight in config.scorers() if other != name]
    return {"routing_scorers": ",".join(rest)} if rest else {}


def judge(exhibit: Exhibit) -> Opinion:
    """Rejects a scorer or a priority that is the same for all, or that changes nothing."""
    candidate = exhibit.candidate
    verdicts, reasons, evidence = [PASS], [], {}
    for name, _ in candidate.config.scorers():
        verdict, reason, figures = _on_scorer(exhibit, name)
        verdicts.append(verdict)
        reasons += [reason] if reason else []
        evidence[name] = figures
    if candidate.config.priority_policy != "constant":
        share = exhibit.differing(configs(candidate)[CONSTANT])
        evidence["priority"] = {"requests that differ from constant priority": share}
        if share == 0:
            verdicts.append(REJECT)
            reasons.append(
                f"priority policy {candidate.config.priority_policy} changes no request: "
                "a constant gives the same"
            )
    return Opinion(
        "signal",
        candidate.name,
        worst(verdicts),
        tuple(reasons) or ("every signal differs between instances or requests, and decides",),
        evidence,
        "each scorer's values at every routing decision of the first seed; runs without each scorer "
        "and with a constant priority, compared request by request",
    )


def _on_scorer(exhibit: Exhibit, name: str) -> tuple[str, str, Mapping[str, Any]]:
    """Verdict, reason if there is one, and figures of one scorer."""
    decisions, config = exhibit.decisions, exhibit.candidate.config
    assert decisions is not None
    ablated = configs(exhibit.candidate).get(WITHOUT + name)
    differing = None if ablated is None else exhibit.differing(ablated)
    flat, decides = float(decisions.is_flat(name).mean()), decisions.decides(name)
    matched = decisions.matched.astype(float)
    figures = {
        "decisions in which all instances score alike": flat,
        "mean difference between best and worst": decisions.spread(name),
        "decisions that fall otherwise without it": decides,
        "pairs ordered as by load": decisions.agreement(name, -decisions.loads.astype(float)),
        "pairs ordered as by cached prefix": _finite(decisions.agreement(name, matched)),
        "requests that differ in runs without it": differing,
    }
    if flat >= MOSTLY:
        share = f"{flat:.1%} of the decisions"
        return REJECT, f"scorer {name} gives all instances one value in {share}", figures
    if differing == 0:
        return REJECT, f"scorer {name} changes no request: the same results without it", figures
    twin = _twin(exhibit, name)
    if twin:
        says = f"scorers {twin} and {name} order the instances alike: one signal with two weights"
        return CONCERN, says, figures
    if name == "kv-utilization" and decisions.spread(name) < 0.02:
        says = (
            "scorer kv-utilization is free capacity, not what is cached, and here instances differ "
            f"by {decisions.spread(name):.2%} in it"
        )
        return CONCERN, says, figures
    if decides < SELDOM and len(config.scorers()) > 1:
        says = f"scorer {name} decides {decides:.1%} of the requests"
        return CONCERN, says, figures
    return PASS, "", figures


def _twin(exhibit: Exhibit, name: str) -> str:
    """An earlier scorer that orders the instances alike; empty if there is none."""
    decisions = exhibit.decisions
    assert decisions is not None
    for place, other in enumerate(decisions.names[: decisions.names.index(name)]):
        if decisions.agreement(name, decisions.scores[place]) >= REDUNDANT:
            return other
    return ""


def _finite(value: float) -> float | None:
    return value if np.isfinite(value) else None


SIGNAL = Judge("signal", "scorers and priorities that are the same for all", configs, judge)
