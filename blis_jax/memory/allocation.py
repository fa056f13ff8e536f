"""Whether block-level memory can allocate the blocks for a request's next tokens, and what follows.

Prefill is checked before anything is changed, by the number of blocks for the new tokens alone; an allocation that runs
out of blocks later is rolled back, and the roll-back deletes the request's whole block list.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Any

import jax
import jax.numpy as jnp

from blis_jax.core.columns import as_int, choose
from blis_jax.core.exact import ceil_div, full_blocks, in_last_block
from blis_jax.core.pytrees import pytree
from blis_jax.memory.block_tables.block_rows import Tenant
from blis_jax.memory.block_tables.contents import MIXING, NO_JUMPS, after_jump, names
from blis_jax.memory.memory import Demand
from blis_jax.tables.blocks import BlockLife, Blocks, Do, Pinning
from blis_jax.tables.context import Context, Work
from blis_jax.tables.state import State

if TYPE_CHECKING:
    from jaxtyping import Array, Bool, Int

Refusal = Callable[[jax.Array], jax.Array]


def refused_later(is_it: jax.Array) -> jax.Array:
    """Return `is_it`: an allocation may be refused by a first check, or run out of blocks halfway.

    So it is in February, where an allocation that runs out halfway is rolled back.
    """
    return is_it


def refused_whole(is_it: jax.Array) -> jax.Array:
    """Return false: in August cached blocks count as free in the check, and a failed allocation changes nothing."""
    return jnp.array(False)


@pytree
class Answer:
    """The answer to a demand for blocks: whether it is granted, and its changes."""

    is_granted: Bool[Array, ""]
    is_lost: Bool[Array, ""]  # the request's list is deleted by the roll-back
    jumps: Int[Array, ""]  # of the list then, and the offset behind them, see `contents.after_jump`
    offset: Int[Array, ""]
    crashes: Bool[Array, ""]
    held: Int[Array, ""]  # tokens in the list afterwards, if granted
    task: dict[str, jax.Array]  # changes of the task, by column

    def held_after(self, tenant: Tenant, asks: jax.Array) -> jax.Array:
        """Return the number of tokens in the list after the attempt, if the request `asks`."""
        held = jnp.where(asks & self.is_granted, self.held, tenant.held)
        return jnp.where(asks & self.is_lost, 0, held)

    def life_before(self, tenant: Tenant, asks: jax.Array) -> BlockLife:
        """Return the request's history at block level in case it gets nothing."""
        return tenant.life


@pytree
class AnswerOfTier(Answer):
    """The answer to a demand for blocks on an instance with August's CPU tier."""

    is_left: Bool[Array, ""]  # it fails, and holds the blocks found

    def held_after(self, tenant: Tenant, asks: jax.Array) -> jax.Array:
        """Return the number of tokens in the list after the attempt, with the blocks left by a failed attempt."""
        return jnp.where(asks & self.is_left, self.held, super().held_after(tenant, asks))

    def life_before(self, tenant: Tenant, asks: jax.Array) -> BlockLife:
        """Return the request's history in case it gets nothing, with the blocks that a failed attempt leaves."""
        chain = tenant.life.replace(jumps=self.jumps, offset=self.offset)
        return choose(asks & self.is_left, chain, tenant.life)


def no_tokens() -> Any:
    """Return the columns of the task that every new allocation resets, all 0."""
    zero = jnp.int32(0)
    return {"done": zero, "cursor": zero, "has_reloaded": zero}


def after_failure(ctx: Context, is_retry: jax.Array) -> jax.Array:
    """Return the operation after a failed allocation: one reload if there is a CPU tier, else FAILED."""
    if not ctx.shape.has_cpu_tier:
        return jnp.int32(Do.FAILED)
    return jnp.where(is_retry, jnp.int32(Do.FAILED), jnp.int32(Do.RELOAD))


def after_release(ctx: Context) -> jax.Array:
    """Return the operation after the release of a list: OFFLOAD if there is a CPU tier, else NOTHING."""
    return jnp.int32(Do.OFFLOAD if ctx.shape.has_cpu_tier else Do.NOTHING)


def asked_by(tenant: Tenant) -> dict[str, jax.Array]:
    """Return the columns of the task that identify the request for which blocks are allocated."""
    return {
        "asker": tenant.asker,
        "slot": tenant.slot,
        "request": tenant.request,
        "is_retry": as_int(tenant.is_retry),
        "freed_slot": tenant.slot,
    }


