"""Read YAML strictly, and turn each validation error into one sentence."""

from __future__ import annotations

import math
import re
from collections.abc import Hashable, Iterator, Mapping
from contextlib import contextmanager
from functools import cache, partial
from pathlib import Path
from typing import TYPE_CHECKING, Any, cast

from blis_jax.errors import ConfigError, as_option, bounds_text, closest, is_within, shortened
from blis_jax.files.input_files import mapping, read_text, refuse_half_characters
from blis_jax.lazy import yaml

if TYPE_CHECKING:
    from pydantic import ValidationError
    from pydantic_core import ErrorDetails
    from yaml import SafeLoader as _SafeLoader
else:
    _SafeLoader = object  # modules that declare settings can be imported without YAML

# a number that PyYAML takes for a text
EXPONENT = re.compile(r"[-+]?(?:[0-9]+\.?[0-9]*|\.[0-9]+)[eE][-+]?[0-9]+")
LAW_TYPES = ("gaussian", "exponential", "pareto_lognormal", "empirical", "constant")
_TAG = "tag:yaml.org,2002:"
_NULL, _TEXT, _MERGE = f"{_TAG}null", f"{_TAG}str", f"{_TAG}merge"  # _MERGE tags the key `<<`
_SCALARS = {
    "int": "a whole number",
    "float": "a number",
    "bool": "true or false",
    "timestamp": "a date",
}


class _Strict(_SafeLoader):
    """A safe loader that refuses repeated keys; dates, and the values of the keys in `texts`, are read as text."""

    def __init__(self, text: str, texts: tuple[str, ...] = ()) -> None:
        super().__init__(text)
        self.texts = texts
        self._is_flat: dict[int, bool] = {}  # by a mapping's id; False while it is made so

    def construct_object(self, node: yaml.Node, deep: bool = False) -> Any:
        """Return the value of a node; refuses a text that its tag's type cannot hold, naming the line."""
        try:
            return super().construct_object(node, deep)
        except (ValueError, LookupError, AttributeError, TypeError, ArithmeticError):
            name = node.tag.removeprefix(_TAG)
            what = _SCALARS.get(name, name)
            problem = f"{shortened(node.value)} cannot be read as {what}; correct it"
            raise _refusal(problem, node) from None

    def flatten_mapping(self, node: yaml.MappingNode) -> None:
        """Replace `<<` with the entries of the mappings it names: keys beside `<<` win, then the first mapping."""
        if id(node) in self._is_flat:
            if not self._is_flat[id(node)]:
                raise _refusal("<< puts a mapping into itself; leave it out", node)
            return
        self._is_flat[id(node)] = False
        seen = set()
        for key_node, value_node in node.value:
            is_scalar = isinstance(value_node, yaml.ScalarNode)
            if key_node.value in self.texts and is_scalar and value_node.tag != _NULL:
                value_node.tag = _TEXT
            key = self._key(key_node)
            if key in seen:
                problem = f"the key {shortened(key_node.value)} is given twice; keep one of them"
                raise _refusal(problem, key_node)
            seen.add(key)
        if _MERGE in seen:
            super().flatten_mapping(node)
            # the last one wins; kept all, they would grow tenfold with every level of aliases
            node.value = list({self._key(entry[0]): entry for entry in node.value}.values())
        self._is_flat[id(node)] = True

    def _key(self, node: yaml.Node) -> Hashable:
        key = _MERGE if node.tag == _MERGE else self.construct_object(node, deep=True)
        if not isinstance(key, Hashable):
            raise _refusal(f"a key is {_kind(key)}, allowed is a text", node)
        return key


def _refusal(problem: str, node: yaml.Node) -> yaml.MarkedYAMLError:
    return yaml.constructor.ConstructorError(None, None, problem, node.start_mark)


# Numbers as PyYAML has them, but that 0o10 is one and 1:30 is a text, as in BLIS.
_NUMBERS = [
    (f"{_TAG}int", re.compile(r"[-+]?(?:0|0b[01_]+|0x[0-9a-fA-F_]+|0o?[0-7_]+|[1-9][0-9_]*)$")),
    (
        f"{_TAG}float",
        re.compile(
            r"(?:[-+]?[0-9][0-9_]*\.[0-9_]*(?:[eE][-+][0-9]+)?|[-+]?\.[0-9][0-9_]*(?:[eE][-+][0-9]+)?"
            r"|[-+]?\.(?:inf|Inf|INF)|\.(?:nan|NaN|NAN))$"
        ),
    ),
]
_STARTS = "-+.0123456789"  # of numbers
_NO_TEXTS = (f"{_TAG}bool", _NULL, _MERGE)


@cache
def _strict_loader() -> type[_Strict]:
    """Return the strict loader's class; YAML is imported by the first call."""
    resolvers = {
        first: [rule for rule in of_first if rule[0] in _NO_TEXTS]
        for first, of_first in yaml.SafeLoader.yaml_implicit_resolvers.items()
    } | dict.fromkeys(_STARTS, _NUMBERS)
    return type("_StrictLoader", (_Strict, yaml.SafeLoader), {"yaml_implicit_resolvers": resolvers})


def read_mapping(text: str, source: str, texts: tuple[str, ...] = ()) -> dict[Any, Any]:
    """Parse a YAML text whose top level is a mapping; `source` names it in errors.

    The values of the keys in `texts` are read as text, even if they look like numbers.
    """
    data = read_yaml(text, source, texts)
    if not isinstance(data, dict):
        raise ConfigError(
            f"{source}: the top level is {_kind(data)}, allowed is a mapping of keys to values"
        )
    return data


