"""Closed loops of servers: measured runs, one fit, and errors on runs that were left out by several designs."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np
import pandas

from blis_jax.errors import ConfigError
from blis_jax.latency.served_physics import BETA
from papers.real_servers.designs import Error, widths
from papers.real_servers.hierarchy import LoopPosterior
from papers.real_servers.loop_fit import LoopFit, LoopLaw, fitted
from papers.real_servers.predict.closed import LoopView, simulated_loop
from papers.real_servers.predict.figures import NOTHING, predicted
from papers.real_servers.predict.learned import OF_POOLS, Learned, deployment_key, layout_key
from papers.real_servers.predict.scene import AskedCell, ClosedLoad, Scene
from papers.real_servers.predict.scene import Collection as RunsCollection
from papers.real_servers.predict.simulation import SimulatedRequests

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


def read_clusters(path: Path, collection: RunsCollection) -> list[ClusterRun]:
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
            {name: math.exp(np.mean([one[name] for one in logs])) for name in logs[0]},
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
    """Return `first` for every other concurrency of a layout, `second` for the others; layouts begin
    with either in turn.
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
    """Return the layout; pools of equal TP are one, because three of them measured nearly the same."""
    pools = run.scene.server.pools
    if pools and len({pool.tp for pool in pools}) == 1:
        return f"{sum(pool.count for pool in pools)} instances in pools, TP {pools[0].tp}"
    return run.layout


# what is left out, and the kind of interval that its errors make; the first fits all anew, the others the groups alone
HALVES = "half of the concurrencies"
DESIGNS = {
    HALVES: ("same", None),
    "one layout": ("other_layout", _pools_alike),
    "one deployment": ("other_deployment", lambda run: deployment_key(run.scene.server)),
    "one model": ("other_model", lambda run: run.scene.server.model.lower()),
    "one kind of GPU": ("other_hardware", lambda run: run.scene.server.hardware),
}


@dataclass(frozen=True)
class ClusterStudy:
    """A collection, fitted."""

    learned: Learned
    runs: Sequence[ClusterRun]
    errors: Mapping[str, Sequence[Error]]  # by design, of runs that were left out


def study(
    runs: Sequence[ClusterRun], view: LoopView, before: Learned | None = None
) -> ClusterStudy:
    """Fit to all runs, and predict each of them from the others, by every design that leaves something to fit.

    Args:
        runs: of one collection.
        view: what is not fitted of the loops.
        before: a fit to another collection, from whose step law this one starts; its intervals stand in for
            designs that these runs do not allow.
    """
    start = None
    if before is not None:
        assert before.beta is not None
        start = LoopFit(before.beta, before.pace, before.view)
    fit, posterior, requests = _fitted(runs, view, start)
    errors = {HALVES: _other_half(runs, view, start)}
    for design, (_, label) in DESIGNS.items():
        names = [] if label is None else [label(run) for run in runs]
        if len(set(names)) > 1:
            errors[design] = _errors(runs, requests, posterior.left_out(names))
    half = {} if before is None else {name: dict(before.errors[one]) for name, one in ALIKE.items()}
    is_split = {run.name: bool(run.scene.server.pools) for run in runs}
    for design, found in errors.items():
        for suffix, side in (("", False), (OF_POOLS, True)):
            mine = [one for one in found if is_split[one.run] == side]
            for name, width in widths(mine).items():
                half.setdefault(name, {})[DESIGNS[design][0] + suffix] = width
    return ClusterStudy(_learned(runs, fit, posterior, half), runs, errors)


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
    servers = [run.scene.server for run in runs]
    return Learned(
        fit.beta,
        fit.pace,
        NOTHING,
        frozenset(server.model.lower() for server in servers),
        frozenset(server.hardware for server in servers),
        half,
        fit.view,
        posterior.effects(),
        frozenset(run.layout for run in runs),
    )


def coverage(errors: Sequence[Error]) -> dict[str, float]:
    """Return by figure how much intervals hold of one half of the layouts, made from the other half;
    none for one layout.
    """
    order = {
        name: place
        for place, name in enumerate(dict.fromkeys(one.run.rpartition(",")[0] for one in errors))
    }
    sides = [
        [one for one in errors if order[one.run.rpartition(",")[0]] % 2 == side] for side in (0, 1)
    ]
    held: dict[str, list[bool]] = {}
    for known, new in (sides, sides[::-1]):
        half = widths(known)
        for one in new if known else ():
            size = abs(math.log(one.predicted / one.measured))
            held.setdefault(one.figure, []).append(size <= half[one.figure])
    return {name: float(np.mean(one)) for name, one in held.items()}
