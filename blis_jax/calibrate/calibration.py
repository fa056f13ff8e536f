"""A calibration from a measured run to a document: fit, intervals, errors on requests held out."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from importlib.metadata import version
from typing import Any

import numpy as np

from blis_jax import __version__
from blis_jax.calibrate.fit import Fit, FitTarget, Latencies, fit, improved, starting_points
from blis_jax.calibrate.posterior import (
    CONTEXT_MODEL,
    FORMAT,
    KIND,
    Interval,
    Predictive,
    coefficients_of,
    model_of,
    noise_of,
)
from blis_jax.calibrate.uncertainty import (
    CONTEXT,
    LEVEL,
    Uncertainty,
    beyond_groups,
    explore,
    uncertainty,
    widened,
)
from blis_jax.calibrate.validation import (
    HELD_OUT,
    ErrorRow,
    FitVerdict,
    RequestErrors,
    by_request,
    cold_start,
    errors,
    naive,
)
from blis_jax.cluster.config import ClusterConfig
from blis_jax.cluster.step_times import name_of
from blis_jax.core.outcome import WHOLE
from blis_jax.errors import ConfigError
from blis_jax.latency.registry import find
from blis_jax.lazy import jax
from blis_jax.records.record import Status
from blis_jax.runs.derivatives.times import Differentiator, Repeated
from blis_jax.runs.options import Options
from blis_jax.traces.measured import run as server
from blis_jax.traces.measured.run import MeasuredRun
from blis_jax.traces.rows import to_table


class Simulator:
    """Simulates the requests of a measured run; latencies have derivatives with respect to the named terms only.

    Times are not rounded to whole microseconds: BLIS rounds, a server does not, and without rounding derivatives are
    exact.
    """

    def __init__(
        self,
        run: MeasuredRun,
        config: ClusterConfig,
        terms: Sequence[str],
        fixed: dict[str, float] | None = None,
    ) -> None:
        """Set the fitted `terms` and the values of `fixed` ones; a term in neither is 0."""
        self.run, self.config, self.terms, self.fixed = run, config, tuple(terms), dict(fixed or {})
        self.table, _ = to_table(run.rows, config.block_size_in_tokens)
        self.differentiator = Differentiator(self.terms, Options(clock="continuous"))

        self.repeated: Repeated | None = None  # once the sizes of the run are known

    def _given(self, values: np.ndarray) -> dict[str, float]:
        return {**self.fixed, **dict(zip(self.terms, values.tolist(), strict=True))}

    def configured(self, values: np.ndarray) -> ClusterConfig:
        """Return the cluster with these coefficients."""
        coefficients = self._given(values)
        alpha, beta = coefficients_of(coefficients)
        model = model_of(coefficients)
        return self.config.replace(alpha_coeffs=alpha, beta_coeffs=beta, latency_model=model)

    def __call__(self, values: np.ndarray) -> Latencies:
        """Simulate one run with the coefficients `values`; every request must end in it."""
        if self.repeated is not None:
            again = self.repeated(*coefficients_of(self._given(values)))
            if again is not None:
                return Latencies(again.ttft_us, again.e2e_us, again.d_ttft.T, again.d_e2e.T)
        latencies = self._whole(values)
        if self.repeated is None or self.repeated.is_outgrown:
            self.repeated = self.differentiator.repeated(self.configured(values), self.table)
        return latencies

    def _whole(self, values: np.ndarray) -> Latencies:
        """Return the latencies by way of a record, which says why a run did not end."""
        metrics = self.differentiator.run(self.configured(values), self.table)
        record, requests = metrics.record, metrics.record.requests
        if record.outcome not in WHOLE:
            raise ConfigError(
                f"the simulation ended with {record.outcome.name}; check the KV blocks and the batch "
                "size against those of the measured server"
            )
        left_out = int(np.sum(requests.status != Status.COMPLETED))
        if left_out:
            raise ConfigError(
                f"{left_out} requests do not finish in the simulation, the first is number "
                f"{int(np.flatnonzero(requests.status != Status.COMPLETED)[0])}; its prompt needs more "
                "KV blocks than --total-kv-blocks gives"
            )
        return Latencies(
            requests.ttft_us.astype(np.float64),
            requests.e2e_us.astype(np.float64),
            metrics.ttft_us.T,
            metrics.e2e_us.T,
        )


WIDER_STARTS = 3  # of the form with a cost of context, whose ends begin the exploration


@dataclass(frozen=True)
class CalibrationPlan:
    """The terms to fit, the requests to fit them on, and the starts of the descents."""

    terms: tuple[str, ...]
    num_fitted: int | None = None  # the first so many requests; all if None
    num_starts: int = 8
    seed: int = 0
    explores: bool = False  # intervals from all fits that do nearly as well, the command's default


@dataclass(frozen=True)
class Calibration:
    """A fit with everything that says how far to trust it."""

    run: MeasuredRun
    config: ClusterConfig  # with the fitted coefficients
    plan: CalibrationPlan
    fit: Fit
    uncertainty: Uncertainty
    latencies: Latencies
    errors: tuple[ErrorRow, ...]
    by_request: tuple[RequestErrors, ...]  # of the requests held out
    remarks: tuple[str, ...]
    predictive: Predictive | None = None  # where the plan explores

    @property
    def verdict(self) -> FitVerdict:
        """Judge by the errors whether the fit describes the run."""
        return FitVerdict.of(self.errors)


def calibrate(
    run: MeasuredRun,
    config: ClusterConfig,
    plan: CalibrationPlan,
    on_start: Callable[[int, float], None] | None = None,
) -> Calibration:
    """Fit the terms to the first requests' latencies; all requests are simulated with their arrivals and lengths."""
    count = len(run) if plan.num_fitted is None else plan.num_fitted
    if not len(plan.terms) < count <= len(run):
        raise ConfigError(
            f"--fit-first: got {count}, allowed is {len(plan.terms) + 1} to {len(run)} requests"
        )
    is_fitted = np.arange(len(run)) < count
    simulator, target = Simulator(run, config, plan.terms), FitTarget(run, is_fitted)
    starts = starting_points(run, plan.terms, plan.num_starts, plan.seed, is_fitted)
    best = fit(simulator, target, plan.terms, starts, on_start)
    known, predictive = uncertainty(best), None
    intervals: dict[tuple[str, str], Interval] | None = None
    if plan.explores:
        best, known, wider, predictive = _explored(simulator, target, best, known, plan.seed)
        if not np.all(is_fitted):
            intervals = predictive.intervals(wider, run, ~is_fitted)
    latencies = simulator(best.values)
    return Calibration(
        run,
        simulator.configured(best.values),
        plan,
        best,
        known,
        latencies,
        tuple(_errors(run, latencies, is_fitted, intervals)),
        tuple(by_request(run, latencies.ttft_us, latencies.e2e_us, is_fitted)),
        (*run.notes, *cold_start(run, latencies.ttft_us), *known.remarks),
        predictive,
    )


