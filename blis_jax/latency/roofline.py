"""`roofline` of BLIS's 2026-08 revision: a step takes as long as its arithmetic or its memory traffic.

Every line keeps the reference's order of operations, because the step time is cut to whole microseconds.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, NamedTuple

from blis_jax.core.exact import exact_chain, exact_product, exact_quotient
from blis_jax.core.views import Members, StepBatch
from blis_jax.errors import ConfigError
from blis_jax.latency.contract import FromSizes, latency_model
from blis_jax.latency.deployment import Deployment
from blis_jax.lazy import jax, jnp, lax

if TYPE_CHECKING:
    from jaxtyping import Array, Float

    from blis_jax.core.exact import Number
    from blis_jax.latency.model_description import ModelDescription

_BITS = 31  # of a number of tokens


class AttentionSizes(NamedTuple):
    """The numbers of a model that the arithmetic of its attention uses, in this order, all float64."""

    hidden: Number  # d
    query_key_value: Number  # d·d + 2·d·dKV
    layers: Number
    four_heads: Number  # 4 · nh
    five_heads: Number  # 5 · nh
    head_dim: Number  # d / nh, a fraction if it is one

    @classmethod
    def of(cls, model: ModelDescription) -> AttentionSizes:
        """Return the sizes of a model."""
        d, heads = float(model.hidden_size), float(model.num_heads)
        head_dim = d / heads
        kv_dim = float(model.num_kv_heads) * head_dim
        layers = float(model.num_layers)
        return cls(d, d * d + 2 * d * kv_dim, layers, 4 * heads, 5 * heads, head_dim)


class RooflineNumbers(NamedTuple):
    """The deployment's further numbers that the step time uses, in this order, all float64."""

    expert_weights: Number  # 2 · d · fM
    dense_weights: Number  # 2 · d · fD
    experts_per_token: Number
    moe_layers: Number
    dense_layers: Number
    attention_bytes: Number  # (d·(d + 2dKV) + d·d) · L, in weights
    dense_layer_weights: Number  # 2 · d · fD · nD
    weight_bytes: Number
    kv_bytes: Number  # 2 · L · nkv · dh · aB, of one token
    token_bytes: Number  # L · d · aB
    num_experts: Number
    tp: Number
    prefill_rate: Number  # FLOP/s that prefill reaches
    decode_rate: Number
    bandwidth: Number  # bytes/s


def vector(beta: Sequence[float], deployment: Deployment) -> tuple[float, ...]:
    """Return `AttentionSizes` and `RooflineNumbers` of a deployment, then the share of experts that a token leaves
    out, to the powers 1, 2, 4, ….

    Args:
        beta: not used; nothing is fitted.
        deployment: the model on its GPUs.

    Raises:
        ConfigError: there is data parallelism, or a token chooses no expert or more than there are.
    """
    deployment.refuse_other_layers("roofline")
    del beta
    model, gpu = deployment.model, deployment.gpu
    _check(deployment)
    layers, d = float(model.num_layers), float(model.hidden_size)
    head_dim = d / float(model.num_heads)
    kv_dim = float(model.num_kv_heads) * head_dim
    moe_layers, size = float(model.num_moe_layers), model.activation_bytes
    dense_layers = layers - moe_layers
    peak = deployment.peak_tflops * 1e12
    dense_weights = 2 * d * float(model.dense_size)
    numbers = RooflineNumbers(
        expert_weights=2 * d * float(model.expert_size),
        dense_weights=dense_weights,
        experts_per_token=float(model.num_experts_per_tok),
        moe_layers=moe_layers,
        dense_layers=dense_layers,
        attention_bytes=(d * (d + 2 * kv_dim) + d * d) * layers,
        dense_layer_weights=dense_weights * dense_layers,
        weight_bytes=model.weight_bytes,
        kv_bytes=2 * layers * float(model.num_kv_heads) * head_dim * size,
        token_bytes=layers * d * size,
        num_experts=float(model.num_experts),
        tp=float(deployment.tp),
        prefill_rate=peak * gpu.prefill_mfu,
        decode_rate=peak * gpu.decode_mfu,
        bandwidth=gpu.bandwidth_tbs * 1e12,
    )
    return (
        *(float(number) for number in (*AttentionSizes.of(model), *numbers)),
        *_powers(deployment),
    )


def _powers(deployment: Deployment) -> list[float]:
    """Return the share of experts that a token leaves out, squared repeatedly, as in Go's `math.Pow`."""
    model, share = deployment.model, 1.0
    if model.is_moe:
        experts = float(model.num_experts)
        share = (experts - float(model.num_experts_per_tok)) / experts
    powers = [share]
    for _ in range(_BITS - 1):
        powers.append(powers[-1] * powers[-1])
    return powers


def _check(deployment: Deployment) -> None:
    model = deployment.model
    if deployment.dp > 1:
        raise ConfigError(
            f"dp is {deployment.dp}, but roofline knows no data parallelism; "
            "use dp 1, or trained-physics"
        )
    if model.is_moe and not 1 <= model.num_experts_per_tok <= model.num_experts:
        raise ConfigError(
            f"model {model.name}: num_experts_per_tok must be between 1 and the number of experts, "
            f"{model.num_experts}, got {model.num_experts_per_tok}"
        )


