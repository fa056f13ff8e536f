"""Rows of one mechanism whose requests are drawn in the compiled call, run until none can be repaired any more."""

from __future__ import annotations

import dataclasses
import os
from collections.abc import Callable, Collection, Generator, Sequence
from concurrent.futures import ThreadPoolExecutor
from typing import Any, NamedTuple

import jax
import numpy as np

from blis_jax.config import ClusterConfig
from blis_jax.device_metrics.compiled import compiled_draw_reports
from blis_jax.device_metrics.summary import CompiledSummary
from blis_jax.engine import compiled_draws, first_order
from blis_jax.grid import REPAIRABLE_HERE, largest_plan, shape_for_draws
from blis_jax.invariants import cheap_violations
from blis_jax.livelock import has_end, run_to_horizon
from blis_jax.mechanism import mechanism, params
from blis_jax.observe import Observation, unstack
from blis_jax.policies.contract import Policies
from blis_jax.policies.seeds import policy_seed
from blis_jax.records import RunRecord
from blis_jax.simulation import Options, at_block_level, enlarged, observed
from blis_jax.types import Mechanism, Outcome, Params
from blis_jax.workload.draw import compile_plan
from blis_jax.workload.plan import DrawPlan
from blis_jax.workload.spec import WorkloadSpec
from blis_jax.workload.table import RequestTable

ROWS_PER_CALL = 16
LANES_PER_CALL = 4096
MAX_ROUNDS = 8
FEWEST_MEASURED = 256  # rows of one program from which their figures are computed in the call


def in_call(
    summarize: Callable[[RunRecord], Any], num_rows: int, form: str
) -> CompiledSummary[Any] | None:
    """What computes the figures in the compiled call, if that pays.

    On a CPU it takes twice as long to compile, and saves 2 ms a run.
    """
    is_worth = form == "lanes" or num_rows >= FEWEST_MEASURED
    return summarize if is_worth and isinstance(summarize, CompiledSummary) else None


class DrawnRow(NamedTuple):
    """A point and a seed."""

    point: int
    seed: int  # place in the list of seeds


class Found(NamedTuple):
    """What a call made of a row."""

    row: DrawnRow
    outcome: Outcome
    is_final: bool  # else it is to be run again
    summary: Any = None


def default_form() -> str:
    """The loop form for the machine at hand."""
    return "lanes" if jax.default_backend() in ("gpu", "tpu") else "rows"


def num_workers() -> int:
    """Cores that this process may use."""
    if hasattr(os, "sched_getaffinity"):
        return max(len(os.sched_getaffinity(0)), 1)
    return os.cpu_count() or 1


