"""Go's functions, and those of its packages math, strings, sort and slices, on the values of `types`."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np

from blis_jax.errors import ConfigError
from blis_jax.lazy import jnp, lax
from sweeps.evolve.running import rounded
from sweeps.evolve.stepping.basics import (
    INT,
    REAL,
    Length,
    TableText,
    UnreadText,
    Value,
    alike,
    as_text,
    both_masks,
    known,
    no,
    of_text,
    value_of,
)
from sweeps.evolve.stepping.containers import ArrayOf, MapValue, SliceValue
from sweeps.evolve.stepping.operations import less
from sweeps.evolve.stepping.places import Pointer, chosen, copied, record_of, same

MOST_SORTED = {  # up to how many elements Go inserts them one by one, so that equal ones keep their order
    "sort.Slice": 12, "sort.SliceStable": 20, "slices.SortFunc": 12, "slices.SortStableFunc": 20,
}  # fmt: skip
_ONE = {
    "Abs": "abs", "Sqrt": "sqrt", "Exp": "exp", "Exp2": "exp2", "Expm1": "expm1", "Log": "log", "Log2": "log2",
    "Log10": "log10", "Log1p": "log1p", "Floor": "floor", "Ceil": "ceil", "Trunc": "trunc", "RoundToEven": "round",
    "Tanh": "tanh", "Cbrt": "cbrt", "Sin": "sin", "Cos": "cos", "Tan": "tan", "Atan": "arctan", "Sinh": "sinh",
    "Cosh": "cosh", "IsNaN": "isnan", "Signbit": "signbit",
}  # fmt: skip
_TWO = {
    "Max": "maximum", "Min": "minimum", "Pow": "power", "Hypot": "hypot", "Mod": "fmod", "Copysign": "copysign",
    "Atan2": "arctan2",
}  # fmt: skip
_OF_TEXT: dict[str, Callable[..., Value]] = {
    "ToLower": str.lower, "ToUpper": str.upper, "TrimSpace": str.strip, "HasPrefix": str.startswith,
    "HasSuffix": str.endswith, "TrimPrefix": str.removeprefix, "TrimSuffix": str.removesuffix,
    "Contains": lambda text, part: part in text, "Index": lambda text, part: INT(text.find(part)),
    "LastIndex": lambda text, part: INT(text.rfind(part)), "Count": lambda text, part: INT(text.count(part)),
    "EqualFold": lambda text, other: text.lower() == other.lower(),
    "ReplaceAll": lambda text, old, new: text.replace(old, new), "Trim": str.strip,
    "TrimLeft": str.lstrip, "TrimRight": str.rstrip,
}  # fmt: skip


def length(value: Value) -> Value:
    """Return `len(value)`."""
    if isinstance(value, Tokens):
        return value.count
    if isinstance(value, (SliceValue, ArrayOf, MapValue)):
        return INT(value.count) if known(value.count) else value.count
    return of_text(lambda text: INT(len(text.encode())), value)


class Tokens:
    """A prompt's tokens; only their number is known."""

    def __init__(self, count: Value) -> None:
        self.count = count


def item(owner: Value, key: Value) -> Value:
    """Return `owner[key]`."""
    if isinstance(owner, Pointer):
        owner = record_of(owner)
    if isinstance(owner, (SliceValue, ArrayOf, MapValue)):
        return owner.get(key)
    text = as_text(owner)
    texts = text.table if isinstance(text, TableText) else (text,)
    most = max(len(entry) for entry in texts)
    table = np.zeros((len(texts), max(most, 1)), np.uint8)
    for row, entry in enumerate(texts):
        table[row, : len(entry)] = list(entry.encode())
    place = value_of(key)
    if isinstance(text, str) and known(place):
        return table[0, min(int(place), table.shape[1] - 1)]
    return jnp.asarray(table)[text.index if isinstance(text, TableText) else 0, place]


def found(owner: Value, key: Value) -> tuple[Value, Value]:
    """Return the two results of `value, ok := owner[key]`."""
    if not isinstance(owner, MapValue):
        raise ConfigError("two values of this are not read")
    value, is_there = owner.found(key)
    return copied(value), is_there


def part(owner: Value, start: Value = 0, end: Value = None) -> Value:
    """Return `owner[start:end]`."""
    if not isinstance(owner, SliceValue):
        raise ConfigError("a part of this is not read")
    return owner.part(start, end)


def append_all(go: Value, old: Value, more: SliceValue, is_over: bool = False) -> SliceValue:
    """Return `append(old, more...)`; with `is_over`, in new cells, as both are parts of the slice that is replaced."""
    old = SliceValue([], more.of) if not isinstance(old, SliceValue) else old
    there = [(copied(cell), less(place, more.count)) for place, cell in enumerate(more.values())]
    return old.with_more(there, go.mask) if is_over else old.appended(there, go)


def largest(name: str, *values: Value) -> Value:
    """Return `max(values...)` or `min(values...)`."""
    best = values[0]
    for value in values[1:]:
        if name == "min" and isinstance(best, Length) and known(value):
            best = Length(
                jnp.minimum(best.value, INT(value)),
                min(best.most, int(value)),
                min(best.least, int(value)),
            )
            continue
        first, second = alike(best, value)
        if known(first) and known(second):
            best = max(first, second) if name == "max" else min(first, second)
        else:
            best = (jnp.maximum if name == "max" else jnp.minimum)(first, second)
    return best


