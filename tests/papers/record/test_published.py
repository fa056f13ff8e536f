"""The classes of claims on made-up runs of three seeds."""

from __future__ import annotations

from dataclasses import replace

import pytest

from blis_jax.core.outcome import Outcome
from papers.record.claims import AddedMetric, AnyClaim
from papers.record.published import Classifier, ReproducedClaim
from sweeps.claims import words
from tests.papers.record.made_up import SEEDS, TAIL, claim_of, sample_of, statement_of

BASE = sample_of(
    "it00_baseline", ttft_p99_ms__critical=[200, 210, 220], ttft_p99_ms=[180, 190, 200]
)


def row_of(claim: AnyClaim, *critical: float) -> ReproducedClaim:
    ours = sample_of("it05_best", ttft_p99_ms__critical=list(critical))
    (row,) = Classifier({"it05_best": ours, "it00_baseline": BASE}, SEEDS, {}, {}).classified(
        [claim]
    )
    return row


@pytest.mark.parametrize(
    ("text", "kind"),
    [
        ("100.0 ms", words.EXACT),  # the mean of 90, 100, 110
        ("90.0 ms", words.ONE_SEED),
        ("-52.4 %", words.EXACT),  # 100 against 210
        ("-55.0 %", words.ONE_SEED),  # 90 against 200
        ("-57.1 %", words.OTHER_BASIS),  # 90 against 210
        ("-47.4 %", words.OTHER_BASIS),  # 100 against 190, all classes
        ("-52.3 %", words.OTHER_BASIS),  # -52.38 cut off
        ("52.4 %", words.CONTRADICTED),  # the sign
        ("-12.0 %", words.CONTRADICTED),
    ],
)
def test_class_of_a_figure(text: str, kind: str) -> None:
    assert row_of(claim_of(text), 90, 100, 110).kind == kind


def test_reversed_sign_is_said() -> None:
    reason = row_of(claim_of("57.1 %"), 90, 100, 110).reason
    assert "sign is reversed" in reason and "seed 42" in reason


def test_values_rounded_before_the_mean_are_a_basis_of_their_own() -> None:
    row = row_of(claim_of("100.1 ms"), 99.96, 100.06, 100.06)  # 100.03, but 100.0 and 100.1 twice
    assert row.kind == words.OTHER_BASIS and "each is rounded" in row.reason


def test_number_that_was_rounded_twice_is_on_another_basis() -> None:
    row = row_of(claim_of("100.1 ms"), 100.0, 100.04, 100.10)  # 100.0467, 100.05, 100.1
    assert row.kind == words.OTHER_BASIS and "rounded twice" in row.reason


def test_near_numbers_are_qualitative() -> None:
    assert row_of(claim_of("~98 ms", within=3), 90, 100, 110).kind == words.SAYS_SO
    assert row_of(claim_of("~91 ms", within=3), 90, 100, 110).kind == words.ONE_SEED
    assert row_of(claim_of("~70 ms", within=3), 90, 100, 110).kind == words.SAYS_OTHERWISE


def test_difference_is_ours_minus_published() -> None:
    assert row_of(claim_of("99.0 ms"), 90, 100, 110).difference == "+1.00 ms"
    assert row_of(claim_of("88..96 ms"), 90, 100, 110).difference == "+4.0 ms"
    assert row_of(claim_of("-50.0 %"), 90, 100, 110).difference == "-2.38 points"


def test_crash_has_its_name_and_meaning() -> None:
    outcomes = [Outcome.COMPLETED, Outcome.REFERENCE_CRASH, Outcome.REFERENCE_CRASH]
    crashed = sample_of("it00_baseline", outcomes=outcomes)
    ours = sample_of("it05_best")
    (row,) = Classifier({"it05_best": ours, "it00_baseline": crashed}, SEEDS, {}, {}).classified(
        [claim_of("-50 %")]
    )
    assert (row.kind, row.ours) == (words.CRASHED, "REFERENCE_CRASH")
    assert "2 of 3 runs of it00_baseline" in row.reason and "index out of range" in row.reason


