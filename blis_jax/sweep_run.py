"""Runs a sweep's plan: progress, partial results kept safe, rows of an earlier sweep taken over."""

from __future__ import annotations

import os
import platform
import sys
import time
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import jax
import numpy as np
import xarray as xr

from blis_jax.batch import run_grid
from blis_jax.config import ClusterConfig
from blis_jax.errors import ConfigError, refusing_damage
from blis_jax.options import Options, default_form, num_workers
from blis_jax.results import load_or_refuse, save
from blis_jax.runner import Timing
from blis_jax.sweep_data import NOT_RUN, Summarizer, fill_from, known_rows, to_dataset
from blis_jax.sweep_measure import Measure, identity
from blis_jax.sweep_plan import SweepPlan

CHECKPOINT_S = 30.0  # least time between two saves of partial results
CHECKPOINT_SHARE = 20.0  # and at least so many times as long as a save takes


@dataclass(frozen=True)
class How:
    """How to run, apart from what is simulated."""

    slots: int | None = None
    clock: str = "int32"
    is_shown: bool = True  # progress, where stderr is a terminal
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
        path: Path,
    ) -> None:
        self.plan, self.summarizer, self.about, self.path = plan, summarizer, about, path
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
        save(dataset, self.path)
        return dataset


def run_sweep(plan: SweepPlan, measure: Measure, how: How, path: Path, is_resumed: bool) -> Done:
    """Runs what is missing and saves it; on an interruption, what there is."""
    summarizer = Summarizer((point.spec for point in plan.points), measure)
    about = how.texts() | {"sweep": identity(plan, measure, how.clock)}
    table = summarizer.empty((len(plan.points), len(plan.seeds)))
    if is_resumed and path.exists():
        with refusing_damage(path, "give --overwrite"):
            table = fill_from(_load(path), plan, summarizer, about, str(path))
    keeper = _Keeper(plan, summarizer, table, about, path)
    known = known_rows(table)
    timing = Timing()
    configs: list[ClusterConfig] = [point.config for point in plan.points]
    specs = [point.spec for point in plan.points]
    num_missing = table.size - len(known)
    is_interrupted = False
    try:
        if num_missing:
            with _progress(num_missing, how.is_shown) as advance:
                timing = run_grid(
                    configs,
                    specs,
                    plan.seeds,
                    summarizer,
                    how.options(),
                    progress=advance,
                    known=known,
                    on_row=keeper.keep,
                ).timing
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


def _load(path: Path) -> xr.Dataset:
    dataset = load_or_refuse(path, "give --overwrite")
    if "fingerprint" not in dataset.coords or "outcome" not in dataset.coords:
        raise ConfigError(f"{path} does not hold a sweep; give --overwrite or another --output")
    return dataset


@contextmanager
def _progress(total: int, is_wanted: bool) -> Iterator[Any]:
    """A bar on stderr that counts runs; nothing where stderr is not a terminal."""
    if not (is_wanted and sys.stderr.isatty()) or os.environ.get("TERM") == "dumb":
        yield None
        return
    from rich.console import Console
    from rich.progress import BarColumn, Progress, TextColumn, TimeElapsedColumn

    columns = (
        TextColumn("{task.description}"),
        BarColumn(),
        TextColumn("{task.completed}/{task.total} runs"),
        TimeElapsedColumn(),
    )
    with Progress(*columns, console=Console(stderr=True), transient=True) as bar:
        task = bar.add_task("compiling", total=total)

        def advance(count: int) -> None:
            bar.update(task, advance=count, description="simulating")

        yield advance
