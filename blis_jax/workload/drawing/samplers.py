"""Laws of gaps and lengths: one small pure function each, its numbers in a pytree.

A gap law returns *proposals* and a mask. Only the gamma law rejects any; the accepted ones, in
their order, are independent gaps of exactly that law, so a fixed number of proposals needs no loop.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, cast

import jax
import jax.numpy as jnp
import numpy as np
from jax.scipy.special import gammaln

from blis_jax.workload.lengths.laws import LengthLaw

if TYPE_CHECKING:
    from jaxtyping import Array, Bool, Float, Int32, PRNGKeyArray

    Number = Any  # numpy on the host, jax inside a trace

LONGEST_TOKENS = 2**30  # no KV cache holds as many: such a request is dropped all the same
GAMMA_ACCEPTANCE = 0.95  # least acceptance rate of the gamma proposals, at shape 1

GapProposals = tuple["Float[Array, ' proposal']", "Bool[Array, ' proposal']"]


def _exponential(key: PRNGKeyArray, num: int) -> Float[Array, " proposal"]:
    return jax.random.exponential(key, (num,), jnp.float64)


def _normal(key: PRNGKeyArray, num: int) -> Float[Array, " proposal"]:
    return jax.random.normal(key, (num,), jnp.float64)


def _uniform(key: PRNGKeyArray, num: int) -> Float[Array, " proposal"]:
    return jax.random.uniform(key, (num,), jnp.float64)


def poisson_gaps(
    key: PRNGKeyArray, num: int, mean_us: Float[Array, ""], shape: Float[Array, ""]
) -> GapProposals:
    """Exponential gaps; `shape` is not used."""
    return _exponential(key, num) * mean_us, jnp.ones(num, bool)


def constant_gaps(
    key: PRNGKeyArray, num: int, mean_us: Float[Array, ""], shape: Float[Array, ""]
) -> GapProposals:
    """Equal gaps; `key` and `shape` are not used."""
    return jnp.full(num, mean_us, jnp.float64), jnp.ones(num, bool)


def weibull_gaps(
    key: PRNGKeyArray, num: int, mean_us: Float[Array, ""], shape: Float[Array, ""]
) -> GapProposals:
    """Weibull gaps by inversion of the distribution function."""
    scale_us = mean_us * jnp.exp(-gammaln(1.0 + 1.0 / shape))
    return _exponential(key, num) ** (1.0 / shape) * scale_us, jnp.ones(num, bool)


def gamma_gaps(
    key: PRNGKeyArray, num: int, mean_us: Float[Array, ""], shape: Float[Array, ""]
) -> GapProposals:
    """Gamma gaps by the rejection method of Marsaglia and Tsang (ACM TOMS 26, 2000).

    A shape below 1 is drawn as shape + 1 times a power of a uniform number (their section 6).
    """
    key_normal, key_accept, key_boost = jax.random.split(key, 3)
    is_boosted = shape < 1.0
    drawn_shape = jnp.where(is_boosted, shape + 1.0, shape)
    centre = drawn_shape - 1.0 / 3.0
    normal = _normal(key_normal, num)
    root = 1.0 + normal / jnp.sqrt(9.0 * centre)
    is_positive = root > 0.0
    cube = jnp.where(is_positive, root, 1.0) ** 3
    log_density_ratio = 0.5 * normal * normal + centre * (1.0 - cube + jnp.log(cube))
    is_accepted = is_positive & (-_exponential(key_accept, num) < log_density_ratio)
    boost = jnp.where(is_boosted, jnp.exp(-_exponential(key_boost, num) / shape), 1.0)
    return centre * cube * boost * (mean_us / shape), is_accepted


@jax.tree_util.register_dataclass
@dataclass(frozen=True)
class Gaussian:
    """Numbers of a clamped gaussian length, in tokens."""

    mean: Float[Number, ""]
    std_dev: Float[Number, ""]
    min: Float[Number, ""]
    max: Float[Number, ""]


def gaussian_lengths(key: PRNGKeyArray, num: int, params: Gaussian) -> Float[Array, " proposal"]:
    """Clamped to [min, max]; rounding comes last."""
    return jnp.clip(params.mean + params.std_dev * _normal(key, num), params.min, params.max)


@jax.tree_util.register_dataclass
@dataclass(frozen=True)
class Exponential:
    """Number of an exponential length, in tokens."""

    mean: Float[Number, ""]


def exponential_lengths(
    key: PRNGKeyArray, num: int, params: Exponential
) -> Float[Array, " proposal"]:
    """Exponential with the given mean."""
    return params.mean * _exponential(key, num)


@jax.tree_util.register_dataclass
@dataclass(frozen=True)
class ParetoLognormal:
    """Numbers of a Pareto value with probability mix_weight, else a lognormal one."""

    alpha: Float[Number, ""]  # tail index
    xm: Float[Number, ""]  # least Pareto value, tokens
    mu: Float[Number, ""]
    sigma: Float[Number, ""]
    mix_weight: Float[Number, ""]


def pareto_lognormal_lengths(
    key: PRNGKeyArray, num: int, params: ParetoLognormal
) -> Float[Array, " proposal"]:
    """Mixture of two heavy tails; a value that overflows counts as 1 token, as in the reference."""
    key_choice, key_pareto, key_normal = jax.random.split(key, 3)
    pareto = params.xm * jnp.exp(_exponential(key_pareto, num) / params.alpha)
    lognormal = jnp.exp(params.mu + params.sigma * _normal(key_normal, num))
    length = jnp.where(_uniform(key_choice, num) < params.mix_weight, pareto, lognormal)
    return jnp.where(jnp.isfinite(length), length, 1.0)


@jax.tree_util.register_dataclass
@dataclass(frozen=True)
class Constant:
    """Number of a fixed length, in tokens."""

    value: Float[Number, ""]


def constant_lengths(key: PRNGKeyArray, num: int, params: Constant) -> Float[Array, " proposal"]:
    """Always the same; `key` is not used."""
    return jnp.full(num, params.value, jnp.float64)


@jax.tree_util.register_dataclass
@dataclass(frozen=True)
class Empirical:
    """Token counts in increasing order and the probability of each or a smaller one."""

    values: Float[Number, " bin"]
    cumulative: Float[Number, " bin"]  # ends with 1


def empirical_lengths(key: PRNGKeyArray, num: int, params: Empirical) -> Float[Array, " proposal"]:
    """Inversion of the step function."""
    method = "compare_all" if params.values.size <= 32 else "scan_unrolled"
    bins = jnp.searchsorted(params.cumulative, _uniform(key, num), method=method)
    return params.values[bins]


LengthParams = Gaussian | Exponential | ParetoLognormal | Constant | Empirical

GAP_LAWS: dict[str, Callable[..., GapProposals]] = {
    "poisson": poisson_gaps,
    "gamma": gamma_gaps,
    "weibull": weibull_gaps,
    "constant": constant_gaps,
}
LENGTH_LAWS: dict[str, Callable[..., Float[Array, " proposal"]]] = {
    "gaussian": gaussian_lengths,
    "exponential": exponential_lengths,
    "pareto_lognormal": pareto_lognormal_lengths,
    "constant": constant_lengths,
    "empirical": empirical_lengths,
}


LAW_NAMES: dict[type, str] = {
    Gaussian: "gaussian",
    Exponential: "exponential",
    ParetoLognormal: "pareto_lognormal",
    Constant: "constant",
    Empirical: "empirical",
}


def law_name(params: LengthParams) -> str:
    """Key of the law in LENGTH_LAWS."""
    return LAW_NAMES[type(params)]


def draw_lengths(key: PRNGKeyArray, num: int, params: LengthParams) -> Float[Array, " proposal"]:
    """Lengths of the law that the numbers belong to."""
    return LENGTH_LAWS[law_name(params)](key, num, params)


def length_params(law: LengthLaw) -> LengthParams:
    """The numbers of a length law of a specification."""
    if law.type == "empirical":
        bins = sorted((count, weight) for count, weight in law.params.items() if weight > 0)
        cumulative = np.cumsum([weight for _, weight in bins])
        cumulative /= cumulative[-1]
        return Empirical(np.array([count for count, _ in bins], np.float64), cumulative)
    kind: Any = {name: kind for kind, name in LAW_NAMES.items()}[law.type]
    fields = kind.__dataclass_fields__
    return cast("LengthParams", kind(**{f: np.float64(getattr(law.params, f)) for f in fields}))


def whole_tokens(length: Float[Array, " proposal"]) -> Int32[Array, " proposal"]:
    """Rounded half away from zero, at least 1."""
    return jnp.clip(jnp.floor(length + 0.5), 1.0, LONGEST_TOKENS).astype(jnp.int32)
