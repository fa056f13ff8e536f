"""Pathwise derivatives: how every latency of a run changes with coefficients, arrivals and latencies.

Forward mode through the engine itself on a float64 clock, several directions at once. Times are smooth in these numbers
as long as decisions stay the same (which request is routed where, which is in which batch). A derivative holds
decisions fixed, and ignores truncation to whole microseconds. The effect of changed decisions on a metric is not part
of it.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, NamedTuple

import jax
import numpy as np

from blis_jax.cluster.config import ClusterConfig
from blis_jax.cluster.instance_groups import coefficients_of
from blis_jax.cluster.step_times import model_of
from blis_jax.core.outcome import Outcome
from blis_jax.core.types import EngineShape
from blis_jax.errors import ConfigError
from blis_jax.lazy import xarray
from blis_jax.policies.seeds import policy_seed
from blis_jax.records.from_tables import request_records
from blis_jax.records.observation import Observation, unstack
from blis_jax.records.record import RequestRecords, RunRecord, Status
from blis_jax.runs.calls import Call, Group, Results, results_of
from blis_jax.runs.derivatives.pathwise import (
    BETA,
    CLOCKS,
    DIRECTIONS,
    PER_TOKEN,
    Direction,
    Numbers,
    SlopesSeen,
    slopes_along,
    slopes_of,
)
from blis_jax.runs.driver import Runner
from blis_jax.runs.options import Options
from blis_jax.runs.programs import compiled
from blis_jax.runs.runs import GivenRun, Inputs, Row
from blis_jax.workload.table import RequestTable

if TYPE_CHECKING:
    from jaxtyping import Float


@dataclass(frozen=True)
class Derivatives:
    """One run and the slopes of its times, µs per unit of each direction; NaN where there is no time."""

    record: RunRecord
    wrt: tuple[str, ...]
    first_token_us: Float[np.ndarray, "direction request"]  # absolute, output processing included
    ttft_us: Float[np.ndarray, "direction request"]
    e2e_us: Float[np.ndarray, "direction request"]
    left_us: Float[np.ndarray, "direction request"]
    sched_delay_us: Float[np.ndarray, "direction request"]
    queued_at_us: Float[np.ndarray, "direction request"]
    step_start_us: Float[np.ndarray, "direction record"]
    step_duration_us: Float[np.ndarray, "direction record"]
    output_time_us: Float[np.ndarray, "direction instance"]
    ended_us: Float[np.ndarray, "direction"]  # of the last event of the run

    def to_dataset(self) -> xarray.Dataset:
        """Return the slopes of every request's times as xarray `[direction, request]`, with units."""
        names = ("first_token_us", "ttft_us", "e2e_us", "left_us", "sched_delay_us", "queued_at_us")
        units = ("direction", [unit_of_direction(name) for name in self.wrt])
        coords = {"direction": list(self.wrt), "direction_unit": units}
        slopes = {f"d_{name}": (("direction", "request"), getattr(self, name)) for name in names}
        dataset = xarray.Dataset(slopes, coords)
        for name in names:
            about = {
                "long_name": f"slope of {name.removesuffix('_us')}",
                "units": "µs per direction_unit",
            }
            dataset[f"d_{name}"].attrs = about
        return dataset


def unit_of_direction(name: str) -> str:
    """Return the unit of a direction; 1 where it is a factor or a mixture of several."""
    if name in PER_TOKEN:
        return "µs/token"
    return "µs" if name in DIRECTIONS and name != "arrival_scale" else "1"


def jacobian(
    config: ClusterConfig,
    table: RequestTable,
    wrt: Sequence[str],
    options: Options | None = None,
    seed: int = 0,
) -> Derivatives:
    """Simulate one run, and differentiate its times with its decisions held fixed.

    Args:
        config: the cluster.
        table: the requests.
        wrt: names of `DIRECTIONS`, such as `alpha0`, `beta2` or `arrival_scale`.
        options: how to run; the clock is `float64` unless it is `continuous`.
        seed: as in `simulate`.

    Returns:
        The record, and slopes in µs per unit of each direction, `[direction, request]`; NaN where a request
        has no such time.

    Raises:
        ConfigError: a direction is unknown, or the configuration has no such coefficient.
    """
    return Differentiator(wrt, options).run(config, table, seed)


