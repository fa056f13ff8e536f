"""The size of a model, from its `config.json`, as the 2026-08 revision of BLIS reads it."""

from __future__ import annotations

import functools
import math
import re
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from blis_jax.errors import ConfigError, closest, shortened
from blis_jax.files.input_files import read_json, shipped
from blis_jax.latency.caches import PLAIN, LayerKinds, layer_kinds

if TYPE_CHECKING:
    from jaxtyping import Int

_DTYPE_BYTES = {"float32": 4, "float16": 2, "bfloat16": 2}
_DTYPE_BYTES |= dict.fromkeys(("int8", "uint8", "fp8", "int4", "nf4"), 1)
_EXPERTS = (
    *("num_experts", "moe_num_experts", "n_routed_experts", "num_local_experts"),
    "num_routed_experts",
)
_PER_TOKEN = ("num_experts_per_tok", "num_experts_per_token")
_SHARED = ("n_shared_experts", "num_shared_experts")
_MTP = ("num_nextn_predict_layers", "mtp_num_hidden_layers")
_MXFP4_BYTES = 0.53125  # 4 bits, and one scale of 8 bits for 32 weights
_KV_HEADS = ("num_key_value_heads", "num_kv_heads", "multi_query_group_num")
_BITS_IN_NAME = re.compile(r"(?:^|[.\-_/])w(\d+)a\d+(?:$|[.\-_/])")
_FP8_IN_NAME = re.compile(r"(?:^|[.\-_/])fp8(?:$|[.\-_/])")
_NOT_STRETCHED = ("su", "longrope", "llama3")  # kinds of rope whose length is the stretched one


@dataclass(frozen=True)
class ModelDescription:
    """A model's size and precision; 0 and the empty text mean that the file does not name a value.

    Raises:
        ConfigError: a number that every model has is missing, or the precision is not known.
    """

    name: str
    num_layers: int
    hidden_size: int
    num_heads: int
    num_kv_heads: int
    vocab_size: int
    intermediate_size: int
    activation_bytes: float  # of one number: activations and the KV cache
    # of one weight, where weights have a precision of their own
    quantised_weight_bytes: float = 0.0
    head_dim: int = 0  # as given; `hidden_size // num_heads` is not put in its place
    hidden_act: str = ""
    tie_word_embeddings: bool = False
    num_experts: int = 0  # below 2: the model is dense
    num_experts_per_tok: int = 0
    moe_intermediate_size: int = 0
    shared_expert_size: int = 0  # width of all shared experts together
    interleave_moe_layer_step: int = 0
    intermediate_size_mlp: int = 0  # width of dense layers between those with experts
    first_k_dense_replace: int = 0
    kv_lora_rank: int = 0  # above 0: multi-head latent attention
    qk_rope_head_dim: int = 0
    max_model_len: int = 0  # longest context that the model was made for, tokens; 0: not said
    kinds: LayerKinds = PLAIN  # of layers, by what they keep of a request
    expert_bytes: float = 0.0  # of one weight of an expert, if it has a precision of its own
    has_gate: bool = False  # attention has a gate on its output, as wide as the queries
    q_lora_rank: int = 0  # above 0: queries are compressed to this width
    o_lora_rank: int = 0  # likewise the output, in `o_groups` groups of heads
    o_groups: int = 1
    mtp_layers: int = 0  # layers of the head that drafts tokens, whose weights are not counted
    # experts are mentioned and their number is not, so that the weights cannot be counted
    has_uncounted_experts: bool = False

    def __post_init__(self) -> None:
        needed = {
            "num_hidden_layers": self.num_layers,
            "hidden_size": self.hidden_size,
            "num_attention_heads": self.num_heads,
            "vocab_size": self.vocab_size,
            "intermediate_size": self.intermediate_size,
        }
        for key, value in needed.items():
            if value <= 0:
                raise ConfigError(
                    f"model {self.name}: {key} must be above 0, got {value}; "
                    "give the config.json of a language model"
                )
        if self.activation_bytes <= 0:
            raise ConfigError(
                f"model {self.name}: torch_dtype is missing or not known; "
                f"use one of {', '.join(_DTYPE_BYTES)}"
            )

    @property
    def is_moe(self) -> bool:
        """Return whether the model has routed experts."""
        return self.num_experts >= 2

    @property
    def weight_bytes(self) -> float:
        """Return the bytes of one weight."""
        return self.quantised_weight_bytes or self.activation_bytes

    @property
    def num_attention_layers(self) -> int:
        """Return the number of layers that keep keys and values of every token."""
        return self.num_layers - self.kinds.linear - self.kinds.sliding

    @property
    def num_moe_layers(self) -> int:
        """Return the number of layers with experts; the others are dense."""
        if not self.is_moe:
            return 0
        if self.interleave_moe_layer_step > 0:
            return self.num_layers // (self.interleave_moe_layer_step + 1)
        return self.num_layers

    @property
    def head_size(self) -> int:
        """Return the width of one attention head, as named in the file or else hidden size / heads."""
        return self.head_dim or self.hidden_size // self.num_heads

    @property
    def expert_size(self) -> int:
        """Return the width of one expert."""
        return self.moe_intermediate_size or self.intermediate_size

    @property
    def dense_size(self) -> int:
        """Return the width of the feed-forward part of a dense layer."""
        return self.intermediate_size_mlp or self.intermediate_size


