"""The compiled functions of a surrogate: what an ensemble says of a batch of points."""

from __future__ import annotations

import functools
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np

from surrogate.fitting.network import LEVELS, features, quantiles
from surrogate.regions import Regions

LEAST_HALF = 1e-6  # of a run's range, in standard units


class Tables(NamedTuple):
    """One entry a learned output: how it is standardised, its bounds, and reaches of intervals."""

    is_log: np.ndarray
    center: np.ndarray
    width: np.ndarray
    low: np.ndarray
    high: np.ndarray
    floor: np.ndarray
    mean_reach: np.ndarray  # [region, output]
    run_reach: np.ndarray
    main: Any  # what `Regions` has
    threshold: Any
    off_at: np.ndarray


class Standard(NamedTuple):
    """Predictions of the learned outputs in standard units."""

    mean: jax.Array  # [point, output], of the ensemble
    epistemic: jax.Array  # [point, output], sd of the members' means
    aleatoric: jax.Array  # [point, output], sd of single runs
    quantiles: jax.Array  # [point, output, level], of single runs


def band(standard: Standard) -> tuple[Any, Any]:
    """Return middle and half width of the range from the lowest to the highest quantile of single runs."""
    low, high = standard.quantiles[..., 0], standard.quantiles[..., -1]
    half = (high - low) / 2
    return (low + high) / 2, half + LEAST_HALF


@functools.partial(jax.jit, static_argnums=0)
def all_raw(static: Any, params: Any, tables: Tables, inputs: jax.Array) -> Any:
    """Return everything that is said of points in the outputs' units, and the epistemic sd in standard ones."""
    standard = Standard(*everything(static, params, inputs))

    def raw(values: jax.Array) -> jax.Array:
        """Return values in the output's unit, within its bounds."""
        linear = tables.center + tables.width * values
        return jnp.clip(jnp.where(tables.is_log, jnp.exp(linear), linear), tables.low, tables.high)

    mean = raw(standard.mean)
    slope = jnp.where(tables.is_log, mean, 1.0) * tables.width
    regions = Regions(tables.main, tables.threshold, tables.off_at[None, :])
    region = regions.of(inputs, mean)
    sigma = tables.mean_reach[region] * jnp.hypot(standard.epistemic, tables.floor)
    middle, half = band(standard)
    levels = [raw(standard.quantiles[..., level]) for level in range(len(LEVELS))]
    return {
        "mean": mean,
        "epistemic_sd": slope * standard.epistemic,
        "aleatoric_sd": slope * standard.aleatoric,
        "low": raw(standard.mean - sigma),
        "high": raw(standard.mean + sigma),
        "run_low": raw(middle - tables.run_reach[region] * half),
        "run_high": raw(middle + tables.run_reach[region] * half),
        "quantile": jnp.stack(levels, axis=-1),
        "region": region,
    }, standard.epistemic


@functools.partial(jax.jit, static_argnums=0)
def everything(static: Any, params: Any, inputs: jax.Array) -> tuple[jax.Array, ...]:
    """Return the entries of `Standard`: mean, spread of the members, sd of runs and quantile levels."""
    columns, network = static
    seen = features(columns, inputs)
    heads = jax.vmap(lambda member: network.apply(member, seen))(params)
    mean = heads.mean.mean(axis=0)
    sd = jnp.exp(_of_members(params, "log_sd", heads.narrow))
    flat = _of_members(params, "quantiles", heads.narrow)
    steps = flat.reshape(*mean.shape, len(LEVELS))
    levels = mean[..., None] + sd[..., None] * quantiles(steps)
    return mean, heads.mean.std(axis=0, ddof=1), sd, levels


def _of_members(params: Any, name: str, narrow: jax.Array) -> jax.Array:
    """Return the mean over members of a head `[point, unit]`, in one product over members and units.

    Each member's own would take five times the memory, and most of the time.
    """
    layer = params["params"][name]
    total = jnp.einsum("mpu,muo->po", narrow, layer["kernel"]) + layer["bias"].sum(axis=0)[None, :]
    return total / narrow.shape[0]


@functools.partial(jax.jit, static_argnums=0)
def mean_only(static: Any, params: Any, inputs: jax.Array) -> jax.Array:
    """Predict means `[point, output]`."""
    return member_means(static, params, inputs).mean(axis=-1)


@functools.partial(jax.jit, static_argnums=0)
def member_means(static: Any, params: Any, inputs: jax.Array) -> jax.Array:
    """Predict means `[point, output, member]`."""
    columns, network = static
    seen = features(columns, inputs)
    means: jax.Array = jax.vmap(lambda member: network.apply(member, seen).mean)(params)
    return jnp.moveaxis(means, 0, -1)


@functools.partial(jax.jit, static_argnums=(0, 1))
def gradient(static: Any, place: int, params: Any, scales: Any, inputs: jax.Array) -> jax.Array:
    """Return derivatives of one output's mean in its unit, `[point, column]`."""
    is_log, center, width = (array[place] for array in scales)

    def total(inputs: jax.Array) -> jax.Array:
        """Return the sum over points, whose derivatives are each point's own."""
        value = center + width * mean_only(static, params, inputs)[:, place]
        return jnp.where(is_log, jnp.exp(jnp.where(is_log, value, 0.0)), value).sum()

    return jax.grad(total)(inputs)
