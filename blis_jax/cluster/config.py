"""A cluster's configuration under the names of the reference's `run` flags, checked once on the host.

The numbers that policies declare are settings too. `mechanism.py` turns all settings into functions and arrays.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, ClassVar

from blis_jax.cluster import (
    adapters,
    disaggregation,
    instance_groups,
    node_pools,
    offload_tiers,
    revisions,
    router,
    speculation,
    step_times,
)
from blis_jax.cluster.adapters import AdapterSettings
from blis_jax.cluster.machines import Machines, MemorySettings
from blis_jax.cluster.named_policies import (
    as_pairs,
    has_number,
    is_policy_number,
    number_of,
    numbered,
    setting_of_owner,
)
from blis_jax.cluster.offload_tiers import OffloadSettings
from blis_jax.cluster.router import BatchSettings, RouterSettings, parse_scorers
from blis_jax.cluster.settings import PolicySettings, check_values, setting
from blis_jax.cluster.speculation import SpeculativeSettings
from blis_jax.core.kinds import DEFAULT_SCORERS, KINDS, NONE, ROUTER, SAME
from blis_jax.core.types import NO_HORIZON as NO_HORIZON
from blis_jax.errors import ConfigError, UnsupportedError, closest
from blis_jax.files.python_files import is_file
from blis_jax.policies import registry, their_names

PROFILE, AUGUST = "blis-2026-02", "blis-2026-08"
REVISIONS, VARIANTS = (PROFILE, AUGUST), ("scheduling", "routing")
AUGUST_SCORERS = "precise-prefix-cache:2,queue-depth:1,kv-utilization:1"
CRITICAL_CLASSES, SHEDDABLE_CLASSES = (1,), (3, 4, 5)


@dataclass(frozen=True)
class ClusterConfig(
    Machines,
    MemorySettings,
    OffloadSettings,
    AdapterSettings,
    RouterSettings,
    BatchSettings,
    SpeculativeSettings,
    PolicySettings,
):
    """One cluster and its policies; times in µs, sizes in tokens or blocks.

    It inherits its fields from one class each for machines, memory, router, queue and policies. Field names and
    defaults are those of BLIS's `run` options. The page "Settings" has every field with its unit, default and bounds;
    numbers of policies are fields too.

    A policy is named as in the registry, or by `path/to/file.py:Name`. `policy_numbers` has the policies' numbers that
    have no setting of their own, mostly those of policies from files: a mapping, or pairs, such as
    `("routing.candidates", 3.0)`, or `("scorer.Mine.gain", 0.5)` for the scorer `path/to/file.py:Mine`.

    With a latency model that computes step times from sizes, `alpha_coeffs`, `beta_coeffs`, `tp` and `total_kv_blocks`
    follow from the model and its GPUs where they are not given, also in a copy made by `replace`.

    `instances` has groups of instances whose numbers replace the cluster's: `InstanceGroup`s, mappings with the keys of
    `InstanceGroup`, or the path of a file with a list of such mappings. The groups decide `num_instances`.

    Raises:
        ConfigError: a value has the wrong type or is out of bounds, or a name is not known.
        UnsupportedError: BLIS knows the mechanism and blis_jax does not.
    """

    if TYPE_CHECKING:  # from the table of kinds
        admission_policy: str = ""
        routing_policy: str = ""
        routing_scorers: str = ""
        routing_picker: str = ""
        priority_policy: str = ""
        scheduler: str = ""
        cluster_policy: str = ""
        hand_over_policy: str = ""
        event_source: str = ""
        victim_policy: str = ""
        offload_policy: str = ""
        draft_policy: str = ""
        decode_routing_policy: str = ""
        decode_routing_scorers: str = ""
        decode_routing_picker: str = ""

    policy_numbers: tuple[tuple[str, float], ...] = setting(
        (), "numbers of policies from files: KIND.NAME=X pairs, such as routing.candidates=3",
        words="numbers that the policies in use declare", metavar="LIST",
    )  # fmt: skip
    horizon: int = setting(
        NO_HORIZON, "time at which the simulation stops; the default means never", "µs", low=0
    )
    revision: str = setting(
        PROFILE, "revision of BLIS that is reproduced: blis-2026-02 or blis-2026-08", choices=REVISIONS,
    )  # fmt: skip
    variant: str = setting(
        "scheduling", "track of BLIS that is reproduced: scheduling or routing", choices=VARIANTS
    )
    corrected: bool = setting(False, "run without the defects of BLIS")  # see types.Defects
    _given: ClassVar[Mapping[str, Any]]  # not a field: the given settings, as stored

    if not TYPE_CHECKING:  # type checkers take the one of the fields

        def __init__(self, *values: Any, **settings: Any) -> None:
            _hold(self, dict(zip(FIELDS, values, strict=False)) | settings)

    @property
    def profile(self) -> str:
        """Return the profile's name: the reference's revision and track, and how the run departs from them."""
        if self.is_august:
            return AUGUST + step_times.profile_suffix(self)
        name = f"{PROFILE}/{self.variant}" + "/corrected" * self.corrected
        return name + step_times.profile_suffix(self)

    @property
    def given(self) -> frozenset[str]:
        """Return the names of the settings that were given explicitly, whatever their values."""
        return frozenset(self._given)

    @property
    def is_august(self) -> bool:
        """Return whether the reference is BLIS as of August 2026."""
        return self.revision == AUGUST

    @property
    def goes_by_targets(self) -> bool:
        """Return whether the gateway's queue orders requests by the TTFT targets of single requests."""
        return self.flow_control and self.dispatch_order == "slo-deadline"

    def serves(self, model: str) -> bool:
        """Return whether instances serve `model`, or any model if empty; only BLIS of August without pools checks."""
        asks = self.is_august and not disaggregation.has_pools(self)
        return not asks or model in ("", self.model.lower())

    def scorers(self) -> list[tuple[str, float]]:
        """Return (scorer, weight) pairs in the given order, for weighted routing and policies from files; else none."""
        if self.routing_policy != "weighted":
            return _beside(self.routing_policy, self.routing_scorers, "routing_scorers")
        default = AUGUST_SCORERS if self.is_august else DEFAULT_SCORERS
        return parse_scorers(self.routing_scorers or default)

    def decode_scorers(self) -> list[tuple[str, float]]:
        """Return (scorer, weight) pairs of the decode pool's router, by the rule of `scorers`."""
        policy, text = self.decode_routing_policy, self.decode_routing_scorers
        if self.is_august:
            return parse_scorers(text, "decode_routing_scorers") if text else []
        named = "decode_routing_scorers" if text else "routing_scorers"
        text = text or self.routing_scorers
        policy = self.routing_policy if policy == SAME else policy
        if policy != "weighted":
            return _beside(policy, text, named)
        return parse_scorers(text or DEFAULT_SCORERS, named)

    def prefill_scorers(self) -> list[tuple[str, float]]:
        """Return (scorer, weight) pairs of the prefill pool's router, which only blis-2026-08 has."""
        text = self.prefill_routing_scorers
        return parse_scorers(text, "prefill_routing_scorers") if text else []

    def replace(self, **changes: Any) -> ClusterConfig:
        """Return a copy with some settings changed, checked again.

        Args:
            changes: new values by name; `routing.candidates` is a number of a policy. New groups of instances also set
                `num_instances`; replacing a policy drops the old policy's numbers.

        Raises:
            ConfigError: a setting is unknown, or its value is not allowed.
        """
        changes = router.with_room(self._given, their_names.ours(changes))
        refuse_unknown(name for name in changes if not is_setting(name))
        instance_groups.refuse_idle(self, changes)
        numbers = {name: value for name, value in changes.items() if is_policy_number(name)}
        changed = {**self._given, **{k: v for k, v in changes.items() if k not in numbers}}
        if changes.get("instances") and "num_instances" not in changes:
            changed.pop("num_instances", None)
        if "policy_numbers" not in changes and self.policy_numbers:
            changed["policy_numbers"] = self._numbers_beside(changed)
        if numbers:
            before = dict(as_pairs(changed.get("policy_numbers", ())))
            changed["policy_numbers"] = before | numbers
        made = ClusterConfig(**changed)
        instance_groups.check_number(made, changes.get("num_instances", made.num_instances))
        return made

    def without(self, *names: str) -> ClusterConfig:
        """Return a copy without these explicit settings, so that their values follow from other settings again."""
        return ClusterConfig(**{key: val for key, val in self._given.items() if key not in names})

    def _numbers_beside(self, settings: Mapping[str, Any]) -> tuple[tuple[str, float], ...]:
        """Return the policy numbers that remain valid when `settings` replace the current ones."""
        changed = {
            name
            for name in their_names.NAMED_BY
            if settings.get(name, FIELDS[name].default) != getattr(self, name)
        }
        if not changed:
            return self.policy_numbers
        after = ClusterConfig(**{**settings, "policy_numbers": ()})
        return tuple(
            (name, value)
            for name, value in self.policy_numbers
            if setting_of_owner(name) not in changed and has_number(after, name)
        )

    def value(self, setting: str) -> Any:
        """Return the value of a setting; for a policy's number that was not given, return its default.

        Raises:
            ConfigError: no policy in use has the number.
        """
        setting = their_names.setting_named(setting)
        if not is_policy_number(setting):
            return getattr(self, setting)
        numbers = dict(self.policy_numbers)
        declared = number_of(self, setting)
        assert declared is not None  # it is written as a policy's number
        return numbers.get(setting, declared.default)


