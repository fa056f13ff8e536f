"""The rule which running request is evicted when no blocks are left: an object, chosen when a program is built."""

from __future__ import annotations

import dataclasses
from abc import ABC, abstractmethod
from collections.abc import Callable
from dataclasses import dataclass
from functools import cached_property
from typing import TYPE_CHECKING

import jax
import jax.numpy as jnp
from jax import lax

from blis_jax.core.columns import as_int
from blis_jax.core.exact import ceil_div
from blis_jax.core.types import LAST
from blis_jax.memory.block_tables.block_rows import BlockRows, is_due
from blis_jax.policies.contexts import VictimContext
from blis_jax.policies.contract import NoState, Policy
from blis_jax.tables.blocks import BlockLife, Blocks
from blis_jax.tables.context import Context, SlotRows, Work, count_of, least_key, row, slot_of
from blis_jax.tables.state import Lane, Resident, State

if TYPE_CHECKING:
    from jaxtyping import Array, Bool, Float

    from blis_jax.tables.writes import Writes


@dataclass(frozen=True)
class Batch:
    """The running batch at an eviction, each field `[slot]`."""

    slot: jax.Array
    order: jax.Array
    in_prefill: jax.Array
    is_due: jax.Array
    is_bulk: jax.Array  # in decode, and not visited for its own sake

    @cached_property
    def is_member(self) -> Bool[Array, "slot"]:
        """Return whether the request in each slot is running."""
        return self.order != LAST

    def num_ahead(self, order: jax.Array, lane: Lane, visit_all: jax.Array) -> jax.Array:
        """Count the members still to be visited if the batch is in the order `order`."""
        is_ahead = self.is_ahead(order, lane)
        return count_of(is_ahead & (self.in_prefill | self.is_due | visit_all))

    def is_ahead(self, order: jax.Array, lane: Lane) -> jax.Array:
        """Return which members come after the one that is visited now."""
        is_behind = order > lane.cursor
        return is_behind & (order <= lane.order_limit)

    def last_of(self, is_it: Bool[Array, "slot"]) -> jax.Array:
        """Return the slot of the member among `is_it` that joined last."""
        return slot_of(least_key(is_it, jnp.int32(LAST) - self.order))


def batch_of(ctx: Context, slots: SlotRows, work: Work) -> Batch:
    """Return the batch of an instance."""
    order, finish = slots.order, slots.finish
    due = is_due(ctx, slots, work.inst.step_index)
    slot = jnp.arange(order.shape[0], dtype=jnp.int32)
    is_decode = finish != LAST
    return Batch(slot, order, ~is_decode & (order != LAST), due, is_decode & ~due)


class Victims:
    """The rule of BLIS: the member that joined last is evicted."""

    keeps_priority = False  # whether the priority with which a request was admitted is kept

    def of(
        self, ctx: Context, state: State, work: Work, batch: Batch, instance: jax.Array
    ) -> tuple[jax.Array, jax.Array]:
        """Return the slots of the victim and of the batch's last member."""
        end = jnp.int32(ctx.shape.num_slots - 1)
        last = jnp.minimum(batch.last_of(batch.is_member), end)
        return last, last

    def priorities(self, ctx: Context, state: State, instance: jax.Array) -> Float[Array, "slot"]:
        """Return the priorities with which the requests in the slots were admitted; 0 if priorities are not kept."""
        return jnp.zeros((ctx.shape.num_slots,), jnp.float64)

    def written(self, state: State, blocks: Blocks, rows: BlockRows, done: Writes) -> State:
        """Return the state with these rows written; `blocks` has been changed already."""
        return state.having(blocks)


class ChosenVictims(Victims, ABC):
    """Rules by which a member other than the last may be evicted; the last member may then take its place."""

    def of(
        self, ctx: Context, state: State, work: Work, batch: Batch, instance: jax.Array
    ) -> tuple[jax.Array, jax.Array]:
        """Return the slots of the victim and of the batch's last member."""
        last, _ = super().of(ctx, state, work, batch, instance)
        victim = self._chosen(ctx, state, work, batch, instance)
        return ctx.existing_slot(victim), last

    @abstractmethod
    def _chosen(
        self, ctx: Context, state: State, work: Work, batch: Batch, instance: jax.Array
    ) -> jax.Array:
        """Return the victim's slot; any number if the batch is empty."""

    def written(self, state: State, blocks: Blocks, rows: BlockRows, done: Writes) -> State:
        """Return the state with the slot row of a member that has taken the victim's place written, too."""
        order, place = jnp.int32(Resident.columns.ORDER), (rows.moved_instance, rows.moved_slot)
        moved = rows.moved_order[None, None, None]
        slots = lax.dynamic_update_slice(state.slot.numbers, moved, (order, *place))
        return dataclasses.replace(state.having(blocks), slot=state.slot.with_numbers(slots))


