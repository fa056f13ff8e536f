"""Names of latency models: the only place where a name, or a path to a user's file, becomes a model.

A model of the package costs its own file and one line here. Nothing here imports JAX.
"""

from __future__ import annotations

import math
from collections.abc import Collection
from importlib import import_module
from typing import TYPE_CHECKING, Any

from blis_jax.cluster.instance_groups import coefficients_of, per_instance
from blis_jax.errors import ConfigError, closest
from blis_jax.files.user_files import is_file, value_at
from blis_jax.latency.contract import LatencyModel

if TYPE_CHECKING:
    from blis_jax.cluster.config import ClusterConfig

AUTO = "auto"
MODELS = {
    "blackbox": "blackbox.blackbox",
    "blackbox-context": "blackbox_context.blackbox_context",
    "blackbox-attention": "blackbox_attention.blackbox_attention",
    "trained-physics": "trained_physics.trained_physics",
    "roofline": "roofline.roofline",
    "served-physics": "served_physics.served_physics",
}
REFERENCE_OF = {"scheduling": "blackbox", "routing": "blackbox-attention"}  # with four coefficients


def name_of(config: ClusterConfig) -> str:
    """The model of a configuration; `auto` is told by the number of β and the variant.

    Four β are BLIS's own attention term in the routing variant. The scheduling track's revision has
    none, so there they are the cost of context.
    """
    if config.latency_model != AUTO:
        return config.latency_model
    if len(coefficients_of(config)) < 4:
        return "blackbox"
    return "blackbox-attention" if config.variant == "routing" else "blackbox-context"


def find(name: str) -> LatencyModel:
    """The model of this name, or the one at `path/to/file.py:Name`.

    Raises:
        ConfigError: there is no such name, file or model.
    """
    if is_file(name):
        return value_at(name, f"latency_model {name}", LatencyModel, "@latency_model(...)")
    if name not in MODELS:
        known = (AUTO, *MODELS)
        raise ConfigError(
            f"latency_model {name!r} is not known; use one of {', '.join(known)}, or "
            f"path/to/file.py:Name{closest(name, known)}"
        )
    module, _, attribute = MODELS[name].partition(".")
    model: LatencyModel = getattr(import_module(f"blis_jax.latency.{module}"), attribute)
    return model


def model_of(config: ClusterConfig) -> LatencyModel:
    """The configuration's model."""
    return find(name_of(config))


def profile_suffix(config: ClusterConfig) -> str:
    """What a profile's name says of a model that BLIS's revision does not have."""
    name = name_of(config)
    if is_file(name):
        return f"/{name.rpartition(':')[2]}"
    of_revision = SIZED if config.is_august else ("blackbox", REFERENCE_OF[config.variant])
    is_reference = name in of_revision
    return "" if is_reference else f"/{name.removeprefix('blackbox-')}"


# --- models that compute step times from sizes ----------------------------------------------------


def defaults(config: ClusterConfig, given: Collection[str]) -> dict[str, Any]:
    """Settings that were not given and follow from the model that is served; none for fitted models.

    Raises:
        ConfigError: the model or its GPUs are not known, or the model does not fit into their memory.
    """
    sizes = find(config.latency_model).sizes if config.latency_model != AUTO else None
    if sizes is None:
        return {}
    from blis_jax.latency import sized

    return sized.defaults(config, sizes, given)


def vectors(config: ClusterConfig) -> list[tuple[float, ...]]:
    """What the step-time function gets on every instance: β, or the numbers that β and sizes make."""
    beta, sizes = per_instance(config, "beta_coeffs"), model_of(config).sizes
    if sizes is None:
        return beta
    from blis_jax.latency import sized

    pairs = list(zip(beta, sized.deployments(config), strict=True))
    made = {pair: sizes.vector(*pair) for pair in dict.fromkeys(pairs)}
    return [made[pair] for pair in pairs]


def alphas(config: ClusterConfig) -> list[tuple[float, float, float]]:
    """µs of queueing, per prompt token of it, and per output token, on every instance."""
    alpha, sizes = per_instance(config, "alpha_coeffs"), model_of(config).sizes
    if sizes is None or not sizes.has_time_after_decode:
        return alpha
    return [(queueing, 0.0, output) for queueing, _, output in alpha]


def times_after_decode(config: ClusterConfig) -> list[int]:
    """µs that a request with output takes once after its last token, on every instance, in BLIS's 2026-08 revision."""
    sizes = model_of(config).sizes
    has_time = sizes is not None and sizes.has_time_after_decode
    return [int(one[1]) if has_time else 0 for one in per_instance(config, "alpha_coeffs")]


# --- checks ---------------------------------------------------------------------------------------


def check(config: ClusterConfig) -> None:
    """Refuses an unknown model, and coefficients that do not fit it; groups of instances are checked one by one.

    Raises:
        ConfigError: the sentence begins with the setting.
    """
    if config.instances:
        _refuse_idle_keys(config)
        return
    usual = "for instance the ones that `blis_jax.latency.coefficients.lookup` gives"
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
    """Refuses numbers of what is served where step times are fitted."""
    for name, usual in _IDLE.items():
        given = getattr(config, name)
        if given != usual:
            raise ConfigError(
                f"{name} is {given}, but step times of latency_model {name_of(config)} are fitted and "
                f"do not depend on it; leave it out, or use latency_model {' or '.join(FROM_SIZES)}"
            )


def _refuse_idle_keys(config: ClusterConfig) -> None:
    """Refuses groups with other GPUs than the cluster where step times are fitted."""
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


SIZED = ("trained-physics", "roofline")  # of BLIS
FROM_SIZES = (*SIZED, "served-physics")
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
