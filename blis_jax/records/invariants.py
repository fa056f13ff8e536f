"""Invariants of every run, as counts of violations, which are all 0 unless something is broken.

The checks of requests and instances take arrays with any leading axes, `[..., request]` and `[..., instance]`, so a
batch of runs is checked at once. The checks of steps take one run. A run that ended with an outcome other than
completion or the horizon may break invariants. `CHEAP_CHECKS` are made in every run.
"""

from __future__ import annotations

import functools
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any, cast

import numpy as np

from blis_jax.core.arrays import namespace, stacked
from blis_jax.records.record import (
    GAVE_UP,
    NOT_DISPATCHED,
    InstanceRecords,
    RequestRecords,
    RunRecord,
    Status,
    e2e_parts_us,
)
from blis_jax.records.splits import left_preempted
from blis_jax.records.step_invariants import (
    Counts,
    blocks_conserved,
    blocks_released,
    count,
    cpu_tier_conserved,
    is_in_batch,
    latencies_of_completed_requests,
    no_idling_while_requests_wait,
    no_pressure_without_eviction,
    of_instance,
    per_instance,
    per_status,
    preemptions_conserved,
    preemptions_located,
    step_counts_conserved,
    step_events_conserved,
    steps_follow_each_other,
    steps_not_negative,
    used_blocks_within_capacity,
)

if TYPE_CHECKING:
    from jaxtyping import Bool, Int


RequestCheck = Callable[[RequestRecords, InstanceRecords], Counts]
StepCheck = Callable[[RunRecord], int]

ALIVE = (Status.WAITING, Status.RUNNING)


def requests_conserved(requests: RequestRecords, instances: InstanceRecords) -> Counts:
    """Count violations of 1: every request has one known status, and each instance's counters count those it holds."""
    known = (requests.status >= 0) & (requests.status < len(Status))
    differences = count(~known)
    counters = {
        Status.COMPLETED: instances.completed_requests,
        Status.DROPPED: instances.dropped_unservable,
        Status.LOST: instances.lost_requests,
        Status.WAITING: instances.still_queued,
        Status.RUNNING: instances.still_running,
    }
    held = per_status(requests, instances, tuple(counters))
    pairs = zip(held, counters.values(), strict=True)
    return differences + sum(abs(here - counter).sum(axis=-1) for here, counter in pairs)


def status_matches_decisions(requests: RequestRecords, instances: InstanceRecords) -> Counts:
    """Count violations of 2: rejected requests have no instance; all others past routing were admitted and have one.

    Requests that left the gateway's queue for good, are in it, or found no instance up were admitted, but have no
    instance.
    """
    num_instances = instances.completed_requests.shape[-1]
    is_routed = (requests.instance >= 0) & (requests.instance < num_instances)
    is_rejected = requests.status == Status.REJECTED
    stayed = np.isin(requests.status, (*NOT_DISPATCHED, Status.IN_GATEWAY, Status.UNROUTED))
    is_right = np.where(
        is_rejected,
        (requests.admitted == 0) & ~is_routed,
        np.where(
            requests.status == Status.IN_FLIGHT,
            requests.admitted != 0,
            (requests.admitted == 1) & (is_routed != stayed),
        ),
    )
    return count(~is_right)


