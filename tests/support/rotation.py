"""Which slow tests run when: of cases that repeat a kind one runs always, the others rotate in parts."""

from __future__ import annotations

import itertools
from collections.abc import Collection, Hashable, Iterable, Sequence
from typing import Any

import pytest


def rotating(values: Iterable[Any], *, always: Collection[Any]) -> list[Any]:
    """The values as parameters of a test; those that are not in `always` are slow."""
    values = list(values)
    missing = [one for one in always if one not in values]
    assert not missing, f"not among the values: {missing}"
    return [
        pytest.param(
            *(one if isinstance(one, tuple) else (one,)),
            marks=[] if one in always else pytest.mark.slow,
        )
        for one in values
    ]


def part_of(kinds: Sequence[Hashable], part: int, num_parts: int) -> list[int]:
    """Places of the tests in the K-th of N parts, given what kind each is of; every test is in one part.

    A kind with more tests than there are parts is dealt out in pieces of neighbours, which share what they compile.
    """
    places: dict[Hashable, list[int]] = {}
    for place, kind in enumerate(kinds):
        places.setdefault(kind, []).append(place)
    pieces: list[list[int]] = []
    for of_kind in places.values():
        size = -(-len(of_kind) // num_parts)
        pieces += [of_kind[start : start + size] for start in range(0, len(of_kind), size)]
    return sorted(itertools.chain.from_iterable(pieces[part - 1 :: num_parts]))
