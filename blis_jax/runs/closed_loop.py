"""Closed-loop sessions on an engine that needs all arrivals in advance: runs are repeated until no arrival changes.

No event depends on a later one. So a run with wrong late arrivals is right up to the first wrong one, and its
completions up to there determine when the next rounds arrive. Every pass is right for longer than the last; when no
arrival changes, all arrivals are right.
"""

from __future__ import annotations

import dataclasses
import math
from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np

from blis_jax import progress
from blis_jax.cluster.adapters import with_adapters
from blis_jax.cluster.config import ClusterConfig
from blis_jax.cluster.disaggregation import has_pools
from blis_jax.cluster.offload_tiers import has_tiers
from blis_jax.cluster.step_times import times_after_decode
from blis_jax.core.outcome import WHOLE
from blis_jax.engine.loop import ranks_of_parts
from blis_jax.engine.mechanism import mechanism, params
from blis_jax.engine.phases.policy_calls import QueueValues, orders_by_slots, queue_values
from blis_jax.policies.contract import Policies
from blis_jax.policies.seeds import policy_seed
from blis_jax.records.record import RunRecord, Status
from blis_jax.runs.driver import Runner
from blis_jax.runs.options import Options
from blis_jax.runs.runs import GivenRun, Row
from blis_jax.workload.reference.follow_up_table import (
    NO_PARENT,
    ClosedLoop,
    closed_loop_table,
    ids_of,
)
from blis_jax.workload.reference.generate import DrawnWorkload, generated
from blis_jax.workload.reference.requests import NO_DEADLINE, DrawnRequest
from blis_jax.workload.table import (
    NEVER_US,
    RequestTable,
    WorkloadNames,
    with_models,
    with_targets,
    with_timeouts,
)

if TYPE_CHECKING:
    from jaxtyping import Int

FIRST_ROUNDS = 16  # of a pool's user, where only the horizon ends them
TOKEN_US = 10_000  # first guess of the time that an output token takes


@dataclass(frozen=True)
class ClosedLoopRun:
    """A run whose sessions sent their next rounds as earlier ones completed."""

    record: RunRecord  # its requests are those that arrived, by arrival
    loop: ClosedLoop
    rows: Int[np.ndarray, " request"]  # of `loop.table`, one for each request of the record
    table: RequestTable  # the requests of the record
    # requests that completions had brought, this one included
    num_created: Int[np.ndarray, " request"]
    num_passes: int

    def arrived(self) -> list[DrawnRequest]:
        """Return the requests of the record with their contents, their arrivals and their deadlines, in µs."""
        requests = []
        for row, arrival_us in zip(self.rows.tolist(), self.table.arrival_us.tolist(), strict=True):
            timeout_us = int(self.loop.timeout_us[row])
            deadline_us = arrival_us + timeout_us if timeout_us else NO_DEADLINE
            request = self.loop.requests[row]
            requests.append(request._replace(arrival_us=arrival_us, deadline_us=deadline_us))
        return requests

    def request_ids(self) -> list[str]:
        """Return BLIS's ids: `session_S_round_R_N` for requests created by completions, else `request_N`."""
        ids = []
        num_given = 0
        for request, created in zip(self.arrived(), self.num_created.tolist(), strict=True):
            if created:
                ids.append(f"session_{request.session}_round_{request.round_index}_{created}")
            else:
                number = num_given if request.number is None else request.number
                ids.append(f"request_{number}")
                num_given += 1
        return ids


