"""What a file of measured runs asks for: scenes to simulate, and the cells that they fill."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple, Protocol

import numpy as np

from blis_jax.errors import ConfigError, shortened
from blis_jax.predict.scene import Scene

GPUS = {  # names of GPUs in the collections
    "H100": "H100",
    "A100-80GB": "A100-80",
    "A100-80": "A100-80",
    "A100-SXM": "A100-SXM",
    "L40S": "L40S",
    "h100_sxm": "H100",
    "h200_sxm": "H200",
    "b200_sxm": "B200",
    "b300_sxm": "B300",
    "a100_sxm": "A100-SXM",
    "l40s": "L40S",
    "H200": "H200",
    "B200": "B200",
    "B300": "B300",
}

LARGEST = 1_000_000  # of the whole numbers in a row: more GPUs, requests or tokens than anyone has

Row = Mapping[str, Any]


class AskedCell(NamedTuple):
    """A figure that a file wants."""

    row: int  # of the file, from 0
    column: str
    figure: str  # such as `ttft_mean`
    stage: int | None = None  # of a staged load; None: all requests


@dataclass(frozen=True)
class Unit:
    """Rows that one simulation answers."""

    rows: tuple[int, ...]
    scene: Scene | None  # None: they cannot be predicted
    cells: tuple[AskedCell, ...] = ()
    problem: str = ""  # why, one sentence


class Collection(Protocol):
    """A form of file; modules of this package have it."""

    NAME: str
    COLUMNS: tuple[str, ...]  # by which it is recognised; values to predict are not among them
    VALUES: tuple[str, ...]  # columns that predictions fill

    def units(self, rows: Sequence[Row]) -> list[Unit]:
        """What the rows ask for; rows that cannot be predicted come with the reason."""
        ...


def gpu_name(text: Any) -> str:
    """The name under which the GPU is described here.

    Raises:
        ConfigError: it is not known.
    """
    if str(text) not in GPUS:
        raise ConfigError(f"GPU {text!r} has no description; known are {', '.join(GPUS)}")
    return GPUS[str(text)]


def whole(row: Row, column: str, usual: int | None = None) -> int:
    """A whole number of the row; `usual` where its cell is empty.

    Raises:
        ConfigError: it is no whole number, or it is empty and there is no usual one.
    """
    number = _number(row, column, usual, "a whole number")
    if number != int(number):
        raise ConfigError(f"{column} is {row[column]!r}, it must be a whole number")
    if abs(number) > LARGEST:
        raise ConfigError(f"{column} is {number:g}, it must be at most {LARGEST:,}")
    return int(number)


def share(row: Row, column: str, usual: float) -> float:
    """A share of the row, above 0 up to 1; `usual` where its cell is empty.

    Raises:
        ConfigError: it is no such number.
    """
    number = _number(row, column, usual, "a number")
    if not 0 < number <= 1:
        raise ConfigError(f"{column} is {number:g}, it must be above 0 and at most 1")
    return number


def _number(row: Row, column: str, usual: float | None, what: str) -> float:
    value = row.get(column)
    is_empty = value is None or value != value or value == ""
    if is_empty and usual is not None:
        return usual
    try:
        number = math.nan if isinstance(value, bool | np.bool_) else float(value)  # type: ignore[arg-type]
    except (TypeError, ValueError, OverflowError):
        number = math.nan
    if not math.isfinite(number):
        given = "is empty" if is_empty else f"is {shortened(value)}"
        raise ConfigError(f"{column} {given}, it must be {what}")
    return number
