"""Names of latency models: the only place where a name, or a path to a user's file, becomes a model.

A model of the package costs its own file and one line here. Nothing here imports JAX.
"""

from __future__ import annotations

import math
from importlib import import_module
from typing import TYPE_CHECKING

from blis_jax.cluster.instance_groups import coefficients_of
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
    is_reference = name in ("blackbox", REFERENCE_OF[config.variant])
    return "" if is_reference else name.replace("blackbox-", "/")


def check(config: ClusterConfig) -> None:
    """Refuses an unknown model, and coefficients that do not fit it; groups of instances are checked one by one."""
    if config.instances:
        return
    usual = "for instance the ones that `blis_jax.latency.coefficients.lookup` gives"
    _check_coefficients("alpha_coeffs", config.alpha_coeffs, (3,), usual)
    if config.latency_model == AUTO:
        _check_coefficients("beta_coeffs", config.beta_coeffs, (3, 4), usual)
        return
    model = find(config.latency_model)
    hint = f"latency_model {config.latency_model} has: {'; '.join(model.coefficients)}"
    _check_coefficients("beta_coeffs", config.beta_coeffs, (len(model.coefficients),), hint)


_COUNTS = ("no", "one", "two", "three", "four", "five", "six", "seven", "eight", "nine")


def _check_coefficients(
    name: str, values: tuple[float, ...], sizes: tuple[int, ...], hint: str
) -> None:
    if len(values) in sizes and all(math.isfinite(value) and value >= 0 for value in values):
        return
    count = " or ".join(_COUNTS[size] if size < len(_COUNTS) else str(size) for size in sizes)
    raise ConfigError(
        f"{name} must be {count} finite numbers at least 0, got {list(values)}; {hint}"
    )