def jvp(
    config: ClusterConfig,
    table: RequestTable,
    direction: Direction,
    options: Options | None = None,
    seed: int = 0,
) -> Derivatives:
    """Make one run and its slopes along one direction, such as `{"beta0": 1.0, "beta1": -0.2}`."""
    return Differentiator([direction], options).run(config, table, seed)


class Differentiator:
    """Differentiates one run after another; runs of one kind share a compiled program.

    The clock is float64 holding whole microseconds, or with `Options(clock="continuous")` without truncation.
    """

    def __init__(self, wrt: Sequence[str | Direction], options: Options | None = None) -> None:
        """Differentiate with respect to `wrt`: names of DIRECTIONS, or weighted sums of them."""
        options = options or Options(clock="float64")
        if options.clock not in CLOCKS:
            options = dataclasses.replace(options, clock="float64")
        if not wrt:
            raise ConfigError(f"no direction was given; name some of {', '.join(DIRECTIONS)}")
        self.options = dataclasses.replace(options, form="rows")
        self.wrt = tuple(_name(direction) for direction in wrt)
        self.directions = [
            {direction: 1.0} if isinstance(direction, str) else dict(direction) for direction in wrt
        ]
        for direction in self.directions:
            _check(direction)
        self.runner = Runner(self.options, num_rows=1)

    def expect(self, rows: Iterable[Row]) -> None:
        """Grow table sizes for the runs `rows` to come, so that one program may serve all of them."""
        self.runner.expect(rows)

    def run(self, config: ClusterConfig, table: RequestTable, seed: int = 0) -> Derivatives:
        """Make one run, repeated with larger tables if needed, and its slopes; `seed` as in `simulate`."""
        named = {name for direction in self.directions for name in direction}
        if model_of(config).sizes is not None and named & {"alpha1", *BETA}:
            raise ConfigError(
                f"{min(named & {'alpha1', *BETA})}: step times of latency_model {config.latency_model} come "
                "from sizes, and nothing is differentiated through them; name other directions"
            )
        if len(coefficients_of(config)) < 4 and any(
            "beta3" in direction for direction in self.directions
        ):
            raise ConfigError("beta3: the configuration has three beta_coeffs; give a fourth one")
        last: list[SlopesSeen] = []

        def execute(call: Call) -> Results:
            """Make the run with its slopes; keep the slopes in `last`."""
            (run,), group = call.runs, call.group
            inputs = run.inputs(group.shape)
            seen, last[:] = self._run(group, inputs, self._stacked(group.shape, inputs))
            return results_of([seen])

        run = GivenRun(Row(config, table, policy_seed(seed)), self.options)
        record = self.runner.alone(run, execute)
        return _derivatives(record, self.wrt, last)

    def _stacked(self, shape: EngineShape, inputs: Inputs) -> Numbers:
        """Return the slopes of the inputs, stacked `[direction, ...]`."""
        slopes = [
            slopes_along(shape, inputs[0], inputs[1], direction) for direction in self.directions
        ]
        stacked: Numbers = jax.tree.map(lambda *leaves: np.stack(leaves), *slopes)
        return stacked

    def _run(
        self, group: Group, inputs: Inputs, stacked: Numbers
    ) -> tuple[Observation, list[SlopesSeen]]:
        """Make one compiled call; return the run's observation, and its slopes along each direction."""
        with jax.enable_x64(True):
            function = compiled(slopes_of, group.shape, group.functions)
            results = function(*inputs, stacked, np.int32(self.options.max_scan_steps))
            raw, log_slopes = jax.device_get(results)
        seen = Observation(raw, inputs[1], inputs[0], group.shape, group.functions)
        each = range(len(self.wrt))
        return seen, [SlopesSeen(seen, unstack(stacked, at), log_slopes[at]) for at in each]

    def repeated(self, config: ClusterConfig, table: RequestTable) -> Repeated:
        """Return a function that differentiates the same requests again and again with other coefficients."""
        return Repeated(self, config, table)


