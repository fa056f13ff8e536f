"""The step law and the entry of requests, fitted to measured closed loops by simulating them.

Gauss-Newton in logarithms: every coefficient is moved a little, all runs are simulated again, and a linear model
(`hierarchy`) says what the measured runs ask for. A run takes milliseconds (`blis_jax.predict.segments`).
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace

import numpy as np

from blis_jax import progress
from blis_jax.latency.deployment import gpu_description
from blis_jax.latency.served_physics import BETA
from blis_jax.predict.closed import LoopView, simulated_loop
from blis_jax.predict.learned import REFERENCE_GPU, usual_pace
from blis_jax.predict.scene import Scene
from papers.real_servers.hierarchy import Hierarchy, LoopPosterior
from papers.real_servers.step_fit import LOG_SD, PACE_LOG_SD

STEP = 0.06  # of a logarithm, for derivatives; smaller ones find the jumps of single events
ENTRY_MS, ENTRY_MS_PER_1000 = 20.0, 5.0  # before any run is seen
ENTRY_LOG_SD = 1.0
ITERATIONS = 3
NEAR = 0.5  # of the prior's standard deviations, where a fit starts from another collection's


@dataclass(frozen=True)
class LoopFit:
    """What closed loops say of the step law."""

    beta: tuple[float, ...]
    pace: Mapping[str, float]
    view: LoopView

    def beta_on(self, hardware: str) -> tuple[float, ...]:
        """The coefficients on such GPUs."""
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
            view: what is not fitted of it stays.
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
            paces = [before.pace.get(name, one) for name, one in zip(self.gpus, usual, strict=True)]
            entry = before.view.entry_ms, before.view.entry_ms_per_1000
            self.prior = np.log([*before.beta[:-1], *paces, *entry])
            self.sd[:-2] *= NEAR

    def fit_of(self, logs: np.ndarray) -> LoopFit:
        """The vector as coefficients."""
        values = np.exp(logs).tolist()
        number = len(BETA) - 1
        view = replace(self.view, entry_ms=values[-2], entry_ms_per_1000=values[-1])
        return LoopFit(
            (*values[:number], 1.0), dict(zip(self.gpus, values[number:-2], strict=True)), view
        )

    def simulated(self, logs: np.ndarray, chosen: Sequence[int] | None = None) -> np.ndarray:
        """Logarithms of TTFT and ITL of the chosen runs, [2 · run]."""
        fit = self.fit_of(logs)
        found = []
        for place in range(len(self.scenes)) if chosen is None else chosen:
            scene = self.scenes[place]
            one = simulated_loop(scene, fit.beta_on(scene.server.hardware), fit.view)
            found.append((one.ttft_ms.mean(), one.itl_ms.mean()))
        return np.log(np.array(found)).T.ravel()

    def linear(self, logs: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        """Errors [2 · run] at the vector, and slopes by prior standard deviations."""
        here = self.simulated(logs)
        slopes = np.zeros((len(here), len(logs)))
        number = len(self.scenes)
        for place in range(len(logs)):
            moved = logs.copy()
            moved[place] += STEP
            chosen = self._touched(place)
            rows = np.concatenate([chosen, np.array(chosen) + number]).astype(int)
            change = self.simulated(moved, chosen) - here[rows]
            slopes[rows, place] = change / STEP * self.sd[place]
        return self.measured - here, slopes

    def _touched(self, place: int) -> list[int]:
        gpu = place - (len(BETA) - 1)
        everything = range(len(self.scenes))
        if not 0 <= gpu < len(self.gpus):
            return list(everything)
        name = self.gpus[gpu]
        return [one for one in everything if self.scenes[one].server.hardware == name]


def fitted(law: LoopLaw) -> tuple[np.ndarray, LoopPosterior]:
    """The vector at the maximum of the posterior, and the linear model at it."""
    logs = law.prior.copy()
    with progress.phase("fitting the step law", ITERATIONS + 1, "rounds") as work:
        for number in range(ITERATIONS + 1):
            errors, slopes = law.linear(logs)
            hierarchy = Hierarchy(law.scenes, slopes)
            prior_mean = (law.prior - logs) / law.sd
            posterior = LoopPosterior(hierarchy, errors, prior_mean)
            work.show(number + 1)
            if number < ITERATIONS:
                moved = (posterior.coefficients() + prior_mean) * law.sd
                logs = logs + np.clip(moved, -1.0, 1.0)
    return logs, posterior
