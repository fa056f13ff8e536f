"""What one run did, on the host: plain numpy arrays with the names of the golden data."""

from __future__ import annotations

import enum
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

import numpy as np

from blis_jax.core.arrays import namespace
from blis_jax.core.outcome import Outcome
from blis_jax.core.types import Absent
from blis_jax.lazy import exports

if TYPE_CHECKING:
    import pandas as pd
    import xarray as xr
    from jaxtyping import Bool, Float, Int

    from blis_jax.cluster.config import ClusterConfig
    from blis_jax.records.splits import SplitRecords


# other forms of a record, made by what stands above it; pandas and xarray take a second to import
_FORMS = exports(
    "blis_jax", {"records.step_records": ("to_dataframe",), "results.dataset": ("run_dataset",)}
)


class Status(enum.IntEnum):
    """The state of a request when the run ended."""

    COMPLETED = 0
    REJECTED = 1
    DROPPED = 2
    WAITING = 3
    RUNNING = 4
    IN_FLIGHT = 5  # not yet in an instance's queue
    LOST = 6  # its instance stopped, and nobody computed it again
    QUEUE_FULL = 7  # turned away by the gateway's queue
    SHED = 8  # it left the gateway's queue for a more urgent one
    EXPIRED = 9  # it waited too long in the gateway's queue
    EVICTED = 10  # its instance gave it up for a more urgent one in the gateway's queue
    IN_GATEWAY = 11  # in the gateway's queue
    TIMED_OUT = 12  # its time was up before it completed
    UNROUTED = 13  # no instance was up when it was to be routed


# statuses that a request keeps
SETTLED = (
    *(Status.COMPLETED, Status.REJECTED, Status.DROPPED, Status.LOST),
    *(Status.QUEUE_FULL, Status.SHED, Status.EXPIRED, Status.EVICTED, Status.TIMED_OUT),
    Status.UNROUTED,
)
# metrics that count requests by how they ended
COUNTED = {
    "num_completed": Status.COMPLETED,
    "num_rejected": Status.REJECTED,
    "num_dropped": Status.DROPPED,
    "num_lost": Status.LOST,
    "num_queue_full": Status.QUEUE_FULL,
    "num_shed": Status.SHED,
    "num_expired": Status.EXPIRED,
    "num_evicted": Status.EVICTED,
    "num_timed_out": Status.TIMED_OUT,
    "num_unrouted": Status.UNROUTED,
}
GAVE_UP = (Status.EVICTED, Status.TIMED_OUT)  # they left their instance before the end
# what the gateway's queue does with requests that no instance gets
NOT_DISPATCHED = (Status.QUEUE_FULL, Status.SHED, Status.EXPIRED)


TTFT_PARTS = (
    "admission_delay",
    "routing_delay",
    "queueing_time",
    "waiting",
    "preempted_service",
    "prefill_compute",
    "chunk_overhead",
    "output_processing",
)
# likewise of E2E
E2E_PARTS = ("first_token", "transfer", "handed_wait", "decode")


