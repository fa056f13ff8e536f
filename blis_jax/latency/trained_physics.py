"""`trained-physics` of BLIS's 2026-08 revision: times from sizes, and trained corrections of each.

Every line keeps the reference's order of operations, because the step time is cut to whole microseconds.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, NamedTuple

from blis_jax.core.exact import exact_chain, exact_product, exact_quotient
from blis_jax.core.views import Members, StepBatch
from blis_jax.latency.contract import FromSizes, latency_model
from blis_jax.latency.deployment import ALL_TO_ALL, Deployment
from blis_jax.lazy import jax, jnp, lax

if TYPE_CHECKING:
    from jaxtyping import Array, Float

    from blis_jax.core.exact import Number

# The one set for all models, GPUs and TPs: github.com/inference-sim/inference-sim, commit f90a1e3a,
# defaults.yaml, Apache-2.0.
ALPHA = (15563.199579, 777.3455, 45.907545)  # µs: queueing, once after decode, per output token
BETA = (
    0.152128,
    0.0,
    1.36252915,
    0.752037,
    32.09546717,
    4.41684444,
    126.024825,
    481.8613888,
    0.0,
    1.94710771,
    0.752037,
)
COEFFICIENTS = (
    "β1 share of prefill compute",
    "β2 share of decode compute",
    "β3 share of weight loading",
    "β4 share of tensor-parallel exchange",
    "β5 µs per layer",
    "β6 µs per request in the step",
    "β7 µs per step",
    "β8 µs per layer with experts between dense ones",
    "β9 share of prefill KV writes",
    "β10 share of decode KV reads",
    "β11 share of expert exchange",
)
FEWEST = 7  # β8 to β10 are 0 where they are not given, β11 is β4
KV_BYTES = 2.0  # whatever the model's precision


class PhysicsNumbers(NamedTuple):
    """The deployment's numbers that the step time uses, in this order, all float64."""

    every_step_us: Number  # of weights, layers and the step itself; for records only
    prefill_compute: Number  # β1
    prefill_memory: Number  # β9
    splits_prefill: Number  # 1: both prefill terms add up; 0: the larger counts
    decode_compute: Number  # β2
    decode_memory: Number  # β10
    splits_decode: Number
    exchange: Number  # β4
    expert_exchange: Number  # β11
    weights_us: Number  # β3 · w
    layers_us: Number  # β5 · L
    per_request_us: Number  # β6
    per_step_us: Number  # β7
    expert_layers_us: Number  # β8 · nM, of interleaved models
    twice_layers: Number  # L · 2
    layers: Number
    hidden: Number  # d
    projections: Number  # 2d + 2dKV
    ranks: Number  # tp · dp
    tp: Number
    dp: Number
    group: Number  # GPUs that share the experts
    experts_per_token: Number
    moe_layers: Number
    dense_layers: Number
    expert_size: Number
    dense_size: Number
    shared_size: Number
    peak: Number  # FLOP/µs
    bandwidth: Number  # bytes/µs
    prefill_attention: Number  # 2 · h · hd, h heads on one GPU
    decode_attention: Number  # L · 4 · h
    head_dim: Number
    kv_layers: Number  # L · 2 · (dKV / td)
    activation_bytes: Number
    others_share: Number  # (tp − 1) / tp
    moe_reduces: Number  # 1: experts are summed up as dense layers are
    gathers: Number  # 1: dp > 1, experts exchange tokens by all-gather
    sends: Number  # 1: dp > 1, by all-to-all
    others_in_group: Number  # G − 1


