"""The first line of every output: which cluster was simulated, and as what."""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping
from itertools import groupby
from typing import NamedTuple

from blis_jax.cluster.config import ClusterConfig
from blis_jax.cluster.instance_groups import InstanceGroup
from blis_jax.core.kinds import NONE
from blis_jax.policies.moved import known_as
from blis_jax.reports.words import joined

MOST_NAMED = 3  # values of one part that are told by arm


def cluster_line(configs: Mapping[str, ClusterConfig], varied: Collection[str] = ()) -> str:
    """Return model, GPUs, instances, token budget, chunks, router and profile of arms by name.

    What all arms have is said once, and what they have not with their names. `varied` are settings that the command
    tries values of, and of which the arms' own mean nothing.
    """
    parts = (part._replace(text=_each) if part.name in varied else part for part in _PARTS)
    said = (_told(part, configs, varied) for part in parts)
    return "; ".join(text for text in said if text) + "."


class _Part(NamedTuple):
    name: str
    settings: tuple[str, ...]  # that it tells of
    text: Callable[[ClusterConfig], str]  # empty if there is nothing to tell


def _told(part: _Part, configs: Mapping[str, ClusterConfig], varied: Collection[str]) -> str:
    if not set(part.settings).isdisjoint(varied):
        return f"{part.name} varied"
    arms: dict[str, list[str]] = {}
    for name, config in configs.items():
        arms.setdefault(part.text(config), []).append(name)
    if len(arms) == 1:
        return next(iter(arms))
    if len(arms) > MOST_NAMED:
        return f"{part.name} by arm"
    return ", ".join(
        f"{text or f'no {part.name}'} ({joined(names)})" for text, names in arms.items()
    )


def _instances(config: ClusterConfig) -> str:
    groups = config.instances or (InstanceGroup(config.num_instances),)
    kinds = [(group.role, _gpus(config, group), group.count) for group in groups]
    merged = [
        (kind, sum(count for *_, count in same))
        for kind, same in groupby(kinds, lambda one: one[:2])
    ]
    texts = [
        f"{count} {f'{role} ' * (role != 'both')}instance{'s' * (count != 1)} × {number} {gpu or 'GPU'}"
        for (role, (number, gpu)), count in merged
    ]
    total = sum(count * number for (_, (number, _)), count in merged)
    return f"{' + '.join(texts)} = {total} GPU{'s' * (total != 1)}"


def _each(config: ClusterConfig) -> str:
    """Return what an instance is where their number is tried."""
    number, gpu = _gpus(config, InstanceGroup())
    return f"instances × {number} {gpu or 'GPU'}, their number varied"


def _gpus(config: ClusterConfig, group: InstanceGroup) -> tuple[int, str]:
    """Return how many GPUs an instance of the group has, and which."""
    tp, dp = group.tp or config.tp, group.dp or config.dp
    return (tp or 1) * dp, group.hardware or config.hardware


def _budget(config: ClusterConfig) -> str:
    tokens, requests = config.max_num_scheduled_tokens, config.max_num_running_reqs
    return f"budget {tokens:,} tokens and {requests:,} requests a step"


def _chunks(config: ClusterConfig) -> str:
    if config.slo_prefill:
        return "prompts cut by class"
    most = config.long_prefill_token_threshold
    return f"prompts cut at {most:,} tokens" if most else "prompts cut by the budget alone"


def _cache(config: ClusterConfig) -> str:
    return "" if config.enable_prefix_caching else "prefix caching off"


def _tier(config: ClusterConfig) -> str:
    blocks = config.kv_cpu_blocks
    return f"CPU tier of {blocks:,} KV blocks" if blocks else ""


def _router(config: ClusterConfig) -> str:
    scorers = " + ".join(f"{_short(name)} {weight:g}" for name, weight in config.scorers())
    name = _short(config.routing_policy)
    handed = (
        "" if config.hand_over_policy == NONE else f", hand-over {_short(config.hand_over_policy)}"
    )
    return f"router {name}{f' by {scorers}' * bool(scorers)}{handed}"


def _short(name: str) -> str:
    return known_as(name).rpartition(":")[2]


def _profile(config: ClusterConfig) -> str:
    if config.corrected:
        return "without BLIS's defects"
    month = "August" if config.is_august else "February"
    return f"as BLIS of {month} 2026, defects included"


def _free_exchange(config: ClusterConfig) -> str:
    """Return what the roofline leaves out where an instance has several GPUs."""
    groups = config.instances or (InstanceGroup(config.num_instances),)
    if config.latency_model != "roofline" or all(_gpus(config, group)[0] < 2 for group in groups):
        return ""
    return (
        "roofline: the GPUs of an instance exchange data in no time, so tp looks better than it is"
    )


_PARTS = (
    _Part("model", ("model",), lambda config: config.model or "a model without a name"),
    _Part("num_instances", (), _instances),
    _Part("budget", ("max_num_scheduled_tokens", "max_num_running_reqs"), _budget),
    _Part("chunks", ("long_prefill_token_threshold", "slo_prefill"), _chunks),
    _Part("change of caching", ("enable_prefix_caching",), _cache),
    _Part("CPU tier", ("kv_cpu_blocks",), _tier),
    _Part("cost of tp left out", ("latency_model",), _free_exchange),
    _Part("router", ("routing_policy", "routing_scorers"), _router),
    _Part("profile", ("corrected", "revision", "variant"), _profile),
)
