"""The class of metrics and the registry of all: each is defined once, for the host and for compiled calls.

A definition reads `MeasuredRequests`, whose arrays are numpy's on the host and JAX's in a compiled call.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from typing import Any, Protocol, TypeVar

from blis_jax.errors import ConfigError
from blis_jax.records.record import Status

LOWER, HIGHER = "lower", "higher"  # which direction is better
ALL = "all"  # in place of an SLO class: every request
Number = Any  # of numpy, or a traced one of JAX
F = TypeVar("F", bound=Callable[..., Number])


class MeasuredRequests(Protocol):
    """The measured requests of one run, or of one SLO class of it: a `Selection`, or a `LaneGroup`."""

    @property
    def record(self) -> Any:
        """Return the run of these requests, with the fields of a `RunRecord`."""

    @property
    def is_chosen(self) -> Any:
        """Return which requests are measured `[request]`."""

    @property
    def num_requests(self) -> Number:
        """Return the number of measured requests."""

    @property
    def attainment(self) -> Number:
        """Return the share of requests that completed within all targets of their class; NaN without requests."""

    def rate(self, name: str) -> Number:
        """Return one of `summaries.RATES`; 0 if no time passed."""

    def count(self, status: Status) -> Number:
        """Return how many of the requests ended with this status."""

    def mean_ms(self, latency: str) -> Number:
        """Return the mean of a latency, ms; NaN if no request has it."""

    def percentile_ms(self, latency: str, percent: int) -> Number:
        """Return a percentile of a latency, ms; NaN if no request has it."""

    def of_class(self, code: int) -> MeasuredRequests:
        """Return the measured requests of one SLO class."""


@dataclass(frozen=True)
class Metric:
    """A named scalar of a run; NaN where nothing was measured."""

    name: str
    compute: Callable[[Any], Number]  # of `MeasuredRequests`
    unit: str
    direction: str
    estimand: str  # what is counted or averaged, over what
    title: str = ""  # in a table or beside an axis, with its unit; empty: its name says it
    has_classes: bool = True  # else it covers the whole run, whatever is selected
    redefined: str = ""  # since when it means this, as ISO 8601, where records have another meaning

    @property
    def axis(self) -> str:
        """Return the metric's name in a table or beside an axis, with its unit."""
        return self.title or self.name.replace("_", " ")


METRICS: dict[str, Metric] = {}


def split_name(name: str) -> tuple[str, str | None]:
    """Split `METRIC[CLASS]` into metric and SLO class; the class is None if there is none."""
    base, bracket, rest = name.partition("[")
    return (base, rest[:-1]) if bracket and rest.endswith("]") else (name, None)


def name_in(name: str, slo_class: str | None) -> str:
    """Return `METRIC[CLASS]`, or the metric's own name for the class None or `all`."""
    return name if slo_class in (None, ALL) else f"{name}[{slo_class}]"


def names_in(names: Sequence[str], classes: Iterable[str]) -> tuple[str, ...]:
    """Return the names of metrics in every class, class after class."""
    return tuple(name_in(name, slo_class) for slo_class in classes for name in names)


def register(metric: Metric) -> None:
    """Register a metric; refuse a name that is taken."""
    name, direction = metric.name, metric.direction
    if name in METRICS:
        raise ConfigError(f"metric {name!r} is registered already; choose another name")
    if not re.fullmatch(r"[a-z][a-z0-9_]*", name):
        raise ConfigError(f"metric name {name!r} must be of lower-case letters, digits and _")
    if direction not in (LOWER, HIGHER):
        raise ConfigError(f"direction {direction!r} of metric {name!r} must be lower or higher")
    METRICS[name] = metric


def of_requests(
    unit: str, direction: str, title: str = "", has_classes: bool = True
) -> Callable[[F], F]:
    """Return a decorator to register a function of `MeasuredRequests`; its first sentence is the estimand."""

    def registered(figure: F) -> F:
        name, what = figure.__name__, _estimand(figure)
        register(Metric(name, figure, unit, direction, what, title, has_classes))
        return figure

    return registered


def of_run(
    unit: str,
    direction: str,
    title: str = "",
    name: str = "",
    estimand: str = "",
    redefined: str = "",
) -> Callable[[F], F]:
    """Return a decorator that registers a function of a whole run's record, under `name` or the function's own name."""

    def registered(figure: F) -> F:
        """Register the figure and return it unchanged."""

        def compute(measured: MeasuredRequests) -> Number:
            return figure(measured.record)

        what = estimand or _estimand(figure)
        own_name = name or figure.__name__
        register(Metric(own_name, compute, unit, direction, what, title, False, redefined))
        return figure

    return registered


def _estimand(figure: Callable[..., Number]) -> str:
    first = re.split(r"\.\s", figure.__doc__ or "")[0]
    return first.strip().rstrip(".").removeprefix("Return ").removeprefix("Count ")
