"""Overtaking by age: arithmetic of the settings, hand-made queues, and what a run does."""

from __future__ import annotations

import dataclasses
from typing import Any

import numpy as np
import pytest

from blis_jax.cluster.config import ClusterConfig
from blis_jax.metrics.run_summary import NOTHING, overtaking, together
from blis_jax.records.record import RunRecord
from blis_jax.runs.many_runs import simulate
from blis_jax.workload.reference import draw
from sweeps.runs.requests import workload_of
from sweeps.strategies.crossover import crossovers
from sweeps.strategies.file import parse_strategy
from tests.support.tiny_records import run_of
from tests.sweeps.busy import BASE

TIERED = ClusterConfig(scheduler="priority-fcfs", priority_policy="slo-tiered")


def ages(config: ClusterConfig) -> dict[str, float | None]:
    return {f"{one.lower}>{one.higher}": one.age_us for one in crossovers(config)}


def test_gap_over_weight_and_grace() -> None:
    """The record's numbers: gap 9 and weight 1e-5 per µs give 0.9 s, after 0.2 s of grace."""
    found = ages(TIERED)
    assert found["sheddable>critical"] == pytest.approx(1.1e6)
    assert found["standard>critical"] == pytest.approx(0.6e6)
    assert found["sheddable>standard"] == pytest.approx(0.6e6)
    older_by = {
        one.higher: one.older_by_us for one in crossovers(TIERED) if one.lower == "sheddable"
    }
    assert older_by["critical"] == pytest.approx(1.1e6)  # critical requests have no grace period
    assert older_by["standard"] == pytest.approx(0.5e6)


@pytest.mark.parametrize(
    ("changes", "age"),
    [
        ({"slo_age_weight": 0.0}, None),
        ({"slo_base_sheddable": 12.0}, 0.0),
        ({"slo_base_sheddable": 10.0, "slo_age_weight": 0.0}, 0.0),
        ({"priority_policy": "constant"}, 0.0),
        ({"priority_policy": "slo-based"}, 0.0),
        ({"priority_policy": "inverted-slo"}, None),
        ({"priority_policy": "slo-class"}, 0.7e6),
        ({"priority_policy": "load-adaptive"}, 1.1e6),
        ({"scheduler": "fcfs"}, 0.0),
        ({"scheduler": "sjf"}, None),
        ({"scheduler": "reverse-priority"}, None),
    ],
)
def test_other_policies(changes: dict[str, Any], age: float | None) -> None:
    found = ages(TIERED.replace(**changes))["sheddable>critical"]
    assert found == (age if age is None else pytest.approx(age))


def queue(**changes: list[int]) -> RunRecord:
    """Sheddable request 0 and critical request 1 on one instance."""
    columns = {
        "arrival_us": [0, 40],
        "slo_class": [3, 1],
        "instance": [0, 0],
        "queued_at_us": [1, 41],
        "first_sched_delay_us": [100, 90],  # at 100 and 130
    }
    return run_of(columns | changes)


def test_scheduled_while_the_other_waits() -> None:
    found = overtaking(queue(), "sheddable", "critical")
    assert dataclasses.astuple(found) == (1, 100, 40, 0, None)
    back = overtaking(queue(), "critical", "sheddable")
    assert back.num_overtaking == 0


@pytest.mark.parametrize(
    "changes",
    [
        {"instance": [0, 1]},
        {"first_sched_delay_us": [100, 60]},  # both at 100
        {"first_sched_delay_us": [41, 90]},  # just as the other enters
        {"first_sched_delay_us": [-1, 90]},
        {"slo_class": [3, 2]},
    ],
)
def test_not_overtaken(changes: dict[str, list[int]]) -> None:
    record = dataclasses.replace(
        queue(**changes), instances=run_of({"arrival_us": [0]}, step_count=[0, 0]).instances
    )
    found = overtaking(record, "sheddable", "critical")
    assert found.num_overtaking == 0


def test_passed_by_a_younger_one() -> None:
    record = queue(first_sched_delay_us=[200, 60])
    assert dataclasses.astuple(overtaking(record, "sheddable", "critical")) == (
        0,
        None,
        None,
        1,
        100,
    )
    older = queue(arrival_us=[50, 40], first_sched_delay_us=[200, 60])
    assert overtaking(older, "sheddable", "critical") == NOTHING
    for_ever = queue(first_sched_delay_us=[-1, 60])
    assert overtaking(for_ever, "sheddable", "critical").greatest_passed_age_us == 100


def test_several_runs_together() -> None:
    first = overtaking(queue(), "sheddable", "critical")
    second = overtaking(queue(first_sched_delay_us=[80, 90]), "sheddable", "critical")
    assert dataclasses.astuple(together([first, NOTHING, second])) == (2, 80, 40, 0, None)
    assert together([]) == NOTHING


def test_runs_keep_the_arithmetic() -> None:
    """A gap worth 5 ms after 5 ms of grace: overtaking happens, and never before 10 ms."""
    spec = workload_of(parse_strategy(BASE, "plain.yaml"))
    table, _ = draw(spec, 42, 16)
    config = TIERED.replace(max_num_running_reqs=4, slo_base_sheddable=9.95)
    config = config.replace(slo_threshold_sheddable=5_000)
    (by_settings,) = [one for one in crossovers(config) if one.higher == "critical"][:1]
    assert by_settings.age_us == pytest.approx(10_000)
    seen = overtaking(simulate(config, table), "sheddable", "critical")
    assert seen.num_overtaking > 0 and seen.num_passed > 0
    assert seen.least_age_us is not None and seen.least_age_us >= 10_000
    assert seen.least_older_by_us is not None and seen.least_older_by_us >= 10_000
    never = simulate(config.replace(slo_age_weight=0.0), table)
    assert overtaking(never, "sheddable", "critical").num_overtaking == 0


def test_pairs_as_by_a_loop() -> None:
    rng = np.random.default_rng(0)
    count = 700  # more than are looked at in one go
    record = run_of(
        {
            "arrival_us": np.sort(rng.integers(0, 10_000, count)),
            "slo_class": rng.choice([1, 3], count),
            "instance": rng.integers(0, 2, count),
            "queued_at_us": np.arange(count) * 14 + 10_000,
            "first_sched_delay_us": rng.integers(10_000, 15_000, count),
        },
        step_count=[0, 0],
    )
    found = overtaking(record, "sheddable", "critical")
    requests, events = record.requests, []
    scheduled = requests.arrival_us + requests.first_sched_delay_us
    for below in np.flatnonzero(requests.slo_class == 3):
        for above in np.flatnonzero(requests.slo_class == 1):
            is_waiting = requests.queued_at_us[above] < scheduled[below] < scheduled[above]
            if is_waiting and requests.instance[below] == requests.instance[above]:
                events.append((below, requests.arrival_us[above] - requests.arrival_us[below]))
    assert found.num_overtaking == len({below for below, _ in events}) > 200
    least = min(scheduled[below] - requests.arrival_us[below] for below, _ in events)
    assert (found.least_age_us, found.least_older_by_us) == (least, min(by for _, by in events))
