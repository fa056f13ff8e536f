"""The order of requests as static keys by class: for vLLM's request priority and for the router's deadline header."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from blis_jax.cluster.config import ClusterConfig
from blis_jax.policies.named import numbered
from sweeps.promote.configs.generated import numbers_of_policy
from sweeps.promote.configs.places import not_mapped
from sweeps.promote.maps.rows import policy_row
from sweeps.promote.promotion import Promotion

CLASSES = ("critical", "standard", "batch", "sheddable", "background")
_LIKE_SHEDDABLE = ("batch", "sheddable", "background")  # in policies with three classes
STRICT_MS = (
    10_000_000  # ms that one unit of priority is worth where priority does not grow with age
)
BY_PRIORITY = ("priority-fcfs", "priority-cached")
_TIERED = ("slo-tiered", "load-adaptive")


@dataclass(frozen=True)
class StaticOrder:
    """Keys by class: a request's key is its arrival minus the offset, in ms, and the least comes first."""

    offsets_ms: Mapping[str, int]
    headers_ms: Mapping[str, int]  # x-llm-d-slo-ttft-ms
    is_exact: bool
    note: str

    @property
    def is_by_class(self) -> bool:
        """Whether it is another order than that of arrival."""
        return len(set(self.offsets_ms.values())) > 1


def order_of(promotion: Promotion, config: ClusterConfig) -> StaticOrder | None:
    """The static order of a configuration; None for the engine's own, first come first served.

    Raises:
        NotMappedError: neither vLLM nor the router can order so.
    """
    if config.scheduler == "fcfs":
        return None
    if config.scheduler not in BY_PRIORITY:
        row = policy_row("scheduler", config.scheduler)
        problem = row.rule if row else "vLLM has no plugins for the order of its queue"
        proposal = row.proposal if row else "use scheduler priority-fcfs with a priority by class"
        raise not_mapped(promotion, "scheduler", f"{config.scheduler}: {problem}", proposal)
    name = config.priority_policy
    if name == "constant":
        return None
    offsets, is_exact, note = _offsets_ms(promotion, config)
    if config.scheduler == "priority-cached":
        is_exact, note = False, f"{note}; the worth of cached blocks is left out"
    if name == "slo-deadline":
        headers = {slo_class: -value for slo_class, value in offsets.items()}
    else:
        highest = max(offsets.values())
        headers = {slo_class: highest - value for slo_class, value in offsets.items()}
    return StaticOrder(offsets, headers, is_exact, note)


def _offsets_ms(promotion: Promotion, config: ClusterConfig) -> tuple[dict[str, int], bool, str]:
    """The lead of each class, ms; whether the order is the simulated one; how it was made."""
    name = config.priority_policy
    numbers = numbers_of_policy(numbered(config).priority)
    if name == "slo-based":
        return dict.fromkeys(CLASSES, 0), True, "the order of arrival"
    if name == "slo-class":
        bases = {slo_class: numbers[f"base_{slo_class}"] for slo_class in CLASSES}
        offsets = {key: _worth_ms(base, numbers["age_weight"]) for key, base in bases.items()}
        return offsets, True, "base ÷ age weight"
    if name in _TIERED:
        grace = {"critical": 0.0, "standard": numbers["grace_standard_us"]}
        grace |= dict.fromkeys(_LIKE_SHEDDABLE, numbers["grace_sheddable_us"])
        offsets = {
            slo_class: _worth_ms(base, numbers["age_weight"]) - round(grace[slo_class] / 1000)
            for slo_class, base in _three(numbers, "base_{}").items()
        }
        is_exact = name == "slo-tiered" and not any(grace.values())
        note = "base ÷ age weight" + (" - grace period" if any(grace.values()) else "")
        if name == "load-adaptive":
            note += "; the classes always fully apart"
        return offsets, is_exact, note
    if name == "slo-deadline":
        deadlines = _three(numbers, "deadline_{}_us")
        offsets = {slo_class: -round(value / 1000) for slo_class, value in deadlines.items()}
        return offsets, False, "earliest deadline first, without bases"
    row = policy_row("priority", name)
    problem = (
        row.rule if row else "a queue's key is static, and the priority is a function of a file"
    )
    proposal = row.proposal if row else "use slo-tiered, whose order is a static key"
    raise not_mapped(promotion, "priority_policy", f"{name}: {problem}", proposal)


def _three(numbers: Mapping[str, float], form: str) -> dict[str, float]:
    """A number of each class in a policy that knows three."""
    found = {name: numbers[form.format(name)] for name in ("critical", "standard")}
    rest = numbers[form.format("sheddable")]
    return found | dict.fromkeys(_LIKE_SHEDDABLE, rest)


def _worth_ms(base: float, age_weight: float) -> int:
    """How many ms of age a base is worth; priority per µs."""
    return round(base / age_weight / 1000) if age_weight > 0 else round(base * STRICT_MS)
