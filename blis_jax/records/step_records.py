"""Expand the compressed step records to single steps and inter-token latencies; convert tables to data frames."""

from __future__ import annotations

import dataclasses
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np

from blis_jax.core.arrays import namespace, stable_order, sums
from blis_jax.core.types import CLASS_NAMES
from blis_jax.errors import ConfigError, closest
from blis_jax.lazy import pandas as pd
from blis_jax.records.record import (
    E2E_PARTS,
    NO_EVICTION,
    TTFT_PARTS,
    RequestRecords,
    RunRecord,
    Status,
    e2e_parts_us,
)

if TYPE_CHECKING:
    from jaxtyping import Int

    from blis_jax.core.arrays import Values
    from blis_jax.records.record import RequestRecords, RunRecord


class Steps(NamedTuple):
    """One entry per step, by instance, then by execution; names and dtypes of the golden data."""

    step_instance: Int[np.ndarray, "step"]
    step_start_us: Int[np.ndarray, "step"]
    step_duration_us: Int[np.ndarray, "step"]
    step_running: Int[np.ndarray, "step"]
    step_waiting: Int[np.ndarray, "step"]
    step_used_blocks: Int[np.ndarray, "step"]


class Overlaps(NamedTuple):
    """Counts of steps of a run that start too early."""

    overlapping_steps: int  # start before an earlier step of their instance has ended
    steps_with_same_start: int  # start with the step before them


def itl_values(
    record: RunRecord, instance: int | None = None, counts: np.ndarray | None = None
) -> tuple[np.ndarray, np.ndarray]:
    """Return inter-token latencies of completed requests, µs, and how often each occurs, on one instance or all.

    The time taken depends on the number of records, not of tokens. `counts` are `completed_itl_counts`, if known.
    """
    steps, requests, evictions = record.steps, record.requests, record.preemptions
    xp, output_time = namespace(steps.instance), record.instances.output_time_us
    values = [steps.duration_us + output_time[steps.instance]]
    weights = [completed_itl_counts(record) if counts is None else counts]
    is_of = evictions.instance >= 0
    if instance is not None:
        weights = [xp.where(steps.instance == instance, weights[0], 0)]
        is_of = evictions.instance == instance
    if evictions.gap_us is not None:
        is_it = is_of & (requests.status[evictions.request] == int(Status.COMPLETED))
        is_it = is_it & (evictions.gap_us >= 0)
        if evictions.is_lost is not None:
            is_it = is_it & ~evictions.is_lost
        values.append(evictions.gap_us + output_time[evictions.instance])
        weights.append(is_it)
    handed = requests.handed_gap_us
    if handed is not None:  # on the instance that it was handed to
        is_here = handed >= 0
        values.append(handed)
        weights.append(is_here if instance is None else is_here & (requests.instance == instance))
    if len(values) == 1:
        return values[0], weights[0]
    return xp.concatenate(values), xp.concatenate([each.astype(np.int64) for each in weights])


def completed_itl_counts(record: RunRecord) -> Int[np.ndarray, "record"]:
    """Return how many latencies of completed requests each record holds, without those over preemptions and transfers.

    A request in decode has one latency in every step of its instance after its first token, up to the end of the run or
    the step before its eviction; the latencies of unfinished requests are subtracted.
    """
    steps = record.steps
    if steps.num_completed_itl is not None:
        return steps.num_completed_itl
    counts = steps.num_itl.astype(np.int64)
    if not len(counts):
        return counts
    xp, span = namespace(counts), steps.last_index.max().astype(np.int64) + 2
    start = steps.instance.astype(np.int64) * span
    last = start + steps.last_index
    before = last - steps.num_steps  # the step before the record's first
    places, changes = _unfinished_decodes(record, span, before)
    order = stable_order(places)
    places, changes = places[order], changes[order]
    sums_open = xp.cumsum(xp.stack([changes, changes * places]), axis=1)
    num_open, sum_open = xp.pad(sums_open, ((0, 0), (1, 0)))
    from_start, to_before, to_last = xp.searchsorted(places, xp.stack([start, before, last]))

    def open_until(at: Values, step: Values) -> Values:
        """Return the sum of (step − place) over decodes begun on the instance before `step`, less the ended ones."""
        num = num_open[at] - num_open[from_start]
        return num * step - (sum_open[at] - sum_open[from_start])

    return counts - (open_until(to_last, last) - open_until(to_before, before))


def _unfinished_decodes(
    record: RunRecord, span: Values, before: Int[np.ndarray, "record"]
) -> tuple[Int[np.ndarray, "change"], Int[np.ndarray, "change"]]:
    """Return the keys `instance·span + step` of begins and ends of unfinished requests' decodes, and 1 or -1 for each.

    A decode begins at the step before its first latency and ends at its last one, which a running decode does not have.
    A change of 0 is padding. An eviction happens in the first step of its record.
    """
    requests, evictions = record.requests, record.preemptions
    xp, gave_up = namespace(requests.status), requests.ended_step_idx
    here = requests.instance.astype(np.int64) * span
    goes_on = requests.status == int(Status.RUNNING)
    goes_on = goes_on if gave_up is None else goes_on | (gave_up > 0)
    goes_on = goes_on & (requests.token_step_idx >= 0)
    ended = before[evictions.step_record]
    is_open = requests.status[evictions.request] != int(Status.COMPLETED)
    if evictions.is_forgotten is not None:
        is_open = is_open | evictions.is_forgotten
    is_open = is_open & (evictions.instance >= 0)
    first = requests.token_step_idx - _joined(record)
    pairs = [
        (goes_on, here + first, 1),
        (is_open, ended - evictions.num_itl, 1),
        (is_open, ended, -1),
    ]
    if gave_up is not None:
        pairs.append((goes_on & (gave_up > 0), here + gave_up, -1))
    places = xp.concatenate([xp.where(is_there, place, 0) for is_there, place, _ in pairs])
    changes = xp.concatenate([is_there * np.int64(change) for is_there, _, change in pairs])
    if xp is np:
        places, changes = places[changes != 0], changes[changes != 0]
    return places, changes


