"""Short vectors with named entries: as one array, or with the entries apart, they mean the same."""

from __future__ import annotations

import enum

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from blis_jax.core.columns import (
    Columns,
    Moment,
    Row,
    Whole,
    apart,
    branch,
    build,
    choose,
    get,
    is_apart,
    masked,
    put,
    selected,
    tail,
    together,
    with_tail,
)
from blis_jax.tables.joined import add_chain, first_chain, has_chain, take_chain

ROW = jnp.array([3, 1, 4, 1, 5], jnp.int32)
NEVER = jnp.int32(99)


class Name(enum.IntEnum):
    FIRST = 0
    SECOND = 1


def same(mine: object, array: jax.Array) -> None:
    for whole in (together(mine), selected(mine)):
        np.testing.assert_array_equal(whole, array)
        assert whole.dtype == array.dtype


def test_apart_and_back() -> None:
    same(apart(ROW), ROW)
    assert is_apart(apart(ROW)) and not is_apart(ROW)
    once = apart(ROW)
    assert apart(once) is once


def test_both_kinds_read_and_change_alike() -> None:
    assert [int(get(apart(ROW), place)) for place in range(5)] == ROW.tolist()
    changes = {1: jnp.int32(7), 4: jnp.array(True)}
    same(put(apart(ROW), changes), put(ROW, changes))
    same(tail(apart(ROW), 3), tail(ROW, 3))
    end = jnp.array([8, 9], jnp.int32)
    for new in (end, apart(end)):
        same(with_tail(apart(ROW), 3, new), with_tail(ROW, 3, end))


def test_a_built_vector_has_one_dtype() -> None:
    values = {Name.SECOND: jnp.array(True), Name.FIRST: jnp.int32(5)}
    same(build(Name, values, jnp.int32), jnp.array([5, 1], jnp.int32))


@pytest.mark.parametrize("holds", [True, False])
def test_a_choice_stays_apart_if_either_side_is(holds: bool) -> None:
    other, predicate = ROW + 10, jnp.array(holds)
    wanted = ROW if holds else other
    for one, two in ((apart(ROW), other), (ROW, apart(other)), (apart(ROW), apart(other))):
        found = choose(predicate, {"row": one, "number": 1}, {"row": two, "number": 2})
        assert is_apart(found["row"]) and int(found["number"]) == (1 if holds else 2)
        same(found["row"], wanted)
    assert not is_apart(choose(predicate, ROW, other))


def test_vectors_come_together_where_a_branch_ends_and_stay_apart_under_a_mask() -> None:
    true = jnp.array(True)

    def of(when: object) -> object:
        return when(true, lambda: apart(ROW), lambda: ROW + 1)  # type: ignore[operator]

    assert not is_apart(of(branch)) and is_apart(of(masked))
    same(of(branch), ROW)
    same(of(masked), ROW)


def test_step_events_apart_are_taken_and_added_as_in_one_array() -> None:
    rng = np.random.default_rng(0)
    for _ in range(60):
        chains = jnp.asarray(rng.choice([5, 6, 99], 4), jnp.int32)
        time, count = jnp.int32(rng.choice([5, 6])), jnp.int32(rng.integers(0, 5))
        assert bool(has_chain(apart(chains), time)) == bool(has_chain(chains, time))
        assert int(first_chain(apart(chains))) == int(first_chain(chains))
        for change in (add_chain, take_chain):
            rest, fits = change(chains, time, count, NEVER)
            rest_apart, fits_apart = change(apart(chains), time, count, NEVER)
            assert isinstance(rest_apart, Columns) and bool(fits) == bool(fits_apart)
            same(rest_apart, rest)


class Visit(Row):
    """A row with both kinds of fields, not in order of their kinds."""

    guest: Whole
    came: Moment
    rooms: Whole
    left: Moment


def test_a_row_is_built_read_and_changed_by_field() -> None:
    one = Visit.make(jnp.float32, guest=3, came=1.5, rooms=jnp.array(True), left=9)
    assert [int(one.guest), float(one.came), int(one.rooms), float(one.left)] == [3, 1.5, 1, 9.0]
    other = one.replace(came=jnp.float32(2.5), rooms=jnp.int32(7))
    assert [int(other.guest), float(other.came), int(other.rooms), float(other.left)] == [
        3,
        2.5,
        7,
        9.0,
    ]
    assert other.numbers.entries[0].dtype == jnp.int32 and int(one.rooms) == 1


def test_a_wrong_field_is_refused() -> None:
    row = Visit.filled(jnp.int32, number=4, time=8)
    with pytest.raises(TypeError, match="Visit has no field 'room'"):
        row.replace(room=jnp.int32(1))
    with pytest.raises(TypeError, match="Visit needs rooms, left"):
        Visit.make(jnp.int32, guest=1, came=2)
    with pytest.raises(AttributeError, match="room"):
        row.room  # type: ignore[attr-defined]  # noqa: B018


def test_places_of_the_fields_and_whole_tables() -> None:
    assert [one.name for one in Visit.columns] == ["GUEST", "ROOMS"]
    assert [one.name for one in Visit.time_columns] == ["CAME", "LEFT"]
    table = Visit(jnp.arange(6).reshape(3, 2), jnp.zeros((3, 2)))
    np.testing.assert_array_equal(table.rooms, [1, 3, 5])
    assert table.left.shape == (3,)


def test_a_subclass_has_its_parents_fields_first() -> None:
    class Stay(Visit):
        nights: Whole

    assert [one.name for one in Stay.columns] == ["GUEST", "ROOMS", "NIGHTS"]
    assert [one.name for one in Visit.columns] == ["GUEST", "ROOMS"]


def test_rows_pass_branches_masks_and_loops() -> None:
    array = Visit.filled(jnp.int32, number=1, time=2)
    columns = Visit(apart(array.numbers + 10), apart(array.times + 10))
    for predicate, guest in ((True, 11), (False, 1)):
        holds = jnp.array(predicate)
        for when in (branch, masked):
            found = when(holds, lambda: columns, lambda: array)
            assert int(found.guest) == guest and int(found.left) == guest + 1
        assert int(choose(holds, columns, array).rooms) == guest
    assert not is_apart(branch(jnp.array(True), lambda: columns, lambda: array).numbers)
    end, _ = jax.lax.scan(
        lambda row, _: (row.replace(guest=row.guest + 1), None), array, None, length=5
    )
    assert int(end.guest) == 6


def test_what_lies_behind_the_fields_stays() -> None:
    wider = Visit(apart(jnp.array([1, 2, 30, 40], jnp.int32)))
    made = Visit(apart(jnp.array([5, 6], jnp.int32))).with_rest_of(wider)
    np.testing.assert_array_equal(together(made.numbers), [5, 6, 30, 40])


def test_an_absent_row_has_no_arrays() -> None:
    assert not jax.tree.leaves(Visit(None))
