"""The types that the engine's parts exchange: sentinels, views and contracts.

At run time this module imports nothing of ours but the rules of revisions, the kinds of policy, sub-trees, `pytrees`
and `lazy`; imports for types alone are under `TYPE_CHECKING`. Times are whole microseconds in the clock's dtype.
"""

from __future__ import annotations

from dataclasses import Field, dataclass
from typing import TYPE_CHECKING, Any, ClassVar, Protocol, TypeAlias, TypeVar

import numpy as np

from blis_jax.core.kinds import GATEWAY, INSTANCE, NumbersOfEachKind, OfEachKind, at_place
from blis_jax.core.pytrees import HasParts, Parts, pytree
from blis_jax.core.revision_rules import FEBRUARY_RULES, REFERENCE_DEFECTS, Defects, RevisionRules
from blis_jax.lazy import jax

if TYPE_CHECKING:
    from jax.typing import DTypeLike
    from jaxtyping import Array, Bool, Float, Int, Num

    from blis_jax.engine.phases.policy_calls import Router, RouterParams
    from blis_jax.latency.contract import LatencyModel
    from blis_jax.policies.contract import Policy
    from blis_jax.tables.router import SignalParams

T = TypeVar("T")


class Record(Protocol):
    """Any dataclass, such as the numbers of a policy."""

    __dataclass_fields__: ClassVar[dict[str, Field[Any]]]


Absent: TypeAlias = Any
"""None, of a field that a mechanism has no use for; it is None in the tests that check annotations."""

NO_INSTANCE = -1  # a request that was not routed
NO_HORIZON = 2**63 - 1  # µs; the run ends with its last request
REJECTED = -2  # in the instance column: turned away by admission
UNROUTED = -4  # likewise: no instance was up when it was to be routed
NO_REQUEST = -1  # a free slot
NO_DRAW = -3  # the choice of a policy that has used up its stream
LAST = np.int32(2**31 - 1)  # an order, step index or block count beyond every real one
BLOCKS_A_STEP = 64  # KV blocks that an operation may move in one scan step
ROLES = ("both", "prefill", "decode")  # what an instance is for
BOTH, PREFILL, DECODE = range(len(ROLES))
ENCODE, IDLE = len(ROLES), len(ROLES) + 1  # likewise in August's revision: it computes nothing
SLO_CLASSES = ("", "critical", "standard", "sheddable", "batch", "background")
OLD_CLASSES = {"realtime": "critical", "interactive": "standard"}  # of workload files of version 1
DEFAULT_CLASS = "default"  # BLIS's name of the empty class in its results
CLASS_NAMES = (DEFAULT_CLASS, *SLO_CLASSES[1:])
STANDARD_NONE, CRITICAL, STANDARD, SHEDDABLE, BATCH, BACKGROUND = range(len(SLO_CLASSES))


def never(dtype: DTypeLike) -> Any:
    """Return a time after every event, in the clock's dtype; on a float clock twice this time is still finite."""
    if np.issubdtype(dtype, np.floating):
        return np.dtype(dtype).type(2.0**61)
    return np.dtype(dtype).type(np.iinfo(dtype).max)


@pytree
class RequestView:
    """The data of a request that a policy may read; the true output length is not among them.

    Fields are scalars at admission and routing, and `[slot]` for priorities and schedulers.
    """

    slo_class: Int[Array, "..."]  # index into SLO_CLASSES
    input_len: Int[Array, "..."]  # prompt tokens
    arrival_us: jax.Array  # clock dtype
    tenant: Int[Array, "..."]
    tie_rank: Int[Array, "..."]  # rank by (arrival, id as text)
    queue_rank: Int[Array, "..."]  # order of entry among those queued in one microsecond