def times_exist_by_status(requests: RequestRecords, instances: InstanceRecords) -> Counts:
    """Count violations of 3: a time exists exactly when its event happened, as far as the status tells."""
    is_completed = requests.status == Status.COMPLETED
    has_run = is_completed | (requests.status == Status.RUNNING)
    has_queued = has_run | (requests.status == Status.WAITING)
    # blis-2026-08 alone gives an E2E to one that its decode instance drops or gives up
    has_gone = (requests.status == Status.DROPPED) | (requests.status == Status.TIMED_OUT)
    has_gone = has_gone & (requests.hand_overs > 0) & (requests.handed_us is not None)
    is_wrong = (requests.e2e_us >= 0) != (is_completed | has_gone)
    is_wrong |= (requests.left_us >= 0) != is_completed
    is_wrong |= (requests.finished_step_idx > 0) != is_completed
    is_wrong |= has_queued & (requests.queued_at_us < 0)
    is_wrong |= has_run & (requests.sched_delay_us < 0)
    is_wrong |= is_completed & (requests.ttft_us < 0) & ~_has_overshot(requests, instances)
    # one that has left an instance was scheduled, and may be nowhere
    has_moved = (requests.hand_overs > 0) | (requests.restarts > 0)
    has_moved = has_moved | np.isin(requests.status, GAVE_UP) | left_preempted(requests, instances)
    is_wrong |= ~has_queued & ~has_moved & (requests.sched_delay_us >= 0)
    is_wrong |= (requests.status == Status.LOST) & (requests.ttft_us >= 0)
    is_wrong |= (requests.sched_delay_us < 0) & (requests.ttft_us >= 0)
    return count(is_wrong)


def events_in_order(requests: RequestRecords, instances: InstanceRecords) -> Counts:
    """Count violations of 4: arrival ≤ queued ≤ first ≤ last scheduled ≤ first token, and scheduled ≤ left.

    The first token comes at its step's end plus the output processing time; after a later preemption the request may be
    scheduled again. On two overlapping step chains, a defect of BLIS, a request can leave with the shorter step of one
    chain while the other chain's step still holds its first token.
    """
    xp = namespace(requests.status)
    queued = requests.queued_at_us - requests.arrival_us
    is_wrong = (requests.queued_at_us >= 0) & (queued < 0)
    is_scheduled = requests.sched_delay_us >= 0
    is_wrong |= is_scheduled & (requests.first_sched_delay_us < queued)
    is_wrong |= is_scheduled & (requests.sched_delay_us < requests.first_sched_delay_us)
    has_token = requests.ttft_us >= 0
    was_preempted = requests.preemptions > 0
    token = requests.ttft_us - of_instance(instances.output_time_us, requests)
    scheduled = xp.where(was_preempted, requests.first_sched_delay_us, requests.sched_delay_us)
    is_wrong |= has_token & (token < scheduled)
    has_left = requests.left_us >= 0
    is_wrong |= has_left & (requests.left_us - requests.arrival_us < scheduled)
    return count(is_wrong)


def steps_in_order(requests: RequestRecords, instances: InstanceRecords) -> Counts:
    """Count violations of 5: scheduled ≤ first-token ≤ finished step, none beyond the instance's last step."""
    xp = namespace(requests.status)
    last_step = of_instance(instances.step_count, requests)
    has_token = requests.token_step_idx >= 0
    has_finished = requests.finished_step_idx > 0
    was_preempted = requests.preemptions > 0
    is_wrong = has_token & ~was_preempted & (requests.token_step_idx < requests.scheduled_step_idx)
    is_wrong |= has_token & has_finished & (requests.finished_step_idx < requests.token_step_idx)
    latest = xp.maximum(requests.scheduled_step_idx, requests.token_step_idx)
    # the number of a step means nothing on an instance that the request has not run on
    is_here = is_in_batch(requests) | ((requests.hand_overs == 0) & (requests.restarts == 0))
    is_wrong |= is_here & (xp.maximum(latest, requests.finished_step_idx) > last_step)
    return count(is_wrong)


def e2e_covers_ttft(requests: RequestRecords, instances: InstanceRecords) -> Counts:
    """Count violations of 6: E2E ≥ TTFT ≥ scheduling delay, of completed requests that were not preempted."""
    # that of one that started again goes by the clock, and it can leave before its first token, see 4
    is_wrong = (requests.e2e_us < requests.ttft_us) & (requests.restarts == 0)
    is_wrong |= requests.ttft_us < requests.sched_delay_us
    return count(_is_regular(requests, instances) & is_wrong)


