"""Strategies as files: a name, a sentence, and settings under the reference's flag names."""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping
from dataclasses import dataclass
from importlib import resources
from pathlib import Path
from typing import Any

from blis_jax.cluster.config import FIELDS, ClusterConfig, is_setting, nearest_setting, of_settings
from blis_jax.errors import ConfigError
from blis_jax.policies import registry
from blis_jax.policies.named import is_policy_number

KEYS = ("name", "description", "settings")
LIBRARY_NAMES = {"iter00_baseline": "baseline", "iter08_token_budget@published": "it08_opt"}


@dataclass(frozen=True)
class SweepStrategy:
    """A named cluster configuration; `settings` are those that its file or the user gave."""

    name: str
    description: str
    settings: Mapping[str, Any]
    config: ClusterConfig

    def with_settings(self, settings: Mapping[str, Any]) -> SweepStrategy:
        """The same strategy with some settings replaced."""
        config = self.config.replace(**settings)
        return SweepStrategy(self.name, self.description, {**self.settings, **settings}, config)


def parse_strategy(text: str, source: str, folder: Path | None = None) -> SweepStrategy:
    """Parse and check a YAML text; `source` names it in errors, `folder` is where paths in it begin."""
    from blis_jax.errors import closest
    from blis_jax.files.strict_yaml import read_mapping

    data = read_mapping(text, source)
    for key in data:
        if key not in KEYS:
            allowed = ", ".join(KEYS)
            raise ConfigError(
                f"{source}: the key {key!r} is unknown; use {allowed}{closest(key, KEYS)}"
            )
    name, settings = data.get("name"), data.get("settings")
    if not isinstance(name, str) or not name.strip():
        raise ConfigError(f"{source}: name: got {name!r}, allowed is a text")
    if not isinstance(settings, dict):
        raise ConfigError(f"{source}: settings: got {settings!r}, allowed is a mapping of settings")
    for key in settings:
        if not is_setting(key):
            raise ConfigError(
                f"{source}: settings.{key} is unknown; settings are named as BLIS's flags, with "
                f"underscores{nearest_setting(key)}"
            )
    values = {key: converted(key, value) for key, value in settings.items()}
    values = registry.located(values, folder)
    try:
        config = of_settings(values)
    except ConfigError as error:
        raise ConfigError(f"{source}: {error}") from None
    description = " ".join(str(data.get("description") or "").split())
    return SweepStrategy(name.strip(), description, values, config)


def converted(key: str, value: object) -> Any:
    """A YAML value as the setting's type: YAML reads 1e-4 as a text and has no tuples."""
    if isinstance(value, list):
        return tuple(value)
    if isinstance(value, str) and (is_policy_number(key) or FIELDS[key].type == "float"):
        try:
            return float(value)
        except ValueError:
            return value
    return value


def list_builtin() -> tuple[str, ...]:
    """Names of the strategies that come with the package."""
    folder = resources.files("blis_jax") / "data" / "strategies"
    return tuple(sorted(file.name[:-5] for file in folder.iterdir() if file.name.endswith(".yaml")))


def load_strategy(name_or_path: str) -> SweepStrategy:
    """A strategy that comes with the package, by its own or the library's name, or one in a `.yaml` file."""
    name = LIBRARY_NAMES.get(name_or_path, name_or_path)
    if name in list_builtin():
        file = resources.files("blis_jax") / "data" / "strategies" / f"{name}.yaml"
        found = parse_strategy(file.read_text(encoding="utf-8"), f"{name}.yaml")
        return dataclasses.replace(found, name=name_or_path)
    if not name_or_path.endswith((".yaml", ".yml")):
        from blis_jax.errors import closest

        known = (*list_builtin(), *LIBRARY_NAMES)
        raise ConfigError(
            f"strategy {name_or_path!r} is unknown; use one of {', '.join(known)}, or the path of a "
            f".yaml file{closest(name_or_path, known)}"
        )
    from blis_jax.files.input_files import read_text

    path = Path(name_or_path)
    return parse_strategy(read_text(path, "a strategy in YAML"), path.name, path.parent)
