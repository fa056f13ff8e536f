"""Published figures compared with measured ones, and what they turn out to be figures of."""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from typing import Any

import numpy as np

from blis_jax.errors import ConfigError
from sweeps.tracks.claims import CHANGED, GAP, Claim, Figures, read

MEAN = "the mean of the seeds"
ROUNDED = "the mean of the seeds' rounded values"
NO_BASIS = "not reproduced"


def compare_published(
    claims: Sequence[Claim], strategy: Figures, baseline: Figures, seeds: Sequence[int]
) -> list[dict[str, Any]]:
    """Each published figure with the measured mean, and what reproduces it, if anything does."""
    found = []
    for claim in claims:
        candidates = list(_candidates(claim, strategy, baseline, seeds))
        basis = next((name for name, value in candidates if claim.holds(value)), NO_BASIS)
        mean = candidates[0][1]
        measured = mean if np.isfinite(mean) else None
        found.append({"claim": claim.text, "measured": measured, "basis": basis})
    return found


def _candidates(
    claim: Claim, strategy: Figures, baseline: Figures, seeds: Sequence[int]
) -> Iterator[tuple[str, float]]:
    """What a publication could mean, the plainest first."""
    reading = read(claim, strategy, baseline)
    yield MEAN, reading.mean.mean
    if not claim.is_change:
        rounded = [round(value, _decimals(claim)) for value in reading.per_seed]
        yield ROUNDED, float(np.mean(rounded))
    for seed, value in zip(seeds, reading.per_seed, strict=True):
        yield f"seed {seed} alone", value
    if not claim.is_change or claim.metric in (GAP, CHANGED):
        return
    values, before = strategy[claim.metric], baseline[claim.metric]
    mean = float(np.mean(before))
    for seed, value in zip(seeds, values.tolist(), strict=True):
        yield f"seed {seed} against the baseline's mean", _percent(value, mean)
    whole = claim.metric.partition("[")[0]
    if whole != claim.metric and whole in baseline:
        cluster = float(np.mean(baseline[whole]))
        yield "the mean against the baseline's of all classes", _percent(np.mean(values), cluster)


def _decimals(claim: Claim) -> int:
    """Digits behind the point in the figure as published."""
    found = re.search(r"=\s*[+-]?\d+(?:\.(\d+))?", claim.text)
    return len(found[1] or "") if found else 6


def _percent(value: Any, base: float) -> float:
    return float(100 * (value / base - 1)) if base else float("nan")


def check_published(claims: Sequence[Claim]) -> None:
    """Refuses published claims that are no figures."""
    for claim in claims:
        if claim.shape != "region":
            raise ConfigError(f"published claim {claim.text!r} is no figure; put it into predict")
