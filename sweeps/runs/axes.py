"""Settings and axes of a grid in texts: `KEY=VALUE`, and `KEY=VALUES` with commas, semicolons or a range."""

from __future__ import annotations

import argparse
import itertools
import math
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, replace
from typing import Any

from blis_jax.cluster.config import FIELDS, nearest_setting
from blis_jax.cluster.named_policies import is_policy_number
from blis_jax.commands import values
from blis_jax.errors import ConfigError
from sweeps.runs.requests import WORKLOAD_PREFIX
from sweeps.strategies.arms import Arm
from sweeps.strategies.moved import is_setting, replaced, today

MOST_VALUES = 10_000  # of one axis


@dataclass(frozen=True)
class StudyAxis:
    """One quantity that varies: a cluster setting, a workload number (`workload.…`), or an axis of a map."""

    name: str
    values: tuple[Any, ...]
    reference: Any = None  # of a map: the value of the regime that the others are beside


def at_each_place(arms: Sequence[Arm], grid: Sequence[str]) -> tuple[Arm, ...]:
    """Return every arm at every place of a grid of settings, named after the place.

    Raises:
        ConfigError: a text cannot be read, names a workload number, or two texts name one setting.
    """
    axes = [axis_of(text) for text in grid]
    for at, axis in enumerate(axes):
        if is_of_workload(axis.name):
            raise ConfigError(
                f"--grid: {axis.name} is of the workload, which is the same for all; leave it out"
            )
        if axis.name in [before.name for before in axes[:at]]:
            raise ConfigError(f"--grid: {axis.name} is given twice; give all its values at once")
    names = [text.partition("=")[0].strip() for text in grid]  # as the user calls them
    return tuple(
        _placed(arm, axes, values, names, len(arms) > 1)
        for arm in arms
        for values in itertools.product(*(axis.values for axis in axes))
    )


def _placed(
    arm: Arm, axes: Sequence[StudyAxis], values: Sequence[Any], names: Sequence[str], is_named: bool
) -> Arm:
    """Return an arm with other settings, named after these; the name begins with the arm's own if `is_named`."""
    if not axes:
        return arm
    where = ", ".join(f"{name}={value}" for name, value in zip(names, values, strict=True))
    changes = {axis.name: value for axis, value in zip(axes, values, strict=True)}
    name = f"{arm.name} at {where}" if is_named else where
    return replace(arm, name=name, config=replaced(arm.config, changes))


def is_of_workload(name: str) -> bool:
    """Return whether an axis varies a number of the workload."""
    return name.startswith(WORKLOAD_PREFIX)


def _pair(text: str, option: str) -> tuple[str, str]:
    name, equals, value = text.partition("=")
    name = name.strip().replace("-", "_") if "." not in name else name.strip()
    if not equals or not name or not value.strip():
        raise ConfigError(f"{option}: {text!r} is not KEY=VALUE")
    if not is_setting(name) and not is_of_workload(name):
        hint = nearest_setting(name) or "; workload numbers are written workload.aggregate_rate"
        raise ConfigError(f"{option}: setting {name!r} is unknown{hint}")
    return today(name), value.strip()


def setting_of(text: str) -> tuple[str, Any]:
    """Return the name and the value in `KEY=VALUE`."""
    name, value = _pair(text, "--set")
    return name, _value(name, value)


def axis_of(text: str) -> StudyAxis:
    """Return the axis in `KEY=VALUES`."""
    name, values = _pair(text, "--grid")
    return StudyAxis(name, values_of(name, values))


def values_of(name: str, text: str) -> tuple[Any, ...]:
    """Return the values in `a,b,c`, in `start:stop:step` (stop included), or in `a;b` where values have commas."""
    is_number = (
        is_of_workload(name) or is_policy_number(name) or FIELDS[name].type in ("int", "float")
    )
    if ":" in text and is_number:
        values: Iterable[Any] = [_value(name, part) for part in _range(name, text)]
    elif ";" in text or _is_tuple(name) or name == "routing_scorers":
        values = [_value(name, part.strip()) for part in text.split(";")]
    else:
        values = [_value(name, part.strip()) for part in text.split(",")]
    values = tuple(values)
    if len(set(values)) != len(values):
        raise ConfigError(f"{name}: a value is given twice in {text!r}; give each once")
    return values


def _range(name: str, text: str) -> list[str]:
    parts = text.split(":")
    try:
        start, stop, step = (float(part) for part in parts)
    except ValueError:
        raise ConfigError(f"{name}: {text!r} is not START:STOP:STEP with numbers") from None
    if not all(math.isfinite(part) for part in (start, stop, step)):
        raise ConfigError(f"{name}: {text!r} is not finite; give finite numbers")
    if step == 0 or (stop - start) / step < 0:
        raise ConfigError(f"{name}: the range {text!r} is empty; let STEP lead to STOP")
    count = (stop - start) / step + 1e-9
    if count >= MOST_VALUES:
        raise ConfigError(f"{name}: the range {text!r} has more than {MOST_VALUES} values")
    return [f"{start + index * step:.12g}" for index in range(int(count) + 1)]


def _value(name: str, text: str) -> Any:
    """Return a text converted to the setting's type."""
    try:
        if is_of_workload(name):
            return _scalar(text)
        return _readers(name)(text)
    except argparse.ArgumentTypeError as error:
        raise ConfigError(f"{name}: {error}") from None


def _readers(name: str) -> Callable[[str], Any]:
    by_type: dict[Any, Callable[[str], Any]] = {
        "int": values.whole,
        "float": values.number,
        "bool": values.truth,
        "str": str,
    }
    if is_policy_number(name):
        return values.number
    return str if name == "instances" else by_type.get(FIELDS[name].type, values.numbers)


def _is_tuple(name: str) -> bool:
    return name in FIELDS and str(FIELDS[name].type).startswith("tuple")


def _scalar(text: str) -> int | float | str:
    for read in (int, float):
        try:
            return read(text)
        except ValueError:
            continue
    return text