@pytest.mark.parametrize(
    ("condition", "kind"),
    [
        ('{of: "ttft_p99_ms[critical]", is: below, to: it00_baseline}', words.SAYS_SO),
        ('{of: "ttft_p99_ms[critical]", is: above, to: it00_baseline}', words.SAYS_OTHERWISE),
        ('{of: "ttft_p99_ms[critical]", is: near, to: it00_baseline, within: 60}', words.SAYS_SO),
        (
            '{of: "ttft_p99_ms[critical]", is: near, to: it00_baseline, within: 9}',
            words.SAYS_OTHERWISE,
        ),
        ('{of: "ttft_p99_ms[critical]", is: near, to: it00_baseline}', words.SAYS_OTHERWISE),
        ('{of: "ttft_p99_ms[critical]", is: not above, to: it00_baseline}', words.SAYS_SO),
        ('{of: "ttft_p99_ms[standard]", is: near, to: it00_baseline}', words.SAYS_SO),
        ("{of: livelocks, is: ever above, to: 0}", words.SAYS_OTHERWISE),
        ("{of: num_preemptions, is: never above, to: 1}", words.SAYS_SO),
        ("{of: num_preemptions, is: never above, to: 0}", words.SAYS_OTHERWISE),
    ],
)
def test_class_of_a_statement(condition: str, kind: str) -> None:
    assert row_of(statement_of(condition), 90, 100, 110).kind == kind


def test_statement_of_one_seed() -> None:
    claim = statement_of('{of: "ttft_p99_ms[critical]", is: below, to: it00_baseline}')
    assert row_of(claim, 190, 300, 300).kind == words.ONE_SEED


def test_nothing_published() -> None:
    row = row_of(claim_of("none %"), 90, 100, 110)
    assert (row.kind, row.ours, row.difference) == (words.UNPUBLISHED, "-52.38 %", "")


# --- what only some records need ------------------------------------------------------------------


def test_claim_on_some_of_the_seeds() -> None:
    claim = replace(claim_of("95.0 ms"), seeds=(42, 43))  # 90 and 100, without 110
    assert row_of(claim, 90, 100, 110).kind == words.EXACT
    assert row_of(claim, 90, 110, 110).kind == words.CONTRADICTED


def test_exact_number_of_unlike_runs_has_its_own_class() -> None:
    claim = replace(claim_of("-52.4 %"), unlike="500 requests against 1,000")
    row = row_of(claim, 90, 100, 110)
    assert row.kind == words.UNLIKE and row.reason.endswith("but 500 requests against 1,000")
    assert row_of(claim, 90, 100, 120).kind == words.CONTRADICTED


def test_sum_of_two_settings() -> None:
    claim = replace(claim_of("310.0 ms"), plus=AddedMetric(of=TAIL, at="it00_baseline"))
    row = row_of(claim, 90, 100, 110)  # 100 and 210
    assert row.kind == words.EXACT and "it00_baseline" in row.claim.label


def test_ratio_to_another_setting() -> None:
    claim = replace(claim_of("0.5 x"), against="it00_baseline")
    assert row_of(claim, 90, 100, 110).kind == words.EXACT  # 100 to 210
    assert row_of(claim, 190, 100, 110).kind == words.CONTRADICTED


def test_second_metric_is_beside_the_first() -> None:
    ours = sample_of("it05_best", ttft_p99_ms__critical=[90, 100, 110], e2e_p99_ms=[7, 8, 9])
    classifier = Classifier({"it05_best": ours}, SEEDS, {TAIL: "e2e_p99_ms"}, {})
    (row,) = classifier.classified([claim_of("100.0 ms")])
    assert (row.ours, row.beside) == ("100.00 ms", "8.00 ms")


def test_claims_without_runs_say_why() -> None:
    lost = replace(claim_of("100.0 ms"), lost="the workload was not published")
    (row,) = Classifier({}, SEEDS, {}, {}).classified([lost])
    assert (row.kind, row.ours, row.reason) == (
        words.LOST,
        "",
        "the workload was not published",
    )
    missing = {"it05_best": "scorer 'x' is not registered"}
    (row,) = Classifier({}, SEEDS, {}, missing).classified([claim_of("100.0 ms")])
    assert row.kind == words.MISSING and "'x'" in row.reason


CHANGES = """{of: "ttft_p99_ms[critical]", is: %s, against: it00_baseline, to: it06_sjf_best,
    to_against: it06_sjf_baseline}"""


@pytest.mark.parametrize(
    ("relation", "kind"), [("below", words.SAYS_SO), ("above", words.SAYS_OTHERWISE)]
)
def test_changes_are_compared(relation: str, kind: str) -> None:
    """100 of 210 is a larger fall than 100 of 150."""
    flat = sample_of("it06_sjf_best", ttft_p99_ms__critical=[100, 100, 100])
    other = sample_of("it06_sjf_baseline", ttft_p99_ms__critical=[150, 150, 150])
    ours = sample_of("it05_best", ttft_p99_ms__critical=[90, 100, 110])
    samples = {s.setting.name: s for s in (BASE, flat, other, ours)}
    (row,) = Classifier(samples, SEEDS, {}, {}).classified([statement_of(CHANGES % relation)])
    assert row.kind == kind and "-52.4 % against -33.3 %" in row.reason
