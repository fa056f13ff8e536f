"""Hand-overs on hand-made rows: the question, the leaving, and joining with the KV."""

import dataclasses

import jax.numpy as jnp

from blis_jax.engine.phases.steps.batch_formation import serve
from blis_jax.engine.phases.steps.step_end import complete
from blis_jax.engine.writing import no_writes
from blis_jax.policies import Policies
from blis_jax.tables.context import Work
from blis_jax.tables.journeys import Journeys
from blis_jax.tables.state import Mode
from blis_jax.tables.writes import JourneyWrite
from tests.engine.phases.made import NEVER, Made, values
from tests.engine.phases.steps.test_batch_formation import forming
from tests.engine.test_movement import from_prefill

ZERO, ONE = jnp.int32(0), jnp.int32(1)
MOVES = Policies(hand_over=from_prefill.with_numbers(delay_us=70))


def handed(made: Made, number: int) -> Work:
    """The work of an instance in a mechanism that hands over."""
    nothing = no_writes(made.ctx, made.state, jnp.int32(number))
    own = nothing.own.only(JourneyWrite)
    return dataclasses.replace(made.work(number), gateway=nothing.gateway, own=own)


def with_journey(made: Made, request: int, **fields: int) -> None:
    journeys = made.state[Journeys]
    journey = journeys.of(jnp.int32(request)).replace(
        **{name: jnp.int32(value) for name, value in fields.items()}
    )
    made.state = made.state.having(
        dataclasses.replace(
            journeys,
            numbers=journeys.numbers.at[request].set(journey.numbers),
            times=journeys.times.at[request].set(journey.times),
        )
    )


def test_the_first_token_of_a_request_that_moves_is_its_last_step_here() -> None:
    made = Made(policies=MOVES)
    made.instance(0, step_index=4, is_idle=0)
    made.lane(mode=int(Mode.FORMING), now=500, budget=64, num_waiting=1, order_limit=9)
    made.resident(0, 2, request=0, queued=100)
    work, written = serve(made.ctx, made.state, handed(made, 0), ZERO)
    assert int(written.row.finish) == 5  # the step being formed
    assert values(work[JourneyWrite].journey, "delay", "due") == [70, NEVER]


def test_a_request_that_was_to_move_elsewhere_and_was_evicted_there_stays_where_it_may() -> None:
    made = Made(policies=MOVES)
    made.instance(1, step_index=4, is_idle=0)
    made.lane(mode=int(Mode.FORMING), now=500, budget=64, num_waiting=1, order_limit=9, active=1)
    made.resident(1, 2, request=0, queued=100)
    with_journey(made, 0, delay=70)  # of the first token that it would have made on instance 0
    work, written = serve(made.ctx, made.state, handed(made, 1), ONE)
    assert int(written.row.finish) == 7
    assert values(work[JourneyWrite].journey, "delay", "due") == [NEVER, NEVER]


def test_a_request_that_moves_leaves_with_its_kv() -> None:
    made = Made(policies=MOVES)
    made.instance(0, step_index=5, num_decode=1, load=1, used_blocks=3)
    made.lane(mode=int(Mode.COMPLETING), now=500, duration=1000, num_to_complete=1, num_records=8)
    made.resident(0, 2, request=0, order=0, finish=5, alloc_offset=35)
    made.past(0, num_scheduled=1, progress=40, token_index=5, token_record=7, scheduled_record=6)
    with_journey(made, 0, delay=70)
    work, written = complete(made.ctx, made.state, handed(made, 0), ZERO)
    assert values(work.inst, "load", "num_decode", "used_blocks") == [0, 0, 0]
    assert values(written.past, "finish_record", "token_record") == [0, 7]
    journey = work[JourneyWrite].journey
    assert values(journey, "came_from", "computed", "due", "delay") == [0, 40, 1570, NEVER]
    assert values(journey, "first_record", "scheduled_record") == [7, 6]


def test_a_request_that_comes_with_its_kv_stores_its_prompt_and_costs_one_token() -> None:
    made = forming(Made(policies=MOVES), budget=3, waiting=1)
    made.resident(1, 2, request=0, queued=100)
    made.past(0, num_scheduled=1, progress=40, token_index=5, token_record=2)
    with_journey(made, 0, came_from=0, computed=40, first_record=2)
    work, written = serve(made.ctx, made.state, handed(made, 1), ONE)
    # the second of three tokens comes with step 5, the last one with step 6
    assert values(written.row, "finish", "alloc_offset") == [6, 35]
    assert values(work.lane, "budget", "prefill_tokens", "decode_tokens") == [2, 0, 1]
    assert values(work.inst, "used_blocks", "num_decode") == [3, 1]
    assert values(work[JourneyWrite].journey, "computed", "first_record") == [0, 2]
