"""From a specification to what a device draw needs: static sizes and a pytree of numbers."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import jax
import numpy as np

from blis_jax.errors import ConfigError
from blis_jax.types import SLO_CLASSES
from blis_jax.workload import samplers
from blis_jax.workload.length_laws import LengthLaw
from blis_jax.workload.spec import ArrivalSpec, ClientSpec, WorkloadSpec, prefix_lengths
from blis_jax.workload.table import WorkloadNames

if TYPE_CHECKING:
    from jaxtyping import Float, Int32, Int64

    Array = Any  # numpy on the host, jax inside a trace

NO_GROUP = -1  # a client without a shared prefix
LARGEST_GAMMA_CV = 10.0  # beyond it the reference silently draws exponential gaps
SIGMAS = 6.0  # draws beyond a client's expected share, in standard deviations of that share
SPARE_DRAWS = 8  # for the skewness that the normal approximation ignores
SIZE_STEP = 32  # sizes are rounded up to it or an eighth of their octave: near ones compile once
MOST_DRAWS = 2**22


@dataclass(frozen=True)
class ClientShape:
    """Static part of one client: which laws, how many draws."""

    gap_law: str
    input_law: str
    output_law: str
    num_proposals: int
    num_windows: int  # 0: always active
    prefix_group: int  # NO_GROUP: none


@dataclass(frozen=True)
class PlanShape:
    """Static part of a draw; hashable, so it can be a static argument of `jax.jit`."""

    clients: tuple[ClientShape, ...]
    num_requests: int  # rows of the table
    is_capped: bool  # rows are cut to num_requests; else the horizon alone ends the workload
    block_size: int  # tokens

    @property
    def num_groups(self) -> int:
        """Number of prefix groups."""
        return 1 + max(client.prefix_group for client in self.clients)

    @property
    def index_bits(self) -> int:
        """Bits that number all proposals of all clients."""
        return sum(client.num_proposals for client in self.clients).bit_length()

    @property
    def latest_arrival_us(self) -> int:
        """Arrivals from here on cannot be represented beside their index in 62 bits."""
        return int(2 ** (62 - self.index_bits))


@jax.tree_util.register_dataclass
@dataclass(frozen=True)
class ClientParams:
    """Numbers of one client."""

    rate_fraction: Float[Array, ""]  # normalised over clients when drawn
    gap_shape: Float[Array, ""]  # from `gap_shape`: gamma 1/cv^2, weibull k
    slo_class: Int32[Array, ""]
    tenant: Int32[Array, ""]
    windows_us: Int64[Array, "window 2"]  # start, end (exclusive)
    input_law: samplers.LengthParams
    output_law: samplers.LengthParams


@jax.tree_util.register_dataclass
@dataclass(frozen=True)
class PlanParams:
    """Numbers of a draw; replace fields for a sweep, shapes stay."""

    aggregate_rate: Float[Array, ""]  # requests/s
    horizon_us: Int64[Array, ""]  # exclusive
    prefix_len: Int32[Array, " group"]  # tokens
    clients: tuple[ClientParams, ...]


@dataclass(frozen=True)
class DrawPlan:
    """What `draw` needs, and the texts behind the numbers."""

    shape: PlanShape
    params: PlanParams
    names: WorkloadNames


def compile_plan(
    spec: WorkloadSpec,
    *,
    num_requests: int | None = None,
    block_size: int = 16,
    headroom: float = 1.0,
) -> DrawPlan:
    """Size the draws of a specification; `headroom` multiplies the draws per client.

    `num_requests` replaces the specification's; 0 means that the horizon alone ends the workload.
    """
    _check_supported(spec)
    wanted = spec.num_requests if num_requests is None else num_requests
    if wanted < 0 or block_size < 1 or not headroom >= 1.0:
        raise ConfigError(
            f"num_requests {wanted}, block_size {block_size}, headroom {headroom:g}: allowed are "
            f"at least 0, 1 and 1"
        )
    if wanted == 0 and spec.horizon == 0:
        raise ConfigError(
            "num_requests: neither a number of requests nor a horizon ends the workload; "
            "give num_requests or horizon"
        )
    num_rows, num_gaps = _sizes(spec, wanted)
    groups = {name: index for index, name in enumerate(prefix_lengths(spec))}
    clients = tuple(
        ClientShape(
            gap_law=client.arrival.process,
            input_law=client.input_distribution.type,
            output_law=client.output_distribution.type,
            num_proposals=_num_proposals(client.arrival, gaps * headroom),
            num_windows=len(client.lifecycle.windows) if client.lifecycle else 0,
            prefix_group=groups.get(client.prefix_group, NO_GROUP),
        )
        for client, gaps in zip(spec.clients, num_gaps, strict=True)
    )
    shape = PlanShape(clients, num_rows, wanted > 0, block_size)
    total = sum(client.num_proposals for client in clients)
    if total > MOST_DRAWS:
        raise ConfigError(
            f"the workload needs {total} draws, allowed are {MOST_DRAWS}; "
            f"lower num_requests or horizon"
        )
    params = _params(spec)
    if num_rows / params.aggregate_rate * 1e6 > shape.latest_arrival_us / 8:
        raise ConfigError(
            f"aggregate_rate: {num_rows} requests at {spec.aggregate_rate:g} per second last "
            f"longer than the clock; raise aggregate_rate or lower num_requests"
        )
    return DrawPlan(shape, params, WorkloadNames(_tenants(spec), tuple(groups)))


def params_for(shape: PlanShape, spec: WorkloadSpec) -> PlanParams:
    """Numbers of another specification with the same laws, for a draw already compiled."""
    other = compile_plan(spec, num_requests=shape.num_requests, block_size=shape.block_size).shape
    for index, (mine, theirs) in enumerate(zip(shape.clients, other.clients, strict=False)):
        for part in ("gap_law", "input_law", "output_law", "num_windows", "prefix_group"):
            if getattr(mine, part) != getattr(theirs, part):
                raise ConfigError(
                    f"clients[{index}]: {part} is {getattr(theirs, part)!r}, but the draw was "
                    f"compiled for {getattr(mine, part)!r}; compile a plan of its own"
                )
    if len(shape.clients) != len(other.clients):
        raise ConfigError(
            f"clients: {len(other.clients)} are given, but the draw was compiled for "
            f"{len(shape.clients)}; compile a plan of its own"
        )
    return _params(spec)


def gap_shape(arrival: ArrivalSpec) -> float:
    """Shape of the gap law whose coefficient of variation is cv: gamma 1/cv^2, weibull k."""
    cv = 1.0 if arrival.cv is None else arrival.cv
    if arrival.process == "gamma":
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


def _check_supported(spec: WorkloadSpec) -> None:
    todo = "is not supported yet by this generator; "
    for key in ("servegen_data", "inference_perf"):
        if getattr(spec, key) is not None:
            raise ConfigError(f"{key}: {todo}describe the traffic under clients")
    for index, client in enumerate(spec.clients):
        for key in ("reasoning", "multimodal"):
            if getattr(client, key) is not None:
                fix = "remove the key, or take the requests from a recorded workload file"
                raise ConfigError(f"clients[{index}].{key}: {todo}{fix}")
        cv = client.arrival.cv
        if client.arrival.process == "gamma" and cv is not None and cv > LARGEST_GAMMA_CV:
            raise ConfigError(
                f"clients[{index}].arrival.cv: got {cv:g}, allowed for gamma is at most "
                f"{LARGEST_GAMMA_CV:g}, beyond which the reference draws poisson arrivals instead"
            )


def _sizes(spec: WorkloadSpec, wanted: int) -> tuple[int, list[float]]:
    """Rows of the table, and gaps to draw per client."""
    assert spec.aggregate_rate is not None
    fractions = np.array([client.rate_fraction for client in spec.clients])
    rate_us = spec.aggregate_rate * fractions / fractions.sum() / 1e6
    cv = np.array([_gap_cv(client.arrival) for client in spec.clients])
    is_windowed = spec.horizon > 0 or any(client.lifecycle for client in spec.clients)
    if wanted and not is_windowed:
        return wanted, _gaps_of_share(rate_us / rate_us.sum(), cv, wanted)
    end_us = _latest_end(spec, rate_us, cv, wanted)
    stop_us = np.array([min(end_us, _client_end(client)) for client in spec.clients])
    mean = rate_us * stop_us
    num_gaps = mean + SIGMAS * cv * np.sqrt(mean) + cv * cv / 2 + SPARE_DRAWS
    if num_gaps.sum() > MOST_DRAWS:
        raise ConfigError(
            f"the workload needs {num_gaps.sum():.3g} draws, allowed are {MOST_DRAWS}; lower "
            f"num_requests or horizon, or move the lifecycle windows closer to time 0"
        )
    if wanted:
        return wanted, list(num_gaps)
    expected = sum(_active_requests(spec, rate_us, end_us))
    spread = SIGMAS * math.sqrt(float((cv * cv * mean).sum()))
    return _round_up(expected + spread + SPARE_DRAWS), list(num_gaps)


def _gaps_of_share(share: np.ndarray, cv: np.ndarray, num_requests: int) -> list[float]:
    """Expected number of each client's requests in the table, plus SIGMAS deviations."""
    variance = cv * cv * share * num_requests
    others = variance.sum() - variance
    deviation = np.sqrt((1 - share) ** 2 * variance + share**2 * others)
    num_gaps = share * num_requests + SIGMAS * deviation + cv * cv / 2 + SPARE_DRAWS
    return list(np.minimum(num_gaps, num_requests))