@dataclass(frozen=True)
class RequestRecords:
    """One entry per request, in order of arrival; times in µs, -1 where it never happened."""

    arrival_us: Int[np.ndarray, "*row request"]
    input_len: Int[np.ndarray, "*row request"]
    output_len: Int[np.ndarray, "*row request"]
    slo_class: Int[np.ndarray, "*row request"]
    tenant: Int[np.ndarray, "*row request"]
    admitted: Int[np.ndarray, "*row request"]  # 1, 0, or -1: no decision before the end
    instance: Int[np.ndarray, "*row request"]
    status: Int[np.ndarray, "*row request"]  # see Status
    queued_at_us: Int[np.ndarray, "*row request"]  # absolute
    sched_delay_us: Int[np.ndarray, "*row request"]  # last scheduling - arrival
    first_sched_delay_us: Int[np.ndarray, "*row request"]
    ttft_us: Int[np.ndarray, "*row request"]
    e2e_us: Int[np.ndarray, "*row request"]  # TTFT + sum of the recorded inter-token latencies
    left_us: Int[np.ndarray, "*row request"]  # absolute end of the step that completed it
    preemptions: Int[np.ndarray, "*row request"]
    num_scheduled: Int[np.ndarray, "*row request"]
    cached_tokens_first_sched: Int[np.ndarray, "*row request"]
    # what the router's prefix index promised
    expected_cached_tokens: Int[np.ndarray, "*row request"]
    scheduled_step_idx: Int[np.ndarray, "*row request"]
    finished_step_idx: Int[np.ndarray, "*row request"]
    token_step_idx: Int[np.ndarray, "*row request"]  # step of the (last) first token, -1 if none
    num_itl: Int[np.ndarray, "*row request"]
    progress_index: Int[np.ndarray, "*row request"]
    ttft_parts_us: Int[np.ndarray, "*row request part"]  # TTFT_PARTS; their sum is ttft_us
    # of its KV to another instance, -1: none has ended
    transfer_us: Int[np.ndarray, "*row request"]
    handed_wait_us: Int[np.ndarray, "*row request"]  # from there until it was scheduled
    hand_overs: Int[np.ndarray, "*row request"]  # 1: it went on elsewhere with its KV
    restarts: Int[np.ndarray, "*row request"]  # attempts that ended because their instance stopped
    # output tokens that it makes, where a decode instance may cut answers short; None: `output_len`
    answer_len: Int[np.ndarray, "*row request"] | Absent = None
    # blis-2026-08: from arrival to the start of its transfer, -1: none
    handed_us: Int[np.ndarray, "*row request"] | Absent = None
    # µs in the gateway's queue, -1: not dispatched from there; None: a run without one
    gateway_wait_us: Int[np.ndarray, "*row request"] | Absent = None
    # steps of its instance when it left the batch early, 0: it did not; None: a run in which nobody does
    ended_step_idx: Int[np.ndarray, "*row request"] | Absent = None
    # µs: the inter-token latency that holds the transfer, -1: none; None: a run without hand-overs of this kind
    handed_gap_us: Int[np.ndarray, "*row request"] | Absent = None
    # sum of the latencies since its last first token; None: in a compiled call, and before August
    itl_us: Int[np.ndarray, "*row request"] | Absent = None
    # load of the instance it was routed to less the smallest one; -1: not routed; None: the router was not watched
    regret: Int[np.ndarray, "*row request"] | Absent = None
    # output tokens that were drafted for it and accepted; None: a run without drafts
    accepted_tokens: Int[np.ndarray, "*row request"] | Absent = None
    # place of its LoRA adapter in the cluster's list, -1: it names none; None: no adapter is ever loaded
    adapter: Int[np.ndarray, "*row request"] | Absent = None

    @property
    def num_later_tokens(self) -> Int[np.ndarray, "*row request"]:
        """Return the number of tokens after the first: one for each inter-token latency, and accepted drafts."""
        drafted = self.accepted_tokens
        return self.num_itl if drafted is None else self.num_itl + drafted

    @property
    def made_len(self) -> Int[np.ndarray, "*row request"]:
        """Return the number of output tokens that each request makes until it completes."""
        return self.output_len if self.answer_len is None else self.answer_len

    @property
    def after_first_us(self) -> Any:
        """Return E2E less TTFT of completed requests, µs; junk for others.

        It is E2E if BLIS has missed the first token: a step that evicts from the middle of the batch visits the last
        member twice, so a member at the end of its prompt then skips that end.
        """
        return self.e2e_us - namespace(self.ttft_us).maximum(self.ttft_us, 0)

    @property
    def is_cut(self) -> Any:
        """Return which completed requests made fewer tokens than asked for; BLIS calls them length-capped."""
        return (self.status == Status.COMPLETED) & (self.made_len < self.output_len)


@dataclass(frozen=True)
class StepRecords:
    """Series of equal steps, in order of execution on each instance; `num_steps` is above 1 only in pure decode."""

    instance: Int[np.ndarray, "record"]
    start_us: Int[np.ndarray, "record"]
    duration_us: Int[np.ndarray, "record"]  # of each of its steps
    num_steps: Int[np.ndarray, "record"]
    last_index: Int[np.ndarray, "record"]  # the instance's step counter after the record
    running: Int[np.ndarray, "record"]
    waiting: Int[np.ndarray, "record"]
    used_blocks: Int[np.ndarray, "record"]  # during the last of its steps
    sum_used_blocks: Int[np.ndarray, "record"]  # over its steps
    num_itl: Int[np.ndarray, "record"]  # inter-token latencies recorded in it, by any request
    num_completed: Int[np.ndarray, "record"]
    # latencies of completed requests that count, without those over a transfer; None: as `num_itl` says
    num_completed_itl: Int[np.ndarray, "record"] | Absent = None


