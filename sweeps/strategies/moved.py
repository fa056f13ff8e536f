"""Earlier names of policies and settings, found in records and strategy files, with their names of today.

A policy that was invented for one experiment is now a file, named by its path, and its numbers are named like those of
any user's policy. A `ClusterConfig` accepts only today's names, so readers of files and records translate earlier ones.
"""

from __future__ import annotations

import json
import re
import warnings
from collections.abc import Mapping, Sequence
from typing import Any

from blis_jax.cluster import config as cluster
from blis_jax.cluster.config import FIELDS, ClusterConfig
from blis_jax.cluster.setting_values import all_values, config_of_values, is_later, plain_value
from blis_jax.commands.cluster_settings import cluster_config
from blis_jax.commands.options.cluster_flags import add_cluster_flags
from blis_jax.commands.parser import Flag, Parser
from blis_jax.commands.values import whole
from blis_jax.core.kinds import KINDS
from blis_jax.errors import ConfigError, ConfigWarning, as_option
from blis_jax.files.python_files import with_absolute_files
from blis_jax.latency.registry import FROM_SIZES, lookup
from blis_jax.policies.their_names import NAMED_BY, ours, setting_named, with_names

FOLDER = "sweeps/strategies/policies"
# by the setting that named them: a file's policies, each named with underscores there
_FILES: dict[str, dict[str, tuple[str, ...]]] = {
    "admission": {
        "gates": ("class-gated", "kv-gated", "burst-throttled"),
        "forecasts": ("forecast-gated", "forecast-regime-gated"),
        "regimes": ("regime-gated",),
    },
    "routing": {
        "regimes": ("match-switched", "regime-switched", "regime-kept"),
        "hashes": ("cached-of-two", "session-hashed"),
    },
    "scorer": {
        "deadlines": ("deadline-wait",),
        "intent": ("class-backlog",),
        "regimes": ("regime-affinity",),
    },
    "priority": {
        "deadlines": ("slo-deadline", "slo-slack"),
        "intent": ("intent-tiered", "intent-slack"),
    },
    "scheduler": {"orders": ("priority-cached", "prefix-grouped")},
    "victim": {"memory": ("least-worth",)},
    "offload": {"memory": ("content-worth", "forecast-offload")},
}
PATHS: dict[str, dict[str, str]] = {
    kind: {
        name: f"{FOLDER}/{file}.py:{name.replace('-', '_')}"
        for file, names in files.items()
        for name in names
    }
    for kind, files in _FILES.items()
}
_NAMES = {path: name for paths in PATHS.values() for name, path in paths.items()}
# settings that were not called by their policy and its number, or belonged to several policies
_DEADLINES = ("deadline-wait", "slo-deadline", "slo-slack", "intent-slack")
_SETTINGS: dict[str, tuple[str, tuple[str, ...]]] = {
    **{
        f"slo_deadline_{name}": (f"policies.deadline_{name}_us", _DEADLINES)
        for name in ("critical", "standard", "sheddable")
    },
    "slo_deadline_least_left": ("priority.least_left_us", ("slo-deadline",)),
    "cached_block_priority": ("scheduler.per_block", ("priority-cached",)),
    "class_gated_standard": ("admission.standard_load", ("class-gated",)),
    "class_gated_sheddable": ("admission.sheddable_load", ("class-gated",)),
}
# those that the first records were hashed with, and their values there
OF_FIRST_RECORDS: dict[str, float] = {
    "class_gated_standard": 100.0,
    "class_gated_sheddable": 50.0,
    "class_gated_probability": 1.0,
    "slo_deadline_critical": 100_000,
    "slo_deadline_standard": 250_000,
    "slo_deadline_sheddable": 1_000_000,
    "slo_deadline_least_left": 10_000,
    "cached_block_priority": 0.01,
}


def known_as(name: str) -> str:
    """Return the name that a policy had before it became a file; other names unchanged."""
    return _NAMES.get(name, name)