def simulate_closed_loop(
    config: ClusterConfig,
    workload: DrawnWorkload,
    options: Options | None = None,
    seed: int = 0,
    policies: Policies | None = None,
    gives_up: bool = False,
) -> ClosedLoopRun:
    """Simulate one cluster on a workload with closed-loop sessions.

    Each pass costs a run; there are about as many passes as rounds in the longest session. Requests that complete in
    one step send their next rounds in the order in which they joined the batch, in one step the scheduler's order.
    Schedulers with memory, random draws or views of caches count as fcfs in that order.

    Args:
        config: the cluster, and names of its policies.
        workload: the result of `blis_jax.workload.reference.drawn`.
        options: how to run.
        seed: the seed of random policies.
        policies: policies to use in place of those that the configuration names.
        gives_up: whether requests are given up at their deadlines.

    Returns:
        The run, with the rows of the sessions' table that are its requests. If a pass neither completes nor reaches its
        horizon, the run has the record of that pass, whose `outcome` says why.

    Raises:
        ConfigError: a policy, a number or a table cannot be used.
    """
    options = options or Options()
    is_endless = any(math.isinf(session.num_rounds) for session in workload.sessions.values())
    most_rounds = FIRST_ROUNDS if is_endless and math.isinf(workload.budget) else None
    answers: dict[tuple[str, int], int] = {}
    while True:
        loop = closed_loop_table(workload, config.block_size_in_tokens, most_rounds, answers)
        loop = dataclasses.replace(loop, table=placed(config, loop.table, loop.names))
        if gives_up:
            table = with_timeouts(loop.table, loop.timeout_us)
            loop = dataclasses.replace(loop, table=table)
        batches = _batches_of(config, loop, policies)
        run = _settled(config, loop, options, policy_seed(seed), policies, batches)
        other = _other_answers(run, answers)
        if other:
            answers |= other
        elif not _runs_out(run, batches):
            return run
        else:
            most_rounds = 2 * (1 + int(np.max(loop.table.round_index)))  # the table was too short


def follow(
    config: ClusterConfig, loop: ClosedLoop, options: Options | None = None, seed: int = 0
) -> ClosedLoopRun:
    """Simulate one cluster on a complete table of sessions; otherwise like `simulate_closed_loop`.

    Raises:
        ConfigError: a policy, a number or a table cannot be used.
    """
    loop = dataclasses.replace(loop, table=placed(config, loop.table, loop.names))
    batches = _batches_of(config, loop, None)
    return _settled(config, loop, options or Options(), policy_seed(seed), None, batches)


def placed(config: ClusterConfig, table: RequestTable, names: WorkloadNames) -> RequestTable:
    """Add to the table the models, adapters and TTFT targets of requests, if the cluster uses them.

    Raises:
        ConfigError: a request names an adapter that the cluster does not have for it.
    """
    table = with_models(table, names.models, config.serves)
    table = with_adapters(table, config, names.adapters, names.models)
    return with_targets(table, names.slo_target_us) if config.goes_by_targets else table


def _settled(
    config: ClusterConfig,
    loop: ClosedLoop,
    options: Options,
    policy_seed: int,
    policies: Policies | None,
    batches: _Batches,
) -> ClosedLoopRun:
    """Repeat the run with the arrivals that follow from the last pass, until they no longer change."""
    runner, arrivals, num_passes = Runner(options, num_rows=1), _guessed(loop), 0
    with progress.phase("following the sessions"):
        while True:
            order = np.lexsort((arrivals.rank, arrivals.time_us))
            order = order[: int(np.sum(arrivals.time_us != NEVER_US))]
            table = _table(loop, arrivals.time_us, order)
            texts = None if batches.texts is None else batches.texts[:, order]
            row = Row(config, table, policy_seed, policies, texts)
            record = runner.alone(GivenRun(row, options))
            num_passes += 1
            after = _following(loop, *_completions(record, order, loop, batches))
            is_settled = record.outcome not in WHOLE or after == arrivals
            if is_settled:
                num_given = int(np.sum(loop.parent == NO_PARENT))
                num_created = np.maximum(arrivals.rank[order] - num_given + 1, 0)
                return ClosedLoopRun(record, loop, order, table, num_created, num_passes)
            arrivals = after


