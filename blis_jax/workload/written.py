"""Write a workload of August 2026 as YAML text exactly as BLIS does: keys, order, indentation and numbers."""

from __future__ import annotations

import datetime
import re
from collections.abc import Iterator, Mapping, Sequence
from decimal import Decimal
from typing import Any, NamedTuple

import yaml

INDENT = 4
LEAST_EXPONENT, FIRST_EXPONENT = -4, 6  # of numbers written without and with an exponent
# texts that need quotes: bools of older YAML, null, whole and other numbers, times of day
_OTHER = re.compile(
    r"(?i:y|n|yes|no|on|off|true|false|null|~|[-+]?\.inf|\.nan)"
    r"|[-+]?(?:0b[01]+|0o[0-7]+|0x[0-9a-fA-F]+|(?:\.[0-9]+|[0-9]+(?:\.[0-9]*)?)(?:[eE][-+]?[0-9]+)?"
    r"|[0-9]+(?::[0-5]?[0-9])+(?:\.[0-9]*)?)"
)
_DATE = re.compile(
    r"([0-9]{4})-([0-9]{1,2})-([0-9]{1,2})(?:[Tt ][0-9:.]+(?:Z|[-+][0-9]{2}:[0-9]{2})?)?"
)
_PLAIN = ("=", "<<")  # texts for BLIS, and not for PyYAML


class _Key(NamedTuple):
    """A key of a mapping: its default in the text, and the kind of mapping below it."""

    name: str
    default: object = None  # None: the key is left out
    below: str = ""  # the kind of mapping, or of each in a list
    is_float: bool = False


def _keys(*names: str, default: object = None, is_float: bool = False) -> tuple[_Key, ...]:
    return tuple(_Key(name, default, is_float=is_float) for name in names)


_LAW = {"type": ""}
_ARRIVAL_AND_LENGTHS = (
    _Key("arrival", {"process": ""}, "arrival"),
    _Key("input_distribution", _LAW, "law"),
    _Key("output_distribution", _LAW, "law"),
)
_KINDS: dict[str, tuple[_Key, ...]] = {
    "workload": (
        *(_Key("version", "2"), _Key("seed", 0), _Key("category", "")),
        *(_Key("clients", (), "client"), _Key("cohorts", None, "cohort")),
        *(_Key("aggregate_rate", 0.0, is_float=True), _Key("num_requests")),
    ),
    "client": (
        *_keys("id", "tenant_id", "slo_class", default=""),
        *_keys("model", "adapter"),
        *_keys("rate_fraction", default=0.0, is_float=True),
        *_keys("concurrency", "think_time_us"),
        *_ARRIVAL_AND_LENGTHS,
        *_keys("prefix_group", "prefix_length"),
        _Key("streaming", False),
        *(_Key(name, None, name) for name in ("network", "lifecycle", "multimodal", "reasoning")),
        *_keys("timeout", "slo_target_us", "closed_loop"),
    ),
    "cohort": (
        *(_Key("id", ""), _Key("population", 0)),
        *_keys("tenant_id", "slo_class", "model", "adapter"),
        *_ARRIVAL_AND_LENGTHS,
        *_keys("prefix_group", "prefix_sharing", "streaming"),
        *(_Key("rate_fraction", 0.0, is_float=True), _Key("spike", None, "spike")),
        *(_Key("prefix_length"), _Key("reasoning", None, "reasoning"), _Key("closed_loop")),
    ),
    "spike": (*_keys("start_time_us", "duration_us", default=0), _Key("trace_rate", is_float=True)),
    "arrival": (_Key("process", ""), *_keys("cv", "shape", "scale", is_float=True)),
    "law": (_Key("type", ""), _Key("params", None, "params"), _Key("file")),
    "network": (_Key("rtt_ms", 0.0, is_float=True), _Key("bandwidth_mbps", is_float=True)),
    "lifecycle": (_Key("windows", (), "window"),),
    "window": (
        *_keys("start_us", "end_us", default=0),
        *(_Key("trace_rate", is_float=True), _Key("arrival", None, "arrival")),
        *(_Key(f"{name}_distribution", None, "law") for name in ("input", "output")),
    ),
    "multimodal": tuple(
        _Key(f"{name}_distribution", _LAW, "law")
        for name in ("text", "image", "image_count", "audio", "audio_count", "video", "video_count")
    ),
    "reasoning": (
        _Key("reason_ratio_distribution", _LAW, "law"),
        _Key("multi_turn", None, "multi_turn"),
    ),
    "multi_turn": (
        *_keys("max_rounds", "think_time_us", default=0),
        *(_Key("context_growth", ""), _Key("single_session")),
    ),
}
# keys whose zeros are written, too
_POINTERS = ("cv", "shape", "scale", "trace_rate", "timeout", "slo_target_us", "closed_loop")


