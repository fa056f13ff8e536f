"""Criteria judged from figures: met, missed, unclear, and what cannot be measured."""

from __future__ import annotations

import numpy as np
import pytest

from blis_jax.cluster.config import ClusterConfig
from blis_jax.core.outcome import Outcome
from blis_jax.errors import ConfigError
from blis_jax.metrics.run_summary import RunSummary
from blis_jax.statistics.intervals import Inference
from sweeps.strategies.parts import SuccessCriterion
from sweeps.tracks.criteria import (
    CriterionVerdict,
    Facts,
    FigurePair,
    broken_constraints,
    judge_criteria,
    judge_success,
    line_of,
    metrics_of,
    success_metrics,
)
from sweeps.tracks.problem import Criterion, Problem, parse_problem
from tests.sweeps.tiny import tiny_space

TEXT = """
name: tiny
question: which?
conditions: {{few: {{text: few blocks, settings: {{total_kv_blocks: 100}}}}}}
constraints:
  - {{text: a CPU tier, settings: {{kv_cpu_blocks: {{min: 1}}}}}}
  - {{text: first come, settings: {{scheduler: {{equals: fcfs}}}}}}
  - {{text: a template, needs: parameters}}
criteria: [{criteria}]
"""
CLASSES = ("critical", "sheddable")


def problem(criteria: str) -> Problem:
    return parse_problem(TEXT.format(criteria=criteria), "problem.yaml")


def tails(critical: tuple[float, ...], sheddable: tuple[float, ...]) -> dict[str, np.ndarray]:
    """Every value on two seeds, since a verdict takes six."""
    found = {
        "ttft_p99_ms[critical]": np.array(critical * 2),
        "ttft_p99_ms[sheddable]": np.array(sheddable * 2),
    }
    return found | {"ttft_p99_ms": np.maximum(*found.values())}


BASE = tails((100.0, 102.0, 98.0), (100.0, 101.0, 99.0))
PAIR = FigurePair(tails((50.0, 51.0, 49.0), (200.0, 202.0, 198.0)), BASE)


def judged(
    criterion: str, pairs: dict[str, FigurePair] | None = None, **facts: object
) -> list[CriterionVerdict[Criterion]]:
    pairs = {"main": PAIR} if pairs is None else pairs
    return list(judge_criteria(problem(criterion), pairs, CLASSES, Facts(**facts)))  # type: ignore[arg-type]


def verdicts(criterion: str, **facts: object) -> dict[str, str]:
    return {one.slo_class: one.verdict.word for one in judged(criterion, **facts)}


def test_every_class_for_itself() -> None:
    goal = (
        'name: tail, text: t, protocol: registered, goal: "ttft_p99_ms <= -15%", each_class: true'
    )
    assert verdicts(f"{{{goal}}}") == {"all": "missed", "critical": "met", "sheddable": "missed"}


@pytest.mark.parametrize(
    ("goal", "verdict"),
    [
        ("ttft_p99_ms[critical] <= 60", "met"),
        ("ttft_p99_ms[critical] <= 40", "missed"),
        ("ttft_p99_ms[critical] <= 50.5", "unclear"),
        ("slo_gap >= 1.3", "met"),
        ("slo_gap >= 9", "missed"),
        ("ttft_p99_ms[sheddable] <= 100%", "met"),
        ("ttft_p99_ms[sheddable] <= 90%", "missed"),
        ("tokens_per_sec >= 5%", "not measured"),
    ],
)
def test_goals(goal: str, verdict: str) -> None:
    (found,) = judged(f'{{name: g, text: t, protocol: later, goal: "{goal}"}}')
    assert found.verdict.word == verdict
    line = line_of("g", found.slo_class, goal, verdict, found.verdict.reason)
    assert line.startswith(verdict) and f": {goal}; {found.verdict.reason}" in line


def test_other_conditions_and_the_strategy_itself() -> None:
    criterion = (
        '{name: g, text: t, protocol: later, goal: "ttft_p99_ms[critical] <= 5%", condition: few, '
        "against: itself}"
    )
    assert judged(criterion)[0].verdict.word == "not measured"
    worse = FigurePair(tails((70.0, 71.0, 69.0), (1.0, 1.0, 1.0)), BASE)
    assert judged(criterion, {"main": PAIR, "few": worse})[0].verdict.word == "missed"
    assert judged(criterion, {"main": PAIR, "few": PAIR})[0].verdict.word == "met"


def test_two_seeds_decide_nothing() -> None:
    short = FigurePair(
        {name: values[:2] for name, values in PAIR.strategy.items()},
        {name: values[:2] for name, values in PAIR.baseline.items()},
    )
    criterion = '{name: g, text: t, protocol: later, goal: "ttft_p99_ms[critical] <= -15%"}'
    assert judged(criterion, {"main": short})[0].verdict.word == "unclear"


def test_what_figures_do_not_say() -> None:
    def one(needs: str, **facts: object) -> str:
        return verdicts(f"{{name: g, text: t, protocol: later, needs: {needs}}}", **facts)["all"]

    assert one("people") == "for people to judge" and one("sensitivity") == "not measured"
    assert one("verdict", verdict="confirmed") == "met"
    assert one("verdict", verdict="refuted") == "missed"
    assert (
        one("mechanism", mechanism="order") == "met" and one("mechanism", mechanism="") == "missed"
    )
    assert one("seeds", num_seeds=3, same_direction=True) == "met"
    assert one("seeds", num_seeds=3, same_direction=False) == "missed"
    assert one("seeds", num_seeds=2, same_direction=True) == "missed"


