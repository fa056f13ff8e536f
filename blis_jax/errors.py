"""The error and the warning that a user's input can cause, and a hint for their sentences."""

import difflib
from collections.abc import Iterable
from typing import Any


class ConfigError(ValueError):
    """Input that cannot be used; its sentence says what was given, what is allowed, the fix."""


class ConfigWarning(UserWarning):
    """Input that is used, but not as it was written; its sentence says how, and the fix."""


def closest(word: Any, allowed: Iterable[str]) -> str:
    """A hint naming the nearest allowed word, or nothing."""
    match = difflib.get_close_matches(str(word), list(allowed), n=1)
    return f"; did you mean {match[0]!r}?" if match else ""