def _latest_end(spec: WorkloadSpec, rate_us: np.ndarray, cv: np.ndarray, wanted: int) -> float:
    """A time by which the wanted requests have arrived with near certainty, or the horizon."""
    horizon_us = float(spec.horizon) if spec.horizon else math.inf
    if not wanted:
        return horizon_us
    last_end = max(_client_end(client) for client in spec.clients)
    goal = wanted + SIGMAS * math.sqrt(float((cv * cv * rate_us).sum() / rate_us.sum() * wanted))
    low, high = 0.0, min(horizon_us, last_end)
    if math.isinf(high):
        high = wanted / float(rate_us.sum())
        while sum(_active_requests(spec, rate_us, high)) < goal:
            high *= 2.0
    for _ in range(60):
        middle = (low + high) / 2.0
        is_enough = sum(_active_requests(spec, rate_us, middle)) >= goal
        low, high = (low, middle) if is_enough else (middle, high)
    return high


def _active_requests(spec: WorkloadSpec, rate_us: np.ndarray, end_us: float) -> list[float]:
    """Expected requests per client up to a time."""
    counts = []
    for client, rate in zip(spec.clients, rate_us, strict=True):
        spans = client.lifecycle.windows if client.lifecycle else ()
        active = sum(max(0.0, min(span.end_us, end_us) - span.start_us) for span in spans)
        counts.append(float(rate) * (active if spans else end_us))
    return counts


