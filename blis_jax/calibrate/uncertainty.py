"""How well the coefficients are known, when neighbouring requests are correlated, and which are not identifiable."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np

from blis_jax.calibrate.fit import Fit, FitProblem, FitTarget, Latencies, Model, descend
from blis_jax.lazy import stats
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
    """The covariance of the coefficients, their intervals, and remarks in words."""

    covariance: Float[np.ndarray, "term term"]
    intervals: Float[np.ndarray, "term 2"]
    is_identified: tuple[bool, ...]
    correlations: Float[np.ndarray, "term term"]
    remarks: tuple[str, ...]
    # times that costs must differ more than those of independent requests, at least 1
    alikeness: float = 1.0


def uncertainty(fit: Fit) -> Uncertainty:
    """Return a sandwich covariance over groups of neighbouring requests, t intervals cut off at 0.

    Residuals of neighbours are anything but independent, since they wait in one queue: the usual covariance would be
    far too small. The cost has many minima, since each has other batches; the scatter of all minima that fit about as
    well as the best one is added. Errors of the latency model itself are left out.
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
    # without effect: not known at all
    relative[np.diag_indices_from(relative)] += np.diag(normal) <= 0
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
    """Return the factor, at least 1, by which the long-run variance of the scores exceeds that of the groups' sums.

    A score is slope times residual. Groups of a twelfth of the requests are too short if correlation reaches further.
    The long-run variance is that of a first-order autoregression of each term (Andrews and Monahan, 1992).
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
    """Return the mean square distance from the fit to those ends that a likelihood ratio does not reject."""
    if not fit.start_values:
        return np.zeros((len(fit.terms), len(fit.terms)))
    is_near = np.array(fit.start_costs) <= fit.cost + stats.chi2.ppf(LEVEL, len(fit.terms)) / 2
    ways = np.array(fit.start_values)[is_near] - fit.values
    scatter: np.ndarray = ways.T @ ways / max(len(ways), 1)
    return scatter


def _inverse(normal: np.ndarray) -> np.ndarray:
    """Return the pseudo-inverse, computed in units in which all terms have equal effect; 0 for terms without."""
    size = np.sqrt(np.diag(normal))
    units = np.where(size > 0, size, 1.0)
    scaled = np.linalg.pinv(normal / np.outer(units, units), rcond=1e-12, hermitian=True)
    inverse: np.ndarray = scaled / np.outer(units, units)
    return inverse


def _at_bound(fit: Fit) -> np.ndarray:
    return fit.values <= AT_BOUND * np.asarray(fit.sizes)


def _identified(fit: Fit, normal: np.ndarray, error: np.ndarray) -> tuple[bool, ...]:
    """Return which terms are identified: off the bound, with an effect, and with an error smaller than the value."""
    effect = np.diag(normal)
    is_felt = effect > effect.max() * 1e-12
    is_known = is_felt & ~_at_bound(fit) & (error < LARGEST_RELATIVE_ERROR)
    return tuple(bool(value) for value in is_known)


def _remarks(
    fit: Fit,
    normal: np.ndarray,
    error: np.ndarray,
    is_known: tuple[bool, ...],
    correlations: np.ndarray,
) -> tuple[str, ...]:
    """Return remarks on terms that are not identifiable, and on correlated terms."""
    is_at_bound = _at_bound(fit)
    remarks = [
        f"{term} is not identifiable here: "
        + ("it ends at its bound of 0" if low else f"standard error {100 * e:.0f} % of its value")
        for term, known, low, e in zip(fit.terms, is_known, is_at_bound, error, strict=True)
        if not known
    ]
    for row in range(len(fit.terms)):
        for column in range(row):
            value = correlations[row, column]
            if abs(value) > 0.95 and not (is_at_bound[row] or is_at_bound[column]):
                remarks.append(
                    f"{fit.terms[column]} and {fit.terms[row]} are known only together "
                    f"(correlation {value:+.2f}): one can be traded for the other"
                )
    diagonal = np.sqrt(np.maximum(np.diag(normal), 1e-300))
    condition = np.linalg.cond(normal / np.outer(diagonal, diagonal))
    if condition > WORST_CONDITION:
        remarks.append(f"the normal matrix is nearly singular (condition {condition:.1e})")
    return tuple(remarks)


# --- intervals from all fits that do nearly as well: other minima ---------------------------------

# The sum of squares is rugged, since batches come together otherwise in each of its pieces, and the descents end in
# one of many. So every coefficient is held on a path away from the fit, while the others are fitted anew, from the
# neighbour on the path. What ends within `MOST_WORSE` of the best, more where neighbouring requests err alike, is a
# fit that the run does not exclude. The paths are those of a wider form, with a cost of context that may be 0: what
# it would take over from the other coefficients is then part of their intervals.


CONTEXT = "beta3"
MOST_WORSE = 6.0  # of the robust cost: a likelihood ratio's 1.9, and what the pieces add; set on made-up servers
LARGEST_HALF = 0.3  # of the interval's middle, of a coefficient that counts as identified
FIRST_STEPS = {"alpha0": 0.4, "alpha1": 0.4, "alpha2": 0.4, "beta0": 0.03, "beta1": 0.02}
FIRST_STEPS[CONTEXT] = 0.4
OTHER_STEP = 0.12  # of the value, as the others are
GROWTH = 1.35  # from step to step
MOST_STEPS = 9  # to each side
ROUNDS = 12  # of a descent on a path
CONTEXT_SHARES = (0.0, 0.3, 0.8)  # of the usual start, where a wider fit begins


@dataclass(frozen=True)
class Exploration:
    """The ends of the descents: coefficients of the wider form, and their costs with the weights of the fit."""

    terms: tuple[str, ...]
    values: Float[np.ndarray, "end term"]
    costs: Float[np.ndarray, " end"]
    most_worse: float
    num_simulations: int

    @property
    def best(self) -> Float[np.ndarray, " term"]:
        """Return the coefficients `[term]` of the end with the least cost."""
        best: np.ndarray = self.values[np.argmin(self.costs)]
        return best

    def near(self, fit: Fit) -> Float[np.ndarray, "near term"]:
        """Return the ends that the run does not exclude, each once, and the fit."""
        is_near = self.costs <= self.costs.min() + self.most_worse
        alone = np.pad(fit.values, (0, len(self.terms) - len(fit.terms)))
        distinct: np.ndarray = np.unique(np.vstack([self.values[is_near], alone]), axis=0)
        return distinct


def explore(
    model: Model,
    target: FitTarget,
    fit: Fit,
    known: Uncertainty,
    terms: Sequence[str],
    wider_starts: Sequence[np.ndarray],
) -> Exploration:
    """Descend in the wider form of the latency model, with all `terms` free, then along each coefficient in turn.

    Args:
        model: latencies of the wider form.
        target: the measured latencies that may be looked at.
        fit: the fit of the terms asked for, which are the first of `terms`.
        known: the uncertainty at the fit; its `alikeness` widens the set of ends that count as near.
        terms: the terms of the wider form; the same as the fit's if these have a cost of context.
        wider_starts: further starting points, coefficients of `terms`.
    """
    scale = np.array([*fit.sizes, *np.max(wider_starts, axis=0)[len(fit.sizes) :]])
    most_worse = MOST_WORSE * known.alikeness
    search = _Search(model, target, np.asarray(fit.weights), scale, most_worse)
    begun = [*wider_starts]
    for share in CONTEXT_SHARES if len(terms) > len(fit.terms) else (1.0,):
        begun.append(np.array([*fit.values, *share * scale[len(fit.values) :]]))
    for start in begun:
        search.end(start)
    for _ in range(2):  # again where a path led to a better fit
        before = min(search.costs)
        for place in range(len(terms)):
            search.path(place, FIRST_STEPS.get(terms[place], OTHER_STEP))
        if min(search.costs) > before - 1.0:
            break
    return Exploration(
        tuple(terms),
        np.array(search.values),
        np.array(search.costs),
        most_worse,
        search.num_simulations,
    )


class _Search:
    """The ends of all descents so far, and their costs."""

    def __init__(
        self,
        model: Model,
        target: FitTarget,
        weights: np.ndarray,
        scale: np.ndarray,
        most_worse: float,
    ) -> None:
        self.most_worse = most_worse
        self.model, self.target, self.weights, self.scale = model, target, weights, scale
        self.values: list[np.ndarray] = []
        self.costs: list[float] = []
        self.num_simulations = 0

    def end(self, start: np.ndarray, held: int | None = None) -> tuple[np.ndarray, float]:
        """Return where a descent ends, with all coefficients free or one held."""
        is_free = np.arange(len(start)) != (-1 if held is None else held)
        problem = FitProblem(_holding(self.model, start, is_free), self.target, self.scale[is_free])
        rounds = 2 * ROUNDS if held is None else ROUNDS
        end, cost = descend(problem, start[is_free], self.weights, rounds)
        values = np.array(start, np.float64)
        values[is_free] = end
        self.values.append(values)
        self.costs.append(cost)
        self.num_simulations += problem.num_simulations
        return values, cost

    def path(self, place: int, share: float) -> None:
        """Follow a coefficient both ways from the best end, in growing steps, until two ends are clearly worse."""
        first = self.values[int(np.argmin(self.costs))]
        size = share * max(first[place], 0.1 * self.scale[place])
        for sign in (-1.0, 1.0):
            at, num_worse = first, 0
            for number in range(MOST_STEPS):
                start = at.copy()
                start[place] = max(at[place] + sign * size * GROWTH**number, 0.0)
                at, cost = self.end(start, place)
                num_worse = num_worse + 1 if cost > min(self.costs) + self.most_worse else 0
                if num_worse == 2 or start[place] == 0.0:
                    break


def _holding(
    model: Model, values: np.ndarray, is_free: np.ndarray
) -> Callable[[np.ndarray], Latencies]:
    """Return the model as a function of the free coefficients; the others keep their `values`."""

    def held(free: np.ndarray) -> Latencies:
        whole = np.array(values, np.float64)
        whole[is_free] = free
        latencies = model(whole)
        return latencies._replace(
            d_ttft=latencies.d_ttft[:, is_free], d_e2e=latencies.d_e2e[:, is_free]
        )

    return held


def widened(known: Uncertainty, fit: Fit, exploration: Exploration) -> Uncertainty:
    """Widen each interval to reach from the lowest to the highest end that is not excluded, plus the local half width.

    The covariance is stretched alike, so that draws reach as far. A coefficient stays identified if half of its
    interval is at most `LARGEST_HALF` of the interval's middle.
    """
    num_terms = len(fit.terms)
    near = exploration.near(fit)[:, :num_terms]
    local = known.intervals[:, 1] - fit.values
    low = np.maximum(near.min(axis=0) - local, 0.0)
    high = near.max(axis=0) + local
    stretch = (high - low) / np.maximum(2 * local, 1e-300)
    is_narrow = (high - low) / 2 <= LARGEST_HALF * (high + low) / 2
    is_known = tuple(bool(value) for value in np.asarray(known.is_identified) & is_narrow)
    return dataclasses.replace(
        known,
        covariance=known.covariance * np.outer(stretch, stretch),
        intervals=np.stack([low, high], axis=1),
        is_identified=is_known,
        remarks=(*_wider_remarks(known, fit, exploration, is_known, low, high), *known.remarks),
    )


def _wider_remarks(
    known: Uncertainty,
    fit: Fit,
    exploration: Exploration,
    is_known: Sequence[bool],
    low: np.ndarray,
    high: np.ndarray,
) -> list[str]:
    remarks = [
        f"{term} is not identifiable here: fits that do nearly as well have {below:.4g} to {above:.4g}"
        for term, after, before, below, above in zip(
            fit.terms, is_known, known.is_identified, low, high, strict=True
        )
        if before and not after
    ]
    gain = fit.cost - exploration.costs.min()
    if (
        len(exploration.terms) > len(fit.terms)
        and gain > exploration.most_worse
        and exploration.best[-1] > 0
    ):
        remarks.append(
            f"a cost of {exploration.best[-1]:.3g} µs per token of context explains the run clearly better (cost "
            f"{fit.cost:.0f} against {exploration.costs.min():.0f}): add --context-term"
        )
    return remarks
