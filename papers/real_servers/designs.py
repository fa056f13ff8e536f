"""Fits to some runs, and their errors on the others: a workload, deployment, model or kind of GPU is left out."""

from __future__ import annotations

import itertools
import math
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import NamedTuple

import numpy as np

from blis_jax import progress
from papers.real_servers.predict.figures import (
    NOTHING,
    ClientView,
    chosen_of,
    figure,
    part_of,
    predicted,
    seen,
)
from papers.real_servers.predict.learned import (
    KINDS,
    NEW_SERVERS,
    Learned,
    SeenRuns,
    deployment_key,
)
from papers.real_servers.predict.simulation import SimulatedRequests, simulated
from papers.real_servers.step_fit import StepFit, StepLaw, VllmRun, shortened, warm
from papers.real_servers.widths import Error, HalfWidths, group_of, half_widths, stretched

STAGE_S = 120.0  # of each stage, when runs are simulated for a fit
NEAR = 0.02  # laws that differ by less are not simulated again


def deployment(run: VllmRun) -> str:
    """Return a text with the model, GPU, TP and data parallelism of a run's server."""
    return deployment_key(run.scene.server)


# What is left out at a time. Which kind of row a left-out run is follows from the runs that stay.
DESIGNS: Mapping[str, Callable[[VllmRun], str]] = {
    "run": lambda run: run.name,
    "workload": lambda run: run.workload,
    "deployment": deployment,
    "model": lambda run: run.model,
    "hardware": lambda run: run.hardware,
}


@dataclass(frozen=True)
class ServerFit:
    """A step law and a client."""

    steps: StepFit
    client: ClientView


class Fitter:
    """Fits to any of the runs; simulations are shortened, and begin when every prompt was sent once."""

    def __init__(self, runs: Sequence[VllmRun], law: StepLaw) -> None:
        self.runs = {run.name: replace(run, scene=shortened(run.scene, STAGE_S)) for run in runs}
        self.law = law
        self._near = law.fitted(self.runs)
        self._times = law.predicted_us(self._near)
        self._requests: dict[str, SimulatedRequests] = {}

    def fitted(self, chosen: Iterable[str]) -> ServerFit:
        """Fit step law and client to these runs, with the terms that predict each of their models from the others."""
        names = list(chosen)
        models = {name: run.model for name, run in self.runs.items()}
        steps = self.law.fitted(names, self.law.chosen_terms(names, models))
        runs = [self.runs[name] for name in names]
        requests = {name: self._scaled(name, steps)[1] for name in names}
        return ServerFit(steps, client_of(runs, requests))

    def _scaled(self, name: str, steps: StepFit) -> tuple[float, SimulatedRequests]:
        """Return the run as simulated once by the law of all runs, with times in the ratio of both laws; and this."""
        if name not in self._requests:
            self._requests[name] = self.simulated(name, self._near)
        is_of_run = [each.run == name for each in self.law.steps]
        ratio = float(np.mean((self.law.predicted_us(steps) / self._times)[is_of_run]))
        requests = self._requests[name]
        times = {key: ratio * getattr(requests, key) for key in ("ttft_ms", "itl_ms", "e2e_ms")}
        return ratio, replace(requests, **times)

    def simulated(self, name: str, steps: StepFit) -> SimulatedRequests:
        """Simulate a run by a step law, without the requests that find no cached prompt."""
        run = self.runs[name]
        requests = simulated(run.scene, steps.beta_on(run.hardware))
        kept = warm(run.scene, requests.arrival_s)
        return replace(
            requests,
            arrival_s=requests.arrival_s[kept],
            ttft_ms=requests.ttft_ms[kept],
            e2e_ms=requests.e2e_ms[kept],
            itl_ms=requests.itl_ms[kept],
            round_index=requests.round_index[kept],
        )

    def errors(self, name: str, fit: ServerFit) -> list[Error]:
        """Return a run's figures as a fit predicts them, each beside what was measured."""
        ratio, requests = self._scaled(name, fit.steps)
        if abs(ratio - 1) > NEAR:
            requests = self.simulated(name, fit.steps)
        return _errors(self.runs[name], requests, fit.client)


def _errors(run: VllmRun, requests: SimulatedRequests, client: ClientView) -> list[Error]:
    return [
        Error(
            run.name,
            cell.figure,
            cell.stage,
            predicted(run.scene, requests, cell, client),
            run.measured[cell],
        )
        for cell in run.cells.values()
    ]


