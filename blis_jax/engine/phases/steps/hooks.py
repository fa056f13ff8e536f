"""What a mechanism adds to the steps of an instance: phases call its hooks, and know nothing of each other."""

from __future__ import annotations

from typing import TYPE_CHECKING, ClassVar

import jax

from blis_jax.core.columns import Vector
from blis_jax.core.views import StepBatch
from blis_jax.memory.memory import Left, Subject, Visit
from blis_jax.tables.context import Context, SlotRows, Work
from blis_jax.tables.state import Instance, Past, State
from blis_jax.tables.writes import SlotWrite

if TYPE_CHECKING:
    from jaxtyping import Array, Bool


class StepHooks:
    """The hooks of one source of events; those that it has no use for stay as they are here."""

    # what phases change in sub-trees, on the way in `Work`
    carries: ClassVar[tuple[type, ...]] = ()
    # whether phases carry the states of the gateway's policies, too
    carries_gateway: ClassVar[bool] = False
    takes_all: ClassVar[bool] = False  # where it ends members early, the whole batch leaves
    withholds: ClassVar[bool] = False  # some waiting requests may not be served
    repeats: ClassVar[bool] = False  # equal steps without anybody in the batch are made at once
    one_by_one: ClassVar[bool] = False  # steps of a batch that only decodes differ in what it gets

    def before_step(
        self, ctx: Context, state: State, work: Work, instance: jax.Array, begins: jax.Array
    ) -> tuple[Work, jax.Array]:
        """Return the instance before a step, and whether that begins."""
        return work, begins

    def begun(
        self, ctx: Context, state: State, work: Work, instance: jax.Array, begins: jax.Array
    ) -> Work:
        """Return the work once a step has begun, if it `begins`: it is known who waits, and nobody is served yet."""
        return work

    def may_be_served(
        self, state: State, work: Work, instance: jax.Array, is_waiting: Bool[Array, "slot"]
    ) -> Bool[Array, "slot"]:
        """Return which of the waiting requests may be served in this step; asked only if it `withholds` some."""
        return is_waiting

    def rests(self, work: Work) -> tuple[jax.Array, ...]:
        """Return whether an instance with nobody in its batch makes no further step; nothing where it always does."""
        return ()

    def repeated(
        self,
        ctx: Context,
        state: State,
        work: Work,
        instance: jax.Array,
        until: jax.Array,
        rests: jax.Array,
    ) -> Work:
        """Return the work of a step whose batch is formed, which may stand for several equal ones before `until`.

        There is no further one if the instance `rests`. Asked only if it `repeats` steps.
        """
        return work

    def factors(
        self, ctx: Context, state: State, work: Work, instance: jax.Array, written: SlotWrite | None
    ) -> tuple[jax.Array, ...]:
        """Return by what the step of the batch takes longer, float64; nothing where it takes no longer.

        `written` has been served in this scan step, if anybody has. Steps of a batch that only decodes have one factor.
        Those below 1 count as 1.
        """
        return ()

    def shown(
        self, ctx: Context, state: State, work: Work, instance: jax.Array, batch: StepBatch
    ) -> StepBatch:
        """Return the batch as the latency model is to see it; not asked where steps are made several at once."""
        return batch

    def further_us(
        self, ctx: Context, state: State, work: Work, instance: jax.Array
    ) -> tuple[jax.Array, ...]:
        """Return what is added to the step's time, float64 µs; likewise."""
        return ()

    def visited(
        self, ctx: Context, state: State, work: Work, subject: Subject, visit: Visit
    ) -> Work:
        """Return the work once a request has been served; `subject` is the request before."""
        return work

    def ends_early(
        self, ctx: Context, state: State, work: Work, instance: jax.Array
    ) -> tuple[jax.Array, ...]:
        """Return whether the members that leave now do so before their end; nothing where it ends nobody."""
        return ()

    def leavers(
        self,
        state: State,
        slots: SlotRows,
        ends: jax.Array,
        may_leave: Bool[Array, "slot"],
    ) -> Bool[Array, "slot"]:
        """Return the members that may leave, given whether it `ends` members early."""
        return may_leave

    def torn_off(
        self, ctx: Context, state: State, subject: Subject, left: Left, past: Past, ends: jax.Array
    ) -> tuple[Left, Past]:
        """Return what a member that is torn off leaves behind, and its row once it has left."""
        return left, past

    def completed(
        self, ctx: Context, state: State, written: SlotWrite, leaves: jax.Array
    ) -> jax.Array:
        """Return whether a request that `leaves` its place has completed."""
        return leaves

    def outputs(
        self, ctx: Context, state: State, written: SlotWrite, tokens: jax.Array
    ) -> jax.Array:
        """Return how often output was handed out of a request that completes with so many tokens."""
        return tokens

    def closing(
        self,
        ctx: Context,
        state: State,
        work: Work,
        instance: jax.Array,
        goes_on: jax.Array,
        chains: Vector,
    ) -> tuple[Work, jax.Array, Vector]:
        """Return the instance whose members have left, whether it has a next step, and its step events."""
        return work, goes_on, chains

    def closed(
        self, ctx: Context, state: State, left: Work, closed: Work, is_over: jax.Array
    ) -> Work:
        """Return the instance once all have left that do so now; `left` is the one before the next step was planned."""
        return closed

    def rows(
        self, ctx: Context, state: State, work: Work, instance: jax.Array, before: Instance
    ) -> tuple[object, ...]:
        """Return what else changes in sub-trees of the state; `before` is the instance before."""
        return tuple(work.own.only(*self.carries))
