"""Rules for the compiler's tests: policies of the package and of a user's file."""

from __future__ import annotations

from pathlib import Path

from blis_jax.policies import registry
from sweeps.promote.golang.plugins import order_rule, short_name
from sweeps.promote.golang.tracing import PromotedRule

_USER = Path(__file__).with_name("user_policies.py")


def rule(kind: str, name: str) -> PromotedRule:
    """A policy of the package."""
    return PromotedRule(kind, name, (registry.find(kind, name),))


def user_rule(kind: str, name: str) -> PromotedRule:
    """A policy of the user's file; of a scheduler or a priority, the order that it makes."""
    path = f"{_USER}:{name}"
    if kind == "priority":
        order = registry.find("scheduler", "priority-fcfs")
        return order_rule(path, "priority-fcfs", registry.find(kind, path), order)
    if kind == "scheduler":
        return order_rule(
            "constant", path, registry.find("priority", "constant"), registry.find(kind, path)
        )
    return PromotedRule(kind, short_name(path), (registry.find(kind, path),))
