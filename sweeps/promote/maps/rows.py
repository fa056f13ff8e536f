"""The rows of Maps A, B and C, read from `data/` and checked."""

from __future__ import annotations

import functools
from collections.abc import Mapping, Sequence
from importlib import resources
from typing import Annotated, Any, Literal, TypeVar

from pydantic import BaseModel, ConfigDict, Field, TypeAdapter, ValidationError, model_validator

from blis_jax.errors import ConfigError, closest
from blis_jax.files.strict_yaml import read_yaml, sentence

Status = Literal["exact", "approximate", "code", "none"]
Text = Annotated[str, Field(min_length=1)]
SCORER_WEIGHT = "routing_scorers."  # begins the name of one scorer's weight


class _Row(BaseModel):
    model_config = ConfigDict(extra="forbid", frozen=True)


class SettingRow(_Row):
    """Map A: what some settings of a `ClusterConfig` become."""

    settings: Annotated[tuple[Text, ...], Field(min_length=1)]
    part: Literal["router", "request", "engine", "cluster", "simulation"]  # who holds the knob
    layer: Literal[
        "admission", "routing", "order", "batching", "memory", "cluster", "simulation"
    ]  # what an ablation arm changes alone
    status: Status
    knob: Text
    rule: Text
    fallback: str = ""  # what is done where the status is none

    @model_validator(mode="after")
    def _none_has_a_fallback(self) -> SettingRow:
        if self.status == "none" and not self.fallback:
            raise ValueError("status none needs a fallback")
        return self


class PolicyRow(_Row):
    """Map A: what a policy of the package becomes."""

    policy: Annotated[str, Field(pattern=r"^[a-z_]+/[a-z-]+$")]  # KIND/NAME
    status: Status
    knob: Text
    rule: Text
    plugin: str = ""  # built-in type of the target
    producer: str = ""  # data producer that the plugin reads
    neutral: dict[str, float] | None = None  # numbers that make a generated plugin do nothing
    fallback: str = ""  # what is done without a generated plugin
    proposal: str = ""  # what to write instead, where nothing can be done


class InterfaceRow(_Row):
    """Map A: what a kind of policy is in the target."""

    kind: Text
    interface: Text
    method: Text
    rule: Text


class SignalRow(_Row):
    """Map B: a field that a policy may read."""

    name: Annotated[str, Field(pattern=r"^[a-z_]+\.[a-z0-9_]+$")]  # CONTEXT.FIELD
    unit: Text
    range: Text
    source: Text  # in the target
    metric: Text  # of the engine
    here: Text  # freshness in the simulator
    there: Text  # freshness in the target
    conversion: Text
    status: Status
    gap: str = ""  # difference in freshness; empty: none


class GapRow(_Row):
    """Map C: what has no model on one side, with the hypothesis that tests it."""

    id: Annotated[str, Field(pattern=r"^[a-z0-9-]+$")]
    title: Text
    risk: Literal["low", "medium", "high"]
    signals: tuple[Text, ...]
    simulated: Text  # which settings bring it into a simulation
    simulate: dict[str, Any]  # settings that do
    stress: Text  # what a test on a cluster changes
    setup: dict[str, Any] = Field(default_factory=dict)  # scenario keys of the stress
    statement: Text
    mechanism: Text
    diagnostic: Text
    no_profile: str = ""  # why no profile can make the stress


_R = TypeVar("_R", bound=_Row)


@functools.cache
def _rows(row: type[_R], name: str) -> tuple[_R, ...]:
    file = resources.files("sweeps.promote.maps") / "data" / f"{name}.yaml"
    return parsed_rows(row, read_yaml(file.read_text(encoding="utf-8"), f"{name}.yaml"), name)


def parsed_rows(row: type[_R], given: object, source: str) -> tuple[_R, ...]:
    """Rows of one kind from plain data; `source` begins errors."""
    try:
        return TypeAdapter(tuple[row, ...]).validate_python(given)  # type: ignore[valid-type]
    except ValidationError as error:
        raise ConfigError(f"{source}: {sentence(error)}") from None


def setting_rows() -> tuple[SettingRow, ...]:
    """All rows for settings."""
    return _rows(SettingRow, "settings")


def policy_rows() -> tuple[PolicyRow, ...]:
    """All rows for policies."""
    return _rows(PolicyRow, "policies")


def interface_rows() -> tuple[InterfaceRow, ...]:
    """All rows for kinds of policies."""
    return _rows(InterfaceRow, "interfaces")


def signal_rows() -> tuple[SignalRow, ...]:
    """All rows for signals."""
    return _rows(SignalRow, "signals")


def gap_rows() -> tuple[GapRow, ...]:
    """All rows of Map C."""
    return _rows(GapRow, "gaps")


def setting_row(name: str) -> SettingRow:
    """The row of a setting, of one scorer's weight, or of a number that a policy's name begins.

    Raises:
        ConfigError: no row has it.
    """
    known = {setting: row for row in setting_rows() for setting in row.settings}
    if name.startswith(SCORER_WEIGHT):
        return known["routing_scorers"]
    if name not in known and "." in name:
        return known["policy_numbers"]
    return _found(known, name, "setting", "A")


def policy_row(kind: str, name: str) -> PolicyRow | None:
    """The row of a policy of the package; None for one from a file."""
    return {row.policy: row for row in policy_rows()}.get(f"{kind}/{name}")


def _found(known: Mapping[str, _R], name: str, what: str, map_name: str) -> _R:
    if name in known:
        return known[name]
    names: Sequence[str] = sorted(known)
    raise ConfigError(
        f"{what} {name!r} has no row in Map {map_name}; add one, with its status{closest(name, names)}"
    )