@latency_model(
    (),
    needs_members=True,
    has_equal_decode_steps=False,
    overhead=None,
    sizes=FromSizes(vector, (0.0, 0.0, 0.0), (), 0),
)
def roofline(beta: Float[Array, "number"], batch: StepBatch) -> jax.Array:
    """Return the larger of arithmetic and memory traffic; at least 1 µs. Sums run over prompts, then over decodes."""
    first = len(AttentionSizes._fields)
    count = first + len(RooflineNumbers._fields)
    attention = AttentionSizes(*(beta[place] for place in range(first)))
    numbers = RooflineNumbers(*(beta[place] for place in range(first, count)))
    powers, members = beta[count:], batch.members
    assert members is not None
    counts = members.in_step & (members.in_prefill | members.in_decode)
    new = jnp.where(members.in_decode, 1, members.new_tokens)
    seconds = _compute_seconds(attention, numbers, members, new)
    moved = _moved_bytes(numbers, powers, members, new)
    compute, dynamic = sums_in_order((seconds, moved), members, counts)
    tokens = jnp.sum(jnp.where(counts, new, 0), dtype=jnp.int32)
    static = exact_quotient(_weights(numbers, powers, tokens), numbers.tp)
    memory = exact_quotient(static + dynamic, numbers.bandwidth)
    total = exact_product(jnp.maximum(compute, memory), jnp.float64(1e6))
    return jnp.where(jnp.any(counts), jnp.maximum(total, 1.0), 1.0)


def _compute_seconds(
    attention: AttentionSizes, numbers: RooflineNumbers, members: Members, new: jax.Array
) -> jax.Array:
    """Return the time of each member's arithmetic `[slot]`, in seconds on all GPUs of the instance."""
    n, two = numbers, 2.0 * new.astype(jnp.float64)
    gemm, sram = attention_work(attention, members.progress, new)
    gemm = gemm + exact_chain(two, n.expert_weights, n.experts_per_token, n.moe_layers)
    gemm = gemm + exact_chain(two, n.dense_weights, n.dense_layers)
    rate = jnp.where(members.in_decode, n.decode_rate, n.prefill_rate)
    each = exact_quotient(gemm + sram, n.tp)
    return exact_quotient(lax.optimization_barrier(each), rate)


def attention_work(
    sizes: AttentionSizes, progress: jax.Array, new: jax.Array
) -> tuple[jax.Array, jax.Array]:
    """Return the FLOP of each member's attention `[slot]`: in matrix products, and outside them.

    Args:
        sizes: the sizes of the model.
        progress: tokens of each member before the step `[slot]`, int32.
        new: tokens of each member in the step `[slot]`, int32.
    """
    n, count = sizes, new.astype(jnp.float64)
    before, two = progress.astype(jnp.float64), 2.0 * new.astype(jnp.float64)
    context = jnp.where(new > 1, before + (count - 1.0) / 2.0, before)
    gemm = exact_chain(two, n.query_key_value) + exact_chain(two, n.hidden, n.hidden)
    gemm = exact_product(gemm, n.layers)
    attention = exact_chain(n.four_heads, count, context, n.head_dim)
    gemm = gemm + exact_product(attention, n.layers)
    vector_ops = exact_chain(n.five_heads, count, context) + exact_product(two, n.hidden)
    sram = exact_product(vector_ops, n.layers)
    return gemm, sram


def _weights(numbers: RooflineNumbers, powers: jax.Array, tokens: jax.Array) -> jax.Array:
    """Return the bytes of the weights that `tokens` tokens read."""
    n = numbers

    def times(bit: jax.Array, product: jax.Array) -> jax.Array:
        is_set = (tokens >> bit) & 1 == 1
        return jnp.where(is_set, exact_product(product, powers[bit]), product)

    num_bits = 32 - lax.clz(jnp.max(tokens))
    num_bits = jnp.where(n.moe_layers > 0, num_bits, 0)  # there are no experts to leave out
    left_out = lax.fori_loop(0, num_bits, times, jnp.ones(tokens.shape, jnp.float64))
    experts = exact_product(n.num_experts, 1.0 - left_out)
    feed_forward = exact_chain(n.expert_weights, experts, n.moe_layers) + n.dense_layer_weights
    return exact_product(n.attention_bytes + feed_forward, n.weight_bytes)


def _moved_bytes(
    numbers: RooflineNumbers, powers: jax.Array, members: Members, new: jax.Array
) -> jax.Array:
    """Return the bytes of KV cache and activations of every member `[slot]`, on one GPU.

    The reference adds the weights and subtracts them again, which rounds.
    """
    n, count = numbers, new.astype(jnp.float64)
    weights = _weights(numbers, powers, new)
    moved = weights + exact_product(n.kv_bytes, count)
    moved = moved + exact_product(n.kv_bytes, members.progress.astype(jnp.float64))
    moved = moved + exact_product(n.token_bytes, count)
    dynamic = lax.optimization_barrier(moved) - weights
    return exact_quotient(dynamic, n.tp)


def sums_in_order(
    columns: tuple[jax.Array, ...], members: Members, counts: jax.Array
) -> tuple[jax.Array, ...]:
    """Return each column's sum over the members that count `[slot]`, prompts before decodes, each in batch order.

    Float sums depend on the order. Each round takes the least place after the last one, which costs less than sorting
    the slots.
    """
    size = counts.shape[0]
    slot = lax.iota(jnp.int64, size)
    group = jnp.where(members.in_decode, jnp.int64(2**31), jnp.int64(0))
    place = group + members.order.astype(jnp.int64)
    places = jnp.where(counts, place * size + slot, jnp.int64(2**62))

    def add(_: jax.Array, state: tuple[jax.Array, ...]) -> tuple[jax.Array, ...]:
        *sums, last = state
        least = jnp.min(jnp.where(places > last, places, jnp.int64(2**62)))
        at = (least % size).astype(jnp.int32)
        added = (total + column[at] for total, column in zip(sums, columns, strict=True))
        return *added, least

    start = (*(jnp.float64(0.0) for _ in columns), jnp.int64(-1))
    *sums, _ = lax.fori_loop(0, jnp.sum(counts, dtype=jnp.int32), add, start)
    return tuple(sums)
