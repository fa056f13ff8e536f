"""Write the picker's parts for pods with roles: a filter first in each profile, a profile for each role, a decider.

llm-d's pods carry their role in the label `llm-d.ai/role`. `decode-filter` keeps pods that decode, including those
without a role, and `prefill-filter` keeps pods that prefill. `disagg-profile-handler` runs the profile `decode`, then
asks a decider whether the profile `prefill` shall choose a second pod, from which the first pod fetches the KV.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from blis_jax.cluster.config import ClusterConfig
from blis_jax.core.types import ROLES
from sweeps.promote.llmd.documents import TargetTypes

DECODE, PREFILL = "decode", "prefill"  # roles, and profiles of the handler
POOLS = f"{PREFILL}-{DECODE}"  # prompts move from prefill pods to decode pods
FILTERS = {DECODE: "decode-filter", PREFILL: "prefill-filter"}
HANDLER, BY_PREFIX = "disagg-profile-handler", "prefix-based-pd-decider"
ALWAYS = "always-disagg-pd-decider"
MOVES_KV = {  # between pods; the benchmark passes it to the engines of both roles
    "kvTransfer": {"enabled": True, "connector": "NixlConnector", "role": "kv_both"}
}
_OF_ROLES = (*FILTERS.values(), HANDLER, BY_PREFIX, ALWAYS)


@dataclass(frozen=True)
class PodRoles:
    """Hold how a picker uses the roles of pods, and the decider on which prompts move."""

    use: str = ""  # DECODE: decode pods do all the work; POOLS; empty: pods have no roles
    decider: str = ALWAYS
    parameters: Mapping[str, int] = field(default_factory=dict)  # of the decider

    @property
    def of_profiles(self) -> tuple[str, ...]:
        """Return the role of each profile, in order; empty if pods have no roles."""
        return {DECODE: (DECODE,), POOLS: (PREFILL, DECODE)}.get(self.use, ())


def roles_of(config: ClusterConfig, target: TargetTypes) -> PodRoles:
    """Return the roles of a configuration's instances; prompts longer than `pools_split_above_tokens` move."""
    if all(group.role == ROLES[0] for group in config.instances):
        return PodRoles()
    if all(group.role != PREFILL for group in config.instances):
        return PodRoles(DECODE)
    least = round(config.pools_split_above_tokens) + 1 if config.hand_over_policy == "pools" else 1
    if least == 1:
        return PodRoles(POOLS)
    if "promptTokens" in (target.plugins[BY_PREFIX].parameters or {}):
        return PodRoles(POOLS, BY_PREFIX, {"nonCachedTokens": 1, "promptTokens": least})
    return PodRoles(POOLS, BY_PREFIX, {"nonCachedTokens": least})


def with_roles(document: Mapping[str, Any], roles: PodRoles) -> dict[str, Any]:
    """Return an EndpointPickerConfig rewritten for the given roles of pods.

    Every profile gets the scorers and the picker of the decode profile, or of the only profile.
    """
    profiles = document["schedulingProfiles"]
    first = next((profile for profile in profiles if profile["name"] == DECODE), profiles[0])
    steps = [step for step in first["plugins"] if step["pluginRef"] not in _OF_ROLES]
    plugins = [plugin for plugin in document["plugins"] if plugin["type"] not in _OF_ROLES]
    made = [
        {"name": role, "plugins": [{"pluginRef": FILTERS[role]}, *map(dict, steps)]}
        for role in roles.of_profiles
    ]
    if roles.use != POOLS:
        made = [{"name": "default", "plugins": made[0]["plugins"] if made else steps}]
    added: list[dict[str, Any]] = [{"type": FILTERS[role]} for role in roles.of_profiles]
    if roles.use == POOLS:
        numbers = {"parameters": dict(roles.parameters)} if roles.parameters else {}
        names = {"profiles": {DECODE: DECODE, PREFILL: PREFILL}}
        handler = {"type": HANDLER, "parameters": names | {"deciders": {PREFILL: roles.decider}}}
        added += [{"type": roles.decider, **numbers}, handler]
    return {**document, "plugins": [*added, *plugins], "schedulingProfiles": made}
