"""The step log of a run in stretches, with rounds of barren steps that were never run."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

from blis_jax.engine.state import Log, LogTime
from blis_jax.memory.block_tables.blocks import Eviction

if TYPE_CHECKING:
    from jaxtyping import Int

    from blis_jax.runs.livelock.cycles import Round

_ALIKE = [int(column) for column in Log if column is not Log.LAST_INDEX]
_REFERENCES = (Eviction.RECORD, Eviction.SCHEDULED_RECORD)


class SkippedLog:
    """Step records and preemptions so far, numbered in order, 64 bits."""

    def __init__(self) -> None:
        """Empty."""
        self._log = [np.zeros((0, len(Log)), np.int64)]
        self._times = [np.zeros((0, len(LogTime)), np.int64)]
        self._evictions = [np.zeros((0, len(Eviction)), np.int64)]
        self._count = 0

    def __len__(self) -> int:
        """Number of records."""
        return self._count

    def add(self, log: np.ndarray, times: np.ndarray, evictions: np.ndarray) -> None:
        """Records that were run, and preemptions."""
        self._log.append(log.astype(np.int64))
        is_whole = np.issubdtype(times.dtype, np.integer)
        self._times.append(times.astype(np.int64) if is_whole else times.copy())
        self._evictions.append(evictions.astype(np.int64))
        self._count += len(log)

    def tables(self) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
        """Records, their times, and preemptions."""
        for parts in (self._log, self._times, self._evictions):
            parts[:] = [np.concatenate(parts)]
        return self._log[0], self._times[0], self._evictions[0]

    def numbers(self, instance: int) -> Int[np.ndarray, "record"]:
        """Numbers of an instance's records."""
        log, _, _ = self.tables()
        return np.flatnonzero(log[:, Log.INSTANCE] == instance)

    def num_members(self, rows: Int[np.ndarray, "record"]) -> Int[np.ndarray, "record"]:
        """At least as many requests as were ever in the batch together, of steps in which none completes."""
        log, _, evictions = self.tables()
        return (
            log[rows, Log.RUNNING]
            + np.bincount(evictions[:, Eviction.RECORD], minlength=len(log))[rows]
        )

    def likely_round(self, instance: int, num_rows: int) -> tuple[int, int]:
        """Steps and time after which the instance's latest records repeat; 0 if they do not."""
        log, times, evictions = self.tables()
        rows = self.numbers(instance)[-num_rows:]
        if len(rows) < num_rows:
            return 0, 0
        evicted = np.bincount(
            evictions[evictions[:, Eviction.RECORD] >= rows[0], Eviction.RECORD] - rows[0],
            minlength=int(rows[-1] - rows[0]) + 1,
        )[rows - rows[0]]
        durations = times[rows, LogTime.DURATION].astype(np.int64)
        alike = np.column_stack([log[rows][:, _ALIKE], durations, evicted])
        _, kind = np.unique(alike, axis=0, return_inverse=True)
        period = _period(kind.ravel().tolist())
        if 2 * period > num_rows:
            return 0, 0
        last = rows[-period:]
        steps = log[last, Log.NUM_STEPS]
        return int(steps.sum()), int((steps * durations[-period:]).sum())

    def rows_of(self, found: Round) -> Int[np.ndarray, "record"]:
        """Numbers of the records of the round made last."""
        log, _, _ = self.tables()
        own = self.numbers(found.instance)
        last = log[own[-1], Log.LAST_INDEX]
        return own[log[own, Log.LAST_INDEX] > last - found.num_steps]

    def is_one_step(self, found: Round, rows: Int[np.ndarray, "record"]) -> bool:
        """Whether the round is one step again and again, in which nothing happens to any request."""
        log, times, _ = self.tables()
        is_quiet = found.num_evictions == 0 and not any(c.by.any() for c in found.records)
        columns = [Log.NUM_SCHEDULED, Log.NUM_COMPLETED, Log.PREFILL_TOKENS]
        is_alike = np.all(log[rows][:, _ALIKE] == log[rows[0], _ALIKE])
        same_time = np.all(times[rows, LogTime.DURATION] * len(rows) == found.period_us)
        follows = np.all(np.diff(times[rows, LogTime.START]) == times[rows[0], LogTime.DURATION])
        is_single = log[rows[0], Log.NUM_STEPS] == 1 and not log[rows[0], columns].any()
        return bool(is_quiet and is_alike and same_time and follows and is_single)

    def repeat(
        self, found: Round, rows: Int[np.ndarray, "record"], count: int, is_one_step: bool
    ) -> None:
        """Add the round made last `count` times more; as one record if it is one step again and again."""
        log, times, _ = self.tables()
        if is_one_step:
            steps = count * len(rows)
            new, new_times = log[rows[-1:]].copy(), times[rows[-1:]].copy()
            new[:, Log.NUM_STEPS] = steps
            new[:, Log.LAST_INDEX] += steps
            new[:, Log.SUM_USED_BLOCKS] = steps * new[:, Log.USED_BLOCKS]
            new_times[:, LogTime.START] += new_times[:, LogTime.DURATION]
            new_times[:, LogTime.TOTAL_DURATION] += count * found.total_us
        else:
            turn = np.repeat(np.arange(1, count + 1), len(rows))
            new, new_times = np.tile(log[rows], (count, 1)), np.tile(times[rows], (count, 1))
            new[:, Log.LAST_INDEX] += turn * found.num_steps
            new_times[:, LogTime.START] += (turn * found.period_us).astype(new_times.dtype)
            new_times[:, LogTime.TOTAL_DURATION] += (turn * found.total_us).astype(new_times.dtype)
            self._repeat_evictions(found, rows, count)
        self.add(new, new_times, self._evictions[0][:0])

    def _repeat_evictions(self, found: Round, rows: Int[np.ndarray, "record"], count: int) -> None:
        """The round's preemptions, each with the records and steps of its own round."""
        evictions = self._evictions[0]
        mine = evictions[np.isin(evictions[:, Eviction.RECORD], rows)]
        new = np.tile(mine, (count, 1))
        turn = np.repeat(np.arange(1, count + 1), len(mine))
        own = self.numbers(found.instance)

        def later(numbers: np.ndarray) -> np.ndarray:
            """The same records so many rounds later."""
            place = np.searchsorted(own, numbers) + turn * len(rows)
            last = len(own) - 1
            return np.where(
                place > last, self._count + place - len(own), own[np.minimum(place, last)]
            )

        for column in _REFERENCES:
            new[:, column] = later(new[:, column])
        new[:, Eviction.INDEX] += turn * found.num_steps
        in_decode = new[:, Eviction.DECODE_RECORD] > 0
        decode = later(new[:, Eviction.DECODE_RECORD] - 1) + 1
        new[:, Eviction.DECODE_RECORD] = np.where(in_decode, decode, 0)
        new[:, Eviction.DECODE_INDEX] += np.where(in_decode, turn * found.num_steps, 0)
        token = new[:, Eviction.FIRST_TOKEN]
        kept = np.array([found.kept_tokens.get(int(r), -1) for r in new[:, Eviction.REQUEST]])
        moves = (token > 0) & (token != kept)
        new[:, Eviction.FIRST_TOKEN] = np.where(moves, later(token - 1) + 1, token)
        self._evictions.append(new)


def _period(kinds: list[int]) -> int:
    """The least period of a sequence."""
    back = [0] * len(kinds)
    for place in range(1, len(kinds)):
        length = back[place - 1]
        while length and kinds[length] != kinds[place]:
            length = back[length - 1]
        back[place] = length + (kinds[length] == kinds[place])
    return len(kinds) - back[-1]
