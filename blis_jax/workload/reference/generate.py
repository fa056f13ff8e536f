"""From a specification and a seed to the reference's requests, as arrays of the golden format.

Clients are drawn side by side and only as far as the cut needs them. The reference draws each one
to its end, sorts all requests by arrival and cuts then; streams of clients do not touch.
"""

from __future__ import annotations

import heapq
import math
from collections.abc import Iterator, Sequence

import numpy as np

from blis_jax.engine.types import SLO_CLASSES
from blis_jax.errors import ConfigError
from blis_jax.workload.go_random.stream import Stream
from blis_jax.workload.lengths.distribution import MOST_REQUESTS, NO_REQUEST
from blis_jax.workload.reference import seeds
from blis_jax.workload.reference.clients import (
    MOST_TOKENS,
    NO_SESSION,
    ClientLimits,
    DrawnRequest,
    RequestBatch,
    Sender,
    draw_tokens,
)
from blis_jax.workload.reference.contents import block_ids, short_prompt_ids
from blis_jax.workload.spec import WorkloadSpec, prefix_lengths
from blis_jax.workload.table import RequestTable, WorkloadNames, from_golden, text_rank

CAP_PER_REQUEST = 2  # a client sends at most this many times num_requests
LATEST_US = 2**60  # arrivals from here on would overflow a clock's sums


def draw(
    spec: WorkloadSpec, seed: int | None = None, block_size: int = 16
) -> tuple[RequestTable, WorkloadNames]:
    """Draw the requests that BLIS draws, from Go's random streams.

    Args:
        spec: the workload.
        seed: seed of the streams; the specification's if None.
        block_size: tokens of a KV block, by which shared contents are cut.

    Returns:
        The requests by arrival, numpy arrays `[request]`, and the texts behind their codes.

    Raises:
        ConfigError: the workload needs a mechanism that is not there, or draws more tokens than allowed.
    """
    arrays = golden_arrays(spec, seed, block_size)
    names = WorkloadNames(
        tenant_names=tuple(map(str, arrays["tenant_names"])),
        prefix_group_names=tuple(map(str, arrays["prefix_group_names"])),
    )
    return from_golden(arrays), names


def golden_arrays(
    spec: WorkloadSpec, seed: int | None = None, block_size: int = 16
) -> dict[str, np.ndarray]:
    """The reference's requests in the golden format, as recorded workload files hold them."""
    _check(spec)
    senders, client_seeds = _senders(spec, spec.seed if seed is None else seed)
    limits = ClientLimits(
        horizon_us=spec.horizon or math.inf,
        most_requests=CAP_PER_REQUEST * spec.num_requests or math.inf,
    )
    batches = [
        sender.batches(seed, limits) for sender, seed in zip(senders, client_seeds, strict=True)
    ]
    requests = merged(batches, spec.num_requests or math.inf)
    if not requests and not spec.horizon:
        raise ConfigError(NO_REQUEST)
    for request in requests:
        if not any(map(len, request.prompt)):
            path = f"clients[{request.client}].input_distribution"
            raise ConfigError(f"{path}: drew a prompt without tokens, allowed is 1 token or more")
    return _arrays(spec, requests, block_size)


def _check(spec: WorkloadSpec) -> None:
    if not spec.clients:
        key = "servegen_data" if spec.servegen_data is not None else "inference_perf"
        raise ConfigError(f"{key}: is not supported yet; describe the traffic under clients")
    if not spec.num_requests and not spec.horizon:
        raise ConfigError(
            "num_requests: neither a number of requests nor a horizon ends the workload; "
            "give num_requests or horizon"
        )
    if spec.num_requests > MOST_REQUESTS:
        raise ConfigError(
            f"num_requests: got {spec.num_requests}, allowed is at most {MOST_REQUESTS}"
        )