def describe(content: Mapping[str, Any], name: str) -> ModelDescription:
    """Return the description from the contents of a `config.json`; a nested `text_config` overrides the top level.

    The name tells the weights' precision where the file does not, as in `…-w4a16` and `…-FP8`.

    Raises:
        ConfigError: a number that every model has is missing, or the precision is not known.
    """
    nested = content.get("text_config")
    values = {**content, **nested} if isinstance(nested, Mapping) else dict(content)
    name = name.lower()

    def whole(*keys: str, least: int = 1) -> int:
        numbers = (_whole(values.get(key)) for key in keys)
        return next((value for value in numbers if value >= least), 0)

    def text(*keys: str) -> str:
        texts = (values.get(key) for key in keys)
        return next((value for value in texts if isinstance(value, str)), "")

    expert, experts = whole("moe_intermediate_size"), whole(*_EXPERTS, least=2)
    # where every layer has experts, a file may leave the width of dense layers out
    inner = whole("intermediate_size", "ffn_hidden_size") or (expert if experts else 0)
    shared = whole("shared_expert_intermediate_size")
    hints = whole(*_SHARED), whole(*_PER_TOKEN)
    layers = whole("num_hidden_layers")
    return ModelDescription(
        name=name,
        num_layers=layers,
        hidden_size=whole("hidden_size"),
        num_heads=whole("num_attention_heads"),
        num_kv_heads=whole(*_KV_HEADS) or whole("num_attention_heads"),
        vocab_size=whole("vocab_size"),
        intermediate_size=inner,
        activation_bytes=float(_DTYPE_BYTES.get(text("torch_dtype", "dtype"), 0)),
        quantised_weight_bytes=_quantised(values.get("quantization_config")) or _named(name),
        head_dim=whole("head_dim"),
        hidden_act=text("hidden_act"),
        tie_word_embeddings=values.get("tie_word_embeddings") is True,
        num_experts=experts,
        num_experts_per_tok=hints[1],
        moe_intermediate_size=expert,
        shared_expert_size=shared or hints[0] * (expert or inner),
        interleave_moe_layer_step=whole("interleave_moe_layer_step"),
        intermediate_size_mlp=whole("intermediate_size_mlp"),
        first_k_dense_replace=whole("first_k_dense_replace"),
        kv_lora_rank=whole("kv_lora_rank"),
        qk_rope_head_dim=whole("qk_rope_head_dim"),
        max_model_len=_longest(values, whole("max_position_embeddings"), text("model_type")),
        has_uncounted_experts=experts == 0 and any(hints),
        kinds=layer_kinds(values, layers),
        expert_bytes=_MXFP4_BYTES if text("expert_dtype") == "fp4" else 0.0,
        has_gate=values.get("attn_output_gate") is True,
        q_lora_rank=whole("q_lora_rank"),
        o_lora_rank=whole("o_lora_rank"),
        o_groups=whole("o_groups") or 1,
        mtp_layers=whole(*_MTP),
    )


