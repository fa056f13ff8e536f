"""What the engine's parts hand to each other: sentinels, views and contracts.

When it runs, this module imports nothing of ours but the rules of revisions; what it imports for types alone is under
`TYPE_CHECKING`. Times are whole microseconds in the clock's dtype.
"""

from __future__ import annotations

import sys
import threading
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, TypeVar, dataclass_transform

import numpy as np

from blis_jax.core.revision_rules import FEBRUARY_RULES, REFERENCE_DEFECTS, Defects, RevisionRules

if TYPE_CHECKING:
    import jax
    from jaxtyping import Bool, Float, Int

    from blis_jax.engine.gateway.routers import Router
    from blis_jax.engine.gateway.signals import SignalParams
    from blis_jax.latency.contract import LatencyModel
    from blis_jax.policies.contract import Policy

T = TypeVar("T")

NO_INSTANCE = -1  # a request that was not routed
NO_HORIZON = 2**63 - 1  # µs; the run ends with its last request
REJECTED = -2  # in the instance column: turned away by admission
UNROUTED = -4  # likewise: no instance was up when it was to be routed
NO_REQUEST = -1  # a free slot
NO_DRAW = -3  # the choice of a policy that has used up its stream
NO_NODE = -1  # end of a request's path of shared contents
LAST = np.int32(2**31 - 1)  # an order, step index or block count beyond every real one
BLOCKS_A_STEP = 64  # KV blocks that an operation may move in one scan step
ROLES = ("both", "prefill", "decode")  # what an instance is for
ENCODE, IDLE = len(ROLES), len(ROLES) + 1  # likewise in August's revision: it computes nothing
SLO_CLASSES = ("", "critical", "standard", "sheddable", "batch", "background")
STANDARD_NONE, CRITICAL, STANDARD, SHEDDABLE, BATCH, BACKGROUND = range(len(SLO_CLASSES))


def never(dtype: Any) -> Any:
    """A time after every event, in the clock's dtype; twice it must not overflow in sums we form."""
    if np.issubdtype(dtype, np.floating):
        return np.dtype(dtype).type(2.0**61)
    return np.dtype(dtype).type(np.iinfo(dtype).max)


@dataclass_transform(frozen_default=True)
def pytree(cls: type[T]) -> type[T]:
    """A frozen dataclass whose fields are all traced arrays (or pytrees of them).

    Where JAX has not started, the class is registered with it when the first instance is made.
    """
    made: type[T] = dataclass(frozen=True)(cls)
    if "jax" in sys.modules:
        _register(made)
    else:
        made.__new__ = staticmethod(_new_and_register)  # type: ignore[method-assign]
    return made


_REGISTERED: set[type] = set()
_REGISTERING = threading.Lock()  # two mechanisms compile side by side, and JAX takes a class once


def _register(cls: type) -> None:
    import jax

    with _REGISTERING:
        if cls not in _REGISTERED:
            jax.tree_util.register_dataclass(cls)
            _REGISTERED.add(cls)


def _new_and_register(cls: type, *_: Any, **__: Any) -> Any:
    if cls not in _REGISTERED:
        _register(cls)
    return object.__new__(cls)


@pytree
class RequestView:
    """What a policy may know about a request; the true output length is not in it.

    Scalars at admission and routing, `[slot]` for priorities and schedulers.
    """

    slo_class: Int[jax.Array, "..."]  # index into SLO_CLASSES
    input_len: Int[jax.Array, "..."]  # prompt tokens
    arrival_us: jax.Array  # clock dtype
    tenant: Int[jax.Array, "..."]
    tie_rank: Int[jax.Array, "..."]  # rank by (arrival, id as text)
    queue_rank: Int[jax.Array, "..."]  # order of entry among those queued in one microsecond


@pytree
class Snapshots:
    """What the router sees of every instance `[instance]`; KV fields may be stale."""

    effective_load: Int[jax.Array, "instance"]  # queued + running + pending
    queue_depth: Int[jax.Array, "instance"]
    batch_size: Int[jax.Array, "instance"]
    num_pending: Int[jax.Array, "instance"]
    kv_utilization: Float[jax.Array, "instance"]
    free_kv_blocks: Float[jax.Array, "instance"]
    cache_hit_rate: Float[jax.Array, "instance"]
    prefix_match_blocks: Int[jax.Array, "instance"]  # leading prompt blocks in the router's index
    num_rejected: Int[jax.Array, ""]
    is_active: Bool[jax.Array, "instance"]  # part of the cluster (the table may be larger)
    role: Int[jax.Array, "instance"]  # index into ROLES
    # only for a policy with `reads_cpu_tier` in a cluster with a CPU tier, else None; as stale as the KV fields:
    pending_transfer_us: Any = None  # float64[instance]: reloads that the next step will wait for
    kv_thrashing_rate: Any = None  # float64[instance]: reloads soon after their offload ÷ offloads
    # int32[instance]: leading prompt blocks in the router's copy of the caches; only with `reads_caches`
    cached_prompt_blocks: Any = None
    # float64[instance]: µs for this prompt alone, see prompt_time.py; only with `reads_prompt_time`
    prompt_us: Any = None


