"""Small monotone networks on what the step law leaves: a latency model that `blis-jax calibrate --residual` fits.

The law of a step has three parts that rise with a batch: what its rows take, what reading contexts takes, and the whole
of a step with a prompt. Each goes through a network of its own, which may only rise, and which leaves both ends
of its data where they are. So a fit is positive and rises with tokens and requests, it is the step law
itself outside the data, and it errs to neither side on the whole. A continuous correction that is monotone in several
sizes at once and 0 beyond each of them can only be such a sum. A network for each draw of the law is the ensemble.
"""

from __future__ import annotations

import functools
from typing import TYPE_CHECKING, Any, NamedTuple

import flax.linen as nn
import jax
import jax.numpy as jnp
import numpy as np
import optax

from blis_jax.core.exact import exact_product
from blis_jax.core.views import StepBatch
from blis_jax.latency.contract import BentLaw
from blis_jax.latency.step_law import (
    LEAST_US,
    OF_CONTEXT,
    OF_ROWS,
    TERMS,
    StepSums,
    after_steps,
    sums_of,
    time_of_context,
    time_of_prompts,
    time_of_rows,
)

if TYPE_CHECKING:
    from collections.abc import Callable
    from types import ModuleType

    from jaxtyping import Array, Float

    from blis_jax.core.arrays import Number

PARTS = ("rows", "contexts", "steps with prompts")
ROWS, CONTEXTS, PROMPTS = range(len(PARTS))
UNITS = 6
STEPS, LEARNING_RATE = 400, 0.03  # of gradients
STIFFNESS, GRID = 1e-3, 25  # what squared logarithms of slopes cost, seen at so many places
LEAST_ERROR = 0.003  # below which a relative error counts as a square, as in the law's fit
LEAST_SAMPLES = 20  # of a part
PAD = 512  # samples come in multiples of it, so that few programs are compiled
IS_PROMPT, NUM_STEPS = TERMS.index("µs per step with a prompt"), TERMS.index("µs per step")


class Bend(NamedTuple):
    """A rising function of a part's time in µs, which changes it only between `low` and `low + width`."""

    low: Number
    width: Number  # 0: the part is left alone
    straight: Number  # slope between the units
    heights: jax.Array | np.ndarray  # [unit]
    starts: jax.Array | np.ndarray  # [unit], from the low end
    slopes: jax.Array | np.ndarray  # [unit], 1 ÷ the width over which a unit rises


COEFFICIENTS = tuple(
    f"{what}, {part}"
    for part in PARTS
    for what in (
        "µs where the network of the time begins", "µs over which it goes", "slope between its units",
        *(f"µs that unit {unit} adds" for unit in range(UNITS)),
        *(f"µs at which unit {unit} begins to rise" for unit in range(UNITS)),
        *(f"1 ÷ µs over which unit {unit} rises" for unit in range(UNITS)),
    )
)  # fmt: skip
PER_PART = len(COEFFICIENTS) // len(PARTS)


class Network(nn.Module):
    """A layer of clipped units with positive weights beside a straight line; it rises from 0 to 1 on 0 … 1."""

    units: int = UNITS

    @nn.compact
    def __call__(self) -> tuple[jax.Array, ...]:
        """Return the slope, and the units' heights, starts and slopes, such that 0 maps to 0 and 1 to 1."""

        def spread(key: jax.Array, shape: tuple[int, ...]) -> jax.Array:
            """Draw starts of units all over the range."""
            first = jnp.linspace(0.0, 1.0, shape[0], endpoint=False)
            share = first + jax.random.uniform(key, shape) / shape[0]
            return jnp.log(share) - jnp.log1p(-share)

        straight = nn.softplus(self.param("straight", nn.initializers.constant(0.5), ()))
        heights = nn.softplus(self.param("heights", nn.initializers.constant(-3.0), (self.units,)))
        starts = nn.sigmoid(self.param("starts", spread, (self.units,)))
        widths = nn.sigmoid(self.param("widths", nn.initializers.constant(-1.5), (self.units,)))
        slopes = 1.0 / (widths + 0.01)
        end = straight + jnp.sum(heights * jnp.clip((1.0 - starts) * slopes, 0.0, 1.0))
        return straight / end, heights / end, starts, slopes


# --- the latency model ----------------------------------------------------------------------------


