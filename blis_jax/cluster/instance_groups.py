"""Groups of equal instances in a cluster whose instances differ; a group's numbers replace the cluster's."""

from __future__ import annotations

import dataclasses
import itertools
import math
import re
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeVar

from blis_jax.cluster import disaggregation
from blis_jax.cluster.node_pools import is_fleet, settings_of_fleet
from blis_jax.cluster.router import with_room
from blis_jax.core.kinds import NONE
from blis_jax.core.types import ROLES
from blis_jax.errors import ConfigError, closest, shortened
from blis_jax.files.input_files import read_text
from blis_jax.files.strict_yaml import chosen_at, read_yaml, value_at
from blis_jax.policies import their_names

if TYPE_CHECKING:
    from blis_jax.cluster.config import ClusterConfig

SETTING = "instances"
T = TypeVar("T")
EXAMPLE = "[{count: 2, total_kv_blocks: 20000}]"
_SHORT = {"alpha": "alpha_coeffs", "beta": "beta_coeffs"}


@dataclass(frozen=True)
class InstanceGroup:
    """`count` equal instances; a number that is None has the cluster's value.

    The name only labels the group in output. Units are those of `ClusterConfig`.

    Raises:
        ConfigError: a count, name, role or list of coefficients is not allowed. `ClusterConfig` checks the group's
            other numbers.
    """

    count: int = 1
    name: str = ""
    role: str = "both"
    gpu_memory_gib: float | None = None  # of a GPU, for which KV blocks are counted
    hardware: str | None = None
    tp: int | None = None
    dp: int | None = None
    alpha_coeffs: tuple[float, ...] | None = None
    beta_coeffs: tuple[float, ...] | None = None
    total_kv_blocks: int | None = None
    max_num_running_reqs: int | None = None
    max_num_scheduled_tokens: int | None = None
    long_prefill_token_threshold: int | None = None
    slo_prefill: bool | None = None
    slo_prefill_critical: int | None = None
    slo_prefill_sheddable: int | None = None
    kv_cpu_blocks: int | None = None
    kv_offload_threshold: float | None = None
    kv_transfer_bandwidth: float | None = None
    kv_transfer_base_latency: int | None = None
    network_delay: int | None = None

    def __post_init__(self) -> None:
        value_at(self.count, "count", int, 1, math.inf)
        value_at(self.name, "name", str)
        chosen_at(self.role, "role", *ROLES)
        if (memory := self.gpu_memory_gib) is not None:
            value_at(memory, "gpu_memory_gib", float, 0, math.inf, excludes_low=True)
        for setting in _SHORT.values():
            object.__setattr__(self, setting, _coefficients(setting, getattr(self, setting)))

    def numbers(self) -> dict[str, Any]:
        """Return the numbers that the group sets itself, by setting."""
        numbers = {name: getattr(self, name) for name in NUMBERS}
        return {name: value for name, value in numbers.items() if value is not None}

    def plain(self) -> dict[str, Any]:
        """Return the group's given values as a mapping, as written in a file."""
        about = {name: getattr(self, name) for name in _ABOUT}
        unusual = {name: value for name, value in about.items() if value != _ABOUT[name]}
        values = {"count": self.count} | unusual | self.numbers()
        return {name: list(v) if isinstance(v, tuple) else v for name, v in values.items()}


_ABOUT = {"name": "", "role": "both", "gpu_memory_gib": None}
KEYS = tuple(field.name for field in dataclasses.fields(InstanceGroup))
NUMBERS = tuple(name for name in KEYS if name not in ("count", *_ABOUT))


def _coefficients(name: str, value: object) -> tuple[float, ...] | None:
    if value is None:
        return None
    numbers: list[Any] = [None]
    if isinstance(value, list | tuple):
        numbers = [_number(number) for number in value]
    if any(isinstance(number, bool) or not isinstance(number, int | float) for number in numbers):
        raise ConfigError(f"{name}: got {shortened(value)}, allowed is a list of numbers")
    return tuple(float(number) for number in numbers)


def _number(value: object) -> object:
    """Return a number, even if YAML reads it as text, such as 1e-5."""
    if not isinstance(value, str):
        return value
    try:
        return float(value)
    except ValueError:
        return value


# --- reading --------------------------------------------------------------------------------------


def groups_and_fleet(
    value: object, config: ClusterConfig
) -> tuple[tuple[InstanceGroup, ...], str, dict[str, Any]]:
    """Return groups as `groups_of` does, the source for errors, and the settings that follow if `value` has machine
    sections of a BLIS policy file.

    Raises:
        ConfigError: the file cannot be read, or a key or value is not allowed.
    """
    source, fleet = SETTING, {}
    if isinstance(value, str):
        if pools_of(value) is not None and "hand_over_policy" not in config.given:
            fleet = {"hand_over_policy": "pools"}
        value, source = _parsed(value)
    if is_fleet(value):
        fleet = settings_of_fleet(config, value, source)
    return groups_of(fleet.pop(SETTING, value), source), source, fleet


