"""Judge of mechanisms: is what the strategy has, or must have, doing anything?"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from blis_jax.cluster.config import ClusterConfig
from blis_jax.cluster.instance_groups import everywhere, per_instance
from sweeps.review.candidates import Candidate
from sweeps.review.opinion import CONCERN, PASS, REJECT, Exhibit, Judge, Opinion, worst
from sweeps.review.starvation import BASELINE
from sweeps.review.starvation import configs as baseline_of

# what a mechanism's setting is without it
OFF: Mapping[str, Any] = {
    "kv_cpu_blocks": 0,
    "admission_policy": "always-admit",
    "priority_policy": "constant",
    "scheduler": "fcfs",
    "slo_priority_bridge": False,
    "slo_prefill": False,
    "slo_preemption": False,
    "snapshot_refresh_interval": 0,
    "precise_kv_routing": False,
    "long_prefill_token_threshold": 0,
}


def configs(candidate: Candidate) -> dict[str, ClusterConfig]:
    """The candidate without each mechanism that it has, and the baseline."""
    config = candidate.config
    found = {
        name: everywhere(config, **{name: off})
        for name, off in OFF.items()
        if any(value != off for value in per_instance(config, name))
    }
    return {**found, **baseline_of(candidate)}


def judge(exhibit: Exhibit) -> Opinion:
    """Rejects a strategy that does what the baseline does; names the mechanisms that do nothing."""
    candidate = exhibit.candidate
    required = candidate.strategy.required_settings if candidate.strategy is not None else {}
    made = configs(candidate)
    shares = {name: exhibit.differing(config) for name, config in made.items()}
    idle = [name for name, share in shares.items() if share == 0 and name != BASELINE]
    reasons, verdicts = [], [PASS]
    if shares[BASELINE] == 0 and candidate.config != made[BASELINE]:
        verdicts.append(REJECT)
        reasons.append(
            "every request fares as under the baseline: nothing that the strategy adds has an effect"
        )
    for name in idle:
        verdicts.append(CONCERN)
        words = ", which the strategy requires," if name in required else ""
        reasons.append(f"{name}{words} changes no request on this workload")
    return Opinion(
        "inert",
        candidate.name,
        worst(verdicts),
        tuple(reasons) or ("every mechanism changes some request",),
        {f"requests that differ without {name}": share for name, share in shares.items()},
        "runs without each mechanism, compared request by request",
    )


INERT = Judge("inert", "mechanisms that do nothing", configs, judge)
