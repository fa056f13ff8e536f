"""One run inside a compiled call: its records in JAX, and the requests of it that are measured."""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence
from functools import cached_property
from typing import Any, TypeVar

import jax
import jax.numpy as jnp
import numpy as np
from jax import lax

from blis_jax.core.outcome import Outcome
from blis_jax.core.types import EngineShape, Mechanism, pytree
from blis_jax.engine.state import Reg
from blis_jax.memory.block_tables.blocks import Eviction
from blis_jax.metrics.on_device.ranked import (
    NUM_CLASSES,
    Ranked,
    ranked,
    weighted_percentiles_ms,
)
from blis_jax.metrics.on_device.token_gaps import completed_counts
from blis_jax.metrics.summaries import LATENCIES, PERCENTS, SloTargets
from blis_jax.results.from_tables import Observation
from blis_jax.results.instance_records import evicted_on, instance_records
from blis_jax.results.records import (
    COUNTED,
    SETTLED,
    InstanceRecords,
    RequestRecords,
    Status,
    StepRecords,
)
from blis_jax.results.request_lives.latencies import lost_lives
from blis_jax.results.request_lives.stays import num_instances

Records = TypeVar("Records", RequestRecords, InstanceRecords)
LIMITS = ("ttft_ms", "tpot_ms", "e2e_ms")
RATES = ("output_tokens_per_s", "requests_per_s", "goodput_rps")


@pytree
class MeasureNumbers:
    """Which requests are measured, and what they must keep within, as traced numbers."""

    limits_us: Any  # float[slo_class, 3] in the order of LIMITS; infinity where nothing is asked
    from_us: Any  # arrivals from here on are measured
    cool_down_us: Any  # up to so long before the last arrival; 0: up to the end of the run


def measure_numbers(targets: SloTargets, from_us: int, cool_down_us: int) -> MeasureNumbers:
    """The numbers of one way to measure."""
    limits = np.full((NUM_CLASSES, len(LIMITS)), np.inf)
    for code in range(NUM_CLASSES):
        target = targets.of_code(code)
        for column, name in enumerate(LIMITS):
            limit = getattr(target, name)
            if limit is not None:
                limits[code, column] = limit * 1000
    return MeasureNumbers(limits, np.int64(from_us), np.int64(cool_down_us))


def _once(records: Records) -> Records:
    """The records as they are computed once, not again in every figure that reads them: less to compile."""
    columns = {field.name: getattr(records, field.name) for field in dataclasses.fields(records)}
    traced = {name: value for name, value in columns.items() if isinstance(value, jax.Array)}
    return dataclasses.replace(records, **lax.optimization_barrier(traced))


class LaneRun:
    """The records of one run, with all rows of its tables; see `Observation`."""

    def __init__(
        self, shape: EngineShape, mechanism: Mechanism, raw: Any, table: Any, params: Any
    ) -> None:
        """`raw`, `table` and `params` of one lane, traced."""
        self.seen = Observation(raw, table, params, shape.record_dtype, jnp)
        self.seen.block_size, self.seen.defects = shape.block_size, mechanism.defects
        self.seen.overhead, self.seen.rules = mechanism.latency.overhead, mechanism.rules
        self.shape, self.mechanism, self.raw = shape, mechanism, raw

    @cached_property
    def requests(self) -> RequestRecords:
        """Entries of no request are in flight and have no times."""
        return _once(self.seen.requests())

    @cached_property
    def instances(self) -> InstanceRecords:
        """Entries of no active instance are 0."""
        return _once(instance_records(self.seen, self.requests))

    @cached_property
    def steps(self) -> StepRecords:
        """Entries of no record have no steps."""
        return self.seen.steps()

    @cached_property
    def ended_us(self) -> jax.Array:
        """When the last event ran."""
        return jnp.max(self.instances.sim_ended_time_us)

    @cached_property
    def is_active(self) -> jax.Array:
        """Which instances are part of the cluster."""
        return jnp.arange(self.seen.num_instances) < num_instances(self.seen.raw, self.seen.cluster)

    @property
    def outcome(self) -> jax.Array:
        """The engine's own code, or whether the horizon left requests behind."""
        code = self.raw.registers[Reg.OUTCOME]
        status = self.requests.status
        is_settled = jnp.isin(status, jnp.asarray([int(one) for one in SETTLED]))
        is_left = jnp.any(self.seen.is_real & ~is_settled)
        return jnp.where((code == 0) & is_left, jnp.int32(Outcome.HORIZON), code)


