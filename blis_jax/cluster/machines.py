"""A cluster's machines: its instances with their GPUs and step times, and their KV memory."""

from __future__ import annotations

import dataclasses
import functools
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from blis_jax.cluster.adapters import reserved_bytes
from blis_jax.cluster.settings import setting
from blis_jax.latency.caches import PLAIN
from blis_jax.latency.deployment import Deployment, gpu_description, kv_blocks
from blis_jax.latency.model_description import ModelDescription, model_description
from blis_jax.latency.registry import AUTO

if TYPE_CHECKING:
    from blis_jax.cluster.config import ClusterConfig
    from blis_jax.cluster.instance_groups import InstanceGroup
    from blis_jax.cluster.node_pools import NodePool

MAX_INSTANCES = 2**15 - 1  # instances are numbered in 16 bits in the golden format
DECIDERS = ("never", "always", "prefix-threshold")
ENCODE_DECIDERS = ("never", "multimodal", "always")


@dataclass(frozen=True)
class PoolSettings:
    """Prefill, decode and encode pools of BLIS's revision of August 2026; see disaggregation.py."""

    prefill_instances: int = setting(
        0, "instances of blis-2026-08 that compute prompts alone", "instances", low=0
    )
    decode_instances: int = setting(0, "instances that make tokens alone", "instances", low=0)
    prefill_decode_instances: int = setting(0, "instances that do both", "instances", low=0)
    encode_instances: int = setting(
        0, "instances for images and sound, which take no time", "instances", low=0
    )
    encode_decider: str = setting(
        "never", "which requests are routed there: never, multimodal or always", choices=ENCODE_DECIDERS,
    )  # fmt: skip
    pd_decider: str = setting(
        "never", "which prompts are computed in the prefill pool: never, always or prefix-threshold",
        choices=DECIDERS,
    )  # fmt: skip
    pd_prefix_threshold: int = setting(
        16, "tokens not cached on the decode instance above which prefix-threshold sends a prompt there", "tokens",
        low=0,
    )  # fmt: skip
    pd_transfer_bandwidth: float = setting(
        25.0, "bandwidth of a KV transfer, GB/s", "GB/s", low=0, excludes_low=True
    )
    pd_transfer_base_latency: float = setting(
        0.05, "time of a KV transfer without its bytes", "ms", low=0, metavar="MS"
    )
    pd_transfer_contention: bool = setting(
        False, "transfers under way share the bandwidth with the one that starts"
    )
    prefill_routing_scorers: str = setting(
        "", "name:weight pairs for a router of the prefill pool alone; decode-routing-scorers for the decode pool",
        words="a name of [Policies](policies.md), or `path/to/file.py:Name`, each with `:weight` above 0",
        metavar="LIST",
    )  # fmt: skip
    prefill_tp: int = setting(0, "GPUs of an instance in the prefill pool; 0: --tp", "GPUs", low=0)
    decode_tp: int = setting(0, "GPUs of an instance in the decode pool; 0: --tp", "GPUs", low=0)
    prefill_hardware: str = setting(
        "", "GPU type that decides the KV blocks of the prefill pool, and no step time; --hardware if not given",
        metavar="GPU",
    )  # fmt: skip
    decode_hardware: str = setting("", "the same for the decode pool", metavar="GPU")
    prefill_latency_model: str = setting(
        "", "latency model of the prefill pool: trained-physics or roofline; --latency-model if not given",
    )  # fmt: skip
    decode_latency_model: str = setting("", "the same for the decode pool")
    prefill_max_model_len: int = setting(
        0, "--max-model-len of the prefill pool; 0: the same", "tokens", low=0
    )
    decode_max_model_len: int = setting(0, "the same for the decode pool", "tokens", low=0)


@dataclass(frozen=True)
class Machines(PoolSettings):
    """The instances: the model that they serve, their GPUs, how long a step takes, and how many there are."""

    model: str = setting(
        "meta-llama/llama-3.1-8b-instruct",
        "model to serve; the commands take its coefficients and blocks from the published fits, trained-physics and "
        "roofline its sizes from its description", option="model to serve, such as meta-llama/llama-3.1-8b-instruct",
        shown="", is_found=True,
    )  # fmt: skip
    hardware: str = setting(
        "H100", "GPU type",
        option="GPU, such as H100; if not given the model's",
        metavar="GPU", shown="", is_found=True,
    )  # fmt: skip
    tp: int = setting(
        2, "GPUs per instance (tensor parallelism)", "GPUs", words="a whole number",
        option="GPUs per instance; if not given the model's", is_found=True,
    )  # fmt: skip
    dp: int = setting(
        1, "GPU groups per instance (data parallelism) of a model with experts; trained-physics alone",
        "groups of GPUs", low=0, excludes_low=True,
    )  # fmt: skip
    model_config: str = setting(
        "", "config.json of the model, for trained-physics and roofline; the shipped one if not given",
        words="path of a file, or of its folder", metavar="FILE",
    )  # fmt: skip
    moe_comm_backend: str = setting(
        "",
        "how experts exchange tokens with dp above 1: naive, allgather_reducescatter, pplx, deepep_high_throughput, "
        "deepep_low_latency, mori or flashinfer_all2allv; naive if not given",
        words="naive, allgather_reducescatter, pplx, deepep_high_throughput, deepep_low_latency, mori, "
        "flashinfer_all2allv, or none",
    )  # fmt: skip
    gpu_memory_utilization: float = setting(
        0.9, "share of GPU memory that weights and KV blocks may use, for trained-physics and roofline", "share",
        low=0, high=1, excludes_low=True,
    )  # fmt: skip
    alpha_coeffs: tuple[float, float, float] = setting(
        (1601.350510688092, 3.512476196805965, 1805.5430360826988),
        "µs of queueing per request, per prompt token, µs of output processing per token; for trained-physics the "
        "second is µs once after decode", "µs, µs/token, µs/token", words="three finite numbers", metavar="A0,A1,A2",
        is_found=True,
    )  # fmt: skip
    beta_coeffs: tuple[float, ...] = setting(
        (6910.420479880494, 17.67057489844186, 2.8377471109943855),
        "µs per step, per prefill and per decode token, and what --latency-model adds; 7 to 11 corrections for "
        "trained-physics", "µs, µs/token, µs/token", words="as many as the latency model has",
        metavar="B0,B1,B2[,B3]", is_found=True,
    )  # fmt: skip
    latency_model: str = setting(
        AUTO,
        "model of a step's time; auto takes blackbox for three B, and for four B "
        "blackbox-context, or blackbox-attention in the routing variant",
    )
    num_instances: int = setting(
        1, "instances behind the router", "instances", low=1, high=MAX_INSTANCES
    )
    instances: tuple[InstanceGroup, ...] = setting(
        (), "groups of instances with numbers of their own", words="see [Mix instances](../how-to/instances.md)",
        option="file of groups of unlike instances, in place of --num-instances",
        metavar="FILE",
    )  # fmt: skip
    node_pools: tuple[NodePool, ...] = setting(
        (),
        "machines of blis-2026-08, read from a policy file",
        words="see [BLIS's autoscaler](../how-to/elastic.md#bliss-autoscaler)",
    )


