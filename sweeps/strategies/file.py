"""Strategy files: a mechanism, the numbers of it that a search may change, and what is wanted.

Files are YAML. The reference's own files (`fixed_args`, `flag`, `workload_spec`, `objective`) are
read unchanged, and mean what its search script makes of them: reals are passed on with six
decimals, and penalties are taken seed by seed. `sweeps/strategies/library` holds the library.
"""

from __future__ import annotations

import json
import re
import warnings
from collections.abc import Mapping
from importlib import resources
from pathlib import Path
from typing import Annotated, Any, Literal

from pydantic import (
    BaseModel,
    ConfigDict,
    Field,
    SerializerFunctionWrapHandler,
    ValidationError,
    model_serializer,
    model_validator,
)

from blis_jax.cluster.config import FIELDS
from blis_jax.cluster.instance_groups import groups_of
from blis_jax.cluster.named_policies import is_policy_number
from blis_jax.errors import ConfigError, ConfigWarning, choices, closest
from blis_jax.files.input_files import read_text
from blis_jax.files.strict_yaml import read_mapping, sentence
from blis_jax.policies.moved import ours, tell_of, today
from sweeps.claims.grammar import CHANGE, Claim, bound

FOLDER = "strategies/library"
OLD = "settings"  # how files called the mechanism until November 2026
SHORT_NAMES = {  # of a strategy, or of one of its points
    "baseline": "iter00_baseline",
    "it08_opt": "iter08_token_budget@published",
}
FLAG_DECIMALS = 6  # how the reference's search script writes a real
Direction = Literal["min", "max"]
Text = Annotated[str, Field(min_length=1)]
Number = Annotated[float, Field(allow_inf_nan=False)]
Weight = Annotated[float, Field(ge=0, allow_inf_nan=False)]


class ClosedPart(BaseModel):
    """Read a part of a file: unknown keys are refused, and nothing changes it."""

    model_config = ConfigDict(extra="forbid", frozen=True)


class Parameter(ClosedPart):
    """A number or a choice that the search sets, in a setting or in one scorer's weight.

    `target` is a setting (`max_num_scheduled_tokens`) or a weight (`routing_scorers.queue-depth`);
    `flag` is the reference's name of a setting. `decimals` rounds what is simulated.
    """

    name: Text
    target: Text | None = None
    flag: Annotated[str, Field(pattern=r"^--[a-z-]+$")] | None = None
    type: Literal["real", "integer", "categorical"] | None = None
    low: Number | None = None
    high: Number | None = None
    prior: Literal["uniform", "log-uniform"] = "uniform"
    categories: tuple[Any, ...] | None = None
    decimals: Annotated[int, Field(ge=0, le=15)] | None = None


class Override(ClosedPart):
    """Settings that replace others where the parameters have these values."""

    when: dict[str, Any]
    settings: dict[str, Any]


class OnGpus(ClosedPart):
    """Settings that replace the mechanism's on some GPUs."""

    gpus: Annotated[tuple[Text, ...], Field(min_length=1)]
    settings: dict[str, Any]


class Objective(ClosedPart):
    """A metric to make small or large; several are added up with their weights, or form a front."""

    metric: Text
    direction: Direction | None = None  # None: the metric's own
    weight: Weight = 1.0
    at: Text | None = None  # one of the strategy's loads; None: its workload


class Constraint(ClosedPart):
    """`weight` × how far the metric is past its threshold; `min` bounds it above, `max` below."""

    metric: Text
    direction: Direction
    threshold: Number
    weight: Weight = 100.0
    at: Text | None = None  # one of the strategy's loads; None: its workload

    @property
    def claim(self) -> Claim:
        """Return the bound, without the load."""
        return bound(self.metric, self.direction, self.threshold)


class SearchLoad(ClosedPart):
    """A further workload on which a search runs every point; objectives and constraints name it with `at`."""

    workload: Annotated[str | dict[str, Any], Field()]
    rate: Annotated[float, Field(gt=0, allow_inf_nan=False)] | None = None  # requests per second
    num_requests: Annotated[int, Field(ge=1)] | None = None


