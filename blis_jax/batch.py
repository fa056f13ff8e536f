"""Many runs: points of a parameter space times seeds, drawn and simulated inside compiled calls.

Points of one mechanism share a compilation. Rows go through in chunks, one single-threaded worker per core on
a CPU and all in one vectorised loop on a GPU; every row comes back, repaired where it can be, with its outcome.
"""

from __future__ import annotations

import dataclasses
import os
import time
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from typing import Any, Generic, TypeVar

import jax
import numpy as np

from blis_jax.config import ClusterConfig, mechanism, params
from blis_jax.engine import compiled_draws
from blis_jax.errors import ConfigError
from blis_jax.observe import Observation, unstack
from blis_jax.records import RunRecord
from blis_jax.simulate import Options, enlarged, rounded, simulate
from blis_jax.types import EngineShape, Mechanism, Outcome
from blis_jax.workload.draw import compile_plan
from blis_jax.workload.plan import DrawPlan
from blis_jax.workload.spec import WorkloadSpec

T = TypeVar("T")
ROWS_PER_CALL = 16
LANES_PER_CALL = 4096
MAX_ROUNDS = 8


@dataclass
class Timing:
    """Wall time of a batch by what was done, in seconds."""

    compile_s: float = 0.0
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


@dataclass(frozen=True)
class _Row:
    point: int
    seed: int  # place in the list of seeds


def default_form() -> str:
    """The loop form for the machine at hand."""
    return "lanes" if jax.default_backend() in ("gpu", "tpu") else "rows"


def num_workers() -> int:
    """Cores that this process may use."""
    if hasattr(os, "sched_getaffinity"):
        return max(len(os.sched_getaffinity(0)), 1)
    return os.cpu_count() or 1


