"""What is not known of the latency coefficients, carried through a comparison.

Every arm is run again with coefficients drawn from a calibration, the same draws for all arms. Each
metric then has a margin beside its mean, and each arm a probability of being the best: over draws,
and over resamples of the seeds within each draw.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from blis_jax.calibrate.posterior import load
from blis_jax.errors import ConfigError
from blis_jax.metrics.metric import LOWER
from blis_jax.metrics.scalars import lookup
from blis_jax.metrics.summaries import ALL
from blis_jax.statistics.intervals import percentile_ends
from sweeps.runs.measured import metric_values

if TYPE_CHECKING:
    from jaxtyping import Float

    from blis_jax.calibrate.posterior import Posterior
    from blis_jax.metrics.run_summary import RunSummary
    from sweeps.compare.__main__ import CoefficientOptions
    from sweeps.runs.measured import KeptRuns
    from sweeps.strategies.arms import Arm

NUM_RESAMPLES = 200
LEAST_DRAWS, MOST_DRAWS = 2, 10_000


@dataclasses.dataclass(frozen=True)
class CoefficientDraws:
    """Coefficients of a calibration, and the draws that stand for its uncertainty."""

    posterior: Posterior
    values: Float[np.ndarray, "draw term"]


def draws_of(options: CoefficientOptions, random_state: int) -> CoefficientDraws | None:
    """Return the draws that the options ask for; None without a calibration."""
    if options.coefficients_from is None:
        if options.draws is not None:
            raise ConfigError("--draws: there is no --coefficients-from to draw from; give both")
        return None
    count = options.usual_draws if options.draws is None else options.draws
    if not LEAST_DRAWS <= count <= MOST_DRAWS:
        raise ConfigError(f"--draws: got {count}, allowed is {LEAST_DRAWS} to {MOST_DRAWS}")
    posterior = load(Path(options.coefficients_from))
    return CoefficientDraws(posterior, posterior.draws(count, random_state))


def section(
    draws: CoefficientDraws,
    arms: Sequence[Arm],
    kept: KeptRuns,
    metrics: Sequence[str],
    random_state: int,
) -> dict[str, Any]:
    """Run every arm with every draw; return margins and probabilities of being best, as plain data."""
    runs = [
        [
            kept.of(draws.posterior.configured(arm.config, values), f"{arm.name}, draw {number}")
            for number, values in enumerate(draws.values)
        ]
        for arm in arms
    ]
    return {
        "source": draws.posterior.source,
        "terms": list(draws.posterior.terms),
        "draws": draws.values.tolist(),
        "figures": [
            entry
            for name in metrics
            for entry in _figures([arm.name for arm in arms], runs, name, random_state)
        ],
    }


def _figures(
    names: Sequence[str], runs: Sequence[Sequence[tuple[RunSummary, ...]]], name: str, seed: int
) -> list[dict[str, Any]]:
    """Return one metric of every arm: the mean over draws and seeds, its margin, how often it is the best."""
    metric, slo_class = lookup(name)
    values = np.array([[metric_values(of_draw, name) for of_draw in of_arm] for of_arm in runs])
    common = np.all(
        np.isfinite(values), axis=(0, 1)
    )  # seeds that every arm and draw came to the end of
    if not common.any():
        return []
    values = values[:, :, common]
    best = probability_of_best(values, metric.direction == LOWER, seed)
    by_draw = values.mean(axis=2)
    return [
        {
            "arm": arm,
            "metric": metric.name,
            "class": slo_class or ALL,
            "unit": metric.unit,
            "mean": float(of_arm.mean()),
            **dict(zip(("low", "high"), percentile_ends(of_arm).tolist(), strict=True)),
            "num_seeds": int(common.sum()),
            "probability_of_best": float(share),
        }
        for arm, of_arm, share in zip(names, by_draw, best, strict=True)
    ]


def probability_of_best(
    values: Float[np.ndarray, "arm draw seed"], is_lower_better: bool, seed: int
) -> Float[np.ndarray, " arm"]:
    """Return the share of (draw, resample of the seeds) in which an arm has the best mean `[arm]`; ties are shared."""
    random = np.random.default_rng(seed)
    num_seeds = values.shape[2]
    picked = random.integers(0, num_seeds, (NUM_RESAMPLES, num_seeds))
    means = values[:, :, picked].mean(axis=3)  # arm, draw, resample
    signed = means if is_lower_better else -means
    is_best = signed <= signed.min(axis=0)
    return np.mean(is_best / is_best.sum(axis=0), axis=(1, 2))


def lines(document: Mapping[str, Any]) -> list[str]:
    """Write the section for the terminal, one line per class and metric; no lines if nothing was drawn."""
    section = document.get("coefficients")
    if section is None:
        return []
    shown: dict[tuple[str, str], list[str]] = {}
    for entry in section["figures"]:
        shown.setdefault((entry["class"], entry["metric"]), []).append(
            f"{entry['arm']} {entry['mean']:.4g} [{entry['low']:.4g}, {entry['high']:.4g}], "
            f"best with probability {entry['probability_of_best']:.2f}"
        )
    head = f"{len(section['draws'])} draws from {section['source']}; margins hold 95 % of the draws' means"
    return [head] + [
        f"{slo_class}, {metric}: " + "; ".join(cells)
        for (slo_class, metric), cells in shown.items()
    ]
