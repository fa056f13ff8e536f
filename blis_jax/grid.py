"""What a batch of runs gives back, and the static sizes that serve all of its points."""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Generic, TypeVar

from blis_jax.config import ClusterConfig
from blis_jax.latency.registry import model_of
from blis_jax.simulation import Options
from blis_jax.sizes import guessed_slots, rounded
from blis_jax.types import EngineShape, Mechanism, Outcome
from blis_jax.workload.plan import DrawPlan, PlanShape, longest_node

T = TypeVar("T")
# prompts per instance from which the router's index of 10,000 blocks is likely to evict
REQUESTS_BEFORE_EVICTION = 300
# outcomes of rows that are drawn again with larger sizes
REPAIRABLE_HERE = frozenset(
    {
        Outcome.SLOTS_FULL,
        Outcome.LOG_FULL,
        Outcome.COPIES_FULL,
        Outcome.CHAINS_FULL,
        Outcome.ROUTER_INDEX_FULL,
        Outcome.CLOCK_OVERFLOW,
        Outcome.WORKLOAD_SHORT,
        Outcome.KV_CHECK_TRIPPED,
        Outcome.LISTS_FULL,
        Outcome.RING_FULL,
        Outcome.EVICTIONS_FULL,
        Outcome.NODES_FULL,
    }
)


@dataclass
class Timing:
    """Wall time of a batch by what was done, in seconds."""

    compile_s: float = 0.0  # waited for compilations; those that ran beside rows are not in it
    run_s: float = 0.0
    num_rows: int = 0
    num_reruns: int = 0


@dataclass(frozen=True)
class Grid(Generic[T]):
    """Summaries of points × seeds, `rows[point][seed]`."""

    configs: tuple[ClusterConfig, ...]
    seeds: tuple[int, ...]
    rows: tuple[tuple[T, ...], ...]
    timing: Timing = field(default_factory=Timing)


def shape_for_draws(
    configs: Sequence[ClusterConfig],
    plans: Sequence[DrawPlan],
    options: Options,
    functions: Mechanism,
) -> EngineShape:
    """Static sizes that serve every point of one mechanism."""
    draw_shape = plans[0].shape
    longest = max(longest_node(plan) for plan in plans)
    num_requests = draw_shape.num_requests
    fewest = min(config.num_instances for config in configs)
    is_skipping = all(model_of(config).has_equal_decode_steps for config in configs)
    per_request = 4 if is_skipping else 64
    return EngineShape(
        num_instances=max(config.num_instances for config in configs),
        num_slots=options.num_slots or guessed_slots(num_requests, fewest),
        num_requests=num_requests,
        num_nodes=draw_shape.num_nodes if longest > 0 else 0,
        path_depth=draw_shape.path_depth if longest > 0 else 1,
        num_keys=num_requests if functions.uses_prompt_keys else 1,
        node_blocks=rounded(longest) if longest > 0 else 1,
        log_capacity=options.log_capacity or rounded(per_request * num_requests, 1024),
        num_copies=options.num_copies,
        num_chains=options.num_chains,
        block_size=draw_shape.block_size,
        clock=options.clock,
        has_router_eviction=num_requests > fewest * REQUESTS_BEFORE_EVICTION,
        has_shared_outputs=draw_shape.has_shared_outputs and longest > 0,
    )


def largest_plan(shapes: Sequence[PlanShape]) -> PlanShape:
    """The shape that holds the draws of all, which differ in sizes only."""
    clients = tuple(
        dataclasses.replace(alike[0], num_proposals=max(one.num_proposals for one in alike))
        for alike in zip(*(shape.clients for shape in shapes), strict=True)
    )
    num_requests = max(shape.num_requests for shape in shapes)
    return dataclasses.replace(shapes[0], clients=clients, num_requests=num_requests)
