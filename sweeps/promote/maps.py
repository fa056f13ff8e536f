"""Read Maps A, B and C (translation to the target) from `maps/data/`; make stage 1: the rows that a promotion needs."""

from __future__ import annotations

import dataclasses
import functools
import re
from collections.abc import Iterable, Iterator
from typing import Annotated, Any, Literal, TypeVar

from pydantic import Field, model_validator

from blis_jax.cluster.config import ClusterConfig
from blis_jax.cluster.named_policies import admission_name, numbered
from blis_jax.cluster.named_policies import policies_of as policies_in
from blis_jax.core.kinds import KINDS, NONE
from blis_jax.errors import ConfigError, closest
from blis_jax.policies.contract import Policy
from blis_jax.policies.reading import NUM_KEYS
from blis_jax.policies.reading import signals_of as signals_of_policy
from blis_jax.policies.scenes import scene_of
from sweeps.promote.promotion import Files, Promotion
from sweeps.promote.store import checked, data_file, render, yaml_text
from sweeps.strategies.moved import known_as, today
from sweeps.strategies.parts import ClosedPart, Text

# llm-d: higher is more important, below 0 may be shed
CLASS_PRIORITY = {"critical": 4, "standard": 3, "batch": -1, "sheddable": -2, "background": -3}
OBJECTIVE = "slo-"  # begins the name of a class's objective
UNCLASSED_PRIORITY = 0  # of requests without an objective


def objective_name(slo_class: str) -> str:
    """Return the name of a class's objective, as requests send it in the header x-llm-d-inference-objective."""
    return f"{OBJECTIVE}{slo_class}"


Status = Literal["exact", "approximate", "code", "none"]
SCORER_WEIGHT = "routing_scorers."  # begins the name of one scorer's weight
NUMBER = "NUMBER"  # behind what begins a policy's numbers: any of them


class SettingRow(ClosedPart):
    """Hold what settings of a `ClusterConfig` become in the target (Map A); `admission.NUMBER`: any policy number."""

    settings: Annotated[tuple[Text, ...], Field(min_length=1)]
    part: Literal["router", "request", "engine", "cluster", "simulation"]  # who holds the knob
    # what an ablation arm changes alone
    layer: Literal["admission", "routing", "order", "batching", "memory", "cluster", "simulation"]
    status: Status
    knob: Text
    rule: Text
    fallback: str = ""  # what is done where the status is none

    @model_validator(mode="after")
    def _none_has_a_fallback(self) -> SettingRow:
        if self.status == "none" and not self.fallback:
            raise ValueError("status none needs a fallback")
        return self


class PolicyRow(ClosedPart):
    """Hold what a policy of the package becomes in the target (Map A)."""

    policy: Annotated[str, Field(pattern=r"^[a-z_]+/[a-z-]+$")]  # KIND/NAME
    status: Status
    knob: Text
    rule: Text
    plugin: str = ""  # built-in type of the target
    producer: str = ""  # data producer that the plugin reads
    neutral: dict[str, float] | None = None  # numbers that make a generated plugin do nothing
    fallback: str = ""  # what is done without a generated plugin
    proposal: str = ""  # what to write instead, where nothing can be done


class InterfaceRow(ClosedPart):
    """Hold the target's interface for a kind of policy (Map A)."""

    kind: Text
    interface: Text
    method: Text
    rule: Text


class SignalRow(ClosedPart):
    """Describe a signal that a policy may read, here and in the target (Map B)."""

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


