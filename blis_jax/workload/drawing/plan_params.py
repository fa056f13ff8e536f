"""The numbers of a draw, as a pytree built from a specification; and the clients' traffic, which decides the sizes."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import jax
import jax.numpy as jnp
import numpy as np

from blis_jax.core.types import SLO_CLASSES
from blis_jax.workload.distribution import CAP_PER_REQUEST, is_gamma_too_bursty, prefix_lengths
from blis_jax.workload.drawing import samplers
from blis_jax.workload.drawing.samplers import (
    LONGEST_TOKENS,
    Empirical,
    LengthParams,
    length_params,
    longest_length,
    whole_tokens,
)
from blis_jax.workload.table import tenant_order

if TYPE_CHECKING:
    from jaxtyping import Array, Float, Int32, Int64, PRNGKeyArray

    from blis_jax.workload.length_laws import LengthLaw
    from blis_jax.workload.spec import ArrivalSpec, ClientSpec, MultimodalSpec, WorkloadSpec

    Number = jax.Array | np.ndarray
    AnyArray = Any  # numpy on the host, jax inside a trace


CHANCE_OF_MORE = 1e-12  # that one prompt would have more items than are drawn


@jax.tree_util.register_dataclass
@dataclass(frozen=True)
class Modality:
    """The numbers of one modality of a multimodal prompt: items per prompt, and tokens per item."""

    count: LengthParams  # items per prompt
    size: LengthParams  # tokens per item
    item: Float[Number, " item"]  # 0, 1, …: as many as are drawn for each prompt


@jax.tree_util.register_dataclass
@dataclass(frozen=True)
class Multimodal:
    """The numbers of all parts of a multimodal prompt."""

    text: LengthParams | None
    modalities: tuple[Modality, ...]

    @property
    def name(self) -> str:
        """Return the static part of the draw as text: the laws, and the number of items drawn for each modality."""
        text = "none" if self.text is None else self.text.name
        items = [
            f"up to {len(modality.item)} by {modality.count.name} of {modality.size.name}"
            for modality in self.modalities
        ]
        return f"multimodal({', '.join([text, *items])})"

    @property
    def draws_per_prompt(self) -> int:
        """Return the number of lengths drawn for one prompt."""
        return 1 + sum(len(modality.item) for modality in self.modalities)

    def draw(self, key: PRNGKeyArray, num: int) -> Float[Array, " proposal"]:
        """Draw `num` prompt lengths, each the sum of all its parts; a prompt without parts has length 0."""
        keys = jax.random.split(key, 1 + 2 * len(self.modalities))
        total = jnp.zeros(num, jnp.float64)
        if self.text is not None:
            total += _whole(keys[0], num, self.text)
        for index, modality in enumerate(self.modalities):
            key_count, key_size = keys[2 * index + 1], keys[2 * index + 2]
            most = modality.item.shape[-1]
            count = _whole(key_count, num, modality.count)
            size = _whole(key_size, num * most, modality.size).reshape(num, most)
            total += jnp.sum(jnp.where(modality.item[None, :] < count[:, None], size, 0.0), axis=1)
        return jnp.minimum(total, float(LONGEST_TOKENS))


def multimodal_params(spec: MultimodalSpec) -> Multimodal:
    """Return the numbers of a multimodal specification; parts without tokens are left out."""
    modalities = []
    for count_law, size_law in spec.modalities:
        if count_law is None or size_law is None or _is_nothing(count_law) or _is_nothing(size_law):
            continue
        count = length_params(count_law)
        most = longest_length(count, CHANCE_OF_MORE)
        modalities.append(Modality(count, length_params(size_law), np.arange(float(most))))
    text = spec.text_distribution
    has_text = text is not None and not _is_nothing(text)
    return Multimodal(length_params(text) if text and has_text else None, tuple(modalities))


def _is_nothing(law: LengthLaw) -> bool:
    """Return whether a law is gaussian with a maximum of 0, the only law whose lengths the reference leaves below 1."""
    return law.type == "gaussian" and law.params.max == 0


def _whole(key: PRNGKeyArray, num: int, params: LengthParams) -> Float[Array, " proposal"]:
    """Return drawn lengths rounded to whole numbers of at least 1; only an empirical law may return 0."""
    drawn = params.draw(key, num)
    if isinstance(params, Empirical):
        return drawn
    return whole_tokens(drawn).astype(jnp.float64)


InputParams = samplers.LengthParams | Multimodal


@jax.tree_util.register_dataclass
@dataclass(frozen=True)
class ClientParams:
    """The numbers of one client's draws."""

    rate_fraction: Float[AnyArray, ""]  # normalised over clients when drawn
    gap_shape: Float[AnyArray, ""]  # from `gap_shape`: gamma 1/cv^2, weibull k
    slo_class: Int32[AnyArray, ""]
    tenant: Int32[AnyArray, ""]
    windows_us: Int64[AnyArray, "window 2"]  # start, end (exclusive)
    think_time_us: Int64[AnyArray, ""]  # from one round's last token to the next round
    input_law: InputParams
    output_law: samplers.LengthParams


