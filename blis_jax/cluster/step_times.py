"""Step times of a configuration: its latency model, the model's inputs on every instance, and checks.

Nothing here imports JAX.
"""

from __future__ import annotations

import dataclasses
import math
import warnings
from collections.abc import Collection, Mapping
from typing import TYPE_CHECKING, Any

from blis_jax.cluster.disaggregation import has_pools
from blis_jax.cluster.instance_groups import InstanceGroup, coefficients_of, per_instance
from blis_jax.cluster.machines import blocks_of, deployment
from blis_jax.errors import ConfigError, ConfigWarning
from blis_jax.files.python_files import is_file
from blis_jax.latency.contract import FromSizes, LatencyModel
from blis_jax.latency.deployment import Deployment, block_tokens
from blis_jax.latency.model_description import usual_tp
from blis_jax.latency.registry import (
    AUTO,
    FROM_SIZES,
    REFERENCE_OF,
    ROOFLINE_OF_FEBRUARY,
    SIZED,
    choosing,
    find,
    lookup,
)

if TYPE_CHECKING:
    from blis_jax.cluster.config import ClusterConfig

SERVED = ("hardware", "tp", "dp")  # settings that, with the model, decide an instance's deployment


def name_of(config: ClusterConfig) -> str:
    """Return the latency model's name; for `auto`, the number of β coefficients and the variant decide it.

    Four β are BLIS's own attention term in the routing variant. The scheduling track's revision has no such term, so
    there the fourth β is the cost of context.
    """
    if config.latency_model != AUTO:
        return config.latency_model
    if len(coefficients_of(config)) < 4:
        return "blackbox"
    return "blackbox-attention" if config.variant == "routing" else "blackbox-context"


def model_of(config: ClusterConfig) -> LatencyModel:
    """Return the configuration's latency model; if pools have different models, one that switches by instance."""
    names = tuple(sorted(set(_names(config))))
    return find(names[0]) if len(names) == 1 else choosing(names)


def merges_steps(config: ClusterConfig) -> bool:
    """Return whether successive steps of a batch that only decodes take equal times and yield equal tokens."""
    has_drafts = config.speculative_config.num_speculative_tokens > 0
    return model_of(config).has_equal_decode_steps and not has_drafts


def _names(config: ClusterConfig) -> list[str]:
    """Return the name of every instance's latency model."""
    if has_pools(config):
        return per_instance(config, "latency_model")
    return [name_of(config)] * config.num_instances


def profile_suffix(config: ClusterConfig) -> str:
    """Return the suffix of a profile's name for a latency model that BLIS's revision does not have."""
    name = name_of(config)
    if is_file(name):
        return f"/{name.rpartition(':')[2]}"
    february = ("blackbox", REFERENCE_OF[config.variant], ROOFLINE_OF_FEBRUARY)
    of_revision = SIZED if config.is_august else february
    is_reference = name in of_revision
    return "" if is_reference else f"/{name.removeprefix('blackbox-')}"


# --- models that compute step times from sizes ----------------------------------------------------


def defaults(config: ClusterConfig, said: Collection[str]) -> dict[str, Any]:
    """Return settings that were not given and follow from the served model: from its sizes, or from its published fit.

    Raises:
        ConfigError: the model or its GPUs are not known, or the model does not fit into their memory.
    """
    if config.latency_model == AUTO:
        return _from_fit(config, said)
    sizes = find(config.latency_model).sizes
    return {} if sizes is None else _from_sizes(config, sizes, said)


FITTED = ("alpha_coeffs", "beta_coeffs")
_USUAL = "meta-llama/llama-3.1-8b-instruct on 2 H100"  # of the default coefficients


