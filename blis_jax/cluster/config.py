"""A cluster's configuration under the names of the reference's `run` flags, checked once on the host.

Numbers of policies are settings too; `PolicySettings` takes them from where the policies declare them.
`mechanism.py` turns a configuration into functions and arrays.
"""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from blis_jax.cluster import instance_groups
from blis_jax.cluster.instance_groups import InstanceGroup
from blis_jax.errors import ConfigError, UnsupportedError, closest
from blis_jax.latency import registry as latency
from blis_jax.policies import registry
from blis_jax.policies.named import (
    MOVING_KINDS,
    NAMED_KINDS,
    as_pairs,
    is_policy_number,
    number_of,
    numbered,
)

NO_HORIZON = 2**63 - 1
PROFILE = "blis-2026-02"
VARIANTS = ("scheduling", "routing")
PHASES = ("aligned", "even", "drawn")
_CHOICES = {"variant": VARIANTS, "snapshot_phases": PHASES}
DEFAULT_SCORERS = "prefix-affinity:3,queue-depth:2,kv-utilization:2"
CRITICAL_CLASSES, SHEDDABLE_CLASSES = (1,), (3, 4, 5)


if TYPE_CHECKING:

    class PolicySettings:
        """The numbers of the package's policies, one field each."""

        def __init__(self, **numbers: float) -> None: ...
        def __getattr__(self, name: str) -> Any: ...

else:
    PolicySettings = dataclasses.make_dataclass(
        "PolicySettings",
        [
            (name, "int" if one.number.is_whole else "float", one.number.default)
            for name, one in registry.settings().items()
        ],
        frozen=True,
    )


