"""Files that options of BLIS name: policies; and in its revision of August 2026 defaults, GPUs, a model's folder.

Sources: `sim/bundle.go` of both revisions, and of August `cmd/default_config.go`, `cmd/hfconfig.go`,
`resolveLatencyConfig` in `cmd/root.go`."""

from __future__ import annotations

import warnings
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from blis_jax.cluster import adapters, offload_tiers
from blis_jax.cluster.config import ClusterConfig
from blis_jax.cluster.node_pools import SECTIONS
from blis_jax.core.types import SLO_CLASSES
from blis_jax.errors import (
    ConfigError,
    ConfigWarning,
    UnsupportedError,
    as_option,
    choices,
    closest,
    shortened,
)
from blis_jax.files.input_files import mapping, read_text
from blis_jax.files.strict_yaml import EXPONENT, read_yaml, value_at

_NUMBERS = {  # keys of `admission`: the options that they stand for
    "token_bucket_capacity": "token_bucket_capacity",
    "token_bucket_refill_rate": "token_bucket_refill_rate",
    "tier_shed_threshold": "tier_shed_threshold",
    "tier_shed_min_priority": "tier_shed_min_priority",
    "gaie_qd_threshold": "gaie_qd_threshold",
    "gaie_kv_threshold": "gaie_kv_threshold",
}
_WHOLE = ("tier_shed_threshold", "tier_shed_min_priority")
_BY_CLASS = ("slo_priorities", "slo_targets")
_KEYS: dict[str, tuple[str, ...]] = {
    "admission": ("policy", *_NUMBERS, *_BY_CLASS),
    "routing": ("policy", "scorers"),
    "priority": ("policy",),
    "preemption": ("policy",),
}
_KNOWN = (*_KEYS, "scheduler", "tenant_budgets", *SECTIONS)
_KEYS_OF_FEBRUARY = {
    "admission": ("policy", "token_bucket_capacity", "token_bucket_refill_rate"),
    **{name: _KEYS[name] for name in ("routing", "priority")},
}
_TEXTS = ("name", "policy", "scheduler", "gpu_type")
_GATES = ("tier-shed", "gaie-legacy")  # admission by the priorities of classes


def options_of(path: str, is_august: bool = True, admission: str | None = None) -> dict[str, Any]:
    """Read a policy file of BLIS's revision of August 2026, or of February; return options by name.

    The option `instances` gets the file's sections about machines, `tenant_shares` the budgets by tenant name. The
    priorities of classes are also those of `admission`, the policy in place of the file's.

    Raises:
        ConfigError: the file cannot be read, or a key or value is not allowed.
    """
    place = f"--policy-config {path}"
    sections = read_yaml(read_text(Path(path), "a policy file of BLIS"), path) or {}
    keys_of = _KEYS if is_august else _KEYS_OF_FEBRUARY
    mapping(sections, place, _KNOWN if is_august else (*keys_of, "scheduler"))
    sections = {name: _as_fields(value, name) for name, value in sections.items()}
    sections = {name: value for name, value in sections.items() if value is not None}
    shares = mapping(sections.get("tenant_budgets", {}), f"{place}: tenant_budgets")
    parts = {}
    for name, keys in keys_of.items():
        parts[name] = mapping(sections.get(name, {}), f"{place}: {name}", keys)
    options = _of_admission(parts["admission"], f"{place}: admission", admission)
    options |= _of_routing(parts["routing"], f"{place}: routing")
    # in August `priority` is without effect
    ordered = "preemption" if is_august else "priority"
    for option, value in (
        ("scheduler", sections.get("scheduler")),
        (f"{ordered}_policy", parts[ordered].get("policy")),
    ):
        if value not in (None, ""):
            options[option] = value_at(value, f"{place}: {option}", str)
    if options.get("preemption_policy", "fcfs") not in ("fcfs", "priority"):
        raise ConfigError(
            f"{place}: preemption.policy: got {shortened(options['preemption_policy'])}, allowed is fcfs or priority"
        )
    machines = {name: sections[name] for name in SECTIONS if sections.get(name)}
    if shares:
        options["tenant_shares"] = {
            str(name): value_at(value, f"{place}: tenant_budgets.{name}", float, 0, 1)
            for name, value in shares.items()
        }
    return options | ({"instances": machines} if machines else {})


