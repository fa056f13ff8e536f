"""Laws of gaps and lengths: one small pure function each, with the numbers in a pytree.

A gap law returns *proposals* and a mask. Only the gamma law rejects proposals; its accepted proposals, in order, are
independent gaps of exactly that law, so a fixed number of proposals needs no loop.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass, fields
from statistics import NormalDist
from typing import TYPE_CHECKING, Any, ClassVar

import jax
import jax.numpy as jnp
import numpy as np
from jax.scipy.special import gammaln

if TYPE_CHECKING:
    from jaxtyping import Array, Bool, Float, Int32, PRNGKeyArray

    from blis_jax.workload.length_laws import LengthLaw

    Number = Any  # numpy on the host, jax inside a trace
    GapProposals = tuple[Float[Array, " proposal"], Bool[Array, " proposal"]]


LONGEST_TOKENS = 2**30  # no KV cache holds as many: such a request is dropped all the same
GAMMA_ACCEPTANCE = 0.95  # least acceptance rate of the gamma proposals, at shape 1


def _exponential(key: PRNGKeyArray, num: int) -> Float[Array, " proposal"]:
    return jax.random.exponential(key, (num,), jnp.float64)


def _normal(key: PRNGKeyArray, num: int) -> Float[Array, " proposal"]:
    return jax.random.normal(key, (num,), jnp.float64)


def _uniform(key: PRNGKeyArray, num: int) -> Float[Array, " proposal"]:
    return jax.random.uniform(key, (num,), jnp.float64)


def poisson_gaps(
    key: PRNGKeyArray, num: int, mean_us: Float[Array, ""], shape: Float[Array, ""]
) -> GapProposals:
    """Draw exponential gaps; `shape` is not used."""
    return _exponential(key, num) * mean_us, jnp.ones(num, bool)


def constant_gaps(
    key: PRNGKeyArray, num: int, mean_us: Float[Array, ""], shape: Float[Array, ""]
) -> GapProposals:
    """Return equal gaps; `key` and `shape` are not used."""
    return jnp.full(num, mean_us, jnp.float64), jnp.ones(num, bool)


def weibull_gaps(
    key: PRNGKeyArray, num: int, mean_us: Float[Array, ""], shape: Float[Array, ""]
) -> GapProposals:
    """Draw Weibull gaps by inversion of the distribution function."""
    scale_us = mean_us * jnp.exp(-gammaln(1.0 + 1.0 / shape))
    return _exponential(key, num) ** (1.0 / shape) * scale_us, jnp.ones(num, bool)


def gamma_gaps(
    key: PRNGKeyArray, num: int, mean_us: Float[Array, ""], shape: Float[Array, ""]
) -> GapProposals:
    """Draw gamma gaps by the rejection method of Marsaglia and Tsang (ACM TOMS 26, 2000).

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
    """A gaussian length, in tokens, clamped to [min, max]."""

    name: ClassVar[str] = "gaussian"
    mean: Float[Number, ""]
    std_dev: Float[Number, ""]
    min: Float[Number, ""]
    max: Float[Number, ""]

    def draw(self, key: PRNGKeyArray, num: int) -> Float[Array, " proposal"]:
        """Draw clamped lengths; rounding comes last."""
        return jnp.clip(self.mean + self.std_dev * _normal(key, num), self.min, self.max)

    def expected(self) -> float:
        """Return the mean of the unclamped law, clamped to its bounds."""
        return float(np.clip(self.mean, self.min, self.max))

    def longest(self, chance: float) -> float:
        """Return a length that one draw exceeds with at most the probability `chance`."""
        likely = self.mean - self.std_dev * NormalDist().inv_cdf(chance)
        return float(np.clip(likely, self.min, self.max))


@jax.tree_util.register_dataclass
@dataclass(frozen=True)
class Exponential:
    """An exponential length, in tokens."""

    name: ClassVar[str] = "exponential"
    mean: Float[Number, ""]

    def draw(self, key: PRNGKeyArray, num: int) -> Float[Array, " proposal"]:
        """Draw lengths before rounding."""
        return self.mean * _exponential(key, num)

    def expected(self) -> float:
        """Return the law's mean."""
        return float(self.mean)

    def longest(self, chance: float) -> float:
        """Return a length that one draw exceeds with at most the probability `chance`."""
        return -float(self.mean) * math.log(chance)


