"""Parts of an option's value, read and checked."""

from __future__ import annotations

from blis_jax.errors import ConfigError


def number_within(label: str, text: str, low: float, high: float, is_whole: bool) -> float:
    """A number in a part of an option's value; `label` says in refusals where it stands."""
    try:
        value = int(text) if is_whole else float(text)
    except ValueError:
        what = "a whole number" if is_whole else "a number"
        raise ConfigError(f"{label}: {text!r} is not {what}") from None
    if not low <= value <= high:
        raise ConfigError(f"{label}: {text} is out of range; allowed is {low:g} to {high:g}")
    return value