def _as_fields(entry: object, name: str) -> Any:
    """Return a section's content converted as BLIS's typed fields do: without empty values, 1e3 as a number."""
    if isinstance(entry, Mapping):
        is_open = name in ("tenant_budgets", *_BY_CLASS)  # whose keys are not fields
        kept = {key: value for key, value in entry.items() if is_open or value is not None}
        return {key: _as_fields(value, str(key)) for key, value in kept.items()}
    if isinstance(entry, list):
        return [_as_fields(value, name) for value in entry]
    if isinstance(entry, str) and name not in _TEXTS and EXPONENT.fullmatch(entry):
        return float(entry)
    return entry


def _of_admission(
    section: Mapping[str, Any], place: str, in_its_place: str | None
) -> dict[str, Any]:
    policy = value_at(section.get("policy", ""), f"{place}: policy", str)
    settings: dict[str, Any] = {"admission_policy": policy} if policy else {}
    for key, option in _NUMBERS.items():
        if key in section:
            kind = int if key in _WHOLE else float
            settings[option] = value_at(section[key], f"{place}: {key}", kind)
    if policy == "tier-shed":
        settings.setdefault("tier_shed_min_priority", 3)
    priorities = _by_class(section.get("slo_priorities", {}), f"{place}: slo_priorities")
    owners = ("priority", *(("admission",) if (in_its_place or policy) in _GATES else ()))
    numbers = {f"{owner}.{name}": value for owner in owners for name, value in priorities.items()}
    targets = _by_class(section.get("slo_targets", {}), f"{place}: slo_targets")
    if numbers:
        settings["policy_numbers"] = tuple(numbers.items())
    if targets:
        settings["slo_targets"] = ",".join(f"{name}={value}" for name, value in targets.items())
    return settings


def _of_routing(section: Mapping[str, Any], place: str) -> dict[str, Any]:
    policy = value_at(section.get("policy", ""), f"{place}: policy", str)
    settings = {"routing_policy": policy} if policy else {}
    pairs = []
    scorers = section.get("scorers", [])
    if not isinstance(scorers, list):
        raise ConfigError(f"{place}: scorers: got {shortened(scorers)}, allowed is a list")
    for number, scorer in enumerate(scorers, 1):
        at = f"{place}: scorer {number}"
        mapping(scorer, at, ("name", "weight"))
        weight = value_at(scorer.get("weight"), f"{at}: weight", float)
        pairs.append(f"{value_at(scorer.get('name'), f'{at}: name', str)}:{weight!r}")
    return settings | ({"routing_scorers": ",".join(pairs)} if pairs else {})


def _by_class(section: object, place: str) -> dict[str, int]:
    numbers = {
        name: value_at(value, f"{place}: {name}", int)
        for name, value in mapping(section, place).items()
    }
    for name in numbers:
        if name not in SLO_CLASSES[1:]:
            warnings.warn(
                f"{place}: {shortened(name)} is no SLO class and has no effect, as in BLIS"
                f"{closest(str(name), SLO_CLASSES[1:])}",
                ConfigWarning,
                stacklevel=2,
            )
    return {name: value for name, value in numbers.items() if name in SLO_CLASSES[1:]}


_SECTIONS = (
    *("defaults", "version", "workloads", "trained_physics_coefficients"),
    *("lora", "kv_offload_devices"),
)
_PARTS = ("prefill_hardware", "decode_hardware")
_LENGTHS = {"prompt": "prompt_tokens", "output": "output_tokens"}


def with_files(settings: Mapping[str, Any], is_august: bool) -> dict[str, Any]:
    """Replace the options that name files by the settings of these files; given options override the files.

    Raises:
        ConfigError: a file cannot be used.
        UnsupportedError: a file is of the revision of February.
    """
    changed = dict(settings)
    defaults, folder = (
        changed.pop("defaults_filepath", None),
        changed.pop("model_config_folder", None),
    )
    hardware = changed.pop("hardware_config", None)
    if defaults is not None and not is_august:
        raise UnsupportedError(
            "--defaults-filepath is not supported for BLIS of February: its fits come with the package; give --profile "
            "blis-2026-08, or --alpha-coeffs, --beta-coeffs and --total-kv-blocks"
        )
    if folder is not None:
        if "model_config" in changed:
            raise ConfigError(
                "--model-config: --model-config-folder is given too; give one of them"
            )
        changed["model_config"] = str(Path(folder) / "config.json")
    if defaults is not None:
        path = Path(defaults)
        document = read_defaults(path)
        changed = _of_defaults(path, document, changed)
        if "lora_config" in changed:
            usual = adapters.config_of(document.get("lora") or {}, f"{path}: lora")
            no_cost = adapters.LoraConfig(
                step_overhead_tiers=()
            )  # of steps, if neither file has one
            named = adapters.given_config(changed["lora_config"])
            changed["lora_config"] = named.or_else(usual).or_else(no_cost)
        if "kv_offload_config" in changed:
            named = changed["kv_offload_config"]
            changed["kv_offload_config"] = offload_tiers.given_config(
                named, _devices(path, document)
            )
        beside = path.parent / "hardware_config.json"
        hardware = hardware or (str(beside) if beside.is_file() else None)
    if hardware is None:
        return changed

    changed["hardware"] = f"{hardware}:{changed.get('hardware') or ClusterConfig.hardware}"
    return changed | {part: f"{hardware}:{changed[part]}" for part in _PARTS if changed.get(part)}


