"""The catalogue's entries: statement, evidence, configurations to compare, and the bounds of their claims."""

from __future__ import annotations

import math
from collections.abc import Mapping
from importlib import resources
from typing import Annotated, Any, Literal

import yaml
from pydantic import BaseModel, ConfigDict, Field, ValidationError, model_validator

from blis_jax.cluster.router import parse_scorers
from blis_jax.core.kinds import KINDS
from blis_jax.errors import ConfigError, closest
from blis_jax.files.python_files import is_file
from blis_jax.files.strict_yaml import read_mapping, sentence
from blis_jax.policies import registry
from blis_jax.workload.spec import WorkloadSpec, override
from sweeps.claims.grammar import Claim
from sweeps.claims.words import TYPES_OF, UNTESTED
from sweeps.runs.requests import load_workload
from sweeps.strategies.moved import is_setting
from sweeps.strategies.parts import ClosedPart, Text

FILES = ("routing", "scheduling", "findings", "candidates")
CORE, SCOPE, CONTROL, CONTEXT = "core", "scope", "control", "context"


class Range(ClosedPart):
    """The bounds of a value: `min` and `max` are allowed values, `above` and `below` are not."""

    min: float | None = None
    max: float | None = None
    above: float | None = None
    below: float | None = None

    @property
    def claim(self) -> Claim:
        """Return the claim that a figure lies within this range."""
        least = -math.inf if self.above is None else math.nextafter(self.above, math.inf)
        most = math.inf if self.below is None else math.nextafter(self.below, -math.inf)
        low = least if self.min is None else max(self.min, least)
        high = most if self.max is None else min(self.max, most)
        return Claim(self.words(), "", low=low, high=high)

    def words(self) -> str:
        """Describe the range, such as `at least 0 and below 5`."""
        named = (
            ("at least", self.min),
            ("at most", self.max),
            ("above", self.above),
            ("below", self.below),
        )
        return " and ".join(f"{word} {limit:g}" for word, limit in named if limit is not None)


class WorkloadChoice(ClosedPart):
    """A workload by name, with some of its numbers replaced."""

    name: Text
    aggregate_rate: float | None = None
    num_requests: int | None = None
    horizon: int | None = None  # µs
    cv: float | None = None  # of every client's gaps, drawn from a gamma law; 1 is Poisson
    prefixes: bool = True  # false: no client has a prefix group


class ArmSpec(ClosedPart):
    """One configuration: groups of settings in order, then single settings, on a workload."""

    groups: tuple[Text, ...] = Field(default=(), alias="from")
    settings: dict[str, Any] = Field(default_factory=dict, alias="set")
    workload: WorkloadChoice | None = None  # None: the entry's


class PrincipleClaim(ClosedPart):
    """One figure and its expected range.

    `role`: a `core` claim decides whether the entry holds, a `scope` claim whether it holds as widely as it is worded;
    a `control` shows that the check could have failed, and a `context` claim is only reported. A figure between
    `expected` and `falsified` narrows the entry; without `falsified` every figure outside of `expected` refutes it.
    """

    says: Text
    kind: Text
    role: Literal["core", "scope", "control", "context"] = "core"
    metric: str = "ttft_p99_ms"
    of: Any = None  # arm, or list of arms, as the kind wants
    to: Any = None
    options: dict[str, Any] = Field(default_factory=dict)
    expected: Range | None = None  # None in context claims that only report
    falsified: Range | None = None
    is_slow: bool = Field(default=False, alias="slow")

    def arms(self) -> tuple[str, ...]:
        """Return the names of all arms that the claim needs."""
        return tuple(dict.fromkeys([*_names(self.of), *_names(self.to)]))

    @model_validator(mode="after")
    def _has_a_test(self) -> PrincipleClaim:
        if self.expected is None and self.role != CONTEXT:
            raise ValueError("a claim that counts needs what is expected")
        return self


def _names(value: object) -> list[str]:
    if isinstance(value, str):
        return [value]
    if isinstance(value, list | tuple):
        return [name for entry in value for name in _names(entry)]
    return []


class Entry(ClosedPart):
    """A principle, a prior finding or a candidate, with its check."""

    id: Text
    statement: Text
    evidence: Text
    seen: str = ""  # what earlier re-runs gave
    verdict: Literal["holds", "holds, narrower", "not supported", "untested", "process", "stated"]
    family: Literal[tuple(TYPES_OF)]  # type: ignore[valid-type]
    vvuq: Literal["Verification", "Validation", "UQ"]
    type: Literal["Deterministic", "Dominance", "Monotonicity", "Equivalence", "Pareto"]
    falsified_if: Text
    remark: str = ""  # what the check cannot show, or where it departs from the catalogue
    seeds: tuple[int, ...] = (42, 43, 44)
    workload: WorkloadChoice | None = None
    arms: dict[str, ArmSpec] = Field(default_factory=dict)
    claims: Annotated[tuple[PrincipleClaim, ...], Field(min_length=1)]
    source: str = ""

    def workload_of(self, arm: str) -> WorkloadChoice:
        """Return the workload of an arm: its own, else the entry's.

        Raises:
            ConfigError: neither has a workload.
        """
        chosen = self.arms[arm].workload or self.workload
        if chosen is None:
            raise ConfigError(f"{self.source}: {self.id}: arm {arm!r} has no workload")
        return chosen

    @model_validator(mode="after")
    def _consistent(self) -> Entry:
        if self.type not in TYPES_OF[self.family]:
            allowed = ", ".join(TYPES_OF[self.family])
            raise ValueError(f"type {self.type} does not go with {self.family}; use {allowed}")
        if self.verdict != UNTESTED and len(self.seeds) < 3:
            raise ValueError("seeds: a check needs at least 3 seeds")
        for claim in self.claims:
            for arm in claim.arms():
                if arm not in self.arms:
                    raise ValueError(f"arm {arm!r} is unknown{closest(arm, self.arms)}")
        return self


