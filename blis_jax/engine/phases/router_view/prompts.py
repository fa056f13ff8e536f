"""The prompts that instances have still to compute, as the router knows them; see `Outstanding`."""

from __future__ import annotations

import dataclasses

import jax
import jax.numpy as jnp

from blis_jax.core.types import LAST, NO_REQUEST
from blis_jax.engine.context import Context
from blis_jax.engine.gateway.signals import AgedView, Outstanding, SeenPrompts
from blis_jax.engine.phases.router_view.gateways import gateway_of
from blis_jax.engine.state import Slot, State
from blis_jax.engine.tables.joined import arrival_times


def prompts_now(ctx: Context, state: State) -> SeenPrompts:
    """What a look sees: who holds the slots, and whose prompts are not wholly in a step yet."""
    rows = ctx.shape.num_instances
    slots = state.slot[:, :rows]
    holder = slots[Slot.REQUEST]
    prompts = Outstanding(
        is_there=(holder != NO_REQUEST) & (slots[Slot.FINISH] == LAST),
        slo_class=slots[Slot.SLO_CLASS],
        input_len=slots[Slot.INPUT_LEN],
        expected_blocks=slots[Slot.EXPECTED_BLOCKS],
        arrival_us=arrival_times(state, rows),
    )
    return SeenPrompts(holder, prompts)


def outstanding(ctx: Context, state: State, view: object, request: jax.Array) -> Outstanding:
    """The prompts of the request's gateway; it does not know of those that others have sent."""
    now = prompts_now(ctx, state)
    if not isinstance(view, AgedView) or view.prompts is None:
        return _of_gateway(ctx, now, request)
    seen: SeenPrompts = view.prompts
    counts = ctx.params.cluster.signals.counts_in_flight > 0
    is_sent_since = counts & (now.holder != NO_REQUEST) & (now.holder != seen.holder)
    sent = SeenPrompts(now.holder, dataclasses.replace(now.prompts, is_there=is_sent_since))
    parts = _of_gateway(ctx, seen, request), _of_gateway(ctx, sent, request)
    return jax.tree.map(lambda *both: jnp.concatenate(both, axis=1), *parts)


def _of_gateway(ctx: Context, seen: SeenPrompts, request: jax.Array) -> Outstanding:
    if ctx.mechanism.num_gateways == 1:
        return seen.prompts
    is_mine = gateway_of(ctx, seen.holder) == gateway_of(ctx, request)
    return dataclasses.replace(seen.prompts, is_there=seen.prompts.is_there & is_mine)
