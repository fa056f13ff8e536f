"""The step law and the entry of requests, fitted to measured closed loops by simulating them.

Gauss-Newton in logarithms: every coefficient is moved a little, all runs are simulated again, and a linear model
(`LoopPosterior`) says what the measured runs ask for. A run takes milliseconds
(`papers.real_servers.predict.segments`).
"""

from __future__ import annotations

import functools
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

import numpy as np

from blis_jax import progress
from blis_jax.latency.deployment import gpu_description
from blis_jax.latency.served_physics import BETA
from papers.real_servers.predict.learned import FIGURES, REFERENCE_GPU, features, groups, usual_pace
from papers.real_servers.predict.scene import ClosedLoad, Scene
from papers.real_servers.predict.simulation import LoopView, SimulatedRequests, simulated_loop
from papers.real_servers.step_fit import LOG_SD, PACE_LOG_SD

if TYPE_CHECKING:
    from jaxtyping import Float

# --- a linear model of logarithms of errors: coefficients, and effects of groups inside groups ----

# All numbers have normal priors, so left-out runs are predicted in closed form from the runs that stay, without a
# further fit: with K the covariance of all runs, the error of a block left out is the inverse of the block of K's
# inverse, times the block of K's inverse times the data.


# standard deviations of features: level, requests at once, their square, prompt, output, requests times prompt
FEATURE_SD = np.array([1.0, 0.7, 0.08, 0.3, 0.1, 0.2])
LEVEL_SD = {
    "all": 0.2,
    "gpu": 0.03,
    "model": 0.06,
    "precision": 0.2,
    "model on gpu": 0.03,
    "variant": 0.08,
    "deployment": 0.05,
}
FIGURE_SCALE = {"ttft": 1.5, "itl": 1.0}
NOISE = {"ttft": 0.02, "itl": 0.006}
ROBUST = 4.0  # degrees of freedom of the noise
ROUNDS = 8


class LoopPosterior:
    """The model given logarithms of measured over simulated figures: TTFT of all runs, then ITL of all runs."""

    def __init__(
        self, scenes: Sequence[Scene], errors: np.ndarray, slopes: np.ndarray | None = None
    ) -> None:
        """Condition the model on the errors, where outliers have less weight.

        Args:
            scenes: closed loops.
            errors: [figure · run].
            slopes: [figure · run, coefficient] of the step law, by prior standard deviations; None: the law is given.
        """
        self.errors = errors
        self.slopes = np.zeros((len(errors), 0)) if slopes is None else slopes
        self.columns = np.array([features(_load(scene)) for scene in scenes]) * FEATURE_SD
        self.labels = {
            level: np.array([groups(scene.server)[level] for scene in scenes]) for level in LEVEL_SD
        }
        self.number = len(scenes)
        self.prior = self._covariance()
        usual = np.repeat([NOISE[name] ** 2 for name in FIGURES], self.number)
        variance = usual
        for _ in range(ROUNDS):
            inverse = np.linalg.inv(self.prior + np.diag(variance))
            # noise of each run, given all: its mean and its variance
            noise = variance * (inverse @ errors)
            left = variance - variance**2 * np.diag(inverse)
            variance = usual * (ROBUST + (noise**2 + left) / usual) / (ROBUST + 1)
        self.inverse = np.linalg.inv(self.prior + np.diag(variance))
        self.weights = self.inverse @ errors

    def _covariance(self) -> np.ndarray:
        total = self.slopes @ self.slopes.T
        likeness = self.columns @ self.columns.T
        for place, name in enumerate(FIGURES):
            span = slice(place * self.number, (place + 1) * self.number)
            for level, labels in self.labels.items():
                same = labels[:, None] == labels[None, :]
                total[span, span] += same * likeness * _variance(level, name)
        return total

    def left_out(self, names: Iterable[str]) -> np.ndarray:
        """Predict the errors [figure · run], each from the runs of other names."""
        labels = np.array(list(names))
        predicted = np.empty_like(self.errors)
        for name in dict.fromkeys(labels.tolist()):
            place = np.flatnonzero(labels == name)
            both = np.concatenate([place, place + self.number])
            block = self.inverse[np.ix_(both, both)]
            predicted[both] = self.errors[both] - np.linalg.solve(block, self.weights[both])
        return predicted

    def coefficients(self) -> np.ndarray:
        """Return the posterior means of the step law's coefficients, in prior standard deviations from the prior's."""
        return self.slopes.T @ self.weights

    def effects(self) -> dict[str, dict[str, list[float]]]:
        """Return the posterior means of all groups' numbers, in the form of `papers.real_servers.predict.learned`."""
        by_figure: dict[str, dict[str, list[float]]] = {}
        for place, name in enumerate(FIGURES):
            weights = self.weights[place * self.number : (place + 1) * self.number]
            of_figure = by_figure.setdefault(name, {})
            for level, labels in self.labels.items():
                for group in dict.fromkeys(labels.tolist()):
                    chosen = labels == group
                    values = self.columns[chosen].T @ weights[chosen] * _variance(level, name)
                    of_figure[f"{level}: {group}"] = (values * FEATURE_SD).tolist()
        return by_figure