class LaneSelection:
    """The measured requests of one run; what is said of groups has them as an axis."""

    def __init__(
        self,
        run: LaneRun,
        numbers: MeasureNumbers,
        may_be_unfinished: jax.Array,
        groups: Sequence[int | None] = (None,),
        latencies: Sequence[str] = LATENCIES,
    ) -> None:
        """`groups` are SLO classes by their code, or None for all; of `latencies` there are percentiles.

        `may_be_unfinished` is one for a batch: whether a request of any lane ended in decode, or was evicted.
        """
        self.run, self.numbers, self.may_be_unfinished = run, numbers, may_be_unfinished
        self.groups, self.latencies = tuple(groups), tuple(latencies)
        seen, requests = run.seen, run.requests
        last_us = jnp.max(jnp.where(seen.is_real, seen.arrival, 0))
        has_end = numbers.cool_down_us > 0
        until_us = jnp.where(has_end, last_us - numbers.cool_down_us, run.ended_us)

        def is_within(times_us: Any) -> jax.Array:
            is_late_enough: jax.Array = times_us >= numbers.from_us
            return is_late_enough & (~has_end | (times_us < until_us))

        is_done = requests.status == int(Status.COMPLETED)
        self.is_chosen = seen.is_real & is_within(requests.arrival_us)
        self.is_output = is_done & is_within(requests.left_us)  # whenever it arrived
        self.seconds = jnp.maximum(until_us - numbers.from_us, 0) / 1e6
        self.is_completed = self.is_chosen & is_done

    def place(self, slo_class: int | None) -> int:
        """Where a group stands on the axis of groups."""
        return self.groups.index(slo_class)

    @cached_property
    def is_member(self) -> jax.Array:
        """Which requests belong to each group, measured or not `[group, request]`."""
        codes = jnp.asarray([-1 if code is None else code for code in self.groups])[:, None]
        return (self.run.requests.slo_class[None, :] == codes) | (codes < 0)

    @cached_property
    def is_of(self) -> jax.Array:
        """Which measured requests belong to each group `[group, request]`."""
        return self.is_member & self.is_chosen[None, :]

    def sums(self, amounts: Sequence[Any], is_of: jax.Array | None = None) -> jax.Array:
        """Sums of amounts over the measured requests of each group, or over those of `is_of` `[amount, group]`."""
        is_of = self.is_of if is_of is None else is_of
        stacked = jnp.stack([amount.astype(jnp.float64) for amount in amounts])
        # as a product, since XLA adds the entries of a sum one after another
        return stacked @ is_of.T.astype(jnp.float64)

    @cached_property
    def counts(self) -> dict[str, jax.Array]:
        """How many requests there are, and ended in which way, by name of the metric `[group]`."""
        status = self.run.requests.status
        ended = [status == int(code) for code in COUNTED.values()]
        found = self.sums([jnp.ones_like(self.is_chosen), *ended])
        return dict(zip(("num_requests", *COUNTED), found, strict=True))

    @cached_property
    def tpot_us(self) -> jax.Array:
        """As `summaries.tpot_us`."""
        requests = self.run.requests
        decode_us = requests.e2e_us - jnp.maximum(requests.ttft_us, 0)
        gaps = decode_us / jnp.maximum(requests.output_len - 1, 1)
        return jnp.where(requests.output_len > 0, gaps, 0.0)

    @cached_property
    def is_good(self) -> jax.Array:
        """Which requests completed within every target of their class."""
        requests = self.run.requests
        limits = jnp.asarray(self.numbers.limits_us)[requests.slo_class]
        values: tuple[Any, ...] = (requests.ttft_us, self.tpot_us, requests.e2e_us)
        is_good = requests.status == int(Status.COMPLETED)
        for column, one in enumerate(values):
            is_good &= one <= limits[:, column]
            if LIMITS[column] != "e2e_ms":  # a first token that was never recorded meets no limit
                is_good &= (requests.ttft_us >= 0) | jnp.isinf(limits[:, column])
        return is_good

    @cached_property
    def rates(self) -> dict[str, jax.Array]:
        """What completed within the measured time ÷ that time, by name of the metric; 0 if no time passed."""
        is_of = self.is_member & self.is_output[None, :]
        all_of_them = jnp.ones_like(self.is_output)
        found = self.sums([self.run.requests.output_len, all_of_them, self.is_good], is_of)
        return dict(zip(RATES, ratio(found, self.seconds), strict=True))

    @cached_property
    def attainment(self) -> jax.Array:
        """Good ÷ all; NaN for an empty group."""
        return ratio(self.sums([self.is_good])[0], self.counts["num_requests"], jnp.nan)

    def latency(self, name: str) -> tuple[Any, Any]:
        """Latencies of all requests in µs, and which of the measured ones have one."""
        requests = self.run.requests
        if name == "tpot":
            return self.tpot_us, self.is_completed & (requests.ttft_us >= 0)
        values = {
            "ttft": requests.ttft_us,
            "e2e": requests.e2e_us,
            "scheduling_delay": requests.sched_delay_us,
        }[name]
        return values.astype(jnp.float64), self.is_chosen & (values >= 0)

    @cached_property
    def samples(self) -> tuple[jax.Array, jax.Array]:
        """The latencies in µs and which exist `[latency, request]`."""
        found = [self.latency(name) for name in self.latencies]
        return jnp.stack([values for values, _ in found]), jnp.stack([one for _, one in found])

    @cached_property
    def ranked(self) -> Ranked:
        """The latencies in ascending order, group by group."""
        slo_class: Any = self.run.requests.slo_class
        return ranked(*self.samples, slo_class, self.groups)

    @cached_property
    def percentiles_ms(self) -> jax.Array:
        """PERCENTS of the latencies `[latency, group, percent]`."""
        return self.ranked.percentiles_ms(PERCENTS)

    @cached_property
    def means_ms(self) -> jax.Array:
        """Means of the latencies `[latency, group]`; NaN where nobody has one."""
        values, exists = self.samples
        total = self.sums(list(jnp.where(exists, values, 0.0)))
        return ratio(total, self.sums(list(exists)), jnp.nan) / 1000

    @cached_property
    def itl_ms(self) -> tuple[jax.Array, jax.Array]:
        """Percentiles PERCENTS and mean of the run's inter-token latencies."""
        run = self.run
        output_time = run.instances.output_time_us[run.steps.instance]
        values = run.steps.duration_us + output_time
        weights = completed_counts(run.seen, run.requests, run.steps, self.may_be_unfinished)
        gaps, lives = run.seen.gaps_us, run.seen.lives
        if gaps is not None:
            request = jnp.maximum(lives.evictions[:, Eviction.REQUEST], 0)
            is_done = run.requests.status[request] == int(Status.COMPLETED)
            long = gaps + run.instances.output_time_us[jnp.maximum(evicted_on(run.seen), 0)]
            values = jnp.concatenate([values, long])
            is_it, is_lost = is_done & (gaps >= 0), lost_lives(run.seen)
            if is_lost is not None:
                is_it = is_it & ~is_lost
            weights = jnp.concatenate([weights, is_it.astype(weights.dtype)])
        handed = run.requests.handed_gap_us
        if handed is not None:
            values = jnp.concatenate([values, handed])
            weights = jnp.concatenate([weights, (handed >= 0).astype(weights.dtype)])
        return weighted_percentiles_ms(values, weights, PERCENTS)


def has_unfinished_decode(run: LaneRun) -> jax.Array:
    """Whether a request ended in decode without completing, or was evicted."""
    requests = run.requests
    is_open = (requests.status == int(Status.RUNNING)) & (requests.token_step_idx >= 0)
    if requests.ended_step_idx is not None:
        is_open = is_open | (requests.ended_step_idx > 0)
    is_open = jnp.any(is_open)
    return is_open | jnp.any(run.seen.lives.is_eviction)


def ratio(amount: Any, of: Any, otherwise: float = 0.0) -> jax.Array:
    """Their quotient; something else where the divisor is 0."""
    return jnp.where(of > 0, amount / _positive(of), otherwise)


def _positive(value: Any) -> Any:
    return jnp.where(value > 0, value, 1)
