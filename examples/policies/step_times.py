"""A latency model from outside the package: a step costs more while prompts are computed beside decoding.

    blis-jax run --model meta-llama/llama-3.1-8b-instruct --num-instances 2 --workload chatbot \
        --latency-model examples/policies/step_times.py:interference --beta-coeffs 6900,17.7,2.8,900
"""

import jax.numpy as jnp

from blis_jax.latency import latency_model


@latency_model(("µs per step", "µs per prefill token", "µs per decode token", "µs per mixed step"))
def interference(beta, batch):
    """The linear model, plus a constant for steps that have both prompts and decoding."""
    prefill = batch.num_prefill_tokens.astype(jnp.float64)
    decode = batch.num_decode_tokens.astype(jnp.float64)
    is_mixed = (prefill > 0) & (decode > 0)
    return beta[0] + beta[1] * prefill + beta[2] * decode + jnp.where(is_mixed, beta[3], 0.0)
