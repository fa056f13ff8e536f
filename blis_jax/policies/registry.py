"""Names of policies, and what each needs: the only place where a name is looked up.

Functions are named by module and found when asked for, so that a command can list the names without jax.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from importlib import import_module
from typing import Any


@dataclass(frozen=True)
class Entry:
    """A policy: where its function is, the class of its numbers with defaults, and what it needs."""

    module: str  # within blis_jax.policies
    function_name: str
    params_name: str = "admission.NoParams"
    defaults: tuple[tuple[str, float], ...] = ()
    state_name: str = "admission.no_state"
    uses_prefix_index: bool = False  # a scorer that reads the router's index
    needs_cached_blocks: bool = False  # a scheduler that reads what is cached for waiting requests
    has_fixed_numbers: bool = False  # the reference gives no flags for them

    @property
    def function(self) -> Callable[..., Any]:
        """The policy itself."""
        return _find(f"{self.module}.{self.function_name}")

    @property
    def params(self) -> Any:
        """The class of its numbers."""
        return _find(self.params_name)

    @property
    def initial_state(self) -> Callable[..., Any]:
        """`(params, shape) -> state` before the first decision."""
        return _find(self.state_name)


def _find(path: str) -> Any:
    module, _, name = path.partition(".")
    return getattr(import_module(f"blis_jax.policies.{module}"), name)


_SLO = (("base_critical", 10.0), ("base_standard", 5.0), ("base_sheddable", 1.0))
_TIERS = (*_SLO, ("age_weight", 1e-5), ("grace_standard_us", 1e5), ("grace_sheddable_us", 2e5))
_AGE = (("base", 0.0), ("age_weight", 1e-6))
_LOAD = (*_TIERS, ("low_depth", 2.0), ("high_depth", 15.0))
_CLASSES: tuple[tuple[str, float], ...] = (
    ("base_critical", 10.0),
    ("base_standard", 5.0),
    ("base_sheddable", 3.0),
)
_CLASSES += (("base_batch", 1.0), ("base_background", 0.0), ("base_none", 0.0))
_CLASSES += (("age_weight", 1e-5),)
_DEADLINES: tuple[tuple[str, float], ...] = (
    *_SLO,
    ("deadline_critical_us", 1e5),
    ("deadline_standard_us", 2.5e5),
)
_DEADLINES += (("deadline_sheddable_us", 1e6), ("least_left_us", 1e4))
_CLASS_GATES = (("standard_load", 100.0), ("sheddable_load", 50.0), ("probability", 1.0))
_BUCKET = (("capacity", 10000.0), ("refill_per_s", 1000.0))
_QUEUES = (("standard_depth", 10.0), ("sheddable_depth", 5.0))
_BIASES = (("bias_critical", 0.9), ("bias_sheddable", 0.2))

# policies and scorers of BLIS, at the routing track's revision, that are not here
MISSING = {
    "admission_policy": ("predictive-slo",),
    "routing_policy": ("adaptive-weighted", "kv-adaptive", "epoch-adaptive"),
    "routing_scorers": ("cost-benefit", "slo-headroom", "kv-pressure"),
}
ADMISSION = {
    "always-admit": Entry("admission", "always_admit"),
    "reject-all": Entry("admission", "reject_all"),
    "token-bucket": Entry(
        "admission",
        "token_bucket",
        "admission.TokenBucketParams",
        _BUCKET,
        "admission.full_bucket",
    ),
    "slo-gated": Entry(
        "admission", "slo_gated", "admission.SloGatedParams", (("load_threshold", 8.0),)
    ),
    "class-gated": Entry("admission", "class_gated", "admission.ClassGatedParams", _CLASS_GATES),
    "slo-queue-gated": Entry("admission", "slo_queue_gated", "admission.QueueGatedParams", _QUEUES),
}
ROUTING = {
    "round-robin": Entry("routing", "round_robin", state_name="routing.zero_counter"),
    "least-loaded": Entry("routing", "least_loaded"),
    "weighted": Entry("routing", "weighted"),
    "prefix-affinity": Entry(
        "routing", "prefix_affinity_policy", state_name="routing.empty_prompt_map"
    ),
    "always-busiest": Entry("routing", "always_busiest"),
}
SCORERS = {
    "prefix-affinity": Entry("scorers", "prefix_affinity", uses_prefix_index=True),
    "queue-depth": Entry("scorers", "queue_depth"),
    "kv-utilization": Entry("scorers", "kv_utilization"),
    "load-balance": Entry("scorers", "load_balance"),
    "slo-priority": Entry("scorers", "slo_priority", "scorers.SloPriorityParams", _BIASES),
}
PRIORITY = {
    "constant": Entry("priority", "constant"),
    "slo-based": Entry("priority", "slo_based", "priority.AgeParams", _AGE),
    "inverted-slo": Entry("priority", "inverted_slo", "priority.AgeParams", _AGE),
    "slo-tiered": Entry("priority", "slo_tiered", "priority.TieredParams", _TIERS),
    "load-adaptive": Entry("priority", "load_adaptive", "priority.LoadAdaptiveParams", _LOAD),
    "slo-deadline": Entry("priority", "slo_deadline", "priority.DeadlineParams", _DEADLINES),
    "slo-class": Entry(
        "priority", "slo_class", "priority.ClassParams", _CLASSES, has_fixed_numbers=True
    ),
}
SCHEDULERS = {
    "fcfs": Entry("schedulers", "fcfs"),
    "priority-fcfs": Entry("schedulers", "priority_fcfs"),
    "sjf": Entry("schedulers", "sjf"),
    "priority-cached": Entry(
        "schedulers",
        "priority_cached",
        "schedulers.CachedParams",
        (("per_block", 0.01),),
        needs_cached_blocks=True,
    ),
    "reverse-priority": Entry("schedulers", "reverse_priority"),
}