def _from_fit(config: ClusterConfig, said: Collection[str]) -> dict[str, Any]:
    """Return the numbers of the fit for another model, GPU or TP than the default; none beside given coefficients.

    Warns if there is no such fit.
    """
    named = {name: getattr(config, name) if name in said else None for name in ("hardware", "tp")}
    is_other = any(
        getattr(config, name) != getattr(type(config), name) for name in ("model", *named)
    )
    if not is_other or any(name in said for name in (*FITTED, "instances")):
        return {}
    try:
        fit = lookup(config.model, named["hardware"], named["tp"])
    except ConfigError as error:
        warnings.warn(f"step times stay those of {_USUAL}: {error}", ConfigWarning, stacklevel=2)
        return {}
    blocks = fit.blocks(as_vllm=config.preemption_mode == "recompute")
    found = {"hardware": fit.gpu, "tp": fit.tp, "total_kv_blocks": blocks}
    found = {name: value for name, value in found.items() if name not in said}
    return {**found, "alpha_coeffs": fit.alpha, "beta_coeffs": fit.beta}


def _from_sizes(config: ClusterConfig, sizes: FromSizes, said: Collection[str]) -> dict[str, Any]:
    """Return settings that were not given and follow from the model's sizes: coefficients, GPUs, and KV blocks, also of
    groups.

    Raises:
        ConfigError: as in `deployment`, or the model does not fit into the GPUs' memory.
    """
    settings: dict[str, Any] = {"alpha_coeffs": sizes.alpha, "beta_coeffs": sizes.beta}
    settings["tp"] = usual_tp(config.model)
    settings = {name: value for name, value in settings.items() if name not in said}
    if "total_kv_blocks" in said:
        return settings
    usual = {name: settings.get(name, getattr(config, name)) for name in SERVED}
    size = config.block_size_in_tokens
    if "block_size_in_tokens" not in said:
        size = block_tokens(deployment(config, **usual), size)
        settings["block_size_in_tokens"] = size
    groups = tuple(_with_blocks(config, group, usual, size) for group in config.instances)
    if groups:
        settings["instances"] = groups
    of_groups = [group.total_kv_blocks for group in groups if group.total_kv_blocks is not None]
    is_needed = len(of_groups) < len(groups) or not groups
    settings["total_kv_blocks"] = (
        blocks_of(config, **usual, block_size=size) if is_needed else of_groups[0]
    )
    return settings


def _with_blocks(
    config: ClusterConfig, group: InstanceGroup, usual: Mapping[str, Any], block_size: int
) -> InstanceGroup:
    """Return the group with its own number of KV blocks if it has its own GPUs."""
    of_group = {name: getattr(group, name) for name in SERVED}
    of_group = {name: value for name, value in of_group.items() if value is not None}
    memory = group.gpu_memory_gib
    if group.total_kv_blocks is not None or not (of_group or memory):
        return group
    served = {**usual, **of_group}
    blocks = blocks_of(config, **served, memory=memory, block_size=block_size)
    return dataclasses.replace(group, total_kv_blocks=blocks)


def deployments(config: ClusterConfig) -> list[Deployment]:
    """Return the deployed model of every instance.

    Raises:
        ConfigError: as in `deployment`.
    """
    columns = zip(*(per_instance(config, name) for name in SERVED), strict=True)
    made = {served: deployment(config, *served) for served in dict.fromkeys(columns)}
    return [made[served] for served in zip(*(per_instance(config, n) for n in SERVED), strict=True)]


def vectors(config: ClusterConfig) -> list[tuple[float, ...]]:
    """Return the step-time function's inputs on every instance: β, or numbers computed from β and the model's sizes."""
    beta, names = per_instance(config, "beta_coeffs"), _names(config)
    if find(names[0]).sizes is None:
        return beta
    used = list(zip(names, beta, deployments(config), strict=True))
    made = {item: _vector(*item) for item in dict.fromkeys(used)}
    if len(set(names)) == 1:
        return [made[item] for item in used]
    length, places = max(map(len, made.values())), sorted(set(names))
    padded = {item: (*vector, *[0.0] * (length - len(vector))) for item, vector in made.items()}
    return [(float(places.index(item[0])), *padded[item]) for item in used]


def _vector(name: str, beta: tuple[float, ...], deployment: Deployment) -> tuple[float, ...]:
    sizes = find(name).sizes
    assert sizes is not None  # all models of a cluster have them, or none
    return sizes.vector(beta, deployment)


def _have_time_after_decode(config: ClusterConfig) -> list[bool]:
    sizes = [find(name).sizes for name in _names(config)]
    return [size is not None and size.has_time_after_decode for size in sizes]


