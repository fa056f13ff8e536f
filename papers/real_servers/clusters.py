"""Closed loops of servers: measured runs, one fit, and errors on runs that were left out by several designs."""

from __future__ import annotations

import itertools
import math
import zlib
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np
import pandas

from blis_jax import progress
from blis_jax.errors import ConfigError
from blis_jax.latency.served_physics import BETA
from papers.real_servers.loop_fit import LoopFit, LoopLaw, LoopPosterior, fitted
from papers.real_servers.predict.collections import Collection
from papers.real_servers.predict.figures import NOTHING, predicted
from papers.real_servers.predict.learned import (
    OF_POOLS,
    Learned,
    SeenRuns,
    deployment_key,
    layout_key,
    software_key,
)
from papers.real_servers.predict.scene import AskedCell, ClosedLoad, Scene
from papers.real_servers.predict.simulation import LoopView, SimulatedRequests, simulated_loop
from papers.real_servers.widths import (
    Apart,
    Error,
    group_of,
    half_widths,
    in_half_widths,
    widened,
)

TTFT, TPOT = "ttft_mean", "tpot_mean"
# whose intervals another collection lends to a figure
ALIKE = {"ttft_mean": TTFT, "ttft_p50": TTFT, "tpot_mean": TPOT, "e2e_mean": TPOT, "e2e_p50": TPOT}
ALIKE |= {"req_s": TPOT, "tok_s": TPOT}


@dataclass(frozen=True)
class ClusterRun:
    """A closed loop that was measured."""

    name: str
    layout: str  # which runs differ in concurrency alone
    scene: Scene
    cells: Mapping[str, AskedCell]  # by figure
    measured: Mapping[str, float]  # geometric means, where a loop was measured again

    @property
    def concurrency(self) -> int:
        """Return the number of requests at once."""
        assert isinstance(self.scene.load, ClosedLoad)
        return self.scene.load.concurrency


def read_clusters(path: Path, collection: Collection) -> list[ClusterRun]:
    """Read the runs of a file that can be simulated; equal ones become one run.

    Raises:
        ConfigError: there is no such file, or nothing in it can be simulated.
    """
    if not path.is_file():
        raise ConfigError(f"{path} does not exist; give the folder of measured runs with --data")
    rows: list[dict[str, Any]] = pandas.read_csv(path).to_dict("records")
    cells: dict[Scene, Mapping[str, AskedCell]] = {}
    values: dict[Scene, list[dict[str, float]]] = {}
    for unit in collection.units(rows):
        if unit.scene is None or not _fits(unit.scene):
            continue
        cells.setdefault(unit.scene, {cell.figure: cell for cell in unit.cells})
        of_row = {cell.figure: math.log(rows[cell.row][cell.column]) for cell in unit.cells}
        values.setdefault(unit.scene, []).append(of_row)
    if not cells:
        raise ConfigError(f"{path}: none of its runs can be simulated")
    return [
        ClusterRun(
            f"{layout_key(scene)} {scene.server.variant}, {scene.load.concurrency} at once",  # type: ignore[union-attr]
            layout_key(scene),
            scene,
            cells[scene],
            {name: math.exp(np.mean([log[name] for log in logs])) for name in logs[0]},
        )
        for scene, logs in values.items()
    ]


def _fits(scene: Scene) -> bool:
    assert isinstance(scene.load, ClosedLoad)
    try:
        simulated_loop(replace(scene, load=replace(scene.load, concurrency=1)), BETA, LoopView())
    except ConfigError:
        return False
    return True


def halves(runs: Sequence[ClusterRun]) -> list[str]:
    """Return `first` or `second` for each run: a layout's concurrencies alternate, and layouts begin with either in
    turn.
    """
    by_layout: dict[str, set[int]] = {}
    for run in runs:
        by_layout.setdefault(run.layout, set()).add(run.concurrency)
    turn = {layout: place for place, layout in enumerate(by_layout)}
    places = [
        sorted(by_layout[run.layout]).index(run.concurrency) + turn[run.layout] for run in runs
    ]
    return ["second" if place % 2 else "first" for place in places]


def _pools_alike(run: ClusterRun) -> str:
    """Return the layout; pools of equal TP form one layout, because three of them measured nearly the same."""
    pools = run.scene.server.pools
    if pools and len({pool.tp for pool in pools}) == 1:
        return f"{sum(pool.count for pool in pools)} instances in pools, TP {pools[0].tp}"
    return run.layout


