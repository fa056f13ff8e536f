"""Claims about a metric: an interval in which its value, its change, or its share of a reference's value lies.

`METRIC <= X[%]`, `METRIC >= X[%]`, `METRIC in LOW..HIGH[%]`, `METRIC = X[%] [+- T]`: with % a change
against the reference arm, without it the value itself; `=` allows half a unit of the last digit.
Along the values of one setting: `METRIC falls`, `METRIC rises`, `METRIC flat within X%`.
Constraints are bounds, `METRIC <= X[%]` or `METRIC >= X[%]`; with %, X is a share of the reference's mean.
"""

from __future__ import annotations

import math
import re
from collections.abc import Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np

import blis_jax.metrics.further  # noqa: F401  (registers the metrics of searches)
from blis_jax.errors import ConfigError
from blis_jax.metrics.metric import HIGHER, LOWER, Metric, name_in, names_in, split_name
from blis_jax.metrics.scalars import lookup
from blis_jax.workload.source import RequestSource

if TYPE_CHECKING:
    from blis_jax.statistics.intervals import Estimate


# --- what searches keep of a run, and the reference's names of metrics ----------------------------


# names in the reference's search script, and ours
THEIR_NAMES = {
    "throughput_tps": "tokens_per_sec",
    "completed": "num_completed",
    "dropped": "num_dropped",
    "preemptions": "num_preemptions",
}
OF_RUN = (
    "tokens_per_sec",
    "output_tokens_per_s",
    "requests_per_s",
    "class_fairness",
    "num_dropped",
    "num_preemptions",
    "cache_hit_rate",
)
OF_CLASS = (
    "ttft_mean_ms",
    "ttft_p99_ms",
    "e2e_mean_ms",
    "e2e_p99_ms",
    "goodput_rps",
    "slo_miss_rate",
    "reject_rate",
)


def our_name(name: str) -> str:
    """Return our registered name of a metric, `[class]` included, where `name` may be BLIS's."""
    base, slo_class = split_name(name)
    return name_in(THEIR_NAMES.get(base, base), slo_class)


def known_metric(name: str) -> Metric:
    """Return the metric that has this name, ours or BLIS's; the error for an unknown name lists all names."""
    metric, _ = lookup(our_name(name))
    return metric


def reported_names(spec: RequestSource) -> tuple[str, ...]:
    """Return the names of the metrics kept of every run: those of the run, of all requests, and of each class."""
    return (*OF_RUN, *OF_CLASS, *names_in(OF_CLASS, spec.slo_classes))


# --- the grammar ----------------------------------------------------------------------------------


GAP = "slo_gap"  # TTFT P99 of sheddable requests ÷ that of critical ones
GAP_OF = ("ttft_p99_ms[critical]", "ttft_p99_ms[sheddable]")
CHANGED = "num_changed_requests"  # that the arm treats otherwise than the reference arm does
VALUE, CHANGE, SHARE = "value", "change", "share"  # what is claimed of; the latter two in %
REGION, FALLS, RISES, FLAT = "region", "falls", "rises", "flat"
FORM = (
    "METRIC <= X[%], METRIC >= X[%], METRIC in LOW..HIGH[%], METRIC = X[%] [+- T], METRIC falls, "
    "METRIC rises, or METRIC flat within X%"
)
_NUMBER = r"[+-]?(?:\d+\.?\d*|\.\d+)(?:[eE][+-]?\d+)?"
_METRIC = r"(?P<metric>[^\s<>=]+?)"
_BOUND = rf"{_METRIC}\s*(?P<sign><=|>=)\s*(?P<x>{_NUMBER})\s*(?P<percent>%?)"
_FORMS = (
    _BOUND,
    rf"{_METRIC}\s+in\s+(?P<low>{_NUMBER})\.\.(?P<high>{_NUMBER})\s*(?P<percent>%?)",
    rf"{_METRIC}\s*=\s*(?P<x>{_NUMBER})\s*(?P<percent>%?)(?:\s*\+-\s*(?P<by>{_NUMBER})\s*%?)?",
    rf"{_METRIC}\s+(?P<shape>falls|rises)",
    rf"{_METRIC}\s+(?P<shape>flat)\s+within\s+(?P<x>{_NUMBER})\s*(?P<percent>%)",
)