def read_yaml(text: str, source: str, texts: tuple[str, ...] = ()) -> Any:
    """Parse a YAML text in which no key is repeated; `source` names it in errors, `texts` is as in `read_mapping`."""
    with _refusing(source):
        data = yaml.load(text, Loader=partial(_strict_loader(), texts=texts))
    refuse_half_characters(text, data, source)
    return data


def section_of(value: object, setting: str, block: str) -> tuple[Any, str]:
    """Return the mapping that is a setting's value, or the block `block` of the file that the value names; and a text
    for errors that says where the mapping is.

    Raises:
        ConfigError: the value is neither a mapping nor a path, the file cannot be read, or has another block.
    """
    if isinstance(value, Mapping):
        return value, setting
    if not isinstance(value, str | Path):
        raise ConfigError(f"{setting}: got {shortened(value)}, allowed is a path or a mapping")
    what = f"a {as_option(setting)} file"
    document = read_yaml(read_text(Path(value), what), str(value)) or {}
    return mapping(document, str(value), (block,)).get(block), f"{value}: {block}"


_WORDS = {bool: "true or false", int: "a whole number", float: "a number", str: "a text"}


def value_at(value: object, place: str, kind: type, *bounds: float, **bound: bool) -> Any:
    """Return a file's value at `place`, checked to be of type `kind` and, if it is a number, within the given bounds.

    Raises:
        ConfigError: the value is of another type, out of bounds, or infinite.
    """
    is_kind = isinstance(value, int | float if kind is float else kind)
    is_kind = is_kind and (kind is bool or not isinstance(value, bool))
    number = cast("float", value)  # where there are bounds
    if not is_kind or (bounds and not is_within(number, *bounds, **bound)):
        words = " ".join([_WORDS[kind], bounds_text(*bounds, **bound) if bounds else ""]).strip()
        raise ConfigError(f"{place}: got {shortened(value)}, allowed is {words}")
    return float(number) if kind is float else value


def chosen_at(value: object, place: str, *allowed: str) -> str:
    """Return a file's text at `place`, checked to be one of the given choices.

    Raises:
        ConfigError: the value is not one of the choices.
    """
    if value not in allowed:
        raise ConfigError(
            f"{place}: got {shortened(value)}, allowed is {' or '.join(allowed)}{closest(value, allowed)}"
        )
    return str(value)


def number_at(value: object, place: str, *bounds: float, **bound: bool) -> float:
    """Return a file's number at `place`, even if PyYAML reads it as text; bounds are as in `value_at`."""
    if isinstance(value, str) and EXPONENT.fullmatch(value):
        value = float(value)
    number: float = value_at(value, place, float, *bounds, **bound)
    return number


def whole_at(value: object, place: str, *bounds: float, **bound: bool) -> int:
    """Return a file's whole number at `place`; a float such as 2e9 or 1.5 is cut to its whole part, as in Go's YAML."""
    if isinstance(value, float) or (isinstance(value, str) and EXPONENT.fullmatch(value)):
        number = number_at(value, place)
        value = int(number) if math.isfinite(number) else value
    whole: int = value_at(value, place, int, *bounds, **bound)
    return whole


def read_documents(text: str, source: str) -> list[Any]:
    """Return the documents of a YAML text, parsed strictly, without empty ones."""
    with _refusing(source):
        data = [
            document
            for document in yaml.load_all(text, Loader=_strict_loader())
            if document is not None
        ]
    refuse_half_characters(text, data, source)
    return data


@contextmanager
def _refusing(source: str) -> Iterator[None]:
    """Turn a YAML syntax error into a sentence with the line."""
    try:
        yield
    except RecursionError:
        raise ConfigError(f"{source}: mappings or lists are nested too deeply to be read") from None
    except yaml.MarkedYAMLError as error:
        mark = error.problem_mark
        line = f", line {mark.line + 1}" if mark is not None else ""
        raise ConfigError(f"{source}{line}: {error.problem}") from None
    except yaml.YAMLError as error:
        raise ConfigError(f"{source}: not a YAML text ({str(error).splitlines()[0]})") from None


def sentence(error: ValidationError, law_types: tuple[str, ...] = LAW_TYPES) -> str:
    """Return the first problem of a failed validation as a sentence `path: given value, allowed values`."""
    details = error.errors(include_url=False)[0]
    path, problem = _path(details, law_types), _problem(details, law_types)
    return f"{path}: {problem}" if path else problem


def _path(details: ErrorDetails, law_types: tuple[str, ...]) -> str:
    """Return a problem's location as `clients[0].arrival.cv`, without the tag that the type of a distribution adds."""
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
    kind, value, context = details["type"], details.get("input"), details.get("ctx", {})
    if kind == "missing":
        return "missing, but it must be given"
    if kind == "union_tag_not_found":
        return f"the key 'type' is missing, allowed is one of {', '.join(law_types)}"
    if kind == "union_tag_invalid":
        tag, allowed = context["tag"], ", ".join(law_types)
        return f"type {shortened(tag)} is unknown, allowed is one of {allowed}{closest(tag, law_types)}"
    if kind == "literal_error":
        options = context["expected"].replace("'", "").replace(" or ", ", ").split(", ")
        return f"got {shortened(value)}, allowed is {context['expected']}{closest(value, options)}"
    if kind in _BOUNDS:
        words, limit = _BOUNDS[kind]
        return f"got {shortened(value)}, allowed is a number {words} {context[limit]:g}"
    if kind == "too_short":
        return "the list is empty, allowed is one entry or more"
    if kind in _EXPECTED:
        return f"got {shortened(value)} ({_kind(value)}), allowed is {_EXPECTED[kind]}"
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


def _kind(value: object) -> str:
    kinds = {
        dict: "a mapping",
        list: "a list",
        str: "a text",
        bool: "true/false",
        type(None): "empty",
    }
    return kinds.get(type(value), "a number")
