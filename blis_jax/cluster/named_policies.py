"""The policies that a configuration names, with the numbers that its settings give them."""

from __future__ import annotations

import functools
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, Concatenate, ParamSpec, TypeVar, cast

from blis_jax.cluster import disaggregation, instance_groups
from blis_jax.cluster.revisions import registered
from blis_jax.core.kinds import KINDS, NONE, ROUTER, SAME, Kind, OfEachKind
from blis_jax.errors import ConfigError, closest
from blis_jax.files.python_files import is_file
from blis_jax.policies import registry
from blis_jax.policies.contract import Policy
from blis_jax.policies.movement.pools import by_cached_prefix
from blis_jax.policies.movement.pools import disaggregation as unconditional
from blis_jax.policies.numbers import Number, numbers_of
from blis_jax.policies.seeds import RandomSource

if TYPE_CHECKING:
    from blis_jax.cluster.config import ClusterConfig

# --- what follows from a configuration alone is made once: runs of many seeds ask for it again ----


P = ParamSpec("P")
T = TypeVar("T")


def made_once(
    function: Callable[Concatenate[ClusterConfig, P], T],
) -> Callable[Concatenate[ClusterConfig, P], T]:
    """Return `function` with its latest results cached by configuration; callers must not change the results.

    A configuration that names a user's file is never cached, because that file may have changed.
    """

    def once(config: ClusterConfig, *more: P.args, **named: P.kwargs) -> tuple[T] | None:
        return None if names_files(config) else (function(config, *more, **named),)

    kept = cast(
        "Callable[Concatenate[ClusterConfig, P], tuple[T] | None]",
        functools.lru_cache(maxsize=1024)(once),
    )

    @functools.wraps(function)
    def made(config: ClusterConfig, *more: P.args, **named: P.kwargs) -> T:
        policies: tuple[T] | None = kept(config, *more, **named)
        return function(config, *more, **named) if policies is None else policies[0]

    return made


def names_files(config: ClusterConfig) -> bool:
    """Return whether the run depends on a user's file: a policy or latency model
    `path/to/file.py:Name`, or a file describing the model or GPUs.
    """
    texts = [value for value in vars(config).values() if isinstance(value, str)]
    gpus = (config.hardware, config.prefill_hardware, config.decode_hardware)
    is_described = bool(config.model_config) or any(":" in gpu for gpu in gpus)
    return is_described or any(".py:" in text for text in texts)


# --- policies and their numbers -------------------------------------------------------------------


# prefix of the numbers of a policy that routes in the decode pool, before the kind
DECODE = "decode_"
# prefix of a number that is set in every policy in use that declares it
EVERY = "policies"


def is_policy_number(name: str) -> bool:
    """Return whether the name has the form of a policy's number, such as `routing.candidates`."""
    kinds = (*KINDS, EVERY, *(DECODE + kind.name for kind in ROUTER))
    return "." in name and name.partition(".")[0] in kinds


def as_pairs(numbers: object) -> tuple[tuple[str, float], ...]:
    """Return the policies' numbers by name as sorted pairs.

    Raises:
        ConfigError: a name does not have the form of a policy's number, or a value is not a number.
    """
    pairs = numbers.items() if isinstance(numbers, Mapping) else numbers
    checked = []
    for pair in pairs if isinstance(pairs, Iterable) else (pairs,):
        name, value = pair if isinstance(pair, tuple | list) and len(pair) == 2 else ("", None)
        is_named = isinstance(name, str) and is_policy_number(name)
        if not is_named or isinstance(value, str | bool | None):
            raise ConfigError(
                f"policy_numbers: {pair!r} is no number of a policy; "
                "write for instance {'routing.candidates': 3}"
            )
        checked.append((name, float(value)))
    return tuple(sorted(checked))


def admission_name(config: ClusterConfig) -> str:
    """Return the admission policy's name in the registry; two BLIS tracks have different policies under one name."""
    if config.admission_policy == "slo-gated" and config.variant == "routing":
        return "slo-queue-gated"
    return config.admission_policy


@dataclass(frozen=True)
class ChosenRouter:
    """The policies that together choose an instance, with their numbers."""

    routing: Policy
    scorers: tuple[tuple[Policy, float], ...]
    picker: Policy


@dataclass(frozen=True)
class Chosen(OfEachKind):
    """All policies that a configuration names, with their numbers; scorers with their weights."""

    decode: ChosenRouter | None = None  # None: these route in the decode pool too
    prefill: ChosenRouter | None = None  # the policies that route in the prefill pool


def policies_of(used: Chosen | ChosenRouter) -> Iterator[Policy]:
    """Yield the policies in use, in the order of the kinds, but not the policies of the pools' own routers."""
    for kind in KINDS.values() if isinstance(used, Chosen) else ROUTER:
        policy = getattr(used, kind.field)
        if kind.is_list:
            yield from (member for member, _ in policy)
        elif policy is not None:
            yield policy


