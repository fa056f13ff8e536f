"""Closed loops of servers: measured runs, one fit, and errors on runs that were left out by several designs."""

from __future__ import annotations

import itertools
import math
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from types import MappingProxyType
from typing import Any, NamedTuple

import numpy as np
import pandas

from blis_jax.errors import ConfigError
from blis_jax.latency.served_physics import BETA
from blis_jax.lazy import stats
from papers.real_servers.loop_fit import LoopFit, LoopLaw, LoopPosterior, fitted
from papers.real_servers.predict.figures import NOTHING, predicted
from papers.real_servers.predict.learned import (
    COVERAGE,
    OF_POOLS,
    Learned,
    SeenRuns,
    deployment_key,
    layout_key,
    software_key,
)
from papers.real_servers.predict.scene import AskedCell, ClosedLoad, Scene
from papers.real_servers.predict.scene import Collection as RunsCollection
from papers.real_servers.predict.simulation import LoopView, SimulatedRequests, simulated_loop

HalfWidths = Mapping[str, Mapping[str, float]]  # in logarithms, by figure and kind of row


class Error(NamedTuple):
    """A figure that was predicted."""

    run: str
    figure: str
    stage: int | None
    predicted: float
    measured: float
    kind: str = ""  # of `KINDS`: how far its run was from those of the fit
    group: str = ""  # runs that resemble each other, and were left out together

    @property
    def percent(self) -> float:
        """Return how far the prediction is off, in % and without its sign."""
        return abs(100 * (self.predicted / self.measured - 1))

    @property
    def size(self) -> float:
        """Return the same as a logarithm."""
        return abs(math.log(self.predicted / self.measured))


class HeldShare(NamedTuple):
    """How many of some figures lay in intervals made without their group."""

    figures: int
    groups: int
    held: float  # share


def group_of(scene: Scene, kind: str) -> str:
    """Return which runs resemble a left-out run of this kind: all that are as new in the same way."""
    if kind == "other_model":
        return scene.server.model.lower()
    if kind == "other_software":
        return software_key(scene.server)
    if kind == "other_hardware":
        return scene.server.hardware
    return deployment_key(scene.server) if kind == "other_deployment" else layout_key(scene)


def width(errors: Sequence[Error], of_groups: int = 0) -> float:
    """Return half of an interval, in logarithms, that holds the share `COVERAGE` of figures of a group like these.

    It holds that share where groups weigh alike and where figures do: large groups may be the hard ones.

    Args:
        errors: of one figure and kind; without two groups there is no saying, and it is infinite.
        of_groups: as many groups as the interval is to be as wide for; 0: those of the errors.
    """
    groups = [error.group for error in errors]
    count = len(set(groups))
    if count < 2:
        return math.inf
    order = np.argsort([error.size for error in errors])
    by_group = np.array([1.0 / groups.count(name) for name in groups])[order] / count
    alike = np.full(len(errors), 1.0 / len(errors))
    places = [np.searchsorted(np.cumsum(weight), COVERAGE - 1e-12) for weight in (by_group, alike)]
    usual = errors[order[min(int(max(places)), len(order) - 1)]].size
    return usual * few(of_groups or count)


def few(groups: int) -> float:
    """Return how much wider an interval is that so many groups make, than one that very many would."""
    tail = (1 + COVERAGE) / 2
    wide = stats.t.ppf(tail, groups - 1) * math.sqrt(1 + 1 / groups)
    return float(wide / stats.norm.ppf(tail))


def by_figure_and_kind(errors: Iterable[Error]) -> dict[tuple[str, str], list[Error]]:
    """Sort errors by figure and kind; those without a kind count nowhere."""
    found: dict[tuple[str, str], list[Error]] = {}
    for error in errors:
        if error.kind:
            found.setdefault((error.figure, error.kind), []).append(error)
    return found


def half_widths(
    errors: Iterable[Error], least: HalfWidths = MappingProxyType({})
) -> dict[str, dict[str, float]]:
    """Return by figure and kind half of an interval, where two groups or more say something of it.

    `least` are halves that are never gone below.
    """
    halves: dict[str, dict[str, float]] = {}
    for (figure, kind), mine in by_figure_and_kind(errors).items():
        if math.isfinite(half := width(mine)):
            halves.setdefault(figure, {})[kind] = max(half, least.get(figure, {}).get(kind, 0.0))
    return halves


def check(errors: Sequence[Error]) -> HeldShare:
    """Make an interval of one figure and kind without each group in turn, and count what it holds of the group.

    It is made as wide for the number of groups as the one of all groups is.
    """
    groups = list(dict.fromkeys(error.group for error in errors))
    held = 0
    for name in groups:
        half = width([error for error in errors if error.group != name], len(groups))
        held += sum(error.size <= half for error in errors if error.group == name)
    return HeldShare(len(errors), len(groups), held / len(errors))


def checks(errors: Iterable[Error]) -> Mapping[tuple[str, str], HeldShare]:
    """Return `check` by figure and kind, where three groups or more make it possible."""
    found = {key: check(mine) for key, mine in by_figure_and_kind(errors).items()}
    return {key: one for key, one in found.items() if one.groups > 2}


# --- closed loops of servers ---------------------------------------------------------------------


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
    """Return the kind of row that each run is if all runs of its label are left out; empty if it is two."""
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
    """A collection, fitted."""

    learned: Learned
    runs: Sequence[ClusterRun]
    errors: Mapping[str, Sequence[Error]]  # by design, of runs that were left out

    @property
    def everything(self) -> list[Error]:
        """Return the errors of all designs."""
        return list(itertools.chain.from_iterable(self.errors.values()))


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
    errors = {HALVES: _placed(_other_half(runs, view, start), runs, halves(runs))}
    for design, label in DESIGNS.items():
        labels = label(runs)
        if len(set(labels)) > 1:
            found = _errors(runs, requests, posterior.left_out(labels))
            errors[design] = _placed(found, runs, labels)
    half = {} if before is None else {name: dict(before.errors[one]) for name, one in ALIKE.items()}
    everything = list(itertools.chain.from_iterable(errors.values()))
    for suffix, side in (("", False), (OF_POOLS, True)):
        for name, widths in half_widths(of_side(everything, runs, side)).items():
            half.setdefault(name, {}).update({f"{kind}{suffix}": w for kind, w in widths.items()})
    return ClusterStudy(_learned(runs, fit, posterior, half), runs, errors)


def of_side(errors: Iterable[Error], runs: Sequence[ClusterRun], has_pools: bool) -> list[Error]:
    """Return the errors of runs that have pools, or of those that have none."""
    mine = {run.name for run in runs if bool(run.scene.server.pools) == has_pools}
    return [error for error in errors if error.run in mine]


def _placed(
    errors: Iterable[Error], runs: Sequence[ClusterRun], labels: Sequence[str]
) -> list[Error]:
    """Give errors their kind and group."""
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
