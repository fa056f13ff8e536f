"""A livelock that a horizon ends: the run in stretches, and rounds of barren steps that repeat skipped at once.

The reference goes on to the horizon however little its steps achieve. Where an instance has made many barren steps, its
log tells how long a round may be; if the states before and after one are the same but for time
(cycles.py), the rounds up to the next arrival or the horizon are added to state and log without being run.
"""

from __future__ import annotations

import copy
import dataclasses
from typing import TYPE_CHECKING, Any

import jax
import numpy as np

from blis_jax.core.outcome import Outcome
from blis_jax.core.types import EngineShape, Mechanism, Params
from blis_jax.engine.loop import CHUNK, Raw, beginning_of, stretch_of
from blis_jax.engine.state import Dyn, InstTime, Reg, Requests, Slot, State
from blis_jax.memory.block_level import LIVELOCK_STEPS
from blis_jax.memory.block_tables.blocks import Pool
from blis_jax.policies.routing.by_load import regret_of
from blis_jax.runs.livelock.cycles import (
    Differs,
    Round,
    never_us,
    one_round,
    pending_from,
    table_of,
)
from blis_jax.runs.livelock.queue_order import rounds_in_order
from blis_jax.runs.livelock.skipped import SkippedLog
from blis_jax.runs.programs import compiled

if TYPE_CHECKING:
    from jaxtyping import Int

STALL_STEPS = 512  # barren steps of an instance after which a stretch ends
MOST_RECORDS = 2**22  # of a run in stretches; one that needs more stays a livelock
MOST_TRIES = 24  # multiples of a round that are compared before waiting for more steps
_FEWEST_ROWS = 64  # of the log, in which a round is looked for at first
_NO_HORIZON = 2**62 - 1


def has_end(horizon_us: int, mechanism: Mechanism, has_deadlines: bool) -> bool:
    """Whether a run in stretches reaches the horizon, or the deadlines of its requests, if there are such.

    A policy that is told of completions reads step records that a run in stretches has put away, and where requests
    move, a round of steps that repeats may be broken from elsewhere.
    """
    is_told = mechanism.is_told_at_gateway or mechanism.is_told_in_instance
    ends = horizon_us < _NO_HORIZON or has_deadlines
    return ends and not is_told and not mechanism.moves_requests


def run_to_horizon(
    shape: EngineShape, mechanism: Mechanism, arguments: tuple[Any, Any, Any], max_scan_steps: int
) -> Raw:
    """The whole run at block level, `arguments` being one row's numbers, requests and order."""
    return _Stretches(shape, mechanism, arguments, max_scan_steps).run()


@dataclasses.dataclass
class _Watch:
    """What is known of one instance's barren steps."""

    num_rows: int = _FEWEST_ROWS
    anchor: State | None = None
    num_steps: int = 0  # of the round that is looked for
    num_tries: int = 0
    pause: int = STALL_STEPS
    done: tuple[int, int] | None = None  # completions and progress, once nothing is to come


