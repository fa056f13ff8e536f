"""Policies and event sources: one small pure function each.

A user's policy imports its decorator, `number` and `pytree` from here. This package imports the engine's
types and nothing else of it.
"""

from blis_jax.core.pytrees import pytree
from blis_jax.core.types import BACKGROUND, BATCH, CRITICAL, SHEDDABLE, STANDARD
from blis_jax.policies.classes import is_sheddable
from blis_jax.policies.contexts import (
    ClusterChange,
    ClusterContext,
    Completion,
    DraftContext,
    GatewayContext,
    HandOver,
    HandOverContext,
    Happening,
    OffloadContext,
    PickerContext,
    Pool,
    QueueContext,
    SourceContext,
    VictimContext,
)
from blis_jax.policies.contract import (
    NoParams,
    NoState,
    Policies,
    Policy,
    admission_policy,
    cluster_policy,
    draft_policy,
    event_source,
    hand_over_policy,
    offload_policy,
    picker,
    priority_policy,
    routing_policy,
    scheduler,
    scorer,
    victim_policy,
)
from blis_jax.policies.numbers import figure, number

__all__ = [
    "BACKGROUND",
    "BATCH",
    "CRITICAL",
    "SHEDDABLE",
    "STANDARD",
    "ClusterChange",
    "ClusterContext",
    "Completion",
    "DraftContext",
    "GatewayContext",
    "HandOver",
    "HandOverContext",
    "Happening",
    "NoParams",
    "NoState",
    "OffloadContext",
    "PickerContext",
    "Policies",
    "Policy",
    "Pool",
    "QueueContext",
    "SourceContext",
    "VictimContext",
    "admission_policy",
    "cluster_policy",
    "draft_policy",
    "event_source",
    "figure",
    "hand_over_policy",
    "is_sheddable",
    "number",
    "offload_policy",
    "picker",
    "priority_policy",
    "pytree",
    "routing_policy",
    "scheduler",
    "scorer",
    "victim_policy",
]
