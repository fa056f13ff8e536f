"""What the figures of the scheduling record show, computed once; see `papers.record.figures`."""

from __future__ import annotations

import json
import math
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from blis_jax.metrics.metric import ALL
from blis_jax.statistics.intervals import estimate
from papers.record import figures
from papers.record.figures import (
    Get,
    Row,
    change_rows,
    changes_at,
    place_of,
    row_of,
    value_rows,
    write_rows,
)
from papers.record.measures import CLASSES, LEVELS, curves, record_figures, ttft_parts
from papers.record.runs import PaperRuns, Say
from papers.record.settings import RunSetting
from papers.strategy_evolution.figures import settings as arms
from sweeps.optimize import main

if TYPE_CHECKING:
    pass

BAND = (5, 95)  # percent of the seeds, in distributions
TAIL = "ttft_p99_ms"


def distributions(get: Get) -> list[Row]:
    """Compute figure 1: TTFT by class, mean curve and the middle 90 % of the seeds."""
    samples = get(arms.policies(arms.MAIN), curves())
    rows: list[Row] = []
    for policy, sample in samples.items():
        values = sample.values.reshape(len(sample.seeds), len(CLASSES), len(LEVELS))
        for place, slo_class in enumerate(CLASSES):
            of_class = values[:, place][np.isfinite(values[:, place]).all(axis=1)]
            low, high = np.percentile(of_class, BAND, axis=0)
            mean, num = of_class.mean(axis=0), len(of_class)
            rows += [
                (policy, float(level), slo_class, "ttft_ms", float(m), float(lo), float(hi), num)
                for level, m, lo, hi in zip(LEVELS, mean, low, high, strict=True)
            ]
    tails = get(arms.policies(arms.MAIN), record_figures())
    return rows + value_rows(tails, [f"{TAIL}[{slo_class}]" for slo_class in CLASSES])


def admission(get: Get) -> list[Row]:
    """Compute figure 2: the gate's threshold against the tails of the classes, throughput and rejections."""
    metrics = ["tokens_per_sec", "goodput_rps", "reject_rate", "reject_rate[sheddable]"]
    metrics += [f"{TAIL}[{slo_class}]" for slo_class in CLASSES]
    return value_rows(get(arms.gates(), record_figures()), metrics)


def rates(get: Get) -> list[Row]:
    """Compute figure 3: arrival rates."""
    metrics = [*(f"{TAIL}[{slo_class}]" for slo_class in CLASSES), "tokens_per_sec"]
    return value_rows(get(arms.rates(), record_figures()), metrics)


def blocks(get: Get) -> list[Row]:
    """Compute figure 4: KV blocks of an instance; also the share of runs that came to their end."""
    metrics = [*(f"{TAIL}[{slo_class}]" for slo_class in CLASSES), "num_preemptions"]
    samples = get(arms.blocks(), record_figures())
    rows = value_rows(samples, metrics)
    for name, sample in samples.items():
        policy, x = place_of(name)
        share = np.isfinite(sample.column(TAIL)).astype(float)
        rows.append(row_of(policy, x, ALL, "share_ended", estimate(share)))
    return rows


def instances(get: Get) -> list[Row]:
    """Compute figure 5: cluster sizes at the published load and at equal load and duration."""
    samples = get(arms.instances(), record_figures())
    metrics = [f"{TAIL}[{slo_class}]" for slo_class in CLASSES]
    return value_rows(samples, metrics) + changes_at(samples, metrics, arms.BASELINE)


def step_constants(get: Get) -> list[Row]:
    """Compute figure 6: what critical requests gain from whole prompts as a step's constant cost varies."""
    samples = get(arms.step_constants(), record_figures())
    metrics = [f"{TAIL}[{slo_class}]" for slo_class in CLASSES]
    return value_rows(samples, metrics) + changes_at(samples, metrics, arms.CHUNKED)


def ablation(get: Get) -> list[Row]:
    """Compute figure 8: priorities and chunking switched on one by one, and each part of 8-opt taken out."""
    metrics = [*(f"{TAIL}[{slo_class}]" for slo_class in CLASSES), "tokens_per_sec"]
    square = get(arms.square(), record_figures())
    rows = value_rows(square, metrics)
    of = f"{TAIL}[critical]"
    both, priority, whole, none = (square[name].column(of) for name in arms.SQUARE_NAMES)
    rows.append(
        row_of("interaction", "", "critical", TAIL, estimate(both - priority - whole + none))
    )
    parts = get(arms.one_at_a_time(), record_figures())
    start = parts[arms.SEARCHED]
    for name, sample in parts.items():
        if name != arms.SEARCHED:
            rows += change_rows(name, "from 8-opt", start, sample, metrics)
    return rows


def parts(get: Get) -> list[Row]:
    """Compute figure 9: parts of TTFT by class, of all requests and of the slowest."""
    samples = get(arms.policies(arms.FOUR), ttft_parts())
    rows: list[Row] = []
    for policy, sample in samples.items():
        for name in sample.names:
            slo_class, which, part = name.split("/")
            mean = estimate(sample.column(name))
            rows.append(row_of(policy, which, slo_class, part, mean))
    return rows


TABLES: Mapping[str, Callable[[Get], list[Row]]] = {
    "ttft_distributions": distributions,
    "admission_threshold": admission,
    "rate_sweep": rates,
    "kv_pressure": blocks,
    "instance_scaling": instances,
    "step_constant": step_constants,
    "ablation": ablation,
    "ttft_parts": parts,
}
SEARCHES = "searches"


def compute(runs: PaperRuns, seeds: Sequence[int], folder: Path, say: Say | None) -> None:
    """Write the data of every figure; settings that have been run already are not simulated again."""
    figures.compute(TABLES, runs, seeds, folder, say)
    write_rows(folder / f"{SEARCHES}.csv", _searches(runs.folder))


def needed() -> list[RunSetting]:
    """Return every setting that the figures take figures of whole runs from."""
    return [
        *arms.policies(arms.MAIN),
        *arms.gates(),
        *arms.rates(),
        *arms.blocks(),
        *arms.instances(),
        *arms.step_constants(),
        *arms.square(),
        *arms.one_at_a_time(),
    ]


def _searches(folder: Path) -> list[Row]:
    """Figure 7: the scores of both searches, call by call, by the search command.

    Low and high are a standard error of the objective's mean over the seeds away.
    """
    rows: list[Row] = []
    for strategy in arms.SEARCHES:
        result = folder / f"search-{strategy}.json"
        result.parent.mkdir(parents=True, exist_ok=True)
        if not result.is_file():
            resume = ["--resume"] if result.with_suffix(".jsonl").is_file() else []
            words = [strategy, "--output", str(result), "--figure", "none", "--quiet", *resume]
            if main(words):
                raise RuntimeError(f"the search {strategy} failed; see its message above")
        document: Mapping[str, Any] = json.loads(result.read_text(encoding="utf-8"))
        for call, point in enumerate(document["points"], 1):
            tails = point["figures"]["critical"][TAIL]["per_seed"]
            error = float(np.std(tails, ddof=1)) / math.sqrt(len(tails))
            score = point["score"]
            ends = score - error, score + error
            rows.append((strategy, call, ALL, "score", score, *ends, len(tails)))
    return rows
