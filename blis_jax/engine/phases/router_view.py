"""Signals that are costly and so computed only if a policy reads them, and the value that a router hands over.

The costly signals are the time that each instance would take to compute one prompt alone, and the prompts that
instances have still to compute, as the router sees them.
"""

from __future__ import annotations

import dataclasses
from typing import TYPE_CHECKING, Any

import jax
import jax.numpy as jnp

from blis_jax.core.exact import exact_product, full_blocks
from blis_jax.core.types import LAST, NO_REQUEST
from blis_jax.core.views import Members, StepBatch
from blis_jax.policies.contexts import LeadingContents, Outstanding
from blis_jax.policies.reading import ADAPTER, PROMPT_TIME, seen_by
from blis_jax.tables.adapters import NO_ADAPTER, AdapterTable, RequestAdapters, SeenAdapters
from blis_jax.tables.context import Context, SlotRows
from blis_jax.tables.joined import arrival_times
from blis_jax.tables.requests import Sessions
from blis_jax.tables.router import SeenPrompts, View
from blis_jax.tables.state import Handed, Slot, State
from blis_jax.tables.writes import HandedOver

if TYPE_CHECKING:
    from jaxtyping import Array, Bool, Float, Int

    from blis_jax.core.types import RequestView
    from blis_jax.policies.contexts import GatewayContext
    from blis_jax.policies.contract import Policy


def asked_of_queue(ctx: Context, slots: SlotRows, policy: Policy) -> dict[str, Any]:
    """Return the fields of `QueueContext` that one policy of an instance reads."""
    seen: dict[str, Any] = {}
    if policy.reads("num_cached_blocks"):
        seen["num_cached_blocks"] = ctx.memory.num_cached(ctx, slots)
    if policy.reads("contents"):
        seen["contents"] = _contents(ctx, slots)
    if policy.reads("handed"):
        request = slots.request
        nothing = jnp.zeros(request.shape, jnp.float64)
        has_some = Handed in slots.state
        seen["handed"] = slots.state[Handed].value[request] if has_some else nothing
    return seen


def _contents(ctx: Context, slots: SlotRows) -> LeadingContents:
    """Return the shared contents that begin within the prompt of the request in every slot, `[slot, path]`."""
    path = ctx.requests.path[slots.request]
    start, length = ctx.requests.node_start[path], ctx.requests.node_blocks[path]
    num_blocks = full_blocks(slots.input_len, ctx.shape.block_size)
    return LeadingContents(path, start, jnp.where(start < num_blocks[:, None], length, 0))


def with_asked_signals(
    ctx: Context, state: State, context: GatewayContext, view: View, request: jax.Array
) -> GatewayContext:
    """Return the context with the costly signals that the gateway's policies read; `view` is the router's last view."""
    if ctx.mechanism.reads(PROMPT_TIME):
        times = prompt_times(ctx, context.request)
        timed = dataclasses.replace(context.snapshots, prompt_us=times)
        context = dataclasses.replace(context, snapshots=timed)
    if ctx.mechanism.reads("outstanding"):
        prompts = outstanding(ctx, state, view, request)
        context = dataclasses.replace(context, outstanding=prompts)
    if Sessions in ctx.requests:
        has_session = ctx.requests[Sessions].has_one[request]
        context = dataclasses.replace(context, has_session=has_session)
    if ctx.mechanism.reads(ADAPTER):
        context = dataclasses.replace(context, adapter=_named(ctx, request))
    return context


def handed_over(ctx: Context, context: GatewayContext, chosen: jax.Array) -> HandedOver:
    """Return the value that the router hands over with the routed request; see `Policy.hands`."""
    mechanism, params = ctx.mechanism, ctx.params.policy
    policies = (mechanism.routing, *mechanism.scorers)
    total = jnp.zeros((), jnp.float64)
    for policy, numbers in zip(policies, (params.routing, *params.scorers), strict=True):
        if policy.hands is not None:
            total = total + policy.hands(numbers, seen_by(policy, context), chosen).astype(
                jnp.float64
            )
    return HandedOver(total)


