"""A model on GPUs: everything that a latency model based on sizes knows of an instance."""

from __future__ import annotations

import functools
import math
from collections.abc import Mapping
from dataclasses import dataclass, fields
from pathlib import Path

from blis_jax.errors import ConfigError, choices, closest, shortened
from blis_jax.files.input_files import read_json, shipped
from blis_jax.latency import caches
from blis_jax.latency.model_description import ModelDescription, expert_parameters, num_parameters

ALL_GATHER = ("", "naive", "allgather_reducescatter")
ALL_TO_ALL = ("pplx", "deepep_high_throughput", "deepep_low_latency", "mori", "flashinfer_all2allv")


@dataclass(frozen=True)
class GpuDescription:
    """The capabilities of one GPU; `data/hardware.yaml` names the source.

    Raises:
        ConfigError: a number is not finite or below what is allowed.
    """

    name: str
    peak_tflops: float  # 10^12 FLOP/s
    bandwidth_tbs: float  # 10^12 bytes/s
    prefill_mfu: float  # share of the peak that prefill reaches
    decode_mfu: float
    fp8_tflops: float = 0.0  # 0: no unit for FP8
    memory_gib: float = 0.0  # 0: not said

    def __post_init__(self) -> None:
        for field in fields(self)[1:]:
            value, may_be_zero = getattr(self, field.name), field.default == 0.0
            if not math.isfinite(value) or value < 0 or (value == 0 and not may_be_zero):
                words = "at least 0" if may_be_zero else "above 0"
                raise ConfigError(
                    f"hardware {self.name}: {field.name} must be {words}, got {value}"
                )


@dataclass(frozen=True)
class Deployment:
    """A model as served by one instance on `tp · dp` GPUs.

    Raises:
        ConfigError: a number of GPUs is below 1, or the exchange between experts is not known.
    """

    model: ModelDescription
    gpu: GpuDescription
    tp: int = 1
    dp: int = 1
    moe_comm_backend: str = ""  # how experts on several GPUs exchange tokens

    def __post_init__(self) -> None:
        for name, value in (("tp", self.tp), ("dp", self.dp)):
            if value < 1:
                raise ConfigError(f"{name} must be at least 1, got {value}")
        families = (*ALL_GATHER, *ALL_TO_ALL)
        if self.moe_comm_backend not in families:
            raise ConfigError(
                f"moe_comm_backend {self.moe_comm_backend!r} is not known; use one of "
                f"{', '.join(families[1:])}{closest(self.moe_comm_backend, families)}"
            )

    @property
    def peak_tflops(self) -> float:
        """Return the GPU's peak for these weights, in TFLOP/s: the FP8 peak, if it has one, for weights of one byte."""
        is_fp8 = self.model.weight_bytes == 1.0 and self.gpu.fp8_tflops > 0
        return self.gpu.fp8_tflops if is_fp8 else self.gpu.peak_tflops

    def refuse_other_layers(self, law: str) -> None:
        """Refuse a model with layers that have no full attention.

        Raises:
            ConfigError: there are such layers, which this law of step times does not know.
        """
        kinds = self.model.kinds
        counts = {
            "linear attention": kinds.linear,
            "a sliding window": kinds.sliding,
            "compressed attention": len(kinds.compressed),
        }
        named = " and ".join(f"{count} have {what}" for what, count in counts.items() if count)
        if named:
            other = "" if kinds.compressed or law == "served-physics" else "served-physics, or "
            raise ConfigError(
                f"{law} takes every layer for full attention, but of the {self.model.num_layers} layers of "
                f"{self.model.name} {named}; "
                f"use latency_model {other}step-law, which blis-jax calibrate fits to its steps"
            )

    def refuse_uneven(self) -> None:
        """Refuse a model that cannot be divided evenly among the GPUs.

        Raises:
            ConfigError: `tp` does not divide the number of heads or of KV heads, or `dp` is above 1 and
                there are no experts.
        """
        if self.dp > 1 and not self.model.is_moe:
            raise ConfigError(
                f"dp is {self.dp}, but model {self.model.name} has no experts to spread; "
                "use dp 1 and more instances"
            )
        for words, heads in (
            ("attention heads", self.model.num_heads),
            ("KV heads", self.model.num_kv_heads),
        ):
            has_copies = not self.model.kinds.is_plain and self.tp % heads == 0  # of a KV head
            if heads % self.tp and not has_copies:
                fitting = [n for n in range(1, heads + 1) if heads % n == 0]
                raise ConfigError(
                    f"tp {self.tp} does not divide the {heads} {words} of model {self.model.name}; "
                    f"use one of {', '.join(map(str, fitting))}"
                )