@jax.tree_util.register_dataclass
@dataclass(frozen=True)
class ParetoLognormal:
    """A Pareto value with probability mix_weight, else a lognormal one."""

    name: ClassVar[str] = "pareto_lognormal"
    alpha: Float[Number, ""]  # tail index
    xm: Float[Number, ""]  # least Pareto value, tokens
    mu: Float[Number, ""]
    sigma: Float[Number, ""]
    mix_weight: Float[Number, ""]

    def draw(self, key: PRNGKeyArray, num: int) -> Float[Array, " proposal"]:
        """Draw lengths before rounding; a length that overflows becomes 1 token, as in the reference."""
        key_choice, key_pareto, key_normal = jax.random.split(key, 3)
        pareto = self.xm * jnp.exp(_exponential(key_pareto, num) / self.alpha)
        lognormal = jnp.exp(self.mu + self.sigma * _normal(key_normal, num))
        length = jnp.where(_uniform(key_choice, num) < self.mix_weight, pareto, lognormal)
        return jnp.where(jnp.isfinite(length), length, 1.0)

    def expected(self) -> float:
        """Return the law's mean; infinity for a Pareto tail of index 1 or less."""
        weight, alpha = float(self.mix_weight), float(self.alpha)
        lognormal = math.exp(min(float(self.mu) + float(self.sigma) ** 2 / 2.0, 700.0))
        if weight == 0.0:
            return lognormal
        pareto = float(self.xm) * alpha / (alpha - 1.0) if alpha > 1.0 else math.inf
        return weight * pareto + (1.0 - weight) * lognormal

    def longest(self, chance: float) -> float:
        """Return a length that a draw exceeds with at most probability `chance`: the larger of its parts' quantiles."""
        log_longest = []
        if self.mix_weight > 0.0:
            log_longest.append(math.log(float(self.xm)) - math.log(chance) / float(self.alpha))
        if self.mix_weight < 1.0:
            deviations = -NormalDist().inv_cdf(chance)
            log_longest.append(float(self.mu) + float(self.sigma) * deviations)
        return math.exp(min(max(log_longest), 700.0))


@jax.tree_util.register_dataclass
@dataclass(frozen=True)
class Constant:
    """A fixed length, in tokens."""

    name: ClassVar[str] = "constant"
    value: Float[Number, ""]

    def draw(self, key: PRNGKeyArray, num: int) -> Float[Array, " proposal"]:
        """Return `num` copies of the fixed length; `key` is not used."""
        return jnp.full(num, self.value, jnp.float64)

    def expected(self) -> float:
        """Return the fixed length."""
        return float(self.value)

    def longest(self, chance: float) -> float:
        """Return the fixed length."""
        return float(self.value)


@jax.tree_util.register_dataclass
@dataclass(frozen=True)
class Empirical:
    """Token counts in rising order, and their cumulative probabilities."""

    name: ClassVar[str] = "empirical"
    values: Float[Number, " bin"]
    cumulative: Float[Number, " bin"]  # ends with 1

    def draw(self, key: PRNGKeyArray, num: int) -> Float[Array, " proposal"]:
        """Draw by inverting the cumulative distribution."""
        method = "compare_all" if self.values.size <= 32 else "scan_unrolled"
        bins = jnp.searchsorted(self.cumulative, _uniform(key, num), method=method)
        return self.values[bins]

    def expected(self) -> float:
        """Return the law's mean."""
        weights = np.diff(np.asarray(self.cumulative), prepend=0.0)
        return float(np.sum(weights * np.asarray(self.values)))

    def longest(self, chance: float) -> float:
        """Return the largest token count."""
        return float(np.max(self.values))


LengthParams = Gaussian | Exponential | ParetoLognormal | Constant | Empirical

GAP_LAWS: dict[str, Callable[..., GapProposals]] = {
    "poisson": poisson_gaps,
    "gamma": gamma_gaps,
    "weibull": weibull_gaps,
    "constant": constant_gaps,
}
_LENGTH_LAWS = {
    kind.name: kind for kind in (Gaussian, Exponential, ParetoLognormal, Constant, Empirical)
}


def length_params(law: LengthLaw) -> LengthParams:
    """Return the numbers of a specification's length law."""
    if law.type == "empirical":
        bins = sorted((count, weight) for count, weight in law.params.items() if weight > 0)
        cumulative = np.cumsum([weight for _, weight in bins])
        cumulative /= cumulative[-1]
        return Empirical(np.array([count for count, _ in bins], np.float64), cumulative)
    kind = _LENGTH_LAWS[law.type]
    numbers = {each.name: np.float64(getattr(law.params, each.name)) for each in fields(kind)}
    return kind(**numbers)


def whole_tokens(length: Float[Array, " proposal"]) -> Int32[Array, " proposal"]:
    """Return lengths rounded to whole tokens, halves away from zero, and at least 1."""
    return jnp.clip(jnp.floor(length + 0.5), 1.0, LONGEST_TOKENS).astype(jnp.int32)


def longest_length(law: LengthParams, chance: float) -> int:
    """Return a number of tokens that one draw exceeds with at most the probability `chance`."""
    return max(math.floor(min(law.longest(chance), LONGEST_TOKENS) + 0.5), 1)
