"""Calls of policies by the engine: routers, random keys, policies' states, and reports of completions.

States of the gateway's policies are in the order of `Mechanism.of_gateway`; with several gateways, see `gateways`.
Those of the instances' policies are in the order of `Mechanism.of_instance`, `[instance]`.
"""

from __future__ import annotations

import dataclasses
import functools
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import jax
import jax.numpy as jnp
import numpy as np

from blis_jax.core.exact import runtime_infinity
from blis_jax.core.pytrees import pytree
from blis_jax.core.types import (
    EngineShape,
    Mechanism,
    Params,
    PolicyParams,
    Record,
    RequestView,
    Snapshots,
)
from blis_jax.policies.contexts import Completion, GatewayContext, PickerContext, QueueContext
from blis_jax.policies.contract import NoState, OverStep, Policy, PolicyStates, no_state
from blis_jax.policies.queue_order import fcfs
from blis_jax.policies.reading import seen_by
from blis_jax.policies.routing.by_score import shares_of, weighted_sum
from blis_jax.policies.scenes import kept
from blis_jax.policies.seeds import RandomSource
from blis_jax.tables.context import Context, SlotRows, Work, decision_key, waiting_mask
from blis_jax.tables.gateways import States, gateways_of
from blis_jax.tables.state import State
from blis_jax.workload.table import RequestTable

if TYPE_CHECKING:
    from jaxtyping import Array, Float, Int


def first_states(
    shape: EngineShape, mechanism: Mechanism, params: Params
) -> tuple[States, PolicyStates[OverStep[object]]]:
    """Return the first states of the gateway's policies, and of the instances' `[instance]`, a spare row included."""
    policy, rows = params.policy, shape.num_instances + 1
    gateways = gateways_of(mechanism)
    gateway: list[object] = [
        gateways.first_states(place, member.begin(numbers, shape))
        for place, (member, numbers) in enumerate(
            zip(mechanism.of_gateway, policy.of_gateway, strict=True)
        )
    ]

    def on_all(policy: Policy, numbers: Record) -> OverStep[object]:
        start = jax.tree.map(
            lambda leaf: jnp.broadcast_to(leaf, (rows, *jnp.shape(leaf))),
            policy.begin(numbers, shape),
        )
        return OverStep(start, start)

    instance = [
        on_all(member, numbers)
        for member, numbers in zip(mechanism.of_instance, policy.of_instance, strict=True)
    ]
    return PolicyStates(tuple(gateway)), PolicyStates(tuple(instance))


def request_view(ctx: Context, request: jax.Array) -> RequestView:
    """Return the view of one request that policies may read."""
    fixed = ctx.request(request)
    return RequestView(
        slo_class=fixed.slo_class,
        input_len=fixed.input_len,
        arrival_us=ctx.requests.arrival[request],
        tenant=fixed.tenant,
        tie_rank=fixed.tie_rank,
        queue_rank=fixed.queue_rank,
    )


# --- the gateway ----------------------------------------------------------------------------------


def admit(ctx: Context, states: States, context: GatewayContext) -> tuple[jax.Array, States]:
    """Call the admission policy; return whether the request is admitted, and the policies' states."""
    policy = ctx.mechanism.admission
    is_admitted, state = policy.ask(ctx.params.policy.admission, states[0], context)
    return is_admitted, states.having(0, state)


def route(
    ctx: Context, states: States, context: GatewayContext, request: jax.Array
) -> tuple[jax.Array, States]:
    """Choose the request's instance by the router of its pool; return it and the policies' states."""
    mechanism, params = ctx.mechanism, ctx.params.policy

    def by_cluster() -> tuple[jax.Array, States]:
        return route_by_cluster(ctx, states, context, request)

    def by_own(
        router: Router, numbers: RouterParams, begin: int, end: int
    ) -> tuple[jax.Array, States]:
        question = router, numbers, None, states.of[begin:end], context, request
        chosen, after = _chosen_by(ctx, *question)
        return chosen, states.having(begin, *after)

    by_pool: dict[str, Callable[[], tuple[jax.Array, States]]] = {}
    begin = len(states.of) - sum(len(router.policies) for router in mechanism.pool_routers)
    for router, numbers in zip(mechanism.pool_routers, params.pool_routers, strict=True):
        end = begin + len(router.policies)
        by_pool[router.pool] = functools.partial(by_own, router, numbers, begin, end)
        begin = end
    if not by_pool:
        return by_cluster()
    by_decode, by_prefill = (by_pool.get(pool, by_cluster) for pool in ("decode", "prefill"))
    return ctx.when(context.is_decode, by_decode, by_prefill)


