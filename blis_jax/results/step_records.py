"""What the compressed step records say: every single step, and the inter-token latencies."""

from __future__ import annotations

from typing import TYPE_CHECKING, NamedTuple

import numpy as np

from blis_jax.metrics.distributions import Sample, weighted_sample
from blis_jax.results.records import NO_EVICTION, RequestRecords, RunRecord, Status

if TYPE_CHECKING:
    from jaxtyping import Int


class Steps(NamedTuple):
    """One entry per step, by instance, then by execution; names and dtypes of the golden data."""

    step_instance: Int[np.ndarray, "step"]
    step_start_us: Int[np.ndarray, "step"]
    step_duration_us: Int[np.ndarray, "step"]
    step_running: Int[np.ndarray, "step"]
    step_waiting: Int[np.ndarray, "step"]
    step_used_blocks: Int[np.ndarray, "step"]


class Overlaps(NamedTuple):
    """Irregular steps of a run."""

    overlapping_steps: int  # start before an earlier step of their instance has ended
    steps_with_same_start: int  # start with the step before them


def itl_sample(record: RunRecord, instance: int | None = None) -> Sample:
    """Every inter-token latency of every completed request, in µs, of one instance or of all.

    Its cost depends on the number of records, not of tokens.
    """
    return weighted_sample(*itl_values(record, instance))


def itl_values(record: RunRecord, instance: int | None = None) -> tuple[np.ndarray, np.ndarray]:
    """Return the latencies, µs, and how often each occurs, as `itl_sample` has them."""
    steps = record.steps
    values = steps.duration_us + record.instances.output_time_us[steps.instance]
    weights = completed_itl_counts(record)
    evictions = record.preemptions
    is_of = evictions.instance >= 0
    if instance is not None:
        weights = np.where(steps.instance == instance, weights, 0)
        is_of = evictions.instance == instance
    if evictions.gap_us is not None:
        is_done = record.requests.status[evictions.request] == Status.COMPLETED
        if evictions.is_lost is not None:
            is_done = is_done & ~evictions.is_lost
        long = evictions.gap_us + record.instances.output_time_us[evictions.instance]
        values = np.concatenate([values, long])
        weights = np.concatenate([weights, is_of & is_done & (evictions.gap_us >= 0)])
    handed = record.requests.handed_gap_us
    if handed is not None:  # on the instance that it was handed to
        is_here = handed >= 0
        if instance is not None:
            is_here = is_here & (record.requests.instance == instance)
        values, weights = np.concatenate([values, handed]), np.concatenate([weights, is_here])
    return values, weights


def completed_itl_counts(record: RunRecord) -> Int[np.ndarray, "record"]:
    """How many latencies of completed requests each record holds; those over preemptions and transfers are in none.

    A request in decode records one in every step of its instance after its first token, up to the end of
    the run or to the step before the one that evicts it; those of unfinished requests are taken off.
    """
    steps = record.steps
    if steps.num_completed_itl is not None:
        return steps.num_completed_itl
    counts = steps.num_itl.astype(np.int64)
    if not len(counts):
        return counts
    span = int(steps.last_index.max()) + 2
    start = steps.instance.astype(np.int64) * span
    last = start + steps.last_index
    before = last - steps.num_steps  # the step before the record's first
    began, ended = _unfinished_decodes(record, span, before)
    for places, sign in ((began, -1), (ended, 1)):
        counts += sign * (_ramp(places, start, last) - _ramp(places, start, before))
    return counts


def _unfinished_decodes(
    record: RunRecord, span: int, before: Int[np.ndarray, "record"]
) -> tuple[Int[np.ndarray, "decode"], Int[np.ndarray, "eviction"]]:
    """Ascending places `instance·span + step` of the steps before the first and of the last ITL.

    Of every decode of an unfinished request; one that goes on has no last. An eviction happens in the first
    step of its record.
    """
    requests, evictions = record.requests, record.preemptions
    gave_up = _ended_steps(requests) > 0
    goes_on = ((requests.status == Status.RUNNING) | gave_up) & (requests.token_step_idx >= 0)
    # a request that came with its KV records a latency in the very step that it joins
    joined = (requests.hand_overs > 0) & (requests.token_step_idx == requests.scheduled_step_idx)
    is_here = evictions.instance == requests.instance[evictions.request]
    joined[evictions.request[is_here]] = False  # it made its prompt again here
    token = requests.token_step_idx - joined
    current = requests.instance[goes_on].astype(np.int64) * span + token[goes_on]
    is_unfinished = requests.status[evictions.request] != Status.COMPLETED
    if evictions.is_forgotten is not None:
        is_unfinished = is_unfinished | evictions.is_forgotten
    ended = before[evictions.step_record[is_unfinished]]
    began = ended - evictions.num_itl[is_unfinished]
    left = goes_on & gave_up
    gone = requests.instance[left].astype(np.int64) * span + _ended_steps(requests)[left]
    return np.sort(np.concatenate([current, began])), np.sort(np.concatenate([ended, gone]))


def _ended_steps(requests: RequestRecords) -> Int[np.ndarray, "request"]:
    """Step after which each request left the batch early, 0: it did not."""
    none = np.zeros_like(requests.token_step_idx)
    return none if requests.ended_step_idx is None else requests.ended_step_idx


