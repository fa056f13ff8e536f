"""Names of policies, and what each needs: the only place where a name is looked up."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from blis_jax.policies import admission, priority, routing, schedulers, scorers


@dataclass(frozen=True)
class Entry:
    """A policy: its function, the class of its numbers with defaults, and its initial state."""

    function: Callable[..., Any]
    params: type
    defaults: tuple[tuple[str, float], ...] = ()
    initial_state: Callable[..., Any] = admission.no_state
    uses_prefix_index: bool = False
    has_fixed_numbers: bool = False  # the reference gives no flags for them


_SLO = (("base_critical", 10.0), ("base_standard", 5.0), ("base_sheddable", 1.0))
_TIERS = (*_SLO, ("age_weight", 1e-5), ("grace_standard_us", 1e5), ("grace_sheddable_us", 2e5))
_NONE = admission.NoParams

ADMISSION = {
    "always-admit": Entry(admission.always_admit, _NONE),
    "reject-all": Entry(admission.reject_all, _NONE),
    "token-bucket": Entry(
        admission.token_bucket,
        admission.TokenBucketParams,
        (("capacity", 10000.0), ("refill_per_s", 1000.0)),
        admission.full_bucket,
    ),
    "slo-gated": Entry(admission.slo_gated, admission.SloGatedParams, (("load_threshold", 8.0),)),
    "slo-queue-gated": Entry(
        admission.slo_queue_gated,
        admission.QueueGatedParams,
        (("standard_depth", 10), ("sheddable_depth", 5)),
    ),
}
ROUTING = {
    "round-robin": Entry(routing.round_robin, _NONE, (), routing.zero_counter),
    "least-loaded": Entry(routing.least_loaded, _NONE),
    "weighted": Entry(routing.weighted, _NONE),
    "prefix-affinity": Entry(routing.prefix_affinity_policy, _NONE, (), routing.empty_prompt_map),
    "always-busiest": Entry(routing.always_busiest, _NONE),
}
SCORERS = {
    "prefix-affinity": Entry(scorers.prefix_affinity, _NONE, uses_prefix_index=True),
    "queue-depth": Entry(scorers.queue_depth, _NONE),
    "kv-utilization": Entry(scorers.kv_utilization, _NONE),
    "load-balance": Entry(scorers.load_balance, _NONE),
    "slo-priority": Entry(
        scorers.slo_priority,
        scorers.SloPriorityParams,
        (("bias_critical", 0.9), ("bias_sheddable", 0.2)),
    ),
}
PRIORITY = {
    "constant": Entry(priority.constant, _NONE),
    "slo-based": Entry(
        priority.slo_based, priority.AgeParams, (("base", 0.0), ("age_weight", 1e-6))
    ),
    "inverted-slo": Entry(
        priority.inverted_slo, priority.AgeParams, (("base", 0.0), ("age_weight", 1e-6))
    ),
    "slo-class": Entry(
        priority.slo_class,
        priority.ClassParams,
        (
            ("base_critical", 10.0),
            ("base_standard", 5.0),
            ("base_sheddable", 3.0),
            ("base_batch", 1.0),
            ("base_background", 0.0),
            ("base_none", 0.0),
            ("age_weight", 1e-5),
        ),
        has_fixed_numbers=True,
    ),
    "slo-tiered": Entry(priority.slo_tiered, priority.TieredParams, _TIERS),
    "load-adaptive": Entry(
        priority.load_adaptive,
        priority.LoadAdaptiveParams,
        (*_TIERS, ("low_depth", 2.0), ("high_depth", 15.0)),
    ),
}
SCHEDULERS = {
    "fcfs": Entry(schedulers.fcfs, _NONE),
    "priority-fcfs": Entry(schedulers.priority_fcfs, _NONE),
    "sjf": Entry(schedulers.sjf, _NONE),
    "reverse-priority": Entry(schedulers.reverse_priority, _NONE),
}
