"""Build a run's records from its `Observation`: a `RunRecord` on the host, its tables in a compiled call too."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np

from blis_jax.core.arrays import maxima, sums
from blis_jax.core.views import AfterDecode
from blis_jax.records import latencies, stays
from blis_jax.records.latencies import latency_sums, num_resumed
from blis_jax.records.record import (
    BLOCK_LEVEL,
    NO_EVICTION,
    AdapterRecords,
    DraftRecords,
    InstanceRecords,
    OffloadRecords,
    PreemptionRecords,
    RequestRecords,
    RunRecord,
    Status,
    StepRecords,
)
from blis_jax.records.splits import (
    SplitRecords,
    after_moves,
    answer_lens,
    has_moved,
    last_position,
    split_records,
    with_parts,
)
from blis_jax.records.stays import Timeouts, orphaned_us, paid_us
from blis_jax.tables.adapters import AdapterTable
from blis_jax.tables.blocks import Eviction, Pool
from blis_jax.tables.drafts import DraftTable
from blis_jax.tables.journeys import Downs, Journey, Reservation
from blis_jax.tables.offload import Count, OffloadCounts
from blis_jax.tables.raw import BlockRecords
from blis_jax.tables.state import Dyn, Inst, InstTime, Log, LogTime, Reg

if TYPE_CHECKING:
    from blis_jax.core.arrays import Values
    from blis_jax.records.observation import Observation
    from blis_jax.records.splits import SplitRecords


def run_record(seen: Observation, num_repairs: int = 0) -> RunRecord:
    """Return the whole record of a run."""
    requests, splits = request_records(seen)
    registers = seen.raw.registers
    return RunRecord(
        outcome=seen.outcome(),
        requests=requests,
        steps=step_records(seen),
        instances=instance_records(seen, requests, splits),
        num_iterations=int(registers[Reg.CURSOR]),
        num_open_ties=seen.num_open_ties(),
        num_repairs=num_repairs,
        invariant_failures={"monotone_clock": int(registers[Reg.INVARIANT_FAILURES])},
        preemptions=preemption_records(seen),
        kv_model=BLOCK_LEVEL if BlockRecords in seen.raw else NO_EVICTION,
        is_august=seen.rules.has_order,
        splits=splits,
        adapters=adapter_records(seen),
        offload=offload_records(seen),
        drafts=draft_records(seen),
        figures={name: float(figure) for name, figure in seen.raw.figures.items()},
    )


def adapter_records(seen: Observation) -> AdapterRecords | None:
    """Return the loads of adapters; None if no adapter is ever loaded."""
    if AdapterTable not in seen.raw:
        return None
    table, rows = seen.raw[AdapterTable], seen.num_instances
    return AdapterRecords(
        *(
            seen.xp.asarray(counts)[:rows].astype(np.int64)
            for counts in (table.num_loads, table.num_evictions)
        )
    )


def offload_records(seen: Observation) -> OffloadRecords | None:
    """Return the counts of the off-load tiers; None without tiers."""
    if OffloadCounts not in seen.raw:
        return None
    counts = seen.xp.asarray(seen.raw[OffloadCounts].of)[: seen.num_instances].astype(np.int64)
    of = (
        *(Count.FETCHES, Count.REFUSALS, Count.DEFERRALS),
        *(Count.SKIPS, Count.EVICTIONS, Count.JOBS),
    )
    return OffloadRecords(*(counts[:, what] for what in of))


def draft_records(seen: Observation) -> DraftRecords | None:
    """Return the counts of drafted tokens; None if nothing is drafted."""
    if DraftTable not in seen.raw:
        return None
    table, rows = seen.raw[DraftTable], seen.num_instances
    counts = (table.num_drafts, table.num_draft_tokens, table.num_accepted_tokens)
    return DraftRecords(*(seen.xp.asarray(count)[:rows].astype(np.int64) for count in counts))


def request_records(seen: Observation) -> tuple[RequestRecords, SplitRecords | None]:
    """Return the records of requests, and those of split requests' parts; None if the run reserves no KV."""
    columns, splits = _columns(seen), None
    if Reservation in seen:
        splits = split_records(seen, seen.status, columns)
        columns = with_parts(seen, columns, splits)
    return RequestRecords(**columns, itl_us=latency_sums(seen, columns, splits)), splits


