"""Closed schemas: what breaks one becomes a finding with the name of its rule."""

from __future__ import annotations

import functools
from collections.abc import Iterator, Mapping
from importlib import resources
from typing import Any

from blis_jax.errors import ConfigError, closest, shortened
from blis_jax.files.strict_yaml import read_mapping
from sweeps.promote.promotion import Finding


@functools.cache
def schema(name: str) -> Mapping[str, Any]:
    """A schema of `schemas/`, by its name without `.yaml`."""
    file = resources.files("sweeps.promote.checks") / "schemas" / f"{name}.yaml"
    return read_mapping(file.read_text(encoding="utf-8"), f"{name}.yaml")


def schema_findings(
    document: object, rules: Mapping[str, Any], path: str, where: str = ""
) -> Iterator[Finding]:
    """One CRITICAL finding for each breach; `where` names the part of the file."""
    errors = sorted(
        _validator(rules).iter_errors(document), key=lambda one: list(map(str, one.path))
    )
    for error in errors:
        while error.context:  # of alternatives, the one that fits best
            error = max(error.context, key=lambda one: (len(one.path), one.validator != "required"))
        place = (where + _place(error.absolute_path)).strip(".") or "document"
        yield Finding("CRITICAL", _rule(error), path, f"{place}: {_message(error)}")


def _validator(rules: Mapping[str, Any]) -> Any:
    try:
        from jsonschema import Draft202012Validator
    except ImportError:
        raise ConfigError(
            "the checks need the package jsonschema; install blis-jax[promote]"
        ) from None
    return Draft202012Validator(rules)


def _place(steps: Any) -> str:
    text = ""
    for step in steps:
        text += f"[{step}]" if isinstance(step, int) else f".{step}"
    return text.removeprefix(".")


_RULES = {
    "additionalProperties": "unknown-field",
    "required": "missing-field",
    "type": "wrong-type",
}


def _rule(error: Any) -> str:
    if error.validator in ("additionalProperties", "required"):
        return _RULES[error.validator]
    own = error.schema.get("x-rule") if isinstance(error.schema, dict) else None
    return own or _RULES.get(error.validator, "not-allowed")


def _message(error: Any) -> str:
    if error.validator == "additionalProperties":
        allowed = list(error.schema.get("properties", {}))
        unknown = [str(key) for key in error.instance if key not in allowed]
        hint = closest(unknown[0], allowed)
        return f"has {', '.join(unknown)}, allowed is {', '.join(allowed) or 'nothing'}{hint}"
    if error.validator == "required":
        missing = [name for name in error.validator_value if name not in error.instance]
        return f"has no {', '.join(missing)}; add it"
    words = error.schema.get("x-allowed") or _allowed(error)
    return f"got {shortened(error.instance)}, allowed is {words}"


_WORDS = {"array": "a list", "object": "a mapping", "string": "a text", "integer": "a whole number"}
_WORDS |= {"number": "a number", "boolean": "true or false"}


def _allowed(error: Any) -> str:
    rules, value = error.schema, error.validator_value
    if error.validator == "const":
        return repr(value)
    if error.validator == "enum":
        return " or ".join(map(repr, value))
    words = _WORDS.get(str(rules.get("type")), "another type")
    ends = {
        "minimum": "at least",
        "exclusiveMinimum": "above",
        "maximum": "at most",
        "minItems": "of length at least",
        "maxItems": "of length at most",
        "minLength": "of length at least",
        "minProperties": "with entries, at least",
    }
    parts = [f"{word} {rules[key]}" for key, word in ends.items() if key in rules]
    if "pattern" in rules:
        parts.append(f"of the form {rules['pattern']}")
    return " ".join([words, *parts])