def part_of(ctx: Context, tenant: Tenant, demand: Demand) -> tuple[jax.Array, jax.Array]:
    """Return whether the tokens belong to a prompt, and whether the reference would read past the last token."""
    if demand.is_last:
        return jnp.array(False), jnp.array(False)
    beyond = tenant.in_decode & (demand.start - tenant.fixed.input_len >= tenant.fixed.output_len)
    in_prefill = ~tenant.in_decode
    if ctx.mechanism.reserves_decode:
        in_prefill = in_prefill & ~tenant.has_kv
    return in_prefill, beyond


def attempt(
    ctx: Context, work: Work, tenant: Tenant, demand: Demand, is_old: jax.Array, refusal: Refusal
) -> Answer:
    """Decide on a demand from counts alone; the blocks themselves move in the operations that follow.

    If `is_old`, the cached blocks were found at an earlier attempt and head the slot's list.
    """
    size = ctx.shape.block_size
    tokens, held, has_list = demand.tokens, tenant.held, tenant.held > 0
    in_prefill, beyond = part_of(ctx, tenant, demand)
    pins = jnp.where(has_list | (tokens == 0), 0, demand.found.count)
    free_pins = jnp.where(pins > 0, demand.found.num_free, 0)
    free = ctx.params.cluster.total_kv_blocks[tenant.instance] - work.inst.used_blocks
    is_short = refusal(in_prefill & (ceil_div(tokens, size) > free))
    in_last = in_last_block(held, size)
    stored = jnp.where(in_last == 0, 0, jnp.minimum(tokens, jnp.int32(size) - in_last))
    takes = ceil_div(tokens - stored, size)
    runs_out = ~is_short & (takes > free - free_pins)
    crashes = beyond | (in_prefill & (tokens < 0))
    is_granted = ~is_short & ~runs_out & ~crashes
    is_doomed = refusal(runs_out & (pins > 0))
    jumps, offset = _jumps(ctx, tenant, demand, pins * jnp.int32(size))
    fills = (stored > 0) & (in_last_block(held + stored, size) == 0)
    then = jnp.int32(Do.RELEASE if demand.is_last else Do.NOTHING)
    then = jnp.where((takes > 0) | fills, jnp.int32(Do.TAKE), then)
    failed = after_failure(ctx, tenant.is_retry)
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
        **asked_by(tenant),
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
    ctx: Context, tenant: Tenant, demand: Demand, pinned: jax.Array
) -> tuple[jax.Array, jax.Array]:
    """Return the jumps and offset of the list after the demand; a new list begins with `pinned` cached tokens."""
    has_list = tenant.held > 0
    # found blocks whose tokens are gone leave fewer tokens than they count for
    is_whole = (pinned == 0) | demand.found.is_clean
    at_first = jnp.where(is_whole, jnp.int32(NO_JUMPS), pinned)
    held = jnp.where(has_list, tenant.held, pinned)
    before = jnp.where(has_list, tenant.life.jumps, at_first)
    old = jnp.where(has_list, tenant.life.offset, 0)
    offset = demand.start - held
    after = jnp.int32(1)
    if ctx.shape.has_cpu_tier:  # which alone asks what content it is
        after = after_jump(ctx, before, tenant.request, held, old, offset)
    return jnp.where(offset == old, before, after), offset


# --- an instance with the CPU tier of August's revision -------------------------------------------

# Before each allocation, blocks of the prompt come back from the CPU, behind those that were found or are held. What is
# found afterwards may be more than before. Then these blocks are held first, and the rest is allocated; if that fails,
# they are held all the same. Else everything is as it was asked for, be the blocks found still what they were or not.


def attempt_with_tier(
    ctx: Context, state: State, work: Work, tenant: Tenant, demand: Demand
) -> AnswerOfTier:
    """Return the answer of the first attempt, which reads the CPU tier, or of the second, which decides."""
    looks, answer = (
        _looks_at_tier(ctx, work, tenant, demand),
        _decided(ctx, state, work, tenant, demand),
    )
    look = answer.task | _look(ctx, tenant, demand)
    return AnswerOfTier(
        is_granted=answer.is_granted & ~looks,
        is_lost=answer.is_lost,
        jumps=answer.jumps,
        offset=answer.offset,
        crashes=answer.crashes & ~looks,
        held=answer.held,
        task={name: jnp.where(looks, look[name], value) for name, value in answer.task.items()},
        is_left=answer.is_left & ~looks,
    )


