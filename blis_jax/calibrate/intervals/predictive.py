"""Intervals of what a fit predicts: every fit that the run does not exclude, and the noise that was left.

A figure of other requests, such as their P99, is simulated with each of these fits. Each simulation is moved
many times: along its slopes, as far as the sandwich at the fit leaves the coefficients open, and by noise like
that of the fitted requests. Neighbours err alike, so the noise is an autoregression of order one, with
innovations drawn from the residuals' own (the sieve bootstrap of Bühlmann, 1997). The interval reaches over
the middle 95 % of the figures of each fit.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np

from blis_jax.calibrate.fit import TTFT_FLOOR_US, Latencies, Model
from blis_jax.calibrate.intervals.uncertainty import LEVEL, MOST_ALIKE, NUM_GROUPS
from blis_jax.calibrate.measured_run import MeasuredRun
from blis_jax.calibrate.validation import LATENCIES, STATISTICS

if TYPE_CHECKING:
    from jaxtyping import Bool, Float, Int

NUM_DISTURBED = 200  # of each fit's simulation
NUM_FITTED, LEAST_FREEDOM = 4, 4  # coefficients; of a variance
SMOOTHING = 1.06  # Silverman's rule
BEFORE = 100  # requests before the first, in which the noise forgets that it began at 0

Interval = tuple[float, float]


@dataclass(frozen=True)
class Predictive:
    """What a fit leaves open, for predictions."""

    terms: tuple[str, ...]  # of the form of the fits
    fits: Float[np.ndarray, "fit term"]  # that the run does not exclude
    covariance: Float[np.ndarray, "term term"]  # around each of them
    noise: Float[np.ndarray, "request 2"]  # of the fitted requests, see `noise_of`

    def intervals(
        self, model: Model, run: MeasuredRun, is_part: Bool[np.ndarray, " request"]
    ) -> dict[tuple[str, str], Interval]:
        """Low and high of every figure of the requests of a part that were measured, ms.

        `model` simulates the run with coefficients of the form of `fits`.
        """
        random = np.random.default_rng(0)
        used = is_part & np.isfinite(run.ttft_us) & np.isfinite(run.e2e_us)
        lengths, ends = run.rows.output_len[used], []
        for values in self.fits:
            found = model(values)
            ways = self._ways(random)
            ttft = found.ttft_us[used] + ways @ found.d_ttft[used].T
            e2e = found.e2e_us[used] + ways @ found.d_e2e[used].T
            ttft, e2e = disturbed(ttft, e2e, lengths, redrawn(self.noise, len(lengths), random))
            shares = [(1 - LEVEL) / 2, (1 + LEVEL) / 2]
            ends.append(np.quantile(_figures(ttft, e2e, lengths), shares, axis=-1))
        low, high = np.min(ends, axis=0)[0], np.max(ends, axis=0)[1]
        keys = [(latency, statistic) for latency in LATENCIES for statistic in STATISTICS]
        pairs = zip(low.ravel().tolist(), high.ravel().tolist(), strict=True)
        return dict(zip(keys, pairs, strict=True))

    def document(self) -> dict[str, Any]:
        """As plain data; `of_document` reads it back."""
        return {
            "terms": list(self.terms),
            "fits": [[float(f"{value:.6g}") for value in row] for row in self.fits.tolist()],
            "covariance": self.covariance.tolist(),
            "noise": np.round(self.noise, 4).tolist(),
        }

    @classmethod
    def of_document(cls, given: Mapping[str, Any]) -> Predictive:
        """What `document` gave; KeyError, TypeError or ValueError for anything else."""
        terms = tuple(given["terms"])
        fits = np.array(given["fits"], np.float64).reshape(-1, len(terms))
        covariance = np.array(given["covariance"], np.float64).reshape(len(terms), len(terms))
        noise = np.array(given["noise"], np.float64).reshape(-1, 2)
        if not (len(fits) and len(noise) and np.all(np.isfinite(fits)) and np.all(fits >= 0)):
            raise ValueError("predictive")
        if not (np.all(np.isfinite(noise)) and np.all(np.isfinite(covariance))):
            raise ValueError("noise or covariance")
        return cls(terms, fits, covariance, noise)

    def _ways(self, random: np.random.Generator) -> Float[np.ndarray, "draw term"]:
        """From a fit to coefficients that its slopes do not exclude, as Student's t."""
        scale = np.maximum(np.sqrt(np.diag(self.covariance)), 1e-100)
        size, directions = np.linalg.eigh(self.covariance / np.outer(scale, scale))
        root = directions * np.sqrt(np.maximum(size, 0.0))
        standard = random.standard_normal((NUM_DISTURBED, len(scale)))
        freedom = max(NUM_GROUPS - len(scale), 2)
        stretch = np.sqrt(freedom / random.chisquare(freedom, (NUM_DISTURBED, 1)))
        found: np.ndarray = scale * stretch * (standard @ root.T)
        return found


