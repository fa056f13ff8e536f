"""What was learned from public measured runs: coefficients, what clients see, and how far predictions were off.

`data/served_fits.yaml` holds numbers that `python -m papers.real_servers` fitted, and none of the data.
"""

from __future__ import annotations

import functools
import math
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from importlib import resources
from typing import Any

import yaml

from blis_jax.latency.deployment import GpuDescription, gpu_description
from blis_jax.predict.figures import ClientView
from blis_jax.predict.scene import RealServer

COVERAGE = 0.90  # of an interval
REFERENCE_GPU = "H100"
FITTED, PUBLISHED = "fitted", "trained-physics"
MODELS = (FITTED, PUBLISHED)


@dataclass(frozen=True)
class Learned:
    """What the runs of one collection say of one model of step times."""

    # coefficients of `served-physics` with the pace of the reference GPU, 1; None: `trained-physics` as published
    beta: tuple[float, ...] | None
    pace: Mapping[str, float]  # of other GPUs in the runs
    client: ClientView
    models: frozenset[str]  # in the runs, lower case
    gpus: frozenset[str]
    # by figure and kind of run held out: half of an interval, in logarithms
    errors: Mapping[str, Mapping[str, float]]
    # factors of TTFT and ITL of deployments that were measured, by `deployment_key`
    deployments: Mapping[str, tuple[float, float]] = field(default_factory=dict)

    def client_of(self, server: RealServer) -> ClientView:
        """The client of a deployment."""
        ttft, itl = self.deployments.get(deployment_key(server), (1.0, 1.0))
        return replace(self.client, ttft_factor=ttft, itl_factor=itl)

    def beta_on(self, hardware: str) -> tuple[float, ...] | None:
        """The coefficients on such GPUs.

        Raises:
            ConfigError: the GPU has no description.
        """
        if self.beta is None:
            return None
        pace = 1.0 if hardware == REFERENCE_GPU else self.pace.get(hardware)
        return (*self.beta[:-1], usual_pace(gpu_description(hardware)) if pace is None else pace)

    def interval(self, figure: str, value: float, model: str, hardware: str) -> tuple[float, float]:
        """An interval that held the share `COVERAGE` of figures of runs that were held out; NaN where none is known.

        Args:
            figure: its name, such as `ttft_mean`.
            value: the prediction.
            model: what is served; where the fit has seen it, the interval is that of unseen workloads, else
                that of unseen models.
            hardware: where the fit has not seen the GPU, the interval is that of unseen GPUs, if it is wider.
        """
        kinds = ["same" if model.lower() in self.models else "other_model"]
        kinds += [] if hardware in self.gpus else ["other_hardware"]
        if figure not in self.errors:
            return math.nan, math.nan
        half = max(self.errors[figure].get(kind, 0.0) for kind in kinds)
        return value * math.exp(-half), value * math.exp(half)


def deployment_key(server: RealServer) -> str:
    """A text for a model on such GPUs."""
    return f"{server.model.lower()} {server.hardware} tp{server.tp} dp{server.data_parallel}"


def usual_pace(gpu: GpuDescription) -> float:
    """The pace of a GPU that was not measured: overheads shrink with bandwidth and arithmetic alike."""
    base = gpu_description(REFERENCE_GPU)
    ratio = base.bandwidth_tbs / gpu.bandwidth_tbs * base.peak_tflops / gpu.peak_tflops
    return math.sqrt(ratio)


@functools.cache
def learned(collection: str, model: str) -> Learned:
    """What is shipped with the package for the runs of this collection; `model` is one of `MODELS`."""
    text = resources.files("blis_jax").joinpath("data/served_fits.yaml").read_text("utf-8")
    return from_document(yaml.safe_load(text)[collection][model])


def from_document(found: Mapping[str, Any]) -> Learned:
    """The form of the file."""
    return Learned(
        tuple(found["beta"]) if found["beta"] else None,
        found["pace"],
        ClientView(**found["client"]),
        frozenset(found["models"]),
        frozenset(found["gpus"]),
        found["errors"],
        {key: tuple(values) for key, values in found.get("deployments", {}).items()},
    )


def to_document(learned: Learned) -> dict[str, Any]:
    """The inverse of `from_document`, with five digits."""

    def short(value: Any) -> Any:
        if isinstance(value, Mapping):
            return {key: short(one) for key, one in sorted(value.items())}
        return float(f"{value:.5g}")

    client = learned.client
    return {
        "beta": [short(one) for one in learned.beta] if learned.beta else None,
        "pace": short(learned.pace),
        "client": {
            "first_token_ms": short(client.first_token_ms),
            "first_token_steps": short(client.first_token_steps),
            "token_share": short(client.token_share),
            "spread": short(client.spread),
        },
        "models": sorted(learned.models),
        "gpus": sorted(learned.gpus),
        "errors": short(learned.errors),
        "deployments": {
            key: [*map(short, one)] for key, one in sorted(learned.deployments.items())
        },
    }
