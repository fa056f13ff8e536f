"""Sources of a study's requests: a workload, which draws requests from a seed, or a recorded trace."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Protocol

from blis_jax.core.types import NO_HORIZON

if TYPE_CHECKING:
    from blis_jax.cluster.config import ClusterConfig
    from blis_jax.workload.spec import MeasureSpec


class RequestSource(Protocol):
    """A source of requests for studies: a workload (`WorkloadSpec`) or a trace (`traces.source.TraceSource`)."""

    @property
    def num_requests(self) -> int:
        """Return the number of requests in all runs of one seed; 0 if the horizon alone ends the workload."""

    @property
    def horizon(self) -> int:
        """Return the µs after which runs stop; 0 for none."""

    @property
    def aggregate_rate(self) -> float | None:
        """Return the requests per second; None if the rate is unknown before drawing."""

    @property
    def measure(self) -> MeasureSpec:
        """Return the spans at the beginning and end of the arrivals that are not measured."""

    @property
    def slo_classes(self) -> tuple[str, ...]:
        """Return the SLO classes of the requests, `default` for none, in order of their first use."""

    @property
    def waits(self) -> bool:
        """Return whether requests depend on the run, such as those that wait for answers or have deadlines."""

    def content(self) -> dict[str, Any]:
        """Return everything on which the requests depend besides the seed, as plain data."""

    def about(self) -> dict[str, Any]:
        """Return the description of the source that results contain, as plain data."""


def until_horizon(config: ClusterConfig, spec: RequestSource) -> ClusterConfig:
    """Return the configuration with the workload's horizon, unless it has its own, as in BLIS."""
    if spec.horizon and config.horizon == NO_HORIZON:
        return config.replace(horizon=spec.horizon)
    return config


FIRST_REVISION = "blis-2026-02"
REVISED = "blis-2026-08"
REVISIONS = (FIRST_REVISION, REVISED)