def number_named(setting: str) -> tuple[str, tuple[str, ...]] | None:
    """Return today's name of a removed setting, and the policies that have it; None for other settings."""
    if setting in _SETTINGS:
        return _SETTINGS[setting]
    for kind, paths in PATHS.items():
        for name in paths:
            with_underscores = name.replace("-", "_")
            if setting.startswith(f"{with_underscores}_"):
                owner = f"scorer.{with_underscores}" if kind == "scorer" else kind
                return f"{owner}.{setting.removeprefix(f'{with_underscores}_')}", (name,)
    return None


def today(name: str) -> str:
    """Return today's name of a setting or of one scorer's weight; a name of today unchanged."""
    setting, _, scorer = name.partition(".")
    if setting == KINDS["scorer"].setting and scorer in PATHS["scorer"]:
        return f"{setting}.{scorer.replace('-', '_')}"
    moved = number_named(name)
    return moved[0] if moved else setting_named(name)


def is_setting(name: str) -> bool:
    """Return whether a configuration has, or once had, a setting of this name."""
    return cluster.is_setting(name) or number_named(name) is not None


def tell_of(settings: Mapping[str, Any], source: str) -> None:
    """Warn of outdated names and settings, in one sentence each; `source` begins each sentence."""
    for name, value in settings.items():
        if today(name) != setting_named(name):
            said, instead = name, today(name)
        elif (
            name in NAMED_BY
            and isinstance(value, str)
            and (moved := with_names(value, PATHS.get(NAMED_BY[name], {}))) != value
        ):
            said, instead = f"{name} {value}", moved
        else:
            continue
        warnings.warn(f"{source}{said} is spelt {instead} by now", ConfigWarning, stacklevel=3)


def respelled(settings: Mapping[str, Any], others: Mapping[str, Any]) -> dict[str, Any]:
    """Return settings with today's names and spelling; `others` are the settings of the configuration that they change.

    Numbers of policies that the result does not use are left out: they had no effect.
    """
    by_name: dict[str, Any] = {}
    for name, value in ours(settings).items():
        moved = number_named(name)
        if name in NAMED_BY and isinstance(value, str):
            by_name[name] = with_names(value, PATHS.get(NAMED_BY[name], {}))
        elif moved is None:
            by_name[name] = value
        elif _uses({**others, **settings}, moved[1]):
            by_name[moved[0]] = value
    return by_name


def changed(config: ClusterConfig, settings: Mapping[str, Any]) -> ClusterConfig:
    """Return a configuration with settings replaced by those of a file or record, which may have earlier names.

    Raises:
        ConfigError: a setting is unknown, or its value is not allowed.
    """
    return config.replace(**respelled(settings, vars(config)))


def config_of_record(values: Mapping[str, Any]) -> ClusterConfig:
    """Return the configuration that `all_values` was once written from.

    Raises:
        ConfigError: a setting or a policy is unknown to this version, or has changed its meaning since.
    """
    return config_of_values(respelled(values, vars(ClusterConfig())))


def values_for_hash(config: ClusterConfig) -> dict[str, Any]:
    """Return the values that identify a configuration: settings of the first records, later ones unless at defaults."""
    values = all_values(config)
    kept = {name: value for name, value in values.items() if not is_later(config, name)}
    return OF_FIRST_RECORDS | kept


def _uses(settings: Mapping[str, Any], policies: tuple[str, ...]) -> bool:
    for setting in NAMED_BY:
        words = re.split("[:,]", str(settings[setting]).replace("_", "-"))
        if any(name in words for name in policies):
            return True
    return False


# --- clusters as options of the reference's command line ------------------------------------------


_OURS = ("variant", "corrected")  # settings that are no flags of the reference


def config_from_arguments(words: Sequence[str], **further: Any) -> ClusterConfig:
    """Return the cluster that options of BLIS's command line describe, with further settings."""
    return of_arguments(words, **further)[0]


