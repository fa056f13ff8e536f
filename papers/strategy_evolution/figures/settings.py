"""What the figures simulate: settings named `policy|place`, built from arms of the record."""

from __future__ import annotations

from collections.abc import Sequence

from blis_jax.cluster.config import ClusterConfig
from papers.record.settings import RunSetting, of_arm

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
