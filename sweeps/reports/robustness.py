"""A robustness map as a report: in every cell each strategy against the first, and what is recommended where."""

from __future__ import annotations

import itertools
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import xarray as xr

from blis_jax.commands import cli
from blis_jax.metrics.scalars import lookup
from blis_jax.metrics.summaries import ALL
from blis_jax.reports.page import write
from blis_jax.reports.study import SeedValues, ShownDifference, Study, finite
from blis_jax.reports.words import joined
from blis_jax.statistics.paired import joint_words
from sweeps.reports.differences import shown_difference
from sweeps.robustness.cells import MapAxisKind, kinds_in
from sweeps.robustness.output.report import judged
from sweeps.robustness.output.words import runs_of, shown
from sweeps.robustness.question import Question
from sweeps.robustness.store import is_done
from sweeps.robustness.verdict import inference_of, reference_index, values_of

MOST_CELLS = 60  # that the page has to choose from; the table beside the map has all


def write_report(
    dataset: xr.Dataset, verdicts: xr.Dataset, question: Question, lines: Sequence[str], path: Path
) -> None:
    """The page of a map."""
    with cli.writing(path):
        write(study_of(dataset, verdicts, question, lines), path)


@dataclass(frozen=True)
class _Map:
    """The cells that the page shows."""

    verdicts: xr.Dataset
    dataset: xr.Dataset
    values: dict[str, np.ndarray]  # by metric, [cell, strategy, seed]
    names: tuple[str, ...]
    places: tuple[str, ...]


def study_of(
    dataset: xr.Dataset, verdicts: xr.Dataset, question: Question, lines: Sequence[str]
) -> Study:
    """The report of a map's verdicts; `lines` say what follows from all cells."""
    dataset = dataset.isel(cell=np.flatnonzero(is_done(dataset)))
    chosen = _chosen(verdicts)
    cells, at = verdicts.isel(cell=chosen), dataset.isel(cell=chosen)
    values = {name: values_of(at, name) for name in question.names}
    names = tuple(map(str, verdicts["strategy"].values))
    found = _Map(cells, at, values, names, _place_names(verdicts, cells))
    seeds = tuple(verdicts["seed"].values.tolist())
    runs = runs_of(dataset.attrs, len(seeds))
    inference = inference_of(dataset)
    first, *others = names
    total = verdicts.sizes["cell"]
    left = (
        f" The page has {len(chosen)} of them; the table beside the map has all."
        if len(chosen) < total
        else ""
    )
    spared = "as many as its rule asked for of " if "stopping" in verdicts.attrs else ""
    return Study(
        command=str(dataset.attrs.get("command", "")),
        workload=", ".join(dict.fromkeys(map(str, verdicts["shape"].values))),
        strategies=names,
        title=f"Where {joined(others)} {'does' if len(others) == 1 else 'do'} better than {first}",
        lead=f"This page compares {joined(others)} with {first} in {total:,} cells: combinations of load, "
        f"workload and cluster.{left} Each cell was simulated with {spared}{runs.listed(seeds)}; on each {runs.one}, "
        "every strategy serves exactly the same requests. Choose a cell to see it.",
        places=found.places,
        place_title="Cell",
        descriptions={},
        classes=tuple(dict.fromkeys(lookup(name)[1] or ALL for name in question.names)),
        seeds=seeds,
        runs=runs,
        differences=tuple(_differences(found, question)),
        intervals=inference.method,
        joint=joint_words(inference),
        verdicts=f"Verdicts: {'anytime-valid ' * inference.is_anytime}paired t-tests by seed, adjusted by Holm's "
        "method for all metrics and strategies of the map in the cell. Nothing is corrected for the number of cells.",
        values=tuple(_values(found)),
        more={"What holds over all cells": list(lines), "What is recommended": _recommended(found)},
        provenance=_provenance(dataset, question),
    )


def _chosen(verdicts: xr.Dataset) -> np.ndarray:
    """The reference cell first, then cells evenly over the map."""
    total, reference = verdicts.sizes["cell"], reference_index(verdicts)
    even = np.unique(np.linspace(0, total - 1, min(total, MOST_CELLS)).round().astype(int)).tolist()
    first = [] if reference is None else [reference]
    return np.array([*first, *(cell for cell in even if cell != reference)][:MOST_CELLS])


def _place_names(verdicts: xr.Dataset, cells: xr.Dataset) -> tuple[str, ...]:
    """What tells a cell from the others; the map's constant axes are left out."""
    varying = [
        kind
        for kind in kinds_in(verdicts.coords)
        if len(set(verdicts[kind.name].values.tolist())) > 1
    ]
    columns = [(kind, cells[kind.name].values.tolist()) for kind in varying]
    names = [
        ", ".join(_axis_text(kind, values[cell]) for kind, values in columns) or "the only cell"
        for cell in range(cells.sizes["cell"])
    ]
    return tuple(names)


def _axis_text(kind: MapAxisKind, value: str | float) -> str:
    unit = "" if kind.unit in ("", "1") else f" {kind.unit}"
    return f"{kind.name.replace('_', ' ')} {shown(value)}{unit}"


def _differences(found: _Map, question: Question) -> Iterator[ShownDifference]:
    failed = found.verdicts["has_failed"].values
    classes = (
        found.dataset["slo_class"].values.tolist() if "slo_class" in found.dataset.coords else []
    )
    cells = zip(found.places, judged(found.dataset), strict=True)
    for cell, (place, of_cell) in enumerate(cells):
        running = [arm for arm in range(1, len(found.names)) if not failed[cell, [0, arm]].any()]
        for metric, arm in itertools.product(question.names, running):
            kind, slo_class = lookup(metric)
            at = [classes.index(slo_class or ALL)] if kind.has_classes else []
            change = of_cell[kind.name, arm - 1, *at]
            yield shown_difference(change, found.names[arm], found.names[0], metric, place)


def _values(found: _Map) -> Iterator[SeedValues]:
    for metric, values in found.values.items():
        kind, slo_class = lookup(metric)
        for cell, place in enumerate(found.places):
            for arm, name in enumerate(found.names):
                of_arm = finite(values[cell, arm].tolist())
                yield SeedValues(name, slo_class or ALL, kind.name, of_arm, place)


def _recommended(found: _Map) -> list[str]:
    chosen, reasons = found.verdicts["recommended"].values, found.verdicts["reason"].values
    rows = zip(found.places, chosen, reasons, strict=True)
    return [f"{place}: {label} ({reason})" for place, label, reason in rows]


def _provenance(dataset: xr.Dataset, question: Question) -> dict[str, Any]:
    named = ("package_version", "jax_version", "profile", "device", "created", "design")
    kept = {
        name.replace("_", " "): str(dataset.attrs[name]) for name in named if name in dataset.attrs
    }
    return kept | {
        "objective": question.objective,
        "constraints": ", ".join(map(str, question.constraints)) or "none",
        "seeds": ", ".join(map(str, dataset["seed"].values.tolist())),
    }
