"""`roofline-2026-02`: the roofline of BLIS's February 2026 revision, its option `--roofline`.

Prompts and decodes each take as long as their arithmetic or their memory traffic; layers, exchange between GPUs and the
step itself cost extra. The numbers of a model on a GPU are the coefficients. Every line keeps the reference's order of
operations, because a step time is rounded to whole microseconds.
"""

from __future__ import annotations

import dataclasses
import math
import warnings
from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

from blis_jax.core.exact import exact_chain, exact_product, exact_quotient
from blis_jax.core.views import StepBatch
from blis_jax.errors import ConfigError, ConfigWarning, as_option, choices
from blis_jax.latency.contract import latency_model
from blis_jax.latency.deployment import numbers_in_file
from blis_jax.latency.model_description import ModelDescription, model_description
from blis_jax.latency.registry import KV_BLOCKS_WITHOUT_FIT, ROOFLINE_OF_FEBRUARY, lookup
from blis_jax.latency.roofline import AttentionSizes, attention_work, sums_in_order
from blis_jax.lazy import jax, jnp

if TYPE_CHECKING:
    from jaxtyping import Array, Float

    from blis_jax.core.exact import Number


class FebruaryRoofline(NamedTuple):
    """The coefficients behind `AttentionSizes`, in this order; each factor is the product that BLIS forms first."""

    feed_forward: Number  # 3 · d · width
    model_bytes: Number  # of all weights
    kv_bytes: Number  # of one token's keys and values
    token_bytes: Number  # of one token's activations
    tp: Number
    prefill_rate: Number  # FLOP/s that prompts reach
    decode_rate: Number
    vector_rate: Number  # FLOP/s outside matrix products
    bandwidth: Number  # bytes/s that are reached
    layers_us: Number  # of all layers in every step, µs
    exchange_us: Number  # of all exchange between GPUs in every step, µs
    step_us: Number  # the rest of what every step costs, µs


@dataclasses.dataclass(frozen=True)
class FebruaryGpu:
    """A GPU as BLIS's `hardware_config.json` of February describes it.

    Raises:
        ConfigError: a rate is not a finite number above 0.
    """

    peak_tflops: float = 0.0  # 10^12 FLOP/s
    bandwidth_tbs: float = 0.0  # 10^12 bytes/s
    bandwidth_share: float = 0.0  # share of the bandwidth that is reached
    prefill_mfu: float = 0.0  # share of the peak that prompts reach
    decode_mfu: float = 0.0
    step_us: float = 0.0  # of every step, µs
    layer_us: float = 0.0  # of every layer in a step, µs
    all_reduce_us: float = 0.0  # of one of two exchanges in every layer, µs

    def __post_init__(self) -> None:
        for field in dataclasses.fields(self):
            value, is_rate = getattr(self, field.name), not field.name.endswith("_us")
            if not math.isfinite(value) or (is_rate and value <= 0):
                words = "a number above 0" if is_rate else "a finite number"
                raise ConfigError(
                    f"--hardware-config: {_KEYS_OF[field.name]} must be {words}, got {value}"
                )


_KEYS_OF = {
    "peak_tflops": "TFlopsPeak",
    "bandwidth_tbs": "BwPeakTBs",
    "bandwidth_share": "BwEffConstant",
    "prefill_mfu": "mfuPrefill",
    "decode_mfu": "mfuDecode",
    "step_us": "TOverheadMicros",
    "layer_us": "perLayerOverhead",
    "all_reduce_us": "allReduceLatency",
}
_H100 = FebruaryGpu(989.5, 3.35, 0.72, 0.65, 0.12, 500.0, 20.0, 20.0)
# Source: hardware_config.json of BLIS, February 2026.
SHIPPED = {
    "H100": _H100,
    "A100-SXM": dataclasses.replace(_H100, peak_tflops=312.0, bandwidth_tbs=2.039),
}


def calibration(gpu: str, file: str | None) -> FebruaryGpu:
    """Return the shipped description of a GPU, or that in a JSON file of BLIS.

    Raises:
        ConfigError: there is no such GPU, or the file cannot be used.
    """
    if file is not None:
        keys = {key.lower(): name for name, key in _KEYS_OF.items()}
        return FebruaryGpu(**numbers_in_file(Path(file), gpu, keys))
    if gpu not in SHIPPED:
        raise ConfigError(
            f"--roofline: BLIS of February describes no GPU {gpu!r}; {choices(gpu, list(SHIPPED))}, or give "
            "--hardware-config with a file that describes it"
        )
    return SHIPPED[gpu]