def _beside(policy: str, scorers: str, setting: str) -> list[tuple[str, float]]:
    return parse_scorers(scorers, setting) if is_file(policy) and scorers else []


# --- from what was given to every setting -----------------------------------------------------------


def _hold(config: ClusterConfig, settings: Mapping[str, Any]) -> None:
    """Fill a new configuration and check it; errors use the names under which the settings were given."""
    try:
        kept, groups_from = as_kept(their_names.ours(settings))
        vars(config).update(resolve(kept), _given=kept)
        _check(config)
        if config.instances:
            instance_groups.check(config, groups_from)
    except ConfigError as error:
        raise type(error)(their_names.as_written(str(error), settings)) from None


def as_kept(settings: Mapping[str, Any]) -> tuple[dict[str, Any], str]:
    """Return the settings in the form in which a configuration stores them, and the source of groups, for errors.

    Policies get the names of this package, lists become tuples, files of groups are read, and groups decide
    `num_instances`.

    Raises:
        ConfigError: a setting is unknown, or the groups or policy numbers are not valid.
    """
    refuse_unknown(name for name in settings if name not in FIELDS)
    kept = dict(settings)
    if "policy_numbers" in kept:
        kept["policy_numbers"] = as_pairs(kept["policy_numbers"])
    for name in their_names.NAMED_BY:
        if isinstance(text := kept.get(name), str):
            kept[name] = their_names.policies_named(name, text)
    for name in ("alpha_coeffs", "beta_coeffs"):  # a list has no hash
        if isinstance(value := kept.get(name), Iterable) and not isinstance(value, str):
            kept[name] = tuple(value)
    if "lora_config" in kept:
        kept["lora_config"] = adapters.given_config(kept["lora_config"])
    if "kv_offload_config" in kept:
        kept["kv_offload_config"] = offload_tiers.given_config(kept["kv_offload_config"])
    if "speculative_config" in kept:
        kept["speculative_config"] = speculation.given_config(kept["speculative_config"])
    groups, source, fleet = instance_groups.groups_and_fleet(
        kept.get("instances", ()), _unchecked(kept)
    )
    for name, value in fleet.items():
        if name == "node_pools" or kept.get(name, DEFAULTS[name]) == DEFAULTS[name]:
            kept[name] = value
    if "instances" in kept:
        kept["instances"] = groups
    if groups and kept.get("num_instances", 1) != 1:  # the default may stand for a number not given
        instance_groups.check_number(_unchecked(kept), kept["num_instances"])
    if groups or kept.get("node_pools"):
        kept["num_instances"] = max(instance_groups.size(groups), 1)
    return kept, source


