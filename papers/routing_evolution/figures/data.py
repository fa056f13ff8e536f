"""What the figures of the routing record show, computed once; see `papers.record.figures`."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from pathlib import Path

from papers.record import figures
from papers.record.figures import Get, Row, changes_at, value_rows
from papers.record.runs import PaperRuns, Say
from papers.record.settings import RunSetting
from papers.routing_evolution.figures import settings
from papers.routing_evolution.record import CLASSES, RECORD, TTFT, WORST_TTFT, track_figures

BOTH_TAILS = (WORST_TTFT, TTFT)
COMPLETED = "completion_rate"


def ratios(get: Get) -> list[Row]:
    """Compute the data of weight ratios: tails and completed requests."""
    samples = get(settings.ratios(), track_figures())
    return value_rows(samples, [*BOTH_TAILS, COMPLETED])


def ablation(get: Get) -> list[Row]:
    """Compute the arms under bursts by class; then the gains as arrivals vary more, paired by seed."""
    arms = get(settings.ablation(), track_figures())
    by_class = [f"{TTFT}[{slo_class}]" for slo_class in CLASSES]
    rows = value_rows(arms, [*BOTH_TAILS, *by_class, "reject_rate", "reject_rate[sheddable]"])
    bursts = get(settings.bursts(), track_figures())
    return rows + changes_at(bursts, BOTH_TAILS, settings.ROUND_ROBIN)


def sizes(get: Get) -> list[Row]:
    """Compute the data of cluster sizes: tails, and gains paired by seed."""
    samples = get(settings.sizes(), track_figures())
    return value_rows(samples, BOTH_TAILS) + changes_at(samples, BOTH_TAILS, settings.ROUND_ROBIN)


def memory(get: Get) -> list[Row]:
    """Compute the data of blocks with and without a memory term: tails of runs that complete all, and
    completed requests.
    """
    samples = get(settings.memory(), track_figures())
    whole = {
        name: sample for name, sample in samples.items() if (sample.column(COMPLETED) == 1).all()
    }
    return value_rows(whole, BOTH_TAILS) + value_rows(samples, [COMPLETED])


def pools(get: Get) -> list[Row]:
    """Compute the data of shared instances and pools: tails, completed requests and preemptions."""
    samples = get(settings.pools(), track_figures())
    return value_rows(samples, [*BOTH_TAILS, COMPLETED, "num_preemptions"])


TABLES: Mapping[str, Callable[[Get], list[Row]]] = {
    "weight_ratios": ratios,
    "burst_ablation": ablation,
    "cluster_sizes": sizes,
}
OF_PUBLISHED_SEEDS: Mapping[str, Callable[[Get], list[Row]]] = {
    "memory_term": memory,
    "disaggregation": pools,
}


def compute(runs: PaperRuns, seeds: Sequence[int], folder: Path, say: Say | None) -> None:
    """Write the data of every figure; what the runs have is not simulated again."""
    figures.compute(TABLES, runs, seeds, folder, say)
    published = PaperRuns(runs.folder, "reference")
    figures.compute(OF_PUBLISHED_SEEDS, published, RECORD.seeds, folder, say)


def needed() -> list[RunSetting]:
    """Return every setting of which the figures have many seeds."""
    return [*settings.ratios(), *settings.ablation(), *settings.bursts(), *settings.sizes()]
