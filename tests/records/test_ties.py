"""Events of one microsecond: the heap, and hand-made scenes with a twin in which the tie is gone."""

import dataclasses

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from blis_jax.cluster import config
from blis_jax.core.outcome import WHOLE
from blis_jax.records import tied_stretches, ties
from blis_jax.records.ties import NOTHING, EventHeap
from blis_jax.runs import runs, stretches
from blis_jax.runs.many_runs import simulate
from blis_jax.runs.options import Options
from blis_jax.workload.table import NEVER_US
from tests.support.oracles import oracle
from tests.support.scenes import Prompt, differences, flags, run_both, table_of, workload_of

OPTIONS = Options(num_slots=64, log_capacity=4096)


@given(st.lists(st.one_of(st.none(), st.integers(0, 4)), max_size=80))
def test_heap_pops_in_the_oracles_order(actions: list[int | None]):
    """Numbers are pushes at that time, None is a pop; only the times are compared, so layout decides."""
    mine, theirs = EventHeap(), oracle.EventHeap()
    popped: list[int] = []
    expected: list[int] = []
    for serial, time in enumerate(actions):
        if time is not None:
            mine.push((time, NOTHING, serial))
            theirs.push(time, lambda serial=serial: expected.append(serial))
        elif len(mine):
            assert mine.peek() == theirs.next_time_us()
            popped.append(mine.pop()[2])
            theirs.pop()[1]()
    assert popped == expected


def test_heap_is_neither_first_in_first_out_nor_a_stack():
    """Three equal events come out as 0, 2, 1: the last one is moved to the root."""
    heap = EventHeap()
    for serial in range(3):
        heap.push((5, NOTHING, serial))
    assert [heap.pop()[2] for _ in range(3)] == [0, 2, 1]


def check(prompts: list[Prompt], **settings):
    record, expected = run_both(workload_of(prompts), flags(**settings), OPTIONS)
    assert record.outcome in WHOLE
    assert record.num_open_ties == 0
    assert not differences(record, expected)
    return record


def starts(record) -> list[int]:
    steps = record.steps
    every = [
        start + position * duration
        for start, duration, count in zip(
            steps.start_us, steps.duration_us, steps.num_steps, strict=True
        )
        for position in range(count)
    ]
    return sorted(every)


def test_two_requests_queued_at_once_start_two_chains_of_steps():
    """A queue event on an idle instance leaves it marked idle, so the next one starts a step as well."""
    tied = starts(check([Prompt(10, 5, 3), Prompt(10, 5, 3)]))
    twin = starts(check([Prompt(10, 5, 3), Prompt(11, 5, 3)]))
    assert tied.count(10) == 2
    assert len(set(twin)) == len(twin)


def test_queue_event_at_a_running_steps_end():
    """The second request enters at the tick of the first one's second step; the heap decides who is first."""
    for later in (999, 1000, 1001):
        record = check([Prompt(0, 5, 4), Prompt(later, 5, 4)], alpha_coeffs=[0.0, 0.0, 0.0])
        assert record.requests.sched_delay_us[0] == 0
        assert record.requests.sched_delay_us[1] <= 1000


def test_queue_event_scheduled_long_before_the_step():
    """The queue event is older than the step event of its tick, yet comes out later; the twin is 1 µs late."""
    delays = []
    for shift in (0, 1):
        prompts = [Prompt(0, 5, 9), Prompt(1000 + shift, 5, 4), Prompt(1500, 5, 4)]
        record = check(prompts, alpha_coeffs=[3000.0, 0.0, 0.0])
        delays.append(int(record.requests.sched_delay_us[1]))
    assert delays == [4000, 3999]


