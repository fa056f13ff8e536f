"""A workload of August 2026 as the YAML text that BLIS writes: its keys, their order, its indents and numbers."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping, Sequence
from decimal import Decimal
from typing import Any, NamedTuple

import yaml

INDENT = 4
LEAST_EXPONENT, FIRST_EXPONENT = -4, 6  # of numbers written without and with an exponent
_OLD_TRUTHS = ("y", "n", "yes", "no", "on", "off")  # which older YAML takes for true and false


class _Key(NamedTuple):
    """A key of a mapping: what stands there where nothing is given, and what is below it."""

    name: str
    default: Any = None  # None: the key is left out
    below: str = ""  # the kind of mapping, or of each in a list
    is_float: bool = False


_LAW = {"type": ""}
_KINDS: dict[str, tuple[_Key, ...]] = {
    "workload": (
        _Key("version", "2"),
        _Key("seed", 0),
        _Key("category", ""),
        _Key("clients", (), "client"),
        _Key("aggregate_rate", 0.0, is_float=True),
        _Key("num_requests"),
    ),
    "client": (
        _Key("id", ""),
        _Key("tenant_id", ""),
        _Key("slo_class", ""),
        _Key("model"),
        _Key("adapter"),
        _Key("rate_fraction", 0.0, is_float=True),
        _Key("concurrency"),
        _Key("think_time_us"),
        _Key("arrival", {"process": ""}, "arrival"),
        _Key("input_distribution", _LAW, "law"),
        _Key("output_distribution", _LAW, "law"),
        _Key("prefix_group"),
        _Key("prefix_length"),
        _Key("streaming", False),
        _Key("network", None, "network"),
        _Key("lifecycle", None, "lifecycle"),
        _Key("multimodal", None, "multimodal"),
        _Key("reasoning", None, "reasoning"),
        _Key("timeout"),
        _Key("slo_target_us"),
        _Key("closed_loop"),
    ),
    "arrival": (
        _Key("process", ""),
        *(_Key(name, is_float=True) for name in ("cv", "shape", "scale")),
    ),
    "law": (_Key("type", ""), _Key("params", None, "params"), _Key("file")),
    "network": (_Key("rtt_ms", 0.0, is_float=True), _Key("bandwidth_mbps", is_float=True)),
    "lifecycle": (_Key("windows", (), "window"),),
    "window": (
        _Key("start_us", 0),
        _Key("end_us", 0),
        _Key("trace_rate", is_float=True),
        _Key("arrival", None, "arrival"),
        _Key("input_distribution", None, "law"),
        _Key("output_distribution", None, "law"),
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
        _Key("max_rounds", 0),
        _Key("think_time_us", 0),
        _Key("context_growth", ""),
        _Key("single_session"),
    ),
}
# keys whose zeros are written, too
_POINTERS = ("cv", "shape", "scale", "trace_rate", "timeout", "slo_target_us", "closed_loop")


def yaml_text(document: Mapping[str, Any]) -> str:
    """The text of a workload given as the mapping of a YAML file that has been checked."""
    return "".join(f"{line}\n" for line in _mapping(_ordered(document, "workload"), 0))


def _ordered(given: Mapping[str, Any], kind: str) -> dict[str, Any]:
    """The mapping with the keys that BLIS writes, in its order."""
    if kind == "params":
        return {str(name): float(given[name]) for name in sorted(given, key=_natural)}
    found: dict[str, Any] = {}
    for key in _KINDS[kind]:
        value: Any = given.get(key.name)
        if value is None or (key.default is None and key.name not in _POINTERS and not value):
            value = key.default
        if value is None:
            continue
        if key.below and isinstance(value, Mapping):
            value = _ordered(value, key.below)
        elif key.below:
            value = [_ordered(one, key.below) for one in value]
        found[key.name] = float(value) if key.is_float else value
    return found


def _natural(name: Any) -> tuple[int, float, str]:
    """Whole numbers by value, then names by letters."""
    text = str(name)
    return (0, int(text), "") if re.fullmatch(r"-?[0-9]+", text) else (1, 0, text)


def _mapping(given: Mapping[str, Any], indent: int) -> Iterator[str]:
    below = INDENT * ((indent + INDENT) // INDENT)
    for name, value in given.items():
        start = f"{' ' * indent}{_text(name)}:"
        if isinstance(value, Mapping) and value:
            yield start
            yield from _mapping(value, below)
        elif isinstance(value, Sequence) and not isinstance(value, str) and value:
            yield start
            for one in value:
                first, *rest = _mapping(one, below + 2)
                yield f"{' ' * below}- {first.lstrip(' ')}"
                yield from rest
        else:
            yield f"{start} {_scalar(value)}"


def _scalar(value: Any) -> str:
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
    """The text plain where it stays a text, else in quotes."""
    plain = yaml.SafeLoader.yaml_implicit_resolvers.get(value[:1], [])
    is_other = any(pattern.match(value) for _, pattern in plain)
    if not value or is_other or value.lower() in _OLD_TRUTHS:
        return f'"{value}"'
    written: str = yaml.safe_dump(value, width=2**20, allow_unicode=True)
    return written.removesuffix("\n").removesuffix("\n...")


def go_number(value: float) -> str:
    """The shortest digits that give the number, as Go writes it: from a million on with an exponent."""
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