@dataclass(frozen=True)
class Mechanism:
    """The functions of one strategy: static, hashable, compared by identity of module-level functions."""

    admission: Policy
    routing: Policy
    scorers: tuple[Policy, ...]
    picker: Policy
    priority: Policy
    scheduler: Policy
    latency: LatencyModel
    cluster: Policy | None = None  # None: all instances stay up
    hand_over: Policy | None = None  # None: requests stay where they are
    victim: Policy | None = None  # who is evicted; None: as `evicts_lowest_priority` says
    offload: Policy | None = None  # what goes to the CPU tier; None: as the revision does
    decode: Router | None = None  # routes in the decode pool; None: the cluster's router does
    prefill: Router | None = None  # likewise in the prefill pool
    encodes: bool = False  # some requests are also routed in an encode pool
    ages_signals: bool = False  # the router's view of load is old or seen in phases, see signals.py
    delays_index: bool = False  # the router's index learns of a routing later
    loses_index: bool = False  # or never
    num_gateways: int = 1  # none knows of another's decisions, see router_view/gateways.py
    evicts_lowest_priority: bool = False  # preempt by priority instead of the batch's tail
    has_queue: bool = False  # admitted requests wait at the gateway, see phases/flow_control.py
    has_budgets: bool = False  # tenants over their share are turned away, see phases/budgets.py
    evicts_in_flight: bool = False  # and instances give up requests for them
    is_precise: bool = False  # the KV caches feed the router's prefix index, not the routings
    defects: Defects = REFERENCE_DEFECTS
    rules: RevisionRules = FEBRUARY_RULES

    @property
    def of_gateway(self) -> tuple[Policy, ...]:
        """The policies that decide for the cluster, in the order of their states."""
        moving = tuple(one for one in (self.cluster, self.hand_over) if one is not None)
        routers = (one for one in (self.decode, self.prefill) if one is not None)
        own = tuple(policy for router in routers for policy in router.policies)
        return (self.admission, self.routing, *self.scorers, self.picker, *moving, *own)

    @property
    def chooses_victim(self) -> bool:
        """Whether another member than the batch's last may be evicted."""
        return self.evicts_lowest_priority or self.victim is not None

    @property
    def reserves_decode(self) -> bool:
        """Whether requests are split between pools as August's revision does it."""
        return self.hand_over is not None and self.rules.reserves_decode

    @property
    def places_instances(self) -> bool:
        """Whether instances are made while the run goes on, of which no row of the table is used twice."""
        return self.cluster is not None and self.cluster.reads_fleet

    @property
    def common_places(self) -> range:
        """Places in `of_gateway` of the policies that several gateways have in common: those that move things."""
        first = 3 + len(self.scorers)
        return range(first, first + (self.cluster is not None) + (self.hand_over is not None))

    @property
    def num_indices(self) -> int:
        """Prefix indices: one for each gateway, or one that the KV caches feed."""
        return 1 if self.is_precise else self.num_gateways

    @property
    def moves_requests(self) -> bool:
        """Whether requests may leave an instance before they complete, or instances go down."""
        return self.cluster is not None or self.hand_over is not None

    @property
    def of_instance(self) -> tuple[Policy, ...]:
        """The policies that decide inside an instance, in the order of their states."""
        return (self.priority, self.scheduler)

    @property
    def uses_prefix_index(self) -> bool:
        """Whether some policy looks at the router's prefix index."""
        return any(policy.reads_prefix_index for policy in self.of_gateway)

    @property
    def hears_caches(self) -> bool:
        """Whether some policy looks at an index that the KV caches can feed."""
        return any(one.reads_prefix_index and not one.keeps_own_index for one in self.of_gateway)

    @property
    def uses_prompt_keys(self) -> bool:
        """Whether some policy keeps something for every prompt key."""
        return any(policy.reads_prompt_key for policy in self.of_gateway)

    @property
    def reads_cpu_tier(self) -> bool:
        """Whether some policy of the gateway looks at what the CPU tier does."""
        return any(policy.reads_cpu_tier for policy in self.of_gateway)

    @property
    def looks_beyond_queue(self) -> bool:
        """Whether some policy looks at more of waiting requests than their slots: caches, contents, what was handed."""
        return self.reads_handed or any(
            policy.reads_cached_blocks or policy.reads_contents for policy in self.of_instance
        )

    @property
    def reads_handed(self) -> bool:
        """Whether some policy of the instances looks at what the router hands over."""
        return any(policy.reads_handed for policy in self.of_instance)

    @property
    def hands_over_intent(self) -> bool:
        """Whether the router hands something over that somebody looks at."""
        routers = (self.routing, *self.scorers)
        return self.reads_handed and any(policy.hands is not None for policy in routers)

    @property
    def reads_draws(self) -> bool:
        """Whether some policy of the gateway draws from the reference's stream."""
        return any(policy.reads_draws for policy in self.of_gateway)

    @property
    def reads_caches(self) -> bool:
        """Whether some policy of the gateway looks at the router's copy of the caches."""
        return any(policy.reads_caches for policy in self.of_gateway)

    @property
    def reads_prompt_time(self) -> bool:
        """Whether some policy of the gateway looks at how long instances take for a prompt."""
        return any(policy.reads_prompt_time for policy in self.of_gateway)

    @property
    def reads_outstanding(self) -> bool:
        """Whether some policy of the gateway looks at the prompts that instances have still to compute."""
        return any(policy.reads_outstanding for policy in self.of_gateway)

    @property
    def is_told_at_gateway(self) -> bool:
        """Whether some policy of the gateway is told of completions."""
        return any(policy.observe is not None for policy in self.of_gateway)

    @property
    def is_told_in_instance(self) -> bool:
        """Whether some policy of the instances is told of completions."""
        return any(policy.observe is not None for policy in self.of_instance)