@dataclass(frozen=True)
class _Batches:
    """The inputs that determine the order of completions in one step."""

    values: QueueValues | None  # None: requests are scheduled in order of their rows
    texts: Int[np.ndarray, "part request"] | None  # `Order.part_texts`, where they count
    after_decode_us: Int[np.ndarray, " instance"]
    waits_for_output: bool  # users send again after E2E; in BLIS, after their last step


def _batches_of(config: ClusterConfig, loop: ClosedLoop, policies: Policies | None) -> _Batches:
    functions, table = mechanism(config, policies), loop.table
    values = None
    if orders_by_slots(functions):
        values = queue_values(params(config, None, 0, policies), functions, table)
    texts, after_decode_us = None, np.zeros(0, np.int64)
    if has_pools(config) or has_tiers(config):
        texts = ranks_of_parts(ids_of(loop.requests, loop.parent != NO_PARENT))
    if has_pools(config):
        after_decode_us = np.array(times_after_decode(config), np.int64)
    return _Batches(values, texts, after_decode_us, config.corrected)


def _other_answers(
    run: ClosedLoopRun, known: dict[tuple[str, int], int]
) -> dict[tuple[str, int], int]:
    """Return the output tokens, by session and round, of requests whose next prompt assumed another number of them."""
    loop, requests = run.loop, run.record.requests
    if run.record.outcome not in WHOLE:
        return {}
    followed = set(loop.parent[run.rows].tolist())
    answers = {}
    for at, row in enumerate(run.rows.tolist()):
        request = loop.requests[row]
        if row in followed and loop.is_growing[row]:
            place = request.session, request.round_index
            count = int(requests.progress_index[at] - requests.input_len[at])
            if count != known.get(place, generated(request)):
                answers[place] = count
    return answers


@dataclass(frozen=True, eq=False)
class _Arrivals:
    """The arrival times of a table's rows, and the order of rows that arrive in the same microsecond."""

    time_us: Int[np.ndarray, " request"]  # NEVER_US for those that do not
    rank: Int[np.ndarray, " request"]  # of their creation

    def __eq__(self, other: object) -> bool:
        return (
            isinstance(other, _Arrivals)
            and np.array_equal(self.time_us, other.time_us)
            and np.array_equal(self.rank, other.rank)
        )


def _guessed(loop: ClosedLoop) -> _Arrivals:
    """Guess arrivals from output lengths; with all rows present, passes share a compiled program."""
    done_us = np.asarray(loop.table.arrival_us, np.int64).copy()
    service_us = TOKEN_US * np.asarray(loop.table.output_len, np.int64)
    for row, parent in enumerate(loop.parent.tolist()):  # parents come first
        if parent != NO_PARENT:
            done_us[row] = done_us[parent] + loop.think_time_us[row]
        done_us[row] += service_us[row]
    return _following(loop, done_us, np.argsort(np.argsort(done_us, kind="stable")))


def _following(
    loop: ClosedLoop,
    completed_us: Int[np.ndarray, " request"],
    turn: Int[np.ndarray, " request"],
) -> _Arrivals:
    """Return the arrivals that follow from completions at `completed_us` (-1: never), ordered by `turn`."""
    num_rows = loop.table.num_rows
    time_us, rank = np.asarray(loop.table.arrival_us, np.int64).copy(), np.arange(num_rows)
    children = np.flatnonzero(loop.parent != NO_PARENT)
    parents = loop.parent[children]
    arrives_us = completed_us[parents] + loop.think_time_us[children]
    is_next = (completed_us[parents] >= 0) & (arrives_us <= loop.horizon_us)
    by_turn = np.flatnonzero(is_next)[np.argsort(turn[parents[is_next]], kind="stable")]
    by_turn = by_turn[: loop.budget]
    time_us[children[by_turn]] = arrives_us[by_turn]
    num_given = num_rows - len(children)
    rank[children] = num_rows
    rank[children[by_turn]] = num_given + np.arange(len(by_turn))
    return _Arrivals(time_us, rank)


