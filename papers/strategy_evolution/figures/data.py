"""What the figures of the scheduling record simulate, and what they show of it; see `papers.record.figures`."""

from __future__ import annotations

import json
import math
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from blis_jax.cluster.config import ClusterConfig
from blis_jax.metrics.metric import ALL
from blis_jax.statistics.intervals import estimate
from papers.record import figures, measures
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
from papers.record.measures import CLASSES, LEVELS, curves, record_figures
from papers.record.runs import PaperRuns
from papers.record.settings import RunSetting, of_arm
from sweeps.optimize import main

# --- settings named `policy|place`, built from arms of the record ---------------------------------


BASELINE, PRIORITIES, SIMPLIFIED, SEARCHED = "baseline", "iteration 1", "iteration 5", "8-opt"
GATED = "iteration 3"
ARMS = {
    BASELINE: "iter00_baseline",
    PRIORITIES: "iter01_priority_cascade:slo_scorer_weight=1",
    GATED: "iter03_gated_admission",
    SIMPLIFIED: "iter05_simplified",
    SEARCHED: "iter08_token_budget@published",
}
MAIN = (BASELINE, SIMPLIFIED, SEARCHED)
FOUR = (BASELINE, PRIORITIES, SIMPLIFIED, SEARCHED)
THRESHOLDS = (5, 10, 15, 20, 30, 50, 75, 100, 150, 200)
NO_GATE = "none"
RATES = (500, 1000, 1500, 2000, 2500, 3000, 4000)
ALL_BLOCKS = 132139
BLOCKS = (ALL_BLOCKS, 20000, 10000, 5000, 4000, 3000, 2500, 2000, 1750)
WITHOUT_TIER = (3000, 2500, 2000, 1750)
NO_TIER = ", no CPU tier"
SIZES = (4, 8, 16, 32)
PUBLISHED_LOAD, EQUAL_LOAD = "published", "equal"
REQUESTS_PER_INSTANCE, RATE_PER_INSTANCE = 125, 250.0  # what the published load is at 8 instances
CHUNKED, WHOLE = "prompts in chunks", "critical prompts whole"
MULTIPLES = (0.25, 0.5, 1, 2, 4)
SEARCHES = ("iter01_priority_cascade", "iter08_token_budget")
SQUARE_NAMES = ("both", "priorities only", "whole prompts only", "neither")
_DEFAULT_SCORERS = "routing_scorers=prefix-affinity:3,queue-depth:2,kv-utilization:2"
_PRIORITIES_ALONE = f"iter01_priority_cascade:{_DEFAULT_SCORERS}"
_WHOLE = "slo_prefill=true;slo_prefill_critical=0;slo_prefill_sheddable=0"
# 8-opt with one part at a time as the earlier iterations had it
TAKEN_BACK = {
    "token budget 2048 instead of 962": "max_num_scheduled_tokens=2048",
    "all prompts in chunks of 256": "slo_prefill=false",
    "critical prompts whole": "slo_prefill_critical=0",
    "base scores 10 and 1": "slo_base_critical=10;slo_base_sheddable=1",
    "age weight 1e-5": "slo_age_weight=1e-5",
    "sheddable grace 200 ms": "slo_threshold_sheddable=200000",
    "no kv-utilization scorer": "routing_scorers=prefix-affinity:3,queue-depth:2",
    "least-loaded routing": "routing_policy=least-loaded",
    "no priorities (fcfs)": "scheduler=fcfs;priority_policy=constant",
}


def policies(names: Sequence[str]) -> list[RunSetting]:
    """Return policies on the record's workload."""
    return [of_arm(name, ARMS[name]) for name in names]


def gates() -> list[RunSetting]:
    """Return the gate of iteration 3 at several thresholds, and iteration 1, which is the same without it."""
    settings = [of_arm(f"{GATED}|{gate}", f"{ARMS[GATED]}:gate={gate}") for gate in THRESHOLDS]
    return [*settings, of_arm(f"{PRIORITIES}|{NO_GATE}", ARMS[PRIORITIES])]


def rates() -> list[RunSetting]:
    """Return policies at several arrival rates, requests/s, 1,000 requests each."""
    return [of_arm(f"{p}|{rate}", ARMS[p], rate=rate) for p in MAIN for rate in RATES]


def blocks() -> list[RunSetting]:
    """Return baseline and iteration 5 at several pools of KV blocks; the CPU tier has a third of them."""
    settings = []
    for policy in (BASELINE, SIMPLIFIED):
        for number in BLOCKS:
            arm = f"{ARMS[policy]}:total_kv_blocks={number};kv_cpu_blocks={number // 3}"
            settings.append(of_arm(f"{policy}|{number}", arm))
        for number in WITHOUT_TIER:
            arm = f"{ARMS[policy]}:total_kv_blocks={number};kv_cpu_blocks=0"
            settings.append(of_arm(f"{policy}{NO_TIER}|{number}", arm))
    return settings


def instances() -> list[RunSetting]:
    """Return policies at several cluster sizes: the published load, and one that grows with the cluster."""
    settings = []
    for policy in MAIN:
        for size in SIZES:
            arm = f"{ARMS[policy]}:num_instances={size}"
            settings.append(of_arm(f"{policy}|{PUBLISHED_LOAD} {size}", arm))
            load = {"rate": RATE_PER_INSTANCE * size, "num_requests": REQUESTS_PER_INSTANCE * size}
            settings.append(of_arm(f"{policy}|{EQUAL_LOAD} {size}", arm, **load))  # type: ignore[arg-type]
    return settings


