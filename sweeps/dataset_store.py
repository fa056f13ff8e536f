"""The store of a dataset: made empty, filled part by part, and checked before it is gone on with."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from pathlib import Path

import numpy as np
import xarray as xr

from blis_jax.errors import ConfigError, reads_store
from blis_jax.scalar_metrics import lookup
from blis_jax.types import Outcome
from surrogate.columns import to_json
from surrogate.data import KIND, NOT_PLANNED, NOT_RUN
from sweeps.dataset_plan import DatasetPlan
from sweeps.objectives import SeedResult
from sweeps.part_store import PartStore

ADVICE = "give --overwrite or another --out"
_CODES = {"NOT_PLANNED": NOT_PLANNED, "NOT_RUN": NOT_RUN} | {one.name: int(one) for one in Outcome}


def empty_dataset(plan: DatasetPlan, names: Sequence[str], about: Mapping[str, str]) -> xr.Dataset:
    """The dataset before any run; `about` are further attributes."""
    seeds = plan.sizes.all_seeds
    shape = plan.is_planned.shape
    dataset = xr.Dataset(attrs={"kind": KIND, "parameters": to_json(plan.columns), **about})
    dataset.coords["parameter"] = [column.name for column in plan.columns]
    dataset.coords["metric"] = list(names)
    dataset.coords["unit"] = ("metric", [lookup(name)[0].unit for name in names])
    dataset.coords["seed"] = list(seeds)
    dataset.coords["is_other_seed"] = ("seed", np.arange(len(seeds)) >= plan.sizes.seeds)
    dataset.coords["role"] = ("point", plan.roles.tolist())
    dataset["inputs"] = (("point", "parameter"), plan.codes)
    chunk = (min(plan.points_per_part, shape[0]), shape[1])
    dims = ("point", "seed")
    dataset["value"] = ((*dims, "metric"), np.full((*shape, len(names)), np.nan, np.float32))
    dataset["value"].encoding = {"chunks": (*chunk, len(names))}
    codes = np.where(plan.is_planned, NOT_RUN, NOT_PLANNED).astype(np.int8)
    attributes = {"flag_values": list(_CODES.values()), "flag_meanings": " ".join(_CODES).lower()}
    dataset["outcome"] = (dims, codes, attributes)
    dataset["outcome"].encoding = {"chunks": chunk}
    return dataset


class DatasetStore(PartStore):
    """The store of one dataset."""

    def __init__(self, path: Path, plan: DatasetPlan, names: Sequence[str]) -> None:
        super().__init__(path, "sweeps.dataset")
        self.plan, self.names = plan, tuple(names)

    @reads_store("give --overwrite or another --out")
    def begin(self, about: Mapping[str, str], is_resumed: bool) -> np.ndarray:
        """Makes the store, or opens that of the same dataset; which points are done."""
        if is_resumed and self.path.exists():
            found = self.resume(ADVICE, lambda dataset: self._check_same(dataset, about))
            return np.asarray((found["outcome"].values != NOT_RUN).all(axis=1))
        self.create(empty_dataset(self.plan, self.names, about))
        return np.zeros(len(self.plan.codes), bool)

    def fill(self, first: int, runs: Sequence[Mapping[int, SeedResult]]) -> None:
        """Fills points from `first` on with their runs by place of the seed."""
        planned = self.plan.is_planned[first : first + len(runs)]
        outcome = np.where(planned, NOT_RUN, NOT_PLANNED).astype(np.int8)
        value = np.full((*planned.shape, len(self.names)), np.nan, np.float32)
        for row, by_seed in enumerate(runs):
            for seed, run in by_seed.items():
                outcome[row, seed] = _CODES[run.outcome]
                if run.is_whole:
                    value[row, seed] = [run.metrics[name] for name in self.names]
        self.write(first, {"value": value, "outcome": outcome})

    def _check_same(self, dataset: xr.Dataset, about: Mapping[str, str]) -> None:
        if dataset.attrs.get("kind") != KIND:
            raise ConfigError(f"{self.path} does not hold a dataset; {ADVICE}")
        if dataset.attrs.get("identity") != about["identity"]:
            before, now = json.loads(dataset.attrs["content"]), json.loads(about["content"])
            other = [name for name in now if before.get(name) != now[name]] or ["version"]
            raise ConfigError(f"{self.path} was made with another {', '.join(other)}; {ADVICE}")
