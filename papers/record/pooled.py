"""Claims about a P99, read with the P99 of the requests of all runs together.

The record's P99 is one of each run, and many seeds give the mean of them. That mean depends on how many requests a
run has. The pooled P99 does not, see `blis_jax.statistics.pooled`; both stand in the tables of many seeds.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import TYPE_CHECKING

import numpy as np

from papers.record.claims import GAP, AnyClaim, PublishedClaim
from papers.record.measures import POOLED_METRICS
from papers.record.survival import SurvivalVerdict, judged

if TYPE_CHECKING:
    from blis_jax.metrics.tails import Tails
    from papers.record.quantities import Samples
    from papers.record.runs import SettingSample


def judged_pooled(
    claims: Sequence[AnyClaim],
    samples: Samples,
    missing: Mapping[str, str],
    of_cluster: Mapping[str, str],
) -> list[SurvivalVerdict | None]:
    """Every claim with its verdict when its P99s are pooled; None where it is about nothing that can be.

    `of_cluster` names the cluster's metric for each of the record's own, whose requests are then pooled.
    """
    found: list[SurvivalVerdict | None] = []
    for claim in claims:
        is_lacking = bool(claim.lost) or any(name in missing for name in claim.settings)
        pooled = {} if is_lacking else _pooled(claim, samples, of_cluster)
        found.append(judged([claim], pooled, missing)[0] if pooled else None)
    return found


def _metrics(claim: AnyClaim) -> tuple[str, ...]:
    """The metrics that a claim compares; none if it is about single runs."""
    if isinstance(claim, PublishedClaim):
        own = (
            ("ttft_p99_ms[sheddable]", "ttft_p99_ms[critical]") if claim.of == GAP else (claim.of,)
        )
        return (*own, claim.plus.of) if claim.plus is not None else own
    if not all(isinstance(condition.to, str) for condition in claim.conditions):
        return ()
    return tuple(condition.of for condition in claim.conditions)


def _pooled(
    claim: AnyClaim, samples: Samples, of_cluster: Mapping[str, str]
) -> dict[str, SettingSample]:
    """The claim's samples with pooled metrics; none if it has no metric that can be pooled."""
    sources = {name: of_cluster.get(name, name) for name in _metrics(claim)}
    sources = {name: source for name, source in sources.items() if source in POOLED_METRICS}
    if not sources:
        return {}
    chosen = {name: samples[name] for name in claim.settings}
    is_common = np.all(
        [sample.column(f"{POOLED_METRICS[0]}/count") >= 0 for sample in chosen.values()], axis=0
    )
    return {name: _replaced(sample, sources, is_common) for name, sample in chosen.items()}


def _replaced(
    sample: SettingSample, sources: Mapping[str, str], is_common: np.ndarray
) -> SettingSample:
    """A sample with what each seed contributes; NaN for seeds on which not all of a claim's runs ended."""
    from blis_jax.statistics.pooled import contributions_ms, only

    values = sample.values[:, : sample.names.index(f"{POOLED_METRICS[0]}/count")].copy()
    for name, source in sources.items():
        tails = only(_tails(sample, source), is_common)
        values[:, sample.names.index(name)] = contributions_ms(tails)
    return replace(sample, values=values, names=sample.names[: values.shape[1]])


def _tails(sample: SettingSample, metric: str) -> Tails:
    from blis_jax.metrics.tails import NUM_RANKS, Tails

    first = sample.names.index(f"{metric}/count")
    count = np.nan_to_num(sample.values[:, first], nan=-1).astype(np.int64)
    return Tails(count, sample.values[:, first + 1 : first + 1 + NUM_RANKS])
