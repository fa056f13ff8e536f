"""From a specification and a seed to the reference's requests, as arrays of the golden format.

Clients are drawn side by side and only as far as the cut needs them. The reference draws each one
to its end, sorts all requests by arrival and cuts then; streams of clients do not touch.
"""

from __future__ import annotations

import heapq
import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

import numpy as np

from blis_jax.errors import ConfigError
from blis_jax.workload.go_random.stream import Stream
from blis_jax.workload.lengths.distribution import MOST_REQUESTS, NO_REQUEST
from blis_jax.workload.reference import seeds
from blis_jax.workload.reference.clients import Sender
from blis_jax.workload.reference.closed_loop import FollowUps, Session, pools_of, sessions_of
from blis_jax.workload.reference.laws.rates import has_own_windows, shared_rates
from blis_jax.workload.reference.prompts import MOST_TOKENS, draw_tokens
from blis_jax.workload.reference.requests import ClientLimits, DrawnRequest, RequestBatch
from blis_jax.workload.reference.windows import WindowSender
from blis_jax.workload.revised.expansion import Expansion, expanded
from blis_jax.workload.spec import ClientSpec, WorkloadSpec, prefix_lengths
from blis_jax.workload.versions import FIRST_REVISION

if TYPE_CHECKING:
    from jaxtyping import Int32

    Tokens = Int32[np.ndarray, " token"]

CAP_PER_REQUEST = 2  # a client sends at most this many times num_requests
LATEST_US = 2**60  # arrivals from here on would overflow a clock's sums


@dataclass(frozen=True)
class DrawnWorkload:
    """The requests of a workload before any run."""

    clients: tuple[ClientSpec, ...]
    requests: list[DrawnRequest]  # by arrival; of closed-loop sessions the first rounds
    sessions: dict[str, Session]  # closed-loop sessions by name
    budget: float  # later rounds of all sessions together, infinite without a limit
    horizon_us: float  # infinite without one

    def follow_ups(self) -> FollowUps:
        """What one run asks for the requests that completions bring."""
        return FollowUps(self.sessions, self.budget, self.horizon_us)


def drawn(
    spec: WorkloadSpec, seed: int | None = None, timeout_us: int | None = None
) -> DrawnWorkload:
    """The requests that BLIS draws, with their contents.

    Args:
        spec: the workload.
        seed: seed of the streams; the specification's if None.
        timeout_us: time from each arrival to its deadline, 0 for none; that of the clients if None.

    Raises:
        ConfigError: the workload needs a mechanism that is not there, or draws more tokens than allowed.
    """
    _check(spec)
    seed = spec.seed if seed is None else seed
    expansion, most = expanded(spec), spec.num_requests or math.inf
    stream = Stream(seeds.subsystem_seed(seed, seeds.WORKLOAD))
    prefixes = {
        group: draw_tokens(stream, length)
        for group, length in prefix_lengths(expansion.clients).items()
    }
    requests = merged(list(_batches(spec, expansion, prefixes, stream)), most)
    sessions = sessions_of(expansion.clients, requests, seed)
    kept = [one for one in requests if not (one.session in sessions and one.round_index)]
    pools = pools_of(expansion.clients, prefixes, seed, most - len(kept))
    sessions |= {session.name: session for session in pools.sessions}
    kept = sorted([*kept, *pools.requests], key=lambda request: request.arrival_us)
    if timeout_us is not None:
        kept = [_with_timeout(one, timeout_us) for one in kept]
        sessions = {name: replace(one, timeout_us=timeout_us) for name, one in sessions.items()}
    budget = most - len(kept) if pools.num_users else math.inf
    _check_drawn(spec, expansion.clients, kept)
    return DrawnWorkload(
        expansion.clients, kept, sessions, max(budget, 0), spec.horizon or math.inf
    )


def _with_timeout(request: DrawnRequest, timeout_us: int) -> DrawnRequest:
    return request._replace(deadline_us=request.arrival_us + timeout_us if timeout_us else 0)


def _check(spec: WorkloadSpec) -> None:
    if not spec.num_requests and not spec.horizon:
        raise ConfigError(
            "num_requests: neither a number of requests nor a horizon ends the workload; "
            "give num_requests or horizon"
        )
    if spec.num_requests > MOST_REQUESTS:
        raise ConfigError(
            f"num_requests: got {spec.num_requests}, allowed is at most {MOST_REQUESTS}"
        )


def _check_drawn(
    spec: WorkloadSpec, clients: Sequence[ClientSpec], requests: Sequence[DrawnRequest]
) -> None:
    if not requests and not spec.horizon and spec.revision == FIRST_REVISION:
        raise ConfigError(NO_REQUEST)  # where the first revision does not end
    is_first = spec.revision == FIRST_REVISION  # the later one serves prompts without tokens
    for request in requests:
        if any(map(len, request.prompt)) or (not is_first and len(request.output)):
            continue
        place = request.client
        path = f"clients[{place}]" if place < len(spec.clients) else clients[place].id
        if is_first:
            raise ConfigError(
                f"{path}.input_distribution: drew a prompt without tokens, allowed is 1 token or more"
            )
        raise ConfigError(
            f"{path}: drew a request without any token, where BLIS stops with an index out of range; let "
            "output_distribution begin at 1"
        )


def _batches(
    spec: WorkloadSpec, expansion: Expansion, prefixes: Mapping[str, Tokens], stream: Stream
) -> Iterator[Iterator[RequestBatch]]:
    """What each client sends, its seed taken from the stream in the order of the clients."""
    nothing = np.empty(0, np.int32)
    clients, rate = expansion.clients, expansion.aggregate_rate
    horizon_us = spec.horizon or math.inf
    prefix_of = [prefixes.get(client.prefix_group, nothing) for client in clients]
    if has_own_windows(clients):
        for index, client in enumerate(clients):
            if client.lifecycle is not None:
                sender = WindowSender(index, clients, rate, prefix_of[index])
                yield iter([sender.batch(stream.int63(), horizon_us)])
        return
    most = CAP_PER_REQUEST * spec.num_requests or math.inf
    limits = ClientLimits(horizon_us, most_requests=most)
    rates = shared_rates(clients, rate)
    for index, (client, rate_us, pace) in enumerate(
        zip(clients, rates, expansion.paces, strict=True)
    ):
        if rate_us > 0.0:
            prefix = nothing if client.has_bare_sessions else prefix_of[index]
            sender_ = Sender(index, client, rate_us, prefix, pace)
            yield sender_.batches(stream.int63(), limits)


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
