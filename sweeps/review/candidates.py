"""Candidates under review, identified by a hash of their content; judges, and the opinions that they form."""

from __future__ import annotations

import hashlib
import json
import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from typing import TYPE_CHECKING, Any

from blis_jax.cluster.config import ClusterConfig
from blis_jax.cluster.router import weights_of
from blis_jax.errors import ConfigError
from blis_jax.metrics.run_summary import RunSummary, share_differing
from blis_jax.workload.spec import WorkloadSpec
from sweeps.claims.words import OPINIONS, PASS
from sweeps.runs.requests import strategies_of, workload_for
from sweeps.strategies.arms import Arm, arms_of
from sweeps.strategies.file import Strategy
from sweeps.strategies.moved import values_for_hash
from sweeps.strategies.space import SCORERS, Dimension, Space, space_of

if TYPE_CHECKING:
    from sweeps.review.routing import RunDecisions

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
        """Return the candidate's label, or its arm text without one."""
        return self.arm.name

    @property
    def config(self) -> ClusterConfig:
        """Return the configuration that is simulated."""
        return self.arm.config

    @property
    def strategy(self) -> Strategy | None:
        """Return the strategy file that the candidate came from; None if it came from no file."""
        return self.arm.strategy

    @cached_property
    def hash(self) -> str:
        """Return a hash of the configuration, of the strategy file's content (not its layout) and of the workload."""
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
        """Return the strategy's own seeds, or the default ones."""
        return self.strategy.seeds if self.strategy is not None else USUAL_SEEDS

    @property
    def classes(self) -> tuple[str, ...]:
        """Return the SLO classes of the workload, in its order."""
        return self.spec.slo_classes

    def space(self) -> Space | None:
        """Return the search space of the candidate's file; None without a file or space."""
        return None if self.strategy is None else space_of(self.strategy)


def candidates_of(texts: Sequence[str], num_requests: int | None = None) -> tuple[Candidate, ...]:
    """Return the candidates that two or three arm texts name.

    Raises:
        ConfigError: there are too few or too many, or one is given twice.
    """
    if not LEAST <= len(texts) <= MOST:
        raise ConfigError(
            f"{LEAST} or {MOST} candidates are needed, got {len(texts)}; give strategy files or arms"
        )
    arms = arms_of(texts)

    candidates = []
    for text, arm in zip(texts, arms, strict=True):
        spec, _ = workload_for(None, strategies_of([arm]), num_requests)
        candidates.append(Candidate(text, arm, spec))
    hashes = [candidate.hash for candidate in candidates]
    for candidate in candidates:
        if hashes.count(candidate.hash) > 1:
            raise ConfigError(f"candidate {candidate.name!r} is given twice; give different ones")
    return tuple(candidates)


def value_of(dimension: Dimension, config: ClusterConfig) -> Any:
    """Return a configuration's value of a search parameter; None if it lacks the parameter's scorer."""
    setting, dot, scorer = dimension.target.partition(".")
    if dot and setting == SCORERS:
        return weights_of(config.scorers()).get(scorer)
    return config.value(dimension.target)


Runs = tuple["RunSummary", ...]  # one a seed


@dataclass(frozen=True)
class Opinion:
    """One judge's opinion on one candidate."""

    judge: str
    candidate: str
    verdict: str
    reasons: tuple[str, ...]
    evidence: Mapping[str, Any] = field(default_factory=dict)
    probe: str = ""  # how the evidence was made
    is_reproducible: bool = True  # by running the probe again; false of imported ones


@dataclass(frozen=True)
class Exhibit:
    """A candidate with all runs that the judges compare."""

    candidate: Candidate
    seeds: tuple[int, ...]
    runs: Mapping[ClusterConfig, Runs]
    decisions: RunDecisions | None = None  # of the first seed; None unless routing is weighted
    score: float | None = None  # by the first candidate's objectives and constraints

    def of(self, config: ClusterConfig) -> Runs:
        """Return the runs of a configuration, one per seed."""
        return self.runs[config]

    @property
    def own(self) -> Runs:
        """Return the runs of the candidate itself."""
        return self.runs[self.candidate.config]

    def mean(self, config: ClusterConfig, metric: str) -> float:
        """Return a metric's mean over the seeds; NaN if a run did not finish."""
        runs = self.runs[config]
        return sum(run.value(metric) for run in runs) / len(runs)

    def differing(self, config: ClusterConfig) -> float:
        """Return the share of requests of which anything differs from the candidate's own run; 1 if a run failed."""
        shares = []
        for own_run, other_run in zip(self.own, self.runs[config], strict=True):
            shares.append(share_differing(own_run, other_run))
        return 1.0 if any(map(math.isnan, shares)) else sum(shares) / len(shares)


Looked = tuple[Sequence[tuple[str, str]], Mapping[str, Any]]  # verdicts with reasons; evidence


def nothing(candidate: Candidate) -> Mapping[str, ClusterConfig]:
    """Return no further configurations, for judges that need the candidate's own runs alone."""
    return {}


@dataclass(frozen=True)
class Judge:
    """A judge: its check of a candidate's runs, and the runs that the check needs.

    Attributes:
        fine: the reason given where nothing is wrong.
        probe: how the evidence is produced, in words.
        configs: returns the further configurations to run for a candidate.
    """

    name: str
    fine: str
    probe: str
    look: Callable[[Exhibit], Looked]
    configs: Callable[[Candidate], Mapping[str, ClusterConfig]] = nothing

    def judge(self, exhibit: Exhibit) -> Opinion:
        """Return the judge's opinion: the worst verdict of its check, with all reasons."""
        verdicts, evidence = self.look(exhibit)
        reasons = tuple(reason for _, reason in verdicts if reason) or (self.fine,)
        verdict = worst([verdict for verdict, _ in verdicts])
        return Opinion(self.name, exhibit.candidate.name, verdict, reasons, evidence, self.probe)


def worst(verdicts: list[str]) -> str:
    """Return the worst of several verdicts; pass if there are no verdicts."""
    return max(verdicts, key=OPINIONS.index, default=PASS)
