"""Slow tests are dealt out in parts, and no part forgets one."""

import itertools

import pytest

from tests.support.rotation import part_of, rotating

KINDS = [*"a" * 430, *"bcd", *"e" * 9, "b"]


@pytest.mark.parametrize("num_parts", [1, 2, 64, 1000])
def test_every_test_is_in_exactly_one_part(num_parts: int):
    parts = [part_of(KINDS, part, num_parts) for part in range(1, num_parts + 1)]
    assert sorted(itertools.chain(*parts)) == list(range(len(KINDS)))
    assert all(part == sorted(part) for part in parts)


def test_neighbours_of_a_large_kind_stay_together_and_parts_are_alike():
    parts = [part_of(KINDS, part, 64) for part in range(1, 65)]
    for part in parts:
        of_a = [place for place in part if KINDS[place] == "a"]
        assert len(of_a) <= 7
        assert of_a == [of_a[0] + place for place in range(len(of_a))]
    assert max(map(len, parts)) <= 8
    assert max(sum(KINDS[place] == "e" for place in part) for part in parts) == 1


def test_what_does_not_run_always_is_slow():
    first, second = rotating(["x", ("y", 1)], always=["x"])
    assert first.values == ("x",) and not first.marks
    assert second.values == ("y", 1) and [mark.name for mark in second.marks] == ["slow"]
    with pytest.raises(AssertionError, match="not among the values"):
        rotating(["x"], always=["z"])