def noise_of(
    run: MeasuredRun, found: Latencies, is_fitted: Bool[np.ndarray, " request"]
) -> Float[np.ndarray, "request 2"]:
    """How the measured requests of a fit differ from it.

    Of TTFT the difference as a share of the simulated one plus a floor, of decoding the log of the ratio, 0
    where there is none. Requests without latencies are left out.
    """
    used = is_fitted & np.isfinite(run.ttft_us) & np.isfinite(run.e2e_us)
    ttft, e2e = found.ttft_us[used], found.e2e_us[used]
    decoding, measured = e2e - ttft, run.e2e_us[used] - run.ttft_us[used]
    has_gap = (run.rows.output_len[used] > 1) & (decoding > 0) & (measured > 0)
    ratio = np.where(has_gap, measured, 1.0) / np.where(has_gap, decoding, 1.0)
    return np.stack([(run.ttft_us[used] - ttft) / (TTFT_FLOOR_US + ttft), np.log(ratio)], axis=1)


def redrawn(
    noise: Float[np.ndarray, "request kind"], count: int, random: np.random.Generator
) -> Float[np.ndarray, "draw request kind"]:
    """Noise of `count` other requests, as alike among neighbours as the given one.

    Mean, size and how alike neighbours are follow the given noise, and are drawn, since they are known only as
    well as so many requests tell them. Innovations are smoothed, since the largest have not been seen yet.
    """
    num, mean = len(noise), noise.mean(axis=0)
    whole = noise - mean
    power = np.maximum(np.sum(whole**2, axis=0), 1e-300)
    found = np.sum(whole[1:] * whole[:-1], axis=0) / power
    steps = whole[1:] - found * whole[:-1] if num > 1 else whole
    steps = (steps - steps.mean(axis=0)) / np.maximum(steps.std(axis=0), 1e-300)
    # what was fitted hides some of it, as a line would (Marriott and Pope, 1954)
    alike = found + (2 + 4 * found) / num
    error = np.sqrt(np.maximum(1 - alike**2, 0.0) / num)
    shape = NUM_DISTURBED, noise.shape[1]
    alike = np.clip(alike + error * random.standard_normal(shape), 0.0, MOST_ALIKE)
    places = random.integers(0, len(steps), (BEFORE + num + count, NUM_DISTURBED))
    quarters = np.percentile(steps, [25, 75], axis=0)
    width = SMOOTHING * num**-0.2 * np.minimum(1.0, np.diff(quarters, axis=0)[0] / 1.349)
    drawn = steps[places] + width * random.standard_normal((*places.shape, noise.shape[1]))
    drawn *= np.sqrt(1 - alike**2) * whole.std(axis=0) * _sizes(alike, num, random)
    for place in range(1, len(drawn)):
        drawn[place] += alike * drawn[place - 1]
    as_fitted = drawn[BEFORE : BEFORE + num].mean(axis=0)
    return np.swapaxes(mean - as_fitted + drawn[BEFORE + num :], 0, 1)


def _sizes(
    alike: Float[np.ndarray, "draw kind"], num: int, random: np.random.Generator
) -> Float[np.ndarray, "draw kind"]:
    """How much larger noise may be than `num` requests show that are so alike.

    Their mean hides a part of the variance, and what is left counts as that of fewer independent requests
    (Bayley and Hammersley, 1946), less the coefficients that were fitted.
    """
    independent = np.maximum(num * (1 - alike) / (1 + alike), 2.0)
    freedom = num * (1 - alike**2) / (1 + alike**2) - NUM_FITTED
    freedom = np.maximum(freedom, LEAST_FREEDOM)
    found: np.ndarray = np.sqrt(freedom / random.chisquare(freedom) / (1 - 1 / independent))
    return found


def disturbed(
    ttft_us: Float[np.ndarray, "draw request"],
    e2e_us: Float[np.ndarray, "draw request"],
    output_len: Int[np.ndarray, " request"],
    noise: Float[np.ndarray, "draw request 2"],
) -> tuple[Float[np.ndarray, "draw request"], Float[np.ndarray, "draw request"]]:
    """TTFT and E2E as a server with such noise would have them; both stay at or above 0."""
    ttft = np.maximum(ttft_us + noise[..., 0] * (TTFT_FLOOR_US + ttft_us), 0.0)
    decoding = np.maximum(e2e_us - ttft_us, 0.0) * np.where(
        output_len > 1, np.exp(noise[..., 1]), 1.0
    )
    return ttft, ttft + decoding


def _figures(
    ttft_us: Float[np.ndarray, "draw request"],
    e2e_us: Float[np.ndarray, "draw request"],
    output_len: Int[np.ndarray, " request"],
) -> Float[np.ndarray, "latency statistic draw"]:
    """Every statistic of every latency, ms, as `validation.figures` has them, of each draw."""
    has_gap = output_len > 1
    gaps = np.maximum(output_len[has_gap] - 1.0, 1.0)
    tpot = (e2e_us - ttft_us)[:, has_gap] / gaps
    found = []
    for values in (ttft_us, tpot, e2e_us):
        if not values.shape[1]:
            found.append(np.full((len(STATISTICS), len(values)), np.nan))
            continue
        ranks = [float(name[1:]) for name in STATISTICS[1:]]
        found.append(np.vstack([values.mean(axis=1), *np.percentile(values, ranks, axis=1)]) / 1e3)
    return np.stack(found)