class _Stretches:
    """One run, stretch by stretch."""

    def __init__(
        self,
        shape: EngineShape,
        mechanism: Mechanism,
        arguments: tuple[Any, Any, Any],
        max_scan_steps: int,
    ) -> None:
        self.shape = dataclasses.replace(shape, stall_steps=STALL_STEPS)
        self.mechanism, self.arguments = mechanism, arguments
        self.params: Params = arguments[0]
        self.most_chunks, self.num_chunks = max_scan_steps // CHUNK, 0
        self.log = SkippedLog()
        self.watches = [_Watch() for _ in range(shape.num_instances)]

    def run(self) -> Raw:
        """Stretches to the end of the run."""
        with jax.enable_x64(True):
            begin = compiled(beginning_of, self.shape, self.mechanism)
            go_on = compiled(stretch_of, self.shape, self.mechanism)
            requests, state = begin(*self.arguments)
            arrivals: Requests = jax.device_get(requests)
            while True:
                left = np.int32(min(self.most_chunks - self.num_chunks, 2**31 - 1))
                state, chunks = go_on(self.params, requests, state, left)
                self.num_chunks += int(chunks)
                host: State = jax.tree.map(np.array, jax.device_get(state))
                self._take_log(host)
                if self._is_over(host, arrivals):
                    return self._raw(host)
                state = host

    def _take_log(self, host: State) -> None:
        """Move what the log and the record of preemptions hold to the host."""
        registers, blocks = host.registers, host.blocks
        assert blocks is not None
        count = int(registers[Reg.NUM_RECORDS] - registers[Reg.LOG_BASE])
        evicted = int(blocks.num_evictions)
        log, times, evictions = (
            np.asarray(table) for table in (host.log, host.log_time, blocks.evictions)
        )
        self.log.add(log[:count], times[:count], evictions[:evicted])
        registers[Reg.LOG_BASE] = registers[Reg.NUM_RECORDS]
        blocks.num_evictions[...] = 0

    def _is_over(self, host: State, arrivals: Requests) -> bool:
        """Whether the run has ended; a stalled one is looked at, and goes on."""
        registers = host.registers
        if registers[Reg.OUTCOME] not in (0, Outcome.LIVELOCK):
            return True
        if len(self.log) > MOST_RECORDS:
            registers[Reg.OUTCOME] = Outcome.LIVELOCK
            return True
        if registers[Reg.OUTCOME] == 0:
            return bool(registers[Reg.IS_DONE]) or self.num_chunks >= self.most_chunks
        registers[Reg.OUTCOME] = registers[Reg.IS_DONE] = 0
        instance = int(registers[Reg.ACTIVE])
        until = self._until(host, arrivals, instance)
        if until < _NO_HORIZON:
            self._look(host, instance, until)
        else:
            self._see_out(host, instance)
        return bool(registers[Reg.OUTCOME])

    def _see_out(self, host: State, instance: int) -> None:
        """Nothing from outside will reach the instance: a livelock, if as many steps as in one piece are barren."""
        watch, blocks = self.watches[instance], host.blocks
        assert blocks is not None
        num_done = int(np.count_nonzero(host.dyn[:, Dyn.FINISH_RECORD]))
        done = num_done, int(blocks.pool[instance, Pool.BEST_PROGRESS])
        if watch.done == done:
            host.registers[Reg.OUTCOME] = Outcome.LIVELOCK
            return
        watch.done = done
        self._wait(host, instance, LIVELOCK_STEPS)

    def _until(self, host: State, arrivals: Requests, instance: int) -> int:
        """The first time at which something from outside may reach the instance, or past the horizon."""
        cluster, registers = self.params.cluster, host.registers
        times = np.asarray(arrivals.arrival).astype(np.int64)
        admit = int(times[registers[Reg.NEXT_ADMIT]]) + int(cluster.admission_latency_us)
        route = int(times[registers[Reg.NEXT_ROUTE]]) + int(cluster.admission_latency_us)
        route += int(cluster.routing_latency_us)
        if host.queue is not None:  # requests are not routed in order of arrival
            queue = host.queue  # a tick and an expiry for each gateway
            route = int(min(np.min(queue.tick), np.min(queue.expiry)))
            if queue.victims is not None:
                route = min(route, int(queue.victims.due))
            if registers[Reg.NEXT_ROUTE] < host.queue.num_dispatched:
                route = 0
        given_up = _NO_HORIZON
        if arrivals.deadline is not None:
            there = host.slot[Slot.REQUEST, instance]
            times = np.asarray(arrivals.deadline)[there[there >= 0]]
            given_up = min(map(int, times), default=given_up)
        entry = pending_from(host, instance)
        never = never_us(host)
        soonest = min(
            (t for t in (admit, route, entry, given_up) if t < never), default=_NO_HORIZON
        )
        return min(soonest, int(cluster.horizon_us) + 1)

    def _look(self, host: State, instance: int, until: int) -> None:
        """Skip rounds if the instance has made one; else have it make another."""
        watch = self.watches[instance]
        # sums of the continuous clock round; rounds with a CPU tier are not tested yet; with kept outputs none repeats
        has_tier = self.shape.has_cpu_tier or self.shape.has_mirror
        if self.shape.is_continuous or has_tier or self.mechanism.rules.keeps_output:
            return self._wait(host, instance, 2**30)
        if watch.anchor is not None and self._is_undisturbed(watch.anchor, host):
            found = self._round(watch.anchor, host, instance)
            if found is not None:
                self._skip(host, found, until)
                watch.anchor, watch.num_tries = None, 0
                return self._wait(host, instance, STALL_STEPS)
            watch.num_tries += 1
            if watch.num_tries < MOST_TRIES:
                return self._wait(host, instance, watch.num_steps)
            watch.num_rows *= 2
            watch.pause = min(2 * watch.pause, 2**20)
            watch.anchor, watch.num_tries = None, 0
            return self._wait(host, instance, watch.pause)
        watch.num_tries = 0
        watch.num_steps, period = self.log.likely_round(instance, watch.num_rows)
        left = until - int(host.inst_time[instance, InstTime.EVENT])
        if watch.num_steps == 0 or left < 4 * period:
            watch.anchor = None
            return self._wait(host, instance, STALL_STEPS)
        watch.anchor = copy.deepcopy(host)
        return self._wait(host, instance, watch.num_steps)

    def _wait(self, host: State, instance: int, steps: int) -> None:
        """End a stretch once the instance has made so many more barren steps."""
        assert host.blocks is not None
        host.blocks.pool[instance, Pool.STALLED_STEPS] = STALL_STEPS - steps

    def _is_undisturbed(self, before: State, after: State) -> bool:
        at = [int(Reg.NEXT_ADMIT), int(Reg.NEXT_ROUTE)]
        return np.array_equal(before.registers[at], after.registers[at])

    def _round(self, before: State, after: State, instance: int) -> Round | None:
        own = self.log.numbers(instance)
        num_new = len(own) - int(np.searchsorted(own, before.registers[Reg.NUM_RECORDS]))
        is_alone = bool(np.all(self.log.num_members(own[len(own) - num_new :]) <= 1))
        try:
            return one_round(before, after, instance, self.shape, own, num_new, is_alone)
        except Differs:
            return None

    def _skip(self, host: State, found: Round, until: int) -> None:
        """Add as many rounds as end before `until`, less one."""
        start = int(host.inst_time[found.instance, InstTime.EVENT])
        count = (until - 1 - start) // found.period_us - 1
        if count < 1:
            return
        rows = self.log.rows_of(found)
        count = rounds_in_order(self.params, self.mechanism, host, found, self.log, rows, count)
        if count < 1:
            return
        latest = start + (count + 1) * found.period_us
        total = int(host.inst_time[found.instance, InstTime.TOTAL_DURATION])
        if max(latest, total + count * found.total_us) >= never_us(host):
            host.registers[Reg.OUTCOME] = Outcome.CLOCK_OVERFLOW
            return
        is_equal = self.log.is_one_step(found, rows)
        num_new = 1 if is_equal else count * len(rows)
        if len(self.log) + num_new > MOST_RECORDS or not _fits(host, found, count):
            host.registers[Reg.OUTCOME] = Outcome.LIVELOCK
            return
        base = len(self.log)
        own = self.log.numbers(found.instance)
        self.log.repeat(found, rows, count, is_equal)
        _advance(host, found, count, own, len(rows), base)
        host.registers[Reg.NUM_RECORDS] = host.registers[Reg.LOG_BASE] = len(self.log)

    def _raw(self, host: State) -> Raw:
        """What a run in one piece leaves behind."""
        registers, blocks = host.registers, host.blocks
        assert blocks is not None
        if not registers[Reg.IS_DONE] and registers[Reg.OUTCOME] == 0:
            registers[Reg.OUTCOME] = Outcome.ITERATIONS_EXHAUSTED
        registers[Reg.CURSOR] = min(self.num_chunks * CHUNK, 2**31 - 1)
        log, times, evictions = self.log.tables()
        spare, queue = ((0, 1), (0, 0)), host.queue
        return Raw(
            registers,
            host.instance_of,
            host.dyn,
            np.pad(log, spare),
            np.pad(times, spare),
            host.inst,
            host.inst_time,
            host.expected,
            life=blocks.life,
            pool=blocks.pool,
            evictions=np.pad(evictions, spare),
            num_evictions=np.int64(len(evictions)),
            queue_place=None if queue is None else queue.place,
            dispatched=None if queue is None else queue.dispatched,
            exits=host.exits,
            regret=regret_of(host.gateway),
        )


def _fits(host: State, found: Round, count: int) -> bool:
    """Whether every counter stays within its bits."""
    for change in found.changes:
        table = table_of(host, change.table)
        if np.issubdtype(table.dtype, np.integer):
            after = np.asarray(table[change.at], np.int64) + count * change.by
            if np.any(after > np.iinfo(table.dtype).max) or np.any(
                after < np.iinfo(table.dtype).min
            ):
                return False
    return True


def _advance(
    host: State, found: Round, count: int, own: Int[np.ndarray, "record"], num_rows: int, base: int
) -> None:
    """The state `count` rounds later; `own` are the instance's records so far, the new ones begin at `base`."""
    for change in found.changes:
        table = table_of(host, change.table)
        table[change.at] = table[change.at] + (count * change.by).astype(table.dtype)
    for change in found.records:
        table = table_of(host, change.table)
        is_moved, plus = change.by == 1, change.plus
        place = np.searchsorted(own, table[change.at] - plus) + count * num_rows
        last = max(len(own) - 1, 0)
        number = np.where(place > last, base + place - len(own), own[np.minimum(place, last)])
        table[change.at] = np.where(is_moved, number + plus, table[change.at])
