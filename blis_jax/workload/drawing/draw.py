"""Draw a request table on the device from a JAX key: a pure function for jit, vmap and map.

Every client draws from its own keys (client, then purpose), so a change of one client's law does not change other
clients' draws; more draws per client extend the same stream. An arrival of a multi-turn client is a session, whose
rounds are drawn together with the arrival.
"""

from __future__ import annotations

import dataclasses
from collections import defaultdict
from functools import partial
from typing import TYPE_CHECKING, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np

from blis_jax.core.exact import exact_quotient
from blis_jax.errors import ConfigError
from blis_jax.workload.drawing.plan import (
    ClientShape,
    DrawPlan,
    PlanParams,
    PlanShape,
    compile_plan,
    longest_node,
    params_for,
)
from blis_jax.workload.drawing.plan_params import ClientParams
from blis_jax.workload.drawing.samplers import GAP_LAWS, whole_tokens
from blis_jax.workload.drawing.sessions import (
    Draws,
    accumulated,
    no_sessions,
    round_starts,
    session_rows,
)
from blis_jax.workload.table import NEVER_US, NO_PROMPT_KEY, RequestTable, text_rank

if TYPE_CHECKING:
    from jaxtyping import Array, Bool, Float64, Int32, Int64, PRNGKeyArray

__all__ = [
    "DrawPlan",
    "PlanParams",
    "PlanShape",
    "compile_plan",
    "draw",
    "longest_node",
    "params_for",
]

MOST_PADDING = 2.25  # draws made over draws used, in clients that are drawn together


class _Stream(NamedTuple):
    """One client's draws; rejected and inactive draws have the arrival NEVER_US."""

    arrival_us: Int64[Array, "proposal round"]
    context_len: Int32[Array, "proposal round"]  # tokens of earlier rounds in the prompt
    input_len: Int32[Array, "proposal round"]  # without the prefix
    output_len: Int32[Array, "proposal round"]
    covered_us: Int64[Array, " proposal"]  # all of the client's arrivals up to here were drawn