@pytree
class PolicyParams:
    """The numbers of one strategy, all traced."""

    admission: Any  # a policy's own numbers, likewise those below
    routing: Any
    scorers: tuple[Any, ...]
    scorer_weights: Float[jax.Array, "scorer"]  # as given; normalised where used
    picker: Any
    priority: Any
    scheduler: Any
    seed: Int[jax.Array, ""]  # of the policies' own random draws, see policies/seeds.py
    cluster: Any = None
    hand_over: Any = None
    victim: Any = None
    offload: Any = None
    draws: Any = None  # int32[draw], see GatewayContext
    decode: Any = None  # RouterParams, of `Mechanism.decode`
    prefill: Any = None  # likewise

    @property
    def of_gateway(self) -> tuple[Any, ...]:
        """In the order of `Mechanism.of_gateway`."""
        moving = tuple(one for one in (self.cluster, self.hand_over) if one is not None)
        routers = (one for one in (self.decode, self.prefill) if one is not None)
        own = tuple(policy for router in routers for policy in router.policies)
        return (self.admission, self.routing, *self.scorers, self.picker, *moving, *own)

    @property
    def of_instance(self) -> tuple[Any, ...]:
        """In the order of `Mechanism.of_instance`."""
        return (self.priority, self.scheduler)


@pytree
class ClusterParams:
    """The numbers of the cluster, all traced; the instance axis is the table's, inactive rows included."""

    alpha: Float[jax.Array, "instance 3"]  # µs, µs per prompt token, µs per output token
    # µs, µs per prefill token, µs per decode token, and what a latency model adds; or its numbers from sizes
    beta: Float[jax.Array, "instance coefficient"]
    total_kv_blocks: Int[jax.Array, "instance"]
    max_num_running_reqs: Int[jax.Array, "instance"]
    max_num_scheduled_tokens: Int[jax.Array, "instance"]
    prefill_threshold: Int[jax.Array, "instance slo_class"]  # 0: prompts are not chunked
    num_instances: Int[jax.Array, ""]
    admission_latency_us: Int[jax.Array, ""]
    routing_latency_us: Int[jax.Array, ""]
    snapshot_refresh_interval_us: Int[jax.Array, ""]
    horizon_us: Int[jax.Array, ""]
    kv_cpu_blocks: Int[jax.Array, "instance"]  # capacity of the CPU tier, 0: none
    transfer_us: Int[jax.Array, "instance"]  # to bring one block back from it
    offload_threshold: Float[jax.Array, "instance"]  # KV utilisation above which the tier acts
    roles: Int[jax.Array, "instance"]  # index into ROLES
    infinity: Float[jax.Array, ""]  # +inf at run time; see exact.py
    signals: SignalParams
    max_model_len: Any = None  # int32: tokens of a request, where the profile has a limit
    queue: Any = None  # QueueParams, where requests wait at the gateway
    budgets: Any = None  # TenantBudgets, where tenants have some
    post_decode_us: Any = None  # int64[instance]: added to E2E alone, where the profile has it
    fleet: Any = None  # FleetParams, where the cluster policy places instances


@pytree
class Params:
    """Everything numeric that a run depends on besides its requests."""

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
        """Windows that an operation on blocks may move in one scan step, where it need not wait for other lanes."""
        return max(BLOCKS_A_STEP // self.window, 1)

    @property
    def tracks_outputs(self) -> bool:
        """Whether anything can tell that a block of output tokens carries content."""
        return self.has_shared_outputs or self.names_blocks

    @property
    def names_blocks(self) -> bool:
        """Whether it is kept of every block if the table names it: a CPU tier may ask for any content."""
        return self.has_cpu_tier or self.has_mirror

    @property
    def has_mirror(self) -> bool:
        """Whether some instance has the CPU tier of August's revision, see memory/second_tier/mirror.py."""
        return self.mirror_size > 0

    @property
    def record_dtype(self) -> Any:
        """The dtype of times on the host."""
        return np.float64 if self.is_continuous else np.int64

    @property
    def clock_dtype(self) -> Any:
        """The clock's dtype: int32, int64, or float64 holding whole microseconds or (continuous) any."""
        return np.dtype("float64" if self.is_continuous else self.clock)

    @property
    def is_continuous(self) -> bool:
        """Whether times keep their fractions of a microsecond, unlike the reference's."""
        return self.clock == "continuous"
