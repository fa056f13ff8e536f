"""Strategy files: a mechanism, the numbers that a search may change, and the objectives.

Files are YAML. BLIS's own files (`fixed_args`, `flag`, `workload_spec`, `objective`) are read unchanged, with the
meaning that BLIS's search script gives them: reals are passed on with six decimals, and penalties are computed per
seed. `sweeps/strategies/library` holds the library.
"""

from __future__ import annotations

import json
import re
import warnings
from collections.abc import Mapping, Sequence
from importlib import resources
from pathlib import Path
from typing import Annotated, Any, Literal

from pydantic import BaseModel, Field, ValidationError

from blis_jax.cluster.config import FIELDS, is_setting
from blis_jax.cluster.instance_groups import groups_of
from blis_jax.cluster.named_policies import is_policy_number
from blis_jax.cluster.router import with_room
from blis_jax.errors import ConfigError, ConfigWarning, as_option, choices, closest
from blis_jax.files.input_files import read_text, shipped_names
from blis_jax.files.strict_yaml import read_mapping, sentence
from blis_jax.policies.their_names import ours, setting_named
from sweeps.strategies.moved import tell_of, today
from sweeps.strategies.parts import (
    Bounds,
    ClosedPart,
    Constraint,
    Limits,
    Objective,
    OnGpus,
    Override,
    Parameter,
    Search,
    SearchLoad,
    SuccessCriterion,
    Text,
)

FOLDER = "strategies/library"
OLD = "settings"  # how files called the mechanism until November 2026
SHORT_NAMES = {  # of a strategy, or of one of its points
    "baseline": "iter00_baseline",
    "it08_opt": "iter08_token_budget@published",
}
FLAG_DECIMALS = 6  # how the reference's search script writes a real


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
        settings: dict[str, Any] = {}
        for part in self.on_gpus:
            if gpu in part.gpus:
                settings |= ours(part.settings)
        return settings

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
        problem = re.sub(r"^parameters\[(\d+)\]", lambda match: paths[int(match[1])], problem)
        raise ConfigError(f"{source}: {problem}") from None
    targets = dict.fromkeys(
        parameter.target for parameter in strategy.parameters if parameter.target is not None
    )
    tell_of({**targets, **strategy.mechanism}, f"{source}: ")
    return strategy


def list_library() -> tuple[str, ...]:
    """Return the names of the strategies that come with the package."""
    return shipped_names("sweeps", FOLDER)


def load_strategy(name_or_path: str) -> Strategy:
    """Return a strategy: of the library, by its name or short name, or of a `.yaml` file."""
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
    """Return a YAML value converted to the setting's type, because YAML reads 1e-4 as a text and has no tuples."""
    if isinstance(value, list):
        return tuple(value)
    key = today(key)
    if isinstance(value, str) and (is_policy_number(key) or FIELDS[key].type == "float"):
        try:
            return float(value)
        except ValueError:
            return value
    return value


def with_instances(strategy: Strategy, text: str) -> Strategy:
    """Return the strategy with its instances replaced by the groups of instances in a file."""
    groups = [group.plain() for group in groups_of(text)]
    if strategy.fixed_args:
        words = (*strategy.fixed_args, "--instances", json.dumps(groups))
        return strategy.model_copy(update={"fixed_args": words})
    kept = {
        name: value for name, value in ours(strategy.mechanism).items() if name != "num_instances"
    }
    return strategy.model_copy(update={"mechanism": kept | {"instances": groups}})


def with_mechanism(strategy: Strategy, settings: Mapping[str, Any]) -> Strategy:
    """Return the strategy with settings of its mechanism replaced; names are blis_jax's."""
    if strategy.fixed_args:
        words = (f"{as_option(name)}={value}" for name, value in settings.items())
        return strategy.model_copy(update={"fixed_args": (*strategy.fixed_args, *words)})
    return strategy.model_copy(update={"mechanism": ours(strategy.mechanism) | dict(settings)})


# --- reading --------------------------------------------------------------------------------------

_OWN_KEYS = ("source", "folder", "parameter_paths")
_THEIR_KEYS = ("workload_spec", "objective")
_EXTENDS = "extends"  # a strategy whose mechanism the file changes, and of which it has, unless it says otherwise:
_INHERITED = {"on_gpus", "objectives", "workload", "seeds", "targets", "baseline"}