@pytree
class Snapshots:
    """The router's view of every instance `[instance]`; KV fields may be stale."""

    effective_load: Int[Array, "instance"]  # queued + running + pending
    queue_depth: Int[Array, "instance"]
    batch_size: Int[Array, "instance"]
    num_pending: Int[Array, "instance"]
    kv_utilization: Float[Array, "instance"]
    free_kv_blocks: Float[Array, "instance"]
    cache_hit_rate: Float[Array, "instance"]
    prefix_match_blocks: Int[Array, "instance"]  # leading prompt blocks in the router's index
    num_rejected: Int[Array, ""]
    is_active: Bool[Array, "instance"]  # part of the cluster (the table may be larger)
    role: Int[Array, "instance"]  # index into ROLES
    # only for a policy that reads them in a cluster with a CPU tier, else None; as stale as the KV fields:
    # reloads that the next step will wait for
    pending_transfer_us: Float[Array, "instance"] | Absent = None
    # reloads soon after their offload ÷ offloads
    kv_thrashing_rate: Float[Array, "instance"] | Absent = None
    # leading prompt blocks in the router's copy of the caches; only for a policy that reads it
    cached_prompt_blocks: Int[Array, "instance"] | Absent = None
    # whether the request's LoRA adapter is loaded; likewise
    has_adapter: Bool[Array, "instance"] | Absent = None
    # µs for this prompt alone, see router_view.py; likewise
    prompt_us: Float[Array, "instance"] | Absent = None


@dataclass(frozen=True, kw_only=True)
class Mechanism(OfEachKind):
    """The functions of one strategy: static, hashable, compared by identity of module-level functions.

    There is a policy of each kind, or None where BLIS's own rule decides: all instances stay up, requests stay on their
    instance, the revision selects what goes to the CPU tier, and `evicts_lowest_priority` selects who is evicted.
    """

    latency: LatencyModel
    pool_routers: tuple[Router, ...] = ()  # of pools in which the cluster's router does not choose
    encodes: bool = False  # some requests are also routed in an encode pool
    ages_signals: bool = False  # the router's view of load is old or seen in phases, see router.py
    delays_index: bool = False  # the router's index learns of a routing later
    loses_index: bool = False  # or never
    num_gateways: int = 1  # none knows of another's decisions, see tables/gateways.py
    evicts_lowest_priority: bool = False  # preempt by priority instead of the batch's tail
    has_queue: bool = False  # admitted requests wait at the gateway, see phases/flow_control.py
    has_budgets: bool = False  # tenants over their share are turned away, see pools.py
    evicts_in_flight: bool = False  # and instances give up requests for them
    # blocks are found by their content, else every prompt is computed whole
    finds_prefixes: bool = True
    num_adapters: int = 0  # LoRA adapters that instances have columns for; 0: none is ever loaded
    has_offload_tiers: bool = False  # KV blocks are off-loaded to tiers with transfers
    offload_saves_prefill: bool = False  # and what comes back is not computed again
    num_drafts: int = 0  # tokens that a request drafts for a step, at most; 0: none ever does
    # where prompts are cut at whole KV blocks, the last of these that keep no state; None: they are not cut there
    num_dropped_blocks: int | None = None
    is_precise: bool = False  # the KV caches feed the router's prefix index, not the routings
    defects: Defects = REFERENCE_DEFECTS
    rules: RevisionRules = FEBRUARY_RULES

    @property
    def of_gateway(self) -> tuple[Policy, ...]:
        """Return the policies that decide for the cluster, in the order of their states."""
        return _of_gateway(self)

    def at_gateway(self, kind: str) -> tuple[Policy, int]:
        """Return the gateway's policy of a kind, and the index of its state in the tuple of states.

        Raises:
            ValueError: the mechanism has no policy of this kind.
        """
        policy: Policy = getattr(self, kind)
        return policy, self.of_gateway.index(policy)

    @property
    def leaves_early(self) -> bool:
        """Return whether an instance may give up a request early for a reason other than its deadline."""
        return self.evicts_in_flight or (self.source is not None and self.source.gives_up)

    @property
    def links_uses(self) -> bool:
        """Return whether August's CPU tier evicts the least recently used entry, without a policy or transfers."""
        return self.offload is None and not self.has_offload_tiers

    @property
    def reserves_decode(self) -> bool:
        """Return whether requests are split between prefill and decode pools as in August's revision."""
        return self.hand_over is not None and self.rules.reserves_decode

    @property
    def places_instances(self) -> bool:
        """Return whether instances are created during the run, so that no row of the instance table is used twice."""
        return self.cluster is not None and self.cluster.reads("fleet")

    @property
    def common_places(self) -> range:
        """Return the indices in `of_gateway` of the policies that several gateways share."""
        first, common = 3 + len(self.scorers), (self.cluster, self.hand_over, self.source)
        return range(first, first + sum(policy is not None for policy in common))

    @property
    def num_indices(self) -> int:
        """Return the number of prefix indices: one for each gateway, or a single index that is fed by the KV caches."""
        return 1 if self.is_precise else self.num_gateways

    @property
    def moves_requests(self) -> bool:
        """Return whether requests may leave an instance before they complete, or instances may go down."""
        return self.cluster is not None or self.hand_over is not None

    @property
    def of_instance(self) -> tuple[Policy, ...]:
        """Return the policies that decide inside an instance, in the order of their states."""
        return tuple(at_place(self, INSTANCE))

    def reads(self, *signals: str) -> bool:
        """Return whether a policy of the gateway reads at least one of these signals, see policies/reading.py."""
        return any(policy.reads(*signals) for policy in self.of_gateway)

    @property
    def uses_prefix_index(self) -> bool:
        """Return whether a policy reads the router's prefix index."""
        return self.reads("snapshots.prefix_match_blocks")

    @property
    def hears_caches(self) -> bool:
        """Return whether a policy of the gateway reads an index that can be fed by the KV caches."""
        return any(
            policy.reads("snapshots.prefix_match_blocks") and not policy.keeps_own_index
            for policy in self.of_gateway
        )

    @property
    def looks_beyond_queue(self) -> bool:
        """Return whether a policy reads more of waiting requests than their slots hold: caches, contents, values handed
        over by the router.
        """
        beyond = "num_cached_blocks", "contents", "handed"
        return any(policy.reads(*beyond) for policy in self.of_instance)

    @property
    def reads_handed(self) -> bool:
        """Return whether a policy of the instances reads the values that the router hands over."""
        return any(policy.reads("handed") for policy in self.of_instance)

    @property
    def hands_over_intent(self) -> bool:
        """Return whether the router hands over a value that a policy of the instances reads."""
        routers = (self.routing, *self.scorers)
        return self.reads_handed and any(policy.hands is not None for policy in routers)

    @property
    def is_told_at_gateway(self) -> bool:
        """Return whether completions are reported to a policy of the gateway."""
        return any(policy.observe is not None for policy in self.of_gateway)

    @property
    def is_told_in_instance(self) -> bool:
        """Return whether completions are reported to a policy of the instances."""
        return any(policy.observe is not None for policy in self.of_instance)


