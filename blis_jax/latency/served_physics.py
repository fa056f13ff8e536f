"""`served-physics`: step times from sizes, with a few shares and overheads fitted to measured servers. Ours.

It differs from `trained-physics` where measured steps demand it: experts are loaded only if a token of the batch
chooses them, sampling costs per entry of the vocabulary, weights and arithmetic overlap, and all overheads are scaled
by one factor, which a GPU may have of its own.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any, NamedTuple

from blis_jax.core.views import Members, StepBatch
from blis_jax.latency import caches
from blis_jax.latency.contract import FromSizes, latency_model
from blis_jax.latency.deployment import Deployment, kv_bytes_per_token
from blis_jax.latency.model_description import ModelDescription, attention_parameters
from blis_jax.lazy import jax, jnp

if TYPE_CHECKING:
    from jaxtyping import Array, Float

    from blis_jax.core.exact import Number

ALPHA = (0.0, 0.0, 0.0)
# round numbers; fits are in papers/real_servers/predict/served_fits.yaml
BETA = (1.1, 1.5, 60.0, 2.0, 20.0, 30.0, 40.0, 300.0, 1.8, 1.0)
COEFFICIENTS = (
    "share of the time to load weights",
    "share of the time to read the KV cache",
    "µs per layer",
    "µs per layer for each further GPU that shares it",
    "µs per 100,000 logits",
    "µs per 1,000,000 activations of decodes, counted once a layer",
    "µs per layer with experts",
    "µs per prompt in the step",
    "share of the time for arithmetic at the peak",
    "pace: factor of all costs in µs",
)
KV_READS = 2.0  # keys and values
FLOPS = 2.0  # per weight and token


class ServedNumbers(NamedTuple):
    """The deployment's numbers that the step time uses, in this order, all float64; times in µs."""

    every_step_us: Number  # of layers, also those with experts
    fixed_weights_us: Number  # weights that every step loads
    expert_weights_us: Number  # all experts, of which a batch needs some
    unchosen: Number  # share of a layer's experts that one token does not choose; 0 without experts
    kv_us: Number  # one token of context
    per_decode_us: Number
    per_prompt_us: Number
    token_us: Number  # arithmetic of one token, without attention
    attention_us: Number  # arithmetic of one token for one token of context


def vector(beta: Sequence[float], deployment: Deployment) -> tuple[float, ...]:
    """Return `ServedNumbers` of a deployment.

    Args:
        beta: the ten coefficients.
        deployment: the model on its GPUs.

    Raises:
        ConfigError: the model cannot be divided evenly among the GPUs.
    """
    deployment.refuse_uneven()
    if deployment.model.kinds.compressed:
        deployment.refuse_other_layers("served-physics")
    return tuple(float(number) for number in numbers_of(beta, deployment))


def numbers_of(beta: Sequence[Any], deployment: Deployment) -> ServedNumbers:
    """Return `ServedNumbers` of a deployment, for coefficients that may be traced by JAX."""
    weights, kv, layer, sharing, logits, activations, expert_layer, prompt, arithmetic, pace = beta
    model, dp = deployment.model, float(deployment.dp)
    gpus = deployment.tp * dp
    byte_us = 1.0 / (deployment.gpu.bandwidth_tbs * 1e6)
    flop_us = arithmetic / (deployment.peak_tflops * 1e6)
    sizes = sizes_of(deployment)
    chosen = model.num_experts_per_tok / model.num_experts if model.is_moe else 1.0
    attention = float(model.num_attention_layers * model.num_heads * model.head_size)
    wide = float(model.num_layers * model.hidden_size)
    num_moe = float(sizes.num_moe_layers)
    # read and written
    states = (
        2.0
        * model.kinds.linear
        * caches.state_bytes(model.kinds, deployment.tp, model.activation_bytes)
    )
    layers_us = (layer + sharing * (deployment.tp - 1)) * model.num_layers
    return ServedNumbers(
        every_step_us=pace * (layers_us + expert_layer * num_moe),
        fixed_weights_us=weights * byte_us * sizes.fixed_bytes,
        expert_weights_us=weights * byte_us * sizes.expert_bytes,
        unchosen=1.0 - chosen,
        kv_us=kv * byte_us * sizes.kv_bytes,
        per_decode_us=pace * (logits * model.vocab_size / 1e5 + activations * wide / 1e6) / dp
        + kv * byte_us * states / dp,
        per_prompt_us=pace * prompt,
        token_us=FLOPS * flop_us * (sizes.fixed_numbers + chosen * sizes.expert_numbers),
        attention_us=2.0 * FLOPS * flop_us * attention / gpus,
    )


class Sizes(NamedTuple):
    """The sizes, in bytes and counts, of what one GPU holds and reads."""

    fixed_bytes: float  # weights without experts
    expert_bytes: float  # weights of all experts
    fixed_numbers: float
    expert_numbers: float
    kv_bytes: float  # of one token of context
    num_moe_layers: int