def ttft_parts_add_up(requests: RequestRecords, instances: InstanceRecords) -> Counts:
    """Count violations of 7: the parts of a TTFT are not negative and sum to it."""
    parts = requests.ttft_parts_us
    is_exact = (parts.sum(axis=-1) == requests.ttft_us) & (parts >= 0).all(axis=-1)
    return count((requests.ttft_us >= 0) & ~is_exact)


def tokens_of_request_conserved(requests: RequestRecords, instances: InstanceRecords) -> Counts:
    """Count violations of 8: a completed request has processed its prompt and all output tokens but one.

    The request has one inter-token latency per output token, since the last step counts twice, and at least one; one
    less in runs of the corrected profile.
    """
    produced = np.maximum(requests.made_len, 1)
    is_regular = _is_regular(requests, instances)
    # in blis-2026-08 the only token of a request that was handed over has a step of its own
    is_one = (requests.hand_overs > 0) & (produced == 1)
    is_right = requests.progress_index == requests.input_len + produced - 1 + is_one
    missing = produced + is_one - requests.num_later_tokens
    is_again = requests.restarts > 0  # with latencies of attempts that count no more
    by_profile = [
        count(is_regular & ~(is_right & ((missing == less) | is_again))) for less in (0, 1)
    ]
    return np.minimum(*by_profile)


def tokens_of_instance_conserved(requests: RequestRecords, instances: InstanceRecords) -> Counts:
    """Count violations of 9: input tokens of an instance are its prompts, output tokens latencies less completions.

    The corrected profile does not record the last latency of a completed request twice, so there completions are not
    subtracted. The revision of August 2026 counts the outputs of completed requests instead.
    """
    is_completed = requests.status == Status.COMPLETED
    was_queued = is_completed | np.isin(requests.status, (*ALIVE, *GAVE_UP, Status.LOST))
    is_back = (requests.status == Status.IN_FLIGHT) & (requests.queued_at_us >= 0)  # by a stop
    was_queued = was_queued | (requests.hand_overs > 0) | (requests.restarts > 0) | is_back
    inputs = per_instance(was_queued, requests, instances, requests.input_len)
    latencies = per_instance(requests.num_itl > 0, requests, instances, requests.num_later_tokens)
    whole = per_instance(is_completed, requests, instances, requests.made_len)
    outputs = (latencies - per_instance(is_completed, requests, instances), latencies, whole)
    made = instances.total_output_tokens
    by_profile = [count(values != made) for values in outputs]
    # attempts that a stop ended were made on other instances
    is_spread = (requests.restarts > 0) | left_preempted(requests, instances, is_there=True)
    in_all = [abs(values.sum(axis=-1) - made.sum(axis=-1)) for values in outputs]
    least, in_all_least = (functools.reduce(np.minimum, each) for each in (by_profile, in_all))
    wrong = np.where(is_spread.any(axis=-1), in_all_least, least)
    # blis-2026-08 counts a prompt where it was computed
    prompts = instances.total_input_tokens
    in_all_prompts = abs(inputs.sum(axis=-1) - prompts.sum(axis=-1))
    is_handed = (requests.hand_overs > 0).any(axis=-1)
    return np.where(is_handed, in_all_prompts, count(inputs != prompts)) + wrong


def counters_not_negative(requests: RequestRecords, instances: InstanceRecords) -> Counts:
    """Count violations of 13: no counter of an instance or a request is below 0."""
    negative = sum(count(values < 0) for values in vars(instances).values())
    for values in (
        requests.preemptions,
        requests.num_scheduled,
        requests.num_itl,
        requests.progress_index,
    ):
        negative = negative + count(values < 0)
    return negative


def cached_tokens_within_prompt(requests: RequestRecords, instances: InstanceRecords) -> Counts:
    """Count violations of 14: a request finds at most its whole prompt in the prefix cache."""
    return count(requests.cached_tokens_first_sched > requests.input_len)


