"""The dataset of a robustness map: made empty, filled part by part, read whole or half done."""

from __future__ import annotations

import dataclasses
import json
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import xarray as xr
import yaml

from blis_jax.errors import ConfigError
from blis_jax.results import Provenance, load_kind
from blis_jax.scalar_metrics import lookup
from blis_jax.setting_values import all_values
from blis_jax.summaries import ALL
from blis_jax.types import Outcome
from sweeps.objectives import SeedResult
from sweeps.part_store import NOT_RUN, PartStore
from sweeps.robustness_cells import KINDS
from sweeps.robustness_plan import MapPlan

KIND = "robustness map"
WANTED = "the .zarr of a robustness map, or --overwrite to make one there"
SKIPPED = -2  # code beside the outcomes and NOT_RUN
SKIPPED_NAME = "SKIPPED"  # not run on this seed, since the first one livelocked
DIMS = ("cell", "strategy", "seed")
_CHECKS = "num_broken_invariants"
_CODES = {SKIPPED_NAME: SKIPPED, "NOT_RUN": NOT_RUN} | {one.name: int(one) for one in Outcome}


def empty_dataset(plan: MapPlan, about: Mapping[str, str], cells_per_part: int) -> xr.Dataset:
    """The map before any run: NaN, and the outcome that says so. `about` are further attributes."""
    shape = (len(plan.cells), len(plan.arms), len(plan.seeds))
    dataset = xr.Dataset(attrs=_attributes(plan) | dict(about))
    dataset.coords["strategy"] = [arm.name for arm in plan.arms]
    dataset.coords["seed"] = list(plan.seeds)
    dataset.coords["slo_class"] = list(plan.classes)
    for kind in KINDS:
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
    dataset["outcome"].attrs = {
        "flag_values": list(_CODES.values()),
        "flag_meanings": " ".join(_CODES).lower(),
    }
    for name in (_CHECKS, "outcome"):
        dataset[name].encoding = {"chunks": chunk}
    return dataset


def _variables(plan: MapPlan) -> dict[str, bool]:
    """Metrics without `[class]`, and whether they have one."""
    found = {}
    for name in plan.names:
        metric, _ = lookup(name)
        found[metric.name] = metric.has_classes
    return found


class MapStore(PartStore):
    """The store of one map."""

    def __init__(self, path: Path) -> None:
        super().__init__(path, "sweeps.robustness")

    def load(self) -> xr.Dataset:
        """What there is."""
        return load_map(self.path)

    def go_on(self, wanted: xr.Dataset) -> xr.Dataset:
        """What there is of the map that `wanted` is the empty one of."""

        def check(dataset: xr.Dataset) -> None:
            if dataset.attrs.get("kind") != KIND:
                raise ConfigError(f"{self.path} is something else; give {WANTED}")
            check_same(dataset, wanted, str(self.path))

        return self.resume("give --overwrite or another --output", check)


def part_of(plan: MapPlan, runs: Sequence[Sequence[Sequence[SeedResult]]]) -> dict[str, np.ndarray]:
    """The arrays of a part from its runs by cell, strategy and seed."""
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
        arrays["outcome"][index] = _CODES[run.outcome]
        arrays[_CHECKS][index] = run.num_broken_invariants
        for name, value in run.metrics.items():
            metric, slo_class = lookup(name)
            place = (classes[slo_class or ALL],) if metric.has_classes else ()
            arrays[metric.name][(*index, *place)] = value
    return arrays


def is_done(dataset: xr.Dataset) -> np.ndarray:
    """Which cells are there, `[cell]`."""
    done: np.ndarray = (dataset["outcome"].values != NOT_RUN).all(axis=(1, 2))
    return done


def load_map(path: str | Path) -> xr.Dataset:
    """Reads a map, half done or whole; refuses what is none."""
    return load_kind(path, KIND, WANTED)


def check_same(dataset: xr.Dataset, wanted: xr.Dataset, source: str) -> None:
    """Refuses to go on with the map of another study, or with one that has lost a variable."""
    lost = [name for name in (*wanted.coords, "outcome", _CHECKS) if name not in dataset.variables]
    if lost:
        raise ConfigError(f"{source} is damaged ({lost[0]} is missing); give --overwrite")
    for name, what in _MUST_AGREE.items():
        if dataset.attrs.get(name) != wanted.attrs[name]:
            raise ConfigError(
                f"{source} was made with another {what}; give --overwrite or another --output"
            )
    for name in ("strategy", "seed", *(kind.name for kind in KINDS)):
        if not np.array_equal(dataset[name].values, wanted[name].values):
            what = "cells" if name in {kind.name for kind in KINDS} else f"{name} labels"
            raise ConfigError(
                f"{source} has other {what} than this study; give --overwrite or another --output"
            )
    missing = [name for name in wanted.data_vars if name not in dataset]
    missing += [name for name in wanted["slo_class"].values if name not in dataset["slo_class"]]
    if missing:
        raise ConfigError(
            f"{source} has no {missing[0]}, which this study asks for; give --overwrite or another "
            "--output"
        )


_MUST_AGREE = {
    "package_version": "version of blis_jax",
    "jax_version": "version of JAX",
    "config": "configuration of the strategies",
    "workloads": "workload",
    "extent": "duration or number of requests",
    "random_stream": "--rng",
    "every_seed": "--every-seed",
    "slo_targets": "--targets",
    "measure": "--window",
}


def _attributes(plan: MapPlan) -> dict[str, Any]:
    profiles = sorted({arm.config.profile for arm in plan.arms})
    provenance = Provenance(
        config={arm.name: all_values(arm.config) for arm in plan.arms},
        seeds=plan.seeds,
        profile=" ".join(profiles),
    )
    documents = {
        name: shape.spec.model_dump(mode="json", exclude_defaults=True)
        for name, shape in plan.shapes.items()
    }
    spans = {name: measure.window() for name, measure in plan.measures.items()}
    attributes = {
        name: text
        for name, text in provenance.attributes().items()
        if name not in ("spec", "policies")
    }
    return attributes | {
        "kind": KIND,
        "workloads": yaml.safe_dump(documents, sort_keys=False),
        "extent": json.dumps(dataclasses.asdict(plan.extent)),
        "random_stream": plan.stream,
        "every_seed": json.dumps(plan.is_every_seed_run),
        "slo_targets": next(iter(plan.measures.values())).texts()["slo_targets"],
        "measure": json.dumps(spans),
        "reference_cell": json.dumps(dict(plan.reference)),
        "axes": json.dumps({axis.name: list(axis.values) for axis in plan.axes}),
    }
