"""The rules of the CPU tier's uses: of all contents that a batch holds, or by the worth that an offload policy gives.

Memory has one of the two objects, chosen when a program is built. Takers are counted only of shared contents, which
alone can have several.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import jax
import jax.numpy as jnp
from jax import lax

from blis_jax.core.exact import ceil_div
from blis_jax.core.types import LAST, RequestView
from blis_jax.memory.block_tables.contents import owner_of, shared_number_of
from blis_jax.policies.contexts import OffloadContext
from blis_jax.policies.contract import NoState, Policy
from blis_jax.policies.reading import DEMAND
from blis_jax.tables.blocks import BlockLife, Do, Takes, TierWorths, mirror_window
from blis_jax.tables.context import SlotRows, count_of, row, waiting_mask
from blis_jax.tables.requests import Request

if TYPE_CHECKING:
    from jaxtyping import Array, Bool, Float, Int

    from blis_jax.core.types import EngineShape
    from blis_jax.memory.block_tables.block_rows import Tenant
    from blis_jax.memory.block_tables.turn import Turn
    from blis_jax.tables.blocks import MemoryTask
    from blis_jax.tables.state import State

    Worth = tuple[jax.Array, ...]  # what uses are worth, if it matters


class Uses:
    """The rules without an offload policy: every content gets room, and the least recently used gives way."""

    # what follows the last block that comes back, and another one
    after_reload, again = (
        Do.ATTEMPT,
        Do.RELOAD,
    )

    def readable(self, turn: Turn, entry: jax.Array) -> jax.Array:
        """Return the entry if its content can be read back, else the spare entry."""
        return entry

    def moved(self, turn: Turn, entry: jax.Array) -> jax.Array:
        """Return the entry if a use makes it the most recent one, else the spare entry."""
        return entry

    def before_step(self, task: MemoryTask) -> MemoryTask:
        """Return the memory's task at a step's start, before a request is served."""
        return task

    def keeps_to(self, tenant: Tenant, is_again: jax.Array) -> jax.Array:
        """Return whether a retry (`is_again`) keeps to its first demand, even if blocks have come back since."""
        return is_again

    def repeats(self, is_pure: jax.Array) -> jax.Array:
        """Return whether several steps of a batch that only decodes (`is_pure`) may be made at once."""
        return is_pure

    def waits(self, state: State, instance: jax.Array) -> tuple[jax.Array, ...]:
        """Return whether requests wait for blocks, so that steps without progress do not count as a livelock."""
        return ()

    def taken(self, turn: Turn, name: jax.Array, is_it: jax.Array) -> dict[str, Any]:
        """Return the changes when the task's request takes these contents."""
        return {}

    def is_worth_it(self, turn: Turn, name: jax.Array) -> Any:
        """Return for which contents of free blocks February's tier has room."""
        return True

    def width(self, shape: EngineShape) -> int:
        """Return how many uses August's tier handles at a time."""
        return mirror_window(shape)

    def start(
        self, turn: Turn, request: jax.Array, order: jax.Array, runs: jax.Array, listed: jax.Array
    ) -> jax.Array:
        """Return the place in the batch to continue from; at the start, that of the first member that has changed.

        `runs` says for each slot whether its request is a member, and `listed` how many blocks its list has.
        """
        task, index = turn.task, turn.inst.step_index
        capacity = turn.own(turn.ctx.params.cluster.kv_cpu_blocks)
        is_new = (task.is_retry == 0) & (task.cursor == 0) & (task.done == 0)
        visited = turn.blocks.life[request, BlockLife.columns.VISITED_AT]
        is_changed = runs & (visited > index - turn.lane.num_steps)
        changed = jnp.min(jnp.where(is_changed, order, jnp.int32(LAST)))
        keeps = (turn.pool.is_mirrored == 1) & (jnp.sum(listed, dtype=jnp.int32) <= capacity)
        return jnp.where(is_new & keeps, changed, task.cursor)

    def used(self, turn: Turn, name: jax.Array, request: jax.Array) -> tuple[jax.Array, Worth]:
        """Return the names of contents whose use counts, 0 for the others, and the worth of each, if it matters."""
        return name, ()

    def allowed(
        self, turn: Turn, name: jax.Array, worth: Worth, missing: jax.Array
    ) -> tuple[jax.Array, jax.Array]:
        """Return the names of uses that an entry has or can take, and which of them are missing on the CPU."""
        return name, missing

    def gives_way(
        self, turn: Turn, is_real: Bool[Array, "entry"], worth: Worth
    ) -> tuple[Bool[Array, "entry"], jax.Array]:
        """Return which entries a use may evict, and whether it may evict any."""
        return is_real, jnp.array(True)

    def touched(
        self, entry: jax.Array, is_it: jax.Array, worth: Worth, at: jax.Array, new: Worth
    ) -> dict[str, Any]:
        """Return the changes when entries are used again, and when `at` takes a content of worth `new`."""
        return {}

    def weight(self, turn: Turn) -> Int[Array, ""] | int:
        """Return how many uses the second of equal steps stands for: later ones find the same order."""
        return turn.lane.num_steps - 1

    def goes_on(self, turn: Turn, has_copied: jax.Array, idle: jax.Array) -> jax.Array:
        """Return whether the batch is used again; `idle` counts the last uses in a row that copied nothing."""
        again = turn.lane.num_steps - 1
        return (turn.task.is_retry == 0) & (again > 0) & (has_copied == 1)


