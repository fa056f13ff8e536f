"""A judge's opinion on a candidate, and what judges are given to form it."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from blis_jax.cluster.config import ClusterConfig
from sweeps.review.candidates import Candidate

if TYPE_CHECKING:
    from sweeps.principles.figures import LabFigures
    from sweeps.review.decisions import RunDecisions

PASS, CONCERN, REJECT = "pass", "concern", "reject"
VERDICTS = (PASS, CONCERN, REJECT)  # from best to worst
Runs = tuple["LabFigures", ...]  # one a seed


@dataclass(frozen=True)
class Opinion:
    """One judge on one candidate."""

    judge: str
    candidate: str
    verdict: str
    reasons: tuple[str, ...]
    evidence: Mapping[str, Any] = field(default_factory=dict)
    probe: str = ""  # how the evidence was made
    is_reproducible: bool = True  # by running the probe again; false of imported ones


@dataclass(frozen=True)
class Exhibit:
    """A candidate with all that was run for the judges."""

    candidate: Candidate
    seeds: tuple[int, ...]
    runs: Mapping[ClusterConfig, Runs]
    decisions: RunDecisions | None = None  # of the first seed; None unless routing is weighted
    score: float | None = None  # by the first candidate's objectives and constraints

    def of(self, config: ClusterConfig) -> Runs:
        """The runs of a configuration, one a seed."""
        return self.runs[config]

    @property
    def own(self) -> Runs:
        """The runs of the candidate itself."""
        return self.runs[self.candidate.config]

    def mean(self, config: ClusterConfig, metric: str) -> float:
        """A metric's mean over the seeds; NaN if a run did not come to its end."""
        runs = self.runs[config]
        return sum(run.value(metric) for run in runs) / len(runs)

    def differing(self, config: ClusterConfig) -> float:
        """Share of requests of which anything differs from the candidate's own runs; 1 if one failed."""
        shares = []
        for one, other in zip(self.own, self.runs[config], strict=True):
            if one.requests is None or other.requests is None:
                return 1.0
            shares.append(float((one.requests != other.requests).any(axis=1).mean()))
        return sum(shares) / len(shares)


@dataclass(frozen=True)
class Judge:
    """What a judge needs to be run for a candidate, and its judgement."""

    name: str
    looks_for: str
    configs: Callable[[Candidate], Mapping[str, ClusterConfig]]
    judge: Callable[[Exhibit], Opinion]


def worst(verdicts: list[str]) -> str:
    """The worst of several verdicts; pass if there are none."""
    return max(verdicts, key=VERDICTS.index, default=PASS)


def nothing(candidate: Candidate) -> Mapping[str, ClusterConfig]:
    """For judges that need no runs but the candidate's own."""
    return {}
