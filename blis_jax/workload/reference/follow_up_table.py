"""Closed-loop sessions as a table: every round, and the earlier round whose completion triggers it.

An engine with tables of fixed size needs all rows before the run. Lengths and contents of later rounds are known before
the run, only their arrivals are not: row i arrives `think_time_us[i]` after the end of the last step of row
`parent[i]`, if that row completes.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

import numpy as np

from blis_jax.errors import ConfigError
from blis_jax.workload.contents import ranks
from blis_jax.workload.distribution import MOST_REQUESTS
from blis_jax.workload.reference.arrays import named_by, names_of, request_arrays
from blis_jax.workload.reference.generate import DrawnWorkload, drawn, rounds_after
from blis_jax.workload.reference.requests import DrawnRequest
from blis_jax.workload.spec import WorkloadSpec
from blis_jax.workload.table import LATEST_US, NEVER_US, RequestTable, WorkloadNames, from_golden

if TYPE_CHECKING:
    from jaxtyping import Bool, Int32, Int64

NO_PARENT = -1  # the row arrives by itself
SPARE_ROUNDS = 8  # of a pool's user, besides twice the mean


@dataclass(frozen=True)
class ClosedLoop:
    """All rows of a workload with sessions; rows without a parent come first, by arrival.

    Rows with a parent have the arrival NEVER_US. Their deadlines count from the arrival in the run. Their prompts
    contain the answers of earlier rounds that complete.
    """

    table: RequestTable
    names: WorkloadNames
    requests: tuple[DrawnRequest, ...]  # the rows with their contents; arrivals as in `drawn`
    session_names: tuple[str, ...]  # behind `table.session`
    parent: Int32[np.ndarray, " request"]  # row whose completion brings this one, or NO_PARENT
    think_time_us: Int64[np.ndarray, " request"]  # from that completion to the arrival
    timeout_us: Int64[np.ndarray, " request"]  # from the arrival to the deadline, 0: none
    is_growing: Bool[np.ndarray, " request"]  # the session's prompts begin with all earlier rounds
    id_rank: Int32[np.ndarray, " request"]  # rank of BLIS's request id as a text
    is_cut: Bool[np.ndarray, " request"]  # the session goes on, but the table has no more of it
    budget: int  # rows with a parent that may arrive in all
    horizon_us: int  # rows with a parent do not arrive after it


def draw_closed_loop(
    spec: WorkloadSpec,
    seed: int | None = None,
    block_size: int = 16,
    *,
    timeout_us: int | None = None,
    most_rounds: int | None = None,
) -> ClosedLoop:
    """Return all rounds of all sessions as a table.

    Args:
        spec: the workload, of the revision of August 2026.
        seed: seed of the streams; the specification's if None.
        block_size: tokens of a KV block, by which shared contents are cut.
        timeout_us: time from each arrival to its deadline, 0 for none; the clients' own timeouts if None.
        most_rounds: rounds per session in the table; if None, a pool's user gets about twice the mean of the budget. If
            `is_cut` rows complete in the run, draw again with more.

    Raises:
        ConfigError: as in `draw`, or a pool has neither a number of requests nor `most_rounds`.
    """
    return closed_loop_table(drawn(spec, seed, timeout_us), block_size, most_rounds)


def closed_loop_table(
    workload: DrawnWorkload,
    block_size: int = 16,
    most_rounds: int | None = None,
    answers: Mapping[tuple[str, int], int] | None = None,
) -> ClosedLoop:
    """Return the table of a drawn workload.

    `answers` has output token counts, by session and round, of rounds for which a run differed from `generated`.
    """
    limit = _most_later_rounds(workload, most_rounds)
    requests = list(workload.requests)
    parent, is_cut = [NO_PARENT] * len(requests), [False] * len(requests)
    for row, first in enumerate(workload.requests):
        session, last = workload.sessions.get(first.session), row
        for later in rounds_after(session, first, limit, answers or {}) if session else ():
            parent.append(last)
            last = len(requests)
            requests.append(later)
            is_cut.append(False)
            if len(requests) > MOST_REQUESTS:
                raise ConfigError(
                    f"max_rounds: the sessions have more than {MOST_REQUESTS} rounds, which would "
                    "not fit in memory; lower max_rounds or concurrency"
                )
        is_cut[last] = session is not None and requests[last].round_index + 1 < session.num_rounds
    return _table(workload, requests, parent, is_cut, block_size)


def _most_later_rounds(workload: DrawnWorkload, most_rounds: int | None) -> float:
    if most_rounds is not None:
        if most_rounds < 1:
            raise ConfigError(f"most_rounds: got {most_rounds}, allowed is 1 or more")
        return most_rounds - 1
    endless = [session for session in workload.sessions.values() if math.isinf(session.num_rounds)]
    if not endless:
        return math.inf
    if math.isinf(workload.budget):
        raise ConfigError(
            "num_requests: the users of a pool send until the horizon, so their rounds cannot be "
            "counted before the run; give num_requests, or most_rounds"
        )
    return min(workload.budget, 2 * math.ceil(workload.budget / len(endless)) + SPARE_ROUNDS)


def _table(
    workload: DrawnWorkload,
    requests: list[DrawnRequest],
    parent: list[int],
    is_cut: list[bool],
    block_size: int,
) -> ClosedLoop:
    arrays = request_arrays(workload.clients, requests, block_size)
    parents = np.array(parent, np.int32)
    is_later = parents != NO_PARENT
    sessions = [workload.sessions.get(request.session) for request in requests]
    deadline, arrival = arrays["deadline_us"], arrays["arrival_us"]
    arrays["arrival_us"] = np.where(is_later, LATEST_US, arrival)  # behind all others, by id
    arrays["id_rank"] = _id_rank(requests, is_later)
    later = zip(sessions, is_later.tolist(), requests, strict=True)
    models, adapters = (named_by(workload.clients, requests, what) for what in ("model", "adapter"))
    return ClosedLoop(
        table=replace(
            from_golden(arrays, least_prompt=0),
            arrival_us=np.where(is_later, np.int64(NEVER_US), arrival),
        ),
        names=replace(names_of(arrays), models=models, adapters=adapters),
        requests=tuple(requests),
        session_names=tuple(map(str, arrays["session_names"])),
        parent=parents,
        think_time_us=np.array(
            [
                session.think_after(request.round_index - 1) if session and waits else 0
                for session, waits, request in later
            ],
            np.int64,
        ),
        timeout_us=np.where(deadline > 0, deadline - arrival, 0),
        is_growing=np.array(
            [session is not None and session.is_growing for session in sessions], bool
        ),
        id_rank=arrays["id_rank"],
        is_cut=np.array(is_cut, bool),
        budget=int(min(workload.budget, len(requests))),
        horizon_us=int(min(workload.horizon_us, NEVER_US - 1)),
    )


def ids_of(requests: Sequence[DrawnRequest], is_later: np.ndarray) -> list[str]:
    """Return BLIS's request ids, as far as they decide an order.

    BLIS ends the id of a later round with a counter of the run. The counter, left out here, never decides an order,
    since no two rounds share the text before it.
    """
    return [
        f"session_{request.session}_round_{request.round_index}_"
        if later
        else f"request_{row if request.number is None else request.number}"
        for row, (request, later) in enumerate(zip(requests, is_later.tolist(), strict=True))
    ]


def _id_rank(requests: list[DrawnRequest], is_later: np.ndarray) -> np.ndarray:
    """Return the rank of each id among the ids as texts."""
    ids = ids_of(requests, is_later)
    return ranks(sorted(range(len(ids)), key=ids.__getitem__))
