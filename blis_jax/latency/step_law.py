"""`step-law`: the time of a step as terms of physics with regimes, fitted to measured steps. Ours.

The law is linear in its coefficients, none of which is negative, and no term falls when a batch gets more tokens.
So every fit is positive and monotone, goes on straight beyond its data, and its sum over several
steps is the sum of their times.
"""

from __future__ import annotations

from itertools import pairwise
from typing import TYPE_CHECKING, Any, NamedTuple

from blis_jax.core.views import StepBatch
from blis_jax.latency.contract import latency_model
from blis_jax.lazy import jax, jnp

if TYPE_CHECKING:
    from types import ModuleType

    from jaxtyping import Array, Float

ROWS = (0, 1, 2, 4, 8, 16, 24, 32, 64, 128)  # of captured graphs, between which their cost bends
CAPTURED = (
    0,
    64,
    128,
    256,
    384,
    512,
)  # tokens of a step with a prompt that may run in a captured graph
EAGER = (0, 512, 1536, 2560, 3584, 5632, 7680)  # tokens beyond the last of these, without one
SHORT_CONTEXTS = (2000, 8000)  # tokens of a request beyond which sparse attention reads no more
FULL_WAVE = (
    16  # rows from which one block of threads has a whole context, so that the longest decides
)
MOST_SPREAD = 3.0  # deviations above the mean at which the longest context is taken to be
LEAST_US = 1.0


class StepSums(NamedTuple):
    """What the law sees of a batch: float64, one number or one of each step."""

    prompts: Any  # requests in prefill
    prompt_tokens: Any  # computed in this step
    cached_tokens: Any  # of these requests, computed before
    decodes: Any  # requests in decode
    context: Any  # tokens of their contexts
    spread: Any  # standard deviation of these contexts


def _between(name: str, ends: tuple[int, ...]) -> tuple[str, ...]:
    inner = tuple(f"{name}, {low} to {high}" for low, high in pairwise(ends))
    return (*inner, f"{name}, above {ends[-1]}")


TERMS = (
    "µs per step",
    *_between("µs per row of a captured decode graph", ROWS),
    "µs per request in decode",
    "µs per token of context",
    *(f"µs per token of context up to {most} a request" for most in SHORT_CONTEXTS),
    "µs per token of the longest context",
    f"µs per token of the longest context and row up to {FULL_WAVE}",
    "µs per token of the longest context and row",
    "µs per step with a prompt",
    "µs per request in decode beside a prompt",
    "µs per prompt",
    "µs per cached token of a prompt",
    "µs per product of new tokens and context of a prompt",
    *_between("µs per token of a step with a prompt", CAPTURED),
    "µs per step outside captured graphs",
    *_between(f"µs per token outside captured graphs beyond {CAPTURED[-1]}", EAGER),
)


def graph_rows(decodes: Any, xp: ModuleType) -> Any:
    """Return the rows of the captured graph that so many decodes run in: 1, 2, 4, then multiples of 8 (vLLM)."""
    small = xp.where(decodes <= 2, decodes, 4.0)
    return xp.where(decodes <= 4, small, 8.0 * xp.ceil(decodes / 8.0))


def terms_of(sums: StepSums, xp: ModuleType) -> list[Any]:
    """Return the value of each of `TERMS`, in that order; `xp` is numpy or `jax.numpy`."""
    has_prompt = xp.where(sums.prompt_tokens > 0, 1.0, 0.0)
    tokens = sums.prompt_tokens + sums.decodes
    is_eager = xp.where(tokens > CAPTURED[-1], has_prompt, 0.0)
    rows = graph_rows(sums.decodes, xp)
    requests, prompts = xp.maximum(sums.decodes, 1.0), xp.maximum(sums.prompts, 1.0)
    mean = sums.context / requests
    reach = xp.minimum(xp.sqrt(xp.maximum(sums.decodes - 1.0, 0.0)), MOST_SPREAD)
    longest = mean + reach * sums.spread
    attended = sums.prompt_tokens * (sums.cached_tokens + sums.prompt_tokens / 2.0) / prompts
    return [
        xp.ones_like(tokens),
        *_pieces((1.0 - has_prompt) * rows, ROWS, xp),
        sums.decodes,
        sums.context,
        *((1.0 - has_prompt) * sums.decodes * xp.minimum(mean, most) for most in SHORT_CONTEXTS),
        longest,
        longest * xp.minimum(rows, FULL_WAVE),
        longest * rows,
        has_prompt,
        has_prompt * sums.decodes,
        sums.prompts,
        sums.cached_tokens,
        attended,
        *_pieces(has_prompt * tokens, CAPTURED, xp),
        is_eager,
        *_pieces(is_eager * (tokens - CAPTURED[-1]), EAGER, xp),
    ]


def _pieces(value: Any, ends: tuple[int, ...], xp: ModuleType) -> list[Any]:
    """Return how much of a value lies between each two ends, and above the last."""
    inner = [xp.clip(value - low, 0.0, high - low) for low, high in pairwise(ends)]
    return [*inner, xp.maximum(value - ends[-1], 0.0)]


@latency_model(TERMS, needs_members=True, has_equal_decode_steps=False, overhead=None)
def step_law(beta: Float[Array, "term"], batch: StepBatch) -> jax.Array:
    """Return the sum of all terms, at least 1 µs."""
    total = jnp.float64(0.0)
    for place, term in enumerate(
        terms_of(sums_of(batch), jnp)
    ):  # a dot product would be a call of its own
        total = total + beta[place] * term
    return jnp.maximum(total, LEAST_US)


def sums_of(batch: StepBatch) -> StepSums:
    """Return the sums over a batch's members."""
    members = batch.members
    assert members is not None
    prompt = members.in_prefill & members.in_step
    new = jnp.where(prompt, members.new_tokens, 0).astype(jnp.float64)
    cached = jnp.where(prompt, members.context - members.new_tokens, 0).astype(jnp.float64)
    context = jnp.where(members.in_decode, members.progress, 0).astype(jnp.float64)
    decodes = jnp.sum(members.in_decode.astype(jnp.float64))
    total = jnp.sum(context)
    mean = total / jnp.maximum(decodes, 1.0)
    apart = jnp.where(members.in_decode, context - mean, 0.0)
    variance = jnp.sum(apart * apart) / jnp.maximum(decodes, 1.0)
    # the root of 0 has no derivative
    spread = jnp.where(variance > 0, jnp.sqrt(jnp.where(variance > 0, variance, 1.0)), 0.0)
    return StepSums(
        jnp.sum(prompt.astype(jnp.float64)),
        jnp.sum(new),
        jnp.sum(jnp.maximum(cached, 0.0)),
        decodes,
        total,
        spread,
    )
