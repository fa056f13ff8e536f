"""A long run by itself: a tie that came in another order sets it back to a checkpoint, not to its beginning.

The run is made in stretches. After each of them the ties that it decided are replayed (ties.py); where the reference
has another order, the run goes on in that order from the last state in which none of these requests was routed.
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
from blis_jax.core.types import EngineShape, Mechanism, Params
from blis_jax.engine.loop import CHUNK, Raw, beginning_of, raw_of, stretch_of
from blis_jax.engine.state import Reg, Req, Requests, State, Time
from blis_jax.memory.block_tables.blocks import Eviction
from blis_jax.results.event_order.histories import InstanceHistory, entry_times, histories
from blis_jax.results.event_order.tied_stretches import stretches
from blis_jax.results.event_order.ties import TieOrder, correct
from blis_jax.runs.programs import compiled
from blis_jax.workload.table import NEVER_US, RequestTable

STRETCH = 4096  # chunks of scan steps; a checkpoint costs what some 300 of them do
_IN_ORDER = (0, Outcome.REFERENCE_CRASH, Outcome.LIVELOCK)  # if the ties before came in BLIS's
KEPT = 3  # checkpoints, the beginning beside them


@dataclass(frozen=True)
class _Checkpoint:
    """A state that the run may go on from, and what the host reads of it."""

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
        at = [Reg.NEXT_ROUTE, Reg.NUM_RECORDS, Reg.NUM_OPEN_TIES, Reg.OUTCOME, Reg.IS_DONE]
        route, records, ties, outcome, is_done = np.asarray(state.registers)[at].tolist()
        last_event = int(state.times[Time.LAST_EVENT])
        return cls(state, num_chunks, route, records, ties, outcome, is_done, last_event)


class LongRun:
    """One run of given requests, stretch by stretch."""

    def __init__(
        self,
        shape: EngineShape,
        mechanism: Mechanism,
        given: tuple[Params, RequestTable, Any],
        order: TieOrder,
        max_scan_steps: int,
    ) -> None:
        """`given` is what `beginning_of` is called with; `order` is corrected in place, and holds in the end."""
        self.given, self.order, self.most_chunks = given, order, max_scan_steps // CHUNK
        self.has_changed = False
        self.begin = compiled(beginning_of, shape, mechanism)
        self.go_on = compiled(stretch_of, shape, mechanism)
        params, table, _ = given
        n = len(order.queue_rank)
        self.arrival = np.asarray(table.arrival_us)[:n].astype(np.int64)
        self.input_len = np.asarray(table.input_len)[:n].astype(np.int64)
        self.num_instances = int(params.cluster.num_instances)

    def run(self) -> Raw:
        """What the run leaves behind, as if it had been made at once in the corrected order."""
        with jax.enable_x64(True):
            requests, state = self.begin(*self.given)
            first = last = _Checkpoint.of(state, 0)
            kept = deque([first], maxlen=KEPT)
            while True:
                made = self._stretch(requests, last)
                if made.outcome not in _IN_ORDER:
                    break
                since = kept[-2] if last is kept[-1] and len(kept) > 1 else first
                changed = self._first_changed(made, last.last_event, since.num_records)
                if changed is not None:
                    while len(kept) > 1 and kept[-1].next_route > changed:
                        kept.pop()
                    last = kept[-1] if kept[-1].next_route <= changed else first
                    requests = self._in_order(requests)
                elif made.outcome or made.is_done or made.num_chunks >= self.most_chunks:
                    break
                else:
                    last = made
                    kept.append(made)
            return jax.device_get(raw_of(made.state, jnp.int32(made.num_chunks)))

    def _stretch(self, requests: Requests, last: _Checkpoint) -> _Checkpoint:
        most = np.int32(min(self.most_chunks - last.num_chunks, STRETCH))
        state, chunks = self.go_on(self.given[0], requests, last.state, most)
        return _Checkpoint.of(state, last.num_chunks + int(chunks))

    def _first_changed(self, made: _Checkpoint, from_us: int, since: int) -> int | None:
        """The first request whose order was corrected by the ties from a time on; None if all were in order.

        The log is read from a record on, or from its beginning where a tie has no quiet step after that record.
        """
        if made.num_ties == 0 and not self.has_changed:  # a corrected tie no longer counts
            return None
        before = self.order.queue_rank.copy(), np.maximum(self.order.after_steps, 0)
        times = from_us, NEVER_US if made.is_done else made.last_event
        recorded = self._histories(made, since)
        if since and not all(s.is_quiet_first for one in recorded for s in stretches(one, *times)):
            recorded = self._histories(made, 0)
        if correct(recorded, self.order, *times):
            return None
        self.has_changed = True
        after = self.order.queue_rank, np.maximum(self.order.after_steps, 0)
        return int(np.flatnonzero((before[0] != after[0]) | (before[1] != after[1]))[0])

    def _histories(self, made: _Checkpoint, since: int) -> list[InstanceHistory]:
        state, n = made.state, len(self.arrival)
        log, times = (
            np.asarray(table)[since : made.num_records].astype(np.int64)
            for table in (state.log, state.log_time)
        )
        evicted = np.zeros(0, np.int64)
        if state.blocks is not None:
            count = int(state.blocks.num_evictions)
            evicted = np.asarray(state.blocks.evictions)[:count, Eviction.RECORD] - since
            evicted = evicted[(evicted >= 0) & (evicted < len(log))]  # not of the step in progress
        instance = np.asarray(state.instance_of)[:n]
        cluster = self.given[0].cluster
        routed, delay = entry_times(cluster, self.arrival, self.input_len, instance)
        return histories(
            log, times, evicted, instance, (routed, routed + delay), self.num_instances
        )

    def _in_order(self, requests: Requests) -> Requests:
        """The requests with the corrected order."""
        table, n = np.array(requests.table), len(self.arrival)
        table[:n, Req.QUEUE_RANK] = self.order.queue_rank
        table[:n, Req.AFTER_STEPS] = self.order.after_steps
        return dataclasses.replace(requests, table=jnp.asarray(table))