def test_constraints() -> None:
    text = "{name: g, text: t, protocol: later, needs: people}"
    broken = broken_constraints(problem(text), ClusterConfig(scheduler="sjf"), None)
    assert broken == [
        "a CPU tier (kv_cpu_blocks is 0)",
        "first come (scheduler is sjf)",
        "a template (the strategy has no parameters)",
    ]
    fine = broken_constraints(problem(text), ClusterConfig(kv_cpu_blocks=5), tiny_space().strategy)
    assert fine == []


def test_metrics_that_are_needed() -> None:
    criteria = (
        '{name: a, text: t, protocol: later, goal: "ttft_p99_ms <= 1", each_class: true}, '
        '{name: b, text: t, protocol: later, goal: "slo_gap >= 1"}'
    )
    names = metrics_of(problem(criteria), CLASSES)
    assert names == ("ttft_p99_ms", "ttft_p99_ms[critical]", "ttft_p99_ms[sheddable]")


@pytest.mark.parametrize(
    ("criterion", "message"),
    [
        ("{name: g, text: t, protocol: later}", "either goal or needs"),
        ('{name: g, text: t, protocol: later, goal: "ttft <= 1"}', "metric 'ttft' is unknown"),
        ('{name: g, text: t, protocol: later, goal: "ttft_p99_ms falls"}', "several values"),
        (
            '{name: g, text: t, protocol: later, goal: "ttft_p99_ms <= 1", condition: many}',
            "condition 'many' is unknown",
        ),
        (
            '{name: g, text: t, protocol: later, goal: "ttft_p99_ms <= 1", against: itself}',
            "another condition than main",
        ),
        (
            '{name: g, text: t, protocol: later, goal: "ttft_p99_ms[critical] <= 1", each_class: true}',
            r"leave \[class\] out",
        ),
    ],
)
def test_refusals(criterion: str, message: str) -> None:
    with pytest.raises(ConfigError, match=message):
        problem(criterion)


# --- success criteria of strategy files -----------------------------------------------------------


def runs(**by_class: list[float]) -> list[RunSummary]:
    names = {"all": "ttft_p99_ms", **{name: f"ttft_p99_ms[{name}]" for name in CLASSES}}
    count = len(next(iter(by_class.values())))
    return [
        RunSummary(
            Outcome.COMPLETED, {names[key]: values[seed] for key, values in by_class.items()}
        )
        for seed in range(count)
    ]


def success(
    criterion: SuccessCriterion, mine: list[RunSummary], base: list[RunSummary]
) -> dict[str, CriterionVerdict[SuccessCriterion]]:
    verdicts = judge_success([criterion], CLASSES, mine, base, Inference())
    return {one.slo_class: one for one in verdicts}


def said(one: CriterionVerdict[SuccessCriterion]) -> tuple[bool, bool, int]:
    """Whether it is met, whether that is sure, and on how many seeds it is."""
    return one.verdict.word == "met", one.verdict.is_clear, one.verdict.num_holding


RUNS = runs(all=[100, 101, 99], critical=[100, 102, 98], sheddable=[100, 100, 100])
CHANGE = SuccessCriterion(metric="ttft_p99_ms[critical]", direction="min", change_percent=-15)


def test_a_change_is_judged_for_every_class() -> None:
    mine = runs(all=[150, 152, 149], critical=[50, 51, 49.5], sheddable=[60, 85.5, 110])
    found = success(CHANGE, mine, RUNS)
    assert list(found) == ["critical", "all", "sheddable"]
    assert [one.is_asked for one in found.values()] == [True, False, False]
    critical = found["critical"]
    assert said(critical) == (True, True, 3)
    assert critical.value is not None
    assert critical.value.mean == pytest.approx(100 * (150.5 / 300 - 1))
    assert said(found["all"]) == (False, True, 0)
    assert said(found["sheddable"]) == (False, False, 1)


def test_a_threshold_needs_no_reference() -> None:
    mine = runs(all=[90, 90.5, 89.5], critical=[1, 2, 3], sheddable=[99, 105, 93])
    criterion = SuccessCriterion(metric="ttft_p99_ms", direction="min", threshold=100)
    found = success(criterion, mine, RUNS)
    assert said(found["all"]) == (True, True, 3) and found["all"].is_asked
    assert said(found["sheddable"]) == (True, False, 2)
    more = SuccessCriterion(metric="ttft_p99_ms", direction="max", threshold=100)
    assert not said(success(more, mine, RUNS)["all"])[0]


def test_failed_seeds_are_left_out_and_counted() -> None:
    mine = runs(all=[1, 1, 1], critical=[50, 51, 49.5], sheddable=[1, 1, 1])
    mine[1] = RunSummary(Outcome.LIVELOCK)
    found = success(CHANGE, mine, RUNS)["critical"]
    reading = found.verdict.reading
    assert reading is not None and (reading.num_missing, found.verdict.num_holding) == (1, 2)
    nothing = success(CHANGE, [RunSummary(Outcome.LIVELOCK)] * 3, RUNS)["critical"]
    assert said(nothing) == (False, False, 0)


def test_metrics_that_success_criteria_take() -> None:
    names = success_metrics(
        [CHANGE, SuccessCriterion(metric="throughput_tps", direction="max", threshold=1)], CLASSES
    )
    assert names == (
        "ttft_p99_ms[critical]", "ttft_p99_ms", "ttft_p99_ms[sheddable]", "tokens_per_sec",
    )  # fmt: skip
