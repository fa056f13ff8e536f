"""From the engine's raw tables to what happened.

On the host, in numpy, it becomes a `RunRecord`. Inside a compiled call, in JAX, the same definitions hold for one
lane, with all rows of its tables: rows of no request count as not yet in flight, and have no times.
"""

from __future__ import annotations

from functools import cached_property
from typing import Any

import numpy as np

from blis_jax.core.outcome import Outcome
from blis_jax.core.revision_rules import FEBRUARY_RULES, REFERENCE_DEFECTS
from blis_jax.core.types import REJECTED, UNROUTED
from blis_jax.engine.state import Dyn, Inst, Log, LogTime, Reg
from blis_jax.memory.block_tables.blocks import Eviction
from blis_jax.metrics.arrays import clipped
from blis_jax.results.event_order.histories import InstanceHistory, entry_times, histories
from blis_jax.results.instance_records import evicted_on, instance_records
from blis_jax.results.records import (
    BLOCK_LEVEL,
    NO_EVICTION,
    SETTLED,
    PreemptionRecords,
    RequestRecords,
    RunRecord,
    Status,
    StepRecords,
)
from blis_jax.results.request_lives import latencies, stays
from blis_jax.results.request_lives.latency_sums import latency_sums
from blis_jax.results.request_lives.resumed import gaps_us, num_resumed
from blis_jax.results.request_lives.splits import (
    SplitRecords,
    last_position,
    reservations,
    split_records,
    with_parts,
)
from blis_jax.results.request_lives.travels import after_moves, has_moved, is_on_its_way
from blis_jax.results.request_lives.waits import (
    ended_steps,
    final_status,
    gateway_waits,
    routed_later,
)
from blis_jax.workload.table import NEVER_US, RequestTable

_IS_SETTLED = np.array([status in SETTLED for status in Status])  # [status]


def unstack(tree: Any, row: int) -> Any:
    """One row of a batch, as numpy."""
    import jax

    return jax.tree.map(lambda leaf: np.asarray(leaf[row]), tree)


