"""A linear model of logarithms of errors: coefficients of the step law, and effects of groups inside groups.

All numbers have normal priors, so left-out runs are predicted in closed form from the runs that stay, without a
further fit: with K the covariance of all runs, the error of a block left out is the inverse of the block of K's
inverse, times the block of K's inverse times the data.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass

import numpy as np

from blis_jax.predict.effects import FIGURES, features, groups
from blis_jax.predict.scene import ClosedLoad, Scene

# standard deviations of features: level, requests at once, their square, prompt, output, requests times prompt
FEATURE_SD = np.array([1.0, 0.7, 0.16, 0.7, 0.1, 0.4])
LEVEL_SD = {
    "all": 0.3,
    "gpu": 0.02,
    "model": 0.06,
    "precision": 0.04,
    "model on gpu": 0.02,
    "variant": 0.2,
    "deployment": 0.1,
}
FIGURE_SCALE = {"ttft": 1.5, "itl": 1.0}
NOISE = {"ttft": 0.10, "itl": 0.03}
ROBUST = 4.0  # degrees of freedom of the noise
ROUNDS = 8


@dataclass(frozen=True)
class Hierarchy:
    """The prior covariance of two figures of runs, TTFT first and then ITL, with its parts."""

    scenes: Sequence[Scene]
    slopes: np.ndarray  # [figure · run, coefficient] of the step law, per prior standard deviation

    def covariance(self, scale: Mapping[str, float] | None = None) -> np.ndarray:
        """Prior covariance of [figure · run] without noise; `scale` multiplies standard deviations of levels."""
        total = self.slopes @ self.slopes.T
        number, columns = len(self.scenes), self.columns()
        for place, name in enumerate(FIGURES):
            span = slice(place * number, (place + 1) * number)
            for level, sd in LEVEL_SD.items():
                spread = sd * (scale or {}).get(level, 1.0) * FIGURE_SCALE[name]
                total[span, span] += self._same(level) * (columns @ columns.T) * spread**2
        return total

    def columns(self) -> np.ndarray:
        """Features by run, times their standard deviations."""
        return np.array([features(_load(scene)) for scene in self.scenes]) * FEATURE_SD

    def _same(self, level: str) -> np.ndarray:
        names = np.array([groups(scene.server)[level] for scene in self.scenes])
        return (names[:, None] == names[None, :]).astype(float)


def _load(scene: Scene) -> ClosedLoad:
    assert isinstance(scene.load, ClosedLoad)
    return scene.load


class LoopPosterior:
    """The model given the logarithms of measured over simulated figures."""

    def __init__(self, hierarchy: Hierarchy, errors: np.ndarray, prior_mean: np.ndarray) -> None:
        """Weigh down what the model does not explain.

        Args:
            hierarchy: of the runs.
            errors: [figure · run].
            prior_mean: of the coefficients, in prior standard deviations from those simulated.
        """
        self.hierarchy = hierarchy
        self.offset = hierarchy.slopes @ prior_mean
        self.errors = errors - self.offset
        self.prior = hierarchy.covariance()
        number = len(hierarchy.scenes)
        usual = np.repeat([NOISE[name] ** 2 for name in FIGURES], number)
        variance = usual
        for _ in range(ROUNDS):
            inverse = np.linalg.inv(self.prior + np.diag(variance))
            # expected noise of each run, given all: its mean and its variance
            noise = variance * (inverse @ self.errors)
            left = variance - variance**2 * np.diag(inverse)
            variance = usual * (ROBUST + (noise**2 + left) / usual) / (ROBUST + 1)
        self.inverse = np.linalg.inv(self.prior + np.diag(variance))
        self.weights = self.inverse @ self.errors

    def left_out(self, names: Iterable[str]) -> np.ndarray:
        """Predictions of the errors [figure · run], each from the runs of other names."""
        labels = np.array(list(names))
        number = len(self.hierarchy.scenes)
        found = np.empty_like(self.errors)
        for name in dict.fromkeys(labels.tolist()):
            place = np.flatnonzero(labels == name)
            both = np.concatenate([place, place + number])
            block = self.inverse[np.ix_(both, both)]
            found[both] = self.errors[both] - np.linalg.solve(block, self.weights[both])
        return found + self.offset

    def coefficients(self) -> np.ndarray:
        """Means of the step law's coefficients beyond the prior's, in prior standard deviations."""
        return self.hierarchy.slopes.T @ self.weights

    def effects(self) -> dict[str, dict[str, list[float]]]:
        """Means of the numbers of all groups, as `blis_jax.predict.effects` takes them."""
        number, columns = len(self.hierarchy.scenes), self.hierarchy.columns()
        found: dict[str, dict[str, list[float]]] = {}
        for place, name in enumerate(FIGURES):
            weights = self.weights[place * number : (place + 1) * number]
            of_figure = found.setdefault(name, {})
            for level, sd in LEVEL_SD.items():
                labels = [groups(scene.server)[level] for scene in self.hierarchy.scenes]
                for group in dict.fromkeys(labels):
                    chosen = np.array([one == group for one in labels])
                    values = columns[chosen].T @ weights[chosen] * (sd * FIGURE_SCALE[name]) ** 2
                    of_figure[f"{level}: {group}"] = (values * FEATURE_SD).tolist()
        return found
