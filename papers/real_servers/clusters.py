"""Closed loops of servers: fits to half of the concurrencies, or to other layouts, and errors on the rest."""

from __future__ import annotations

import math
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np

from blis_jax import progress
from blis_jax.errors import ConfigError
from blis_jax.predict.figures import ClientView, figure, predicted
from blis_jax.predict.learned import COVERAGE, Learned, deployment_key
from blis_jax.predict.scene import ClosedLoad, Scene
from blis_jax.predict.simulation import SimulatedRequests, deployment_of, simulated
from blis_jax.predict.units import AskedCell
from blis_jax.predict.units import Collection as RunsCollection
from papers.real_servers.designs import Error
from papers.real_servers.step_fit import MeanStep, StepFit, StepLaw

HUBER = 0.1
KNOWN = 1.0  # runs without a factor that the prior of a deployment's factor is worth
TTFT, TPOT = "ttft_mean", "tpot_mean"


@dataclass(frozen=True)
class ClusterRun:
    """A closed loop that was measured."""

    name: str
    layout: str  # which runs differ in concurrency alone
    scene: Scene
    cells: Mapping[str, AskedCell]  # by figure
    measured: Mapping[str, float]

    @property
    def concurrency(self) -> int:
        """Requests at once."""
        assert isinstance(self.scene.load, ClosedLoad)
        return self.scene.load.concurrency


def read_clusters(path: Path, collection: RunsCollection) -> list[ClusterRun]:
    """The runs of a file that can be simulated; equal ones count once.

    Raises:
        ConfigError: there is no such file, or nothing in it can be simulated.
    """
    import pandas

    if not path.is_file():
        raise ConfigError(f"{path} does not exist; give the folder of measured runs with --data")
    rows: list[dict[str, Any]] = pandas.read_csv(path).to_dict("records")
    found: dict[Scene, ClusterRun] = {}
    for unit in collection.units(rows):
        if unit.scene is None or unit.scene in found or not _fits(unit.scene):
            continue
        load, row = unit.scene.load, rows[unit.rows[0]]
        assert isinstance(load, ClosedLoad)
        server = unit.scene.server
        layout = f"{server.num_instances} × {deployment_key(server)}, {load.prompt}/{load.output}"
        found[unit.scene] = ClusterRun(
            f"{layout}, {load.concurrency} at once",
            layout,
            unit.scene,
            {cell.figure: cell for cell in unit.cells},
            {cell.figure: float(row[cell.column]) for cell in unit.cells},
        )
    if not found:
        raise ConfigError(f"{path}: none of its runs can be simulated")
    return list(found.values())


def _fits(scene: Scene) -> bool:
    from blis_jax.latency.served_physics import BETA
    from blis_jax.predict.simulation import config_of

    try:
        config_of(scene.server, BETA)
    except ConfigError:
        return False
    return True


def mean_step(run: ClusterRun) -> MeanStep:
    """A run as mean step: how many are in decode follows from the share of their time that requests spend so."""
    load, server = run.scene.load, run.scene.server
    assert isinstance(load, ClosedLoad)
    decode_ms = run.measured[TPOT] * (load.output - 1)
    share = decode_ms / (decode_ms + run.measured[TTFT])
    decodes = load.concurrency / server.num_instances * share
    chunk = min(load.prompt, server.max_num_scheduled_tokens)
    return MeanStep(
        run.name,
        deployment_of(server),
        1e3 * run.measured[TPOT],
        decodes,
        decodes * (load.prompt + load.output / 2),
        min(decodes * load.prompt / load.output / chunk, 1.0),
        chunk,
        chunk * load.prompt / 2,
    )


def halves(runs: Sequence[ClusterRun]) -> tuple[list[ClusterRun], list[ClusterRun]]:
    """Every other concurrency of each layout, and the others."""
    by_layout: dict[str, list[ClusterRun]] = {}
    for run in runs:
        by_layout.setdefault(run.layout, []).append(run)
    first, second = [], []
    for of_layout in by_layout.values():
        ordered = sorted(of_layout, key=lambda run: run.concurrency)
        first += ordered[0::2]
        second += ordered[1::2]
    return first, second


def fitted(law: StepLaw, runs: Sequence[ClusterRun], some: Sequence[ClusterRun]) -> Learned:
    """What these runs say: the step law, the first token, and a factor for each deployment; no intervals yet.

    The first token is that of `some` of them, which are simulated.
    """
    steps = law.fitted({run.name for run in runs})
    factors = _tpot_factors(law, steps, runs)
    found = {}
    with progress.phase("simulating for a fit", len(some)) as work:
        for number, run in enumerate(some):
            one = simulated(run.scene, steps.beta_on(run.scene.server.hardware))
            factor = factors[deployment_key(run.scene.server)]
            found[run.name] = replace(one, itl_ms=one.itl_ms * factor)
            work.show(number + 1)
    client = _client(some, found)
    ttft = _ttft_factors(some, found, client)
    servers = [run.scene.server for run in runs]
    return Learned(
        steps.beta,
        steps.pace,
        client,
        frozenset(server.model.lower() for server in servers),
        frozenset(server.hardware for server in servers),
        {},
        {key: (ttft.get(key, 1.0), factor) for key, factor in factors.items()},
    )


def _tpot_factors(law: StepLaw, steps: StepFit, runs: Sequence[ClusterRun]) -> dict[str, float]:
    by_name = dict(zip((one.run for one in law.steps), law.predicted_us(steps), strict=True))
    return _shrunk(runs, {run.name: 1e3 * run.measured[TPOT] / by_name[run.name] for run in runs})


