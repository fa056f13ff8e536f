"""Declarations of a cluster's settings: default, meaning, unit, allowed values, and command-line option.

Checks, command-line options and the page "Settings" are generated from the declarations; nothing here imports JAX.
"""

from __future__ import annotations

import dataclasses
import inspect
import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from blis_jax.core.kinds import KINDS, ROUTER, SAME, Kind
from blis_jax.errors import ConfigError, closest
from blis_jax.policies import registry
from blis_jax.policies.numbers import Number

if TYPE_CHECKING:
    from blis_jax.cluster.config import ClusterConfig

LARGEST_COUNT = 2**31 - 2
_TYPES: dict[str, tuple[Any, str]] = {  # by annotation, with its name in errors
    "int": (int, "a whole number"),
    "float": ((int, float), "a number"),
    "bool": (bool, "true or false"),
    "str": (str, "a text"),
}


@dataclass(frozen=True)
class DeclaredSetting(Number):
    """The declaration of a setting; a number has bounds, a text may have a list of choices."""

    choices: tuple[str, ...] = ()
    words: str = ""  # allowed values, if bounds and choices do not describe them
    option: str = ""  # the option's help, if it is another
    metavar: str = ""  # of the option; by type and unit if not given
    shown: str | None = None  # the option's default, if `is_found`
    is_found: bool = False  # without the option the value follows from others


def setting(
    default: Any,
    meaning: str,
    unit: str = "",
    *,
    low: float = -math.inf,
    high: float = math.inf,
    excludes_low: bool = False,
    choices: tuple[str, ...] = (),
    **option: Any,
) -> Any:
    """Declare a field of a settings class, such as `tp: int = setting(2, "GPUs per instance", "GPUs")`.

    `option` sets further fields of `DeclaredSetting`.
    """
    declared = DeclaredSetting(
        default, unit, meaning, low, high, excludes_low, choices=choices, **option
    )
    return dataclasses.field(default=default, metadata={"setting": declared})


def declared_in(part: type) -> dict[str, DeclaredSetting]:
    """Return the settings that a class declares itself, by name and in order, without those of its base classes."""
    annotations = inspect.get_annotations(part)
    return {
        field.name: field.metadata["setting"]
        for field in dataclasses.fields(part)
        if field.name in annotations
    }


def check_type(name: str, kind: Any, value: Any) -> None:
    """Refuse a value that is not of its field's type; `kind` is the type's name in the annotation.

    Raises:
        ConfigError: the message begins with the field's name.
    """
    if kind not in _TYPES:
        return
    types, words = _TYPES[kind]
    is_wrong_bool = isinstance(value, bool) and kind != "bool"
    if not isinstance(value, types) or is_wrong_bool:
        raise ConfigError(f"{name}: {value!r} is not {words}")
    if kind == "float" and not math.isfinite(value):
        raise ConfigError(f"{name}: {value!r} is not finite; give a finite number")
    if kind == "int" and name != "horizon" and abs(value) > LARGEST_COUNT:
        raise ConfigError(f"{name}: {value} is too large; at most {LARGEST_COUNT}")


def check_values(config: ClusterConfig, fields: Mapping[str, dataclasses.Field[Any]]) -> None:
    """Refuse values of another type than declared, numbers out of bounds, and texts that are not among the choices.

    Raises:
        ConfigError: the message begins with the setting's name.
    """
    for name, field in fields.items():
        check_type(name, field.type, getattr(config, name))
    for name, field in fields.items():
        declared: DeclaredSetting = field.metadata["setting"]
        value = getattr(config, name)
        if field.type in ("int", "float"):
            demand(config, name, declared.permits, declared.allowed)
        elif declared.choices and value not in declared.choices:
            raise ConfigError(
                f"{name} {value!r} is not known; use {' or '.join(declared.choices)}"
                f"{closest(value, declared.choices)}"
            )


def demand(config: ClusterConfig, name: str, test: Callable[[Any], bool], words: str) -> None:
    """Refuse a field's value that fails `test`; `words` says what is allowed.

    Raises:
        ConfigError: the message begins with the field's name.
    """
    value = getattr(config, name)
    if not test(value):
        raise ConfigError(f"{name} must be {words}, got {value}")


# --- names and numbers of policies ------------------------------------------------------------------


def _named(kind: Kind, is_of_decode: bool = False) -> Any:
    """Declare the setting that names the policy of a kind, for the cluster or for the decode pool's router."""
    words = "a name of [Policies](policies.md), or `path/to/file.py:Name`"
    words += ", each with `:weight` above 0" * kind.is_list
    default = "" if kind.is_list else SAME if is_of_decode else kind.default
    meaning = kind.decides
    if is_of_decode:
        meaning = f"where --hand-over-policy sends requests to a decode pool, {meaning} there"
        meaning += "; those of --routing-scorers if not given" * kind.is_list
    metavar = "LIST" if kind.is_list else "NAME"
    is_found = kind.is_list and not is_of_decode
    return setting(
        default, meaning, words=words, metavar=metavar, shown=kind.default, is_found=is_found
    )


def _numbered(setting: registry.Setting) -> Any:
    """Declare the setting of a number that belongs to a policy of the package."""
    meaning = f"{', '.join(setting.policies)}: {setting.number.meaning}"
    declared = DeclaredSetting(**vars(setting.number) | {"meaning": meaning})
    return dataclasses.field(default=setting.number.default, metadata={"setting": declared})


if TYPE_CHECKING:

    class PolicySettings:
        """The name of a policy of each kind, and the numbers of the package's policies, one field each."""

        def __init__(self, **numbers: float) -> None: ...
        def __getattr__(self, name: str) -> Any: ...

else:
    PolicySettings = dataclasses.make_dataclass(
        "PolicySettings",
        [
            *((kind.setting, "str", _named(kind)) for kind in KINDS.values()),
            *((kind.decode_setting, "str", _named(kind, is_of_decode=True)) for kind in ROUTER),
            *(
                (name, "int" if setting.number.is_whole else "float", _numbered(setting))
                for name, setting in registry.settings().items()
            ),
        ],
        frozen=True,
    )
