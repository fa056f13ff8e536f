"""Stretches around events of one microsecond, on histories written out by hand."""

import numpy as np
import pytest

from blis_jax.records.tied_stretches import InstanceHistory, Stretch, quiet_rows, stretches, tied_us

# the first row holds ten steps of 100 µs from 1,000 on; request 1 enters at 2,000, as a step follows on another
ROWS = {
    "requests": [0, 1, 2],
    "routed_us": [900, 1_500, 5_000],
    "queued_us": [1_000, 2_000, 5_050],
    "start_us": [1_000, 2_000, 2_100, 5_050],
    "duration_us": [100, 100, 100, 100],
    "num_steps": [10, 1, 4, 2],
    "preempted": [0, 0, 0, 0],
    "scheduled": [1, 1, 0, 1],
    "completed": [0, 0, 2, 1],
    "continues": [1, 1, 0, 0],
}


def history(**changes: list[int]) -> InstanceHistory:
    columns = {name: np.array(values) for name, values in (ROWS | changes).items()}
    columns["continues"] = columns["continues"].astype(bool)
    return InstanceHistory(**columns)


def only(history: InstanceHistory) -> Stretch:
    (stretch,) = stretches(history)
    return stretch


def test_a_step_that_an_entry_starts_is_no_tie():
    """Requests 0 and 2 enter an idle instance, and their entry starts the step."""
    assert tied_us(history()).tolist() == [2_000]


@pytest.mark.parametrize(("queued", "is_tied"), [(1_899, False), (1_900, True), (1_950, False)])
def test_an_entry_at_one_of_several_equal_steps_is_a_tie(queued: int, is_tied: bool):
    assert tied_us(history(queued_us=[1_000, queued, 5_050])).tolist() == [queued] * is_tied


def test_requests_queued_together_are_a_tie():
    assert tied_us(history(queued_us=[1_000, 3_333, 3_333])).tolist() == [3_333]


def test_a_run_without_ties_has_no_stretch():
    assert not list(stretches(history(queued_us=[1_000, 1_999, 5_050])))


def test_ties_from_a_time_on_are_left_for_later():
    assert not list(stretches(history(), before_us=2_000))
    assert list(stretches(history(), before_us=2_001))


def test_ties_before_a_time_are_left_out():
    assert not list(stretches(history(), from_us=2_001))
    assert list(stretches(history(), from_us=2_000))


def test_a_stretch_begins_at_a_quiet_step():
    """Request 1 is routed during the first row, so none of its steps from 1,500 on is quiet."""
    stretch = only(history())
    assert not stretch.is_quiet_first
    assert stretch.step_start_us.tolist() == [*range(1_000, 2_001, 100)]
    late = only(history(routed_us=[900, 1_950, 5_000]))
    assert late.is_quiet_first
    assert late.step_start_us.tolist() == [1_900, 2_000]
    assert late.requests.tolist() == [1]


def test_the_last_of_equal_steps_has_what_the_row_completed():
    times = {"queued_us": [1_000, 2_000, 2_400], "routed_us": [900, 1_500, 2_350]}
    first, second = stretches(history(**times))
    assert (first.tied_us.tolist(), second.tied_us.tolist()) == ([2_000], [2_400])
    assert second.is_quiet_first
    assert second.step_start_us.tolist() == [2_100, 2_200, 2_300, 2_400]
    assert second.step_completed.tolist() == [0, 0, 0, 2]
    assert second.step_continues.tolist() == [True, True, True, False]


def chains(start_us: list[int], completed: list[int], continues: list[int]) -> InstanceHistory:
    """Four steps of 100 µs on an instance with two chains of step events."""
    return history(
        start_us=start_us,
        num_steps=[1, 1, 1, 1],
        duration_us=[100, 100, 100, 100],
        completed=completed,
        continues=continues,
        routed_us=[900, 901, 902],
        queued_us=[1_000, 1_000, 1_000],
    )


def test_no_step_is_quiet_while_another_chain_goes_on():
    """The second chain's step of 50 µs is still to follow when the first chain's next step starts."""
    assert not len(quiet_rows(chains([1_000, 1_050, 1_100, 1_150], [0, 0, 0, 0], [1, 1, 1, 1])))


def test_a_step_is_quiet_again_when_one_chain_has_ended():
    rows = quiet_rows(chains([1_000, 1_050, 1_100, 1_200], [0, 1, 0, 0], [1, 0, 1, 1]))
    assert rows.tolist() == [3]
