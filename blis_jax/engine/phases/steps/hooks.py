"""Hooks by which sources of events change the steps of instances; sources know nothing of each other."""

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
    """The hooks of one source of events; a hook that a source does not override changes nothing."""

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
        """Return the work before a step, and whether the step begins."""
        return work, begins

    def begun(
        self, ctx: Context, state: State, work: Work, instance: jax.Array, begins: jax.Array
    ) -> Work:
        """Return the work after a step has begun, if it `begins`: waiting requests are known, none is served yet."""
        return work

    def may_be_served(
        self, state: State, work: Work, instance: jax.Array, is_waiting: Bool[Array, "slot"]
    ) -> Bool[Array, "slot"]:
        """Return which waiting requests may be served in this step; called only if the source `withholds` some."""
        return is_waiting

    def rests(self, work: Work) -> tuple[jax.Array, ...]:
        """Return whether an instance with an empty batch makes no further step; an empty tuple if it always does."""
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
        """Return the work of a step whose batch is formed, which may stand for several equal steps before `until`.

        There is no further step if the instance `rests`. Called only if the source `repeats` steps.
        """
        return work

    def factors(
        self, ctx: Context, state: State, work: Work, instance: jax.Array, written: SlotWrite | None
    ) -> tuple[jax.Array, ...]:
        """Return the factors by which the step gets longer, float64; an empty tuple if it does not.

        `written` is the request served in this scan step, if any. All steps of a batch that only decodes have the same
        factor. Factors below 1 count as 1.
        """
        return ()

    def shown(
        self, ctx: Context, state: State, work: Work, instance: jax.Array, batch: StepBatch
    ) -> StepBatch:
        """Return the batch as the latency model sees it; not called where several steps are made at once."""
        return batch

    def further_us(
        self, ctx: Context, state: State, work: Work, instance: jax.Array
    ) -> tuple[jax.Array, ...]:
        """Return times added to the step's time, float64 µs; not called where several steps are made at once."""
        return ()

    def visited(
        self, ctx: Context, state: State, work: Work, subject: Subject, visit: Visit
    ) -> Work:
        """Return the work after a request has been served; `subject` is the request before its visit."""
        return work

    def ends_early(
        self, ctx: Context, state: State, work: Work, instance: jax.Array
    ) -> tuple[jax.Array, ...]:
        """Return whether the members that leave now leave before their last token; an empty tuple if none ever does."""
        return ()

    def leavers(
        self,
        state: State,
        slots: SlotRows,
        ends: jax.Array,
        may_leave: Bool[Array, "slot"],
    ) -> Bool[Array, "slot"]:
        """Return the members that may leave; `ends` says whether members leave early."""
        return may_leave

    def torn_off(
        self, ctx: Context, state: State, subject: Subject, left: Left, past: Past, ends: jax.Array
    ) -> tuple[Left, Past]:
        """Return the work and rows after the departure of a member, early if `ends`, and its history row."""
        return left, past

    def completed(
        self, ctx: Context, state: State, written: SlotWrite, leaves: jax.Array
    ) -> jax.Array:
        """Return whether a request that `leaves` its slot has completed."""
        return leaves

    def outputs(
        self, ctx: Context, state: State, written: SlotWrite, tokens: jax.Array
    ) -> jax.Array:
        """Return how many times a completed request with this many tokens received output."""
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
        """Return the work after members have left, whether a next step follows, and the instance's step events."""
        return work, goes_on, chains

    def closed(
        self, ctx: Context, state: State, left: Work, closed: Work, is_over: jax.Array
    ) -> Work:
        """Return the work at the end of a step or departure; `left` is the work before the next step was planned."""
        return closed

    def rows(
        self, ctx: Context, state: State, work: Work, instance: jax.Array, before: Instance
    ) -> tuple[object, ...]:
        """Return further rows to write to the state's sub-trees; `before` is the instance before this scan step."""
        return tuple(work.own.only(*self.carries))