class GapRow(ClosedPart):
    """Describe a gap: an effect that only the simulator or only the cluster has, and its hypothesis (Map C)."""

    id: Annotated[str, Field(pattern=r"^[a-z0-9-]+$")]
    title: Text
    risk: Literal["low", "medium", "high"]
    signals: tuple[Text, ...]
    simulated: Text  # which settings bring it into a simulation
    simulate: dict[str, Any]  # settings that do
    stress: Text  # what a test on a cluster changes
    setup: dict[str, Any] = Field(default_factory=dict)  # scenario keys of the stress, for all arms
    picker: Literal["", "no-engine-priority"] = ""  # change of every arm's picker
    profile: dict[str, float] = Field(default_factory=dict)  # change of the profile, by its knob
    statement: Text
    mechanism: Text
    diagnostic: Text
    no_profile: str = ""  # why no profile can make the stress

    @model_validator(mode="after")
    def _has_a_stress(self) -> GapRow:
        stresses = bool(self.setup) + bool(self.profile) + bool(self.picker)
        if bool(self.no_profile) == bool(stresses):
            raise ValueError("give a stress (setup, picker, profile), or why there is no profile")
        return self


_R = TypeVar("_R", bound=ClosedPart)


_FILES = {
    SettingRow: "settings", PolicyRow: "policies", InterfaceRow: "interfaces", SignalRow: "signals",
    GapRow: "gaps",
}  # fmt: skip


@functools.cache
def rows_of(kind: type[_R]) -> tuple[_R, ...]:
    """Return all rows of a type."""
    name = _FILES[kind]
    return parsed_rows(kind, data_file(f"maps/data/{name}.yaml"), name)


def parsed_rows(row: type[_R], content: object, source: str) -> tuple[_R, ...]:
    """Return rows of one type from plain data; error messages begin with `source`."""
    return checked(tuple[row, ...], content, source)  # type: ignore[valid-type]


def setting_row(name: str) -> SettingRow:
    """Return the row for a setting, a scorer's weight, or a policy's number.

    Raises:
        ConfigError: the setting has no row.
    """
    known = {setting: row for row in rows_of(SettingRow) for setting in row.settings}
    name = today(name)
    if name.startswith(SCORER_WEIGHT):
        return known["routing_scorers"]
    if name not in known and "." in name:
        return known.get(f"{name.partition('.')[0]}.{NUMBER}", known["policy_numbers"])
    if name not in known:
        raise ConfigError(
            f"setting {name!r} has no row in Map A; add one, with its status{closest(name, sorted(known))}"
        )
    return known[name]


def policy_row(kind: str, name: str) -> PolicyRow | None:
    """Return the row of a policy of the package or of a track's experiment; None for a policy from a user's file."""
    return {row.policy: row for row in rows_of(PolicyRow)}.get(f"{kind}/{known_as(name)}")


def place_of(kind: str) -> str:
    """Return Map B's word for a policy kind's context, such as `hand_over` for HandOverContext."""
    words = re.findall("[A-Z][a-z]+", KINDS[kind].context.removesuffix("Context"))
    return "_".join(words).lower()


def policies_of(config: ClusterConfig) -> Iterator[tuple[str, Policy]]:
    """Yield (kind, policy) for each policy that a configuration uses."""
    for policy in policies_in(numbered(config)):
        yield policy.kind, policy


def signals_of(config: ClusterConfig) -> tuple[str, ...]:
    """Return the signals that a configuration's policies read, by their names in Map B, sorted."""
    signals: set[str] = set()
    for _, policy in policies_of(config):
        signals |= signals_read(policy, max(len(config.scorers()), 1))
    return tuple(sorted(signals))


def signals_read(policy: Policy, num_scorers: int = 1) -> set[str]:
    """Return the signals that one policy reads when the router has `num_scorers` scorers."""
    fields = {field.name for field in dataclasses.fields(scene_of(policy.kind))}
    place = place_of(policy.kind)
    return {
        # a hand-over policy is also asked where requests may be routed
        signal if "." in signal else f"{place if signal in fields else 'gateway'}.{signal}"
        for signal in signals_of_policy(policy.function(), num_scorers=num_scorers)
        if signal != NUM_KEYS
    }


DICTIONARY = "translation-dictionary.yaml"
PAGE = "translation-dictionary.md"


