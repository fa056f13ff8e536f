"""Limits of requests, the machines as a cluster policy sees them, and a step's batch as a latency model sees it.

Each exists only where a profile has it or a policy reads it. Instances have one row each, in the order in which they
were created; a row is never reused.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from blis_jax.core.pytrees import pytree
from blis_jax.core.types import Absent

if TYPE_CHECKING:
    import jax
    from jaxtyping import Array, Bool, Float, Int

# --- requests -------------------------------------------------------------------------------------


@pytree
class ContextLimits:
    """The longest context of a request, prompt and answer, in tokens: one number, or one per instance."""

    most: Int[Array, "..."]


@pytree
class AnswerCuts:
    """The total length in tokens, prompt and answer, at which a decode pool cuts an answer short, where it may."""

    at: Int[Array, "instance"]


@pytree
class AfterDecode:
    """Time that is added to E2E but not to the other latencies, where the profile has it, µs."""

    us: Int[Array, "instance"]


# --- machines -------------------------------------------------------------------------------------


@pytree
class FleetParams:
    """Nodes, kinds of GPU, and draws from the reference's random streams; all traced."""

    node_kind: Int[Array, "node"]  # of its GPUs, a number
    node_gpus: Int[Array, "node"]
    gpus_each: Int[Array, ""]  # GPUs of an instance, all on one node
    # False: no instance can be placed, and the first ones are there at once
    has_nodes: Bool[Array, ""]
    num_first: Int[Array, ""]  # instances to begin with
    first_node: Int[Array, "instance"]  # of the first instances; 0 in other rows
    row_kind: Int[Array, "instance"]  # the kind of GPU that the row's numbers are of
    drain_rank: Int[Array, "instance"]  # least first: the order of the instances' names as texts
    rank_up: Int[Array, "kind"]  # least first: the cheapest kind
    rank_down: Int[Array, "kind"]  # least first: the dearest kind
    # standard normal numbers of the stream "instance-loading"
    loading_draws: Float[Array, "instance"]
    scrape_draws: Float[Array, "change"]  # likewise of the stream "autoscaler"
    is_endless: Bool[Array, ""]  # no horizon ends the run


@pytree
class FleetView:
    """What a cluster policy that places instances reads beside the snapshots."""

    params: FleetParams
    total_kv_blocks: Int[Array, "instance"]
    block_size: Int[Array, ""]
    has_more: Bool[Array, ""]  # some request has not arrived yet
    has_work: Bool[Array, "instance"]  # something waits there or runs
    # clock[instance]: the latest event that left the instance without work, -1: none
    emptied_us: jax.Array
    is_sent: Bool[Array, "instance"]  # a request has been sent there at this very time
    # clock[instance]: when the next request enters the queue, never() if none is on its way
    queued_us: jax.Array
    # clock[instance]: the next event that changes nothing, never() if there is none
    idle_event_us: jax.Array


# --- the batch of a step --------------------------------------------------------------------------


@pytree
class Members:
    """The members of a batch by slot; entries of slots outside the batch are 0.

    A model reads the fields that it needs; the others cost nothing in a compiled program.
    """

    in_prefill: Bool[Array, "slot"]  # when the step began
    new_tokens: Int[Array, "slot"]  # counted in this step; in decode 1
    progress: Int[Array, "slot"]  # tokens computed before; 0 in the step that schedules it
    context: Int[Array, "slot"]  # tokens in its KV cache when the step ends
    in_step: Bool[Array, "slot"]  # has new tokens
    in_decode: Bool[Array, "slot"]  # has one new token after its prompt
    input_len: Int[Array, "slot"]  # tokens of the whole prompt
    order: Int[Array, "slot"]  # place in the batch: a smaller number comes earlier


@pytree
class StepBatch:
    """The batch as a latency model sees it.

    A member that the token budget did not reach counts with the tokens of an earlier step, as in the reference; in
    decode only the totals include them.
    """

    num_prefill_tokens: Int[Array, ""]
    num_decode_tokens: Int[Array, ""]
    members: Members | Absent = None  # where the model asks for them
