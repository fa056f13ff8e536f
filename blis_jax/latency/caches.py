"""What a model stores of a request on the GPU: keys and values of each token, and states of constant size.

Models of 2026 have layers of several kinds. Full attention keeps keys and values of every token; a sliding window keeps
those of the last tokens; linear attention (gated delta nets, Kimi's delta attention) keeps one state, however long the
request is; DeepSeek-V4's compressed attention keeps one entry for 4 or 128 tokens.

Source: vLLM 0.20 (Apache-2.0): its calculator of the shapes of states, its choice of a hybrid model's block, and its
format `fp8_ds_mla` of compressed entries.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, NamedTuple

BLOCK_TOKENS = 16  # multiples that a hybrid model's block has; the usual block of others
_COMPRESSED_BLOCK = 256  # the only block size of DeepSeek-V4
_BYTES = {"float32": 4.0, "float16": 2.0, "bfloat16": 2.0}
_FLOAT32 = 4.0
_SCALES_PER = 64  # numbers in FP8 that share a byte of scale
_INDEX_SCALE = 4.0  # bytes beside an entry of the indexer
_OVERLAPPING = 4  # this compression looks at twice its tokens


class LinearHeads(NamedTuple):
    """The heads of linear attention: their number and widths."""

    keys: int
    values: int
    key_dim: int
    value_dim: int
    convolution: int  # tokens that its convolution looks at
    state_bytes: float  # of one number of the state

    @property
    def channels(self) -> int:
        """Return the total width of queries, keys and values, over which the convolution runs."""
        return 2 * self.keys * self.key_dim + self.values * self.value_dim


@dataclass(frozen=True)
class LayerKinds:
    """The kinds of a model's layers, with their number and sizes; layers that are not listed have full attention.

    Widths are in numbers, windows in tokens; 0 means that the model has none of the kind.
    """

    linear: int = 0  # layers with one state a request
    heads: LinearHeads | None = None
    sliding: int = 0  # layers that keep the last `window` tokens
    window: int = 0
    compressed: tuple[int, ...] = ()  # tokens of an entry, by layer; 0: the window alone
    index_width: int = 0  # of an indexer's entry, in layers that compress by 4

    @property
    def is_plain(self) -> bool:
        """Return whether every layer keeps keys and values of every token."""
        return not (self.linear or self.sliding or self.compressed)


PLAIN = LayerKinds()


def layer_kinds(values: Mapping[str, Any], num_layers: int) -> LayerKinds:
    """Return the kinds of layers that a `config.json` describes."""
    types = values.get("layer_types")
    names = list(types)[:num_layers] if isinstance(types, list | tuple) else []
    linear, heads = _linear(values, num_layers, names)
    sliding = names.count("sliding_attention")
    ratios = values.get("compress_ratios")
    compressed: tuple[int, ...] = ()
    if isinstance(ratios, list | tuple) and len(ratios) >= num_layers > 0:
        compressed = tuple(_whole(each) for each in ratios[:num_layers])
    return LayerKinds(
        linear=linear,
        heads=heads,
        sliding=0 if compressed else sliding,
        window=_whole(values.get("sliding_window")) if sliding or compressed else 0,
        compressed=compressed,
        index_width=_whole(values.get("index_head_dim")) if compressed else 0,
    )


def _linear(
    values: Mapping[str, Any], num_layers: int, names: list[Any]
) -> tuple[int, LinearHeads | None]:
    """Return the layers with linear attention and their heads, from the keys that Qwen or Kimi use."""
    kimi = values.get("linear_attn_config")
    if isinstance(kimi, Mapping) and isinstance(kimi.get("kda_layers"), list | tuple):
        number, width = _whole(kimi.get("num_heads")), _whole(kimi.get("head_dim"))
        kernel = _whole(kimi.get("short_conv_kernel_size"))
        alike = LinearHeads(number, number, width, width, kernel, _FLOAT32)
        return (len(kimi["kda_layers"]), alike) if number and width else (0, None)
    keys, heads, key_dim, value_dim = (
        _whole(values.get(f"linear_{name}"))
        for name in ("num_key_heads", "num_value_heads", "key_head_dim", "value_head_dim")
    )
    every = _whole(values.get("full_attention_interval"))
    linear = names.count("linear_attention")
    if not names and every:
        linear = num_layers - num_layers // every
    if not (linear and keys and heads and key_dim and value_dim):
        return 0, None
    state = _BYTES.get(str(values.get("mamba_ssm_dtype", "float32")), _FLOAT32)
    kernel = _whole(values.get("linear_conv_kernel_dim"))
    return linear, LinearHeads(keys, heads, key_dim, value_dim, kernel, state)


def _whole(value: object) -> int:
    if isinstance(value, bool) or not isinstance(value, int | float) or not math.isfinite(value):
        return 0
    return int(value)


def state_bytes(kinds: LayerKinds, tp: int, number_bytes: float) -> float:
    """Return the bytes that one layer of linear attention keeps per request on one GPU."""
    heads = kinds.heads
    if heads is None:
        return 0.0
    state = heads.values * heads.key_dim * heads.value_dim * heads.state_bytes
    convolved = heads.channels * max(heads.convolution - 1, 0) * number_bytes
    return (state + convolved) / tp


def entry_bytes(head_dim: int, rope_dim: int) -> float:
    """Return the bytes of one entry of compressed attention: FP8 with scales, and positions in 16 bits."""
    plain = head_dim - rope_dim
    return plain + 2.0 * rope_dim + plain // _SCALES_PER + 1


def compressed_bytes_per_token(kinds: LayerKinds, head_dim: int, rope_dim: int) -> float:
    """Return the bytes that all compressed layers keep per token: their entries, and the indexer's."""
    entry = entry_bytes(head_dim, rope_dim)
    total = 0.0
    for ratio in kinds.compressed:
        if ratio > 0:
            index = kinds.index_width + _INDEX_SCALE if ratio == _OVERLAPPING else 0.0
            total += (entry + index) / ratio
    return total


def compressed_bytes_per_request(kinds: LayerKinds, head_dim: int, rope_dim: int) -> float:
    """Return the bytes per request that do not grow with it: windows, and tokens that are not compressed yet."""
    total = len(kinds.compressed) * kinds.window * entry_bytes(head_dim, rope_dim)
    for ratio in kinds.compressed:
        if ratio > 0:
            twice = 2 if ratio == _OVERLAPPING else 1
            width = head_dim + (kinds.index_width if ratio == _OVERLAPPING else 0)
            total += twice * ratio * 2 * twice * width * _FLOAT32
    return total


def block_tokens(kinds: LayerKinds, tp: int, number_bytes: float, token_bytes: float) -> int:
    """Return the number of tokens in a block; a cached prefix is found again only at a block's end.

    vLLM makes the block of a hybrid model so large that one layer's keys and values of it take as many bytes as
    one layer's state, in multiples of 16 tokens.

    Args:
        kinds: the kinds of the model's layers.
        tp: number of GPUs that share a layer.
        number_bytes: bytes of one number of the activations.
        token_bytes: bytes of one token in one layer with full attention, on one GPU.
    """
    if kinds.compressed:
        return _COMPRESSED_BLOCK
    if not kinds.linear:
        return BLOCK_TOKENS
    tokens = state_bytes(kinds, tp, number_bytes) / token_bytes
    return BLOCK_TOKENS * math.ceil(tokens / BLOCK_TOKENS)
