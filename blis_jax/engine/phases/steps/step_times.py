"""The step time of a batch: the batch as a latency model sees it, and the factors that lengthen the step."""

from __future__ import annotations

import functools
from collections.abc import Callable, Sequence

import jax
import jax.numpy as jnp
from jax import lax

from blis_jax.core.columns import get
from blis_jax.core.types import LAST
from blis_jax.core.views import Members, StepBatch
from blis_jax.tables.context import Context, SlotRows, Work, row
from blis_jax.tables.state import Past, Resident, State
from blis_jax.tables.writes import SlotWrite


def members_of(
    ctx: Context, state: State, work: Work, instance: jax.Array, written: SlotWrite | None
) -> Members:
    """Return the members of the batch when its step has been formed.

    `written` was served in this scan step and its rows are not in the tables yet; None if the batch only decodes.
    """
    slots, count = SlotRows(state, instance), ctx.shape.num_slots
    table, places = state.past.rows, ctx.row_of(slots.request)
    is_written, past = jnp.zeros((count,), bool), _Histories(lambda at: table[places, at])
    row_: Resident = slots
    if written is not None:
        is_written = lax.iota(jnp.int32, count) == written.slot
        is_written, row_ = is_written & (written.instance == instance), written.row
        made = written.past.numbers
        past = _Histories(lambda at: jnp.where(is_written, get(made, at), table[places, at]))

    index = work.inst.step_index + 1
    order = jnp.where(is_written, row_.order, slots.order)
    is_member = order != LAST
    has_token = jnp.where(is_written, row_.finish, slots.finish) != LAST
    decoded = jnp.where(has_token, index - past.token_index, 0)
    in_decode = is_member & (decoded > 0)
    in_prefill = jnp.zeros((count,), bool) if written is None else is_member & ~in_decode
    context = jnp.where(is_member, past.progress + decoded, 0)
    before = past.step_progress
    new = past.num_new
    if not ctx.mechanism.defects.stale_token_counts:  # a member passed over counts nothing
        new = jnp.where(past.progress == before, 0, new)
    new = jnp.where(in_prefill, new, in_decode.astype(jnp.int32))
    new = ctx.memory.unreached.new_tokens(new, past, index)
    return Members(
        in_prefill=in_prefill,
        new_tokens=new,
        progress=jnp.where(in_prefill, before, jnp.where(in_decode, context - 1, 0)),
        context=context,
        in_step=new > 0,
        in_decode=in_decode & (new > 0),
        input_len=jnp.where(is_member, slots.input_len, 0),
        order=order,
    )


class _Histories(Past):
    """The histories of the requests in an instance's slots, each field `[slot]`, read when it is first used."""

    __slots__ = ("read",)

    def __init__(self, read: Callable[[int], jax.Array]) -> None:
        """`read` returns a field by its index."""
        self.read = functools.cache(read)

    def _entry(self, part: int, place: int) -> jax.Array:
        return self.read(place)


def step_time(ctx: Context, state: State, instance: jax.Array, batch: StepBatch) -> jax.Array:
    """Return the time of a step with this batch that begins now, float64 µs."""
    time = ctx.mechanism.latency.step_time(row(ctx.params.cluster.beta, instance), batch)
    return with_source(ctx, state, instance, time)


def with_source(ctx: Context, state: State, instance: jax.Array, time: jax.Array) -> jax.Array:
    """Return the step time as changed by a user's source of events, float64 µs."""
    source = ctx.mechanism.source
    if source is None or source.step_time is None:
        return time
    memory = state.gateway[ctx.mechanism.of_gateway.index(source)]
    changed = source.step_time(ctx.params.policy.source, memory, instance, time)
    return jnp.asarray(changed, jnp.float64)


def factors_of(
    ctx: Context,
    state: State,
    work: Work,
    instance: jax.Array,
    written: SlotWrite | None,
) -> list[jax.Array]:
    """Return the factors by which hooks lengthen the step of this batch."""
    return [
        factor for hook in ctx.hooks for factor in hook.factors(ctx, state, work, instance, written)
    ]


def lengthened(ctx: Context, raw: jax.Array, factors: Sequence[jax.Array]) -> jax.Array:
    """Return a step's time, float64 µs, times each factor above 1; a clock of whole µs truncates each product."""
    for factor in factors:
        longer = (raw if ctx.shape.is_continuous else jnp.trunc(raw)) * factor
        longer = longer if ctx.shape.is_continuous else jnp.maximum(jnp.trunc(longer), 1.0)
        raw = jnp.where(factor > 1.0, longer, raw)
    return raw


def decoding_alike(ctx: Context) -> Members:
    """Return members that stand for any batch that only decodes, where all such steps take the same time."""
    nothing = jnp.zeros((ctx.shape.num_slots,), jnp.int32)
    no_one = nothing.astype(bool)
    return Members(
        in_prefill=no_one,
        new_tokens=nothing,
        progress=nothing,
        context=nothing,
        in_step=no_one,
        in_decode=no_one,
        input_len=nothing,
        order=nothing,
    )
