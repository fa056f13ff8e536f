"""Where descriptions of models come from: a `config.json`, or the shipped table."""

from __future__ import annotations

import functools
import re
from collections.abc import Mapping
from importlib import resources
from pathlib import Path
from typing import Any

from blis_jax.errors import ConfigError, closest, shortened
from blis_jax.files.input_files import read_json
from blis_jax.latency.model_description import ModelDescription, describe
from blis_jax.lazy import yaml

_PRECISION = re.compile(r"-(fp8|w\d+a\d+)$")


# BLIS's GPUs per instance by model, `defaults.yaml` (f90a1e3a, Apache-2.0); of others here 1
_USUAL_TP = {
    "codellama/codellama-34b-instruct-hf": 2,
    "meta-llama/llama-3.3-70b-instruct": 4,
    "meta-llama/llama-4-maverick-17b-128e-instruct-fp8": 8,
    "meta-llama/llama-4-scout-17b-16e-instruct": 4,
    "nvidia/llama-3.1-nemotron-70b-instruct-hf": 4,
    "openai/gpt-oss-120b": 4,
    "redhatai/llama-3.1-nemotron-70b-instruct-hf-fp8-dynamic": 2,
    "redhatai/llama-3.3-70b-instruct-quantized.w8a8": 2,
    "redhatai/llama-4-scout-17b-16e-instruct-fp8-dynamic": 2,
}


def usual_tp(name: str) -> int:
    """Return the GPUs of an instance that serves a model, if nothing else is said."""
    return _USUAL_TP.get(name.lower(), 1)


def model_description(name: str, config_file: str = "") -> ModelDescription:
    """The description in this `config.json`, or of the shipped model with this name.

    Args:
        name: the model's name, in any case; a shipped one may have a precision behind it, as in `-FP8` and
            `-w4a16`.
        config_file: path of a `config.json`, or of the folder that has it; empty: a shipped model.

    Raises:
        ConfigError: the file cannot be used, or no model of this name is shipped.
    """
    if config_file:
        return describe(_read(Path(config_file)), name)
    shipped, key = _shipped(), name.lower()
    if key not in shipped:  # a shipped model in another precision
        key = _PRECISION.sub("", key)
    if key not in shipped:
        hint = closest(name.lower(), shipped) or "; give its config.json"
        raise ConfigError(
            f"model {name!r} has no shipped description (shipped: {', '.join(shipped)}){hint}"
        )
    return describe(shipped[key], name)


def shipped_models() -> tuple[str, ...]:
    """The models whose descriptions are shipped, in alphabetical order."""
    return tuple(sorted(_shipped()))


@functools.cache
def _shipped() -> dict[str, Any]:
    table: dict[str, Any] = {}
    for name in ("models.yaml", "models_more.yaml"):
        text = resources.files("blis_jax").joinpath(f"data/{name}").read_text("utf-8")
        table |= yaml.safe_load(text)
    return table


def _read(path: Path) -> Mapping[str, Any]:
    path = path / "config.json" if path.is_dir() else path
    found = read_json(path, "a model's config.json")
    if not isinstance(found, Mapping):
        raise ConfigError(
            f"{path}: got {shortened(found)}, allowed is an object; give a model's config.json"
        )
    return found
