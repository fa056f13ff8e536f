"""The machines that instances may be placed on, and what a cluster policy that places instances knows of them.

Only where a cluster policy asks for it with `reads_fleet`. Instances have a row each in the order in which they were
made; a row is never used again.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from blis_jax.core.types import pytree

if TYPE_CHECKING:
    from jaxtyping import Array, Bool, Float, Int


@pytree
class FleetParams:
    """Nodes, kinds of GPU, and the reference's draws; all traced."""

    node_kind: Int[Array, "node"]  # of its GPUs, a number
    node_gpus: Int[Array, "node"]
    gpus_each: Int[Array, ""]  # GPUs of an instance, all on one node
    has_nodes: Bool[
        Array, ""
    ]  # False: no instance can be placed, and the first ones are there at once
    num_first: Int[Array, ""]  # instances to begin with
    first_node: Int[Array, "instance"]  # of the first instances; 0 in other rows
    row_kind: Int[Array, "instance"]  # the kind of GPU that the row's numbers are of
    drain_rank: Int[Array, "instance"]  # least first: the order of the instances' names as texts
    rank_up: Int[Array, "kind"]  # least first: the cheapest kind
    rank_down: Int[Array, "kind"]  # least first: the dearest kind
    loading_draws: Float[
        Array, "instance"
    ]  # standard normal numbers of the stream "instance-loading"
    scrape_draws: Float[Array, "change"]  # likewise of the stream "autoscaler"
    is_endless: Bool[Array, ""]  # no horizon ends the run


@pytree
class FleetView:
    """What a cluster policy that places instances knows besides the snapshots."""

    params: FleetParams
    total_kv_blocks: Int[Array, "instance"]
    block_size: Int[Array, ""]
    has_more: Bool[Array, ""]  # some request has not arrived yet
    has_work: Bool[Array, "instance"]  # something waits there or runs
    emptied_us: (
        Any  # clock[instance]: the latest event that left the instance without work, -1: none
    )
    is_sent: Bool[Array, "instance"]  # a request has been sent there at this very time
    queued_us: Any  # clock[instance]: when the next request enters the queue, never() if none is on its way
    idle_event_us: (
        Any  # clock[instance]: the next event that changes nothing, never() if there is none
    )
