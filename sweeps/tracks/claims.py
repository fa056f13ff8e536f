"""Claims about a metric: where its value, or its change against a reference, is said to lie.

`METRIC <= X[%]`, `METRIC >= X[%]`, `METRIC in LOW..HIGH[%]`, `METRIC = X[%] [+- T]`: with % a change
against the reference arm, without it the value itself; `=` allows half a unit of the last digit.
Along the values of one setting: `METRIC falls`, `METRIC rises`, `METRIC flat within X%`.
"""

from __future__ import annotations

import math
import re
from collections.abc import Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np

from blis_jax.errors import ConfigError
from blis_jax.metrics.scalars import lookup
from blis_jax.statistics.intervals import CONFIDENCE, Estimate, estimate, relative_change
from blis_jax.statistics.paired import Pair
from sweeps.runs.metrics import our_name

if TYPE_CHECKING:
    from collections.abc import Callable

    from jaxtyping import Float

    Relative = Callable[
        ..., Estimate
    ]  # of two values by seed, the confidence, and whether it is anytime

Figures = Mapping[
    str, "Float[np.ndarray, 'seed']"
]  # of one arm, by metric; NaN where there is none
GAP = "slo_gap"  # TTFT P99 of sheddable requests ÷ that of critical ones
GAP_OF = ("ttft_p99_ms[critical]", "ttft_p99_ms[sheddable]")
CHANGED = "num_changed_requests"  # that the arm treats otherwise than the reference arm does
REGION, FALLS, RISES, FLAT = "region", "falls", "rises", "flat"
FORM = (
    "METRIC <= X[%], METRIC >= X[%], METRIC in LOW..HIGH[%], METRIC = X[%] [+- T], METRIC falls, "
    "METRIC rises, or METRIC flat within X%"
)
_NUMBER = r"[+-]?\d+(?:\.\d+)?(?:[eE][+-]?\d+)?"
_METRIC = r"(?P<metric>[a-z][a-z0-9_]*(?:\[[a-z]+\])?)"
_FORMS = (
    rf"{_METRIC}\s*(?P<sign><=|>=)\s*(?P<x>{_NUMBER})\s*(?P<percent>%?)",
    rf"{_METRIC}\s+in\s+(?P<low>{_NUMBER})\.\.(?P<high>{_NUMBER})\s*(?P<percent>%?)",
    rf"{_METRIC}\s*=\s*(?P<x>{_NUMBER})\s*(?P<percent>%?)(?:\s*\+-\s*(?P<by>{_NUMBER})\s*%?)?",
    rf"{_METRIC}\s+(?P<shape>falls|rises)",
    rf"{_METRIC}\s+(?P<shape>flat)\s+within\s+(?P<x>{_NUMBER})\s*(?P<percent>%)",
)


@dataclass(frozen=True)
class Claim:
    """A region for a value or a change in %; or, along a setting, a shape."""

    text: str
    metric: str
    shape: str = REGION
    is_change: bool = False
    low: float = -math.inf
    high: float = math.inf

    @property
    def names(self) -> tuple[str, ...]:
        """The registered metrics that it needs."""
        return {GAP: GAP_OF, CHANGED: ()}.get(self.metric, (self.metric,))

    @property
    def is_effect(self) -> bool:
        """Whether it says that something changes, and which way."""
        if self.shape != REGION:
            return self.shape != FLAT
        return self.is_change and not self.low <= 0 <= self.high

    def holds(self, value: float) -> bool:
        """Whether a value lies in the region."""
        return self.low <= value <= self.high

    def holds_all(self, interval: Estimate) -> bool:
        """Whether a whole interval lies in the region."""
        return self.holds(interval.low) and self.holds(interval.high)

    def excludes(self, interval: Estimate) -> bool:
        """Whether an interval lies outside of the region."""
        return interval.low > self.high or interval.high < self.low


@dataclass(frozen=True)
class ClaimReading:
    """What was measured of a claim's metric: the value, or the change in %."""

    per_seed: tuple[float, ...]
    mean: Estimate


def parse_claim(text: str) -> Claim:
    """The claim that a text makes."""
    clean = " ".join(text.replace("−", "-").split())
    found = next((match for form in _FORMS if (match := re.fullmatch(form, clean))), None)
    if found is None:
        raise ConfigError(f"claim {text!r} has not the form {FORM}")
    parts = found.groupdict()
    metric = our_name(parts["metric"])
    if metric not in (GAP, CHANGED):
        try:
            lookup(metric)
        except ConfigError as error:
            raise ConfigError(f"claim {text!r}: {error}; or {GAP}, {CHANGED}") from None
    is_change = bool(parts.get("percent"))
    if is_change and metric in (GAP, CHANGED):
        raise ConfigError(f"claim {text!r}: {metric} compares already; leave the % out")
    low, high = _bounds(text, parts)
    return Claim(clean, metric, parts.get("shape") or REGION, is_change, low, high)


def _bounds(text: str, parts: Mapping[str, str | None]) -> tuple[float, float]:
    if parts.get("low"):
        low, high = float(parts["low"] or 0), float(parts["high"] or 0)
    elif parts.get("x"):
        x, by = float(parts["x"] or 0), _tolerance(parts)
        if parts.get("shape"):
            low, high = -x, x
        else:
            sign = parts.get("sign")
            low = -math.inf if sign == "<=" else x if sign else x - by
            high = math.inf if sign == ">=" else x if sign else x + by
    else:
        return -math.inf, math.inf
    if low > high:
        raise ConfigError(f"claim {text!r}: {low:g} is above {high:g}; swap them")
    return low, high


def _tolerance(parts: Mapping[str, str | None]) -> float:
    """What `=` allows: what is said, else half a unit of the last digit."""
    if parts.get("by"):
        return abs(float(parts["by"] or 0))
    digits = re.sub(r"[eE].*", "", parts["x"] or "").partition(".")[2]
    return 0.5 * 10.0 ** -len(digits) + 1e-9


def read(
    claim: Claim,
    figures: Figures,
    reference: Figures,
    relative: Relative = relative_change,
    confidence: float = CONFIDENCE,
    is_anytime: bool = False,
) -> ClaimReading:
    """The claim's metric as measured, and its mean over the seeds that both arms have.

    `is_anytime`: the number of seeds was chosen by looking at them.
    """
    if claim.metric == GAP:
        critical, sheddable = (_of(figures, name) for name in GAP_OF)
        ratio = relative(*Pair(critical, sheddable).common(), confidence, is_anytime)
        mean, low, high = (1 + part / 100 for part in (ratio.mean, ratio.low, ratio.high))
        per_seed = (sheddable / critical).tolist()
        return ClaimReading(tuple(per_seed), Estimate(mean, low, high, ratio.num_seeds))
    values = _of(figures, claim.metric)
    if not claim.is_change:
        return ClaimReading(tuple(values.tolist()), estimate(values, confidence, is_anytime))
    before = _of(reference, claim.metric)
    change = relative(*Pair(before, values).common(), confidence, is_anytime)
    base = np.where(before == 0, np.nan, before)
    return ClaimReading(tuple((100 * (values / base - 1)).tolist()), change)


def _of(figures: Figures, name: str) -> Float[np.ndarray, "seed"]:
    if name in figures:
        return figures[name]
    count = len(next(iter(figures.values()))) if figures else 0
    return np.full(count, np.nan)