def _senders(spec: WorkloadSpec, seed: int) -> tuple[list[Sender], list[int]]:
    """All clients and the seeds of their streams; the prefixes are drawn first."""
    assert spec.aggregate_rate is not None
    stream = Stream(seeds.subsystem_seed(seed, seeds.WORKLOAD))
    prefixes = {
        group: draw_tokens(stream, length) for group, length in prefix_lengths(spec).items()
    }
    nothing = np.empty(0, np.int32)
    total = 0.0
    for client in spec.clients:
        total += client.rate_fraction
    senders, client_seeds = [], []
    for index, client in enumerate(spec.clients):
        rate_us = spec.aggregate_rate * (client.rate_fraction / total) / 1e6
        if rate_us > 0.0:
            senders.append(
                Sender(index, client, rate_us, prefixes.get(client.prefix_group, nothing))
            )
            client_seeds.append(stream.int63())
    return senders, client_seeds


def merged(clients: Sequence[Iterator[RequestBatch]], most: float) -> list[DrawnRequest]:
    """The first requests of all clients by arrival; on a tie in the order of the clients.

    Stops as soon as enough requests precede whatever a client may still send.
    """
    sent: list[list[DrawnRequest]] = [[] for _ in clients]
    waiting: list[int] = []  # arrivals that a client might still precede
    bounds = [(0, index) for index in range(len(clients))]
    num_settled, num_tokens = 0, 0
    while bounds:
        bound_us, index = heapq.heappop(bounds)
        while waiting and waiting[0] < bound_us:
            heapq.heappop(waiting)
            num_settled += 1
        if num_settled >= most:
            break
        batch = next(clients[index], None)
        if batch is None:
            continue
        for request in batch.requests:
            heapq.heappush(waiting, request.arrival_us)
        num_tokens += batch.num_tokens
        if num_tokens > MOST_TOKENS:
            raise ConfigError(
                f"the workload has more than {MOST_TOKENS} tokens, which would not fit in memory; "
                f"lower num_requests or horizon"
            )
        sent[index] += batch.requests
        heapq.heappush(bounds, (batch.begins_us, index))
    requests = [request for client in sent for request in client]
    requests.sort(key=lambda request: request.arrival_us)
    return requests if math.isinf(most) else requests[: int(most)]


def _arrays(
    spec: WorkloadSpec, requests: Sequence[DrawnRequest], block_size: int
) -> dict[str, np.ndarray]:
    clients = [spec.clients[request.client] for request in requests]
    tenant, tenant_names = _numbered([client.tenant_id for client in clients])
    group, group_names = _numbered(
        [client.prefix_group if not client.multi_turn else "" for client in clients], none=""
    )
    return content_arrays(requests, block_size) | {
        "slo_class": np.array([SLO_CLASSES.index(client.slo_class) for client in clients], np.int8),
        "tenant": tenant,
        "prefix_group": group,
        "streaming": np.array(
            [client.streaming and not client.multi_turn for client in clients], np.int8
        ),
        "tenant_names": tenant_names,
        "prefix_group_names": group_names,
    }


def _numbered(names: Sequence[str], none: str | None = None) -> tuple[np.ndarray, np.ndarray]:
    """Numbers by first appearance, -1 for `none`, and the names in that order."""
    seen = list(dict.fromkeys(name for name in names if name != none))
    number = {name: index for index, name in enumerate(seen)}
    return np.array([number.get(name, -1) for name in names], np.int32), np.array(seen, np.str_)


def content_arrays(requests: Sequence[DrawnRequest], block_size: int) -> dict[str, np.ndarray]:
    """The arrays that follow from the requests alone."""
    input_len = np.array([sum(map(len, request.prompt)) for request in requests], np.int64)
    output_len = np.array([len(request.output) for request in requests], np.int64)
    _check_requests(requests, input_len, output_len)
    block_ptr, ids = block_ids([(*row.prompt, row.output) for row in requests], block_size)
    sessions: dict[tuple[int, int], int] = {}
    session = [
        NO_SESSION
        if row.session == NO_SESSION
        else sessions.setdefault((row.client, row.session), len(sessions))
        for row in requests
    ]
    return {
        "arrival_us": np.array([request.arrival_us for request in requests], np.int64),
        "input_len": input_len.astype(np.int32),
        "output_len": output_len.astype(np.int32),
        "client": np.array([request.client for request in requests], np.int32),
        "session": np.array(session, np.int32),
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
