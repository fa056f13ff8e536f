"""Fitted coefficients of the blackbox latency model, by model, GPU, TP and vLLM version."""

from __future__ import annotations

import functools
from collections.abc import Sequence
from dataclasses import dataclass
from importlib import resources
from typing import Any

import yaml

from blis_jax.errors import ConfigError, choices, closest


@dataclass(frozen=True)
class Coefficients:
    """One fitted setting; times in microseconds, KV blocks of 16 tokens on one instance."""

    model: str
    gpu: str
    tp: int
    vllm_version: str
    alpha: tuple[float, float, float]  # queueing per request, per input token; per output token
    beta: tuple[float, float, float]  # per step, per uncached prefill token, per decode token
    total_kv_blocks: int


def lookup(
    model: str,
    gpu: str | None = None,
    tp: int | None = None,
    vllm_version: str | None = None,
) -> Coefficients:
    """The coefficients of one setting; what is left out takes the model's default.

    Each default stands by itself, as in the reference: the default TP is used whatever the GPU.
    """
    model = model.lower()
    entry = _table().get(model)
    if entry is None:
        raise ConfigError(_unknown_model(model))
    default = entry.get("default", {})
    given = {"gpu": gpu, "tp": tp, "vllm_version": vllm_version}
    wanted = {key: default.get(key) if value is None else value for key, value in given.items()}
    for fit in entry["fits"]:
        if all(fit[key] == value for key, value in wanted.items()):
            return Coefficients(
                model=model,
                gpu=fit["gpu"],
                tp=fit["tp"],
                vllm_version=fit["vllm_version"],
                alpha=tuple(fit["alpha"]),
                beta=tuple(fit["beta"]),
                total_kv_blocks=fit["total_kv_blocks"],
            )
    raise ConfigError(_no_fit(model, wanted, entry["fits"]))


def known_models() -> tuple[str, ...]:
    """Every model with at least one fitted setting, in alphabetical order."""
    return tuple(sorted(_table()))


@functools.cache
def _table() -> dict[str, Any]:
    text = resources.files("blis_jax").joinpath("data/coefficients.yaml").read_text("utf-8")
    table: dict[str, Any] = yaml.safe_load(text)
    return table


def _unknown_model(model: str) -> str:
    return (
        f"no fitted coefficients for model {model!r}; {choices(model, known_models())}; "
        "or give alpha and beta coefficients yourself"
    )


def _no_fit(model: str, wanted: dict[str, Any], fits: Sequence[dict[str, Any]]) -> str:
    allowed = ", ".join(_setting(fit) for fit in fits)
    missing = [name for name, value in wanted.items() if value is None]
    if missing:
        names = ", ".join(missing)
        return f"model {model!r} has no default {names} (fitted: {allowed}): give {names} as well"
    gpus = [fit["gpu"] for fit in fits]
    hint = "" if wanted["gpu"] in gpus else closest(wanted["gpu"], gpus)
    return (
        f"no fitted coefficients for model {model!r} with {_setting(wanted)} (fitted: {allowed}){hint}: "
        "choose one of these, or give alpha and beta coefficients yourself"
    )


def _setting(fit: dict[str, Any]) -> str:
    return f"gpu={fit['gpu']} tp={fit['tp']} vllm_version={fit['vllm_version']}"