def _side(runs: Sequence[ClusterRun]) -> list[str]:
    """Return the layout, its software, and whether the run is of the upper or the lower half of its concurrencies."""
    by_layout: dict[str, set[int]] = {}
    layouts = [f"{run.layout} {run.scene.server.variant}" for run in runs]
    for run, layout in zip(runs, layouts, strict=True):
        by_layout.setdefault(layout, set()).add(run.concurrency)
    return [
        f"{layout} {'lower' if run.concurrency <= np.median(list(by_layout[layout])) else 'upper'}"
        for run, layout in zip(runs, layouts, strict=True)
    ]


# What is left out; the first fits all anew, the others the groups alone. What kind of row a left-out run is
# follows from the runs that stay.
HALVES = "half of the concurrencies"
FOLDS = 5  # studies without some rows
DESIGNS: Mapping[str, Callable[[Sequence[ClusterRun]], list[str]]] = {
    "upper or lower concurrencies": _side,
    "one sharing of experts": lambda runs: [
        f"{run.layout} {run.scene.server.variant}" for run in runs
    ],
    "one software of a model": lambda runs: [software_key(run.scene.server) for run in runs],
    "one layout": lambda runs: [_pools_alike(run) for run in runs],
    "one deployment": lambda runs: [deployment_key(run.scene.server) for run in runs],
    "one model": lambda runs: [run.scene.server.model.lower() for run in runs],
    "one kind of GPU": lambda runs: [run.scene.server.hardware for run in runs],
}


def _kinds(runs: Sequence[ClusterRun], labels: Sequence[str]) -> list[str]:
    """Return the kind of row that each run is if all runs of its label are left out; empty if a run is of two kinds."""
    kind_of: dict[str, str] = {}
    for label in dict.fromkeys(labels):
        known = SeenRuns.of(
            run.scene for run, name in zip(runs, labels, strict=True) if name != label
        )
        for run, name in zip(runs, labels, strict=True):
            if name == label:
                kinds = known.unseen(run.scene)
                kind_of[run.name] = kinds[0] if len(kinds) == 1 else ""
    return [kind_of[run.name] for run in runs]


@dataclass(frozen=True)
class ClusterStudy:
    """A collection's fit, and its errors by every design."""

    learned: Learned
    runs: Sequence[ClusterRun]
    errors: Mapping[str, Sequence[Error]]  # by design, of runs that were left out
    apart: Apart = ()  # of rows that were kept from everything, by study

    @property
    def everything(self) -> list[Error]:
        """Return the errors of all designs."""
        return list(itertools.chain.from_iterable(self.errors.values()))


def study(
    runs: Sequence[ClusterRun], view: LoopView, before: Learned | None = None, folds: int = FOLDS
) -> ClusterStudy:
    """Fit to all runs, and predict each of them from the others, by every design that leaves something to fit.

    Args:
        runs: of one collection.
        view: what is not fitted of the loops.
        before: a fit to another collection, from whose step law this one starts; its intervals stand in for
            designs that these runs do not allow.
        folds: how often some rows are kept apart, to see how wide intervals have to be.
    """
    start = None
    if before is not None:
        assert before.beta is not None
        start = LoopFit(before.beta, before.pace, before.view)
    fit, posterior, requests = _fitted(runs, view, start)
    errors = {HALVES: _placed(_other_half(runs, view, start), runs, halves(runs))}
    for design, label in DESIGNS.items():
        labels = label(runs)
        if len(set(labels)) > 1:
            left_out = _errors(runs, requests, posterior.left_out(labels))
            errors[design] = _placed(left_out, runs, labels)
    half = (
        {}
        if before is None
        else {name: dict(before.errors[lender]) for name, lender in ALIKE.items()}
    )
    everything = list(itertools.chain.from_iterable(errors.values()))
    with progress.phase("rows kept apart", folds, "studies") as work:
        apart = []
        for fold in range(folds):
            apart.append(_apart(runs, fold, view, before))
            work.show(fold + 1)
    for suffix, side in (("", False), (OF_POOLS, True)):
        of_kinds = half_widths(of_side(everything, runs, side))
        for name, widths in widened(of_kinds, apart, suffix).items():
            half.setdefault(name, {}).update({f"{kind}{suffix}": w for kind, w in widths.items()})
    return ClusterStudy(_learned(runs, fit, posterior, half), runs, errors, apart)


