"""The store of a dataset: made empty, filled part by part, and checked before it is gone on with."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import xarray as xr

from blis_jax.cluster.setting_values import all_values
from blis_jax.commands.store import Store
from blis_jax.core.outcome import Outcome
from blis_jax.errors import reads_store
from blis_jax.metrics.scalars import lookup
from blis_jax.results.schema import NOT_RUN, Provenance, new_dataset, outcome_attributes
from surrogate.columns import to_json
from surrogate.data import KIND, NOT_PLANNED, OWN_KIND
from surrogate.levels.covariates import COVARIATES
from sweeps.dataset.plan import DatasetPlan
from sweeps.search.objectives import SeedResult

ADVICE = "give --overwrite or another --output"


def empty_dataset(plan: DatasetPlan, names: Sequence[str], about: Mapping[str, str]) -> xr.Dataset:
    """The dataset before any run; `about` are further attributes."""
    seeds = np.array(plan.sizes.all_seeds)
    shape = plan.is_planned.shape
    coords = {
        "parameter": [column.name for column in plan.columns],
        "metric": list(names),
        "covariate": list(COVARIATES),
    }
    provenance = Provenance(config=all_values(plan.space.base), seeds=plan.sizes.all_seeds)
    further = {"parameters": to_json(plan.columns), **about}
    kind = OWN_KIND if plan.sizes.own_seeds else KIND
    dataset = new_dataset(kind, provenance, coords, further)
    dataset.coords["unit"] = ("metric", [lookup(name)[0].unit for name in names])
    if not plan.sizes.own_seeds:
        dataset.coords["seed"] = seeds
        dataset.coords["is_other_seed"] = ("seed", np.arange(len(seeds)) >= plan.sizes.seeds)
    dataset.coords["role"] = ("point", plan.roles.tolist())
    dataset["inputs"] = (("point", "parameter"), plan.codes)
    chunk = (min(plan.points_per_part, shape[0]), shape[1])
    dims = ("point", "seed")
    dataset["run_seed"] = (dims, seeds[plan.places])
    dataset["covariates"] = (
        (*dims, "covariate"), np.full((*shape, len(COVARIATES)), np.nan, np.float32)
    )  # fmt: skip
    dataset["covariates"].encoding = {"chunks": (*chunk, len(COVARIATES))}
    dataset["value"] = ((*dims, "metric"), np.full((*shape, len(names)), np.nan, np.float32))
    dataset["value"].encoding = {"chunks": (*chunk, len(names))}
    codes = np.where(plan.is_planned, NOT_RUN, NOT_PLANNED).astype(np.int8)
    attributes = outcome_attributes(not_planned=NOT_PLANNED, not_run=NOT_RUN)
    dataset["outcome"] = (dims, codes, attributes)
    dataset["outcome"].encoding = {"chunks": chunk}
    return dataset


class DatasetStore(Store):
    """The store of one dataset; its numbers depend on what its attribute `content` says."""

    wanted, advice = "the .zarr that sweeps.dataset writes", ADVICE

    def __init__(self, path: Path, plan: DatasetPlan, names: Sequence[str]) -> None:
        super().__init__(path, "sweeps.dataset")
        self.kind = OWN_KIND if plan.sizes.own_seeds else KIND  # type: ignore[misc]
        self.plan, self.names = plan, tuple(names)

    @reads_store(ADVICE)
    def open(self, about: Mapping[str, str], is_resumed: bool) -> np.ndarray:
        """Makes the store, or opens that of the same dataset; which points are done."""
        found = self.begin(empty_dataset(self.plan, self.names, about), is_resumed)
        return np.asarray((found["outcome"].values != NOT_RUN).all(axis=1))

    def fill(
        self, first: int, runs: Sequence[Mapping[int, SeedResult]], covariates: np.ndarray
    ) -> None:
        """Fills points from `first` on with their runs by place of the seed."""
        planned = self.plan.is_planned[first : first + len(runs)]
        outcome = np.where(planned, NOT_RUN, NOT_PLANNED).astype(np.int8)
        value = np.full((*planned.shape, len(self.names)), np.nan, np.float32)
        for row, by_seed in enumerate(runs):
            for seed, run in by_seed.items():
                outcome[row, seed] = Outcome[run.outcome]
                if run.is_whole:
                    value[row, seed] = [run.metrics[name] for name in self.names]
        self.write(first, {"value": value, "covariates": covariates, "outcome": outcome})

    def content(self, attributes: Mapping[str, Any]) -> Mapping[str, Any]:
        """What is asked of the dataset, by name, and a hash of it all."""
        asked: Mapping[str, Any] = json.loads(attributes["content"])
        return {**asked, "identity": attributes["identity"]}