@dataclass(frozen=True)
class JudgedUses(Uses):
    """The rules with an offload policy, which says what room on the CPU is worth for a content."""

    policy: Policy

    def taken(self, turn: Turn, name: jax.Array, is_it: jax.Array) -> dict[str, Any]:
        """Return the changed counts of takers of shared contents, and the last takers."""
        number = jnp.where(is_it, _number(turn, name), jnp.int32(turn.ctx.shape.num_shared_blocks))
        times = jnp.sum(number[:, None] == number[None, :], axis=1, dtype=jnp.int32)
        count = turn.blocks[Takes].count[turn.instance, number] + times
        taker = jnp.full_like(number, turn.task.request)
        return {"taken": ((number, count),), "taker": ((number, taker),)}

    def is_worth_it(self, turn: Turn, name: jax.Array) -> Any:
        """Return for which contents the policy gives a worth above 0."""
        has_demand = self.policy.reads(*DEMAND)
        return self._worth_of(turn, name, last_taker(turn, name), has_demand) > 0

    def width(self, shape: EngineShape) -> int:
        """Return the window of the other operations."""
        return shape.window

    def start(
        self, turn: Turn, request: jax.Array, order: jax.Array, runs: jax.Array, listed: jax.Array
    ) -> jax.Array:
        """Return the place to continue from: no member is skipped, because its contents may be worth more now."""
        return turn.task.cursor

    def used(self, turn: Turn, name: jax.Array, request: jax.Array) -> tuple[jax.Array, Worth]:
        """Return the names of contents with a worth above 0, 0 for the others, and the worths."""
        request = jnp.broadcast_to(request, name.shape)
        worth = self._worth_of(turn, name, request, has_demand=False)
        return jnp.where(worth > 0, name, jnp.int64(0)), (worth,)

    def allowed(
        self, turn: Turn, name: jax.Array, worth: Worth, missing: jax.Array
    ) -> tuple[jax.Array, jax.Array]:
        """Return the names without those missing that no entry would give way to, and which names are missing."""
        number, (worths,) = lax.iota(jnp.int32, turn.blocks.cpu_key.shape[1]), worth
        is_real = number < turn.own(turn.ctx.params.cluster.kv_cpu_blocks)

        def look() -> jax.Array:
            least = jnp.min(
                jnp.where(is_real, row(turn.blocks[TierWorths].worth, turn.instance), jnp.inf)
            )
            least = jnp.minimum(least, jnp.min(jnp.where((name != 0) & ~missing, worths, jnp.inf)))
            keys = jnp.where(is_real, row(turn.blocks.cpu_key, turn.instance), jnp.int64(0))
            is_known = jnp.any(keys[None, :] == name[:, None], axis=1)
            return missing & (worths < least) & ~is_known

        refused = turn.ctx.when(jnp.any(missing), look, lambda: jnp.zeros(name.shape, bool))
        return jnp.where(refused, jnp.int64(0), name), missing & ~refused

    def gives_way(
        self, turn: Turn, is_real: Bool[Array, "entry"], worth: Worth
    ) -> tuple[Bool[Array, "entry"], jax.Array]:
        """Return the entries of the least worth, and whether that is at most the worth of this use."""
        worths = row(turn.blocks[TierWorths].worth, turn.instance)
        least = jnp.min(jnp.where(is_real, worths, jnp.inf))
        return is_real & (worths == least), least <= worth[0]

    def touched(
        self, entry: jax.Array, is_it: jax.Array, worth: Worth, at: jax.Array, new: Worth
    ) -> dict[str, Any]:
        """Return the changed worths of the entries that are used."""
        return {"cpu_worth": ((entry, jnp.where(is_it, worth[0], -jnp.inf)), (at, new[0]))}

    def weight(self, turn: Turn) -> Int[Array, ""] | int:
        """Return 1: every use is made, since the first may still meet worths of earlier steps."""
        return 1

    def goes_on(self, turn: Turn, has_copied: jax.Array, idle: jax.Array) -> jax.Array:
        """Return whether fewer than two uses in a row have copied nothing; after two, no later use copies anything."""
        return (turn.task.is_retry < turn.lane.num_steps - 1) & (idle < 2)

    def _worth_of(
        self, turn: Turn, name: jax.Array, request: jax.Array, has_demand: bool
    ) -> Float[Array, "block"]:
        """Return the worth of the room for each content, by the policy; `request` holds it now, or held it last."""
        ctx, shared = turn.ctx, jnp.int32(turn.ctx.shape.num_shared_blocks)
        number = _number(turn, name)
        count = jnp.maximum(turn.blocks[Takes].count[turn.instance, number], 1)
        context = OffloadContext(
            request=_views(turn, request),
            num_takers=jnp.where(number < shared, count, 1),
            instance=turn.instance,
            **(_demand(turn) if has_demand else {}),
        )
        return self.policy.ask(ctx.params.policy.offload, NoState(), context)[0]


def _number(turn: Turn, name: jax.Array) -> jax.Array:
    """Return the shared block of each name; the number of shared blocks if the name is 0 or stands for none."""
    none = jnp.int32(turn.ctx.shape.num_shared_blocks)
    return jnp.where(name == 0, none, jnp.minimum(shared_number_of(turn.ctx, name), none))


def last_taker(turn: Turn, name: jax.Array) -> Int[Array, "block"]:
    """Return the request that took each content last; of a disturbed list's contents, the holder of the last token."""
    shared = jnp.int32(turn.ctx.shape.num_shared_blocks)
    owner, known = owner_of(turn.ctx, name)[0], _number(turn, name)
    is_prefix = (name >> 1) & 1 == 0
    number = jnp.where(known < shared, known, jnp.where(is_prefix, owner + shared, owner))
    of_shared = turn.blocks[Takes].taker[turn.instance, jnp.minimum(number, shared)]
    taker = jnp.where(number < shared, of_shared, number - shared)
    return jnp.clip(taker, 0, turn.ctx.shape.num_requests)


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
    """Return the blocks in use, and those that waiting requests will need, as fields of `OffloadContext`."""
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