def prompt_times(ctx: Context, request: RequestView) -> Float[Array, "instance"]:
    """Estimate how long each instance would take to compute the prompt in chunks, with an empty batch, in µs.

    No block of the prompt counts as cached, and every chunk is timed as if it were the first.
    """
    cluster, rows = ctx.params.cluster, ctx.shape.num_instances
    budget = cluster.max_num_scheduled_tokens[:rows]
    threshold = cluster.prefill_threshold[:rows, request.slo_class]
    chunk = jnp.where(threshold > 0, jnp.minimum(threshold, budget), budget)
    tokens = jnp.minimum(jnp.maximum(request.input_len, 1), chunk)
    whole = jnp.floor_divide(jnp.maximum(request.input_len, 1) - 1, tokens)
    rest = request.input_len - whole * tokens
    beta = cluster.beta[:rows]

    def times(count: Int[Array, "instance"]) -> Float[Array, "instance"]:
        return jax.vmap(
            lambda coefficients, new_tokens: _step_time(
                ctx, coefficients, new_tokens, request.input_len
            )
        )(beta, count)

    return exact_product(whole.astype(jnp.float64), times(tokens)) + times(rest)


def _step_time(ctx: Context, beta: jax.Array, tokens: jax.Array, input_len: jax.Array) -> jax.Array:
    """Return the time of a step whose only member begins its prefill, µs."""
    model, zero = ctx.mechanism.latency, jnp.zeros((1,), jnp.int32)
    members = None
    if model.needs_members:
        new, is_it = tokens[None], jnp.ones((1,), bool)
        members = Members(is_it, new, zero, new, is_it, ~is_it, input_len[None], zero)
    return model.step_time(beta, StepBatch(tokens, jnp.int32(0), members))


def prompts_now(ctx: Context, state: State) -> SeenPrompts:
    """Return the snapshot of prompts: the request in each slot, and whether its prompt is still to be computed."""
    rows = ctx.shape.num_instances
    slots = state.slot.numbers[:, :rows]
    holder = slots[Slot.REQUEST]
    prompts = Outstanding(
        is_there=(holder != NO_REQUEST) & (slots[Slot.FINISH] == LAST),
        slo_class=slots[Slot.SLO_CLASS],
        input_len=slots[Slot.INPUT_LEN],
        expected_blocks=slots[Slot.EXPECTED_BLOCKS],
        arrival_us=arrival_times(state, rows),
    )
    return SeenPrompts(holder, prompts)


def adapters_now(ctx: Context, state: State, seen: SeenAdapters) -> SeenAdapters:
    """Return which adapters each instance has loaded now; `seen` unchanged where no request names an adapter."""
    if AdapterTable not in state:
        return seen
    return SeenAdapters(state[AdapterTable].used[: ctx.shape.num_instances] > 0)


def _named(ctx: Context, request: jax.Array) -> jax.Array:
    """Return the adapter that the request names, `NO_ADAPTER` for none."""
    if RequestAdapters not in ctx.requests:
        return jnp.int32(NO_ADAPTER)
    return ctx.requests[RequestAdapters].of[request]


def has_adapter(
    ctx: Context, state: State, view: View, request: jax.Array | None
) -> Bool[Array, "instance"]:
    """Return the instances where the router has seen the request's adapter; none if the request names none."""
    nowhere = jnp.zeros((ctx.shape.num_instances,), bool)
    if request is None or SeenAdapters not in view or RequestAdapters not in ctx.requests:
        return nowhere
    adapter = _named(ctx, request)
    is_loaded = view[SeenAdapters].is_loaded[:, adapter]
    return jnp.where(adapter == NO_ADAPTER, nowhere, is_loaded)


def outstanding(ctx: Context, state: State, view: View, request: jax.Array) -> Outstanding:
    """Return the outstanding prompts as the request's gateway sees them, without those sent by other gateways."""
    now = prompts_now(ctx, state)
    if SeenPrompts not in view:
        return _of_gateway(ctx, now, request)
    seen = view[SeenPrompts]
    counts = ctx.params.cluster.signals.counts_in_flight > 0
    is_sent_since = counts & (now.holder != NO_REQUEST) & (now.holder != seen.holder)
    sent = SeenPrompts(now.holder, dataclasses.replace(now.prompts, is_there=is_sent_since))
    parts = _of_gateway(ctx, seen, request), _of_gateway(ctx, sent, request)
    return jax.tree.map(lambda *both: jnp.concatenate(both, axis=1), *parts)


def _of_gateway(ctx: Context, seen: SeenPrompts, request: jax.Array) -> Outstanding:
    is_mine = ctx.gateways.of_same(seen.prompts.is_there, seen.holder, request)
    return dataclasses.replace(seen.prompts, is_there=is_mine)
