"""Rows of given requests, many at a time, are the single runs that they stand for."""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence
from typing import Any

import numpy as np
import pytest

from blis_jax.cluster.config import ClusterConfig
from blis_jax.core.outcome import Outcome
from blis_jax.policies.seeds import FIXED
from blis_jax.records.record import RunRecord
from blis_jax.runs.calls import Call
from blis_jax.runs.driver import Runner
from blis_jax.runs.many_runs import simulate
from blis_jax.runs.options import Options
from blis_jax.runs.runs import Row
from blis_jax.workload.reference import draw
from blis_jax.workload.spec import load_builtin, override


def whole(record: RunRecord) -> RunRecord:
    return record


@pytest.fixture(scope="module")
def rows() -> list[Row]:
    spec = override(load_builtin("mixed"), num_requests=60)
    tables = [draw(spec, seed, 16)[0] for seed in (42, 43)]
    calm = ClusterConfig(num_instances=2, routing_policy="weighted")
    hasty = calm.replace(max_num_scheduled_tokens=700)
    return [Row(config, table, FIXED) for config in (calm, hasty) for table in tables]


@pytest.mark.slow
def test_rows_equal_single_runs_whatever_is_too_small(rows: list[Row]) -> None:
    tight = Options(num_slots=8, num_copies=1)  # both are too small at first
    runner = Runner(tight, num_rows=3)
    many = runner.run(rows, whole)
    for row, record in zip(rows, many, strict=True):
        alone = simulate(row.config, row.table)
        assert record.outcome == alone.outcome == Outcome.COMPLETED
        assert record.num_open_ties == 0
        for field in dataclasses.fields(alone.requests):
            one, other = getattr(record.requests, field.name), getattr(alone.requests, field.name)
            np.testing.assert_array_equal(one, other, err_msg=field.name)


def test_later_rows_use_what_is_compiled(rows: list[Row], monkeypatch: pytest.MonkeyPatch) -> None:
    runner = Runner(Options(num_slots=64), num_rows=3)
    runner.run(rows[:1], whole)
    ((kind, group),) = runner.groups.items()
    shape, sizes = group.shape, []
    stack = Call.arguments

    def noted(call: Call, given: Sequence[Any]) -> Any:
        sizes.append(len(given))
        return stack(call, given)

    monkeypatch.setattr(Call, "arguments", noted)
    assert len(runner.run(rows, whole)) == len(rows)
    assert runner.groups == {kind: group} and group.shape == shape
    assert set(sizes) == {runner.rows_per_call(1)}


@pytest.mark.slow
def test_rows_that_are_expected_find_their_program_compiled(rows: list[Row]) -> None:
    """Wider requests and more instances that come later are held by the first program."""
    spec = override(load_builtin("mixed"), num_requests=300)
    table = draw(spec, 42, 16)[0]
    later = Row(rows[0].config.replace(num_instances=4), table, FIXED)
    runner = Runner(Options(), num_rows=2)
    runner.expect([later])
    runner.run(rows[:2], whole)
    assert len(runner.compiled) == 1 and runner.timing.compile_s > 0
    (record,) = runner.run([later], whole)
    assert len(runner.compiled) == 1
    alone = simulate(later.config, later.table)
    np.testing.assert_array_equal(record.requests.ttft_us, alone.requests.ttft_us)
