"""Fits a deep ensemble: networks from different starts, each with its own order of the points."""

from __future__ import annotations

import functools
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
import optax

from surrogate.fitting.model import LEVELS, Heads, Network, quantiles

EPOCHS_PER_CALL = 25
LOG_SD_RANGE = (-7.0, 4.0)


@dataclass(frozen=True)
class Settings:
    """How an ensemble is fitted."""

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
    """The network of every member."""
    return Network(num_outputs, settings.width, settings.depth)


def epochs_of(settings: Settings, num_points: int) -> int:
    """Passes over the points, so that small and large sets get as many steps."""
    wanted = -(-settings.steps // _batches(settings, num_points))
    return -(-wanted // EPOCHS_PER_CALL) * EPOCHS_PER_CALL


def init(settings: Settings, samples: Samples) -> FitState:
    """Fresh members."""
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
    """Trains from `state`, or afresh, to the end; `on_call` gets what there is, and the loss."""
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
    """Some passes over the points by every member."""
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
