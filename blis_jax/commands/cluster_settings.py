"""The cluster's configuration from the options about the cluster, latency coefficients included."""

from __future__ import annotations

import dataclasses
import math
import re
import warnings
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from blis_jax.calibrate.posterior import Posterior
from blis_jax.calibrate.posterior import load as load_posterior
from blis_jax.cluster import adapters, disaggregation
from blis_jax.cluster.config import (
    AUGUST,
    AUGUST_SCORERS,
    FIELDS,
    POLICY_NAMES,
    PROFILE,
    REVISIONS,
    ClusterConfig,
)
from blis_jax.cluster.idle import refuse_absent_instances
from blis_jax.cluster.instance_groups import check_number
from blis_jax.cluster.machines import DECIDERS
from blis_jax.cluster.node_pools import POLICY
from blis_jax.cluster.revisions import OF_REVISION
from blis_jax.cluster.router import with_room
from blis_jax.commands.august_files import options_of, with_files
from blis_jax.commands.options.cluster_flags import CLUSTER_FLAGS, name_of
from blis_jax.core.kinds import SAME
from blis_jax.errors import ConfigError, ConfigWarning, as_option
from blis_jax.files.python_files import is_file
from blis_jax.latency import roofline_february
from blis_jax.latency.model_description import model_description
from blis_jax.latency.registry import FROM_SIZES, KV_BLOCKS_WITHOUT_FIT, lookup
from blis_jax.traces.measured.run import AS_VLLM


def latency_settings(
    settings: Mapping[str, Any], measured: Posterior | None = None
) -> dict[str, Any]:
    """Return model, GPU, TP, coefficients and KV blocks: given or measured coefficients, else those of the model's fit.

    None marks a value that a latency model which computes from model sizes finds by itself.
    """
    model, gpu, tp = (settings.get(name) for name in ("model", "hardware", "tp"))
    if not model:
        raise ConfigError(
            "--model is missing; for instance --model meta-llama/llama-3.1-8b-instruct"
        )
    if tp is not None and tp < 0:
        raise ConfigError(f"--tp must be at least 1, got {tp}")
    none = (0.0, 0.0, 0.0)
    alpha, beta = settings.get("alpha_coeffs", none), settings.get("beta_coeffs", none)
    fitted = {}
    if measured is not None:
        (alpha, beta), fitted = measured.coefficients(), {"latency_model": measured.latency_model}
    if settings.get("latency_model") in FROM_SIZES:
        return {"model": model.lower(), "tp": tp or None, **_of_sizes(settings)}
    if any(beta):
        blocks = settings.get("total_kv_blocks", KV_BLOCKS_WITHOUT_FIT)
        chosen = {"hardware": gpu or "", "tp": tp or 0}
        chosen |= {"alpha_coeffs": alpha, "beta_coeffs": beta, "total_kv_blocks": blocks}
    elif any(alpha):
        raise ConfigError(
            "--alpha-coeffs without --beta-coeffs would give steps that take no time; "
            "give both, or neither to take the model's fit"
        )
    else:
        fit = lookup(model, gpu or None, tp or None, settings.get("vllm_version") or None)
        is_vllm = settings.get("preemption_mode") == "recompute"
        blocks = settings.get("total_kv_blocks", fit.blocks(as_vllm=is_vllm))
        chosen = {"hardware": fit.gpu, "tp": fit.tp}
        chosen |= {"alpha_coeffs": fit.alpha, "beta_coeffs": fit.beta, "total_kv_blocks": blocks}
    return {"model": model.lower(), **chosen, **fitted}


def _of_sizes(settings: Mapping[str, Any]) -> dict[str, Any]:
    """Return GPU, coefficients and KV blocks for a latency model that computes from model sizes."""
    name = settings["latency_model"]
    if settings.get("vllm_version"):
        raise ConfigError(
            f"--vllm-version chooses among fits, and {name} has none; leave it out, or leave --latency-model out"
        )
    missing = [name for name in ("alpha_coeffs", "beta_coeffs") if name not in settings]
    if name == "roofline" and len(missing) < 2:
        raise ConfigError("--latency-model roofline has no coefficients; leave them out")
    if len(missing) == 1:
        raise ConfigError(
            f"{as_option(missing[0])} is missing: {name} takes both kinds of coefficients or neither"
        )
    coefficients = {
        name: settings.get(name) for name in ("alpha_coeffs", "beta_coeffs", "total_kv_blocks")
    }
    return {"hardware": settings.get("hardware") or ClusterConfig.hardware, **coefficients}


def _fit_of(settings: Mapping[str, Any]) -> Posterior | None:
    """Return the fit that the settings name, None if they name none."""
    if "coefficients_from" not in settings:
        return None
    for name in ("alpha_coeffs", "beta_coeffs", "latency_model"):
        if name in settings:
            written = as_option(name)
            raise ConfigError(f"{written}: --coefficients-from is given too; give one of them")
    return load_posterior(Path(settings["coefficients_from"]))


_PROFILE = ("corrected", "variant", "revision")