# values derived from other settings if not given; each function may use the results of those before it
DERIVATIONS = (
    *(revisions.defaults, revisions.of_vllm, adapters.defaults),
    *(step_times.defaults, revisions.limits, router.limits),
)


def resolve(settings: Mapping[str, Any]) -> dict[str, Any]:
    """Return every setting by name: the given value, else the value derived from other settings, else the default.

    Raises:
        ConfigError: a value has the wrong type or is out of bounds, or a model or GPU is not known.
    """
    draft = _unchecked(settings)
    check_values(draft, FIELDS)
    for derive in DERIVATIONS:
        vars(draft).update(derive(draft, settings.keys()))
    return {name: getattr(draft, name) for name in FIELDS}


def _unchecked(settings: Mapping[str, Any]) -> ClusterConfig:
    """Return a configuration of the given settings and the defaults, without deriving or checking any value."""
    draft = object.__new__(ClusterConfig)
    vars(draft).update({**DEFAULTS, **settings}, _given=settings)
    return draft


def is_setting(name: str) -> bool:
    """Return whether a setting has this name, either this package's name or vLLM's."""
    name = their_names.SETTINGS.get(name, name)
    return name in FIELDS or is_policy_number(name)


def refuse_unknown(names: Iterable[str]) -> None:
    """Refuse unknown settings: raise the error for the first of `names`, if there is one."""
    for name in names:
        hint = nearest_setting(name) or f"; known: {', '.join(sorted(FIELDS))}"
        raise ConfigError(f"setting {name!r} is unknown{hint}")