def bends_of(beta: jax.Array | np.ndarray) -> list[Bend]:
    """Return the bend of each part from the vector of all coefficients."""
    found = []
    for place in range(len(PARTS)):
        first = len(TERMS) + place * PER_PART
        units = [first + 3 + kind * UNITS for kind in range(3)]
        found.append(
            Bend(*(beta[first + at] for at in range(3)), *(beta[at : at + UNITS] for at in units))
        )
    return found


def bent(bend: Bend, us: Number, xp: ModuleType, product: Callable[[Any, Any], Any]) -> Any:
    """Return the time of a part after its bend, in µs; `us` itself outside the two ends.

    Every operation rises with `us` after rounding too, so that no step is shorter for one token more.
    """
    high = bend.low + bend.width
    way = xp.clip(us - bend.low, 0.0, bend.width)
    total = bend.low + product(bend.straight, way)
    for unit in range(UNITS):
        share = xp.clip(product(way - bend.starts[unit], bend.slopes[unit]), 0.0, 1.0)
        total = total + product(bend.heights[unit], share)
    is_inside = (us > bend.low) & (us < high)
    return xp.where(is_inside, xp.clip(total, bend.low, high), us)


def _after_contexts(
    beta: Float[Array, "coefficient"], sums: StepSums
) -> Callable[[jax.Array], jax.Array]:
    """Return the function from the tokens of all contexts in decode to the time of a step without a prompt."""
    bends, time = bends_of(beta), time_of_context(beta, sums, has_rows=False)
    rows = bent(bends[ROWS], time_of_rows(beta, sums), jnp, exact_product)
    return lambda context: rows + bent(bends[CONTEXTS], time(context), jnp, exact_product)


def _decode_steps(
    beta: Float[Array, "coefficient"], batch: StepBatch
) -> Callable[[jax.Array], jax.Array]:
    sums = sums_of(batch)
    return after_steps(sums, _after_contexts(beta, sums))


def _step_time(beta: Float[Array, "coefficient"], batch: StepBatch) -> jax.Array:
    """Return the step law's time with its parts bent, at least 1 µs."""
    sums = sums_of(batch)
    without = _after_contexts(beta, sums)(sums.context)
    before = time_of_context(beta, sums)(sums.context)
    whole = time_of_prompts(beta, sums, before)
    whole = bent(bends_of(beta)[PROMPTS], whole, jnp, exact_product)
    return jnp.maximum(jnp.where(sums.prompt_tokens > 0, whole, without), LEAST_US)


def _parts(
    terms: Float[np.ndarray, "sample term"], beta: Float[np.ndarray, " term"]
) -> tuple[np.ndarray, ...]:
    """Return each part's time by the law, µs, and whether the sample has a prompt."""
    rows, context = terms[:, OF_ROWS] @ beta[OF_ROWS], terms[:, OF_CONTEXT] @ beta[OF_CONTEXT]
    return rows, context, terms @ beta[: len(TERMS)], terms[:, IS_PROMPT] > 0


def _times(
    beta: Float[np.ndarray, " coefficient"], terms: Float[np.ndarray, "step term"]
) -> Float[np.ndarray, " step"]:
    rows, context, whole, has_prompt = _parts(terms, beta)
    after = [
        bent(bend, us, np, np.multiply)
        for bend, us in zip(bends_of(beta), (rows, context, whole), strict=True)
    ]
    found = np.where(has_prompt, after[PROMPTS], after[ROWS] + after[CONTEXTS])
    return np.maximum(found, LEAST_US)


# --- the fit --------------------------------------------------------------------------------------


class _Samples(NamedTuple):
    """The training data of the networks of one fit of the law."""

    parts: jax.Array  # [part, sample], µs by the law
    has_prompt: jax.Array
    us: jax.Array  # measured
    weights: jax.Array
    low: jax.Array  # [part], the ends of the data
    width: jax.Array


def _further(
    terms: Float[np.ndarray, "sample term"],
    us: Float[np.ndarray, " sample"],
    weights: Float[np.ndarray, "fit sample"],
    beta: Float[np.ndarray, "fit term"],
) -> Float[np.ndarray, "fit number"]:
    """Train the networks of every fit, all at once; the same samples give the same bits."""
    weights = np.where(terms[:, NUM_STEPS] > 1.0, 0.0, weights)  # sums of steps bend otherwise
    fits = [_samples(terms, us, *one) for one in zip(weights, beta, strict=True)]
    with jax.enable_x64(True):
        together = _Samples(*(jnp.asarray(np.stack(arrays)) for arrays in zip(*fits, strict=True)))
        found: np.ndarray = np.asarray(_trained(together))
    return found