def groups_of(value: object, source: str = SETTING) -> tuple[InstanceGroup, ...]:
    """Return the instance groups that a value or a file describes.

    Args:
        value: `InstanceGroup`s, or mappings with their keys; or a text: the path of a YAML or JSON file with a list of
            such mappings, or that list itself, beginning with `[`.
        source: the text that errors begin with; if a file is read, they begin with its path.

    Raises:
        ConfigError: the file cannot be read, or a key or value is not allowed.
    """
    if isinstance(value, str):
        value, source = _parsed(value)
    if not isinstance(value, list | tuple):
        raise ConfigError(
            f"{source}: got {shortened(value)}, allowed is a list of groups such as {EXAMPLE}"
        )
    return tuple(_group(_place(source, number), group) for number, group in enumerate(value, 1))


_POOLS = re.compile(r"(\d+)p(\d+)d", re.IGNORECASE)


def pools_of(text: str) -> list[dict[str, Any]] | None:
    """Return the groups in a text such as `1P2D` (one prefill instance, two decode instances); None for other texts."""
    counts = _POOLS.fullmatch(text.strip())
    if counts is None:
        return None
    roles = ("prefill", "decode")
    return [{"count": int(n), "role": role} for n, role in zip(counts.groups(), roles, strict=True)]


def _parsed(text: str) -> tuple[Any, str]:
    """Return the list of groups that `text` holds, abbreviates (`1P2D`), or names by a file's path."""
    source, pools = SETTING, pools_of(text)
    if pools is not None:
        return pools, source
    if not text.lstrip().startswith("["):
        source, text = (
            text,
            read_text(
                Path(text), f"a list of instance groups such as {EXAMPLE}, or pools such as 1P2D"
            ),
        )
    content = read_yaml(text, source)
    if not content:
        raise ConfigError(f"{source}: no group is given; give a list such as {EXAMPLE}")
    return content, source


def _place(source: str, number: int, name: str = "") -> str:
    return f"{source}: group {number}" + (f" ({name})" if name else "")


def _group(place: str, group: object) -> InstanceGroup:
    if isinstance(group, InstanceGroup):
        return group
    if not isinstance(group, Mapping):
        raise ConfigError(
            f"{place}: got {shortened(group)}, allowed is a mapping such as {EXAMPLE[1:-1]}"
        )
    values: dict[str, Any] = {}
    for key, value in group.items():
        name = str(key).replace("-", "_")
        name = _SHORT.get(name, their_names.SETTINGS.get(name, name))
        if name not in KEYS:
            known = (*KEYS, *_SHORT, *their_names.SETTINGS)
            raise ConfigError(
                f"{place}: the key {shortened(key)} is unknown; use some of {', '.join(KEYS)}"
                f"{closest(name, known)}"
            )
        if value is None:
            continue
        if name in values:
            raise ConfigError(f"{place}: {name} is given twice; keep one of them")
        values[name] = _number(value) if name in _REALS else value
    try:
        return InstanceGroup(**values)
    except ConfigError as error:
        raise ConfigError(f"{place}: {error}") from None


_REALS = ("kv_offload_threshold", "kv_transfer_bandwidth", "gpu_memory_gib")


def located(value: T, folder: Path) -> T | str:
    """Return the setting `instances` from a file in `folder`; a path that exists there is joined to `folder`."""
    if not isinstance(value, str) or value.lstrip().startswith("["):
        return value
    return str(folder / value) if (folder / value).is_file() else value


# --- the number of instances ----------------------------------------------------------------------


def size(groups: tuple[InstanceGroup, ...]) -> int:
    """Return the number of instances in all groups."""
    return sum(group.count for group in groups)


def num_gpus(config: ClusterConfig) -> int:
    """Return the number of GPUs of all instances together."""
    if not config.instances:
        return config.num_instances * (config.tp or 1) * config.dp
    each = (
        (instance, instance.tp or config.tp or 1, instance.dp or config.dp)
        for instance in config.instances
    )
    return sum(group.count * tp * dp for group, tp, dp in each)


def check_number(config: ClusterConfig, wanted: int) -> None:
    """Refuse a `num_instances` other than the groups' sum; with node pools, the nodes may have room for fewer."""
    number = size(config.instances) if config.instances else wanted
    if wanted < number or (wanted > number and not config.node_pools):
        raise ConfigError(
            f"num_instances is {wanted}, but the groups of instances add up to "
            f"{number}; leave it out, or change a count"
        )


# --- what each instance has -----------------------------------------------------------------------


