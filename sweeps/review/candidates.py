"""Candidates under review, each bound to a hash of what it is."""

from __future__ import annotations

import hashlib
import json
from dataclasses import dataclass
from functools import cached_property
from typing import Any

from blis_jax.cluster.config import ClusterConfig
from blis_jax.cluster.setting_values import values_for_hash
from blis_jax.errors import ConfigError
from blis_jax.workload.spec import WorkloadSpec, load_builtin
from sweeps.strategies.arms import Arm, arms_of
from sweeps.strategies.file import Strategy
from sweeps.strategies.space import SCORERS, Dimension, Space, space_of

LEAST, MOST = 2, 3
USUAL_SEEDS = (42, 43, 44)
PATHS = {"source", "folder", "parameter_paths"}


@dataclass(frozen=True)
class Candidate:
    """An arm with its workload."""

    text: str  # as given
    arm: Arm
    spec: WorkloadSpec

    @property
    def name(self) -> str:
        """Its label, or the text itself."""
        return self.arm.name

    @property
    def config(self) -> ClusterConfig:
        """What is simulated."""
        return self.arm.config

    @property
    def strategy(self) -> Strategy | None:
        """The file that it came from, if any."""
        return self.arm.strategy

    @cached_property
    def hash(self) -> str:
        """Of the configuration, the strategy file's content and the workload; layout does not count."""
        strategy = self.strategy
        content = {
            "config": values_for_hash(self.config),
            "strategy": strategy and strategy.model_dump(mode="json", exclude=PATHS),
            "workload": self.spec.model_dump(mode="json"),
        }
        text = json.dumps(content, sort_keys=True, default=str)
        return f"sha256:{hashlib.sha256(text.encode()).hexdigest()}"

    @property
    def seeds(self) -> tuple[int, ...]:
        """The strategy's own seeds."""
        return self.strategy.seeds if self.strategy is not None else USUAL_SEEDS

    @property
    def classes(self) -> tuple[str, ...]:
        """SLO classes of the workload, in its order."""
        names = [client.slo_class or "default" for client in self.spec.clients]
        return tuple(dict.fromkeys(names))

    def space(self) -> Space | None:
        """Its search space, if it came from a file with one."""
        return None if self.strategy is None else space_of(self.strategy)


def candidates_of(texts: list[str], num_requests: int | None = None) -> tuple[Candidate, ...]:
    """The candidates of two or three texts."""
    if not LEAST <= len(texts) <= MOST:
        raise ConfigError(
            f"{LEAST} or {MOST} candidates are needed, got {len(texts)}; give strategy files or arms"
        )
    arms = arms_of(texts)
    from sweeps.runs.bench import workload_of  # brings jax, which refusals should not wait for

    found = []
    for text, arm in zip(texts, arms, strict=True):
        if arm.strategy is None:
            spec = load_builtin("mixed")
        else:
            spec = workload_of(arm.strategy, space_of(arm.strategy).num_requests)
        if num_requests is not None:
            from blis_jax.workload.spec import override

            spec = override(spec, num_requests=num_requests)
        found.append(Candidate(text, arm, spec))
    hashes = [candidate.hash for candidate in found]
    for candidate in found:
        if hashes.count(candidate.hash) > 1:
            raise ConfigError(f"candidate {candidate.name!r} is given twice; give different ones")
    return tuple(found)


def value_of(dimension: Dimension, config: ClusterConfig) -> Any:
    """What a configuration has where a parameter acts."""
    setting, dot, scorer = dimension.target.partition(".")
    if dot and setting == SCORERS:
        return dict(config.scorers()).get(scorer)
    return getattr(config, dimension.target)
