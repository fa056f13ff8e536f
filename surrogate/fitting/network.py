"""Inputs as a network sees them, the network, and how an ensemble of such networks is fitted."""

from __future__ import annotations

import functools
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, NamedTuple

import flax.linen as nn
import jax
import jax.numpy as jnp
import numpy as np
import optax

from surrogate.columns import InputColumn

if TYPE_CHECKING:
    from jaxtyping import Array, Float

EPOCHS_PER_CALL = 25
LOG_SD_RANGE = (-7.0, 4.0)


@dataclass(frozen=True)
class Settings:
    """The sizes of an ensemble, and the numbers of its fit."""

    members: int = 5
    width: int = 64
    depth: int = 3
    steps: int = 8_000  # gradient steps
    batch: int = 256  # points
    learning_rate: float = 2e-3  # at its highest
    weight_decay: float = 1e-5
    seed: int = 0


class Samples(NamedTuple):
    """Training data in standard units."""

    features: jax.Array  # [point, feature]
    means: jax.Array  # [point, output]
    runs: jax.Array  # [point, run, output], NaN where a point has fewer


class FitState(NamedTuple):
    """An ensemble under way; every leaf but `epoch` has the member as its first axis."""

    params: Any
    optimizer: Any
    epoch: jax.Array


def network_of(settings: Settings, num_outputs: int) -> Network:
    """Return the network of every member."""
    return Network(num_outputs, settings.width, settings.depth)


