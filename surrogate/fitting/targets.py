"""What a surrogate learns: the mean over the seeds of every point, and single runs about it.

Points may have different seeds of one pool. A seed's own effect, the same for all points, is taken
out first: as a factor where an output is learned by its logarithm, else as a summand.
"""

from __future__ import annotations

import dataclasses
import functools
import json
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np

from surrogate.columns import Regions
from surrogate.fitting.network import LEVELS, features, quantiles

LEAST_HALF = 1e-6  # of a run's range, in standard units


class Tables(NamedTuple):
    """How each learned output is standardised, its bounds, and the reaches of its intervals by region."""

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
    """Return every predicted figure of points in the outputs' units, except the epistemic sd, in standard units."""
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
    """Return the mean over members of the head `name`, `[point, unit]`, in one product over members and units.

    Computing each member's head would take five times the memory, and most of the time.
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


LOG_RATIO = 1.5  # an output above 0 whose means span such a factor is learned by its logarithm
ROUNDS = 30  # of the alternation between points and seeds
SPREAD_FLOOR = 1e-6  # relative: an output that varies less is a constant


@dataclass(frozen=True)
class Scale:
    """The standardisation of an output: (f(y) - center) / width, where f is the logarithm or nothing."""

    is_log: bool
    center: float
    width: float  # 0: the output is the same everywhere
    low: float | None  # bounds of what it can be
    high: float | None

    @property
    def is_constant(self) -> bool:
        """Return whether the output is constant, so that there is nothing to learn."""
        return self.width == 0


@dataclass(frozen=True)
class Scales:
    """The scales of all outputs, as arrays of one entry an output."""

    entries: tuple[Scale, ...]

    @property
    def is_learned(self) -> np.ndarray:
        """Return whether each output varies, so that there is something to learn, `[output]`."""
        return np.array([not scale.is_constant for scale in self.entries])

    def standardized(self, values: np.ndarray) -> np.ndarray:
        """Return standard values of the learned outputs, `[..., output]`; NaN stays."""
        kept = [(place, scale) for place, scale in enumerate(self.entries) if not scale.is_constant]
        parts = []
        for place, scale in kept:
            y = values[..., place].astype(np.float64)
            if scale.is_log:
                y = np.log(np.maximum(y, 1e-30))
            parts.append((y - scale.center) / scale.width)
        return np.stack(parts, axis=-1).astype(np.float32)

    def arrays(self) -> tuple[jax.Array, jax.Array, jax.Array]:
        """Return `is_log`, center and width of the learned outputs, `[output]` each."""
        kept = [scale for scale in self.entries if not scale.is_constant]
        is_log = jnp.asarray(np.array([scale.is_log for scale in kept]))
        center = jnp.asarray(np.array([scale.center for scale in kept], np.float32))
        return is_log, center, jnp.asarray(np.array([scale.width for scale in kept], np.float32))

    def to_json(self) -> str:
        """Write the scales as a text."""
        return json.dumps([dataclasses.asdict(scale) for scale in self.entries])

    @staticmethod
    def from_json(text: str) -> Scales:
        """Read the scales from a text that `to_json` wrote."""
        return Scales(tuple(Scale(**entry) for entry in json.loads(text)))


def scales_of(runs: np.ndarray, means: np.ndarray, units: Sequence[str]) -> Scales:
    """Return the scales that standardise training runs `[point, seed, output]` and means `[point, output]`."""
    entries = []
    for place, unit in enumerate(units):
        y, mean = runs[..., place], means[:, place]
        low = 0.0 if np.nanmin(y) >= 0 else None
        high = 1.0 if unit == "1" and low == 0.0 and np.nanmax(y) <= 1 else None
        spread = float(np.nanmax(y) - np.nanmin(y))
        if spread <= SPREAD_FLOOR * max(abs(float(np.nanmean(y))), 1e-12):
            entries.append(Scale(False, float(np.nanmean(y)), 0.0, low, high))
            continue
        is_log = bool(np.nanmin(y) > 0 and np.nanmax(mean) > LOG_RATIO * np.nanmin(mean))
        z = np.log(mean) if is_log else mean
        width = float(np.std(z))
        if width <= SPREAD_FLOOR * spread:  # seeds differ, points do not but for rounding
            width = spread
        entries.append(Scale(is_log, float(np.mean(z)), width, low, high))
    return Scales(tuple(entries))


def pool_means(runs: np.ndarray) -> np.ndarray:
    """Estimate each point's mean over all seeds of the pool, `[point, output]`, from the seeds that it has."""
    has_all = not np.isnan(runs).any()
    means = np.nanmean(runs, axis=1)
    if has_all:
        return np.asarray(means)
    adjusted = np.empty_like(means, dtype=np.float64)
    for output in range(runs.shape[2]):
        y = runs[:, :, output].astype(np.float64)
        is_factor = bool(np.nanmin(y) > 0)
        adjusted[:, output] = _by_factors(y) if is_factor else _by_summands(y)
    return adjusted


def _by_summands(y: np.ndarray) -> np.ndarray:
    """Return effects of points, where a run is a point's effect plus a seed's; seeds' effects have mean 0."""
    point = np.nanmean(y, axis=1)
    for _ in range(ROUNDS):
        seed = np.nanmean(y - point[:, None], axis=0)
        seed -= seed.mean()
        point = np.nanmean(y - seed[None, :], axis=1)
    return np.asarray(point)


def _by_factors(y: np.ndarray) -> np.ndarray:
    """Return effects of points, where a run is a point's effect times a seed's; seeds' effects have mean 1."""
    is_there = ~np.isnan(y)
    filled = np.where(is_there, y, 0.0)
    point = filled.sum(axis=1) / is_there.sum(axis=1)
    for _ in range(ROUNDS):
        seed = filled.sum(axis=0) / (is_there * point[:, None]).sum(axis=0)
        seed /= seed.mean()
        point = filled.sum(axis=1) / (is_there * seed[None, :]).sum(axis=1)
    return np.asarray(point)


def compact(runs: np.ndarray) -> np.ndarray:
    """Put the runs of every point side by side, `[point, run, output]`; NaN where a point has fewer."""
    is_there = ~np.isnan(runs).all(axis=2)
    most = int(is_there.sum(axis=1).max())
    order = np.argsort(~is_there, axis=1, kind="stable")[:, :most]
    return np.asarray(np.take_along_axis(runs, order[:, :, None], axis=1))
