"""Files that options of BLIS's revision of August 2026 name: defaults, GPUs, a model's folder.

Source: `cmd/default_config.go`, `cmd/hfconfig.go`, `resolveLatencyConfig` in `cmd/root.go`.
"""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from blis_jax.errors import ConfigError, UnsupportedError, choices, closest, shortened
from blis_jax.files.input_files import read_text

_SECTIONS = (
    *("defaults", "version", "workloads", "trained_physics_coefficients"),
    *("lora", "kv_offload_devices"),  # without effect where nothing asks for them
)
_PARTS = ("prefill_hardware", "decode_hardware")
_LENGTHS = {"prompt": "prompt_tokens", "output": "output_tokens"}


def with_files(given: Mapping[str, Any], is_august: bool) -> dict[str, Any]:
    """Return the options with what these files say in the place of their names; options count before files.

    Raises:
        ConfigError: a file cannot be used.
        UnsupportedError: it is one of the first revision.
    """
    found = dict(given)
    defaults, folder = found.pop("defaults_filepath", None), found.pop("model_config_folder", None)
    hardware = found.pop("hardware_config", None)
    if not is_august:
        for name, value in (("defaults-filepath", defaults), ("hardware-config", hardware)):
            if value is not None:
                raise UnsupportedError(
                    f"--{name} is not supported for BLIS of February: its fits come with the package; give --profile "
                    "blis-2026-08, or --alpha-coeffs, --beta-coeffs and --total-kv-blocks"
                )
    if folder is not None:
        if "model_config" in found:
            raise ConfigError(
                "--model-config: --model-config-folder is given too; give one of them"
            )
        found["model_config"] = str(Path(folder) / "config.json")
    if defaults is not None:
        path = Path(defaults)
        found = _of_defaults(path, read_defaults(path), found)
        beside = path.parent / "hardware_config.json"
        hardware = hardware or (str(beside) if beside.is_file() else None)
    if hardware is None:
        return found
    from blis_jax.cluster.config import ClusterConfig

    found["hardware"] = f"{hardware}:{found.get('hardware') or ClusterConfig.hardware}"
    return found | {part: f"{hardware}:{found[part]}" for part in _PARTS if found.get(part)}


def read_defaults(path: Path) -> Mapping[str, Any]:
    """Return the sections of a `defaults.yaml`.

    Raises:
        ConfigError: the file cannot be read, or has a section that BLIS does not know.
    """
    from blis_jax.files.strict_yaml import read_yaml

    text = read_text(path, "a defaults.yaml of BLIS")
    found = _mapping(read_yaml(text, str(path)) or {}, str(path))
    for name in found:
        if name not in _SECTIONS:
            hint = " (of February?)" if name == "models" else closest(str(name), _SECTIONS)
            raise ConfigError(
                f"{path}: the section {shortened(name)} is unknown{hint}; {choices(str(name), _SECTIONS)}"
            )
    return found


def preset_of(given: Mapping[str, Any], mode: str) -> Mapping[str, int] | None:
    """Return a preset's numbers of tokens as the file of --defaults-filepath has them, None without the file.

    Raises:
        ConfigError: the file has no such preset, or a number of it is none.
    """
    if "defaults_filepath" not in given:
        return None
    path = Path(given["defaults_filepath"])
    presets = _mapping(read_defaults(path).get("workloads") or {}, f"{path}: workloads")
    if mode not in presets:
        raise ConfigError(f"{path}: workloads has no {mode!r}; {choices(mode, list(presets))}")
    place = f"{path}: workloads.{mode}"
    known = ["prefix_tokens"]
    known += [
        f"{name}{end}" for name in _LENGTHS.values() for end in ("", "_stdev", "_min", "_max")
    ]
    preset = _mapping(presets[mode], place)
    for name, value in preset.items():
        if name not in known:
            raise ConfigError(f"{place}: {shortened(name)} is unknown; {choices(str(name), known)}")
        if isinstance(value, bool) or not isinstance(value, int):
            raise ConfigError(f"{place}.{name}: got {shortened(value)}, allowed is a whole number")
    return {name: preset.get(name, 0) for name in known}


def _of_defaults(
    path: Path, document: Mapping[str, Any], given: Mapping[str, Any]
) -> dict[str, Any]:
    """GPU and TP of the model, its description beside the file, and the coefficients of trained-physics."""
    found, model = dict(given), str(given.get("model", "")).lower()
    models = _mapping(document.get("defaults") or {}, f"{path}: defaults")
    if model in models:
        usual = _mapping(models[model], f"{path}: defaults.{model}")
        if not found.get("hardware") and usual.get("GPU"):
            found["hardware"] = str(usual["GPU"])
        if not found.get("tp") and usual.get("tensor_parallelism"):
            found["tp"] = usual["tensor_parallelism"]
    described = path.parent / "model_configs" / model.partition("/")[2] / "config.json"
    if "model_config" not in found and ".." not in model and described.is_file():
        found["model_config"] = str(described)
    if found.get("latency_model", "trained-physics") != "trained-physics":
        return found
    name = "trained_physics_coefficients"
    fit = _mapping(document.get(name) or {}, f"{path}: {name}")
    for key in ("alpha_coeffs", "beta_coeffs"):
        if "alpha_coeffs" in given or "beta_coeffs" in given:
            break
        values = fit.get(key) or ()
        if not values or not all(isinstance(value, int | float) for value in values):
            raise ConfigError(
                f"{path}: {name} needs a list of numbers {key}; give --{key.replace('_', '-')}"
            )
        found[key] = tuple(map(float, values))
    return found


def _mapping(given: Any, place: str) -> Mapping[str, Any]:
    if not isinstance(given, Mapping):
        raise ConfigError(f"{place}: got {shortened(given)}, allowed is a mapping")
    return given
