"""Clusters written as options of the reference's command line, and what the names of a model and a GPU stand for."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from typing import Any

from blis_jax.cluster.config import FIELDS, ClusterConfig
from blis_jax.cluster.setting_values import plain_value
from blis_jax.commands.cli import Flag, Parser, whole
from blis_jax.commands.cluster_settings import cluster_config
from blis_jax.commands.options.cluster_flags import add_cluster_flags
from blis_jax.errors import ConfigError
from blis_jax.latency.registry import FROM_SIZES, lookup
from sweeps.strategies.moved import respelled

_OURS = ("variant", "corrected")  # settings that are no flags of the reference


def config_from_arguments(words: Sequence[str], **further: Any) -> ClusterConfig:
    """Return the cluster that options of the reference's command line describe, with further settings."""
    return of_arguments(words, **further)[0]


def of_arguments(words: Sequence[str], **further: Any) -> tuple[ClusterConfig, int | None]:
    """Return the cluster that the options and further settings describe, and the number of requests if it is given.

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
    """Write the configuration as the reference's options; what has its default is left out."""
    default = ClusterConfig()
    words = ["--model", config.model]
    for name in FIELDS:
        value = getattr(config, name)
        if name in _OURS or name == "model" or value == getattr(default, name):
            continue
        words.append(f"--{name.replace('_', '-')}")
        if name == "policy_numbers":
            words.append(",".join(f"{number}={entry!r}" for number, entry in value))
        elif name == "instances":
            words.append(json.dumps(plain_value(value)))
        elif value is not True:
            words.append(",".join(map(repr, value)) if isinstance(value, tuple) else str(value))
    return words


def replaced(config: ClusterConfig, settings: Mapping[str, Any]) -> ClusterConfig:
    """Return the cluster with some settings replaced; a model, GPU or TP among them brings its fit.

    Raises:
        ConfigError: a setting is unknown or its value not allowed, or the model has no fit and no coefficients.
    """
    settings = respelled(settings, vars(config))
    if settings.get("latency_model") in FROM_SIZES and _has_fit(config):
        config = config.without(*_OF_FIT)
    return config.replace(**{**_fit_of(config, settings), **settings})


_OF_FIT = ("alpha_coeffs", "beta_coeffs", "total_kv_blocks")


def _has_fit(config: ClusterConfig) -> bool:
    """Return whether the coefficients are those of the model's fit, which another latency model has no use for."""
    try:
        fit = lookup(config.model, config.hardware, config.tp)
    except ConfigError:
        return False
    return (config.alpha_coeffs, config.beta_coeffs) == (fit.alpha, fit.beta)


def _fit_of(config: ClusterConfig, settings: Mapping[str, Any]) -> dict[str, Any]:
    """Return coefficients and KV blocks of the model, GPU and TP that the settings name, if they name any."""
    model, gpu, tp = (settings.get(key) for key in ("model", "hardware", "tp"))
    is_computed = settings.get("latency_model", config.latency_model) in FROM_SIZES
    is_given = "alpha_coeffs" in settings and "beta_coeffs" in settings
    if is_computed or is_given or model is gpu is tp is None:
        return {}
    if model is None:  # another model has a GPU and a TP of its own
        gpu, tp = gpu or config.hardware, tp or config.tp
    fit = lookup(model or config.model, gpu, tp)
    return {
        "hardware": fit.gpu,
        "tp": fit.tp,
        "alpha_coeffs": fit.alpha,
        "beta_coeffs": fit.beta,
        "total_kv_blocks": fit.total_kv_blocks,
    }