class SuccessCriterion(ClosedPart):
    """What the best point should reach: a threshold, or a change against the baseline in %."""

    metric: Text
    direction: Direction
    threshold: Number | None = None
    change_percent: Number | None = None

    @model_validator(mode="after")
    def _one_of_both(self) -> SuccessCriterion:
        if (self.threshold is None) == (self.change_percent is None):
            raise ValueError("give either threshold or change_percent")
        return self

    @property
    def claim(self) -> Claim:
        """Return what it claims of all requests, or of the class that it names."""
        if self.threshold is not None:
            return bound(self.metric, self.direction, self.threshold)
        assert self.change_percent is not None
        return bound(self.metric, self.direction, self.change_percent, CHANGE)


class Bounds(ClosedPart):
    """What a required setting must be."""

    min: Number | None = None
    max: Number | None = None
    equals: object = None

    def broken(self, value: Any) -> str | None:
        """Return what a value should be and is not; None if it is."""
        if self.equals is not None and value != self.equals:
            return f"{self.equals!r}"
        if self.min is not None and not value >= self.min:
            return f"at least {self.min:g}"
        if self.max is not None and not value <= self.max:
            return f"at most {self.max:g}"
        return None


class Limits(ClosedPart):
    """SLO targets of one class, ms."""

    ttft_ms: Annotated[float, Field(gt=0)] | None = None
    tpot_ms: Annotated[float, Field(gt=0)] | None = None
    e2e_ms: Annotated[float, Field(gt=0)] | None = None


class Search(ClosedPart):
    """The budget, and how it is spent; the command's options replace these."""

    engine: Text = "denoised"
    calls: Annotated[int, Field(ge=1, le=100_000)] = 40
    initial: Annotated[int, Field(ge=1)] = 8
    batch: Annotated[int, Field(ge=1, le=4096)] = 8
    random_state: Annotated[int, Field(ge=0, lt=2**32)] = 42
    start: tuple[Text, ...] = ()  # points of the file that are tried first
    # numbers of seeds after which a point is dropped unless it may be the best; calls count points on all seeds
    rungs: tuple[Annotated[int, Field(ge=2)], ...] = ()
    failure_score: Number = 1e6  # of a point with a run that did not come to its end

    @model_validator(mode="after")
    def _ascending(self) -> Search:
        if list(self.rungs) != sorted(set(self.rungs)):
            given = ", ".join(map(str, self.rungs))
            raise ValueError(f"rungs must grow, such as [4, 16]; given are [{given}]")
        if self.rungs and self.engine == "pareto":
            raise ValueError(
                "rungs compare points with one best point, and the engine pareto has many; leave rungs out"
            )
        return self

    @model_serializer(mode="wrap")
    def _plain(self, handler: SerializerFunctionWrapHandler) -> dict[str, Any]:
        found: dict[str, Any] = handler(self)
        if not self.rungs:  # records of searches without rungs stay what they were
            found.pop("rungs", None)
        return found


class Strategy(ClosedPart):
    """A checked strategy file; `sweeps.strategies.space` turns it into a search space."""

    name: Text
    description: str = ""
    mechanism: dict[str, Any] = Field(default_factory=dict)
    on_gpus: tuple[OnGpus, ...] = ()
    fixed_args: tuple[str, ...] = ()
    parameters: tuple[Parameter, ...] = ()
    overrides: tuple[Override, ...] = ()
    points: dict[str, dict[str, Any]] = Field(default_factory=dict)  # parameters by name of a point
    objectives: tuple[
        Objective, ...
    ] = ()  # none: a file that is swept and compared, but not searched
    constraints: tuple[Constraint, ...] = ()
    penalties: Literal["seed-mean", "each-seed", "expected"] = "seed-mean"
    workload: Annotated[str | dict[str, Any], Field()] = "mixed"
    loads: dict[str, SearchLoad] = Field(default_factory=dict)
    seeds: Annotated[tuple[Annotated[int, Field(ge=0)], ...], Field(min_length=1)] = (42, 43, 44)
    targets: dict[str, Limits] | None = None
    success_criteria: tuple[SuccessCriterion, ...] = ()
    baseline: Text = "iter00_baseline"
    required_settings: dict[str, Bounds] = Field(default_factory=dict)
    prior_findings: tuple[str, ...] = ()
    deviations: tuple[str, ...] = ()  # of this mechanism from the record's
    search: Search = Search()
    source: str = ""  # names the file in errors
    folder: Path | None = None  # where relative paths begin
    parameter_paths: tuple[str, ...] = ()  # name the parameters in errors

    def settings_on(self, gpu: str) -> dict[str, Any]:
        """Return the settings that the file has for this GPU alone."""
        found: dict[str, Any] = {}
        for part in self.on_gpus:
            if gpu in part.gpus:
                found |= ours(part.settings)
        return found

    def refuse(self, path: str, problem: str) -> ConfigError:
        """Return an error about one key of the file."""
        return ConfigError(f"{self.source}: {path}: {problem}")


