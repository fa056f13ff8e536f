"""Rows of a request after a visit, when memory is modelled block by block.

The step in which a request completes is known as soon as its prompt is computed; a second visit in the same
step, or an eviction, takes that back.
"""

from __future__ import annotations

import dataclasses

import jax
import jax.numpy as jnp

from blis_jax.block_subject import RUNAWAY, Given, Subject, no_rows
from blis_jax.columns import as_int, build, choose, get, put
from blis_jax.context import Context
from blis_jax.joined import past_of
from blis_jax.kv_cache.allocation import Grant
from blis_jax.kv_cache.blocks import Life
from blis_jax.slot_write import SlotWrite, no_slot
from blis_jax.state import Dyn, Inst, Reg, Req, Slot, SlotTime
from blis_jax.types import LAST
from blis_jax.work import Work


def recorded(
    ctx: Context, one: Subject, work: Work, grant: Grant, given: Given
) -> tuple[Work, SlotWrite]:
    """The batch's counts and the request's rows after its visit; at the spare instance."""
    size, step, inst = jnp.int32(ctx.shape.block_size), one.step, work.inst
    input_len, output_len = (get(one.fixed, column) for column in (Req.INPUT_LEN, Req.OUTPUT_LEN))
    final = input_len + jnp.maximum(output_len, 1) - 1
    asks, is_granted, computed = given.asks, given.is_granted, given.computed
    joins = one.is_queued & is_granted
    before = jnp.where(one.has_token, computed + step, computed)
    done = jnp.where(one.is_queued, given.cached * size, before) + given.tokens
    gains = is_granted & (one.in_batch | joins) & ~one.in_decode & (done >= input_len)
    left = final - done
    finish = jnp.where(left >= 0, step + left, jnp.int32(RUNAWAY))
    old_finish = get(one.slot_row, Slot.FINISH)
    finish = jnp.where(gains, finish, old_finish)
    held = jnp.where(asks & grant.is_granted, grant.held, one.held())
    held = jnp.where(asks & grant.is_lost, 0, held)
    has_finish = finish != LAST
    is_past = is_granted | one.is_again | one.has_token
    steps = jnp.where(is_past, step, step - 1)
    offset = jnp.where(has_finish, held - steps, held)
    progressed = jnp.where(gains, done - step, jnp.where(has_finish, computed, done))
    progressed = jnp.where(one.in_decode, computed, progressed)
    slot_changes = {
        Slot.ORDER: jnp.where(joins, get(inst, Inst.NEXT_ORDER), get(one.slot_row, Slot.ORDER)),
        Slot.FINISH: finish,
        Slot.ALLOC_OFFSET: offset,
    }
    queued = jnp.where(joins, ctx.never, get(one.slot_time_row, SlotTime.QUEUED))
    dyn = _dyn(one, work, given, gains, joins, done)
    life = _life(one, work, grant, given, gains, done == input_len)
    gained = gains & ~one.has_token
    inst_changes = {
        Inst.NEXT_ORDER: get(inst, Inst.NEXT_ORDER) + as_int(joins),
        Inst.NUM_PREFILL: get(inst, Inst.NUM_PREFILL) + as_int(joins) - as_int(gained),
        Inst.NUM_DECODE: get(inst, Inst.NUM_DECODE) + as_int(gained),
    }
    nothing = no_slot(ctx)
    return dataclasses.replace(work, inst=put(inst, inst_changes)), dataclasses.replace(
        nothing,
        slot=one.slot,
        row=put(one.slot_row, slot_changes),
        time_row=put(one.slot_time_row, {SlotTime.QUEUED: queued}),
        blocks=dataclasses.replace(
            no_rows(ctx),
            life=choose(is_granted, life, one.life),
            computed=jnp.where(is_granted, progressed, computed),
        ),
        request=get(one.slot_row, Slot.REQUEST),
        dyn=dyn,
    )


