"""Readers of options' values: each converts a text to a value, or refuses it in one sentence."""

from __future__ import annotations

import argparse
import math
import re
from collections.abc import Callable
from typing import Any

from blis_jax.errors import ConfigError, closest, is_within


def whole(text: str) -> int:
    """Read a whole number of at most 64 bits, also in the forms `1_000` and `0x10`, as BLIS does."""
    if re.fullmatch(r"[+-]?0[0-9_]+", text):
        raise argparse.ArgumentTypeError(
            f"{short(text)} begins with 0, which BLIS takes for a number of base 8; leave the 0 out, or write 0o"
        )
    try:
        value = int(text, 0) if re.fullmatch(r"[+-]?[0-9][0-9a-zA-Z_]{0,70}", text) else None
    except ValueError:
        value = None
    if value is None or not -(2**63) <= value < 2**63:
        raise argparse.ArgumentTypeError(f"{short(text)} is not a whole number of at most 64 bits")
    return value


def number(text: str) -> float:
    """Read a number; infinite and negative ones are left for later checks."""
    try:
        return float(text.replace("_", "?"))
    except ValueError:
        raise argparse.ArgumentTypeError(f"{short(text)} is not a number") from None


def at_least(
    least: int, read: Callable[[str], Any] = whole, *, most: int | None = None
) -> Callable[[str], Any]:
    """Return a reader of numbers that refuses what is below `least` or, if given, above `most`."""

    def bounded(text: str) -> Any:
        value = read(text)
        if value < least or (most is not None and value > most):
            allowed = f"{least} or more" if most is None else f"{least} to {most}"
            raise argparse.ArgumentTypeError(f"got {short(text)[1:-1]}, allowed is {allowed}")
        return value

    return bounded


def numbers(text: str) -> tuple[float, ...]:
    """Read numbers with commas between them."""
    return tuple(number(part.strip()) for part in text.split(","))


def wholes(text: str) -> tuple[int, ...]:
    """Read whole numbers with commas between them."""
    return tuple(whole(part.strip()) for part in text.split(","))


def truth(text: str) -> bool:
    """Read BLIS's spellings of true and false."""
    if text.lower() not in _TRUTHS:
        raise argparse.ArgumentTypeError(f"{short(text)} is neither true nor false")
    return _TRUTHS[text.lower()]


_TRUTHS = {"true": True, "t": True, "1": True, "false": False, "f": False, "0": False}


class OneOf:
    """Reads one of a few words."""

    def __init__(self, *choices: str) -> None:
        self.choices = choices

    def __call__(self, text: str) -> str:
        """Return the text if it is an allowed word."""
        if text not in self.choices:
            allowed = ", ".join(self.choices)
            raise argparse.ArgumentTypeError(
                f"{short(text)} is not known; use one of {allowed}{closest(text, self.choices)}"
            )
        return text


def number_within(
    label: str,
    text: str,
    low: float = -math.inf,
    high: float = math.inf,
    is_whole: bool = False,
) -> float:
    """Read a number between `low` and `high` from part of an option's value; `label` names that part in errors."""
    try:
        value = int(text) if is_whole else float(text)
    except ValueError:
        what = "a whole number" if is_whole else "a number"
        raise ConfigError(f"{label}: {text!r} is not {what}") from None
    if not is_within(value, low, high):
        allowed = f"{low:g} to {high:g}" if math.isfinite(high) else "a finite number"
        raise ConfigError(f"{label}: {text} is out of range; allowed is {allowed}")
    return value


def short(text: str) -> str:
    """Return a text in quotes, shortened to fit a sentence."""
    return repr(text if len(text) <= 60 else text[:57] + "...")