def kept_apart(runs: Sequence[ClusterRun], fold: int) -> list[bool]:
    """Return which runs study `fold` leaves out: some layouts whole, and of two in five others the lower, the upper or
    every other concurrency.
    """
    parts = zip(runs, _side(runs), halves(runs), strict=True)
    return [
        _chance(run.layout) % FOLDS == fold
        or (
            _chance(f"part {fold} {run.layout}") % 5 < 2
            and (side.endswith("lower"), side.endswith("upper"), half == "first")[
                _chance(f"which {fold} {run.layout}") % 3
            ]
        )
        for run, side, half in parts
    ]


def _chance(text: str) -> int:
    return zlib.crc32(text.encode())


def _apart(
    runs: Sequence[ClusterRun], fold: int, view: LoopView, before: Learned | None
) -> list[Error]:
    """Return the errors of the runs that one study leaves out, in half-widths of its intervals."""
    is_kept = kept_apart(runs, fold)
    seen = [run for run, kept in zip(runs, is_kept, strict=True) if not kept]
    known = study(seen, view, before, 0).learned
    return [
        far
        for run in itertools.compress(runs, is_kept)
        for error in _predicted(run, known)
        if (far := in_half_widths(error, known, run.scene)) is not None
    ]


def of_side(errors: Iterable[Error], runs: Sequence[ClusterRun], has_pools: bool) -> list[Error]:
    """Return the errors of runs that have pools, or of those that have none."""
    names = {run.name for run in runs if bool(run.scene.server.pools) == has_pools}
    return [error for error in errors if error.run in names]


def _placed(
    errors: Iterable[Error], runs: Sequence[ClusterRun], labels: Sequence[str]
) -> list[Error]:
    """Return the errors with their kind and group."""
    place_of = {
        run.name: (kind, group_of(run.scene, kind))
        for run, kind in zip(runs, _kinds(runs, labels), strict=True)
    }
    return [
        error._replace(kind=kind, group=group)
        for error in errors
        for kind, group in (place_of[error.run],)
    ]


def _fitted(
    runs: Sequence[ClusterRun], view: LoopView, start: LoopFit | None
) -> tuple[LoopFit, LoopPosterior, list[SimulatedRequests]]:
    """Return the law of these runs, the groups given this law, and the runs simulated by it."""
    measured = np.array([[run.measured[name] for run in runs] for name in (TTFT, TPOT)])
    law = LoopLaw([run.scene for run in runs], measured.ravel(), view, start)
    logs, requests = fitted(law)
    return law.fit_of(logs), LoopPosterior(law.scenes, law.errors(requests)), requests


def _other_half(runs: Sequence[ClusterRun], view: LoopView, start: LoopFit | None) -> list[Error]:
    """Return each half of the concurrencies predicted by a fit to the other."""
    names = halves(runs)
    errors = []
    for side in ("first", "second"):
        known = [run for run, name in zip(runs, names, strict=True) if name == side]
        fit, posterior, _ = _fitted(known, view, start)
        learned = _learned(known, fit, posterior, {})
        for run, name in zip(runs, names, strict=True):
            if name != side:
                errors += _predicted(run, learned)
    return errors


def _predicted(run: ClusterRun, learned: Learned) -> list[Error]:
    beta = learned.beta_on(run.scene.server.hardware)
    assert beta is not None
    requests = simulated_loop(run.scene, beta, learned.view)
    client = learned.client_of(run.scene)
    return [
        Error(
            run.name, name, None, predicted(run.scene, requests, cell, client), run.measured[name]
        )
        for name, cell in run.cells.items()
    ]


def _errors(
    runs: Sequence[ClusterRun], requests: Sequence[SimulatedRequests], logs: np.ndarray
) -> list[Error]:
    ttft, itl = np.exp(logs).reshape(2, -1).tolist()
    errors = []
    for place, run in enumerate(runs):
        client = replace(NOTHING, ttft_factor=ttft[place], itl_factor=itl[place])
        for name, cell in run.cells.items():
            value = predicted(run.scene, requests[place], cell, client)
            errors.append(Error(run.name, name, None, value, run.measured[name]))
    return errors


def _learned(
    runs: Sequence[ClusterRun],
    fit: LoopFit,
    posterior: LoopPosterior,
    half: Mapping[str, Mapping[str, float]],
) -> Learned:
    seen = SeenRuns.of(run.scene for run in runs)
    return Learned(fit.beta, fit.pace, NOTHING, seen, half, fit.view, posterior.effects())
