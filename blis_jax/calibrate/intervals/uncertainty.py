"""How well the coefficients are known, with neighbouring requests alike, and what is not identifiable."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np

from blis_jax.calibrate.fit import Fit
from blis_jax.statistics.intervals import t_quantile

if TYPE_CHECKING:
    from jaxtyping import Float

NUM_GROUPS = 12  # of neighbouring requests, which share steps and queues
MOST_ALIKE = 0.98  # correlation of neighbours
LEVEL = 0.95
LARGEST_RELATIVE_ERROR = 0.5  # of a coefficient that counts as known: its interval is far from 0
AT_BOUND = 1e-4  # of the starting value
WORST_CONDITION = 1e6  # of the scaled normal matrix


@dataclass(frozen=True)
class Uncertainty:
    """Covariance of the coefficients and what it says in words."""

    covariance: Float[np.ndarray, "term term"]
    intervals: Float[np.ndarray, "term 2"]
    is_identified: tuple[bool, ...]
    correlations: Float[np.ndarray, "term term"]
    remarks: tuple[str, ...]
    alikeness: float = (
        1.0  # times that costs must differ more than those of independent requests, at least 1
    )


def uncertainty(fit: Fit) -> Uncertainty:
    """A sandwich covariance over groups of neighbouring requests, t intervals cut off at 0.

    Residuals of neighbours are anything but independent, since they wait in one queue: the usual
    covariance would be far too small. The cost has many minima, since batches are made up otherwise in
    each; where other starts end about as well as the best one, the scatter of their ends is added. What
    is left out is that the model may be wrong.
    """
    weight = 1.0 / np.sqrt(1.0 + fit.residuals**2)  # of the robust loss
    groups = np.array_split(np.arange(len(fit.residuals)), min(NUM_GROUPS, len(fit.residuals)))
    scale = np.asarray(fit.sizes)
    slopes = fit.jacobian * scale
    normal = np.einsum("ikp,ik,ikq->pq", slopes, weight, slopes)
    scores = np.stack(
        [np.einsum("ikp,ik->p", slopes[g], (weight * fit.residuals)[g]) for g in groups]
    )
    # a term at its bound has a gradient that does not vanish: only its spread counts
    spread = scores - scores.mean(axis=0)
    inverse = _inverse(normal)
    num_groups = len(groups)
    left = max(num_groups - len(fit.terms), 2)  # few groups, each fitted in part
    meat = spread.T @ spread * num_groups / left
    relative = inverse @ meat @ inverse + _scatter(fit) / np.outer(scale, scale)
    relative[np.diag_indices_from(relative)] += (
        np.diag(normal) <= 0
    )  # without effect: not known at all
    error = np.sqrt(np.maximum(np.diag(relative), 0.0))
    reach = t_quantile(left + 1, LEVEL) * error
    low, high = np.maximum(fit.values - scale * reach, 0.0), fit.values + scale * reach
    with np.errstate(invalid="ignore", divide="ignore"):
        correlations = relative / np.outer(error, error)
    error = error * scale / np.maximum(fit.values, 1e-12)
    is_known = _identified(fit, normal, error)
    return Uncertainty(
        relative * np.outer(scale, scale),
        np.stack([low, high], axis=1),
        is_known,
        np.nan_to_num(correlations),
        _remarks(fit, normal, error, is_known, np.nan_to_num(correlations)),
        max(float(np.trace(inverse @ meat)) / len(fit.terms), 1.0),
    )


def beyond_groups(fit: Fit) -> float:
    """Times that sums of slopes and residuals vary more in the long run than the groups show, at least 1.

    Groups of a twelfth are too short where more distant neighbours are still alike. The long run is that of an
    autoregression of order one of each term (Andrews and Monahan, 1992).
    """
    weight = 1.0 / np.sqrt(1.0 + fit.residuals**2)
    scores = np.einsum("ikp,ik->ip", fit.jacobian, weight * fit.residuals)
    scores = scores - scores.mean(axis=0)
    power = np.sum(scores**2, axis=0)
    is_felt, num = power > 0, len(scores)
    if num < 2 * NUM_GROUPS or not np.any(is_felt):
        return 1.0
    scores, power = scores[:, is_felt], power[is_felt]
    alike = np.sum(scores[1:] * scores[:-1], axis=0) / power
    alike = np.clip(alike + (1 + 3 * alike) / num, 0.0, MOST_ALIKE)
    steps = scores[1:] - alike * scores[:-1]
    long_run = num * steps.var(axis=0) / (1 - alike) ** 2
    sums = np.stack([group.sum(axis=0) for group in np.array_split(scores, NUM_GROUPS)])
    return max(float(np.mean(long_run / np.maximum(np.sum(sums**2, axis=0), 1e-300))), 1.0)


def _scatter(fit: Fit) -> Float[np.ndarray, "term term"]:
    """Mean square of the way from the fit to where starts end that a likelihood ratio would not reject."""
    from scipy.stats import chi2

    if not fit.start_values:
        return np.zeros((len(fit.terms), len(fit.terms)))
    is_near = np.array(fit.start_costs) <= fit.cost + chi2.ppf(LEVEL, len(fit.terms)) / 2
    ways = np.array(fit.start_values)[is_near] - fit.values
    scatter: np.ndarray = ways.T @ ways / max(len(ways), 1)
    return scatter


def _inverse(normal: np.ndarray) -> np.ndarray:
    """The pseudo-inverse in units in which every term has the same effect; 0 for terms without any."""
    size = np.sqrt(np.diag(normal))
    units = np.where(size > 0, size, 1.0)
    scaled = np.linalg.pinv(normal / np.outer(units, units), rcond=1e-12, hermitian=True)
    found: np.ndarray = scaled / np.outer(units, units)
    return found


def _at_bound(fit: Fit) -> np.ndarray:
    return fit.values <= AT_BOUND * np.asarray(fit.sizes)


def _identified(fit: Fit, normal: np.ndarray, error: np.ndarray) -> tuple[bool, ...]:
    """Neither at the bound, nor without effect, nor with an error as large as the value."""
    effect = np.diag(normal)
    is_felt = effect > effect.max() * 1e-12
    is_known = is_felt & ~_at_bound(fit) & (error < LARGEST_RELATIVE_ERROR)
    return tuple(bool(one) for one in is_known)


def _remarks(
    fit: Fit,
    normal: np.ndarray,
    error: np.ndarray,
    is_known: tuple[bool, ...],
    correlations: np.ndarray,
) -> tuple[str, ...]:
    """What a reader of the numbers has to know."""
    is_at_bound = _at_bound(fit)
    found = [
        f"{term} is not identifiable here: "
        + ("it ends at its bound of 0" if low else f"standard error {100 * e:.0f} % of its value")
        for term, known, low, e in zip(fit.terms, is_known, is_at_bound, error, strict=True)
        if not known
    ]
    for row in range(len(fit.terms)):
        for column in range(row):
            value = correlations[row, column]
            if abs(value) > 0.95 and not (is_at_bound[row] or is_at_bound[column]):
                found.append(
                    f"{fit.terms[column]} and {fit.terms[row]} are known only together "
                    f"(correlation {value:+.2f}): one can be traded for the other"
                )
    diagonal = np.sqrt(np.maximum(np.diag(normal), 1e-300))
    condition = np.linalg.cond(normal / np.outer(diagonal, diagonal))
    if condition > WORST_CONDITION:
        found.append(f"the normal matrix is nearly singular (condition {condition:.1e})")
    return tuple(found)