def per_instance(config: ClusterConfig, setting: str) -> list[Any]:
    """Return the value of a setting for every instance, in order."""
    usual = getattr(config, setting)
    if disaggregation.has_pools(config):
        return disaggregation.per_instance(config, setting)
    if not config.instances:
        return [usual] * config.num_instances
    values: list[Any] = []
    for group in config.instances:
        of_group = (
            _longest(config, group) if setting == "max_model_len" else getattr(group, setting)
        )
        values += [usual if of_group is None else of_group] * group.count
    return values


def _longest(config: ClusterConfig, group: InstanceGroup) -> int | None:
    """Return the longest request that fits into a group's smaller KV cache, in August's revision."""
    if group.total_kv_blocks is None or not config.max_model_len:
        return None
    return min(config.max_model_len, group.total_kv_blocks * config.block_size_in_tokens)


def roles(config: ClusterConfig) -> list[int]:
    """Return every instance's role, as an index into `ROLES`; August's revision adds encode and idle instances."""
    if disaggregation.has_pools(config):
        return disaggregation.roles(config)
    if not config.instances:
        return [0] * config.num_instances
    return [ROLES.index(group.role) for group in config.instances for _ in range(group.count)]


def has_cpu_tier(config: ClusterConfig) -> bool:
    """Return whether some instance has KV blocks in CPU memory."""
    return any(blocks > 0 for blocks in per_instance(config, "kv_cpu_blocks"))


def coefficients_of(config: ClusterConfig) -> tuple[float, ...]:
    """Return β of the first instance; every instance has the same number of coefficients."""
    first = config.instances[0].beta_coeffs if config.instances else None
    return config.beta_coeffs if first is None else first


def instance_lines(config: ClusterConfig) -> list[str]:
    """Describe the coefficients and KV blocks of all instances, one line for each group."""

    def words(place: int) -> str:
        alpha, beta, blocks = (
            per_instance(config, name)[place]
            for name in ("alpha_coeffs", "beta_coeffs", "total_kv_blocks")
        )
        return f"coefficients {list(alpha)}, {list(beta)}; {blocks} KV blocks per instance"

    if not config.instances:
        return [words(0)]
    ends = itertools.accumulate(group.count for group in config.instances)
    named = enumerate(zip(config.instances, ends, strict=True), 1)
    return [
        f"{group.count} × {group.name or f'group {number}'}: {words(end - 1)}"
        for number, (group, end) in named
    ]


def refuse_idle(config: ClusterConfig, changes: Mapping[str, Any]) -> None:
    """Refuse to change a cluster-wide number that every group overrides."""
    if SETTING in changes or not config.instances:
        return
    for name, value in changes.items():
        if name not in NUMBERS or value == getattr(config, name):
            continue
        if all(getattr(group, name) is not None for group in config.instances):
            raise ConfigError(
                f"{name}: every group of instances has its own, so the cluster's value has no "
                "effect; change it in the groups, or leave it out of one"
            )


def everywhere(config: ClusterConfig, **changes: Any) -> ClusterConfig:
    """Return the configuration with some settings changed on every instance."""
    without: dict[str, Any] = {name: None for name in changes if name in NUMBERS}
    groups = tuple(dataclasses.replace(group, **without) for group in config.instances)
    return config.replace(**changes, **({SETTING: groups} if groups else {}))


def check(config: ClusterConfig, source: str) -> None:
    """Refuse groups with numbers that would not be allowed in a cluster of such instances alone.

    Raises:
        ConfigError: the message begins with `source` and the group's position in the list.
    """
    for number, group in enumerate(config.instances, 1):
        try:
            alone: dict[str, Any] = {
                SETTING: (),
                "node_pools": (),
                "num_instances": 1,
            } | disaggregation.SETTINGS
            dataclasses.replace(config, **alone, **with_room(vars(config), group.numbers()))
        except ConfigError as error:
            raise type(error)(f"{_place(source, number, group.name)}: {error}") from None
    counts = [len(values) for values in per_instance(config, "beta_coeffs")]
    if len(set(counts)) > 1:
        raise ConfigError(
            f"{source}: one latency model times all instances, so they need as many beta_coeffs "
            f"each; got {min(counts)} in one group and {max(counts)} in another"
        )


def refuse_beside(config: ClusterConfig, begin: str, why: str, **further: bool) -> None:
    """Refuse the first mechanism of a cluster that has no rule beside another one.

    Such are KV that comes from elsewhere, policies that move requests or take instances down, and what `further` names.

    Raises:
        ConfigError: there is such a mechanism; the sentence begins with `begin` and gives `why`.
    """
    others = {
        f"hand_over_policy {config.hand_over_policy}": config.hand_over_policy != NONE,
        f"cluster_policy {config.cluster_policy}": config.cluster_policy != NONE,
        "pools of instances": disaggregation.has_pools(config),
        "kv_cpu_blocks": any(per_instance(config, "kv_cpu_blocks")),
    }
    for name, is_there in (others | further).items():
        if is_there:
            raise ConfigError(f"{begin}: {name} has no rule beside {why}; leave one of them out")