@dataclass(frozen=True)
class Claim:
    """A claim: where a metric's value, change or share lies; or, along a setting, the shape of its steps."""

    text: str
    metric: str
    shape: str = REGION
    of: str = VALUE
    low: float = -math.inf
    high: float = math.inf

    def __str__(self) -> str:
        """Return the claim in its grammar."""
        percent = "" if self.of == VALUE else "%"
        if self.shape != REGION:
            within = f" within {self.high:g}%" if self.shape == FLAT else ""
            return f"{self.metric} {self.shape}{within}"
        if self.is_bound:
            return f"{self.metric}{'<=' if self.is_upper else '>='}{self.limit:g}{percent}"
        return f"{self.metric} in {self.low:g}..{self.high:g}{percent}"

    @property
    def names(self) -> tuple[str, ...]:
        """Return the names of the registered metrics that the claim needs."""
        return {GAP: GAP_OF, CHANGED: ()}.get(self.metric, (self.metric,))

    @property
    def is_change(self) -> bool:
        """Return whether the claim is about a change in %."""
        return self.of == CHANGE

    @property
    def is_effect(self) -> bool:
        """Return whether the claim is that something changes in a given direction."""
        if self.shape != REGION:
            return self.shape != FLAT
        return self.is_change and not self.low <= 0 <= self.high

    @property
    def is_upper(self) -> bool:
        """Return whether the region has no lower end."""
        return math.isinf(self.low)

    @property
    def is_bound(self) -> bool:
        """Return whether the region has exactly one end."""
        return self.is_upper != math.isinf(self.high)

    @property
    def limit(self) -> float:
        """Return the end of a region that has one."""
        return self.high if self.is_upper else self.low

    @property
    def better(self) -> str:
        """Return the direction of the metric, LOWER or HIGHER, that keeps the bound."""
        return LOWER if self.is_upper else HIGHER

    def limits(self, values: np.ndarray, reference: np.ndarray) -> np.ndarray:
        """Return the bound in the metric's unit for each of `values`; a share is taken of `reference`."""
        if self.of == SHARE:
            return np.asarray(self.limit / 100 * reference)
        return np.full(values.shape, self.limit)

    def holds(self, value: float) -> bool:
        """Return whether a value lies in the region."""
        return self.low <= value <= self.high

    def excess(self, value: float) -> float:
        """Return how far a value is outside the region, from its nearer end; negative inside the region."""
        return max(value - self.high, self.low - value)

    def truth(self, interval: Estimate) -> bool | None:
        """Return True if an interval lies wholly inside the region, False if wholly outside, else None."""
        if self.holds(interval.low) and self.holds(interval.high):
            return True
        return False if interval.low > self.high or interval.high < self.low else None


def bound(metric: str, direction: str, limit: float, of: str = VALUE) -> Claim:
    """Return the claim of a strategy file's bound: direction `min` bounds a metric from above, `max` from below."""
    low, high = (-math.inf, limit) if direction == "min" else (limit, math.inf)
    return Claim("", our_name(metric), of=of, low=low, high=high)


def beyond(metric: str, is_above: bool) -> Claim:
    """Return the claim that a difference is above 0 if `is_above`, else below 0."""
    least = math.ulp(0.0)
    return Claim("", metric, low=least) if is_above else Claim("", metric, high=-least)


def parse_constraint(text: str) -> Claim:
    """Return the bound that the text `METRIC<=LIMIT` or `METRIC>=LIMIT` states; with %, LIMIT is a share of the
    reference's mean.

    Raises:
        ConfigError: the text has another form, or the metric is unknown.
    """
    match = re.fullmatch(_BOUND, " ".join(text.split()))
    if match is None or not math.isfinite(float(match["x"])):
        raise ConfigError(
            f"constraint {text!r} is not METRIC<=LIMIT or METRIC>=LIMIT; write for instance "
            "'ttft_p99_ms[sheddable]<=200%' for twice the first strategy's"
        )
    lookup(our_name(match["metric"]))
    return parse_claim(text, percent=SHARE)


def parse_claim(text: str, percent: str = CHANGE) -> Claim:
    """Return the claim that a text makes; `percent`, CHANGE or SHARE, is the meaning of % in the text.

    Raises:
        ConfigError: the text has another form, the metric is unknown, or the region is empty.
    """
    clean = " ".join(text.replace("−", "-").split())
    match = next((match for form in _FORMS if (match := re.fullmatch(form, clean))), None)
    if match is None:
        raise ConfigError(f"claim {text!r} does not have the form {FORM}")
    parts = match.groupdict()
    metric = our_name(parts["metric"])
    if metric not in (GAP, CHANGED):
        try:
            lookup(metric)
        except ConfigError as error:
            raise ConfigError(f"claim {text!r}: {error}; or {GAP}, {CHANGED}") from None
    is_in_percent = bool(parts.get("percent"))
    if is_in_percent and metric in (GAP, CHANGED):
        raise ConfigError(f"claim {text!r}: {metric} compares already; leave the % out")
    of = percent if is_in_percent else VALUE
    return Claim(clean, metric, parts.get("shape") or REGION, of, *_ends(text, parts))


def _ends(text: str, parts: Mapping[str, str | None]) -> tuple[float, float]:
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
    """Return the tolerance of a claim with `=`: that in the text, else half a unit of the last digit."""
    if parts.get("by"):
        return abs(float(parts["by"] or 0))
    digits = re.sub(r"[eE].*", "", parts["x"] or "").partition(".")[2]
    return 0.5 * 10.0 ** -len(digits) + 1e-9