@jax.tree_util.register_dataclass
@dataclass(frozen=True)
class PlanParams:
    """The numbers of a draw; a sweep may replace fields as long as their shapes stay."""

    aggregate_rate: Float[AnyArray, ""]  # requests/s, each session counted once
    horizon_us: Int64[AnyArray, ""]  # exclusive
    prefix_len: Int32[AnyArray, " group"]  # tokens
    clients: tuple[ClientParams, ...]


def gap_law(arrival: ArrivalSpec) -> str:
    """Return the name of the gap law that is drawn: poisson in place of a gamma law of too small a shape."""
    if arrival.process == "gamma" and is_gamma_too_bursty(arrival.cv):
        return "poisson"
    return arrival.process


def gap_shape(arrival: ArrivalSpec) -> float:
    """Return the shape of the gap law whose coefficient of variation is cv: gamma 1/cv^2, weibull k."""
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
    """Return the names of the tenants in their numbered order."""
    return tuple(sorted({client.tenant_id for client in spec.clients}, key=tenant_order))


def params_of(spec: WorkloadSpec) -> PlanParams:
    """Return the numbers of a specification's draw, on the host."""
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
    """Return the numbers of the lengths of a client's prompts, without the prefix."""
    if client.multimodal is not None and not client.multi_turn:
        return multimodal_params(client.multimodal)
    return length_params(client.input_distribution)


def most_sessions(num_rounds: int, num_requests: int) -> int:
    """Return the greatest number of sessions that BLIS lets a client begin in a workload of `num_requests` requests."""
    return -(-CAP_PER_REQUEST * num_requests // num_rounds)


@dataclass(frozen=True)
class Traffic:
    """The clients' traffic, as far as the sizes of a draw depend on it; one entry per client."""

    rate_us: np.ndarray  # arrivals per microsecond
    cv: np.ndarray  # of their gaps
    num_rounds: np.ndarray  # requests per arrival
    round_gap_us: np.ndarray  # mean time from one round to the next
    most_arrivals: np.ndarray
    windows: tuple[tuple[tuple[float, float], ...], ...]  # empty: always active


def traffic_of(spec: WorkloadSpec, wanted: int) -> Traffic:
    """Return the traffic of a specification that must yield `wanted` requests, 0 for no limit."""
    assert spec.aggregate_rate is not None
    fractions = np.array([client.rate_fraction for client in spec.clients])
    num_rounds = [rounds_of(client) for client in spec.clients]
    is_limited = [wanted > 0 and client.multi_turn is not None for client in spec.clients]
    return Traffic(
        rate_us=spec.aggregate_rate * fractions / fractions.sum() / 1e6,
        cv=np.array([_gap_cv(client.arrival) for client in spec.clients]),
        num_rounds=np.array(num_rounds),
        round_gap_us=np.array([_round_gap_us(client) for client in spec.clients]),
        most_arrivals=np.array(
            [
                float(most_sessions(rounds, wanted)) if limited else math.inf
                for rounds, limited in zip(num_rounds, is_limited, strict=True)
            ]
        ),
        windows=tuple(
            tuple((window.start_us, window.end_us) for window in client.active_windows)
            for client in spec.clients
        ),
    )


def expected_arrivals(traffic: Traffic, end_us: float) -> np.ndarray:
    """Return the expected number of each client's arrivals up to a time."""
    active_us = [
        sum(max(0.0, min(end, end_us) - start) for start, end in windows) if windows else end_us
        for windows in traffic.windows
    ]
    return np.minimum(traffic.rate_us * np.array(active_us), traffic.most_arrivals)


def expected_requests(traffic: Traffic, end_us: float) -> float:
    """Return a lower bound of the number of requests expected up to a time; later rounds come at their mean times."""
    total = float(expected_arrivals(traffic, end_us).sum())
    for client in np.flatnonzero(traffic.num_rounds > 1):
        later = np.arange(1, traffic.num_rounds[client])
        span_us = np.maximum(end_us - later * traffic.round_gap_us[client], 0.0)
        most = traffic.most_arrivals[client]
        total += float(np.minimum(traffic.rate_us[client] * span_us, most).sum())
    return total


def last_end(windows: tuple[tuple[float, float], ...]) -> float:
    """Return the end of the last window; infinity without windows."""
    return max((end for _, end in windows), default=math.inf)


def rounds_of(client: ClientSpec) -> int:
    """Return the number of requests that each arrival of a client brings."""
    return client.multi_turn.max_rounds if client.multi_turn else 1


def _round_gap_us(client: ClientSpec) -> float:
    think_time_us = client.multi_turn.think_time_us if client.multi_turn else 0
    return think_time_us + length_params(client.output_distribution).expected()


def _gap_cv(arrival: ArrivalSpec) -> float:
    law = gap_law(arrival)
    if law in ("poisson", "constant"):
        return 1.0 if law == "poisson" else 0.0
    return 1.0 if arrival.cv is None else arrival.cv
