"""From the engine's raw tables to what happened: one `RunRecord`, in numpy."""

from __future__ import annotations

from typing import Any

import numpy as np

from blis_jax.kv_cache.blocks import Eviction, Pool
from blis_jax.lives import lives_of
from blis_jax.records import (
    BLOCK_LEVEL,
    NO_EVICTION,
    InstanceRecords,
    PreemptionRecords,
    RequestRecords,
    RunRecord,
    Status,
    StepRecords,
)
from blis_jax.state import Dyn, Inst, InstTime, Log, LogTime, Reg
from blis_jax.ties import InstanceHistory
from blis_jax.types import REFERENCE_DEFECTS, REJECTED, Outcome
from blis_jax.workload.table import NEVER_US, RequestTable


def unstack(tree: Any, row: int) -> Any:
    """One row of a batch, as numpy."""
    import jax

    return jax.tree.map(lambda leaf: np.asarray(leaf[row]), tree)


class Observation:
    """The raw tables of one run with its requests, and the quantities derived from both."""

    def __init__(
        self, raw: Any, table: RequestTable, params: Any, time_type: Any = np.int64
    ) -> None:
        """`raw`, `table` and `params` are one row's, as numpy; a run on the continuous clock has float times."""
        self.raw, self.params, self.cluster = raw, params, params.cluster
        self.time_type = time_type
        self.num_requests = int(np.sum(np.asarray(table.arrival_us) != NEVER_US))
        self.num_instances = int(self.cluster.num_instances)
        self.horizon = int(self.cluster.horizon_us)
        n = self.num_requests
        self.input_len = np.asarray(table.input_len)[:n].astype(np.int64)
        self.output_len = np.asarray(table.output_len)[:n].astype(np.int64)
        self.slo_class = np.asarray(table.slo_class)[:n].astype(np.int64)
        self.tenant = np.asarray(table.tenant)[:n].astype(np.int64)
        self.num_records = int(raw.registers[Reg.NUM_RECORDS])
        count = min(self.num_records, len(raw.log) - 1)
        self.log = raw.log[:count].astype(np.int64)
        self.dyn = raw.dyn[:n].astype(np.int64)
        self.instance = np.where(raw.instance_of[:n] >= 0, raw.instance_of[:n], -1).astype(np.int64)
        self.is_rejected = raw.instance_of[:n] == REJECTED
        self.is_routed = self.instance >= 0
        arrival = np.asarray(table.arrival_us)[:n].astype(time_type)
        self._set_times(self.cluster, arrival, raw.log_time[:count].astype(time_type))
        self.is_queued = self.is_routed & (self.queued_us <= self.horizon)

    def _set_times(self, cluster: Any, arrival: np.ndarray, log_time: np.ndarray) -> None:
        """All that is a time; linear in the arguments but for truncation, so tangents take the same way."""
        self.arrival, self.log_time = arrival, log_time
        latency = cluster.admission_latency_us + cluster.routing_latency_us
        self.routed_us = arrival + np.asarray(latency).astype(self.time_type)
        alpha = np.asarray(cluster.alpha)[np.maximum(self.instance, 0)]
        delay = alpha[:, 0] + alpha[:, 1] * self.input_len.astype(np.float64)
        self.queueing_us = delay.astype(self.time_type)
        self.queued_us = self.routed_us + self.queueing_us
        self.output_time = np.asarray(cluster.alpha)[:, 2].astype(self.time_type)
        self.lives = lives_of(self.raw, self.dyn, self.log, log_time)

    def _at(self, column: Dyn, offset: int = 0) -> np.ndarray:
        """Index of a step record per request, clipped to the log."""
        return np.clip(self.dyn[:, column] + offset, 0, max(len(self.log) - 1, 0))

    def _log_time(self, column: LogTime, at: np.ndarray) -> np.ndarray:
        return self.log_time[at, column] if len(self.log) else np.zeros(self.num_requests, np.int64)

    def status(self) -> np.ndarray:
        """Where every request was at the end."""
        is_scheduled = self.lives.in_batch
        status = np.where(self.is_queued, Status.WAITING, Status.IN_FLIGHT)
        status = np.where(is_scheduled, Status.RUNNING, status)
        status = np.where(self.dyn[:, Dyn.FINISH_RECORD] > 0, Status.COMPLETED, status)
        status = np.where(self.dyn[:, Dyn.NUM_SCHEDULED] < 0, Status.DROPPED, status)
        return np.where(self.is_rejected, Status.REJECTED, status).astype(np.int64)

    def requests(self) -> RequestRecords:
        """Per-request results."""
        dyn, nothing = self.dyn, np.int64(-1)
        status = self.status()
        is_done = status == Status.COMPLETED
        is_scheduled = dyn[:, Dyn.NUM_SCHEDULED] > 0
        lives = self.lives
        in_decode, has_token = lives.in_decode, lives.token_record >= 0
        scheduled = self._log_time(LogTime.START, self._at(Dyn.SCHEDULED_RECORD))
        first = self._log_time(LogTime.START, self._at(Dyn.FIRST_RECORD))
        token_us = self._ends(lives.token_record)
        output_time = self.output_time[np.maximum(self.instance, 0)]
        ttft = np.where(has_token, token_us + output_time - self.arrival, 0)
        last, left, total = self._last_steps()
        final = self.input_len + np.maximum(self.output_len, 1) - 1
        steps = final - dyn[:, Dyn.PROGRESS]
        earlier = lives.past_itl_us + lives.past_num_itl * output_time
        again = np.int64(self.defects.double_last_latency)
        e2e = ttft + earlier + total + steps * output_time + again * (last + output_time)
        index = dyn[:, Dyn.TOKEN_INDEX]
        decoded = self._last_index()[np.maximum(self.instance, 0)] - index
        progress = dyn[:, Dyn.PROGRESS] + np.where(in_decode, decoded, 0)
        progress = np.where(is_done, final, np.where(lives.in_batch, progress, 0))
        is_queued = self.is_queued
        num_itl = np.where(is_done, steps + again, np.where(in_decode, decoded, 0))
        num_itl = num_itl + lives.past_num_itl
        counts = np.maximum(dyn[:, Dyn.NUM_SCHEDULED], 0)
        return RequestRecords(
            arrival_us=self.arrival,
            input_len=self.input_len,
            output_len=self.output_len,
            slo_class=self.slo_class,
            tenant=self.tenant,
            admitted=self._admitted(),
            instance=self.instance,
            status=status,
            queued_at_us=np.where(is_queued & (status != Status.DROPPED), self.queued_us, nothing),
            sched_delay_us=np.where(is_scheduled, scheduled - self.arrival, nothing),
            first_sched_delay_us=np.where(is_scheduled, first - self.arrival, nothing),
            ttft_us=np.where(has_token, ttft, nothing),
            e2e_us=np.where(is_done, e2e, nothing),
            left_us=np.where(is_done, left, nothing),
            preemptions=lives.num_preempted,
            num_scheduled=counts,
            cached_tokens_first_sched=np.where(
                is_scheduled, dyn[:, Dyn.CACHED_FIRST] * self.block_size, nothing
            ),
            expected_cached_tokens=np.where(
                self.is_routed, self.raw.expected[: self.num_requests] * self.block_size, nothing
            ),
            scheduled_step_idx=np.where(is_scheduled, dyn[:, Dyn.SCHEDULED_INDEX], 0),
            finished_step_idx=np.where(is_done, index + steps, 0),
            token_step_idx=np.where(in_decode | is_done, index, nothing),
            num_itl=num_itl,
            progress_index=np.where(is_scheduled, progress, 0),
            ttft_parts_us=self._parts(has_token, token_us, output_time),
        )

    def _last_steps(self) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
        """Duration and end of a request's last step, and the steps' sum since its first token; junk if not done."""
        at_end = self._at(Dyn.FINISH_RECORD, -1)
        last = self._log_time(LogTime.DURATION, at_end)
        total = self._log_time(LogTime.TOTAL_DURATION, at_end)
        total = total - self._log_time(LogTime.TOTAL_DURATION, self._at(Dyn.TOKEN_RECORD))
        num_steps = self.log[at_end, Log.NUM_STEPS] if len(self.log) else np.ones_like(last)
        return last, self._log_time(LogTime.START, at_end) + num_steps * last, total

    def _ends(self, record: np.ndarray) -> np.ndarray:
        """End of the step in a record of one step, per request; junk where there is none."""
        at = np.clip(record, 0, max(len(self.log) - 1, 0))
        return self._log_time(LogTime.START, at) + self._log_time(LogTime.DURATION, at)

    block_size = 16
    defects = REFERENCE_DEFECTS

    def _admitted(self) -> np.ndarray:
        is_decided = np.arange(self.num_requests) < self.raw.registers[Reg.NEXT_ADMIT]
        return np.where(self.is_rejected, 0, np.where(is_decided, 1, -1)).astype(np.int64)

    def _last_index(self) -> np.ndarray:
        return self.raw.inst[:, Inst.STEP_INDEX].astype(np.int64)

    def _parts(
        self, has_token: np.ndarray, token_us: np.ndarray, output_time: np.ndarray
    ) -> np.ndarray:
        """TTFT split into records.TTFT_PARTS; waiting is what the others leave.

        Service is the time from the last scheduling before the first token to that token: the durations of the
        steps in between, which follow each other without a gap (on two overlapping step chains their sum would
        count time twice). A first token of an earlier life keeps no count of its chunks.
        """
        at = np.clip(self.lives.token_scheduled, 0, max(len(self.log) - 1, 0))
        service = token_us - self._log_time(LogTime.START, at)
        beta = np.asarray(self.cluster.beta)[np.maximum(self.instance, 0), 0]
        beta = beta.astype(self.time_type)
        chunks = np.maximum(self.dyn[:, Dyn.NUM_PREFILL_STEPS] - 1, 0)
        # on two step chains there may be more chunks than time
        overhead = np.minimum(np.where(self.lives.is_current_token, chunks, 0) * beta, service)
        n = self.num_requests
        fixed = [
            np.full(n, int(self.cluster.admission_latency_us)),
            np.full(n, int(self.cluster.routing_latency_us)),
            self.queueing_us,
        ]
        compute, preempted = service - overhead, self.lives.preempted_service_us
        ttft = token_us + output_time - self.arrival
        waiting = ttft - sum(fixed) - preempted - service - output_time
        parts = [*fixed, waiting, preempted, compute, overhead, output_time]
        return np.where(has_token[:, None], np.stack(parts, axis=1), -1)

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
        )

    def _per_instance(self, index: np.ndarray, values: np.ndarray) -> np.ndarray:
        return np.bincount(index, weights=values, minlength=self.num_instances)[
            : self.num_instances
        ].astype(np.int64)

    def _ended(self, requests: RequestRecords) -> np.ndarray:
        """Latest event of every instance that was executed, no-op departures included."""
        ended = np.zeros(self.num_instances, self.time_type)
        is_arrived = self.is_routed & (self.routed_us <= self.horizon)
        for mask, times in (
            (is_arrived, self.routed_us),
            (self.is_queued, self.queued_us),
            ((requests.left_us >= 0) & (requests.left_us <= self.horizon), requests.left_us),
        ):
            np.maximum.at(ended, self.instance[mask], times[mask])
        has_stepped = self._last_index()[: self.num_instances] > 0
        last = self.raw.inst_time[: self.num_instances, InstTime.LAST_START]
        last = last.astype(self.time_type)
        return np.maximum(ended, np.where(has_stepped, last, 0))

    def instances(self, requests: RequestRecords) -> InstanceRecords:
        """Per-instance totals."""
        rows, log = self.num_instances, self.log
        inst = self.raw.inst[:rows].astype(np.int64)
        at, steps = log[:, Log.INSTANCE], log[:, Log.NUM_STEPS]
        routed = self.instance[self.is_routed]

        def counted(status: Status) -> np.ndarray:
            is_it = (requests.status == status) & self.is_routed
            return np.bincount(self.instance[is_it], minlength=rows)

        is_entered = (requests.queued_at_us >= 0) & (requests.status != Status.DROPPED)
        tokens = np.where(is_entered, self.input_len, 0)[self.is_routed]
        peak = np.zeros(rows, np.int64)
        np.maximum.at(peak, at, log[:, Log.USED_BLOCKS])
        integral = np.bincount(
            at,
            weights=log[:, Log.SUM_USED_BLOCKS].astype(np.float64)
            * self.log_time[:, LogTime.DURATION],
            minlength=rows,
        )[:rows]
        return InstanceRecords(
            completed_requests=counted(Status.COMPLETED),
            dropped_unservable=inst[:, Inst.NUM_DROPPED],
            still_queued=counted(Status.WAITING),
            still_running=counted(Status.RUNNING),
            total_input_tokens=self._per_instance(routed, tokens),
            total_output_tokens=self._per_instance(at, log[:, Log.NUM_DECODE] * steps),
            gpu_hits=inst[:, Inst.HITS],
            gpu_misses=inst[:, Inst.MISSES],
            used_blocks_at_end=inst[:, Inst.USED_BLOCKS],
            peak_kv_blocks_used=peak,
            kv_blocks_used_integral=integral,
            step_count=inst[:, Inst.STEP_INDEX],
            waiting_sum=self._per_instance(at, log[:, Log.WAITING] * steps),
            sim_ended_time_us=self._ended(requests),
            output_time_us=self.output_time[:rows],
            preemption_count=np.bincount(
                self.instance[self.lives.evictions[:, Eviction.REQUEST]], minlength=rows
            ),
            kv_allocation_failures=self._pool(Pool.NUM_FAILURES),
            total_kv_blocks=np.asarray(self.cluster.total_kv_blocks)[:rows].astype(np.int64),
            ttft_sum_us=self._ttft_sum(requests),
            cpu_offloads=self._pool(Pool.OFFLOADS),
            cpu_reloads=self._pool(Pool.RELOADS),
            cpu_misses=self._pool(Pool.CPU_MISSES),
            cpu_thrashing=self._pool(Pool.THRASHING),
            reload_us=self._pool(Pool.RELOADS) * int(self.cluster.transfer_us),
        )

    def _pool(self, column: Pool) -> np.ndarray:
        """A counter of block-level memory per instance; 0 without it."""
        if self.raw.pool is None:
            return np.zeros(self.num_instances, np.int64)
        return self.raw.pool[: self.num_instances, column].astype(np.int64)

    def _ttft_sum(self, requests: RequestRecords) -> np.ndarray:
        """Sum of all first tokens ever recorded, also of lives that a preemption ended."""
        evictions = self.lives.evictions
        token = evictions[:, Eviction.FIRST_TOKEN]
        is_token = (token > 0) & (token == evictions[:, Eviction.DECODE_RECORD])
        of, record = evictions[is_token, Eviction.REQUEST], token[is_token] - 1
        ends = self.log_time[record, LogTime.START] + self.log_time[record, LogTime.DURATION]
        past = ends + self.output_time[np.maximum(self.instance[of], 0)] - self.arrival[of]
        now = np.flatnonzero(self.lives.is_current_token)
        instance = np.concatenate([self.instance[of], self.instance[now]])
        return self._per_instance(instance, np.concatenate([past, requests.ttft_us[now]]))

    def preemptions(self) -> PreemptionRecords:
        """Every preemption."""
        lives = self.lives
        request = lives.evictions[:, Eviction.REQUEST]
        record = lives.evictions[:, Eviction.RECORD]
        at = np.clip(record, 0, max(len(self.log) - 1, 0))
        time_us = self.log_time[at, LogTime.START] if len(self.log) else record
        return PreemptionRecords(request, self.instance[request], time_us, record, lives.num_itl)

    def outcome(self) -> Outcome:
        """The engine's own code, or whether the horizon left requests behind."""
        code = Outcome(int(self.raw.registers[Reg.OUTCOME]))
        if code != Outcome.COMPLETED:
            return code
        settled = {Status.COMPLETED, Status.REJECTED, Status.DROPPED}
        is_settled = np.isin(self.status(), [int(status) for status in settled])
        return Outcome.COMPLETED if bool(is_settled.all()) else Outcome.HORIZON

    def num_open_ties(self) -> int:
        """Events of one microsecond whose order nobody has verified."""
        return int(self.raw.registers[Reg.NUM_OPEN_TIES])

    def histories(self) -> list[InstanceHistory]:
        """What ties.py replays, per instance."""
        log, time = self.log, self.log_time
        found = []
        for instance in range(self.num_instances):
            mine = np.flatnonzero(log[:, Log.INSTANCE] == instance)
            steps = log[mine, Log.NUM_STEPS]
            of = np.repeat(mine, steps)
            offset = np.arange(len(of)) - np.repeat(np.cumsum(steps) - steps, steps)
            is_last = offset == log[of, Log.NUM_STEPS] - 1
            done = np.where(is_last, log[of, Log.NUM_COMPLETED], 0)
            left = log[of, Log.RUNNING] - done + log[of, Log.WAITING]
            chosen = np.flatnonzero(self.instance == instance)
            evicted = np.bincount(self.lives.evictions[:, Eviction.RECORD], minlength=len(log))
            found.append(
                InstanceHistory(
                    requests=chosen,
                    routed_us=self.routed_us[chosen],
                    queued_us=self.queued_us[chosen],
                    step_start_us=time[of, LogTime.START] + offset * time[of, LogTime.DURATION],
                    step_duration_us=time[of, LogTime.DURATION],
                    step_preempted=np.where(offset == 0, evicted[of], 0),
                    step_scheduled=np.where(offset == 0, log[of, Log.NUM_SCHEDULED], 0),
                    step_completed=done,
                    step_continues=left > 0,
                )
            )
        return found

    def record(self, num_repairs: int = 0) -> RunRecord:
        """Everything, as the rest of the package reads it."""
        requests = self.requests()
        registers = self.raw.registers
        return RunRecord(
            outcome=self.outcome(),
            requests=requests,
            steps=self.steps(),
            instances=self.instances(requests),
            num_iterations=int(registers[Reg.CURSOR]),
            num_open_ties=self.num_open_ties(),
            num_repairs=num_repairs,
            invariant_failures={"monotone_clock": int(registers[Reg.INVARIANT_FAILURES])},
            preemptions=self.preemptions(),
            kv_model=NO_EVICTION if self.raw.pool is None else BLOCK_LEVEL,
        )
