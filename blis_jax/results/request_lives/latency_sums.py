"""The inter-token latencies of each request, as BLIS's revision of August 2026 sums them up."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

import numpy as np

from blis_jax.engine.state import Dyn, Log, LogTime
from blis_jax.memory.block_tables.blocks import PASSED_OVER, Eviction
from blis_jax.results.records import Status

if TYPE_CHECKING:
    from jaxtyping import Int

    from blis_jax.results.from_tables import Observation


def latency_sums(
    seen: Observation, columns: Mapping[str, Any]
) -> Int[np.ndarray, "request"] | None:
    """The sum of the latencies that each request has recorded since its last first token, µs.

    Of a split request those of its decode part, the first token's included; 0 where that part has not completed. What
    BLIS adds to a completed request's E2E behind its last token is in none. None in a compiled call, and before August.

    Args:
        seen: one run.
        columns: the columns of its `RequestRecords`, E2E and TTFT as they are reported.
    """
    if seen.xp is not np or not seen.rules.has_order:
        return None
    is_done = columns["status"] == Status.COMPLETED
    sums = columns["e2e_us"] - columns["ttft_us"] - _after_decode(seen)
    is_open = ~is_done & (columns["token_step_idx"] >= 0)
    if seen.splits is not None:
        parts = seen.splits
        of_part = parts.decode_e2e_us - np.maximum(parts.decode_ttft_us, 0) - _after_decode(seen)
        sums = np.where(parts.is_split, of_part, sums)
        is_open = is_open & ~parts.is_split
    so_far = _so_far(seen, columns["ended_step_idx"]) if is_open.any() else 0
    return np.where(is_done, sums, np.where(is_open, so_far, 0))


def _after_decode(seen: Observation) -> Any:
    after = seen.cluster.post_decode_us
    if after is None:
        return 0
    return np.where(seen.output_len > 0, np.asarray(after)[np.maximum(seen.instance, 0)], 0)


def _so_far(seen: Observation, ended: Any) -> Int[np.ndarray, "request"]:
    """Of requests that are in decode, up to the last step of their instance, or the one after which they left."""
    log, times = seen.log, seen.log_time
    span = log[:, Log.LAST_INDEX].max() + 2
    place = log[:, Log.INSTANCE] * span + log[:, Log.LAST_INDEX]
    order = np.argsort(place)

    def up_to(index: Any) -> Any:
        """The time of all steps of the request's instance up to one of them."""
        wanted = np.maximum(seen.instance, 0) * span + index
        at = order[np.minimum(np.searchsorted(place[order], wanted), len(log) - 1)]
        later = log[at, Log.LAST_INDEX] - index
        return times[at, LogTime.TOTAL_DURATION] - later * times[at, LogTime.DURATION]

    first, last = seen.dyn[:, Dyn.TOKEN_INDEX], seen._last_index(ended)
    num_steps = last - first - _times_passed_over(seen)
    output = seen.output_time[np.maximum(seen.instance, 0)]
    return up_to(last) - up_to(first) - seen.lives.passed_over_us + num_steps * output


def _times_passed_over(seen: Observation) -> Any:
    """Steps since each request's first token in which it got nothing."""
    if seen.raw.life is None:
        return 0
    rows = seen.raw.evictions[: min(int(seen.raw.num_evictions), len(seen.raw.evictions) - 1)]
    over = rows[rows[:, Eviction.SCHEDULED_RECORD] == PASSED_OVER].astype(np.int64)
    request = over[:, Eviction.REQUEST]
    is_current = over[:, Eviction.RECORD] > seen.dyn[request, Dyn.TOKEN_RECORD]
    return np.bincount(request[is_current], minlength=seen.num_requests)