def coefficients(model: ModelDescription, gpu: FebruaryGpu, tp: int) -> tuple[float, ...]:
    """Return `AttentionSizes` and `FebruaryRoofline` of a model on `tp` GPUs, layers with experts as dense."""
    layers, d, heads = float(model.num_layers), float(model.hidden_size), float(model.num_heads)
    kv_heads, size = float(model.num_kv_heads), model.activation_bytes
    head_dim, feed_forward = d / heads, 3 * d * float(model.intermediate_size)
    kv_dim, peak = kv_heads * head_dim, gpu.peak_tflops * 1e12
    layer_weights = d * (d + 2 * kv_dim) + d * d + feed_forward
    exchange = layers * 2 * gpu.all_reduce_us / 1e6 if tp > 1 else 0.0
    numbers = FebruaryRoofline(
        feed_forward=feed_forward,
        model_bytes=layer_weights * layers * size,
        kv_bytes=2 * layers * kv_heads * head_dim * size,
        token_bytes=layers * d * size,
        tp=float(tp),
        prefill_rate=peak * gpu.prefill_mfu,
        decode_rate=peak * gpu.decode_mfu,
        vector_rate=peak * 0.10,
        bandwidth=gpu.bandwidth_tbs * 1e12 * gpu.bandwidth_share,
        layers_us=layers * gpu.layer_us / 1e6 * 1e6,
        exchange_us=exchange * 1e6,
        step_us=gpu.step_us,
    )
    return tuple(float(number) for number in (*AttentionSizes.of(model), *numbers))


@latency_model(
    AttentionSizes._fields + FebruaryRoofline._fields,
    needs_members=True,
    has_equal_decode_steps=False,
    overhead=None,
)
def roofline_february(beta: Float[Array, "number"], batch: StepBatch) -> jax.Array:
    """Return the time of prompts plus that of decodes, each by arithmetic or traffic, and the fixed costs."""
    first, members = len(AttentionSizes._fields), batch.members
    assert members is not None
    attention = AttentionSizes(*(beta[place] for place in range(first)))
    n = FebruaryRoofline(*(beta[place] for place in range(first, beta.shape[0])))
    new = jnp.where(members.in_decode, 1, members.new_tokens)
    work = _work(attention, n, members.progress, new)
    phases = members.in_step & members.in_prefill, members.in_step & members.in_decode
    columns = [jnp.where(phase, column, 0.0) for phase in phases for column in work]
    sums = sums_in_order(tuple(columns), members, phases[0] | phases[1])
    weights = exact_quotient(n.model_bytes, n.tp)
    seconds = jnp.float64(0.0)
    for phase, rate, (gemm, vector, moved) in zip(
        phases, (n.prefill_rate, n.decode_rate), (sums[:3], sums[3:]), strict=True
    ):
        compute = exact_quotient(gemm, rate) + exact_quotient(vector, n.vector_rate)
        memory = exact_quotient(weights + moved, n.bandwidth)
        seconds = seconds + jnp.where(jnp.any(phase), jnp.maximum(compute, memory), 0.0)
    micros = exact_product(seconds, jnp.float64(1e6)) + n.layers_us + n.exchange_us + n.step_us
    whole = jnp.trunc(micros)
    return whole + jnp.where(micros - whole >= 0.5, 1.0, 0.0)


def _work(
    attention: AttentionSizes, numbers: FebruaryRoofline, progress: jax.Array, new: jax.Array
) -> tuple[jax.Array, jax.Array, jax.Array]:
    """Return each member's `[slot]` FLOP in matrix products and outside them, and bytes moved, on one GPU.

    The reference adds the weights to the bytes and subtracts them again, which rounds.
    """
    n, count = numbers, new.astype(jnp.float64)
    gemm, vector = attention_work(attention, progress, new)
    gemm = gemm + exact_chain(2.0 * count, n.feed_forward, attention.layers)
    before = exact_product(n.kv_bytes, progress.astype(jnp.float64))
    moved = exact_product(n.token_bytes, count) + before
    moved = moved + exact_product(n.kv_bytes, count) + n.model_bytes
    moved = jax.lax.optimization_barrier(moved) - n.model_bytes
    return exact_quotient(gemm, n.tp), exact_quotient(vector, n.tp), exact_quotient(moved, n.tp)


