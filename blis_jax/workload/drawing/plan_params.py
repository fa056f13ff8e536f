"""The numbers of a draw, as a pytree, from a specification."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import jax
import numpy as np

from blis_jax.core.types import SLO_CLASSES
from blis_jax.workload.drawing import samplers
from blis_jax.workload.drawing.samplers import length_params
from blis_jax.workload.multimodal import Multimodal, multimodal_lengths, multimodal_params
from blis_jax.workload.spec import (
    ArrivalSpec,
    ClientSpec,
    WorkloadSpec,
    is_gamma_too_bursty,
    prefix_lengths,
)
from blis_jax.workload.table import tenant_order

if TYPE_CHECKING:
    from jaxtyping import Float, Int32, Int64, PRNGKeyArray

    Array = Any  # numpy on the host, jax inside a trace


InputParams = samplers.LengthParams | Multimodal


@jax.tree_util.register_dataclass
@dataclass(frozen=True)
class ClientParams:
    """Numbers of one client."""

    rate_fraction: Float[Array, ""]  # normalised over clients when drawn
    gap_shape: Float[Array, ""]  # from `gap_shape`: gamma 1/cv^2, weibull k
    slo_class: Int32[Array, ""]
    tenant: Int32[Array, ""]
    windows_us: Int64[Array, "window 2"]  # start, end (exclusive)
    think_time_us: Int64[Array, ""]  # from one round's last token to the next round
    input_law: InputParams
    output_law: samplers.LengthParams


@jax.tree_util.register_dataclass
@dataclass(frozen=True)
class PlanParams:
    """Numbers of a draw; replace fields for a sweep, shapes stay."""

    aggregate_rate: Float[Array, ""]  # requests/s, each session counted once
    horizon_us: Int64[Array, ""]  # exclusive
    prefix_len: Int32[Array, " group"]  # tokens
    clients: tuple[ClientParams, ...]


def gap_law(arrival: ArrivalSpec) -> str:
    """The law that is drawn: the reference replaces a gamma law of too small a shape."""
    if arrival.process == "gamma" and is_gamma_too_bursty(arrival.cv):
        return "poisson"
    return arrival.process


def gap_shape(arrival: ArrivalSpec) -> float:
    """Shape of the gap law whose coefficient of variation is cv: gamma 1/cv^2, weibull k."""
    cv = 1.0 if arrival.cv is None else arrival.cv
    if gap_law(arrival) == "gamma":
        return 1.0 / (cv * cv)
    if arrival.process == "weibull":
        return _weibull_shape(cv)
    return 1.0


def _weibull_shape(cv: float) -> float:
    """Solve Γ(1+2/k) / Γ(1+1/k)² = 1 + cv² for k; cv falls in k."""
    low, high = 0.05, 500.0
    for _ in range(200):
        middle = math.sqrt(low * high)
        log_ratio = math.lgamma(1.0 + 2.0 / middle) - 2.0 * math.lgamma(1.0 + 1.0 / middle)
        low, high = (middle, high) if log_ratio > math.log1p(cv * cv) else (low, middle)
    return math.sqrt(low * high)


def tenants_of(spec: WorkloadSpec) -> tuple[str, ...]:
    """Names of the tenants in their order."""
    return tuple(sorted({client.tenant_id for client in spec.clients}, key=tenant_order))


def params_of(spec: WorkloadSpec) -> PlanParams:
    """The numbers of a specification, on the host."""
    tenants = tenants_of(spec)
    clients = tuple(
        ClientParams(
            rate_fraction=np.float64(client.rate_fraction),
            gap_shape=np.float64(gap_shape(client.arrival)),
            slo_class=np.int32(SLO_CLASSES.index(client.slo_class)),
            tenant=np.int32(tenants.index(client.tenant_id)),
            windows_us=_windows(client),
            think_time_us=np.int64(client.multi_turn.think_time_us if client.multi_turn else 0),
            input_law=input_params(client),
            output_law=length_params(client.output_distribution),
        )
        for client in spec.clients
    )
    return PlanParams(
        aggregate_rate=np.float64(spec.aggregate_rate),
        horizon_us=np.int64(spec.horizon or np.iinfo(np.int64).max),
        prefix_len=np.array(list(prefix_lengths(spec.clients).values()), np.int32),
        clients=clients,
    )


def _windows(client: ClientSpec) -> np.ndarray:
    spans = [(window.start_us, window.end_us) for window in client.active_windows]
    return np.array(spans, np.int64).reshape(-1, 2)


def input_params(client: ClientSpec) -> InputParams:
    """The numbers of a client's prompts, the prefix left out."""
    if client.multimodal is not None and not client.multi_turn:
        return multimodal_params(client.multimodal)
    return length_params(client.input_distribution)


def input_name(params: InputParams) -> str:
    """What is static of them: the law, or all laws of a multimodal prompt."""
    return params.name if isinstance(params, Multimodal) else samplers.law_name(params)


def draw_input_lengths(
    key: PRNGKeyArray, num: int, params: InputParams
) -> Float[Array, " proposal"]:
    """Prompt lengths before rounding, the prefix left out."""
    if isinstance(params, Multimodal):
        return multimodal_lengths(key, num, params)
    return samplers.draw_lengths(key, num, params)
