"""One run inside a compiled call, a lane: its records in JAX, and its measured requests."""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping, Sequence
from functools import cached_property
from typing import TYPE_CHECKING, Any, TypeVar

import jax
import jax.numpy as jnp
import numpy as np
from jax import lax

from blis_jax.core.arrays import ratio
from blis_jax.core.outcome import Outcome
from blis_jax.core.pytrees import pytree
from blis_jax.core.types import EngineShape, Mechanism, Params
from blis_jax.engine.mechanism import has_priorities
from blis_jax.metrics.distributions import (
    EVERYBODY,
    Ranked,
    ranked,
    weighted_percentiles_ms,
)
from blis_jax.metrics.figures import latest_us
from blis_jax.metrics.measure import Measure
from blis_jax.metrics.reference import class_code
from blis_jax.metrics.scalars import lookup
from blis_jax.metrics.summaries import (
    LATENCIES,
    PERCENTS,
    RATES,
    SloTargets,
    good_requests,
    latencies_us,
    rate_amounts,
)
from blis_jax.records.from_tables import (
    adapter_records,
    draft_records,
    instance_records,
    offload_records,
    preemption_records,
    request_records,
    step_records,
)
from blis_jax.records.observation import Observation
from blis_jax.records.record import (
    COUNTED,
    SETTLED,
    AdapterRecords,
    DraftRecords,
    InstanceRecords,
    OffloadRecords,
    PreemptionRecords,
    RequestRecords,
    Status,
    StepRecords,
)
from blis_jax.records.splits import SplitRecords
from blis_jax.records.stays import num_instances
from blis_jax.records.step_records import completed_itl_counts, itl_values
from blis_jax.tables.state import Reg

if TYPE_CHECKING:
    from jaxtyping import Array, Float, Int

    from blis_jax.tables.raw import Raw
    from blis_jax.workload.table import RequestTable

Records = TypeVar("Records", RequestRecords, InstanceRecords)
_NAMES_OF_COUNTS = {status: name for name, status in COUNTED.items()}


@pytree
class MeasureNumbers:
    """The measured window, and the limits of the SLO classes, as traced numbers."""

    # in the order of LIMITS; infinity where nothing is asked
    limits_us: Float[Array, "slo_class 3"]
    from_us: Int[Array, ""]  # arrivals from here on are measured
    # up to so long before the last arrival; 0: up to the end of the run
    cool_down_us: Int[Array, ""]


def measure_numbers(targets: SloTargets, measure: Measure) -> MeasureNumbers:
    """Return `targets` and the window of `measure` as numbers; the targets of `measure` are not used."""
    spans_us = (round(span * 1e6) for span in (measure.warm_up_s, measure.cool_down_s))
    numbers: tuple[Any, ...] = (targets.limits_us, *map(np.int64, spans_us))
    return MeasureNumbers(*numbers)


def _once(records: Records) -> Records:
    """Return the records behind an optimization barrier, so that XLA computes them once, not in every figure."""
    columns = {field.name: getattr(records, field.name) for field in dataclasses.fields(records)}
    traced = {name: value for name, value in columns.items() if isinstance(value, jax.Array)}
    return dataclasses.replace(records, **lax.optimization_barrier(traced))


class LaneRun:
    """The records of one run, padding of the tables included; see `Observation`."""

    def __init__(
        self,
        shape: EngineShape,
        mechanism: Mechanism,
        raw: Raw,
        table: RequestTable,
        params: Params,
    ) -> None:
        """Take `raw`, `table` and `params` of one lane, traced."""
        self.seen = Observation(raw, table, params, shape, mechanism, jnp)
        self.shape, self.mechanism, self.raw = shape, mechanism, raw

    @cached_property
    def requests(self) -> RequestRecords:
        """Return the records of the requests; padding is in flight and has no times."""
        return _once(self._requests[0])

    @cached_property
    def _requests(self) -> tuple[RequestRecords, SplitRecords | None]:
        return request_records(self.seen)

    @cached_property
    def instances(self) -> InstanceRecords:
        """Return the records of the instances; inactive instances have `total_kv_blocks` 0."""
        records = instance_records(self.seen, self.requests, self.splits)
        is_active = jnp.arange(self.seen.num_instances) < self.num_instances
        blocks: Any = jnp.where(is_active, records.total_kv_blocks, 0)
        return _once(dataclasses.replace(records, total_kv_blocks=blocks))

    @cached_property
    def steps(self) -> StepRecords:
        """Return the step records; padding has 0 steps."""
        return step_records(self.seen)

    @cached_property
    def preemptions(self) -> PreemptionRecords:
        """Return the records of preemptions; padding is on no instance."""
        return preemption_records(self.seen)

    @property
    def figures(self) -> Mapping[str, jax.Array]:
        """Return the event sources' figures of the run, by name."""
        told: Mapping[str, jax.Array] = self.raw.figures
        return told

    @property
    def splits(self) -> SplitRecords | None:
        """Return the parts of requests that pools have split; None without pools."""
        return self._requests[1]

    @property
    def offload(self) -> OffloadRecords | None:
        """Return the records of off-load tiers; None without tiers."""
        return offload_records(self.seen)

    @property
    def drafts(self) -> DraftRecords | None:
        """Return the counts of drafted tokens; None if nothing is drafted."""
        return draft_records(self.seen)

    @property
    def adapters(self) -> AdapterRecords | None:
        """Return the loads of LoRA adapters; None if none is ever loaded."""
        return adapter_records(self.seen)

    @property
    def num_instances(self) -> Any:
        """Return the number of instances that are part of the cluster."""
        return num_instances(self.seen.raw, self.seen.cluster)

    @property
    def is_august(self) -> bool:
        """Return whether the run follows BLIS's revision of August 2026."""
        return self.seen.rules.has_order

    @property
    def has_priorities(self) -> bool:
        """Return whether priority inversions are counted."""
        return has_priorities(self.mechanism)

    @property
    def outcome(self) -> jax.Array:
        """Return the engine's outcome; HORIZON if the engine reports success but requests were left at the horizon."""
        code = self.raw.registers[Reg.OUTCOME]
        status = self.requests.status
        is_settled = jnp.isin(status, jnp.asarray([int(settled) for settled in SETTLED]))
        is_left = jnp.any(self.seen.is_real & ~is_settled)
        return jnp.where((code == 0) & is_left, jnp.int32(Outcome.HORIZON), code)