def _devices(path: Path, document: Mapping[str, Any]) -> Mapping[str, Any]:
    return mapping(document.get("kv_offload_devices") or {}, f"{path}: kv_offload_devices")


def devices_of(defaults_filepath: str | None) -> Mapping[str, Any]:
    """Return the classes of storage in the file of --defaults-filepath; the package's if no file is given.

    Raises:
        ConfigError: the file cannot be read, or has a section that BLIS does not know.
    """
    if defaults_filepath is None:
        return offload_tiers.DEVICES
    return _devices(Path(defaults_filepath), read_defaults(Path(defaults_filepath)))


def read_defaults(path: Path) -> Mapping[str, Any]:
    """Return the sections of a `defaults.yaml`.

    Raises:
        ConfigError: the file cannot be read, or has a section that BLIS does not know.
    """
    text = read_text(path, "a defaults.yaml of BLIS")
    sections = mapping(read_yaml(text, str(path)) or {}, str(path))
    for name in sections:
        if name not in _SECTIONS:
            hint = " (of February?)" if name == "models" else closest(str(name), _SECTIONS)
            raise ConfigError(
                f"{path}: the section {shortened(name)} is unknown{hint}; {choices(str(name), _SECTIONS)}"
            )
    return sections


def preset_of(defaults_filepath: str | None, mode: str) -> Mapping[str, int] | None:
    """Return a preset's token counts from the file of --defaults-filepath; None if no file is given.

    Raises:
        ConfigError: the file has no such preset, or a count in it is not a number.
    """
    if defaults_filepath is None:
        return None
    path = Path(defaults_filepath)
    presets = mapping(read_defaults(path).get("workloads") or {}, f"{path}: workloads")
    if mode not in presets:
        raise ConfigError(f"{path}: workloads has no {mode!r}; {choices(mode, list(presets))}")
    place = f"{path}: workloads.{mode}"
    known = ["prefix_tokens"]
    known += [
        f"{name}{end}" for name in _LENGTHS.values() for end in ("", "_stdev", "_min", "_max")
    ]
    preset = mapping(presets[mode], place)
    for name, value in preset.items():
        if name not in known:
            raise ConfigError(f"{place}: {shortened(name)} is unknown; {choices(str(name), known)}")
        value_at(value, f"{place}.{name}", int)
    return {name: preset.get(name, 0) for name in known}


def _of_defaults(
    path: Path, document: Mapping[str, Any], settings: Mapping[str, Any]
) -> dict[str, Any]:
    """Return GPU and TP of the model, its description beside the file, and the coefficients of trained-physics."""
    completed, model = dict(settings), str(settings.get("model", "")).lower()
    models = mapping(document.get("defaults") or {}, f"{path}: defaults")
    if model in models:
        usual = mapping(models[model], f"{path}: defaults.{model}")
        if not completed.get("hardware") and usual.get("GPU"):
            completed["hardware"] = str(usual["GPU"])
        if not completed.get("tp") and usual.get("tensor_parallelism"):
            completed["tp"] = usual["tensor_parallelism"]
    described = path.parent / "model_configs" / model.partition("/")[2] / "config.json"
    if "model_config" not in completed and ".." not in model and described.is_file():
        completed["model_config"] = str(described)
    if completed.get("latency_model", "trained-physics") != "trained-physics":
        return completed
    name = "trained_physics_coefficients"
    fit = mapping(document.get(name) or {}, f"{path}: {name}")
    for key in ("alpha_coeffs", "beta_coeffs"):
        if "alpha_coeffs" in settings or "beta_coeffs" in settings:
            break
        values = fit.get(key) or ()
        if not values or not all(isinstance(value, int | float) for value in values):
            raise ConfigError(
                f"{path}: {name} needs a list of numbers {key}; give {as_option(key)}"
            )
        completed[key] = tuple(map(float, values))
    return completed
