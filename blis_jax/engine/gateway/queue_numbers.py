"""The numbers of the gateway's queue that a configuration describes."""

from __future__ import annotations

import dataclasses
from typing import Any

import numpy as np

from blis_jax.cluster.config import ClusterConfig
from blis_jax.cluster.flow_settings import (
    CHOICES,
    DEFAULT_TICK_US,
    MOST_TENANTS,
    slo_targets,
    tenant_budgets,
)
from blis_jax.core.types import SLO_CLASSES
from blis_jax.engine.gateway.gateway_queue import QueueParams, TenantBudgets
from blis_jax.policies.gateway_classes import ClassPriorities

NO_TARGET = np.iinfo(np.int64).max


def class_priorities(priority: Any) -> np.ndarray:
    """Each class's priority at the gateway, int32[slo_class]: the priority policy's if it has one, else BLIS's."""
    given = priority if isinstance(priority, ClassPriorities) else None
    names = [field.name for field in dataclasses.fields(ClassPriorities)]
    values = {name: getattr(given or ClassPriorities, name) for name in names}
    of_class = [values["standard"] if name == "" else values[name] for name in SLO_CLASSES]
    return np.asarray(of_class, np.float64).astype(np.int32)


def queue_params(config: ClusterConfig, priority: Any) -> QueueParams:
    """The queue's numbers as numpy arrays; `priority` are those of the priority policy."""
    targets = slo_targets(config.slo_targets)
    arrays: dict[str, Any] = {
        "detector": np.int32(CHOICES["saturation_detector"].index(config.saturation_detector)),
        "queue_depth_threshold": np.float64(config.queue_depth_threshold),
        "kv_threshold": np.float64(config.kv_cache_util_threshold),
        "max_concurrency": np.int32(config.max_concurrency),
        "priority": class_priorities(priority),
        "band_capacity": np.int32(config.per_band_capacity),
        "max_depth": np.int32(config.max_gateway_queue_depth),
        "sheds": np.bool_(config.queue_shedding),
        "usage_limit": np.float64(config.usage_limit_threshold),
        "round_robin": np.bool_(config.fairness_policy == "round-robin"),
        "by_deadline": np.bool_(config.dispatch_order == "slo-deadline"),
        "target_us": np.asarray([targets.get(name, NO_TARGET) for name in SLO_CLASSES], np.int64),
        "ttl_us": np.int64(config.request_ttl),
        "tick_us": np.int64(config.dispatch_tick_interval or DEFAULT_TICK_US),
    }
    return QueueParams(**arrays)


def budgets(config: ClusterConfig, priority: Any) -> TenantBudgets:
    """What tenants may have at the instances: a share of what all batches hold."""
    limit: Any = np.full(MOST_TENANTS, np.inf)
    capacity = max(config.num_instances * config.max_num_running_reqs, 1)
    for tenant, share in tenant_budgets(config.tenant_budgets).items():
        limit[tenant] = share * float(capacity)
    classes: Any = class_priorities(priority)
    return TenantBudgets(limit, classes)
