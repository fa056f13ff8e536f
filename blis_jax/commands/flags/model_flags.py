"""The reference's options about the served model, its GPUs, and how long a step takes."""

from __future__ import annotations

from blis_jax.commands.cli import Flag, number, numbers, truth, whole

MODEL_FLAGS = (
    Flag("model", str, "", "NAME", "model to serve, such as meta-llama/llama-3.1-8b-instruct"),
    Flag(
        "hardware",
        str,
        "",
        "GPU",
        "GPU type, such as H100, or FILE:GPU of a --hardware-config; the model's default if not given",
    ),
    Flag(
        "tp",
        whole,
        None,
        "N",
        "GPUs per instance (tensor parallelism); BLIS's default for the model if not given",
    ),
    Flag(
        "dp",
        whole,
        1,
        "N",
        "GPU groups per instance (data parallelism) of a model with experts; trained-physics alone",
    ),
    Flag(
        "model-config",
        str,
        "",
        "FILE",
        "config.json of the model, for trained-physics and roofline; the shipped one if not given",
    ),
    Flag(
        "model-config-folder",
        str,
        None,
        "DIR",
        "the folder of --model-config, under the name that BLIS has for it",
    ),
    Flag(
        "hardware-config",
        str,
        None,
        "FILE",
        "JSON file of BLIS that describes GPUs, in place of the shipped ones; blis-2026-08",
    ),
    Flag(
        "defaults-filepath",
        str,
        None,
        "FILE",
        "defaults.yaml of BLIS: GPU and tp of models, coefficients of trained-physics, presets; "
        "descriptions of models and GPUs beside it count too; blis-2026-08",
    ),
    Flag(
        "moe-comm-backend",
        str,
        "",
        "NAME",
        "how experts exchange tokens with dp above 1: naive, allgather_reducescatter, pplx, "
        "deepep_high_throughput, deepep_low_latency, mori or flashinfer_all2allv; naive if not given",
    ),
    Flag(
        "enable-expert-parallel",
        truth,
        False,
        "BOOL",
        "vLLM's option of models with experts; as in BLIS it changes no step time of trained-physics",
    ),
    Flag(
        "gpu-memory-utilization",
        number,
        0.9,
        "X",
        "share of GPU memory that weights and KV blocks may use, for trained-physics and roofline",
    ),
    Flag("vllm-version", str, "", "V", "vLLM version of the fit; the model's default"),
    Flag(
        "alpha-coeffs",
        numbers,
        None,
        "A0,A1,A2",
        "µs of queueing per request, per prompt token, µs of output processing per token; for trained-physics "
        "the second is µs once after decode",
    ),
    Flag(
        "beta-coeffs",
        numbers,
        None,
        "B0,B1,B2[,B3]",
        "µs per step, per prefill and per decode token, and what --latency-model adds; 7 to 11 corrections for "
        "trained-physics",
    ),
    Flag(
        "latency-model",
        str,
        "auto",
        "NAME",
        "model of a step's time; auto takes blackbox for three B, and for four B blackbox-context, or "
        "blackbox-attention in the routing variant",
    ),
    Flag(
        "coefficients-from",
        str,
        None,
        "FIT",
        "coefficients from a result of blis_jax.calibrate, in place of --alpha-coeffs and --beta-coeffs",
    ),
    Flag(
        "total-kv-blocks",
        whole,
        None,
        "N",
        "KV blocks of one instance; if not given, the fit's, 1000000 with given coefficients, or what "
        "fits into memory with trained-physics and roofline",
    ),
    Flag("block-size-in-tokens", whole, 16, "N", "tokens in one KV block"),
)
