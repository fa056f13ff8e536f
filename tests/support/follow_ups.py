"""The requests that completions bring, asked for one by one: a second way to what the table of a closed loop holds."""

from __future__ import annotations

from collections.abc import Mapping

from blis_jax.workload.reference.generate import DrawnWorkload, Rounds, Session, generated
from blis_jax.workload.reference.requests import DrawnRequest


def follow_ups(workload: DrawnWorkload) -> FollowUps:
    return FollowUps(workload.sessions, workload.budget, workload.horizon_us)


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
