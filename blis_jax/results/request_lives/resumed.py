"""Outputs that go on after a preemption, as vLLM has it: the token after it is a long inter-token latency away.

Such a latency lasts from the step that evicts the request to the end of the step in which prompt and earlier tokens are
computed again. It spans several steps, so it is not in the step records.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np

from blis_jax.engine.state import Dyn
from blis_jax.memory.block_tables.blocks import Eviction
from blis_jax.results.metrics.arrays import sums

if TYPE_CHECKING:
    from jaxtyping import Int

    from blis_jax.results.from_tables import Observation
    from blis_jax.results.records import RunRecord


def gaps_us(seen: Observation) -> Int[np.ndarray, "preemption"] | None:
    """Time from each preemption to the request's next token, µs, without output processing.

    -1 where there is none: the preemption took no token, another one follows before the next token, or the run
    ended first. None where the profile does not keep outputs.
    """
    lives, xp = seen.lives, seen.xp
    if not seen.rules.keeps_output or seen.raw.life is None:
        return None
    decode = lives.evictions[:, Eviction.DECODE_RECORD]
    ends = lives.is_eviction & (decode > 0)
    of = xp.where(lives.is_eviction, lives.evictions[:, Eviction.REQUEST], 0)
    current = xp.where(lives.in_decode, seen.dyn[:, Dyn.TOKEN_RECORD], -1)
    token = _next_tokens(of, decode - 1, ends, current, xp)
    record = lives.evictions[:, Eviction.RECORD]
    spent = seen.ends(token) - seen._starts(record)
    return xp.where(token >= 0, spent, -1)


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
    """The step record of the first token after each preemption that ended a decode, -1: none; rows in order of time."""
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
