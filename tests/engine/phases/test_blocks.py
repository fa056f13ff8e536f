"""Memory at block level on hand-made rows: what an allocation sets going, and what follows a failure."""

import jax.numpy as jnp

from blis_jax.core.types import LAST
from blis_jax.engine.phases.steps.batch_formation import serve
from blis_jax.tables.blocks import Do
from tests.engine.phases.made import Made, values
from tests.engine.phases.steps.test_batch_formation import forming

ONE = jnp.int32(1)


def test_a_prompt_takes_blocks_from_the_free_list() -> None:
    made = forming(Made(at_block_level=True), waiting=1)
    made.resident(1, 2, request=0, queued=100)
    work, written = serve(made.ctx, made.state, made.work(1), ONE)
    assert values(work.task, "do", "slot", "request", "start", "tokens") == [Do.TAKE, 2, 0, 0, 40]
    assert values(work.task, "takes", "stored", "hits", "in_prefill") == [3, 0, 0, 1]
    assert values(written.row, "finish", "alloc_offset") == [7, 35]
    assert int(work.inst.used_blocks) == 0  # the blocks move in the operation that follows


def test_a_prompt_that_finds_no_room_waits() -> None:
    made = forming(Made(at_block_level=True), waiting=1)
    made.resident(1, 2, request=0, queued=100)
    made.instance(1, used_blocks=18, load=1)
    failed, written = serve(made.ctx, made.state, made.work(1), ONE)
    assert int(failed.task.do) == Do.FAILED
    assert values(written.row, "order", "queued") == [LAST, 100]
    assert values(failed.lane, "budget", "num_waiting") == [64, 1]
    work, _ = made.ctx.memory.after_failure(made.ctx, made.state, failed, ONE)
    assert values(work.lane, "budget", "num_waiting") == [0, 1]  # nobody is admitted any more
    assert values(work.task, "do", "has_preempted") == [Do.NOTHING, 0]


def test_a_member_that_needs_a_block_evicts_the_batch_s_tail() -> None:
    """Request 0 holds 48 tokens in full blocks and needs another one; request 1, behind it, is evicted."""
    made = forming(Made(at_block_level=True), budget=63, to_visit=1)
    made.instance(1, used_blocks=20, load=2, num_decode=2, next_order=2)
    made.lane(num_decode=2, decode_tokens=1)
    made.resident(1, 0, request=0, order=0, finish=20, alloc_offset=44)
    made.computed(1, 0, 36)
    made.resident(1, 1, request=1, order=1, finish=9, alloc_offset=29)
    for request in (0, 1):
        made.past(request, num_scheduled=1, token_index=3, token_record=2, num_new=1)
    failed, _ = serve(made.ctx, made.state, made.work(1), ONE)
    assert values(failed.task, "do", "slot", "takes") == [Do.FAILED, 0, 1]
    work, written = made.ctx.memory.after_failure(made.ctx, made.state, failed, ONE)
    assert [int(one) for one in (written.slot, written.request)] == [1, 1]
    assert values(written.row, "order", "finish") == [LAST, LAST]
    assert int(written.row.queued) <= 0  # in front of everybody
    assert values(work.task, "do", "freed_slot", "has_preempted") == [Do.RELEASE, 1, 1]
    assert int(work.task.after_release) == Do.ATTEMPT  # then the member tries again
    assert values(work.inst, "num_decode") == [1]
    assert values(work.lane, "num_waiting") == [1]
    assert values(written.memory.eviction, "request", "record", "index") == [1, 7, 5]
