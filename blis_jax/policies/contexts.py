"""Contexts that policies read, answers of policies that act on the cluster, and the functions of which a policy
consists.

Nothing here imports JAX, so a command can list policies before it computes anything.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, TypedDict

from blis_jax.core.pytrees import pytree
from blis_jax.core.types import Absent, RequestView, Snapshots

if TYPE_CHECKING:
    from collections.abc import Callable

    import jax
    from jaxtyping import Array, Bool, Float, Int

    from blis_jax.core.types import EngineShape
    from blis_jax.core.views import FleetView
    from blis_jax.policies.numbers import SourceFigure


@pytree
class LeadingContents:
    """The contents that each prompt shares with other prompts, from its first block on."""

    content: Int[Array, "*prompt path"]  # equal numbers: equal prompts up to the content's end
    start: Int[Array, "*prompt path"]  # its first block
    length: Int[Array, "*prompt path"]  # its blocks, 0 past the end


@pytree
class Outstanding:
    """Prompts sent to the instances that are not yet completely in a step, `[instance, slot]`.

    The router knows at once what it has sent, unless requests in flight do not count; it learns that a prompt is in a
    step when it next reads the load. Where `is_there` is false, the other fields are junk. With stale signals there are
    twice as many slots: prompts at the last reading, and prompts sent since.
    """

    is_there: Bool[Array, "instance slot"]
    slo_class: Int[Array, "instance slot"]
    input_len: Int[Array, "instance slot"]  # prompt tokens
    expected_blocks: Int[Array, "instance slot"]  # blocks of the prompt that the router's index had
    arrival_us: Array  # clock dtype


@pytree
class GatewayContext:
    """A request at admission or routing, and the cluster as the router sees it at that time."""

    request: RequestView  # scalars
    num_prompt_blocks: Int[Array, ""]  # full blocks of the prompt
    prompt_key: Int[Array, ""]  # equal for two requests iff their last full prompt blocks are
    snapshots: Snapshots
    now_us: Array  # clock dtype
    key: Array | Absent  # random key of this decision and this policy; unused, it costs nothing
    # routing only: the weighted sum of the scorers, or zeros
    scores: Float[Array, "instance"] | Absent = None
    # routing: the picker's instance by these scores; admission: the router's
    picked: Int[Array, ""] | Absent = None
    run_key: Array | Absent = None  # one key for the whole run, for hashes
    contents: LeadingContents | Absent = None
    # only where requests move (Policies.cluster, Policies.hand_over), else None:
    # the instance that the request was routed to first, -1: not routed before
    came_from: Int[Array, ""] | Absent = None
    computed_tokens: Int[Array, ""] | Absent = None  # prompt tokens whose KV moves with the request
    # whether the hand-over policy's `pool` sends the request to the decode pool
    is_decode: Bool[Array, ""] | Absent = None
    block_size: Int[Array, ""] | Absent = None  # tokens of a KV block; there in every run
    draws: Int[Array, "draw"] | Absent = None  # uniform below 2^31: BLIS's stream
    outstanding: Outstanding | Absent = None
    has_session: Bool[Array, ""] | Absent = None  # the request is a turn of a session
    # index of the request's LoRA adapter among the declared adapters, -1: no adapter
    adapter: Int[Array, ""] | Absent = None
    # routing only: every scorer's score, not cut to 0 to 1, and its weight's share of all weights
    scorer_scores: Float[Array, "scorer instance"] | Absent = None
    scorer_shares: Float[Array, "scorer"] | Absent = None


@pytree
class Pool:
    """The instances to which a request may be routed, and whether the decode pool's router chooses among them."""

    instances: Bool[Array, "instance"]
    is_decode: Bool[Array, ""]


@pytree
class PickerContext:
    """The scores from which a picker chooses an instance, `[instance]`."""

    scores: Float[Array, "instance"]
    is_eligible: Bool[Array, "instance"]
    request: RequestView  # scalars
    key: Array | Absent
    draws: Int[Array, "draw"] | Absent = None  # see GatewayContext


