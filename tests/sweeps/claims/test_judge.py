"""The rule: what confirms, what refutes, and what decides nothing."""

from __future__ import annotations

import numpy as np
import pytest

from sweeps.claims.grammar import parse_claim
from sweeps.claims.judge import (
    ByInterval,
    ClaimVerdict,
    HypothesisRule,
    judge,
    judge_along,
    overall,
    status_of,
)
from sweeps.claims.words import CONFIRMED, INCONCLUSIVE, MET, PARTLY, REFUTED, UNCLEAR, WITH_NUANCE

DOMINANCE, PLAIN = HypothesisRule(is_dominance=True), HypothesisRule()


def arm(*values: float) -> dict[str, np.ndarray]:
    """Every value on two seeds, since a verdict takes six."""
    return {"ttft_p99_ms": np.array(values * 2)}


def judged(text: str, values: tuple[float, ...], rule: HypothesisRule = DOMINANCE) -> ClaimVerdict:
    base = arm(*(100.0 for _ in values))
    return judge(parse_claim(text), rule, arm(*values), base)


@pytest.mark.parametrize(
    ("values", "verdict"),
    [
        ((60.0, 61.0, 62.0), CONFIRMED),
        ((95.0, 96.0, 97.0), REFUTED),
        ((60.0, 80.0, 100.0), INCONCLUSIVE),  # interval across the edge
        ((105.0, 120.0, 130.0), REFUTED),  # the other way
        ((60.0, 61.0), INCONCLUSIVE),  # four seeds
        ((60.0, 61.0, float("nan")), INCONCLUSIVE),
    ],
)
def test_dominance(values: tuple[float, ...], verdict: str) -> None:
    assert judged("ttft_p99_ms <= -30%", values).word == verdict


def test_small_effects_are_nuanced_or_undecided() -> None:
    assert judged("ttft_p99_ms <= -5%", (85.0, 85.2, 84.8)).finer == WITH_NUANCE
    assert judged("ttft_p99_ms <= -5%", (85.0, 85.2, 84.8)).word == CONFIRMED
    faint = judged("ttft_p99_ms <= -5%", (91.0, 91.2, 90.8))
    assert faint.word == INCONCLUSIVE and "below 10 %" in faint.reason
    assert judged("ttft_p99_ms <= -5%", (91.0, 91.2, 90.8), PLAIN).word == CONFIRMED


def test_every_seed_counts_unless_it_is_a_threshold() -> None:
    values = (*np.linspace(60, 64, 29).tolist(), 90.0)
    base = arm(*(100.0 for _ in values))
    claim = parse_claim("ttft_p99_ms <= -30%")
    assert judge(claim, DOMINANCE, arm(*values), base).word == INCONCLUSIVE
    threshold = parse_claim("ttft_p99_ms <= 70")
    assert (
        judge(threshold, HypothesisRule(is_about_means=True), arm(*values), base).word == CONFIRMED
    )


def test_equivalence() -> None:
    assert judged("ttft_p99_ms in -5..5%", (101.0, 100.5, 101.5), PLAIN).word == CONFIRMED
    assert judged("ttft_p99_ms in -5..5%", (111.0, 110.5, 111.5), PLAIN).word == REFUTED
    assert judged("ttft_p99_ms in -5..5%", (101.0, 108.0, 95.0), PLAIN).word == INCONCLUSIVE
    assert judged("ttft_p99_ms in -5..5%", (100.0, 100.0, 100.0), PLAIN).word == CONFIRMED


def test_deterministic_needs_no_interval() -> None:
    exact = HypothesisRule(is_exact=True)
    assert judged("ttft_p99_ms <= 110", (1.0, 60.0, 109.0), exact).word == CONFIRMED
    assert judged("ttft_p99_ms <= 110", (1.0, 60.0, 111.0), exact).word == REFUTED


def test_steps_along_a_setting() -> None:
    levels = [arm(100, 101, 102), arm(80, 81, 82), arm(50, 51, 52)]
    falls, rises = parse_claim("ttft_p99_ms falls"), parse_claim("ttft_p99_ms rises")
    assert judge_along(falls, PLAIN, levels).word == CONFIRMED
    assert judge_along(rises, PLAIN, levels).word == REFUTED
    back = judge_along(falls, PLAIN, [*levels, arm(60, 61, 62)])
    assert back.word == REFUTED and "step 3 of 3" in back.reason
    assert judge_along(falls, PLAIN, [levels[0], arm(80, 101, 122)]).word == INCONCLUSIVE
    flat = parse_claim("ttft_p99_ms flat within 5%")
    drift = [arm(100, 100, 100), arm(103, 103, 103), arm(106, 106, 106)]
    assert judge_along(flat, PLAIN, drift[:2]).word == CONFIRMED
    assert judge_along(flat, PLAIN, drift).word == REFUTED


def test_several_claims_together() -> None:
    assert overall([CONFIRMED, CONFIRMED]) == CONFIRMED
    assert overall([CONFIRMED, REFUTED, INCONCLUSIVE]) == REFUTED
    assert overall([CONFIRMED, INCONCLUSIVE]) == INCONCLUSIVE
    assert overall([]) == INCONCLUSIVE
    good = judged("ttft_p99_ms <= -30%", (60.0, 61.0, 62.0))
    bad = judged("ttft_p99_ms <= -50%", (60.0, 61.0, 62.0))
    assert status_of([good, bad]) == PARTLY and status_of([bad, good]) == REFUTED


def test_few_seeds_decide_nothing_but_what_holds_on_each_and_what_older_rules_said() -> None:
    claim, base = parse_claim("ttft_p99_ms <= -30%"), {"ttft_p99_ms": np.full(5, 100.0)}
    few = {"ttft_p99_ms": np.array([60.0, 61.0, 62.0, 60.5, 61.5])}
    now = judge(claim, PLAIN, few, base)
    assert now.word == INCONCLUSIVE and now.reason == "5 seeds, but 6 are needed"
    assert judge(claim, HypothesisRule(number=5), few, base).word == CONFIRMED
    assert judge(claim, HypothesisRule(is_exact=True), few, base).word == CONFIRMED
    assert judge(claim, ByInterval(), few, base).word == UNCLEAR
    assert judge(claim, ByInterval(), arm(60.0, 61.0, 62.0), arm(100.0, 100.0, 100.0)).word == MET