def sizes_of(deployment: Deployment) -> Sizes:
    """Return the sizes of weights and KV cache on one GPU; the vocabulary head has the activations' precision."""
    model, gpus = deployment.model, float(deployment.tp * deployment.dp)
    d, layers, each = model.hidden_size, model.num_layers, model.weight_bytes
    kv_dim = model.num_kv_heads * model.head_size
    query = model.num_heads * model.head_size
    num_moe = _num_moe_layers(deployment)
    is_plain = model.kinds.is_plain
    fixed = float(
        layers * d * (2 * query + 2 * kv_dim) if is_plain else attention_parameters(model)
    )
    fixed += float((layers - num_moe) * 3 * d * model.dense_size)
    fixed += float(num_moe * 3 * d * _shared_size(model))
    experts = float(num_moe * model.num_experts * 3 * d * model.expert_size)
    head = float(model.vocab_size * d)
    kv = layers * KV_READS * kv_dim * model.activation_bytes / gpus
    if model.kv_lora_rank > 0:  # one latent vector for all heads
        kv = layers * (model.kv_lora_rank + model.qk_rope_head_dim) * model.activation_bytes
        kv /= deployment.dp
    if not is_plain:
        kv = kv_bytes_per_token(deployment) / deployment.dp
    return Sizes(
        (fixed * each + head * model.activation_bytes) / gpus,
        experts * each / gpus,
        (fixed + head) / gpus,
        experts / gpus,
        kv,
        num_moe,
    )


def _num_moe_layers(deployment: Deployment) -> int:
    """Return the number of layers with experts: every `interleave_moe_layer_step`-th after the first dense ones."""
    model = deployment.model
    if not model.is_moe:
        return 0
    return (model.num_layers - model.first_k_dense_replace) // max(
        model.interleave_moe_layer_step, 1
    )


def _shared_size(model: ModelDescription) -> int:
    """Return the width of the shared experts; Llama 4, the only interleaved family, names none for its one."""
    return model.shared_expert_size or (
        model.expert_size if model.interleave_moe_layer_step > 0 else 0
    )


@latency_model(
    COEFFICIENTS,
    needs_members=True,
    has_equal_decode_steps=False,
    overhead=ServedNumbers._fields.index("every_step_us"),
    sizes=FromSizes(vector, ALPHA, BETA, len(COEFFICIENTS)),
)
def served_physics(beta: Float[Array, "number"], batch: StepBatch) -> jax.Array:
    """Return the larger of weights and arithmetic, KV reads of decodes, and overheads; at least 1 µs."""
    members = batch.members
    assert members is not None
    numbers = ServedNumbers(*(beta[place] for place in range(len(ServedNumbers._fields))))
    prompts, prompt_tokens, attended, decodes, context = _sums(members)
    total = step_us(numbers, prompts, prompt_tokens, attended, decodes, context)
    return jnp.maximum(total, 1.0)


def step_us(
    numbers: ServedNumbers,
    prompts: Number,
    prompt_tokens: Number,
    attended: Number,
    decodes: Number,
    context: Number,
    larger: Callable[[Number, Number], Number] | None = None,
) -> Number:
    """Return the time of a step with these sums over its members, which need not be whole numbers.

    Args:
        numbers: the deployment's `ServedNumbers`.
        prompts: number of members in prefill.
        prompt_tokens: sum of their new tokens.
        attended: the sum of new tokens times the context that they attend to on average.
        decodes: number of members in decode.
        context: sum of the tokens that members in decode hold.
        larger: function that returns the larger of two numbers; None: `jnp.maximum`; `max` suits plain numbers.

    Returns:
        The time of the step, µs.
    """
    tokens = prompt_tokens + decodes
    covered = 1.0 - numbers.unchosen**tokens
    weights_us = numbers.fixed_weights_us + numbers.expert_weights_us * covered
    arithmetic_us = numbers.token_us * tokens + numbers.attention_us * attended
    overheads_us = numbers.every_step_us + numbers.per_decode_us * decodes
    overheads_us = overheads_us + numbers.per_prompt_us * prompts
    larger = larger or jnp.maximum
    return larger(weights_us, arithmetic_us) + numbers.kv_us * context + overheads_us


def _sums(members: Members) -> tuple[jax.Array, ...]:
    """Return the sums over the members that `step_us` takes, as float64."""
    new = jnp.where(members.in_prefill, members.new_tokens, 0).astype(jnp.float64)
    before = jnp.maximum(members.context - members.new_tokens, 0).astype(jnp.float64)
    attended = new * (before + new / 2.0)
    context = jnp.where(members.in_decode, members.context, 0).astype(jnp.float64)
    prompts = (members.in_prefill & members.in_step).astype(jnp.float64)
    decodes = members.in_decode.astype(jnp.float64)
    return (
        jnp.sum(prompts),
        jnp.sum(new),
        jnp.sum(attended),
        jnp.sum(decodes),
        jnp.sum(context),
    )
