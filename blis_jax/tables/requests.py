"""The request table as the engine reads it, and further tables of requests for single mechanisms."""

from __future__ import annotations

import dataclasses
import enum
from typing import TYPE_CHECKING, NamedTuple

import jax.numpy as jnp
from jax import lax

from blis_jax.core.columns import Row, Whole
from blis_jax.core.pytrees import HasParts, Parts, pytree

if TYPE_CHECKING:
    from jaxtyping import Array, Bool, Int, Real


class Request(Row):
    """The given values of a request."""

    input_len: Whole
    output_len: Whole
    slo_class: Whole
    tenant: Whole
    tie_rank: Whole
    queue_rank: Whole
    after_steps: Whole
    prompt_key: Whole


Req = Request.columns


@pytree
class BlockNodes:
    """The node of each shared block, where the router's index receives events of single blocks."""

    node: Int[Array, "shared_block"]


@pytree
class RequestDeadlines:
    """The time on the clock at which each request is given up, never() for none; present if any request has one."""

    at: Real[Array, "request"]


@pytree
class PartRanks:
    """`PartRank` of each request, where KV is reserved."""

    table: Int[Array, "request 4"]


@pytree
class TextRanks:
    """The rank of each request's id as a text, and of its prefill part's id, where there are off-load tiers."""

    of: Int[Array, "request 2"]


@pytree
class Media:
    """Requests that bring images or sound (1), where some requests are encoded."""

    has_some: Int[Array, "request"]


@pytree
class Elsewhere:
    """Requests whose model no instance has, where there may be such requests."""

    is_it: Bool[Array, "request"]


@pytree
class Sessions:
    """Requests that are turns of a session, where a policy reads this."""

    has_one: Bool[Array, "request"]


@pytree
class RequestTargets:
    """Each request's own SLO target, µs, 0 for that of its class; present if any request has its own."""

    us: Int[Array, "request"]


@pytree
class Requests(HasParts):
    """The request table as the engine reads it; one spare row at the end of each axis."""

    table: Int[Array, "request column"]  # see Req; in many lanes also with_paths
    arrival: Array  # clock dtype, never() in padding
    path: Int[Array, "request path"]  # node, or the spare node
    node_start: Int[Array, "node"]
    node_blocks: Int[Array, "node"]
    path_start: Int[Array, "request path"]  # first block of each node on the path, LAST at its end
    path_shift: Int[Array, "request path"]  # see contents.py
    num_shared: Int[Array, "request"]  # leading blocks that are shared
    has_shared: Int[Array, ""]
    is_late: Int[Array, ""]  # a routing decision lies beyond the clock
    is_wide: Int[Array, ""]  # shared contents are longer than the tables
    # BlockNodes, RequestDeadlines, PartRanks, Media, Elsewhere, Sessions, RequestTargets
    own: Parts


class PartRank(enum.IntEnum):
    """Columns of `PartRanks.table`."""

    WHOLE = 0  # rank by (arrival, id as text) of a request that is not split
    PREFILL = 1  # of its prefill part
    DECODE = 2  # of its decode part
    PREFILL_TEXT = 3  # of the prefill part's id as a text alone


class Nodes(NamedTuple):
    """The shared contents on one request's path."""

    node: Int[Array, "path"]  # the spare node where the path has ended
    start: Int[Array, "path"]  # first block
    length: Int[Array, "path"]  # blocks, 0 past the path's end


def with_paths(requests: Requests) -> Requests:
    """Append the nodes of the requests' paths to the columns of `table`, so that one read returns all of a request."""
    sizes = requests.node_start[requests.path], requests.node_blocks[requests.path]
    table = jnp.concatenate([requests.table, requests.path, *sizes], axis=-1)
    return dataclasses.replace(requests, table=table)


def nodes_of(requests: Requests, request: Int[Array, ""]) -> Nodes:
    """Return the nodes on a request's path."""
    zero, depth, table = jnp.int32(0), requests.path.shape[1], requests.table
    if table.shape[1] == len(Req):
        path = lax.dynamic_slice(requests.path, (request, zero), (1, depth))[0]
        return Nodes(path, requests.node_start[path], requests.node_blocks[path])
    row = lax.dynamic_slice(table, (request, zero), (1, table.shape[1]))[0, len(Req) :]
    return Nodes(row[:depth], row[depth : 2 * depth], row[2 * depth :])