def _client_end(client: ClientSpec) -> float:
    if client.lifecycle is None:
        return math.inf
    return float(max(window.end_us for window in client.lifecycle.windows))


def _gap_cv(arrival: ArrivalSpec) -> float:
    if arrival.process in ("poisson", "constant"):
        return 1.0 if arrival.process == "poisson" else 0.0
    return 1.0 if arrival.cv is None else arrival.cv


def _num_proposals(arrival: ArrivalSpec, num_gaps: float) -> int:
    if arrival.process == "gamma":
        rejected = 1.0 - samplers.GAMMA_ACCEPTANCE
        num_gaps += SIGMAS * math.sqrt(num_gaps * rejected)
        num_gaps /= samplers.GAMMA_ACCEPTANCE
    return _round_up(num_gaps)


def _round_up(size: float) -> int:
    step = max(SIZE_STEP, 2 ** (math.ceil(size).bit_length() - 4))
    return step * max(1, math.ceil(size / step))


def _tenants(spec: WorkloadSpec) -> tuple[str, ...]:
    return tuple(dict.fromkeys(client.tenant_id for client in spec.clients))


def _params(spec: WorkloadSpec) -> PlanParams:
    tenants = _tenants(spec)
    clients = tuple(
        ClientParams(
            rate_fraction=np.float64(client.rate_fraction),
            gap_shape=np.float64(gap_shape(client.arrival)),
            slo_class=np.int32(SLO_CLASSES.index(client.slo_class)),
            tenant=np.int32(tenants.index(client.tenant_id)),
            windows_us=_windows(client),
            input_law=_length_params(client.input_distribution),
            output_law=_length_params(client.output_distribution),
        )
        for client in spec.clients
    )
    return PlanParams(
        aggregate_rate=np.float64(spec.aggregate_rate),
        horizon_us=np.int64(spec.horizon or np.iinfo(np.int64).max),
        prefix_len=np.array(list(prefix_lengths(spec).values()), np.int32),
        clients=clients,
    )


def _windows(client: ClientSpec) -> np.ndarray:
    windows = client.lifecycle.windows if client.lifecycle else ()
    spans = [(window.start_us, window.end_us) for window in windows]
    return np.array(spans, np.int64).reshape(-1, 2)


_LENGTH_PARAMS: dict[str, Callable[..., samplers.LengthParams]] = {
    "gaussian": samplers.Gaussian,
    "exponential": samplers.Exponential,
    "pareto_lognormal": samplers.ParetoLognormal,
    "constant": samplers.Constant,
}


def _length_params(law: LengthLaw) -> samplers.LengthParams:
    if law.type == "empirical":
        bins = sorted((count, weight) for count, weight in law.params.items() if weight > 0)
        cumulative = np.cumsum([weight for _, weight in bins])
        cumulative /= cumulative[-1]
        return samplers.Empirical(np.array([count for count, _ in bins], np.float64), cumulative)
    make = _LENGTH_PARAMS[law.type]
    fields = make.__dataclass_fields__  # type: ignore[attr-defined]
    return make(**{name: np.float64(getattr(law.params, name)) for name in fields})
