"""The moving oracle with precise routing: the caches of instances that fail and hand over feed the router's index."""

from __future__ import annotations

from typing import TYPE_CHECKING

from tests.support.oracles import oracle
from tests.support.oracles.moving_oracle import MovingCluster, Turn
from tests.support.oracles.precise_index import Fate, PreciseIndex
from tests.support.recorded.routing_track import add_up

if TYPE_CHECKING:
    from tests.support.oracles.oracle import Config, ContentKey, Request, Snapshot


class ByScore(Turn):
    """The best of some instances by the weighted router's scores; the first one of several."""

    def __init__(self, cluster: IndexedCluster) -> None:
        self.cluster = cluster

    def choose(self, snapshots: list[Snapshot], among: list[int]) -> int:
        router = self.cluster.scored_by
        assert self.cluster.routed is not None
        scores = [router._scores(name, self.cluster.routed, snapshots) for name in router.weights]
        totals = add_up(list(router.weights.values()), scores)
        return max(among, key=lambda number: (totals[number], -number))


class IndexedCluster(MovingCluster):
    """Requests go by an index of what the caches hold, to prefill and to decode instances."""

    def __init__(self, requests: list[Request], config: Config, profile: str) -> None:
        super().__init__(requests, config, profile)
        assert isinstance(self.router, oracle.WeightedRouter)
        self.scored_by: oracle.WeightedRouter = self.router
        self.routed: Request | None = None
        self.fate = Fate()
        self.turn = self.decode_turn = ByScore(self)
        self.former: dict[int, list[ContentKey]] = {request.index: [] for request in requests}

    def rename(self, request: Request) -> None:
        before = request.prompt_keys
        super().rename(request)
        gone = [key for key, new in zip(before, request.prompt_keys, strict=True) if key != new]
        self.former[request.index] += gone
        named = getattr(self.fate, "content", None)
        if named is not None:  # messages are lost by who has a block, whatever its name
            pairs = enumerate(zip(before, request.prompt_keys, strict=True))
            named |= {new: (request.index + 1, at) for at, (key, new) in pairs if key != new}

    def _route(self, request: Request, now: int) -> None:
        index = self.scored_by.index
        assert isinstance(index, PreciseIndex)
        self.routed, index.now = request, now
        matched = index.matched_blocks(request)
        super()._route(request, now)
        self.router_views[request.index] = (self.router_views[request.index][0], matched)
        events = self.instances[request.instance].kv.gpu.events
        if self.former[request.index] and events is not None:
            events.disowned(list(self.former[request.index]), now)
