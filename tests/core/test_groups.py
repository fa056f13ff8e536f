"""Folds over the groups that have something give what a fold over all requests gives."""

from __future__ import annotations

from typing import TYPE_CHECKING

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from blis_jax.core.groups import Groups
from blis_jax.core.types import EngineShape
from blis_jax.tables.journeys import Journeys, Reservations

if TYPE_CHECKING:
    from blis_jax.core.groups import Rows

SIZES = [1, 2, 15, 16, 17, 63, 64, 65, 300, 1000]


@pytest.mark.parametrize("num_requests", SIZES)
def test_every_request_is_in_one_group_and_the_spare_one_in_none(num_requests: int) -> None:
    groups = Groups(num_requests)
    seen = [
        np.asarray(rows.number)[np.asarray(rows.is_in)]
        for rows in map(groups.rows, jnp.arange(groups.count, dtype=jnp.int32))
    ]
    assert np.concatenate(seen).tolist() == list(range(num_requests))
    for group, numbers in enumerate(seen):
        assert (np.asarray(groups.of(jnp.asarray(numbers))) == group).all()
    assert groups.of(jnp.int32(num_requests)) < groups.count


@pytest.mark.parametrize("num_requests", SIZES)
def test_a_fold_over_open_groups_is_that_over_all(num_requests: int) -> None:
    groups, draws = Groups(num_requests), np.random.default_rng(num_requests)
    rare = draws.random(num_requests + 1) < 2 / num_requests
    values = jnp.where(jnp.asarray(rare), jnp.asarray(draws.integers(1, 99, rare.size)), 0)
    is_open = jnp.asarray(
        [
            bool(rare[first : first + groups.size].any())
            for first in range(0, groups.count * groups.size, groups.size)
        ]
    )

    def fold(so_far: tuple[jax.Array, jax.Array], rows: Rows) -> tuple[jax.Array, jax.Array]:
        mine = jnp.where(rows.is_in, rows.take(values), 0)
        return so_far[0] + mine.sum(), jnp.maximum(so_far[1], mine.max())

    first = jnp.zeros((), values.dtype), jnp.zeros((), values.dtype)
    some = groups.over(is_open, fold, first, whole=False)
    every = groups.over(is_open, fold, first, whole=True)
    expected = np.asarray(values)[:-1]
    assert (
        [int(one) for one in some]
        == [int(one) for one in every]
        == [expected.sum(), expected.max(initial=0)]
    )


@pytest.mark.parametrize("num_requests", SIZES)
def test_a_fold_between_two_requests_reads_both_of_them_and_what_lies_between(
    num_requests: int,
) -> None:
    groups, draws = Groups(num_requests), np.random.default_rng(num_requests)
    start, end = sorted(draws.integers(num_requests, size=2).tolist())

    def fold(so_far: jax.Array, rows: Rows) -> jax.Array:
        is_between = (rows.number >= start) & (rows.number <= end)
        return so_far + jnp.sum(jnp.where(rows.is_in & is_between, rows.number, 0))

    for whole in (False, True):
        ends = jnp.int32(start), jnp.int32(end)
        found = groups.between(ends, fold, jnp.int32(0), whole=whole)
        assert int(found) == sum(range(start, end + 1))


def test_a_fold_between_nobody_and_nobody_reads_no_group() -> None:
    groups = Groups(300)
    found = groups.between(
        (jnp.int32(300), jnp.int32(-1)), lambda seen, rows: seen + 1, jnp.int32(0), whole=False
    )
    assert int(found) == 0


def test_summaries_of_journeys_and_reservations_follow_their_rows() -> None:
    """The earliest of each group; of ends of transfers a bound that none passes. The spare row counts nowhere."""
    shape = EngineShape(num_instances=1, num_slots=1, num_requests=100, num_nodes=0, path_depth=1)
    groups, draws = Groups(100), np.random.default_rng(5)
    journeys, reserved = Journeys.first(shape), Reservations.first(shape)
    never = journeys.first_due.max()
    put, put_reserved = (
        jax.jit(Journeys.put, static_argnums=1),
        jax.jit(Reservations.put, static_argnums=1),
    )
    for _ in range(300):
        request = jnp.int32(draws.integers(0, 101))
        time = jnp.asarray(draws.choice([int(never), int(draws.integers(0, 1000))]), never.dtype)
        journeys = put(journeys, groups, request, journeys.of(request).replace(due=time))
        reserved = put_reserved(reserved, groups, request, reserved.of(request).replace(ends=time))
    due, ends = np.asarray(journeys.times[:-1, 0]), np.asarray(reserved.times[:-1, 0])
    for group in range(groups.count):
        rows = slice(group * groups.size, (group + 1) * groups.size)
        assert journeys.first_due[group] == due[rows].min(initial=int(never))
        finite = ends[rows][ends[rows] < int(never)]
        assert reserved.last_end[group] >= finite.max(initial=-1)