def _ttft_factors(
    runs: Sequence[ClusterRun], found: Mapping[str, SimulatedRequests], client: ClientView
) -> dict[str, float]:
    ratios = {
        run.name: run.measured[TTFT]
        / predicted(run.scene, found[run.name], run.cells[TTFT], client)
        for run in runs
    }
    return _shrunk(runs, ratios)


def _shrunk(runs: Sequence[ClusterRun], ratios: Mapping[str, float]) -> dict[str, float]:
    """Medians of the ratios by deployment, nearer to 1 where there are few."""
    logs: dict[str, list[float]] = {}
    for run in runs:
        logs.setdefault(deployment_key(run.scene.server), []).append(math.log(ratios[run.name]))
    return {
        key: float(np.exp(np.median(one) * len(one) / (len(one) + KNOWN)))
        for key, one in logs.items()
    }


def _client(runs: Sequence[ClusterRun], found: Mapping[str, SimulatedRequests]) -> ClientView:
    """Constant and steps before the first token, by relative residuals; large ones are weighed down."""
    rows, wanted = [], []
    for run in runs:
        requests, measured = found[run.name], run.measured[TTFT]
        chosen = np.ones(len(requests.ttft_ms), bool)
        rows.append([1 / measured, figure(TPOT, requests, chosen) / measured])
        wanted.append(1 - figure(TTFT, requests, chosen) / measured)
    matrix, values = np.array(rows), np.array(wanted)
    mean, sd = np.array([3.0, 1.0]), np.array([20.0, 1.0])
    solved = mean
    for _ in range(20):
        size = np.abs(values - matrix @ solved)
        weight = np.sqrt(np.minimum(1.0, HUBER / np.maximum(size, 1e-9))) / HUBER
        stacked = np.concatenate([matrix * weight[:, None], np.diag(1 / sd)])
        solved = np.linalg.lstsq(stacked, np.concatenate([values * weight, mean / sd]), rcond=None)[
            0
        ]
    return ClientView(float(max(solved[0], 0.0)), float(max(solved[1], 0.0)))


def errors_of(runs: Sequence[ClusterRun], fits: Sequence[Learned]) -> list[list[Error]]:
    """Predictions of these runs by fits with one step law, which differ in what clients see; `[fit][figure]`."""
    found: list[list[Error]] = [[] for _ in fits]
    with progress.phase("predicting", len(runs)) as work:
        for number, run in enumerate(runs):
            server = run.scene.server
            requests = simulated(run.scene, fits[0].beta_on(server.hardware))
            for fit, of_fit in zip(fits, found, strict=True):
                for name, cell in run.cells.items():
                    value = predicted(run.scene, requests, cell, fit.client_of(server))
                    of_fit.append(Error(run.name, name, None, value, run.measured[name]))
            work.show(number + 1)
    return found


@dataclass(frozen=True)
class ClusterStudy:
    """A collection, fitted to half of the concurrencies of every layout."""

    learned: Learned
    tested: Sequence[ClusterRun]
    errors: Sequence[Error]  # of the others, whose deployments the fit knows
    without_factors: Sequence[Error]  # the same runs as if their deployments were not known


def study(runs: Sequence[ClusterRun], most: int) -> ClusterStudy:
    """Fit to every other concurrency, and predict the rest; at most so many runs of each half are simulated."""
    law = StepLaw([mean_step(run) for run in runs])
    first, second = halves(runs)
    learned = fitted(law, first, _some(first, most))
    tested = _some(second, most)
    known, unknown = errors_of(tested, [learned, replace(learned, deployments={})])
    return ClusterStudy(with_intervals(learned, known, unknown), tested, known, unknown)


def _some(runs: Sequence[ClusterRun], most: int) -> list[ClusterRun]:
    """So many of the runs, from all layouts alike."""
    if len(runs) <= most:
        return list(runs)
    return [runs[place] for place in np.linspace(0, len(runs) - 1, most).round().astype(int)]


def with_intervals(learned: Learned, same: Sequence[Error], other: Sequence[Error]) -> Learned:
    """With half-widths of intervals from runs held out.

    Args:
        learned: a fit.
        same: runs of deployments that the fit knew.
        other: runs of deployments that it did not.
    """
    errors: dict[str, dict[str, float]] = {}
    for kind, of_kind in (("same", same), ("other_model", other), ("other_hardware", other)):
        for name in {one.figure for one in of_kind}:
            sizes = sorted(
                abs(math.log(e.predicted / e.measured)) for e in of_kind if e.figure == name
            )
            place = min(math.ceil(COVERAGE * (len(sizes) + 1)), len(sizes))
            errors.setdefault(name, {})[kind] = sizes[place - 1]
    return replace(learned, errors=errors)


def rank_agreement(
    errors: Sequence[Error], runs: Collection[ClusterRun], name: str
) -> dict[int, float]:
    """Spearman's rank correlation of predicted and measured values over layouts, by concurrency."""
    from scipy.stats import spearmanr

    of_run = {one.run: one for one in errors if one.figure == name}
    found = {}
    for concurrency in sorted({run.concurrency for run in runs}):
        pairs = [
            of_run[run.name]
            for run in runs
            if run.concurrency == concurrency and run.name in of_run
        ]
        values = [(one.predicted, one.measured) for one in pairs]
        found[concurrency] = float(spearmanr(*zip(*values, strict=True)).statistic)
    return found