def of_math(name: str, *arguments: Value) -> Value:
    """Return the result of a function of package math.

    Raises:
        ConfigError: the function is not supported.
    """
    if name in ("OnesCount", "OnesCount64", "OnesCount32", "TrailingZeros", "LeadingZeros64"):
        number = jnp.asarray(value_of(arguments[0]))
        zeros = {"TrailingZeros": lambda: lax.population_count((number & -number) - 1),
                 "LeadingZeros64": lambda: lax.clz(number)}  # fmt: skip
        return zeros.get(name, lambda: lax.population_count(number))().astype(INT)
    if name == "Inf":
        return REAL(np.inf if arguments[0] >= 0 else -np.inf)
    if name == "NaN":
        return REAL(np.nan)
    values = [_real(argument) for argument in arguments[: 1 if name == "IsInf" else 3]]
    if name in ("Round", "Float64bits"):
        return (
            rounded(values[0])
            if name == "Round"
            else lax.bitcast_convert_type(values[0], np.uint64)
        )
    if name == "IsInf":
        sign = int(arguments[1])
        return jnp.isinf(values[0]) & (True if sign == 0 else (values[0] > 0) == (sign > 0))
    table = _ONE if len(values) == 1 else _TWO
    if name not in table:
        raise ConfigError(f"this of package math is not read: math.{name}")
    return getattr(jnp, table[name])(*values)


def _real(value: Value) -> Value:
    number = alike(value, REAL(0))[0]
    return jnp.asarray(number, REAL)


def of_strings(name: str, text: Value, *arguments: Value) -> Value:
    """Return the result of a function of package strings on a class or an ID.

    Raises:
        ConfigError: the function is not supported, or its second text is not known.
    """
    if name not in _OF_TEXT:
        raise ConfigError(f"this of package strings is not read: strings.{name}")
    if isinstance(text, UnreadText) and name.startswith(("To", "Trim", "ReplaceAll")):
        return text
    words = [as_text(argument) for argument in arguments]
    if not all(isinstance(word, str) for word in words):
        if name == "EqualFold":
            return same(of_text(str.lower, text), of_text(str.lower, arguments[0]))
        raise ConfigError(f"strings.{name} of two texts that are not known is not read")
    return of_text(lambda entry: _OF_TEXT[name](entry, *words), text)


def of_slices(name: str, values: SliceValue, *arguments: Value) -> Value:
    """Return the result of a function of package slices.

    Raises:
        ConfigError: the function is not supported.
    """
    cells = [(cell, less(place, values.count)) for place, cell in enumerate(values.values())]
    if name in ("Max", "Min"):
        best = cells[0][0]
        for cell, there in cells[1:]:
            best = chosen(there, largest(name.lower(), best, cell), best)
        return best
    if name in ("Contains", "Index", "ContainsFunc", "IndexFunc"):
        is_by_function = name.endswith("Func")
        place: Value = INT(-1)
        for number, (cell, there) in reversed(list(enumerate(cells))):
            is_it = arguments[0](cell) if is_by_function else same(cell, arguments[0])
            place = chosen(both_masks(there, is_it), INT(number), place)
        return place if name.startswith("Index") else no(same(place, -1))
    raise ConfigError(f"this of package slices is not read: slices.{name}")


def put_in_order(
    go: Value, name: str, values: Value, compare: Callable[..., Value] | None = None
) -> None:
    """Sort a slice in place by insertion, as Go sorts short slices; `slices.Reverse` reverses the slice.

    Raises:
        ConfigError: the slice may be too long for Go to sort it by insertion, or is not the program's own.
    """
    if not isinstance(values, SliceValue) or values.is_kept:
        raise ConfigError("this is not sorted here; sort a slice of your own")
    most = MOST_SORTED.get(name)
    if most is not None and values.most > most:
        raise ConfigError(
            f"a slice of up to {values.most} elements is sorted, and Go gives equal ones an order of its own above "
            f"{most}; use sort.SliceStable up to 20, or an arg max"
        )
    if name == "slices.Reverse":
        _turned(go, values)
        return
    for last in range(1, values.most):
        moves = both_masks(go.mask, less(last, values.count))
        for place in range(last, 0, -1):
            before, after = values.get(INT(place - 1)), values.get(INT(place))
            if compare is None:
                is_less = less(after, before)
            elif name.startswith("slices."):
                is_less = less(compare(copied(after), copied(before)), 0)
            else:
                is_less = compare(INT(place), INT(place - 1))
            moves = both_masks(moves, is_less)
            if moves is False:
                break
            first, second = copied(before), copied(after)
            values.put(INT(place - 1), second, moves)
            values.put(INT(place), first, moves)


def _turned(go: Value, values: SliceValue) -> None:
    old = [copied(cell) for cell in values.values()]
    for place in range(values.most):
        other = alike(value_of(values.count), INT(place + 1))
        source = SliceValue(old, values.of).get(other[0] - other[1])
        values.put(INT(place), source, both_masks(go.mask, less(place, values.count)))


def kept(value: Value) -> Value:
    """Mark a slice or map as a package variable that no request may change; return it."""
    if isinstance(value, (SliceValue, MapValue)):
        value.is_kept = True
    return value


def told(*_: Value) -> UnreadText:
    """Return a text for human readers only; the arguments are ignored."""
    return UnreadText()


def in_order(over: Value, is_told: bool = False) -> Value:
    """Return a container for a loop in which order matters; `is_told`: a note says that the container is a map.

    Raises:
        ConfigError: the container is a map and `is_told` is false.
    """
    if isinstance(over, MapValue) and not is_told:
        raise ConfigError(
            "Go ranges over a map in a random order, on which this loop depends; range over snapshots"
        )
    return over