def shape_for_draws(
    configs: Sequence[ClusterConfig], plan: DrawPlan, options: Options
) -> EngineShape:
    """Static sizes that serve every point of one mechanism."""
    blocks = np.asarray(plan.params.prefix_len) // plan.shape.block_size
    longest = int(np.max(blocks, initial=0))
    num_requests = plan.shape.num_requests
    fewest = min(config.num_instances for config in configs)
    guess = min(max(64, -(-num_requests * 5 // (4 * fewest)) + 16), 512)
    has_keys = any(config.routing_policy == "prefix-affinity" for config in configs)
    return EngineShape(
        num_instances=max(config.num_instances for config in configs),
        num_slots=options.num_slots or rounded(guess, 64),
        num_requests=num_requests,
        num_nodes=max(plan.shape.num_groups, 1) if longest > 0 else 0,
        path_depth=1,
        num_keys=num_requests if has_keys else 1,
        node_blocks=rounded(longest) if longest > 0 else 1,
        log_capacity=options.log_capacity or rounded(4 * num_requests, 1024),
        block_size=plan.shape.block_size,
        clock=options.clock,
    )


class _Group:
    """The rows of one mechanism, run until no row can be repaired any more."""

    def __init__(
        self,
        functions: Mechanism,
        configs: Sequence[ClusterConfig],
        spec: WorkloadSpec,
        seeds: Sequence[int],
        options: Options,
    ) -> None:
        self.functions, self.configs, self.spec = functions, configs, spec
        self.seeds, self.options = seeds, options
        self.headroom = 1.0
        self.block_size = configs[0].block_size_in_tokens
        self.plan = compile_plan(spec, block_size=self.block_size)
        self.shape = shape_for_draws(configs, self.plan, options)
        self.compiled: Any = None

    def grow(self, outcome: Outcome) -> bool:
        """Enlarge what the outcome says was too small; False if nothing can be done."""
        if outcome == Outcome.WORKLOAD_SHORT:
            self.headroom *= 2
            plan = compile_plan(self.spec, block_size=self.block_size, headroom=self.headroom)
            self.plan, self.compiled = plan, None
            return True
        larger = enlarged(self.shape, outcome)
        if larger is None:
            return False
        self.shape, self.compiled = larger, None
        return True

    def arguments(self, rows: Sequence[_Row], size: int) -> tuple[Any, ...]:
        """Stacked arguments of one call; the last row is repeated up to `size`."""
        padded = list(rows) + [rows[-1]] * (size - len(rows))
        numbers = [params(self.configs[row.point], self.shape.num_instances) for row in padded]
        stacked = jax.tree.map(lambda *leaves: np.stack(leaves), *numbers)
        plans = jax.tree.map(
            lambda leaf: np.broadcast_to(np.asarray(leaf), (size, *np.shape(leaf))),
            self.plan.params,
        )
        seeds = np.asarray([self.seeds[row.seed] for row in padded], np.uint32)
        keys = jax.vmap(jax.random.key)(seeds)
        return stacked, plans, keys, np.int32(self.options.max_scan_steps)

    def compile(self, size: int) -> float:
        """Compile for calls of `size` rows; the seconds that took."""
        start = time.perf_counter()
        with jax.enable_x64(True):
            function = compiled_draws(
                self.shape, self.functions, self.plan.shape, self.options.form
            )
            self.compiled = function.lower(*self.arguments([_Row(0, 0)], size)).compile()
        return time.perf_counter() - start

    def call(self, rows: Sequence[_Row], size: int) -> list[tuple[_Row, RunRecord]]:
        """Run one chunk."""
        with jax.enable_x64(True):
            raw, tables, is_short = jax.device_get(self.compiled(*self.arguments(rows, size)))
        found = []
        for place, row in enumerate(rows):
            numbers = params(self.configs[row.point], self.shape.num_instances)
            seen = Observation(unstack(raw, place), unstack(tables, place), numbers)
            seen.block_size = self.block_size
            record = seen.record()
            if bool(is_short[place]):
                record = dataclasses.replace(record, outcome=Outcome.WORKLOAD_SHORT)
            found.append((row, record))
        return found


def run_grid(
    configs: Sequence[ClusterConfig],
    spec: WorkloadSpec,
    seeds: Sequence[int],
    summarize: Callable[[RunRecord], T],
    options: Options | None = None,
    progress: Callable[[int], None] | None = None,
) -> Grid[T]:
    """Every configuration on every seed's workload; `summarize` turns each record into what is kept.

    Seeds are common: a seed means the same requests for every configuration. `progress` is told the number of
    rows that each chunk has finished.
    """
    if not configs or not len(seeds):
        raise ConfigError("a grid needs at least one configuration and one seed; none was given")
    options = options or Options(form=default_form(), resolve_ties=False)
    groups: dict[Any, list[int]] = {}
    for index, config in enumerate(configs):
        groups.setdefault((mechanism(config), config.block_size_in_tokens), []).append(index)
    kept: dict[tuple[int, int], T] = {}
    timing = Timing()
    for (functions, _), points in groups.items():
        chosen = [configs[point] for point in points]
        group = _Group(functions, chosen, spec, seeds, options)
        rows = [_Row(p, s) for p in range(len(points)) for s in range(len(seeds))]

        def keep(row: _Row, record: RunRecord, points: list[int] = points) -> None:
            kept[points[row.point], row.seed] = summarize(record)

        _run_group(group, rows, keep, timing, progress)
    table = tuple(tuple(kept[p, s] for s in range(len(seeds))) for p in range(len(configs)))
    return Grid(tuple(configs), tuple(int(seed) for seed in seeds), table, timing)


def _run_group(
    group: _Group,
    rows: list[_Row],
    keep: Callable[[_Row, RunRecord], None],
    timing: Timing,
    progress: Callable[[int], None] | None,
) -> None:
    """Run the rows; run those again that a larger capacity can repair."""
    for repairs in range(MAX_ROUNDS):
        limit = LANES_PER_CALL if group.options.form == "lanes" else ROWS_PER_CALL
        size = min(limit, len(rows))
        timing.compile_s += group.compile(size)
        start = time.perf_counter()
        chunks = [rows[at : at + size] for at in range(0, len(rows), size)]
        failed: list[tuple[_Row, RunRecord]] = []
        with ThreadPoolExecutor(1 if group.options.form == "lanes" else num_workers()) as pool:
            for found in pool.map(lambda chunk: group.call(chunk, size), chunks):
                for row, record in found:
                    if record.outcome in _REPAIRABLE_HERE and repairs + 1 < MAX_ROUNDS:
                        failed.append((row, record))
                    else:
                        keep(row, dataclasses.replace(record, num_repairs=repairs))
                if progress is not None:
                    done = sum(record.outcome not in _REPAIRABLE_HERE for _, record in found)
                    progress(done)
        timing.run_s += time.perf_counter() - start
        timing.num_rows += len(rows) - len(failed)
        if not failed:
            return
        timing.num_reruns += len(failed)
        for outcome in sorted({record.outcome for _, record in failed}):
            if not group.grow(outcome):
                for row, record in failed:
                    if record.outcome == outcome:
                        keep(row, record)
                failed = [item for item in failed if item[1].outcome != outcome]
        rows = [row for row, _ in failed]
        if not rows:
            return


_REPAIRABLE_HERE = frozenset(
    {
        Outcome.SLOTS_FULL,
        Outcome.LOG_FULL,
        Outcome.COPIES_FULL,
        Outcome.CHAINS_FULL,
        Outcome.ROUTER_INDEX_FULL,
        Outcome.CLOCK_OVERFLOW,
        Outcome.WORKLOAD_SHORT,
    }
)


def over_seeds(
    config: ClusterConfig,
    spec: WorkloadSpec,
    seeds: Sequence[int],
    summarize: Callable[[RunRecord], T] = lambda record: record,  # type: ignore[assignment,return-value]
    options: Options | None = None,
) -> tuple[T, ...]:
    """One configuration on many seeds."""
    return run_grid([config], spec, seeds, summarize, options).rows[0]


def over_params(
    configs: Sequence[ClusterConfig],
    spec: WorkloadSpec,
    seed: int,
    summarize: Callable[[RunRecord], T] = lambda record: record,  # type: ignore[assignment,return-value]
    options: Options | None = None,
) -> tuple[T, ...]:
    """Many configurations on one seed's workload."""
    grid = run_grid(configs, spec, [seed], summarize, options)
    return tuple(row[0] for row in grid.rows)


__all__ = ["Grid", "Timing", "over_params", "over_seeds", "run_grid", "simulate"]