# --- the option --roofline -------------------------------------------------------------------------


def with_coefficients(settings: Mapping[str, Any]) -> dict[str, Any]:
    """Turn February's --roofline into a latency model with coefficients, the fit's α and the fit's KV blocks.

    As in BLIS, files of the model and of the GPU ask for it, too, where no coefficients are given; then α is 0.

    Raises:
        ConfigError: the model, its GPU or their number is not given, or not described.
    """
    changed = dict(settings)
    is_asked = changed.pop("roofline", False)
    has_files = {"model_config_folder", "hardware_config"} <= changed.keys()
    given = [name for name in ("alpha_coeffs", "beta_coeffs") if any(changed.get(name, ()))]
    if not is_asked and (given or not has_files):
        return _without_idle_files(changed, bool(given))
    others = {"latency_model", "coefficients_from"} & changed.keys()
    if others:
        raise ConfigError(f"--roofline: {as_option(min(others))} is given too; give one of them")
    missing = [name for name in ("model", "hardware", "tp") if not changed.get(name)]
    if missing:
        raise ConfigError(
            f"--roofline needs {as_option(missing[0])}; for instance --model qwen/qwen3-14b --hardware H100 --tp 1"
        )
    if "beta_coeffs" in given:
        _warn("--beta-coeffs has no effect with --roofline, as in BLIS")
    model, gpu, tp = changed["model"].lower(), changed["hardware"], changed["tp"]
    files = (changed.pop(name, None) for name in ("model_config_folder", "hardware_config"))
    folder, file = files
    file_of_model = str(Path(folder) / "config.json") if folder else changed.pop("model_config", "")
    described = model_description(model, file_of_model)
    if described.is_moe or not described.kinds.is_plain:
        _warn(
            f"--roofline takes the layers of {model} for dense ones with full attention, as in BLIS"
        )
    beta = coefficients(described, calibration(gpu, file), tp)
    alpha, blocks = _fitted_for_roofline(changed) if is_asked else _WITHOUT_FIT
    chosen = {"latency_model": ROOFLINE_OF_FEBRUARY, "beta_coeffs": beta}
    chosen["alpha_coeffs"] = changed["alpha_coeffs"] if "alpha_coeffs" in given else alpha
    return {"total_kv_blocks": blocks} | changed | chosen


def _without_idle_files(settings: dict[str, Any], has_coefficients: bool) -> dict[str, Any]:
    """Return the settings without files of GPUs and model, which BLIS passes over beside coefficients."""
    if "hardware_config" not in settings:
        return settings
    if not has_coefficients:
        raise ConfigError(
            "--hardware-config describes what --roofline computes step times from; give --roofline, or leave it out"
        )
    _warn("--hardware-config has no effect beside coefficients without --roofline, as in BLIS")
    idle = ("hardware_config", "model_config_folder")
    return {name: value for name, value in settings.items() if name not in idle}


_WITHOUT_FIT: tuple[tuple[float, ...], int] = ((0.0, 0.0, 0.0), KV_BLOCKS_WITHOUT_FIT)


def _fitted_for_roofline(settings: Mapping[str, Any]) -> tuple[tuple[float, ...], int]:
    """Return α and KV blocks of the model's fit on these GPUs; zeros and BLIS's default where there is no fit."""
    model, gpu, tp = (settings[name] for name in ("model", "hardware", "tp"))
    try:
        fit = lookup(model, gpu, tp, settings.get("vllm_version") or None)
    except ConfigError:
        if not {"alpha_coeffs", "total_kv_blocks"} <= settings.keys():
            _warn(
                f"--roofline: {model} on {gpu} × {tp} has no fit, so α is 0 and an instance has "
                f"{KV_BLOCKS_WITHOUT_FIT:,} KV blocks where they are not given, as in BLIS"
            )
        return _WITHOUT_FIT
    return fit.alpha, fit.total_kv_blocks


def _warn(text: str) -> None:
    warnings.warn(text, ConfigWarning, stacklevel=3)