def _explored(
    simulator: Simulator, target: FitTarget, best: Fit, known: Uncertainty, seed: int
) -> tuple[Fit, Uncertainty, Simulator, Predictive]:
    """Return the fit or a better one that the search met, its uncertainty, the wider form, and the predictive.

    The intervals cover all coefficients that fit nearly as well.
    """
    wider, terms, ends = simulator, best.terms, best.start_values
    if CONTEXT not in terms:
        terms = (*terms, CONTEXT)
        wider = Simulator(simulator.run, simulator.config, terms)
        begun = starting_points(simulator.run, terms, WIDER_STARTS, seed, target.is_used)
        ends = fit(wider, target, terms, begun).start_values
    explored = explore(wider, target, best, known, terms, [np.array(end) for end in ends])
    best = improved(simulator, target, best, explored.best[: len(best.terms)])
    spent = best.num_simulations + explored.num_simulations
    best = replace(best, num_simulations=spent)
    known, num_more = uncertainty(best), len(terms) - len(best.terms)
    predictive = Predictive(
        tuple(terms),
        explored.near(best),
        np.pad(known.covariance * beyond_groups(best), (0, num_more)),
        noise_of(simulator.run, simulator(best.values), target.is_used),
    )
    return best, widened(known, best, explored), wider, predictive


