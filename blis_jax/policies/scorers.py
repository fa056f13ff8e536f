"""Scorers, which rate every instance for one request: in [0, 1], higher is better; values outside are cut off.

Names and formulas: BLIS `sim/routing_scorers.go`, after llm-d's scorers; `kv_pressure` and the scorers that weigh costs
come from the routing track, BLIS's pull request 447.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from blis_jax.core.exact import exact_product, exact_quotient, greatest, least
from blis_jax.core.pytrees import pytree
from blis_jax.core.types import BACKGROUND, CRITICAL, LAST, Snapshots
from blis_jax.lazy import jax, jnp, lax
from blis_jax.policies.classes import is_sheddable, of_class, ttft_budget
from blis_jax.policies.contexts import GatewayContext
from blis_jax.policies.contract import NoParams, NoState, scorer
from blis_jax.policies.numbers import FIXED, number

if TYPE_CHECKING:
    from jaxtyping import Array, Float, Int

    from blis_jax.core.types import EngineShape

# --- by KV cache ----------------------------------------------------------------------------------


Scores = tuple["jax.Array", Any]


def prefix_share(context: GatewayContext) -> jax.Array:
    """Return the share of the prompt's full blocks in the router's index of each instance; 0 without full blocks."""
    return _share(context.snapshots.prefix_match_blocks, context.num_prompt_blocks)


def _share(matched: Int[Array, "instance"], blocks: Int[Array, ""]) -> jax.Array:
    share = exact_quotient(matched.astype(jnp.float64), jnp.maximum(blocks, 1).astype(jnp.float64))
    return jnp.where(blocks > 0, share, jnp.float64(0.0))


def free_share(context: GatewayContext) -> jax.Array:
    """Return the free share of each instance's KV blocks, at the time of the snapshot."""
    return jnp.float64(1.0) - context.snapshots.kv_utilization


@scorer()
def prefix_affinity(params: NoParams, state: NoState, context: GatewayContext) -> Scores:
    """Score by the share of the prompt's full blocks that the router has sent to the instance before."""
    return prefix_share(context), state


APPROXIMATE_BLOCK_TOKENS = 64  # least block of llm-d's approximate prefix index