@made_once
def numbered(config: ClusterConfig) -> Chosen:
    """Return the configuration's policies by kind, with the numbers that the settings give them.

    Raises:
        ConfigError: a name is unknown, or no policy in use has the number.
    """
    numbers = _numbers_by_owner(config)
    shared = numbers.pop(EVERY, {})
    policies: dict[str, Any] = {}
    for kind in KINDS.values():
        name = _name_of(config, kind)
        if kind.is_list:
            policies[kind.field] = tuple(
                (_with_numbers(config, kind, name, numbers.pop(_owner(name), {})), weight)
                for name, weight in config.scorers()
            )
        elif not (kind.is_optional and name == NONE):
            policies[kind.field] = _with_numbers(config, kind, name, numbers.pop(kind.name, {}))
    if config.is_august:
        policies |= _pools(config, policies["picker"])
    else:
        policies["decode"] = _decode_router(config, numbers)
    used = Chosen(**policies)
    if numbers:
        owner, known = next(iter(numbers)), tuple(_by_owner(config, used))
        raise ConfigError(
            f"policy_numbers: {owner}.{next(iter(numbers[owner]))} belongs to no policy in use; "
            f"numbers begin with {', '.join(known)}{closest(owner, known)}"
        )
    has = {
        number
        for policy in _by_owner(config, used).values()
        for number in numbers_of(policy.params)
    }
    for name in shared:
        if name not in has:
            raise ConfigError(
                f"policy_numbers: {EVERY}.{name} belongs to no policy in use{closest(name, sorted(has))}"
            )
    return used


def _pools(config: ClusterConfig, picker: Policy) -> dict[str, Any]:
    """Return August's policies for pools: the policy that splits requests, and routers with scorers of their own."""
    if not disaggregation.has_pools(config):
        return {}
    reads_caches = config.pd_decider == "prefix-threshold"
    splits = by_cached_prefix if reads_caches else unconditional
    policies: dict[str, Any] = {"hand_over": splits.with_numbers(**disaggregation.numbers(config))}
    of_pools = {"decode": config.decode_scorers(), "prefill": config.prefill_scorers()}
    for pool, named in of_pools.items():
        setting = f"{pool}_routing_scorers"
        scorers = tuple(
            (_with_numbers(config, KINDS["scorer"], name, {}, setting), weight)
            for name, weight in named
        )
        if scorers:
            policies[pool] = ChosenRouter(registry.find("routing", "weighted"), scorers, picker)
    return policies


def _owner(scorer: str) -> str:
    """Return the prefix under which a scorer's numbers are named."""
    return f"scorer.{scorer.rpartition(':')[2]}"


def _decode_router(
    config: ClusterConfig, by_owner: dict[str, dict[str, float]]
) -> ChosenRouter | None:
    """Return the decode pool's routing policies if any setting names them, and remove their numbers from `by_owner`.

    A policy that is the same as the cluster's also has the cluster's numbers, besides those given under its own name.
    """
    of_decode = {owner: by_owner.pop(owner) for owner in list(by_owner) if owner.startswith(DECODE)}
    names = {kind: getattr(config, kind.decode_setting) for kind in ROUTER}
    if not of_decode and all(name in ("", SAME) for name in names.values()):
        return None
    of_cluster = _numbers_by_owner(config)

    def policy(kind: Kind) -> Policy:
        name, numbers = names[kind], of_decode.pop(DECODE + kind.name, {})
        if name == SAME:
            name, numbers = _name_of(config, kind), of_cluster.get(kind.name, {}) | numbers
        return _with_numbers(config, kind, name, numbers, kind.decode_setting)

    def scorers(kind: Kind) -> Iterator[tuple[Policy, float]]:
        for name, weight in config.decode_scorers():
            owner = _owner(name)
            numbers = {} if names[kind] else of_cluster.get(owner, {})
            numbers = numbers | of_decode.pop(DECODE + owner, {})
            yield _with_numbers(config, kind, name, numbers, kind.decode_setting), weight

    router: dict[str, Any] = {
        kind.field: tuple(scorers(kind)) if kind.is_list else policy(kind) for kind in ROUTER
    }
    by_owner |= of_decode  # belong to nobody
    return ChosenRouter(**router)


def _name_of(config: ClusterConfig, kind: Kind) -> str:
    if kind.name == "admission":
        return admission_name(config)
    return registered(config, kind.name, str(getattr(config, kind.setting)))


def _with_numbers(
    config: ClusterConfig, kind: Kind, name: str, by_name: Mapping[str, float], naming: str = ""
) -> Policy:
    """Return the policy with the numbers from its settings and from `by_name`; `naming` is as in `registry.find`."""
    policy = registry.find(kind.name, registered(config, kind.name, name), naming)
    declared = numbers_of(policy.params)
    numbers = {
        field: getattr(config, setting)
        for field, number in declared.items()
        if (setting := _setting_of(name, field, number)) is not None
    }
    shared = _numbers_by_owner(config).get(EVERY, {})
    numbers |= {field: value for field, value in shared.items() if field in declared}
    return policy.with_numbers(**(numbers | dict(by_name)))


