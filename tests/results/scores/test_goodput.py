"""Goodput and fitness against BLIS's figures for its own latencies."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest

from blis_jax.commands.run.scores import ScoreOptions, nanoseconds, scores_of, verdicts_on
from blis_jax.core.types import SLO_CLASSES
from blis_jax.errors import ConfigError
from blis_jax.results.scores import fitness, goodput_fields
from blis_jax.workload.spec_parts import ClassTargets

# `blis run --workload-spec … --horizon 500000 --metrics-path …` (f90a1e3a): class, TTFT, ITL and E2E in µs
ROWS = [
    ("standard", 22479, 290742 / 41, 313998), ("standard", 22984, 205089 / 28, 228850),
    ("critical", 29433, 16708 / 2, 46918), ("standard", 25734, -1.0, -1), ("standard", 25162, -1.0, -1),
    ("critical", 26920, 231509 / 32, 259206), ("standard", 24142, -1.0, -1),
    ("critical", 23253, 196313 / 27, 220343), ("critical", 30700, 159126 / 22, 190603),
    ("standard", 26956, -1.0, -1), ("critical", 28910, 108867 / 15, 138554), ("standard", 26804, -1.0, -1),
]  # fmt: skip
TARGETS = {
    "critical": ClassTargets(ttft_ms=27, e2e_ms=400),
    "standard": ClassTargets(itl_ms=7.3),
}
GIVEN = {"slo_e2e": "standard=300ms,batch=1s", "slo_ttft": " standard=1m"}
THEIRS = {
    "goodput_rps": 4.016298137843369,
    "slo_attainment": 0.16666666666666666,
    "per_class": {
        "batch": {
            "count": 0, "goodput_rps": 0, "slo_attainment": 0, "slo_attainment_by_dim": {"e2e": 0},
        },
        "critical": {
            "count": 5, "e2e_p99_ms": 257.65148, "goodput_rps": 4.016298137843369,
            "itl_mean_ms": 7.4700616203703705, "slo_attainment": 0.4,
            "slo_attainment_by_dim": {"e2e": 1, "ttft": 0.4}, "ttft_p99_ms": 30.64932,
        },
        "standard": {
            "count": 7, "e2e_p99_ms": 313.14652, "goodput_rps": 0, "itl_mean_ms": 7.207937717770036,
            "slo_attainment": 0, "slo_attainment_by_dim": {"e2e": 0.5, "itl": 0.5, "ttft": 1},
            "ttft_p99_ms": 22.978949999999998,
        },
    },
}  # fmt: skip


@pytest.fixture
def record() -> Any:
    classes, ttft, _, e2e = zip(*ROWS, strict=True)
    requests = SimpleNamespace(
        slo_class=np.array([SLO_CLASSES.index(name) for name in classes]),
        ttft_us=np.array(ttft),
        e2e_us=np.array(e2e),
    )
    instances = SimpleNamespace(
        sim_ended_time_us=np.array([497971]),
        completed_requests=np.array([7]),
        total_output_tokens=np.array([174]),
    )
    return SimpleNamespace(requests=requests, instances=instances, splits=None)


def test_goodput_is_that_of_blis(record: Any) -> None:
    spec: Any = SimpleNamespace(goodput_slo_targets=TARGETS)
    limits = scores_of(ScoreOptions.of(GIVEN), spec).limits
    ids = [f"request_{row}" for row in range(len(ROWS))]
    found = goodput_fields(record, limits, np.array([row[2] for row in ROWS]), ids)
    assert found == THEIRS
    assert goodput_fields(record, {}, np.array([]), ids) == {}


def test_fitness_is_that_of_blis(record: Any) -> None:
    text = "throughput:0.5, tokens_per_sec:2,p99_ttft:0.3,p50_e2e:1,mean_e2e:1"
    score, components = fitness(
        record, scores_of(ScoreOptions.of({"fitness_weights": text})).weights
    )
    assert f"{score:.6f}" == "0.148151"
    theirs = {
        "mean_e2e": "0.004981",
        "p50_e2e": "0.004518",
        "p99_ttft": "0.031685",
        "throughput": "0.123246",
        "tokens_per_sec": "0.033762",
    }
    assert {name: f"{value:.6f}" for name, value in components.items()} == theirs
    assert list(components) == sorted(theirs)
    lines = verdicts_on(
        record, [], scores_of(ScoreOptions.of({"fitness_weights": "p50_e2e:1"}))
    ).lines
    assert lines == ("=== Fitness Evaluation ===", "Score: 0.004518", "  p50_e2e: 0.004518")


@pytest.mark.parametrize(
    ("text", "time"),
    [("100ms", 10**8), ("1m30s", 90 * 10**9), (".5us", 500), ("2.5µs", 2500), ("0s", None), ("5", None),
     ("-1s", None), ("", None), ("1d", None), ("9999999999h", None)],
)  # fmt: skip
def test_times_are_read_as_go_writes_them(text: str, time: int | None) -> None:
    assert nanoseconds(text) == time


@pytest.mark.parametrize(
    ("given", "sentence"),
    [
        ({"slo_ttft": "critical"}, "--slo-ttft: 'critical' must be CLASS=TIME"),
        ({"slo_itl": "=5ms"}, "--slo-itl: '=5ms' must be CLASS=TIME"),
        ({"slo_e2e": "a=1s,"}, "--slo-e2e: '' must be CLASS=TIME"),
        ({"slo_e2e": "a=0s"}, "with a time above 0"),
        ({"fitness_weights": "p99_ttft"}, "--fitness-weights: 'p99_ttft' must be NAME:WEIGHT"),
        ({"fitness_weights": "p98_ttft:1"}, "'p98_ttft' is not known; .* did you mean 'p99_ttft'"),
        ({"fitness_weights": "p99_ttft:-1"}, "p99_ttft is -1, allowed is a finite number"),
        ({"fitness_weights": "p99_ttft:x"}, "p99_ttft: 'x' is not a number"),
    ],
)
def test_what_is_no_limit_or_weight(given: dict[str, str], sentence: str) -> None:
    with pytest.raises(ConfigError, match=sentence):
        scores_of(ScoreOptions.of(given))
