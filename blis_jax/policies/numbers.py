"""The numbers of a policy, each declared once: default, unit, meaning, allowed values, and search range.

Settings, their checks, command-line options, search bounds and the reference page are generated from the declarations.
Nothing here imports JAX.
"""

from __future__ import annotations

import dataclasses
import math
import re
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, NamedTuple

from blis_jax.errors import ConfigError, bounds_text, closest, is_within

FIXED = "fixed"  # for `setting`: the reference gives no option, so no setting is made


@dataclass(frozen=True)
class Number:
    """A number of a policy; `low` and `high` bound the allowed values, `search` the range of a search."""

    default: float
    unit: str
    meaning: str
    low: float = -math.inf
    high: float = math.inf
    excludes_low: bool = False
    search: tuple[float, float] | None = None
    prior: str = "uniform"  # or log-uniform
    is_whole: bool = False
    # name of the setting; None: made of the policy's and the number's name
    setting: str | None = None

    @property
    def allowed(self) -> str:
        """Return a text that describes the allowed values."""
        return bounds_text(self.low, self.high, excludes_low=self.excludes_low) or "any number"

    def permits(self, value: float) -> bool:
        """Return whether the value is allowed."""
        return is_within(value, self.low, self.high, excludes_low=self.excludes_low)

    @property
    def searched(self) -> tuple[float, float] | None:
        """Return the bounds of a search: the declared ones, else the allowed values if they are finite, else None."""
        if self.search is not None:
            return self.search
        is_finite = math.isfinite(self.low) and math.isfinite(self.high)
        return (self.low, self.high) if is_finite else None


def number(
    default: float,
    unit: str,
    meaning: str,
    *,
    low: float = -math.inf,
    high: float = math.inf,
    excludes_low: bool = False,
    search: tuple[float, float] | None = None,
    prior: str = "uniform",
    is_whole: bool = False,
    setting: str | None = None,
) -> Any:
    """Declare a field of a params class, such as `depth: Float[Array, ""] = number(8.0, "requests", "…")`.

    Args:
        default: the value if none is given.
        unit: of the value, such as "µs", "requests" or "" for a plain number.
        meaning: one phrase for help texts and the reference page.
        low: the least allowed value.
        high: the greatest allowed value.
        excludes_low: `low` itself is not allowed.
        search: range of a search, unless the search's file gives another.
        prior: "uniform" or "log-uniform" over `search`.
        is_whole: only whole numbers are allowed.
        setting: name of the cluster setting; by default the policy's name and the field's.

    Raises:
        ConfigError: the default or a bound of the search is not allowed.
    """
    declared = Number(
        default, unit, meaning, low, high, excludes_low, search, prior, is_whole, setting
    )
    for value in (default, *(search or ())):
        if not declared.permits(value):
            raise ConfigError(
                f"number {meaning!r}: {value:g} is not allowed; use {declared.allowed}"
            )
    if prior not in ("uniform", "log-uniform"):
        raise ConfigError(f"number {meaning!r}: prior {prior!r}; use uniform or log-uniform")
    return dataclasses.field(default=default, metadata={"number": declared})


def numbers_of(params: type) -> dict[str, Number]:
    """Return the numbers that a params class declares, by field name.

    Raises:
        ConfigError: a field was declared without `number`.
    """
    numbers = {}
    for field in dataclasses.fields(params):
        if "number" not in field.metadata:
            raise ConfigError(
                f"{params.__name__}.{field.name} is no number of a policy; "
                'declare it as `number(default, "unit", "meaning")`'
            )
        numbers[field.name] = field.metadata["number"]
    return numbers


def checked(params: type, values: Mapping[str, float], owner: str) -> dict[str, float]:
    """Return the given numbers, checked to be declared and allowed; `owner` names the policy in errors."""
    known = numbers_of(params)
    for name, value in values.items():
        if name not in known:
            allowed = f"use {', '.join(known)}" if known else "it has none"
            raise ConfigError(
                f"{owner} has no number {name!r}; {allowed}{closest(name, list(known))}"
            )
        if isinstance(value, bool) or not isinstance(value, (int, float)):
            raise ConfigError(f"{owner}: {name} is {value!r}; give a number")
        if not known[name].permits(value):
            raise ConfigError(f"{owner}: {name} must be {known[name].allowed}, got {value}")
        if known[name].is_whole and value != int(value):
            raise ConfigError(f"{owner}: {name} must be a whole number, got {value}")
    return dict(values)


class SourceFigure(NamedTuple):
    """A number in a policy's final state, reported as `source.NAME` and compared like any metric."""

    name: str  # of the field
    unit: str
    meaning: str
    direction: str  # lower or higher: which is better


DECLARED: dict[
    str, SourceFigure
] = {}  # figures of the policies that have been read, by their full names


def figure(name: str, unit: str, meaning: str, *, better: str) -> SourceFigure:
    """Declare a field of a policy's state as a figure of the run, for `figures=` of a decorator.

    Args:
        name: of the field, a scalar; small letters, digits and `_`.
        unit: of the value, such as "s" or "1" for a plain number.
        meaning: one phrase for tables.
        better: "lower" or "higher".

    Raises:
        ConfigError: the name or `better` is not allowed.
    """
    if not re.fullmatch(r"[a-z][a-z0-9_]*", name):
        raise ConfigError(f"figure {name!r}: a name has small letters, digits and _")
    if better not in ("lower", "higher"):
        raise ConfigError(f"figure {name!r}: better is {better!r}; give lower or higher")
    return SourceFigure(name, unit, meaning, better)
