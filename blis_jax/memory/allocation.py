"""Whether block-level memory can give a request the blocks for its next tokens, and what follows.

Prefill is checked before anything is touched, by the number of blocks for the new tokens alone; an allocation
that runs out later is rolled back, and the roll-back deletes the request's whole block list.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Any

import jax
import jax.numpy as jnp

from blis_jax.core.columns import as_int, choose
from blis_jax.core.exact import ceil_div, in_last_block
from blis_jax.core.types import pytree
from blis_jax.memory.block_tables.block_rows import Tenant
from blis_jax.memory.block_tables.contents import NO_JUMPS, after_jump
from blis_jax.memory.memory import Demand
from blis_jax.tables.blocks import BlockLife, Do, Pinning
from blis_jax.tables.context import Context, Work

if TYPE_CHECKING:
    from jaxtyping import Array, Bool, Int

Refusal = Callable[[jax.Array], jax.Array]


def refused_later(is_it: jax.Array) -> jax.Array:
    """Return whether a prompt is short of blocks before anything is touched, or some are held till it is rolled back.

    As in February, where an allocation that runs out later is rolled back.
    """
    return is_it


def refused_whole(is_it: jax.Array) -> jax.Array:
    """Return false: in August free blocks that were found count, and an allocation that fails changes nothing."""
    return jnp.array(False)


@pytree
class Answer:
    """What becomes of a demand."""

    is_granted: Bool[Array, ""]
    is_lost: Bool[Array, ""]  # the request's list is deleted by the roll-back
    jumps: Int[Array, ""]  # of the list then, and the offset behind them, see `contents.after_jump`
    offset: Int[Array, ""]
    crashes: Bool[Array, ""]
    held: Int[Array, ""]  # tokens in the list afterwards, if granted
    task: dict[str, jax.Array]  # changes of the task, by column

    def held_after(self, one: Tenant, asks: jax.Array) -> jax.Array:
        """Return the tokens in the list afterwards, if the request `asks`."""
        held = jnp.where(asks & self.is_granted, self.held, one.held)
        return jnp.where(asks & self.is_lost, 0, held)

    def life_before(self, one: Tenant, asks: jax.Array) -> BlockLife:
        """Return what the request has been through if it gets nothing."""
        return one.life


@pytree
class AnswerOfTier(Answer):
    """Likewise with August's CPU tier."""

    is_left: Bool[Array, ""]  # it fails, and holds the blocks found

    def held_after(self, one: Tenant, asks: jax.Array) -> jax.Array:
        """Return them with the blocks found."""
        return jnp.where(asks & self.is_left, self.held, super().held_after(one, asks))

    def life_before(self, one: Tenant, asks: jax.Array) -> BlockLife:
        """Return its life with these blocks in its list."""
        chain = one.life.replace(jumps=self.jumps, offset=self.offset)
        return choose(asks & self.is_left, chain, one.life)


def no_tokens() -> Any:
    """Return the columns of the task that every new allocation sets anew."""
    zero = jnp.int32(0)
    return {"done": zero, "cursor": zero, "has_reloaded": zero}


def after_failure(ctx: Context, is_retry: jax.Array) -> jax.Array:
    """Return what follows a failed allocation: one reload from the CPU tier where there is one, else giving up."""
    if not ctx.shape.has_cpu_tier:
        return jnp.int32(Do.FAILED)
    return jnp.where(is_retry, jnp.int32(Do.FAILED), jnp.int32(Do.RELOAD))


def after_release(ctx: Context) -> jax.Array:
    """Return what follows the release of a list: the CPU tier may act."""
    return jnp.int32(Do.OFFLOAD if ctx.shape.has_cpu_tier else Do.NOTHING)


def asked_by(one: Tenant) -> dict[str, jax.Array]:
    """Return the columns of the task that say for whom blocks are allocated."""
    return {
        "asker": one.asker,
        "slot": one.slot,
        "request": one.request,
        "is_retry": as_int(one.is_retry),
        "freed_slot": one.slot,
    }


def part_of(ctx: Context, one: Tenant, demand: Demand) -> tuple[jax.Array, jax.Array]:
    """Return whether the tokens are of a prompt, and whether the reference would read past the end of the tokens."""
    if demand.is_last:
        return jnp.array(False), jnp.array(False)
    beyond = one.in_decode & (demand.start - one.fixed.input_len >= one.fixed.output_len)
    in_prefill = ~one.in_decode
    if ctx.mechanism.reserves_decode:
        in_prefill = in_prefill & ~one.has_kv
    return in_prefill, beyond


