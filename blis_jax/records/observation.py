"""Quantities read off the engine's raw tables, in numpy on the host or in JAX in a compiled call.

In a compiled call, padding rows of a lane have no times.
"""

from __future__ import annotations

from functools import cached_property
from typing import TYPE_CHECKING, Any

import numpy as np

from blis_jax.core.arrays import clipped, sums
from blis_jax.core.outcome import Outcome
from blis_jax.core.pytrees import HasParts, Parts
from blis_jax.core.types import REJECTED, UNROUTED
from blis_jax.lazy import jax
from blis_jax.records import stays
from blis_jax.records.latencies import gaps_us
from blis_jax.records.record import (
    SETTLED,
    Status,
)
from blis_jax.records.splits import (
    is_on_its_way,
)
from blis_jax.records.stays import Timeouts, final_status, gateway_waits, routed_later
from blis_jax.records.tied_stretches import InstanceHistory, entry_times, histories
from blis_jax.tables.adapters import AdapterTable
from blis_jax.tables.blocks import Eviction
from blis_jax.tables.drafts import DraftPast, DraftPasts, DraftTable
from blis_jax.tables.journeys import Exits, Journey, Journeys, Reservation, Reservations
from blis_jax.tables.raw import BlockRecords, Raw
from blis_jax.tables.state import Dyn, Inst, Log, LogTime, Reg
from blis_jax.workload.table import NEVER_US, RequestTable

if TYPE_CHECKING:
    from types import ModuleType

    from blis_jax.core.arrays import Values
    from blis_jax.core.types import EngineShape, Mechanism, Params


_IS_SETTLED = np.array([status in SETTLED for status in Status])  # [status]


def verified(raw: Raw, dyn: Values, xp: ModuleType) -> tuple[Any, Any]:
    """Return `dyn` without the progress by drafts of steps that were never made, and each request's accepted tokens."""
    drafts = raw[DraftTable]
    open_ = sums(xp.asarray(drafts.request).ravel(), xp.asarray(drafts.accepted).ravel(), len(dyn))
    progress = dyn[:, Dyn.PROGRESS] - open_
    is_it = xp.arange(dyn.shape[1]) == Dyn.PROGRESS
    dyn = xp.where(is_it, progress[:, None], dyn)
    accepted = xp.asarray(raw[DraftPasts].rows)[: len(dyn), DraftPast.columns.ACCEPTED]
    return dyn, accepted.astype(np.int64)


def unstack(tree: object, row: int) -> Any:
    """Return one run of a batch, with numpy arrays."""
    return jax.tree.map(lambda leaf: np.asarray(leaf[row]), tree)


def _further_columns(
    raw: Raw, table: RequestTable, num_requests: int, xp: ModuleType
) -> dict[str, Values]:
    """Return the columns of request records that only some runs have, `[request]` by name."""
    columns: dict[str, Values] = {}
    if AdapterTable in raw and hasattr(table, "adapter"):
        columns["adapter"] = xp.asarray(table.adapter)[:num_requests] - 1
    if Exits in raw:
        ended = xp.asarray(raw[Exits].step_index)[:num_requests].astype(np.int64)
        columns["ended_step_idx"] = xp.maximum(ended, 0)
    return columns


