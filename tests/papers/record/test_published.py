"""The classes of claims on made-up runs of three seeds."""

from __future__ import annotations

import csv
import re
from collections import Counter

import pytest

from blis_jax.engine.types import Outcome
from papers.record import published
from papers.record.claims import AnyClaim
from papers.record.published import PublishedRow, classified
from tests.papers.record.made_up import claim_of, sample_of, statement_of
from tests.support.reference_data import REPO_ROOT

BASE = sample_of(
    "it00_baseline", ttft_p99_ms__critical=[200, 210, 220], ttft_p99_ms=[180, 190, 200]
)


def row_of(claim: AnyClaim, *critical: float) -> PublishedRow:
    ours = sample_of("it05_best", ttft_p99_ms__critical=list(critical))
    (row,) = classified([claim], {"it05_best": ours, "it00_baseline": BASE})
    return row


@pytest.mark.parametrize(
    ("text", "kind"),
    [
        ("100.0 ms", published.EXACT),  # the mean of 90, 100, 110
        ("90.0 ms", published.ONE_SEED),
        ("-52.4 %", published.EXACT),  # 100 against 210
        ("-55.0 %", published.ONE_SEED),  # 90 against 200
        ("-57.1 %", published.OTHER_BASIS),  # 90 against 210
        ("-47.4 %", published.OTHER_BASIS),  # 100 against 190, all classes
        ("-52.3 %", published.OTHER_BASIS),  # -52.38 cut off
        ("52.4 %", published.CONTRADICTED),  # the sign
        ("-12.0 %", published.CONTRADICTED),
    ],
)
def test_class_of_a_figure(text: str, kind: str) -> None:
    assert row_of(claim_of(text), 90, 100, 110).kind == kind


def test_reversed_sign_is_said() -> None:
    reason = row_of(claim_of("57.1 %"), 90, 100, 110).reason
    assert "sign is reversed" in reason and "seed 42" in reason


def test_values_rounded_before_the_mean_are_a_basis_of_their_own() -> None:
    row = row_of(claim_of("100.1 ms"), 99.96, 100.06, 100.06)  # 100.03, but 100.0 and 100.1 twice
    assert row.kind == published.OTHER_BASIS and "each is rounded" in row.reason


def test_near_numbers_are_qualitative() -> None:
    assert row_of(claim_of("~98 ms", within=3), 90, 100, 110).kind == published.HOLDS
    assert row_of(claim_of("~91 ms", within=3), 90, 100, 110).kind == published.ONE_SEED
    assert row_of(claim_of("~70 ms", within=3), 90, 100, 110).kind == published.HOLDS_NOT


def test_difference_is_ours_minus_published() -> None:
    assert row_of(claim_of("99.0 ms"), 90, 100, 110).difference == "+1.00 ms"
    assert row_of(claim_of("88..96 ms"), 90, 100, 110).difference == "+4.0 ms"
    assert row_of(claim_of("-50.0 %"), 90, 100, 110).difference == "-2.38 points"


def test_crash_has_its_name_and_meaning() -> None:
    outcomes = [Outcome.COMPLETED, Outcome.REFERENCE_CRASH, Outcome.REFERENCE_CRASH]
    crashed = sample_of("it00_baseline", outcomes=outcomes)
    ours = sample_of("it05_best")
    (row,) = classified([claim_of("-50 %")], {"it05_best": ours, "it00_baseline": crashed})
    assert (row.kind, row.ours) == (published.CRASHED, "REFERENCE_CRASH")
    assert "2 of 3 runs of it00_baseline" in row.reason and "index out of range" in row.reason


@pytest.mark.parametrize(
    ("condition", "kind"),
    [
        ('{of: "ttft_p99_ms[critical]", is: below, to: it00_baseline}', published.HOLDS),
        ('{of: "ttft_p99_ms[critical]", is: above, to: it00_baseline}', published.HOLDS_NOT),
        ('{of: "ttft_p99_ms[critical]", is: near, to: it00_baseline, within: 60}', published.HOLDS),
        (
            '{of: "ttft_p99_ms[critical]", is: near, to: it00_baseline, within: 9}',
            published.HOLDS_NOT,
        ),
        ('{of: "ttft_p99_ms[critical]", is: near, to: it00_baseline}', published.HOLDS_NOT),
        ('{of: "ttft_p99_ms[critical]", is: not above, to: it00_baseline}', published.HOLDS),
        ('{of: "ttft_p99_ms[standard]", is: near, to: it00_baseline}', published.HOLDS),
        ("{of: livelocks, is: ever above, to: 0}", published.HOLDS_NOT),
        ("{of: num_preemptions, is: never above, to: 1}", published.HOLDS),
        ("{of: num_preemptions, is: never above, to: 0}", published.HOLDS_NOT),
    ],
)
def test_class_of_a_statement(condition: str, kind: str) -> None:
    assert row_of(statement_of(condition), 90, 100, 110).kind == kind


def test_statement_of_one_seed() -> None:
    claim = statement_of('{of: "ttft_p99_ms[critical]", is: below, to: it00_baseline}')
    assert row_of(claim, 190, 300, 300).kind == published.ONE_SEED


def test_nothing_published() -> None:
    row = row_of(claim_of("none %"), 90, 100, 110)
    assert (row.kind, row.ours, row.difference) == (published.UNPUBLISHED, "-52.38 %", "")


def test_the_page_accounts_for_every_claim() -> None:
    def counts(name: str, column: str) -> Counter[str]:
        path = REPO_ROOT / "papers" / "strategy_evolution" / "results" / name
        with path.open(encoding="utf-8", newline="") as file:
            return Counter(row[column] for row in csv.DictReader(file))

    text = " ".join(
        (REPO_ROOT / "docs" / "results" / "scheduling-record.md")
        .read_text(encoding="utf-8")
        .split()
    )
    found = re.search(
        r"(\d+) are exact, (\d+) are of seed 42 alone, (\d+) are found on another basis [^,]*, (\d+) on none "
        r"[^,]*, (\d+) of (\d+) qualitative ones hold, (\d+) cannot be had because BLIS crashes, and for "
        r"(\d+) the record has no number: (\d+) in all",
        text,
    )
    assert found is not None
    *said, total = map(int, found.groups())
    kinds = counts("published.csv", "class")
    *figures, holds, holds_not, crashed, unpublished, _ = (
        kinds[kind] for kind in published.CLASSES
    )
    assert said == [*figures, holds, holds + holds_not, crashed, unpublished]
    assert sum(said) - holds == total == kinds.total() == 110
    found = re.search(
        r"(\d+) survive, (\d+) keep only their direction, (\d+) do not survive, (\d+) stay undecided, and (\d+) "
        "have no figure",
        text,
    )
    assert found is not None
    verdicts = counts("survival_jax_1000.csv", "verdict")
    names = ("survives", "direction only", "does not survive", "undecided")
    without = verdicts["no figures"] + verdicts["nothing published"]
    assert list(map(int, found.groups())) == [*(verdicts[name] for name in names), without]
    assert sum(map(int, found.groups())) == 110
