"""KV blocks that fit beside a model's weights, as the 2026-08 revision of BLIS counts them."""

from __future__ import annotations

import math

from blis_jax.errors import ConfigError
from blis_jax.latency.deployment import Deployment
from blis_jax.latency.model_description import ModelDescription

GIB = float(2**30)
ACTIVATIONS_GIB, MOE_ACTIVATIONS_GIB = 5.5, 8.0
OTHER_GIB_ALONE, OTHER_GIB = (
    0.15,
    0.6,
)  # CUDA and NCCL on one GPU: of one alone, of one among several
GATED = ("silu", "swiglu", "geglu", "situ", "")  # three matrices in a feed-forward part


def kv_bytes_per_token(deployment: Deployment) -> float:
    """Bytes of one token in the KV cache of one GPU."""
    model = deployment.model
    if model.kv_lora_rank > 0:  # one latent vector for all heads, which no GPU can take a part of
        return (
            model.num_layers
            * (model.kv_lora_rank + model.qk_rope_head_dim)
            * model.activation_bytes
        )
    whole = model.num_layers * 2.0 * _head_dim(model) * model.num_kv_heads * model.activation_bytes
    return whole / deployment.tp


def num_parameters(model: ModelDescription) -> int:
    """Weights of the model."""
    d, kv = model.hidden_size, model.num_kv_heads * _head_dim(model)
    layer = d * (d + 2 * kv) + d * d + 2 * d
    head = 0 if model.tie_word_embeddings else model.vocab_size * d
    return model.vocab_size * d + model.num_layers * layer + _feed_forward(model) + head + d


def kv_blocks(
    deployment: Deployment,
    block_size: int = 16,
    memory_utilization: float = 0.9,
    reserved_bytes: float = 0.0,
) -> int | None:
    """KV blocks of one instance.

    Args:
        deployment: the model and its GPUs.
        block_size: tokens in one block.
        memory_utilization: share of a GPU's memory that may be used.
        reserved_bytes: kept free for LoRA adapters.

    Returns:
        The number of blocks; None if the number of experts is not known, so that nothing can be said.

    Raises:
        ConfigError: the model does not fit, or its layers are of a kind that cannot be counted.
    """
    model, tp = deployment.model, deployment.tp
    if model.has_uncounted_experts:
        return None
    _check(deployment, block_size, memory_utilization)
    per_block = int(kv_bytes_per_token(deployment) * block_size)
    weights = int(num_parameters(model) * model.weight_bytes) / GIB
    activations = MOE_ACTIVATIONS_GIB if model.is_moe else ACTIVATIONS_GIB
    other = (OTHER_GIB_ALONE if tp == 1 else OTHER_GIB) * tp
    overhead = weights + activations + other + reserved_bytes / GIB
    available = deployment.gpu.memory_gib * memory_utilization * tp
    if overhead >= available:
        raise ConfigError(_too_small(deployment, overhead, weights, available, memory_utilization))
    blocks = int((available - overhead) * GIB) // per_block
    if blocks <= 0:
        raise ConfigError(
            f"model {model.name}: no KV block of {block_size} tokens ({per_block} bytes) fits into the "
            f"{available - overhead:.2f} GiB that are left; use a larger tp or smaller blocks"
        )
    return blocks * deployment.dp if model.is_moe and deployment.dp > 1 else blocks


def _head_dim(model: ModelDescription) -> int:
    return model.head_dim or model.hidden_size // model.num_heads


def _feed_forward(model: ModelDescription) -> int:
    """Weights of all feed-forward parts; every layer of an interleaved model counts as one with experts."""
    d = model.hidden_size
    if not model.is_moe:
        return model.num_layers * 3 * d * model.intermediate_size
    dense = min(model.first_k_dense_replace, model.num_layers)
    experts = 3 * d * model.expert_size * model.num_experts
    layer = experts + 3 * d * model.shared_expert_size + model.num_experts * d
    return dense * 3 * d * model.dense_size + (model.num_layers - dense) * layer


def _check(deployment: Deployment, block_size: int, memory_utilization: float) -> None:
    model, gpu, tp = deployment.model, deployment.gpu, deployment.tp
    if block_size < 1:
        raise ConfigError(f"block_size_in_tokens must be at least 1, got {block_size}")
    if not 0 < memory_utilization <= 1:
        raise ConfigError(
            f"gpu_memory_utilization must be above 0 and at most 1, got {memory_utilization}"
        )
    if gpu.memory_gib <= 0:
        raise ConfigError(f"hardware {gpu.name}: memory_gib must be above 0, got {gpu.memory_gib}")
    if model.hidden_act not in GATED:
        raise ConfigError(
            f"model {model.name}: the KV blocks beside a feed-forward part with hidden_act "
            f"{model.hidden_act!r} cannot be counted (known: {', '.join(GATED[:-1])}); "
            "give total_kv_blocks"
        )
    if model.hidden_size % model.num_heads and not model.head_dim:
        raise ConfigError(
            f"model {model.name}: hidden_size {model.hidden_size} is no multiple of the "
            f"{model.num_heads} attention heads; give total_kv_blocks"
        )
    if model.num_kv_heads >= tp and model.num_kv_heads % tp:
        raise ConfigError(
            f"tp {tp} does not divide the {model.num_kv_heads} KV heads of model {model.name}; "
            "use another tp, or give total_kv_blocks"
        )


def _too_small(
    deployment: Deployment, overhead: float, weights: float, available: float, share: float
) -> str:
    gpu, tp, model = deployment.gpu, deployment.tp, deployment.model
    least = math.ceil(overhead / (gpu.memory_gib * share))
    return (
        f"model {model.name} needs {overhead:.2f} GiB ({weights:.2f} of weights) and {tp} × {gpu.name} "
        f"have {available:.2f} GiB to use ({gpu.memory_gib:g} GiB × {share:g} × {tp}); "
        f"use a tp of at least {least}, or give total_kv_blocks"
    )
