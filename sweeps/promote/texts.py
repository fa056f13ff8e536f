"""Read the data files of a promotion, and write its texts: YAML with the same bytes for the same data, templates."""

from __future__ import annotations

import functools
import math
from collections.abc import Callable, Mapping
from importlib import resources
from typing import Any, TypeVar

import yaml
from pydantic import TypeAdapter, ValidationError

from blis_jax.errors import ConfigError, closest
from blis_jax.files.atomic_write import finite
from blis_jax.files.strict_yaml import read_mapping, read_yaml, sentence
from sweeps.tracks.templates import rendered

NOT_MEASURED = "not measured"


_PACKAGE = resources.files("sweeps.promote")
_Checked = TypeVar("_Checked")


# --- data files -----------------------------------------------------------------------------------


@functools.cache
def data_file(path: str) -> Any:
    """Return the content of a data file of this package, which nobody may change."""
    return read_yaml((_PACKAGE / path).read_text(encoding="utf-8"), path.rpartition("/")[2])


def checked(kind: type[_Checked], content: object, source: str) -> _Checked:
    """Return plain data as a type of pydantic; `source` begins errors.

    Raises:
        ConfigError: a field is missing, unknown, or not allowed.
    """
    try:
        return TypeAdapter(kind).validate_python(content)
    except ValidationError as error:
        raise ConfigError(f"{source}: {sentence(error)}") from None


def target_names() -> tuple[str, ...]:
    """Return all versions NAME@VERSION of the target, each a folder of `targets`."""
    return tuple(
        sorted(folder.name for folder in (_PACKAGE / "targets").iterdir() if "@" in folder.name)
    )


@functools.cache
def target_file(target: str, name: str) -> Mapping[str, Any]:
    """Return what a file says of a version of the target, on top of the version that it extends.

    Raises:
        ConfigError: the version is not known.
    """
    known = target_names()
    if target not in known:
        raise ConfigError(
            f"target {target!r} is not known; use one of {', '.join(known)}{closest(target, known)}"
        )
    path = f"targets/{target}/{name}"
    content = dict(read_mapping((_PACKAGE / path).read_text(encoding="utf-8"), path))
    base = content.pop("extends", None)
    merged: Mapping[str, Any] = (
        content if base is None else _merged(target_file(base, name), content)
    )
    return merged


def _merged(base: Any, change: Any) -> Any:
    """Return data with what other data say in their place: mappings are merged, None takes an entry away."""
    if not isinstance(base, Mapping) or not isinstance(change, Mapping):
        return change
    merged = {**base, **{key: _merged(base.get(key), value) for key, value in change.items()}}
    return {key: value for key, value in merged.items() if value is not None}


# --- texts ----------------------------------------------------------------------------------------


class _Dumper(yaml.SafeDumper):
    """Write texts of several lines as blocks, without anchors."""

    def ignore_aliases(self, data: Any) -> bool:
        return True


def _block(dumper: yaml.SafeDumper, value: str) -> yaml.ScalarNode:
    style = "|" if "\n" in value else None
    return dumper.represent_scalar("tag:yaml.org,2002:str", value, style=style)


_Dumper.add_representer(str, _block)


def yaml_text(document: Any) -> str:
    """Return one YAML document, keys in the given order."""
    return yaml.dump(document, Dumper=_Dumper, sort_keys=False, allow_unicode=True, width=120)


def wide_yaml(document: Mapping[str, Any]) -> str:
    """Return a YAML document for people: lines of 110 columns, repeated parts as anchors."""
    return yaml.safe_dump(dict(document), sort_keys=False, allow_unicode=True, width=110)


def yaml_texts(documents: list[Any]) -> str:
    """Return several YAML documents in one text."""
    return "---\n".join(yaml_text(document) for document in documents)


def render(name: str, **values: object) -> str:
    """Return the text of a template; a value that is missing is an error."""
    filters: dict[str, Callable[..., str]] = {
        "percent": percent, "number": number, "filled": filled, "listed": listed, "short": "{:g}".format,
        "magnitude": _magnitude,
    }  # fmt: skip
    return rendered("sweeps.promote", name, filters, values)


def _magnitude(change: str | Mapping[str, float]) -> str:
    """Return a simulated change in % with its interval, or the words in its place."""
    if isinstance(change, str):
        return change
    return "{percent:+.1f} % [{low:+.1f}, {high:+.1f}]".format(**change)


def percent(found: Any) -> str:
    """Return a change in % with its interval, of an estimate or of its plain form; "not measured" without one."""
    mean, low, high = (_part(found, name) for name in ("mean", "low", "high"))
    if mean is None:
        return NOT_MEASURED
    if low is None or high is None:
        return f"{_signed(mean)} % (no interval)"
    return f"{_signed(mean)} % [{_signed(low)}, {_signed(high)}]"


def number(value: float | None) -> str:
    """Return four significant digits, whole numbers from 1,000 on; "not measured" for none."""
    if value is None or not math.isfinite(value):
        return NOT_MEASURED
    return f"{value:.4g}" if abs(value) < 1000 else f"{value:,.0f}"


def filled(text: object) -> str:
    """Return a text on one line, or "not measured"."""
    words = " ".join(str(text).split()) if text is not None else ""
    return words or NOT_MEASURED


def _part(found: Any, name: str) -> float | None:
    value = found.get(name) if isinstance(found, Mapping) else getattr(found, name, None)
    return finite(value)


def _signed(value: float) -> str:
    text = f"{abs(value):.1f}"
    return text if float(text) == 0 else f"{'−' if value < 0 else '+'}{text}"


def listed(value: Any) -> str:
    """Return plain data on one line."""
    if isinstance(value, Mapping):
        return ", ".join(f"{name} {listed(part)}" for name, part in value.items())
    if isinstance(value, list | tuple):
        return "; ".join(map(listed, value))
    return str(value)
