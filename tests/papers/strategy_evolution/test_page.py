"""The page of results says what the tables that come with the package say."""

from __future__ import annotations

import csv
import re
from collections import Counter

from sweeps.claims import words
from tests.support.recorded.reference_data import REPO_ROOT


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
        r"Of the (\d+) claims, on the record's own seeds and requests, (\d+) are exact, (\d+) report seed 42 "
        r"alone, and (\d+) agree on another basis, [^.]*\. (\d+) agree on no basis [^.]*\. "
        r"Of (\d+) qualitative claims (\d+) hold\. "
        r"(\d+) claims cannot be computed because BLIS crashes, and for (\d+) the record has no number",
        text,
    )
    assert found is not None
    total, *said = map(int, found.groups())
    kinds = counts("published.csv", "class")
    figures = [
        kinds[kind]
        for kind in (
            words.EXACT,
            words.ONE_SEED,
            words.OTHER_BASIS,
            words.CONTRADICTED,
        )
    ]
    holds, holds_not = kinds[words.SAYS_SO], kinds[words.SAYS_OTHERWISE]
    crashed, unpublished = kinds[words.CRASHED], kinds[words.UNPUBLISHED]
    assert said == [*figures, holds + holds_not, holds, crashed, unpublished]
    assert sum(said) - holds == total == kinds.total() == 110
    found = re.search(
        r"(\d+) claims survive, (\d+) keep only their direction, (\d+) do not survive, (\d+) stay undecided, and (\d+) "
        "have no figure",
        text,
    )
    assert found is not None
    verdicts = counts("survival_jax_1000.csv", "verdict")
    names = ("survives", "direction only", "does not survive", "undecided")
    without = verdicts["no figures"] + verdicts["nothing published"]
    assert list(map(int, found.groups())) == [*(verdicts[name] for name in names), without]
    assert sum(map(int, found.groups())) == 110
