"""Requests that leave a queue, and the calendar where requests move."""

import jax.numpy as jnp

from blis_jax.engine.calendar import EventKind, next_due
from blis_jax.engine.phases.departures.movement import arrived, change_cluster, leave
from blis_jax.engine.writing import all_read, no_writes, write
from blis_jax.policies import Policies
from blis_jax.tables.joined import lane_of
from blis_jax.tables.journeys import Availability, Journeys
from blis_jax.tables.writes import JourneyWrite
from tests.engine.phases.made import NEVER, Made, values
from tests.engine.test_movement import outage

GONE = Policies(cluster=outage.with_numbers(instance=1, from_us=15, delay_us=7))


def made_with_queue() -> Made:
    """Instance 1 is idle; requests 0 and 1 are on their way into its queue at 15 and 18."""
    made = Made(policies=GONE)
    made.lane(next_admit=2, next_route=2)
    made.resident(1, 0, request=0, queued=15)
    made.resident(1, 2, request=1, queued=18)
    made.instance(1, load=2, event=15)
    return made


def test_a_change_of_the_cluster_comes_first_and_tells_the_queue_to_leave() -> None:
    made = made_with_queue()
    due = next_due(made.ctx, made.state, lane_of(made.ctx, made.state))
    assert [int(one) for one in (due.cluster, due.kind, due.event)] == [15, EventKind.CHANGE, 15]
    change = change_cluster(made.ctx, made.state, due.cluster)[Availability]
    assert change.is_up.tolist() == [1, 0]
    assert change.leave_at.tolist() == [NEVER, 15, NEVER]
    assert int(change.leave_delay[1]) == 7


def test_requests_leave_one_by_one_and_are_routed_in_order() -> None:
    made = made_with_queue()
    change = change_cluster(made.ctx, made.state, jnp.int32(15))
    made.state = write(made.ctx, made.state, *all_read(made.state, change))
    made.lane(now=15)
    left, written, (available, moved) = leave(made.ctx, made.state, made.work(1), jnp.int32(1))
    assert values(left.inst, "load", "event") == [1, 18]
    assert [int(one) for one in (written.instance, written.slot, written.request)] == [1, 0, 0]
    assert values(moved.journey, "came_from", "due", "computed") == [1, 22, 0]
    assert int(available.leave_at[1]) == 15  # another one is still to leave


def test_the_last_one_ends_the_leaving_and_the_first_due_is_routed_first() -> None:
    made = made_with_queue()
    change = change_cluster(made.ctx, made.state, jnp.int32(15))
    made.state = write(made.ctx, made.state, *all_read(made.state, change))
    made.resident(1, 0, request=-1)
    made.lane(now=15)
    left, _, (available, _) = leave(made.ctx, made.state, made.work(1), jnp.int32(1))
    assert int(available.leave_at[1]) == NEVER and int(left.inst.event) == NEVER
    journeys = made.state[Journeys]
    for request, due in ((0, 40), (1, 22)):
        number = jnp.int32(request)
        journey = journeys.of(number).replace(due=jnp.asarray(due, journeys.times.dtype))
        journeys = journeys.put(made.ctx.groups, number, journey)
    made.state = made.state.having(journeys)
    request = made.ctx.pools.next_to_move(made.ctx, made.state)
    assert int(request) == 1
    writes = no_writes(made.ctx, made.state, jnp.int32(0))
    writes = arrived(made.ctx, made.state, writes, request)
    assert int(writes[JourneyWrite].journey.due) == NEVER
