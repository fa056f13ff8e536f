"""What a name of a policy or a setting means here: one of vLLM or llm-d, or of a policy that has become a file.

A policy that was invented for one experiment is named by its path, and its numbers as those of any user's policy;
records and older files call them otherwise.
"""

from __future__ import annotations

import re
import warnings
from collections.abc import Mapping
from typing import Any

from blis_jax.core.kinds import KINDS, ROUTER
from blis_jax.errors import ConfigError, ConfigWarning
from blis_jax.policies import their_names

FOLDER = "sweeps/strategies/policies"
# by the setting that named them: a file's policies, each named with underscores there
_FILES: dict[str, dict[str, tuple[str, ...]]] = {
    "admission": {
        "gates": ("class-gated", "kv-gated", "burst-throttled"),
        "forecasts": ("forecast-gated", "forecast-regime-gated"),
        "regimes": ("regime-gated",),
    },
    "routing": {
        "regimes": ("match-switched", "regime-switched", "regime-kept"),
        "hashes": ("cached-of-two", "session-hashed"),
    },
    "scorer": {
        "deadlines": ("deadline-wait",),
        "intent": ("class-backlog",),
        "regimes": ("regime-affinity",),
    },
    "priority": {
        "deadlines": ("slo-deadline", "slo-slack"),
        "intent": ("intent-tiered", "intent-slack"),
    },
    "scheduler": {"orders": ("priority-cached", "prefix-grouped")},
    "victim": {"memory": ("least-worth",)},
    "offload": {"memory": ("content-worth", "forecast-offload")},
}
PATHS: dict[str, dict[str, str]] = {
    kind: {
        name: f"{FOLDER}/{file}.py:{name.replace('-', '_')}"
        for file, names in files.items()
        for name in names
    }
    for kind, files in _FILES.items()
}
_NAMES = {path: name for paths in PATHS.values() for name, path in paths.items()}
# the kind of the policies that a setting names
NAMED_BY = (
    {kind.setting: kind.name for kind in KINDS.values()}
    | {kind.decode_setting: kind.name for kind in ROUTER}
    | {"prefill_routing_scorers": "scorer"}
)
# settings that were not called by their policy and its number, or belonged to several policies
_DEADLINES = ("deadline-wait", "slo-deadline", "slo-slack", "intent-slack")
_SETTINGS: dict[str, tuple[str, tuple[str, ...]]] = {
    **{
        f"slo_deadline_{name}": (f"policies.deadline_{name}_us", _DEADLINES)
        for name in ("critical", "standard", "sheddable")
    },
    "slo_deadline_least_left": ("priority.least_left_us", ("slo-deadline",)),
    "cached_block_priority": ("scheduler.per_block", ("priority-cached",)),
    "class_gated_standard": ("admission.standard_load", ("class-gated",)),
    "class_gated_sheddable": ("admission.sheddable_load", ("class-gated",)),
}
# those that the first records were hashed with, and their values there
OF_FIRST_RECORDS: dict[str, float] = {
    "class_gated_standard": 100.0,
    "class_gated_sheddable": 50.0,
    "class_gated_probability": 1.0,
    "slo_deadline_critical": 100_000,
    "slo_deadline_standard": 250_000,
    "slo_deadline_sheddable": 1_000_000,
    "slo_deadline_least_left": 10_000,
    "cached_block_priority": 0.01,
}


def known_as(name: str) -> str:
    """Return the name that a policy had before it became a file; the name itself of any other."""
    return _NAMES.get(name, name)


def named(kind: str, text: str) -> str:
    """Return a policy's name, or a list of scorers, in our words: paths of those that have become files."""
    return _named(PATHS.get(kind, {}) | their_names.POLICIES.get(kind, {}), text)


def _named(known: Mapping[str, str], text: str) -> str:
    pairs = [part.strip().partition(":") for part in text.split(",")]
    if not any(name in known for name, _, _ in pairs):
        return text
    return ",".join(f"{known.get(name, name)}{colon}{rest}" for name, colon, rest in pairs)


def number_named(setting: str) -> tuple[str, tuple[str, ...]] | None:
    """Return today's name of a setting that has gone, and the policies that have it; None of any other."""
    if setting in _SETTINGS:
        return _SETTINGS[setting]
    for kind, paths in PATHS.items():
        for name in paths:
            with_underscores = name.replace("-", "_")
            if setting.startswith(f"{with_underscores}_"):
                owner = f"scorer.{with_underscores}" if kind == "scorer" else kind
                return f"{owner}.{setting.removeprefix(f'{with_underscores}_')}", (name,)
    return None


def today(name: str) -> str:
    """Return our name of a setting, or of one scorer's weight; the name itself where it is one."""
    found = number_named(name)
    setting, _, scorer = name.partition(".")
    if setting == KINDS["scorer"].setting and scorer in PATHS["scorer"]:
        return f"{setting}.{scorer.replace('-', '_')}"
    if setting == KINDS["scorer"].setting and scorer:
        return f"{setting}.{their_names.POLICIES['scorer'].get(scorer, scorer)}"
    return found[0] if found else their_names.SETTINGS.get(name, name)


def ours(settings: Mapping[str, Any]) -> dict[str, Any]:
    """Return settings under our names.

    Raises:
        ConfigError: one is given under two names.
    """
    found: dict[str, Any] = {}
    for name, value in settings.items():
        own = their_names.SETTINGS.get(name, name)
        if own in found:
            other = next(one for one in settings if their_names.SETTINGS.get(one, one) == own)
            raise ConfigError(f"{other} and {name} are the same setting; give one of them")
        found[own] = value
    return found


def as_written(problem: str, settings: Mapping[str, Any]) -> str:
    """Return a sentence that begins with one of our names with the name that the settings have."""
    for name in settings:
        own = their_names.SETTINGS.get(name)
        if own is not None and re.match(rf"{own}\b", problem):
            return name + problem.removeprefix(own)
    return problem


def tell_of(settings: Mapping[str, Any], source: str) -> None:
    """Warn of names and settings that are spelt otherwise by now, one sentence each; `source`, or `--`, begins it."""
    for name, value in settings.items():
        if name in their_names.SETTINGS or name.partition(".")[2] in their_names.POLICIES["scorer"]:
            continue
        if today(name) != name:
            said, instead = name, today(name)
        elif (
            name in NAMED_BY
            and isinstance(value, str)
            and (moved := _named(PATHS.get(NAMED_BY[name], {}), value)) != value
        ):
            said, instead = f"{name} {value}", moved
        else:
            continue
        said = said.replace("_", "-") if source == "--" else said
        warnings.warn(f"{source}{said} is spelt {instead} by now", ConfigWarning, stacklevel=3)


def respelled(settings: Mapping[str, Any], others: Mapping[str, Any]) -> dict[str, Any]:
    """Return settings in our words; `others` are those of the configuration that they change.

    Numbers of policies that are not in use then are left out: they had no effect.
    """
    found: dict[str, Any] = {}
    for name, value in ours(settings).items():
        moved = number_named(name)
        if name in NAMED_BY and isinstance(value, str):
            found[name] = named(NAMED_BY[name], value)
        elif moved is None:
            found[name] = value
        elif _uses({**others, **settings}, moved[1]):
            found[moved[0]] = value
    return found


def _uses(settings: Mapping[str, Any], policies: tuple[str, ...]) -> bool:
    for setting in NAMED_BY:
        words = re.split("[:,]", str(settings[setting]).replace("_", "-"))
        if any(name in words for name in policies):
            return True
    return False
