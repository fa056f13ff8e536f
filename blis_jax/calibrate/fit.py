"""Least squares over measured latencies, by derivatives through the simulator and from several starts.

Per request three residuals: log ratios of TPOT and of E2E, and the difference of TTFT divided by the
measured TTFT plus a floor, so that a wait of a minute and a prefill of a tenth of a second both
count. Decisions that flip make the sum of squares piecewise: derivatives follow one piece; the
stages, the restarts and the acceptance of steps by the true sum carry the search across the edges.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, NamedTuple

import numpy as np

from blis_jax.errors import ConfigError
from blis_jax.lazy import optimize
from blis_jax.traces.measured.run import MeasuredRun

if TYPE_CHECKING:
    from jaxtyping import Bool, Float


TTFT_FLOOR_US = 100_000.0
LEAST_SPREAD = 1e-3  # of a kind's residuals: noise below a thousandth is not worth a fit
MAX_ROUNDS = 30
# of cost and coefficients; finer steps are lost in the pieces of the sum of squares
TOLERANCE = 1e-4
_ALONE = np.array([100.0, 0.0, 0.0])  # TPOT, E2E, TTFT; 1 % counts as one
_WITH_E2E = np.array([100.0, 30.0, 0.0])
_TINY = 1e-12


class Latencies(NamedTuple):
    """Simulated latencies and their derivatives with respect to the free coefficients, µs."""

    ttft_us: Float[np.ndarray, " request"]
    e2e_us: Float[np.ndarray, " request"]
    d_ttft: Float[np.ndarray, "request term"]
    d_e2e: Float[np.ndarray, "request term"]


Model = Callable[[np.ndarray], Latencies]


@dataclass(frozen=True)
class Fit:
    """Coefficients at the least sum of squares that any start found."""

    terms: tuple[str, ...]
    values: Float[np.ndarray, " term"]
    cost: float
    residuals: Float[np.ndarray, "request kind"]
    jacobian: Float[np.ndarray, "request kind term"]
    start_costs: tuple[float, ...]  # where each start ended
    start_values: tuple[tuple[float, ...], ...] = ()
    num_simulations: int = 0
    weights: tuple[float, ...] = ()  # of the kinds of residuals
    sizes: tuple[float, ...] = ()  # largest starting value of each term


class FitTarget:
    """The measured latencies that a fit may use."""

    def __init__(self, run: MeasuredRun, is_used: Bool[np.ndarray, " request"]) -> None:
        """Take the latencies of the requests marked in `is_used`."""
        self.is_used = is_used
        self.output_len = run.rows.output_len.astype(np.float64)
        self.ttft, self.e2e, self.tpot = run.ttft_us, run.e2e_us, run.tpot_us
        self.has_both = is_used & np.isfinite(self.ttft) & np.isfinite(self.e2e)
        if not np.any(self.has_both):
            raise ConfigError("no request of the fit has measured latencies; fit on more requests")

    def residuals(self, latencies: Latencies) -> tuple[np.ndarray, np.ndarray]:
        """Compute residuals `[request, 3]` and their derivatives `[request, 3, term]` of the requests in use."""
        used = self.has_both
        gaps = np.maximum(self.output_len[used] - 1.0, 1.0)
        ttft, e2e = latencies.ttft_us[used], latencies.e2e_us[used]
        tpot, d_tpot = (
            (e2e - ttft) / gaps,
            (latencies.d_e2e - latencies.d_ttft)[used] / gaps[:, None],
        )
        has_gap = (self.output_len[used] > 1) & (self.tpot[used] > 0) & (tpot > 0)
        safe = np.where(has_gap, tpot, 1.0)
        known = np.where(has_gap, self.tpot[used], 1.0)
        weight = np.where(has_gap, 1.0, 0.0)
        width = TTFT_FLOOR_US + self.ttft[used]
        values = np.stack(
            [
                weight * np.log(safe / known),
                np.log(np.maximum(e2e, 1.0) / np.maximum(self.e2e[used], 1.0)),
                (ttft - self.ttft[used]) / width,
            ],
            axis=1,
        )
        slopes = np.stack(
            [
                (weight / safe)[:, None] * d_tpot,
                (1.0 / np.maximum(e2e, 1.0))[:, None] * latencies.d_e2e[used],
                latencies.d_ttft[used] / width[:, None],
            ],
            axis=1,
        )
        return values, slopes

    def spreads(self, latencies: Latencies) -> np.ndarray:
        """Return a robust standard deviation of each kind of residual: 1.4826 times the median size."""
        values, _ = self.residuals(latencies)
        return np.maximum(1.4826 * np.median(np.abs(values), axis=0), LEAST_SPREAD)


def fit(
    model: Model,
    target: FitTarget,
    terms: Sequence[str],
    starts: Sequence[np.ndarray],
    on_start: Callable[[int, float], None] | None = None,
) -> Fit:
    """Return the best of a staged fit from every start; coefficients stay at or above 0.

    Stages: TPOT alone, which is smooth in the coefficients and finds their neighbourhood from afar;
    then E2E too; then TTFT too, each kind divided by the spread that its residuals had before. TTFT
    by itself has many false minima, since a queue begins or not.
    """
    scale = np.maximum(np.max(np.abs(np.asarray(starts)), axis=0), _TINY)
    problem = FitProblem(model, target, scale)
    near = [descend(problem, np.asarray(start, np.float64), _ALONE) for start in starts]
    near = [descend(problem, values, _WITH_E2E) for values, _ in near]
    best_near, _ = min(near, key=lambda end: end[1])
    weights = 1.0 / target.spreads(problem.latencies(best_near))
    ends = []
    for number, (values, _) in enumerate(near):
        ends.append(descend(problem, values, weights))
        if on_start is not None:
            on_start(number, ends[-1][1])
    values, cost = min(ends, key=lambda end: end[1])
    residuals, jacobian = target.residuals(problem.latencies(values))
    return Fit(
        tuple(terms),
        values,
        cost,
        residuals * weights,
        jacobian * weights[:, None],
        tuple(end[1] for end in ends),
        tuple(tuple(float(v) for v in end[0]) for end in ends),
        problem.num_simulations,
        tuple(weights),
        tuple(scale),
    )


class FitProblem:
    """Residuals in scaled coefficients; the last simulation is kept for its derivatives."""

    def __init__(self, model: Model, target: FitTarget, scale: np.ndarray) -> None:
        """`scale` is the size of each coefficient, µs."""
        self.model, self.target, self.scale = model, target, scale
        self.num_simulations = 0
        self._at: np.ndarray | None = None
        self._found: Latencies | None = None

    def latencies(self, values: np.ndarray) -> Latencies:
        """Simulate with the coefficients `values`; return the latencies."""
        if self._found is None or self._at is None or not np.array_equal(self._at, values):
            self._found, self._at = self.model(values), values.copy()
            self.num_simulations += 1
        return self._found

    def residuals(self, scaled: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        """Compute residuals `[request, kind]` and their derivatives with respect to the scaled coefficients."""
        values, slopes = self.target.residuals(self.latencies(scaled * self.scale))
        return values, slopes * self.scale


def improved(model: Model, target: FitTarget, fit: Fit, start: np.ndarray) -> Fit:
    """Return `fit`, or the result of a descent from `start` if that has a lower cost."""
    problem = FitProblem(model, target, np.asarray(fit.sizes))
    weights = np.asarray(fit.weights)
    values, cost = descend(problem, start, weights)
    spent = fit.num_simulations + problem.num_simulations
    if cost >= fit.cost:
        return replace(fit, num_simulations=spent)
    residuals, jacobian = target.residuals(problem.latencies(values))
    return replace(
        fit,
        values=values,
        cost=cost,
        residuals=residuals * weights,
        jacobian=jacobian * weights[:, None],
        num_simulations=spent,
    )


def descend(
    problem: FitProblem, start: np.ndarray, weights: np.ndarray, max_rounds: int = MAX_ROUNDS
) -> tuple[np.ndarray, float]:
    """Descend once, by bounded least squares with a robust loss; return the best coefficients met, and their cost.

    Kinds of residual with weight 0 are left out.
    """
    kinds = np.flatnonzero(weights)
    best: list[tuple[float, np.ndarray]] = []

    def residuals(scaled: np.ndarray) -> np.ndarray:
        residual = (problem.residuals(scaled)[0] * weights)[:, kinds].ravel()
        cost = robust_cost(residual)
        if not best or cost < best[0][0]:
            best[:] = [(cost, scaled.copy())]
        return residual

    def jacobian(scaled: np.ndarray) -> np.ndarray:
        slopes = problem.residuals(scaled)[1] * weights[:, None]
        return np.reshape(slopes[:, kinds], (-1, slopes.shape[-1]))

    optimize.least_squares(
        residuals,
        np.maximum(start / problem.scale, 1e-6),
        jac=jacobian,
        bounds=(0.0, np.inf),
        loss="soft_l1",
        max_nfev=max_rounds,
        xtol=TOLERANCE,
        ftol=TOLERANCE,
    )
    cost, scaled = best[0]
    return scaled * problem.scale, cost


def robust_cost(residuals: np.ndarray) -> float:
    """Return the soft L1 loss that `fit` minimises: squares of small residuals, absolute values of large ones."""
    return float(np.sum(np.sqrt(1.0 + residuals**2) - 1.0))


# --- where the fit starts: guesses from the measured latencies, spread over what they cannot tell -


def starting_points(
    run: MeasuredRun,
    terms: Sequence[str],
    num_starts: int,
    seed: int,
    is_used: Bool[np.ndarray, " request"] | None = None,
) -> list[np.ndarray]:
    """Return `num_starts` guesses of the coefficients, µs: the first with even shares, the others with random shares.

    `is_used` marks the requests whose latencies may be used; None means all.
    """
    random = np.random.default_rng(seed)
    shares = [np.array([0.5, 0.3, 0.2])]
    shares += [random.dirichlet([1.5, 1.0, 1.0]) for _ in range(num_starts - 1)]
    prefill = [1.0, *random.uniform(0.3, 2.0, num_starts - 1)]
    seen = run if is_used is None else run.take(np.flatnonzero(is_used))
    return [
        _guess(seen, terms, share, factor) for share, factor in zip(shares, prefill, strict=True)
    ]


def _guess(run: MeasuredRun, terms: Sequence[str], share: np.ndarray, prefill: float) -> np.ndarray:
    """Return coefficients that divide the measured length of a step among fixed cost, decode tokens and context."""
    step_us = float(np.nanmedian(run.tpot_us))
    batch = mean_concurrency(run)
    context = batch * float(np.mean(run.rows.input_len + run.rows.output_len / 2))
    per_prompt_token = float(np.nanpercentile(run.ttft_us / run.rows.input_len, 5))
    guess = {
        "alpha0": 1000.0,
        "alpha1": 1.0,
        "alpha2": 100.0,
        "beta0": share[0] * step_us,
        "beta1": prefill * min(per_prompt_token, step_us / 20.0),
        "beta2": share[1] * step_us / batch,
        "beta3": share[2] * step_us / context,
    }
    return np.array([guess[term] for term in terms])


def mean_concurrency(run: MeasuredRun) -> float:
    """Return the mean number of requests that decode at once on one instance (Little's law)."""
    busy = np.nansum(run.e2e_us - run.ttft_us)
    ends = run.rows.arrival_us + run.e2e_us
    span = float(np.nanmax(ends) - np.min(run.rows.arrival_us))
    return max(float(busy) / max(span, 1.0) / (run.settings.num_instances or 1), 1.0)
