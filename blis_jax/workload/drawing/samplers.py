"""Laws of gaps and lengths: one small pure function each, its numbers in a pytree.

A gap law returns *proposals* and a mask. Only the gamma law rejects any; the accepted ones, in
their order, are independent gaps of exactly that law, so a fixed number of proposals needs no loop.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass, fields
from statistics import NormalDist
from typing import TYPE_CHECKING, Any, ClassVar, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jax import lax
from jax.scipy.special import gammaln

from blis_jax.workload.contents import NO_NODE
from blis_jax.workload.drawing.plan import PlanShape
from blis_jax.workload.table import NO_SESSION

if TYPE_CHECKING:
    from jaxtyping import Array, Bool, Float, Int32, PRNGKeyArray

    from blis_jax.workload.length_laws import LengthLaw

    Number = Any  # numpy on the host, jax inside a trace
    GapProposals = tuple[Float[Array, " proposal"], Bool[Array, " proposal"]]
    from jaxtyping import Array, Bool, Int64


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
        """Return the mean of the law without its clamp, clamped."""
        return float(np.clip(self.mean, self.min, self.max))

    def longest(self, chance: float) -> float:
        """Return what one draw exceeds with at most this probability."""
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
        """Return the mean."""
        return float(self.mean)

    def longest(self, chance: float) -> float:
        """Return what one draw exceeds with at most this probability."""
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
        """Draw lengths before rounding; one that overflows counts as 1 token, as in the reference."""
        key_choice, key_pareto, key_normal = jax.random.split(key, 3)
        pareto = self.xm * jnp.exp(_exponential(key_pareto, num) / self.alpha)
        lognormal = jnp.exp(self.mu + self.sigma * _normal(key_normal, num))
        length = jnp.where(_uniform(key_choice, num) < self.mix_weight, pareto, lognormal)
        return jnp.where(jnp.isfinite(length), length, 1.0)

    def expected(self) -> float:
        """Return the mean, infinite for a Pareto tail of index 1 or less."""
        weight, alpha = float(self.mix_weight), float(self.alpha)
        lognormal = math.exp(min(float(self.mu) + float(self.sigma) ** 2 / 2.0, 700.0))
        if weight == 0.0:
            return lognormal
        pareto = float(self.xm) * alpha / (alpha - 1.0) if alpha > 1.0 else math.inf
        return weight * pareto + (1.0 - weight) * lognormal

    def longest(self, chance: float) -> float:
        """Return a bound of the same: the longer of the quantiles of the two parts."""
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
        """Return the value so many times; `key` is not used."""
        return jnp.full(num, self.value, jnp.float64)

    def expected(self) -> float:
        """Return the value."""
        return float(self.value)

    def longest(self, chance: float) -> float:
        """Return the value."""
        return float(self.value)


@jax.tree_util.register_dataclass
@dataclass(frozen=True)
class Empirical:
    """Token counts in increasing order and the probability of each or a smaller one."""

    name: ClassVar[str] = "empirical"
    values: Float[Number, " bin"]
    cumulative: Float[Number, " bin"]  # ends with 1

    def draw(self, key: PRNGKeyArray, num: int) -> Float[Array, " proposal"]:
        """Draw by inversion of the step function."""
        method = "compare_all" if self.values.size <= 32 else "scan_unrolled"
        bins = jnp.searchsorted(self.cumulative, _uniform(key, num), method=method)
        return self.values[bins]

    def expected(self) -> float:
        """Return the mean."""
        weights = np.diff(np.asarray(self.cumulative), prepend=0.0)
        return float(np.sum(weights * np.asarray(self.values)))

    def longest(self, chance: float) -> float:
        """Return the largest count."""
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
    """Return the numbers of a length law of a specification."""
    if law.type == "empirical":
        bins = sorted((count, weight) for count, weight in law.params.items() if weight > 0)
        cumulative = np.cumsum([weight for _, weight in bins])
        cumulative /= cumulative[-1]
        return Empirical(np.array([count for count, _ in bins], np.float64), cumulative)
    kind = _LENGTH_LAWS[law.type]
    numbers = {each.name: np.float64(getattr(law.params, each.name)) for each in fields(kind)}
    return kind(**numbers)


def whole_tokens(length: Float[Array, " proposal"]) -> Int32[Array, " proposal"]:
    """Round half away from zero, to at least 1."""
    return jnp.clip(jnp.floor(length + 0.5), 1.0, LONGEST_TOKENS).astype(jnp.int32)


def longest_length(law: LengthParams, chance: float) -> int:
    """Return tokens that one draw exceeds with at most this probability."""
    return max(math.floor(min(law.longest(chance), LONGEST_TOKENS) + 0.5), 1)


# --- multi-turn sessions on the device -----------------------------------------------------------


LAST_NODE = np.iinfo(np.int32).max  # sorts behind every node


def round_starts(
    first_us: Int64[Array, " session"],
    output_len: Int32[Array, "session round"],
    think_time_us: Int64[Array, ""],
) -> Int64[Array, "session round"]:
    """Return the arrival of every round: 1 µs per output token and the think time after the one before."""
    gap_us = output_len.astype(jnp.int64) + think_time_us
    return first_us[:, None] + jnp.cumsum(gap_us, axis=1) - gap_us


def accumulated(
    new_len: Int32[Array, "session round"], output_len: Int32[Array, "session round"]
) -> tuple[Int32[Array, "session round"], Int32[Array, "session round"]]:
    """Return the tokens of all earlier rounds, and with the new ones: the context and the prompt."""
    round_len = new_len.astype(jnp.int64) + output_len.astype(jnp.int64)
    context_len = jnp.minimum(jnp.cumsum(round_len, axis=1) - round_len, LONGEST_TOKENS)
    prompt_len = jnp.minimum(context_len + new_len.astype(jnp.int64), LONGEST_TOKENS)
    return context_len.astype(jnp.int32), prompt_len.astype(jnp.int32)


class Draws(NamedTuple):
    """Tokens of all draws without prefixes, and which draws are the rows of the table."""

    context_len: Int32[Array, " draw"]  # of all earlier rounds, 0 without accumulation
    prompt_len: Int32[Array, " draw"]
    draw: Int64[Array, " request"]
    client: Int32[Array, " request"]
    is_request: Bool[Array, " request"]


class SessionRows(NamedTuple):
    """The part of the table that sessions determine; nodes follow those of the prefix groups."""

    session: Int32[Array, " request"]  # numbered by first appearance
    round_index: Int32[Array, " request"]
    first_alike: Int32[Array, " request"]  # first row with the same last full prompt block
    path_nodes: Int32[Array, "request depth"]
    node_start: Int32[Array, " session_node"]
    node_blocks: Int32[Array, " session_node"]


def no_sessions(shape: PlanShape) -> SessionRows:
    """Return the rows of single-turn requests only."""
    num, nothing = shape.num_requests, jnp.zeros(0, jnp.int32)
    path = jnp.full((num, shape.path_depth), NO_NODE, jnp.int32)
    rows = jnp.arange(num, dtype=jnp.int32)
    return SessionRows(jnp.full(num, NO_SESSION, jnp.int32), rows * 0, rows, path, nothing, nothing)


def session_rows(shape: PlanShape, draws: Draws) -> SessionRows:
    """Return the sessions of the rows, and the contents that the rounds of one session share."""
    num = shape.num_requests
    sizes = [client.num_draws for client in shape.clients]
    first_of_client = jnp.asarray(np.cumsum([0, *sizes[:-1]]), jnp.int64)[draws.client]
    num_rounds = jnp.asarray([client.num_rounds for client in shape.clients], jnp.int32)
    num_rounds = num_rounds[draws.client]
    is_session = jnp.asarray([client.session_rounds > 0 for client in shape.clients])
    is_session = is_session[draws.client] & draws.is_request
    place = draws.draw - first_of_client
    round_index = jnp.where(is_session, (place % num_rounds.astype(jnp.int64)), 0)
    first_draw = draws.draw - round_index
    round_index = round_index.astype(jnp.int32)

    target = jnp.where(draws.is_request, draws.draw, shape.num_draws)
    row_of_draw = jnp.full(shape.num_draws, num, jnp.int32)
    row_of_draw = row_of_draw.at[target].set(jnp.arange(num, dtype=jnp.int32), mode="drop")
    number = jnp.cumsum((is_session & (round_index == 0)).astype(jnp.int32)) - 1
    session = jnp.where(is_session, number[row_of_draw[first_draw]], NO_SESSION)
    plain = no_sessions(shape)._replace(session=session, round_index=round_index)
    if not shape.has_shared_outputs:
        return plain
    grows = jnp.asarray([client.is_accumulating for client in shape.clients])[draws.client]
    turn = lax.iota(jnp.int32, shape.accumulated_rounds)[None, :]
    drawn = jnp.minimum(first_draw[:, None] + turn.astype(jnp.int64), shape.num_draws - 1)
    is_round = (is_session & grows)[:, None] & (turn < num_rounds[:, None])
    row_of_round = jnp.where(is_round, row_of_draw[drawn], num)
    return _with_nodes(shape, draws, plain, row_of_round)


def _with_nodes(
    shape: PlanShape, draws: Draws, plain: SessionRows, row_of_round: Int32[Array, "request round"]
) -> SessionRows:
    """Nodes, paths and equal prompts, from the rows of each row's session; absent ones count all."""
    num, own_round = shape.num_requests, plain.round_index[:, None]
    has_previous = (row_of_round[:, 0] < num) & (plain.round_index > 0)
    previous = jnp.maximum(draws.draw - 1, 0)
    begin = draws.context_len[previous] // shape.block_size
    prompt_end = draws.prompt_len[previous] // shape.block_size
    end = draws.context_len[draws.draw] // shape.block_size
    start = jnp.stack([begin, prompt_end], axis=1)
    blocks = jnp.where(has_previous[:, None], jnp.stack([prompt_end, end], axis=1) - start, 0)
    number = 2 * (jnp.cumsum(has_previous.astype(jnp.int32)) - 1)
    node = number[:, None] + lax.iota(jnp.int32, 2)[None, :]
    target = jnp.where(has_previous[:, None], node, shape.num_session_nodes)
    nothing = jnp.zeros(shape.num_session_nodes, jnp.int32)

    # a round holds what it and the rounds before it have in common with the round after each
    turn = lax.iota(jnp.int32, row_of_round.shape[1])[None, :]
    row = jnp.minimum(row_of_round, num - 1)
    is_held = (row_of_round < num) & (turn <= own_round + 1) & (turn > 0)
    is_held = is_held[:, 1:, None] & (blocks[row[:, 1:]] > 0)
    path = jnp.where(is_held, node[row[:, 1:]] + shape.num_groups, LAST_NODE).reshape(num, -1)
    path = jnp.sort(path, axis=1)  # later rounds have later nodes; empty ones go to the end

    own_end = draws.prompt_len[draws.draw] // shape.block_size
    is_alike = has_previous & (own_end == prompt_end) & (own_end > 0)
    begins = ~is_alike[row] & (turn <= own_round)
    first = jnp.max(jnp.where(begins, turn, 0), axis=1, keepdims=True)
    first_alike = jnp.take_along_axis(row_of_round, first, axis=1)[:, 0]
    return plain._replace(
        first_alike=jnp.where(row_of_round[:, 0] < num, first_alike, plain.first_alike),
        path_nodes=jnp.where(path == LAST_NODE, NO_NODE, path),
        node_start=nothing.at[target].set(start, mode="drop"),
        node_blocks=nothing.at[target].set(blocks, mode="drop"),
    )