@dataclass(frozen=True)
class ClusterConfig(PolicySettings):
    """One cluster and its policies; times in µs, sizes in tokens or blocks.

    Names and defaults are those of BLIS's `run` options. The page "Settings" has every field with its unit,
    default and bounds; numbers of policies are fields too.

    A policy is named as in the registry, or by `path/to/file.py:Name`. `policy_numbers` has numbers without a
    setting of their own, those of policies from files above all: a mapping, or pairs, such as
    `("routing.candidates", 3.0)`, or `("scorer.Mine.gain", 0.5)` for the scorer `path/to/file.py:Mine`.

    `instances` has groups of instances with numbers in place of the cluster's: `InstanceGroup`s, mappings of
    their keys, or the path of a file with a list of them. They decide `num_instances`.

    Raises:
        ConfigError: a value has the wrong type or is out of bounds, or a name is not known.
        UnsupportedError: BLIS knows the mechanism and blis_jax does not.
    """

    model: str = "meta-llama/llama-3.1-8b-instruct"
    hardware: str = "H100"
    tp: int = 2
    alpha_coeffs: tuple[float, float, float] = (
        1601.350510688092,
        3.512476196805965,
        1805.5430360826988,
    )
    beta_coeffs: tuple[float, ...] = (  # as many as the latency model has
        6910.420479880494,
        17.67057489844186,
        2.8377471109943855,
    )
    latency_model: str = latency.AUTO  # see latency/registry.py
    total_kv_blocks: int = 132139
    block_size_in_tokens: int = 16
    max_num_running_reqs: int = 256
    max_num_scheduled_tokens: int = 2048
    long_prefill_token_threshold: int = 0
    num_instances: int = 1
    instances: tuple[InstanceGroup, ...] = ()
    admission_policy: str = "always-admit"
    admission_latency: int = 0
    routing_latency: int = 0
    routing_policy: str = "round-robin"
    routing_scorers: str = ""
    routing_picker: str = "first-best"
    policy_numbers: tuple[tuple[str, float], ...] = ()
    priority_policy: str = "constant"
    scheduler: str = "fcfs"
    cluster_policy: str = registry.NONE
    hand_over_policy: str = registry.NONE
    slo_priority_bridge: bool = False
    slo_prefill: bool = False
    slo_prefill_critical: int = 128
    slo_prefill_sheddable: int = 0
    slo_preemption: bool = False
    snapshot_refresh_interval: int = 0
    load_refresh_interval: int = 0
    snapshot_phases: str = "aligned"
    in_flight_counts: bool = True
    prefix_index_delay: int = 0
    num_gateways: int = 1
    precise_kv_routing: bool = False
    kv_cpu_blocks: int = 0
    kv_offload_threshold: float = 0.9
    kv_transfer_bandwidth: float = 100.0
    kv_transfer_base_latency: int = 0
    horizon: int = NO_HORIZON
    variant: str = "scheduling"
    corrected: bool = False  # without the defects of the reference; see types.Defects

    def __new__(cls, *values: Any, **settings: Any) -> ClusterConfig:
        """A configuration; a setting that does not exist is refused with the name of the nearest.

        Raises:
            ConfigError: there is no such setting.
        """
        refuse_unknown(name for name in settings if name not in FIELDS)
        return super().__new__(cls)

    def __post_init__(self) -> None:
        object.__setattr__(self, "policy_numbers", as_pairs(self.policy_numbers))
        for name in ("alpha_coeffs", "beta_coeffs"):  # a list has no hash
            value = getattr(self, name)
            if isinstance(value, Iterable) and not isinstance(value, str):
                object.__setattr__(self, name, tuple(value))
        groups, source = instance_groups.groups_of(self.instances)
        object.__setattr__(self, "instances", groups)
        if groups:
            if self.num_instances != 1:  # the default may stand for a number that was not given
                instance_groups.check_number(self, self.num_instances)
            object.__setattr__(self, "num_instances", instance_groups.size(groups))
        _check(self)
        if groups:
            instance_groups.check(self, source)

    @property
    def profile(self) -> str:
        """The reference's revision and track that are reproduced, and in what the run differs from them."""
        name = f"{PROFILE}/{self.variant}" + "/corrected" * self.corrected
        return name + latency.profile_suffix(self)

    def scorers(self) -> list[tuple[str, float]]:
        """Scorers and weights in the order given; none unless routing is weighted."""
        if self.routing_policy != "weighted":
            return []
        return parse_scorers(self.routing_scorers or DEFAULT_SCORERS)

    def replace(self, **changes: Any) -> ClusterConfig:
        """A copy with some settings changed, checked again.

        Args:
            changes: new values by name; `routing.candidates` is a number of a policy. New groups of instances
                bring the number of instances with them.

        Raises:
            ConfigError: a setting is unknown, or its value is not allowed.
        """
        refuse_unknown(name for name in changes if not is_setting(name))
        instance_groups.refuse_idle(self, changes)
        numbers = {name: value for name, value in changes.items() if is_policy_number(name)}
        fields = {name: value for name, value in changes.items() if name not in numbers}
        if numbers:
            before = dict(as_pairs(fields.get("policy_numbers", self.policy_numbers)))
            fields["policy_numbers"] = tuple((before | numbers).items())
        if fields.get("instances"):
            fields = {"num_instances": 1, **fields}
        made = dataclasses.replace(self, **fields)
        instance_groups.check_number(made, changes.get("num_instances", made.num_instances))
        return made

    def value(self, setting: str) -> Any:
        """The value of a setting; of a policy's number that is not given, its default.

        Raises:
            ConfigError: no policy in use has the number.
        """
        if not is_policy_number(setting):
            return getattr(self, setting)
        given = dict(self.policy_numbers)
        declared = number_of(self, setting)
        assert declared is not None  # it is written as a policy's number
        return given.get(setting, declared.default)


