"""YAML read strictly, and validation errors put into one sentence each."""

from __future__ import annotations

from collections.abc import Hashable
from typing import Any

import yaml
from pydantic import ValidationError
from pydantic_core import ErrorDetails

from blis_jax.errors import ConfigError, closest, shortened
from blis_jax.files.input_files import refuse_half_characters

LAW_TYPES = ("gaussian", "exponential", "pareto_lognormal", "empirical", "constant")


_NULL, _TEXT = "tag:yaml.org,2002:null", "tag:yaml.org,2002:str"


class _UniqueKeyLoader(yaml.SafeLoader):
    """A safe loader for which a repeated key is an error; what follows the keys `texts` is a text."""

    texts: tuple[str, ...] = ()

    def construct_mapping(self, node: yaml.MappingNode, deep: bool = False) -> dict[Hashable, Any]:
        """A mapping whose keys differ."""
        seen: set[Hashable] = set()
        for key_node, value_node in node.value:
            is_scalar = isinstance(value_node, yaml.ScalarNode)
            if key_node.value in self.texts and is_scalar and value_node.tag != _NULL:
                value_node.tag = _TEXT
            key = self.construct_object(key_node, deep=True)
            if isinstance(key, Hashable) and key in seen:
                raise yaml.constructor.ConstructorError(
                    None,
                    None,
                    f"the key {shortened(key)} is given twice; keep one of them",
                    key_node.start_mark,
                )
            seen.add(key if isinstance(key, Hashable) else None)
        return super().construct_mapping(node, deep)

    def construct_yaml_int(self, node: yaml.ScalarNode) -> int:
        """A whole number, also where it has more digits than Python converts."""
        try:
            return int(super().construct_yaml_int(node))
        except ValueError:
            problem = f"{shortened(node.value)} is not a whole number that can be read"
            raise yaml.constructor.ConstructorError(None, None, problem, node.start_mark) from None


_UniqueKeyLoader.add_constructor("tag:yaml.org,2002:int", _UniqueKeyLoader.construct_yaml_int)


def read_mapping(text: str, source: str, texts: tuple[str, ...] = ()) -> dict[Any, Any]:
    """Parse a YAML text whose top level is a mapping; `source` names it in errors.

    What follows the keys `texts` is read as it is written, also where it looks like a number.
    """
    data = read_yaml(text, source, texts)
    if not isinstance(data, dict):
        raise ConfigError(
            f"{source}: the top level is {_kind(data)}, allowed is a mapping of keys to values"
        )
    return data


def read_yaml(text: str, source: str, texts: tuple[str, ...] = ()) -> Any:
    """Parse a YAML text in which no key is repeated; `source` names it in errors, for `texts` see read_mapping."""
    loader = type("_Loader", (_UniqueKeyLoader,), {"texts": texts}) if texts else _UniqueKeyLoader
    try:
        data = yaml.load(text, Loader=loader)
        refuse_half_characters(text, data, source)
    except RecursionError:
        raise ConfigError(f"{source}: mappings or lists are nested too deeply to be read") from None
    except yaml.MarkedYAMLError as error:
        mark = error.problem_mark
        line = f", line {mark.line + 1}" if mark is not None else ""
        raise ConfigError(f"{source}{line}: {error.problem}") from None
    except yaml.YAMLError as error:
        raise ConfigError(f"{source}: not a YAML text ({str(error).splitlines()[0]})") from None
    return data


def sentence(error: ValidationError, law_types: tuple[str, ...] = LAW_TYPES) -> str:
    """The first problem of a failed validation as `path: what was given, what is allowed`."""
    details = error.errors(include_url=False)[0]
    path, problem = _path(details, law_types), _problem(details, law_types)
    return f"{path}: {problem}" if path else problem


def _path(details: ErrorDetails, law_types: tuple[str, ...]) -> str:
    """Location as `clients[0].arrival.cv`, without the tag that a law's type adds."""
    path, previous = "", ""
    steps = [*details["loc"], *details.get("ctx", {}).get("below", [])]
    for step in steps:
        if isinstance(step, int) and previous != "params":
            path += f"[{step}]"
        elif not (step in law_types and previous.endswith("_distribution")) and step != "[key]":
            name = shortened(str(step))[1:-1]
            path += f".{name}" if path else name
        previous = str(step)
    return path


def _problem(details: ErrorDetails, law_types: tuple[str, ...]) -> str:
    kind, given, context = details["type"], details.get("input"), details.get("ctx", {})
    if kind == "missing":
        return "missing, but it must be given"
    if kind == "union_tag_not_found":
        return f"the key 'type' is missing, allowed is one of {', '.join(law_types)}"
    if kind == "union_tag_invalid":
        tag, allowed = context["tag"], ", ".join(law_types)
        return f"type {shortened(tag)} is unknown, allowed is one of {allowed}{closest(tag, law_types)}"
    if kind == "literal_error":
        options = context["expected"].replace("'", "").replace(" or ", ", ").split(", ")
        return f"got {shortened(given)}, allowed is {context['expected']}{closest(given, options)}"
    if kind in _BOUNDS:
        words, limit = _BOUNDS[kind]
        return f"got {shortened(given)}, allowed is a number {words} {context[limit]:g}"
    if kind == "too_short":
        return "the list is empty, allowed is one entry or more"
    if kind in _EXPECTED:
        return f"got {shortened(given)} ({_kind(given)}), allowed is {_EXPECTED[kind]}"
    return str(context["error"]) if "error" in context else details["msg"]


_BOUNDS = {
    "greater_than": ("greater than", "gt"),
    "greater_than_equal": ("of at least", "ge"),
    "less_than": ("less than", "lt"),
    "less_than_equal": ("of at most", "le"),
}
_EXPECTED = {
    "finite_number": "a finite number",
    "float_type": "a number",
    "float_parsing": "a number",
    "int_type": "a whole number",
    "int_parsing": "a whole number",
    "int_parsing_size": "a whole number of at most 64 bits",
    "int_from_float": "a whole number",
    "bool_type": "true or false",
    "bool_parsing": "true or false",
    "string_type": "a text (put it in quotes)",
    "list_type": "a list",
    "tuple_type": "a list",
    "dict_type": "a mapping of keys to values",
    "model_type": "a mapping of keys to values",
    "model_attributes_type": "a mapping of keys to values",
}


def _kind(value: Any) -> str:
    kinds = {
        dict: "a mapping",
        list: "a list",
        str: "a text",
        bool: "true/false",
        type(None): "empty",
    }
    return kinds.get(type(value), "a number")