def _num_listed(ctx: Context, tenant: Tenant) -> jax.Array:
    return ceil_div(tenant.held, ctx.shape.block_size)


def _looks_at_tier(ctx: Context, work: Work, tenant: Tenant, demand: Demand) -> jax.Array:
    """Return whether a block of the prompt might come back from the CPU: some follow the cached or held blocks.

    After a list with missing or repeated tokens, the next block of the prompt cannot be looked up.
    """
    size, listed = ctx.shape.block_size, _num_listed(ctx, tenant)
    is_cut = in_last_block(tenant.held, size) > 0
    goes_on = (demand.hits >= listed) | (tenant.life.offset == 0) | is_cut
    is_short = jnp.maximum(demand.hits, listed) < full_blocks(tenant.fixed.input_len, size)
    has_entries = work.pool.cpu_used > 0
    return ~tenant.is_retry & goes_on & is_short & has_entries & (demand.tokens > 0)


def _look(ctx: Context, tenant: Tenant, demand: Demand) -> dict[str, jax.Array]:
    """Return the task that brings blocks back; cached blocks are listed first, since others may take their places.

    Names of contents continue from the last block; after a block that is not full they start anew.
    """
    size, listed = jnp.int32(ctx.shape.block_size), _num_listed(ctx, tenant)
    notes = (demand.hits > 0) & (listed == 0)
    none = jnp.int32(0)
    anew = after_jump(ctx, jnp.int32(NO_JUMPS), tenant.request, none, none, listed * size)
    is_cut = in_last_block(tenant.held, ctx.shape.block_size) > 0
    jumps = jnp.where(is_cut, anew, tenant.life.jumps)
    return {
        "do": jnp.where(notes, jnp.int32(Do.PIN), jnp.int32(Do.RELOAD)),
        "pinning": jnp.int32(Pinning.NOTED),
        "hits": demand.hits,
        "is_old": jnp.int32(0),
        "done": jnp.int32(0),
        "cursor": jnp.maximum(demand.hits, listed),
        "has_reloaded": jnp.int32(0),
        "jumps": jnp.where(demand.hits >= listed, jnp.int32(NO_JUMPS), jumps),
        "takes": _num_free(tenant, demand),  # of those found, for the second attempt
    }


def _num_free(tenant: Tenant, demand: Demand) -> jax.Array:
    """Return how many of the cached blocks no request holds; a member has looked up none."""
    return jnp.where(tenant.is_queued & (demand.hits > 0), demand.found.num_free, 0)


def _held_from_now(
    ctx: Context,
    demand: Demand,
    end: jax.Array,
    finds_more: jax.Array,
    covers: jax.Array,
    has_list: jax.Array,
) -> tuple[jax.Array, jax.Array, jax.Array]:
    """Return the first and the last block that are held from now on, and how many of them are pinned."""
    size, num_found = ctx.shape.block_size, demand.found.count
    first = jnp.where(finds_more & has_list, ceil_div(demand.start, size), 0)
    reach = jnp.where(covers, jnp.minimum(ceil_div(end, size), num_found), num_found)
    reach = jnp.where(finds_more, reach, demand.hits)
    pins = jnp.where(has_list | (demand.tokens == 0), 0, reach)
    return first, reach, jnp.where(finds_more, jnp.maximum(reach - first, 0), pins)


