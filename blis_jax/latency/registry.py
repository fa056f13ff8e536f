"""Names of latency models: the only place where a name, or a path to a user's file, becomes a model.

A model of the package costs its own file and one line here. Nothing here imports JAX.
"""

from __future__ import annotations

import functools
import math
from collections.abc import Collection
from importlib import import_module
from typing import TYPE_CHECKING, Any

from blis_jax.cluster.disaggregation import has_pools
from blis_jax.cluster.instance_groups import coefficients_of, per_instance
from blis_jax.errors import ConfigError, closest
from blis_jax.files.user_files import is_file, value_at
from blis_jax.latency.contract import LatencyModel
from blis_jax.lazy import lax

if TYPE_CHECKING:
    import jax

    from blis_jax.cluster.config import ClusterConfig
    from blis_jax.core.step_batch import StepBatch
    from blis_jax.latency.deployment import Deployment

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
    """Return the configuration's model; where pools have different ones, one that chooses between them."""
    names = tuple(sorted(set(_names(config))))
    return find(names[0]) if len(names) == 1 else _choosing(names)


def _names(config: ClusterConfig) -> list[str]:
    """The model of every instance."""
    if has_pools(config):
        return per_instance(config, "latency_model")
    return [name_of(config)] * config.num_instances


@functools.cache
def _choosing(names: tuple[str, ...]) -> LatencyModel:
    """A model whose first number says which of these two times the instance; theirs follow it."""
    first, second = (find(name) for name in names)

    def step_time(beta: jax.Array, batch: StepBatch) -> jax.Array:
        numbers = beta[1:]
        return lax.cond(
            beta[0] == 0,
            lambda: first.step_time(numbers, batch),
            lambda: second.step_time(numbers, batch),
        )

    return LatencyModel(
        step_time,
        (),
        needs_members=True,
        has_equal_decode_steps=False,
        grows_with_context=first.grows_with_context and second.grows_with_context,
        overhead=None,
        sizes=first.sizes,
    )


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
    beta, names = per_instance(config, "beta_coeffs"), _names(config)
    if find(names[0]).sizes is None:
        return beta
    from blis_jax.latency import sized

    used = list(zip(names, beta, sized.deployments(config), strict=True))
    made = {one: _vector(*one) for one in dict.fromkeys(used)}
    if len(set(names)) == 1:
        return [made[one] for one in used]
    length, places = max(map(len, made.values())), sorted(set(names))
    padded = {one: (*vector, *[0.0] * (length - len(vector))) for one, vector in made.items()}
    return [(float(places.index(one[0])), *padded[one]) for one in used]


def _vector(name: str, beta: tuple[float, ...], deployment: Deployment) -> tuple[float, ...]:
    sizes = find(name).sizes
    assert sizes is not None  # all models of a cluster have them, or none
    return sizes.vector(beta, deployment)


def _have_time_after_decode(config: ClusterConfig) -> list[bool]:
    sizes = [find(name).sizes for name in _names(config)]
    return [one is not None and one.has_time_after_decode for one in sizes]


def alphas(config: ClusterConfig) -> list[tuple[float, float, float]]:
    """µs of queueing, per prompt token of it, and per output token, on every instance."""
    pairs = zip(per_instance(config, "alpha_coeffs"), _have_time_after_decode(config), strict=True)
    return [(alpha[0], 0.0 if has_time else alpha[1], alpha[2]) for alpha, has_time in pairs]


def times_after_decode(config: ClusterConfig) -> list[int]:
    """µs that a request with output takes once after its last token, on every instance, in BLIS's 2026-08 revision."""
    pairs = zip(per_instance(config, "alpha_coeffs"), _have_time_after_decode(config), strict=True)
    return [int(alpha[1]) if has_time else 0 for alpha, has_time in pairs]


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