def _joined(record: RunRecord) -> Any:
    """Return 1 for each request that came with its KV and records a latency in the very step that it joins."""
    requests, evictions = record.requests, record.preemptions
    if namespace(requests.hand_overs) is np and not requests.hand_overs.any():
        return 0
    joined = (requests.hand_overs > 0) & (requests.token_step_idx == requests.scheduled_step_idx)
    is_here = (evictions.instance >= 0) & (
        evictions.instance == requests.instance[evictions.request]
    )
    request = namespace(is_here).where(is_here, evictions.request, -1)
    return joined & (sums(request, is_here, len(joined)) == 0)  # else it made its prompt again here


def _ended_steps(requests: RequestRecords) -> Int[np.ndarray, "request"]:
    """Return the step after which each request left the batch early; 0 if it did not."""
    none = np.zeros_like(requests.token_step_idx)
    return none if requests.ended_step_idx is None else requests.ended_step_idx


def order_of_execution(record: RunRecord) -> Int[np.ndarray, "record"]:
    """Return the indices that sort the records by instance, then in order of execution."""
    return np.lexsort((record.steps.last_index, record.steps.instance))


def overlaps(record: RunRecord) -> Overlaps:
    """Count steps that start early; steps inside one record follow each other without a gap."""
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
    """Return every single step of a run.

    Without eviction, used blocks inside a record are computed back from its last step: one block less for each request
    that has taken a new block since. With block-level memory they are equal in all steps of a record.
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
    """Return the values as int32, as in the golden data, or as int64 if they do not fit."""
    fits = values.max(initial=0) <= np.iinfo(np.int32).max
    return values.astype(np.int32 if fits else np.int64)


def _blocks_taken(
    record: RunRecord,
    step_instance: Int[np.ndarray, "step"],
    step_index: Int[np.ndarray, "step"],
    block_size: int,
) -> Int[np.ndarray, "step"]:
    """Return how many decoding requests take a new block in each step.

    A request with its first token in step f holds `held + n - f` tokens after step n. `held` is the prompt length, or 0
    if the prompt was found entirely in the cache.
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
    step_of_taken = np.searchsorted(key_of_step, key_taken)
    step_of_taken = np.minimum(step_of_taken, len(key_of_step) - 1)
    is_step = key_of_step[step_of_taken] == key_taken
    return np.bincount(step_of_taken[is_step], minlength=len(key_of_step))


# --- tables of a run as pandas data frames --------------------------------------------------------


TABLES = ("requests", "steps", "instances", "preemptions")
# of these columns -1 says that it never happened
_NUMBERS_OR_NONE = (
    "admitted",
    "instance",
    "scheduled_step_idx",
    "finished_step_idx",
    "token_step_idx",
)


def to_dataframe(record: RunRecord, table: str = "requests") -> pd.DataFrame:
    """Return one table of a run as a data frame; its index is named after a row, such as `request`.

    An event that never happened, -1 in the record, is NaN (times) or `<NA>` (numbers of instances and steps), so that
    means and percentiles leave it out.
    """
    if table not in TABLES:
        allowed = ", ".join(TABLES)
        raise ConfigError(
            f"a record has no table {table!r}; it has {allowed}{closest(table, TABLES)}"
        )
    frame = _plain(getattr(record, table), table[:-1])
    return _readable(frame, record.requests) if table == "requests" else frame


def _plain(rows: object, name: str) -> pd.DataFrame:
    fields = [field.name for field in dataclasses.fields(rows)]  # type: ignore[arg-type]
    columns = {field: np.asarray(getattr(rows, field)) for field in fields}
    frame = pd.DataFrame({field: values for field, values in columns.items() if values.ndim == 1})
    return frame.rename_axis(name)


def _readable(frame: pd.DataFrame, requests: RequestRecords) -> pd.DataFrame:
    """Replace codes by words and -1 by missing values; add a column for each part of TTFT and of E2E."""
    for name in (*frame.columns,):
        if name.endswith("_us") and name != "arrival_us":
            frame[name] = frame[name].where(frame[name] >= 0, np.nan)
        elif name in _NUMBERS_OR_NONE:
            frame[name] = frame[name].astype("Int64").where(frame[name] >= 0)
    frame["slo_class"] = pd.Categorical.from_codes(frame["slo_class"], list(CLASS_NAMES))
    words = [status.name.lower() for status in Status]
    frame["status"] = pd.Categorical.from_codes(frame["status"], words)
    for time, parts, values in (
        ("ttft", TTFT_PARTS, requests.ttft_parts_us),
        ("e2e", E2E_PARTS, e2e_parts_us(requests)),
    ):
        has_time = frame[f"{time}_us"].notna().to_numpy()
        for part, column in zip(parts, values.T, strict=True):
            frame[f"{time}_{part}_us"] = np.where(has_time, column, np.nan)
    return frame
