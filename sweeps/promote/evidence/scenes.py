"""Scenes that a promotion simulates: a workload, and what is different from the simulation that found the strategy."""

from __future__ import annotations

import hashlib
import json
import re
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from blis_jax.cluster.config import ClusterConfig
from blis_jax.errors import ConfigError
from blis_jax.workload.spec import WorkloadSpec, override
from sweeps.promote.configs import engine
from sweeps.promote.evidence.concerns import NOT_YET, TARGET_PROFILE, Concern, concern_named
from sweeps.promote.maps.rows import gap_rows
from sweeps.promote.promotion import Promotion
from sweeps.runs.requests import workload_from

USUAL_WORKLOAD = "mixed"


@dataclass(frozen=True)
class SimulatedScene:
    """Hold a workload, and what is different from the simulation that found the strategy."""

    name: str
    workload: str
    spec: WorkloadSpec
    concern: Concern | None = None
    stream: str = "reference"

    @property
    def about(self) -> str:
        """Return the scene in words."""
        return f"workload {self.workload}" + (f" with {self.concern.name}" if self.concern else "")

    @property
    def key(self) -> str:
        """Return a key that is equal for scenes of the same requests under the same concern."""
        content = [self.spec.content(), self.concern.name if self.concern else "", self.stream]
        return hashlib.sha256(json.dumps(content, sort_keys=True).encode()).hexdigest()[:16]

    def spec_with_concern(self) -> WorkloadSpec:
        """Return the workload that is drawn."""
        if self.concern is None or self.concern.change_workload is None:
            return self.spec
        return self.concern.change_workload(self.spec)

    def config_with_concern(self, config: ClusterConfig) -> ClusterConfig:
        """Return the configuration that is run."""
        return config if self.concern is None else self.concern.applied(config, self.spec)[0]

    def rate(self, seconds: float, num_requests: int) -> float:
        """Return requests per second that are offered; of a workload that does not say, those that came."""
        return self.spec.aggregate_rate or num_requests / max(seconds, 1e-6)


def workload_of_promotion(
    promotion: Promotion, num_requests: int | None = None
) -> tuple[WorkloadSpec, str]:
    """Return the workload that the strategy was found on, and its name."""

    spec = engine.workload_of_promotion(promotion)
    spec = override(spec, num_requests=num_requests) if num_requests else spec
    strategy = promotion.arm.strategy
    given = USUAL_WORKLOAD if strategy is None else strategy.workload
    return spec, given if isinstance(given, str) else f"of {strategy.name if strategy else ''}"


def workload_named(
    name: str, promotion: Promotion, num_requests: int | None = None
) -> WorkloadSpec:
    """Return a workload by its name, a file, or the strategy's own."""

    own, own_name = workload_of_promotion(promotion, num_requests)
    if name == own_name:
        return own
    folder = promotion.arm.strategy.folder if promotion.arm.strategy else None
    return workload_from(name, folder=folder, num_requests=num_requests)


def scene_of(
    entry: Mapping[str, Any], name: str, promotion: Promotion, num_requests: int | None
) -> SimulatedScene:
    """Return the scene of a hypothesis.

    Raises:
        ConfigError: it cannot be simulated; the sentence says why.
    """

    given = entry.get("workload") or {}
    workload = str(given.get("name") or workload_of_promotion(promotion)[1])
    spec = workload_named(workload, promotion, num_requests)
    if given.get("rate"):
        spec = override(spec, aggregate_rate=float(given["rate"]))
    gap = gap_of(entry)
    if entry.get("track") == "B" and gap is None:
        raise ConfigError(
            f"{NOT_YET}: no row of Map C brings {entry.get('origin')} into a simulation"
        )
    concern = concern_named(gap) if gap else None
    if entry.get("track") == "A":  # what is promoted is judged by the signals that it will have
        concern = concern_named(TARGET_PROFILE)
    if concern is not None:
        for config in (promotion.baseline.config, promotion.arm.config):
            concern.applied(config, spec)
    return SimulatedScene(name, workload, spec, concern)


def gap_of(entry: Mapping[str, Any]) -> str | None:
    """Return the row of Map C that a hypothesis of track B comes from."""

    if entry.get("track") != "B":
        return None
    words = set(re.findall(r"[a-z0-9-]+", str(entry.get("origin"))))
    return next((row.id for row in gap_rows() if row.id in words), None)