# settings that BLIS has no flags for
OUR_POLICY_SETTINGS: tuple[str, ...] = ("routing_picker", "policy_numbers")
OUR_POLICY_SETTINGS += ("cluster_policy", "hand_over_policy")
OUR_POLICY_SETTINGS += ("load_refresh_interval", "snapshot_phases", "in_flight_counts")
OUR_POLICY_SETTINGS += ("prefix_index_delay", "num_gateways")
OUR_POLICY_SETTINGS += ("slo_deadline_critical", "slo_deadline_standard")
OUR_POLICY_SETTINGS += ("slo_deadline_sheddable", "slo_deadline_least_left")
OUR_POLICY_SETTINGS += ("cached_block_priority", "class_gated_standard")
OUR_POLICY_SETTINGS += ("class_gated_sheddable", "class_gated_probability")
OUR_POLICY_SETTINGS += tuple(
    name for name, one in registry.settings().items() if one.number.setting is None
)


def is_setting(name: str) -> bool:
    """Whether a configuration has such a setting."""
    return name in FIELDS or is_policy_number(name)


def refuse_unknown(names: Iterable[str]) -> None:
    """Refuse the first of these names, none of which is a setting."""
    for name in names:
        hint = nearest_setting(name) or f"; known: {', '.join(sorted(FIELDS))}"
        raise ConfigError(f"setting {name!r} is unknown{hint}")


def nearest_setting(name: str, others: Iterable[str] = ()) -> str:
    """A hint naming the setting, or the other word, that is meant; vLLM's names of settings are known."""
    word = name.replace("-", "_")
    hint = closest(word, (*others, *FIELDS, *VLLM_NAMES))
    meant = next((ours for theirs, ours in VLLM_NAMES.items() if f"{theirs!r}?" in hint), None)
    return hint if meant is None else f"; did you mean {meant!r}?"


def of_settings(settings: Mapping[str, Any]) -> ClusterConfig:
    """The configuration with these settings, which may be numbers of policies; the others keep their defaults.

    Raises:
        ConfigError: a setting is unknown, or its value is not allowed.
    """
    return ClusterConfig().replace(**settings)


FIELDS = {field.name: field for field in dataclasses.fields(ClusterConfig)}
VLLM_NAMES = {  # what vLLM calls a setting: ours
    "max_num_seqs": "max_num_running_reqs",
    "max_num_batched_tokens": "max_num_scheduled_tokens",
    "block_size": "block_size_in_tokens",
    "num_gpu_blocks": "total_kv_blocks",
    "num_gpu_blocks_override": "total_kv_blocks",
    "tensor_parallel_size": "tp",
    "data_parallel_size": "num_instances",
}


def parse_scorers(text: str) -> list[tuple[str, float]]:
    """`name:weight,name:weight` as a list."""
    pairs: list[tuple[str, float]] = []
    for part in text.split(","):
        name, colon, weight = part.strip().rpartition(":")
        try:
            value = float(weight) if colon else math.nan
        except ValueError:
            value = math.nan
        if not (math.isfinite(value) and value > 0):
            raise ConfigError(
                f"routing_scorers: {part.strip()!r} is not name:weight with a weight above 0; "
                f"write for instance {DEFAULT_SCORERS}"
            )
        if name.strip() in dict(pairs):
            raise ConfigError(
                f"routing_scorers: {name.strip()!r} is given twice; give each scorer one weight"
            )
        pairs.append((name.strip(), value))
    return pairs


def from_flags(flags: Mapping[str, Any]) -> ClusterConfig:
    """A configuration from the `config` of a golden scenario; keys it does not know are not about the cluster."""
    reason = unsupported(flags)
    if reason is not None:
        raise UnsupportedError(f"{reason} is not supported yet; such a scenario cannot be run")
    values: dict[str, Any] = {}
    for key, value in flags.items():
        name = key.replace("-", "_")
        if name in FIELDS and not (name in POLICY_NAMES and value == ""):  # "": the default
            values[name] = tuple(value) if isinstance(value, list) else value
    # only the routing track's revision has this flag; its gate of the same name reads queue lengths
    if "precise-kv-routing" in flags:
        values.setdefault("variant", "routing")
    return ClusterConfig(**values)


