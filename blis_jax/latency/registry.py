"""Names of latency models: the only place where a name, or a path to a user's file, becomes a model; and BLIS's fits.

A model of the package needs its own file and one line here. Nothing here imports JAX.
"""

from __future__ import annotations

import functools
import re
from collections.abc import Sequence
from dataclasses import dataclass
from importlib import import_module
from typing import TYPE_CHECKING, Any

from blis_jax.errors import ConfigError, choices, closest
from blis_jax.files.input_files import shipped
from blis_jax.files.python_files import is_file, value_in_file
from blis_jax.latency.contract import LatencyModel
from blis_jax.latency.model_description import is_shipped
from blis_jax.lazy import lax

if TYPE_CHECKING:
    import jax

    from blis_jax.core.views import StepBatch

AUTO = "auto"
ROOFLINE_OF_FEBRUARY = "roofline-2026-02"
MODELS = {
    "blackbox": "blackbox.blackbox",
    "blackbox-context": "blackbox.blackbox_context",
    "blackbox-attention": "blackbox.blackbox_attention",
    "trained-physics": "trained_physics.trained_physics",
    "roofline": "roofline.roofline",
    ROOFLINE_OF_FEBRUARY: "roofline_february.roofline_february",
    "served-physics": "served_physics.served_physics",
    "step-law": "step_law.step_law",
}
SIZED = ("trained-physics", "roofline")  # of BLIS
KV_BLOCKS_WITHOUT_FIT = 1_000_000  # the reference's default beside given coefficients
ARM_SPELLING = "in an arm latency_model=trained-physics"
FROM_SIZES = (*SIZED, "served-physics")
REFERENCE_OF = {"scheduling": "blackbox", "routing": "blackbox-attention"}  # with four coefficients


def find(name: str) -> LatencyModel:
    """Return the model of this name, or the one at `path/to/file.py:Name`.

    Raises:
        ConfigError: there is no such name, file or model.
    """
    if is_file(name):
        return value_in_file(name, f"latency_model {name}", LatencyModel, "@latency_model(...)")
    if name not in MODELS:
        known = (AUTO, *MODELS)
        raise ConfigError(
            f"latency_model {name!r} is not known; use one of {', '.join(known)}, or "
            f"path/to/file.py:Name{closest(name, known)}"
        )
    module, _, attribute = MODELS[name].partition(".")
    model: LatencyModel = getattr(import_module(f"blis_jax.latency.{module}"), attribute)
    return model


@functools.cache
def choosing(names: tuple[str, ...]) -> LatencyModel:
    """Return a model that chooses between two: the first number is the index of the model, and its numbers follow."""
    first, second = (find(name) for name in names)

    def step_time(beta: jax.Array, batch: StepBatch) -> jax.Array:
        """Return the step time, µs, by the model whose index is the first number."""
        numbers = beta[1:]
        return lax.cond(
            beta[0] == 0,
            lambda: first.step_time(numbers, batch),
            lambda: second.step_time(numbers, batch),
        )

    return LatencyModel(
        step_time,
        (),
        needs_members=True,
        has_equal_decode_steps=False,
        overhead=None,
        sizes=first.sizes,
    )


@dataclass(frozen=True)
class Coefficients:
    """The coefficients fitted for one setting; times in µs, KV blocks of 16 tokens on one instance."""

    model: str
    gpu: str
    tp: int
    vllm_version: str
    alpha: tuple[float, float, float]  # queueing per request, per input token; per output token
    beta: tuple[float, float, float]  # per step, per uncached prefill token, per decode token
    total_kv_blocks: int

    def blocks(self, as_vllm: bool) -> int:
        """Return BLIS's KV blocks, or those that fit: BLIS adds up the memory of `tp` GPUs, and each holds a part."""
        return self.total_kv_blocks // self.tp if as_vllm else self.total_kv_blocks


# as nvidia-smi, Kubernetes and people write them: NVIDIA H100 80GB HBM3, NVIDIA-A100-SXM4-80GB, a100-80gb, h200
_GPU = re.compile(
    r"(?:nvidia[\s_-]+)?(a100|h100|h200|b200|b300|l40s)(?:[\s_-]+(?:sxm\d?|hbm\d\w*|\d+\s*gb|80))*",
    re.IGNORECASE,
)


def gpu_named(text: str) -> str:
    """Return our name of a GPU; the text itself if it names no described GPU, or two of them."""
    match = _GPU.fullmatch(text.strip())
    if match is None:
        return text
    family = match[1].upper()
    if family != "A100":
        return family
    return "A100-80" if "80" in text[match.end(1) :] else text


