"""The begin and the end of a step, and dropped requests, on hand-made rows."""

import jax.numpy as jnp
import pytest

from blis_jax.core.outcome import Outcome
from blis_jax.engine.phases.departures.oversized import drop, find_drop
from blis_jax.engine.phases.steps.step_end import close, finish_step
from blis_jax.engine.phases.steps.step_start import begin
from blis_jax.tables.context import NO_KEY
from blis_jax.tables.state import Mode
from blis_jax.tables.writes import no_slot
from tests.engine.phases.made import NEVER, Made, config, values

ONE = jnp.int32(1)
LATER = jnp.int32(NEVER)


def decoding() -> Made:
    """Instance 1 has done 4 steps and decodes requests 0 and 1, which end with steps 7 and 9."""
    made = Made()
    made.resident(1, 0, request=0, order=0, finish=7, alloc_offset=36)
    made.resident(1, 1, request=1, order=1, finish=9, alloc_offset=29)
    made.instance(
        1, load=2, num_decode=2, next_order=2, step_index=4, used_blocks=6, is_idle=0, chains=(500,)
    )
    made.lane(now=500)
    return made


def test_a_step_begins_with_who_waits_and_who_is_visited() -> None:
    made = Made()
    made.resident(1, 0, request=0, order=0)  # in prefill
    made.resident(1, 1, request=1, queued=100)
    made.resident(1, 2, request=2, queued=900)  # not yet in the queue
    made.instance(1, load=3, num_prefill=1, next_order=1, is_idle=0, chains=(500,))
    made.lane(now=500)
    work, _ = begin(made.ctx, made.state, made.work(1), ONE, LATER)
    assert values(work.lane, "mode", "active", "budget") == [Mode.FORMING, 1, 64]
    assert values(work.lane, "num_waiting", "queue_depth", "num_to_visit") == [1, 1, 1]
    assert values(work.lane, "num_decode", "decode_tokens", "num_steps") == [0, 0, 1]
    assert int(work.inst.chain) == NEVER  # the step event is used up


@pytest.mark.parametrize(("until", "steps"), [(NEVER, 3), (2500, 2), (501, 1)])
def test_equal_steps_end_with_the_first_completion_or_before_the_cluster_s_next_event(
    until: int, steps: int
) -> None:
    made = decoding()
    work, _ = begin(made.ctx, made.state, made.work(1), ONE, jnp.int32(until))
    assert values(work.lane, "num_steps", "num_to_visit", "decode_tokens") == [steps, 0, 2]
    assert values(work.lane, "budget") == [62]


def test_the_end_of_a_step_is_recorded_and_counts_who_is_done() -> None:
    made = decoding()
    work, _ = begin(made.ctx, made.state, made.work(1), ONE, LATER)
    done = finish_step(made.ctx, made.state, work, ONE, no_slot(made.ctx))
    names = ("instance", "num_steps", "last_index", "running", "num_completed", "num_decode")
    assert values(done.record, *names) == [1, 3, 7, 2, 1, 2]
    assert values(done.record, "start", "duration", "total_duration") == [500, 1000, 3000]
    assert values(done.work.lane, "mode", "num_to_complete", "now") == [Mode.COMPLETING, 1, 2500]
    assert values(done.work.inst, "step_index", "last_start") == [7, 2500]


def test_a_step_that_ends_beyond_the_clock_is_reported() -> None:
    made = decoding()
    made.instance(1, chains=(NEVER - 900,))
    made.lane(now=NEVER - 900)
    work, _ = begin(made.ctx, made.state, made.work(1), ONE, LATER)
    done = finish_step(made.ctx, made.state, work, ONE, no_slot(made.ctx))
    assert int(done.work.lane.outcome) == Outcome.CLOCK_OVERFLOW


def test_an_instance_with_members_steps_again_and_one_without_goes_idle() -> None:
    made = decoding()
    made.instance(1, chains=(NEVER,))
    made.lane(now=2500, duration=1000, mode=int(Mode.COMPLETING))
    goes_on = close(made.ctx, made.state, made.work(1), ONE)
    assert values(goes_on.inst, "is_idle", "event", "busy_until") == [0, 3500, 3500]
    assert int(goes_on.lane.mode) == Mode.BETWEEN
    made.instance(1, num_decode=0)
    ends = close(made.ctx, made.state, made.work(1), ONE)
    assert values(ends.inst, "is_idle", "event") == [1, NEVER]


@pytest.mark.parametrize(("corrected", "event"), [(False, 2600), (True, 3500)])
def test_a_request_on_its_way_wakes_an_idle_instance(corrected: bool, event: int) -> None:
    """In the reference at once, even while the last step goes on; corrected, when that has ended."""
    made = Made(config(corrected=corrected))
    made.resident(1, 3, request=2, queued=2600)
    made.instance(1, load=1)
    made.lane(now=2500, duration=1000, mode=int(Mode.COMPLETING))
    assert int(close(made.ctx, made.state, made.work(1), ONE).inst.event) == event


def test_a_request_too_large_for_the_memory_is_dropped_when_it_would_be_queued() -> None:
    made = Made()
    made.resident(1, 2, request=2, queued=400, oversized=1)
    made.instance(1, load=1, num_oversized=1, event=400)
    made.lane(now=300)
    assert int(find_drop(made.state, made.work(1), ONE)) == NO_KEY
    made.lane(now=400)
    key = find_drop(made.state, made.work(1), ONE)
    work, written = drop(made.ctx, made.state, made.work(1), ONE, key)
    assert values(work.inst, "load", "num_oversized", "num_dropped") == [0, 0, 1]
    assert [int(one) for one in (written.slot, written.request, written.row.request)] == [2, 2, -1]
    assert int(written.past.num_scheduled) == -1
    # the reference starts an empty step
    assert int(work.inst.event) == 400
