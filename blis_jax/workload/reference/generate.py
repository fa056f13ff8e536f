"""Draw the reference's requests from a specification and a seed, and the sessions whose later rounds follow in the run.

Clients are drawn in parallel and only as far as the wanted number of requests needs. The reference draws each client to
its end, sorts all requests by arrival and then cuts; the result is the same, because clients' streams are independent.
"""

from __future__ import annotations

import heapq
import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, NamedTuple

import numpy as np

from blis_jax.errors import ConfigError, UnsupportedError
from blis_jax.workload.distribution import (
    CAP_PER_REQUEST,
    MOST_REQUESTS,
    NO_REQUEST,
    prefix_lengths,
    refuse_endless,
)
from blis_jax.workload.expansion import Expansion, expanded
from blis_jax.workload.go_random import WORKLOAD, Stream, signed, subsystem_seed
from blis_jax.workload.reference.clients import (
    MOST_TOKENS,
    Drawer,
    DrawnContents,
    Sender,
    WindowSender,
    draw_tokens,
    drawer_of,
    language,
    single_request,
)
from blis_jax.workload.reference.laws import (
    deadline_us,
    has_own_windows,
    shared_rates,
    slo_target_us,
    timeout_of,
)
from blis_jax.workload.reference.requests import (
    NO_DEADLINE,
    ClientLimits,
    DrawnRequest,
    RequestBatch,
)
from blis_jax.workload.revised_spec import RevisedClient
from blis_jax.workload.source import FIRST_REVISION
from blis_jax.workload.spec import ClientSpec, WorkloadSpec

if TYPE_CHECKING:
    from jaxtyping import Int32

    Tokens = Int32[np.ndarray, " token"]


@dataclass(frozen=True)
class DrawnWorkload:
    """The requests of a workload, as drawn before any run."""

    clients: tuple[ClientSpec, ...]
    requests: list[DrawnRequest]  # by arrival; of closed-loop sessions the first rounds
    sessions: dict[str, Session]  # closed-loop sessions by name
    budget: float  # later rounds of all sessions together, infinite without a limit
    horizon_us: float  # infinite without one


def drawn(
    spec: WorkloadSpec, seed: int | None = None, timeout_us: int | None = None
) -> DrawnWorkload:
    """Return the requests that BLIS draws, with their contents.

    Args:
        spec: the workload.
        seed: seed of the streams; the specification's if None.
        timeout_us: time from each arrival to its deadline, 0 for none; the clients' own timeouts if None.

    Raises:
        ConfigError: the workload needs a mechanism that is not supported, or draws more tokens than allowed.
    """
    _check(spec)
    seed = spec.seed if seed is None else seed
    expansion, most = expanded(spec, seed), spec.num_requests or math.inf
    stream = Stream(subsystem_seed(seed, WORKLOAD))
    prefixes = {
        group: draw_tokens(stream, length)
        for group, length in prefix_lengths(expansion.clients).items()
    }
    requests = merged(list(_batches(spec, expansion, prefixes, stream)), most)
    sessions = sessions_of(expansion.clients, requests, seed)
    kept = [each for each in requests if not (each.session in sessions and each.round_index)]
    pools = pools_of(expansion.clients, prefixes, seed, most - len(kept))
    sessions |= {session.name: session for session in pools.sessions}
    kept = sorted([*kept, *pools.requests], key=lambda request: request.arrival_us)
    if timeout_us is not None:
        kept = [_with_timeout(request, timeout_us) for request in kept]
        sessions = {name: replace(each, timeout_us=timeout_us) for name, each in sessions.items()}
    budget = most - len(kept) if pools.num_users else math.inf
    _check_drawn(spec, expansion.clients, kept)
    return DrawnWorkload(
        expansion.clients, kept, sessions, max(budget, 0), spec.horizon or math.inf
    )


def _with_timeout(request: DrawnRequest, timeout_us: int) -> DrawnRequest:
    return request._replace(deadline_us=request.arrival_us + timeout_us if timeout_us else 0)