def step_constants() -> list[RunSetting]:
    """Return priorities with prompts in chunks, and with critical prompts whole, at multiples of β0."""
    constant, *others = ClusterConfig().beta_coeffs
    settings = []
    for multiple in MULTIPLES:
        beta = f"beta_coeffs=[{', '.join(repr(v) for v in (constant * multiple, *others))}]"
        settings.append(of_arm(f"{CHUNKED}|{multiple}", f"{_PRIORITIES_ALONE};{beta}"))
        whole = f"iter04_slo_prefill:{_DEFAULT_SCORERS};{beta}"
        settings.append(of_arm(f"{WHOLE}|{multiple}", whole))
    return settings


def square() -> list[RunSetting]:
    """Return priorities on and off times prompts of critical and sheddable requests whole or in chunks."""
    arms = (ARMS[SIMPLIFIED], _PRIORITIES_ALONE, f"{ARMS[BASELINE]}:{_WHOLE}", ARMS[BASELINE])
    return [of_arm(name, arm) for name, arm in zip(SQUARE_NAMES, arms, strict=True)]


def one_at_a_time() -> list[RunSetting]:
    """Return 8-opt, and 8-opt with one part taken back."""
    parts = [of_arm(name, f"{ARMS[SEARCHED]}:{text}") for name, text in TAKEN_BACK.items()]
    return [of_arm(SEARCHED, ARMS[SEARCHED]), *parts]


# --- the data of each figure ----------------------------------------------------------------------


BAND = (5, 95)  # percent of the seeds, in distributions
TAIL = "ttft_p99_ms"
TAILS = [f"{TAIL}[{slo_class}]" for slo_class in CLASSES]


def ttft_distributions(get: Get) -> list[Row]:
    """Compute figure 1: TTFT by class, mean curve and the middle 90 % of the seeds."""
    samples = get(policies(MAIN), curves())
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
    tails = get(policies(MAIN), record_figures())
    return rows + value_rows(tails, TAILS)


def admission_threshold(get: Get) -> list[Row]:
    """Compute figure 2: the gate's threshold against the tails of the classes, throughput and rejections."""
    metrics = ["tokens_per_sec", "goodput_rps", "reject_rate", "reject_rate[sheddable]", *TAILS]
    return value_rows(get(gates(), record_figures()), metrics)


def rate_sweep(get: Get) -> list[Row]:
    """Compute figure 3: arrival rates."""
    return value_rows(get(rates(), record_figures()), [*TAILS, "tokens_per_sec"])


def kv_pressure(get: Get) -> list[Row]:
    """Compute figure 4: KV blocks of an instance; also the share of runs that came to their end."""
    samples = get(blocks(), record_figures())
    rows = value_rows(samples, [*TAILS, "num_preemptions"])
    for name, sample in samples.items():
        policy, x = place_of(name)
        share = np.isfinite(sample.column(TAIL)).astype(float)
        rows.append(row_of(policy, x, ALL, "share_ended", estimate(share)))
    return rows


def instance_scaling(get: Get) -> list[Row]:
    """Compute figure 5: cluster sizes at the published load and at equal load and duration."""
    samples = get(instances(), record_figures())
    return value_rows(samples, TAILS) + changes_at(samples, TAILS, BASELINE)


def step_constant(get: Get) -> list[Row]:
    """Compute figure 6: what critical requests gain from whole prompts as a step's constant cost varies."""
    samples = get(step_constants(), record_figures())
    return value_rows(samples, TAILS) + changes_at(samples, TAILS, CHUNKED)


def ablation(get: Get) -> list[Row]:
    """Compute figure 8: priorities and chunking switched on one by one, and each part of 8-opt taken out."""
    metrics = [*TAILS, "tokens_per_sec"]
    parts = get(square(), record_figures())
    rows = value_rows(parts, metrics)
    of = f"{TAIL}[critical]"
    both, priority, whole, none = (parts[name].column(of) for name in SQUARE_NAMES)
    rows.append(
        row_of("interaction", "", "critical", TAIL, estimate(both - priority - whole + none))
    )
    parts = get(one_at_a_time(), record_figures())
    start = parts[SEARCHED]
    for name, sample in parts.items():
        if name != SEARCHED:
            rows += change_rows(name, "from 8-opt", start, sample, metrics)
    return rows


def ttft_parts(get: Get) -> list[Row]:
    """Compute figure 9: parts of TTFT by class, of all requests and of the slowest."""
    samples = get(policies(FOUR), measures.ttft_parts())
    rows: list[Row] = []
    for policy, sample in samples.items():
        for name in sample.names:
            slo_class, which, part = name.split("/")
            rows.append(row_of(policy, which, slo_class, part, estimate(sample.column(name))))
    return rows


TABLES: Mapping[str, Callable[[Get], list[Row]]] = {
    table.__name__: table
    for table in (
        ttft_distributions, admission_threshold, rate_sweep, kv_pressure, instance_scaling,
        step_constant, ablation, ttft_parts,
    )
}  # fmt: skip


def compute(runs: PaperRuns, seeds: Sequence[int], folder: Path) -> None:
    """Write the data of every figure; settings that have been run already are not simulated again."""
    figures.compute(TABLES, runs, seeds, folder)
    write_rows(folder / "searches.csv", _searches(runs.folder))


def needed() -> list[RunSetting]:
    """Return every setting that the figures take figures of whole runs from."""
    kinds = (gates, rates, blocks, instances, step_constants, square, one_at_a_time)
    return [*policies(MAIN), *(setting for kind in kinds for setting in kind())]


def _searches(folder: Path) -> list[Row]:
    """Figure 7: the scores of both searches, call by call, by the search command.

    Low and high are a standard error of the objective's mean over the seeds away.
    """
    rows: list[Row] = []
    for strategy in SEARCHES:
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