def vector(beta: Sequence[float], deployment: Deployment) -> tuple[float, ...]:
    """Return `PhysicsNumbers` of a deployment.

    Args:
        beta: 7 to 11 coefficients; more are ignored, as in the reference.
        deployment: the model on its GPUs.

    Raises:
        ConfigError: the model cannot be divided evenly among the GPUs.
    """
    deployment.refuse_other_layers("trained-physics")
    deployment.refuse_uneven()
    coefficients = [float(coefficient) for coefficient in beta[: len(COEFFICIENTS)]]
    b = coefficients + [0.0] * (10 - len(coefficients)) if len(coefficients) < 10 else coefficients
    b11 = b[10] if len(b) > 10 else b[3]
    model, tp = deployment.model, float(deployment.tp)
    layers, moe_layers = float(model.num_layers), float(model.num_moe_layers)
    group = tp * float(deployment.dp) if model.is_moe else tp
    interleaved = 1.0 if model.is_moe and model.interleave_moe_layer_step > 0 else 0.0
    weights_us = b[2] * _weights_us(deployment, group)
    expert_layers_us = b[7] * interleaved * moe_layers
    numbers = PhysicsNumbers(
        every_step_us=weights_us + b[4] * layers + b[6] + expert_layers_us,
        prefill_compute=b[0],
        prefill_memory=b[8],
        splits_prefill=float(len(coefficients) >= 9),
        decode_compute=b[1],
        decode_memory=b[9],
        splits_decode=float(len(coefficients) >= 10),
        exchange=b[3],
        expert_exchange=b11,
        weights_us=weights_us,
        layers_us=b[4] * layers,
        per_request_us=b[5],
        per_step_us=b[6],
        expert_layers_us=expert_layers_us,
        moe_layers=moe_layers,
        **_sizes(deployment, group),
    )
    return tuple(float(number) for number in numbers)


def _sizes(deployment: Deployment, group: float) -> dict[str, float]:
    """Return the numbers of a deployment that do not depend on a coefficient."""
    model, tp, dp = deployment.model, float(deployment.tp), float(deployment.dp)
    layers, d, moe = float(model.num_layers), float(model.hidden_size), model.is_moe
    head_dim = model.hidden_size // model.num_heads
    kv_dim, heads = float(model.num_kv_heads * head_dim), float(model.num_heads) / tp
    spreads = moe and deployment.dp > 1
    is_sending = deployment.moe_comm_backend in ALL_TO_ALL
    return {
        "twice_layers": layers * 2,
        "layers": layers,
        "hidden": d,
        "projections": 2 * d + 2 * kv_dim,
        "ranks": tp * dp,
        "tp": tp,
        "dp": dp,
        "group": group,
        "experts_per_token": float(max(1, model.num_experts_per_tok)),
        "dense_layers": layers - float(model.num_moe_layers),
        "expert_size": float(model.expert_size),
        "dense_size": float(model.dense_size),
        "shared_size": float(model.shared_expert_size),
        "peak": deployment.peak_tflops * 1e6,
        "bandwidth": deployment.gpu.bandwidth_tbs * 1e6,
        "prefill_attention": 2 * heads * head_dim,
        "decode_attention": layers * 4 * heads,
        "head_dim": float(head_dim),
        "kv_layers": layers * 2 * (kv_dim / (tp * dp)),
        "activation_bytes": float(model.activation_bytes),
        "others_share": (tp - 1) / tp,
        "moe_reduces": float(moe and deployment.dp == 1),
        "gathers": float(spreads and not is_sending),
        "sends": float(spreads and is_sending),
        "others_in_group": group - 1,
    }