def _of_gateway(record: Mechanism | PolicyParams) -> tuple[Any, ...]:
    """Return a record's values for the gateway's policies and the pools' own routers, in the order of their states."""
    own = (policy for router in record.pool_routers for policy in router.policies)
    return (*at_place(record, GATEWAY), *own)


@pytree
class PolicyParams(NumbersOfEachKind):
    """The numbers of one strategy, all traced: those of the policy of each kind.

    `scorer_weights` are float64[scorer] as given; they are normalised where they are used. The policies' random draws
    derive from the scalar `seed`, see policies/seeds.py.
    """

    draws: Int[Array, "draw"] | Absent = None  # see GatewayContext
    pool_routers: tuple[RouterParams, ...] = ()  # of `Mechanism.pool_routers`

    @property
    def of_gateway(self) -> tuple[Any, ...]:
        """Return the numbers of the policies in the order of `Mechanism.of_gateway`."""
        return _of_gateway(self)

    @property
    def of_instance(self) -> tuple[Any, ...]:
        """Return the numbers of the policies in the order of `Mechanism.of_instance`."""
        return tuple(at_place(self, INSTANCE))


@pytree
class ClusterParams(HasParts):
    """The numbers of the cluster, all traced; an instance axis is as long as the instance table.

    `own` holds the numbers of mechanisms that the program has: `ContextLimits`, `AnswerCuts` and `AfterDecode` of
    views.py; `QueueParams` where requests wait at the gateway, `TenantBudgets` where tenants have budgets, and
    `FleetParams` where the cluster policy places instances.
    """

    alpha: Float[Array, "instance 3"]  # µs, µs per prompt token, µs per output token
    # µs, µs per prefill token, µs per decode token, and what a latency model adds; or its numbers from sizes
    beta: Float[Array, "instance coefficient"]
    total_kv_blocks: Int[Array, "instance"]
    max_num_running_reqs: Int[Array, "instance"]
    max_num_scheduled_tokens: Int[Array, "instance"]
    prefill_threshold: Int[Array, "instance slo_class"]  # 0: prompts are not chunked
    num_instances: Int[Array, ""]
    admission_latency_us: Num[Array, ""]  # whole, but where slopes are taken
    routing_latency_us: Num[Array, ""]
    snapshot_refresh_interval_us: Int[Array, ""]
    horizon_us: Int[Array, ""]
    kv_cpu_blocks: Int[Array, "instance"]  # capacity of the CPU tier, 0: none
    transfer_us: Num[Array, "instance"]  # to bring one block back from it
    offload_threshold: Float[Array, "instance"]  # KV utilisation above which the tier acts
    roles: Int[Array, "instance"]  # index into ROLES
    infinity: Float[Array, ""]  # +inf at run time; see exact.py
    signals: SignalParams
    own: Parts


