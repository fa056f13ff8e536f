"""The error and the warning that a user's input can cause, and a hint for their sentences."""

import difflib
import math
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from functools import wraps
from pathlib import Path
from typing import Concatenate, ParamSpec, TypeVar, cast

P = ParamSpec("P")
R = TypeVar("R")
S = TypeVar("S")


class ConfigError(ValueError):
    """Input that cannot be used; its sentence says what was given, what is allowed, the fix."""


class UnsupportedError(ConfigError):
    """Input that is right for BLIS, but asks for a mechanism that this program lacks."""


class ConfigWarning(UserWarning):
    """Input that is used, but not as it was written; its sentence says how, and the fix."""


MOST_SHOWN = 60  # characters of a value that a sentence repeats
MOST_LISTED = 20  # names that a sentence lists; of more it names the nearest
MOST_NEAR = 3
MUCH_LESS_LIKE = 0.25  # than the nearest word, of ratios of equal letters: not meant


def shortened(value: object) -> str:
    """Return a value as Python writes it, cut to a length that a sentence can hold."""
    try:
        text = repr(value)
    except (ValueError, RecursionError):  # thousands of digits, or nested without end
        return f"a {type(value).__name__} too long to show"
    return text if len(text) <= MOST_SHOWN else text[: MOST_SHOWN - 3] + "..."


def capital(text: str) -> str:
    """Return a text with a capital first letter."""
    return text[:1].upper() + text[1:]


def bounds_text(low: float, high: float, *, excludes_low: bool = False) -> str:
    """Return bounds in words, such as `at least 0`; an infinite bound is left out."""
    if math.isfinite(low) and math.isfinite(high):
        is_open = f"above {low:g} and at most {high:g}"
        return is_open if excludes_low else f"between {low:g} and {high:g}"
    if math.isfinite(high):
        return f"at most {high:g}"
    if not math.isfinite(low):
        return ""
    return f"above {low:g}" if excludes_low else f"at least {low:g}"


def is_within(value: float, low: float, high: float, *, excludes_low: bool = False) -> bool:
    """Return whether a number is finite and within its bounds."""
    is_above = value > low if excludes_low else value >= low
    return is_above and value <= high and abs(value) < math.inf


def as_option(name: str) -> str:
    """Return a setting as the command line has it: `--from` of `from_`, `--num-instances` of `num_instances`."""
    return "--" + name.rstrip("_").replace("_", "-")


def closest(word: object, allowed: Iterable[str], cutoff: float = 0.6) -> str:
    """Return a hint that names the nearest allowed word (`; did you mean 'x'?`), or no text if none is near.

    `cutoff` is the least similarity of the two words, from 0 to 1.
    """
    if isinstance(word, str) and len(word) > MOST_SHOWN:
        return ""
    match = difflib.get_close_matches(str(word), list(allowed), n=1, cutoff=cutoff)
    return f"; did you mean {match[0]!r}?" if match else ""


def choices(word: str, allowed: Iterable[str]) -> str:
    """Return a hint with the allowed words for `word`: all of a short list, the nearest of a long one."""
    names = list(allowed)
    near = difflib.get_close_matches(word, names, n=MOST_NEAR, cutoff=0.5)
    like = {name: difflib.SequenceMatcher(None, name, word).ratio() for name in near}
    near = [name for name in near if like[name] > like[near[0]] - MUCH_LESS_LIKE]
    near += [name for name in names if len(word) > 2 and word in name and name not in near]
    if not near and 2 * len(names) > 3 * MOST_LISTED:
        return f"use one of {', '.join(names[:MOST_LISTED])}, … ({len(names)} are known)"
    if len(names) <= MOST_LISTED or not near or len(word) > MOST_SHOWN:
        return f"use one of {', '.join(names)}{closest(word, names)}"
    meant = " or ".join(repr(name) for name in near[:MOST_NEAR])
    return f"did you mean {meant}? ({len(names)} are known)"


@contextmanager
def refusing_damage(path: Path, advice: str) -> Iterator[None]:
    """Turn errors from reading a damaged store or state in the block into a ConfigError that ends with `advice`."""
    try:
        yield
    except (ConfigError, MemoryError):
        raise
    except Exception as error:
        if isinstance(error, OSError) and not isinstance(error, FileNotFoundError):
            raise
        lines = str(error).splitlines() or [type(error).__name__]
        missing = f"{lines[0]} is missing" if isinstance(error, KeyError) else lines[0]
        raise ConfigError(f"{path} is damaged ({missing}); {advice}") from None


@contextmanager
def refusing_unwritable(path: Path) -> Iterator[None]:
    """Turn an OSError in the block into a ConfigError that names the file."""
    try:
        yield
    except OSError as error:
        reason = error.strerror or str(error)
        raise ConfigError(f"{path} cannot be written ({reason}); choose another place") from None


def reads_store(
    advice: str,
) -> Callable[[Callable[Concatenate[S, P], R]], Callable[Concatenate[S, P], R]]:
    """Decorate a reader of the store at its first argument, or at that argument's `path`, with `refusing_damage`."""

    def decorate(read: Callable[Concatenate[S, P], R]) -> Callable[Concatenate[S, P], R]:
        """Return `read`, with damage of the store raised as a ConfigError."""

        @wraps(read)
        def guarded(store: S, *arguments: P.args, **named: P.kwargs) -> R:
            with refusing_damage(cast("Path", getattr(store, "path", store)), advice):
                return read(store, *arguments, **named)

        return guarded

    return decorate
