"""Runs a sweep's plan: progress, partial results kept safe, rows of an earlier sweep taken over."""

from __future__ import annotations

import os
import platform
import time
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, ClassVar

import jax
import numpy as np
import xarray as xr

from blis_jax import progress
from blis_jax.cluster.config import ClusterConfig
from blis_jax.commands.store import Store
from blis_jax.commands.sweep.data import NOT_RUN, Summarizer, fill_from, known_rows, to_dataset
from blis_jax.commands.sweep.plan import SweepPlan, identity
from blis_jax.errors import ConfigError, refusing_damage
from blis_jax.metrics.measure import Measure
from blis_jax.results.schema import SWEEP
from blis_jax.runs.driver import Timing
from blis_jax.runs.many_runs import run_given, run_grid
from blis_jax.runs.options import Options, default_form, num_workers
from blis_jax.traces.source import TraceSource
from blis_jax.workload.spec import WorkloadSpec

CHECKPOINT_S = 30.0  # least time between two saves of partial results
CHECKPOINT_SHARE = 20.0  # and at least so many times as long as a save takes


@dataclass(frozen=True)
class How:
    """How to run, apart from what is simulated."""

    slots: int | None = None
    clock: str = "int32"
    command: str = ""  # the command line, for the record

    def options(self) -> Options:
        """The engine's options on the machine at hand."""
        return Options(
            num_slots=self.slots, clock=self.clock, form=default_form(), resolve_ties=False
        )

    def texts(self) -> dict[str, str]:
        """What the Dataset says about the making of its runs."""
        return {"clock": self.clock, "command": self.command, "device": device_text()}


@dataclass(frozen=True)
class Done:
    """A sweep's result; interrupted ones have rows that were not run."""

    dataset: xr.Dataset
    timing: Timing
    num_known: int  # rows taken over from the file
    is_interrupted: bool = False


def device_text() -> str:
    """The machine at hand, in words."""
    try:
        device = jax.devices()[0]
    except (RuntimeError, AssertionError):  # JAX asserts where a platform is not installed at all
        wanted = os.environ.get("JAX_PLATFORMS", "")
        raise ConfigError(
            f"JAX finds no device of platform {wanted!r} here; leave --device out or give cpu "
            "(GPUs need pip install 'blis-jax[gpu]')"
        ) from None
    if device.platform == "cpu":
        return f"cpu {platform.machine()}, {num_workers()} workers"
    return f"{device.platform} {device.device_kind}"


class _Keeper:
    """The sweep's table, saved now and then."""

    def __init__(
        self,
        plan: SweepPlan,
        summarizer: Summarizer,
        table: np.ndarray,
        about: Mapping[str, str],
        store: SweepStore,
    ) -> None:
        self.plan, self.summarizer, self.about, self.store = plan, summarizer, about, store
        self.table = table
        self.pause_s, self.saved = CHECKPOINT_S, time.monotonic()

    def keep(self, point: int, seed: int, row: np.ndarray) -> None:
        self.table[point, seed] = row
        if time.monotonic() - self.saved > self.pause_s:
            start = time.monotonic()
            self.save()
            self.saved = time.monotonic()
            self.pause_s = max(CHECKPOINT_S, CHECKPOINT_SHARE * (self.saved - start))

    def dataset(self) -> xr.Dataset:
        return to_dataset(self.plan, self.summarizer, self.table, self.about)

    def save(self) -> xr.Dataset:
        dataset = self.dataset()
        self.store.save(dataset)
        return dataset


class SweepStore(Store):
    """The store of a sweep, which is saved whole."""

    kind, wanted = SWEEP, "a sweep, or --overwrite to make one there"
    decisive: ClassVar = {
        "package_version": "version of blis_jax",
        "jax_version": "version of JAX",
        "profile": "profile",
        "slo_targets": "--targets",
        "measure": "--window",
        "clock": "--clock",
    }


def run_sweep(plan: SweepPlan, measure: Measure, how: How, path: Path, is_resumed: bool) -> Done:
    """Runs what is missing and saves it; on an interruption, what there is."""
    summarizer = Summarizer((point.spec for point in plan.points), measure)
    about = how.texts() | {"sweep": identity(plan, measure, how.clock)}
    table = summarizer.empty((len(plan.points), len(plan.seeds)))
    store = SweepStore(path, "blis_jax.sweep")
    if is_resumed and path.exists():
        with refusing_damage(path, "give --overwrite"):
            found = store.load()
            store.refuse_other(found, to_dataset(plan, summarizer, table, about))
            table = fill_from(found, plan, summarizer, path)
    keeper = _Keeper(plan, summarizer, table, about, store)
    known = known_rows(table)
    timing = Timing()
    num_missing = table.size - len(known)
    is_interrupted = False
    try:
        if num_missing:
            with progress.phase("simulating", table.size, done=len(known)):
                options: Any = {"known": known, "on_row": keeper.keep}
                timing = _run(plan, summarizer, how.options(), options)
    except KeyboardInterrupt:
        is_interrupted = True
    except BaseException:
        if int((table["outcome"] != NOT_RUN).sum()) > len(known):
            keeper.save()
        raise
    num_done = int((table["outcome"] != NOT_RUN).sum())
    if num_done == 0:
        raise KeyboardInterrupt
    return Done(keeper.save(), timing, len(known), is_interrupted)


def _run(plan: SweepPlan, summarizer: Summarizer, how: Options, more: Mapping[str, Any]) -> Timing:
    """Every point on drawn requests, or on those of a trace."""
    configs: list[ClusterConfig] = [point.config for point in plan.points]
    if isinstance(plan.spec, TraceSource):
        more = {**more, "placed": plan.spec.placed}
        return run_given(configs, plan.spec.table, plan.seeds, summarizer, how, **more).timing
    specs = [point.spec for point in plan.points if isinstance(point.spec, WorkloadSpec)]
    return run_grid(configs, specs, plan.seeds, summarizer, how, **more).timing