@dataclass(frozen=True)
class MemorySettings:
    """KV blocks of an instance, on its GPUs and in CPU memory."""

    total_kv_blocks: int = setting(
        132139, "KV blocks of one instance", "blocks", low=0, excludes_low=True,
        option="KV blocks of one instance; if not given, the fit's, what fits into memory, or 1000000 with "
        "given coefficients", is_found=True,
    )  # fmt: skip
    block_size_in_tokens: int = setting(
        16, "tokens in one KV block", "tokens", low=0, excludes_low=True
    )
    enable_prefix_caching: bool = setting(
        True,
        "reuse cached KV blocks of a prompt's beginning; false: compute every prompt whole",
    )
    kv_cpu_blocks: int = setting(
        0, "KV blocks in CPU memory per instance; 0: no CPU tier", "blocks", low=0
    )
    kv_offload_threshold: float = setting(
        0.9, "GPU use (0 to 1) above which blocks move to CPU memory", "share", low=0, high=1
    )
    kv_transfer_bandwidth: float = setting(
        100.0, "tokens per µs between the tiers", "tokens/µs", low=0, excludes_low=True
    )
    kv_transfer_base_latency: int = setting(
        0, "µs that each transfer takes beside its tokens", "µs", low=0
    )


# --- what an instance serves where step times come from sizes, and the KV blocks that its GPUs have room for -


UNKNOWN_KV_BLOCKS = 1_000_000  # the reference's, of a model whose experts are not counted


def deployment(config: ClusterConfig, hardware: str, tp: int, dp: int) -> Deployment:
    """Return the configuration's model deployed on GPUs of the kind `hardware`, with these parallel sizes.

    Raises:
        ConfigError: a name is not known, a file cannot be used, or a number of GPUs is not allowed.
    """
    model = _described(config.model, config.model_config, _stamp(config.model_config))
    if config.is_august and not config.corrected:  # BLIS knows layers of one kind
        model = dataclasses.replace(model, kinds=PLAIN, expert_bytes=0.0)
    return Deployment(model, gpu_description(hardware), tp, dp, config.moe_comm_backend)


def blocks_of(
    config: ClusterConfig,
    hardware: str,
    tp: int,
    dp: int,
    memory: float | None = None,
    block_size: int = 0,
) -> int:
    """Return the KV blocks of an instance on GPUs of the kind `hardware`, each with `memory` GiB if given.

    `block_size` is in tokens; 0 stands for the configuration's block size.

    Raises:
        ConfigError: as in `deployment`, or the model does not fit into the GPUs' memory.
    """
    served = deployment(config, hardware, tp, dp)
    if memory is None and not served.gpu.memory_gib:  # a file need not say it
        return UNKNOWN_KV_BLOCKS
    if memory is not None:
        gpu = dataclasses.replace(served.gpu, memory_gib=memory)
        served = dataclasses.replace(served, gpu=gpu)
    sizes = block_size or config.block_size_in_tokens, config.gpu_memory_utilization
    is_vllm = config.preemption_mode == "recompute"
    most, reserved = config.max_num_running_reqs, reserved_bytes(config)
    blocks = kv_blocks(served, *sizes, reserved, most, is_vllm)
    return UNKNOWN_KV_BLOCKS if blocks is None else blocks


def _stamp(path: str) -> int:
    """Return the file's time of change; 0 if unknown, so that the later attempt to read the file raises the error."""
    file = Path(path) / "config.json" if Path(path).is_dir() else Path(path)
    try:
        return file.stat().st_mtime_ns if path else 0
    except OSError:
        return 0


@functools.lru_cache(maxsize=256)
def _described(name: str, config_file: str, stamp: int) -> ModelDescription:
    """Return the model's description, cached by `stamp`, so that a changed file is read again."""
    return model_description(name, config_file)