def lookup(
    model: str,
    gpu: str | None = None,
    tp: int | None = None,
    vllm_version: str | None = None,
) -> Coefficients:
    """Return the coefficients fitted for one setting; arguments that are left out take the model's defaults.

    Each default stands by itself, as in the reference: the default TP is used whatever the GPU.
    """
    model = model.lower()
    entry = _table().get(model)
    if entry is None:
        raise ConfigError(_unknown_model(model))
    default = entry.get("default", {})
    conditions = {
        "gpu": gpu if gpu is None else gpu_named(gpu), "tp": tp, "vllm_version": vllm_version,
    }  # fmt: skip
    wanted = {
        key: default.get(key) if value is None else value for key, value in conditions.items()
    }
    for fit in fitted(model):
        if all(getattr(fit, key) == value for key, value in wanted.items()):
            return fit
    raise ConfigError(_no_fit(model, wanted, entry["fits"]))


def fitted(model: str) -> tuple[Coefficients, ...]:
    """Return all fitted settings of a model; an empty result if the model is unknown."""
    entry = _table().get(model.lower(), {"fits": ()})
    return tuple(
        Coefficients(
            model=model.lower(),
            gpu=fit["gpu"],
            tp=fit["tp"],
            vllm_version=fit["vllm_version"],
            alpha=tuple(fit["alpha"]),
            beta=tuple(fit["beta"]),
            total_kv_blocks=fit["total_kv_blocks"],
        )
        for fit in entry["fits"]
    )


def known_models() -> tuple[str, ...]:
    """Return every model with at least one fitted setting, in alphabetical order."""
    return tuple(sorted(_table()))


@functools.cache
def _table() -> dict[str, Any]:
    table: dict[str, Any] = shipped("coefficients.yaml")
    return table


def _unknown_model(model: str) -> str:
    known = "" if is_shipped(model) else f"{choices(model, known_models())}; or "
    return f"no fitted coefficients for model {model!r}; {known}{_without_fit(model)}"


def _without_fit(model: str) -> str:
    """Return advice for a model without a fit: a latency model that knows the model's size, or coefficients."""
    by_hand = "give alpha and beta coefficients yourself"
    if not is_shipped(model):
        return by_hand
    return f"give --latency-model {SIZED[0]} ({ARM_SPELLING}), which knows its size, or {by_hand}"


def _no_fit(model: str, wanted: dict[str, Any], fits: Sequence[dict[str, Any]]) -> str:
    missing = [name for name, value in wanted.items() if value is None]
    if missing:
        names = ", ".join(missing)
        return f"model {model!r} has no default {names} (fitted: {_on(fits)}): give {names} as well"
    hardware = {name: wanted[name] for name in ("gpu", "tp")}
    same = [fit for fit in fits if hardware == {name: fit[name] for name in hardware}]
    if same:  # on this GPU, of other versions
        versions = ", ".join(fit["vllm_version"] for fit in same)
        return (
            f"no fitted coefficients for model {model!r} with vllm_version={wanted['vllm_version']} (fitted: "
            f"{versions}): choose one of these, or leave it out"
        )
    gpus = sorted({fit["gpu"] for fit in fits})
    return (
        f"no fitted coefficients for model {model!r} with gpu={wanted['gpu']} tp={wanted['tp']} (fitted: "
        f"{_on(fits)}){_meant(wanted['gpu'], gpus)}: choose one of these, or {_without_fit(model)}"
    )


def _meant(gpu: str, gpus: Sequence[str]) -> str:
    """Return a hint at the GPU name that `gpu` resembles, if it is none of `gpus`; none for another known GPU."""
    near = [] if gpu in gpus else [name for name in gpus if name.startswith(gpu.upper()[:4])]
    if near and len(gpu) > 3:
        return f"; did you mean {near[0]!r}?"
    return "" if gpu in gpus or _GPU.fullmatch(gpu.strip()) else closest(gpu, gpus)


def _on(fits: Sequence[dict[str, Any]]) -> str:
    """Return the GPUs with the tensor parallelisms fitted for each, such as `H100 × 1, 2; A100-80 × 1`."""
    tps: dict[str, set[int]] = {}
    for fit in fits:
        tps.setdefault(fit["gpu"], set()).add(fit["tp"])
    return "; ".join(f"{gpu} × {', '.join(map(str, sorted(of)))}" for gpu, of in tps.items())
