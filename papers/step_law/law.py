"""Linear laws of a step's time: which terms make the error on other stretches of time smaller."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np

from blis_jax.statistics.intervals import Estimate, relative_change
from papers.step_law.steps import MeasuredSteps

if TYPE_CHECKING:
    from jaxtyping import Float

NUM_STRETCHES = 20
CONFIDENCE = 0.95  # of all intervals of a table together

Column = Callable[[MeasuredSteps], np.ndarray]

BASE: dict[str, Column] = {
    "per step": lambda steps: np.ones_like(steps.period_us),
    "per new prompt token": lambda steps: steps.new_tokens,
    "per request in decode": lambda steps: steps.decodes,
}
TERMS: dict[str, Column] = {
    "context": lambda steps: steps.context,
    "prefill attention": lambda steps: steps.new_tokens * steps.context / steps.requests,
    "requests in prefill": lambda steps: steps.prefills,
    "a prompt in the step": lambda steps: (steps.prefills > 0).astype(np.float64),
    "CUDA-graph padding": lambda steps: np.where(
        steps.prefills > 0, 0.0, steps.graph_size - steps.decodes
    ),
    "requests that finish": lambda steps: steps.finished,
}


@dataclass(frozen=True)
class LinearLaw:
    """A fit, and its absolute errors on stretches of time that the fit did not see."""

    names: tuple[str, ...]
    coefficients: Float[np.ndarray, "term"]  # µs per unit, of the fit to all steps
    residual_us: Float[np.ndarray, "step"]  # measured less fitted, of the fit to all steps
    errors_us: Float[np.ndarray, "step"]  # absolute, out of sample


def fitted(steps: MeasuredSteps, terms: Sequence[str]) -> LinearLaw:
    """The base law with these terms of `TERMS`, by least squares.

    Its errors are those on `NUM_STRETCHES` stretches of time, each left out of a fit to the others.
    """
    columns = {**BASE, **{name: TERMS[name] for name in terms}}
    matrix = np.column_stack([column(steps) for column in columns.values()])
    errors = np.empty_like(steps.period_us)
    for stretch in np.array_split(np.arange(len(matrix)), NUM_STRETCHES):
        others = np.ones(len(matrix), bool)
        others[stretch] = False
        found = _solved(matrix[others], steps.period_us[others])
        errors[stretch] = np.abs(steps.period_us[stretch] - matrix[stretch] @ found)
    whole = _solved(matrix, steps.period_us)
    residual = steps.period_us - matrix @ whole
    return LinearLaw(tuple(columns), whole, residual, errors)


def _solved(matrix: np.ndarray, wanted: np.ndarray) -> np.ndarray:
    scale = np.maximum(np.abs(matrix).max(axis=0), 1e-12)
    found: np.ndarray = np.linalg.lstsq(matrix / scale, wanted, rcond=None)[0]
    return found / scale


def change(before: LinearLaw, after: LinearLaw, num_intervals: int) -> Estimate:
    """Change of the mean absolute error in %, with an interval that holds together with the others of its table.

    The stretches of time are its samples, so that steps that follow each other count as one.
    """

    def means(law: LinearLaw) -> np.ndarray:
        return np.array([one.mean() for one in np.array_split(law.errors_us, NUM_STRETCHES)])

    confidence = 1 - (1 - CONFIDENCE) / num_intervals
    return relative_change(means(before), means(after), confidence)


def by_quarters(values: np.ndarray, residual: np.ndarray) -> list[float]:
    """Mean residual in each quarter of the steps, from the smallest values to the largest, µs.

    Equal values come in an order by chance, so that time does not act in their place.
    """
    order = np.lexsort((np.random.default_rng(0).random(len(values)), values))
    return [float(residual[quarter].mean()) for quarter in np.array_split(order, 4)]