def _on_server(settings: Mapping[str, Any], fit: Posterior) -> dict[str, Any]:
    """Return the settings, completed by those of the measured server and, unless a profile is asked for, by vLLM's."""
    kept = {name for name, value in settings.items() if value not in ("", None)}
    kept |= set(AS_VLLM) if kept & set(_PROFILE) else set()
    server = {name: value for name, value in fit.server_settings.items() if name not in kept}
    fixed = with_room(server, {name: settings[name] for name in kept if name in settings})
    server |= {name: value for name, value in fixed.items() if name in server}
    return {**settings, **server}


def cluster_config(settings: Mapping[str, Any]) -> ClusterConfig:
    """Return the cluster that the given options describe; other settings have BLIS's defaults."""
    settings = resolved(settings)
    fit = _fit_of(settings)
    if fit is not None:
        settings = _on_server(settings, fit)
    if settings.get("tenant_shares"):
        raise ConfigError(
            "--policy-config: tenant_budgets have the names of tenants, which only run knows; give --tenant-budgets, "
            "where tenants are numbered in the order of their names"
        )
    defaults = {name_of(flag): flag.default for flag in CLUSTER_FLAGS}
    values = {
        name: settings.get(name, default)
        for name, default in defaults.items()
        if name in FIELDS and name != "routing_scorers"
    }
    # from other settings, where they are not given
    follows = ["preemption_mode"]
    follows += ["max_num_running_reqs"] * bool(settings.get("corrected"))
    follows += ["block_size_in_tokens"] * (settings.get("mamba_cache_mode") == "align")
    values = {
        name: value for name, value in values.items() if name in settings or name not in follows
    }
    for name in POLICY_NAMES:  # an empty name is the default, as in the reference
        values[name] = values[name] or getattr(ClusterConfig, name)
    values["routing_scorers"] = settings.get("routing_scorers", "")
    values["policy_numbers"] = settings.get("policy_numbers", ())
    named = ("horizon", "variant", "corrected", "revision")
    values |= {name: settings[name] for name in named if name in settings}
    values |= latency_settings(settings, fit)
    for name in OF_REVISION if values.get("revision") == AUGUST else ():
        values[name] = settings.get(name)
    values = {name: value for name, value in values.items() if value is not None}
    _check_scorers("--routing-scorers", values["routing_policy"], values["routing_scorers"])
    policy = values["decode_routing_policy"]
    policy = values["routing_policy"] if policy == SAME else policy
    _check_scorers("--decode-routing-scorers", policy, values["decode_routing_scorers"])
    try:
        config = ClusterConfig(**values)
        refuse_absent_instances(config)
        check_number(config, settings.get("num_instances", config.num_instances))
    except ConfigError as error:
        raise type(error)(_as_option(str(error), FIELDS)) from None
    _check_expert_parallel(settings, config)
    return config


def _check_expert_parallel(settings: Mapping[str, Any], config: ClusterConfig) -> None:
    """Refuse values of the expert-parallel option that BLIS refuses; the option has no other effect."""
    if not settings.get("enable_expert_parallel"):
        return
    option = "--enable-expert-parallel"
    if config.latency_model != "trained-physics":
        raise ConfigError(f"{option} needs --latency-model trained-physics; leave one of them out")
    if not model_description(config.model, config.model_config).is_moe:
        raise ConfigError(f"{option}: model {config.model} has no experts; leave the option out")


def with_shares(
    config: ClusterConfig, shares: Mapping[str, float], tenant_names: Sequence[str]
) -> ClusterConfig:
    """Return the cluster with the tenants' budgets; `tenant_names` lists the tenants in the order of their codes.

    Raises:
        ConfigError: budgets are given by number, too.
    """
    if shares and config.tenant_budgets:
        raise ConfigError(
            "--tenant-budgets: the file of --policy-config has tenant_budgets, too; leave one of them out"
        )
    pairs = [
        f"{code}={shares[name]!r}"
        for code, name in enumerate(tenant_names)
        if name in shares and name
    ]
    return config.replace(tenant_budgets=",".join(pairs)) if pairs else config


def resolved(settings: Mapping[str, Any]) -> dict[str, Any]:
    """Return the options, completed by those of a revision and of a policy file, under the settings' names."""
    resolved_settings = dict(settings)
    if {"enable_prefix_caching", "no_enable_prefix_caching"} <= settings.keys():
        raise ConfigError(
            "--enable-prefix-caching and --no-enable-prefix-caching are one option; give one of them"
        )
    if resolved_settings.get("variant") in REVISIONS:
        resolved_settings["revision"] = resolved_settings.pop("variant")
    if resolved_settings.get("revision") == AUGUST:
        resolved_settings.setdefault("latency_model", "trained-physics")
    if resolved_settings.get("revision") != AUGUST:
        resolved_settings = roofline_february.with_coefficients(resolved_settings)
    elif resolved_settings.pop("roofline", False):
        raise ConfigError("--roofline is of BLIS of February; give --latency-model roofline")
    if resolved_settings.get("revision") == PROFILE and not resolved_settings.get("corrected"):
        resolved_settings = _without_limit(resolved_settings)
    resolved_settings = with_files(resolved_settings, resolved_settings.get("revision") == AUGUST)
    path = resolved_settings.pop("policy_config", None)
    if path is not None:
        is_august = resolved_settings.get("revision") == AUGUST
        said = resolved_settings.get("admission_policy")
        resolved_settings = options_of(path, is_august, said) | resolved_settings
    interval = resolved_settings.pop("model_autoscaler_interval_us", None)
    if interval is not None:
        resolved_settings |= {
            "cluster_policy": POLICY,
            f"{POLICY.replace('-', '_')}_interval_us": interval,
        }
    resolved_settings = _with_adapters(resolved_settings)
    resolved_settings = (
        _without_pools(resolved_settings)
        if resolved_settings.get("revision") == AUGUST
        else resolved_settings
    )
    is_uncached = resolved_settings.pop("no_enable_prefix_caching", None)
    if is_uncached is not None:
        resolved_settings["enable_prefix_caching"] = not is_uncached
    policy = resolved_settings.pop("preemption_policy", None)
    if policy is not None:
        resolved_settings["slo_preemption"] = policy == "priority"
    return resolved_settings