class Catalogue(BaseModel):
    """The entries by id, and the groups of settings that their arms refer to."""

    model_config = ConfigDict(frozen=True)
    groups: dict[str, dict[str, Any]]
    entries: dict[str, Entry]

    def settings_of(self, entry: Entry, arm: str) -> dict[str, Any]:
        """Return the settings of an arm: its own replace those of its groups, and later groups replace earlier ones."""
        spec = entry.arms[arm]
        settings: dict[str, Any] = {}
        for name in spec.groups:
            settings |= self.groups[name]
        return settings | spec.settings


def parse_catalogue(texts: Mapping[str, str]) -> Catalogue:
    """Read the catalogue from YAML texts by name of the source: `groups`, and entries under `entries`.

    Raises:
        ConfigError: an entry is malformed, its id is given twice, or its group is unknown.
    """
    groups: dict[str, dict[str, Any]] = {}
    entries: dict[str, Entry] = {}
    for source, text in texts.items():
        document = read_mapping(text, source)
        groups |= document.get("groups") or {}
        for place, values in enumerate(document.get("entries") or ()):
            try:
                entry = Entry.model_validate({**values, "source": source})
            except ValidationError as error:
                where = values.get("id", f"entries[{place}]")
                raise ConfigError(f"{source}: {where}: {sentence(error)}") from None
            if entry.id in entries:
                raise ConfigError(f"{source}: {entry.id}: the id is given twice; keep one of them")
            entries[entry.id] = entry
    for entry in entries.values():
        for arm, spec in entry.arms.items():
            for name in spec.groups:
                if name not in groups:
                    raise ConfigError(
                        f"{entry.source}: {entry.id}: arms.{arm}: group {name!r} is unknown"
                        f"{closest(name, groups)}"
                    )
    return Catalogue(groups=groups, entries=entries)


def load_catalogue() -> Catalogue:
    """Load the catalogue that comes with the package."""
    folder = resources.files("sweeps.principles") / "entries"
    return parse_catalogue(
        {f"{name}.yaml": (folder / f"{name}.yaml").read_text(encoding="utf-8") for name in FILES}
    )


def chosen(catalogue: Catalogue, only: str | None) -> list[Entry]:
    """Return the entries named in a list such as `RP-10,S7`, in the catalogue's order; all if None.

    Raises:
        ConfigError: an id is unknown, or none is named.
    """
    if only is None:
        return list(catalogue.entries.values())
    names = [name.strip() for name in only.split(",") if name.strip()]
    for name in names:
        if name not in catalogue.entries:
            raise ConfigError(
                f"--only: {name!r} is no entry of the catalogue; there are "
                f"{', '.join(catalogue.entries)}{closest(name, catalogue.entries)}"
            )
    if not names:
        raise ConfigError("--only: no entry is named; write for instance RP-10,S7")
    return [entry for name, entry in catalogue.entries.items() if name in names]


def content_of(catalogue: Catalogue, entry: Entry) -> str:
    """Return all that decides an entry's check, as a text; the entry's wording is left out."""
    words = {"statement", "evidence", "seen", "remark", "source", "falsified_if"}
    document = entry.model_dump(mode="json", exclude=words)
    document["settings"] = {arm: catalogue.settings_of(entry, arm) for arm in entry.arms}
    return yaml.safe_dump(document, sort_keys=True)


def workload_named(choice: WorkloadChoice) -> WorkloadSpec:
    """Load a workload of either package, with numbers replaced as `choice` says."""
    spec = load_workload(choice.name)
    numbers = choice.model_dump(include={"aggregate_rate", "num_requests", "horizon"})
    changes: dict[str, Any] = {key: value for key, value in numbers.items() if value is not None}
    clients = [client.model_dump() for client in spec.clients]
    for client in clients:
        if choice.cv is not None:
            client["arrival"] = _gaps(choice.cv)
        if not choice.prefixes:
            client["prefix_group"], client["prefix_length"] = "", 0
    return override(spec, clients=clients, **changes)


def _gaps(cv: float) -> dict[str, Any]:
    return {"process": "poisson"} if cv == 1 else {"process": "gamma", "cv": cv}


_NAMES = {
    kind.setting: registry.NAMES[kind.name]
    for kind in KINDS.values()
    if not (kind.is_list or kind.is_optional)
}


def missing(settings: Mapping[str, Any]) -> str:
    """Return a sentence on the first setting or policy that does not exist in blis_jax; empty if all exist."""
    for name, value in settings.items():
        if not is_setting(name):
            return f"blis_jax has no setting {name}"
        known = _NAMES.get(name)
        if known is not None and value not in known and not is_file(value):
            return f"{name} {value!r} is not registered (there are {', '.join(known)})"
    if settings.get("routing_policy") == "weighted" and settings.get("routing_scorers"):
        for name, _ in parse_scorers(settings["routing_scorers"]):
            if name not in registry.SCORERS and not is_file(name):
                scorers = ", ".join(registry.SCORERS)
                return f"scorer {name!r} is not registered (there are {scorers})"
    return ""