def _check(spec: WorkloadSpec) -> None:
    refuse_endless(spec.num_requests, spec.horizon)
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
    """Yield the request batches of each client, whose seed is drawn from the stream in the order of the clients."""
    nothing = np.empty(0, np.int32)
    clients, rate = expansion.clients, expansion.aggregate_rate
    horizon_us = spec.horizon or math.inf
    prefix_of = [prefixes.get(client.prefix_group, nothing) for client in clients]
    if has_own_windows(clients):
        for index, client in enumerate(clients):
            if client.lifecycle is not None:
                sender = WindowSender(index, clients, rate, prefix_of[index])
                yield sender.batches(stream.int63(), horizon_us)
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
    """Return the first `most` requests of all clients by arrival; ties are in the order of the clients.

    Drawing stops once enough requests precede every request that a client may still send.
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


# --- sessions whose rounds wait for each other ----------------------------------------------------

# Of such a session only the first round arrives by itself. Every later one arrives when the round before it has
# completed and a think time has passed, so its arrival is a result of the run. Its lengths and contents are not: each
# session draws them from a stream of its own.

SESSION_SEED = 7919  # added to the workload's for the seeds of its sessions
POOL_SEED = 10007  # added to the workload's for the seeds of concurrent users


class Recorded(NamedTuple):
    """A later round whose contents are known in advance."""

    think_time_us: int  # from the answer before it
    contents: DrawnContents


@dataclass(frozen=True)
class Session:
    """A session whose next round is sent when a round completes."""

    name: str
    client: int
    num_rounds: float  # infinite for a user of a pool
    is_growing: bool  # prompts begin with all earlier rounds
    think_time_us: int
    timeout_us: int  # from arrival to deadline, 0: none
    slo_target_us: int
    seed: int  # of its stream
    prefix: Tokens
    draw: Drawer
    later: tuple[Recorded, ...] = ()  # rounds of a trace, which nobody draws

    def think_after(self, round_index: int) -> int:
        """Return the time from the answer to this round until the next round arrives, µs."""
        return self.later[round_index].think_time_us if self.later else self.think_time_us


@dataclass(frozen=True)
class UserPools:
    """The users of all clients with a fixed number of concurrent users."""

    requests: list[DrawnRequest]  # each user's first one
    sessions: list[Session]
    num_users: int  # also of users who send nothing because the number of requests is used up


def sessions_of(
    clients: Sequence[ClientSpec], requests: Sequence[DrawnRequest], seed: int
) -> dict[str, Session]:
    """Return, by name, the closed-loop sessions that these requests begin.

    Clients with the same id share their sessions, and the last of these clients decides how the sessions continue.
    """
    firsts: dict[str, list[DrawnRequest]] = {}
    for request in requests:
        if request.session and request.round_index == 0:
            firsts.setdefault(clients[request.client].id, []).append(request)
    seeds = Stream(signed(seed + SESSION_SEED))
    sessions: dict[str, Session] = {}
    for index, client in enumerate(clients):
        turns = client.multi_turn
        if turns is None or not isinstance(client, RevisedClient) or not client.is_closed_loop:
            continue
        begun = firsts.get(client.id, [])
        prefix = _prefix(client, begun)
        for name in sorted({request.session for request in begun}):
            sessions[name] = Session(
                name,
                index,
                num_rounds=turns.max_rounds,
                is_growing=turns.context_growth == "accumulate",
                think_time_us=turns.think_time_us,
                timeout_us=timeout_of(client, is_round=True),
                slo_target_us=slo_target_us(client),
                seed=seeds.int63(),
                prefix=prefix,
                draw=drawer_of(client),
            )
    return sessions


def _prefix(client: RevisedClient, begun: Sequence[DrawnRequest]) -> Tokens:
    """Return the shared tokens before later rounds: empty if the client leaves the prefix length to its default."""
    if client.prefix_group and begun:
        prompt = np.concatenate(begun[0].prompt)
        if client.prefix_length <= len(prompt):
            return prompt[: client.prefix_length]
    return np.empty(0, np.int32)


def pools_of(
    clients: Sequence[ClientSpec], prefixes: Mapping[str, Tokens], seed: int, most: float
) -> UserPools:
    """Return the drawn concurrent users and their first requests, spread over one think time; at most `most`."""
    seeds = Stream(signed(seed + POOL_SEED))
    pools = UserPools([], [], sum(map(_num_users, clients)))
    names: dict[str, int] = {}
    for index, client in enumerate(clients):
        if not isinstance(client, RevisedClient) or not client.concurrency:
            continue
        if names.setdefault(client.id, index) != index:
            raise UnsupportedError(
                f"clients[{index}].id: {client.id!r} is that of clients[{names[client.id]}] too, but "
                "pools of one id would share their sessions; give each an id of its own"
            )
        prefix = prefixes.get(client.prefix_group, np.empty(0, np.int32))
        draw = language(client.input_distribution, client.output_distribution)
        for user in range(client.concurrency):
            if len(pools.requests) >= most:
                break
            first = draw(Stream(seeds.int63()))
            arrival_us = user * client.think_time_us // client.concurrency
            name = f"concurrency_{client.id}_user_{user}"
            request = single_request(index, client, arrival_us, first, prefix)
            deadline = deadline_us(client, arrival_us, is_round=True)
            pools.requests.append(request._replace(session=name, deadline_us=deadline))
            pools.sessions.append(
                Session(
                    name,
                    index,
                    num_rounds=math.inf,
                    is_growing=False,
                    think_time_us=client.think_time_us,
                    timeout_us=timeout_of(client, is_round=True),
                    slo_target_us=slo_target_us(client),
                    seed=seeds.int63(),
                    prefix=prefix,
                    draw=draw,
                )
            )
    return pools


def _num_users(client: ClientSpec) -> int:
    return client.concurrency if isinstance(client, RevisedClient) else 0


class Rounds:
    """Draws the rounds of one session after the first, one by one."""

    def __init__(self, session: Session) -> None:
        self._session = session
        self._stream = Stream(session.seed)
        self._history: Tokens | None = None  # of growing sessions, from the first completion on

    def after(self, request: DrawnRequest, arrival_us: int, num_generated: int) -> DrawnRequest:
        """Return the round after `request`, of which `num_generated` output tokens were generated."""
        session = self._session
        known = session.later
        contents = known[request.round_index].contents if known else session.draw(self._stream)
        shared = (session.prefix,) if len(session.prefix) else ()
        prompt = (*shared, contents.new)
        if session.is_growing:
            said = self._told(request) if self._history is None else self._history
            output = request.output[:num_generated]
            self._history = np.concatenate([said, output, contents.new])
            prompt = (self._history,)
        timeout_us = session.timeout_us
        return DrawnRequest(
            arrival_us,
            session.client,
            prompt,
            contents.output,
            session=session.name,
            round_index=request.round_index + 1,
            deadline_us=arrival_us + timeout_us if timeout_us else NO_DEADLINE,
            slo_target_us=session.slo_target_us,
        )

    def _told(self, first: DrawnRequest) -> Tokens:
        """Return the session's prefix, perhaps from the client's first session, and the first prompt's other tokens.

        If the prompt is shorter than the prefix, BLIS keeps the whole prompt.
        """
        prefix, prompt = self._session.prefix, np.concatenate(first.prompt)
        rest = prompt if len(prompt) < len(prefix) else prompt[len(prefix) :]
        return np.concatenate([prefix, rest])


def generated(request: DrawnRequest) -> int:
    """Return the number of output tokens that count as generated at completion: all but the last one, as in BLIS."""
    return max(len(request.output) - 1, 0)


def rounds_after(
    session: Session, first: DrawnRequest, most: float, answers: Mapping[tuple[str, int], int]
) -> Iterator[DrawnRequest]:
    """Yield the rounds after `first`, up to round index `most`, as if every round completed; all have the arrival of
    `first`.

    `answers` has output token counts of rounds, by session and round, that replace `generated`.
    """
    rounds, request = Rounds(session), first
    while request.round_index + 1 < session.num_rounds and request.round_index < most:
        count = answers.get((session.name, request.round_index), generated(request))
        request = rounds.after(request, first.arrival_us, count)
        yield request
