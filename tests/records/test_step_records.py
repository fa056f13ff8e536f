"""Steps and inter-token latencies read out of compressed records."""

import dataclasses

import numpy as np
from hypothesis import given
from hypothesis import strategies as st

from blis_jax.metrics.distributions import itl_sample
from blis_jax.records import step_records
from blis_jax.records.record import PreemptionRecords, Status
from tests.support.tiny_records import changed, pressed_run, run_of, whole_run


def test_latencies_of_a_running_request_are_taken_off():
    requests = {
        "arrival_us": [0, 0, 0],
        "instance": [0, 0, 1],
        "status": [Status.COMPLETED, Status.RUNNING, Status.RUNNING],
        "token_step_idx": [1, 3, 2],
        "num_itl": [6, 4, 1],
    }
    steps = {
        "instance": [0, 0, 1, 0],
        "duration_us": [7, 10, 9, 20],
        "num_steps": [1, 5, 3, 1],
        "last_index": [1, 6, 3, 7],
        "num_itl": [0, 9, 1, 1],
    }
    record = run_of(requests, steps, output_time_us=[100, 100])
    sample = itl_sample(record)
    assert sample.count == 6
    assert sample.total == 6 * 110
    finished = changed(record, "requests", "status", Status.COMPLETED)
    assert itl_sample(finished).count == 11
    assert itl_sample(finished, instance=1).count == 1


def test_latencies_of_an_evicted_life_are_taken_off():
    record = pressed_run()
    assert step_records.completed_itl_counts(record).tolist() == [0, 2, 3, 0, 0]
    finished = changed(record, "requests", "status", Status.COMPLETED)
    assert step_records.completed_itl_counts(finished).tolist() == [0, 3, 3, 0, 2]
    waiting = changed(record, "requests", "status", Status.WAITING, at=1)
    assert step_records.completed_itl_counts(waiting).tolist() == [0, 2, 3, 0, 2]


@given(st.data())
def test_taking_off_evicted_lives_equals_counting_every_step(data: st.DataObject):
    sizes = data.draw(st.lists(st.integers(1, 4), min_size=2, max_size=8))
    last = np.cumsum(sizes)
    first = last - np.array(sizes) + 1
    rows = data.draw(st.lists(st.integers(1, len(sizes) - 1), max_size=4))
    lengths = [data.draw(st.integers(0, int(first[row]) - 1)) for row in rows]
    per_step = np.zeros(last[-1] + 1, np.int64)
    for row, length in zip(rows, lengths, strict=True):
        per_step[first[row] - length : first[row]] += 1
    steps = {
        "instance": np.zeros(len(sizes)),
        "num_steps": sizes,
        "last_index": last,
        "num_itl": np.add.reduceat(per_step, first) + 5,
    }
    record = run_of({"instance": np.zeros(3), "status": Status.WAITING}, steps)
    owner = np.arange(len(rows)) % 3
    evictions = (owner, owner * 0, owner * 0, np.array(rows, int), np.array(lengths, int))
    record = dataclasses.replace(record, preemptions=PreemptionRecords(*evictions))
    np.testing.assert_array_equal(step_records.completed_itl_counts(record), 5)


@given(st.data())
def test_taking_off_equals_counting_every_step(data: st.DataObject):
    sizes = data.draw(st.lists(st.integers(1, 6), min_size=1, max_size=8))
    tokens = data.draw(st.lists(st.integers(0, sum(sizes)), min_size=1, max_size=5))
    last = np.cumsum(sizes)
    per_step = np.array([sum(step > token for token in tokens) for step in range(1, last[-1] + 1)])
    open_itl = np.add.reduceat(per_step, last - np.array(sizes))
    requests = {
        "instance": np.zeros(len(tokens)),
        "status": Status.RUNNING,
        "token_step_idx": tokens,
        "num_itl": [last[-1] - token for token in tokens],
    }
    steps = {
        "instance": np.zeros(len(sizes)),
        "num_steps": sizes,
        "last_index": last,
        "num_itl": open_itl + 5,
    }
    record = run_of(requests, steps)
    np.testing.assert_array_equal(step_records.completed_itl_counts(record), 5)


def test_blocks_inside_a_record_are_worked_back():
    requests = {
        "input_len": [15, 32, 16],
        "instance": [0, 0, 0],
        "token_step_idx": [1, 1, 1],
        "finished_step_idx": [0, 6, 0],
        "cached_tokens_first_sched": [0, 32, 0],
    }
    steps = {
        "instance": [0, 0],
        "start_us": [0, 50],
        "duration_us": [50, 10],
        "num_steps": [1, 5],
        "last_index": [1, 6],
        "used_blocks": [9, 12],
    }
    expanded = step_records.expand_steps(run_of(requests, steps), 16)
    # Step 2 brings a block each to the second (none held) and third; step 3 one to the first.
    assert expanded.step_used_blocks.tolist() == [9, 11, 12, 12, 12, 12]
    assert expanded.step_start_us.tolist() == [0, 50, 60, 70, 80, 90]
    assert whole_expansion() == [1, 2, 2, 1]


def whole_expansion() -> list[int]:
    return step_records.expand_steps(whole_run(), 16).step_used_blocks.tolist()