@dataclass(frozen=True)
class InstanceRecords:
    """One entry per active instance."""

    completed_requests: Int[np.ndarray, "*row instance"]
    dropped_unservable: Int[np.ndarray, "*row instance"]
    lost_requests: Int[np.ndarray, "*row instance"]
    times_down: Int[np.ndarray, "*row instance"]  # times that a cluster policy took it down
    # those after time 0, at which a policy sets the first size
    scale_downs: Int[np.ndarray, "*row instance"]
    # time for which it is held, or finishes what it was given
    paid_us: Int[np.ndarray, "*row instance"]
    still_queued: Int[np.ndarray, "*row instance"]
    still_running: Int[np.ndarray, "*row instance"]
    total_input_tokens: Int[np.ndarray, "*row instance"]
    total_output_tokens: Int[np.ndarray, "*row instance"]
    gpu_hits: Int[np.ndarray, "*row instance"]
    gpu_misses: Int[np.ndarray, "*row instance"]
    used_blocks_at_end: Int[np.ndarray, "*row instance"]
    peak_kv_blocks_used: Int[np.ndarray, "*row instance"]
    kv_blocks_used_integral: Float[np.ndarray, "*row instance"]  # blocks x µs
    step_count: Int[np.ndarray, "*row instance"]
    waiting_sum: Int[np.ndarray, "*row instance"]  # wait-queue length summed over steps
    sim_ended_time_us: Int[np.ndarray, "*row instance"]
    output_time_us: Int[np.ndarray, "*row instance"]  # added to a step's duration to give an ITL
    preemption_count: Int[np.ndarray, "*row instance"]
    kv_allocation_failures: Int[np.ndarray, "*row instance"]
    total_kv_blocks: Int[np.ndarray, "*row instance"]
    # first tokens that a preemption took back included
    ttft_sum_us: Int[np.ndarray, "*row instance"]
    cpu_offloads: Int[np.ndarray, "*row instance"]  # blocks copied to the CPU tier
    cpu_reloads: Int[np.ndarray, "*row instance"]  # blocks brought back
    # failed allocations that nothing could be reloaded for
    cpu_misses: Int[np.ndarray, "*row instance"]
    # reloads within 1,000 µs of the offload; in August: evictions
    cpu_thrashing: Int[np.ndarray, "*row instance"]
    reload_us: Int[np.ndarray, "*row instance"]  # time that steps waited for reloads


@dataclass(frozen=True)
class PreemptionRecords:
    """One entry per preemption, in order of execution."""

    request: Int[np.ndarray, "preemption"]
    instance: Int[np.ndarray, "preemption"]
    time_us: Int[np.ndarray, "preemption"]  # start of the step that evicted it
    step_record: Int[np.ndarray, "preemption"]  # that step among StepRecords
    num_itl: Int[np.ndarray, "preemption"]  # inter-token latencies recorded in the life it ended
    # the profile has dropped them; None: none of them
    is_forgotten: Bool[np.ndarray, "preemption"] | Absent = None
    # see `latencies.gaps_us`; None where outputs are not kept
    gap_us: Int[np.ndarray, "preemption"] | Absent = None
    # its output was lost later on; None: none was
    is_lost: Bool[np.ndarray, "preemption"] | Absent = None


def no_preemptions() -> PreemptionRecords:
    """Return the table of a run without preemptions."""
    return PreemptionRecords(*(np.zeros(0, np.int64) for _ in range(5)))


@dataclass(frozen=True)
class AdapterRecords:
    """Loads and evictions of LoRA adapters, `[instance, adapter]`; adapters in the order of the cluster's list."""

    num_loads: Int[np.ndarray, "instance adapter"]  # that have ended
    num_evictions: Int[np.ndarray, "instance adapter"]
    ids: tuple[str, ...] = ()


@dataclass(frozen=True)
class OffloadRecords:
    """Counts of transfers and refusals between the CPU's memory and the off-load tiers behind it."""

    num_fetches: Int[np.ndarray, "*row instance"]  # runs of blocks that storage was asked for
    num_refusals: Int[np.ndarray, "*row instance"]  # runs for which the CPU had no room
    num_deferrals: Int[np.ndarray, "*row instance"]  # waits of requests for blocks of their prompts
    num_skips: Int[np.ndarray, "*row instance"]  # uses of blocks that found no room on the CPU
    num_evictions: Int[np.ndarray, "*row instance"]  # blocks that gave way there
    num_transfers: Int[np.ndarray, "*row instance"]  # to and from storage


@dataclass(frozen=True)
class DraftRecords:
    """Counts of drafted tokens in executed steps, under the names of vLLM's metrics."""

    num_drafts: Int[np.ndarray, "*row instance"]  # requests times steps with drafts
    num_draft_tokens: Int[np.ndarray, "*row instance"]
    num_accepted_tokens: Int[np.ndarray, "*row instance"]  # that answers had room for


