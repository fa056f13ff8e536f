"""Drawn requests as arrays of the golden format, and as the table that the engine takes."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

import numpy as np

from blis_jax.core.types import SLO_CLASSES
from blis_jax.errors import ConfigError
from blis_jax.workload.reference.contents import block_ids, short_prompt_ids
from blis_jax.workload.reference.generate import LATEST_US, DrawnWorkload, drawn
from blis_jax.workload.reference.prompts import MOST_TOKENS
from blis_jax.workload.reference.requests import DrawnRequest
from blis_jax.workload.spec import ClientSpec, WorkloadSpec
from blis_jax.workload.table import (
    RequestTable,
    WorkloadNames,
    from_golden,
    tenants_in_order,
    text_rank,
)


def draw(
    spec: WorkloadSpec, seed: int | None = None, block_size: int = 16
) -> tuple[RequestTable, WorkloadNames]:
    """Draw the requests that BLIS draws, from Go's random streams.

    Of closed-loop sessions these are the first rounds; `draw_closed_loop` has the rest.

    Args:
        spec: the workload; its revision says whose rules apply.
        seed: seed of the streams; the specification's if None.
        block_size: tokens of a KV block, by which shared contents are cut.

    Returns:
        The requests by arrival, numpy arrays `[request]`, and the texts behind their codes.

    Raises:
        ConfigError: the workload needs a mechanism that is not there, or draws more tokens than allowed.
    """
    return table_of(drawn(spec, seed), block_size)


def table_of(workload: DrawnWorkload, block_size: int) -> tuple[RequestTable, WorkloadNames]:
    """The requests that arrive by themselves, of a workload that is drawn."""
    arrays = arrays_of(workload, block_size)
    names = names_of(arrays)
    names = replace(names, models=models_of(workload.clients, workload.requests))
    return from_golden(arrays, least_prompt=0), names  # what was drawn, `drawn` has checked


def models_of(clients: Sequence[ClientSpec], requests: Sequence[DrawnRequest]) -> np.ndarray | None:
    """The model that each request asks for, text `[request]`; None if none does."""
    if not any(client.model for client in clients):
        return None
    return np.array([clients[request.client].model for request in requests], object)


def names_of(arrays: dict[str, np.ndarray]) -> WorkloadNames:
    """The texts behind the codes of golden arrays, and deadlines and bounds if there are any."""
    deadline_us, target_us = arrays["deadline_us"], arrays["slo_target_us"]
    return WorkloadNames(
        slo_target_us=target_us if target_us.any() else None,
        deadline_us=deadline_us if deadline_us.any() else None,
        tenant_names=tenants_in_order(arrays["tenant_names"])[1],
        prefix_group_names=tuple(map(str, arrays["prefix_group_names"])),
        session_names=tuple(map(str, arrays["session_names"])),
    )


def golden_arrays(
    spec: WorkloadSpec,
    seed: int | None = None,
    block_size: int = 16,
    timeout_us: int | None = None,
) -> dict[str, np.ndarray]:
    """The reference's requests in the golden format, as recorded workload files hold them.

    `timeout_us` replaces the deadlines of the file, as `--timeout` does; 0 takes them away.
    """
    return arrays_of(drawn(spec, seed, timeout_us), block_size)


def arrays_of(workload: DrawnWorkload, block_size: int) -> dict[str, np.ndarray]:
    """The arrays of requests that are drawn."""
    return request_arrays(workload.clients, workload.requests, block_size)


def request_arrays(
    clients: Sequence[ClientSpec], requests: Sequence[DrawnRequest], block_size: int
) -> dict[str, np.ndarray]:
    """The arrays of requests of these clients, in this order."""
    senders = [clients[request.client] for request in requests]
    tenant, tenant_names = _numbered([client.tenant_id for client in senders])
    group, group_names = _numbered([request.prefix_group for request in requests], none="")
    is_streaming = [
        has_stream(client, request) for client, request in zip(senders, requests, strict=True)
    ]
    return content_arrays(requests, block_size) | {
        "slo_class": np.array([SLO_CLASSES.index(client.slo_class) for client in senders], np.int8),
        "tenant": tenant,
        "prefix_group": group,
        "streaming": np.array(is_streaming, np.int8),
        "tenant_names": tenant_names,
        "prefix_group_names": group_names,
        "client_names": np.array([client.id for client in clients], np.str_),
    }


def has_stream(client: ClientSpec, request: DrawnRequest) -> bool:
    """Whether BLIS marks the request as streaming: not as a round of a session."""
    return client.streaming and not client.multi_turn and not request.round_index


def _numbered(names: Sequence[str], none: str | None = None) -> tuple[np.ndarray, np.ndarray]:
    """Numbers by first appearance, -1 for `none`, and the names in that order."""
    seen = list(dict.fromkeys(name for name in names if name != none))
    number = {name: index for index, name in enumerate(seen)}
    return np.array([number.get(name, -1) for name in names], np.int32), np.array(seen, np.str_)


def content_arrays(requests: Sequence[DrawnRequest], block_size: int) -> dict[str, np.ndarray]:
    """The arrays that follow from the requests alone."""
    input_len = np.array([request.input_len for request in requests], np.int64)
    output_len = np.array([len(request.output) for request in requests], np.int64)
    _check_requests(requests, input_len, output_len)
    block_ptr, ids = block_ids([(*row.prompt, row.output) for row in requests], block_size)
    session, session_names = _numbered([request.session for request in requests], none="")
    return {
        "arrival_us": np.array([request.arrival_us for request in requests], np.int64),
        "input_len": input_len.astype(np.int32),
        "output_len": output_len.astype(np.int32),
        "max_output_len": output_len.astype(np.int32),
        "deadline_us": np.array([request.deadline_us for request in requests], np.int64),
        "slo_target_us": np.array([request.slo_target_us for request in requests], np.int64),
        "prefix_length": np.array([request.prefix_len for request in requests], np.int32),
        "multimodal": np.array([any(request.parts) for request in requests], np.int8),
        "client": np.array([request.client for request in requests], np.int32),
        "session": session,
        "session_names": session_names,
        "round_index": np.array([request.round_index for request in requests], np.int32),
        "id_rank": text_rank(len(requests)),
        "block_ptr": block_ptr,
        "block_ids_delta": np.diff(ids, prepend=0).astype(np.int32),
        "block_size": np.array(block_size, np.int32),
        "short_input_id": short_prompt_ids([row.prompt for row in requests], block_size),
    }


def _check_requests(
    requests: Sequence[DrawnRequest], input_len: np.ndarray, output_len: np.ndarray
) -> None:
    if requests and requests[-1].arrival_us >= LATEST_US:
        raise ConfigError(
            f"aggregate_rate: a request arrives at {requests[-1].arrival_us} us, allowed is less "
            f"than 2^60; raise aggregate_rate, or lower num_requests or think_time_us"
        )
    if int(input_len.sum() + output_len.sum()) > MOST_TOKENS:
        raise ConfigError(
            f"the workload has more than {MOST_TOKENS} tokens, shared ones counted each time, which "
            f"would not fit in memory; lower num_requests or horizon"
        )
