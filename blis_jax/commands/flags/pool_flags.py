"""Options of BLIS's revision of August 2026 about its pools, policy files and autoscaler, under its names."""

from __future__ import annotations

from blis_jax.commands.cli import Flag, number, truth, whole

POOL_FLAGS = (
    Flag(
        "prefill-instances", whole, 0, "N", "instances of blis-2026-08 that compute prompts alone"
    ),
    Flag("decode-instances", whole, 0, "N", "instances that make tokens alone"),
    Flag("prefill-decode-instances", whole, 0, "N", "instances that do both"),
    Flag("encode-instances", whole, 0, "N", "instances for images and sound, which take no time"),
    Flag(
        "encode-decider",
        str,
        "never",
        "NAME",
        "which requests are routed there: never, multimodal or always",
    ),
    Flag(
        "pd-decider",
        str,
        "never",
        "NAME",
        "which prompts are computed in the prefill pool: never, always or prefix-threshold",
    ),
    Flag(
        "pd-prefix-threshold",
        whole,
        16,
        "N",
        "tokens not cached on the decode instance above which prefix-threshold sends a prompt there",
    ),
    Flag("pd-transfer-bandwidth", number, 25.0, "X", "bandwidth of a KV transfer, GB/s"),
    Flag("pd-transfer-base-latency", number, 0.05, "MS", "time of a KV transfer without its bytes"),
    Flag(
        "pd-transfer-contention",
        truth,
        False,
        "BOOL",
        "transfers under way share the bandwidth with the one that starts",
    ),
    Flag(
        "prefill-routing-scorers",
        str,
        "",
        "LIST",
        "name:weight pairs of a router of the prefill pool's own; decode-routing-scorers for the decode pool",
    ),
    Flag("prefill-tp", whole, 0, "N", "GPUs of an instance in the prefill pool; 0: --tp"),
    Flag("decode-tp", whole, 0, "N", "GPUs of an instance in the decode pool; 0: --tp"),
    Flag(
        "prefill-hardware",
        str,
        "",
        "GPU",
        "GPU type that decides the KV blocks of the prefill pool, and no step time; --hardware if not given",
    ),
    Flag("decode-hardware", str, "", "GPU", "likewise of the decode pool"),
    Flag(
        "prefill-latency-model",
        str,
        "",
        "NAME",
        "latency model of the prefill pool: trained-physics or roofline; --latency-model if not given",
    ),
    Flag("decode-latency-model", str, "", "NAME", "likewise of the decode pool"),
    Flag(
        "prefill-max-model-len", whole, 0, "N", "--max-model-len of the prefill pool; 0: the same"
    ),
    Flag("decode-max-model-len", whole, 0, "N", "likewise of the decode pool"),
    Flag(
        "policy-config",
        str,
        None,
        "FILE",
        "policy file of blis-2026-08: admission, routing, scheduler, preemption, node pools, autoscaler; "
        "options that are given count before it",
    ),
    Flag(
        "model-autoscaler-interval-us",
        number,
        None,
        "US",
        "time between two ticks of the autoscaler of blis-2026-08, 0: none; the policy file's if not given",
    ),
)
