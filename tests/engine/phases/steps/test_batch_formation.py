"""Batch formation and completion on hand-made rows: one visit, one completion."""

import dataclasses

import jax.numpy as jnp
import pytest

from blis_jax.core.outcome import Outcome
from blis_jax.core.types import LAST, NO_REQUEST
from blis_jax.engine.calendar import EventSource
from blis_jax.engine.phases.steps.batch_formation import has_candidate, serve
from blis_jax.engine.phases.steps.step_end import complete
from blis_jax.tables.state import Mode
from tests.engine.phases.made import NEVER, Made, config, values

ONE = jnp.int32(1)


def forming(made: Made, *, budget: int = 64, waiting: int = 0, to_visit: int = 0) -> Made:
    """Instance 1 forms its fifth step, at 500 µs; its eighth record will be the next one."""
    made.instance(1, step_index=4, is_idle=0)
    made.lane(
        active=1,
        mode=int(Mode.FORMING),
        now=500,
        budget=budget,
        num_waiting=waiting,
        queue_depth=waiting,
        num_to_visit=to_visit,
        cursor=-1,
        order_limit=9,
        num_records=7,
    )
    return made


@pytest.mark.slow
def test_a_waiting_request_whose_prompt_fits_gets_its_first_token() -> None:
    made = forming(Made(), waiting=1)
    made.resident(1, 2, request=0, queued=100)
    made.instance(1, load=1, next_order=3, used_blocks=1)
    work, written = serve(made.ctx, made.state, made.work(1), ONE)
    assert [int(one) for one in (written.instance, written.slot, written.request)] == [1, 2, 0]
    # 40 prompt tokens in three blocks; three output tokens end with step 5, 6 and 7
    assert values(written.row, "order", "finish", "alloc_offset", "queued") == [3, 7, 35, NEVER]
    names = ("progress", "num_scheduled", "token_index", "token_record", "cached_first")
    assert values(written.past, *names) == [40, 1, 5, 7, 0]
    assert values(work.lane, "budget", "prefill_tokens", "num_waiting") == [24, 40, 0]
    assert values(work.inst, "num_prefill", "num_decode", "next_order") == [0, 1, 4]
    assert values(work.inst, "used_blocks", "misses") == [4, 3]


@pytest.mark.parametrize(("threshold", "chunk"), [(0, 64), (30, 30)])
def test_a_long_prompt_gets_a_chunk(threshold: int, chunk: int) -> None:
    made = forming(Made(config(long_prefill_token_threshold=threshold)), waiting=1)
    made.resident(1, 0, request=2, queued=100)
    work, written = serve(made.ctx, made.state, made.work(1), ONE)
    assert int(written.row.finish) == LAST
    assert values(written.past, "progress", "num_prefill_steps") == [chunk, 1]
    assert values(work.lane, "budget", "prefill_tokens") == [64 - chunk, chunk]
    assert values(work.inst, "num_prefill", "num_decode") == [1, 0]


def test_members_come_before_the_queue_and_finish_their_prompt() -> None:
    made = forming(Made(), waiting=1, to_visit=1)
    made.resident(1, 0, request=2, order=0, alloc_offset=64)
    made.past(2, progress=64, num_scheduled=1, scheduled_index=4, num_prefill_steps=1)
    made.resident(1, 1, request=1, queued=100)
    made.instance(1, load=2, num_prefill=1, next_order=1, used_blocks=4)
    work, written = serve(made.ctx, made.state, made.work(1), ONE)
    assert [int(one) for one in (written.slot, written.request)] == [0, 2]
    assert values(written.past, "progress", "num_scheduled", "num_prefill_steps") == [100, 1, 2]
    assert int(written.row.finish) == 9
    assert values(work.lane, "budget", "num_to_visit", "num_waiting", "cursor") == [28, 0, 1, 0]
    assert values(work.inst, "num_prefill", "num_decode", "used_blocks") == [0, 1, 7]


