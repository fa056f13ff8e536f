"""One interface for KV-cache memory: look up, allocate, release, and their consequences.

Batch formation and completion are written against it. A model reports which prefix of a prompt is cached, grants or
refuses the blocks for new tokens, and frees the blocks that a request holds. The other hooks are for further effects of
a model; by default they have none. The two exact models are `no_eviction.py` and `block_level.py`.
"""

from __future__ import annotations

import dataclasses
from abc import ABC, abstractmethod
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Generic, NamedTuple, TypeVar

import jax
import jax.numpy as jnp

from blis_jax.core.columns import as_int
from blis_jax.core.exact import ceil_div, full_blocks, in_last_block
from blis_jax.core.pytrees import Parts, pytree
from blis_jax.core.types import LAST
from blis_jax.memory.block_tables.contents import Found
from blis_jax.tables.blocks import Asker, Do, InstanceMemory, MemoryTask
from blis_jax.tables.context import Context, SlotRows, Work
from blis_jax.tables.requests import Request
from blis_jax.tables.state import Past, Resident, State
from blis_jax.tables.writes import SlotWrite, no_slot

if TYPE_CHECKING:
    from jaxtyping import Array, Bool, Int

    from blis_jax.memory.attempts import Chunks, Lookahead, Unreached
    from blis_jax.memory.block_tables.takes import Uses
    from blis_jax.memory.preempted import Preempted
    from blis_jax.tables.writes import Writes


@dataclass(frozen=True)
class Choice:
    """The request to be visited next, by instance and slot."""

    instance: jax.Array
    slot: jax.Array
    asker: jax.Array
    priority: jax.Array | None = None  # of a waiting request, if memory must know it
    is_last: bool = False  # static: it completes


@dataclass(frozen=True)
class Subject:
    """The request that a phase is about, as it is before the phase; for models that visit a request once a step."""

    instance: jax.Array
    slot: jax.Array
    asker: jax.Array  # see Asker
    request: jax.Array
    row: Resident
    past: Past
    fixed: Request
    step: jax.Array  # number of the step being formed, or of the one after the last

    @property
    def is_queued(self) -> jax.Array:
        """Return whether the request is at the head of the wait queue."""
        return self.asker == Asker.QUEUE

    @property
    def has_kv(self) -> jax.Array:
        """Return whether the request is at the head of the wait queue and has blocks that were reserved for it."""
        return self.is_queued & (self.held > 0)

    @property
    def in_batch(self) -> jax.Array:
        """Return whether the request was running before the visit."""
        return self.row.order != LAST

    @property
    def in_decode(self) -> jax.Array:
        """Return whether the request was in decode when the step began."""
        return (self.row.finish != LAST) & ~self.has_token

    @property
    def is_idle(self) -> jax.Array:
        """Return whether the request has an empty output and is computed: it stays in steps without getting tokens."""
        return self.in_decode & (self.fixed.output_len == 0)

    @property
    def is_forced(self) -> jax.Array:
        """Return whether an allocation that failed is retried; only block-level memory retries."""
        return jnp.array(False)

    @property
    def is_again(self) -> jax.Array:
        """Return whether this step has already visited the request; only block-level memory visits twice."""
        return jnp.array(False)

    @property
    def has_token(self) -> jax.Array:
        """Return whether an earlier visit in this step gave the first token; only block-level memory visits twice."""
        return jnp.array(False)

    @property
    def position(self) -> jax.Array:
        """Return the position of a decoding request's next tokens, if its memory keeps track of it."""
        return self.past.progress

    @property
    def held(self) -> jax.Array:
        """Return the number of tokens in the request's block list."""
        steps = self.step - 1 + as_int(self.is_again | self.has_token)
        return self.row.alloc_offset + jnp.where(self.row.finish != LAST, steps, 0)


@dataclass(frozen=True)
class Demand:
    """The room for tokens that a request asks for."""

    asks: jax.Array  # false: the budget does not reach it, or it has no use for any
    start: jax.Array  # position of the first token
    tokens: jax.Array
    hits: jax.Array  # leading blocks found in the cache
    found: Found
    is_last: bool = False  # static: the token of a request that completes


@dataclass(frozen=True)
class Grant:
    """The answer to a `Demand`."""

    is_granted: jax.Array  # or nothing was asked for
    held: jax.Array  # tokens in the list afterwards
    outcome: jax.Array  # of the lane
    inst: dict[str, jax.Array]  # fields of the instance that change
    task: MemoryTask
    own: Any  # what the model has to remember

    def on(self, work: Work, lane: dict[str, jax.Array], inst: dict[str, jax.Array]) -> Work:
        """Return the work with the grant's changes and these, in one replacement: every version of a row costs."""
        return dataclasses.replace(
            work,
            lane=work.lane.replace(outcome=self.outcome, **lane),
            inst=work.inst.replace(**self.inst, **inst),
            task=self.task,
        )


