"""Inter-token latencies of completed requests where requests move: those that count, and the one over a transfer.

A token that is made after a hand-over follows the first one by the transfer, the wait for a batch and a step. So this
latency is in no step record. Latencies of attempts that a stop ended are left out, since TTFT is that of the last one.
For every completed request the latencies then sum to E2E less TTFT.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np

from blis_jax.engine.state import Dyn, Log
from blis_jax.memory.block_tables.blocks import Eviction
from blis_jax.metrics.arrays import clipped, sums
from blis_jax.results.records import Status
from blis_jax.results.request_lives.travels import has_moved

if TYPE_CHECKING:
    from jaxtyping import Int

    from blis_jax.results.from_tables import Observation

    Array = Any


def are_own(seen: Observation) -> bool:
    """Whether latencies are counted here: where requests move, but not as BLIS's revision of August has it."""
    return seen.journey is not None and seen.reserved is None and not seen.rules.turns_away


def counts_of_completed(seen: Observation) -> Int[np.ndarray, "record"] | None:
    """Count the latencies of completed requests in each step record, without those over a transfer.

    None where all of the log's latencies count, or those of unfinished requests can be told from them.
    """
    xp, log, size = seen.xp, seen.log, len(seen.log)
    if not size or not are_own(seen):
        return None
    record = xp.arange(size)
    group = xp.where(log[:, Log.NUM_STEPS] > 0, log[:, Log.INSTANCE], seen.num_instances)
    order = xp.argsort(group * size + record)
    place = xp.argsort(order)
    is_done = seen.status == int(Status.COMPLETED)
    finish = seen.dyn[:, Dyn.FINISH_RECORD] - 1
    spans = [(is_done, seen.dyn[:, Dyn.TOKEN_RECORD], finish, 0), *_earlier_lives(seen, is_done)]
    change = xp.zeros(size, np.int64)
    for is_one, began, ended, before in spans:
        # it counts in all records of its instance after the one of its token
        first = xp.where(is_one, place[clipped(began, size - 1)], -1)
        last = xp.where(is_one, place[clipped(ended, size - 1)] - before, -1)
        one = xp.ones(len(is_one), np.int64)
        change = change + sums(first, one, size) - sums(last, one, size)
    begun = xp.cumsum(change) - change
    again = np.int64(seen.defects.double_last_latency)
    twice = sums(xp.where(is_done, finish, -1), xp.where(is_done, again, 0), size)
    return begun[place] * log[:, Log.NUM_STEPS] + twice


def _earlier_lives(seen: Observation, is_done: Array) -> list[tuple[Array, Array, Array, int]]:
    """Lives that an eviction ended and whose latencies count: is it one, records of its token and eviction, 1.

    Where outputs are kept, those since the last time that the output was lost; else all of a request that did not
    move, for the others make their tokens again within the time from the first one to the last.
    """
    xp, raw = seen.xp, seen.raw
    if raw.life is None:
        return []
    rows = raw.evictions[:-1].astype(np.int64)
    is_entry = xp.arange(len(rows)) < raw.num_evictions
    of = xp.where(is_entry, rows[:, Eviction.REQUEST], 0)
    began = rows[:, Eviction.DECODE_RECORD]
    scheduled = rows[:, Eviction.SCHEDULED_RECORD]
    is_life = is_entry & (scheduled >= 0) & (began > 0) & is_done[of]
    assert seen.journey is not None
    is_lost = has_moved(seen.journey)[of] if seen.gaps_us is None else _are_lost(seen, rows)
    is_life = is_life & ~is_lost
    return [(is_life, began - 1, rows[:, Eviction.RECORD], 1)]


def lost_lives(seen: Observation) -> Array | None:
    """Whether each preemption was in an attempt whose output was lost `[preemption]`; None where none can be."""
    if seen.gaps_us is None or not are_own(seen):
        return None
    return _are_lost(seen, seen.lives.evictions)


def _are_lost(seen: Observation, evictions: Array) -> Array:
    """Whether each eviction came before the first token that counts, so in an attempt whose output was lost."""
    first_us = seen.ends(seen.lives.token_record)
    of = clipped(evictions[:, Eviction.REQUEST], seen.num_requests - 1)
    return seen._starts(evictions[:, Eviction.RECORD]) < first_us[of]


def over_transfers(
    seen: Observation, columns: dict[str, Array], steps: Array, output_time: Array
) -> Int[np.ndarray, "request"] | None:
    """Return the latency that holds each completed request's transfer, µs; -1 where there is none.

    None in a run in which nothing moves, or as BLIS's revision of August has it.
    It ends with the step that the request joins. Where an eviction has taken the tokens back since, and they are made
    again, it ends with the token that is made first then. `steps` is the number of those after the last first token.
    """
    xp, journey = seen.xp, seen.journey
    if journey is None or not are_own(seen):
        return None
    has_joined = (journey.first_record >= 0) & (journey.joined_record >= 0)
    is_it = has_joined & (seen.status == int(Status.COMPLETED))
    if seen.gaps_us is None:
        last, _, total = seen._last_steps
        again = np.int64(seen.defects.double_last_latency)
        others = (
            total + (steps - seen.lives.num_handed) * output_time + again * (last + output_time)
        )
        latency = columns["e2e_us"] - columns["ttft_us"] - others
    else:
        joined: Any = journey.joined_record
        first: Any = journey.first_record
        latency = seen.ends(joined) - seen.ends(first) + output_time
    return xp.where(is_it, latency, -1)