def _variance(level: str, figure: str) -> float:
    return (LEVEL_SD[level] * FIGURE_SCALE[figure]) ** 2


def _load(scene: Scene) -> ClosedLoad:
    assert isinstance(scene.load, ClosedLoad)
    return scene.load


# --- the fit --------------------------------------------------------------------------------------


STEP = 0.06  # of a logarithm, for derivatives; smaller ones find the jumps of single events
ENTRY_MS, ENTRY_MS_PER_1000 = 20.0, 5.0  # before any run is seen
ENTRY_LOG_SD = 1.0
MANY, MANY_ROUNDS = 16, 4  # for derivatives of larger loops
NEAR = 0.5  # of the prior's standard deviations, where a fit starts from another collection's


@dataclass(frozen=True)
class LoopFit:
    """The step law as fitted to closed loops."""

    beta: tuple[float, ...]
    pace: Mapping[str, float]
    view: LoopView

    def beta_on(self, hardware: str) -> tuple[float, ...]:
        """Return the step law's coefficients on this hardware."""
        return (*self.beta[:-1], 1.0 if hardware == REFERENCE_GPU else self.pace[hardware])


class LoopLaw:
    """Runs with their measured TTFT and ITL, and the coefficients as one vector of logarithms."""

    def __init__(
        self,
        scenes: Sequence[Scene],
        measured_ms: np.ndarray,
        view: LoopView,
        before: LoopFit | None = None,
    ) -> None:
        """Take the runs.

        Args:
            scenes: closed loops.
            measured_ms: [2 · run], TTFT of all, then time between tokens of all.
            view: its fields that are not fitted stay.
            before: a fit to other runs, near which the step law stays.
        """
        self.scenes, self.measured = list(scenes), np.log(measured_ms)
        self.view = view
        seen = {scene.server.hardware for scene in scenes}
        self.gpus = sorted(seen - {REFERENCE_GPU})
        usual = [usual_pace(gpu_description(name)) for name in self.gpus]
        self.prior = np.log([*BETA[:-1], *usual, ENTRY_MS, ENTRY_MS_PER_1000])
        self.sd = np.array([*LOG_SD, *[PACE_LOG_SD] * len(self.gpus), ENTRY_LOG_SD, ENTRY_LOG_SD])
        if before is not None:
            paces = [
                before.pace.get(name, usual_pace_of_gpu)
                for name, usual_pace_of_gpu in zip(self.gpus, usual, strict=True)
            ]
            entry = before.view.entry_ms, before.view.entry_ms_per_1000
            self.prior = np.log([*before.beta[:-1], *paces, *entry])
            self.sd[:-2] *= NEAR

    def fit_of(self, logs: np.ndarray) -> LoopFit:
        """Return the fit whose coefficients, paces and entry are the exponentials of the vector."""
        values = np.exp(logs).tolist()
        number = len(BETA) - 1
        view = replace(self.view, entry_ms=values[-2], entry_ms_per_1000=values[-1])
        return LoopFit(
            (*values[:number], 1.0), dict(zip(self.gpus, values[number:-2], strict=True)), view
        )

    def simulated(self, logs: np.ndarray) -> list[SimulatedRequests]:
        """Simulate all runs by the law of the vector `logs`."""
        fit = self.fit_of(logs)
        with progress.phase("simulating", len(self.scenes), "runs") as work:
            simulated = []
            for number, scene in enumerate(self.scenes):
                beta = fit.beta_on(scene.server.hardware)
                simulated.append(simulated_loop(scene, beta, fit.view))
                work.show(number + 1)
        return simulated

    def errors(self, simulated: Sequence[SimulatedRequests]) -> np.ndarray:
        """Return logarithms of measured over simulated figures, [2 · run]."""
        return self.measured - _figures(simulated)

    def linear(self, logs: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        """Return errors [2 · run] of shortened runs at the vector, and slopes by prior standard deviations."""
        number, common = len(self.scenes), len(BETA) - 1
        here, slopes = np.zeros((2, number)), np.zeros((2, number, len(logs)))
        with progress.phase("moving coefficients", number, "runs") as work:
            for place, scene in enumerate(self.scenes):
                gpu = scene.server.hardware
                pace = [] if gpu == REFERENCE_GPU else [common + self.gpus.index(gpu)]
                places = [*range(common), *pace, len(logs) - 2, len(logs) - 1]
                here[:, place], slopes[:, place, places] = _moved(
                    shortened(scene), tuple(logs[places].tolist()), self.view
                )
                work.show(place + 1)
        return self.measured - here.ravel(), slopes.reshape(2 * number, -1) * self.sd


# studies of parts of the same runs start from the same vector
@functools.cache
def _moved(
    scene: Scene, logs: tuple[float, ...], view: LoopView
) -> tuple[Float[np.ndarray, "figure"], Float[np.ndarray, "figure coefficient"]]:
    """Return the figures of one run in logarithms, and by how much each coefficient moves them.

    Args:
        scene: a closed loop.
        logs: logarithms of the step law's coefficients, of the GPU's pace unless it is the reference's, and of the
            entry's two numbers.
        view: the loop's numbers that are not fitted.
    """

    def at(vector: np.ndarray) -> Float[np.ndarray, "figure"]:
        values, common = np.exp(vector).tolist(), len(BETA) - 1
        pace = values[common] if len(values) == common + 3 else 1.0
        entered = replace(view, entry_ms=values[-2], entry_ms_per_1000=values[-1])
        return _figures([simulated_loop(scene, (*values[:common], pace), entered, seeds=1)])

    vector = np.array(logs)
    here = at(vector)
    moved = [at(vector + STEP * direction) - here for direction in np.eye(len(logs))]
    return here, np.transpose(moved) / STEP


def _figures(simulated: Sequence[SimulatedRequests]) -> np.ndarray:
    return np.log(
        [
            [requests.ttft_ms.mean() for requests in simulated],
            [requests.itl_ms.mean() for requests in simulated],
        ]
    ).ravel()


def shortened(scene: Scene) -> Scene:
    """Drop most of the scene's later rounds, if a round has many requests."""
    load = scene.load
    assert isinstance(load, ClosedLoad)
    if load.concurrency <= MANY:
        return scene
    return replace(scene, load=replace(load, rounds=MANY_ROUNDS))


def fitted(law: LoopLaw) -> tuple[np.ndarray, list[SimulatedRequests]]:
    """Take one step of Gauss-Newton from the prior: return the vector, and the runs simulated by it.

    More steps do not predict better: the groups take up what a slightly different law leaves.
    """
    errors, slopes = law.linear(law.prior)
    step = LoopPosterior(law.scenes, errors, slopes).coefficients()
    logs = law.prior + np.clip(step * law.sd, -1.0, 1.0)
    return logs, law.simulated(logs)