def parse_strategy(text: str, source: str, folder: Path | None = None) -> Strategy:
    """Parse and check a YAML text; `source` names it in errors."""
    data = read_mapping(text, source)
    paths = _parameter_paths(data.get("parameters"))
    try:
        document = _in_our_words(data, source)
        document |= {"source": source, "folder": folder, "parameter_paths": paths}
        strategy = Strategy.model_validate(document)
    except ValidationError as error:
        problem = _unknown_key(error) or sentence(error)
        problem = re.sub(r"^parameters\[(\d+)\]", lambda found: paths[int(found[1])], problem)
        raise ConfigError(f"{source}: {problem}") from None
    targets = dict.fromkeys(one.target for one in strategy.parameters if one.target is not None)
    tell_of({**targets, **strategy.mechanism}, f"{source}: ")
    return strategy


def list_library() -> tuple[str, ...]:
    """Return the names of the strategies that come with the package."""
    folder = resources.files("sweeps") / FOLDER
    return tuple(sorted(file.name[:-5] for file in folder.iterdir() if file.name.endswith(".yaml")))


def load_strategy(name_or_path: str) -> Strategy:
    """Return a strategy of the library, by its name or a short one, or that of a `.yaml` file."""
    name = SHORT_NAMES.get(name_or_path, name_or_path)
    if name in list_library():
        file = resources.files("sweeps") / FOLDER / f"{name}.yaml"
        return parse_strategy(file.read_text(encoding="utf-8"), f"{name}.yaml")
    if not name_or_path.endswith((".yaml", ".yml")):
        raise ConfigError(
            f"strategy {name_or_path!r} is unknown; {choices(name_or_path, list_library())}; "
            "the path of a .yaml file will do too"
        )

    path = Path(name_or_path)
    return parse_strategy(read_text(path, "a strategy in YAML"), path.name, path.parent)


def converted(key: str, value: object) -> Any:
    """Return a YAML value as the setting's type: YAML reads 1e-4 as a text and has no tuples."""
    if isinstance(value, list):
        return tuple(value)
    key = today(key)
    if isinstance(value, str) and (is_policy_number(key) or FIELDS[key].type == "float"):
        try:
            return float(value)
        except ValueError:
            return value
    return value


def with_instances(strategy: Strategy, given: str) -> Strategy:
    """Replace the strategy's instances by the groups of instances of a file."""
    groups = [group.plain() for group in groups_of(given)]
    if strategy.fixed_args:
        words = (*strategy.fixed_args, "--instances", json.dumps(groups))
        return strategy.model_copy(update={"fixed_args": words})
    kept = {
        name: value for name, value in ours(strategy.mechanism).items() if name != "num_instances"
    }
    return strategy.model_copy(update={"mechanism": kept | {"instances": groups}})


# --- reading --------------------------------------------------------------------------------------

_OWN_KEYS = ("source", "folder", "parameter_paths")
_THEIR_KEYS = ("workload_spec", "objective")
_EXTENDS = "extends"  # a strategy whose mechanism the file changes, and of which it has, unless it says otherwise:
_INHERITED = {"on_gpus", "objectives", "workload", "seeds", "targets"}


def _parameter_paths(given: object) -> tuple[str, ...]:
    """Where the file has each parameter."""
    if isinstance(given, dict):
        return tuple(f"parameters.{name}" for name in given)
    count = len(given) if isinstance(given, list) else 0
    return tuple(f"parameters[{place}]" for place in range(count))