def maps_files(promotion: Promotion) -> Files:
    """Return `translation-dictionary.yaml` and `.md`: all rows, with a mark on those that the strategy needs."""
    document = dictionary(promotion)
    return {DICTIONARY: yaml_text(document), PAGE: render("dictionary.md.j2", document=document)}


def reference_page() -> str:
    """Return the reference page for the docs, with all rows."""
    return render(
        "maps.md.j2",
        interfaces=_dumped(rows_of(InterfaceRow)),
        policies=_dumped(rows_of(PolicyRow)),
        settings=_dumped(rows_of(SettingRow)),
        signals=_dumped(rows_of(SignalRow)),
        gaps=_dumped(rows_of(GapRow)),
    )


def _dumped(rows: Iterable[Any]) -> list[dict[str, Any]]:
    return [row.model_dump(mode="json") for row in rows]


def dictionary(promotion: Promotion) -> dict[str, Any]:
    """Return Maps A, B and C as plain data; `used` marks rows that apply to the strategy."""
    config = promotion.arm.config
    kinds = {kind for kind, _ in policies_of(config)}
    names = named_policies(promotion)
    read = set(signals_of(config))
    return {
        "strategy": promotion.given,
        "baseline": promotion.baseline.name,
        "target": promotion.target,
        "policies_from_files": sorted(
            (kind, without_folders(name)) for kind, name in names if policy_row(kind, name) is None
        ),
        "map_a": {
            "interfaces": [
                _filled(row) | {"used": row.kind in kinds} for row in rows_of(InterfaceRow)
            ],
            "policies": [
                _filled(row) | {"used": tuple(row.policy.split("/")) in names}
                for row in rows_of(PolicyRow)
            ],
            "settings": [_filled(row) for row in rows_of(SettingRow)],
        },
        "map_b": [_filled(row) | {"used": row.name in read} for row in rows_of(SignalRow)],
        "map_c": [
            _filled(row) | {"used": not row.signals or bool(read & set(row.signals))}
            for row in rows_of(GapRow)
        ],
    }


_ENDS = {  # what becomes of a policy, by its status
    "exact": "is there with equal results",
    "approximate": "is there with results nearly equal",
    "code": "needs a plugin that is generated",
    "none": "has no place there",
}


def in_words(promotion: Promotion) -> str:
    """Return in a sentence what becomes of each policy of the strategy at the target."""
    policies: dict[str, list[str]] = {}
    for row in dictionary(promotion)["map_a"]["policies"]:
        if row["used"]:
            policies.setdefault(row["status"], []).append(row["policy"])
    parts = [
        f"{end}: {', '.join(policies[status])}"
        for status, end in _ENDS.items()
        if status in policies
    ]
    compiled = [f"{kind}/{name}" for kind, name in dictionary(promotion)["policies_from_files"]]
    parts += (
        [f"is a policy of a file, which is compiled: {', '.join(compiled)}"] if compiled else []
    )
    return f"of {promotion.given}, what {'; what '.join(parts)}."


def named_policies(promotion: Promotion) -> set[tuple[str, str]]:
    """Return (kind, name) of every policy that the strategy's configuration names."""
    config = promotion.arm.config
    names = {("admission", known_as(admission_name(config)))}
    for kind in KINDS.values():
        name = str(getattr(config, kind.setting))
        if not (kind.is_list or kind.name == "admission" or (kind.is_optional and name == NONE)):
            names.add((kind.name, known_as(name)))
    return names | {("scorer", known_as(name)) for name, _ in config.scorers()}


def _filled(row: Any) -> dict[str, Any]:
    plain: dict[str, Any] = row.model_dump(mode="json")
    return {
        key: value
        for key, value in plain.items()
        if value is not None and (value != "" or key == "gap")
    }


def without_folders(text: str) -> str:
    """Return a text with the folders of policy files removed, so that it is the same on every machine."""
    return re.sub(r"[^,\s]*/([^/,]+\.py:)", r"\1", text)


if __name__ == "__main__":
    print(reference_page(), end="")