def shipped_gpus() -> tuple[str, ...]:
    """Return the GPUs whose descriptions are shipped."""
    return tuple(_shipped())


def gpu_description(name: str) -> GpuDescription:
    """Return the shipped GPU of this name, or the GPU in a file of BLIS, given as `FILE:NAME`.

    Raises:
        ConfigError: no GPU of this name is shipped or in the file, or the file cannot be used.
    """
    if ":" in name:
        file, _, gpu = name.rpartition(":")
        return _of_file(Path(file), gpu)
    shipped = _shipped()
    if name not in shipped:
        kinds = [gpu for gpu in shipped if gpu.lower().startswith(name.lower())] if name else []
        hint = (
            f"; did you mean {' or '.join(map(repr, kinds))}?" if kinds else closest(name, shipped)
        )
        raise ConfigError(
            f"hardware {name!r} has no shipped description; use one of {', '.join(shipped)}{hint}"
        )
    return shipped[name]


_KEYS = {  # of BLIS's files, in any case
    "tflopspeak": "peak_tflops",
    "tflopsfp8": "fp8_tflops",
    "bwpeaktbs": "bandwidth_tbs",
    "mfuprefill": "prefill_mfu",
    "mfudecode": "decode_mfu",
    "memorygib": "memory_gib",
}


def _of_file(path: Path, name: str) -> GpuDescription:
    """Return a GPU from a JSON file of BLIS; keys that BLIS does not know are ignored, as in BLIS."""
    needed = ("peak_tflops", "bandwidth_tbs", "prefill_mfu", "decode_mfu")
    numbers = numbers_in_file(path, name, _KEYS)
    return GpuDescription(f"{name} of {path}", **(dict.fromkeys(needed, 0.0) | numbers))


def numbers_in_file(path: Path, name: str, keys: Mapping[str, str]) -> dict[str, float]:
    """Return the numbers of the GPU `name` in a JSON file of BLIS, for those of `keys` that it has, by our names.

    `keys` has our name for each key of the file in lower case, since BLIS reads keys in any case.

    Raises:
        ConfigError: the file cannot be used, has no such GPU, or has another value than a number.
    """
    descriptions = read_json(
        path, "a JSON file that describes GPUs, as BLIS's hardware_config.json"
    )
    if not isinstance(descriptions, Mapping) or not isinstance(descriptions.get(name, {}), Mapping):
        raise ConfigError(f"{path}: allowed is an object of GPUs, each of them an object")
    if name not in descriptions:
        raise ConfigError(f"{path} has no GPU {name!r}; {choices(name, list(descriptions))}")
    numbers = {
        keys[key.lower()]: value for key, value in descriptions[name].items() if key.lower() in keys
    }
    for field, value in numbers.items():
        if isinstance(value, bool) or not isinstance(value, int | float):
            raise ConfigError(
                f"{path}: {name}.{field}: got {shortened(value)}, allowed is a number"
            )
    return numbers


@functools.cache
def _shipped() -> dict[str, GpuDescription]:
    return {name: GpuDescription(name, **row) for name, row in shipped("hardware.yaml").items()}


# --- KV blocks that fit beside a model's weights, as the 2026-08 revision of BLIS counts them -----