def _columns(seen: Observation) -> dict[str, Any]:
    """Return the columns of request records, as if no request were split."""
    xp, lives, status = seen.xp, seen.lives, seen.status
    dyn, nothing, is_done = seen.dyn, np.int64(-1), status == int(Status.COMPLETED)
    is_scheduled = stays.times_scheduled(dyn[:, Dyn.NUM_SCHEDULED], xp) > 0
    in_decode, has_token = lives.in_decode, lives.token_record >= 0
    is_queued = seen.is_queued & (status != int(Status.DROPPED))
    scheduled = seen.starts(lives.scheduled_record) - seen.arrival
    first = seen.starts(dyn[:, Dyn.FIRST_RECORD]) - seen.arrival
    token_us = seen.ends(lives.token_record)
    output_time = seen.output_time[xp.maximum(seen.first_instance, 0)]
    cached = dyn[:, Dyn.CACHED_FIRST] * seen.block_size
    ttft = xp.where(has_token, token_us + output_time - seen.arrival, 0)
    cut = answer_lens(seen)
    final = last_position(seen, seen.output_len if cut is None else cut)
    steps = final - dyn[:, Dyn.PROGRESS]
    again = np.int64(seen.defects.double_last_latency)
    index = dyn[:, Dyn.TOKEN_INDEX]
    decoded = seen.index_left_at() - index + lives.num_handed
    progress = dyn[:, Dyn.PROGRESS] + xp.where(in_decode, decoded, 0)
    progress = xp.where(is_done, final, xp.where(lives.in_batch, progress, 0))
    num_itl = xp.where(is_done, steps + again, xp.where(in_decode, decoded, 0))
    columns = dict(
        arrival_us=seen.arrival,
        input_len=seen.input_len,
        output_len=seen.output_len,
        answer_len=cut,
        slo_class=seen.slo_class,
        tenant=seen.tenant,
        admitted=_admitted(seen),
        instance=seen.instance,
        status=status,
        queued_at_us=xp.where(is_queued, seen.queued_us, nothing),
        sched_delay_us=xp.where(is_scheduled, scheduled, nothing),
        first_sched_delay_us=xp.where(is_scheduled, first, nothing),
        ttft_us=xp.where(has_token, ttft, nothing),
        e2e_us=xp.where(is_done, _e2e(seen, ttft, steps, output_time), nothing),
        left_us=xp.where(is_done, seen.last_steps[1], nothing),
        preemptions=lives.num_preempted,
        num_scheduled=lives.num_scheduled,
        cached_tokens_first_sched=xp.where(is_scheduled, cached, nothing),
        expected_cached_tokens=xp.where(
            seen.is_routed, seen.raw.expected[: seen.num_requests] * seen.block_size, nothing
        ),
        scheduled_step_idx=xp.where(is_scheduled, dyn[:, Dyn.SCHEDULED_INDEX], 0),
        finished_step_idx=xp.where(is_done, index + steps - lives.num_handed, 0),
        token_step_idx=xp.where(in_decode | is_done, index, nothing),
        num_itl=num_itl + _earlier_itl(seen),
        progress_index=xp.where(is_scheduled, progress, 0),
        ttft_parts_us=seen.first_token_parts(has_token, token_us, output_time),
        **seen.columns,
        **after_moves(seen),
    )
    columns["handed_gap_us"] = latencies.over_transfers(seen, columns, steps, output_time)
    return columns


