"""Claims as data: how published numbers are read, and what the file must not hold."""

from __future__ import annotations

import pytest

from blis_jax.errors import ConfigError
from papers.record.claims import (
    PublishedClaim,
    Statement,
    parse_claims,
    read_published,
)
from papers.strategy_evolution.record import RECORD


def test_rounding_is_that_of_the_printed_number() -> None:
    read = read_published("-50.8 %")
    assert (read.value, read.decimals, read.unit) == (-50.8, 1, "%")
    assert read.says(-50.77, 0) and read.says(-50.84, 0) and not read.says(-50.86, 0)
    assert read_published("7 %").says(7.4, 0) and not read_published("7 %").says(7.6, 0)
    assert read_published("70.77781 ms").says(70.777812, 0)
    assert not read_published("70.77781 ms").says(70.77786, 0)


def test_cut_decimals_are_another_reading() -> None:
    read = read_published("-50.9 %")
    assert not read.says(-50.97, 0) and read.is_cut(-50.97)
    assert not read.is_cut(-51.0)


def test_near_and_ranges() -> None:
    near = read_published("~0 %")
    assert near.is_range and near.says(0.9, 1) and not near.says(-1.1, 1)
    between = read_published("88..96 ms")
    assert between.says(96.4, 0) and not between.says(96.6, 0) and between.says(87.5, 0)


@pytest.mark.parametrize("text", ["50.8", "50,8 %", "about 50 %", "", "5 apples", "~ %"])
def test_other_texts_are_no_numbers(text: str) -> None:
    with pytest.raises(ValueError, match="not a number with a unit"):
        read_published(text)


def test_every_row_of_the_ledger_is_there() -> None:
    rows = {claim.row.split()[0] for claim in RECORD.claims}
    assert rows == {"0", "1", "1-opt", "2", "3", "4", "5", "6", "7", "8", "8-opt", "9", "10", "11"}
    kinds = {type(claim) for claim in RECORD.claims}
    assert kinds == {PublishedClaim, Statement}


def test_changes_have_something_to_change_against() -> None:
    for claim in RECORD.claims:
        if isinstance(claim, PublishedClaim):
            assert (claim.against is not None) == claim.is_change


_ROW = '- {row: "5", title: t, at: it05_best, claims: [%s]}'


@pytest.mark.parametrize(
    ("entry", "problem"),
    [
        ("{of: gap, published: 3 %}", "against"),
        ("{of: gap, published: three}", "not a number"),
        ("{of: gap}", "either"),
        ("{statement: s}", "either"),
        ("{of: gap, published: 3 x, at: it05_bets}", "did you mean 'it05_best'"),
        ("{of: gap, published: 3 x, typo: 1}", "typo"),
        ("{statement: s, conditions: [{of: gap, is: below, to: 3}]}", "does not go with"),
    ],
)
def test_refusals_name_the_place(entry: str, problem: str) -> None:
    with pytest.raises(ConfigError, match=problem):
        parse_claims(_ROW % entry, "claims", RECORD.settings)