class Observation:
    """The raw tables of one run with its requests, and the quantities derived from both."""

    def __init__(
        self,
        raw: Any,
        table: RequestTable,
        params: Any,
        time_type: Any = np.int64,
        xp: Any = np,
    ) -> None:
        """`raw`, `table` and `params` are one row's, as arrays of `xp`: numpy, or JAX in a compiled call.

        A run on the continuous clock has float times.
        """
        self.raw, self.cluster, self.time_type, self.xp = raw, params.cluster, time_type, xp
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
        timeout = getattr(table, "timeout_us", None)
        self.timeout_us = None if timeout is None else xp.asarray(timeout)[:n].astype(np.int64)
        self.log = raw.log[:count].astype(np.int64)
        self.dyn = raw.dyn[:n].astype(np.int64)
        self.instance = xp.where(raw.instance_of[:n] >= 0, raw.instance_of[:n], -1).astype(np.int64)
        self.journey, self.first_instance = stays.journeys(raw, self.instance, xp)
        self.is_rejected = raw.instance_of[:n] == REJECTED
        self.is_unrouted = raw.instance_of[:n] == UNROUTED
        self.reserved = reservations(raw, n)
        if self.reserved is not None:  # one that is dropped for want of KV has been nowhere since
            is_dropped = self.reserved.is_dropped == 1
            self.instance = xp.where(is_dropped, self.reserved.target, self.instance)
        self.is_routed = self.instance >= 0
        log_time = raw.log_time[:count].astype(time_type)
        self._set_times(self.cluster, arrival[:n].astype(time_type), log_time)
        self.is_queued = self.is_routed & (self.queued_us <= self.horizon)

    def _set_times(self, cluster: Any, arrival: Any, log_time: Any) -> None:
        """All that is a time; linear in the arguments but for truncation, so tangents take the same way."""
        xp = self.xp
        self.arrival, self.log_time = arrival, log_time
        entered = entry_times(cluster, arrival, self.input_len, self.first_instance, xp)
        latency_us, self.queueing_us = cluster.routing_latency_us, entered[1]
        self.routed_us, self.gateway_wait_us = gateway_waits(self.raw, entered[0], latency_us, xp)
        self.routed_us = routed_later(self.raw, self.routed_us, xp)
        self.queued_us = self.routed_us + self.queueing_us
        self.output_time = xp.asarray(cluster.alpha)[:, 2].astype(self.time_type)

    @cached_property
    def lives(self) -> stays.Lives:
        """How often each request was in a batch, and what that leaves."""
        lives = stays.lives_of(self.raw, self.dyn, self.log, self.log_time, self.xp)
        keeps_first = self.rules.keeps_output and self.raw.life is not None
        return stays.moved(lives, self.journey, self.xp, self.reserved is not None, keeps_first)

    def _at(self, column: int, offset: int = 0) -> np.ndarray:
        """Index of a step record per request, clipped to the log."""
        return self._in_log(self.dyn[:, column] + offset)

    def _in_log(self, record: np.ndarray) -> np.ndarray:
        return clipped(record, max(len(self.log) - 1, 0))

    def _log_time(self, column: int, at: np.ndarray) -> np.ndarray:
        return self.log_time[at, column] if len(self.log) else np.zeros(at.shape, np.int64)

    @cached_property
    def status(self) -> np.ndarray:
        """Where every request was at the end."""
        xp = self.xp
        is_scheduled = self.lives.in_batch
        is_there = self.is_queued
        if self.journey is not None:  # or on its way to another instance
            is_there = is_there & ~is_on_its_way(self.journey, self.raw.journey_time.dtype)
        status = xp.where(is_there, int(Status.WAITING), int(Status.IN_FLIGHT))
        status = xp.where(is_scheduled, int(Status.RUNNING), status)
        status = xp.where(self.dyn[:, Dyn.FINISH_RECORD] > 0, int(Status.COMPLETED), status)
        status = xp.where(self.dyn[:, Dyn.NUM_SCHEDULED] < 0, int(Status.DROPPED), status)
        if self.journey is not None:
            status = xp.where(self.journey.is_lost == 1, int(Status.LOST), status)
        if self.reserved is not None and self.journey is not None:
            is_coming = (self.reserved.ends > self.horizon) & (self.journey.computed > 0)
            status = xp.where(is_coming, int(Status.IN_FLIGHT), status)
            status = xp.where(self.reserved.is_dropped == 1, int(Status.DROPPED), status)
        status = final_status(self.raw, self.dyn, status, xp)
        status = xp.where(self.is_unrouted, int(Status.UNROUTED), status)
        return xp.where(self.is_rejected, int(Status.REJECTED), status).astype(np.int64)

    def requests(self) -> RequestRecords:
        """Per-request results."""
        xp, lives, status = self.xp, self.lives, self.status
        dyn, nothing, is_done = self.dyn, np.int64(-1), status == int(Status.COMPLETED)
        is_scheduled = stays.times_scheduled(dyn[:, Dyn.NUM_SCHEDULED], xp) > 0
        in_decode, has_token = lives.in_decode, lives.token_record >= 0
        scheduled = self._starts(lives.scheduled_record) - self.arrival
        first = self._starts(dyn[:, Dyn.FIRST_RECORD]) - self.arrival
        token_us = self.ends(lives.token_record)
        output_time = self.output_time[xp.maximum(self.first_instance, 0)]
        ttft = xp.where(has_token, token_us + output_time - self.arrival, 0)
        final = last_position(self, self.input_len + xp.maximum(self.output_len, 1) - 1)
        steps = final - dyn[:, Dyn.PROGRESS]
        again = np.int64(self.defects.double_last_latency)
        index = dyn[:, Dyn.TOKEN_INDEX]
        ended = ended_steps(self.raw, self.num_requests, xp)
        decoded = self._last_index(ended) - index + lives.num_handed
        progress = dyn[:, Dyn.PROGRESS] + xp.where(in_decode, decoded, 0)
        progress = xp.where(is_done, final, xp.where(lives.in_batch, progress, 0))
        num_itl = xp.where(is_done, steps + again, xp.where(in_decode, decoded, 0))
        columns = dict(
            arrival_us=self.arrival,
            input_len=self.input_len,
            output_len=self.output_len,
            slo_class=self.slo_class,
            tenant=self.tenant,
            admitted=self._admitted(),
            instance=self.instance,
            status=status,
            queued_at_us=xp.where(
                self.is_queued & (status != int(Status.DROPPED)), self.queued_us, nothing
            ),
            sched_delay_us=xp.where(is_scheduled, scheduled, nothing),
            first_sched_delay_us=xp.where(is_scheduled, first, nothing),
            ttft_us=xp.where(has_token, ttft, nothing),
            e2e_us=xp.where(is_done, self._e2e(ttft, steps, output_time), nothing),
            left_us=xp.where(is_done, self._last_steps[1], nothing),
            preemptions=lives.num_preempted,
            num_scheduled=lives.num_scheduled,
            cached_tokens_first_sched=xp.where(
                is_scheduled, dyn[:, Dyn.CACHED_FIRST] * self.block_size, nothing
            ),
            expected_cached_tokens=xp.where(
                self.is_routed, self.raw.expected[: self.num_requests] * self.block_size, nothing
            ),
            scheduled_step_idx=xp.where(is_scheduled, dyn[:, Dyn.SCHEDULED_INDEX], 0),
            finished_step_idx=xp.where(is_done, index + steps - lives.num_handed, 0),
            token_step_idx=xp.where(in_decode | is_done, index, nothing),
            num_itl=num_itl + self._earlier_itl(),
            progress_index=xp.where(is_scheduled, progress, 0),
            ttft_parts_us=self._parts(has_token, token_us, output_time),
            gateway_wait_us=self.gateway_wait_us,
            ended_step_idx=ended,
            **after_moves(self.journey, self.num_requests, self._starts, self.ends, xp),
        )
        columns["handed_gap_us"] = latencies.over_transfers(self, columns, steps, output_time)
        if self.reserved is not None:
            self.splits = split_records(self, status, columns)
            columns = with_parts(self, columns, self.splits)
        return RequestRecords(**columns, itl_us=latency_sums(self, columns))

    def _last_index(self, ended: np.ndarray | None) -> np.ndarray:
        """The last step of each request's instance, or the one after which the request left early."""
        last = self.last_index()[self.xp.maximum(self.instance, 0)]
        return last if ended is None else self.xp.where(ended > 0, ended, last)

    def _e2e(self, ttft: np.ndarray, steps: np.ndarray, output_time: np.ndarray) -> np.ndarray:
        """E2E of completed requests, junk of others; `steps` is the number of those after the last first token."""
        xp, lives = self.xp, self.lives
        last, left, total = self._last_steps
        earlier = lives.past_itl_us + lives.past_num_itl * output_time
        again = np.int64(self.defects.double_last_latency) * (last + output_time)
        e2e = ttft + earlier + total + steps * output_time + again
        if self.cluster.post_decode_us is not None:
            after = xp.asarray(self.cluster.post_decode_us)[xp.maximum(self.instance, 0)]
            e2e = e2e + xp.where(self.output_len > 0, after, 0) - lives.passed_over_us
        if self.journey is not None and self.reserved is None:  # else see `with_parts`
            # steps on two instances, or attempts that count no more
            whole = left - self.arrival + output_time * (1 + steps) + again
            e2e = xp.where(has_moved(self.journey), whole, e2e)
        if self.gaps_us is not None:  # no token was made twice
            is_resumed, num_tokens = lives.num_preempted > 0, xp.maximum(self.output_len, 1)
            whole = left - self.arrival + output_time * num_tokens
            e2e = xp.where(is_resumed, whole, e2e)
        return e2e

    def _earlier_itl(self) -> np.ndarray:
        """Latencies of lives that a preemption ended, and of those that span one."""
        if self.gaps_us is None:
            return self.lives.past_num_itl
        return self.lives.past_num_itl + num_resumed(self, self.gaps_us)

    @cached_property
    def gaps_us(self) -> Any:
        """See `resumed.gaps_us`."""
        return gaps_us(self)

    splits: SplitRecords | None = None  # once there are requests' results, where KV is reserved

    @cached_property
    def _last_steps(self) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
        """Duration and end of a request's last step, and the steps' sum since its first token; junk if not done."""
        at_end = self._at(Dyn.FINISH_RECORD, -1)
        last = self._log_time(LogTime.DURATION, at_end)
        total = self._log_time(LogTime.TOTAL_DURATION, at_end)
        total = total - self._log_time(LogTime.TOTAL_DURATION, self._at(Dyn.TOKEN_RECORD))
        num_steps = self.log[at_end, Log.NUM_STEPS] if len(self.log) else self.xp.ones_like(last)
        return last, self._log_time(LogTime.START, at_end) + num_steps * last, total

    def ends(self, record: np.ndarray) -> np.ndarray:
        """End of the step in a record of one step, per request; junk where there is none."""
        at = self._in_log(record)
        return self._log_time(LogTime.START, at) + self._log_time(LogTime.DURATION, at)

    def _starts(self, record: np.ndarray) -> np.ndarray:
        """Start of the step in a record, likewise."""
        return self._log_time(LogTime.START, self._in_log(record))

    block_size, defects, rules = 16, REFERENCE_DEFECTS, FEBRUARY_RULES
    overhead: int | None = 0  # place of the coefficient that every step costs

    def _admitted(self) -> np.ndarray:
        is_decided = self.xp.arange(self.num_requests) < self.raw.registers[Reg.NEXT_ADMIT]
        return self.xp.where(self.is_rejected, 0, self.xp.where(is_decided, 1, -1)).astype(np.int64)

    def last_index(self) -> np.ndarray:
        """Steps that each instance has begun."""
        return self.raw.inst[:, Inst.STEP_INDEX].astype(np.int64)

    def _step_overhead(self) -> Any:
        """What every step costs on each request's instance, µs."""
        xp = self.xp
        if self.overhead is None:
            return xp.zeros(self.num_requests, self.time_type)
        beta = xp.asarray(self.cluster.beta)[xp.maximum(self.instance, 0), self.overhead]
        return beta.astype(self.time_type)

    def _parts(
        self, has_token: np.ndarray, token_us: np.ndarray, output_time: np.ndarray
    ) -> np.ndarray:
        """TTFT split into records.TTFT_PARTS; waiting is what the others leave.

        Service is the time from the last scheduling before the first token to that token: the durations of the
        steps in between, which follow each other without a gap (on two overlapping step chains their sum would
        count time twice). A first token of an earlier life keeps no count of its chunks.
        """
        xp = self.xp
        service = token_us - self._starts(self.lives.token_scheduled)
        beta = self._step_overhead()
        chunks = xp.maximum(self.dyn[:, Dyn.NUM_PREFILL_STEPS] - 1, 0)
        # on two step chains there may be more chunks than time
        overhead = xp.minimum(xp.where(self.lives.is_current_token, chunks, 0) * beta, service)
        n = self.num_requests
        fixed = [
            xp.zeros(n, np.int64) + self.cluster.admission_latency_us,
            xp.zeros(n, np.int64) + self.cluster.routing_latency_us,
            self.queueing_us,
        ]
        compute, preempted = service - overhead, self.lives.preempted_service_us
        ttft = token_us + output_time - self.arrival
        waiting = ttft - sum(fixed) - preempted - service - output_time
        parts = [*fixed, waiting, preempted, compute, overhead, output_time]
        return xp.where(has_token[:, None], xp.stack(parts, axis=1), -1)

    def steps(self) -> StepRecords:
        """Step records in order of execution."""
        log, time = self.log, self.log_time
        steps, done = log[:, Log.NUM_STEPS], log[:, Log.NUM_COMPLETED]
        return StepRecords(
            instance=log[:, Log.INSTANCE],
            start_us=time[:, LogTime.START],
            duration_us=time[:, LogTime.DURATION],
            num_steps=steps,
            last_index=log[:, Log.LAST_INDEX],
            running=log[:, Log.RUNNING],
            waiting=log[:, Log.WAITING],
            used_blocks=log[:, Log.USED_BLOCKS],
            sum_used_blocks=log[:, Log.SUM_USED_BLOCKS],
            num_itl=log[:, Log.NUM_DECODE] * steps + done * self.defects.double_last_latency,
            num_completed=done,
            num_completed_itl=latencies.counts_of_completed(self),
        )

    def preemptions(self) -> PreemptionRecords:
        """Every preemption."""
        lives = self.lives
        request = lives.evictions[:, Eviction.REQUEST]
        record = lives.evictions[:, Eviction.RECORD]
        time_us = self.log_time[self._in_log(record), LogTime.START] if len(self.log) else record
        where = evicted_on(self)
        kept = lives.num_itl, lives.is_forgotten, self.gaps_us, latencies.lost_lives(self)
        return PreemptionRecords(request, where, time_us, record, *kept)

    def outcome(self) -> Outcome:
        """The engine's own code, or whether the horizon left requests behind."""
        code = Outcome(int(self.raw.registers[Reg.OUTCOME]))
        if code != Outcome.COMPLETED:
            return code
        is_settled = bool(_IS_SETTLED[self.status].all())
        return Outcome.COMPLETED if is_settled else Outcome.HORIZON

    def num_open_ties(self) -> int:
        """Events of one microsecond whose order nobody has verified."""
        if self.rules.has_order:  # the engine's own
            return 0
        return int(self.raw.registers[Reg.NUM_OPEN_TIES])

    @property
    def last_step_us(self) -> int:
        """When the last recorded steps began: everything before that has happened."""
        return int(self.log_time[:, LogTime.START].max(initial=0))

    def histories(self) -> list[InstanceHistory]:
        """What every instance recorded, from which ties.py replays events of one microsecond."""
        evicted = self.lives.evictions[:, Eviction.RECORD]
        times = self.routed_us, self.queued_us
        return histories(self.log, self.log_time, evicted, self.instance, times, self.num_instances)

    def record(self, num_repairs: int = 0) -> RunRecord:
        """Everything, as the rest of the package reads it."""
        requests = self.requests()
        registers = self.raw.registers
        return RunRecord(
            outcome=self.outcome(),
            requests=requests,
            steps=self.steps(),
            instances=instance_records(self, requests),
            num_iterations=int(registers[Reg.CURSOR]),
            num_open_ties=self.num_open_ties(),
            num_repairs=num_repairs,
            invariant_failures={"monotone_clock": int(registers[Reg.INVARIANT_FAILURES])},
            preemptions=self.preemptions(),
            kv_model=NO_EVICTION if self.raw.pool is None else BLOCK_LEVEL,
            is_august=self.rules.has_order,
            splits=self.splits,
        )