def of_arguments(words: Sequence[str], **further: Any) -> tuple[ClusterConfig, int | None]:
    """Return the cluster that the options and further settings describe, and the number of requests, None if not given.

    Raises:
        ConfigError: an option is not allowed, or the number of requests is below 1.
    """
    options = _arguments_parser().given(words) | further
    if options.get("num_requests", 1) < 1:
        raise ConfigError(f"--num-requests must be at least 1, got {options['num_requests']}")
    return cluster_config(respelled(options, vars(ClusterConfig()))), options.get("num_requests")


def _arguments_parser() -> Parser:
    parser = Parser(prog="fixed_args", add_help=False)
    add_cluster_flags(parser)
    flags = (
        Flag("num-requests", whole, None, "N", "requests of the workload"),
        Flag("horizon", whole, None, "US", "end of the simulation"),
    )
    parser.add_flags("workload", flags)
    elsewhere = "give it as a key of the file"
    parser.refuse({"workload-spec": f"{elsewhere}, workload", "seed": f"{elsewhere}, seeds"})
    return parser


def arguments(config: ClusterConfig) -> list[str]:
    """Return the configuration as options of BLIS's command line, without those at their defaults."""
    default = ClusterConfig()
    words = ["--model", config.model]
    for name in FIELDS:
        value = getattr(config, name)
        if name in _OURS or name == "model" or value == getattr(default, name):
            continue
        words.append(as_option(name))
        if name == "policy_numbers":
            words.append(",".join(f"{number}={entry!r}" for number, entry in value))
        elif name == "instances":
            words.append(json.dumps(plain_value(value)))
        elif value is not True:
            text = ",".join(map(repr, value)) if isinstance(value, tuple) else str(value)
            words.append(with_absolute_files(text))
    return words


def replaced(config: ClusterConfig, settings: Mapping[str, Any]) -> ClusterConfig:
    """Return the cluster with some settings replaced; a new model, GPU or TP also sets the coefficients of its fit.

    Raises:
        ConfigError: a setting is unknown or its value not allowed, or the model has no fit and no coefficients.
    """
    settings = respelled(settings, vars(config))
    if settings.get("latency_model") in FROM_SIZES and _has_fit(config):
        config = config.without(*_OF_FIT)
    return config.replace(**{**_fit_of(config, settings), **settings})


_OF_FIT = ("alpha_coeffs", "beta_coeffs", "total_kv_blocks")


def _has_fit(config: ClusterConfig) -> bool:
    """Return whether the coefficients are those of the model's fit, which other latency models do not use."""
    try:
        fit = lookup(config.model, config.hardware, config.tp)
    except ConfigError:
        return False
    return (config.alpha_coeffs, config.beta_coeffs) == (fit.alpha, fit.beta)


def _fit_of(config: ClusterConfig, settings: Mapping[str, Any]) -> dict[str, Any]:
    """Return coefficients and KV blocks fitted for the model, GPU and TP in the settings; empty if they name none."""
    model, gpu, tp = (settings.get(key) for key in ("model", "hardware", "tp"))
    is_computed = settings.get("latency_model", config.latency_model) in FROM_SIZES
    is_given = "alpha_coeffs" in settings and "beta_coeffs" in settings
    if is_computed or is_given or model is gpu is tp is None:
        return {}
    if model is None:  # another model has a GPU and a TP of its own
        gpu, tp = gpu or config.hardware, tp or config.tp
    fit = lookup(model or config.model, gpu, tp)
    mode = settings.get("preemption_mode", config.preemption_mode)
    return {
        "hardware": fit.gpu,
        "tp": fit.tp,
        "alpha_coeffs": fit.alpha,
        "beta_coeffs": fit.beta,
        "total_kv_blocks": fit.blocks(as_vllm=mode == "recompute"),
    }