def _whole(value: object) -> int:
    """Return a JSON number truncated to a whole number, as in the reference; anything else counts as 0."""
    if isinstance(value, bool) or not isinstance(value, int | float):
        return 0
    return int(value) if math.isfinite(value) else 0


def _quantised(config: object) -> float:
    """Return the bytes of one weight by `quantization_config`, 0 if it does not name them."""
    if not isinstance(config, Mapping):
        return 0.0
    bits = config.get("bits")
    if isinstance(bits, str) and re.fullmatch(r"[+-]?\d+", bits):
        bits = int(bits)
    if _whole(bits) > 0:
        return _whole(bits) / 8.0
    method = str(config.get("quant_method", "")).lower()
    if method == "fp8":
        return 1.0
    groups = config.get("config_groups")
    if method != "compressed-tensors" or not isinstance(groups, Mapping):
        return 0.0
    for name in sorted(groups):
        weights = groups[name].get("weights") if isinstance(groups[name], Mapping) else None
        width = weights.get("num_bits") if isinstance(weights, Mapping) else None
        if isinstance(width, int | float) and width > 0:
            return width / 8.0
    return 0.0


def _named(name: str) -> float:
    """Return the bytes of one weight by a model's name, 0 if the name has no precision."""
    bits = _BITS_IN_NAME.search(name)
    if bits and int(bits[1]) > 0:
        return int(bits[1]) / 8.0
    return 1.0 if _FP8_IN_NAME.search(name) else 0.0


def _longest(values: Mapping[str, Any], positions: int, model_type: str) -> int:
    """Return the longest context in tokens, extended as `rope_scaling` says."""
    scaling = values.get("rope_scaling")
    if not isinstance(scaling, Mapping) or "gemma3" in model_type:
        return positions
    kind = scaling.get("type") or scaling.get("rope_type") or ""
    factor = scaling.get("factor")
    if not isinstance(factor, int | float) or not 1 < factor < math.inf or kind in _NOT_STRETCHED:
        return positions
    original = _whole(scaling.get("original_max_position_embeddings"))
    if kind == "yarn" and original > 0:
        positions = original
    return int(positions * float(factor))


# --- where descriptions of models come from: a `config.json`, or the shipped table ----------------


_PRECISION = re.compile(r"-(fp8|w\d+a\d+)$")


# BLIS's GPUs per instance by model, `defaults.yaml` (f90a1e3a, Apache-2.0); of others here 1
_USUAL_TP = {
    "codellama/codellama-34b-instruct-hf": 2,
    "meta-llama/llama-3.3-70b-instruct": 4,
    "meta-llama/llama-4-maverick-17b-128e-instruct-fp8": 8,
    "meta-llama/llama-4-scout-17b-16e-instruct": 4,
    "nvidia/llama-3.1-nemotron-70b-instruct-hf": 4,
    "openai/gpt-oss-120b": 4,
    "redhatai/llama-3.1-nemotron-70b-instruct-hf-fp8-dynamic": 2,
    "redhatai/llama-3.3-70b-instruct-quantized.w8a8": 2,
    "redhatai/llama-4-scout-17b-16e-instruct-fp8-dynamic": 2,
}


def usual_tp(name: str) -> int:
    """Return the number of GPUs of an instance that serves a model, if no setting gives one."""
    return _USUAL_TP.get(name.lower(), 1)


