"""The sizes of a run's tables, which are static: first guesses, and larger ones for a run that did not fit."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

from blis_jax.core.outcome import Outcome
from blis_jax.core.types import EngineShape, Mechanism
from blis_jax.policies.reading import NUM_KEYS
from blis_jax.runs.demand import Demand, next_power, rounded
from blis_jax.runs.options import Options

MAX_SLOTS = 8192
# shared blocks on a path, with padding, that a visit may cost without eviction
MOST_PATH_BLOCKS = 2048
FEWEST_CHANGES = 256  # decisions of an autoscaler to begin with
FEWEST_TOUCHES = 4096  # that the log of an index has room for where the caches feed it
LONG_LISTS = 1024  # blocks of a request from which a wide window pays for a single lane
_WIDER_CLOCK = {"int32": 0, "int64": 1, "float64": 2, "continuous": 3}


@dataclass(frozen=True)
class Sizes:
    """The table sizes of a run, and the demand and options from which they follow."""

    shape: EngineShape
    demand: Demand
    options: Options
    headroom: float = 1.0  # of draws, see `compile_plan`


def first_sizes(demand: Demand, options: Options, functions: Mechanism) -> Sizes:
    """Guess the sizes of a run, rounded to the grid; `grown` enlarges sizes that turn out too small."""
    shape = EngineShape(
        num_instances=demand.num_instances,
        num_slots=demand.num_slots,
        num_requests=demand.num_requests,
        num_nodes=demand.num_nodes,
        path_depth=demand.path_depth,
        num_keys=demand.num_requests if functions.reads(NUM_KEYS) else 1,
        node_blocks=demand.node_blocks,
        num_copies=options.num_copies,
        num_chains=options.num_chains,
        log_capacity=options.log_capacity or rounded(demand.num_records, 1024),
        block_size=demand.block_size,
        clock=demand.clock,
        has_router_eviction=demand.has_router_eviction,
        has_shared_outputs=demand.has_shared_outputs,
        num_routings=_num_touches(demand, functions),
        num_changes=FEWEST_CHANGES if functions.places_instances else 0,
    )
    sizes = Sizes(shape, demand, options)
    is_pressed = options.kv_model == "auto" and (_is_pressed(demand) or demand.mirror_size > 0)
    return pressed(sizes) if is_pressed or options.kv_model == "block-level" else sizes


def _num_touches(demand: Demand, functions: Mechanism) -> int:
    """Return how many lookups the log of the router's index must hold; 0: one for each request."""
    if functions.is_precise:
        return rounded(demand.num_allocations, FEWEST_TOUCHES)
    return 2 * demand.num_requests if functions.moves_requests else 0


def _is_pressed(demand: Demand) -> bool:
    """Return whether to start at block level: more distinct contents than blocks, or tables of long contents."""
    if demand.distinct_blocks is None:
        return False
    has_room = demand.distinct_blocks <= demand.all_kv_blocks
    return not has_room or demand.node_blocks * demand.path_depth > MOST_PATH_BLOCKS


def pressed(sizes: Sizes) -> Sizes:
    """Return the sizes with block-level memory, which needs more step records: one whenever a request needs a block."""
    shape, options = sizes.shape, sizes.options
    if not options.log_capacity:
        records = shape.log_capacity + 2 * sizes.demand.output_blocks
        shape = dataclasses.replace(shape, log_capacity=rounded(records, 1024))
    return dataclasses.replace(sizes, shape=at_block_level(shape, sizes.demand, options))