@pytree
class Visit:
    """The outcome of a visit to a request."""

    asks: jax.Array
    is_granted: jax.Array
    tokens: jax.Array  # that it has room for now
    counted: jax.Array  # of these in the step's budget and time
    comes: jax.Array  # its KV was transferred here
    done: jax.Array  # tokens computed afterwards, of a prompt
    gains: jax.Array  # the prompt is computed: its first token comes with this step


class Left(NamedTuple):
    """The work and memory's rows after a request has left an instance."""

    work: Work
    rows: Any


@dataclass(frozen=True)
class Plan:
    """The plan of a step: which members of the batch are visited, and how many equal steps the plan covers."""

    visit_all: jax.Array  # every member by itself, in order: the budget might not reach them all
    num_counted: jax.Array  # decode members that are counted and not visited
    is_pure: jax.Array  # the steps of an unchanged batch may be made at once
    most_steps: jax.Array
    # members that are counted take the blocks that follow from the tokens held
    takes_blocks: jax.Array


S = TypeVar("S", bound=Subject)
R = TypeVar("R")


MAX_TAKES = 32  # blocks that decode members take without a visit in one scan step


def blocks_of_decode(
    ctx: Context, slots: SlotRows, step_index: jax.Array, num_steps: jax.Array
) -> tuple[jax.Array, jax.Array]:
    """Return the blocks that members take in decode, computed from the tokens held, see `Memory.decode_blocks`."""
    size, is_decode = ctx.shape.block_size, slots.finish != LAST
    held = step_index + slots.alloc_offset
    in_last = in_last_block(held, size)
    room = jnp.where(in_last == 0, 0, jnp.int32(size) - in_last)
    beyond = jnp.maximum(num_steps - room, 0)
    full, part = full_blocks(beyond, size), in_last_block(beyond, size)
    summed = jnp.int32(size) * full_blocks(full * (full + 1), 2) + part * (full + 1)
    return (
        jnp.sum(jnp.where(is_decode, ceil_div(beyond, size), 0), dtype=jnp.int32),
        jnp.sum(jnp.where(is_decode, summed, 0), dtype=jnp.int32),
    )


