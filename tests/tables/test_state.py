"""What the scan carries and what it leaves behind: no field is anything, or nothing for want of a mechanism."""

from __future__ import annotations

import ast
import dataclasses

import jax
import jax.numpy as jnp
import pytest

from blis_jax.core.pytrees import Parts
from blis_jax.memory.block_tables.block_rows import BlockRows
from blis_jax.policies.contract import PolicyStates
from blis_jax.tables.blocks import Blocks
from blis_jax.tables.journeys import Downs, Orders
from blis_jax.tables.raw import Raw
from blis_jax.tables.requests import Requests
from blis_jax.tables.router import AgedView, LateNews, LateWrite, RouterIndex, RouterWrite, View
from blis_jax.tables.state import SharedBlocks, State
from blis_jax.tables.writes import Writes

RECORDS = (
    *(State, Raw, Writes, Blocks, BlockRows, SharedBlocks),
    *(RouterIndex, RouterWrite, LateNews, LateWrite, View, AgedView, Requests),
)


@pytest.mark.parametrize("record", RECORDS)
def test_every_field_is_of_one_type(record: type) -> None:
    for field in dataclasses.fields(record):
        words = list(ast.walk(ast.parse(str(field.type), mode="eval")))
        names = {word.id for word in words if isinstance(word, ast.Name)}
        assert not names & {"Any", "Absent", "Optional", "Union", "Vector"}, field.name
        assert not any(isinstance(word, ast.BinOp) for word in words), field.name
        assert "tuple[object" not in str(field.type), field.name
        assert field.default is dataclasses.MISSING, field.name


def test_sub_trees_are_found_and_replaced_by_class() -> None:
    parts = Parts(Downs(*jnp.zeros((2, 2), jnp.int32)), Orders(jnp.ones(2, jnp.int32)))
    more = parts.having(Downs(*jnp.full((2, 2), 7, jnp.int32)))
    assert more[Downs].count.tolist() == [7, 7] and more[Orders].number.tolist() == [1, 1]
    assert [leaf.tolist() for leaf in jax.tree.leaves(more)] == [[7, 7], [7, 7], [1, 1]]
    assert Orders not in parts.only(Downs)
    with pytest.raises(KeyError, match="there is no Orders to replace"):
        parts.only(Downs).having(parts[Orders])


def test_states_of_policies_are_replaced_at_their_places() -> None:
    states = PolicyStates((1, 2, 3, 4)).having(1, 7, 8)
    assert list(states) == [1, 7, 8, 4] and states[2] == 8
    assert jax.tree.leaves(PolicyStates((1, (2, 3))).having(0, (5, 6))) == [5, 6, 2, 3]
