"""A model on GPUs: all that a latency model which computes step times from sizes knows of an instance."""

from __future__ import annotations

import functools
import math
from collections.abc import Mapping
from dataclasses import dataclass, fields
from importlib import resources
from pathlib import Path

from blis_jax.errors import ConfigError, choices, closest, shortened
from blis_jax.files.input_files import read_json
from blis_jax.latency.model_description import ModelDescription
from blis_jax.lazy import yaml

ALL_GATHER = ("", "naive", "allgather_reducescatter")
ALL_TO_ALL = ("pplx", "deepep_high_throughput", "deepep_low_latency", "mori", "flashinfer_all2allv")


@dataclass(frozen=True)
class GpuDescription:
    """What one GPU can do; `data/hardware.yaml` names the source.

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
    """A model as one instance serves it, on `tp · dp` GPUs.

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
        """The GPU's peak for these weights: that of FP8 for weights of one byte, where it has one."""
        is_fp8 = self.model.weight_bytes == 1.0 and self.gpu.fp8_tflops > 0
        return self.gpu.fp8_tflops if is_fp8 else self.gpu.peak_tflops

    def refuse_uneven(self) -> None:
        """Refuses a model that cannot be shared out evenly.

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
            if heads % self.tp:
                fitting = [n for n in range(1, heads + 1) if heads % n == 0]
                raise ConfigError(
                    f"tp {self.tp} does not divide the {heads} {words} of model {self.model.name}; "
                    f"use one of {', '.join(map(str, fitting))}"
                )


def gpu_description(name: str) -> GpuDescription:
    """Return the shipped GPU of this name, or that of a file of BLIS, `FILE:NAME`.

    Raises:
        ConfigError: no GPU of this name is shipped or in the file, or the file cannot be used.
    """
    if ":" in name:
        file, _, gpu = name.rpartition(":")
        return _of_file(Path(file), gpu)
    shipped = _shipped()
    if name not in shipped:
        raise ConfigError(
            f"hardware {name!r} has no shipped description; use one of "
            f"{', '.join(shipped)}{closest(name, shipped)}"
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
    """A GPU as a JSON file of BLIS describes it; keys that BLIS does not know are left out, as there."""
    found = read_json(path, "a JSON file that describes GPUs, as BLIS's hardware_config.json")
    if not isinstance(found, Mapping) or not isinstance(found.get(name, {}), Mapping):
        raise ConfigError(f"{path}: allowed is an object of GPUs, each of them an object")
    if name not in found:
        raise ConfigError(f"{path} has no GPU {name!r}; {choices(name, list(found))}")
    numbers = {
        _KEYS[key.lower()]: value for key, value in found[name].items() if key.lower() in _KEYS
    }
    for field, value in numbers.items():
        if isinstance(value, bool) or not isinstance(value, int | float):
            raise ConfigError(
                f"{path}: {name}.{field}: got {shortened(value)}, allowed is a number"
            )
    needed = ("peak_tflops", "bandwidth_tbs", "prefill_mfu", "decode_mfu")
    return GpuDescription(f"{name} of {path}", **(dict.fromkeys(needed, 0.0) | numbers))


@functools.cache
def _shipped() -> dict[str, GpuDescription]:
    text = resources.files("blis_jax").joinpath("data/hardware.yaml").read_text("utf-8")
    return {name: GpuDescription(name, **row) for name, row in yaml.safe_load(text).items()}
