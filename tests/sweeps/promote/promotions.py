"""Promotions, and generated plugins of the form that the compiler gives, for tests."""

from __future__ import annotations

import contextlib
import functools
from collections.abc import Mapping
from types import MappingProxyType
from typing import Any

import yaml

from blis_jax.files.python_files import is_file
from sweeps.promote.golang.target import load
from sweeps.promote.llmd.deployment import order_of
from sweeps.promote.maps import maps_files, objective_name
from sweeps.promote.promotion import (
    ENGINE_PRIORITY,
    Files,
    GeneratedPlugin,
    NotMappedError,
    Promotion,
)
from sweeps.strategies.arms import Arm, arm_of

TARGET = "llm-d-router@0.10.0"
IMAGE = "quay.io/example/endpoint-picker:promoted"
PACKAGE = "pkg/epp/framework/plugins/scheduling/scorer/simulated"
MINE = '''
"""A scorer of a user's own."""

from blis_jax.lazy import jnp
from blis_jax.policies import GatewayContext, NoState, number, pytree, scorer


@pytree
class CalmParams:
    """How strongly full batches are avoided."""

    scale: float = number(8.0, "requests", "batch at which the score is one half", low=0, excludes_low=True)


@scorer(CalmParams)
def calm(params, state, context: GatewayContext):
    """Prefers instances with small batches."""
    batch = context.snapshots.batch_size.astype(jnp.float64)
    return params.scale / (params.scale + batch), state
'''


# what the library has and the target cannot
NOT_IN_THE_TARGET = {
    "adapters_homes": "routing_policy",
    "iter06_sjf": "scheduler",
    "iter17_prefix_groups": "scheduler",
    "iter18_deadlines": "priority_policy",
    "iter21_intent": "priority_policy",
    "iter22_joint": "priority_policy",
    "iter23_thin_tiers": "priority_policy",
    "iter25_every_class": "priority_policy",
    "opp_f_regimes": "routing_policy",
    "opp_f_regimes_apart": "routing_policy",
    "opp_f_threshold": "routing_policy",
    "opp_f_threshold_apart": "routing_policy",
    "routing15_epochs": "routing_policy",
    "routing17_sessions": "routing_policy",
    "routing19_sixteen": "routing_policy",
}


def promotion(given: str, baseline: str = "iter00_baseline") -> Promotion:
    """`routing_scorers=A~1+B~2` stands for a list of scorers, which an arm's text cannot hold."""
    text, mark, scorers = given.partition(":routing_scorers=")
    arm = arm_of(text)
    if mark:
        listed = scorers.replace("~", ":").replace("+", ",")
        arm = Arm(given, arm.config.replace(routing_scorers=listed), arm.strategy)
    return Promotion(given, arm, arm_of(baseline), TARGET, IMAGE)


@functools.cache
def maps_of(given: str) -> Files:
    """The files of the stage maps, written once in a process: a third of a second each."""
    return MappingProxyType(dict(maps_files(promotion(given))))


def read_yaml(text: str) -> Any:
    """The one document of a YAML text that the promotion wrote."""
    (found,) = read_yamls(text)
    return found


def read_yamls(text: str) -> list[Any]:
    """The documents of a YAML text; libyaml reads it several times as fast as Python."""
    return list(yaml.load_all(text, Loader=getattr(yaml, "CSafeLoader", yaml.SafeLoader)))


def generated(
    kind: str,
    simulated_name: str,
    type_name: str,
    parameters: Mapping[str, float] | None = None,
    signals: tuple[str, ...] = (),
) -> GeneratedPlugin:
    """Return what the compiler says about a plugin that it wrote."""
    numbers = parameters or {}
    return GeneratedPlugin(kind, simulated_name, type_name, PACKAGE, numbers, signals, "Alpha")


def plugins(given: Promotion) -> tuple[GeneratedPlugin, ...]:
    """A plugin for each scorer and admission policy that the target has not, and for the engine's priority."""
    from sweeps.promote.maps import named_policies, policies_of, signals_read

    functions = {
        (kind, one.name.replace("_", "-")): one for kind, one in policies_of(given.arm.config)
    }
    found, target = [], load(TARGET)
    for kind, name in sorted(named_policies(given)):
        short = name.rpartition(":")[2] if is_file(name) else name
        policy = functions.get((kind, short.replace("_", "-")))
        is_needed = kind in ("scorer", "admission") and not target.built_in(kind, name)
        if is_needed and policy is not None:
            numbers = {key: float(value) for key, value in vars(policy.values()).items()}
            word = {"scorer": "scorer", "admission": "admitter"}[kind]
            type_name = f"{short.replace('_', '-')}-{word}"
            signals = tuple(sorted(signals_read(policy)))
            found.append(generated(kind, name, type_name, numbers, signals))
    with contextlib.suppress(NotMappedError):
        order = order_of(given, given.arm.config)
        if order is not None and order.is_by_class:
            leads = {objective_name(name): float(lead) for name, lead in order.leads_ms.items()}
            found.append(generated("request", "static order", ENGINE_PRIORITY, leads))
    return tuple(found)