@dataclass(frozen=True)
class Memory(ABC, Generic[S, R]):
    """A memory model; `S` is the type of a request in a phase, `R` that of the rows that a phase changes."""

    preempted: Preempted
    unreached: Unreached
    uses: Uses
    lookahead: Lookahead
    chunks: Chunks

    @abstractmethod
    def no_rows(self, ctx: Context) -> R:
        """Return rows that change nothing."""

    def rows_of_leaver(self, ctx: Context, request: jax.Array) -> R:
        """Return the rows of a request that leaves and holds nothing."""
        return self.no_rows(ctx)

    def rows_of_quitter(self, ctx: Context, state: State, request: jax.Array) -> R:
        """Return the rows of a request that gives up in the queue; its history is kept."""
        return self.rows_of_leaver(ctx, request)

    @abstractmethod
    def subject(self, ctx: Context, state: State, work: Work, choice: Choice) -> S:
        """Return the chosen request with all data that a phase needs."""

    @abstractmethod
    def look_up(self, ctx: Context, state: State, work: Work, subject: S) -> Found:
        """Look up the leading blocks of the prompt in the cache; needed only for a request without a block list."""

    @abstractmethod
    def allocate(self, ctx: Context, state: State, work: Work, subject: S, demand: Demand) -> Grant:
        """Grant or refuse room for the demand's tokens, in the request's list behind the cached blocks."""

    @abstractmethod
    def rows_of_visit(
        self, ctx: Context, state: State, work: Work, subject: S, grant: Grant, visit: Visit
    ) -> R:
        """Return the rows that the model writes for a request after its visit."""

    def rows_of_stored(self, rows: R) -> R:
        """Return the rows after a visit that only allocated a request's blocks, before it enters a queue."""
        return rows

    @abstractmethod
    def release(self, ctx: Context, work: Work, subject: S, grant: Grant) -> tuple[Grant, R]:
        """Free the block list of a request that completes, after the grant for its last token."""

    def rows_of_stopped(self, rows: R, stops: jax.Array) -> R:
        """Return the rows of a request that has given up its slot because its instance stops."""
        return rows

    @abstractmethod
    def first_tables(self, ctx: Context) -> object:
        """Return the memory's tables before anything is stored."""

    @abstractmethod
    def emptied(self, ctx: Context, state: State, is_it: Bool[Array, "instance"]) -> State:
        """Return the state in which these instances, a spare row included, hold no contents."""

    def without_own(
        self, ctx: Context, state: State, request: jax.Array, instance: jax.Array, slot: jax.Array
    ) -> State:
        """Return the state in which the instance has no contents that belong to this request alone."""
        return state

    @abstractmethod
    def write(self, ctx: Context, state: State, done: Writes) -> State:
        """Return the state with the model's rows written."""

    # --- hooks: who is visited ----------------------------------------------------------------

    @abstractmethod
    def num_cached(self, ctx: Context, slots: SlotRows) -> Int[Array, "slot"]:
        """Count the leading prompt blocks in the cache, for the request in every slot."""

    @abstractmethod
    def registered(self, ctx: Context, state: State) -> Int[Array, "instance node"]:
        """Count the leading blocks of every shared content in each instance's prefix table; 0 for the spare content."""

    @abstractmethod
    def is_due(self, ctx: Context, slots: SlotRows, step_index: jax.Array) -> Bool[Array, "slot"]:
        """Return the decode members that must be visited one by one in the next step."""

    @abstractmethod
    def plan(self, ctx: Context, slots: SlotRows, work: Work, is_pure: jax.Array) -> Plan:
        """Plan which members are visited in a step that begins; `is_pure` says whether the batch only decodes."""

    def takes_at_once(self, ctx: Context) -> bool:
        """Return whether members of a batch that only decodes take blocks without a visit."""
        return False

    def no_takes(self, ctx: Context) -> Parts:
        """Return that no member takes a block without a visit; an empty `Parts` if none ever does."""
        return Parts()

    def takes_of(
        self, ctx: Context, slots: SlotRows, step_index: jax.Array, count: jax.Array
    ) -> Parts:
        """Return which members take the next `count` blocks from this step on, for `write`."""
        return Parts()

    def decode_blocks(
        self, ctx: Context, slots: SlotRows, index: jax.Array, steps: jax.Array, taken: jax.Array
    ) -> tuple[jax.Array, jax.Array]:
        """Return the blocks that counted members take over the next steps, and the sum of these blocks over the steps;
        `taken` is the number taken without a visit, at the first of the steps.
        """
        return jnp.int32(0), jnp.int32(0)

    @property
    def keeps_priority(self) -> bool:
        """Return whether memory stores the priority with which a request was admitted."""
        return False

    def redirected(self, state: State, work: Work, choice: Choice) -> Choice:
        """Return the request to visit first if memory selects one, else `choice`."""
        return choice

    def is_redirected(self, work: Work) -> jax.Array:
        """Return whether memory selects the next request to visit."""
        return jnp.array(False)

    def admits(self, work: Work) -> jax.Array:
        """Return whether waiting requests may still join the batch in this step."""
        return jnp.array(True)

    def remembered(self, work: Work, subject: S, demand: Demand) -> Demand:
        """Return the demand of an earlier attempt if there was one, else `demand`."""
        return demand

    # --- hooks: what follows ------------------------------------------------------------------

    def start(self, state: State, instance: jax.Array) -> tuple[MemoryTask, InstanceMemory]:
        """Return the operation in progress and the instance's row; both are empty in models without operations."""
        return MemoryTask(None), InstanceMemory(None)

    def does(self, work: Work, what: Do) -> jax.Array:
        """Return whether memory's next operation is `what`; it is always `NOTHING` in models without operations."""
        return jnp.array(what == Do.NOTHING)

    def after_failure(
        self, ctx: Context, state: State, work: Work, instance: jax.Array
    ) -> tuple[Work, SlotWrite[R]]:
        """Return the work and the slot's changes after an allocation has failed for good."""
        return work, no_slot(ctx)

    def with_transfers(
        self, ctx: Context, work: Work, duration: jax.Array, raw: jax.Array
    ) -> tuple[jax.Array, jax.Array]:
        """Return a step's duration, on the clock and in float64 µs, including the time that memory adds."""
        return duration, raw

    @abstractmethod
    def after_step(
        self,
        ctx: Context,
        state: State,
        work: Work,
        instance: jax.Array,
        written: SlotWrite[R],
        finish: Int[Array, "slot"],
        num_done: jax.Array,
    ) -> tuple[jax.Array, InstanceMemory]:
        """Check a step that has been timed: return the outcome and memory's row.

        The outcome fails if the model is not exact any more or the instance makes no progress.
        """

    def task_before_step(self, ctx: Context, task: MemoryTask) -> MemoryTask:
        """Return memory's task once a step has begun, before a request is served."""
        return task

    def task_after_step(self, ctx: Context, task: MemoryTask) -> MemoryTask:
        """Return memory's task once a step has been timed, before members complete."""
        return task

    def is_settled(self, state: State) -> jax.Array:
        """Return whether all blocks that the latest allocation needs have been popped."""
        return jnp.array(True)

    def first_token_record(self, written: SlotWrite[R]) -> jax.Array:
        """Return the step record of the first token of a request that completes, −1 if it has none."""
        return written.past.token_record