def _parameter_paths(parameters: object) -> tuple[str, ...]:
    """Return the path of each parameter in the file, such as `parameters[0]`."""
    if isinstance(parameters, dict):
        return tuple(f"parameters.{name}" for name in parameters)
    count = len(parameters) if isinstance(parameters, list) else 0
    return tuple(f"parameters[{place}]" for place in range(count))


def _why_unknown(data: Mapping[Any, Any], key: Any, known: Sequence[str]) -> str:
    """Return a text that says what a file with an unknown key seems to be, and what to write instead."""
    if data.get("kind") == "EndpointPickerConfig":
        profiles = data.get("schedulingProfiles") or [{}]
        plugins = profiles[0].get("plugins") or ()
        scorers = [
            f"{plugin['pluginRef']}:{plugin.get('weight', 1)}"
            for plugin in plugins
            if str(plugin.get("pluginRef")).endswith("scorer")
        ]
        return (
            "it is a configuration of llm-d's router; its first profile is the arm "
            f"'llm-d-default:routing_scorers={','.join(scorers)}'"
        )
    if "apiVersion" in data or "replicaCount" in data:
        return "it is a file of Kubernetes or Helm; write vllm:KEY=VALUE, such as vllm:num_instances=4, in its place"
    setting = setting_named(str(key).replace("-", "_"))
    if is_setting(setting):
        return f"{key} is a setting; write 'mechanism:' above the settings, and 'extends: vllm' above that"
    words = [_EXTENDS, *known, *_THEIR_KEYS]
    return f"{key}: the key is unknown; use {', '.join(words)}{closest(key, words)}"


def _in_our_words(data: Mapping[Any, Any], source: str) -> dict[str, Any]:
    """Return the document with BLIS's keys translated and the short forms expanded."""
    if OLD in data:
        if "mechanism" in data:
            raise ConfigError(f"{source}: {OLD}: mechanism is given too; keep mechanism")
        warnings.warn(f"{source}: {OLD} is spelt mechanism by now", ConfigWarning, stacklevel=3)
        data = {("mechanism" if key == OLD else key): value for key, value in data.items()}
    known = [name for name in Strategy.model_fields if name not in _OWN_KEYS]
    for key in data:
        if key not in known and key not in (_EXTENDS, *_THEIR_KEYS):
            raise ConfigError(f"{source}: {_why_unknown(data, key, known)}")
    document = _extended(
        {key: value for key, value in data.items() if key not in _THEIR_KEYS}, source
    )
    for their_key, our_key in (("workload_spec", "workload"), ("objective", "objectives")):
        if their_key in data:
            if our_key in data:
                raise ConfigError(
                    f"{source}: {their_key}: {our_key} is given too; keep one of them"
                )
            value = data[their_key]
            document[our_key] = [value] if our_key == "objectives" else value
    if "fixed_args" in data:
        if "mechanism" in data:
            raise ConfigError(f"{source}: fixed_args: mechanism is given too; keep one of them")
        document.setdefault("penalties", "each-seed")
    if "parameters" in data:
        document["parameters"] = _parameters(data["parameters"], source)
    return document


def _extended(document: dict[str, Any], source: str) -> dict[str, Any]:
    """Return the document merged with the strategy that it extends, if it extends one."""
    name = document.pop(_EXTENDS, None)
    if name is None:
        return document
    if not isinstance(name, str) or name not in list_library():
        known = choices(str(name), list_library())
        raise ConfigError(f"{source}: {_EXTENDS}: got {name!r}; {known}")
    parent, mechanism = load_strategy(name), document.get("mechanism") or {}
    if parent.fixed_args or "fixed_args" in document or not isinstance(mechanism, Mapping):
        raise ConfigError(
            f"{source}: {_EXTENDS}: {name} and the file must both have a mechanism, not fixed_args"
        )
    inherited = ours(parent.mechanism)
    document["mechanism"] = inherited | with_room(inherited, ours(mechanism))
    return {**parent.model_dump(include=_INHERITED, exclude_unset=True), **document}


def _parameters(parameters: object, source: str) -> Any:
    """Return parameters as a list of mappings; the short form `name: [low, high]` names a setting."""
    if parameters is None:
        return []
    if isinstance(parameters, dict):
        return [
            _named(str(name), body, f"{source}: parameters") for name, body in parameters.items()
        ]
    if not isinstance(parameters, list):
        raise ConfigError(
            f"{source}: parameters: got {parameters!r}, allowed is a list, or a mapping of "
            "name: [low, high]"
        )
    entries = []
    for place, entry in enumerate(parameters):
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
    """Return the first problem if it is an unknown key, else None."""
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
