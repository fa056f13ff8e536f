"""The policies that a configuration names, with the numbers that its settings give them."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from blis_jax.cluster import disaggregation
from blis_jax.cluster.made_once import made_once
from blis_jax.cluster.revisions import registered
from blis_jax.errors import ConfigError, closest
from blis_jax.files.user_files import is_file
from blis_jax.policies import registry
from blis_jax.policies.contract import Policy
from blis_jax.policies.movement.disaggregation import by_cached_prefix
from blis_jax.policies.movement.disaggregation import disaggregation as unconditional
from blis_jax.policies.numbers import Number, numbers_of

if TYPE_CHECKING:
    from blis_jax.cluster.config import ClusterConfig

# kinds of policies that a setting of their own names
NAMED_KINDS = ("admission", "routing", "picker", "priority", "scheduler")
# what begins the numbers of a policy that routes in the decode pool: this and the kind
DECODE = "decode_"


def is_policy_number(name: str) -> bool:
    """Whether it is written as a number of a policy in use, such as `routing.candidates`."""
    kinds = (
        *NAMED_KINDS,
        *registry.OPTIONAL_KINDS,
        "scorer",
        *(DECODE + kind for kind in registry.DECODE_SETTINGS),
    )
    return "." in name and name.partition(".")[0] in kinds


def as_pairs(given: Any) -> tuple[tuple[str, float], ...]:
    """Numbers of policies by name, as sorted pairs.

    Raises:
        ConfigError: a name is no number of a policy, or a value is no number.
    """
    pairs = given.items() if isinstance(given, Mapping) else given
    found = []
    for pair in pairs if isinstance(pairs, Iterable) else (pairs,):
        is_pair = isinstance(pair, (tuple, list)) and len(pair) == 2 and isinstance(pair[0], str)
        if not is_pair or not is_policy_number(pair[0]) or isinstance(pair[1], (str, bool)):
            raise ConfigError(
                f"policy_numbers: {pair!r} is no number of a policy; "
                "write for instance {'routing.candidates': 3}"
            )
        found.append((pair[0], float(pair[1])))
    return tuple(sorted(found))


def admission_name(config: ClusterConfig) -> str:
    """Name of the admission policy in the registry; the two tracks gate differently under one name."""
    if config.admission_policy == "slo-gated" and config.variant == "routing":
        return "slo-queue-gated"
    return config.admission_policy


@dataclass(frozen=True)
class ChosenRouter:
    """The policies that choose an instance, with their numbers."""

    routing: Policy
    scorers: tuple[tuple[Policy, float], ...]
    picker: Policy


@dataclass(frozen=True)
class Chosen:
    """The policies that a configuration names, with their numbers."""

    admission: Policy
    routing: Policy
    scorers: tuple[tuple[Policy, float], ...]
    picker: Policy
    priority: Policy
    scheduler: Policy
    cluster: Policy | None = None
    hand_over: Policy | None = None
    victim: Policy | None = None
    offload: Policy | None = None
    decode: ChosenRouter | None = None  # None: these route in the decode pool too
    prefill: ChosenRouter | None = None  # likewise in the prefill pool


@made_once
def numbered(config: ClusterConfig) -> Chosen:
    """The policies by their names, with the numbers that the settings give them.

    Raises:
        ConfigError: a name is not known, or a number has no policy to go to.
    """
    given = _numbers_by_owner(config)
    found: dict[str, Any] = {}
    for kind in (*NAMED_KINDS, *registry.OPTIONAL_KINDS):
        name = _name_of(config, kind)
        if kind in NAMED_KINDS or name != registry.NONE:
            found[kind] = _with_numbers(config, kind, name, given.pop(kind, {}))
    scorers = []
    for name, weight in config.scorers():
        scorers.append((_with_numbers(config, "scorer", name, given.pop(_owner(name), {})), weight))
    if config.is_august:
        return Chosen(scorers=tuple(scorers), **found, **_pools(config, found["picker"], given))
    decode = _decode_router(config, given)
    if given:
        owner = next(iter(given))
        used = [*found, *(_owner(name) for name, _ in config.scorers())]
        if decode is not None:
            used += [DECODE + one for one in ("routing", "picker")]
            used += [DECODE + _owner(name) for name, _ in config.decode_scorers()]
        raise ConfigError(
            f"policy_numbers: {owner}.{next(iter(given[owner]))} belongs to no policy in use; "
            f"numbers begin with {', '.join(used)}{closest(owner, used)}"
        )
    return Chosen(scorers=tuple(scorers), decode=decode, **found)


def _pools(
    config: ClusterConfig, picker: Policy, given: Mapping[str, Mapping[str, float]]
) -> dict[str, Any]:
    """What August's revision has for pools: the policy that splits requests, and routers with scorers of their own."""
    if given:
        owner = next(iter(given))
        raise ConfigError(
            f"policy_numbers: {owner}.{next(iter(given[owner]))} belongs to no policy in use"
        )
    if not disaggregation.has_pools(config):
        return {}
    reads_caches = config.pd_decider == "prefix-threshold"
    splits = by_cached_prefix if reads_caches else unconditional
    found: dict[str, Any] = {"hand_over": splits.with_numbers(**disaggregation.numbers(config))}
    of_pools = {"decode": config.decode_scorers(), "prefill": config.prefill_scorers()}
    for pool, named in of_pools.items():
        setting = f"{pool}_routing_scorers"
        scorers = tuple(
            (_with_numbers(config, "scorer", name, {}, setting), weight) for name, weight in named
        )
        if scorers:
            found[pool] = ChosenRouter(registry.find("routing", "weighted"), scorers, picker)
    return found


