"""The network of one ensemble member: a common trunk with heads for mean, spread and quantiles."""

from __future__ import annotations

from typing import NamedTuple

import flax.linen as nn
import jax
import jax.numpy as jnp
from jaxtyping import Array, Float

LEVELS = (0.05, 0.25, 0.5, 0.75, 0.95)  # quantiles over single runs
SPREAD_UNITS = 32
_MIDDLE = LEVELS.index(0.5)


class Heads(NamedTuple):
    """What a network says of points, in standard units of each output."""

    mean: Float[Array, "point output"]  # over the seeds
    log_sd: Float[Array, "point output"]  # of single runs
    steps: Float[Array, "point output level"]  # of `quantiles`, before they are made increasing
    narrow: Float[Array, "point unit"]  # what log_sd and steps are linear in


class Network(nn.Module):
    """A perceptron; mean from the trunk, spread and quantiles through a narrow layer."""

    num_outputs: int
    width: int = 64
    depth: int = 3

    @nn.compact
    def __call__(self, features: Float[Array, "point feature"]) -> Heads:
        """The heads at some points."""
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
    """A smooth rectifier like SiLU from a root instead of an exponential, which takes longer."""
    return 0.5 * x * (1.0 + x * jax.lax.rsqrt(1.0 + x * x))


def _positive(x: jax.Array) -> jax.Array:
    """A smooth positive function, as softplus without an exponential."""
    return 0.5 * (x + jnp.sqrt(x * x + 1.0))


def quantiles(steps: Float[Array, "... level"]) -> Float[Array, "... level"]:
    """Quantiles of single runs in units of sd about the mean: the median, and positive steps from it."""
    middle = steps[..., _MIDDLE : _MIDDLE + 1]
    above = middle + jnp.cumsum(_positive(steps[..., _MIDDLE + 1 :]), axis=-1)
    down = jnp.cumsum(_positive(steps[..., :_MIDDLE])[..., ::-1], axis=-1)[..., ::-1]
    return jnp.concatenate([middle - down, middle, above], axis=-1)
