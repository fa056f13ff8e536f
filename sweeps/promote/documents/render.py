"""Templates of the documents of a promotion."""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Any

from sweeps.tracks.templates import rendered

NOT_MEASURED = "not measured"


def render(name: str, **values: object) -> str:
    """The text of a template; a value that is missing is an error."""
    filters = {"percent": percent, "number": number, "filled": filled}
    return rendered("sweeps.promote.documents", name, filters, values)


def percent(found: Any) -> str:
    """A change in % with its interval, of an estimate or of its plain form; "not measured" without one."""
    mean, low, high = (_part(found, name) for name in ("mean", "low", "high"))
    if mean is None:
        return NOT_MEASURED
    if low is None or high is None:
        return f"{_signed(mean)} % (no interval)"
    return f"{_signed(mean)} % [{_signed(low)}, {_signed(high)}]"


def number(value: float | None) -> str:
    """Four significant digits, whole numbers from 1,000 on; "not measured" for none."""
    if value is None or not math.isfinite(value):
        return NOT_MEASURED
    return f"{value:.4g}" if abs(value) < 1000 else f"{value:,.0f}"


def filled(text: object) -> str:
    """A text on one line, or "not measured"."""
    words = " ".join(str(text).split()) if text is not None else ""
    return words or NOT_MEASURED


def _part(found: Any, name: str) -> float | None:
    value = found.get(name) if isinstance(found, Mapping) else getattr(found, name, None)
    return float(value) if value is not None and math.isfinite(value) else None


def _signed(value: float) -> str:
    text = f"{abs(value):.1f}"
    return text if float(text) == 0 else f"{'−' if value < 0 else '+'}{text}"