def test_order_among_requests_queued_at_once():
    """Longer prompts arrived earlier, so that all are queued in one tick: fcfs takes the heap's order."""
    prompts = [Prompt(0, 7, 2), Prompt(100, 6, 2), Prompt(200, 5, 2), Prompt(300, 4, 2)]
    tied = check(prompts, alpha_coeffs=[100.0, 100.0, 0.0], max_num_running_reqs=1)
    assert len(set(tied.requests.queued_at_us.tolist())) == 1
    later = [Prompt(each.arrival_us + i, each.input_len, 2) for i, each in enumerate(prompts)]
    twin = check(later, alpha_coeffs=[100.0, 100.0, 0.0], max_num_running_reqs=1)
    order = np.argsort(twin.requests.scheduled_step_idx, kind="stable")
    assert order.tolist() == [0, 1, 2, 3]


def test_equal_arrivals_are_broken_by_the_text_of_the_id():
    """`request_10` sorts before `request_2`; with distinct arrivals it does not."""
    prompts = [Prompt(0, 50, 30), *(Prompt(5, 4, 1) for _ in range(11))]
    settings = {"scheduler": "priority-fcfs", "max_num_running_reqs": 1}
    tied = check(prompts, **settings).requests.scheduled_step_idx
    assert tied[10] < tied[2]
    later = [Prompt(each.arrival_us + i, each.input_len, 1) for i, each in enumerate(prompts)]
    twin = check([prompts[0], *later[1:]], **settings).requests.scheduled_step_idx
    assert twin[10] > twin[2]


def test_unresolved_ties_are_reported():
    cluster = config.from_flags(flags())
    for times, is_tied in (((10, 10), True), ((10, 11), False)):
        table = table_of(workload_of([Prompt(time, 5, 3) for time in times]))
        record = simulate(cluster, table, Options(num_slots=64, resolve_ties=False))
        assert (record.num_open_ties > 0) == is_tied


@pytest.mark.slow
@settings(max_examples=12)
@given(st.lists(st.tuples(st.integers(0, 12), st.integers(1, 6)), min_size=24, max_size=24))
def test_replays_around_ties_and_from_checkpoints_are_that_of_every_step(
    draws: list[tuple[int, int]],
):
    """Times are multiples of half a step, so that requests are queued together and at steps' ends."""
    prompts = [Prompt(500 * time, 5, outputs) for time, outputs in sorted(draws)]
    cluster = config.from_flags(flags(num_instances=2, alpha_coeffs=[0.0, 0.0, 0.0]))
    table = table_of(workload_of(prompts))
    found = simulate(cluster, table, OPTIONS)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(tied_stretches, "tied_us", lambda history: np.array([NEVER_US - 2]))
        patch.setattr(tied_stretches, "quiet_rows", lambda history: np.zeros(0, np.int64))
        patch.setattr(ties._Replay, "_skipped", lambda replay: replay.next_step)
        whole = simulate(cluster, table, OPTIONS)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(runs, "LONG_TABLE", 1)
        patch.setattr(stretches, "STRETCH", 1)
        set_back = simulate(cluster, table, OPTIONS)
    for other in (whole, set_back):
        assert found.num_open_ties == other.num_open_ties
        assert found.num_iterations == other.num_iterations
        for part in ("requests", "steps"):
            mine, theirs = getattr(found, part), getattr(other, part)
            for field in dataclasses.fields(mine):
                name = field.name
                np.testing.assert_array_equal(getattr(mine, name), getattr(theirs, name))


@pytest.mark.slow
@settings(max_examples=8)
@given(st.lists(st.tuples(st.integers(0, 40), st.integers(1, 6)), min_size=24, max_size=24))
def test_long_runs_under_pressure_are_those_of_the_reference(draws: list[tuple[int, int]]):
    """Set back from stretch to stretch, with preemptions in the log; the horizon ends a livelock."""
    prompts = [Prompt(500 * time, 40, 16 * outputs) for time, outputs in sorted(draws)]
    cluster = {"num_instances": 2, "total_kv_blocks": 30, "horizon": 300_000}
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(runs, "LONG_TABLE", 1)
        patch.setattr(stretches, "STRETCH", 2)
        check(prompts, alpha_coeffs=[0.0, 0.0, 0.0], **cluster)
