"""A small deep ensemble that a search fits again after every batch, in seconds on one core.

Members differ by their start, by the weights of the points (a Bayesian bootstrap), and by a fixed random
function that is added to each (a randomised prior: Osband et al. 2018), so that they part where there
are no points. All sizes are padded to powers of two: a search compiles a handful of programs.
"""

from __future__ import annotations

from typing import Any, NamedTuple

import flax.linen as nn
import jax
import jax.numpy as jnp
import numpy as np
import optax

MEMBERS = 8
WIDTH = 48
STEPS = 400
RATE = 0.01
PRIOR = 0.3  # size of the random function, in standard deviations of a target
DECAY = 1e-3
DESCENT_STEPS = 60
DESCENT_RATE = 0.03
LEAST_POINTS = 64
EXCESS_SCALE = 5.0  # of the unit of excesses, in that of objectives: they vary far more


class _Network(nn.Module):
    num_outputs: int

    @nn.compact
    def __call__(self, features: jax.Array) -> jax.Array:
        """Return `[…, output]` of features `[…, feature]` in the unit cube."""
        hidden = 2.0 * features - 1.0
        for _ in range(2):
            hidden = nn.silu(nn.Dense(WIDTH)(hidden))
        return nn.Dense(self.num_outputs)(hidden)


def _outputs(network: nn.Module, params: Any, features: jax.Array) -> jax.Array:
    outputs: Any = network.apply(params, features)
    return jnp.asarray(outputs)


class OnlineEnsemble(NamedTuple):
    """Fitted members; every leaf has the members as its first axis."""

    trained: Any
    prior: Any
    centre: jax.Array  # [output], of the targets
    spread: jax.Array  # [output]


def fit(features: np.ndarray, targets: np.ndarray, seed: int) -> OnlineEnsemble:
    """Fit an ensemble to targets `[point, output]` at features `[point, feature]`."""
    count, num_outputs = targets.shape
    size = max(LEAST_POINTS, 1 << (count - 1).bit_length())
    centre = targets.mean(axis=0)
    spread = np.maximum(targets.std(axis=0), 1e-6)
    padded = np.zeros((size, features.shape[1]), np.float32)
    padded[:count] = features
    wanted = np.zeros((size, num_outputs), np.float32)
    wanted[:count] = (targets - centre) / spread
    weights = np.zeros((MEMBERS, size), np.float32)
    random = np.random.default_rng([seed, count])
    weights[:, :count] = random.exponential(size=(MEMBERS, count))
    weights /= weights.sum(axis=1, keepdims=True)
    keys = jax.random.split(jax.random.key(seed), MEMBERS)
    trained, prior = _fitted(keys, jnp.asarray(padded), jnp.asarray(wanted), jnp.asarray(weights))
    return OnlineEnsemble(
        trained, prior, jnp.asarray(centre, jnp.float32), jnp.asarray(spread, jnp.float32)
    )


@jax.jit
def _fitted(
    keys: jax.Array, features: jax.Array, targets: jax.Array, weights: jax.Array
) -> tuple[Any, Any]:
    """Return members `[member, …]`, trained side by side on weighted points."""
    network = _Network(targets.shape[1])
    optimizer = optax.adamw(optax.cosine_decay_schedule(RATE, STEPS, 0.02), weight_decay=DECAY)

    def train_member(key: jax.Array, weight: jax.Array) -> tuple[Any, Any]:
        """Train one member, from its own start and on its own weights."""
        first, second = jax.random.split(key)
        start, prior = network.init(first, features), network.init(second, features)
        offset = PRIOR * _outputs(network, prior, features)

        def loss(params: Any) -> jax.Array:
            errors = _outputs(network, params, features) + offset - targets
            return jnp.sum(weight[:, None] * errors * errors)

        def step(carry: tuple[Any, Any], _: None) -> tuple[tuple[Any, Any], None]:
            params, state = carry
            updates, state = optimizer.update(jax.grad(loss)(params), state, params)
            return (optax.apply_updates(params, updates), state), None

        (params, _), _ = jax.lax.scan(step, (start, optimizer.init(start)), None, length=STEPS)
        return params, prior

    return jax.vmap(train_member)(keys, weights)