def route_by_cluster(
    ctx: Context, states: States, context: GatewayContext, request: jax.Array
) -> tuple[jax.Array, States]:
    """Choose the request's instance by the cluster's router, even if its pool has a router of its own."""
    router, params = of_cluster(ctx.mechanism), ctx.params.policy
    end = 1 + len(router.policies)
    question = router, params, ctx.scorer_shares, states.of[1:end], context, request
    chosen, after = _chosen_by(ctx, *question)
    return chosen, states.having(1, *after)


def _chosen_by(
    ctx: Context,
    router: Router,
    params: PolicyParams | RouterParams,
    shares: jax.Array | None,
    states: Sequence[object],
    context: GatewayContext,
    request: jax.Array,
) -> tuple[jax.Array, Sequence[object]]:
    """Return one router's choice and its states: scorers rate, the picker picks, the routing policy decides."""
    if isinstance(params, DrawingRouterParams):
        context = dataclasses.replace(context, draws=params.draws)
    routing, *of_scorers, picker = states
    keys = [
        decision_key(ctx, RandomSource.SCORERS, request, place=place)
        for place in range(len(router.scorers))
    ]
    rated = router.scorers, params, of_scorers, context, keys
    if router.scorers and shares is None:
        shares = shares_of(params.scorer_weights)
    scores, of_each, of_scorers = combined_scores(*rated, shares, ctx.mechanism.is_precise)
    among = PickerContext(
        scores,
        context.snapshots.is_active,
        context.request,
        decision_key(ctx, RandomSource.PICKER, request),
        context.draws,
    )
    picked, picker = router.picker.ask(params.picker, picker, among)
    more: dict[str, Any] = {}
    if of_each:
        more = {"scorer_scores": jnp.stack(of_each), "scorer_shares": shares}
    with_scores = dataclasses.replace(context, scores=scores, picked=picked, **more)
    chosen, routing = router.routing.ask(params.routing, routing, with_scores)
    of_scorers = [
        kept(scorer, state, scorer.routed(numbers, state, seen_by(scorer, context), chosen))
        if scorer.routed
        else state
        for scorer, numbers, state in zip(router.scorers, params.scorers, of_scorers, strict=True)
    ]
    return chosen.astype(jnp.int32), (routing, *of_scorers, picker)


def without_matches(snapshots: Snapshots) -> Snapshots:
    """Return the snapshots without prefix matches, as a policy sees them whose own prefix index is empty."""
    nothing = jnp.zeros_like(snapshots.prefix_match_blocks)
    return dataclasses.replace(snapshots, prefix_match_blocks=nothing)


def combined_scores(
    scorers: tuple[Policy, ...],
    params: PolicyParams | RouterParams,
    states: Sequence[object],
    context: GatewayContext,
    keys: Sequence[jax.Array | None],
    shares: jax.Array | None,
    is_precise: bool = False,
) -> tuple[Float[Array, "instance"], list[jax.Array], list[Any]]:
    """Return the weighted sum of scores, clipped to [0, 1] and added in the scorers' order as in the reference; the
    unclipped scores of each scorer; and the scorers' states.

    `shares` are the normalised weights; None without scorers. Where the KV caches feed the router's index
    (`is_precise`), scorers with an index of their own see no matches, as in the reference.
    """
    scores, after = [], []
    for index, scorer in enumerate(scorers):
        of_scorer = dataclasses.replace(context, key=keys[index])
        if is_precise and scorer.keeps_own_index:
            of_scorer = dataclasses.replace(
                of_scorer, snapshots=without_matches(of_scorer.snapshots)
            )
        score, state = scorer.ask(params.scorers[index], states[index], of_scorer)
        scores.append(score)
        after.append(state)
    shape = context.snapshots.effective_load.shape
    return weighted_sum(scores, shares, shape), scores, after


# --- an instance ----------------------------------------------------------------------------------


def queue_context(
    ctx: Context, slots: SlotRows, work: Work, source: RandomSource, **more: Any
) -> QueueContext:
    """Return the context in which the policies of an instance read its slots."""
    now, inst = work.lane.now, work.inst
    return QueueContext(
        request=slots.view(),
        is_waiting=waiting_mask(slots, now, inst.steps_at_now),
        queued_us=slots.queued,
        num_expected_blocks=slots.expected_blocks,
        queue_depth=work.lane.queue_depth,
        now_us=now,
        instance=slots.instance,
        key=decision_key(ctx, source, slots.instance, inst.step_index),
        **more,
    )


def keeps_states(policies: tuple[Policy, ...], states: object) -> bool:
    """Return whether any of the policies keeps a state."""
    return len(policies) > 0 and bool(jax.tree.leaves(states))


