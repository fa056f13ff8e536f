"""Rows of a call in lanes on several devices: the same bits as on one, and as by themselves."""

from __future__ import annotations

import hashlib
import json
import os
import subprocess
import sys
from dataclasses import replace
from typing import Any

import jax
import pytest

from blis_jax import over_seeds
from blis_jax.cluster.config import ClusterConfig
from blis_jax.metrics.compiled import figures_of
from blis_jax.records.record import RunRecord
from blis_jax.runs.calls import Call, Group
from blis_jax.runs.driver import Runner
from blis_jax.runs.many_runs import drawn_runs
from blis_jax.runs.options import Options, num_devices
from blis_jax.runs.programs import compiled, rows_of
from blis_jax.runs.runs import Point, Row
from blis_jax.workload.reference import draw
from blis_jax.workload.spec import WorkloadSpec, load_builtin, override

CONFIG = ClusterConfig(num_instances=2, routing_policy="weighted")
LANES = Options(resolve_ties=False, form="lanes")
SEEDS = range(7)  # one more would be equally many for four devices
FLAG = "--xla_force_host_platform_device_count={}"


def few() -> WorkloadSpec:
    """Requests of some 40 ms."""
    return override(load_builtin("mixed"), num_requests=0, horizon=40_000)


def text_of(options: Options, num_rows: int) -> str:
    """Return the text of the program of so many rows."""
    runs = drawn_runs([Point(CONFIG, few())], range(num_rows), options)
    call: Any = Call(Group(runs[0]), runs, len(runs))
    with jax.enable_x64(True):
        given = call.arguments(call.given())
        return str(compiled(rows_of, *call.statics).jitted.lower(*given).as_text())


def digest(records: Any) -> str:
    """Return a hash of all that is kept of runs."""
    leaves = jax.tree.leaves([
        [vars(record.requests), vars(record.instances), record.outcome, record.num_iterations]
        if isinstance(record, RunRecord) else [record.metrics, record.outcome]
        for record in records
    ])  # fmt: skip
    return hashlib.sha256(
        repr([getattr(x, "tolist", lambda x=x: x)() for x in leaves]).encode()
    ).hexdigest()


def made() -> dict[str, Any]:
    """Return hashes of runs that were made on this process's devices."""
    spec, figures = few(), figures_of(["ttft_p99_ms", "tokens_per_sec"])
    rows = [Row(CONFIG, draw(spec, seed, 16)[0], 0) for seed in SEEDS]
    given = Runner(replace(LANES, num_lanes=2), len(rows)).run(rows, lambda record: record)
    return {
        "devices": num_devices(),
        "whole": digest(over_seeds(CONFIG, spec, SEEDS, options=LANES)),
        "figures": digest(over_seeds(CONFIG, spec, SEEDS, figures, LANES)),
        "given, two lanes a device": digest(given),
        "programs": [text_of(LANES, size).count("num_partitions = 4") for size in (8, 1)],
    }


def in_a_process(num_devices: int) -> dict[str, Any]:
    flags = f"{os.environ.get('XLA_FLAGS', '')} {FLAG.format(num_devices)}"
    text = "import json; from tests.runs.test_devices import made; print(json.dumps(made()))"
    words = [sys.executable, "-c", text]
    done = subprocess.run(
        words, env=os.environ | {"XLA_FLAGS": flags}, capture_output=True, text=True
    )
    assert done.returncode == 0, done.stderr[-3000:]
    found: dict[str, Any] = json.loads(done.stdout.splitlines()[-1])
    return found


@pytest.mark.slow
def test_four_devices_give_the_bits_of_one() -> None:
    four, one = in_a_process(4), made()
    assert (one.pop("devices"), four.pop("devices")) == (1, 4)
    assert (one.pop("programs"), four.pop("programs")) == ([0, 0], [1, 0])  # a single row has one
    assert four == one
    rows = over_seeds(CONFIG, few(), SEEDS, options=replace(LANES, form="rows"))
    assert digest(rows) == one["whole"]


def test_one_device_has_the_program_without_shares(monkeypatch: pytest.MonkeyPatch) -> None:
    from blis_jax.runs import programs

    with_one = programs._over_devices(text_of)  # type: ignore[arg-type]
    assert with_one is text_of  # type: ignore[comparison-overlap]
    monkeypatch.setattr(programs, "num_devices", lambda: 2)
    assert programs._over_devices(text_of) is not text_of  # type: ignore[arg-type,comparison-overlap]


def test_a_default_device_is_the_only_one(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(jax, "local_devices", lambda: [None] * 4)
    assert num_devices() == 4
    with jax.default_device(jax.devices()[0]):
        assert num_devices() == 1


def test_a_call_has_as_many_rows_for_each_device(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("blis_jax.runs.driver.num_devices", lambda: 4)
    runner = Runner(LANES)
    assert [runner.rows_per_call(count) for count in (1, 2, 7, 8, 100_000)] == [1, 4, 8, 8, 16_384]
    assert Runner(LANES, num_rows=1).rows_per_call(1) == 1
    assert Runner(replace(LANES, num_lanes=2)).rows_per_call(1000) == 128
