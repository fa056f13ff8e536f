"""Criteria judged from figures: met, missed, unclear, and what cannot be measured."""

from __future__ import annotations

import numpy as np
import pytest

from blis_jax.cluster.config import ClusterConfig
from blis_jax.errors import ConfigError
from sweeps.tracks.criteria import (
    Facts,
    FigurePair,
    Judgement,
    broken_constraints,
    judge,
    metrics_of,
)
from sweeps.tracks.problem import Problem, parse_problem
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
    found = {
        "ttft_p99_ms[critical]": np.array(critical),
        "ttft_p99_ms[sheddable]": np.array(sheddable),
    }
    return found | {"ttft_p99_ms": np.maximum(*found.values())}


BASE = tails((100.0, 102.0, 98.0), (100.0, 101.0, 99.0))
PAIR = FigurePair(tails((50.0, 51.0, 49.0), (200.0, 202.0, 198.0)), BASE)


def judged(
    criterion: str, pairs: dict[str, FigurePair] | None = None, **facts: object
) -> list[Judgement]:
    pairs = {"main": PAIR} if pairs is None else pairs
    return list(judge(problem(criterion), pairs, CLASSES, Facts(**facts)))  # type: ignore[arg-type]


def verdicts(criterion: str, **facts: object) -> dict[str, str]:
    return {one.slo_class: one.verdict for one in judged(criterion, **facts)}


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
        ("ttft_p99_ms[critical] <= 51", "unclear"),
        ("slo_gap >= 1.3", "met"),
        ("slo_gap >= 9", "missed"),
        ("ttft_p99_ms[sheddable] <= 100%", "met"),
        ("ttft_p99_ms[sheddable] <= 90%", "missed"),
        ("tokens_per_sec >= 5%", "not measured"),
    ],
)
def test_goals(goal: str, verdict: str) -> None:
    (found,) = judged(f'{{name: g, text: t, protocol: later, goal: "{goal}"}}')
    assert found.verdict == verdict
    assert goal in found.line() and verdict in found.line()


def test_other_conditions_and_the_strategy_itself() -> None:
    criterion = (
        '{name: g, text: t, protocol: later, goal: "ttft_p99_ms[critical] <= 5%", condition: few, '
        "against: itself}"
    )
    assert judged(criterion)[0].verdict == "not measured"
    worse = FigurePair(tails((70.0, 71.0, 69.0), (1.0, 1.0, 1.0)), BASE)
    assert judged(criterion, {"main": PAIR, "few": worse})[0].verdict == "missed"
    assert judged(criterion, {"main": PAIR, "few": PAIR})[0].verdict == "met"


def test_two_seeds_decide_nothing() -> None:
    short = FigurePair(
        {name: values[:2] for name, values in PAIR.strategy.items()},
        {name: values[:2] for name, values in PAIR.baseline.items()},
    )
    criterion = '{name: g, text: t, protocol: later, goal: "ttft_p99_ms[critical] <= -15%"}'
    assert judged(criterion, {"main": short})[0].verdict == "unclear"


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