def _ramp(
    places: Int[np.ndarray, "decode"],
    start: Int[np.ndarray, "record"],
    at: Int[np.ndarray, "record"],
) -> Int[np.ndarray, "record"]:
    """Σ (at - place) over the places in [start, at); they ascend."""
    sums = np.concatenate([[0], np.cumsum(places)])
    first, end = np.searchsorted(places, start), np.searchsorted(places, at)
    return (end - first) * at - (sums[end] - sums[first])


def order_of_execution(record: RunRecord) -> Int[np.ndarray, "record"]:
    """The order that puts the records by instance, then by execution."""
    return np.lexsort((record.steps.last_index, record.steps.instance))


def overlaps(record: RunRecord) -> Overlaps:
    """Counts steps that start early; steps inside one record follow each other without a gap."""
    steps = record.steps
    order = order_of_execution(record)
    instance = steps.instance[order].astype(np.int64)
    start = steps.start_us[order].astype(np.int64)
    if not len(start):
        return Overlaps(0, 0)
    last_start = start + (steps.num_steps[order].astype(np.int64) - 1) * steps.duration_us[order]
    end = last_start + steps.duration_us[order]
    offset = instance * (int(end.max()) + 1)
    latest_end = np.maximum.accumulate(end + offset) - offset
    is_same_instance = instance[1:] == instance[:-1]
    return Overlaps(
        int(np.count_nonzero(is_same_instance & (start[1:] < latest_end[:-1]))),
        int(np.count_nonzero(is_same_instance & (start[1:] == last_start[:-1]))),
    )


def expand_steps(record: RunRecord, block_size: int) -> Steps:
    """Every step of a run.

    Without eviction, used blocks inside a record are worked back from its last step, one block less for
    each request that filled one since. At block level they are the same in all steps of a record.
    """
    order = order_of_execution(record)
    steps = record.steps
    num_steps = steps.num_steps[order].astype(np.int64)
    ends = np.cumsum(num_steps)
    row = np.repeat(np.arange(len(order)), num_steps)
    position = np.arange(len(row)) - np.repeat(ends - num_steps, num_steps)
    duration = steps.duration_us[order][row]
    used = steps.used_blocks[order][row]
    if len(row) > len(order) and record.kv_model == NO_EVICTION:
        index = (steps.last_index[order] - num_steps + 1)[row] + position
        growth = np.cumsum(_blocks_taken(record, steps.instance[order][row], index, block_size))
        used = used - (growth[ends[row] - 1] - growth)
    return Steps(
        step_instance=steps.instance[order][row].astype(np.int16),
        step_start_us=(steps.start_us[order][row] + position * duration).astype(np.int64),
        step_duration_us=_narrowed(duration),
        step_running=steps.running[order][row].astype(np.int32),
        step_waiting=steps.waiting[order][row].astype(np.int32),
        step_used_blocks=used.astype(np.int32),
    )


def _narrowed(values: Int[np.ndarray, "step"]) -> Int[np.ndarray, "step"]:
    """The golden data's 32 bits, unless they are too few."""
    fits = values.max(initial=0) <= np.iinfo(np.int32).max
    return values.astype(np.int32 if fits else np.int64)


def _blocks_taken(
    record: RunRecord,
    step_instance: Int[np.ndarray, "step"],
    step_index: Int[np.ndarray, "step"],
    block_size: int,
) -> Int[np.ndarray, "step"]:
    """How many decoding requests take a new block in each step.

    A request with its first token in step f holds `held + n - f` tokens after step n. A prompt
    found entirely in the cache is not held by its request, which then starts from none.
    """
    requests = record.requests
    has_token = requests.token_step_idx >= 0
    instance = requests.instance[has_token].astype(np.int64)
    token_step = requests.token_step_idx[has_token].astype(np.int64)
    if record.splits is not None:  # the step that takes it into the batch stores a token, too
        joins = (requests.hand_overs > 0) & (requests.token_step_idx == requests.scheduled_step_idx)
        token_step = token_step - joins[has_token]
    finished_step = requests.finished_step_idx[has_token].astype(np.int64)
    input_len = requests.input_len[has_token].astype(np.int64)
    is_all_cached = requests.cached_tokens_first_sched[has_token] == input_len
    if record.splits is not None:  # found where the prompt was computed, and held here all the same
        is_all_cached = is_all_cached & ~joins[has_token]
    held = np.where(is_all_cached, 0, input_len)
    ended_step = _ended_steps(requests)[has_token]
    last_step = np.where(ended_step > 0, ended_step, step_index.max())
    last_step = np.where(finished_step > 0, finished_step, last_step)
    first = token_step + 1 + (-held) % block_size
    count = np.maximum((last_step - first) // block_size + 1, 0)
    ordinal = np.arange(count.sum()) - np.repeat(np.cumsum(count) - count, count)
    taken_at = np.repeat(first, count) + ordinal * block_size
    span = int(max(step_index.max(), last_step.max(initial=0))) + 2
    key_of_step = step_instance.astype(np.int64) * span + step_index
    key_taken = np.repeat(instance, count) * span + taken_at
    found = np.searchsorted(key_of_step, key_taken)
    found = np.minimum(found, len(key_of_step) - 1)
    is_step = key_of_step[found] == key_taken
    return np.bincount(found[is_step], minlength=len(key_of_step))
