"""Settings: a configuration and a workload under one name, as a record's scenarios have them.

A file of settings has an entry for each name: an arm (see `sweeps.strategies.arms`), an arm with a
workload, or settings in groups, `{from: [GROUP, …], set: {…}, workload: …}`, as the catalogue of
principles has them; the groups are under `groups`. A workload is a name or a choice with numbers.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from functools import lru_cache
from typing import Any

from pydantic import ValidationError

from blis_jax.cluster.config import ClusterConfig
from blis_jax.errors import ConfigError, closest
from blis_jax.files.atomic_write import fingerprint
from blis_jax.files.strict_yaml import read_mapping, sentence
from blis_jax.workload.spec import WorkloadSpec
from sweeps.principles import catalogue
from sweeps.principles.catalogue import WorkloadChoice
from sweeps.strategies import arms
from sweeps.strategies.file import converted
from sweeps.strategies.moved import values_for_hash

WORKLOAD = "mixed"
_BY_ARM = ("arm", "workload", "rate", "num_requests")
_BY_GROUPS = ("from", "set", "workload")
Groups = Mapping[str, Mapping[str, Any]]
# blocks of an instance up to which runs of a workload need memory block by block
PRESSED_BLOCKS = 3000
PRESSED_BY = {"groups": 5000}  # by how a workload's name begins
CHATS = "multiturn"


@dataclass(frozen=True)
class RunSetting:
    """A setting to simulate, but for the seed."""

    name: str
    choice: WorkloadChoice
    made: ClusterConfig | None
    missing: str = ""  # why there is no configuration: a mechanism that blis_jax lacks

    @property
    def config(self) -> ClusterConfig:
        """Return the configuration.

        Raises:
            ConfigError: a mechanism is missing.
        """
        if self.made is None:
            raise ConfigError(f"setting {self.name!r} cannot be run: {self.missing}")
        return self.made

    @property
    def spec(self) -> WorkloadSpec:
        """Return the workload."""
        return _spec(self.choice)

    @property
    def identity(self) -> str:
        """Return a hash that is equal for settings that simulate the same."""
        config = values_for_hash(self.config) | {"routing_scorers": self.config.scorers()}
        content = [config, self.spec.model_dump(mode="json", exclude={"seed"})]
        return fingerprint(content)

    @property
    def has_chats(self) -> bool:
        """Return whether the setting's requests come in rounds."""
        return self.choice.name.startswith(CHATS)

    @property
    def is_pressed(self) -> bool:
        """Return whether the runs presumably need memory block by block, which is slow."""
        limits = [n for name, n in PRESSED_BY.items() if self.choice.name.startswith(name)]
        limit = limits[0] if limits else PRESSED_BLOCKS
        return not self.has_chats and self.config.total_kv_blocks <= limit

    @property
    def num_requests(self) -> float:
        """Return about how many requests a run has."""
        spec = self.spec
        return spec.num_requests or (spec.aggregate_rate or 0) * (spec.horizon or 0) / 1e6


def of_arm(
    name: str,
    arm: str,
    workload: str = WORKLOAD,
    rate: float | None = None,
    num_requests: int | None = None,
) -> RunSetting:
    """Return an arm on a workload, perhaps at another rate (requests/s) and with another number of requests."""
    choice = WorkloadChoice(name=workload, aggregate_rate=rate, num_requests=num_requests)
    return RunSetting(name, choice, _config(arm))


def of_groups(
    name: str, groups: Groups, names: Iterable[str], changes: Mapping[str, Any], workload: Any
) -> RunSetting:
    """Make a setting on a workload from groups of settings, in order, and then from single changes."""
    values: dict[str, Any] = {}
    for group in names:
        if group not in groups:
            raise ConfigError(f"{name}: group {group!r} is unknown{closest(group, groups)}")
        values |= groups[group]
    values |= changes
    choice = WorkloadChoice.model_validate(
        {"name": workload} if isinstance(workload, str) else workload
    )
    missing = catalogue.missing(values)
    if missing:
        return RunSetting(name, choice, None, missing)
    horizon = _spec(choice).horizon
    if horizon:  # requests and the run end together, as with BLIS's --horizon
        values["horizon"] = min(values.get("horizon", horizon), horizon)
    config = ClusterConfig(**{key: converted(key, value) for key, value in values.items()})
    return RunSetting(name, choice, config)


@lru_cache(maxsize=512)
def _config(arm: str) -> ClusterConfig:
    return arms.arm_of(arm).config


@lru_cache(maxsize=256)
def _spec(choice: WorkloadChoice) -> WorkloadSpec:
    return catalogue.workload_named(choice)


def parse_settings(text: str, source: str) -> dict[str, RunSetting]:
    """Read the settings of a YAML text by name; `source` names it in errors."""
    document = dict(read_mapping(text, source))
    groups = document.pop("groups", {})
    try:
        return {name: _setting(name, entry, groups) for name, entry in document.items()}
    except ValidationError as error:
        raise ConfigError(f"{source}: {sentence(error)}") from None
    except ConfigError as error:
        raise ConfigError(f"{source}: {error}") from None


def parse_groups(text: str, source: str) -> Groups:
    """Read the groups of settings in a YAML text."""
    groups: Groups = read_mapping(text, source).get("groups", {})
    return groups


def _setting(name: str, entry: Any, groups: Groups) -> RunSetting:
    values = {"arm": entry} if isinstance(entry, str) else entry
    if not isinstance(values, dict) or not ("arm" in values or "from" in values):
        raise ConfigError(f"{name}: got {entry!r}, allowed is an arm, or keys with `arm` or `from`")
    allowed = _BY_ARM if "arm" in values else _BY_GROUPS
    for key in values:
        if key not in allowed:
            raise ConfigError(
                f"{name}.{key} is unknown; use {', '.join(allowed)}{closest(key, allowed)}"
            )
    if "arm" in values:
        return of_arm(name, **values)
    workload = values.get("workload", WORKLOAD)
    return of_groups(name, groups, values["from"], values.get("set", {}), workload)


def named(settings: Mapping[str, RunSetting], names: Iterable[str]) -> list[RunSetting]:
    """Return the settings of these names, each once.

    Raises:
        ConfigError: a name is unknown.
    """
    names = list(dict.fromkeys(names))
    unknown = [name for name in names if name not in settings]
    if unknown:
        raise ConfigError(
            f"setting {unknown[0]!r} is not in the file of settings{closest(unknown[0], settings)}"
        )
    return [settings[name] for name in names]