def yaml_text(document: Mapping[str, Any]) -> str:
    """Return the YAML text of a checked workload, given as a mapping."""
    return as_blis_writes(_ordered(document, "workload"))


def as_blis_writes(document: Mapping[str, Any]) -> str:
    """Return the YAML text of a mapping in BLIS's style, with keys in the order of the mapping."""
    return "".join(f"{line}\n" for line in _mapping(document, 0))


def _ordered(mapping: Mapping[Any, Any], kind: str) -> dict[str, Any]:
    """Return the mapping with the keys that BLIS writes, in BLIS's order."""
    if kind == "params":
        return {str(name): float(mapping[name]) for name in sorted(mapping, key=_natural)}
    ordered: dict[str, Any] = {}
    for key in _KINDS[kind]:
        value: Any = mapping.get(key.name)
        if value is None or (key.default is None and key.name not in _POINTERS and not value):
            value = key.default
        if value is None:
            continue
        if key.below and isinstance(value, Mapping):
            value = _ordered(value, key.below)
        elif key.below:
            value = [_ordered(element, key.below) for element in value]
        ordered[key.name] = float(value) if key.is_float else value
    return ordered


def _natural(name: object) -> tuple[int, float, str]:
    """Return a sort key: whole numbers by value, then names by letters."""
    text = str(name)
    return (0, int(text), "") if re.fullmatch(r"-?[0-9]+", text) else (1, 0, text)


def _mapping(mapping: Mapping[str, Any], indent: int) -> Iterator[str]:
    below = INDENT * ((indent + INDENT) // INDENT)
    for name, value in mapping.items():
        start = f"{' ' * indent}{_text(name)}:"
        if isinstance(value, Mapping) and value:
            yield start
            yield from _mapping(value, below)
        elif isinstance(value, Sequence) and not isinstance(value, str) and value:
            yield start
            for element in value:
                first, *rest = _mapping(element, below + 2)
                yield f"{' ' * below}- {first.lstrip(' ')}"
                yield from rest
        else:
            yield f"{start} {_scalar(value)}"


def _scalar(value: object) -> str:
    if isinstance(value, bool):
        return str(value).lower()
    if isinstance(value, float):
        return go_number(value)
    if isinstance(value, str):
        return _text(value)
    if isinstance(value, int):
        return str(value)
    return "{}" if isinstance(value, Mapping) else "[]"


def _text(value: str) -> str:
    """Return a text without quotes if YAML reads it back as text, else in quotes."""
    if (
        not value
        or _OTHER.fullmatch(value.replace("_", "") if value[0] != "_" else "")
        or _is_date(value)
    ):
        return f'"{value}"'
    if value in _PLAIN or _DATE.fullmatch(value):
        return value
    written: str = yaml.safe_dump(value, width=2**20, allow_unicode=True)
    return written.removesuffix("\n").removesuffix("\n...")


def _is_date(value: str) -> bool:
    match = _DATE.fullmatch(value)
    if match is None:
        return False
    try:
        return bool(datetime.date(*map(int, match.groups())))
    except ValueError:
        return False  # no day of the calendar


def go_number(value: float) -> str:
    """Return the shortest digits that identify the number, as Go writes them: from a million on with an exponent."""
    if value == 0:
        return "0"
    sign, digits, exponent = Decimal(repr(value)).normalize().as_tuple()
    assert isinstance(exponent, int)
    text, power = "".join(map(str, digits)), len(digits) + exponent - 1
    minus = "-" if sign else ""
    if power < LEAST_EXPONENT or power >= FIRST_EXPONENT:
        rest = f".{text[1:]}" if len(text) > 1 else ""
        return f"{minus}{text[0]}{rest}e{'-' if power < 0 else '+'}{abs(power):02d}"
    return f"{minus}{Decimal((0, digits, exponent)):f}"
