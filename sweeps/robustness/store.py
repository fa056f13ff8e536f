"""The dataset of a robustness map: created empty, filled part by part, read finished or unfinished."""

from __future__ import annotations

import dataclasses
import json
from collections.abc import Mapping, Sequence
from enum import IntEnum
from pathlib import Path
from typing import Any, ClassVar

import numpy as np
import xarray as xr
import yaml

from blis_jax.cluster.setting_values import all_values
from blis_jax.commands.store import Store
from blis_jax.errors import ConfigError
from blis_jax.metrics.run_summary import RunSummary
from blis_jax.metrics.scalars import lookup
from blis_jax.metrics.summaries import ALL
from blis_jax.results.schema import NOT_RUN, Provenance, new_dataset, outcome_attributes
from sweeps.robustness.cells import kinds_in
from sweeps.robustness.plan import MapPlan

KIND = "robustness map"
WANTED = "the .zarr of a robustness map, or --overwrite to make one there"


class Unrun(IntEnum):
    """Further codes for runs that were not made, besides NOT_RUN."""

    SKIPPED = -2  # not run on this seed, since the first one livelocked
    SPARED = -3  # the same of seeds that the rule for stopping did without


DIMS = ("cell", "strategy", "seed")
_CHECKS = "num_broken_invariants"


def empty_dataset(plan: MapPlan, about: Mapping[str, str], cells_per_part: int) -> xr.Dataset:
    """Return the map before any run: NaN, and the outcome code of runs not made; `about` has further attributes."""
    shape = (len(plan.cells), len(plan.arms), len(plan.seeds))
    coords: dict[str, Any] = {"strategy": [arm.name for arm in plan.arms]}
    coords |= {"seed": list(plan.seeds), "slo_class": list(plan.classes)}
    dataset = new_dataset(KIND, _provenance(plan), coords, _about(plan) | dict(about))
    for kind in kinds_in(plan.reference):
        values = [place[kind.name] for place in plan.cells]
        attributes = {"units": kind.unit, "long_name": kind.heading}
        dataset.coords[kind.name] = ("cell", np.array(values), attributes)
    chunk = (min(cells_per_part, shape[0]), *shape[1:])
    for name, has_classes in _variables(plan).items():
        size = (*shape, len(plan.classes)) if has_classes else shape
        dims = (*DIMS, "slo_class") if has_classes else DIMS
        dataset[name] = (dims, np.full(size, np.nan), {"units": lookup(name)[0].unit})
        dataset[name].encoding = {"chunks": (*chunk, *size[3:])}
    dataset[_CHECKS] = (DIMS, np.zeros(shape, np.int64), {"units": "1"})
    dataset["outcome"] = (DIMS, np.full(shape, NOT_RUN, np.int8))
    dataset["outcome"].attrs = outcome_attributes(
        skipped=Unrun.SKIPPED, spared=Unrun.SPARED, not_run=NOT_RUN
    )
    for name in (_CHECKS, "outcome"):
        dataset[name].encoding = {"chunks": chunk}
    return dataset


def _variables(plan: MapPlan) -> dict[str, bool]:
    """Return the names of the metrics without `[class]`, and whether each is by class."""
    variables = {}
    for name in plan.names:
        metric, _ = lookup(name)
        variables[metric.name] = metric.has_classes
    return variables


