"""What the figures of the routing record simulate, and what they show of it; see `papers.record.figures`."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

from papers.record import figures
from papers.record.figures import Get, Row, changes_at, value_rows
from papers.record.runs import PaperRuns
from papers.record.settings import RunSetting, of_groups
from papers.routing_evolution.record import CLASSES, RECORD, TTFT, WORST_TTFT, track_figures

# --- settings named `policy|place`, built from the record's groups --------------------------------


TRACK = "track"
RR, LEAST_LOADED, DEFAULT, FOUR_THREE, THREE_TWO = "rr", "ll", "def", "a43", "a32"
GATE, PRIORITY, BOTH = "gate", "prio", "both"
# weight of prefix-affinity : weight of queue-depth
RATIOS = (
    (1, 2), (4, 5), (1, 1), (9, 8), (5, 4), (4, 3), (3, 2), (5, 3), (2, 1), (5, 2), (3, 1), (4, 1), (6, 1),
)  # fmt: skip
# workload, tokens of its prefix, prompt tokens behind it from and to
PREFIXES = (("orth_short_prefix", 128), ("orth", 512), ("orth_long_prefix", 2048))
OWN_TOKENS = (64, 512)
MAP_REQUESTS = 1000
# the arms of the ablation, with what each adds to its routing
ABLATION = {
    "round-robin": (RR,),
    "default scorers": (DEFAULT,),
    "4:3": (FOUR_THREE,),
    "4:3, priorities": (FOUR_THREE, PRIORITY),
    "4:3, gate": (FOUR_THREE, GATE),
    "4:3, both (compound)": (FOUR_THREE, BOTH),
    "3:2, both": (THREE_TWO, BOTH),
    "round-robin, both": (RR, BOTH),
    "least-loaded, both": (LEAST_LOADED, BOTH),
}
VARIATIONS = (1, 1.5, 2, 2.5, 3, 3.5)  # of the gaps between a client's arrivals; 1 is Poisson
COUNTS = (1000, 2000)
ROUND_ROBIN, COMPOUND, GATED = "round-robin", "compound", "gate"
GAINS = {ROUND_ROBIN: (RR,), COMPOUND: (FOUR_THREE, BOTH), GATED: (FOUR_THREE, GATE)}
SIZES = (4, 8, 16, 32)
PUBLISHED_COUNT, EQUAL_DURATION = "published", "equal"
RATE_PER_INSTANCE = 250
# of the record's own settings and seeds, since runs under memory pressure and of 10 s take long
BLOCKS = (132139, 2000, 1000)
MEMORY = {"round-robin": RR, "with kv-utilization": DEFAULT, "without": THREE_TWO}
SHARED, SHARED_ALL, PREFILL4, PREFILL2 = "shared", "shared, all blocks", "prefill 4", "prefill 2"
SERIAL = ", serial"
POOLS = {
    f"{SHARED}|{{rate}}": ("shared_{rate}", (100, 200, 300, 400)),
    f"{SHARED_ALL}|{{rate}}": ("shared_{rate}_all_blocks", (200, 400)),
    f"{PREFILL4}|{{rate}}": ("prefill4_{rate}", (100, 200, 400)),
    f"{PREFILL2}|{{rate}}": ("prefill2_{rate}", (100, 200, 300, 400)),
    f"{SHARED}{SERIAL}|{{rate}}": ("shared_{rate}_corrected", (200, 400)),
    f"{SHARED_ALL}{SERIAL}|{{rate}}": ("shared_{rate}_all_blocks_corrected", (200, 400)),
    f"{PREFILL4}{SERIAL}|{{rate}}": ("prefill4_{rate}_corrected", (200, 400)),
    f"{PREFILL2}{SERIAL}|{{rate}}": ("prefill2_{rate}_corrected", (200, 400)),
}


def _made(name: str, groups: Sequence[str], workload: Any, **changes: Any) -> RunSetting:
    return of_groups(name, RECORD.groups, (TRACK, *groups), changes, workload)


def _orth(rate: float, count: int, **numbers: Any) -> dict[str, Any]:
    return {"name": "orth", "aggregate_rate": rate, "num_requests": count, **numbers}


def ratios() -> list[RunSetting]:
    """Return the ratios of the two weights under the compound, on prompts of which different parts are shared."""
    settings = []
    for workload, tokens in PREFIXES:
        for affinity, depth in RATIOS:
            scorers = f"prefix-affinity:{affinity},queue-depth:{depth}"
            settings.append(_made(
                f"{tokens}|{affinity / depth:g}", (BOTH,),
                {"name": workload, "num_requests": MAP_REQUESTS},
                routing_policy="weighted", routing_scorers=scorers,
            ))  # fmt: skip
    return settings


def ablation() -> list[RunSetting]:
    """Return the settings that take the compound apart, on 2,000 bursty requests."""
    workload = {"name": "orth_gamma2", "num_requests": 2000}
    return [_made(name, groups, workload) for name, groups in ABLATION.items()]


def bursts() -> list[RunSetting]:
    """Return round-robin, compound and gate as arrivals vary more, with the same number of requests."""
    return [
        _made(f"{name}|{count} {cv:g}", groups, _orth(2000, count, cv=cv))
        for name, groups in GAINS.items()
        for count in COUNTS
        for cv in VARIATIONS
    ]


def sizes() -> list[RunSetting]:
    """Return the cluster sizes: 2,000 requests at every size, and 1 s of arrivals at every size."""
    settings = []
    for name in (ROUND_ROBIN, COMPOUND):
        for size in SIZES:
            rate = RATE_PER_INSTANCE * size
            for load, count in ((PUBLISHED_COUNT, 2000), (EQUAL_DURATION, rate)):
                place = f"{name}|{load} {size}"
                settings.append(_made(place, GAINS[name], _orth(rate, count), num_instances=size))
    return settings


def memory() -> list[RunSetting]:
    """Return routers with and without a memory term at several pools of blocks."""
    return [
        _renamed(f"mixed_50x300_kv{blocks}_{policy}", f"{name}|{blocks}")
        for name, policy in MEMORY.items()
        for blocks in BLOCKS
    ]


def pools() -> list[RunSetting]:
    """Return shared instances and pools for prefill, as BLIS computes them and without its defects."""
    return [
        _renamed(name.format(rate=rate), place.format(rate=rate))
        for place, (name, rates) in POOLS.items()
        for rate in rates
    ]


def _renamed(name: str, place: str) -> RunSetting:
    return dataclasses.replace(RECORD.settings[name], name=place)


# --- the data of each figure ----------------------------------------------------------------------


BOTH_TAILS = (WORST_TTFT, TTFT)
COMPLETED = "completion_rate"


def weight_ratios(get: Get) -> list[Row]:
    """Compute the data of weight ratios: tails and completed requests."""
    samples = get(ratios(), track_figures())
    return value_rows(samples, [*BOTH_TAILS, COMPLETED])


def burst_ablation(get: Get) -> list[Row]:
    """Compute the arms under bursts by class; then the gains as arrivals vary more, paired by seed."""
    arms = get(ablation(), track_figures())
    by_class = [f"{TTFT}[{slo_class}]" for slo_class in CLASSES]
    rows = value_rows(arms, [*BOTH_TAILS, *by_class, "reject_rate", "reject_rate[sheddable]"])
    return rows + changes_at(get(bursts(), track_figures()), BOTH_TAILS, ROUND_ROBIN)


def cluster_sizes(get: Get) -> list[Row]:
    """Compute the data of cluster sizes: tails, and gains paired by seed."""
    samples = get(sizes(), track_figures())
    return value_rows(samples, BOTH_TAILS) + changes_at(samples, BOTH_TAILS, ROUND_ROBIN)


def memory_term(get: Get) -> list[Row]:
    """Compute the data of blocks with and without a memory term: tails of runs that complete all, and
    completed requests.
    """
    samples = get(memory(), track_figures())
    whole = {name: runs for name, runs in samples.items() if (runs.column(COMPLETED) == 1).all()}
    return value_rows(whole, BOTH_TAILS) + value_rows(samples, [COMPLETED])


def disaggregation(get: Get) -> list[Row]:
    """Compute the data of shared instances and pools: tails, completed requests and preemptions."""
    samples = get(pools(), track_figures())
    return value_rows(samples, [*BOTH_TAILS, COMPLETED, "num_preemptions"])


Table = Callable[[Get], list[Row]]
TABLES: Mapping[str, Table] = {
    table.__name__: table for table in (weight_ratios, burst_ablation, cluster_sizes)
}
OF_PUBLISHED_SEEDS: Mapping[str, Table] = {
    table.__name__: table for table in (memory_term, disaggregation)
}


def compute(runs: PaperRuns, seeds: Sequence[int], folder: Path) -> None:
    """Write the data of every figure; runs that `runs` has are not simulated again."""
    figures.compute(TABLES, runs, seeds, folder)
    published = PaperRuns(runs.folder, "reference")
    figures.compute(OF_PUBLISHED_SEEDS, published, RECORD.seeds, folder)


def needed() -> list[RunSetting]:
    """Return every setting of which the figures have many seeds."""
    return [*ratios(), *ablation(), *bursts(), *sizes()]
