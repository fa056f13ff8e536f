"""A linear model of logarithms of errors: coefficients of the step law, and effects of groups inside groups.

All numbers have normal priors, so left-out runs are predicted in closed form from the runs that stay, without a
further fit: with K the covariance of all runs, the error of a block left out is the inverse of the block of K's
inverse, times the block of K's inverse times the data.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence

import numpy as np

from papers.real_servers.predict.learned import FIGURES, features, groups
from papers.real_servers.predict.scene import ClosedLoad, Scene

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
    """The model given the logarithms of measured over simulated figures of runs, TTFT of all and then ITL of all."""

    def __init__(
        self, scenes: Sequence[Scene], errors: np.ndarray, slopes: np.ndarray | None = None
    ) -> None:
        """Weigh down what the model does not explain.

        Args:
            scenes: closed loops.
            errors: [figure · run].
            slopes: [figure · run, coefficient] of the step law, by prior standard deviations; None: it is given.
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
        """Return means of the step law's coefficients, in prior standard deviations from the prior."""
        return self.slopes.T @ self.weights

    def effects(self) -> dict[str, dict[str, list[float]]]:
        """Return means of the numbers of all groups, as `papers.real_servers.predict.learned` takes them."""
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