def epochs_of(settings: Settings, num_points: int) -> int:
    """Return the number of passes over the points, which gives small and large sets as many steps."""
    wanted = -(-settings.steps // _batches(settings, num_points))
    return -(-wanted // EPOCHS_PER_CALL) * EPOCHS_PER_CALL


def init(settings: Settings, samples: Samples) -> FitState:
    """Return fresh members."""
    network = network_of(settings, samples.means.shape[1])
    keys = jax.random.split(jax.random.key(settings.seed), settings.members)
    params = jax.vmap(lambda key: network.init(key, samples.features[:1]))(keys)
    optimizer = jax.vmap(_optimizer(settings, samples).init)(params)
    return FitState(params, optimizer, jnp.zeros((), jnp.int32))


def fit(
    settings: Settings,
    samples: Samples,
    state: FitState | None = None,
    on_call: Callable[[FitState, float], None] | None = None,
) -> FitState:
    """Train from `state`, or from a fresh one, to the end; `on_call` is called with the state so far and the loss."""
    state = init(settings, samples) if state is None else state
    num_epochs = epochs_of(settings, samples.features.shape[0])
    while int(state.epoch) < num_epochs:
        state, loss = _epochs(settings, samples, state)
        if on_call is not None:
            on_call(state, float(loss))
    return state


def _batches(settings: Settings, num_points: int) -> int:
    return max(num_points // settings.batch, 1)


def _optimizer(settings: Settings, samples: Samples) -> optax.GradientTransformation:
    num_points = samples.features.shape[0]
    steps = epochs_of(settings, num_points) * _batches(settings, num_points)
    rate = optax.warmup_cosine_decay_schedule(
        0.0, settings.learning_rate, max(steps // 20, 1), steps, settings.learning_rate * 1e-3
    )
    return optax.chain(
        optax.clip_by_global_norm(10.0), optax.adamw(rate, weight_decay=settings.weight_decay)
    )


@functools.partial(jax.jit, static_argnums=0)
def _epochs(settings: Settings, samples: Samples, state: FitState) -> tuple[FitState, jax.Array]:
    """Return the state after some passes over the points by every member, and the loss."""
    network = network_of(settings, samples.means.shape[1])
    optimizer = _optimizer(settings, samples)
    num_points = samples.features.shape[0]
    num_batches, size = _batches(settings, num_points), min(settings.batch, num_points)

    def step(carry: Any, drawn: tuple[jax.Array, jax.Array]) -> tuple[Any, jax.Array]:
        params, moments = carry
        chosen, run = drawn
        batch = Samples(samples.features[chosen], samples.means[chosen], samples.runs[chosen, run])
        loss, gradient = jax.value_and_grad(_loss)(params, network, batch)
        change, moments = optimizer.update(gradient, moments, params)
        return (optax.apply_updates(params, change), moments), loss

    def epoch(carry: Any, key: jax.Array) -> tuple[Any, jax.Array]:
        order_key, run_key = jax.random.split(key)
        order = jax.random.permutation(order_key, num_points)[: num_batches * size]
        run = jax.random.randint(run_key, order.shape, 0, samples.runs.shape[1])
        grid = (num_batches, size)
        return jax.lax.scan(step, carry, (order.reshape(grid), run.reshape(grid)))

    def member(params: Any, moments: Any, key: jax.Array) -> tuple[Any, jax.Array]:
        epochs = state.epoch + jnp.arange(EPOCHS_PER_CALL)
        keys = jax.vmap(functools.partial(jax.random.fold_in, key))(epochs)
        carry, losses = jax.lax.scan(epoch, (params, moments), keys)
        return carry, losses[-1].mean()

    keys = jax.random.split(jax.random.key(settings.seed + 1), settings.members)
    (params, moments), losses = jax.vmap(member)(state.params, state.optimizer, keys)
    return FitState(params, moments, state.epoch + EPOCHS_PER_CALL), losses.mean()


def _loss(params: Any, network: Network, batch: Samples) -> jax.Array:
    """Squared error of the mean, likelihood of the spread and pinball loss of the quantiles.

    The last two see one run a point, `batch.runs[point, output]`, and do not move the mean: it is
    fitted to the points' means alone.
    """
    heads: Heads = network.apply(params, batch.features)  # type: ignore[assignment]
    squared = jnp.square(heads.mean - batch.means).mean()
    is_there = ~jnp.isnan(batch.runs)
    off = jnp.where(is_there, batch.runs - jax.lax.stop_gradient(heads.mean), 0.0)
    log_sd = jnp.clip(heads.log_sd, *LOG_SD_RANGE)
    likelihood = log_sd + 0.5 * jnp.square(off) * jnp.exp(-2.0 * log_sd)
    scaled = off * jnp.exp(-jax.lax.stop_gradient(log_sd))
    miss = scaled[..., None] - quantiles(heads.steps)
    levels = jnp.asarray(np.array(LEVELS, np.float32))[None, None, :]
    pinball = jnp.maximum(levels * miss, (levels - 1.0) * miss).mean(axis=-1)
    count = jnp.maximum(is_there.sum(), 1)
    return squared + 0.1 * jnp.where(is_there, likelihood + pinball, 0.0).sum() / count


# --- inputs ---------------------------------------------------------------------------------------

WIDE = 2.0  # a range that spans such a factor is also seen by its logarithm
LOG_LEVELS = 512  # where a range begins at 0, the logarithm resolves one part in so many


def features(
    columns: Sequence[InputColumn], inputs: Float[Array, "point column"]
) -> Float[Array, "point feature"]:
    """Scale each column to −1 … 1, linearly, by logarithm or both; a category becomes one number for
    each of its values.

    A column whose limit is off stands at its high end, with a feature of its own. Each scorer's weight also becomes its
    share of all weights, since a router depends on the shares alone.
    """
    parts: list[jax.Array] = []
    for place, column in enumerate(columns):
        x = inputs[:, place]
        if column.kind == "categorical":
            codes = jnp.arange(len(column.categories), dtype=x.dtype)
            parts += list((jnp.round(x)[None, :] == codes[:, None]).astype(x.dtype))
            continue
        if column.unlimited_at is not None:
            is_unlimited = x == column.unlimited_at
            x = jnp.where(is_unlimited, column.high, x)
            parts.append(is_unlimited.astype(x.dtype))
        if not column.is_log:
            parts.append(_scaled(x, column.low, column.high))
        if column.is_log or _is_wide(column):
            offset = 0.0 if column.low > 0 else _step(column) - column.low
            low, high = float(np.log(column.low + offset)), float(np.log(column.high + offset))
            safe = jnp.maximum(x + offset, 0.5 * (column.low + offset))
            parts.append(_scaled(jnp.log(safe), low, high))
    return jnp.stack(parts + _weight_shares(columns, inputs), axis=1)


def _weight_shares(
    columns: Sequence[InputColumn], inputs: Float[Array, "point column"]
) -> list[jax.Array]:
    """Return the weights' shares from -1 to 1; none if there is only one weight."""
    places = [place for place, column in enumerate(columns) if column.fixed_weights is not None]
    if not places:
        return []
    fixed = columns[places[0]].fixed_weights or 0.0
    if len(places) == 1 and fixed == 0:
        return []
    weights = jnp.maximum(inputs[:, np.array(places)], 0.0)
    total = jnp.maximum(weights.sum(axis=1) + fixed, np.finfo(np.float32).tiny)
    return [_scaled(weights[:, place] / total, 0.0, 1.0) for place in range(len(places))]


def _scaled(x: jax.Array, low: float, high: float) -> jax.Array:
    """-1 at the low end, 1 at the high one."""
    return (x - low) * (2.0 / (high - low)) - 1.0


def _is_wide(column: InputColumn) -> bool:
    return column.low <= 0 or column.high / column.low >= WIDE


def _step(column: InputColumn) -> float:
    """Return what is added to a column's values before the logarithm, if its range begins at or below 0."""
    step = (column.high - column.low) / LOG_LEVELS
    return max(step, 1.0) if column.kind == "integer" else step


# --- one network ----------------------------------------------------------------------------------

LEVELS = (0.05, 0.25, 0.5, 0.75, 0.95)  # quantiles over single runs
SPREAD_UNITS = 32
_MIDDLE = LEVELS.index(0.5)


class Heads(NamedTuple):
    """The outputs of a network at points, in standard units."""

    mean: Float[Array, "point output"]  # over the seeds
    log_sd: Float[Array, "point output"]  # of single runs
    steps: Float[Array, "point output level"]  # of `quantiles`, before they are made increasing
    narrow: Float[Array, "point unit"]  # what log_sd and steps are linear in


class Network(nn.Module):
    """A perceptron: the mean comes from the trunk, spread and quantiles from a narrow layer behind the trunk."""

    num_outputs: int
    width: int = 64
    depth: int = 3

    @nn.compact
    def __call__(self, features: Float[Array, "point feature"]) -> Heads:
        """Return the heads at some points."""
        hidden = features
        for _ in range(self.depth):
            hidden = gate(nn.Dense(self.width, param_dtype=jnp.float32)(hidden))
        mean = nn.Dense(self.num_outputs, name="mean")(hidden)
        narrow = gate(nn.Dense(SPREAD_UNITS, name="narrow")(jax.lax.stop_gradient(hidden)))
        log_sd = nn.Dense(self.num_outputs, name="log_sd")(narrow)
        flat = nn.Dense(self.num_outputs * len(LEVELS), name="quantiles")(narrow)
        steps = flat.reshape(*flat.shape[:-1], self.num_outputs, len(LEVELS))
        return Heads(mean, log_sd, steps, narrow)


def gate(x: jax.Array) -> jax.Array:
    """Compute a smooth rectifier like SiLU, with a root instead of an exponential, which takes longer."""
    return 0.5 * x * (1.0 + x * jax.lax.rsqrt(1.0 + x * x))


def _positive(x: jax.Array) -> jax.Array:
    """Return a smooth positive function, as softplus without an exponential."""
    return 0.5 * (x + jnp.sqrt(x * x + 1.0))


def quantiles(steps: Float[Array, "... level"]) -> Float[Array, "... level"]:
    """Return quantiles of single runs in units of sd about the mean: the median, and positive steps from it."""
    middle = steps[..., _MIDDLE : _MIDDLE + 1]
    above = middle + jnp.cumsum(_positive(steps[..., _MIDDLE + 1 :]), axis=-1)
    down = jnp.cumsum(_positive(steps[..., :_MIDDLE])[..., ::-1], axis=-1)[..., ::-1]
    return jnp.concatenate([middle - down, middle, above], axis=-1)
