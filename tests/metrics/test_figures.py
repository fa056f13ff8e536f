"""Figures of a run against brute force and scenes worked out by hand."""

import dataclasses

import numpy as np
import pytest

from blis_jax.metrics.figures import hol_blocking_events, jain_fairness, priority_inversions
from blis_jax.records.record import RunRecord, Status
from tests.support.tiny_records import changed, run_of


def brute_inversions(record: RunRecord) -> int:
    requests = record.requests
    rows = sorted(range(len(requests.arrival_us)), key=lambda row: requests.arrival_us[row])
    return sum(
        requests.e2e_us[first] > 2 * requests.e2e_us[second] >= 0
        for place, first in enumerate(rows)
        for second in rows[place + 1 :]
        if requests.instance[first] == requests.instance[second]
        and requests.slo_class[first] == requests.slo_class[second]
    )


@pytest.mark.parametrize("size", [1, 2, 3, 17, 200])
def test_priority_inversions_equal_all_pairs(size: int):
    random = np.random.default_rng(size)
    record = run_of(
        {
            "arrival_us": np.sort(random.integers(0, size, size)),
            "instance": random.integers(0, 3, size),
            "slo_class": random.integers(0, 3, size),
            "e2e_us": random.integers(-1, 100, size),
        }
    )
    record = dataclasses.replace(record, has_priorities=True)
    assert priority_inversions(record) == brute_inversions(record)


def test_priority_inversion_and_its_twins():
    late_overtakes = run_of({"arrival_us": [0, 9], "instance": [0, 0], "e2e_us": [201, 100]})
    assert priority_inversions(late_overtakes) == 0
    late_overtakes = dataclasses.replace(late_overtakes, has_priorities=True)
    assert priority_inversions(late_overtakes) == 1
    for part, value in (("e2e_us", [200, 100]), ("instance", [0, 1]), ("slo_class", [0, 1])):
        twin = changed(late_overtakes, "requests", part, value)
        assert priority_inversions(twin) == 0, part


def test_head_of_line_blocking_and_its_twins():
    blocked = run_of({"arrival_us": [0]}, waiting_sum=[90, 0, 0], step_count=[10, 10, 0])
    assert hol_blocking_events(blocked) == 1
    even = changed(blocked, "instances", "waiting_sum", [90, 90, 0])
    assert hol_blocking_events(even) == 0
    alone = run_of({"arrival_us": [0]}, waiting_sum=[90], step_count=[10])
    assert hol_blocking_events(alone) == 0


def test_jain_fairness_over_tenants():
    record = run_of({"tenant": [0, 1], "output_len": [5, 5], "status": Status.COMPLETED})
    assert jain_fairness(record) == 1.0
    starved = changed(record, "requests", "status", Status.WAITING, at=1)
    assert jain_fairness(starved) == 0.5
    assert jain_fairness(changed(record, "requests", "status", Status.WAITING)) == 1.0
