"""The 2026-08 step times once more, in plain Python and by request: slow, and nothing of the engine in it."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import Any

import numpy as np

from blis_jax.core.types import LAST
from blis_jax.core.views import Members, StepBatch
from blis_jax.latency.deployment import ALL_TO_ALL, Deployment, gpu_description
from blis_jax.latency.model_description import model_description

Member = Sequence[int]  # input length, output length, progress, new tokens


def trained_physics_us(deployment: Deployment, beta: Sequence[float], batch: list[Member]) -> int:
    """The step time of a batch, whole µs."""
    if not batch:
        return 1
    m, gpu = deployment.model, deployment.gpu
    layers, d, tp, dp = float(m.num_layers), float(m.hidden_size), deployment.tp, deployment.dp
    head_dim, moe = m.hidden_size // m.num_heads, m.is_moe
    d_kv, h = float(m.num_kv_heads * head_dim), m.num_heads / tp
    n_moe = m.num_moe_layers
    n_dense, k = m.num_layers - n_moe, max(1, m.num_experts_per_tok)
    td, group = tp * dp, tp * dp if moe else tp
    peak, bandwidth = deployment.peak_tflops * 1e6, gpu.bandwidth_tbs * 1e6
    tokens = attention = decodes = context = 0.0
    for input_len, output_len, progress, new in batch:
        if progress < input_len:
            tokens += new
            attention += 4 * h * new * (input_len + new / 2) * head_dim
        elif output_len > 0:
            decodes += 1
            context += progress

    def ffn(n: float) -> float:
        total = 0.0
        if n_moe > 0:
            total += n_moe * (n * k / group) * 6 * d * m.expert_size
            total += n_moe * n * 6 * d * m.shared_expert_size / td if m.shared_expert_size else 0.0
        if n_dense > 0:
            total += n_dense * n * 1 * 6 * d * m.dense_size / td
        return total

    def compute(n: float, attn: float) -> float:
        return (layers * 2 * n * d * (2 * d + 2 * d_kv) / td + attn + ffn(n)) / peak

    def reduce(units: float) -> float:
        if tp <= 1:
            return 0.0
        moved = units * (tokens + decodes) * d * m.activation_bytes * 2.0 * ((tp - 1) / tp)
        return moved / bandwidth

    pf_c = compute(tokens, layers * attention / dp) if tokens > 0 else 0.0
    pf_m = layers * 2 * (d_kv / td) * tokens * 2.0 / bandwidth
    dc_c = compute(decodes, layers * 4 * h * context * head_dim / dp) if decodes > 0 else 0.0
    dc_m = layers * 2 * (d_kv / td) * 2.0 * (context + decodes) / bandwidth if decodes > 0 else 0.0
    size, feed = m.weight_bytes, 0.0
    if n_moe > 0:
        feed += n_moe * (m.num_experts / group) * 3 * d * m.expert_size * size
        feed += n_moe * 3 * d * m.shared_expert_size * size / tp if m.shared_expert_size else 0.0
    if n_dense > 0:
        feed += n_dense * 1 * 3 * d * m.dense_size * size / tp
    weights = (layers * d * (2 * d + 2 * d_kv) * size / tp + feed) / bandwidth
    moe_reduce = reduce(n_moe) if moe and dp == 1 and tp > 1 else 0.0
    dispatch = 0.0
    if moe and dp > 1:
        copies = (tokens + decodes) / dp
        if deployment.moe_comm_backend in ALL_TO_ALL:
            copies = copies * k
        dispatch = n_moe * (copies * (group - 1) / group * 2 * d * m.activation_bytes / bandwidth)
    b = [*beta, *[0.0] * (11 - len(beta))]
    b11 = b[10] if len(beta) > 10 else b[3]
    prefill = b[0] * pf_c + b[8] * pf_m if len(beta) >= 9 else b[0] * max(pf_c, pf_m)
    decode = b[1] * dc_c + b[9] * dc_m if len(beta) >= 10 else b[1] * max(dc_c, dc_m)
    interleaved = 1 if moe and m.interleave_moe_layer_step > 0 else 0
    exchange = reduce(layers) / dp + reduce(n_dense) / dp + moe_reduce
    total = prefill + decode + b[2] * weights + b[3] * exchange + b11 * dispatch + b[4] * layers
    return max(1, int(total + b[5] * len(batch) + b[6] + b[7] * interleaved * n_moe))


def roofline_us(deployment: Deployment, beta: Sequence[float], batch: list[Member]) -> int:
    """The step time of a batch, whole µs; Python's power may differ from Go's in the last bit."""
    del beta
    m, tp = deployment.model, deployment.tp
    layers, d, heads = float(m.num_layers), float(m.hidden_size), float(m.num_heads)
    head_dim = d / heads
    d_kv, kv = m.num_kv_heads * head_dim, float(m.num_kv_heads)
    n_moe = m.num_moe_layers
    n_dense, k, experts = m.num_layers - n_moe, m.num_experts_per_tok, m.num_experts
    peak, bandwidth = deployment.peak_tflops * 1e12, deployment.gpu.bandwidth_tbs * 1e12
    size = m.activation_bytes

    def flops(q: float, n: float) -> float:
        context = q + (n - 1) / 2.0 if n > 1 else q
        gemm = (2 * n * (d * d + 2 * d * d_kv) + 2 * n * d * d) * layers
        gemm += (4 * heads * n * context * head_dim) * layers
        sram = ((5 * heads * n * context) + 2 * n * d) * layers
        if n_moe:
            gemm += 2 * n * (2 * d * m.expert_size) * k * n_moe
        if n_dense:
            gemm += 2 * n * (2 * d * m.dense_size) * n_dense
        return gemm + sram

    def weights(n: int) -> float:
        touched = experts * (1 - ((experts - k) / experts) ** n) if n_moe else 0.0
        feed = 2 * d * m.expert_size * touched * n_moe + 2 * d * m.dense_size * n_dense
        return ((d * (d + 2 * d_kv) + d * d) * layers + feed) * m.weight_bytes

    def moved(q: float, n: int) -> float:
        w, per_token = weights(n), 2 * layers * kv * head_dim * size
        return ((w + per_token * n + per_token * q + layers * d * size * n) - w) / tp

    prompts = [one for one in batch if one[2] < one[0]]
    decodes = [one for one in batch if one[2] >= one[0] and one[1] > 0]
    if not prompts and not decodes:
        return 1
    compute = bytes_moved = 0.0
    for _, _, q, n in prompts:
        compute += flops(q, n) / tp / (peak * deployment.gpu.prefill_mfu)
        bytes_moved += moved(q, n)
    for _, _, q, _ in decodes:
        compute += flops(q, 1) / tp / (peak * deployment.gpu.decode_mfu)
        bytes_moved += moved(q, 1)
    tokens = sum(one[3] for one in prompts) + len(decodes)
    memory = (weights(tokens) / tp + bytes_moved) / bandwidth
    return max(1, int(max(compute, memory) * 1e6))


STEP_TIMES = {"trained-physics": trained_physics_us, "roofline": roofline_us}


def served(config: Mapping[str, Any]) -> Deployment:
    """What an instance serves, from the reference's flags."""
    model = model_description(config["model"])
    gpu = gpu_description(config["hardware"])
    return Deployment(
        model, gpu, config["tp"], config.get("dp", 1), config.get("moe-comm-backend", "")
    )


def step_batches(batches: Iterable[list[Member]], slots: int) -> StepBatch:
    """Batches in slots `[batch, slot]`, each in an order of slots of its own, as a latency model sees them."""
    rng, rows = np.random.default_rng(1), []
    for batch in batches:
        row = np.zeros((slots, 5), np.int32)  # the order is the last column
        row[:, 4] = LAST
        places = rng.permutation(slots)[: len(batch)]
        row[places, :4], row[places, 4] = np.reshape(batch, (-1, 4)), 3 * np.arange(len(batch))
        rows.append(row)
    table = np.stack(rows)
    inputs, outputs, progress, new, order = np.moveaxis(table, -1, 0)
    is_there = order != LAST
    in_prefill = is_there & (progress < inputs)
    in_decode = is_there & ~in_prefill & (outputs > 0)
    members = Members(
        in_prefill=in_prefill,
        new_tokens=np.where(in_decode, 1, new),
        progress=progress,
        context=progress + new,
        in_step=is_there,
        in_decode=in_decode,
        input_len=inputs,
        order=order,
    )
    prefill = np.sum(np.where(in_prefill, new, 0), axis=1, dtype=np.int32)
    return StepBatch(prefill, np.sum(in_decode, axis=1, dtype=np.int32), members)
