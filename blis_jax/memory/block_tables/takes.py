"""Which requests took which contents, and what an offload policy says of them.

Only contents that requests share can be taken by several; they alone are counted. Without an offload policy there is
nothing of it.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import jax
import jax.numpy as jnp

from blis_jax.core.block_counts import ceil_div
from blis_jax.core.types import LAST, RequestView
from blis_jax.engine.context import SlotRows
from blis_jax.engine.phases.steps.mid_step import count_of, waiting_mask
from blis_jax.engine.state import Request
from blis_jax.memory.block_tables.contents import owner_of, shared_number_of
from blis_jax.memory.block_tables.turn import Turn
from blis_jax.policies.contract import NoState, OffloadContext

if TYPE_CHECKING:
    from jaxtyping import Array, Float, Int


def taken(turn: Turn, name: jax.Array, is_it: jax.Array) -> dict[str, Any]:
    """The changes where the task's request takes these contents."""
    if turn.ctx.mechanism.offload is None:
        return {}
    number = jnp.where(is_it, _number(turn, name), jnp.int32(turn.ctx.shape.num_shared_blocks))
    times = jnp.sum(number[:, None] == number[None, :], axis=1, dtype=jnp.int32)
    count = turn.blocks.taken[turn.instance, number] + times
    taker = jnp.full_like(number, turn.task.request)
    return {"taken": ((number, count),), "taker": ((number, taker),)}


def _number(turn: Turn, name: jax.Array) -> jax.Array:
    """Number of the shared content of each name; past the last one if it is none, or there is no name."""
    none = jnp.int32(turn.ctx.shape.num_shared_blocks)
    return jnp.where(name == 0, none, jnp.minimum(shared_number_of(turn.ctx, name), none))


def last_taker(turn: Turn, name: jax.Array) -> Int[Array, "block"]:
    """The request that took each content last; of what a disturbed list holds, the one that has its last token."""
    shared = jnp.int32(turn.ctx.shape.num_shared_blocks)
    owner, known = owner_of(turn.ctx, name)[0], _number(turn, name)
    is_prefix = (name >> 1) & 1 == 0
    number = jnp.where(known < shared, known, jnp.where(is_prefix, owner + shared, owner))
    of_shared = turn.blocks.taker[turn.instance, jnp.minimum(number, shared)]
    found = jnp.where(number < shared, of_shared, number - shared)
    return jnp.clip(found, 0, turn.ctx.shape.num_requests)


def worth_of(
    turn: Turn, name: jax.Array, request: jax.Array, has_demand: bool
) -> Float[Array, "block"]:
    """What the CPU tier's room for each content is worth, that these requests hold or held."""
    ctx, policy = turn.ctx, turn.ctx.mechanism.offload
    assert policy is not None
    number, shared = _number(turn, name), jnp.int32(ctx.shape.num_shared_blocks)
    count = jnp.maximum(turn.blocks.taken[turn.instance, number], 1)
    context = OffloadContext(
        request=_views(turn, request),
        num_takers=jnp.where(number < shared, count, 1),
        instance=turn.instance,
        **(_demand(turn) if has_demand else {}),
    )
    return policy.ask(ctx.params.policy.offload, NoState(), context)[0]


def _views(turn: Turn, request: jax.Array) -> RequestView:
    requests = turn.ctx.requests
    rows, column = requests.table[request], Request.columns
    return RequestView(
        slo_class=rows[:, column.SLO_CLASS],
        input_len=rows[:, column.INPUT_LEN],
        arrival_us=requests.arrival[request],
        tenant=rows[:, column.TENANT],
        tie_rank=rows[:, column.TIE_RANK],
        queue_rank=rows[:, column.QUEUE_RANK],
    )


def _demand(turn: Turn) -> dict[str, jax.Array]:
    """Blocks in use, and those that are soon asked for."""
    slots = SlotRows(turn.state, turn.instance)
    is_waiting = waiting_mask(slots, turn.lane.now, turn.inst.steps_at_now)
    is_waiting = is_waiting & (slots.order == LAST)
    blocks = jnp.where(is_waiting, ceil_div(slots.input_len, turn.ctx.shape.block_size), 0)
    return {
        "now_us": turn.lane.now,
        "num_blocks": turn.total,
        "num_used_blocks": turn.inst.used_blocks,
        "num_waiting_blocks": jnp.sum(blocks, dtype=jnp.int32),
        "num_running": count_of(slots.order != LAST),
    }
