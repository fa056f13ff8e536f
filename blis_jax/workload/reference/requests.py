"""A drawn request: its arrival and its contents."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, NamedTuple

import numpy as np

if TYPE_CHECKING:
    from jaxtyping import Int32

    Tokens = Int32[np.ndarray, " token"]

NO_SESSION = ""
NO_DEADLINE = 0
NO_PARTS = (0, 0, 0, 0)


class DrawnRequest(NamedTuple):
    """A request with its contents; parts of its prompt may be shared with other requests."""

    arrival_us: int
    client: int
    prompt: tuple[Tokens, ...]
    output: Tokens
    session: str = NO_SESSION  # its name
    round_index: int = 0
    prefix_group: str = ""  # as BLIS reports it: not for rounds of sessions
    prefix_len: int = 0  # leading tokens of a prefix group, as BLIS reports them
    deadline_us: int = NO_DEADLINE
    slo_target_us: int = 0  # bound on the time to the first token, 0 for none
    parts: tuple[int, int, int, int] = NO_PARTS  # tokens of text, images, audio, video
    reason_ratio: float = 0.0  # share of reasoning tokens, which changes nothing
    # of `request_<number>`; its row among requests that wait for no other if None
    number: int | None = None

    @property
    def input_len(self) -> int:
        """Return the number of tokens of the prompt."""
        return sum(map(len, self.prompt))


class RequestBatch(NamedTuple):
    """Requests that a client draws together: a single request, a session, or all of its requests."""

    begins_us: int  # no request of a later batch arrives before
    requests: list[DrawnRequest]
    num_tokens: int  # drawn for them


@dataclass(frozen=True)
class ClientLimits:
    """The horizon and the greatest number of requests at which a client's requests end."""

    horizon_us: float  # exclusive, infinite without one
    most_requests: float  # per client, infinite without a limit; a session is not cut