def at_block_level(shape: EngineShape, demand: Demand, options: Options) -> EngineShape:
    """Return the shape with tables of block-level memory that hold the demand."""
    num_blocks = rounded(demand.total_kv_blocks, options.num_blocks)
    list_blocks = rounded(min(demand.longest + 2, num_blocks + 2), options.list_blocks)
    # so many places that holes are seldom squeezed out
    ring_size = next_power(2 * num_blocks + 2 * list_blocks + 8192 - 1)
    shared_blocks = rounded(demand.shared_blocks, options.num_shared_blocks)
    evictions = rounded(2 * shape.num_requests, options.num_evictions)
    return dataclasses.replace(
        shape,
        num_blocks=max(num_blocks, shape.num_blocks),
        list_blocks=max(list_blocks, shape.list_blocks),
        num_shared_blocks=max(shared_blocks, shape.num_shared_blocks),
        ring_size=max(ring_size, shape.ring_size),
        eviction_capacity=max(evictions, shape.eviction_capacity),
        has_cpu_tier=demand.has_cpu_tier,
        mirror_size=rounded(demand.mirror_size, 128) if demand.mirror_size else 0,
        window=options.window or (8 if options.form == "rows" and list_blocks < LONG_LISTS else 32),
        # sizes that only the model without eviction has
        num_copies=1,
        node_blocks=1,
    )


def _grow(change: Callable[[EngineShape], Mapping[str, Any]]) -> Callable[[Sizes], Sizes]:
    def grown(sizes: Sizes) -> Sizes:
        shape = dataclasses.replace(sizes.shape, **change(sizes.shape))
        if shape.num_blocks:  # a longer request may have come to light since
            shape = at_block_level(shape, sizes.demand, sizes.options)
        return dataclasses.replace(sizes, shape=shape)

    return grown


def _times(factor: int, name: str) -> Callable[[Sizes], Sizes]:
    return _grow(lambda shape: {name: factor * getattr(shape, name)})


def _pressed_if_allowed(sizes: Sizes) -> Sizes:
    return pressed(sizes) if sizes.options.kv_model == "auto" else sizes


# What a run with this outcome is made again with; other outcomes are the end of it.
GROWTH: Mapping[Outcome, Callable[[Sizes], Sizes]] = {
    Outcome.SLOTS_FULL: _grow(lambda shape: {"num_slots": min(2 * shape.num_slots, MAX_SLOTS)}),
    Outcome.LOG_FULL: _times(4, "log_capacity"),
    Outcome.COPIES_FULL: _times(4, "num_copies"),
    Outcome.CHAINS_FULL: _times(4, "num_chains"),
    Outcome.LISTS_FULL: _times(2, "list_blocks"),
    Outcome.RING_FULL: _times(2, "ring_size"),
    Outcome.EVICTIONS_FULL: _times(4, "eviction_capacity"),
    Outcome.NODES_FULL: _grow(
        lambda shape: {
            "node_blocks": 2 * shape.node_blocks,
            "num_shared_blocks": max(2 * shape.num_shared_blocks, 16),
        }
    ),
    Outcome.ROUTER_INDEX_FULL: _grow(lambda _: {"has_router_eviction": True}),
    Outcome.ROUTINGS_FULL: _times(4, "num_routings"),
    Outcome.INSTANCES_FULL: _times(2, "num_instances"),
    Outcome.CHANGES_FULL: _times(4, "num_changes"),
    Outcome.CLOCK_OVERFLOW: _grow(
        lambda shape: {"clock": "int64"} if shape.clock == "int32" else {}
    ),
    Outcome.KV_CHECK_TRIPPED: _pressed_if_allowed,
    Outcome.WORKLOAD_SHORT: lambda sizes: dataclasses.replace(sizes, headroom=2 * sizes.headroom),
}


def grown(sizes: Sizes, outcome: Outcome) -> Sizes | None:
    """Return larger sizes for a run that ended with `outcome`; None if larger tables do not help."""
    larger = GROWTH[outcome](sizes) if outcome in GROWTH else sizes
    return larger if larger != sizes else None


def larger_shape(engine_shape: EngineShape, other: EngineShape) -> EngineShape:
    """Return the shape that holds the runs of two shapes: the greater size of each table, the wider clock."""
    values: dict[str, Any] = {}
    for field in dataclasses.fields(EngineShape):
        pair = getattr(engine_shape, field.name), getattr(other, field.name)
        values[field.name] = max(pair, key=lambda v: _WIDER_CLOCK[v] if isinstance(v, str) else v)
    return EngineShape(**values)