def _decided(
    ctx: Context, state: State, work: Work, tenant: Tenant, demand: Demand
) -> AnswerOfTier:
    """Return the answer to the demand with the blocks that are cached now."""
    size, zero = jnp.int32(ctx.shape.block_size), jnp.int32(0)
    held, has_list, listed = tenant.held, tenant.held > 0, _num_listed(ctx, tenant)
    start, end = demand.start, demand.start + demand.tokens
    in_prefill, beyond = part_of(ctx, tenant, demand)
    num_found, is_again = demand.found.count, ctx.memory.uses.keeps_to(tenant, tenant.is_retry)
    is_old = is_again & (work.task.has_reloaded == 1)
    finds_more = is_old & (num_found * size > start)
    covers = finds_more & (num_found * size >= end)
    first, reach, pins = _held_from_now(ctx, demand, end, finds_more, covers, has_list)
    start = jnp.where(finds_more, jnp.where(covers, end, num_found * size), start)
    tokens, before = end - start, held + pins * size
    in_last = in_last_block(before, ctx.shape.block_size)
    stored = jnp.where(in_last == 0, 0, jnp.minimum(tokens, size - in_last))
    takes = ceil_div(tokens - stored, ctx.shape.block_size)
    noted = jnp.where(is_again, work.task.takes, _num_free(tenant, demand))
    num_free = jnp.where(finds_more, demand.found.num_free, noted)
    free = ctx.params.cluster.total_kv_blocks[tenant.instance] - work.inst.used_blocks
    fails = ~covers & (takes > free - num_free)
    is_granted, is_left = ~fails & ~beyond, finds_more & fails & ~beyond
    jumps, old = _chain(ctx, state, tenant, finds_more, pins, reach)
    offset = jnp.where(is_granted & ~covers, start - before, old)
    jumped = after_jump(ctx, jumps, tenant.request, before, old, offset)
    jumps = jnp.where(offset == old, jumps, jumped)
    fills = (stored > 0) & (in_last_block(before + stored, ctx.shape.block_size) == 0)
    then = jnp.int32(Do.RELEASE if demand.is_last else Do.NOTHING)
    then = jnp.where((takes > 0) | fills, jnp.int32(Do.TAKE), then)
    then = jnp.where(is_granted, then, jnp.int32(Do.FAILED))
    then = jnp.where((pins > 0) & (is_granted | is_left), jnp.int32(Do.PIN), then)
    after = before + jnp.where(is_granted, tokens, 0)
    task = no_tokens() | {
        **asked_by(tenant),
        "do": then,
        "start": start,
        "tokens": tokens,
        "hits": jnp.where(finds_more, reach, pins),
        "held": jnp.where(finds_more, before, held),
        "stored": stored,
        "takes": takes,
        # with nothing to pin it is the take's
        "done": jnp.where(finds_more & (pins > 0), first, 0),
        "cursor": jnp.where(finds_more, listed - first, 0),  # so much further on in the list
        "has_reloaded": as_int(is_old),
        "in_prefill": as_int(in_prefill),
        "jumps": jumps,
        "pinning": jnp.where(is_left, jnp.int32(Pinning.LEFT), jnp.int32(Pinning.KEPT)),
        "is_old": as_int(is_old & ~finds_more),
        "freed_blocks": ceil_div(after, ctx.shape.block_size),
        "after_release": jnp.int32(Do.NOTHING),
        "after_offload": zero,
    }
    return AnswerOfTier(is_granted, jnp.array(False), jumps, offset, beyond, after, task, is_left)


def _chain(
    ctx: Context,
    state: State,
    tenant: Tenant,
    finds_more: jax.Array,
    pins: jax.Array,
    reach: jax.Array,
) -> tuple[jax.Array, jax.Array]:
    """Return the jumps of the list before the new tokens, and the offset of its end; a new list begins with cached
    blocks.

    Names of new contents continue from the last block. If another content has taken the place of that block, the other
    content's name sets them apart.
    """
    size, blocks = jnp.int32(ctx.shape.block_size), state[Blocks]
    last = jnp.maximum(pins - 1, 0)
    carried = blocks.key[tenant.instance, blocks.lists[tenant.instance, tenant.slot, last]]
    natural = names(ctx, tenant.request, (pins * size)[None], jnp.int32(NO_JUMPS))[0]
    other = ((carried >> 1) ^ (carried >> 32)).astype(jnp.int32) * jnp.int32(MIXING)
    other = (other ^ pins) * jnp.int32(MIXING) | 1
    is_noted = ctx.memory.uses.keeps_to(tenant, tenant.is_retry) & (pins > 0)
    at_first = jnp.where(is_noted & (carried != natural), other, jnp.int32(NO_JUMPS))
    has_list = tenant.held > 0
    jumps = jnp.where(has_list, tenant.life.jumps, at_first)
    offset = jnp.where(has_list, tenant.life.offset, 0)
    end = reach * size - (tenant.held + pins * size)
    return jnp.where(finds_more, jnp.int32(NO_JUMPS), jumps), jnp.where(finds_more, end, offset)
