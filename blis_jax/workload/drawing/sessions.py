"""Multi-turn sessions on the device: their rounds, and the contents that rounds share.

A session that accumulates context is one growing text: a round's prompt consists of the previous round's prompt and
output, and new tokens. So its blocks are cut at the ends of prompts and outputs, and every row with an earlier round in
the table adds two nodes: the new part of the earlier round's prompt, and the earlier round's output.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, NamedTuple

import jax.numpy as jnp
import numpy as np
from jax import lax

from blis_jax.workload.contents import NO_NODE
from blis_jax.workload.drawing.plan import PlanShape
from blis_jax.workload.drawing.samplers import LONGEST_TOKENS
from blis_jax.workload.table import NO_SESSION

if TYPE_CHECKING:
    from jaxtyping import Array, Bool, Int32, Int64


LAST_NODE = np.iinfo(np.int32).max  # sorts behind every node


def round_starts(
    first_us: Int64[Array, " session"],
    output_len: Int32[Array, "session round"],
    think_time_us: Int64[Array, ""],
) -> Int64[Array, "session round"]:
    """Return the arrival of every round in µs: after the previous arrival, 1 µs per output token and the think time."""
    gap_us = output_len.astype(jnp.int64) + think_time_us
    return first_us[:, None] + jnp.cumsum(gap_us, axis=1) - gap_us


def accumulated(
    new_len: Int32[Array, "session round"], output_len: Int32[Array, "session round"]
) -> tuple[Int32[Array, "session round"], Int32[Array, "session round"]]:
    """Return each round's context length (tokens of all earlier rounds) and prompt length (context and new tokens)."""
    round_len = new_len.astype(jnp.int64) + output_len.astype(jnp.int64)
    context_len = jnp.minimum(jnp.cumsum(round_len, axis=1) - round_len, LONGEST_TOKENS)
    prompt_len = jnp.minimum(context_len + new_len.astype(jnp.int64), LONGEST_TOKENS)
    return context_len.astype(jnp.int32), prompt_len.astype(jnp.int32)


class Draws(NamedTuple):
    """Token counts of all draws without prefixes, and the draws that are the table's rows."""

    context_len: Int32[Array, " draw"]  # of all earlier rounds, 0 without accumulation
    prompt_len: Int32[Array, " draw"]
    draw: Int64[Array, " request"]
    client: Int32[Array, " request"]
    is_request: Bool[Array, " request"]


class SessionRows(NamedTuple):
    """The columns of the table that sessions determine; their nodes are numbered after those of the prefix groups."""

    session: Int32[Array, " request"]  # numbered by first appearance
    round_index: Int32[Array, " request"]
    first_alike: Int32[Array, " request"]  # first row with the same last full prompt block
    path_nodes: Int32[Array, "request depth"]
    node_start: Int32[Array, " session_node"]
    node_blocks: Int32[Array, " session_node"]


def no_sessions(shape: PlanShape) -> SessionRows:
    """Return the session columns of a table in which every row is a single-turn request."""
    num, nothing = shape.num_requests, jnp.zeros(0, jnp.int32)
    path = jnp.full((num, shape.path_depth), NO_NODE, jnp.int32)
    rows = jnp.arange(num, dtype=jnp.int32)
    return SessionRows(jnp.full(num, NO_SESSION, jnp.int32), rows * 0, rows, path, nothing, nothing)