@pytest.mark.parametrize(("scheduler", "request_"), [("fcfs", 0), ("sjf", 1)])
def test_the_scheduler_says_who_is_next(scheduler: str, request_: int) -> None:
    made = forming(Made(config(scheduler=scheduler)), waiting=2)
    made.resident(1, 0, request=1, queued=200)
    made.resident(1, 1, request=0, queued=100)
    _, written = serve(made.ctx, made.state, made.work(1), ONE)
    assert int(written.request) == request_


@pytest.mark.parametrize(
    ("budget", "members", "to_visit", "goes_on"),
    [(64, 0, 0, True), (0, 0, 0, False), (64, 3, 0, False), (0, 3, 1, True)],
)
def test_formation_ends_with_the_budget_the_batch_limit_or_the_candidates(
    budget: int, members: int, to_visit: int, goes_on: bool
) -> None:
    made = forming(Made(), budget=budget, waiting=1, to_visit=to_visit)
    made.instance(1, num_decode=members)
    assert bool(has_candidate(made.ctx, made.state, made.work(1), ONE)) == goes_on


def test_memory_that_runs_short_is_reported_without_eviction() -> None:
    made = forming(Made(), waiting=1)
    made.resident(1, 2, request=0, queued=100)
    made.instance(1, used_blocks=18)  # of 20
    work, _ = serve(made.ctx, made.state, made.work(1), ONE)
    assert int(work.lane.outcome) == Outcome.KV_CHECK_TRIPPED


def test_the_first_done_member_completes_and_gives_its_blocks_back() -> None:
    made = Made()
    made.instance(1, step_index=7, num_decode=2, load=2, used_blocks=6, next_order=2)
    made.lane(active=1, mode=int(Mode.COMPLETING), num_to_complete=1, num_records=8, now=900)
    made.resident(1, 1, request=0, order=0, finish=7, alloc_offset=35)  # 42 tokens in three blocks
    made.resident(1, 3, request=1, order=1, finish=9, alloc_offset=29)
    made.past(0, num_scheduled=1, progress=40, token_index=5, token_record=5)
    work, written = complete(made.ctx, made.state, made.work(1), ONE)
    assert [int(one) for one in (written.instance, written.slot, written.request)] == [1, 1, 0]
    assert values(written.row, "request", "order", "queued") == [NO_REQUEST, LAST, NEVER]
    assert values(written.past, "finish_record", "token_record") == [8, 5]
    assert values(work.inst, "load", "num_decode", "used_blocks") == [1, 1, 3]
    assert int(work.lane.num_to_complete) == 0


class SecondGivesUp(EventSource):
    """The member in slot 3 leaves in place of the one that is done, in the middle of its output."""

    def ends_early(self, ctx, state, work, instance):
        return (jnp.array(True),)

    def leavers(self, state, slots, ends, may_leave):
        return jnp.where(ends, jnp.arange(len(may_leave)) == 3, may_leave)

    def torn_off(self, ctx, state, one, left, past, ends):
        return left, one.past.replace(lag=jnp.int32(77))


def test_a_hook_says_who_leaves_before_the_end_and_what_becomes_of_it() -> None:
    made = Made()
    made.instance(1, step_index=7, num_decode=2, load=2, used_blocks=6, next_order=2)
    made.lane(active=1, mode=int(Mode.COMPLETING), num_to_complete=1, num_records=8, now=900)
    made.resident(1, 1, request=0, order=0, finish=7, alloc_offset=35)
    made.resident(1, 3, request=1, order=1, finish=9, alloc_offset=29)
    made.past(1, num_scheduled=1, progress=32, token_index=6, token_record=6)
    sources = dataclasses.replace(made.ctx.sources, hooks=(EventSource(), SecondGivesUp()))
    ctx = dataclasses.replace(made.ctx, sources=sources)
    work, written = complete(ctx, made.state, made.work(1), ONE)
    assert [int(one) for one in (written.slot, written.request)] == [3, 1]
    assert values(written.past, "finish_record", "lag") == [0, 77]  # it did not complete
    assert values(work.inst, "load", "num_decode") == [1, 1]
