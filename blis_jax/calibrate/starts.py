"""Where the fit starts: guesses from the measured latencies, spread over what they cannot tell."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

import numpy as np

from blis_jax.calibrate.measured_run import MeasuredRun

if TYPE_CHECKING:
    from jaxtyping import Bool

TERMS = ("alpha0", "alpha1", "alpha2", "beta0", "beta1", "beta2", "beta3")


def starting_points(
    run: MeasuredRun,
    terms: Sequence[str],
    num_starts: int,
    seed: int,
    is_used: Bool[np.ndarray, " request"] | None = None,
) -> list[np.ndarray]:
    """`num_starts` guesses in µs: the first with even shares, the others with drawn ones.

    `is_used` says which requests' latencies may be looked at; all if None.
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
    """A step's measured length divided into its fixed part, decode tokens and context."""
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
    """Requests decoding at once, on one instance, on average over the run (Little's law)."""
    busy = np.nansum(run.e2e_us - run.ttft_us)
    ends = run.rows.arrival_us + run.e2e_us
    span = float(np.nanmax(ends) - np.min(run.rows.arrival_us))
    return max(float(busy) / max(span, 1.0) / (run.settings.num_instances or 1), 1.0)
