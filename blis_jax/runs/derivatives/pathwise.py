"""Slopes of a run along directions: of its inputs, of its step records, and of quantities observed in it."""

from __future__ import annotations

import copy
import dataclasses
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import jax
import jax.numpy as jnp
import numpy as np

from blis_jax.core.types import EngineShape, Mechanism, Params
from blis_jax.engine.loop import Order, requests_of, run_row
from blis_jax.records.from_tables import request_records
from blis_jax.records.observation import Observation
from blis_jax.records.record import RunRecord
from blis_jax.tables.raw import Raw
from blis_jax.workload.table import NEVER_US, RequestTable

if TYPE_CHECKING:
    from blis_jax.core.arrays import Values

ALPHA = ("alpha0", "alpha1", "alpha2")
BETA = ("beta0", "beta1", "beta2", "beta3")
# arrival_scale stretches all arrival times by a factor 1 + ε; the latencies are settings in µs
OTHERS = ("arrival_scale", "kv_transfer_base_latency", "admission_latency", "routing_latency")
DIRECTIONS = (*ALPHA, *BETA, *OTHERS)
PER_TOKEN = ("alpha1", "beta1", "beta2", "beta3")  # µs for each token
CLOCKS = ("float64", "continuous")

Direction = Mapping[str, float]  # a weight for some of DIRECTIONS; the others have 0


@dataclass(frozen=True)
class Numbers:
    """The slopes of the engine's inputs, or the inputs themselves as floats."""

    alpha: Values  # [instance, 3]
    beta: Values  # [instance, coefficient]
    arrival: Values  # [request], with a spare one
    transfer_us: Values  # [instance]
    admission_latency_us: Values | np.float64
    routing_latency_us: Values | np.float64


jax.tree_util.register_dataclass(Numbers)


def slopes_along(
    shape: EngineShape, numbers: Params, table: RequestTable, direction: Direction
) -> Numbers:
    """Return the slopes of the engine's inputs along a direction."""

    def coefficients(names: Sequence[str], like: Values) -> np.ndarray:
        row = np.zeros(np.shape(like)[1])
        slopes = [direction.get(name, 0.0) for name in names[: len(row)]]
        row[: len(slopes)] = slopes
        return np.tile(np.asarray(row, np.float64), (np.shape(like)[0], 1))

    arrival = np.asarray(table.arrival_us)
    arrival = np.where(arrival == NEVER_US, 0, arrival).astype(np.float64)
    arrival = np.pad(arrival, (0, shape.num_requests + 1 - len(arrival)))
    return Numbers(
        alpha=coefficients(ALPHA, numbers.cluster.alpha),
        beta=coefficients(BETA, numbers.cluster.beta),
        arrival=direction.get("arrival_scale", 0.0) * arrival,
        transfer_us=np.full(
            np.shape(numbers.cluster.transfer_us), direction.get("kv_transfer_base_latency", 0.0)
        ),
        admission_latency_us=np.float64(direction.get("admission_latency", 0.0)),
        routing_latency_us=np.float64(direction.get("routing_latency", 0.0)),
    )


def slopes_of(shape: EngineShape, mechanism: Mechanism) -> Callable[..., Any]:
    """Return `(params, table, order, slopes[direction], max_scan_steps) -> (Raw, log_time[direction])`."""

    def differentiated(
        params: Params,
        table: RequestTable,
        order: Order,
        slopes: Numbers,
        max_scan_steps: jax.Array,
    ) -> tuple[Raw, jax.Array]:
        """Make one run and its slopes along every direction."""
        requests = requests_of(shape, mechanism, params, table, order)
        cluster = params.cluster

        def run(numbers: Numbers) -> tuple[jax.Array, Raw]:
            """Run the engine with `numbers` as its inputs; return the step records' times and the raw run."""
            values = dataclasses.asdict(numbers)
            arrival = values.pop("arrival")
            moved = dataclasses.replace(params, cluster=dataclasses.replace(cluster, **values))
            with_arrival = dataclasses.replace(requests, arrival=arrival)
            raw = run_row(shape, mechanism, moved, with_arrival, max_scan_steps)
            return raw.log_time, raw

        start = Numbers(
            alpha=cluster.alpha,
            beta=cluster.beta,
            arrival=requests.arrival,
            transfer_us=cluster.transfer_us.astype(jnp.float64),
            admission_latency_us=cluster.admission_latency_us.astype(jnp.float64),
            routing_latency_us=cluster.routing_latency_us.astype(jnp.float64),
        )

        def along(slope: Numbers) -> tuple[jax.Array, Raw]:
            """Return the slopes of the step records' times along one direction, and the run itself."""
            _, log_slopes, raw = jax.jvp(run, (start,), (slope,), has_aux=True)
            return log_slopes, raw

        log_slopes, raw = jax.vmap(along, out_axes=(0, None))(slopes)
        return raw, log_slopes

    return differentiated


class SlopesSeen(Observation):
    """An `Observation` computed from slopes in place of times: all its quantities but counts are linear in times."""

    def __init__(self, seen: Observation, slopes: Numbers, log_slopes: np.ndarray) -> None:
        """Take the slopes of the inputs, and those of the step records' times, `[record, column]`."""
        self.__dict__.update(copy.copy(seen.__dict__))
        self.__dict__.pop("lives", None)  # made of times, not of slopes
        self.time_type = np.float64
        arrival = slopes.arrival[: self.num_requests]
        self._set_times(slopes, arrival, log_slopes[: len(seen.log)])

    def first_token_parts(self, has_token: Values, *_: object) -> np.ndarray:
        """Return no columns: parts of a TTFT are not differentiated, since one is a minimum of two times."""
        return np.zeros((len(has_token), 0))

    def ended(self, record: RunRecord) -> float:
        """Return the slope of the time of the run's last event."""
        requests, slopes = record.requests, request_records(self)[0]
        log, steps = self.log, record.steps
        further = steps.num_steps - 1
        last_start = steps.start_us + further * steps.duration_us
        candidates = [
            (requests.left_us, slopes.left_us),
            (requests.queued_at_us, slopes.queued_at_us),
            (
                np.where(self.is_routed, requests.arrival_us, -1)
                + int(self.cluster.admission_latency_us + self.cluster.routing_latency_us),
                self.routed_us,
            ),
            (last_start, self.log_time[:, 0] + further * self.log_time[:, 1]),
        ]
        times = np.concatenate(
            [np.where(times <= self.horizon, times, -1) for times, _ in candidates]
        )
        if not len(log) and not len(times):
            return 0.0
        return float(np.concatenate([slope for _, slope in candidates])[np.argmax(times)])
