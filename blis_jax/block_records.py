"""Rows of a request after a visit, when memory is modelled block by block.

The step in which a request completes is known as soon as its prompt is computed; a second visit in the same
step, or an eviction, takes that back.
"""

from __future__ import annotations

import dataclasses

import jax
import jax.numpy as jnp

from blis_jax.block_subject import RUNAWAY, Given, Subject, no_rows
from blis_jax.columns import as_int, choose
from blis_jax.context import Context
from blis_jax.kv_cache.allocation import Grant
from blis_jax.kv_cache.blocks import BlockLife
from blis_jax.slot_write import SlotWrite, no_slot
from blis_jax.state import Past
from blis_jax.types import LAST
from blis_jax.work import Work


def recorded(
    ctx: Context, one: Subject, work: Work, grant: Grant, given: Given
) -> tuple[Work, SlotWrite]:
    """The batch's counts and the request's rows after its visit; at the spare instance."""
    size, step, inst = jnp.int32(ctx.shape.block_size), one.step, work.inst
    input_len, output_len = one.fixed.input_len, one.fixed.output_len
    final = input_len + jnp.maximum(output_len, 1) - 1
    asks, is_granted, computed = given.asks, given.is_granted, given.computed
    joins = one.is_queued & is_granted
    before = jnp.where(one.has_token, computed + step, computed)
    done = jnp.where(one.is_queued, given.cached * size, before) + given.tokens
    gains = is_granted & (one.in_batch | joins) & ~one.in_decode & (done >= input_len)
    left = final - done
    finish = jnp.where(left >= 0, step + left, jnp.int32(RUNAWAY))
    old_finish = one.slot_row.finish
    finish = jnp.where(gains, finish, old_finish)
    held = jnp.where(asks & grant.is_granted, grant.held, one.held())
    held = jnp.where(asks & grant.is_lost, 0, held)
    has_finish = finish != LAST
    is_past = is_granted | one.is_again | one.has_token
    steps = jnp.where(is_past, step, step - 1)
    offset = jnp.where(has_finish, held - steps, held)
    progressed = jnp.where(gains, done - step, jnp.where(has_finish, computed, done))
    progressed = jnp.where(one.in_decode, computed, progressed)
    past = _past(one, work, given, gains, joins, done)
    life = _life(one, work, grant, given, gains, done == input_len)
    gained = gains & ~one.has_token
    nothing = no_slot(ctx)
    return dataclasses.replace(
        work,
        inst=inst.replace(
            next_order=inst.next_order + as_int(joins),
            num_prefill=inst.num_prefill + as_int(joins) - as_int(gained),
            num_decode=inst.num_decode + as_int(gained),
        ),
    ), dataclasses.replace(
        nothing,
        slot=one.slot,
        row=one.slot_row.replace(
            order=jnp.where(joins, inst.next_order, one.slot_row.order),
            queued=jnp.where(joins, ctx.never, one.slot_row.queued),
            finish=finish,
            alloc_offset=offset,
        ),
        blocks=dataclasses.replace(
            no_rows(ctx),
            life=choose(is_granted, life, one.life),
            computed=jnp.where(is_granted, progressed, computed),
        ),
        request=one.slot_row.request,
        past=past,
    )


def _past(
    one: Subject,
    work: Work,
    given: Given,
    gains: jax.Array,
    joins: jax.Array,
    done: jax.Array,
) -> Past:
    past, record = one.past, work.lane.num_records
    scheduled = past.num_scheduled
    is_first = joins & (scheduled == 0)
    is_new = given.is_granted & given.asks
    is_chunk = is_new & ~one.in_decode
    is_lagging = one.in_decode & ~given.asks & ~one.is_again

    def kept(field: str, changes: jax.Array, value: jax.Array) -> jax.Array:
        return jnp.where(changes, value, getattr(past, field))

    chunks = jnp.where(joins, 0, past.num_prefill_steps)
    before = jnp.where(one.is_again, past.step_progress, given.computed)
    before = jnp.where(one.is_queued, 0, before)
    return Past.make(
        progress=kept("progress", is_chunk, done),
        num_new=kept("num_new", is_new, given.tokens),
        lag=past.lag + as_int(is_lagging),
        num_scheduled=scheduled + as_int(joins),
        num_prefill_steps=chunks + as_int(is_chunk),
        cached_first=kept("cached_first", is_first, given.cached),
        first_record=kept("first_record", is_first, record),
        scheduled_record=kept("scheduled_record", joins, record),
        scheduled_index=kept("scheduled_index", joins, one.step),
        token_record=kept("token_record", gains, record),
        token_index=kept("token_index", gains, one.step),
        finish_record=past.finish_record,
        step_progress=kept("step_progress", given.is_granted, before),
    ).with_rest_of(past)


def _life(
    one: Subject,
    work: Work,
    grant: Grant,
    given: Given,
    gains: jax.Array,
    is_exact: jax.Array,
) -> BlockLife:
    life, past = one.life, one.past
    is_new = gains & ~one.has_token

    def old(field: str, value: jax.Array) -> jax.Array:
        return jnp.where(is_new, value, getattr(life, field))

    first = jnp.where(one.has_token, life.old_first_token, life.first_token)
    # a request computed beyond its prompt never gets a first token
    token = jnp.where(gains & is_exact, work.lane.num_records + 1, first)
    return BlockLife.make(
        visited_at=one.step,
        is_clean=jnp.where(given.asks, as_int(grant.is_clean), life.is_clean),
        first_token=jnp.where(gains, token, life.first_token),
        old_first_token=old("old_first_token", life.first_token),
        old_token_record=old("old_token_record", past.token_record),
        old_token_index=old("old_token_index", past.token_index),
    )