def attempt(
    ctx: Context, work: Work, one: Tenant, demand: Demand, is_old: jax.Array, refusal: Refusal
) -> Answer:
    """Decide on a demand from counts alone; the blocks themselves move in the operations that follow.

    If `is_old`, the blocks found were found at an earlier attempt and head the slot's list.
    """
    size = ctx.shape.block_size
    tokens, held, has_list = demand.tokens, one.held, one.held > 0
    in_prefill, beyond = part_of(ctx, one, demand)
    pins = jnp.where(has_list | (tokens == 0), 0, demand.found.count)
    free_pins = jnp.where(pins > 0, demand.found.num_free, 0)
    free = ctx.params.cluster.total_kv_blocks[one.instance] - work.inst.used_blocks
    is_short = refusal(in_prefill & (ceil_div(tokens, size) > free))
    in_last = in_last_block(held, size)
    stored = jnp.where(in_last == 0, 0, jnp.minimum(tokens, jnp.int32(size) - in_last))
    takes = ceil_div(tokens - stored, size)
    runs_out = ~is_short & (takes > free - free_pins)
    crashes = beyond | (in_prefill & (tokens < 0))
    is_granted = ~is_short & ~runs_out & ~crashes
    is_doomed = refusal(runs_out & (pins > 0))
    jumps, offset = _jumps(ctx, one, demand, pins * jnp.int32(size))
    fills = (stored > 0) & (in_last_block(held + stored, size) == 0)
    then = jnp.int32(Do.RELEASE if demand.is_last else Do.NOTHING)
    then = jnp.where((takes > 0) | fills, jnp.int32(Do.TAKE), then)
    failed = after_failure(ctx, one.is_retry)
    then = jnp.where(is_granted, then, failed)
    # a retry takes the blocks that were found now, even where nothing is taken yet
    pinning = jnp.where(is_doomed, jnp.int32(Pinning.DOOMED), jnp.int32(Pinning.NOTED))
    pinning = jnp.where(is_granted, jnp.int32(Pinning.KEPT), pinning)
    pins_now = (pins > 0) & (is_granted | is_doomed | (failed == Do.RELOAD))
    then = jnp.where(pins_now, jnp.int32(Do.PIN), then)
    # the roll-back forgets the whole list, and its blocks stay used for ever
    is_lost = runs_out & has_list & ctx.mechanism.defects.rolled_back_leak
    after = jnp.where(is_granted, held + tokens + pins * jnp.int32(size), 0)
    freed = jnp.where(is_doomed, pins, ceil_div(after, size))
    task = no_tokens() | {
        **asked_by(one),
        "do": then,
        "start": demand.start,
        "tokens": tokens,
        "hits": pins,
        "held": jnp.where(is_lost, 0, held),
        "stored": stored,
        "takes": takes,
        "in_prefill": as_int(in_prefill),
        "jumps": jumps,
        "pinning": pinning,
        "is_old": as_int(is_old),
        "freed_blocks": freed,
        "after_release": jnp.where(is_doomed, failed, after_release(ctx)),
        "after_offload": jnp.int32(Do.NOTHING),
    }
    return Answer(is_granted, is_lost, jumps, offset, crashes, after, task)


def _jumps(
    ctx: Context, one: Tenant, demand: Demand, pinned: jax.Array
) -> tuple[jax.Array, jax.Array]:
    """The jumps of the list once the demand is stored; a new list begins with `pinned` tokens that were found."""
    has_list = one.held > 0
    # found blocks whose tokens are gone leave fewer tokens than they count for
    is_whole = (pinned == 0) | demand.found.is_clean
    at_first = jnp.where(is_whole, jnp.int32(NO_JUMPS), pinned)
    held = jnp.where(has_list, one.held, pinned)
    before = jnp.where(has_list, one.life.jumps, at_first)
    old = jnp.where(has_list, one.life.offset, 0)
    offset = demand.start - held
    after = jnp.int32(1)
    if ctx.shape.has_cpu_tier:  # which alone asks what content it is
        after = after_jump(ctx, before, one.request, held, old, offset)
    return jnp.where(offset == old, before, after), offset
