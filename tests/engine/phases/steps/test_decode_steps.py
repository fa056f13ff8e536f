"""Steps of a batch that only decodes, each with a time of its own, on hand-made rows."""

from functools import partial

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from blis_jax.cluster.config import ClusterConfig
from blis_jax.core.exact import runtime_infinity
from blis_jax.core.outcome import Outcome
from blis_jax.core.views import Members, StepBatch
from blis_jax.engine.mechanism import params
from blis_jax.engine.phases.steps.decode_steps import _equal_ahead
from blis_jax.engine.phases.steps.step_end import finish_step
from blis_jax.engine.phases.steps.step_start import begin
from blis_jax.latency.registry import find
from blis_jax.latency.step_law import TERMS
from blis_jax.tables.writes import no_slot
from tests.engine.phases.made import NEVER, Made, config, values

ONE = jnp.int32(1)


def decoding(per_token: float = 0.3) -> Made:
    """Instance 1 has done 4 steps; requests 0 and 1 have 41 and 33 tokens, and end with steps 9 and 12."""
    law = {"latency_model": "blackbox-context", "beta_coeffs": (1000.0, 1.0, 0.0, per_token)}
    made = Made(config(**law))
    made.resident(1, 0, request=0, order=0, finish=9, alloc_offset=37)
    made.resident(1, 1, request=1, order=1, finish=12, alloc_offset=29)
    made.past(0, progress=40, token_index=3, num_new=1)
    made.past(1, progress=32, token_index=3, num_new=1)
    made.instance(
        1, load=2, num_decode=2, next_order=2, step_index=4, used_blocks=6, is_idle=0, chains=(500,)
    )
    made.lane(now=500)
    return made


def durations(per_token: float, steps: int) -> list[int]:
    """Both requests have one token of context more in each step."""
    return [int(1000 + per_token * (41 + 33 + 2 * step)) for step in range(steps)]


@pytest.mark.parametrize(
    ("until", "steps"), [(NEVER, 5), (500 + 3 * 1022, 3), (500 + 3 * 1022 + 3, 4), (501, 1)]
)
def test_steps_are_made_until_a_member_completes_or_something_else_is_due(
    until: int, steps: int
) -> None:
    made = decoding()
    work, stretch = begin(made.ctx, made.state, made.work(1), ONE, jnp.int32(until))
    assert stretch is not None
    expected = durations(0.3, steps)
    assert np.repeat(stretch.durations, stretch.num_steps).tolist() == expected
    assert int(stretch.num_runs) == len(set(expected))
    assert values(work.lane, "num_steps", "num_to_visit") == [steps, 0]


def test_each_run_of_equal_steps_has_a_record() -> None:
    made = decoding()
    work, stretch = begin(made.ctx, made.state, made.work(1), ONE, jnp.int32(NEVER))
    done = finish_step(made.ctx, made.state, work, ONE, no_slot(made.ctx), stretch)
    taken = durations(0.3, 5)
    assert taken == [1022, 1022, 1023, 1024, 1024]
    earlier = done.earlier
    assert earlier is not None
    assert int(earlier.count) == 2
    numbers, times = (np.asarray(each[:2]) for each in (earlier.numbers, earlier.times))
    columns = type(done.record).columns
    assert numbers[:, columns.NUM_STEPS].tolist() == [2, 1]
    assert numbers[:, columns.LAST_INDEX].tolist() == [6, 7]
    assert times.tolist() == [[500, 1022, 2044], [2544, 1023, 3067]]
    assert values(done.record, "num_steps", "last_index", "num_completed") == [2, 9, 1]
    assert values(done.record, "start", "duration", "total_duration") == [3567, 1024, 5115]
    assert values(done.work.lane, "num_records", "now") == [3, 4591]
    # 41 and 33 tokens are 3 blocks each; the first request has 45 after four steps, so nobody takes a block
    assert values(done.record, "used_blocks", "sum_used_blocks") == [6, 12]


def test_a_step_beyond_the_clock_ends_its_stretch() -> None:
    made = decoding(per_token=1e9)
    work, stretch = begin(made.ctx, made.state, made.work(1), ONE, jnp.int32(NEVER))
    assert values(work.lane, "num_steps") == [1]
    done = finish_step(made.ctx, made.state, work, ONE, no_slot(made.ctx), stretch)
    assert int(done.work.lane.outcome) == Outcome.CLOCK_OVERFLOW


MODELS = {
    "trained-physics": ClusterConfig(
        model="mistralai/mixtral-8x7b-v0.1", latency_model="trained-physics", tp=2
    ),
    "blackbox-context": ClusterConfig(
        latency_model="blackbox-context", beta_coeffs=(6910.42, 17.67, 2.84, 0.0371)
    ),
    "step-law": ClusterConfig(
        latency_model="step-law",
        beta_coeffs=tuple(np.random.default_rng(1).uniform(0.001, 0.1, len(TERMS))),
    ),
}


@pytest.mark.parametrize("name", MODELS)
@pytest.mark.parametrize("count", [1, 7, 60])
def test_the_law_of_later_steps_is_that_of_the_batch_as_it_is_then(name: str, count: int) -> None:
    law, beta = find(name), params(MODELS[name]).cluster.beta[0]
    assert law.decode_steps is not None
    is_it, nothing = jnp.ones((count,), bool), jnp.zeros((count,), jnp.int32)
    first = np.random.default_rng(count).integers(1, 20_000, count)

    def batch(later: int) -> StepBatch:
        before = jnp.asarray(first + later, jnp.int32)
        members = Members(~is_it, nothing + 1, before, before + 1, is_it, is_it, nothing, nothing)
        return StepBatch(jnp.int32(0), jnp.int32(count), members)

    def in_engine(function):
        def traced(infinity, *arguments):
            with runtime_infinity(infinity):
                return function(*arguments)

        return partial(jax.jit(traced), jnp.float64(jnp.inf))

    after = in_engine(lambda beta, batch, steps: law.decode_steps(beta, batch)(steps))
    steps = np.array([0, 1, 2, 5, 100, 101, 1000, 2047], np.int32)
    one_by_one = [float(in_engine(law.step_time)(beta, batch(int(each)))) for each in steps]
    assert np.asarray(after(beta, batch(0), steps)).tolist() == one_by_one
    assert [float(after(beta, batch(0), each)) for each in steps] == one_by_one
    assert one_by_one == sorted(one_by_one)


@pytest.mark.parametrize("slope", [0.0, 1e-4, 0.013, 0.5, 1.0, 7.3])
@pytest.mark.parametrize("bend", [3, 40])
def test_steps_of_one_duration_are_found_together(slope: float, bend: int) -> None:
    """Against going one by one, under a line that bends and rounds."""

    def raw_of(count):
        count = jnp.asarray(count, jnp.float64)
        return 1000.3 + slope * (jnp.minimum(count, bend) + 3.0 * jnp.maximum(count - bend, 0.0))

    whole = np.asarray(raw_of(np.arange(200))).astype(int).tolist()
    count, found = 0, []
    while count < 150:
        most = min(97, 150 - count)
        steps, last = _equal_ahead(
            raw_of, jnp.int32(count), raw_of(jnp.int32(count)), jnp.int32(most)
        )
        assert 1 <= steps <= most
        assert float(last) == float(raw_of(count + int(steps) - 1))
        found += [whole[count]] * int(steps)
        count += int(steps)
    assert found == whole[:150]