def alphas(config: ClusterConfig) -> list[tuple[float, float, float]]:
    """Return, for every instance, α in µs: queueing time, time per prompt token, and time per output token."""
    pairs = zip(per_instance(config, "alpha_coeffs"), _have_time_after_decode(config), strict=True)
    return [(alpha[0], 0.0 if has_time else alpha[1], alpha[2]) for alpha, has_time in pairs]


def times_after_decode(config: ClusterConfig) -> list[int]:
    """Return, for every instance, the µs added once after a request's last output token, in August's BLIS."""
    pairs = zip(per_instance(config, "alpha_coeffs"), _have_time_after_decode(config), strict=True)
    return [int(alpha[1]) if has_time else 0 for alpha, has_time in pairs]


# --- checks ---------------------------------------------------------------------------------------


def check(config: ClusterConfig) -> None:
    """Refuse an unknown latency model, and coefficients that do not fit it; each instance group is checked alone.

    Raises:
        ConfigError: the message begins with the setting.
    """
    if config.instances:
        _refuse_idle_keys(config)
        return
    usual = "for instance the ones that `blis_jax.latency.registry.lookup` gives"
    _check_coefficients("alpha_coeffs", config.alpha_coeffs, (3,), usual)
    model = find(config.latency_model) if config.latency_model != AUTO else None
    if model is None or model.sizes is None:
        _refuse_idle(config)
    if model is None:
        _check_coefficients("beta_coeffs", config.beta_coeffs, (3, 4), usual)
        return
    hint = f"latency_model {config.latency_model} has: {'; '.join(model.coefficients) or 'none'}"
    if model.sizes is None:
        _check_coefficients("beta_coeffs", config.beta_coeffs, (len(model.coefficients),), hint)
        return
    most = max(len(config.beta_coeffs), len(model.coefficients)) if model.coefficients else 0
    counts = tuple(range(model.sizes.fewest, most + 1))
    _check_coefficients("beta_coeffs", config.beta_coeffs, counts, hint)
    vectors(config)


_IDLE = {"dp": 1, "model_config": "", "moe_comm_backend": "", "gpu_memory_utilization": 0.9}


def _refuse_idle(config: ClusterConfig) -> None:
    """Refuse settings of the served model where step times are fitted and do not depend on it."""
    for name, usual in _IDLE.items():
        value = getattr(config, name)
        if value != usual:
            raise ConfigError(
                f"{name} is {value}, but step times of latency_model {name_of(config)} are fitted and "
                f"do not depend on it; leave it out, or use latency_model {' or '.join(FROM_SIZES)}"
            )


def _refuse_idle_keys(config: ClusterConfig) -> None:
    """Refuse groups with other GPUs than the cluster's where step times are fitted and do not depend on GPUs."""
    if model_of(config).sizes is not None:
        return
    is_counted = any(group.gpu_memory_gib is not None for group in config.instances)
    for key in ("gpu_memory_gib", "hardware", "tp", "dp"):
        is_own = is_counted if key == "gpu_memory_gib" else _has_own(config, key)
        if is_own:
            raise ConfigError(
                f"instances: a group has its own {key}, but step times of latency_model "
                f"{name_of(config)} are fitted; give the group alpha and beta, or use latency_model "
                f"{' or '.join(FROM_SIZES)}"
            )


def _has_own(config: ClusterConfig, key: str) -> bool:
    return any(value != getattr(config, key) for value in per_instance(config, key))


_COUNTS = ("no", "one", "two", "three", "four", "five", "six", "seven", "eight", "nine")


def _check_coefficients(
    name: str, values: tuple[float, ...], sizes: tuple[int, ...], hint: str
) -> None:
    if len(values) in sizes and all(math.isfinite(value) and value >= 0 for value in values):
        return
    words = [_COUNTS[size] if size < len(_COUNTS) else str(size) for size in sizes]
    count = f"{sizes[0]} to {sizes[-1]}" if len(words) > 2 else " or ".join(words)
    if sizes == (0,):
        raise ConfigError(f"{name} must be left out, got {list(values)}; {hint}")
    raise ConfigError(
        f"{name} must be {count} finite numbers at least 0, got {list(values)}; {hint}"
    )