GIB = float(2**30)
ACTIVATIONS_GIB, MOE_ACTIVATIONS_GIB = 5.5, 8.0
# CUDA and NCCL on one GPU: of one alone, of one among several
OTHER_GIB_ALONE, OTHER_GIB = (
    0.15,
    0.6,
)
GATED = ("silu", "swiglu", "geglu", "situ", "")  # three matrices in a feed-forward part


def kv_bytes_per_token(deployment: Deployment) -> float:
    """Return the bytes of one token in the KV cache on one GPU."""
    model = deployment.model
    if model.kinds.compressed:
        return caches.compressed_bytes_per_token(
            model.kinds, model.head_size, model.qk_rope_head_dim
        )
    if not model.kinds.is_plain:
        return model.num_attention_layers * _layer_bytes(deployment)
    if model.kv_lora_rank > 0:  # one latent vector for all heads, which no GPU can take a part of
        return (
            model.num_layers
            * (model.kv_lora_rank + model.qk_rope_head_dim)
            * model.activation_bytes
        )
    whole = model.num_layers * 2.0 * model.head_size * model.num_kv_heads * model.activation_bytes
    return whole / deployment.tp


def _layer_bytes(deployment: Deployment) -> float:
    """Return the bytes of one token in one layer with full attention; several GPUs may hold copies of a KV head."""
    model = deployment.model
    if model.kv_lora_rank > 0:
        return (model.kv_lora_rank + model.qk_rope_head_dim) * model.activation_bytes
    heads = max(math.ceil(model.num_kv_heads / deployment.tp), 1)
    return 2.0 * heads * model.head_size * model.activation_bytes


def request_bytes(deployment: Deployment) -> float:
    """Return the bytes that a request of any length keeps on one GPU: states, and windows of the last tokens."""
    model, kinds = deployment.model, deployment.model.kinds
    if kinds.compressed:
        return caches.compressed_bytes_per_request(kinds, model.head_size, model.qk_rope_head_dim)
    states = kinds.linear * caches.state_bytes(kinds, deployment.tp, model.activation_bytes)
    return states + kinds.sliding * kinds.window * _layer_bytes(deployment)


def block_tokens(deployment: Deployment, usual: int = caches.BLOCK_TOKENS) -> int:
    """Return the tokens of a block as vLLM chooses them; a cached prefix is found again only at a block's end.

    `usual` is the block size of models in which all layers have full attention.
    """
    model = deployment.model
    if not (model.kinds.linear or model.kinds.compressed):
        return usual
    return caches.block_tokens(
        model.kinds, deployment.tp, model.activation_bytes, _layer_bytes(deployment)
    )


def kv_blocks(
    deployment: Deployment,
    block_size: int = 16,
    memory_utilization: float = 0.9,
    reserved_bytes: float = 0.0,
    max_requests: int = 0,
    as_vllm: bool = False,
) -> int | None:
    """Return the number of KV blocks of one instance.

    If all layers have full attention, this is BLIS's number: the free memory of all GPUs of an instance, over the
    bytes of a block on one of them, which is `tp` times as many as there is room for. With `as_vllm`, and for a model
    with other layers, which BLIS does not support, there are as many blocks as fit on one of its GPUs.

    Args:
        deployment: the model and its GPUs.
        block_size: tokens in one block.
        memory_utilization: share of a GPU's memory that may be used.
        reserved_bytes: bytes kept free for LoRA adapters.
        max_requests: requests at once; the bytes that each keeps at any length are kept free.
        as_vllm: whether a block takes its place on every GPU of the instance, as in vLLM.

    Returns:
        The number of blocks; None if the number of experts, and so the size of the weights, is not known.

    Raises:
        ConfigError: the model does not fit, or its layers are of a kind that cannot be counted.
    """
    model, tp = deployment.model, deployment.tp
    if model.has_uncounted_experts:
        return None
    _check(deployment, block_size, memory_utilization)
    of_one = deployment, block_size, memory_utilization, reserved_bytes, max_requests
    if not model.kinds.is_plain:
        return _blocks_of_one(*of_one)
    per_block = int(kv_bytes_per_token(deployment) * block_size)
    weights = int(num_parameters(model) * model.weight_bytes) / GIB
    activations = MOE_ACTIVATIONS_GIB if model.is_moe else ACTIVATIONS_GIB
    other = (OTHER_GIB_ALONE if tp == 1 else OTHER_GIB) * tp
    reserved = reserved_bytes / GIB
    overhead = weights + activations + other + reserved
    available = deployment.gpu.memory_gib * memory_utilization * tp
    if overhead >= available:
        parts = overhead, weights, reserved
        raise ConfigError(_too_small(deployment, parts, available, memory_utilization))
    if as_vllm:
        return _blocks_of_one(*of_one)
    blocks = int((available - overhead) * GIB) // per_block
    if blocks <= 0:
        raise ConfigError(
            f"model {model.name}: no KV block of {block_size} tokens ({per_block} bytes) fits into the "
            f"{available - overhead:.2f} GiB that are left; use a larger tp or smaller blocks"
        )
    return blocks * deployment.dp if model.is_moe and deployment.dp > 1 else blocks


