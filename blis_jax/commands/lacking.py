"""What is not there: commands and options of BLIS that this program lacks (exit code 3), and groups of packages."""

from __future__ import annotations

import importlib.util
from typing import NamedTuple

from blis_jax.errors import UnsupportedError

_LORA = "LoRA adapters are not simulated yet; leave it out"
_REAL = "BLIS's observe measures a real server, and this program measures none; leave it out"
_AGREEMENT = (
    "BLIS's calibrate compares a simulated run with a measured one, and this calibrate fits coefficients; "
    "blis-jax predict shows predictions against measured runs"
)
# Of BLIS's simulations, and so of any command here.
_OF_SIMULATIONS = {
    "kv-offload-config": "tiers of KV memory beyond the CPU's are not simulated yet; --kv-cpu-blocks gives one tier",
    **dict.fromkeys(
        (
            "lora-config",
            "lora-adapter-capacity",
            "lora-footprint-bytes-per-rank",
            "lora-load-bandwidth-bytes-us",
            "lora-load-base-latency-us",
            "lora-scorer-weight",
        ),
        _LORA,
    ),
}
_OF_OBSERVE = (
    "api-format", "api-key", "itl-output", "kv-metrics-url", "no-streaming", "prewarm-duration", "record-itl",
    "rtt-ms", "scrape-kv-metrics", "server-type", "server-url", "unconstrained-output", "vllm-commit",
    "warmup-requests",
)  # fmt: skip
_OF_CALIBRATE = (
    "adapter-mape-threshold", "adapter-reference", "hit-rate-tolerance-pp", "itl-data", "network-bandwidth-mbps",
    "network-rtt-us", "report", "sim-metrics", "sim-metrics-blind", "sim-results", "slo-e2e", "slo-itl", "slo-ttft",
    "trace-data", "trace-header", "ttft-mape-threshold",
)  # fmt: skip
_OF_COMMAND = {"calibrate": dict.fromkeys(_OF_CALIBRATE, _AGREEMENT)}
_COMMANDS = {"observe": _REAL.removesuffix("; leave it out")}


def refuse_option(name: str, command: str) -> None:
    """Refuse an option that BLIS has and `command`, a name such as `blis-jax run`, does not know.

    Raises:
        UnsupportedError: BLIS has it; nothing happens for other names.
    """
    known = _OF_SIMULATIONS | dict.fromkeys(_OF_OBSERVE, _REAL)
    known |= _OF_COMMAND.get(command.replace(".", " ").split()[-1], {})
    if name in known:
        raise UnsupportedError(f"--{name} is not supported: {known[name]}")


def refuse_name(name: str) -> None:
    """Refuse a policy that BLIS has and this program lacks.

    Raises:
        UnsupportedError: BLIS has it; nothing happens for other names.
    """
    if name == "lora-affinity":
        raise UnsupportedError(f"{name} is not supported: {_LORA}")


def refuse_command(name: str) -> None:
    """Refuse a command that BLIS has and this program lacks.

    Raises:
        UnsupportedError: BLIS has it; nothing happens for other names.
    """
    if name in _COMMANDS:
        raise UnsupportedError(f"{name} is not supported: {_COMMANDS[name]}")


# --- the optional groups of packages: what each holds, and which commands ask for it --------------


class Extra(NamedTuple):
    """An optional group, `pip install 'blis-jax[NAME]'`."""

    name: str
    modules: tuple[str, ...]
    needed_for: str

    @property
    def missing(self) -> tuple[str, ...]:
        """Return the modules of this group that are not installed."""
        return tuple(module for module in self.modules if importlib.util.find_spec(module) is None)


EXTRAS = (
    Extra("surrogate", ("orbax",), "surrogate train, predict, coverage, report"),
    Extra("export", ("h5netcdf", "h5py"), "outputs that end in .nc"),
    Extra("parquet", ("pyarrow",), "traces in Parquet"),
    Extra("promote", ("jsonschema", "go"), "promote: the checks at its gates, generated Go"),
    Extra("gpu", ("jax_cuda13_plugin",), "sweep --device gpu"),
    Extra("notebooks", ("jupytext", "nbclient", "ipykernel"), "the notebooks"),
)


def advice_on(module: str | None) -> str | None:
    """Say what to install for a module that is missing; None if no optional group has it."""
    top = (module or "").split(".")[0]
    for extra in EXTRAS:
        if top in extra.modules:
            return f"{top} is not installed; pip install 'blis-jax[{extra.name}]'"
    return None