@dataclass(frozen=True)
class LeastWorth(ChosenVictims):
    """The member that is worth least by a victim policy is evicted; of equals, the last one."""

    policy: Policy

    def _chosen(
        self, ctx: Context, state: State, work: Work, batch: Batch, instance: jax.Array
    ) -> jax.Array:
        worth = self._worth(ctx, state, work, batch, instance)
        is_member = batch.is_member
        # the last one, too, where values are no numbers
        is_least = is_member & ~(worth > jnp.min(jnp.where(is_member, worth, jnp.inf)))
        return batch.last_of(is_least)

    def _worth(
        self, ctx: Context, state: State, work: Work, batch: Batch, instance: jax.Array
    ) -> jax.Array:
        policy, slots = self.policy, SlotRows(state, instance)
        index = work.inst.step_index
        visited_at = state[Blocks].life[slots.request, BlockLife.columns.VISITED_AT]
        steps = index + as_int(visited_at == index + 1)
        held = slots.alloc_offset + jnp.where(slots.finish != LAST, steps, 0)
        context = VictimContext(
            request=slots.view(),
            is_running=batch.is_member,
            place=batch.order,
            num_tokens=held,
            now_us=work.lane.now,
            instance=instance,
            num_own_blocks=_own_blocks(ctx, state, instance, held)
            if policy.reads("num_own_blocks")
            else None,
        )
        return policy.ask(ctx.params.policy.victim, NoState(), context)[0]


def _own_blocks(ctx: Context, state: State, instance: jax.Array, held: jax.Array) -> jax.Array:
    """Return how many blocks of every slot's list are in no other list."""
    blocks = state[Blocks]
    lists = lax.dynamic_index_in_dim(blocks.lists, instance, keepdims=False)
    holders = row(blocks.hold, instance)[lists]
    position = lax.broadcasted_iota(jnp.int32, lists.shape, 1)
    is_listed = position < ceil_div(held, ctx.shape.block_size)[:, None]
    return jnp.sum(is_listed & (holders == 1), axis=1, dtype=jnp.int32)


def first_joined(slots: SlotRows, batch: Batch, is_it: Bool[Array, "slot"]) -> jax.Array:
    """Return the slot of the member among `is_it` that joined first, as in February."""
    return slot_of(least_key(is_it, batch.order))


def latest_arrival(slots: SlotRows, batch: Batch, is_it: Bool[Array, "slot"]) -> jax.Array:
    """Return the slot of the latest arrival among `is_it`; of equals, that of the last member, as in August."""
    arrival = slots.arrival
    latest = jnp.max(jnp.where(is_it, arrival, jnp.zeros_like(arrival)))
    return batch.last_of(is_it & (arrival == latest))


@dataclass(frozen=True)
class LeastUrgent(ChosenVictims):
    """The member with the lowest priority is evicted; `of_equals` selects one of several."""

    keeps_priority = True
    of_equals: Callable[[SlotRows, Batch, Bool[Array, "slot"]], jax.Array]

    def _chosen(
        self, ctx: Context, state: State, work: Work, batch: Batch, instance: jax.Array
    ) -> jax.Array:
        priority = self.priorities(ctx, state, instance)
        least = jnp.min(jnp.where(batch.is_member, priority, jnp.inf))
        is_least = batch.is_member & (priority == least)
        return self.of_equals(SlotRows(state, instance), batch, is_least)

    def priorities(self, ctx: Context, state: State, instance: jax.Array) -> Float[Array, "slot"]:
        """Return the stored priorities with which the requests were admitted."""
        return state[Blocks].priority[instance]

    def written(self, state: State, blocks: Blocks, rows: BlockRows, done: Writes) -> State:
        """Return the state with the priorities written, too."""
        at = (done.slot.instance, done.slot.slot)
        ranked = lax.dynamic_update_slice(blocks.priority, rows.priority[None, None], at)
        return super().written(state, dataclasses.replace(blocks, priority=ranked), rows, done)