@scorer()
def approx_prefix_cache(params: NoParams, state: NoState, context: GatewayContext) -> Scores:
    """Score by the same share in blocks of 64 tokens, of which llm-d's approximate index has the first whole ones."""
    finer = jnp.maximum(APPROXIMATE_BLOCK_TOKENS // context.block_size, 1)
    matched = context.snapshots.prefix_match_blocks
    return _share(matched // finer, context.num_prompt_blocks // finer), state


@scorer()
def kv_utilization(params: NoParams, state: NoState, context: GatewayContext) -> Scores:
    """Score by the free share of the KV blocks, as old as the snapshot; a capacity signal, not affinity."""
    return free_share(context), state


@scorer()
def kv_pressure(params: NoParams, state: NoState, context: GatewayContext) -> Scores:
    """Score by free KV blocks, as old as the snapshot, ÷ the most that an instance has; 0 if none has any."""
    seen = context.snapshots
    most = jnp.max(jnp.where(seen.is_active, seen.free_kv_blocks, 0.0))
    share = exact_quotient(seen.free_kv_blocks, jnp.maximum(most, 1.0))
    return jnp.where(most > 0, share, jnp.float64(0.0)), state


# --- by the router's copy of the KV caches, of August 2026 ----------------------------------------


@scorer()
def precise_prefix_cache(params: NoParams, state: NoState, context: GatewayContext) -> Scores:
    """Score by leading prompt blocks in the copy of each cache, scaled between least and most; 1 if all are equal."""
    seen = context.snapshots
    hits = seen.cached_prompt_blocks
    least = jnp.min(jnp.where(seen.is_active, hits, LAST))
    most = jnp.max(jnp.where(seen.is_active, hits, 0))
    spread = jnp.maximum(most - least, 1).astype(jnp.float64)
    scaled = exact_quotient((hits - least).astype(jnp.float64), spread)
    return jnp.where(most == least, jnp.float64(1.0), scaled), state


@scorer()
def lora_affinity(params: NoParams, state: NoState, context: GatewayContext) -> Scores:
    """Score 1 where the request's LoRA adapter is loaded, 0 elsewhere; 1 for all where no instance differs."""
    seen = context.snapshots
    is_alike = ~jnp.any(seen.is_active & seen.has_adapter) | jnp.all(
        ~seen.is_active | seen.has_adapter
    )
    return (seen.has_adapter | is_alike).astype(jnp.float64), state


@pytree
class LastUse:
    """The counter at which each instance got its last request without a cached prefix; 0 if never."""

    last: Int[Array, "instance"]


def never_used(params: NoParams, shape: EngineShape) -> LastUse:
    """Return the state in which no instance has received a request without a cached prefix."""
    return LastUse(jnp.zeros((shape.num_instances,), jnp.int32))


def _has_hit(seen: Snapshots) -> jax.Array:
    return jnp.any(seen.is_active & (seen.cached_prompt_blocks > 0))


def _sent(
    params: NoParams, state: LastUse, context: GatewayContext, instance: jax.Array
) -> LastUse:
    """Return the state after a decision: if no cache had the prompt, the chosen instance becomes the one used last.

    If several instances were candidates, the state of all other instances is reset, as in BLIS: pools that share a
    router reset each other's state.
    """
    is_active, last = context.snapshots.is_active, state.last
    is_kept = is_active | (jnp.sum(is_active, dtype=jnp.int32) <= 1)
    is_it = lax.iota(jnp.int32, last.shape[0]) == instance
    after = jnp.where(is_it, jnp.max(last) + 1, jnp.where(is_kept, last, 0))
    return LastUse(jnp.where(_has_hit(context.snapshots), last, after))


@scorer(start=never_used, routed=_sent)
def no_hit_lru(params: NoParams, state: LastUse, context: GatewayContext) -> Scores:
    """Score 0.5 where some cache has the prompt; else the longer ago an instance got such a request, the better."""
    active, last = context.snapshots.is_active, state.last
    number = lax.iota(jnp.int32, last.shape[0])
    # never used instances first, in their order; then the least recently used
    is_before = (last[None, :] < last[:, None]) | (
        (last[None, :] == last[:, None]) & (number[None, :] < number[:, None])
    )
    rank = jnp.sum(is_before & active[None, :], axis=1, dtype=jnp.int32)
    count = jnp.sum(active, dtype=jnp.int32)
    share = exact_quotient(rank.astype(jnp.float64), jnp.maximum(count - 1, 1).astype(jnp.float64))
    by_age = jnp.where(count > 1, jnp.float64(1.0) - share, jnp.float64(1.0))
    return jnp.where(_has_hit(context.snapshots), jnp.float64(0.5), by_age), state


# --- by load --------------------------------------------------------------------------------------


def scaled_down(count: Int[Array, "instance"], seen: Snapshots) -> jax.Array:
    """Return counts scaled between the least (1) and the greatest (0) of the active instances; 1 if all are equal."""
    fewest = least(jnp.where(seen.is_active, count, LAST))
    most = greatest(jnp.where(seen.is_active, count, 0))
    spread = jnp.maximum(most - fewest, 1).astype(jnp.float64)
    scaled = exact_quotient((most - count).astype(jnp.float64), spread)
    return jnp.where(most == fewest, jnp.float64(1.0), scaled)


def scaled_load(load: Float[Array, "instance"], seen: Snapshots) -> jax.Array:
    """Return loads, given as floats, scaled as in `scaled_down`."""
    least = jnp.min(jnp.where(seen.is_active, load, jnp.inf))
    most = jnp.max(jnp.where(seen.is_active, load, 0.0))
    spread = jnp.where(most > least, most - least, 1.0)
    scaled = jnp.clip(exact_quotient(most - load, spread), 0.0, 1.0)
    return jnp.where(most > least, scaled, jnp.float64(1.0))


@scorer()
def queue_depth(params: NoParams, state: NoState, context: GatewayContext) -> Scores:
    """Score by effective load, scaled between the least and most loaded instance; 1 if all are equal."""
    return scaled_down(context.snapshots.effective_load, context.snapshots), state


@scorer()
def load_balance(params: NoParams, state: NoState, context: GatewayContext) -> Scores:
    """Score 1 / (1 + effective load)."""
    load = context.snapshots.effective_load.astype(jnp.float64)
    return exact_quotient(jnp.ones_like(load), jnp.float64(1.0) + load), state


@pytree
class SloPriorityParams:
    """The strength with which a class prefers unloaded instances."""

    bias_critical: Float[Array, ""] = number(
        0.9, "", "weight of load for critical requests",
        low=0, high=1, setting="slo_scorer_bias_critical",
    )  # fmt: skip
    bias_sheddable: Float[Array, ""] = number(
        0.2, "", "weight of load for sheddable, batch and background requests",
        low=0, high=1, setting="slo_scorer_bias_sheddable",
    )  # fmt: skip


@scorer(SloPriorityParams)
def slo_priority(params: SloPriorityParams, state: NoState, context: GatewayContext) -> Scores:
    """Blend the queue-depth score with a neutral 0.5, by weights of the request's class."""
    slo_class = context.request.slo_class
    bias = jnp.where(
        slo_class == CRITICAL,
        params.bias_critical,
        jnp.where(is_sheddable(slo_class), params.bias_sheddable, jnp.float64(0.5)),
    )
    neutral = exact_product(jnp.float64(1.0) - bias, jnp.float64(0.5))
    by_depth = scaled_down(context.snapshots.effective_load, context.snapshots)
    return exact_product(bias, by_depth) + neutral, state


# --- by queue, batch and requests in flight, of August 2026 ---------------------------------------


LONGEST_QUEUE = 128  # BLIS: queueThresholdDefault


@scorer()
def waiting_requests(params: NoParams, state: NoState, context: GatewayContext) -> Scores:
    """Score by the length of the wait queue, scaled; August's `queue-depth`."""
    return scaled_down(context.snapshots.queue_depth, context.snapshots), state


@scorer()
def running_requests(params: NoParams, state: NoState, context: GatewayContext) -> Scores:
    """Score by the size of the running batch, scaled."""
    return scaled_down(context.snapshots.batch_size, context.snapshots), state


@scorer()
def vllm_dp(params: NoParams, state: NoState, context: GatewayContext) -> Scores:
    """Score by four times the wait queue plus the batch, scaled: what vLLM's data-parallel load balancer compares."""
    seen = context.snapshots
    return scaled_down(4 * seen.queue_depth + seen.batch_size, seen), state


@scorer()
def active_requests(params: NoParams, state: NoState, context: GatewayContext) -> Scores:
    """Score 1 − requests in flight ÷ the most that an instance has."""
    seen, flying = context.snapshots, context.snapshots.num_pending
    most = jnp.max(jnp.where(seen.is_active, flying, 0))
    share = exact_quotient(
        (most - flying).astype(jnp.float64), jnp.maximum(most, 1).astype(jnp.float64)
    )
    return jnp.where(flying == 0, jnp.float64(1.0), share), state


@scorer()
def load_aware(params: NoParams, state: NoState, context: GatewayContext) -> Scores:
    """Score 0.5 without a wait queue, falling to 0 at 128 waiting requests."""
    queue = jnp.minimum(context.snapshots.queue_depth, LONGEST_QUEUE).astype(jnp.float64)
    share = exact_quotient(queue, jnp.full_like(queue, float(LONGEST_QUEUE)))
    falling = exact_product(jnp.float64(0.5), jnp.float64(1.0) - share)
    return jnp.where(queue == 0, jnp.float64(0.5), falling), state


# --- by speed -------------------------------------------------------------------------------------


@pytree
class CapabilityParams:
    """The requests that the request itself counts as."""

    own_requests: Float[Array, ""] = number(
        1.0, "requests", "what the request adds to an instance's load; 0: idle instances of all speeds are equal",
        low=0, search=(0, 16),
    )  # fmt: skip


@scorer(CapabilityParams)
def capability_load(
    params: CapabilityParams, state: NoState, context: GatewayContext
) -> tuple[jax.Array, Any]:
    """Score by (effective load + the request) × time for this prompt ÷ that of the fastest, scaled, least best."""
    seen = context.snapshots
    times = seen.prompt_us
    fastest = jnp.min(jnp.where(seen.is_active, times, jnp.inf))
    slowness = jnp.where(fastest > 0, exact_quotient(times, fastest), 1.0)
    load = seen.effective_load.astype(jnp.float64) + params.own_requests
    return scaled_load(exact_product(load, slowness), seen), state


# --- by what is saved and what it costs: `sim/routing_scorers_adaptive.go` ------------------------


@pytree
class WrittenTimes:
    """Latency coefficients that BLIS writes into a policy; those of the run do not count."""

    step_us: Float[Array, ""] = number(6910.42, "µs", "time of a step", low=0, setting=FIXED)
    prefill_us: Float[Array, ""] = number(
        17.67, "µs/token", "time that a prompt token adds to a step", low=0, setting=FIXED
    )


@pytree
class CostBenefitParams(WrittenTimes):
    """What a step takes."""

    decode_us: Float[Array, ""] = number(
        2.84, "µs/token", "time that a decoded token adds to a step", low=0, setting=FIXED
    )


@scorer(CostBenefitParams, keeps_own_index=True)
def cost_benefit(
    params: CostBenefitParams, state: NoState, context: GatewayContext
) -> tuple[jax.Array, Any]:
    """Score by prefill time saved ÷ (saved + delay by load above the least); 0.5 where both are 0."""
    seen, input_len = context.snapshots, context.request.input_len
    cached = seen.prefix_match_blocks * context.block_size
    to_compute = jnp.maximum(input_len - cached, 0).astype(jnp.float64)
    whole = exact_product(params.prefill_us, input_len.astype(jnp.float64))
    saved = jnp.maximum(whole - exact_product(params.prefill_us, to_compute), 0.0)
    least = jnp.min(jnp.where(seen.is_active, seen.effective_load, LAST))
    above_least = (seen.effective_load - least).astype(jnp.float64)
    delay = exact_product(above_least, params.step_us + params.decode_us)
    both = saved + delay
    share = exact_quotient(saved, jnp.where(both > 0, both, 1.0))
    has_blocks = context.num_prompt_blocks > 0
    return jnp.where(has_blocks & (both > 0), share, jnp.float64(0.5)), state


@pytree
class HeadroomParams(WrittenTimes):
    """Budgets by class, and what a first token takes."""

    budget_critical_us: Float[Array, ""] = ttft_budget(50_000, "critical")
    budget_standard_us: Float[Array, ""] = ttft_budget(200_000, "standard and unclassed")
    budget_sheddable_us: Float[Array, ""] = ttft_budget(500_000, "sheddable")
    budget_batch_us: Float[Array, ""] = ttft_budget(5_000_000, "batch")
    tokens_ahead: Float[Array, ""] = number(
        256.0, "tokens", "prompt tokens of each request ahead", low=0, setting=FIXED
    )


@scorer(HeadroomParams)
def slo_headroom(
    params: HeadroomParams, state: NoState, context: GatewayContext
) -> tuple[jax.Array, Any]:
    """Score 1 − expected time to first token ÷ budget of the class; background has no budget and scores 1."""
    slo_class, load = context.request.slo_class, context.snapshots.effective_load
    # background does not count
    budget = of_class(params, slo_class, "budget_{}_us", 1.0)
    input_len = context.request.input_len.astype(jnp.float64)
    service_us = params.step_us + exact_product(params.prefill_us, input_len)
    ahead = params.step_us + exact_product(params.prefill_us, params.tokens_ahead)
    expected = exact_product(load.astype(jnp.float64), ahead) + service_us
    headroom = jnp.clip(1.0 - exact_quotient(expected, budget), 0.0, 1.0)
    return jnp.where(slo_class == BACKGROUND, jnp.float64(1.0), headroom), state
