"""A long run, made alone: a tie in the wrong order sets it back to a checkpoint, not to its beginning.

The run is made in stretches. After each stretch the ties in it are replayed (ties.py); if BLIS has another order, the
run continues in that order from the last state in which none of the requests concerned was routed.
"""

from __future__ import annotations

import dataclasses
from collections import deque
from dataclasses import dataclass
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from blis_jax.core.outcome import Outcome
from blis_jax.core.types import EngineShape, Mechanism, Params, never
from blis_jax.engine.loop import CHUNK, beginning_of, raw_of, stretch_of
from blis_jax.memory.block_level import LIVELOCK_STEPS
from blis_jax.records.tied_stretches import InstanceHistory, entry_times, histories, stretches
from blis_jax.records.ties import TieOrder, correct
from blis_jax.runs.programs import compiled
from blis_jax.tables.blocks import Blocks, Eviction, Pool
from blis_jax.tables.raw import BlockRecords, Raw
from blis_jax.tables.requests import Req, RequestDeadlines, Requests
from blis_jax.tables.state import Reg, State
from blis_jax.workload.table import NEVER_US, RequestTable

STRETCH = 4096  # chunks of scan steps; a checkpoint costs what some 300 of them do
_IN_ORDER = (0, Outcome.REFERENCE_CRASH, Outcome.LIVELOCK)  # if the ties before came in BLIS's
KEPT = 3  # checkpoints, the beginning beside them


@dataclass(frozen=True)
class _Checkpoint:
    """A state from which the run can continue, and the numbers that the host reads from it."""

    state: State
    num_chunks: int
    next_route: int  # requests from here on are not routed yet
    num_records: int
    num_ties: int  # that nobody has verified
    outcome: int
    is_done: int
    last_event: int  # µs

    @classmethod
    def of(cls, state: State, num_chunks: int) -> _Checkpoint:
        """Return the checkpoint of a state after `num_chunks` chunks of scan steps."""
        at = [Reg.NEXT_ROUTE, Reg.NUM_RECORDS, Reg.NUM_OPEN_TIES, Reg.OUTCOME, Reg.IS_DONE]
        route, records, ties, outcome, is_done = np.asarray(state.lane.numbers)[at].tolist()
        last_event = int(state.lane.row.last_event)
        return cls(state, num_chunks, route, records, ties, outcome, is_done, last_event)

    def copied(self) -> _Checkpoint:
        """Return a copy with a state of its own, since a stretch overwrites the state with which it begins."""
        return dataclasses.replace(self, state=jax.tree.map(jnp.copy, self.state))