def _errors(
    run: MeasuredRun,
    latencies: Latencies,
    is_fitted: np.ndarray,
    intervals: dict[tuple[str, str], Interval] | None,
) -> list[ErrorRow]:
    """Return the error rows of the fitted, the held-out and all requests; only the held-out rows have `intervals`."""
    parts = {"fitted": is_fitted, HELD_OUT: ~is_fitted, "all": np.ones(len(run), bool)}
    if np.all(is_fitted):
        parts = {"all": parts["all"]}
    rows = []
    for part, mask in parts.items():
        known = intervals if part == HELD_OUT else None
        rows += errors(run, latencies.ttft_us, latencies.e2e_us, mask, part, known)
        if part == HELD_OUT:
            rows += naive(run, is_fitted)
    return rows


def to_document(calibration: Calibration, stated: Sequence[str] = ()) -> dict[str, Any]:
    """Return the calibration as plain data with the further remarks `stated`; `posterior.load` reads it back."""
    config, known = calibration.config, calibration.uncertainty
    plan, fit, predictive = calibration.plan, calibration.fit, calibration.predictive
    coefficients = {
        term: {
            "value": float(value),
            "low": float(interval[0]),
            "high": float(interval[1]),
            "is_identified": is_identified,
            "unit": UNITS[term],
        }
        for term, value, interval, is_identified in zip(
            plan.terms, fit.values, known.intervals, known.is_identified, strict=True
        )
    }
    return {
        "kind": KIND,
        "format": FORMAT,
        "versions": {
            "blis_jax": __version__,
            "jax": jax.__version__,
            "scipy": version("scipy"),
        },
        "profile": config.profile,
        "server": server.described(calibration.run.settings),
        "cluster": {
            "num_instances": config.num_instances,
            "max_num_running_reqs": config.max_num_running_reqs,
            "max_num_scheduled_tokens": config.max_num_scheduled_tokens,
            "long_prefill_token_threshold": config.long_prefill_token_threshold,
            "block_size_in_tokens": config.block_size_in_tokens,
            "total_kv_blocks": config.total_kv_blocks,
            "routing_policy": config.routing_policy,
        },
        "terms": list(plan.terms),
        "coefficients": coefficients,
        "level": LEVEL,
        "covariance": known.covariance.tolist(),
        "correlations": known.correlations.tolist(),
        "fixed": {},
        **({} if predictive is None else {"predictive": predictive.document()}),
        "latency_model": name_of(config),
        "alpha_coeffs": list(config.alpha_coeffs),
        "beta_coeffs": list(config.beta_coeffs),
        "fit": {
            "num_requests": len(calibration.run),
            "num_fitted": plan.num_fitted or len(calibration.run),
            "num_starts": plan.num_starts,
            "seed": plan.seed,
            "cost": fit.cost,
            "start_costs": list(fit.start_costs),
            "num_simulations": fit.num_simulations,
        },
        "errors": [row.document() for row in calibration.errors if row.is_there],
        "held_out_by_request": [row._asdict() for row in calibration.by_request],
        "verdict": calibration.verdict._asdict(),
        "remarks": [*stated, *calibration.remarks],
    }


UNITS = {
    "alpha0": "µs per request before the queue",
    "alpha1": "µs per prompt token before the queue",
    "alpha2": "µs per output token after its step",
    "beta0": "µs per step",
    "beta1": "µs per prefill token",
    "beta2": "µs per decode token",
    "beta3": find(CONTEXT_MODEL).coefficients[3],
}
