"""Settings: a configuration and a workload under one name, as the record's scenarios have them."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Iterable
from dataclasses import dataclass
from functools import lru_cache
from importlib import resources
from typing import Any

from blis_jax.cluster.config import ClusterConfig
from blis_jax.cluster.setting_values import values_for_hash
from blis_jax.errors import ConfigError, closest
from blis_jax.workload.spec import WorkloadSpec, load_builtin, override
from blis_jax.workload.strict_yaml import read_mapping
from sweeps.strategies.arms import arm_of

FILE = "settings.yaml"
WORKLOAD = "mixed"
_KEYS = ("arm", "workload", "rate", "num_requests")
# blocks of an instance up to which runs of these workloads need memory block by block
PRESSED_BLOCKS = 3000


@dataclass(frozen=True)
class RunSetting:
    """What is simulated, but for the seed; rate in requests/s, None as the workload has it."""

    name: str
    arm: str
    workload: str = WORKLOAD
    rate: float | None = None
    num_requests: int | None = None

    @property
    def config(self) -> ClusterConfig:
        """The configuration."""
        return _config(self.arm)

    @property
    def spec(self) -> WorkloadSpec:
        """The workload."""
        return _spec(self.workload, self.rate, self.num_requests)

    @property
    def identity(self) -> str:
        """Equal for settings that simulate the same."""
        config = values_for_hash(self.config) | {"routing_scorers": self.config.scorers()}
        content = [config, self.spec.model_dump(mode="json", exclude={"seed"})]
        return hashlib.sha256(json.dumps(content).encode()).hexdigest()[:16]

    @property
    def is_pressed(self) -> bool:
        """Whether its runs presumably need memory block by block, which is slow."""
        has_chats = self.workload.startswith("multiturn")
        return not has_chats and self.config.total_kv_blocks <= PRESSED_BLOCKS


@lru_cache(maxsize=512)
def _config(arm: str) -> ClusterConfig:
    return arm_of(arm).config


@lru_cache(maxsize=64)
def _spec(workload: str, rate: float | None, num_requests: int | None) -> WorkloadSpec:
    changes = {"aggregate_rate": rate, "num_requests": num_requests}
    given = {name: value for name, value in changes.items() if value is not None}
    spec = load_builtin(workload)
    return override(spec, **given) if given else spec


@lru_cache(maxsize=1)
def load_settings() -> dict[str, RunSetting]:
    """Every setting of the record, by name."""
    text = resources.files("papers.strategy_evolution").joinpath(FILE).read_text(encoding="utf-8")
    return {name: _setting(name, entry) for name, entry in read_mapping(text, FILE).items()}


def _setting(name: str, entry: Any) -> RunSetting:
    values = {"arm": entry} if isinstance(entry, str) else entry
    if not isinstance(values, dict) or "arm" not in values:
        raise ConfigError(f"{FILE}: {name}: got {entry!r}, allowed is an arm or keys with an arm")
    for key in values:
        if key not in _KEYS:
            raise ConfigError(
                f"{FILE}: {name}.{key} is unknown; use {', '.join(_KEYS)}{closest(key, _KEYS)}"
            )
    return RunSetting(name, **values)


def named(names: Iterable[str]) -> list[RunSetting]:
    """The settings of these names, each once."""
    settings, names = load_settings(), list(dict.fromkeys(names))
    unknown = [name for name in names if name not in settings]
    if unknown:
        raise ConfigError(f"setting {unknown[0]!r} is not in {FILE}{closest(unknown[0], settings)}")
    return [settings[name] for name in names]
