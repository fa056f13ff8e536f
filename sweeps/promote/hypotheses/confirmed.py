"""Track A: what the ledger confirmed of a strategy, as hypotheses about a cluster."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from blis_jax.files.content import digest
from blis_jax.metrics.metric import ALL, split_name
from blis_jax.workload.spec import WorkloadSpec
from sweeps.claims.grammar import REGION, Claim
from sweeps.claims.words import (
    CONFIRMED,
    CROSS_POLICY,
    DOMINANCE,
    EQUIVALENCE,
    PARETO,
    UQ,
    VALIDATION,
)
from sweeps.ledger.book import RECORDS, Ledger, LedgerRow
from sweeps.ledger.trial import BASELINE, REFERENCE, STRATEGY
from sweeps.promote.hypotheses.document import NotTransferred
from sweeps.promote.promotion import Promotion
from sweeps.runs.requests import workload_from
from sweeps.strategies.arms import settings_of

SAME_PERCENT = 5.0  # smaller changes count as none
NOT_MEASURED = "not measured"


@dataclass(frozen=True)
class ConfirmedClaim:
    """Hold one claim to be tested again on a cluster."""

    name: str  # id without the track
    statement: str
    metric: str  # of the simulator
    direction: str
    magnitude: Mapping[str, float] | str  # change in % against the baseline, with its interval
    tolerance: float
    family: str
    type: str
    vvuq: str
    workload: str
    spec: WorkloadSpec
    rate: float | None
    mechanism: str
    diagnostic: str
    origin: str
    note: str = ""


def confirmed_claims(
    promotion: Promotion, folder: Path
) -> tuple[list[ConfirmedClaim], list[NotTransferred]]:
    """Return the confirmed rows of the strategy at this very point; other points' rows with the reason.

    Args:
        promotion: the strategy.
        folder: of the ledger; without one there is no row.
    """
    strategy = promotion.arm.strategy
    if strategy is None or not (folder / RECORDS).is_file():
        return [], []
    wanted = digest(settings_of(promotion.arm.config))
    claims: list[ConfirmedClaim] = []
    left: list[NotTransferred] = []
    for row in Ledger(folder).rows():
        arm = row.hypothesis.arms.get(STRATEGY)
        if arm is None or arm.strategy != strategy.name or not _is_confirmed(row):
            continue
        if arm.hash != wanted:
            left.append(NotTransferred(row=row.id, reason=f"it confirms another point, {arm.text}"))
            continue
        found, others = _claims_of(row)
        claims += found
        left += others
    return claims, left


def _is_confirmed(row: LedgerRow) -> bool:
    return row.result is not None and row.result["verdict"] == CONFIRMED


def _claims_of(row: LedgerRow) -> tuple[list[ConfirmedClaim], list[NotTransferred]]:
    claims, left = [], []
    for place, claim in enumerate(row.hypothesis.claims, 1):
        problem, direction, magnitude = _direction(row, claim)
        if problem:
            left.append(NotTransferred(row=row.id, reason=f"{claim.text}: {problem}"))
        else:
            claims.append(_claim(row, claim, place, direction, magnitude))
    return claims, left


def _direction(row: LedgerRow, claim: Claim) -> tuple[str, str, Mapping[str, float]]:
    """Return why the claim cannot be tested with the three arms, else its direction and simulated change."""
    if claim.shape != REGION:
        return "a shape along a setting, and the three arms are one point", "", {}
    if not claim.is_change:
        return "a value of the simulated cluster, not a change against the baseline", "", {}
    mean, low, high = _change(row, claim.metric)
    if mean is None or low is None or high is None:
        return "the ledger has no change against the baseline", "", {}
    magnitude = {"percent": mean, "low": low, "high": high}
    if low >= -SAME_PERCENT and high <= SAME_PERCENT:
        return "", "same", magnitude
    if low > 0 or high < 0:
        return "", "lower" if high < 0 else "higher", magnitude
    if claim.is_effect and not _has_other_reference(row):
        return "", "lower" if claim.high < 0 else "higher", magnitude
    return "the change against the baseline is not resolved in simulation", "", {}


def _has_other_reference(row: LedgerRow) -> bool:
    """Return whether the row's claims compare with another arm than the baseline."""
    arms = row.hypothesis.arms
    return REFERENCE in arms and arms[REFERENCE].hash != arms[BASELINE].hash


def _change(row: LedgerRow, metric: str) -> tuple[float | None, float | None, float | None]:
    name, slo_class = split_name(metric)
    comparison: Mapping[str, Any] = row.result["comparison"] if row.result else {}
    figures = comparison.get(slo_class or ALL, {}).get(name, {})
    mean, low, high = figures.get("percent", (None, None, None))
    return mean, low, high


def _claim(
    row: LedgerRow, claim: Claim, place: int, direction: str, magnitude: Mapping[str, float]
) -> ConfirmedClaim:
    one = row.hypothesis
    assert one.workload is not None and row.result is not None  # it has been run
    is_same = direction == "same"
    is_direct = not _has_other_reference(row)
    keeps = one.type in (DOMINANCE, PARETO)
    spec = workload_from(one.workload.name)
    return ConfirmedClaim(
        name=f"{row.id.lower()}.{place}",
        statement=one.statement if is_direct else "",
        metric=claim.metric,
        direction=direction,
        magnitude=magnitude,
        tolerance=SAME_PERCENT,
        family=CROSS_POLICY if is_same or not keeps else one.family,
        type=EQUIVALENCE if is_same else one.type if keeps else DOMINANCE,
        vvuq=UQ if is_same else VALIDATION,
        workload=one.workload.name,
        spec=spec,
        rate=one.workload.rate,
        mechanism=one.mechanism,
        diagnostic=(
            f"If this fails: {one.diagnostic}."
            if is_direct
            else "If this fails, the change against the baseline does not transfer: look at track B for the cause. The "
            f"ledger's clause, against another arm: {one.diagnostic}."
        ),
        origin=(
            f"ledger row {row.id}, claim {claim.text!r}, record {row.result['number']} "
            f"{str(row.result['hash'])[:12]}"
        ),
        note=one.preconditions,
    )