def nearest_setting(name: str, others: Iterable[str] = ()) -> str:
    """Return a hint for an unknown setting: the closest known name, or what replaces the setting in this package."""
    word = name.replace("-", "_")
    if instead := their_names.NOT_HERE.get(word):
        return f": {instead}"
    return closest(word, (*others, *FIELDS, *their_names.SETTINGS))


def of_settings(settings: Mapping[str, Any]) -> ClusterConfig:
    """Return a configuration with these settings, which may include policies' numbers; all others keep their defaults.

    Raises:
        ConfigError: a setting is unknown, or its value is not allowed.
    """
    return ClusterConfig().replace(**settings)


FIELDS = {field.name: field for field in dataclasses.fields(ClusterConfig)}
DEFAULTS: dict[str, Any] = {name: field.default for name, field in FIELDS.items()}


def from_flags(flags: Mapping[str, Any]) -> ClusterConfig:
    """Build a configuration from the `config` of a golden scenario; keys that are not settings are ignored.

    Raises:
        UnsupportedError: the scenario uses a feature that is not reproduced.
    """
    reason = unsupported(flags)
    if reason is not None:
        raise UnsupportedError(f"{reason} is not supported yet; such a scenario cannot be run")
    values: dict[str, Any] = {}
    for key, value in flags.items():
        name = key.replace("-", "_")
        if is_setting(name) and not (name in POLICY_NAMES and value == ""):  # "": the default
            values[name] = tuple(value) if isinstance(value, list) else value
    # only the routing track's revision has this flag; its gate of the same name reads queue lengths
    if "precise-kv-routing" in flags:
        values.setdefault("variant", "routing")
    return of_settings(values)


def unsupported(flags: Mapping[str, Any]) -> str | None:
    """Return the name of a BLIS mechanism that a scenario asks for and this package does not reproduce, or None."""
    if flags.get("roofline"):
        return "the roofline latency model"
    return None


POLICY_NAMES: dict[str, tuple[str, ...]] = {
    kind.setting: tuple(registry.NAMES.get(kind.name, ())) or (NONE,)
    for kind in KINDS.values()
    if not kind.is_list
} | {kind.decode_setting: (SAME, *registry.NAMES[kind.name]) for kind in ROUTER if not kind.is_list}
SCORER_NAMES = tuple(registry.SCORERS)


def _check(config: ClusterConfig) -> None:
    disaggregation.check(config)
    revisions.check(config)
    adapters.check(config)
    offload_tiers.check(config)
    speculation.check(config)
    node_pools.check(config)
    router.check(config)
    step_times.check(config)
    numbered(config)
