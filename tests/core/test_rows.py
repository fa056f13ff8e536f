"""Typed rows: fields by name, over one vector of whole numbers and one of times."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from blis_jax.core.columns import apart, branch, choose, is_apart, masked, together
from blis_jax.core.rows import Moment, Row, Whole


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
