"""What the figures of the routing record show, computed once; see `papers.record.figure_tables`."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np

from blis_jax.statistics.intervals import estimate
from papers.record import figure_tables
from papers.record.figure_tables import Get, Row, changes_at, place_of, row_of, value_rows
from papers.record.measures import ALL
from papers.record.runs import PaperRuns, Say, SettingSample
from papers.record.settings import RunSetting
from papers.routing_evolution.figures import settings
from papers.routing_evolution.measures import CLASSES, TTFT, WORST_TTFT, track_figures

if TYPE_CHECKING:
    from papers.record.measures import Measurement

BOTH_TAILS = (WORST_TTFT, TTFT)
PRESSED_SEEDS = 8  # of runs under memory pressure or of 10 s, which take long
ENDED = "share_ended"


def ratios(get: Get) -> list[Row]:
    """Weight ratios: tails and completed requests."""
    found = get(settings.ratios(), track_figures())
    return value_rows(found, [*BOTH_TAILS, "completion_rate"])


def ablation(get: Get) -> list[Row]:
    """Arms under bursts by class; then the gains as arrivals vary more, paired by seed."""
    arms = get(settings.ablation(), track_figures())
    by_class = [f"{TTFT}[{slo_class}]" for slo_class in CLASSES]
    rows = value_rows(arms, [*BOTH_TAILS, *by_class, "reject_rate", "reject_rate[sheddable]"])
    bursts = get(settings.bursts(), track_figures())
    return rows + changes_at(bursts, BOTH_TAILS, settings.ROUND_ROBIN)


def sizes(get: Get) -> list[Row]:
    """Cluster sizes: tails, and gains paired by seed."""
    found = get(settings.sizes(), track_figures())
    return value_rows(found, BOTH_TAILS) + changes_at(found, BOTH_TAILS, settings.ROUND_ROBIN)


def memory(get: Get) -> list[Row]:
    """Blocks with and without a memory term: tails, and runs that come to their end."""
    found = get(settings.memory(), track_figures())
    whole = {name: sample.rows(_whole(sample)) for name, sample in found.items()}
    return value_rows(whole, BOTH_TAILS) + _ended(found)


def pools(get: Get) -> list[Row]:
    """Shared instances and pools: tails, completed requests and preemptions."""
    found = get(settings.pools(), track_figures())
    return value_rows(found, [*BOTH_TAILS, "completion_rate", "num_preemptions"])


def _whole(sample: SettingSample) -> list[int]:
    """The places of the runs that completed every request."""
    return np.flatnonzero(sample.column("completion_rate") == 1).tolist()


def _ended(samples: Mapping[str, SettingSample]) -> list[Row]:
    rows = []
    for name, sample in samples.items():
        policy, x = place_of(name)
        has_ended = (sample.column("completion_rate") == 1).astype(float)
        rows.append(row_of(policy, x, ALL, ENDED, estimate(has_ended)))
    return rows


TABLES: Mapping[str, Callable[[Get], list[Row]]] = {
    "weight_ratios": ratios,
    "burst_ablation": ablation,
    "cluster_sizes": sizes,
    "memory_term": memory,
    "disaggregation": pools,
}


def compute(runs: PaperRuns, seeds: Sequence[int], folder: Path, say: Say | None) -> None:
    """Writes the data of every figure; what the runs have is not simulated again."""

    def get(wanted: Iterable[RunSetting], measurement: Measurement) -> Mapping[str, SettingSample]:
        wanted = list(wanted)
        plain = [setting for setting in wanted if not is_dear(setting)]
        dear = [setting for setting in wanted if is_dear(setting)]
        found = runs.get(plain, seeds, measurement, say)
        return found | runs.get(dear, seeds[:PRESSED_SEEDS], measurement, say)

    for name, table in TABLES.items():
        figure_tables.write_rows(folder / f"{name}.csv", table(get))


def is_dear(setting: RunSetting) -> bool:
    """Whether runs take so long that the figures have fewer seeds of them."""
    return setting.is_pressed or setting.choice.name.startswith("groups")


def needed() -> list[RunSetting]:
    """Every setting of the figures."""
    return [
        *settings.ratios(),
        *settings.ablation(),
        *settings.bursts(),
        *settings.sizes(),
        *settings.memory(),
        *settings.pools(),
    ]
