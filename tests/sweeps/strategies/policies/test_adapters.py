"""Homes of LoRA adapters: as many as there are slots, and the least loaded one is taken."""

from __future__ import annotations

import collections
import dataclasses

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from sweeps.strategies.policies.adapters import adapter_homes
from tests.policies.contexts import asked, choice


def taken(adapter: int, loads: list[int], **numbers: float) -> int:
    with jax.enable_x64(True):
        context = dataclasses.replace(asked(loads), adapter=jnp.int32(adapter))
        return choice(adapter_homes, context, **numbers)


def homes(adapter: int, size: int, **numbers: float) -> set[int]:
    """The instances that are ever taken: each is made the least loaded one in turn."""
    return {
        taken(adapter, [0 if place == least else 9 for place in range(size)], **numbers)
        for least in range(size)
    }


@pytest.mark.parametrize("size", [1, 3, 4])
@pytest.mark.parametrize(("adapters", "slots"), [(7, 1), (7, 2), (8, 3), (5, 4), (4, 9)])
def test_no_instance_has_more_homes_than_slots_if_they_suffice(
    size: int, adapters: int, slots: int
) -> None:
    of = [homes(one, size, adapters=adapters, slots=slots) for one in range(adapters)]
    held = collections.Counter(place for own in of for place in own)
    assert min(len(own) for own in of) >= 1
    most = max(held.values())
    assert most <= max(slots, -(-adapters // size))
    assert sum(held.values()) == min(size * adapters, max(size * slots, adapters))
    sizes = [len(own) for own in of]
    assert sizes == sorted(sizes, reverse=True)  # the most popular ones have most


def test_the_load_of_homes_dealt_out_backwards_is_even() -> None:
    first = [homes(one, 4, adapters=16, slots=4) for one in range(16)]
    shares = np.zeros(4)
    for place, own in enumerate(first, 1):
        shares[own.pop()] += 1 / place
    in_turn = np.zeros(4)
    np.add.at(in_turn, np.arange(16) % 4, 1 / np.arange(1, 17))
    assert shares.max() < in_turn.max() and shares.min() > in_turn.min()


def test_a_home_is_left_only_for_much_less_load() -> None:
    numbers = {"adapters": 4, "slots": 1, "stray": 5}
    assert taken(2, [0, 9, 4, 9], **numbers) == 2
    assert taken(2, [0, 9, 6, 9], **numbers) == 0
    assert taken(2, [0, 9, 1000, 9], adapters=4, slots=1) == 2


def test_a_request_without_an_adapter_goes_where_there_is_least_load() -> None:
    assert taken(-1, [3, 2, 1, 2], adapters=4, slots=1) == 2