def draw(
    shape: PlanShape, params: PlanParams, key: PRNGKeyArray
) -> tuple[RequestTable, Bool[Array, ""]]:
    """Return a drawn request table, and a flag that is true if a client had too few draws, so that the table is wrong.

    `shape` is static. Draw again with the same key and a plan with more headroom if the flag is true.
    """
    if jax.dtypes.canonicalize_dtype(np.float64) != np.float64:
        raise ConfigError("draw needs 64-bit numbers; call it inside `with jax.enable_x64(True):`")
    streams = _draw_streams(shape, params, key)
    order, arrival_us = _merge(shape, streams)
    is_request = arrival_us != NEVER_US
    sizes = [client.num_draws for client in shape.clients]
    client = jnp.asarray(np.repeat(np.arange(len(sizes), dtype=np.int32), sizes))[order]
    prompt_len, output_len = _joined(streams, "input_len"), _joined(streams, "output_len")[order]
    group = jnp.asarray([client.prefix_group for client in shape.clients], jnp.int32)[client]
    prefix_len = jnp.append(params.prefix_len, jnp.int32(0))  # the last entry serves NO_GROUP
    node_blocks = prefix_len // shape.block_size
    input_len = jnp.where(is_request, prompt_len[order] + prefix_len[group], 1)
    has_node = is_request & (node_blocks[group] > 0)
    is_all_prefix = has_node & (input_len // shape.block_size == node_blocks[group])
    sessions = no_sessions(shape)
    if shape.has_sessions:
        context_len = _joined(streams, "context_len")
        sessions = session_rows(shape, Draws(context_len, prompt_len, order, client, is_request))
    first_node = jnp.where(has_node, group, sessions.path_nodes[:, 0])
    num_first = shape.num_nodes - sessions.node_blocks.size
    table = RequestTable(
        arrival_us=arrival_us,
        input_len=input_len,
        output_len=jnp.where(is_request, output_len, 1),
        slo_class=_of_client(params, "slo_class", client, is_request),
        tenant=_of_client(params, "tenant", client, is_request),
        client=jnp.where(is_request, client, 0),
        session=sessions.session,
        round_index=sessions.round_index,
        tie_rank=_tie_rank(arrival_us),
        path_nodes=sessions.path_nodes.at[:, 0].set(first_node),
        prompt_key=_prompt_key(shape, group, is_all_prefix, is_request, sessions.first_alike),
        node_start=jnp.pad(sessions.node_start, (num_first, 0)),
        node_blocks=jnp.concatenate([node_blocks[:num_first], sessions.node_blocks]),
    )
    return table, _is_short(shape, params, streams, arrival_us)


def _draw_streams(shape: PlanShape, params: PlanParams, key: PRNGKeyArray) -> list[_Stream]:
    """Return one stream per client; clients with the same laws are drawn together and cut to their own lengths."""
    means_us = _mean_gaps(params)
    streams: dict[int, _Stream] = {}
    for members in _batches(shape, params):
        longest = shape.clients[members[0]]
        draw_client = partial(_draw_client, shape, longest)
        mean_us = jnp.stack([means_us[index] for index in members])
        client = jax.tree.map(lambda *leaf: jnp.stack(leaf), *(params.clients[i] for i in members))
        keys = jax.vmap(partial(jax.random.fold_in, key))(jnp.asarray(members, jnp.uint32))
        batch = jax.vmap(draw_client, in_axes=(None, 0, 0, 0))(
            params.horizon_us, mean_us, client, keys
        )
        for row, index in enumerate(members):
            num = shape.clients[index].num_proposals
            streams[index] = _Stream(*(field[row, :num] for field in batch))
    return [streams[index] for index in range(len(shape.clients))]


def _batches(shape: PlanShape, params: PlanParams) -> list[list[int]]:
    """Return groups of clients that are drawn together, longest first: fewer graphs, but some unused draws."""
    alike = defaultdict(list)
    for index, (kind, client) in enumerate(zip(shape.clients, params.clients, strict=True)):
        laws = dataclasses.replace(kind, num_proposals=0, prefix_group=0)
        leaf_shapes = tuple(jnp.shape(leaf) for leaf in jax.tree.leaves(client))
        alike[laws, leaf_shapes].append(index)
    batches = []
    for members in alike.values():
        members.sort(key=lambda index: -shape.clients[index].num_proposals)
        sizes: list[int] = []
        for index in members:
            sizes.append(shape.clients[index].num_proposals)
            if len(sizes) == 1 or len(sizes) * sizes[0] > MOST_PADDING * sum(sizes):
                batches.append([index])
                sizes = sizes[-1:]
            else:
                batches[-1].append(index)
    return batches


def _mean_gaps(params: PlanParams) -> list[Float64[Array, ""]]:
    """Return the mean gap of each client in µs, rounded as the reference rounds it."""
    total = sum(
        (client.rate_fraction for client in params.clients[1:]), params.clients[0].rate_fraction
    )
    means_us = []
    for client in params.clients:
        rate_s = params.aggregate_rate * exact_quotient(client.rate_fraction, total)
        us_per_s = jnp.where(jnp.isnan(rate_s), jnp.nan, 1e6)  # not a constant, also under vmap
        means_us.append(exact_quotient(jnp.float64(1.0), exact_quotient(rate_s, us_per_s)))
    return means_us


def _draw_client(
    plan: PlanShape,
    shape: ClientShape,
    horizon_us: Int64[Array, ""],
    mean_us: Float64[Array, ""],
    client: ClientParams,
    key: PRNGKeyArray,
) -> _Stream:
    """Return all proposed arrivals of one client, and their rounds."""
    num, num_rounds, latest_us = shape.num_proposals, shape.num_rounds, plan.latest_arrival_us
    key_gaps, key_input, key_output = jax.random.split(key, 3)
    input_len = whole_tokens(client.input_law.draw(key_input, num * num_rounds))
    output_len = whole_tokens(client.output_law.draw(key_output, num * num_rounds))
    input_len = input_len.reshape(num, num_rounds)
    output_len = output_len.reshape(num, num_rounds)
    time_us, is_arrival, covered_us = _arrivals(plan, shape, horizon_us, mean_us, client, key_gaps)
    arrival_us, context_len = time_us[:, None], jnp.zeros_like(input_len)
    if shape.session_rounds:
        arrival_us = round_starts(time_us, output_len, client.think_time_us)
    if shape.is_accumulating:
        context_len, input_len = accumulated(input_len, output_len)
    is_late = is_arrival[:, None] & (arrival_us >= latest_us)
    last_us = jnp.where(jnp.any(is_late), latest_us - 1, NEVER_US)
    return _Stream(
        arrival_us=jnp.where(is_arrival[:, None] & ~is_late, arrival_us, NEVER_US),
        context_len=context_len,
        input_len=input_len,
        output_len=output_len,
        covered_us=jnp.minimum(covered_us, last_us),
    )


def _arrivals(
    plan: PlanShape,
    shape: ClientShape,
    horizon_us: Int64[Array, ""],
    mean_us: Float64[Array, ""],
    client: ClientParams,
    key: PRNGKeyArray,
) -> tuple[Int64[Array, " proposal"], Bool[Array, " proposal"], Int64[Array, " proposal"]]:
    """Return the times of the proposals, whether each arrives, and the time up to which all arrivals have been drawn.

    Gaps are whole microseconds and at least 1.
    """
    latest_us = plan.latest_arrival_us
    draw_gaps = GAP_LAWS[shape.gap_law]
    gap_us, is_accepted = draw_gaps(key, shape.num_proposals, mean_us, client.gap_shape)
    whole_us = jnp.clip(gap_us, 1.0, float(latest_us)).astype(jnp.int64)
    time_us = jnp.cumsum(jnp.where(is_accepted, whole_us, 0))
    is_arrival = is_accepted & (time_us < jnp.minimum(horizon_us, latest_us))
    stop_us = horizon_us
    if shape.num_windows:
        start, end = client.windows_us[:, 0], client.windows_us[:, 1]
        is_inside = (time_us[:, None] >= start[None, :]) & (time_us[:, None] < end[None, :])
        is_arrival &= jnp.any(is_inside, axis=1)
        stop_us = jnp.minimum(horizon_us, jnp.max(end))
    covered_us = jnp.minimum(time_us, latest_us - 1)
    covered_us = jnp.where(covered_us >= stop_us - 1, NEVER_US, covered_us)
    limit = plan.session_limit(shape)
    if limit is not None:
        num_begun = jnp.cumsum(is_accepted.astype(jnp.int32))
        is_arrival &= num_begun <= limit
        covered_us = jnp.where(num_begun >= limit, NEVER_US, covered_us)
    return time_us, is_arrival, covered_us


def _joined(streams: list[_Stream], name: str) -> Array:
    """Return one field of all clients' draws, in the order in which the reference draws them."""
    return jnp.concatenate([getattr(stream, name).reshape(-1) for stream in streams])


def _merge(
    shape: PlanShape, streams: list[_Stream]
) -> tuple[Int64[Array, " request"], Int64[Array, " request"]]:
    """Return the index among all proposals, and the arrival, of the first requests; ties are in client order."""
    arrival_us = _joined(streams, "arrival_us")
    index = jnp.arange(arrival_us.size, dtype=jnp.int64)
    packed = jnp.where(arrival_us == NEVER_US, NEVER_US, (arrival_us << shape.index_bits) | index)
    missing = max(shape.num_requests - packed.size, 0)
    packed = jnp.pad(jnp.sort(packed), (0, missing), constant_values=NEVER_US)[: shape.num_requests]
    is_request = packed != NEVER_US
    order = jnp.where(is_request, packed & (2**shape.index_bits - 1), 0)
    return order, jnp.where(is_request, packed >> shape.index_bits, NEVER_US)


def _is_short(
    shape: PlanShape,
    params: PlanParams,
    streams: list[_Stream],
    arrival_us: Int64[Array, " request"],
) -> Bool[Array, ""]:
    """Return whether an arrival that was not drawn could be among the table's requests."""
    covered_us = jnp.min(jnp.stack([stream.covered_us[-1] for stream in streams]))
    if shape.is_capped:
        return covered_us < arrival_us[-1]
    num_drawn = sum(jnp.sum(stream.arrival_us != NEVER_US) for stream in streams)
    return (covered_us < NEVER_US) | (num_drawn > shape.num_requests)


def _of_client(
    params: PlanParams,
    name: str,
    client: Int32[Array, " request"],
    is_request: Bool[Array, " request"],
) -> Int32[Array, " request"]:
    per_client = jnp.stack(
        [jnp.asarray(getattr(client, name), jnp.int32) for client in params.clients]
    )
    return jnp.where(is_request, per_client[client], 0)


def _tie_rank(arrival_us: Int64[Array, " request"]) -> Int32[Array, " request"]:
    """Return the rank by (arrival, id as text) of rows already sorted by arrival."""
    num = arrival_us.size
    rank_of_row = text_rank(num)
    row_of_rank = np.argsort(rank_of_row).astype(np.int32)
    bits = num.bit_length()
    dtype = jnp.int32 if 2 * bits < 32 else jnp.int64
    is_later = jnp.concatenate([jnp.zeros(1, bool), arrival_us[1:] != arrival_us[:-1]])
    tie_group = jnp.cumsum(is_later.astype(dtype))
    packed = jnp.sort((tie_group << bits) | jnp.asarray(rank_of_row, dtype))
    rows = jnp.asarray(row_of_rank)[packed & (2**bits - 1)]
    return jnp.zeros(num, jnp.int32).at[rows].set(jnp.arange(num, dtype=jnp.int32))


def _prompt_key(
    shape: PlanShape,
    group: Int32[Array, " request"],
    is_all_prefix: Bool[Array, " request"],
    is_request: Bool[Array, " request"],
    first_alike: Int32[Array, " request"],
) -> Int32[Array, " request"]:
    """Return dense keys by first use: one key per prefix group for all prompts whose full blocks are all prefix."""
    row = jnp.arange(group.size, dtype=jnp.int32)
    first_row = jnp.full(shape.num_groups + 1, group.size, jnp.int32)
    first_row = first_row.at[group].min(jnp.where(is_all_prefix, row, group.size))
    content = jnp.where(is_all_prefix, first_row[group], first_alike)
    dense = jnp.cumsum((content == row).astype(jnp.int32)) - 1
    return jnp.where(is_request, dense[content], NO_PROMPT_KEY)
