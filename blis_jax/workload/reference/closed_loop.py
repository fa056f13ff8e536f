"""Sessions whose rounds wait for each other: what comes after a request has completed.

Of such a session only the first round arrives by itself. Every later one arrives when the round
before it has completed and a think time has passed, so its arrival is a result of the run. Its
lengths and contents are not: each session draws them from a stream of its own.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, NamedTuple

import numpy as np

from blis_jax.errors import UnsupportedError
from blis_jax.workload.go_random.stream import Stream
from blis_jax.workload.reference.clients import single_request
from blis_jax.workload.reference.laws.deadlines import deadline_us, slo_target_us, timeout_of
from blis_jax.workload.reference.prompts import Drawer, DrawnContents, drawer_of, language
from blis_jax.workload.reference.requests import NO_DEADLINE, DrawnRequest
from blis_jax.workload.reference.seeds import signed
from blis_jax.workload.revised.spec import RevisedClient
from blis_jax.workload.spec import ClientSpec

if TYPE_CHECKING:
    from jaxtyping import Int32

    Tokens = Int32[np.ndarray, " token"]

SESSION_SEED = 7919  # added to the workload's for the seeds of its sessions
POOL_SEED = 10007  # added to the workload's for the seeds of concurrent users


class Recorded(NamedTuple):
    """A later round that is known in advance."""

    think_time_us: int  # from the answer before it
    contents: DrawnContents


@dataclass(frozen=True)
class Session:
    """One session that goes on as its rounds complete."""

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
        """Time from the answer to this round until the next one arrives, µs."""
        return self.later[round_index].think_time_us if self.later else self.think_time_us


@dataclass(frozen=True)
class UserPools:
    """The users of all clients that keep a number of requests in the cluster."""

    requests: list[DrawnRequest]  # each user's first one
    sessions: list[Session]
    num_users: int  # also of users who send nothing because the number of requests is used up


def sessions_of(
    clients: Sequence[ClientSpec], requests: Sequence[DrawnRequest], seed: int
) -> dict[str, Session]:
    """The closed-loop sessions that these requests begin, by name.

    Clients with one id have their sessions in common, and the last of them says how these go on.
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
    """The shared tokens before later rounds: none if the client leaves their number to the default."""
    if client.prefix_group and begun:
        prompt = np.concatenate(begun[0].prompt)
        if client.prefix_length <= len(prompt):
            return prompt[: client.prefix_length]
    return np.empty(0, np.int32)


def pools_of(
    clients: Sequence[ClientSpec], prefixes: Mapping[str, Tokens], seed: int, most: float
) -> UserPools:
    """Concurrent users and their first requests, spread over one think time; at most so many requests."""
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
    """The rounds of one session after the first, drawn one by one."""

    def __init__(self, session: Session) -> None:
        self._session = session
        self._stream = Stream(session.seed)
        self._history: Tokens | None = None  # of growing sessions, from the first completion on

    def after(self, request: DrawnRequest, arrival_us: int, num_generated: int) -> DrawnRequest:
        """The round that follows a request of which so many output tokens were generated."""
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
        """The first prompt; where it is shorter than the shared prefix, BLIS puts that before it."""
        prompt = np.concatenate(first.prompt)
        if len(prompt) < len(self._session.prefix):
            return np.concatenate([self._session.prefix, prompt])
        return prompt


def generated(request: DrawnRequest) -> int:
    """Output tokens that count as generated when a request completes: BLIS leaves out the last one."""
    return max(len(request.output) - 1, 0)


class FollowUps:
    """What a run asks whenever a request completes: the request that follows, if one does.

    Stateful: ask in the order of the completions, once for each. A request that is rejected,
    dropped or timed out is not reported, or with `ends`.
    """

    def __init__(self, sessions: Mapping[str, Session], budget: float, horizon_us: float) -> None:
        self._sessions = sessions
        self._rounds = {name: Rounds(session) for name, session in sessions.items()}
        self._left = budget  # infinite without a limit
        self._horizon_us = horizon_us

    def ends(self, request: DrawnRequest) -> None:
        """The request did not complete: its session ends."""
        self._rounds.pop(request.session, None)

    def after(
        self, request: DrawnRequest, completed_us: int, num_generated: int | None = None
    ) -> DrawnRequest | None:
        """The next round of the request's session; None if there is none.

        Args:
            request: one that was drawn, or that this function returned.
            completed_us: end of its last step.
            num_generated: output tokens to go on from, `generated(request)` if None.
        """
        rounds = self._rounds.get(request.session)
        if rounds is None:
            return None
        session = self._sessions[request.session]
        is_last = request.round_index + 1 >= session.num_rounds
        arrival_us = completed_us + (0 if is_last else session.think_after(request.round_index))
        if is_last or self._left < 1 or arrival_us > self._horizon_us:
            self.ends(request)
            return None
        self._left -= 1
        count = generated(request) if num_generated is None else num_generated
        return rounds.after(request, arrival_us, count)


def rounds_after(
    session: Session, first: DrawnRequest, most: float, answers: Mapping[tuple[str, int], int]
) -> Iterator[DrawnRequest]:
    """The rounds after the first one, at most so many, if all complete; arrivals stay those of the first.

    `answers` are output tokens to go on from, by session and round, where they are not `generated`.
    """
    rounds, request = Rounds(session), first
    while request.round_index + 1 < session.num_rounds and request.round_index < most:
        count = answers.get((session.name, request.round_index), generated(request))
        request = rounds.after(request, first.arrival_us, count)
        yield request