class LatencySlopes(NamedTuple):
    """Latencies of a run in which all requests came to their end, and their slopes, µs."""

    ttft_us: Float[np.ndarray, " request"]
    e2e_us: Float[np.ndarray, " request"]
    d_ttft: Float[np.ndarray, "direction request"]
    d_e2e: Float[np.ndarray, "direction request"]


class Repeated:
    """Differentiates the same requests and cluster again and again with other latency coefficients.

    For fits: it checks no configuration and makes no record, so takes half of the time of `Differentiator.run`.
    """

    def __init__(
        self, differentiator: Differentiator, config: ClusterConfig, table: RequestTable
    ) -> None:
        """Prepare the run; `run` must have run these requests before, so that their table sizes are known."""
        self.differentiator = differentiator
        run = GivenRun(Row(config, table, policy_seed(0)), differentiator.options)
        self.group = differentiator.runner.groups[run.kind]
        self.shape, self.inputs = self.group.shape, run.inputs(self.group.shape)
        self.stacked = differentiator._stacked(self.shape, self.inputs)

    @property
    def is_outgrown(self) -> bool:
        """Return whether another run of the group has needed larger tables since."""
        return self.group.shape != self.shape

    def __call__(self, alpha: Sequence[float], beta: Sequence[float]) -> LatencySlopes | None:
        """Return latencies with these coefficients on all instances; None if the run did not end regularly."""
        if self.is_outgrown:
            return None
        numbers = self.inputs[0]
        cluster = numbers.cluster
        fields: dict[str, Any] = {
            "alpha": np.broadcast_to(np.asarray(alpha, np.float64), cluster.alpha.shape),
            "beta": np.broadcast_to(np.asarray(beta, np.float64), cluster.beta.shape),
        }
        moved = dataclasses.replace(cluster, **fields)
        numbers = dataclasses.replace(numbers, cluster=moved)
        inputs = numbers, *self.inputs[1:]
        seen, each = self.differentiator._run(self.group, inputs, self.stacked)
        if seen.outcome() != Outcome.COMPLETED or np.any(seen.status != Status.COMPLETED):
            return None
        requests, *slopes = (request_records(observation)[0] for observation in (seen, *each))
        return LatencySlopes(
            requests.ttft_us,
            requests.e2e_us,
            np.stack([slope.ttft_us for slope in slopes]),
            np.stack([slope.e2e_us for slope in slopes]),
        )


def _name(direction: str | Direction) -> str:
    return (
        direction
        if isinstance(direction, str)
        else " + ".join(f"{w:g}·{n}" for n, w in direction.items())
    )


def _check(direction: Direction) -> None:
    for name in direction:
        if name not in DIRECTIONS:
            known = ", ".join(DIRECTIONS)
            raise ConfigError(
                f"derivative with respect to {name!r} is not pathwise; known are {known}; "
                "blis_jax.gradient has those of what acts through decisions"
            )


def _derivatives(record: RunRecord, wrt: tuple[str, ...], each: list[SlopesSeen]) -> Derivatives:
    slopes = [request_records(seen_along)[0] for seen_along in each]

    def of_requests(name: str) -> np.ndarray:
        exists = getattr(record.requests, name) >= 0
        return np.stack([np.where(exists, _column(slope, name), np.nan) for slope in slopes])

    ttft = of_requests("ttft_us")
    return Derivatives(
        record=record,
        wrt=wrt,
        first_token_us=ttft + np.stack([along.arrival for along in each]),
        ttft_us=ttft,
        e2e_us=of_requests("e2e_us"),
        left_us=of_requests("left_us"),
        sched_delay_us=of_requests("sched_delay_us"),
        queued_at_us=of_requests("queued_at_us"),
        step_start_us=np.stack([along.log_time[:, 0] for along in each]),
        step_duration_us=np.stack([along.log_time[:, 1] for along in each]),
        output_time_us=np.stack([along.output_time for along in each])[:, : each[0].num_instances],
        ended_us=np.asarray([along.ended(record) for along in each]),
    )


def _column(requests: RequestRecords, name: str) -> np.ndarray:
    values: np.ndarray = getattr(requests, name)
    return values
