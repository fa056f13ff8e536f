"""Several gateways in the plain-Python oracle: each has a router, an admission, and its own requests in flight."""

from collections.abc import Mapping
from typing import Any

import numpy as np

from tests.support.oracles.oracle import (
    IN_FLIGHT,
    Cluster,
    Config,
    OracleResult,
    Request,
    Snapshot,
    make_admission,
    make_router,
    simulate,
)


class SharedCluster(Cluster):
    """A cluster behind gateways to which requests are dealt in turn."""

    def __init__(self, requests: list[Request], config: Config, profile: str) -> None:
        super().__init__(requests, config, profile)
        count = config["num-gateways"]
        self.admissions = [make_admission(config, profile) for _ in range(count)]
        self.routers = [make_router(config, profile) for _ in range(count)]
        self.sent: list[list[Request]] = [[] for _ in range(count)]
        self.mine: list[Request] = []

    def _enter(self, request: Request) -> None:
        at = request.index % len(self.routers)
        self.router, self.admit, self.mine = self.routers[at], self.admissions[at], self.sent[at]

    def _look(self, now: int) -> list[Snapshot]:
        on_the_way = [one.instance for one in self.mine if one.status == IN_FLIGHT]
        return [
            seen._replace(load=seen.queue_depth + seen.batch_size + on_the_way.count(place))
            for place, seen in enumerate(super()._look(now))
        ]

    def _decide_admission(self, request: Request, now: int) -> None:
        self._enter(request)
        super()._decide_admission(request, now)

    def _route(self, request: Request, now: int) -> None:
        self._enter(request)
        super()._route(request, now)
        self.mine.append(request)


def shared(workload: Mapping[str, np.ndarray], config: Config, profile: str) -> OracleResult:
    """The oracle's run behind several gateways."""

    def made(*given: Any) -> Cluster:
        return SharedCluster(*given)

    return simulate(workload, config, profile, made)