class Observation(HasParts):
    """Hold the raw tables of one run with its requests, and the quantities derived from both.

    `own` has `Timeouts` if requests give up, each request's `Journey` if some move, and its `Reservation` if KV is
    reserved.
    """

    def __init__(
        self,
        raw: Raw,
        table: RequestTable,
        params: Params,
        shape: EngineShape,
        mechanism: Mechanism,
        xp: ModuleType = np,
    ) -> None:
        """Take `raw`, `table` and `params` of one run, as arrays of `xp`: numpy, or JAX in a compiled call.

        A run on the continuous clock has float times.
        """
        self.raw, self.cluster, self.xp = raw, params.cluster, xp
        self.time_type, self.block_size = shape.record_dtype, shape.block_size
        self.defects, self.rules = mechanism.defects, mechanism.rules
        self.latency = mechanism.latency
        arrival = xp.asarray(table.arrival_us)
        self.is_real = arrival != NEVER_US
        if xp is np:
            n = int(np.sum(self.is_real))
            count = min(int(raw.registers[Reg.NUM_RECORDS]), len(raw.log) - 1)
            self.num_instances = int(stays.num_instances(raw, self.cluster))
        else:  # rows beyond the records that were written are zero
            n, count = arrival.shape[0], raw.log.shape[0] - 1
            self.num_instances = self.cluster.alpha.shape[0]
        self.num_requests, self.is_real = n, self.is_real[:n]
        self.horizon = self.cluster.horizon_us
        self.input_len = xp.asarray(table.input_len)[:n].astype(np.int64)
        self.output_len = xp.asarray(table.output_len)[:n].astype(np.int64)
        self.slo_class = xp.asarray(table.slo_class)[:n].astype(np.int64)
        self.tenant = xp.asarray(table.tenant)[:n].astype(np.int64)
        self.columns = _further_columns(raw, table, n, xp)
        parts: list[object] = []
        if hasattr(table, "timeout_us"):
            parts.append(Timeouts(xp.asarray(table.timeout_us)[:n].astype(np.int64)))
        self.log: np.ndarray = xp.asarray(raw.log)[:count].astype(np.int64)
        self.dyn: np.ndarray = xp.asarray(raw.dyn)[:n].astype(np.int64)
        if DraftTable in raw:
            self.dyn, self.columns["accepted_tokens"] = verified(raw, self.dyn, xp)
        self.instance = xp.where(raw.instance_of[:n] >= 0, raw.instance_of[:n], -1).astype(np.int64)
        self.first_instance = self.instance
        if Journeys in raw:
            journey = Journey(raw[Journeys].numbers[:n], raw[Journeys].times[:n])
            parts.append(journey)
            self.first_instance = xp.where(journey.came_from >= 0, journey.came_from, self.instance)
        self.is_rejected = raw.instance_of[:n] == REJECTED
        self.is_unrouted = raw.instance_of[:n] == UNROUTED
        if Reservations in raw:  # one that is dropped for want of KV has been nowhere since
            reserved = Reservation(raw[Reservations].numbers[:n], raw[Reservations].times[:n])
            parts.append(reserved)
            self.instance = xp.where(reserved.is_dropped == 1, reserved.target, self.instance)
        self.own = Parts(*parts)
        self.is_routed = self.instance >= 0
        log_time: np.ndarray = xp.asarray(raw.log_time)[:count].astype(self.time_type)
        self._set_times(self.cluster, arrival[:n].astype(self.time_type), log_time)
        self.is_queued = self.is_routed & (self.queued_us <= self.horizon)

    def _set_times(self, cluster: Any, arrival: Values, log_time: np.ndarray) -> None:
        """Set the attributes that are times; linear in the arguments but for truncation, so it maps slopes too."""
        xp = self.xp
        self.arrival, self.log_time = arrival, log_time
        entered = entry_times(cluster, arrival, self.input_len, self.first_instance, xp)
        latency_us, self.queueing_us = cluster.routing_latency_us, entered[1]
        self.routed_us, waits = gateway_waits(self.raw, entered[0], latency_us, xp)
        self.columns = self.columns | waits
        self.routed_us = routed_later(self.raw, self.routed_us, xp)
        self.queued_us = self.routed_us + self.queueing_us
        self.output_time = xp.asarray(cluster.alpha)[:, 2].astype(self.time_type)

    @cached_property
    def lives(self) -> stays.Lives:
        """Return the lives of the requests: their stays in batches, and what these leave behind."""
        lives = stays.lives_of(self.raw, self.dyn, self.log, self.log_time, self.xp)
        if Journey not in self:
            return lives
        return stays.moved(lives, self[Journey], self.xp, Reservation in self, self.keeps_output)

    @property
    def keeps_output(self) -> bool:
        """Return whether preempted requests keep their output, so that no token is made twice."""
        return self.rules.keeps_output and BlockRecords in self.raw

    def record_of(self, column: int, offset: int = 0) -> np.ndarray:
        """Return the index of a step record per request, clipped to the log."""
        return self.in_log(self.dyn[:, column] + offset)

    def in_log(self, record: Values) -> np.ndarray:
        """Return the index of a step record, clipped to the log."""
        return clipped(record, max(len(self.log) - 1, 0))

    def time_of(self, column: int, at: Values) -> np.ndarray:
        """Return a column of `LogTime` for the records `at`, µs; 0 in an empty log."""
        return self.log_time[at, column] if len(self.log) else np.zeros(at.shape, np.int64)

    @cached_property
    def status(self) -> np.ndarray:
        """Return the status of every request at the end of the run, as numbers of `Status`."""
        xp = self.xp
        is_scheduled = self.lives.in_batch
        is_there = self.is_queued
        if Journey in self:  # or on its way to another instance
            is_there = is_there & ~is_on_its_way(self[Journey], self[Journey].due.dtype)
        status = xp.where(is_there, int(Status.WAITING), int(Status.IN_FLIGHT))
        status = xp.where(is_scheduled, int(Status.RUNNING), status)
        status = xp.where(self.dyn[:, Dyn.FINISH_RECORD] > 0, int(Status.COMPLETED), status)
        status = xp.where(self.dyn[:, Dyn.NUM_SCHEDULED] < 0, int(Status.DROPPED), status)
        if Journey in self:
            status = xp.where(self[Journey].is_lost == 1, int(Status.LOST), status)
        if Reservation in self:
            reserved = self[Reservation]
            is_coming = (reserved.ends > self.horizon) & (self[Journey].computed > 0)
            status = xp.where(is_coming, int(Status.IN_FLIGHT), status)
            status = xp.where(reserved.is_dropped == 1, int(Status.DROPPED), status)
        status = final_status(self.raw, self.dyn, status, xp)
        status = xp.where(self.is_unrouted, int(Status.UNROUTED), status)
        return xp.where(self.is_rejected, int(Status.REJECTED), status).astype(np.int64)

    def index_left_at(self) -> np.ndarray:
        """Return the last step of each request's instance, or the step after which the request left early."""
        last = self.last_index()[self.xp.maximum(self.instance, 0)]
        if "ended_step_idx" not in self.columns:
            return last
        ended = self.columns["ended_step_idx"]
        return self.xp.where(ended > 0, ended, last)

    @cached_property
    def gaps_us(self) -> Values:
        """Return `latencies.gaps_us` of the run, which must keep output over preemptions."""
        return gaps_us(self)

    @cached_property
    def last_steps(self) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
        """Return duration and end of each request's last step, and steps since its token; junk if not done."""
        at_end = self.record_of(Dyn.FINISH_RECORD, -1)
        last = self.time_of(LogTime.DURATION, at_end)
        total = self.time_of(LogTime.TOTAL_DURATION, at_end)
        total = total - self.time_of(LogTime.TOTAL_DURATION, self.record_of(Dyn.TOKEN_RECORD))
        num_steps = self.log[at_end, Log.NUM_STEPS] if len(self.log) else self.xp.ones_like(last)
        return last, self.time_of(LogTime.START, at_end) + num_steps * last, total

    def ends(self, record: Values) -> np.ndarray:
        """Return the end of the step in each single-step `record`, µs; junk where there is no record."""
        at = self.in_log(record)
        return self.time_of(LogTime.START, at) + self.time_of(LogTime.DURATION, at)

    def starts(self, record: Values) -> np.ndarray:
        """Return the start of the first step in each `record`, µs; junk where there is no record."""
        return self.time_of(LogTime.START, self.in_log(record))

    def last_index(self) -> np.ndarray:
        """Return the number of steps that each instance has begun."""
        inst: np.ndarray = self.xp.asarray(self.raw.inst)
        return inst[Inst.STEP_INDEX].astype(np.int64)

    def _step_overhead(self) -> Values:
        """Return the fixed cost of a step on each request's instance, µs."""
        xp, coefficient = self.xp, self.latency.overhead
        if coefficient is None:
            return xp.zeros(self.num_requests, self.time_type)
        beta = xp.asarray(self.cluster.beta)[xp.maximum(self.instance, 0), coefficient]
        return beta.astype(self.time_type)

    def first_token_parts(
        self, has_token: Values, token_us: Values, output_time: Values
    ) -> np.ndarray:
        """Split TTFT into `TTFT_PARTS` `[request, part]`; waiting is the rest after all other parts.

        Service is the time from the last scheduling before the first token to that token: the durations of the steps in
        between, which follow each other without a gap (on two overlapping step chains their sum would count time
        twice). For a first token of an earlier life the number of prefill chunks is unknown, so its chunk overhead is
        0.
        """
        xp = self.xp
        service = token_us - self.starts(self.lives.token_scheduled)
        beta = self._step_overhead()
        chunks = xp.maximum(self.dyn[:, Dyn.NUM_PREFILL_STEPS] - 1, 0)
        # on two step chains there may be more chunks than time
        overhead = xp.minimum(xp.where(self.lives.is_current_token, chunks, 0) * beta, service)
        ttft = xp.where(has_token, token_us + output_time - self.arrival, -1)
        preempted = self.lives.preempted_service_us
        return self.ttft_parts(ttft, preempted, service - overhead, overhead, output_time)

    def ttft_parts(
        self, ttft: Values, preempted: Values, compute: Values, overhead: Values, output: Values
    ) -> np.ndarray:
        """Return `TTFT_PARTS` `[request, part]`: fixed delays, given parts, waiting as the rest; -1 without a TTFT."""
        xp, nothing = self.xp, self.xp.zeros(self.num_requests, np.int64)
        delays = [
            nothing + self.cluster.admission_latency_us,
            nothing + self.cluster.routing_latency_us,
            self.queueing_us,
        ]
        others = [preempted, compute, overhead, output]
        parts = [*delays, ttft - sum(delays) - sum(others), *others]
        return xp.where((ttft >= 0)[:, None], xp.stack(parts, axis=1), -1)

    @cached_property
    def _log_order(self) -> tuple[Any, Any, Any]:
        """Return the log's order by instance and step, the ascending keys instance · span + step, and the span."""
        span = self.xp.max(self.log[:, Log.LAST_INDEX]) + 2
        place = self.log[:, Log.INSTANCE] * span + self.log[:, Log.LAST_INDEX]
        order = self.xp.argsort(place)
        return order, place[order], span

    def entry_at(self, index: Values) -> Values:
        """Return the log entry that holds step `index` of each request's instance.

        If there is no such step, the entry is an arbitrary one: the next in the log's order, else the last.
        """
        order, places, span = self._log_order
        wanted = self.xp.maximum(self.instance, 0) * span + index
        return order[self.xp.minimum(self.xp.searchsorted(places, wanted), len(self.log) - 1)]

    def outcome(self) -> Outcome:
        """Return the engine's outcome; HORIZON if the run completed but the horizon left requests behind."""
        code = Outcome(int(self.raw.registers[Reg.OUTCOME]))
        if code != Outcome.COMPLETED:
            return code
        is_settled = bool(_IS_SETTLED[self.status].all())
        return Outcome.COMPLETED if is_settled else Outcome.HORIZON

    def num_open_ties(self) -> int:
        """Return the number of events in a shared microsecond whose order has not been verified."""
        if self.rules.has_order:  # the engine's own
            return 0
        return int(self.raw.registers[Reg.NUM_OPEN_TIES])

    @property
    def last_step_us(self) -> int:
        """Return the latest start of a recorded step, µs; all events before it have happened."""
        return int(self.log_time[:, LogTime.START].max(initial=0))

    def histories(self) -> list[InstanceHistory]:
        """Return the history of every instance, from which ties.py replays the events of one microsecond."""
        evicted = self.lives.evictions[:, Eviction.RECORD]
        times = self.routed_us, self.queued_us
        return histories(self.log, self.log_time, evicted, self.instance, times, self.num_instances)