def _e2e(seen: Observation, ttft: np.ndarray, steps: Values, output_time: np.ndarray) -> np.ndarray:
    """Return the E2E of completed requests, µs, junk for others; `steps` counts steps after the last first token."""
    xp, lives = seen.xp, seen.lives
    last, left, total = seen.last_steps
    earlier = lives.past_itl_us + lives.past_num_itl * output_time
    again = np.int64(seen.defects.double_last_latency) * (last + output_time)
    e2e = ttft + earlier + total + steps * output_time + again
    if AfterDecode in seen.cluster:
        after = xp.asarray(seen.cluster[AfterDecode].us)[xp.maximum(seen.instance, 0)]
        e2e = e2e + xp.where(seen.output_len > 0, after, 0) - lives.passed_over_us
    if Journey in seen and Reservation not in seen:  # else see `with_parts`
        # steps on two instances, or attempts that count no more
        whole = left - seen.arrival + output_time * (1 + steps) + again
        e2e = xp.where(has_moved(seen[Journey]), whole, e2e)
    if seen.keeps_output:
        is_resumed, num_tokens = lives.num_preempted > 0, xp.maximum(seen.output_len, 1)
        if "accepted_tokens" in seen.columns:  # output of one step is handed out at once
            num_tokens = num_tokens - seen.columns["accepted_tokens"]
        whole = left - seen.arrival + output_time * num_tokens
        e2e = xp.where(is_resumed, whole, e2e)
    return e2e


def _earlier_itl(seen: Observation) -> np.ndarray:
    """Return how many inter-token latencies each request has in lives ended by a preemption, or spanning one."""
    if not seen.keeps_output:
        return seen.lives.past_num_itl
    return seen.lives.past_num_itl + num_resumed(seen, seen.gaps_us)


def _admitted(seen: Observation) -> np.ndarray:
    is_decided = seen.xp.arange(seen.num_requests) < seen.raw.registers[Reg.NEXT_ADMIT]
    return seen.xp.where(seen.is_rejected, 0, seen.xp.where(is_decided, 1, -1)).astype(np.int64)


def step_records(seen: Observation) -> StepRecords:
    """Return step records in order of execution."""
    log, time = seen.log, seen.log_time
    steps, done = log[:, Log.NUM_STEPS], log[:, Log.NUM_COMPLETED]
    return StepRecords(
        instance=log[:, Log.INSTANCE],
        start_us=time[:, LogTime.START],
        duration_us=time[:, LogTime.DURATION],
        num_steps=steps,
        last_index=log[:, Log.LAST_INDEX],
        running=log[:, Log.RUNNING],
        waiting=log[:, Log.WAITING],
        used_blocks=log[:, Log.USED_BLOCKS],
        sum_used_blocks=log[:, Log.SUM_USED_BLOCKS],
        num_itl=log[:, Log.NUM_DECODE] * steps + done * seen.defects.double_last_latency,
        num_completed=done,
        num_completed_itl=latencies.counts_of_completed(seen),
    )


def preemption_records(seen: Observation) -> PreemptionRecords:
    """Return the records of all preemptions."""
    lives = seen.lives
    request = lives.evictions[:, Eviction.REQUEST]
    record = lives.evictions[:, Eviction.RECORD]
    time_us = seen.log_time[seen.in_log(record), LogTime.START] if len(seen.log) else record
    where = evicted_on(seen)
    gaps = seen.gaps_us if seen.keeps_output else None
    kept = lives.num_itl, lives.is_forgotten, gaps, latencies.lost_lives(seen)
    return PreemptionRecords(request, where, time_us, record, *kept)


# --- totals of each instance ----------------------------------------------------------------------


