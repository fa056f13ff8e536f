"""What the endpoint picker of one version takes: plugin types with their parameters, gates, API versions."""

from __future__ import annotations

import functools
from collections.abc import Mapping
from importlib import resources
from typing import Annotated, Any, Literal

from pydantic import BaseModel, ConfigDict, Field, ValidationError

from blis_jax.errors import ConfigError, closest
from blis_jax.files.strict_yaml import read_mapping, sentence

_FOLDER = resources.files("sweeps.promote.checks") / "data"
# each as a JSON schema; `x-rule` names the rule that a wrong value breaks
PARAMETER_TYPES: dict[str, dict[str, Any]] = {
    "int": {"type": "integer", "x-rule": "threshold-not-integer"},
    "count": {"type": "integer", "minimum": 0, "x-rule": "threshold-not-integer"},
    "positive": {"type": "integer", "minimum": 1, "x-rule": "threshold-not-integer"},
    "number": {"type": "number"},
    "share": {"type": "number", "minimum": 0, "maximum": 1},
    "part": {"type": "number", "exclusiveMinimum": 0, "maximum": 1},
    "flag": {"type": "boolean"},
    "text": {"type": "string", "minLength": 1},
    "duration": {
        "type": "string",
        "pattern": r"^([0-9]+(\.[0-9]+)?(ns|us|µs|ms|s|m|h))+$",
        "x-rule": "unit-string",
        "x-allowed": 'a duration in quotes with its unit, such as "200ms"',
    },
    "object": {"type": "object"},
    "list": {"type": "array"},
}
BLOCKS = {"blockSizeTokens", "lruCapacityPerServer", "maxPrefixBlocksToMatch", "lruSize"}
Kind = Literal[
    "scorer", "filter", "picker", "handler", "decider", "producer", "source", "extractor",
    "detector", "admitter", "ordering", "fairness", "usage-limit",
]  # fmt: skip
ParameterType = Literal[
    "int", "count", "positive", "number", "share", "part", "flag", "text", "duration", "object",
    "list",
]  # fmt: skip


class _Part(BaseModel):
    model_config = ConfigDict(extra="forbid", frozen=True)


class PluginType(_Part):
    """A registered type of plugin."""

    kind: Kind
    stability: Literal["Alpha", "Beta", "Stable"] = "Beta"
    deprecated: str = ""  # what to use instead
    parameters: dict[str, ParameterType] = Field(default_factory=dict)

    def closed_schema(self) -> dict[str, Any]:
        """The closed JSON schema of its parameters."""
        return {
            "type": "object",
            "additionalProperties": False,
            "properties": {
                name: _negative_block(name, PARAMETER_TYPES[kind])
                for name, kind in self.parameters.items()
            },
        }


def _negative_block(name: str, schema: dict[str, Any]) -> dict[str, Any]:
    """Sizes of blocks have a rule of their own."""
    if name not in BLOCKS:
        return schema
    return schema | {"x-rule": "negative-block", "x-allowed": "a whole number above 0"}


class TargetTypes(_Part):
    """One version of the endpoint picker."""

    source: str
    commit: Annotated[str, Field(pattern="^[0-9a-f]{40}$")]
    config_api_version: str
    config_deprecated: tuple[str, ...]
    objective_api_version: str
    pool_api_version: str
    feature_gates: tuple[str, ...]
    alpha_flag: str  # empty: the version has no stability levels
    is_detector_at_top: bool = False  # saturationDetector stands beside flowControl, not in it
    least_prefix_block: int  # tokens
    plugins: dict[str, PluginType]

    def with_plugins(self, generated: Mapping[str, PluginType]) -> TargetTypes:
        """The version with the plugins that a promotion adds."""
        return self.model_copy(update={"plugins": {**self.plugins, **generated}})


def list_targets() -> tuple[str, ...]:
    """Versions whose types are known."""
    return tuple(
        sorted(
            file.name.removesuffix(".yaml")
            for file in _FOLDER.iterdir()
            if file.name.endswith(".yaml")
        )
    )


@functools.cache
def target_types(target: str) -> TargetTypes:
    """The types of a version NAME@VERSION.

    Raises:
        ConfigError: the version is not known.
    """
    if target not in list_targets():
        raise ConfigError(
            f"target {target!r} is unknown to the checks; use one of {', '.join(list_targets())}"
            f"{closest(target, list_targets())}"
        )
    try:
        return TargetTypes.model_validate(_declared(target))
    except ValidationError as error:
        raise ConfigError(f"{target}.yaml: {sentence(error)}") from None


def _declared(target: str) -> dict[str, Any]:
    """What a file says, on top of the version that it extends."""
    text = (_FOLDER / f"{target}.yaml").read_text(encoding="utf-8")
    own = dict(read_mapping(text, f"{target}.yaml"))
    if "extends" not in own:
        return own
    base = _declared(own.pop("extends"))
    gone = own.pop("without", ())
    plugins = {name: one for name, one in base["plugins"].items() if name not in gone}
    return {**base, **own, "plugins": plugins | own.get("plugins", {})}