def instance_row(state: State, instance: jax.Array) -> PolicyStates[OverStep[object]]:
    """Return the states of one instance's policies."""
    own: PolicyStates[OverStep[object]] = jax.tree.map(
        lambda leaf: jax.lax.dynamic_index_in_dim(leaf, instance, keepdims=False), state.local
    )
    return own


# --- completions ----------------------------------------------------------------------------------


def told(
    policies: tuple[Policy, ...],
    params: tuple[Any, ...],
    states: Iterable[object],
    news: Completion,
) -> tuple[object, ...]:
    """Report the completion to every policy that observes completions; return the policies' states."""
    return tuple(
        state
        if policy.observe is None
        else kept(policy, state, policy.observe(numbers, state, news))
        for policy, numbers, state in zip(policies, params, states, strict=True)
    )


@dataclass(frozen=True)
class Router:
    """The functions of a router: static, hashable."""

    routing: Policy
    scorers: tuple[Policy, ...]
    picker: Policy
    pool: str = ""  # of the instances that it chooses from; "": where no other router chooses

    @property
    def policies(self) -> tuple[Policy, ...]:
        """Return the policies in the order of their states."""
        return (self.routing, *self.scorers, self.picker)


@pytree
class RouterParams:
    """The numbers of a router, laid out as in `PolicyParams` for the cluster's router."""

    routing: Record  # the policy's numbers
    scorers: tuple[Any, ...]
    scorer_weights: Float[Array, "scorer"]  # as given
    picker: Record  # likewise

    @property
    def policies(self) -> tuple[Any, ...]:
        """Return the numbers in the order of `Router.policies`."""
        return (self.routing, *self.scorers, self.picker)


@pytree
class DrawingRouterParams(RouterParams):
    """The numbers of a router that draws from a random stream of its own."""

    draws: Int[Array, "draw"]  # see GatewayContext


def of_cluster(mechanism: Mechanism) -> Router:
    """Return the cluster's router: its routing policy, scorers and picker."""
    return Router(mechanism.routing, mechanism.scorers, mechanism.picker)


# --- asked after a run ------------------------------------------------------------------------------


# (row[n], when each arrived, was queued, was scheduled[3, n]) -> value[n], least first
QueueValues = Callable[[np.ndarray, np.ndarray], np.ndarray]


def scheduler_order(
    mechanism: Mechanism, params: Params, context: QueueContext
) -> tuple[jax.Array, jax.Array]:
    """Return the scheduler's value and rank `[slot]`; the policies of the instance must keep no state."""
    policy = params.policy
    with runtime_infinity(jnp.asarray(params.cluster.infinity)):
        priority, _ = mechanism.priority.ask(policy.priority, NoState(), context)
        context = dataclasses.replace(context, priority=priority)
        order, _ = mechanism.scheduler.ask(policy.scheduler, NoState(), context)
    return order


def orders_by_slots(mechanism: Mechanism) -> bool:
    """Return whether the scheduler orders the queue by nothing but its slots and the time."""
    is_plain = not any(
        policy.is_random or policy.start is not no_state for policy in mechanism.of_instance
    )
    return mechanism.scheduler != fcfs and is_plain and not mechanism.looks_beyond_queue


def queue_values(params: Params, mechanism: Mechanism, table: RequestTable) -> QueueValues:
    """Return a function that gives the scheduler's value of requests of a table, with a queue depth of 0."""

    def value_of(
        slo_class: jax.Array,
        input_len: jax.Array,
        tenant: jax.Array,
        arrival: jax.Array,
        queued: jax.Array,
        now: jax.Array,
    ) -> jax.Array:
        """Return the value by which the scheduler orders one request."""
        zero = jnp.zeros(1, jnp.int32)
        context = QueueContext(
            request=RequestView(
                slo_class=slo_class[None],
                input_len=input_len[None],
                arrival_us=arrival[None],
                tenant=tenant[None],
                tie_rank=zero,
                queue_rank=zero,
            ),
            is_waiting=jnp.ones(1, bool),
            queued_us=queued[None],
            num_expected_blocks=zero,
            queue_depth=jnp.int32(0),
            now_us=now,
            instance=jnp.int32(0),
            key=None,
        )
        return scheduler_order(mechanism, params, context)[0][0]

    columns = [jnp.asarray(column) for column in (table.slo_class, table.input_len, table.tenant)]
    every = jax.jit(jax.vmap(value_of))

    def values(rows: np.ndarray, times_us: np.ndarray) -> np.ndarray:
        times = np.zeros((3, table.num_rows), np.int64)
        times[:, rows] = times_us
        with jax.enable_x64(True):
            return np.asarray(every(*columns, *times))[rows]

    return values
