"""The settings of flow control, the queue of the gateway, under the names of BLIS's options."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from blis_jax.cluster.setting_checks import demand
from blis_jax.core.types import SLO_CLASSES
from blis_jax.errors import ConfigError, closest

CHOICES = {
    "saturation_detector": ("never", "utilization", "concurrency"),
    "dispatch_order": ("fifo", "priority", "slo-deadline"),
    "fairness_policy": ("global-strict", "round-robin"),
}
DEFAULT_TICK_US = 1000
MOST_TENANTS = 256  # that can have a budget
POSITIVE: tuple[str, ...] = ("queue_depth_threshold", "kv_cache_util_threshold", "max_concurrency")
NOT_NEGATIVE: tuple[str, ...] = ("max_gateway_queue_depth", "per_band_capacity", "request_ttl")
NOT_NEGATIVE += ("dispatch_tick_interval",)
_WHOLE_MOST = 2**31 - 1


@dataclass(frozen=True)
class FlowSettings:
    """How requests wait at the gateway; without `flow_control` the others have no effect, as in BLIS."""

    flow_control: bool = False
    saturation_detector: str = "never"
    queue_depth_threshold: float = 5.0
    kv_cache_util_threshold: float = 0.8
    max_concurrency: int = 100
    usage_limit_threshold: float = 1.0
    dispatch_order: str = "fifo"
    slo_targets: str = ""
    fairness_policy: str = "global-strict"
    max_gateway_queue_depth: int = 0
    per_band_capacity: int = 0
    queue_shedding: bool = False
    request_ttl: int = 0
    dispatch_tick_interval: int = DEFAULT_TICK_US
    in_flight_eviction: bool = False
    tenant_budgets: str = ""  # of effect without flow_control too


def slo_targets(text: str) -> dict[str, int]:
    """Time to dispatch of each class, µs, from `critical=100000,standard=500000`.

    Raises:
        ConfigError: a pair is no class with a whole number above 0.
    """
    found = {}
    for part in text.split(",") if text.strip() else ():
        name, _, value = (word.strip() for word in part.partition("="))
        if name not in SLO_CLASSES[1:]:
            hint = closest(name, SLO_CLASSES[1:]) or f"; known: {', '.join(SLO_CLASSES[1:])}"
            raise ConfigError(f"slo_targets: {name!r} is no SLO class{hint}")
        if not value.isdigit() or not 0 < int(value) < 2**62:
            raise ConfigError(
                f"slo_targets: {part.strip()!r} must be CLASS=N with whole µs above 0, such as critical=100000"
            )
        found[name] = int(value)
    return found


def tenant_budgets(text: str) -> dict[int, float]:
    """Share of each tenant with a bound, from `0=0.02,2=0.05`; tenants are numbered in the order of their names.

    Raises:
        ConfigError: a pair is no number of a tenant with a share from 0 to 1.
    """
    found = {}
    for part in text.split(",") if text.strip() else ():
        tenant, _, share = (word.strip() for word in part.partition("="))
        try:
            value = float(share)
        except ValueError:
            value = -1.0
        if not tenant.isdigit() or int(tenant) >= MOST_TENANTS or not 0 <= value <= 1:
            raise ConfigError(
                f"tenant_budgets: {part.strip()!r} must be TENANT=SHARE with a number below {MOST_TENANTS}, in the "
                "order of the tenants' names, and a share from 0 to 1, such as 0=0.02"
            )
        found[int(tenant)] = value
    return found


def check(config: Any) -> None:
    """Refuses values that the queue cannot have, and mechanisms that it does not go with.

    Raises:
        ConfigError: with what is allowed.
    """
    for name in ("queue_depth_threshold", "kv_cache_util_threshold"):
        demand(config, name, lambda value: value < float("inf"), "finite")
    demand(config, "usage_limit_threshold", lambda value: 0 < value <= 1, "above 0 and at most 1")
    for name in ("max_concurrency", "max_gateway_queue_depth", "per_band_capacity"):
        demand(config, name, lambda value: value <= _WHOLE_MOST, f"at most {_WHOLE_MOST}")
    demand(config, "request_ttl", lambda value: value < 2**62, f"below {2**62}")
    slo_targets(config.slo_targets)
    tenant_budgets(config.tenant_budgets)
