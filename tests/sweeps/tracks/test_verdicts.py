"""The rule: what confirms, what refutes, and what decides nothing."""

from __future__ import annotations

import numpy as np
import pytest

from sweeps.tracks.claims import parse_claim
from sweeps.tracks.verdicts import (
    CONFIRMED,
    INCONCLUSIVE,
    PARTLY,
    REFUTED,
    WITH_NUANCE,
    JudgedClaim,
    Rule,
    judge_along,
    judge_claim,
    overall,
    status_of,
)

BASE = {"ttft_p99_ms": np.array([100.0, 100.0, 100.0])}
DOMINANCE, PLAIN = Rule(is_dominance=True), Rule()


def arm(*values: float) -> dict[str, np.ndarray]:
    return {"ttft_p99_ms": np.array(values)}


def judged(text: str, values: tuple[float, ...], rule: Rule = DOMINANCE) -> JudgedClaim:
    base = {"ttft_p99_ms": BASE["ttft_p99_ms"][: len(values)]}
    return judge_claim(parse_claim(text), rule, arm(*values), base)


@pytest.mark.parametrize(
    ("values", "verdict"),
    [
        ((60.0, 61.0, 62.0), CONFIRMED),
        ((95.0, 96.0, 97.0), REFUTED),
        ((60.0, 80.0, 100.0), INCONCLUSIVE),  # interval across the edge
        ((105.0, 120.0, 130.0), REFUTED),  # the other way
        ((60.0, 61.0), INCONCLUSIVE),  # two seeds
        ((60.0, 61.0, float("nan")), INCONCLUSIVE),
    ],
)
def test_dominance(values: tuple[float, ...], verdict: str) -> None:
    assert judged("ttft_p99_ms <= -30%", values).verdict == verdict


def test_small_effects_are_nuanced_or_undecided() -> None:
    assert judged("ttft_p99_ms <= -5%", (85.0, 85.2, 84.8)).status == WITH_NUANCE
    assert judged("ttft_p99_ms <= -5%", (85.0, 85.2, 84.8)).verdict == CONFIRMED
    faint = judged("ttft_p99_ms <= -5%", (91.0, 91.2, 90.8))
    assert faint.verdict == INCONCLUSIVE and "below 10 %" in faint.reason
    assert judged("ttft_p99_ms <= -5%", (91.0, 91.2, 90.8), PLAIN).verdict == CONFIRMED


def test_every_seed_counts_unless_it_is_a_threshold() -> None:
    values = (*np.linspace(60, 64, 29).tolist(), 90.0)
    base = {"ttft_p99_ms": np.full(30, 100.0)}
    claim = parse_claim("ttft_p99_ms <= -30%")
    assert judge_claim(claim, DOMINANCE, arm(*values), base).verdict == INCONCLUSIVE
    threshold = parse_claim("ttft_p99_ms <= 70")
    assert (
        judge_claim(threshold, Rule(is_about_means=True), arm(*values), base).verdict == CONFIRMED
    )


def test_equivalence() -> None:
    assert judged("ttft_p99_ms in -5..5%", (101.0, 100.5, 101.5), PLAIN).verdict == CONFIRMED
    assert judged("ttft_p99_ms in -5..5%", (111.0, 110.5, 111.5), PLAIN).verdict == REFUTED
    assert judged("ttft_p99_ms in -5..5%", (101.0, 108.0, 95.0), PLAIN).verdict == INCONCLUSIVE
    assert judged("ttft_p99_ms in -5..5%", (100.0, 100.0, 100.0), PLAIN).verdict == CONFIRMED


def test_deterministic_needs_no_interval() -> None:
    exact = Rule(is_exact=True)
    assert judged("ttft_p99_ms <= 110", (1.0, 60.0, 109.0), exact).verdict == CONFIRMED
    assert judged("ttft_p99_ms <= 110", (1.0, 60.0, 111.0), exact).verdict == REFUTED


def test_steps_along_a_setting() -> None:
    levels = [arm(100, 101, 102), arm(80, 81, 82), arm(50, 51, 52)]
    falls, rises = parse_claim("ttft_p99_ms falls"), parse_claim("ttft_p99_ms rises")
    assert judge_along(falls, PLAIN, levels).verdict == CONFIRMED
    assert judge_along(rises, PLAIN, levels).verdict == REFUTED
    back = judge_along(falls, PLAIN, [*levels, arm(60, 61, 62)])
    assert back.verdict == REFUTED and "step 3 of 3" in back.reason
    assert judge_along(falls, PLAIN, [levels[0], arm(80, 101, 122)]).verdict == INCONCLUSIVE
    flat = parse_claim("ttft_p99_ms flat within 5%")
    drift = [arm(100, 100, 100), arm(103, 103, 103), arm(106, 106, 106)]
    assert judge_along(flat, PLAIN, drift[:2]).verdict == CONFIRMED
    assert judge_along(flat, PLAIN, drift).verdict == REFUTED


def test_several_claims_together() -> None:
    assert overall([CONFIRMED, CONFIRMED]) == CONFIRMED
    assert overall([CONFIRMED, REFUTED, INCONCLUSIVE]) == REFUTED
    assert overall([CONFIRMED, INCONCLUSIVE]) == INCONCLUSIVE
    assert overall([]) == INCONCLUSIVE
    good = judged("ttft_p99_ms <= -30%", (60.0, 61.0, 62.0))
    bad = judged("ttft_p99_ms <= -50%", (60.0, 61.0, 62.0))
    assert status_of([good, bad]) == PARTLY and status_of([bad, good]) == REFUTED