def _weights_us(deployment: Deployment, group: float) -> float:
    """Return the time to load the weights of one GPU once, µs."""
    model, tp = deployment.model, float(deployment.tp)
    layers, d, size = float(model.num_layers), float(model.hidden_size), model.weight_bytes
    kv_dim = float(model.num_kv_heads * (model.hidden_size // model.num_heads))
    attention = layers * d * (2 * d + 2 * kv_dim) * size / tp
    moe_layers = float(model.num_moe_layers)
    dense_layers = layers - moe_layers
    feed_forward = 0.0
    if moe_layers > 0:
        experts = float(model.num_experts) / group
        feed_forward += moe_layers * experts * 3 * d * float(model.expert_size) * size
        if model.shared_expert_size > 0:
            feed_forward += moe_layers * 3 * d * float(model.shared_expert_size) * size / tp
    if dense_layers > 0:
        feed_forward += dense_layers * 1 * 3 * d * float(model.dense_size) * size / tp
    return (attention + feed_forward) / (deployment.gpu.bandwidth_tbs * 1e6)


def _numbers(beta: Float[Array, "number"]) -> PhysicsNumbers:
    return PhysicsNumbers(*(beta[place] for place in range(len(PhysicsNumbers._fields))))


def decode_steps(
    beta: Float[Array, "number"], batch: StepBatch
) -> Callable[[jax.Array], jax.Array]:
    """Return the function from n to `trained_physics` of the step after n decode steps of a batch, float64 µs.

    Args:
        beta: `PhysicsNumbers`.
        batch: the batch before the first of these steps.
    """
    members, numbers, nothing = batch.members, _numbers(beta), jnp.float64(0.0)
    assert members is not None
    progress = jnp.where(members.in_decode, members.progress.astype(jnp.int64), 0)
    total, count = jnp.sum(progress, dtype=jnp.int64), jnp.sum(members.in_decode, dtype=jnp.int64)
    decodes = count.astype(jnp.float64)

    def after(steps: jax.Array) -> jax.Array:
        context = (total + steps.astype(jnp.int64) * count).astype(jnp.float64)
        return _time(numbers, nothing, nothing, decodes, context, decodes)

    return after


@latency_model(
    COEFFICIENTS,
    needs_members=True,
    has_equal_decode_steps=False,
    decode_steps=decode_steps,
    overhead=PhysicsNumbers._fields.index("every_step_us"),
    sizes=FromSizes(vector, ALPHA, BETA, FEWEST, has_time_after_decode=True),
)
def trained_physics(beta: Float[Array, "number"], batch: StepBatch) -> jax.Array:
    """Compute, KV traffic, weights and exchange between GPUs, each corrected, and constants; at least 1 µs.

    The attention of a prompt counts its whole length in every chunk. Sums over members are whole numbers
    below 2^53 for prompts and budgets up to millions of tokens, so their order does not matter.
    """
    numbers = _numbers(beta)
    assert batch.members is not None
    return _time(numbers, *_sums(batch.members, numbers))


def _time(
    numbers: PhysicsNumbers,
    prompt_tokens: jax.Array,
    attention: jax.Array,
    decodes: jax.Array,
    context: jax.Array,
    requests: jax.Array,
) -> jax.Array:
    prefill = _both(
        numbers.prefill_compute,
        _compute_us(numbers, prompt_tokens, attention),
        numbers.prefill_memory,
        _kv_us(numbers, numbers.kv_layers, prompt_tokens),
        numbers.splits_prefill,
    )
    read = exact_chain(numbers.decode_attention, context, numbers.head_dim)
    decode = _both(
        numbers.decode_compute,
        _compute_us(numbers, decodes, exact_quotient(read, numbers.dp)),
        numbers.decode_memory,
        _kv_us(numbers, numbers.kv_layers, context + decodes),
        numbers.splits_decode,
    )
    tokens = prompt_tokens + decodes
    exchange = exact_product(numbers.exchange, _exchange_us(numbers, tokens))
    experts = exact_product(numbers.expert_exchange, _dispatch_us(numbers, tokens))
    per_request = exact_product(numbers.per_request_us, requests)
    total = (prefill + decode) + numbers.weights_us + exchange + experts
    total = total + numbers.layers_us + per_request + numbers.per_step_us + numbers.expert_layers_us
    return jnp.where(requests > 0, jnp.maximum(total, 1.0), 1.0)


def _sums(members: Members, numbers: PhysicsNumbers) -> tuple[jax.Array, ...]:
    """Return, as float64: prompt tokens, layers · attention / dp, decodes, context of the decodes, and members."""
    new = members.new_tokens.astype(jnp.int64)
    lengths = members.input_len.astype(jnp.int64)
    prompt = jnp.where(members.in_prefill, new, 0)
    products = jnp.where(members.in_prefill, new * (2 * lengths + new), 0)
    progress = jnp.where(members.in_decode, members.progress.astype(jnp.int64), 0)
    attention = exact_product(numbers.prefill_attention, _total(products))
    attention = exact_quotient(exact_product(numbers.layers, attention), numbers.dp)
    counts = (_total(mask.astype(jnp.int64)) for mask in (members.in_decode, members.in_step))
    decodes, requests = counts
    return _total(prompt), attention, decodes, _total(progress), requests


def _total(values: jax.Array) -> jax.Array:
    return jnp.sum(values, dtype=jnp.int64).astype(jnp.float64)


def _both(
    compute_share: Number,
    compute: jax.Array,
    memory_share: Number,
    memory: jax.Array,
    splits: Number,
) -> jax.Array:
    """Return the time of a phase: compute and KV traffic each times its share, or the larger times one share."""
    apart = exact_product(compute_share, compute) + exact_product(memory_share, memory)
    return jnp.where(splits > 0, apart, exact_product(compute_share, jnp.maximum(compute, memory)))


def _compute_us(numbers: PhysicsNumbers, tokens: jax.Array, attention: jax.Array) -> jax.Array:
    """Return the time of projections, attention and feed-forward parts for `tokens` tokens, µs."""
    n = numbers
    six = jnp.float64(6.0)
    projected = exact_quotient(
        exact_chain(n.twice_layers, tokens, n.hidden, n.projections), n.ranks
    )
    routed = exact_quotient(exact_product(tokens, n.experts_per_token), n.group)
    feed_forward = exact_chain(n.moe_layers, routed, six, n.hidden, n.expert_size)
    shared = exact_chain(n.moe_layers, tokens, six, n.hidden, n.shared_size)
    feed_forward = feed_forward + exact_quotient(shared, n.ranks)
    dense = exact_chain(n.dense_layers, tokens, six, n.hidden, n.dense_size)
    feed_forward = feed_forward + exact_quotient(dense, n.ranks)
    return exact_quotient(projected + attention + feed_forward, n.peak)


def _kv_us(numbers: PhysicsNumbers, per_token: Number, tokens: jax.Array) -> jax.Array:
    """Return the time to write or read the KV cache of `tokens` tokens, µs; the factor 2 is exact anywhere."""
    bytes_moved = exact_product(per_token * KV_BYTES, tokens)
    return exact_quotient(bytes_moved, numbers.bandwidth)


def _exchange_us(numbers: PhysicsNumbers, tokens: jax.Array) -> jax.Array:
    """Return the time of all-reduces after attention, dense layers and, without data parallelism, expert layers, µs."""

    def reduce(units: Number) -> jax.Array:
        n = numbers
        moved = exact_chain(units, tokens, n.hidden, n.activation_bytes * 2.0, n.others_share)
        return exact_quotient(moved, n.bandwidth)

    attention = exact_quotient(_settled(reduce(numbers.layers)), numbers.dp)
    dense = exact_quotient(_settled(reduce(numbers.dense_layers)), numbers.dp)
    experts = exact_product(numbers.moe_reduces, reduce(numbers.moe_layers))
    return (attention + dense) + experts


def _dispatch_us(numbers: PhysicsNumbers, tokens: jax.Array) -> jax.Array:
    """Return the time to send tokens to experts on other GPUs and back, µs."""
    n = numbers
    local = exact_quotient(tokens, n.dp)

    def moved(copies: jax.Array) -> jax.Array:
        away = exact_quotient(exact_product(copies, n.others_in_group), n.group)
        return exact_chain(away * 2.0, n.hidden, n.activation_bytes)

    gathered = exact_quotient(moved(local), n.bandwidth)
    sent = exact_quotient(moved(exact_product(local, n.experts_per_token)), n.bandwidth)
    once = jnp.where(n.sends > 0, sent, gathered)
    return exact_product(exact_product(n.moe_layers, once), n.sends + n.gathers)


def _settled(value: jax.Array) -> jax.Array:
    """Return the value unchanged but hidden from the compiler, so that a quotient of a quotient stays one."""
    return lax.optimization_barrier(value)