def e2e_parts_add_up(record: RunRecord) -> int:
    """Count violations of 25: the parts of the E2E of a request that was handed over are not negative."""
    requests = record.requests
    is_moved = (requests.status == Status.COMPLETED) & (requests.hand_overs > 0)
    return int(np.count_nonzero(is_moved & (e2e_parts_us(requests) < 0).any(axis=-1)))


REQUEST_CHECKS: tuple[RequestCheck, ...] = (
    requests_conserved,
    status_matches_decisions,
    times_exist_by_status,
    events_in_order,
    steps_in_order,
    e2e_covers_ttft,
    ttft_parts_add_up,
    tokens_of_request_conserved,
    tokens_of_instance_conserved,
    preemptions_conserved,
    used_blocks_within_capacity,
    blocks_released,
    counters_not_negative,
    cached_tokens_within_prompt,
)
STEP_CHECKS: tuple[StepCheck, ...] = (
    cpu_tier_conserved,
    step_counts_conserved,
    step_events_conserved,
    steps_follow_each_other,
    no_idling_while_requests_wait,
    steps_not_negative,
    latencies_of_completed_requests,
    blocks_conserved,
    preemptions_located,
    no_pressure_without_eviction,
    e2e_parts_add_up,
)
NAMES = tuple(check.__name__ for check in (*REQUEST_CHECKS, *STEP_CHECKS))


def violations(record: RunRecord) -> dict[str, int]:
    """Return how often one run breaks each invariant."""
    counts = batched_violations(record.requests, record.instances)
    return {name: int(count) for name, count in counts.items()} | {
        check.__name__: check(record) for check in STEP_CHECKS
    }


def batched_violations(
    requests: RequestRecords, instances: InstanceRecords
) -> dict[str, Int[np.ndarray, "*row"]]:
    """Return how often each run of a batch breaks the invariants of requests and instances.

    Every array has the batch's axes in front: `[run, request]`, `[run, instance]`.
    """
    return {check.__name__: check(requests, instances) for check in REQUEST_CHECKS}


def _has_overshot(
    requests: RequestRecords, instances: InstanceRecords
) -> Bool[np.ndarray, "*row request"]:
    """Return which requests completed without a first token, on an instance with preemptions.

    When the request of lowest priority is evicted, another member of the batch can skip the end of its prompt.
    """
    is_near_preemption = of_instance(instances.preemption_count, requests) > 0
    return (requests.status == Status.COMPLETED) & (requests.ttft_us < 0) & is_near_preemption


def _is_regular(
    requests: RequestRecords, instances: InstanceRecords
) -> Bool[np.ndarray, "*row request"]:
    """Return which requests completed with no preemption and no overshoot."""
    is_regular = (requests.status == Status.COMPLETED) & (requests.preemptions == 0)
    return is_regular & ~_has_overshot(requests, instances)


CHEAP_CHECKS: tuple[RequestCheck, ...] = (
    requests_conserved,
    events_in_order,
    steps_in_order,
    preemptions_conserved,
    used_blocks_within_capacity,
    blocks_released,
)
CHEAP_NAMES = tuple(check.__name__ for check in CHEAP_CHECKS)


class _Stacked:
    """Stacks a field of several runs' records when it is first read."""

    def __init__(self, parts: Sequence[Any]) -> None:
        self._parts = parts

    def __getattr__(self, name: str) -> Any:
        parts = [getattr(part, name) for part in self._parts]
        column = None if parts[0] is None else stacked(*parts)  # runs of one kind
        setattr(self, name, column)
        return column


def cheap_violations(records: Sequence[RunRecord]) -> list[dict[str, int]]:
    """Return for each run how often it violates each of `CHEAP_CHECKS`: conservation, causality, order."""
    requests = cast("Any", _Stacked([record.requests for record in records]))
    instances = cast("Any", _Stacked([record.instances for record in records]))
    counts = [check(requests, instances) for check in CHEAP_CHECKS]
    return [
        {name: int(values[row]) for name, values in zip(CHEAP_NAMES, counts, strict=True)}
        for row in range(len(records))
    ]