class LongRun:
    """A run of given requests, made stretch by stretch."""

    def __init__(
        self,
        shape: EngineShape,
        mechanism: Mechanism,
        inputs: tuple[Params, RequestTable, Any],
        order: TieOrder,
        max_scan_steps: int,
    ) -> None:
        """Take `inputs`, the arguments of `beginning_of`, and `order`, which is corrected in place."""
        self.given, self.order, self.most_chunks = inputs, order, max_scan_steps // CHUNK
        self.has_changed = False
        self.mechanism = mechanism
        self.begin = compiled(beginning_of, shape, mechanism)
        self.go_on = compiled(stretch_of, shape, mechanism)
        params, table, _ = inputs
        n = len(order.queue_rank)
        self.arrival = np.asarray(table.arrival_us)[:n].astype(np.int64)
        self.input_len = np.asarray(table.input_len)[:n].astype(np.int64)
        self.num_instances = int(params.cluster.num_instances)

    def run(self) -> Raw:
        """Make the run stretch by stretch; return the raw tables of one run in the corrected order."""
        with jax.enable_x64(True):
            requests, state = self.begin(*self.given)
            first = last = _Checkpoint.of(state, 0)
            kept = deque([first], maxlen=KEPT)
            while True:
                made = self._stretch(requests, last)
                if made.outcome not in _IN_ORDER:
                    break
                is_latest = last.num_chunks == kept[-1].num_chunks
                since = kept[-2] if is_latest and len(kept) > 1 else first
                changed = self._first_changed(made, last.last_event, since.num_records)
                if changed is not None:
                    while len(kept) > 1 and kept[-1].next_route > changed:
                        kept.pop()
                    last = self._again(kept[-1] if kept[-1].next_route <= changed else first)
                    requests = self._in_order(requests)
                elif made.outcome or made.is_done or made.num_chunks >= self.most_chunks:
                    break
                else:
                    last = made
                    kept.append(made.copied())
            return jax.device_get(raw_of(self.mechanism, made.state, jnp.int32(made.num_chunks)))

    def _stretch(self, requests: Requests, last: _Checkpoint) -> _Checkpoint:
        most = np.int32(min(self.most_chunks - last.num_chunks, STRETCH))
        state, chunks = self.go_on(self.given[0], requests, last.state, most)
        return _Checkpoint.of(state, last.num_chunks + int(chunks))

    def _again(self, kept: _Checkpoint) -> _Checkpoint:
        """Return a checkpoint to continue from; the state of the beginning, which was overwritten, is built anew."""
        if kept.num_chunks:
            return kept.copied()
        return dataclasses.replace(kept, state=self.begin(*self.given)[1])

    def _first_changed(self, made: _Checkpoint, from_us: int, since: int) -> int | None:
        """Correct ties from `from_us` on; return the first request whose order changed, None if all ties were in order.

        The log is read from record `since` on, or from its beginning if a tie has no quiet step after that record.
        """
        if made.num_ties == 0 and not self.has_changed:  # a corrected tie no longer counts
            return None
        before = self.order.queue_rank.copy(), np.maximum(self.order.after_steps, 0)
        times = from_us, NEVER_US if made.is_done else made.last_event
        recorded = self._histories(made, since)
        if since and not all(
            s.is_quiet_first for record in recorded for s in stretches(record, *times)
        ):
            recorded = self._histories(made, 0)
        if correct(recorded, self.order, *times):
            return None
        self.has_changed = True
        after = self.order.queue_rank, np.maximum(self.order.after_steps, 0)
        return int(np.flatnonzero((before[0] != after[0]) | (before[1] != after[1]))[0])

    def _histories(self, made: _Checkpoint, since: int) -> list[InstanceHistory]:
        state, n = made.state, len(self.arrival)
        tables = state.log.numbers, state.log.times
        log, times = (np.asarray(table)[since : made.num_records] for table in tables)
        evicted = np.zeros(0, np.int64)
        if Blocks in state:
            count = int(state[Blocks].num_evictions)
            evicted = np.asarray(state[Blocks].evictions)[:count, Eviction.RECORD] - since
            evicted = evicted[(evicted >= 0) & (evicted < len(log))]  # not of the step in progress
        instance = np.asarray(state.past.places)[:n]
        cluster = self.given[0].cluster
        routed, delay = entry_times(cluster, self.arrival, self.input_len, instance)
        return histories(
            log, times, evicted, instance, (routed, routed + delay), self.num_instances
        )

    def _in_order(self, requests: Requests) -> Requests:
        """Return the requests with the corrected order."""
        table, n = np.array(requests.table), len(self.arrival)
        table[:n, Req.QUEUE_RANK] = self.order.queue_rank
        table[:n, Req.AFTER_STEPS] = self.order.after_steps
        return dataclasses.replace(requests, table=jnp.asarray(table))


# --- a livelock that a horizon or deadlines end: the run again in stretches -----------------------

# The reference goes on however little its steps achieve. The usual program stops after `LIVELOCK_STEPS` barren
# steps of an instance; here the host looks then whether anything is still to come, and every barren step is made.


MOST_RECORDS = 2**22  # of a run in stretches; one that needs more stays a livelock
_NO_HORIZON = 2**62 - 1


def has_end(horizon_us: int, mechanism: Mechanism, has_deadlines: bool) -> bool:
    """Return whether a run can be made in stretches up to its horizon, or the deadlines of its requests.

    Not so if a policy observes completions, since it reads step records that a run in stretches has moved to the host;
    or if requests move between instances, since another instance may end steps without progress.
    """
    is_told = mechanism.is_told_at_gateway or mechanism.is_told_in_instance
    ends = horizon_us < _NO_HORIZON or has_deadlines
    return ends and not is_told and not mechanism.moves_requests


def run_to_horizon(
    shape: EngineShape, mechanism: Mechanism, arguments: tuple[Any, Any, Any], max_scan_steps: int
) -> Raw:
    """Make a run with block-level memory in stretches; return the raw tables of the whole run.

    Args:
        shape: sizes of the tables; the log and the preemptions may be shorter than what the run records.
        mechanism: the policies and rules that are compiled in.
        arguments: numbers, requests and order of one run, the arguments of `beginning_of`.
        max_scan_steps: scan steps after which the run ends with `ITERATIONS_EXHAUSTED`.
    """
    return _Stretches(shape, mechanism, arguments, max_scan_steps).run()


