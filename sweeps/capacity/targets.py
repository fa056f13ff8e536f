"""What a cluster must keep: so large a share of a class's requests within a limit."""

from __future__ import annotations

import math
from collections.abc import Collection, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

from blis_jax.errors import ConfigError, closest
from blis_jax.metrics.measure import CLASSES, LIMITS
from blis_jax.metrics.summaries import ALL, SloTargets, Target

if TYPE_CHECKING:
    from typing import Any

USUAL_PERCENT = 99.0


@dataclass(frozen=True)
class ServiceTarget:
    """At least `share` of the requests of a class, or of all, keep a limit."""

    slo_class: str  # or ALL
    figure: str  # one of LIMITS
    limit_ms: float
    share: float  # 0 to 1

    def __str__(self) -> str:
        return f"{self.slo_class}.{self.figure}={self.limit_ms:g}@{100 * self.share:g}"

    @property
    def words(self) -> str:
        """As a reader says it."""
        who = "all requests" if self.slo_class == ALL else f"{self.slo_class} requests"
        name = self.figure.removesuffix("_ms").upper()
        return f"{100 * self.share:g} % of {who} keep their {name} within {self.limit_ms:g} ms"

    def as_slo(self) -> SloTargets:
        """The limit, for every class; which requests count is chosen elsewhere."""
        limits: dict[str, Any] = {self.figure: self.limit_ms}
        return SloTargets(otherwise=Target(**limits))


def read_service_targets(
    texts: Sequence[str], classes: Collection[str]
) -> tuple[ServiceTarget, ...]:
    """Targets given as `CLASS.LIMIT=MS[@PERCENT]`, or several with commas; the workload has these classes.

    Raises:
        ConfigError: a target has another form, or asks for what cannot be.
    """
    parts = [part.strip() for text in texts for part in text.split(",") if part.strip()]
    if not parts:
        raise ConfigError(
            "--targets: none is given; say what the cluster must keep, such as critical.ttft_ms=200@99"
        )
    found = tuple(_target(part, classes) for part in parts)
    places = [(one.slo_class, one.figure, one.share) for one in found]
    for one, place in zip(found, places, strict=True):
        if places.count(place) > 1:
            raise ConfigError(
                f"--targets: {one.slo_class}.{one.figure} is given twice for {100 * one.share:g} %; keep one"
            )
    return found


def _target(text: str, classes: Collection[str]) -> ServiceTarget:
    name, equals, value = text.partition("=")
    slo_class, dot, figure = name.strip().partition(".")
    if not (equals and dot) or figure not in LIMITS:
        raise ConfigError(
            f"--targets: {text!r} is not CLASS.LIMIT=MS[@PERCENT] with LIMIT one of {', '.join(LIMITS)}; "
            f"write for instance critical.ttft_ms=200@99{closest(figure, LIMITS)}"
        )
    if slo_class not in (ALL, *CLASSES):
        allowed = (ALL, *CLASSES)
        raise ConfigError(
            f"--targets: SLO class {slo_class!r} is unknown; use one of {', '.join(allowed)}"
            f"{closest(slo_class, allowed)}"
        )
    if slo_class not in (ALL, *classes):
        raise ConfigError(
            f"--targets: no request is of class {slo_class!r} here; there are {', '.join(classes)}, or use all"
        )
    limit, at, percent = value.partition("@")
    share = _number(text, percent) / 100 if at else USUAL_PERCENT / 100
    if not 0 < share < 1:
        raise ConfigError(
            f"--targets: {text!r} asks for {percent} %; a share above 0 and below 100 % can be told "
            "from runs, such as @99"
        )
    limit_ms = _number(text, limit)
    if not limit_ms > 0:
        raise ConfigError(f"--targets: {text!r} has a limit of {limit} ms; it must be above 0")
    return ServiceTarget(slo_class, figure, limit_ms, share)


def _number(text: str, number: str) -> float:
    try:
        value = float(number)
    except ValueError:
        value = math.nan
    if not math.isfinite(value):
        raise ConfigError(
            f"--targets: {number!r} in {text!r} is no number; write for instance critical.ttft_ms=200@99"
        )
    return value
