"""A cluster's configuration under the names of the reference's `run` flags, checked once on the host.

Numbers of policies are settings too; `PolicySettings` takes them from where the policies declare them.
`mechanism.py` turns a configuration into functions and arrays.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from blis_jax.cluster import disaggregation, flow_settings, instance_groups, node_pools, revisions
from blis_jax.cluster.flow_settings import FlowSettings
from blis_jax.cluster.instance_groups import InstanceGroup
from blis_jax.cluster.node_pools import NodePool
from blis_jax.cluster.ranges import check_ranges
from blis_jax.cluster.scorer_weights import DEFAULT_SCORERS, parse_scorers
from blis_jax.cluster.setting_checks import VLLM_NAMES, check_type
from blis_jax.core.types import NO_HORIZON as NO_HORIZON
from blis_jax.errors import ConfigError, UnsupportedError, closest
from blis_jax.latency import registry as latency
from blis_jax.policies import registry
from blis_jax.policies.named import (
    NAMED_KINDS,
    as_pairs,
    is_policy_number,
    number_of,
    numbered,
)

PROFILE, AUGUST = "blis-2026-02", "blis-2026-08"
REVISIONS = (PROFILE, AUGUST)
VARIANTS = ("scheduling", "routing")
PHASES = ("aligned", "even", "drawn")
PREEMPTION_MODES = ("restart", "recompute")
_CHOICES = {
    "revision": REVISIONS,
    "variant": VARIANTS,
    "snapshot_phases": PHASES,
    "preemption_mode": PREEMPTION_MODES,
} | flow_settings.CHOICES
AUGUST_SCORERS = "precise-prefix-cache:2,queue-depth:1,kv-utilization:1"
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
class ClusterConfig(FlowSettings, PolicySettings):
    """One cluster and its policies; times in µs, sizes in tokens or blocks.

    Names and defaults are those of BLIS's `run` options. The page "Settings" has every field with its unit,
    default and bounds; numbers of policies are fields too.

    A policy is named as in the registry, or by `path/to/file.py:Name`. `policy_numbers` has numbers without a
    setting of their own, those of policies from files above all: a mapping, or pairs, such as
    `("routing.candidates", 3.0)`, or `("scorer.Mine.gain", 0.5)` for the scorer `path/to/file.py:Mine`.

    With a latency model that computes step times from sizes, `alpha_coeffs`, `beta_coeffs`, `tp` and `total_kv_blocks`
    follow from the model and its GPUs where they are not given, also in a copy made by `replace`.

    `instances` has groups of instances with numbers in place of the cluster's: `InstanceGroup`s, mappings of
    their keys, or the path of a file with a list of them. They decide `num_instances`.

    Raises:
        ConfigError: a value has the wrong type or is out of bounds, or a name is not known.
        UnsupportedError: BLIS knows the mechanism and blis_jax does not.
    """

    model: str = "meta-llama/llama-3.1-8b-instruct"
    hardware: str = "H100"
    tp: int = 2
    dp: int = 1
    model_config: str = ""
    moe_comm_backend: str = ""
    gpu_memory_utilization: float = 0.9
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
    node_pools: tuple[NodePool, ...] = ()  # of blis-2026-08, from the file given as `instances`
    admission_policy: str = "always-admit"
    admission_latency: int = 0
    routing_latency: int = 0
    network_delay: int = 0
    routing_policy: str = "round-robin"
    routing_scorers: str = ""
    routing_picker: str = "first-best"
    policy_numbers: tuple[tuple[str, float], ...] = ()
    priority_policy: str = "constant"
    scheduler: str = "fcfs"
    cluster_policy: str = registry.NONE
    hand_over_policy: str = registry.NONE
    victim_policy: str = registry.NONE
    offload_policy: str = registry.NONE
    decode_routing_policy: str = registry.SAME
    decode_routing_scorers: str = ""
    decode_routing_picker: str = registry.SAME
    slo_priority_bridge: bool = False
    slo_prefill: bool = False
    slo_prefill_critical: int = 128
    slo_prefill_sheddable: int = 0
    slo_preemption: bool = False
    preemption_mode: str = "restart"
    snapshot_refresh_interval: int = 0
    load_refresh_interval: int = 0
    snapshot_phases: str = "aligned"
    in_flight_counts: bool = True
    prefix_index_delay: int = 0
    prefix_index_loss: float = 0.0
    num_gateways: int = 1
    precise_kv_routing: bool = False
    cache_signal_delay: int = 50_000
    max_model_len: int = 0
    prefill_instances: int = 0  # pools of blis-2026-08, see disaggregation.py; likewise up to
    decode_instances: int = 0
    prefill_decode_instances: int = 0
    encode_instances: int = 0
    encode_decider: str = "never"
    pd_decider: str = "never"
    pd_prefix_threshold: int = 16
    pd_transfer_bandwidth: float = 25.0
    pd_transfer_base_latency: float = 0.05
    pd_transfer_contention: bool = False
    prefill_routing_scorers: str = ""
    prefill_tp: int = 0
    decode_tp: int = 0
    prefill_hardware: str = ""
    decode_hardware: str = ""
    prefill_latency_model: str = ""
    decode_latency_model: str = ""
    prefill_max_model_len: int = 0
    decode_max_model_len: int = 0  # this one
    kv_cpu_blocks: int = 0
    kv_offload_threshold: float = 0.9
    kv_transfer_bandwidth: float = 100.0
    kv_transfer_base_latency: int = 0
    horizon: int = NO_HORIZON
    revision: str = PROFILE
    variant: str = "scheduling"
    corrected: bool = False  # without the defects of the reference; see types.Defects

    def __new__(cls, *values: Any, **settings: Any) -> ClusterConfig:
        """A configuration; a setting that does not exist is refused with the name of the nearest.

        Raises:
            ConfigError: there is no such setting.
        """
        refuse_unknown(name for name in settings if name not in FIELDS)
        made = super().__new__(cls)
        given = frozenset(settings) | frozenset(list(FIELDS)[: len(values)])
        object.__setattr__(made, "_given", given)
        return made

    def __post_init__(self) -> None:
        object.__setattr__(self, "policy_numbers", as_pairs(self.policy_numbers))
        for name in ("alpha_coeffs", "beta_coeffs"):  # a list has no hash
            value = getattr(self, name)
            if isinstance(value, Iterable) and not isinstance(value, str):
                object.__setattr__(self, name, tuple(value))
        groups, source, fleet = instance_groups.groups_and_fleet(self.instances, self)
        for name, value in ({"instances": groups} | fleet).items():
            if name in ("instances", "node_pools") or getattr(self, name) == FIELDS[name].default:
                object.__setattr__(self, name, value)
        if groups and self.num_instances != 1:  # the default may stand for a number not given
            instance_groups.check_number(self, self.num_instances)
        if groups or self.node_pools:
            object.__setattr__(self, "num_instances", max(instance_groups.size(groups), 1))
        _check_types(self)
        before: dict[str, Any] = {}
        object.__setattr__(self, "_before", before)
        for derive in (revisions.defaults, latency.defaults, revisions.limits):
            for name, value in derive(self, self._given).items():
                before.setdefault(name, getattr(self, name))
                object.__setattr__(self, name, value)
        _check(self)
        if groups:
            instance_groups.check(self, source)

    @property
    def profile(self) -> str:
        """The reference's revision and track that are reproduced, and in what the run differs from them."""
        if self.is_august:
            return AUGUST + latency.profile_suffix(self)
        name = f"{PROFILE}/{self.variant}" + "/corrected" * self.corrected
        return name + latency.profile_suffix(self)

    @property
    def given(self) -> frozenset[str]:
        """Settings that were given, whatever their values."""
        found: frozenset[str] = self._given
        return found

    @property
    def is_august(self) -> bool:
        """Whether the reference is BLIS as of August 2026."""
        return self.revision == AUGUST

    @property
    def goes_by_targets(self) -> bool:
        """Whether the gateway's queue goes by bounds of single requests."""
        return self.flow_control and self.dispatch_order == "slo-deadline"

    def serves(self, model: str) -> bool:
        """Whether requests that name this model, or none, have instances; BLIS of August asks, but in pools."""
        asks = self.is_august and not disaggregation.has_pools(self)
        return not asks or model in ("", self.model.lower())

    def scorers(self) -> list[tuple[str, float]]:
        """Scorers and weights in the order given; none unless routing is weighted."""
        if self.routing_policy != "weighted":
            return []
        default = AUGUST_SCORERS if self.is_august else DEFAULT_SCORERS
        return parse_scorers(self.routing_scorers or default)

    def decode_scorers(self) -> list[tuple[str, float]]:
        """Likewise where requests are routed in the decode pool."""
        policy, text = self.decode_routing_policy, self.decode_routing_scorers
        if self.is_august:
            return parse_scorers(text, "decode_routing_scorers") if text else []
        if (self.routing_policy if policy == registry.SAME else policy) != "weighted":
            return []
        default = self.routing_scorers or DEFAULT_SCORERS
        return parse_scorers(
            text or default, "decode_routing_scorers" if text else "routing_scorers"
        )

    def prefill_scorers(self) -> list[tuple[str, float]]:
        """Likewise where blis-2026-08 routes in the prefill pool."""
        text = self.prefill_routing_scorers
        return parse_scorers(text, "prefill_routing_scorers") if text else []

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
        made = ClusterConfig(**{**self._own(), **fields})
        instance_groups.check_number(made, changes.get("num_instances", made.num_instances))
        return made

    def _own(self) -> dict[str, Any]:
        """The settings that were given, and those with other values than by default; not what followed from these."""
        values = {name: self._before.get(name, getattr(self, name)) for name in FIELDS}
        return {
            name: value
            for name, value in values.items()
            if name in self._given or value != FIELDS[name].default
        }

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
    for kind in (*NAMED_KINDS, *registry.OPTIONAL_KINDS)
} | {
    registry.DECODE_SETTINGS[kind]: (registry.SAME, *registry.NAMES[kind])
    for kind in ("routing", "picker")
}
SCORER_NAMES = tuple(registry.SCORERS)


def _check_types(config: ClusterConfig) -> None:
    for name, field in FIELDS.items():
        check_type(name, field.type, getattr(config, name))


def _check(config: ClusterConfig) -> None:
    check_ranges(config)
    for name, choices in _CHOICES.items():
        given = getattr(config, name)
        if given not in choices:
            hint = closest(given, choices)
            raise ConfigError(f"{name} {given!r} is not known; use {' or '.join(choices)}{hint}")
    disaggregation.check(config)
    revisions.check(config)
    node_pools.check(config)
    flow_settings.check(config)
    latency.check(config)
    numbered(config)
