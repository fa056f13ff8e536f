"""The engine's raw results, before any interpretation."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import jax
import numpy as np

from blis_jax.core.pytrees import HasParts, Parts, pytree
from blis_jax.tables.adapters import AdapterTable
from blis_jax.tables.blocks import Blocks
from blis_jax.tables.drafts import DraftPasts, DraftTable
from blis_jax.tables.gateways import Dispatches
from blis_jax.tables.journeys import (
    Downs,
    Exits,
    FirstRoutings,
    Journeys,
    Orders,
    PaidTime,
    Reservations,
)
from blis_jax.tables.offload import OffloadCounts, OffloadTable

if TYPE_CHECKING:
    from types import ModuleType

    from jaxtyping import Array, Int, Real

    from blis_jax.tables.state import State


@pytree
class BlockRecords:
    """The records of block-level memory."""

    life: Int[Array, "*lane request life_column"]  # BlockLife, a spare row included
    pool: Int[Array, "*lane instance pool_column"]  # InstanceMemory
    evictions: Int[Array, "*lane eviction eviction_column"]  # EvictionRecord, likewise
    num_evictions: Int[Array, "*lane"]

    def rows(self, xp: ModuleType, whole: bool = False) -> tuple[Any, Any]:
        """Return the rows of `evictions` as int64, and which of them hold a record, as arrays of `xp`: numpy or JAX.

        In numpy, rows without a record are left out unless `whole`.
        """
        room = self.evictions.shape[0] - 1
        count = min(int(self.num_evictions), room) if xp is np and not whole else room
        return self.evictions[:count].astype(np.int64), xp.arange(count) < self.num_evictions


@pytree
class Regrets:
    """The cost of a watched router's first choices, see `WatchedState`."""

    of: Int[Array, "*lane _"]


_READ = (
    *(Journeys, Downs, Reservations, Dispatches, Exits, PaidTime, Orders, FirstRoutings),
    *(AdapterTable, DraftTable, DraftPasts),
)
"""The state's sub-trees that results read as they are."""


@pytree
class Raw(HasParts):
    """The tables of a run; `own` holds the sub-trees of the state that results read."""

    registers: Int[Array, "*lane register"]
    instance_of: Int[Array, "*lane request"]
    dyn: Int[Array, "*lane request dyn_column"]
    log: Int[Array, "*lane record log_column"]
    log_time: Real[Array, "*lane record _"]
    inst: Int[Array, "*lane inst_column instance"]
    inst_time: Real[Array, "*lane _ instance"]
    expected: Int[Array, "*lane request"]
    own: Parts
    figures: dict[str, jax.Array]  # of a user's source, by name


def parts_of(state: State, *more: object) -> Parts:
    """Return the sub-trees of the state that results read, followed by `more`."""
    blocks = [state[Blocks]] if Blocks in state else []
    records = [
        BlockRecords(block.life, block.pool, block.evictions, block.num_evictions)
        for block in blocks
    ]
    tiers = [OffloadCounts(state[OffloadTable].counts)] if OffloadTable in state else []
    return Parts(*records, *tiers, *(state[kind] for kind in _READ if kind in state), *more)