class LaneSelection:
    """The measured requests of one run; figures of groups have a group axis."""

    def __init__(
        self,
        run: LaneRun,
        numbers: MeasureNumbers,
        may_be_unfinished: jax.Array,
        groups: Sequence[int] = (EVERYBODY,),
        latencies: Sequence[str] = LATENCIES,
    ) -> None:
        """Select the requests of `groups`, codes of SLO classes or EVERYBODY; percentiles are computed of `latencies`.

        `may_be_unfinished` holds for the whole batch: whether a request of any lane ended in decode, or was evicted.
        """
        self.run, self.numbers, self.may_be_unfinished = run, numbers, may_be_unfinished
        self.groups, self.latencies = tuple(groups), tuple(latencies)
        seen, requests = run.seen, run.requests
        last_us = jnp.max(jnp.where(seen.is_real, seen.arrival, 0))
        has_end = numbers.cool_down_us > 0
        until_us = jnp.where(has_end, last_us - numbers.cool_down_us, latest_us(self.record))

        def is_within(times_us: Array) -> jax.Array:
            is_late_enough: jax.Array = times_us >= numbers.from_us
            return is_late_enough & (~has_end | (times_us < until_us))

        is_done = requests.status == int(Status.COMPLETED)
        self.is_chosen = seen.is_real & is_within(jnp.asarray(requests.arrival_us))
        self.is_output = is_done & is_within(jnp.asarray(requests.left_us))  # whenever it arrived
        self.seconds = jnp.maximum(until_us - numbers.from_us, 0) / 1e6
        self.is_completed = self.is_chosen & is_done

    @property
    def record(self) -> Any:
        """Return the run, under the name by which figures read it."""
        return self.run

    def place(self, slo_class: int) -> int:
        """Return the index of a group on the group axis."""
        return self.groups.index(slo_class)

    @cached_property
    def is_member(self) -> jax.Array:
        """Return which requests belong to each group, measured or not `[group, request]`."""
        codes = jnp.asarray(self.groups)[:, None]
        return (self.run.requests.slo_class[None, :] == codes) | (codes < 0)

    @cached_property
    def is_of(self) -> jax.Array:
        """Return which measured requests belong to each group `[group, request]`."""
        return self.is_member & self.is_chosen[None, :]

    def sums(self, amounts: Sequence[Any], is_of: jax.Array) -> jax.Array:
        """Sum amounts over the requests `is_of` `[group, request]`; return `[amount, group]`."""
        stacked = jnp.stack([amount.astype(jnp.float64) for amount in amounts])
        # as a product, since XLA adds the entries of a sum one after another
        return stacked @ is_of.T.astype(jnp.float64)

    @cached_property
    def counts(self) -> dict[str, jax.Array]:
        """Return the number of requests, and of requests with each end status, `[group]`, by metric name."""
        status = self.run.requests.status
        ended = [status == int(code) for code in COUNTED.values()]
        sums = self.sums([jnp.ones_like(self.is_chosen), *ended], self.is_of)
        return dict(zip(("num_requests", *COUNTED), sums, strict=True))

    @cached_property
    def is_good(self) -> Any:
        """Return which requests completed within every target of their class `[request]`."""
        limits_us: Any = jnp.asarray(self.numbers.limits_us)
        return good_requests(self.record, limits_us)

    @cached_property
    def rates(self) -> dict[str, jax.Array]:
        """Return completions in the measured window ÷ its length in s, `[group]`, by metric name; 0 if empty."""
        is_of = self.is_member & self.is_output[None, :]
        amounts = self.sums(rate_amounts(self.record, self.is_good), is_of)
        return dict(zip(RATES, ratio(amounts, self.seconds), strict=True))

    @cached_property
    def attainment(self) -> jax.Array:
        """Return the share of requests within all targets `[group]`; NaN for an empty group."""
        return ratio(self.sums([self.is_good], self.is_of)[0], self.counts["num_requests"], jnp.nan)

    @cached_property
    def samples(self) -> tuple[jax.Array, jax.Array]:
        """Return the latencies, µs, and which measured requests have them, both `[latency, request]`."""
        latencies = [latencies_us(self.record, name) for name in self.latencies]
        values = jnp.stack([jnp.asarray(each, jnp.float64) for each, _ in latencies])
        return values, jnp.stack([exists & self.is_chosen for _, exists in latencies])

    @cached_property
    def ranked(self) -> Ranked:
        """Sort the latencies in ascending order, group by group."""
        return ranked(*self.samples, jnp.asarray(self.run.requests.slo_class), self.groups)

    @cached_property
    def percentiles_ms(self) -> jax.Array:
        """Return the percentiles `PERCENTS` of every latency `[latency, group, percent]`, in ms."""
        return self.ranked.percentiles_ms(PERCENTS)

    @cached_property
    def means_ms(self) -> jax.Array:
        """Return the means of the latencies `[latency, group]`, ms; NaN if no request of the group has the latency."""
        values, exists = self.samples
        total = self.sums(list(jnp.where(exists, values, 0.0)), self.is_of)
        return ratio(total, self.sums(list(exists), self.is_of), jnp.nan) / 1000

    @cached_property
    def itl_ms(self) -> tuple[jax.Array, jax.Array]:
        """Return percentiles PERCENTS and mean of the run's inter-token latencies, in ms."""
        record, steps = self.record, self.run.steps
        counts, _ = steps.num_completed_itl, record.preemptions  # which the branch must not make
        if counts is None:  # one question for a batch, so that it stays a branch
            counts = lax.cond(
                self.may_be_unfinished, lambda: completed_itl_counts(record), lambda: steps.num_itl
            )
        gaps: tuple[Any, Any] = itl_values(record, counts=counts)
        return weighted_percentiles_ms(*gaps, PERCENTS)

    def of(self, slo_class: int) -> LaneGroup:
        """Return one group by its SLO class, or EVERYBODY."""
        return LaneGroup(self, slo_class)

    def figure(self, name: str) -> jax.Array:
        """Return one metric, equal to that of `scalars.evaluate`; the selection must have its group and latency."""
        metric, slo_class = lookup(name)
        group = self.of(EVERYBODY if slo_class is None else class_code(slo_class))
        return jnp.asarray(metric.compute(group), jnp.float64)


