"""Differences between strategies, from values of every seed to what a report shows."""

from __future__ import annotations

from blis_jax.metrics.scalars import lookup
from blis_jax.metrics.summaries import ALL
from blis_jax.reports.study import ShownDifference, finite, shown_interval
from blis_jax.statistics.paired import Difference


def shown_difference(
    change: Difference, strategy: str, reference: str, metric: str, place: str = ""
) -> ShownDifference:
    """One metric, `[class]` behind where it is of a class, of a strategy against its reference."""
    kind, slo_class = lookup(metric)
    return ShownDifference(
        strategy=strategy,
        reference=reference,
        slo_class=slo_class or ALL,
        metric=kind.name,
        unit=kind.unit,
        better=kind.direction,
        reference_mean=finite([change.first_mean])[0],
        mean=finite([change.second_mean])[0],
        absolute=shown_interval(change.absolute),
        percent=shown_interval(change.percent),
        num_pairs=change.num_pairs,
        verdict=change.verdict,
        place=place,
        joint_percent=shown_interval(change.simultaneous_percent),
    )