NO_EVICTION, BLOCK_LEVEL = "no-eviction", "block-level"


@dataclass(frozen=True)
class RunRecord:
    """What one run did; plain numpy arrays.

    Attributes:
        outcome: how the run ended; `outcome.sentence` says it in words.
        requests: one entry for each request, in order of arrival.
        steps: one entry for each series of equal steps, in order of execution.
        instances: one entry for each active instance.
        num_iterations: scan steps that the run took.
        num_open_ties: events of one µs whose order was not put in BLIS's.
        num_repairs: how often the run was repeated, with larger tables or another order of ties.
        invariant_failures: broken invariants by name, with the number of breaches.
        preemptions: one entry for each preemption, in order of execution.
        kv_model: memory model that the run was made with, `no-eviction` or `block-level`.
        is_august: whether the run follows BLIS's revision of August 2026.
        has_priorities: whether priority inversions are counted, see `engine.mechanism.has_priorities`.
        splits: the parts of requests that were split between the pools of that revision; None without pools.
        names: names of all instances, if that revision's autoscaler created some; empty if they are numbered.
        adapters: loads and evictions of LoRA adapters; None where none is ever loaded.
        offload: transfers and waits of off-load tiers; None where there are none.
        figures: what an event source tells of the run, by name, such as `source.slowed_requests`.
        drafts: counts of drafted tokens; None where nothing is drafted.
    """

    outcome: Outcome
    requests: RequestRecords
    steps: StepRecords
    instances: InstanceRecords
    num_iterations: int
    num_open_ties: int
    num_repairs: int = 0
    invariant_failures: dict[str, int] = field(default_factory=dict)
    preemptions: PreemptionRecords = field(default_factory=no_preemptions)
    kv_model: str = NO_EVICTION  # memory model that the run was made with
    is_august: bool = False
    has_priorities: bool = False
    splits: SplitRecords | None = None  # of a run with pools of blis-2026-08
    names: tuple[str, ...] = ()  # of the instances, where an autoscaler has made some
    adapters: AdapterRecords | None = None
    offload: OffloadRecords | None = None
    figures: Mapping[str, float] = field(default_factory=dict)
    drafts: DraftRecords | None = None

    def __repr__(self) -> str:
        """Return a line with outcome, completed requests and instances."""
        requests = self.requests
        completed = int(np.sum(requests.status == Status.COMPLETED))
        return (
            f"RunRecord({self.outcome.name}: {completed:,} of {len(requests.status):,} requests completed on "
            f"{self.num_instances} instance{'s' * (self.num_instances != 1)}; to_dataframe(), to_dataset())"
        )

    @property
    def num_instances(self) -> int:
        """Return the number of instances that were part of the cluster."""
        return len(self.instances.step_count)

    def to_dataframe(self, table: str = "requests") -> pd.DataFrame:
        """Return the run's `requests`, `steps`, `instances` or `preemptions` as a pandas data frame, one row for each.

        Times are in µs, NaN where something never happened; classes and states are words. TTFT has its parts in
        columns `ttft_<part>_us`, E2E in columns `e2e_<part>_us`. Raises `ConfigError` for another table.
        """
        frame: pd.DataFrame = _FORMS("to_dataframe")(self, table)
        return frame

    def to_dataset(self, config: ClusterConfig | None = None) -> xr.Dataset:
        """Return the run's figures as an xarray Dataset, over `slo_class`, `quantile` and `instance`, with units.

        With the run's `config` the attributes hold all settings; without it, figures of priorities and of the CPU tier
        are computed as for constant priorities and no tier.
        """
        dataset: xr.Dataset = _FORMS("run_dataset")(self, config)
        return dataset


def e2e_parts_us(requests: RequestRecords) -> np.ndarray:
    """Split the E2E of each request into `E2E_PARTS` `[request, part]`, µs; −1 for requests without an E2E.

    `first_token` is TTFT; `decode` is the rest after the other parts. A request that is not handed over has no
    transfer.
    """
    first, transfer, wait = (
        np.maximum(time, 0)
        for time in (requests.ttft_us, requests.transfer_us, requests.handed_wait_us)
    )
    if requests.handed_us is not None:  # TTFT is that of the step after the transfer
        first = np.where(requests.handed_us >= 0, requests.handed_us, first)
    parts = np.stack([first, transfer, wait, requests.e2e_us - first - transfer - wait], axis=-1)
    return np.where((requests.e2e_us >= 0)[..., None], parts, -1)
