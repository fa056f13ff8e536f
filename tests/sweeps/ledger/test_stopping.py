"""Rows whose rule asks for more seeds: where it stops, and that the runs are those of one call."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from blis_jax.errors import ConfigError
from blis_jax.statistics.sequential import DECIDED, PRECISE, SPENT
from sweeps.ledger import book
from sweeps.ledger.book import (
    FAILED,
    EnoughRuns,
    options_of,
    run_until_enough,
    stopping_from,
    values_of,
)
from sweeps.ledger.hypothesis import Hypothesis, hypothesis_of
from sweeps.ledger.trial import BASELINE, STRATEGY, ArmRuns, Experiments

ARM = {"text": "a.yaml", "strategy": "a", "settings": {}, "hash": "0"}
FIRST = tuple(range(100, 120))


def hypothesis(
    claim: str = "ttft_p99_ms <= -1%", kind: str = "Dominance", **given: Any
) -> Hypothesis:
    return hypothesis_of(
        {
            "id": "1",
            "statement": "Shorter.",
            "family": "Cross-policy comparative",
            "vvuq": "Validation",
            "type": kind,
            "name": "a",
            "mechanism": "a",
            "diagnostic": "not",
            "predictions": [claim],
            "arms": {STRATEGY: ARM, BASELINE: ARM},
            "workload": {"name": "w", "hash": "0"},
            "seeds": FIRST,
            "stopping": stopping_from(given, FIRST),
        }
    )


def made_runs(change: float, spread: float, fails_at: int = -1) -> Any:
    """Runs by seed: the baseline about 100 ms, the strategy changed by so many %."""

    def arm(seeds: Sequence[int], factor: float, key: int) -> ArmRuns:
        noise = [np.random.default_rng((seed, key)).normal(0, spread) for seed in seeds]
        common = [np.random.default_rng(seed).normal(0, 10) for seed in seeds]
        values = factor * (100 + np.array(common) + np.array(noise))
        outcomes = tuple("KV_DEADLOCK" if seed == fails_at else "COMPLETED" for seed in seeds)
        fates = tuple(np.array([[seed]]) for seed in seeds)
        return ArmRuns(outcomes, {"ttft_p99_ms": values}, 0, {}, fates)

    def run(one: Hypothesis, _folder: Path, _experiments: Experiments) -> dict[str, ArmRuns]:
        return {STRATEGY: arm(one.seeds, 1 + change / 100, 1), BASELINE: arm(one.seeds, 1.0, 2)}

    return run


def stopped(monkeypatch: pytest.MonkeyPatch, runs: Any, **given: Any) -> EnoughRuns:
    monkeypatch.setattr(book, "run_hypothesis", runs)
    return run_until_enough(hypothesis(**given), Path(), Experiments())


def test_a_fixed_number_of_seeds_stays(monkeypatch: pytest.MonkeyPatch) -> None:
    found = stopped(monkeypatch, made_runs(-5, 1))
    assert found.hypothesis.seeds == FIRST and found.content() == {}


def test_a_clear_difference_is_decided_at_the_first_look(monkeypatch: pytest.MonkeyPatch) -> None:
    found = stopped(monkeypatch, made_runs(-30, 1), decide=True)
    assert (found.looks, found.end) == ((20,), DECIDED)
    assert "however often one looks" in found.content()["stopping"]["rule"]


def test_seeds_are_added_until_it_is_clear_and_are_those_of_one_call(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    runs = made_runs(-3, 10)
    found = stopped(monkeypatch, runs, decide=True)
    assert found.end == DECIDED and len(found.looks) > 1
    assert found.hypothesis.seeds == tuple(range(100, 100 + found.looks[-1]))
    at_once = runs(found.hypothesis, Path(), Experiments())
    for role, arm in at_once.items():
        joined = found.runs[role]
        assert np.array_equal(joined.figures["ttft_p99_ms"], arm.figures["ttft_p99_ms"])
        assert joined.outcomes == arm.outcomes and len(joined.fates) == len(arm.fates)


def test_what_stays_unclear_ends_with_the_budget(monkeypatch: pytest.MonkeyPatch) -> None:
    found = stopped(monkeypatch, made_runs(-1, 5), decide=True, most_seeds=50)
    assert (found.looks, found.end) == ((20, 30, 45, 50), SPENT)


def test_precision_ends_when_the_interval_is_narrow(monkeypatch: pytest.MonkeyPatch) -> None:
    found = stopped(monkeypatch, made_runs(-1, 5), precision="1%", most_seeds=600)
    assert found.end == PRECISE and 150 < found.looks[-1] < 600
    (judged,) = book.judge_all(found.hypothesis, book.measured_from_runs(found.runs))
    assert judged.reading is not None
    assert judged.reading.mean.high - judged.reading.mean.low <= 2.0


def test_a_run_that_fails_ends_it(monkeypatch: pytest.MonkeyPatch) -> None:
    found = stopped(monkeypatch, made_runs(-5, 5, fails_at=105), decide=True)
    assert (found.looks, found.end) == ((20,), FAILED)


def test_the_rule_as_options_and_as_entries() -> None:
    assert stopping_from({"seeds": FIRST}, FIRST) is None and options_of(None) == []
    rule = stopping_from({"decide": True, "precision": "2%", "most_seeds": 90}, FIRST)
    assert rule is not None and rule.rule.precision == 0.02
    assert stopping_from(values_of(rule), FIRST) == rule
    assert options_of(rule) == ["--decide", "--precision", "2%", "--most-seeds", "90"]


@pytest.mark.parametrize(
    ("given", "problem"),
    [
        ({"most_seeds": 90}, "--most-seeds has no meaning without"),
        ({"precision": "x"}, "'x' is no number of %"),
        ({"decide": True, "most_seeds": 10}, "--most-seeds: got 10"),
    ],
)
def test_refusals(given: dict[str, Any], problem: str) -> None:
    with pytest.raises(ConfigError, match=problem):
        stopping_from(given, FIRST)


def test_a_first_stage_of_few_seeds_says_too_little() -> None:
    with pytest.raises(ConfigError, match=r"the first stage .* has 20 to 640 seeds"):
        stopping_from({"decide": True}, (1, 2, 3))