def _ended(seen: Observation, requests: RequestRecords, splits: SplitRecords | None) -> np.ndarray:
    """Return the time of the latest executed event of every instance, no-op departures included."""
    xp, rows = seen.xp, seen.num_instances
    is_arrived = seen.is_routed & (seen.routed_us <= seen.horizon)
    has_left = (requests.left_us >= 0) & (requests.left_us <= seen.horizon)
    latest = xp.where(is_arrived, seen.routed_us, 0)
    latest = xp.maximum(latest, xp.where(seen.is_queued, seen.queued_us, 0))
    left = xp.where(has_left, requests.left_us, 0)
    on_first = 0
    if splits is None:
        latest = xp.maximum(latest, left)
    else:  # each part leaves an instance of its own
        ends = splits.prefill_left_us
        ends = xp.where((ends >= 0) & (ends <= seen.horizon), ends, 0)
        on_first = maxima(seen.first_instance, xp.maximum(latest, ends), rows)
        latest = left
    if Timeouts in seen:
        is_late = requests.status == Status.TIMED_OUT
        gives_up = seen.arrival + seen[Timeouts].timeout_us
        latest = xp.maximum(latest, xp.where(is_late, gives_up, 0))
        # a part that comes too late is given up in a step of its own
        if splits is not None:
            due = seen[Reservation].ends
            has_come = is_late & (splits.transfer_at_us >= 0) & (due <= seen.horizon)
            latest = xp.maximum(latest, xp.where(has_come, due, 0))
    has_stepped = seen.last_index()[:rows] > 0
    last = seen.raw.inst_time[InstTime.LAST_START, :rows].astype(seen.time_type)
    last = xp.maximum(last, orphaned_us(seen.raw, rows, seen.time_type, xp))
    latest = xp.maximum(maxima(seen.instance, latest, rows), on_first)
    return xp.maximum(latest, xp.where(has_stepped, last, 0))


def instance_records(
    seen: Observation, requests: RequestRecords, splits: SplitRecords | None
) -> InstanceRecords:
    """Return the totals of each instance; `splits` are the parts of split requests, None if the run reserves no KV."""
    rows, log, xp, lives = seen.num_instances, seen.log, seen.xp, seen.lives
    inst = xp.asarray(seen.raw.inst)[:, :rows].astype(np.int64)
    at, steps = log[:, Log.INSTANCE], log[:, Log.NUM_STEPS]

    def counted(status: Status) -> np.ndarray:
        return sums(seen.instance, requests.status == int(status), rows)

    is_entered = (requests.queued_at_us >= 0) & (requests.status != int(Status.DROPPED))
    # one that is dropped may have been served elsewhere
    is_entered = is_entered | (requests.hand_overs > 0) | (requests.restarts > 0)
    prompts_on, dropped = seen.instance, inst[Inst.NUM_DROPPED]
    if Reservation in seen:
        reserved = seen[Reservation]
        is_entered = is_entered | (reserved.is_dropped == 1)
        prompts_on = seen.first_instance
        dropped = dropped + sums(reserved.target, reserved.is_dropped, rows)
    none = np.zeros(rows, np.int64)
    moved = Downs in seen.raw
    downs = (seen.raw[Downs].count, seen.raw[Downs].later) if moved else (none, none)
    block_time = log[:, Log.SUM_USED_BLOCKS].astype(np.float64)
    block_time = block_time * seen.log_time[:, LogTime.DURATION]
    evicted, ended = evicted_on(seen), _ended(seen, requests, splits)
    return InstanceRecords(
        completed_requests=counted(Status.COMPLETED),
        dropped_unservable=dropped,
        lost_requests=counted(Status.LOST),
        times_down=xp.asarray(downs[0])[:rows].astype(np.int64),
        scale_downs=xp.asarray(downs[1])[:rows].astype(np.int64),
        paid_us=paid_us(seen.raw, seen.cluster, ended, xp),
        still_queued=counted(Status.WAITING),
        still_running=counted(Status.RUNNING),
        total_input_tokens=sums(prompts_on, xp.where(is_entered, seen.input_len, 0), rows),
        total_output_tokens=_output_tokens(seen, requests),
        gpu_hits=inst[Inst.HITS],
        gpu_misses=inst[Inst.MISSES],
        used_blocks_at_end=inst[Inst.USED_BLOCKS],
        peak_kv_blocks_used=maxima(at, log[:, Log.USED_BLOCKS], rows),
        kv_blocks_used_integral=sums(at, block_time, rows),
        step_count=inst[Inst.STEP_INDEX],
        waiting_sum=sums(at, log[:, Log.WAITING] * steps, rows),
        sim_ended_time_us=ended,
        output_time_us=seen.output_time[:rows],
        preemption_count=sums(evicted, lives.is_eviction, rows),
        kv_allocation_failures=_pool(seen, Pool.NUM_FAILURES),
        total_kv_blocks=xp.asarray(seen.cluster.total_kv_blocks)[:rows].astype(np.int64),
        ttft_sum_us=_ttft_sum(seen, requests, evicted),
        cpu_offloads=_pool(seen, Pool.OFFLOADS),
        cpu_reloads=_pool(seen, Pool.RELOADS),
        cpu_misses=_pool(seen, Pool.CPU_MISSES),
        cpu_thrashing=_pool(seen, Pool.THRASHING),
        reload_us=_pool(seen, Pool.RELOADS)
        * xp.asarray(seen.cluster.transfer_us)[:rows].astype(np.int64),
    )


