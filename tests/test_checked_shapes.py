"""What annotations say of shapes, dtypes and types is checked in all fast tests; see support/checked_shapes.py."""

from __future__ import annotations

import dataclasses
from collections.abc import Iterator
from importlib import import_module
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from beartype.roar import BeartypeCallHintViolation

from blis_jax.core.types import EngineShape
from blis_jax.policies.routing.by_score import shares_of
from blis_jax.records.record import PreemptionRecords
from blis_jax.tables.journeys import PaidTime, nothing_paid
from blis_jax.tables.state import News
from blis_jax.tables.writes import free_slot
from tests.support.checked_shapes import CHECKED, UNRESOLVED, WRAPPED, is_whole, resolved

pytestmark = pytest.mark.skipif(
    not WRAPPED,
    reason="annotations are checked with BLIS_JAX_TEST_PROGRAMS=quick, as `make test` sets it",
)
PACKAGE = Path(__file__).parents[1] / "blis_jax"


@pytest.fixture(autouse=True)
def in_64_bits() -> Iterator[None]:
    with jax.enable_x64(True):
        yield


def test_a_wrong_shape_is_refused() -> None:
    assert shares_of(np.array([1.0, 3.0])).tolist() == [0.25, 0.75]
    with pytest.raises(BeartypeCallHintViolation, match="weights"):
        shares_of(jnp.ones((2, 2)))


def test_a_wrong_dtype_is_refused() -> None:
    with pytest.raises(BeartypeCallHintViolation, match="weights"):
        shares_of(jnp.ones(2, jnp.int32))


def test_fields_of_one_axis_are_of_one_length() -> None:
    held = jnp.ones(3, jnp.int32)
    PaidTime(held, jnp.zeros(3), jnp.zeros(()))
    with pytest.raises(BeartypeCallHintViolation, match="latencies"):
        News(jnp.zeros(4), jnp.zeros((4, 3)))
    with pytest.raises(BeartypeCallHintViolation, match="is_held"):
        dataclasses.replace(nothing_paid(3, jnp.int32), is_held=jnp.ones(3))


def test_records_are_of_one_length_in_whole_numbers_or_in_floats() -> None:
    at, later = np.zeros(3, np.int64), np.zeros(3)
    PreemptionRecords(at, at, later, at, at)
    with pytest.raises(BeartypeCallHintViolation, match="num_itl"):
        PreemptionRecords(at, at, later, at, at[:2])
    with pytest.raises(BeartypeCallHintViolation, match="time_us"):
        PreemptionRecords(at, at, at > 0, at, at)


def test_another_type_is_refused() -> None:
    wrong: Any = 3
    with pytest.raises(BeartypeCallHintViolation, match="ctx"):
        free_slot(wrong)
    with pytest.raises(BeartypeCallHintViolation, match="num_slots"):
        EngineShape(1, "many", 1, 0, 1)  # type: ignore[arg-type]


def test_what_jax_makes_of_a_tree_is_not_checked() -> None:
    axes = jax.tree.map(lambda _: 0, nothing_paid(3, jnp.int32))
    assert axes.is_held == 0


def test_every_annotation_can_be_read() -> None:
    for part in CHECKED:
        for path in sorted((PACKAGE / part).rglob("*.py")):
            import_module(".".join(path.relative_to(PACKAGE.parent).with_suffix("").parts))
    assert {one.__module__ for one in WRAPPED if not is_whole(one.__module__)} == set()
    UNRESOLVED.clear()
    for function in WRAPPED:
        resolved(function)
    assert set() == UNRESOLVED
