"""The page of results says what the tables that come with the package say."""

from __future__ import annotations

import csv
import re
from collections import Counter

from papers.routing_evolution.record import RECORD
from sweeps.claims import words
from sweeps.claims.words import UNTESTED
from sweeps.principles.catalogue import load_catalogue
from tests.support.recorded.reference_data import REPO_ROOT

PAGE = REPO_ROOT / "docs" / "results" / "routing-record.md"


def table(name: str) -> list[dict[str, str]]:
    with (RECORD.folder / "results" / name).open(encoding="utf-8", newline="") as file:
        return list(csv.DictReader(file))


def counts(name: str, column: str) -> Counter[str]:
    return Counter(row[column] for row in table(name))


def numbers(pattern: str) -> list[int]:
    found = re.search(pattern, " ".join(PAGE.read_text(encoding="utf-8").split()))
    assert found is not None
    return [int(number) for number in found.groups()]


def test_the_page_accounts_for_every_claim() -> None:
    said = numbers(
        r"(\d+) of (\d+) claims are exact and (\d+) is exact, but [^.]*\. (\d+) is on another basis, (\d+) holds for "
        r"seed 42 alone, (\d+) are contradicted. Of (\d+) qualitative ones (\d+) hold and (\d+) do not. (\d+) numbers "
        r"are ours[^.]*\. (\d+) cannot be computed again"
    )
    kinds = counts("published.csv", "class")
    holds, holds_not = kinds[words.SAYS_SO], kinds[words.SAYS_OTHERWISE]
    assert said == [
        kinds[words.EXACT],
        kinds.total(),
        kinds[words.UNLIKE],
        kinds[words.OTHER_BASIS],
        kinds[words.ONE_SEED],
        kinds[words.CONTRADICTED],
        holds + holds_not,
        holds,
        holds_not,
        kinds[words.UNPUBLISHED],
        kinds[words.LOST],
    ]
    assert kinds.total() == len(RECORD.claims)


def test_the_page_accounts_for_every_verdict() -> None:
    said = numbers(
        r"Of (\d+) claims (\d+) survive, (\d+) keep only their direction, (\d+) do not survive, and (\d+) stay "
        r"undecided\. (\d+) are numbers of ours, and (\d+) cannot be computed again"
    )
    verdicts = counts("survival_jax_1000.csv", "verdict")
    names = (
        words.SURVIVES,
        words.DIRECTION,
        words.SURVIVES_NOT,
        words.UNDECIDED,
        words.UNPUBLISHED,
        words.LOST,
    )
    assert said == [verdicts.total(), *(verdicts[name] for name in names)]


def test_the_page_has_the_verdict_of_every_principle() -> None:
    entries = [one for one in load_catalogue().entries.values() if one.id.startswith("RP-")]
    assert len(entries) == 14
    lines = PAGE.read_text(encoding="utf-8").splitlines()
    for entry in entries:
        assert entry.verdict != UNTESTED
        begin = f"| {entry.id} | {entry.statement} | {entry.verdict} | "
        assert sum(line.startswith(begin) for line in lines) == 1, entry.id


def test_the_page_accounts_for_what_pooling_changes() -> None:
    said = numbers(
        r"Of (\d+) claims about a P99, (\d+) get another verdict\. (\d+) of these are levels"
    )
    rows = [row for row in table("survival_jax_1000.csv") if row["pooled_verdict"]]
    others = [row for row in rows if row["pooled_verdict"] != row["verdict"]]
    levels = [row for row in others if row["published"] != "statement"]
    assert said == [len(rows), len(others), len(levels)]