def held_out(fitter: Fitter, design: str) -> list[Error]:
    """Return the errors of each group's runs by a fit to the other groups, which `design` of `DESIGNS` forms."""
    label = DESIGNS[design]
    groups = sorted({label(run) for run in fitter.runs.values()})
    errors = []
    with progress.phase(f"leaving out each {design}", len(groups), "fits") as work:
        for number, group in enumerate(groups):
            left = [run for run in fitter.runs.values() if label(run) == group]
            stay = [run for run in fitter.runs.values() if label(run) != group]
            known = SeenRuns.of(run.scene for run in stay)
            if design == "run" and known.unseen(left[0].scene) != ("same",):
                continue  # nothing repeats it
            fit = fitter.fitted(run.name for run in stay)
            for run in left:
                kinds = known.unseen(run.scene)
                kind = kinds[0] if len(kinds) == 1 else ""
                # repetitions of one load say how far they are apart, each by itself
                alike = run.name if kind == "same" else group_of(run.scene, kind)
                errors_of_run = fitter.errors(run.name, fit)
                errors += [error._replace(kind=kind, group=alike) for error in errors_of_run]
            work.show(number + 1)
    return errors


def nothing_fitted(runs: Sequence[VllmRun]) -> list[Error]:
    """Return predictions by `trained-physics` as published, on the runs' real arrivals."""
    errors = []
    with progress.phase("nothing fitted", len(runs)) as work:
        for number, run in enumerate(runs):
            errors += _errors(run, simulated(run.scene, None), NOTHING)
            work.show(number + 1)
    return errors


def published(runs: Sequence[VllmRun], name: str) -> list[Error]:
    """Return predictions of a published simulator, where there are any."""
    return [
        Error(run.name, cell.figure, cell.stage, value, run.measured[cell])
        for run in runs
        for cell, value in run.published.get(name, {}).items()
    ]


def learned_of(fitter: Fitter, errors: Iterable[Error], least: HalfWidths) -> Learned:
    """Fit to all runs, and make half-widths, none below `least`, from the errors of runs held out."""
    fit = fitter.fitted(fitter.runs)
    return Learned(
        fit.steps.beta, fit.steps.pace, fit.client, _seen(fitter),
        half_widths(errors, least, stretched),
    )  # fmt: skip


def published_of(fitter: Fitter, errors: Sequence[Error]) -> Learned:
    """Return `trained-physics` with its own errors, which no fit has touched."""
    by_deployment = [error._replace(group=deployment(fitter.runs[error.run])) for error in errors]
    halves = half_widths(error._replace(kind=kind) for kind in KINDS for error in by_deployment)
    return Learned(None, {}, NOTHING, _seen(fitter), halves)


def of_new_servers(untouched: Learned) -> HalfWidths:
    """Return the least half-widths for rows on new servers: as wide as the errors that no fit has touched.

    The form of the fitted law was found by a look at all runs, so its errors on servers left out vouch for no server
    that nobody had seen.
    """
    return {
        figure: {kind: half for kind, half in halves.items() if kind in NEW_SERVERS}
        for figure, halves in untouched.errors.items()
    }


def _seen(fitter: Fitter) -> SeenRuns:
    return SeenRuns.of(run.scene for run in fitter.runs.values())


def median_interval(errors: Sequence[Error], draws: int = 2000) -> tuple[float, float, float]:
    """Return the median of the errors in % and its 95 % interval, runs drawn again with replacement."""
    by_run: dict[str, list[float]] = {}
    for error in errors:
        by_run.setdefault(error.run, []).append(error.percent)
    runs = [np.array(values) for values in by_run.values()]
    rng = np.random.default_rng(0)
    medians = [
        np.median(np.concatenate([runs[place] for place in rng.integers(0, len(runs), len(runs))]))
        for _ in range(draws)
    ]
    low, high = np.percentile(medians, [2.5, 97.5])
    return float(np.median(np.concatenate(runs))), float(low), float(high)


# --- the order of layouts -------------------------------------------------------------------------

TIE = 0.02  # pairs that measured nearer than this share do not count
DRAWS = 1000


class LayoutAgreement(NamedTuple):
    """How often predictions order two layouts at one concurrency as measured."""

    layouts: int
    pairs: int
    right: float  # share of the pairs in the measured order
    low: float  # 95 %, layouts drawn again
    high: float
    decided: float  # share of the pairs that intervals keep apart
    decided_right: float  # of these, the share in the measured order; NaN without any