@pytree
class QueueContext:
    """The slots of one instance from which a waiting request is chosen, `[slot]` unless said otherwise.

    Slots that are not waiting hold junk. The policy is called once for every request that a step admits.
    """

    request: RequestView
    is_waiting: Bool[Array, "slot"]
    queued_us: Array  # clock dtype
    num_expected_blocks: Int[Array, "slot"]  # prompt blocks that the router expected to be cached
    queue_depth: Int[Array, ""]  # requests waiting when the step began
    now_us: Array  # scalar, clock dtype
    instance: Int[Array, ""]
    key: Array | Absent  # the same key for all calls in one step
    num_cached_blocks: Int[Array, "slot"] | Absent = None
    priority: Float[Array, "slot"] | Absent = None  # schedulers only
    contents: LeadingContents | Absent = None  # `[slot, path]`
    # number that the router sent along with each request, 0 if it sends none
    handed: Float[Array, "slot"] | Absent = None


@pytree
class SourceContext:
    """The cluster at an event of a user's source, before everything else that happens at `now_us`."""

    now_us: Array  # clock dtype
    key: Array | Absent
    num_arrived: Int[Array, ""]  # requests that have come to admission so far
    load: Int[Array, "instance"]  # requests that run, wait or are on their way to the queue
    instance_of: Int[Array, "request"]  # in order of arrival; below 0: not sent anywhere (yet)


@pytree
class Happening:
    """The effects of a source's event, besides the change of the source's own state."""

    # int32: the number of a request, in order of arrival, that leaves its instance as if its time were up, -1: none;
    # a request that is not on an instance continues. Only with `gives_up`
    gives_up: Int[Array, ""] | int = -1


@pytree
class VictimContext:
    """The batch of one instance whose blocks have run out, `[slot]` unless said otherwise.

    Slots that do not run hold junk. The policy is called once for every request that a step evicts.
    """

    request: RequestView
    is_running: Bool[Array, "slot"]
    place: Int[Array, "slot"]  # grows from the first of the batch to the last
    # tokens whose KV the request holds; in this step only those already allocated
    num_tokens: Int[Array, "slot"]
    now_us: Array  # start of the step, scalar, clock dtype
    instance: Int[Array, ""]
    # blocks that no other request holds
    num_own_blocks: Int[Array, "slot"] | Absent = None


@pytree
class OffloadContext:
    """Blocks that may go to the CPU tier of one instance, `[block]` unless said otherwise; some entries hold junk.

    In August's revision the entries are blocks that the batch holds, and the policy is called after every step. In
    February's they are free blocks, and the policy is called when a request frees blocks while the GPU's use is above
    the threshold.
    """

    request: RequestView  # August: the block's owner; February: the content's last user
    num_takers: Int[Array, "block"]  # uses of the content by requests here, found or computed
    instance: Int[Array, ""]
    # only in February's revision, else None; scalars:
    now_us: Array | Absent = None  # start of the step, clock dtype
    num_blocks: Int[Array, ""] | Absent = None  # KV blocks of the GPU
    num_used_blocks: Int[Array, ""] | Absent = None  # blocks that requests hold
    num_waiting_blocks: Int[Array, ""] | Absent = None  # blocks for the prompts that wait
    num_running: Int[Array, ""] | Absent = None  # requests in the batch


@pytree
class DraftContext:
    """A composed step of one instance, before its batch drafts tokens for the next step; all scalars.

    Waiting requests are those known when that step began, completed requests have left the batch, and drafts are
    counted over all steps so far.
    """

    num_running: Int[Array, ""]  # requests in the batch
    num_decode: Int[Array, ""]  # requests that draft
    num_waiting: Int[Array, ""]
    num_blocks: Int[Array, ""]  # KV blocks of the instance
    num_used_blocks: Int[Array, ""]
    num_drafts: Int[Array, ""]  # verifications of a request's drafts
    num_draft_tokens: Int[Array, ""]
    num_accepted_tokens: Int[Array, ""]
    # drafts that `speculative_config` allows for this batch, and at most
    num_speculative_tokens: Int[Array, ""]
    most_speculative_tokens: Int[Array, ""]
    now_us: Array  # end of the step, clock dtype
    instance: Int[Array, ""]


@pytree
class Completion:
    """A completed request, as passed to a policy's `observe`; times in µs, in the clock's dtype."""

    request: RequestView  # scalars
    instance: Int[Array, ""]
    num_output_tokens: Int[Array, ""]
    ttft_us: Array
    e2e_us: Array
    completed_us: Array


@pytree
class ClusterContext:
    """The cluster at a decision of a cluster policy; every instance event before `now_us` has happened."""

    snapshots: Snapshots
    is_up: Bool[Array, "instance"]
    now_us: Array  # clock dtype
    key: Array | Absent
    # requests that have come to admission so far, shed ones included
    num_arrived: Int[Array, ""] | Absent = None
    is_paid: Bool[Array, "instance"] | Absent = None  # held, or still busy
    fleet: FleetView | Absent = None