def _in_our_words(data: Mapping[Any, Any], source: str) -> dict[str, Any]:
    """The document with the reference's keys and the short forms written out."""
    if OLD in data:
        if "mechanism" in data:
            raise ConfigError(f"{source}: {OLD}: mechanism is given too; keep mechanism")
        warnings.warn(f"{source}: {OLD} is spelt mechanism by now", ConfigWarning, stacklevel=3)
        data = {("mechanism" if key == OLD else key): value for key, value in data.items()}
    known = [name for name in Strategy.model_fields if name not in _OWN_KEYS]
    for key in data:
        if key not in known and key not in (_EXTENDS, *_THEIR_KEYS):
            words = [_EXTENDS, *known, *_THEIR_KEYS]
            raise ConfigError(
                f"{source}: {key}: the key is unknown; use {', '.join(words)}{closest(key, words)}"
            )
    document = _extended(
        {key: value for key, value in data.items() if key not in _THEIR_KEYS}, source
    )
    for theirs, own in (("workload_spec", "workload"), ("objective", "objectives")):
        if theirs in data:
            if own in data:
                raise ConfigError(f"{source}: {theirs}: {own} is given too; keep one of them")
            value = data[theirs]
            document[own] = [value] if own == "objectives" else value
    if "fixed_args" in data:
        if "mechanism" in data:
            raise ConfigError(f"{source}: fixed_args: mechanism is given too; keep one of them")
        document.setdefault("penalties", "each-seed")
    if "parameters" in data:
        document["parameters"] = _parameters(data["parameters"], source)
    return document


def _extended(document: dict[str, Any], source: str) -> dict[str, Any]:
    """The document with what it has of the strategy that it extends."""
    name = document.pop(_EXTENDS, None)
    if name is None:
        return document
    if not isinstance(name, str) or name not in list_library():
        known = choices(str(name), list_library())
        raise ConfigError(f"{source}: {_EXTENDS}: got {name!r}; {known}")
    parent, own = load_strategy(name), document.get("mechanism") or {}
    if parent.fixed_args or "fixed_args" in document or not isinstance(own, Mapping):
        raise ConfigError(
            f"{source}: {_EXTENDS}: {name} and the file must both have a mechanism, not fixed_args"
        )
    document["mechanism"] = {**ours(parent.mechanism), **ours(own)}
    return {**parent.model_dump(include=_INHERITED, exclude_unset=True), **document}


def _parameters(given: object, source: str) -> Any:
    """Parameters as a list of mappings; the short form `name: [low, high]` names a setting."""
    if given is None:
        return []
    if isinstance(given, dict):
        return [_named(str(name), body, f"{source}: parameters") for name, body in given.items()]
    if not isinstance(given, list):
        raise ConfigError(
            f"{source}: parameters: got {given!r}, allowed is a list, or a mapping of "
            "name: [low, high]"
        )
    entries = []
    for place, entry in enumerate(given):
        if isinstance(entry, dict) and len(entry) == 1 and "name" not in entry:
            ((name, body),) = entry.items()
            entry = _named(str(name), body, f"{source}: parameters[{place}]")
        elif isinstance(entry, dict) and "flag" in entry:
            usual = {"decimals": FLAG_DECIMALS} if entry.get("type") == "real" else {}
            entry = {**usual, **entry}
        entries.append(entry)
    return entries


def _named(name: str, body: object, where: str) -> dict[str, Any]:
    if isinstance(body, dict):
        return {"name": name, **({} if "flag" in body else {"target": name}), **body}
    if not isinstance(body, list) or len(body) != 2:
        raise ConfigError(
            f"{where}.{name}: got {body!r}, allowed is [low, high] or a mapping with low and high"
        )
    return {"name": name, "target": name, "low": body[0], "high": body[1]}


def _unknown_key(error: ValidationError) -> str | None:
    """The first problem, if it is a key that does not exist."""
    details = error.errors(include_url=False)[0]
    if details["type"] != "extra_forbidden":
        return None
    *above, key = details["loc"]
    path = ""
    for step in above:
        path += f"[{step}]" if isinstance(step, int) else f".{step}" if path else str(step)
    owners: dict[str, type[BaseModel]] = {
        "parameters": Parameter,
        "overrides": Override,
        "on_gpus": OnGpus,
        "objectives": Objective,
        "constraints": Constraint,
        "loads": SearchLoad,
        "success_criteria": SuccessCriterion,
        "required_settings": Bounds,
        "targets": Limits,
        "search": Search,
    }
    allowed = list(owners.get(str(above[0]) if above else "", Strategy).model_fields)
    hint = closest(key, allowed)
    return f"{path}.{key}: the key is unknown; use {', '.join(allowed)}{hint}"