class Group:
    """The rows of one mechanism and one kind of draw, run until no row can be repaired any more."""

    def __init__(
        self,
        configs: Sequence[ClusterConfig],
        specs: Sequence[WorkloadSpec],
        seeds: Sequence[int],
        options: Options,
        summarize: Callable[[RunRecord], Any],
        policies: Sequence[Policies | None] | None = None,
        num_rows: int = 0,
    ) -> None:
        self.configs, self.specs = configs, specs
        self.seeds, self.options, self.summarize = seeds, options, summarize
        self.policies = policies or [None] * len(configs)  # one for each point
        self.measured = in_call(summarize, num_rows, options.form)
        self.functions: Mechanism = mechanism(configs[0], self.policies[0])
        self.block_size = configs[0].block_size_in_tokens
        self.headroom, self.repairs = 1.0, 0
        self.longest, self.shared_blocks = 1, 0  # blocks of a request and of all nodes, as seen
        self.plans = self._compile_plans()
        self.shape = shape_for_draws(configs, self.plans, options, self.functions)
        if options.kv_model == "block-level":
            sizes = self.longest, self.shared_blocks
            self.shape = at_block_level(self.shape, configs, *sizes, options)
        self.compiled: Any = None

    def _compile_plans(self) -> list[DrawPlan]:
        """One plan per point, all of the largest sizes: more draws extend the same streams."""
        plans = [
            compile_plan(spec, block_size=self.block_size, headroom=self.headroom)
            for spec in self.specs
        ]
        largest = largest_plan([plan.shape for plan in plans])
        return [dataclasses.replace(plan, shape=largest) for plan in plans]

    def grow(self, outcomes: Collection[Outcome]) -> None:
        """Enlarge what the outcomes say was too small."""
        self.repairs += 1
        for outcome in sorted(outcomes):
            if outcome == Outcome.WORKLOAD_SHORT:
                self.headroom *= 2
                self.plans = self._compile_plans()
            elif outcome == Outcome.KV_CHECK_TRIPPED:
                sizes = self.longest, self.shared_blocks
                self.shape = at_block_level(self.shape, self.configs, *sizes, self.options)
            else:
                self.shape = enlarged(self.shape, outcome) or self.shape
                if self.shape.num_blocks:  # the longest request may have come to light since
                    sizes = self.longest, self.shared_blocks
                    self.shape = at_block_level(self.shape, self.configs, *sizes, self.options)

    def chunk_size(self, num_rows: int) -> int:
        """Rows of one call: enough calls for every worker, and few different sizes."""
        if self.options.form == "lanes":
            return min(LANES_PER_CALL, num_rows)
        each = max(num_rows // num_workers(), 1)
        return min(ROWS_PER_CALL, 1 << (each.bit_length() - 1))

    def arguments(self, rows: Sequence[DrawnRow], size: int) -> tuple[Any, ...]:
        """Stacked arguments of one call; the last row is repeated up to `size`."""
        padded = list(rows) + [rows[-1]] * (size - len(rows))
        numbers = [self._numbers(row) for row in padded]
        stacked = jax.tree.map(lambda *leaves: np.stack(leaves), *numbers)
        plans = jax.tree.map(
            lambda *leaves: np.stack([np.asarray(leaf) for leaf in leaves]),
            *(self.plans[row.point].params for row in padded),
        )
        seeds = np.asarray([self.seeds[row.seed] for row in padded], np.uint32)
        keys = jax.vmap(jax.random.key)(seeds)
        return stacked, plans, keys, np.int32(self.options.max_scan_steps)

    def _numbers(self, row: DrawnRow) -> Params:
        config, seed = self.configs[row.point], self.seeds[row.seed]
        rows, policies = self.shape.num_instances, self.policies[row.point]
        return params(config, rows, policy_seed(seed), policies)

    def compile(self, size: int) -> None:
        """Compile for calls of `size` rows."""
        form, plan = self.options.form, self.plans[0].shape
        given = self.arguments([DrawnRow(0, 0)], size)
        with jax.enable_x64(True):
            if self.measured is None:
                function = compiled_draws(self.shape, self.functions, plan, form)
            else:
                compute = self.measured.compute
                function = compiled_draw_reports(self.shape, self.functions, plan, form, compute)
                given = (*given, self.measured.numbers)
            self.compiled = function.lower(*given).compile()

    def call(self, rows: Sequence[DrawnRow], size: int) -> list[Found]:
        """Run one chunk and summarise what is whole or beyond repair."""
        if self.measured is not None:
            return self._call_measured(self.measured, rows, size)
        return self._whole(rows, size, self.compiled)

    def _whole(self, rows: Sequence[DrawnRow], size: int, compiled: Any = None) -> list[Found]:
        """The same from whole records."""
        plan, form = self.plans[0].shape, self.options.form
        with jax.enable_x64(True):
            function = compiled or compiled_draws(self.shape, self.functions, plan, form)
            raw, tables, is_short = jax.device_get(function(*self.arguments(rows, size)))
        tokens = np.max(tables.input_len + tables.output_len)
        self._note_sizes(tokens, np.max(np.sum(tables.node_blocks, axis=-1)))
        found: list[Found] = []
        whole: list[tuple[DrawnRow, RunRecord]] = []
        for place, row in enumerate(rows):
            numbers, drawn = self._numbers(row), unstack(tables, place)
            given = numbers, drawn, None
            seen = observed(unstack(raw, place), given, self.shape, self.functions)
            outcome = Outcome.WORKLOAD_SHORT if bool(is_short[place]) else seen.outcome()
            if self._goes_on(row, outcome):
                seen = self._to_horizon(drawn, numbers)
                outcome = seen.outcome()
            if self._can_repair(outcome):
                found.append(Found(row, outcome, is_final=False))
            else:
                record = dataclasses.replace(seen.record(self.repairs), outcome=outcome)
                whole.append((row, record))
        return found + [
            Found(row, record.outcome, True, self.summarize(record))
            for row, record in _checked(whole)
        ]

    def _to_horizon(self, drawn: RequestTable, numbers: Any) -> Observation:
        """One row again, by itself, past barren steps up to the horizon."""
        with jax.enable_x64(True):
            order = jax.device_get(first_order(self.shape.num_requests))
        inputs = numbers, drawn, order
        raw = run_to_horizon(self.shape, self.functions, inputs, self.options.max_scan_steps)
        return observed(raw, inputs, self.shape, self.functions)

    def _call_measured(
        self, measured: CompiledSummary[Any], rows: Sequence[DrawnRow], size: int
    ) -> list[Found]:
        """The same where the call itself has measured the runs."""
        with jax.enable_x64(True):
            given = *self.arguments(rows, size), measured.numbers
            report, drawn = jax.device_get(self.compiled(*given))
        self._note_sizes(np.max(drawn.most_tokens), np.max(drawn.num_node_blocks))
        codes = np.where(drawn.is_short, int(Outcome.WORKLOAD_SHORT), report.outcome)
        report = dataclasses.replace(report, outcome=codes)
        summaries = measured.of_reports(report, self.repairs)
        found = []
        for row, code, summary in zip(rows, codes.tolist(), summaries, strict=False):
            outcome = Outcome(code)
            if self._goes_on(row, outcome):
                found += self._whole([row], 1)
                continue
            is_final = not self._can_repair(outcome)
            found.append(Found(row, outcome, is_final, summary if is_final else None))
        return found

    def _goes_on(self, row: DrawnRow, outcome: Outcome) -> bool:
        """Whether a run that stalled is to be made again up to its horizon."""
        horizon = self.configs[row.point].horizon
        return outcome == Outcome.LIVELOCK and has_end(horizon, self.functions)

    def _note_sizes(self, most_tokens: np.integer, shared_blocks: np.integer) -> None:
        """Remember the longest request and the most shared blocks of the rows drawn."""
        self.longest = max(self.longest, -(-int(most_tokens) // self.block_size))
        self.shared_blocks = max(self.shared_blocks, int(shared_blocks))

    def _can_repair(self, outcome: Outcome) -> bool:
        if outcome not in REPAIRABLE_HERE or self.repairs + 1 >= MAX_ROUNDS:
            return False
        if outcome == Outcome.KV_CHECK_TRIPPED:
            return self.options.kv_model == "auto"
        return outcome == Outcome.WORKLOAD_SHORT or enlarged(self.shape, outcome) is not None

    def run(self, rows: Sequence[DrawnRow], size: int) -> Generator[list[Found]]:
        """Run the rows in chunks, in order; then let go of what was compiled."""
        chunks = [rows[at : at + size] for at in range(0, len(rows), size)]
        with ThreadPoolExecutor(1 if self.options.form == "lanes" else num_workers()) as pool:
            yield from pool.map(lambda chunk: self.call(chunk, size), chunks)
        self.compiled = None


def _checked(rows: Sequence[tuple[DrawnRow, RunRecord]]) -> list[tuple[DrawnRow, RunRecord]]:
    """The rows with the counts of the cheap invariants, taken over runs of one size at a time."""
    sizes: dict[tuple[int, int], list[int]] = {}
    for place, (_, record) in enumerate(rows):
        size = len(record.requests.status), len(record.instances.step_count)
        sizes.setdefault(size, []).append(place)
    checked = list(rows)
    for places in sizes.values():
        counts = cheap_violations([rows[place][1] for place in places])
        for place, broken in zip(places, counts, strict=True):
            row, record = rows[place]
            failures = record.invariant_failures | broken
            checked[place] = row, dataclasses.replace(record, invariant_failures=failures)
    return checked
