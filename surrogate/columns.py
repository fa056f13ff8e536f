"""The inputs of a surrogate: one column a parameter, with the range in which there are data."""

from __future__ import annotations

import dataclasses
import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Literal

import numpy as np

from blis_jax.errors import ConfigError, closest

FEWEST_POINTS = 16  # of each role of a dataset
UNLIMITED_SETTINGS = (  # settings in which 0 means no limit
    "long_prefill_token_threshold", "slo_prefill_critical", "slo_prefill_standard",
    "slo_prefill_sheddable",
)  # fmt: skip
Kind = Literal["real", "integer", "categorical"]


@dataclass(frozen=True)
class InputColumn:
    """One input; a categorical one is held as the place of its value in `categories`."""

    name: str
    kind: Kind
    low: float
    high: float
    is_log: bool = False
    categories: tuple[Any, ...] = ()
    unit: str = ""
    unlimited_at: float | None = None  # a value that means no limit, as 0 tokens a chunk does
    # Of a scorer's weight, which counts by its share of all weights: what the fixed ones add up to.
    fixed_weights: float | None = None

    def code(self, value: Any) -> float:
        """Return the number that stands for a value: itself, or the place of its category.

        Raises:
            ConfigError: the value is no number, or no category of the column.
        """
        if self.kind != "categorical":
            try:
                return float(value)
            except (TypeError, ValueError):
                raise ConfigError(f"{self.name}: {value!r} is not a number") from None
        for place, category in enumerate(self.categories):
            if value == category or str(value) == str(category):
                return float(place)
        allowed = ", ".join(map(repr, self.categories))
        raise ConfigError(f"{self.name}: got {value!r}, allowed is {allowed}")

    def value(self, code: float) -> Any:
        """Return the value that a number stands for."""
        if self.kind == "categorical":
            return self.categories[round(code)]
        return round(code) if self.kind == "integer" else float(code)


def codes_of(columns: Sequence[InputColumn], points: Sequence[Mapping[str, Any]]) -> np.ndarray:
    """Return points given by name as numbers, `[point, column]`.

    Raises:
        ConfigError: an input is missing or unknown, or a value is not allowed.
    """
    names = [column.name for column in columns]
    codes = np.empty((len(points), len(columns)))
    for row, point in enumerate(points):
        for name in point:
            if name not in names:
                raise ConfigError(
                    f"point {row + 1}: {name!r} is no input of the surrogate, which has "
                    f"{', '.join(names)}{closest(str(name), names)}"
                )
        for place, column in enumerate(columns):
            if column.name not in point:
                raise ConfigError(f"point {row + 1}: {column.name} is missing; give every input")
            try:
                codes[row, place] = column.code(point[column.name])
            except ConfigError as error:
                raise ConfigError(f"point {row + 1}: {error}") from None
    return codes


def to_json(columns: Sequence[InputColumn]) -> str:
    """Write columns as a text for a file's attributes."""
    return json.dumps([dataclasses.asdict(column) for column in columns])


def from_json(text: str) -> tuple[InputColumn, ...]:
    """Read the columns from a text that `to_json` wrote."""
    entries = json.loads(text)
    return tuple(
        InputColumn(**{**entry, "categories": tuple(entry["categories"])}) for entry in entries
    )
