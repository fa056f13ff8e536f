"""KV memory modelled block by block.

If blocks are missing, content is reloaded, a request is evicted and the visit repeated, or admission ends. An
allocation is decided from counts; the blocks move afterwards, one window at a time, and the task in `Work` keeps track.
Members that only store one more token in their last block are not visited unless the budget might not reach them.
"""

from __future__ import annotations

import dataclasses
from dataclasses import dataclass
from typing import TYPE_CHECKING

import jax
import jax.numpy as jnp
from jax import lax

from blis_jax.core.columns import as_int, branch, choose
from blis_jax.core.exact import full_blocks, in_last_block
from blis_jax.core.outcome import Outcome
from blis_jax.core.pytrees import Parts
from blis_jax.core.types import LAST
from blis_jax.memory import decode_takes, preemption
from blis_jax.memory.allocation import Answer, Refusal
from blis_jax.memory.attempts import decision_of, life_after
from blis_jax.memory.block_tables.block_rows import (
    BlockRows,
    Tenant,
    is_due,
    no_block_rows,
    tenant,
    written,
)
from blis_jax.memory.block_tables.contents import (
    Found,
    found_blocks,
    nothing_found,
    registered_blocks,
    without_own,
)
from blis_jax.memory.memory import Choice, Demand, Grant, Memory, Plan, Visit
from blis_jax.memory.victims import Victims
from blis_jax.tables.blocks import (
    Asker,
    BlockLife,
    Blocks,
    Do,
    InstanceMemory,
    MemoryTask,
    emptied,
    initial_blocks,
)
from blis_jax.tables.context import Context, SlotRows, Work, count_of, failing, row
from blis_jax.tables.state import RUNAWAY, State
from blis_jax.tables.writes import SlotWrite, no_slot

if TYPE_CHECKING:
    from jaxtyping import Array, Bool, Int

    from blis_jax.tables.writes import Writes

LIVELOCK_STEPS = 10_000  # consecutive steps of an instance without a completion or net progress


