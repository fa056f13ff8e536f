"""Admission, routing, scorer, picker, priority, scheduling, victim and offload policies: one small pure function each.

A user's policy imports its decorator, `number` and `pytree` from here. This package imports the engine's
types and nothing else of it.
"""

from blis_jax.core.types import pytree
from blis_jax.policies.contract import (
    ClusterChange,
    ClusterContext,
    Completion,
    GatewayContext,
    HandOver,
    HandOverContext,
    NoParams,
    NoState,
    OffloadContext,
    PickerContext,
    Policies,
    Policy,
    Pool,
    QueueContext,
    VictimContext,
    admission_policy,
    cluster_policy,
    hand_over_policy,
    offload_policy,
    picker,
    priority_policy,
    routing_policy,
    scheduler,
    scorer,
    victim_policy,
)
from blis_jax.policies.numbers import number

__all__ = [
    "ClusterChange",
    "ClusterContext",
    "Completion",
    "GatewayContext",
    "HandOver",
    "HandOverContext",
    "NoParams",
    "NoState",
    "OffloadContext",
    "PickerContext",
    "Policies",
    "Policy",
    "Pool",
    "QueueContext",
    "VictimContext",
    "admission_policy",
    "cluster_policy",
    "hand_over_policy",
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
