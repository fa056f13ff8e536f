"""Policy files of BLIS's revision of August 2026, `--policy-config FILE`, as the options that they stand for.

Source: `sim/bundle.go` and `resolvePolicies` in `cmd/root.go`. An option that is given counts before the file.
"""

from __future__ import annotations

import warnings
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from blis_jax.cluster.node_pools import SECTIONS
from blis_jax.core.types import SLO_CLASSES
from blis_jax.errors import ConfigError, ConfigWarning, closest, shortened

_NUMBERS = {  # keys of `admission`: the options that they stand for
    "token_bucket_capacity": "token_bucket_capacity",
    "token_bucket_refill_rate": "token_bucket_refill_rate",
    "tier_shed_threshold": "tier_shed_threshold",
    "tier_shed_min_priority": "tier_shed_min_priority",
    "gaie_qd_threshold": "gaie_qd_threshold",
    "gaie_kv_threshold": "gaie_kv_threshold",
}
_WHOLE = ("tier_shed_threshold", "tier_shed_min_priority")
_BY_CLASS = ("slo_priorities", "slo_targets")
_KEYS: dict[str, tuple[str, ...]] = {
    "admission": ("policy", *_NUMBERS, *_BY_CLASS),
    "routing": ("policy", "scorers"),
    "priority": ("policy",),
    "preemption": ("policy",),
}
_KNOWN = (*_KEYS, "scheduler", "tenant_budgets", *SECTIONS)
_GATES = ("tier-shed", "gaie-legacy")  # admission by the priorities of classes


def options_of(path: str) -> dict[str, Any]:
    """The options that a policy file stands for, by name.

    `instances` has its sections about machines, `tenant_shares` the budgets by the names of tenants.

    Raises:
        ConfigError: the file cannot be read, or a key or value is not allowed.
    """
    from blis_jax.files.input_files import read_text
    from blis_jax.files.strict_yaml import read_yaml

    place = f"--policy-config {path}"
    given = read_yaml(read_text(Path(path), "a policy file of BLIS"), path) or {}
    _refuse_unknown(_mapping(given, place), _KNOWN, place)
    shares = _mapping(given.get("tenant_budgets") or {}, f"{place}: tenant_budgets")
    parts = {}
    for name, keys in _KEYS.items():
        parts[name] = _mapping(given.get(name) or {}, f"{place}: {name}")
        _refuse_unknown(parts[name], keys, f"{place}: {name}")
    found = _of_admission(parts["admission"], f"{place}: admission")
    found |= _of_routing(parts["routing"], f"{place}: routing")
    # `priority` is without effect there, too
    for option, value in (
        ("scheduler", given.get("scheduler")),
        ("preemption_policy", parts["preemption"].get("policy")),
    ):
        if value:
            found[option] = _text(value, f"{place}: {option}")
    machines = {name: given[name] for name in SECTIONS if name in given}
    if shares:
        found["tenant_shares"] = {
            str(name): _share(value, f"{place}: tenant_budgets.{name}")
            for name, value in shares.items()
        }
    return found | ({"instances": machines} if machines else {})


def _share(given: Any, place: str) -> float:
    share = _number(given, place)
    if not 0 <= share <= 1:
        raise ConfigError(f"{place}: got {shortened(given)}, allowed is a share from 0 to 1")
    return share


def _of_admission(given: Mapping[str, Any], place: str) -> dict[str, Any]:
    policy = _text(given.get("policy", ""), f"{place}: policy")
    found: dict[str, Any] = {"admission_policy": policy} if policy else {}
    for key, option in _NUMBERS.items():
        if key in given:
            found[option] = _number(given[key], f"{place}: {key}", key in _WHOLE)
    if policy == "tier-shed":
        found.setdefault("tier_shed_min_priority", 3)
    priorities = _by_class(given.get("slo_priorities") or {}, f"{place}: slo_priorities")
    owners = ("priority", *(("admission",) if policy in _GATES else ()))
    numbers = {f"{owner}.{name}": value for owner in owners for name, value in priorities.items()}
    targets = _by_class(given.get("slo_targets") or {}, f"{place}: slo_targets")
    if numbers:
        found["policy_numbers"] = tuple(numbers.items())
    if targets:
        found["slo_targets"] = ",".join(f"{name}={value}" for name, value in targets.items())
    return found


def _of_routing(given: Mapping[str, Any], place: str) -> dict[str, Any]:
    policy = _text(given.get("policy", ""), f"{place}: policy")
    found = {"routing_policy": policy} if policy else {}
    pairs = []
    for number, one in enumerate(given.get("scorers") or (), 1):
        at = f"{place}: scorer {number}"
        _refuse_unknown(_mapping(one, at), ("name", "weight"), at)
        weight = _number(one.get("weight"), f"{at}: weight")
        pairs.append(f"{_text(one.get('name'), f'{at}: name')}:{weight:g}")
    return found | ({"routing_scorers": ",".join(pairs)} if pairs else {})


def _by_class(given: Any, place: str) -> dict[str, int]:
    numbers = {
        name: int(_number(value, f"{place}: {name}", True))
        for name, value in _mapping(given, place).items()
    }
    for name in numbers:
        if name not in SLO_CLASSES[1:]:
            warnings.warn(
                f"{place}: {shortened(name)} is no SLO class and has no effect, as in BLIS"
                f"{closest(str(name), SLO_CLASSES[1:])}",
                ConfigWarning,
                stacklevel=2,
            )
    return {name: value for name, value in numbers.items() if name in SLO_CLASSES[1:]}


def _mapping(given: Any, place: str) -> Mapping[str, Any]:
    if not isinstance(given, Mapping):
        raise ConfigError(f"{place}: got {shortened(given)}, allowed is a mapping")
    return given


def _refuse_unknown(given: Mapping[str, Any], allowed: tuple[str, ...], place: str) -> None:
    for key in given:
        if key not in allowed:
            raise ConfigError(
                f"{place}: the key {shortened(key)} is unknown; use some of {', '.join(allowed)}"
                f"{closest(str(key), allowed)}"
            )


def _text(given: Any, place: str) -> str:
    if not isinstance(given, str):
        raise ConfigError(f"{place} must be a text, got {shortened(given)}")
    return given


def _number(given: Any, place: str, is_whole: bool = False) -> float:
    kinds = int if is_whole else int | float
    if isinstance(given, bool) or not isinstance(given, kinds):
        words = "a whole number" if is_whole else "a number"
        raise ConfigError(f"{place} must be {words}, got {shortened(given)}")
    return given