def agreement(
    errors: Sequence[Error], layout_of: Mapping[str, str], half: Mapping[str, float]
) -> LayoutAgreement:
    """Compare all pairs of layouts.

    Args:
        errors: one figure of runs that differ in their layout.
        layout_of: the layout of a run, by its name.
        half: half of an interval of the figure, in logarithms, by the name of the run.
    """
    errors = list(errors)
    sides: dict[tuple[int, int], tuple[bool, bool]] = {}
    for first, second in itertools.combinations(range(len(errors)), 2):
        measured = math.log(errors[first].measured / errors[second].measured)
        guess = math.log(errors[first].predicted / errors[second].predicted)
        if abs(measured) > math.log1p(TIE):
            unsure = math.hypot(half[errors[first].run], half[errors[second].run])
            sides[first, second] = (measured * guess > 0, abs(guess) > unsure)
    if not sides:
        return LayoutAgreement(len(errors), 0, math.nan, math.nan, math.nan, math.nan, math.nan)
    rng = np.random.default_rng(0)
    shares = []
    for _ in range(DRAWS):
        weight = np.bincount(rng.integers(0, len(errors), len(errors)), minlength=len(errors))
        pairs = np.array([weight[first] * weight[second] for first, second in sides])
        if pairs.sum():
            right = np.array([is_right for is_right, _ in sides.values()])
            shares.append(float(pairs @ right / pairs.sum()))
    low, high = np.percentile(shares, [2.5, 97.5])
    decided = [is_right for is_right, is_decided in sides.values() if is_decided]
    return LayoutAgreement(
        len({layout_of[error.run] for error in errors}),
        len(sides),
        float(np.mean([is_right for is_right, _ in sides.values()])),
        float(low),
        float(high),
        len(decided) / len(sides),
        float(np.mean(decided)) if decided else math.nan,
    )


# --- what a client sees beyond the steps ----------------------------------------------------------

HUBER = 0.05  # relative residuals beyond count by their size, not by its square
# mean and standard deviation before any run
FIRST_TOKEN_MS, FIRST_TOKEN_STEPS = (
    (3.0, 5.0),
    (1.0, 1.0),
)
SPREAD_PRIOR = 4  # runs without a spread that the prior is worth
SPREADS = ("ttft_p90", "ttft_p99", "e2e_p90", "e2e_p99")


def client_of(runs: Sequence[VllmRun], simulated: Mapping[str, SimulatedRequests]) -> ClientView:
    """Fit the client's delays and factors that bring simulated figures of these runs closest to the measured ones."""
    first_ms, first_steps = _first_token(runs, simulated)
    client = ClientView(first_ms, first_steps, _token_share(runs))
    ratios: dict[str, list[float]] = {}
    for run in runs:
        requests = seen(simulated[run.name], client)
        for (name, stage), cell in run.cells.items():
            part = part_of(run.scene, stage)
            # one stage
            is_repeated = stage is not None and len({of_stage for _, of_stage in run.cells}) == 2
            if name in SPREADS and not is_repeated:
                value = figure(name, requests, chosen_of(run.scene, requests, stage))
                ratios.setdefault(f"{name}/{part}", []).append(np.log(run.measured[cell] / value))
    spread = {
        name: float(np.exp(np.median(logs) * len(logs) / (len(logs) + SPREAD_PRIOR)))
        for name, logs in sorted(ratios.items())
    }
    return ClientView(first_ms, first_steps, client.token_share, spread=spread)


def _first_token(
    runs: Sequence[VllmRun], simulated: Mapping[str, SimulatedRequests]
) -> tuple[float, float]:
    """Constant in ms and number of steps, by least squares of relative residuals, with large ones weighed down."""
    rows, wanted = [], []
    for run in runs:
        requests = simulated[run.name]
        for (name, stage), cell in run.cells.items():
            if name == "ttft_mean":
                chosen = chosen_of(run.scene, requests, stage)
                measured = run.measured[cell]
                rows.append([1.0 / measured, figure("itl_mean", requests, chosen) / measured])
                wanted.append(1.0 - figure(name, requests, chosen) / measured)
    matrix, values = np.array(rows), np.array(wanted)
    mean, sd = np.transpose([FIRST_TOKEN_MS, FIRST_TOKEN_STEPS])
    fitted = np.asarray(mean)
    for _ in range(20):
        size = np.abs(values - matrix @ fitted)
        weight = np.sqrt(np.minimum(1.0, HUBER / np.maximum(size, 1e-9))) / HUBER
        stacked = np.concatenate([matrix * weight[:, None], np.diag(1 / sd)])
        fitted = np.linalg.lstsq(stacked, np.concatenate([values * weight, mean / sd]), rcond=None)[
            0
        ]
    return float(fitted[0]), float(fitted[1])


def _token_share(runs: Sequence[VllmRun]) -> float:
    """Share of the tokens asked for that came, by measured E2E, TTFT and ITL."""
    shares = []
    for run in runs:
        e2e, ttft, itl = (
            run.measured[run.cells[name, None]] for name in ("e2e_mean", "ttft_mean", "itl_mean")
        )
        shares.append(((e2e - ttft) / itl + 1) / run.scene.load.output)
    return float(np.median(shares))