def _samples(
    terms: np.ndarray, us: np.ndarray, weights: np.ndarray, beta: np.ndarray
) -> tuple[np.ndarray, ...]:
    """Return the training data of the networks of one fit."""
    *parts, has_prompt = _parts(terms, beta)
    low, width = np.zeros(len(PARTS)), np.zeros(len(PARTS))
    for place, part in enumerate(parts):
        seen = part[(weights > 0) & (has_prompt == (place == PROMPTS))]
        if len(seen) >= LEAST_SAMPLES and seen.max() > seen.min():
            low[place], width[place] = seen.min(), seen.max() - seen.min()
    short = -len(us) % PAD

    def padded(values: np.ndarray, by: float) -> np.ndarray:
        return np.pad(values, (0, short), constant_values=by)

    return (
        np.stack([padded(part, 1.0) for part in parts]), padded(has_prompt, False), padded(us, 1.0),
        padded(weights / max(weights.sum(), 1e-300), 0.0), low, width,
    )  # fmt: skip


@jax.jit
def _trained(samples: _Samples) -> jax.Array:
    keys = jax.random.split(jax.random.key(0), len(samples.us))
    return jax.vmap(_train_one)(keys, samples)


def _train_one(key: jax.Array, samples: _Samples) -> jax.Array:
    network = Network()
    params = jax.vmap(network.init)(jax.random.split(key, len(PARTS)))
    rate = optax.cosine_decay_schedule(LEARNING_RATE, STEPS)
    optimizer = optax.adam(rate)
    loss = functools.partial(_loss, network, samples)

    def step(carry: Any, _: None) -> tuple[Any, None]:
        params, moments = carry
        change, moments = optimizer.update(jax.grad(loss)(params), moments, params)
        return (optax.apply_updates(params, change), moments), None

    (params, _), _ = jax.lax.scan(step, (params, optimizer.init(params)), None, length=STEPS)
    straight, heights, starts, slopes = _shapes(network, params)
    width = samples.width[:, None]
    columns = (
        samples.low[:, None], width, straight[:, None], heights * width, starts * width,
        slopes / jnp.maximum(width, 1e-9),
    )  # fmt: skip
    return jnp.concatenate(columns, axis=1).ravel()


def _loss(network: Network, samples: _Samples, params: Any) -> jax.Array:
    """Return the weighted mean of absolute relative errors, plus the cost of slopes that differ from the law's."""
    shape = _shapes(network, params)
    width = samples.width[:, None]
    share = jnp.clip((samples.parts - samples.low[:, None]) / jnp.maximum(width, 1e-9), 0.0, 1.0)
    rows, contexts, whole = samples.parts + width * (jax.vmap(_path)(share, *shape) - share)
    law = jnp.where(samples.has_prompt, whole, rows + contexts)
    error = jnp.log(jnp.maximum(law, LEAST_US) / samples.us)
    size = jnp.sqrt(jnp.square(error) + LEAST_ERROR**2) - LEAST_ERROR
    grid = jnp.broadcast_to(jnp.linspace(0.0, 1.0, GRID + 1), (len(PARTS), GRID + 1))
    slope = GRID * jnp.diff(jax.vmap(_path)(grid, *shape), axis=1)
    return jnp.sum(samples.weights * size) + STIFFNESS * jnp.mean(jnp.square(jnp.log(slope)))


def _shapes(network: Network, params: Any) -> tuple[jax.Array, ...]:
    """Return the slopes, and the units' heights, starts and slopes, of all parts' networks."""
    found: tuple[jax.Array, ...] = jax.vmap(network.apply)(params)  # type: ignore[assignment]
    return found


def _path(
    share: jax.Array, straight: jax.Array, heights: jax.Array, starts: jax.Array, slopes: jax.Array
) -> jax.Array:
    """Return one network's output for shares of the way through the data, `[sample]`."""
    rise = jnp.clip((share[:, None] - starts[None, :]) * slopes[None, :], 0.0, 1.0)
    return straight * share + rise @ heights


network = BentLaw(
    _step_time,
    (*TERMS, *COEFFICIENTS),
    needs_members=True,
    has_equal_decode_steps=False,
    decode_steps=_decode_steps,
    overhead=None,
    further=_further,
    times=_times,
)
