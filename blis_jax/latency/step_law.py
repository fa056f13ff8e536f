"""`step-law`: the time of a step as terms of physics with regimes, fitted to measured steps. Ours.

The law is linear in its coefficients, none of which is negative, and no term falls when a batch gets more tokens. So
every fit is positive and monotone, continues linearly beyond its data, and its sum over several steps is the sum of
their times.
"""

from __future__ import annotations

from collections.abc import Callable
from itertools import pairwise
from typing import TYPE_CHECKING, Any, NamedTuple

from blis_jax.core.exact import exact_product, exact_quotient
from blis_jax.core.views import StepBatch
from blis_jax.latency.contract import latency_model
from blis_jax.lazy import jax, jnp

if TYPE_CHECKING:
    from types import ModuleType

    from jaxtyping import Array, Float

    from blis_jax.core.arrays import Number

ROWS = (0, 1, 2, 4, 8, 16, 24, 32, 64, 128)  # of captured graphs, between which their cost bends
CAPTURED = (0, 64, 128, 256, 384, 512)  # tokens of a step that may run in a captured graph
EAGER = (0, 512, 1536, 2560, 3584, 5632, 7680)  # tokens beyond the last of these, without one
SHORT_CONTEXTS = (2000, 8000)  # tokens of a request beyond which sparse attention reads no more
FULL_WAVE = 16  # rows from which a block of threads has a whole context: the longest decides
MOST_SPREAD = 3.0  # deviations above the mean at which the longest context is taken to be
LEAST_US = 1.0


class StepSums(NamedTuple):
    """The sums of a batch that the law reads: float64, one number or one of each step."""

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
# of the terms: what rows take and what contexts do; the others are those of prompts
OF_ROWS, OF_CONTEXT = slice(0, len(ROWS) + 2), slice(len(ROWS) + 2, len(ROWS) + 8)


def graph_rows(decodes: Number, xp: ModuleType) -> Any:
    """Return the rows of the captured graph in which `decodes` decodes run: 1, 2, 4, then multiples of 8 (vLLM)."""
    small = xp.where(decodes <= 2, decodes, 4.0)
    return xp.where(decodes <= 4, small, 8.0 * xp.ceil(decodes / 8.0))


def terms_of(sums: StepSums, xp: ModuleType) -> list[Any]:
    """Return the value of each of `TERMS`, in that order; `xp` is numpy or `jax.numpy`."""
    return [*_terms_of_rows(sums, xp), *_terms_of_context(sums, xp), *_terms_of_prompts(sums, xp)]


def _has_prompt(sums: StepSums, xp: ModuleType) -> Any:
    return xp.where(sums.prompt_tokens > 0, 1.0, 0.0)


def _terms_of_rows(sums: StepSums, xp: ModuleType) -> list[Any]:
    rows = (1.0 - _has_prompt(sums, xp)) * graph_rows(sums.decodes, xp)
    return [xp.ones_like(rows), *_pieces(rows, ROWS, xp), sums.decodes]


def _terms_of_context(sums: StepSums, xp: ModuleType) -> list[Any]:
    has_no_prompt, rows = 1.0 - _has_prompt(sums, xp), graph_rows(sums.decodes, xp)
    mean = sums.context / xp.maximum(sums.decodes, 1.0)
    longest = mean + _reach(sums, xp)
    return [
        sums.context,
        *(has_no_prompt * sums.decodes * xp.minimum(mean, most) for most in SHORT_CONTEXTS),
        longest,
        longest * xp.minimum(rows, FULL_WAVE),
        longest * rows,
    ]


def _reach(sums: StepSums, xp: ModuleType) -> Any:
    """Return the assumed difference between the longest context and the mean."""
    deviations = xp.minimum(xp.sqrt(xp.maximum(sums.decodes - 1.0, 0.0)), MOST_SPREAD)
    return deviations * sums.spread


def _terms_of_prompts(sums: StepSums, xp: ModuleType) -> list[Any]:
    has_prompt = _has_prompt(sums, xp)
    tokens = sums.prompt_tokens + sums.decodes
    is_eager = xp.where(tokens > CAPTURED[-1], has_prompt, 0.0)
    prompts = xp.maximum(sums.prompts, 1.0)
    attended = sums.prompt_tokens * (sums.cached_tokens + sums.prompt_tokens / 2.0) / prompts
    return [
        has_prompt,
        has_prompt * sums.decodes,
        sums.prompts,
        sums.cached_tokens,
        attended,
        *_pieces(has_prompt * tokens, CAPTURED, xp),
        is_eager,
        *_pieces(is_eager * (tokens - CAPTURED[-1]), EAGER, xp),
    ]


def _pieces(value: Number, ends: tuple[int, ...], xp: ModuleType) -> list[Any]:
    """Return the parts of a value that lie between neighbouring `ends`, and the part above the last end."""
    inner = [xp.clip(value - low, 0.0, high - low) for low, high in pairwise(ends)]
    return [*inner, xp.maximum(value - ends[-1], 0.0)]


