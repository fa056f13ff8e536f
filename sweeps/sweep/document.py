"""The points of a sweep judged on common seeds, as a document: the numbers of its report and of `--json`."""

from __future__ import annotations

import json
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

from blis_jax.files.atomic_write import plain
from blis_jax.metrics.metric import names_in
from blis_jax.statistics import paired
from sweeps.compare.judge import BySeeds, comparison_json, figures_json, inference_json
from sweeps.runs.measured import pair_of
from sweeps.runs.saved_sweep import SavedSweep
from sweeps.sweep.data import outcome_counts
from sweeps.sweep.report import runs_of

if TYPE_CHECKING:
    import xarray as xr

    from blis_jax.metrics.run_summary import RunSummary
    from blis_jax.statistics.intervals import Inference
    from blis_jax.statistics.paired import Pair
    from sweeps.sweep.plan import SweepPlan

COMPARED = (
    "ttft_mean_ms",
    "ttft_p50_ms",
    "ttft_p90_ms",
    "pooled_ttft_p99_ms",
    "ttft_p99_ms",
    "e2e_mean_ms",
    "pooled_e2e_p99_ms",
    "e2e_p99_ms",
    "tpot_mean_ms",
    "output_tokens_per_s",
    "requests_per_s",
    "goodput_rps",
    "attainment",
)


class PointMetric(NamedTuple):
    """A metric, `[class]` behind where it is of a class, of one of the plan's points."""

    point: int  # its index
    metric: str


def _beside_reference(
    plan: SweepPlan, dataset: xr.Dataset, names: Sequence[str]
) -> Iterator[tuple[int, Sequence[RunSummary], Sequence[RunSummary]]]:
    """Yield the index of each point, the runs of its reference, and its own."""
    references: dict[int, Sequence[RunSummary]] = {}
    for index, runs in enumerate(SavedSweep(Path(), dataset).runs_by_point(names)):
        reference = plan.reference_of(index)
        if reference == index:
            references[index] = runs
        yield index, references[reference], runs


def pairs_of(plan: SweepPlan, dataset: xr.Dataset, names: Sequence[str]) -> dict[PointMetric, Pair]:
    """Return metrics of every point beside those of its reference, on the seeds of the Dataset."""
    return {
        PointMetric(index, name): pair_of(reference, runs, name)
        for index, reference, runs in _beside_reference(plan, dataset, names)
        for name in names
        if runs is not reference
    }


def to_document(plan: SweepPlan, dataset: xr.Dataset, inference: Inference) -> dict[str, Any]:
    """Return every point's figures and its differences to its reference; what does not exist is null."""
    names = names_in(COMPARED, dataset["slo_class"].values.tolist())
    judge, figures = BySeeds(inference), []
    pairs: dict[PointMetric, Pair] = {}
    for index, reference, runs in _beside_reference(plan, dataset, names):
        figures.append(figures_json(judge, runs, names))
        if runs is not reference:
            pairs |= {PointMetric(index, name): pair_of(reference, runs, name) for name in names}
    differences = paired.differences(list(pairs.values()), inference)
    against = "strategy" if len(plan.strategies) > 1 else "place"
    size, labels = len(differences), [plan.labels(point) for point in plan.points]
    family = {
        "family": f"{size} comparisons: every metric and class of every point against the first {against}",
        "family_size": size,
    }
    document = {
        "kind": "sweep",
        "inference": inference_json(judge, differences, family, runs_of(plan).one),
        "slo_targets": json.loads(dataset.attrs["slo_targets"]),
        "measure": json.loads(dataset.attrs["measure"]),
        "outcomes": {
            str(name): outcome_counts(dataset["outcome"].sel(strategy=name).values)
            for name in dataset["strategy"].values
        },
        "open_ties": int(dataset["num_open_ties"].sum()),
        "invariant_violations": json.loads(dataset.attrs["invariant_violation_counts"]),
        "arms": [
            {"name": name, "place": where, "figures": of_point}
            for (name, where), of_point in zip(labels, figures, strict=True)
        ],
        "comparisons": [
            {
                **comparison_json(
                    labels[of.point][0],
                    labels[plan.reference_of(of.point)][0],
                    of.metric,
                    difference,
                ),
                "place": labels[of.point][1],
            }
            for of, difference in zip(pairs, differences, strict=True)
        ],
    }
    return dict(plain(document))