def _dyn(
    one: Subject,
    work: Work,
    given: Given,
    gains: jax.Array,
    joins: jax.Array,
    done: jax.Array,
) -> jax.Array:
    dyn, record = one.dyn, get(work.registers, Reg.NUM_RECORDS)
    scheduled = get(dyn, Dyn.NUM_SCHEDULED)
    is_first = joins & (scheduled == 0)
    is_new = given.is_granted & given.asks
    is_chunk = is_new & ~one.in_decode
    is_lagging = one.in_decode & ~given.asks & ~one.is_again

    def kept(column: Dyn, changes: jax.Array, value: jax.Array) -> jax.Array:
        return jnp.where(changes, value, get(dyn, column))

    chunks = jnp.where(joins, 0, get(dyn, Dyn.NUM_PREFILL_STEPS))
    before = jnp.where(one.is_again, get(dyn, Dyn.STEP_PROGRESS), given.computed)
    before = jnp.where(one.is_queued, 0, before)
    columns = {
        Dyn.PROGRESS: kept(Dyn.PROGRESS, is_chunk, done),
        Dyn.NUM_NEW: kept(Dyn.NUM_NEW, is_new, given.tokens),
        Dyn.LAG: get(dyn, Dyn.LAG) + as_int(is_lagging),
        Dyn.NUM_SCHEDULED: scheduled + as_int(joins),
        Dyn.NUM_PREFILL_STEPS: chunks + as_int(is_chunk),
        Dyn.CACHED_FIRST: kept(Dyn.CACHED_FIRST, is_first, given.cached),
        Dyn.FIRST_RECORD: kept(Dyn.FIRST_RECORD, is_first, record),
        Dyn.SCHEDULED_RECORD: kept(Dyn.SCHEDULED_RECORD, joins, record),
        Dyn.SCHEDULED_INDEX: kept(Dyn.SCHEDULED_INDEX, joins, one.step),
        Dyn.TOKEN_RECORD: kept(Dyn.TOKEN_RECORD, gains, record),
        Dyn.TOKEN_INDEX: kept(Dyn.TOKEN_INDEX, gains, one.step),
        Dyn.FINISH_RECORD: get(dyn, Dyn.FINISH_RECORD),
        Dyn.STEP_PROGRESS: kept(Dyn.STEP_PROGRESS, given.is_granted, before),
    }
    return past_of(dyn, build(Dyn, columns, jnp.int32))


def _life(
    one: Subject,
    work: Work,
    grant: Grant,
    given: Given,
    gains: jax.Array,
    is_exact: jax.Array,
) -> jax.Array:
    life, dyn = one.life, one.dyn
    is_new = gains & ~one.has_token

    def old(column: Life, value: jax.Array) -> jax.Array:
        return jnp.where(is_new, value, get(life, column))

    first = jnp.where(one.has_token, get(life, Life.OLD_FIRST_TOKEN), get(life, Life.FIRST_TOKEN))
    # a request computed beyond its prompt never gets a first token
    token = jnp.where(gains & is_exact, get(work.registers, Reg.NUM_RECORDS) + 1, first)
    columns = {
        Life.VISITED_AT: one.step,
        Life.IS_CLEAN: jnp.where(given.asks, as_int(grant.is_clean), get(life, Life.IS_CLEAN)),
        Life.FIRST_TOKEN: jnp.where(gains, token, get(life, Life.FIRST_TOKEN)),
        Life.OLD_FIRST_TOKEN: old(Life.OLD_FIRST_TOKEN, get(life, Life.FIRST_TOKEN)),
        Life.OLD_TOKEN_RECORD: old(Life.OLD_TOKEN_RECORD, get(dyn, Dyn.TOKEN_RECORD)),
        Life.OLD_TOKEN_INDEX: old(Life.OLD_TOKEN_INDEX, get(dyn, Dyn.TOKEN_INDEX)),
    }
    return build(Life, columns, jnp.int32)
