"""The functions, which are static, and the numbers, which are traced, that a configuration compiles to."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Iterable, Sequence
from typing import Any

import numpy as np

from blis_jax.cluster import disaggregation, revisions, step_times
from blis_jax.cluster.config import ClusterConfig
from blis_jax.cluster.instance_groups import has_cpu_tier
from blis_jax.cluster.named_policies import Chosen, ChosenRouter, made_once, numbered
from blis_jax.cluster.offload_tiers import has_tiers
from blis_jax.core.kinds import KINDS, ROUTER, Kind
from blis_jax.core.pytrees import Parts
from blis_jax.core.revision_rules import (
    AUGUST_DEFECTS,
    AUGUST_RULES,
    FEBRUARY_RULES,
    NO_DEFECTS,
    REFERENCE_DEFECTS,
    VLLM_RULES,
    Defects,
    RevisionRules,
)
from blis_jax.core.types import (
    Mechanism,
    Params,
    PolicyParams,
)
from blis_jax.engine.cluster_params import (
    budgets,
    cluster_params,
    drawn_phases,
    fleet_params,
    num_adapter_columns,
    num_draft_columns,
    offload_params,
    queue_params,
)
from blis_jax.engine.phases.policy_calls import DrawingRouterParams, Router, RouterParams
from blis_jax.errors import ConfigError
from blis_jax.policies import registry
from blis_jax.policies.contract import Policies, Policy
from blis_jax.policies.reading import ADAPTER, ADAPTERS, CACHES, DEMAND, SCORERS, Absent, reading
from blis_jax.policies.seeds import RandomSource, router_draws

NO_SCORERS = (
    "and there are no scorers; give routing_scorers, such as prefix-affinity:1,load-balance:1"
)
SPARE_DRAWS = 64  # of the router's stream beyond one a request: Go draws a few numbers again


def chosen(config: ClusterConfig, policies: Policies | None = None) -> Chosen:
    """Return the policies of a run: those in `policies`, and for the other kinds those that the configuration names."""
    policies = policies or Policies()
    is_handed = policies.routing is not None and "routing_scorers" in config.given
    named = numbered(config.replace(routing_policy="weighted") if is_handed else config)
    if config.is_august and config.flow_control:  # BLIS's queue takes the place of admission
        admits_all: dict[str, Any] = {"admission": registry.find("admission", "always-admit")}
        named = dataclasses.replace(named, **admits_all)
    router = _handed_router(policies, "")
    rest = [kind.field for kind in KINDS.values() if kind not in ROUTER]
    handed = {field: policy for field in rest if (policy := getattr(policies, field)) is not None}
    made = dataclasses.replace(named, **router, **handed)
    if of_decode := _handed_router(policies, "decode_"):
        decode = named.decode or ChosenRouter(made.routing, made.scorers, made.picker)
        made = dataclasses.replace(made, decode=dataclasses.replace(decode, **of_decode))
    return made


def _handed_router(policies: Policies, prefix: str) -> dict[str, Any]:
    """Return the handed-in policies that choose an instance, by field; any of them but the routing policy implies
    weighted routing.
    """
    handed = {kind.field: getattr(policies, prefix + kind.field) for kind in ROUTER}
    handed = {field: policy for field, policy in handed.items() if policy is not None}
    return {"routing": registry.find("routing", "weighted")} | handed if handed else {}


@made_once
def mechanism(config: ClusterConfig, policies: Policies | None = None) -> Mechanism:
    """Return the functions of a run: its policies, its latency model and the features that its program has."""
    used = chosen(config, policies)
    if used.victim is not None and config.slo_preemption:
        raise ConfigError(
            f"the victim policy {used.victim.name} and slo_preemption both choose the request to evict; leave one "
            "of them out"
        )
    _check_offload(config, used.offload)
    _check_draft(config, used.draft)
    made = Mechanism(
        **_of_each(used, KINDS.values(), _reader(config, used)),
        latency=step_times.model_of(config),
        pool_routers=tuple(
            Router(**_of_each(router, ROUTER, _reader(config, router)), pool=pool)
            for pool, router in _pool_routers(used).items()
        ),
        encodes=config.encode_decider != "never",
        ages_signals=_ages_signals(config),
        delays_index=config.prefix_index_delay > 0,
        loses_index=config.prefix_index_loss > 0,
        num_gateways=config.num_gateways,
        evicts_lowest_priority=config.slo_preemption,
        finds_prefixes=config.enable_prefix_caching,
        has_queue=config.flow_control,
        has_budgets=bool(config.tenant_budgets.strip()),
        evicts_in_flight=config.flow_control and config.in_flight_eviction,
        num_adapters=num_adapter_columns(config),
        has_offload_tiers=has_tiers(config),
        offload_saves_prefill=config.kv_offload_config.saves_prefill,
        num_drafts=num_draft_columns(config),
        num_dropped_blocks=revisions.num_dropped_blocks(config),
        defects=_defects(config),
        rules=_rules(config),
    )
    _check_source(made)
    if not (config.precise_kv_routing and made.hears_caches):
        return made  # as in the reference, which warns and goes on
    return dataclasses.replace(made, is_precise=True)


def _reader(config: ClusterConfig, used: Chosen | ChosenRouter) -> Callable[[Policy], Policy]:
    """Return a function that prepares a policy used beside these scorers, and finds which signals it reads."""
    absent = _absent(config)
    if not used.scorers:
        absent += tuple((signal, NO_SCORERS) for signal in SCORERS)

    def function(policy: Policy) -> Policy:
        return reading(policy.function(), config.num_instances, absent, max(len(used.scorers), 1))

    return function


def _check_source(made: Mechanism) -> None:
    if made.source is not None and made.source.gives_up and made.moves_requests:
        raise ConfigError(
            f"the event source {made.source.name} gives up requests, for which there is no rule where requests move; "
            "leave out cluster_policy, hand_over_policy and pools, or gives_up=True"
        )


def _absent(config: ClusterConfig) -> Absent:
    """Return the signals that policies cannot read under this configuration, each with the reason."""
    if config.is_august:
        why = "and blis-2026-08 copies blocks whatever the demand is; take another policy, or revision blis-2026-02"
        return tuple((signal, why) for signal in DEMAND)
    why = (
        "the router's copy of the KV caches, which only blis-2026-08 has; take that profile, or the scorer "
        "prefix-affinity, with precise_kv_routing if the caches are to tell the router"
    )
    adapters = (
        "the LoRA adapters, which only blis-2026-08 has; take that profile, or another scorer"
    )
    return (CACHES, why), (ADAPTERS, adapters), (ADAPTER, adapters)


def has_priorities(functions: Mechanism) -> bool:
    """Return whether BLIS counts priority inversions: in February unless the priority policy is `constant`, in August
    under the scheduler `priority-fcfs`.
    """
    if functions.rules.has_order:
        return functions.scheduler.decide is registry.find("scheduler", "priority-fcfs").decide
    return functions.priority.decide is not registry.find("priority", "constant").decide


def _defects(config: ClusterConfig) -> Defects:
    if config.is_august:
        return AUGUST_DEFECTS
    return NO_DEFECTS if config.corrected else REFERENCE_DEFECTS


def _rules(config: ClusterConfig) -> RevisionRules:
    if config.is_august:
        return AUGUST_RULES
    if revisions.aligns_chunks(config):  # a prompt ahead of others may take all of the budget
        return dataclasses.replace(VLLM_RULES, passes_over=True)
    return VLLM_RULES if config.preemption_mode == "recompute" else FEBRUARY_RULES


def _of_each(
    used: Chosen | ChosenRouter, kinds: Iterable[Kind], part: Callable[[Policy], Any]
) -> dict[str, Any]:
    """Return one part of each policy by field, None where there is no policy; scorers come without their weights."""
    parts: dict[str, Any] = {}
    for kind in kinds:
        policy = getattr(used, kind.field)
        if kind.is_list:
            parts[kind.field] = tuple(part(member) for member, _ in policy)
        else:
            parts[kind.field] = None if policy is None else part(policy)
    return parts


def _pool_routers(used: Chosen) -> dict[str, ChosenRouter]:
    """Return the router of each pool that has its own; there are pools only under a hand-over policy."""
    routers = {"decode": used.decode, "prefill": used.prefill} if used.hand_over else {}
    return {pool: router for pool, router in routers.items() if router is not None}


def _check_offload(config: ClusterConfig, policy: Policy | None) -> None:
    if policy is None:
        return
    if not has_cpu_tier(config):
        raise ConfigError(
            f"the offload policy {policy.name} says what goes to the CPU tier, and there is none; "
            "set kv_cpu_blocks above 0, or leave the policy out"
        )


def _check_draft(config: ClusterConfig, policy: Policy | None) -> None:
    if policy is not None and not config.speculative_config.num_speculative_tokens:
        raise ConfigError(
            f"the draft policy {policy.name} says how many tokens are drafted, and none are; set speculative_config, "
            "or leave the policy out"
        )


def without_effect(config: ClusterConfig) -> str | None:
    """Return why `precise_kv_routing` has no effect in this configuration, as a sentence; None if it has an effect or
    is off.

    BLIS, too, goes on without precise routing then.
    """
    if not config.precise_kv_routing:
        return None
    if not mechanism(config).is_precise:
        return (
            f"precise_kv_routing has no effect on {config.routing_policy} routing here: no KV cache feeds what it "
            "looks at; give routing_policy weighted and prefix-affinity among routing_scorers"
        )
    if has_cpu_tier(config):
        return (
            "precise_kv_routing: a KV cache with a CPU tier tells the router nothing (as in BLIS), so its prefix index "
            "stays empty; set kv_cpu_blocks to 0"
        )
    return None


def _ages_signals(config: ClusterConfig) -> bool:
    if config.is_august:
        return True
    is_plain = config.load_refresh_interval == 0 and config.in_flight_counts
    return not is_plain or config.snapshot_phases != "aligned"


def of_one_program(functions: Sequence[Mechanism]) -> list[Mechanism]:
    """Return the mechanisms, with those made equal that differ only in whether signals age or get lost.

    A signal of age 0 gives the same run in a program in which signals age, so a sweep of ages from 0 on compiles once;
    so does a sweep of loss rates from 0 on.
    """
    parts = ("ages_signals", "delays_index", "loses_index")

    def with_parts(each: Mechanism, has: dict[str, Any]) -> Mechanism:
        return dataclasses.replace(each, **has)

    plain = [with_parts(each, dict.fromkeys(parts, False)) for each in functions]
    uses = {
        part: {base for base, each in zip(plain, functions, strict=True) if getattr(each, part)}
        for part in parts
    }
    return [with_parts(base, {part: base in uses[part] for part in parts}) for base in plain]


def params(
    config: ClusterConfig,
    num_rows: int | None = None,
    policy_seed: int = 0,
    policies: Policies | None = None,
    num_requests: int = 0,
    num_changes: int = 0,
) -> Params:
    """Return the numbers of a run as a pytree of numpy arrays; `num_rows` is the size of the instance table.

    If the router draws from the reference's random stream, the draws suffice for `num_requests` requests; if an
    autoscaler draws, for `num_changes` changes.
    """
    functions, rows = mechanism(config, policies), num_rows or config.num_instances
    made = _of_all_seeds(config, policies, rows)
    cluster: dict[str, Any] = {}
    parts: list[object] = []
    policy: dict[str, Any] = {"seed": np.uint64(policy_seed)}
    if config.snapshot_phases == "drawn":
        cluster["signals"] = drawn_phases(made.cluster.signals, rows, policy_seed)
    if functions.places_instances:
        parts.append(fleet_params(config, rows, num_changes, policy_seed))
    if functions.has_offload_tiers:
        parts.append(offload_params(config, policy_seed))
    if parts:
        cluster["own"] = Parts(*made.cluster.own, *parts)
    if functions.reads("draws"):
        policy |= _router_draws(config, functions, made.policy, policy_seed, num_requests)
    return Params(
        dataclasses.replace(made.cluster, **cluster) if cluster else made.cluster,
        dataclasses.replace(made.policy, **policy),
    )


@made_once
def _of_all_seeds(config: ClusterConfig, policies: Policies | None, rows: int) -> Params:
    """Return the numbers of a run that do not depend on its seed."""
    policy = _policy_params(chosen(config, policies))
    more: list[object] = []
    if config.flow_control:
        more.append(queue_params(config, policy.priority))
    if config.tenant_budgets.strip():
        more.append(budgets(config, policy.priority))
    return Params(cluster_params(config, rows, *more), policy)


STREAM_OF_POOL = {"decode": RandomSource.DECODE_ROUTER, "prefill": RandomSource.PREFILL_ROUTER}


def _router_draws(
    config: ClusterConfig,
    functions: Mechanism,
    policy: PolicyParams,
    policy_seed: int,
    num_requests: int,
) -> dict[str, Any]:
    """Return the numbers that the routers draw from the reference's random streams."""
    draws: dict[str, Any] = {}
    if config.is_august:  # with scorers of its own a pool has its own stream
        streams: list[Any] = [
            router_draws(policy_seed, num_requests + SPARE_DRAWS, STREAM_OF_POOL[router.pool])
            for router in functions.pool_routers
        ]
        draws["pool_routers"] = tuple(
            DrawingRouterParams(**vars(numbers), draws=stream)
            for numbers, stream in zip(policy.pool_routers, streams, strict=True)
        )
    # in the decode, encode and prefill pool
    per_request = 3 if disaggregation.has_pools(config) else 1
    draws["draws"] = router_draws(
        policy_seed, per_request * num_requests + SPARE_DRAWS, RandomSource.ROUTER
    )
    return draws


def _policy_params(used: Chosen) -> PolicyParams:
    numbers = _of_each(used, KINDS.values(), lambda policy: policy.values())
    # each run has a seed of its own
    numbers |= {"scorer_weights": _weights(used), "seed": np.uint64(0)}
    routers = _pool_routers(used).values()
    return PolicyParams(**numbers, pool_routers=tuple(map(_router_params, routers)))


def _weights(used: Chosen | ChosenRouter) -> Any:
    """Return the weights of the scorers; a single weight of 1 if there are none."""
    return np.asarray([weight for _, weight in used.scorers] or [1.0], np.float64)


def _router_params(chosen: ChosenRouter) -> RouterParams:
    values = _of_each(chosen, ROUTER, lambda policy: policy.values())
    return RouterParams(**values, scorer_weights=_weights(chosen))
