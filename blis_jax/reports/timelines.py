"""What a page shows of single runs: a timeline of each instance, and the parts of TTFT."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import TYPE_CHECKING

import numpy as np

from blis_jax.metrics.summaries import grouped, select, ttft_parts_ms

if TYPE_CHECKING:
    from blis_jax.metrics.summaries import Window
    from blis_jax.records.record import RunRecord

from blis_jax.reports.study import Timeline, TtftShare

# --- what is shown of single runs: a timeline of each instance, and the parts of TTFT -------------


MOST_CELLS = 12_000  # instances × spans of all timelines and measures of a page
SPANS = {1: 150, 2: 120, 3: 96}  # by number of runs: cells of whole pixels
USUAL_SPANS, LEAST_SPANS = 60, 20


def num_spans(num_instances: int, num_runs: int) -> int:
    """Return the number of spans of time that a timeline is divided into."""
    spans = MOST_CELLS // max(1, 3 * num_instances * num_runs)
    return min(SPANS.get(num_runs, USUAL_SPANS), max(LEAST_SPANS, spans))


def timelines_of(records: Mapping[str, RunRecord], seed: int) -> tuple[Timeline, ...]:
    """Return the timelines of one run of each strategy, all over the same spans of time."""
    if not records:
        return ()
    end_us = max(_end_us(record) for record in records.values())
    widest = max(len(record.instances.step_count) for record in records.values())
    edges_us = np.linspace(0, max(end_us, 1), num_spans(widest, len(records)) + 1)
    return tuple(timeline(record, name, seed, edges_us) for name, record in records.items())


def timeline(record: RunRecord, strategy: str, seed: int, edges_us: np.ndarray) -> Timeline:
    """Return means over each span of time between the edges; outside of steps everything counts as 0."""
    steps, num_instances = record.steps, len(record.instances.step_count)
    shape = num_instances, len(edges_us) - 1
    running, waiting, kv_percent = np.zeros(shape), np.zeros(shape), np.zeros(shape)
    for instance in range(num_instances):
        rows = np.flatnonzero(steps.instance == instance)
        if not len(rows):
            continue
        rows = rows[np.argsort(steps.last_index[rows], kind="stable")]
        start = steps.start_us[rows].astype(np.float64)
        end = start + steps.num_steps[rows] * steps.duration_us[rows]
        end[:-1] = np.minimum(end[:-1], start[1:])  # a step may begin before the last one has ended
        blocks = steps.sum_used_blocks[rows] / steps.num_steps[rows]
        total = max(int(record.instances.total_kv_blocks[instance]), 1)
        running[instance] = _means(start, end, steps.running[rows], edges_us)
        waiting[instance] = _means(start, end, steps.waiting[rows], edges_us)
        kv_percent[instance] = _means(start, end, 100 * blocks / total, edges_us)
    return Timeline(
        strategy=strategy,
        seed=seed,
        edges_s=(edges_us / 1e6).tolist(),
        running=running,
        waiting=waiting,
        kv_percent=kv_percent,
        num_requests=len(record.requests.arrival_us),
        num_steps=int(steps.num_steps.sum()),
    )


def _means(start: np.ndarray, end: np.ndarray, values: np.ndarray, edges: np.ndarray) -> np.ndarray:
    """Time-weighted, of a function that is constant within each stretch and 0 between them."""
    areas = np.cumsum((end - start) * values)
    times = np.column_stack([start, end]).reshape(-1)
    heights = np.column_stack([np.concatenate([[0.0], areas[:-1]]), areas]).reshape(-1)
    whole: np.ndarray = np.diff(np.interp(edges, times, heights)) / np.diff(edges)
    return whole


def _end_us(record: RunRecord) -> int:
    steps = record.steps
    ends = steps.start_us + steps.num_steps * steps.duration_us
    return int(ends.max(initial=0))


def parts_of(
    records: Mapping[str, Sequence[RunRecord]],
    classes: Sequence[str],
    window_of: Callable[[RunRecord], Window],
) -> tuple[TtftShare, ...]:
    """Return the parts of TTFT of every class under every strategy, mean over the runs that have some."""
    shares = []
    for strategy, runs in records.items():
        for slo_class in classes:
            tables: dict[str, list[list[float]]] = {}
            for record in runs:
                chosen = select(record, window=window_of(record)).of_name(slo_class)
                for view, parts in ttft_parts_ms(chosen).items():
                    tables.setdefault(view, []).append(parts)
            for view, rows in tables.items():
                means = grouped(np.array(rows).mean(axis=0))
                shares += [
                    TtftShare(strategy, slo_class, view, group, float(value))
                    for group, value in means.items()
                ]
    return tuple(shares)
