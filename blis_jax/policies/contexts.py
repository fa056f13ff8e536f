"""What policies are asked with, and what those that act on the cluster answer.

Nothing here imports JAX, so a command can list policies before it computes anything.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from blis_jax.core.types import RequestView, Snapshots, pytree

if TYPE_CHECKING:
    from jaxtyping import Array, Bool, Float, Int


@pytree
class GatewayContext:
    """One request at admission or routing, and the cluster as the router sees it then."""

    request: RequestView  # scalars
    num_prompt_blocks: Int[Array, ""]  # full blocks of the prompt
    prompt_key: Int[Array, ""]  # equal for two requests iff their last full prompt blocks are
    snapshots: Snapshots
    now_us: Array  # clock dtype
    key: Any  # random key of this decision and this policy; unused, it costs nothing
    scores: Any = None  # routing only: float64[instance], the weighted sum of the scorers, or zeros
    picked: Any = None  # routing: the picker's instance by these scores; admission, with `reads_route`: the router's
    run_key: Any = None  # the same in all decisions of a run, for hashes; unused, it costs nothing
    contents: Any = None  # LeadingContents, only for a policy with `reads_contents`
    # only where requests move (Policies.cluster, Policies.hand_over), else None:
    came_from: Any = (
        None  # the instance that the request was routed to first, -1: not routed before
    )
    computed_tokens: Any = None  # prompt tokens whose KV moves with the request
    is_decode: Any = (
        None  # whether the request goes to the decode pool, as the hand-over policy's `pool` says
    )
    block_size: Any = None  # tokens of a KV block; there in every run
    draws: Any = None  # int32[draw], uniform below 2^31: BLIS's stream, only with `reads_draws`
    outstanding: Any = None  # Outstanding, only for a policy with `reads_outstanding`


@pytree
class Pool:
    """The instances that a request may be routed to, and whether the router of the decode pool chooses."""

    instances: Bool[Array, "instance"]
    is_decode: Bool[Array, ""]


@pytree
class PickerContext:
    """The scores among which a picker chooses, `[instance]`."""

    scores: Float[Array, "instance"]
    is_eligible: Bool[Array, "instance"]
    request: RequestView  # scalars
    key: Any
    draws: Any = None  # see GatewayContext


@pytree
class QueueContext:
    """The slots of one instance when a waiting request is to be chosen, `[slot]` unless said otherwise.

    Slots that are not waiting hold junk. A policy is asked again for every request that a step takes.
    """

    request: RequestView
    is_waiting: Bool[Array, "slot"]
    queued_us: Array  # clock dtype
    num_expected_blocks: Int[Array, "slot"]  # prompt blocks that the router expected to be cached
    queue_depth: Int[Array, ""]  # requests waiting when the step began
    now_us: Array  # scalar, clock dtype
    instance: Int[Array, ""]
    key: Any  # the same in all questions of one step
    num_cached_blocks: Any = None  # int32[slot], only for a policy with `reads_cached_blocks`
    priority: Any = None  # float64[slot], schedulers only
    contents: Any = None  # LeadingContents `[slot, path]`, only for a policy with `reads_contents`
    # float64[slot]: what the router handed over, 0 where it hands nothing; only with `reads_handed`
    handed: Any = None


@pytree
class VictimContext:
    """The batch of one instance whose blocks have run out, `[slot]` unless said otherwise.

    Slots that do not run hold junk. A policy is asked again for every request that a step evicts.
    """

    request: RequestView
    is_running: Bool[Array, "slot"]
    place: Int[Array, "slot"]  # grows from the first of the batch to the last
    num_tokens: Int[
        Array, "slot"
    ]  # whose KV it holds, of the step in progress only what it has got so far
    now_us: Array  # start of the step, scalar, clock dtype
    instance: Int[Array, ""]
    # int32[slot]: blocks that no other request holds, only for a policy with `reads_own_blocks`
    num_own_blocks: Any = None


@pytree
class OffloadContext:
    """Contents that may go to the CPU tier of one instance, `[block]` unless said otherwise; some entries hold junk.

    In August's revision these are blocks that the batch holds, and a policy is asked after every step. In February's
    they are free blocks, and a policy is asked when a request gives blocks back while the GPU is fuller than the
    threshold.
    """

    request: RequestView  # August: whose block it is; February: who took the content last
    num_takers: Int[Array, "block"]  # times that requests here took the content, found or computed
    instance: Int[Array, ""]
    # only in February's revision, else None; scalars:
    now_us: Any = None  # start of the step, clock dtype
    num_blocks: Any = None  # int32: KV blocks of the GPU
    num_used_blocks: Any = None  # int32: of these, the ones that requests hold
    num_waiting_blocks: Any = None  # int32: blocks for the prompts that wait
    num_running: Any = None  # int32: requests in the batch


@pytree
class Completion:
    """A request that has completed, as an observer is told; times in µs, clock dtype."""

    request: RequestView  # scalars
    instance: Int[Array, ""]
    num_output_tokens: Int[Array, ""]
    ttft_us: Array
    e2e_us: Array
    completed_us: Array


@pytree
class ClusterContext:
    """The cluster when a cluster policy acts; every instance event before `now_us` has happened."""

    snapshots: Snapshots
    is_up: Bool[Array, "instance"]
    now_us: Array  # clock dtype
    key: Any
    num_arrived: Any = (
        None  # int32: requests that have come to admission so far, shed ones included
    )
    is_paid: Any = None  # bool[instance]: held, or not yet done with what it was given
    fleet: Any = None  # FleetView, only for a policy with `reads_fleet`


@pytree
class ClusterChange:
    """What a cluster policy changes.

    An instance that goes down is routed to no more, and finishes what it runs. Where its queue leaves, requests
    that wait or are on their way into the queue are routed again after the delay. An instance that stops finishes
    the step in progress only: its queue leaves, and what it runs is computed again elsewhere from the start, after
    the same delay, or is lost. An instance that comes up empty has empty caches.

    An instance is paid for while it is up or held, and then until the end of its last step.
    """

    is_up: Bool[Array, "instance"]
    queue_leaves: Bool[Array, "instance"]
    delay_us: Array | float  # before they are routed again, at least 0
    stops: Any = None  # bool[instance]; None: no instance stops
    loses: Any = None  # bool[instance], of those that stop: what they run is lost; None: nothing is
    holds: Any = None  # bool[instance]: paid for though down, such as one that starts; None: none
    looked: Any = (
        None  # bool: the router's signals are as new as after a decision of the gateway; None: no
    )
    ordered: Any = (
        None  # int32[instance]: number of the order for it, 0: none; only with `reads_fleet`
    )
    outcome: Any = None  # int32: what ends the run, 0: nothing does; likewise


@pytree
class HandOverContext:
    """A request whose prompt is computed by the step in progress, with more than one output token to make."""

    request: RequestView  # scalars
    instance: Int[Array, ""]
    is_up: Bool[Array, "instance"]
    role: Int[Array, "instance"]  # index into ROLES
    now_us: Array  # start of the step, clock dtype
    key: Any
    num_transfers: Any = None  # under way in the cluster, this one included; only in blis-2026-08


@pytree
class HandOver:
    """Whether the request moves on with its KV when the step ends, and how long the transfer takes.

    When the transfer ends, it is routed again (`GatewayContext.computed_tokens` is then its prompt length) and
    makes its other tokens there. Where transfers share a link, each takes `link_us` more for every transfer from the
    same instance that is under way when it starts; those that have started are not slowed down.
    """

    moves: Bool[Array, ""]
    delay_us: Array
    link_us: Any = (
        0.0  # the part of `delay_us` for which it has the link to itself; 0: links are not shared
    )