def weight_bytes(deployment: Deployment) -> float:
    """Return the bytes of all weights on one GPU; experts are divided among the GPUs of all data parallel ranks."""
    model = deployment.model
    experts = expert_parameters(model)
    others = (num_parameters(model) - experts) * model.weight_bytes / deployment.tp
    each = model.expert_bytes or model.weight_bytes
    return others + experts * each / (deployment.tp * deployment.dp)


def _blocks_of_one(
    deployment: Deployment, block_size: int, share: float, reserved_bytes: float, requests: int
) -> int:
    """Return the blocks that fit on one GPU beside weights, activations, CUDA and the constant bytes of requests."""
    model, tp = deployment.model, deployment.tp
    weights = weight_bytes(deployment) / GIB
    activations = (MOE_ACTIVATIONS_GIB if model.is_moe else ACTIVATIONS_GIB) / tp
    other, reserved = OTHER_GIB_ALONE if tp == 1 else OTHER_GIB, reserved_bytes / GIB / tp
    states = requests * request_bytes(deployment) / GIB
    available = deployment.gpu.memory_gib * share
    overhead = weights + activations + other + reserved + states
    per_token = kv_bytes_per_token(deployment)
    if model.kinds.is_plain:  # several GPUs may hold copies of a KV head
        per_token = model.num_layers * _layer_bytes(deployment)
    blocks = int((available - overhead) * GIB // (per_token * block_size))
    if blocks <= 0:
        raise ConfigError(
            f"model {model.name} needs {overhead:.2f} GiB on each of {tp} × {deployment.gpu.name} ({weights:.2f} of "
            f"weights, {states:.2f} of states of {requests} requests) and may use {available:.2f}; use a larger tp or "
            "fewer requests at once (max_num_running_reqs), or give total_kv_blocks"
        )
    return blocks * deployment.dp if model.is_moe and deployment.dp > 1 else blocks


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
    deployment: Deployment, parts: tuple[float, float, float], available: float, share: float
) -> str:
    gpu, tp, model = deployment.gpu, deployment.tp, deployment.model
    overhead, weights, reserved = parts
    adapters = f" and {reserved:.2f} for adapters" if reserved else ""
    least = math.ceil(overhead / (gpu.memory_gib * share))
    usable = next(
        (tp for tp in range(least, model.num_heads + 1) if model.num_heads % tp == 0), least
    )
    divides = f" ({usable} divides its attention heads)" if usable != least else ""
    return (
        f"model {model.name} needs {overhead:.2f} GiB ({weights:.2f} of weights{adapters}) and {tp} × {gpu.name} "
        f"have {available:.2f} GiB to use ({gpu.memory_gib:g} GiB × {share:g} × {tp}); "
        f"use a tp of at least {least}{divides}, or give total_kv_blocks"
    )
