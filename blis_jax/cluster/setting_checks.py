"""Checks of one setting's value."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import TYPE_CHECKING, Any

from blis_jax.errors import ConfigError

if TYPE_CHECKING:
    from blis_jax.cluster.config import ClusterConfig

LARGEST_COUNT = 2**31 - 2
VLLM_NAMES = {  # what vLLM calls a setting: ours
    "max_num_seqs": "max_num_running_reqs",
    "max_num_batched_tokens": "max_num_scheduled_tokens",
    "block_size": "block_size_in_tokens",
    "num_gpu_blocks": "total_kv_blocks",
    "num_gpu_blocks_override": "total_kv_blocks",
    "tensor_parallel_size": "tp",
    "data_parallel_size": "num_instances",
}


def check_type(name: str, kind: Any, value: Any) -> None:
    """Refuses a value that is not of a field's type, named as in its annotation.

    Raises:
        ConfigError: the sentence begins with the field's name.
    """
    expected: dict[str, tuple[Any, str]] = {
        "int": (int, "a whole number"),
        "float": ((int, float), "a number"),
        "bool": (bool, "true or false"),
        "str": (str, "a text"),
    }
    if kind not in expected:
        return
    types, words = expected[kind]
    is_wrong_bool = isinstance(value, bool) and kind != "bool"
    if not isinstance(value, types) or is_wrong_bool:
        raise ConfigError(f"{name}: {value!r} is not {words}")
    if kind == "float" and not math.isfinite(value):
        raise ConfigError(f"{name}: {value!r} is not finite; give a finite number")
    if kind == "int" and name != "horizon" and abs(value) > LARGEST_COUNT:
        raise ConfigError(f"{name}: {value} is too large; at most {LARGEST_COUNT}")


def demand(config: ClusterConfig, name: str, test: Callable[[Any], bool], words: str) -> None:
    """Refuses a field's value that fails the test; the words say what is allowed.

    Raises:
        ConfigError: the sentence begins with the field's name.
    """
    value = getattr(config, name)
    if not test(value):
        raise ConfigError(f"{name} must be {words}, got {value}")