@dataclass(frozen=True)
class BlockLevel(Memory[Tenant, BlockRows]):
    """The memory model that tracks single blocks."""

    refusal: Refusal
    victims: Victims

    def no_rows(self, ctx: Context) -> BlockRows:
        """Return rows that change nothing."""
        return no_block_rows(ctx)

    def rows_of_leaver(self, ctx: Context, request: jax.Array) -> BlockRows:
        """Return rows that note that the request gives up its slot."""
        return dataclasses.replace(no_block_rows(ctx), left=request)

    def rows_of_quitter(self, ctx: Context, state: State, request: jax.Array) -> BlockRows:
        """Return the rows of a request that gives up in the queue; it keeps a first token made before a preemption."""
        life = BlockLife(ctx.vector(row(state[Blocks].life, request)))
        return dataclasses.replace(self.rows_of_leaver(ctx, request), life=life)

    def subject(self, ctx: Context, state: State, work: Work, choice: Choice) -> Tenant:
        """Return the chosen request, or the one with a retried allocation, with its block-level state."""
        return tenant(ctx, state, work, choice)

    def look_up(self, ctx: Context, state: State, work: Work, subject: Tenant) -> Found:
        """Look up the leading prompt blocks in the instance's prefix table, for waiting requests and retries."""
        own = self.preempted.prompt_len(ctx, subject)
        most = jnp.minimum(own, ctx.mechanism.rules.findable(subject.fixed.input_len))
        prompt_blocks = full_blocks(most, ctx.shape.block_size)
        at = (ctx, state[Blocks], subject.instance, subject.slot, subject.request)
        return ctx.when(
            subject.is_queued | subject.is_retry,
            lambda: found_blocks(*at, prompt_blocks, jnp.array(False)),
            nothing_found,
        )

    def remembered(self, work: Work, subject: Tenant, demand: Demand) -> Demand:
        """Return the demand of the visit's first attempt if a retry keeps to it, else the current demand."""

        keeps = self.uses.keeps_to(subject, subject.is_forced)

        def first(at_first: jax.Array, now: jax.Array) -> jax.Array:
            return jnp.where(keeps, at_first, now)

        return dataclasses.replace(
            demand,
            start=first(work.task.asked_start, demand.start),
            tokens=first(work.task.asked_tokens, demand.tokens),
            hits=first(work.task.asked_hits, demand.hits),
        )

    def allocate(
        self, ctx: Context, state: State, work: Work, subject: Tenant, demand: Demand
    ) -> Grant:
        """Decide on the demand; the task of the grant carries out the allocation or what follows a failure."""
        whole = demand if demand.is_last else self.lookahead.demand(state, subject, demand)
        decision = decision_of(ctx, state, work, subject, whole, self.refusal)
        answer = ctx.worked_out(decision)
        columns = {
            "asked_start": demand.start,
            "asked_tokens": demand.tokens,
            "asked_hits": demand.hits,
        }
        is_popped = (subject.asker == Asker.GHOST) & ~subject.is_forced
        kept = work.task.replace(num_ghosts=work.task.num_ghosts - as_int(is_popped))
        task = choose(demand.asks, kept.replace(**(answer.task | columns)), kept)
        crashes = demand.asks & answer.crashes
        outcome = failing(work.lane.outcome, crashes, Outcome.REFERENCE_CRASH)
        if not demand.is_last:
            outcome = self.unreached.outcome(ctx, state, outcome, subject, demand.asks)
        held = answer.held_after(subject, demand.asks)
        is_granted = answer.is_granted | ~demand.asks
        return Grant(is_granted, held, outcome, {}, task, answer)

    def rows_of_visit(
        self, ctx: Context, state: State, work: Work, subject: Tenant, grant: Grant, visit: Visit
    ) -> BlockRows:
        """Return the request's history after the visit, and how far its prompt is computed."""
        is_granted, computed = visit.is_granted, subject.computed
        has_finish = visit.gains | (subject.row.finish != LAST)
        progressed = jnp.where(has_finish, computed, visit.done)
        progressed = jnp.where(visit.gains, visit.done - subject.step, progressed)
        progressed = jnp.where(subject.in_decode, computed, progressed)
        rows = no_block_rows(ctx)
        progressed = self.unreached.progressed(progressed, subject, visit.asks)
        rows = self.unreached.rows(ctx, state, work, subject, rows, visit.asks)
        answer: Answer = grant.own
        before = answer.life_before(subject, visit.asks)
        rows = dataclasses.replace(
            rows,
            life=choose(is_granted, life_after(ctx, work, subject, grant, visit), before),
            computed=jnp.where(is_granted, progressed, computed),
        )
        if not self.victims.keeps_priority:
            return rows
        stored = state[Blocks].priority[subject.instance, subject.slot]
        # a second attempt, after a reload, does not ask for the priority again
        is_asked = subject.is_queued & ~subject.is_forced
        assert subject.priority is not None
        return dataclasses.replace(rows, priority=jnp.where(is_asked, subject.priority, stored))

    def rows_of_stored(self, rows: BlockRows) -> BlockRows:
        """Return the rows of a request that no step has visited yet."""
        return dataclasses.replace(rows, life=rows.life.replace(visited_at=jnp.int32(0)))

    def release(
        self, ctx: Context, work: Work, subject: Tenant, grant: Grant
    ) -> tuple[Grant, BlockRows]:
        """Give up the slot at once; the task releases the block list after the last token has been stored."""
        rows = dataclasses.replace(no_block_rows(ctx), life=subject.life, left=subject.request)
        return grant, rows

    def rows_of_stopped(self, rows: BlockRows, stops: jax.Array) -> BlockRows:
        """Return the rows of a request that loses its first token with its KV, if it `stops`."""
        life = rows.life
        first = jnp.where(stops, 0, life.first_token)
        return dataclasses.replace(rows, life=life.replace(first_token=first))

    def first_tables(self, ctx: Context) -> Blocks:
        """Return the tables with all blocks free."""
        return initial_blocks(ctx.shape, ctx.mechanism, ctx.params)

    def emptied(self, ctx: Context, state: State, is_it: Bool[Array, "instance"]) -> State:
        """Return the state with these instances' blocks all free and without content, as at the start."""
        return state.having(emptied(ctx.shape, ctx.params, state[Blocks], is_it))

    def takes_at_once(self, ctx: Context) -> bool:
        """Return whether members of a batch that only decodes take blocks without a visit, which no policy observes."""
        used, shape = ctx.mechanism, ctx.shape
        is_heard = used.is_precise or used.moves_requests or used.offload is not None
        return ctx.when is branch and not (shape.tracks_outputs or shape.is_continuous or is_heard)

    def no_takes(self, ctx: Context) -> Parts:
        """Return that no member takes a block without a visit; an empty `Parts` if none ever does."""
        return Parts(decode_takes.no_takes()) if self.takes_at_once(ctx) else Parts()

    def takes_of(
        self, ctx: Context, slots: SlotRows, step_index: jax.Array, count: jax.Array
    ) -> Parts:
        """Return which members take the next `count` blocks without a visit."""
        if not self.takes_at_once(ctx):
            return Parts()
        return Parts(decode_takes.takes_of(ctx, slots, step_index, count))

    def decode_blocks(
        self, ctx: Context, slots: SlotRows, index: jax.Array, steps: jax.Array, taken: jax.Array
    ) -> tuple[jax.Array, jax.Array]:
        """Return the blocks taken without a visit, and their sum over the steps."""
        return taken, taken * steps

    def without_own(
        self, ctx: Context, state: State, request: jax.Array, instance: jax.Array, slot: jax.Array
    ) -> State:
        """Return the state in which blocks with contents of this request alone have no content."""
        return state.having(without_own(ctx, state[Blocks], request, instance, slot))

    def write(self, ctx: Context, state: State, done: Writes) -> State:
        """Return the state with the rows of block-level memory written; the blocks themselves move in operations."""
        state = written(ctx, state, done, self.victims)
        if decode_takes.DecodeTakes not in done.takes:
            return state
        takes = done.takes[decode_takes.DecodeTakes]
        return state.having(decode_takes.with_takes(ctx, state, done.instance, takes))

    # --- who is visited -------------------------------------------------------------------------

    def num_cached(self, ctx: Context, slots: SlotRows) -> Int[Array, "slot"]:
        """Count the leading prompt blocks in the instance's prefix table, for the request in every slot."""
        own, blocks = self.preempted.prompts_in(ctx, slots), slots.state[Blocks]
        most = jnp.minimum(own, ctx.mechanism.rules.findable(slots.input_len))

        def hits_of(slot: jax.Array, request: jax.Array, prompt: jax.Array) -> jax.Array:
            new = jnp.array(False)
            return found_blocks(ctx, blocks, slots.instance, slot, request, prompt, new).count

        slot = lax.iota(jnp.int32, most.shape[0])
        return jax.vmap(hits_of)(slot, slots.request, full_blocks(most, ctx.shape.block_size))

    def registered(self, ctx: Context, state: State) -> Int[Array, "instance node"]:
        """Count the leading blocks of each shared content that are in each instance's prefix table."""
        return registered_blocks(ctx, state[Blocks])

    def is_due(self, ctx: Context, slots: SlotRows, step_index: jax.Array) -> Bool[Array, "slot"]:
        """Return the decode members whose next token needs more than a free place in their last block."""
        return is_due(ctx, slots, step_index)

    def plan(self, ctx: Context, slots: SlotRows, work: Work, is_pure: jax.Array) -> Plan:
        """Plan a step: a member is visited when it needs a block, and equal steps end before one does."""
        cluster, index = ctx.params.cluster, work.inst.step_index
        budget = cluster.max_num_scheduled_tokens[slots.instance]
        size = jnp.int32(ctx.shape.block_size)
        finish, order = slots.finish, slots.order
        is_decode = finish != LAST
        due = is_due(ctx, slots, index)
        remaining = slots.input_len - row(slots.state[Blocks].computed, slots.instance)
        by_class = row(cluster.prefill_threshold, slots.instance)
        threshold = by_class[slots.slo_class]
        wanted = jnp.where((threshold > 0) & (threshold < remaining), threshold, remaining)
        is_prefill = (order != LAST) & ~is_decode
        wants = jnp.sum(jnp.where(is_prefill, wanted, 0), dtype=jnp.int32)
        visit_all = self.lookahead.visits_all(wants + work.inst.num_decode > budget)
        counted = jnp.where(visit_all, 0, count_of(is_decode & ~due))
        in_last = in_last_block(index + slots.alloc_offset, ctx.shape.block_size)
        most = (size - 1 if ctx.shape.tracks_outputs else size) - in_last
        most_steps = jnp.maximum(jnp.min(jnp.where(is_decode, most, size)), 1)
        is_pure = self.uses.repeats(is_pure & (work.pool.pending_reloads == 0))
        is_quiet = is_pure & ~jnp.any(due)
        if not self.takes_at_once(ctx):
            return Plan(visit_all, counted, is_quiet, most_steps, jnp.array(False))
        at_once = ctx.when(
            is_pure, lambda: decode_takes.steps_at_once(ctx, slots, work, due), lambda: jnp.int32(0)
        )
        takes = at_once > 0
        return Plan(
            visit_all,
            jnp.where(takes, work.inst.num_decode, counted),
            is_quiet | takes,
            jnp.where(takes, at_once, most_steps),
            takes,
        )

    @property
    def keeps_priority(self) -> bool:
        """Return whether the request of the lowest priority is evicted, so that priorities are kept."""
        return self.victims.keeps_priority

    def is_redirected(self, work: Work) -> jax.Array:
        """Return whether the next visit goes to a ghost, or to a request with a retried allocation."""
        return (work.task.num_ghosts > 0) | (work.task.do == Do.ATTEMPT)

    def redirected(self, state: State, work: Work, choice: Choice) -> Choice:
        """Return the ghost made last, once all members have been visited; see preemption.py."""
        ghosts = work.task.num_ghosts
        is_ghost = (choice.asker != Asker.MEMBER) & (ghosts > 0)
        slot = state[Blocks].ghosts[jnp.maximum(ghosts - 1, 0)]
        return dataclasses.replace(
            choice,
            slot=jnp.where(is_ghost, slot, choice.slot),
            asker=jnp.where(is_ghost, jnp.int32(Asker.GHOST), choice.asker),
        )

    def admits(self, work: Work) -> jax.Array:
        """Return whether admission goes on: no eviction has ended it in this step."""
        return work.task.has_preempted == 0

    # --- what follows ---------------------------------------------------------------------------

    def start(self, state: State, instance: jax.Array) -> tuple[MemoryTask, InstanceMemory]:
        """Return the operation in progress and the instance's row."""
        blocks = state[Blocks]
        return MemoryTask(blocks.task), InstanceMemory(row(blocks.pool, instance))

    def does(self, work: Work, what: Do) -> jax.Array:
        """Return whether memory's next operation is `what`."""
        return work.task.do == what

    def after_failure(
        self, ctx: Context, state: State, work: Work, instance: jax.Array
    ) -> tuple[Work, SlotWrite[BlockRows]]:
        """Evict a request, end admission, or let a completion do without the room for its last token."""
        return ctx.when(
            self.does(work, Do.FAILED),
            lambda: preemption.give_up(ctx, state, work, instance, self.victims),
            lambda: (work, no_slot(ctx)),
        )

    def with_transfers(
        self, ctx: Context, work: Work, duration: jax.Array, raw: jax.Array
    ) -> tuple[jax.Array, jax.Array]:
        """Return the step's duration with its reloads from the CPU tier, on the clock and in float64 µs."""
        reloads = work.pool.pending_reloads
        transfer = ctx.params.cluster.transfer_us[work.lane.active]
        duration = duration + reloads.astype(ctx.clock) * ctx.time(transfer)
        return duration, raw + reloads.astype(jnp.float64) * transfer.astype(jnp.float64)

    def after_step(
        self,
        ctx: Context,
        state: State,
        work: Work,
        instance: jax.Array,
        written: SlotWrite[BlockRows],
        finish: Int[Array, "slot"],
        num_done: jax.Array,
    ) -> tuple[jax.Array, InstanceMemory]:
        """Return the outcome and memory's row after a step: pay for reloads, and count steps without progress.

        Progress is the sum of tokens computed over the requests that stay; requests computed beyond their end decode
        for ever and make none.
        """
        pool, steps = work.pool, work.lane.num_steps
        index = work.inst.step_index + steps
        computed = row(state[Blocks].computed, instance)
        visited_slot = jnp.where(written.instance == instance, written.slot, -1)
        is_visited = lax.iota(jnp.int32, ctx.shape.num_slots) == visited_slot
        computed = jnp.where(is_visited, written.memory.computed, computed)
        stays = (finish != LAST) & (finish > index)
        tokens = jnp.where(finish == LAST, computed, computed + index)
        tokens = jnp.where((finish == LAST) | (stays & (finish != RUNAWAY)), tokens, 0)
        progress = jnp.sum(tokens, dtype=jnp.int32)
        members = work.inst.num_prefill + work.inst.num_decode - num_done
        has_work = (members > 0) | (work.lane.num_waiting > 0)
        is_better = (num_done > 0) | (progress > pool.best_progress) | ~has_work
        for waits in self.uses.waits(state, instance):
            is_better = is_better | waits
        stalled = jnp.where(is_better, 0, pool.stalled_steps + steps)
        is_stalled = stalled >= (ctx.shape.stall_steps or LIVELOCK_STEPS)
        outcome = failing(work.lane.outcome, is_stalled, Outcome.LIVELOCK)
        return outcome, pool.replace(
            pending_reloads=jnp.int32(0),
            stalled_steps=stalled,
            best_progress=jnp.where(is_better, progress, pool.best_progress),
        )

    def task_before_step(self, ctx: Context, task: MemoryTask) -> MemoryTask:
        """Return the task of the CPU tier's transfers before a request is served, if it has some."""
        return self.uses.before_step(task)

    def task_after_step(self, ctx: Context, task: MemoryTask) -> MemoryTask:
        """Return the task that copies the batch's blocks to August's CPU tier, if there is one."""
        if not ctx.shape.has_mirror:
            return task
        names = ("cursor", "done", "is_retry", "has_reloaded", "hits")
        return task.replace(do=jnp.int32(Do.MIRROR), **dict.fromkeys(names, jnp.int32(0)))

    def is_settled(self, state: State) -> jax.Array:
        """Return whether no blocks are being pinned or popped."""
        do = MemoryTask(state[Blocks].task).do
        return (do != Do.PIN) & (do != Do.TAKE)

    def first_token_record(self, written: SlotWrite[BlockRows]) -> jax.Array:
        """Return the record of the first token in the request's last life."""
        return written.memory.life.first_token - 1