def _sum(beta: Float[Array, "term"], terms: list[Any], total: Any) -> Any:
    """Add each term times its coefficient to `total`, in order, as a dot product would not."""
    for place, term in enumerate(terms):
        total = total + exact_product(beta[place], term)
    return total


def time_of_rows(
    beta: Float[Array, "term"], sums: StepSums, total: jax.Array | float = 0.0
) -> jax.Array:
    """Return `total` plus the time of the step itself, its rows and its requests in decode, µs."""
    return _sum(beta, _terms_of_rows(sums, jnp), total)


def time_of_prompts(beta: Float[Array, "term"], sums: StepSums, total: jax.Array) -> jax.Array:
    """Return `total` plus the time that prompts add to a step, µs."""
    of_prompts = _terms_of_prompts(sums, jnp)
    return _sum(beta[len(TERMS) - len(of_prompts) : len(TERMS)], of_prompts, total)


def time_of_context(
    beta: Float[Array, "term"], sums: StepSums, has_rows: bool = True
) -> Callable[[jax.Array], jax.Array]:
    """Return a function from the tokens of all contexts in decode to the time of reading them, µs.

    The terms are combined so that a token of context costs one product. With `has_rows` the function returns the whole
    time of a step without its prompts.
    """
    rows = graph_rows(sums.decodes, jnp)
    per_token, short, shorter, longest, in_wave, by_row = beta[OF_CONTEXT]
    longest = longest + exact_product(in_wave, jnp.minimum(rows, FULL_WAVE))
    longest = longest + exact_product(by_row, rows)
    fixed = exact_product(longest, _reach(sums, jnp))
    fixed = time_of_rows(beta, sums, fixed) if has_rows else fixed
    per_token = per_token + exact_quotient(longest, jnp.maximum(sums.decodes, 1.0))
    decodes = (1.0 - _has_prompt(sums, jnp)) * sums.decodes
    bends = [most * decodes for most in SHORT_CONTEXTS]

    def time(context: jax.Array) -> jax.Array:
        total = fixed + exact_product(per_token, context)
        for beta_, most in zip((short, shorter), bends, strict=True):
            total = total + exact_product(beta_, jnp.minimum(context, most))
        return total

    return time


def _decode_steps(beta: Float[Array, "term"], batch: StepBatch) -> Callable[[jax.Array], jax.Array]:
    sums = sums_of(batch)
    return after_steps(sums, time_of_context(beta, sums))


def after_steps(
    sums: StepSums, time: Callable[[jax.Array], jax.Array]
) -> Callable[[jax.Array], jax.Array]:
    """Return a function from n to the time of the decode step n steps later, when each context has n more tokens.

    Args:
        sums: the batch now.
        time: µs of a step without a prompt, by the tokens of all contexts in decode.
    """

    def after(steps: jax.Array) -> jax.Array:
        context = sums.context + steps.astype(jnp.float64) * sums.decodes
        return jnp.maximum(time(context), LEAST_US)

    return after


@latency_model(
    TERMS,
    needs_members=True,
    has_equal_decode_steps=False,
    decode_steps=_decode_steps,
    overhead=None,
)
def step_law(beta: Float[Array, "term"], batch: StepBatch) -> jax.Array:
    """Return the sum of all terms, at least 1 µs."""
    sums = sums_of(batch)
    before = time_of_context(beta, sums)(sums.context)
    return jnp.maximum(time_of_prompts(beta, sums, before), LEAST_US)


def sums_of(batch: StepBatch) -> StepSums:
    """Return the sums over a batch's members."""
    members = batch.members
    assert members is not None
    prompt = members.in_prefill & members.in_step
    new = jnp.where(prompt, members.new_tokens, 0).astype(jnp.float64)
    cached = jnp.where(prompt, members.context - members.new_tokens, 0).astype(jnp.float64)
    context = jnp.where(members.in_decode, members.progress, 0).astype(jnp.int64)
    count, total = jnp.sum(members.in_decode, dtype=jnp.int64), jnp.sum(context)
    # of whole numbers: it stays the same to the last bit while all contexts grow by as much
    variance = (count * jnp.sum(context * context) - total * total).astype(jnp.float64)
    decodes = count.astype(jnp.float64)
    # the root of 0 has no derivative
    apart = jnp.where(variance > 0, jnp.sqrt(jnp.where(variance > 0, variance, 1.0)), 0.0)
    spread = apart / jnp.maximum(decodes, 1.0)
    return StepSums(
        jnp.sum(prompt.astype(jnp.float64)),
        jnp.sum(new),
        jnp.sum(jnp.maximum(cached, 0.0)),
        decodes,
        total.astype(jnp.float64),
        spread,
    )