class MapStore(Store):
    """The store of one map."""

    kind, wanted = KIND, WANTED
    decisive: ClassVar = {
        "package_version": "version of blis_jax",
        "jax_version": "version of JAX",
        "config": "configuration of the strategies",
        "workloads": "workload",
        "extent": "duration or number of requests",
        "random_stream": "--rng",
        "every_seed": "--every-seed",
        "stopping": "rule for stopping (--decide, --precision, or their objective and constraints)",
        "slo_targets": "--targets",
        "measure": "--window",
    }

    def __init__(self, path: Path) -> None:
        super().__init__(path, "sweeps.robustness")

    def refuse_other(self, dataset: xr.Dataset, wanted: xr.Dataset) -> None:
        """Refuse a map of other cells, strategies or seeds, or without one of its variables."""
        super().refuse_other(dataset, wanted)
        lost = [
            name for name in (*wanted.coords, "outcome", _CHECKS) if name not in dataset.variables
        ]
        if lost:
            raise ConfigError(f"{self.path} is damaged ({lost[0]} is missing); give --overwrite")
        axes = [kind.name for kind in kinds_in(wanted.coords)]
        for name in ("strategy", "seed", *axes):
            if not np.array_equal(dataset[name].values, wanted[name].values):
                what = "cells" if name in axes else f"{name} labels"
                raise ConfigError(f"{self.path} has other {what} than this study; {self.advice}")
        missing = [name for name in wanted.data_vars if name not in dataset]
        missing += [name for name in wanted["slo_class"].values if name not in dataset["slo_class"]]
        if missing:
            raise ConfigError(
                f"{self.path} has no {missing[0]}, which this study asks for; {self.advice}"
            )


def part_of(plan: MapPlan, runs: Sequence[Sequence[Sequence[RunSummary]]]) -> dict[str, np.ndarray]:
    """Return the arrays of a part, `[cell, strategy, seed]`, from its runs by cell, strategy and seed."""
    shape = (len(runs), len(plan.arms), len(plan.seeds))
    classes = {name: place for place, name in enumerate(plan.classes)}
    arrays: dict[str, np.ndarray] = {
        name: np.full((*shape, len(classes)) if has_classes else shape, np.nan)
        for name, has_classes in _variables(plan).items()
    }
    arrays[_CHECKS] = np.zeros(shape, np.int64)
    arrays["outcome"] = np.zeros(shape, np.int8)
    for index in np.ndindex(*shape):
        run = runs[index[0]][index[1]][index[2]]
        arrays["outcome"][index] = run.outcome
        arrays[_CHECKS][index] = run.num_broken_invariants
        for name, value in run.metrics.items():
            metric, slo_class = lookup(name)
            place = (classes[slo_class or ALL],) if metric.has_classes else ()
            arrays[metric.name][(*index, *place)] = value
    return arrays


def is_done(dataset: xr.Dataset) -> np.ndarray:
    """Return which cells have been run, `[cell]`."""
    done: np.ndarray = (dataset["outcome"].values != NOT_RUN).all(axis=(1, 2))
    return done


def _provenance(plan: MapPlan) -> Provenance:
    profiles = sorted({arm.config.profile for arm in plan.arms})
    return Provenance(
        config={arm.name: all_values(arm.config) for arm in plan.arms},
        seeds=plan.seeds,
        profile=" ".join(profiles),
    )


def _stopping(plan: MapPlan) -> dict[str, str]:
    """Return the stopping rule with the question as an attribute; empty if all cells have the same seeds."""
    rule = plan.stopping
    if rule is None:
        return {}
    question = {"objective": plan.question.objective, "confidence": plan.question.confidence}
    constraints = [str(constraint) for constraint in plan.question.constraints]
    content = {**dataclasses.asdict(rule), **question, "constraints": constraints}
    return {"stopping": json.dumps(content)}


def _about(plan: MapPlan) -> dict[str, Any]:
    documents = {name: shape.spec.about() for name, shape in plan.shapes.items()}
    spans = {name: measure.window() for name, measure in plan.measures.items()}
    return {
        "workloads": yaml.safe_dump(documents, sort_keys=False),
        "extent": json.dumps(dataclasses.asdict(plan.extent)),
        "random_stream": plan.stream,
        "every_seed": json.dumps(plan.is_every_seed_run),
        **_stopping(plan),
        "slo_targets": next(iter(plan.measures.values())).texts()["slo_targets"],
        "measure": json.dumps(spans),
        "reference_cell": json.dumps(dict(plan.reference)),
        "axes": json.dumps({axis.name: list(axis.values) for axis in plan.axes}),
    }