def model_description(name: str, config_file: str = "") -> ModelDescription:
    """Return the description in this `config.json`, or of the shipped model with this name.

    Args:
        name: the model's name, in any case; the name of a shipped model may end in a precision, such as `-FP8` or
            `-w4a16`.
        config_file: path of a `config.json`, or of its folder; empty for a shipped model.

    Raises:
        ConfigError: the file cannot be used, or no model of this name is shipped.
    """
    if config_file:
        return describe(_read(Path(config_file)), name)
    shipped, key = _shipped(), _key(name)
    if key not in shipped:
        hint = closest(name.lower(), shipped) or "; give its config.json"
        raise ConfigError(
            f"model {name!r} has no shipped description (shipped: {', '.join(shipped)}){hint}"
        )
    return describe(shipped[key], name)


def beyond_context(
    name: str,
    config_file: str,
    input_len: Int[np.ndarray, " request"],
    output_len: Int[np.ndarray, " request"],
) -> str | None:
    """Return a sentence on requests longer than a model's context; None if there are none, or the limit is unknown."""
    try:
        longest = model_description(name, config_file).max_model_len
    except ConfigError:
        return None
    tokens = np.asarray(input_len, np.int64) + np.asarray(output_len, np.int64)
    count = int(np.count_nonzero(tokens > longest)) if longest else 0
    if not count:
        return None
    return (
        f"{count:,} of {len(tokens):,} requests have more tokens, prompt and output together, than the {longest:,} of "
        f"the context of {name}: a server refuses them or cuts them short, here they run whole; take them out"
    )


def is_shipped(name: str) -> bool:
    """Return whether a description of the model is shipped, in this precision or another."""
    return _key(name) in _shipped()


def _key(name: str) -> str:
    """Return a model's key in the table: its own name, or else the name without the precision."""
    key = name.lower()
    return key if key in _shipped() else _PRECISION.sub("", key)


def shipped_models() -> tuple[str, ...]:
    """Return the models whose descriptions are shipped, in alphabetical order."""
    return tuple(sorted(_shipped()))


@functools.cache
def _shipped() -> dict[str, Any]:
    return {**shipped("models.yaml"), **shipped("models_more.yaml")}


def _read(path: Path) -> Mapping[str, Any]:
    path = path / "config.json" if path.is_dir() else path
    description = read_json(path, "a model's config.json")
    if not isinstance(description, Mapping):
        raise ConfigError(
            f"{path}: got {shortened(description)}, allowed is an object; give a model's config.json"
        )
    return description


# --- how many weights it has ----------------------------------------------------------------------


def num_parameters(model: ModelDescription) -> int:
    """Return the number of weights of the model, without a head that drafts tokens."""
    d, kv = model.hidden_size, model.num_kv_heads * model.head_size
    embeddings = model.vocab_size * d * (1 if model.tie_word_embeddings else 2)
    if not model.kinds.is_plain:
        mixers = attention_parameters(model) + 2 * d * model.num_layers
        return embeddings + mixers + _feed_forward(model)
    layer = d * (d + 2 * kv) + d * d + 2 * d
    return embeddings + model.num_layers * layer + _feed_forward(model) + d


def attention_parameters(model: ModelDescription) -> int:
    """Return the number of weights of all layers without their feed-forward parts, by the kinds of layers."""
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
    """Return the number of weights of all routed experts."""
    if not model.is_moe:
        return 0
    layers = model.num_layers - min(model.first_k_dense_replace, model.num_layers)
    return layers * 3 * model.hidden_size * model.expert_size * model.num_experts


def _feed_forward(model: ModelDescription) -> int:
    """Return the number of weights of all feed-forward parts; interleaved models count as if all layers had experts."""
    d = model.hidden_size
    if not model.is_moe:
        return model.num_layers * 3 * d * model.intermediate_size
    dense = min(model.first_k_dense_replace, model.num_layers)
    experts = 3 * d * model.expert_size * model.num_experts
    layer = experts + 3 * d * model.shared_expert_size + model.num_experts * d
    return dense * 3 * d * model.dense_size + (model.num_layers - dense) * layer
