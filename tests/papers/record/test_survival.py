"""Verdicts on made-up runs of many seeds."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest

from blis_jax.core.outcome import Outcome
from papers.record.claims import AnyClaim
from papers.record.survival import SurvivalFinding, judged
from sweeps.claims import words
from tests.papers.record.made_up import claim_of, sample_of, statement_of

SEEDS = range(300)
NOISE = np.random.default_rng(5).normal(0, 20, len(SEEDS))
BASE = sample_of("it00_baseline", SEEDS, ttft_p99_ms__critical=200 + NOISE)


def verdict_of(claim: AnyClaim, critical: np.ndarray) -> SurvivalFinding:
    ours = sample_of("it05_best", SEEDS, ttft_p99_ms__critical=critical)
    (verdict,) = judged([claim], {"it05_best": ours, "it00_baseline": BASE}, {})
    return verdict


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("-50.0 %", words.SURVIVES),
        ("-54.0 %", words.SURVIVES),
        ("-60.0 %", words.DIRECTION),
        ("10.0 %", words.SURVIVES_NOT),
        ("100.0 ms", words.SURVIVES),
        ("120.0 ms", words.SURVIVES_NOT),
        ("none %", words.UNPUBLISHED),
    ],
)
def test_verdict_of_a_figure(text: str, expected: str) -> None:
    assert verdict_of(claim_of(text), 100 + NOISE / 2).verdict.word == expected


def test_change_that_chance_explains_has_no_direction() -> None:
    noise = np.random.default_rng(6).normal(0, 30, len(SEEDS))
    assert verdict_of(claim_of("-2.0 %"), 200 + NOISE + noise).verdict.word == words.SURVIVES_NOT


def test_pairing_narrows_the_interval() -> None:
    paired = verdict_of(claim_of("-50.0 %"), 100 + NOISE / 2).estimate
    shuffled = verdict_of(claim_of("-50.0 %"), 100 + NOISE[::-1] / 2).estimate
    assert paired.mean == pytest.approx(shuffled.mean)
    assert paired.high - paired.low < 0.1 * (shuffled.high - shuffled.low)


def test_near_numbers_need_the_whole_interval() -> None:
    assert verdict_of(claim_of("~100 ms", within=3), 100 + NOISE / 2).verdict.word == words.SURVIVES
    assert (
        verdict_of(claim_of("~100 ms", within=0.5), 100 + NOISE).verdict.word == words.SURVIVES_NOT
    )


def test_more_than_about_a_change_keeps_its_direction() -> None:
    verdict = verdict_of(claim_of("~-30 %", within=5), 100 + NOISE / 2)
    assert verdict.verdict.word == words.DIRECTION
    assert (
        verdict_of(claim_of("~0 %", within=5), 100 + NOISE / 2).verdict.word == words.SURVIVES_NOT
    )


def test_spread_of_three_seeds_is_that_of_their_means() -> None:
    """95 % of means of three lie within 1.96 σ/√3; 100 triples, so within a fifth of it."""
    low, high = verdict_of(claim_of("100.0 ms"), 100 + NOISE).spread
    half = 1.96 * NOISE.std(ddof=1) / np.sqrt(3)
    assert (high - low) / 2 == pytest.approx(half, rel=0.2)


def test_lost_runs_are_left_out_and_named() -> None:
    outcomes = [Outcome.REFERENCE_CRASH] * 40 + [Outcome.COMPLETED] * (len(SEEDS) - 40)
    ours = sample_of("it05_best", SEEDS, outcomes, ttft_p99_ms__critical=100 + NOISE / 2)
    (found,) = judged([claim_of("-50.0 %")], {"it05_best": ours, "it00_baseline": BASE}, {})
    assert (
        found.num_seeds == len(SEEDS) - 40 and "40 of 300 runs of it05_best" in found.verdict.reason
    )
    num_left = len(SEEDS) // 2 - 1  # too few to stand for all
    outcomes = [Outcome.COMPLETED] * num_left + [Outcome.REFERENCE_CRASH] * (len(SEEDS) - num_left)
    crashed = sample_of("it05_best", SEEDS, outcomes, ttft_p99_ms__critical=100 + NOISE / 2)
    (found,) = judged([claim_of("-50.0 %")], {"it05_best": crashed, "it00_baseline": BASE}, {})
    assert found.verdict.word == words.NO_FIGURES


@pytest.mark.parametrize(
    ("condition", "expected"),
    [
        ('{of: "ttft_p99_ms[critical]", is: below, to: it00_baseline}', words.SURVIVES),
        ('{of: "ttft_p99_ms[critical]", is: above, to: it00_baseline}', words.SURVIVES_NOT),
        (
            '{of: "ttft_p99_ms[critical]", is: near, to: it00_baseline, within: 60}',
            words.SURVIVES,
        ),
        (
            '{of: "ttft_p99_ms[critical]", is: near, to: it00_baseline, within: 9}',
            words.SURVIVES_NOT,
        ),
        ("{of: num_preemptions, is: never above, to: 0}", words.SURVIVES_NOT),
        ("{of: livelocks, is: ever above, to: 0}", words.SURVIVES_NOT),
    ],
)
def test_verdict_of_a_statement(condition: str, expected: str) -> None:
    assert verdict_of(statement_of(condition), 100 + NOISE / 2).verdict.word == expected


def test_statement_within_chance_is_undecided() -> None:
    claim = statement_of('{of: "ttft_p99_ms[critical]", is: below, to: it00_baseline}')
    noise = np.random.default_rng(7).normal(0, 30, len(SEEDS))
    verdict = verdict_of(claim, 200 + NOISE + noise - noise.mean())
    assert verdict.verdict.word == words.UNDECIDED


def test_near_is_undecided_where_the_interval_is_wide_around_it() -> None:
    claim = statement_of('{of: "ttft_p99_ms[critical]", is: near, to: it00_baseline, within: 1}')
    noise = np.random.default_rng(9).normal(0, 60, len(SEEDS))
    verdict = verdict_of(claim, 200 + NOISE + noise - noise.mean())
    assert verdict.verdict.word == words.UNDECIDED


@pytest.mark.parametrize(
    ("factor", "expected"),
    [(0.5, words.SURVIVES), (1.005, words.SURVIVES), (1.2, words.SURVIVES_NOT)],
)
def test_not_above_allows_what_is_within(factor: float, expected: str) -> None:
    claim = statement_of(
        '{of: "ttft_p99_ms[critical]", is: not above, to: it00_baseline, within: 1}'
    )
    assert verdict_of(claim, factor * (200 + NOISE)).verdict.word == expected


def test_changes_are_compared_by_seed() -> None:
    """A fall by half against one by a third; then one that chance explains."""
    text = """{of: "ttft_p99_ms[critical]", is: below, against: it00_baseline, to: it06_sjf_best,
        to_against: it06_sjf_baseline}"""
    other = sample_of("it06_sjf_baseline", SEEDS, ttft_p99_ms__critical=200 + NOISE)
    ours = sample_of("it05_best", SEEDS, ttft_p99_ms__critical=100 + NOISE / 2)
    noise = np.random.default_rng(8).normal(0, 10, len(SEEDS))
    for share, expected in ((2 / 3, words.SURVIVES), (0.5, words.UNDECIDED)):
        values = share * (200 + NOISE) + noise - noise.mean()
        flat = sample_of("it06_sjf_best", SEEDS, ttft_p99_ms__critical=values)
        samples = {s.setting.name: s for s in (BASE, other, ours, flat)}
        (found,) = judged([statement_of(text)], samples, {})
        assert found.verdict.word == expected and "points [" in found.verdict.reason


def test_claims_without_runs_are_not_judged() -> None:
    lost = replace(claim_of("100.0 ms"), lost="no code")
    missing = {"it05_best": "no scorer"}
    found = judged([lost, claim_of("100.0 ms")], {}, missing)
    assert [(one.verdict.word, one.verdict.reason) for one in found] == [
        (words.LOST, "no code"),
        (words.MISSING, "no scorer"),
    ]