def unsupported(flags: Mapping[str, Any]) -> str | None:
    """The mechanism of BLIS that a scenario asks for and that is not here, or None."""
    if flags.get("roofline"):
        return "the roofline latency model"
    return None


POLICY_NAMES: dict[str, tuple[str, ...]] = {
    registry.SETTINGS[kind]: tuple(registry.NAMES[kind]) or (registry.NONE,)
    for kind in (*NAMED_KINDS, *MOVING_KINDS)
}
SCORER_NAMES = tuple(registry.SCORERS)

_POSITIVE: tuple[str, ...] = ("total_kv_blocks", "block_size_in_tokens", "max_num_running_reqs")
_POSITIVE += ("max_num_scheduled_tokens",)
_NOT_NEGATIVE: tuple[str, ...] = (
    "admission_latency",
    "routing_latency",
    "snapshot_refresh_interval",
    "horizon",
)
_NOT_NEGATIVE += ("long_prefill_token_threshold", "slo_prefill_critical", "slo_prefill_sheddable")
_NOT_NEGATIVE += ("kv_cpu_blocks", "kv_transfer_base_latency")
_NOT_NEGATIVE += ("load_refresh_interval", "prefix_index_delay")
_SHARES: tuple[str, ...] = ("kv_offload_threshold",)
MAX_GATEWAYS = 64  # each has a prefix index and states of its own
MAX_INSTANCES = 2**15 - 1  # instances are numbered in 16 bits in the golden format
LARGEST_COUNT = 2**31 - 2


def _check(config: ClusterConfig) -> None:
    for name, field in FIELDS.items():
        _check_type(name, field.type, getattr(config, name))
    for name in _POSITIVE:
        _demand(config, name, lambda value: value > 0, "above 0")
    for name in _NOT_NEGATIVE:
        _demand(config, name, lambda value: value >= 0, "at least 0")
    for name in _SHARES:
        _demand(config, name, lambda value: 0 <= value <= 1, "between 0 and 1")
    for name, setting in registry.settings().items():
        _demand(config, name, setting.number.permits, setting.number.allowed)
    _demand(config, "kv_transfer_bandwidth", lambda value: value > 0, "above 0")
    _demand(
        config,
        "num_instances",
        lambda value: 1 <= value <= MAX_INSTANCES,
        f"between 1 and {MAX_INSTANCES}",
    )
    _demand(
        config,
        "num_gateways",
        lambda value: 1 <= value <= MAX_GATEWAYS,
        f"between 1 and {MAX_GATEWAYS}",
    )
    for name, choices in _CHOICES.items():
        given = getattr(config, name)
        if given not in choices:
            hint = closest(given, choices)
            raise ConfigError(f"{name} {given!r} is not known; use {' or '.join(choices)}{hint}")
    latency.check(config)
    numbered(config)


def _check_type(name: str, kind: Any, value: Any) -> None:
    expected: dict[str, tuple[Any, str]] = {
        "int": (int, "a whole number"),
        "float": ((int, float), "a number"),
        "bool": (bool, "true or false"),
        "str": (str, "a text"),
    }
    if kind not in expected:
        return
    types, words = expected[kind]
    is_wrong_bool = isinstance(value, bool) and kind != "bool"
    if not isinstance(value, types) or is_wrong_bool:
        raise ConfigError(f"{name}: {value!r} is not {words}")
    if kind == "float" and not math.isfinite(value):
        raise ConfigError(f"{name}: {value!r} is not finite; give a finite number")
    if kind == "int" and name != "horizon" and abs(value) > LARGEST_COUNT:
        raise ConfigError(f"{name}: {value} is too large; at most {LARGEST_COUNT}")


def _demand(config: ClusterConfig, name: str, test: Callable[[Any], bool], words: str) -> None:
    value = getattr(config, name)
    if not test(value):
        raise ConfigError(f"{name} must be {words}, got {value}")
