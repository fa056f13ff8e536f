"""The plugins that a promotion adds, as the compiler describes them."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, Protocol

from blis_jax.policies.contract import Policy

KINDS = {"scorer": "scorer", "routing": "scorer", "admission": "admitter", "order": "ordering"}


class PluginLike(Protocol):
    """What is used of a generated plugin."""

    @property
    def kind(self) -> str:
        """scorer, routing, admission or order."""

    @property
    def simulated_name(self) -> str:
        """The policy's name in the simulator."""

    @property
    def type_name(self) -> str:
        """Its registered type in the target."""

    @property
    def package_path(self) -> str:
        """Where its source is."""

    @property
    def parameters(self) -> Mapping[str, Any]:
        """Its parameters with the promoted values."""

    @property
    def signals(self) -> Sequence[str]:
        """What it reads."""

    @property
    def stability(self) -> str:
        """Alpha, Beta or Stable."""


def plugin_for(generated: Sequence[PluginLike], kind: str, name: str) -> PluginLike | None:
    """The generated plugin of a policy, if there is one; a path may be given by its last name."""
    for one in generated:
        if one.kind == kind and one.simulated_name in (name, name.rpartition(":")[2]):
            return one
    return None


def order_plugin(
    generated: Sequence[PluginLike], scheduler: str, priority: str
) -> PluginLike | None:
    """The generated order of a queue; its name is the priority's and the scheduler's with + between them."""
    for one in generated:
        if one.kind == "order" and {scheduler, priority} & set(one.simulated_name.split("+")):
            return one
    return None


def stability_of(plugin: PluginLike) -> str:
    """Alpha, Beta or Stable; a version of the target without levels takes all for Beta."""
    return plugin.stability if plugin.stability in ("Alpha", "Stable") else "Beta"


def parameters_of(plugin: PluginLike, numbers: Mapping[str, float]) -> dict[str, Any]:
    """The plugin's parameters with a policy's numbers; a name matches in any spelling."""
    known = {_plain(name): float(value) for name, value in numbers.items()}
    return {name: known.get(_plain(name), value) for name, value in plugin.parameters.items()}


def numbers_of_policy(policy: Policy) -> dict[str, float]:
    """A policy's numbers by field."""
    return {name: float(value) for name, value in vars(policy.values()).items()}


def _plain(name: str) -> str:
    return name.replace("_", "").replace("-", "").lower()


def reads_class(generated: Sequence[PluginLike]) -> bool:
    """Whether some plugin asks for a request's SLO class, which the target tells by priority."""
    return any(
        signal.rpartition(".")[2] == "slo_class" for one in generated for signal in one.signals
    )


def plugin_rows(generated: Sequence[PluginLike]) -> list[dict[str, Any]]:
    """The plugins as `generated-plugins.yaml` lists them."""
    return [
        {
            "type": one.type_name,
            "kind": KINDS[one.kind],
            "stability": stability_of(one),
            "simulated": one.simulated_name.rpartition("/")[2],
            "package": one.package_path,
            "parameters": dict(one.parameters),
        }
        for one in generated
    ]