def session_rows(shape: PlanShape, draws: Draws) -> SessionRows:
    """Return the sessions of the rows, and the contents shared by rounds of the same session."""
    num = shape.num_requests
    sizes = [client.num_draws for client in shape.clients]
    first_of_client = jnp.asarray(np.cumsum([0, *sizes[:-1]]), jnp.int64)[draws.client]
    num_rounds = jnp.asarray([client.num_rounds for client in shape.clients], jnp.int32)
    num_rounds = num_rounds[draws.client]
    is_session = jnp.asarray([client.session_rounds > 0 for client in shape.clients])
    is_session = is_session[draws.client] & draws.is_request
    place = draws.draw - first_of_client
    round_index = jnp.where(is_session, (place % num_rounds.astype(jnp.int64)), 0)
    first_draw = draws.draw - round_index
    round_index = round_index.astype(jnp.int32)

    target = jnp.where(draws.is_request, draws.draw, shape.num_draws)
    row_of_draw = jnp.full(shape.num_draws, num, jnp.int32)
    row_of_draw = row_of_draw.at[target].set(jnp.arange(num, dtype=jnp.int32), mode="drop")
    number = jnp.cumsum((is_session & (round_index == 0)).astype(jnp.int32)) - 1
    session = jnp.where(is_session, number[row_of_draw[first_draw]], NO_SESSION)
    plain = no_sessions(shape)._replace(session=session, round_index=round_index)
    if not shape.has_shared_outputs:
        return plain
    grows = jnp.asarray([client.is_accumulating for client in shape.clients])[draws.client]
    turn = lax.iota(jnp.int32, shape.accumulated_rounds)[None, :]
    drawn = jnp.minimum(first_draw[:, None] + turn.astype(jnp.int64), shape.num_draws - 1)
    is_round = (is_session & grows)[:, None] & (turn < num_rounds[:, None])
    row_of_round = jnp.where(is_round, row_of_draw[drawn], num)
    return _with_nodes(shape, draws, plain, row_of_round)


def _with_nodes(
    shape: PlanShape, draws: Draws, plain: SessionRows, row_of_round: Int32[Array, "request round"]
) -> SessionRows:
    """Return `plain` with nodes, paths and equal prompts added; `row_of_round` has the rows of each row's session."""
    num, own_round = shape.num_requests, plain.round_index[:, None]
    has_previous = (row_of_round[:, 0] < num) & (plain.round_index > 0)
    previous = jnp.maximum(draws.draw - 1, 0)
    begin = draws.context_len[previous] // shape.block_size
    prompt_end = draws.prompt_len[previous] // shape.block_size
    end = draws.context_len[draws.draw] // shape.block_size
    start = jnp.stack([begin, prompt_end], axis=1)
    blocks = jnp.where(has_previous[:, None], jnp.stack([prompt_end, end], axis=1) - start, 0)
    number = 2 * (jnp.cumsum(has_previous.astype(jnp.int32)) - 1)
    node = number[:, None] + lax.iota(jnp.int32, 2)[None, :]
    target = jnp.where(has_previous[:, None], node, shape.num_session_nodes)
    nothing = jnp.zeros(shape.num_session_nodes, jnp.int32)

    # a round holds the nodes that it, and each round before it, share with the next round
    turn = lax.iota(jnp.int32, row_of_round.shape[1])[None, :]
    row = jnp.minimum(row_of_round, num - 1)
    is_held = (row_of_round < num) & (turn <= own_round + 1) & (turn > 0)
    is_held = is_held[:, 1:, None] & (blocks[row[:, 1:]] > 0)
    path = jnp.where(is_held, node[row[:, 1:]] + shape.num_groups, LAST_NODE).reshape(num, -1)
    path = jnp.sort(path, axis=1)  # later rounds have later nodes; empty ones go to the end

    own_end = draws.prompt_len[draws.draw] // shape.block_size
    is_alike = has_previous & (own_end == prompt_end) & (own_end > 0)
    begins = ~is_alike[row] & (turn <= own_round)
    first = jnp.max(jnp.where(begins, turn, 0), axis=1, keepdims=True)
    first_alike = jnp.take_along_axis(row_of_round, first, axis=1)[:, 0]
    return plain._replace(
        first_alike=jnp.where(row_of_round[:, 0] < num, first_alike, plain.first_alike),
        path_nodes=jnp.where(path == LAST_NODE, NO_NODE, path),
        node_start=nothing.at[target].set(start, mode="drop"),
        node_blocks=nothing.at[target].set(blocks, mode="drop"),
    )
