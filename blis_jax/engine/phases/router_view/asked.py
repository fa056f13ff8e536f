"""Signals that cost something, which policies have only if they ask for them, and what a router hands over."""

from __future__ import annotations

import dataclasses
from typing import TYPE_CHECKING, Any

import jax
import jax.numpy as jnp

from blis_jax.core.block_counts import full_blocks
from blis_jax.engine.context import Context, SlotRows
from blis_jax.engine.gateway.signals import LeadingContents
from blis_jax.engine.phases.router_view.prompt_time import prompt_times
from blis_jax.engine.phases.router_view.prompts import outstanding
from blis_jax.engine.state import State
from blis_jax.policies.unasked import seen_by

if TYPE_CHECKING:
    from blis_jax.policies.contract import GatewayContext, Policy


def asked_of_queue(ctx: Context, slots: SlotRows, policy: Policy) -> dict[str, Any]:
    """Fields of `QueueContext` that one policy of an instance asks for."""
    seen: dict[str, Any] = {}
    if policy.reads_cached_blocks:
        seen["num_cached_blocks"] = ctx.memory.num_cached(ctx, slots)
    if policy.reads_contents:
        seen["contents"] = _contents(ctx, slots)
    if policy.reads_handed:
        table = slots.state.handed
        request = slots.request
        seen["handed"] = jnp.zeros(request.shape, jnp.float64) if table is None else table[request]
    return seen


def _contents(ctx: Context, slots: SlotRows) -> LeadingContents:
    """Shared contents that begin within the prompt of the request in every slot `[slot, path]`."""
    path = ctx.requests.path[slots.request]
    start, length = ctx.requests.node_start[path], ctx.requests.node_blocks[path]
    num_blocks = full_blocks(slots.input_len, ctx.shape.block_size)
    return LeadingContents(path, start, jnp.where(start < num_blocks[:, None], length, 0))


def with_asked_signals(
    ctx: Context, state: State, context: GatewayContext, view: object, request: jax.Array
) -> GatewayContext:
    """The context with what policies of the gateway ask for; `view` is what the router has last seen."""
    if ctx.mechanism.reads_prompt_time:
        times = prompt_times(ctx, context.request)
        timed = dataclasses.replace(context.snapshots, prompt_us=times)
        context = dataclasses.replace(context, snapshots=timed)
    if ctx.mechanism.reads_outstanding:
        prompts = outstanding(ctx, state, view, request)
        context = dataclasses.replace(context, outstanding=prompts)
    return context


def nothing_handed(ctx: Context) -> Any:
    """What is written where no request is routed; None where nothing is handed over, or nobody looks."""
    return jnp.zeros((), jnp.float64) if ctx.mechanism.hands_over_intent else None


def handed_over(ctx: Context, context: GatewayContext, chosen: jax.Array) -> Any:
    """What the instance is handed with the request that is routed there; see `Policy.hands`."""
    if not ctx.mechanism.hands_over_intent:
        return None
    mechanism, params = ctx.mechanism, ctx.params.policy
    policies = (mechanism.routing, *mechanism.scorers)
    total = jnp.zeros((), jnp.float64)
    for policy, numbers in zip(policies, (params.routing, *params.scorers), strict=True):
        if policy.hands is not None:
            total = total + policy.hands(numbers, seen_by(policy, context), chosen).astype(
                jnp.float64
            )
    return total