def _output_tokens(seen: Observation, requests: RequestRecords) -> np.ndarray:
    """Return the tokens that each instance has made `[instance]`."""
    rows, log, xp = seen.num_instances, seen.log, seen.xp
    made = sums(log[:, Log.INSTANCE], log[:, Log.NUM_DECODE] * log[:, Log.NUM_STEPS], rows)
    if requests.accepted_tokens is not None:
        made = made + sums(seen.instance, requests.accepted_tokens, rows)
    if seen.rules.restarts_preempted:  # all of what completes, and nothing else
        is_done = requests.status == Status.COMPLETED
        made = sums(seen.instance, xp.where(is_done, requests.made_len, 0), rows)
    # tokens in whose step prompt and earlier tokens were computed again
    return made + sums(evicted_on(seen), seen.gaps_us >= 0, rows) if seen.keeps_output else made


def _pool(seen: Observation, column: int) -> np.ndarray:
    """Return a counter of block-level memory for each instance; 0 in a run without eviction."""
    if BlockRecords not in seen.raw:
        return seen.xp.zeros(seen.num_instances, np.int64)
    pool: np.ndarray = seen.xp.asarray(seen.raw[BlockRecords].pool)
    return pool[: seen.num_instances, column].astype(np.int64)


def _of_evicted(seen: Observation, values: Values) -> np.ndarray:
    """Return for each preemption the value of its request; -1 for padding."""
    lives = seen.lives
    request = seen.xp.where(lives.is_eviction, lives.evictions[:, Eviction.REQUEST], 0)
    return seen.xp.where(lives.is_eviction, values[request], -1)


def evicted_on(seen: Observation) -> np.ndarray:
    """Return the instance of each preemption; -1 for padding."""
    if Journey not in seen or not len(seen.log):
        return _of_evicted(seen, seen.instance)
    record = seen.lives.evictions[:, Eviction.RECORD]
    instance = seen.log[seen.xp.clip(record, 0, len(seen.log) - 1), Log.INSTANCE]
    return seen.xp.where(seen.lives.is_eviction, instance, -1)


def _ttft_sum(seen: Observation, requests: RequestRecords, evicted: np.ndarray) -> np.ndarray:
    """Return each instance's sum of all TTFTs recorded, µs, including those of lives that a preemption ended.

    `evicted` is the instance of each preemption.
    """
    xp, rows, evictions = seen.xp, seen.num_instances, seen.lives.evictions
    token = evictions[:, Eviction.FIRST_TOKEN]
    is_token = (token > 0) & (token == evictions[:, Eviction.DECODE_RECORD])
    ends = seen.ends(token - 1)
    past = ends + seen.output_time[xp.maximum(evicted, 0)] - _of_evicted(seen, seen.arrival)
    now = xp.where(seen.lives.is_current_token, requests.ttft_us, 0)
    whole = sums(evicted, xp.where(is_token, past, 0), rows) + sums(seen.instance, now, rows)
    return whole.astype(np.int64)