def predict(ensemble: OnlineEnsemble, features: np.ndarray) -> np.ndarray:
    """Predict targets `[member, point, output]` at features, by each member."""
    count = len(features)
    size = max(LEAST_POINTS, 1 << (count - 1).bit_length())
    padded = np.zeros((size, features.shape[1]), np.float32)
    padded[:count] = features
    return np.asarray(_predicted(ensemble, jnp.asarray(padded)))[:, :count]


@jax.jit
def _predicted(ensemble: OnlineEnsemble, features: jax.Array) -> jax.Array:
    return jax.vmap(lambda trained, prior: _value(trained, prior, ensemble, features))(
        ensemble.trained, ensemble.prior
    )


def _value(trained: Any, prior: Any, ensemble: OnlineEnsemble, features: jax.Array) -> jax.Array:
    """Return one member's targets `[point, output]`."""
    network = _Network(ensemble.centre.shape[0])
    scaled = _outputs(network, trained, features) + PRIOR * _outputs(network, prior, features)
    return scaled * ensemble.spread + ensemble.centre


def merged(outputs: Any, errors: Any = None) -> Any:
    """Return the logarithm of one plus the compressed score of outputs `[…, output]`.

    The first output is `log1p` of an objective, the others `arcsinh` of excesses over constraints in units of
    EXCESS_SCALE, and only positive excesses count. With `errors` `[excess]`, their standard errors in the same units,
    the expected positive parts of the true excesses count.
    """
    objective = jnp.maximum(jnp.expm1(jnp.clip(outputs[..., 0], -5.0, 20.0)), 0.0)
    excesses = jnp.sinh(jnp.clip(outputs[..., 1:], -20.0, 20.0))
    if errors is None:
        amounts = jnp.maximum(excesses, 0.0)
    else:
        errors = jnp.broadcast_to(jnp.asarray(errors, excesses.dtype), excesses.shape)
        z = excesses / errors
        amounts = excesses * jax.scipy.special.ndtr(z) + errors * jax.scipy.stats.norm.pdf(z)
    total = objective + EXCESS_SCALE * amounts.sum(axis=-1)
    return jnp.log1p(total) + jnp.minimum(outputs[..., 0], 0.0)


def descend(
    ensemble: OnlineEnsemble,
    starts: np.ndarray,
    is_free: np.ndarray,
    errors: np.ndarray | None = None,
) -> tuple[np.ndarray, np.ndarray]:
    """Descend every member's `merged` from its starts; return the ends `[member, start, feature]` and their values.

    Features that are not free, by `is_free[member, start, feature]`, stay; the others stay in the unit cube. If the
    number of starts changes between calls, the descent is compiled again.
    """
    points, values = _descended(
        ensemble, jnp.asarray(starts, jnp.float32), jnp.asarray(is_free, jnp.float32), errors
    )
    return np.asarray(points), np.asarray(values)


@jax.jit
def _descended(
    ensemble: OnlineEnsemble, starts: jax.Array, is_free: jax.Array, errors: jax.Array | None
) -> tuple[jax.Array, jax.Array]:
    optimizer = optax.adam(optax.cosine_decay_schedule(DESCENT_RATE, DESCENT_STEPS, 0.1))

    def descend(
        trained: Any, prior: Any, first: jax.Array, free: jax.Array
    ) -> tuple[jax.Array, jax.Array]:
        """Descend one member from its start."""

        def worth(points: jax.Array) -> jax.Array:
            return merged(_value(trained, prior, ensemble, points), errors)

        def step(carry: tuple[jax.Array, Any], _: None) -> tuple[tuple[jax.Array, Any], None]:
            points, state = carry
            slopes = jax.grad(lambda each: worth(each).sum())(points) * free
            updates, state = optimizer.update(slopes, state, points)
            return (jnp.clip(points + updates, 0.0, 1.0), state), None

        (points, _), _ = jax.lax.scan(
            step, (first, optimizer.init(first)), None, length=DESCENT_STEPS
        )
        return points, worth(points)

    return jax.vmap(descend)(ensemble.trained, ensemble.prior, starts, is_free)
