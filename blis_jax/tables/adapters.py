"""LoRA adapters at the instances: which are loaded, which is being loaded, and how often adapters were loaded and
evicted.

A program has these tables only where requests name adapters and instances have room for some.
"""

from __future__ import annotations

import dataclasses
from typing import TYPE_CHECKING

import jax.numpy as jnp
from jax import lax

from blis_jax.core.pytrees import pytree
from blis_jax.core.types import EngineShape, never

if TYPE_CHECKING:
    import jax
    from jaxtyping import Array, Bool, Float, Int, Real


NO_ADAPTER = -1


@pytree
class AdapterParams:
    """The numbers of adapters, all traced; columns beyond the declared adapters are never read."""

    capacity: Int[Array, ""]  # adapters that an instance holds at a time
    load_us: Int[Array, "adapter"]
    rank: Int[Array, "adapter"]
    # share by which each adapter of a batch lengthens its step, where this one has the largest rank
    overhead: Float[Array, "adapter"]


@pytree
class RequestAdapters:
    """The adapter that each request names, `NO_ADAPTER` for none; a spare request included."""

    of: Int[Array, "request"]


@pytree
class SeenAdapters:
    """The adapters that the router saw loaded on each instance at its last look."""

    is_loaded: Bool[Array, "*lane instance adapter"]


@pytree
class AdapterRow:
    """The adapters of one instance; the spare instance if nothing is written."""

    instance: Int[Array, ""]
    used: Int[Array, "adapter"]  # turn of the latest use, 0: not loaded
    num_loads: Int[Array, "adapter"]
    num_evictions: Int[Array, "adapter"]
    turn: Int[Array, ""]
    loading: Int[Array, ""]  # the adapter on its way, NO_ADAPTER: none
    loaded_at: Real[Array, ""]  # clock: when it comes, never() if none does
    # clock: the step since which requests wait for it and no other step is scheduled, never(): it is not so
    held_at: Real[Array, ""]
    # clock: when a request gave up in a queue that was held up, never(): none did
    left_at: Real[Array, ""]
    is_open: Bool[Array, "slot"]  # ahead of the first request that has to wait for its adapter

    def replace(self, **changes: jax.Array) -> AdapterRow:
        """Return the row with some values replaced."""
        return dataclasses.replace(self, **changes)

    def touched(self, adapter: jax.Array, is_it: jax.Array) -> AdapterRow:
        """Return the row with the adapter as the most recently used, if `is_it`."""
        here = is_it & (lax.iota(jnp.int32, self.used.shape[0]) == adapter)
        turn = self.turn + is_it.astype(jnp.int32)
        return self.replace(turn=turn, used=jnp.where(here, turn, self.used))


_COLUMNS = tuple(field.name for field in dataclasses.fields(AdapterRow))[1:]


@pytree
class AdapterTable:
    """`AdapterRow` of every instance, a spare row included."""

    used: Int[Array, "*lane instance adapter"]
    num_loads: Int[Array, "*lane instance adapter"]
    num_evictions: Int[Array, "*lane instance adapter"]
    turn: Int[Array, "*lane instance"]
    loading: Int[Array, "*lane instance"]
    loaded_at: Real[Array, "*lane instance"]
    held_at: Real[Array, "*lane instance"]
    left_at: Real[Array, "*lane instance"]
    is_open: Bool[Array, "*lane instance slot"]

    @classmethod
    def first(cls, shape: EngineShape, num_adapters: int) -> AdapterTable:
        """Return the table of instances with no adapter loaded."""
        rows, clock = shape.num_instances + 1, shape.clock_dtype
        each, none = jnp.zeros((rows, num_adapters), jnp.int32), jnp.zeros((rows,), jnp.int32)
        return cls(
            used=each,
            num_loads=each,
            num_evictions=each,
            turn=none,
            loading=jnp.full_like(none, NO_ADAPTER),
            loaded_at=jnp.full((rows,), never(clock), clock),
            held_at=jnp.full((rows,), never(clock), clock),
            left_at=jnp.full((rows,), never(clock), clock),
            is_open=jnp.zeros((rows, shape.num_slots), bool),
        )

    def row(self, instance: jax.Array) -> AdapterRow:
        """Return the row of an instance."""
        return AdapterRow(instance, *(getattr(self, name)[instance] for name in _COLUMNS))

    def put(self, row: AdapterRow) -> AdapterTable:
        """Return the table with a row written."""
        rows = {
            name: getattr(self, name).at[row.instance].set(getattr(row, name)) for name in _COLUMNS
        }
        return AdapterTable(**rows)