class _Stretches:
    """A run with block-level memory, whose records move to the host after every stretch."""

    def __init__(
        self,
        shape: EngineShape,
        mechanism: Mechanism,
        arguments: tuple[Any, Any, Any],
        max_scan_steps: int,
    ) -> None:
        self.shape = dataclasses.replace(shape, stall_steps=LIVELOCK_STEPS)
        self.mechanism, self.arguments = mechanism, arguments
        self.params: Params = arguments[0]
        self.most_chunks, self.num_chunks = max_scan_steps // CHUNK, 0
        self.records: list[tuple[Any, ...]] = []  # log, times and preemptions
        self.num_records = 0
        self.paused_us: dict[int, int] = {}  # by instance: when it last made a step before a pause

    def run(self) -> Raw:
        """Make stretches to the end of the run."""
        with jax.enable_x64(True):
            begin = compiled(beginning_of, self.shape, self.mechanism)
            go_on = compiled(stretch_of, self.shape, self.mechanism)
            requests, state = begin(*self.arguments)
            last_us, is_over = self._last_us(requests), False
            while not is_over:
                left = np.int32(min(self.most_chunks - self.num_chunks, 2**31 - 1))
                state, chunks = go_on(self.params, requests, state, left)
                self.num_chunks += int(chunks)
                state = jax.tree.map(np.array, jax.device_get(state))
                self._take_records(state)
                is_over = self._is_over(state, last_us)
            return self._raw(state)

    def _take_records(self, host: State) -> None:
        """Move the contents of the log and of the record of preemptions to the host."""
        registers, blocks = host.lane.numbers, host[Blocks]
        count = int(registers[Reg.NUM_RECORDS] - registers[Reg.LOG_BASE])
        times = host.log.times[:count]
        clock = np.int64 if np.issubdtype(times.dtype, np.integer) else times.dtype
        evicted = blocks.evictions[: int(blocks.num_evictions)]
        self.records.append(
            (
                host.log.numbers[:count].astype(np.int64),
                times.astype(clock),
                evicted.astype(np.int64),
            )
        )
        self.num_records += count
        registers[Reg.LOG_BASE] = registers[Reg.NUM_RECORDS]
        blocks.num_evictions[...] = 0

    def _last_us(self, requests: Requests) -> int:
        """Return the time after which nothing more comes: the horizon, or else the last arrival or deadline."""
        cluster = self.params.cluster
        if int(cluster.horizon_us) < _NO_HORIZON:
            return int(cluster.horizon_us)
        times = np.concatenate([requests.arrival, requests[RequestDeadlines].at])
        latest = times[times < never(times.dtype)].max(initial=0)
        return int(latest + cluster.admission_latency_us + cluster.routing_latency_us)

    def _is_over(self, host: State, last_us: int) -> bool:
        """Return whether the run has ended; a stalled run continues if an event may still end the stall."""
        registers = host.lane.numbers
        if registers[Reg.OUTCOME] not in (0, Outcome.LIVELOCK):
            return True
        if self.num_records > MOST_RECORDS:
            registers[Reg.OUTCOME] = Outcome.LIVELOCK
        elif registers[Reg.OUTCOME] == 0:
            return bool(registers[Reg.IS_DONE]) or self.num_chunks >= self.most_chunks
        elif self._goes_on(host, last_us, int(registers[Reg.ACTIVE])):
            registers[Reg.OUTCOME] = registers[Reg.IS_DONE] = 0
        return bool(registers[Reg.OUTCOME])

    def _goes_on(self, host: State, last_us: int, instance: int) -> bool:
        """Return whether a stalled instance may make another `LIVELOCK_STEPS` steps without progress.

        Not so if nothing more has come since its last pause.
        """
        since = self.paused_us.get(instance, -1)
        self.paused_us[instance] = int(host.lane.row.now)
        host[Blocks].pool[instance, Pool.STALLED_STEPS] = 0
        return since < last_us

    def _raw(self, host: State) -> Raw:
        """Return the raw tables of the whole run, with the records kept on the host."""
        chunks = jnp.int32(min(self.num_chunks, (2**31 - 1) // CHUNK))
        lane = host.lane.with_numbers(jnp.asarray(host.lane.numbers))
        host = dataclasses.replace(host, lane=lane)
        raw = jax.device_get(raw_of(self.mechanism, host, chunks))
        log, times, evictions = (np.concatenate(parts) for parts in zip(*self.records, strict=True))
        spare = (0, 1), (0, 0)
        whole = dataclasses.replace(
            raw[BlockRecords],
            evictions=np.pad(evictions, spare),
            num_evictions=np.int64(len(evictions)),
        )
        return dataclasses.replace(
            raw.having(whole), log=np.pad(log, spare), log_time=np.pad(times, spare)
        )