def _owner(scorer: str) -> str:
    """What begins the numbers of a scorer."""
    return f"scorer.{scorer.rpartition(':')[2]}"


def _decode_router(
    config: ClusterConfig, given: dict[str, dict[str, float]]
) -> ChosenRouter | None:
    """The policies that route in the decode pool, if a setting says anything of them; takes their numbers out.

    What is the same as the cluster's has the cluster's numbers too, and those given under its own name.
    """
    own = {owner: given.pop(owner) for owner in list(given) if owner.startswith(DECODE)}
    settings = registry.DECODE_SETTINGS
    if not own and all(getattr(config, one) in ("", registry.SAME) for one in settings.values()):
        return None
    of_cluster = _numbers_by_owner(config)

    def policy(kind: str) -> Policy:
        setting = settings[kind]
        name, numbers = getattr(config, setting), own.pop(DECODE + kind, {})
        if name == registry.SAME:
            name, numbers = _name_of(config, kind), of_cluster.get(kind, {}) | numbers
        return _with_numbers(config, kind, name, numbers, setting)

    scorers = []
    for name, weight in config.decode_scorers():
        owner = _owner(name)
        numbers = {} if config.decode_routing_scorers else of_cluster.get(owner, {})
        numbers = numbers | own.pop(DECODE + owner, {})
        scorers.append((_with_numbers(config, "scorer", name, numbers, settings["scorer"]), weight))
    router = ChosenRouter(policy("routing"), tuple(scorers), policy("picker"))
    given |= own  # belong to nobody
    return router


def _name_of(config: ClusterConfig, kind: str) -> str:
    if kind == "admission":
        return admission_name(config)
    return registered(config, kind, str(getattr(config, registry.SETTINGS[kind])))


def _with_numbers(
    config: ClusterConfig, kind: str, name: str, given: Mapping[str, float], naming: str = ""
) -> Policy:
    """The policy with the numbers of its settings, and those given to it by name; `naming` as in `registry.find`."""
    policy = registry.find(kind, registered(config, kind, name), naming)
    if is_file(name):
        return policy.with_numbers(**given)
    numbers = {
        field: getattr(config, setting)
        for field, one in numbers_of(policy.params).items()
        if (setting := registry.setting_of(name, field, one)) is not None
    }
    return policy.with_numbers(**(numbers | dict(given)))


def number_of(config: ClusterConfig, setting: str) -> Number | None:
    """What a policy declares about this setting; None if the setting is no policy's number.

    Raises:
        ConfigError: the setting is written as a policy's number, but no policy in use has it.
    """
    if not is_policy_number(setting):
        known = registry.settings().get(setting)
        return known.number if known else None
    used = numbered(config)
    policies = {f"scorer.{one.name}": one for one, _ in used.scorers}
    kinds = {kind: getattr(used, kind) for kind in (*NAMED_KINDS, *registry.OPTIONAL_KINDS)}
    if used.decode is not None:
        kinds |= {DECODE + one: getattr(used.decode, one) for one in ("routing", "picker")}
        policies |= {f"{DECODE}scorer.{one.name}": one for one, _ in used.decode.scorers}
    policies |= {kind: policy for kind, policy in kinds.items() if policy is not None}
    has = {
        f"{name}.{one}": number
        for name, policy in policies.items()
        for one, number in numbers_of(policy.params).items()
    }
    if setting not in has:
        raise ConfigError(
            f"{setting}: no policy in use has this number; they have {', '.join(has) or 'none'}"
        )
    return has[setting]


def _numbers_by_owner(config: ClusterConfig) -> dict[str, dict[str, float]]:
    found: dict[str, dict[str, float]] = {}
    for name, value in config.policy_numbers:
        owner, _, field = name.rpartition(".")
        found.setdefault(owner, {})[field] = value
    return found