def _completions(
    record: RunRecord,
    order: Int[np.ndarray, " arrived"],
    loop: ClosedLoop,
    batches: _Batches,
) -> tuple[Int[np.ndarray, " request"], Int[np.ndarray, " request"]]:
    """Return when each row completed, µs (−1: never), and its place in the order of completions.

    BLIS completes requests when their last step starts, instance by instance in one microsecond.
    """
    requests, num_rows = record.requests, loop.table.num_rows
    completed_us, turn = np.full(num_rows, -1, np.int64), np.zeros(num_rows, np.int64)
    is_done = np.asarray(requests.status) == Status.COMPLETED
    done = np.flatnonzero(is_done)
    starts_us = _last_step_starts(record, done)
    scheduled_us = (requests.arrival_us + requests.sched_delay_us)[done]
    instance = requests.instance[done]
    heard_us, is_split = requests.left_us[done], np.zeros(len(done), bool)
    keys = [done]
    if batches.values is not None:  # equal ones by arrival, then by id
        arrival_us, queued_us = requests.arrival_us[done], requests.queued_at_us[done]
        value = batches.values(order[done], np.stack([arrival_us, queued_us, scheduled_us]))
        keys = [loop.id_rank[order[done]], arrival_us, value]
    if batches.texts is not None and record.splits is not None:
        # the cluster hears of decode parts when their last step starts, and counts the time after decode; after all of
        # the step, in the order of their ids
        is_split = record.splits.is_split[done]
        heard_us = np.where(is_split, starts_us + batches.after_decode_us[instance], heard_us)
        scheduled_us = np.where(is_split, batches.texts[2][order[done]], scheduled_us)
    by_event = done[np.lexsort((*keys, scheduled_us, is_split, instance, starts_us))]
    if batches.waits_for_output:
        heard_us = np.maximum(heard_us, (requests.arrival_us + requests.e2e_us)[done])
    completed_us[order[done]] = heard_us
    turn[order[by_event]] = np.arange(len(by_event))
    return completed_us, turn


def _last_step_starts(
    record: RunRecord, rows: Int[np.ndarray, " done"]
) -> Int[np.ndarray, " done"]:
    """Return the start, µs, of the step in which each of these requests completed."""
    steps, requests = record.steps, record.requests
    span = int(np.max(steps.last_index, initial=0)) + 1
    place = np.asarray(steps.instance, np.int64) * span + steps.last_index
    by_place = np.argsort(place, kind="stable")
    wanted = requests.instance[rows].astype(np.int64) * span + requests.finished_step_idx[rows]
    latest_step = by_place[np.searchsorted(place[by_place], wanted)]
    return np.asarray(requests.left_us[rows], np.int64) - steps.duration_us[latest_step]


def _table(
    loop: ClosedLoop, time_us: Int[np.ndarray, " request"], order: Int[np.ndarray, " arrived"]
) -> RequestTable:
    """Return the table of the rows in `order`, with these arrival times."""
    columns = {
        field.name: np.asarray(getattr(loop.table, field.name))[order]
        for field in dataclasses.fields(loop.table)
        if not field.name.startswith("node_")
    }
    tie_rank = np.empty(len(order), np.int32)
    by_id = np.lexsort((loop.id_rank[order], time_us[order]))
    tie_rank[by_id] = np.arange(len(order), dtype=np.int32)
    return dataclasses.replace(
        loop.table, **(columns | {"arrival_us": time_us[order], "tie_rank": tie_rank})
    )


def _runs_out(run: ClosedLoopRun, batches: _Batches) -> bool:
    """Return whether a session would have sent a round beyond those in the table."""
    loop, record = run.loop, run.record
    if record.outcome not in WHOLE:
        return False
    completed_us, turn = _completions(record, run.rows, loop, batches)
    ended = turn[loop.is_cut & (completed_us >= 0)]
    followed = run.rows[loop.parent[run.rows] != NO_PARENT]
    if len(followed) < loop.budget:
        return len(ended) > 0
    return bool(np.any(ended < np.max(turn[loop.parent[followed]], initial=-1)))
