"""Outputs that go on after a preemption, as vLLM has it: the token after it is a long inter-token latency away.

Such a latency lasts from the step that evicts the request to the end of the step in which prompt and earlier tokens are
computed again. It spans several steps, so it is not in the step records.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np

from blis_jax.engine.state import Dyn
from blis_jax.memory.block_tables.blocks import CUT_OFF, Eviction
from blis_jax.metrics.arrays import sums

if TYPE_CHECKING:
    from jaxtyping import Int

    from blis_jax.results.from_tables import Observation
    from blis_jax.results.records import RunRecord


def gaps_us(seen: Observation) -> Int[np.ndarray, "preemption"] | None:
    """Time from each preemption to the request's next token, µs, without output processing.

    -1 where there is none: the preemption took no token, another one follows before the next token, or the run
    ended first. None where the profile does not keep outputs.
    """
    raw, xp = seen.raw, seen.xp
    if not seen.rules.keeps_output or raw.life is None:
        return None
    room = raw.evictions.shape[0] - 1
    rows = raw.evictions[: room if xp is not np else min(int(raw.num_evictions), room)]
    rows = rows.astype(np.int64)
    is_entry = xp.arange(len(rows)) < raw.num_evictions
    is_cut = is_entry & (rows[:, Eviction.SCHEDULED_RECORD] == CUT_OFF)
    decode = rows[:, Eviction.DECODE_RECORD]
    ends = is_cut | (is_entry & (decode > 0))
    of = xp.where(is_entry, rows[:, Eviction.REQUEST], 0)
    current = xp.where(seen.lives.in_decode, seen.dyn[:, Dyn.TOKEN_RECORD], -1)
    token = _next_tokens(of, decode - 1, ends, current, xp)
    spent = seen.ends(token) - seen._starts(rows[:, Eviction.RECORD])
    gaps = xp.where((token >= 0) & ~is_cut, spent, -1)
    return gaps[~is_cut] if xp is np else gaps  # in numpy only preemptions have rows


def num_resumed(seen: Observation, gaps: Any) -> Any:
    """How many such latencies each request has."""
    of = seen.xp.where(seen.lives.is_eviction, seen.lives.evictions[:, Eviction.REQUEST], -1)
    return sums(of, (gaps >= 0).astype(np.int64), seen.num_requests)


def resumed_latencies(record: RunRecord) -> Int[np.ndarray, "request"]:
    """How many latencies of each request span a preemption, and are in no step record."""
    evictions, size = record.preemptions, len(record.requests.status)
    if evictions.gap_us is None:
        return np.zeros(size, np.int64)
    return np.bincount(evictions.request[evictions.gap_us >= 0], minlength=size)


def _next_tokens(of: Any, token: Any, ends: Any, upcoming: Any, xp: Any) -> Any:
    """The step record of the first token after each row of a life that ended, -1: none; rows in order of time.

    `ends` marks the rows whose life has a first token, `token`, or of which it is known that no token follows.
    """
    if xp is np:
        found, upcoming = np.full(len(of), -1, np.int64), upcoming.copy()
        for row in np.flatnonzero(ends)[::-1]:
            found[row] = upcoming[of[row]]
            upcoming[of[row]] = token[row]
        return found
    import jax

    def look(upcoming: Any, one: Any) -> tuple[Any, Any]:
        of, token, ends = one
        found = upcoming[of]
        return upcoming.at[of].set(xp.where(ends, token, found)), xp.where(ends, found, -1)

    return jax.lax.scan(look, upcoming, (of, token, ends), reverse=True)[1]