def _setting_of(name: str, field: str, number: Number) -> str | None:
    """Return the setting that supplies a number; for a policy from a file, the registered setting it names, if any."""
    if is_file(name):
        return number.setting if number.setting in registry.settings() else None
    return registry.setting_of(name, field, number)


def number_of(config: ClusterConfig, setting: str) -> Number | None:
    """Return the declaration of the policy's number that this setting sets; None if it sets no policy's number.

    Raises:
        ConfigError: the setting has the form of a policy's number, but no policy in use has that number.
    """
    if not is_policy_number(setting):
        known = registry.settings().get(setting)
        return known.number if known else None
    has = {
        f"{owner}.{field}": number
        for name, policy in _by_owner(config, numbered(config)).items()
        for owner in (name, EVERY)
        for field, number in numbers_of(policy.params).items()
    }
    if setting not in has:
        raise ConfigError(
            f"{setting}: no policy in use has this number; they have {', '.join(has) or 'none'}"
        )
    return has[setting]


def has_number(config: ClusterConfig, name: str) -> bool:
    """Return whether a policy in use has the number of this name, such as `routing.candidates`."""
    try:
        return number_of(config, name) is not None
    except ConfigError:
        return False


def names_in_use(config: ClusterConfig, kind: str) -> set[str]:
    """Return the policies of a kind that a configuration names, those of the decode pool's router included."""
    of_kind = KINDS[kind]
    if of_kind.is_list:
        scorers = (*config.scorers(), *config.decode_scorers(), *config.prefill_scorers())
        return {registered(config, kind, name) for name, _ in scorers}
    named = {_name_of(config, of_kind), getattr(config, of_kind.setting)}
    if of_kind in ROUTER:
        named.add(getattr(config, of_kind.decode_setting))
    return named


def setting_of_owner(name: str) -> str | None:
    """Return the setting that names the policy of a number; None for a number of a scorer or of every policy."""
    owner = name.partition(".")[0]
    kind = KINDS.get(owner.removeprefix(DECODE))
    if kind is None or kind.is_list:
        return None
    return kind.decode_setting if owner.startswith(DECODE) else kind.setting


def _by_owner(config: ClusterConfig, used: Chosen) -> dict[str, Policy]:
    """Return the policies in use by the prefix of their numbers' names."""
    policies: dict[str, Policy] = {}

    def add(begin: str, router: Chosen | ChosenRouter, scorers: list[tuple[str, float]]) -> None:
        owners = [_owner(name) for name, _ in scorers]
        for policy in policies_of(router):
            owner = owners.pop(0) if KINDS[policy.kind].is_list else policy.kind
            policies[begin + owner] = policy

    add("", used, config.scorers())
    if used.decode is not None:
        add(DECODE, used.decode, config.decode_scorers())
    return policies


def _numbers_by_owner(config: ClusterConfig) -> dict[str, dict[str, float]]:
    by_owner: dict[str, dict[str, float]] = {}
    for name, value in config.policy_numbers:
        owner, _, field = name.rpartition(".")
        by_owner.setdefault(owner, {})[field] = value
    return by_owner


def located(settings: Mapping[str, Any], folder: Path | None) -> dict[str, Any]:
    """Return settings read from a file in `folder`; a policy's path that exists there is joined to `folder`."""
    whole = dict(settings)
    policies = (
        *(kind.setting for kind in KINDS.values()),
        *(kind.decode_setting for kind in ROUTER),
    )
    for setting in (*policies, "latency_model"):
        value = whole.get(setting)
        if folder is not None and isinstance(value, str):
            parts = [_located(part.strip(), folder) for part in value.split(",")]
            whole[setting] = ",".join(parts)
    if folder is not None and instance_groups.SETTING in whole:
        groups = whole[instance_groups.SETTING]
        whole[instance_groups.SETTING] = instance_groups.located(groups, folder)
    return whole


def _located(name: str, folder: Path) -> str:
    path, dot, rest = name.partition(".py:")
    is_there = bool(dot) and (folder / f"{path}.py").is_file()
    return f"{folder / path}.py:{rest}" if is_there else name


def draws(config: ClusterConfig) -> bool:
    """Return whether any policy or source may draw from the policy seed in a run of the configuration."""
    sources = [source.is_used for source in RandomSource if source.is_used is not None]
    used = numbered(config)
    routers = [router for router in (used, used.decode, used.prefill) if router is not None]
    return any(is_used(config) for is_used in sources) or any(
        policy.may_draw and (policy.kind != "picker" or router.routing.reads("picked"))
        for router in routers
        for policy in policies_of(router)
    )
