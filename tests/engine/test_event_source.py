"""Event sources from a user's file: a fault by a hand calculation, and a client that cancels."""

import jax.numpy as jnp
import numpy as np
import pytest

from blis_jax import ClusterConfig, ConfigError, Policies, simulate
from blis_jax.core.outcome import Outcome
from blis_jax.metrics.scalars import evaluate, lookup
from blis_jax.policies import Happening, event_source, number, pytree
from blis_jax.policies.registry import find
from blis_jax.records.record import Status
from tests.support.recorded.reference_data import REPO_ROOT
from tests.support.scenes import Prompt, table_of, workload_of

FILE = REPO_ROOT / "examples" / "policies" / "fault.py"
FAULT = find("source", f"{FILE}:slow_instance").with_numbers(from_s=0.0025, until_s=0.0045)
# every step takes 1,000 µs, and a request is in the queue as soon as it arrives
STEADY = ClusterConfig(num_instances=2, alpha_coeffs=(0, 0, 0), beta_coeffs=(1000, 0, 0))

pytestmark = pytest.mark.lenient_promotion  # a user's source may add a Python number to an array


def table(*prompts: Prompt):
    return table_of(workload_of(prompts))


TWO = table(Prompt(0, 10, 5, 1), Prompt(0, 10, 5, 2))  # one for each instance, five steps each


def test_steps_that_begin_while_the_fault_lasts_take_twice_as_long() -> None:
    run = simulate(STEADY, TWO, policies=Policies(source=FAULT))
    assert run.outcome == Outcome.COMPLETED
    # instance 0 begins steps at 0, 1000, 2000, 3000 (slow, as the fault lasts from 2500 to 4500) and 5000
    assert run.requests.left_us.tolist() == [6000, 5000]
    assert run.requests.ttft_us.tolist() == [1000, 1000]
    assert run.figures == {"source.slowed_requests": 0}


def test_the_source_tells_of_completions_up_to_the_last() -> None:
    lasting = FAULT.with_numbers(until_s=1.0, factor=3)
    run = simulate(STEADY, TWO, policies=Policies(source=lasting))
    # steps begin at 0, 1000, 2000, then 3000 and 6000, which take 3000 each
    assert run.requests.left_us.tolist() == [9000, 5000]
    assert run.figures == {"source.slowed_requests": 1}
    assert evaluate(run, ["source.slowed_requests"]) == {"source.slowed_requests": 1}
    usual = simulate(STEADY, TWO)
    assert usual.figures == {} and usual.requests.left_us.tolist() == [5000, 5000]
    assert np.isnan(evaluate(usual, ["source.slowed_requests"])["source.slowed_requests"])


def test_a_fault_after_the_last_request_keeps_no_run_going() -> None:
    late = FAULT.with_numbers(from_s=60, until_s=90)
    run = simulate(STEADY, TWO, policies=Policies(source=late))
    assert run.outcome == Outcome.COMPLETED
    assert run.requests.left_us.tolist() == [5000, 5000]


def test_events_of_one_microsecond_come_in_the_usual_order() -> None:
    alone, late = STEADY.replace(num_instances=1), FAULT.with_numbers(from_s=60, until_s=90)
    tied = table(Prompt(0, 10, 5, 1), Prompt(2000, 10, 5, 2))  # it arrives as a step ends
    with_source = simulate(alone, tied, policies=Policies(source=late))
    usual = simulate(alone, tied)
    assert usual.num_repairs > 0
    assert with_source.requests.left_us.tolist() == usual.requests.left_us.tolist()


def test_a_file_names_the_source_and_its_numbers() -> None:
    numbers = {"source.from_s": 0.0025, "source.until_s": 0.0045}
    config = STEADY.replace(event_source=f"{FILE}:slow_instance", policy_numbers=numbers)
    assert simulate(config, TWO).requests.left_us.tolist() == [6000, 5000]
    assert lookup("source.slowed_requests")[0].direction == "lower"
    with pytest.raises(ConfigError, match="event_source 'fault' is not known; use one of none, or"):
        STEADY.replace(event_source="fault")


@pytree
class Cancelled:
    """Which request is cancelled, and when."""

    request: object = number(0, "", "its number in order of arrival", low=0, is_whole=True)
    at_us: object = number(0, "µs", "when", low=0)


@event_source(
    Cancelled,
    start=lambda params, shape: jnp.int32(0),
    next_time=lambda params, state: jnp.where(state == 0, params.at_us, jnp.inf),
    gives_up=True,
)
def cancelled(params, state, context):
    """The client of one request goes away."""
    return Happening(gives_up=params.request.astype(jnp.int32)), state + 1


ONE_AT_A_TIME = STEADY.replace(num_instances=1, max_num_running_reqs=1)
THREE = table(Prompt(0, 10, 5, 1), Prompt(100, 10, 5, 2), Prompt(200, 10, 2, 3))


@pytest.mark.parametrize(
    ("request_", "at_us", "ends_us"),
    [
        (0, 2500, [None, 8000, 10_000]),  # in the batch: the next begins with the step at 3000
        (1, 2500, [5000, None, 7000]),  # in the queue
        (1, 5000, [5000, None, 7000]),  # ahead of the step of its time
        (2, 20_000, [5000, 10_000, 12_000]),  # after its end
        (7, 2500, [5000, 10_000, 12_000]),  # there is none of this number
    ],
)
def test_a_client_cancels(request_: int, at_us: int, ends_us: list[int | None]) -> None:
    source = cancelled.with_numbers(request=request_, at_us=at_us)
    run = simulate(ONE_AT_A_TIME, THREE, policies=Policies(source=source))
    assert run.outcome == Outcome.COMPLETED and not any(run.invariant_failures.values())
    gone = [end is None for end in ends_us]
    assert (run.requests.status == Status.TIMED_OUT).tolist() == gone
    ends = run.requests.left_us.tolist()
    assert [None if is_gone else end for end, is_gone in zip(ends, gone, strict=True)] == ends_us


def test_a_request_on_its_way_to_the_queue_is_cancelled_too() -> None:
    slow_queue = ONE_AT_A_TIME.replace(alpha_coeffs=(1000, 0, 0))
    source = cancelled.with_numbers(request=1, at_us=500)
    run = simulate(slow_queue, THREE, policies=Policies(source=source))
    assert (run.requests.status == Status.TIMED_OUT).tolist() == [False, True, False]
    assert run.requests.left_us[2] == 8000  # queued at 1200, begins at 6000


def test_what_a_source_cannot_do_is_said() -> None:
    with pytest.raises(ConfigError, match="an event source needs next_time=…"):
        event_source()(lambda params, state, context: (Happening(), state))
    with pytest.raises(
        ConfigError, match="gives up requests, for which there is no rule where requests move"
    ):
        simulate(STEADY.replace(cluster_policy="outages"), TWO, policies=Policies(source=cancelled))