@dataclasses.dataclass(frozen=True)
class LaneGroup:
    """The measured requests of one group of a lane, as metrics read them."""

    selection: LaneSelection
    slo_class: int

    @property
    def place(self) -> int:
        """Return the group's index on the group axis."""
        return self.selection.place(self.slo_class)

    @property
    def record(self) -> Any:
        """Return the run, under the name by which figures read it."""
        return self.selection.run

    @property
    def is_chosen(self) -> jax.Array:
        """Return which requests are measured `[request]`."""
        return self.selection.is_of[self.place]

    @property
    def num_requests(self) -> jax.Array:
        """Return the number of measured requests of this group."""
        return self.selection.counts["num_requests"][self.place]

    @property
    def attainment(self) -> jax.Array:
        """Return the share of the group's requests within all targets; NaN for an empty group."""
        return self.selection.attainment[self.place]

    def rate(self, name: str) -> jax.Array:
        """Return one of RATES; 0 if no time passed."""
        return self.selection.rates[name][self.place]

    def count(self, status: Status) -> jax.Array:
        """Return how many of the group's requests ended with this status."""
        return self.selection.counts[_NAMES_OF_COUNTS[status]][self.place]

    def mean_ms(self, latency: str) -> jax.Array:
        """Return the mean of a latency, ms; NaN if no request has it."""
        selection = self.selection
        if latency == "itl":
            return selection.itl_ms[1]
        return selection.means_ms[selection.latencies.index(latency), self.place]

    def percentile_ms(self, latency: str, percent: int) -> jax.Array:
        """Return a percentile of a latency, ms; NaN if no request has it."""
        selection, at = self.selection, PERCENTS.index(percent)
        if latency == "itl":
            return selection.itl_ms[0][at]
        return selection.percentiles_ms[selection.latencies.index(latency), self.place, at]

    def of_class(self, code: int) -> LaneGroup:
        """Return the group of one SLO class."""
        return self.selection.of(code)


def has_unfinished_decode(run: LaneRun) -> jax.Array:
    """Return whether a request ended in decode without completing, or was evicted."""
    requests = run.requests
    is_open = (requests.status == int(Status.RUNNING)) & (requests.token_step_idx >= 0)
    if requests.ended_step_idx is not None:
        is_open = is_open | (requests.ended_step_idx > 0)
    is_open = jnp.any(is_open)
    return is_open | jnp.any(run.seen.lives.is_eviction)