@pytree
class Params:
    """All numbers that a run depends on, besides its requests."""

    cluster: ClusterParams
    policy: PolicyParams


@dataclass(frozen=True)
class EngineShape:
    """Static sizes of a compiled engine; every change compiles again."""

    num_instances: int  # rows of the instance table, at least the active ones
    num_slots: int  # resident requests per instance
    num_requests: int
    num_nodes: int  # shared contents
    path_depth: int  # shared contents on one request's path
    num_keys: int = 1  # distinct prompt keys, for the prefix-affinity routing policy
    node_blocks: int = 1  # longest shared content
    num_copies: int = 4  # live physical copies of one shared block on one instance
    num_chains: int = 2  # step events pending on one instance
    log_capacity: int = 4096
    block_size: int = 16
    clock: str = "int32"
    has_router_eviction: bool = False
    num_routings: int = 0  # touches that the log of an index which evicts holds; 0: one a request
    num_blocks: int = 0  # KV blocks of the largest instance at block level; 0: no eviction
    list_blocks: int = 1  # block level: blocks of one request
    num_shared_blocks: int = 0  # block level: blocks of all nodes
    ring_size: int = 1  # block level: places of a free list, a power of two
    eviction_capacity: int = 1  # block level: preemptions recorded
    window: int = 32  # block level: blocks moved at a time
    has_cpu_tier: bool = False  # of February's revision
    mirror_size: int = 0  # contents that the largest CPU tier of August's revision holds; 0: none
    num_changes: int = 0  # decisions of an autoscaler that places instances, in a whole run
    has_shared_outputs: bool = False  # a later request's prompt holds an earlier one's output
    stall_steps: int = 0  # barren steps after which a run in stretches pauses; 0: one piece

    @property
    def windows_a_step(self) -> int:
        """Return how many windows of blocks a block operation may move per scan step if it need not wait for other
        lanes.
        """
        return max(BLOCKS_A_STEP // self.window, 1)

    @property
    def tracks_outputs(self) -> bool:
        """Return whether the content of blocks of output tokens can affect the run."""
        return self.has_shared_outputs or self.names_blocks

    @property
    def names_blocks(self) -> bool:
        """Return whether each block keeps a bit for being listed in the table: a CPU tier may look up any content."""
        return self.has_cpu_tier or self.has_mirror

    @property
    def has_mirror(self) -> bool:
        """Return whether an instance has the CPU tier of August's revision, see memory/mirror.py."""
        return self.mirror_size > 0

    @property
    def record_dtype(self) -> Any:
        """Return the dtype of times on the host: float64 on the continuous clock, else int64."""
        return np.float64 if self.is_continuous else np.int64

    @property
    def clock_dtype(self) -> Any:
        """Return the clock's dtype: int32, int64 or float64, which holds whole µs, or any on a continuous clock."""
        return np.dtype("float64" if self.is_continuous else self.clock)

    @property
    def is_continuous(self) -> bool:
        """Return whether times keep fractions of a microsecond, unlike in the reference."""
        return self.clock == "continuous"
