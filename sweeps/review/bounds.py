"""Judge of ranges: does a parameter lie at the end of where it was searched?"""

from __future__ import annotations

import math

from sweeps.review.candidates import value_of
from sweeps.review.opinion import CONCERN, PASS, Exhibit, Judge, Opinion, nothing
from sweeps.strategies.space import Dimension

CLOSE = 0.02  # of the range, on its own scale


def judge(exhibit: Exhibit) -> Opinion:
    """Names the parameters whose best value may lie beyond their range."""
    space = exhibit.candidate.space()
    dimensions = space.dimensions if space is not None else ()
    evidence, reasons = {}, []
    for dimension in dimensions:
        value = value_of(dimension, exhibit.candidate.config)
        place = position(dimension, value)
        if place is None:
            continue
        evidence[dimension.name] = {"value": value, "position": place}
        if not 0 <= place <= 1:
            reasons.append(
                f"{dimension.name} = {value:g} lies outside of its range ({dimension.low:g} to "
                f"{dimension.high:g}), so no search has looked at it"
            )
        elif place <= CLOSE or place >= 1 - CLOSE:
            end, limit = ("low", dimension.low) if place <= CLOSE else ("high", dimension.high)
            reasons.append(
                f"{dimension.name} = {value:g} lies at the {end} end of its range ({limit:g}); search "
                "further, or say why it ends there"
            )
    usual = "no parameter lies at an end of its range" if evidence else "there are no ranges"
    return Opinion(
        "bounds",
        exhibit.candidate.name,
        CONCERN if reasons else PASS,
        tuple(reasons) or (usual,),
        evidence,
        "the configuration's values within the ranges of the strategy file",
    )


def position(dimension: Dimension, value: float) -> float | None:
    """Where a value lies between low, 0, and high, 1; None where there is no order."""
    if dimension.kind == "categorical" or value is None:
        return None
    low, high = dimension.low, dimension.high
    if dimension.is_log and value > 0:
        return (math.log(value) - math.log(low)) / (math.log(high) - math.log(low))
    return (value - low) / (high - low)


BOUNDS = Judge("bounds", "parameters at the ends of their ranges", nothing, judge)