@pytree
class ClusterChange:
    """A change of the cluster by a cluster policy.

    An instance that goes down gets no more requests, and finishes those that it runs. If its queue leaves, requests
    that wait or are on their way into the queue are routed again after the delay. An instance that stops finishes only
    the step in progress: its queue leaves, and its running requests are lost, or are computed from the start on other
    instances after the same delay. An instance that comes up empty has empty caches.

    An instance's cost is counted while it is up or held, and then until the end of its last step.
    """

    is_up: Bool[Array, "instance"]
    queue_leaves: Bool[Array, "instance"]
    delay_us: Array | float  # before they are routed again, at least 0
    stops: Bool[Array, "instance"] | bool = False
    loses: Bool[Array, "instance"] | bool = False  # with `stops`: running requests are lost
    holds: Bool[Array, "instance"] | bool = False  # paid for while down, such as while starting
    # the router's signals are as new as after a decision of the gateway
    looked: Bool[Array, ""] | bool = False
    ordered: Int[Array, "instance"] | int = 0  # number of the order for it, 0: none
    outcome: Int[Array, ""] | int = 0  # reason to end the run, 0: none


@pytree
class HandOverContext:
    """A request whose prompt is completed by the step in progress, and that has more than one output token."""

    request: RequestView  # scalars
    instance: Int[Array, ""]
    is_up: Bool[Array, "instance"]
    role: Int[Array, "instance"]  # index into ROLES
    now_us: Array  # start of the step, clock dtype
    key: Array | Absent
    # under way in the cluster, this one included; only in blis-2026-08
    num_transfers: Int[Array, ""] | Absent = None


@pytree
class HandOver:
    """Whether a request moves on with its KV when the step ends, and how long the transfer takes.

    When the transfer ends, the request is routed again (`GatewayContext.computed_tokens` is then its prompt length) and
    generates its remaining tokens on the chosen instance. If transfers share a link, a transfer takes `link_us` longer
    for every transfer from the same instance that is in progress when it starts; transfers already in progress are not
    slowed down.
    """

    moves: Bool[Array, ""]
    delay_us: Array
    # the part of `delay_us` for which it has the link to itself; 0: links are not shared
    link_us: Array | float = 0.0


# --- functions ------------------------------------------------------------------------------------

if TYPE_CHECKING:
    Context = (
        GatewayContext | PickerContext | QueueContext | SourceContext | VictimContext | OffloadContext
        | ClusterContext | HandOverContext | DraftContext
    )  # fmt: skip
    # (params, state, context) -> (decision, state), traced by JAX: pure, of fixed shapes; `Kind.returns` explains the
    # decision of each kind
    DecideFn = Callable[[Any, Any, Any], tuple[Any, Any]]
    # (params, shape): the state before the first decision
    StartFn = Callable[[Any, EngineShape], Any]
    # (params, state): when a cluster policy or an event source acts next, µs, after its last act; infinity if never
    NextTimeFn = Callable[[Any, Any], jax.Array]
    # (params, state, instance, time_us): µs of a step that begins now; `time_us` is the latency model's, not rounded
    SourceStepTimeFn = Callable[[Any, Any, jax.Array, jax.Array], jax.Array]
    # instances to which a request may be routed, and by which router; if none of them is up, to any instance that is
    PoolFn = Callable[[Any, GatewayContext], Pool]
    # bool: whether the prompt is computed elsewhere than on the instance that will make the tokens
    SplitsFn = Callable[[Any, GatewayContext, jax.Array], jax.Array]
    # called once a request has been routed
    RoutedFn = Callable[[Any, Any, GatewayContext, jax.Array], Any]
    # float64 sent along with a request to the chosen instance; of several policies, their sum
    HandsFn = Callable[[Any, GatewayContext, jax.Array], jax.Array]
    # called once per completed request, in order of time
    ObserveFn = Callable[[Any, Any, Completion], Any]


class PolicyParts(TypedDict, total=False):
    """The fields of a `Policy` besides its function, numbers and memory, by name."""

    keeps_own_index: bool
    is_random: bool | Callable[[Any], bool]
    next_time: NextTimeFn
    comes_last: NextTimeFn
    step_time: SourceStepTimeFn
    gives_up: bool
    figures: tuple[SourceFigure, ...]
    hands: HandsFn
    routed: RoutedFn
    pool: PoolFn
    splits: SplitsFn
