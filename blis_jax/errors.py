"""The error and the warning that a user's input can cause, and a hint for their sentences."""

import difflib
from collections.abc import Iterable
from typing import Any


class ConfigError(ValueError):
    """Input that cannot be used; its sentence says what was given, what is allowed, the fix."""


class UnsupportedError(ConfigError):
    """Input that is right for BLIS, but asks for a mechanism that this program lacks."""


class ConfigWarning(UserWarning):
    """Input that is used, but not as it was written; its sentence says how, and the fix."""


MOST_SHOWN = 60  # characters of a value that a sentence repeats


def shortened(value: Any) -> str:
    """The value as Python writes it, cut to a length that a sentence can hold."""
    try:
        text = repr(value)
    except (ValueError, RecursionError):  # thousands of digits, or nested without end
        return f"a {type(value).__name__} too long to show"
    return text if len(text) <= MOST_SHOWN else text[: MOST_SHOWN - 3] + "..."


def closest(word: Any, allowed: Iterable[str]) -> str:
    """A hint naming the nearest allowed word, or nothing."""
    match = difflib.get_close_matches(str(word), list(allowed), n=1)
    return f"; did you mean {match[0]!r}?" if match else ""
