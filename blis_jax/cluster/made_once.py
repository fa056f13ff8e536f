"""What follows from a configuration alone: made once for each, since runs of many seeds ask for it again and again."""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import TYPE_CHECKING, Any, Concatenate, ParamSpec, TypeVar

if TYPE_CHECKING:
    from blis_jax.cluster.config import ClusterConfig

P = ParamSpec("P")
T = TypeVar("T")


def made_once(
    function: Callable[Concatenate[ClusterConfig, P], T],
) -> Callable[Concatenate[ClusterConfig, P], T]:
    """The function, with what it made for the latest configurations kept; nobody may change what it returns.

    It is called again for a configuration that names a user's file, which may have changed since.
    """

    def once(config: ClusterConfig, *more: P.args, **named: P.kwargs) -> tuple[T] | None:
        return None if names_files(config) else (function(config, *more, **named),)

    kept: Any = functools.lru_cache(maxsize=1024)(once)

    @functools.wraps(function)
    def made(config: ClusterConfig, *more: P.args, **named: P.kwargs) -> T:
        found: tuple[T] | None = kept(config, *more, **named)
        return function(config, *more, **named) if found is None else found[0]

    return made


def names_files(config: ClusterConfig) -> bool:
    """Whether a policy or the latency model is a user's, `path/to/file.py:Name`, or describes the model or GPUs."""
    texts = [value for value in vars(config).values() if isinstance(value, str)]
    gpus = (config.hardware, config.prefill_hardware, config.decode_hardware)
    is_described = bool(config.model_config) or any(":" in gpu for gpu in gpus)
    return is_described or any(".py:" in text for text in texts)
