"""Whether claims survive without the defects, on made-up runs of both profiles."""

from __future__ import annotations

import math

import pytest

from blis_jax.core.outcome import Outcome
from papers.corrected import profiles
from papers.corrected.profiles import judged_profiles, without_defects
from papers.record.claims import AnyClaim
from papers.record.runs import SettingSample
from papers.strategy_evolution.record import RECORD
from sweeps.claims import words
from tests.papers.record.made_up import claim_of, sample_of, statement_of

CRITICAL = "ttft_p99_ms__critical"


def both(exact: float, corrected: float, base: float = 100.0) -> list[dict[str, SettingSample]]:
    """Runs of iteration 5 and of the baseline under both profiles."""
    return [
        {
            "it05_best": sample_of(**{CRITICAL: [value] * 3}),
            "it00_baseline": sample_of("it00_baseline", **{CRITICAL: [base] * 3}),
        }
        for value in (exact, corrected)
    ]


def verdict(claim: AnyClaim, exact: float, corrected: float) -> profiles.ClaimByProfile:
    (found,) = judged_profiles(RECORD, [claim], *both(exact, corrected))
    return found


@pytest.mark.parametrize(
    ("exact", "corrected", "expected"),
    [
        (50.0, 52.0, words.SURVIVES),
        (50.0, 80.0, words.DIRECTION),
        (50.0, 120.0, words.NEEDS_DEFECTS),
        (80.0, 51.0, words.NEEDS_NONE),
        (80.0, 70.0, words.BOTH_SIDES),
        (80.0, 130.0, words.NEITHER),
        (120.0, 130.0, words.NEITHER),
    ],
)
def test_a_change_is_held_against_both_profiles(
    exact: float, corrected: float, expected: str
) -> None:
    found = verdict(claim_of("-50.0 %"), exact, corrected)
    assert found.verdict == expected
    assert found.shift == f"{corrected - exact:+.1f} points"


def test_a_number_has_the_tolerance_of_the_records() -> None:
    assert verdict(claim_of("50.0 ms"), 50.0, 54.9).verdict == words.SURVIVES
    assert verdict(claim_of("50.0 ms"), 50.0, 56.0).verdict == words.NEEDS_DEFECTS
    assert verdict(claim_of("50.0 ms"), 50.0, 50.0).shift == "none"


def test_a_statement_is_judged_under_each_profile() -> None:
    claim = statement_of('{of: "ttft_p99_ms[critical]", is: below, to: it00_baseline}')
    assert verdict(claim, 90.0, 95.0).verdict == words.SURVIVES
    assert verdict(claim, 90.0, 105.0).verdict == words.NEEDS_DEFECTS
    assert verdict(claim, 105.0, 90.0).verdict == words.NEEDS_NONE
    assert verdict(claim, 105.0, 106.0).verdict == words.NEITHER


def test_runs_without_an_end_have_no_verdict_of_their_own() -> None:
    exact, corrected = both(50.0, 50.0)
    crashed = sample_of(outcomes=[Outcome.COMPLETED, Outcome.REFERENCE_CRASH, Outcome.COMPLETED])
    claim = claim_of("-50.0 %")
    (lost,) = judged_profiles(RECORD, [claim], exact, corrected | {"it05_best": crashed})
    assert lost.verdict == words.NO_FIGURES
    (found,) = judged_profiles(RECORD, [claim], exact | {"it05_best": crashed}, corrected)
    assert found.verdict == words.NEEDS_NONE and "with the defects" in found.reason


def test_surprises_are_turned_conclusions_by_how_far_they_move() -> None:
    small = verdict(claim_of("-50.0 %"), 50.0, 120.0)
    large = verdict(claim_of("-50.0 %"), 50.0, 5000.0)
    number = verdict(claim_of("50.0 ms"), 50.0, 9000.0)
    kept = verdict(claim_of("-50.0 %"), 50.0, 51.0)
    found = profiles.surprises([small, large, number, kept])
    assert found == [large]  # the small one has the same workload and memory
    assert large.moved is not None
    assert math.isclose(large.moved.log_ratio, math.log(100))


def test_only_the_profile_of_a_setting_changes() -> None:
    setting = RECORD.settings["it05_best"]
    made = without_defects(setting)
    assert made.config == setting.config.replace(corrected=True)
    assert made.name == setting.name and made.identity != setting.identity
