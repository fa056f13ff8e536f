"""The gateway's phases on hand-made rows: admission, routing, a place in a slot."""

import jax.numpy as jnp
import pytest

from blis_jax.core.outcome import Outcome
from blis_jax.core.types import NO_REQUEST
from blis_jax.engine.calendar import EventKind, next_due
from blis_jax.engine.phases.gateway import decide
from blis_jax.tables.joined import lane_of
from tests.engine.phases.made import NEVER, Made, config, values


def test_a_request_is_admitted_and_routed_to_a_free_slot() -> None:
    made = Made()
    made.lane(next_admit=1, next_route=1)
    made.resident(0, 0, request=0, order=0)
    made.instance(0, load=1, is_idle=0, num_prefill=1)
    done = decide(made.ctx, made.state, jnp.int32(10), jnp.int32(10))
    assert values(done.lane, "next_admit", "next_route", "num_rejected") == [2, 2, 0]
    assert int(done.lane.last_event) == 10
    # round-robin starts with instance 0, whose slot 0 is taken
    assert values(done.where, "routed", "instance", "slot") == [1, 0, 1]
    assert int(done.where.turned_away) == made.ctx.shape.num_requests
    assert values(done.slot, "request", "slo_class", "input_len", "oversized") == [1, 2, 32, 0]
    assert values(done.slot, "queued", "arrival") == [15, 10]
    assert values(done.inst, "load", "num_oversized") == [2, 0]
    assert int(done.inst.event) == NEVER  # it is in a step, which decides what comes next


def test_an_idle_instance_wakes_when_the_request_is_queued() -> None:
    made = Made()
    done = decide(made.ctx, made.state, jnp.int32(0), jnp.int32(0))
    assert values(done.inst, "load", "event") == [1, 5]


def test_a_prompt_beyond_the_memory_is_marked_to_be_dropped() -> None:
    made = Made(config(total_kv_blocks=2))
    done = decide(made.ctx, made.state, jnp.int32(0), jnp.int32(0))
    assert int(done.slot.oversized) == 1
    assert values(done.inst, "num_oversized", "event") == [1, 5]


def test_a_rejected_request_is_turned_away_and_never_routed() -> None:
    made = Made(config(admission_policy="reject-all"))
    done = decide(made.ctx, made.state, jnp.int32(0), jnp.int32(0))
    assert values(done.lane, "next_admit", "next_route", "num_rejected") == [1, 1, 1]
    assert values(done.where, "turned_away", "routed") == [0, made.ctx.shape.num_requests]


def test_a_full_instance_is_reported() -> None:
    made = Made()
    for slot in range(4):
        made.resident(0, slot, request=0, order=slot)
    done = decide(made.ctx, made.state, jnp.int32(0), jnp.int32(0))
    assert int(done.lane.outcome) == Outcome.SLOTS_FULL


@pytest.mark.parametrize(("event", "is_cluster"), [(11, True), (10, True), (9, False)])
def test_the_calendar_puts_the_cluster_before_instances_of_the_same_time(
    event: int, is_cluster: bool
) -> None:
    made = Made()
    made.lane(next_admit=1, next_route=1)
    made.instance(1, event=event)
    due = next_due(made.ctx, made.state, lane_of(made.ctx, made.state))
    assert [int(one) for one in (due.cluster, due.kind, due.event, due.instance)] == [
        10,
        EventKind.GATEWAY,
        event,
        1,
    ]
    assert bool(due.cluster <= due.event) == is_cluster


def test_the_calendar_is_empty_after_the_last_request() -> None:
    made = Made()
    made.lane(next_admit=4, next_route=4)
    due = next_due(made.ctx, made.state, lane_of(made.ctx, made.state))
    assert [int(one) for one in (*due.of(EventKind.GATEWAY).times, due.cluster, due.event)] == [
        NEVER
    ] * 4


def test_a_free_slot_is_no_request() -> None:
    assert (Made().state.slot.numbers[0] == NO_REQUEST).all()
