"""Policies as a user writes them, for the compiler: each uses what the package's own policies do not."""

from __future__ import annotations

from typing import Any

import jax
import jax.numpy as jnp
from jax import lax

from blis_jax.policies import (
    admission_policy,
    number,
    priority_policy,
    pytree,
    routing_policy,
    scheduler,
    scorer,
)


@pytree
class Numbers:
    """A weight and a softness."""

    queue: Any = number(2.0, "", "weight of a waiting request", low=0, high=10)
    softness: Any = number(8.0, "requests", "how soft the score falls", low=0.5)


@routing_policy(Numbers)
def shortest_queue(params, state, context):
    """The instance with the least weighted load."""
    seen = context.snapshots
    waiting = (seen.queue_depth + seen.num_pending).astype(jnp.float64)
    cost = seen.batch_size.astype(jnp.float64) + params.queue * waiting
    return lax.argmin(jnp.where(seen.is_active, cost, jnp.inf), 0, jnp.int32), state


@scorer(Numbers)
def real_functions(params, state, context):
    """Exponentials, logarithms, powers and roundings of the load."""
    load = context.snapshots.effective_load.astype(jnp.float64)
    mean = jnp.mean(load)
    near = jnp.exp(-load / params.softness) + 0.01 * jnp.log1p(load) + jnp.sqrt(load) ** 1.5
    far = jnp.tanh(mean) + jnp.abs(load - mean) / (1.0 + jnp.max(load)) + load**2 * 1e-7
    steps = (
        jnp.round(load / 3.0) + jnp.floor(load / 7.0) + jnp.ceil(load / 5.0) + jnp.sign(load - 3.0)
    )
    return near + far + steps + jax.nn.sigmoid(load) + jnp.power(load + 1.0, 0.3), state


@scorer(Numbers)
def whole_functions(params, state, context):
    """Whole numbers: quotients, remainders, signs, conversions, sums that go on."""
    seen = context.snapshots
    depth, batch = seen.queue_depth, seen.batch_size
    sign = jnp.sign(depth - batch) + 2  # a name that Go has too
    parts = depth // 3 + batch % 5 + jnp.abs(depth - 4) + sign * sign
    by_zero = lax.div(depth, batch) + lax.rem(depth, batch)
    cut = (depth.astype(jnp.float64) * 1.7 - params.queue).astype(jnp.int32)
    so_far = jnp.cumsum(depth, dtype=jnp.int32)
    return (parts + by_zero + cut + so_far).astype(jnp.float64), state


@scorer()
def between_endpoints(params, state, context):
    """Endpoints compared with each other, counted from the end, picked by index, and in small stacks."""
    seen = context.snapshots
    load = seen.effective_load.astype(jnp.float64)
    rank = jnp.sum(load[None, :] < load[:, None], axis=1, dtype=jnp.int32)
    fullest = lax.argmax(seen.kv_utilization, 0, jnp.int32)
    first_busy = lax.argmax(seen.queue_depth > 5, 0, jnp.int32)
    stack = jnp.max(jnp.stack([load, 2.0 * load[::-1]]), axis=0)
    is_tight = jnp.any(seen.queue_depth > 5) & ~jnp.all(seen.batch_size > 2)
    picked = load[fullest] + load[first_busy] + load[-1] - load[0]
    return rank.astype(jnp.float64) + picked + stack + jnp.where(is_tight, 1.0, 0.25), state


@scorer()
def library_functions(params, state, context):
    """What jax.nn and jax.numpy are made of: softmax, select, products of vectors and matrices, NaN put away."""
    seen = context.snapshots
    load = seen.effective_load.astype(jnp.float64)
    cases = jnp.select([load > 10.0, load > 5.0, load > 1.0], [0.1, 0.2, 0.3], 0.9)
    mixed = jnp.array([0.3, 0.7]) @ jnp.stack([load, seen.kv_utilization])
    known = jnp.nan_to_num(load / (load - load))
    apart = jnp.sum(jnp.abs(load[:, None] - load[None, :]), axis=0)
    spread = jnp.var(load) * 1e-6 + jnp.sqrt(load @ load) * 1e-3
    bits = (~seen.queue_depth ^ (seen.batch_size & 3)).astype(jnp.float64)
    return jax.nn.softmax(-load) + cases + mixed + known * 0.0 + apart + spread + bits, state


@pytree
class Smoothed:
    """A smoothed load, and how often it was looked at."""

    load: Any
    count: Any


def _nothing(params, shape):
    return Smoothed(0.5 * params.queue, jnp.zeros((), jnp.int32))


@admission_policy(Numbers, _nothing, is_random=True)
def smoothed_coin(params, state, context):
    """Sheds by chance while the smoothed load is high."""
    mean = jnp.mean(context.snapshots.effective_load.astype(jnp.float64))
    load = 0.9 * state.load + 0.1 * mean
    is_kept = jax.random.bernoulli(context.key, jnp.exp(-load / params.softness))
    return is_kept | (load < params.queue), Smoothed(load, state.count + 1)


@pytree
class Urgent:
    """How much a long prompt is worth."""

    per_token: Any = number(0.001, "priority/token", "priority lost by a prompt token", low=0)


@priority_policy(Urgent)
def short_first(params, state, context):
    """Shorter prompts are more urgent."""
    return -(params.per_token * context.request.input_len.astype(jnp.float64)), state


@priority_policy(Urgent)
def ages(params, state, context):
    """Shorter prompts are more urgent, and all the more the longer they wait."""
    waited = (context.now_us - context.request.arrival_us).astype(jnp.float64)
    return waited / (1.0 + params.per_token * context.request.input_len), state


# --- what no plugin can do ------------------------------------------------------------------------


@scorer()
def sorts(params, state, context):
    """A sort."""
    return jnp.sort(context.snapshots.kv_utilization), state


@scorer()
def loops(params, state, context):
    """A loop."""
    return lax.fori_loop(0, 3, lambda _, x: x * 0.5, context.snapshots.kv_utilization), state


@scorer()
def counts_endpoints(params, state, context):
    """An array that is one shorter than the list of endpoints."""
    return jnp.max(
        jnp.diff(context.snapshots.kv_utilization)
    ) + context.snapshots.kv_utilization, state


@scorer()
def branches_on_size(params, state, context):
    """Other operations for large clusters."""
    free = context.snapshots.kv_utilization
    return (free if free.shape[0] < 12 else jnp.exp(free)), state


@scorer()
def single_precision(params, state, context):
    """Computes in float32."""
    return context.snapshots.kv_utilization.astype(jnp.float32) * jnp.float32(0.3), state


def _heard(params, state, completion):
    return state


@scorer(observe=_heard)
def observes(params, state, context):
    """Is told of completions."""
    return context.snapshots.kv_utilization, state


@admission_policy()
def reads_rejections(params, state, context):
    """Reads a count that the router has not."""
    return context.snapshots.num_rejected < 3, state


@scheduler()
def looks_around(params, state, context):
    """Compares a request with all others."""
    prompt = context.request.input_len
    return (prompt - jnp.max(prompt), context.request.tie_rank), state


@scheduler()
def ranks_itself(params, state, context):
    """A rank that is computed."""
    return (context.request.input_len, context.request.tie_rank * 2), state
