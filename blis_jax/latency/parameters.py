"""How many weights a model has, counted from its description."""

from __future__ import annotations

from blis_jax.latency.model_description import ModelDescription


def num_parameters(model: ModelDescription) -> int:
    """Return the weights of the model, without a head that drafts tokens."""
    if not model.kinds.is_plain:
        head = 0 if model.tie_word_embeddings else model.vocab_size * model.hidden_size
        mixers = attention_parameters(model) + 2 * model.hidden_size * model.num_layers
        return model.vocab_size * model.hidden_size + mixers + _feed_forward(model) + head
    d, kv = model.hidden_size, model.num_kv_heads * model.head_size
    layer = d * (d + 2 * kv) + d * d + 2 * d
    head = 0 if model.tie_word_embeddings else model.vocab_size * d
    return model.vocab_size * d + model.num_layers * layer + _feed_forward(model) + head + d


def attention_parameters(model: ModelDescription) -> int:
    """Return the weights of all layers but their feed-forward parts, by the kinds of layers."""
    d, kinds, heads = model.hidden_size, model.kinds, model.num_heads * model.head_size
    kv = model.num_kv_heads * model.head_size
    queries = d * model.q_lora_rank + model.q_lora_rank * heads if model.q_lora_rank else d * heads
    outputs = heads * d
    if model.o_lora_rank:  # by groups of heads
        outputs = heads * model.o_lora_rank + model.o_groups * model.o_lora_rank * d
    gate = d * heads if model.has_gate else 0
    shared = d * kv if kinds.compressed else 2 * d * kv  # keys and values are one vector
    full = queries + gate + shared + outputs
    linear = 0
    if kinds.heads:
        wide = kinds.heads.values * kinds.heads.value_dim
        linear = d * (kinds.heads.channels + wide + 2 * kinds.heads.values) + wide * d
    return (model.num_layers - kinds.linear) * full + kinds.linear * linear


def expert_parameters(model: ModelDescription) -> int:
    """Return the weights of all experts among which tokens choose."""
    if not model.is_moe:
        return 0
    layers = model.num_layers - min(model.first_k_dense_replace, model.num_layers)
    return layers * 3 * model.hidden_size * model.expert_size * model.num_experts


def _feed_forward(model: ModelDescription) -> int:
    """Return the weights of all feed-forward parts; every layer of an interleaved model counts as one with experts."""
    d = model.hidden_size
    if not model.is_moe:
        return model.num_layers * 3 * d * model.intermediate_size
    dense = min(model.first_k_dense_replace, model.num_layers)
    experts = 3 * d * model.expert_size * model.num_experts
    layer = experts + 3 * d * model.shared_expert_size + model.num_experts * d
    return dense * 3 * d * model.dense_size + (model.num_layers - dense) * layer