def _without_limit(settings: Mapping[str, Any]) -> dict[str, Any]:
    """Drop the longest request's length, which BLIS of February reads and passes over."""
    changed = dict(settings)
    if changed.pop("max_model_len", 0):
        warnings.warn(
            "--max-model-len has no effect under --profile blis-2026-02, as in BLIS of February; --profile "
            "blis-2026-08 drops requests that are longer",
            ConfigWarning,
            stacklevel=2,
        )
    return changed


def _with_adapters(settings: Mapping[str, Any]) -> dict[str, Any]:
    """Move the options about LoRA adapters to where settings hold them: `lora_config` and the scorers."""
    changed = dict(settings)
    weight, capacity = (
        changed.pop("lora_scorer_weight", None),
        changed.get("lora_adapter_capacity", 1),
    )
    named = {
        name: changed.pop(f"lora_{name}") for name in adapters.NUMBERS if f"lora_{name}" in changed
    }
    if named or "lora_config" in changed:
        lora = adapters.given_config(changed.get("lora_config", adapters.LoraConfig()))
        changed["lora_config"] = dataclasses.replace(lora, **named)
        if lora.adapters and capacity <= 0:  # as a setting 0 stands for none
            raise ConfigError(
                f"--lora-adapter-capacity must be above 0 where adapters are declared, got {capacity}"
            )
    if weight is None:
        return changed
    if not (weight > 0 and math.isfinite(weight)):
        raise ConfigError(f"--lora-scorer-weight must be a finite number above 0, got {weight:g}")
    if changed.get("routing_policy") != "weighted":
        warnings.warn(
            "--lora-scorer-weight has no effect without --routing-policy weighted, as in BLIS",
            ConfigWarning,
            stacklevel=2,
        )
        return changed
    scorers = changed.get("routing_scorers") or AUGUST_SCORERS
    if adapters.SCORER in [part.partition(":")[0].strip() for part in scorers.split(",")]:
        raise ConfigError(
            f"--lora-scorer-weight: {adapters.SCORER} is among the scorers already; give its weight in one of them"
        )
    return changed | {"routing_scorers": f"{scorers},{adapters.SCORER}:{weight!r}"}


def _without_pools(settings: Mapping[str, Any]) -> dict[str, Any]:
    """Drop the options of pools that the cluster does not have, which BLIS ignores."""
    counts = ("prefill_instances", "decode_instances", "prefill_decode_instances")
    if settings.get("prefill_instances"):
        return dict(settings)
    has_pools = any(settings.get(name) for name in (*counts, "encode_instances"))
    idle = [
        name
        for name in (disaggregation.OF_ONE_POOL if has_pools else _OF_POOLS)
        if name in settings
    ]
    if not has_pools and settings.get("pd_decider") in DECIDERS:
        idle.append("pd_decider")
    needed = "--prefill-instances" if has_pools else "--prefill-instances and --decode-instances"
    for name in idle:
        if settings[name] not in ("never", 0, ""):
            warnings.warn(
                f"{as_option(name)} has no effect without {needed}, as in BLIS",
                ConfigWarning,
                stacklevel=2,
            )
    return {name: value for name, value in settings.items() if name not in idle}


_OF_POOLS = (
    *("pd_prefix_threshold", "pd_transfer_bandwidth", "pd_transfer_base_latency"),
    *disaggregation.OF_ONE_POOL,
    "prefill_routing_scorers",  # the decode pool's router is another mechanism's too
)


def _as_option(message: str, fields: Mapping[str, Any]) -> str:
    """Return the message with field names written as options."""
    name = re.match(r"[a-z_]+(?=[: ])", message)  # a file may be named as a field
    if name is None or name.group() not in fields:
        return message
    return f"{as_option(name.group())}{message[name.end() :]}"


def _check_scorers(option: str, policy: str, scorers: str) -> None:
    names = [part.partition(":")[0].strip() for part in scorers.split(",")]
    for name in names:
        if (policy == "weighted" or is_file(policy)) and names.count(name) > 1:
            raise ConfigError(f"{option}: {name!r} is given twice; add up its weights")
