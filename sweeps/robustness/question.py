"""What is asked of a robustness map: the objective, constraints, and how sure an answer must be."""

from __future__ import annotations

import re
from dataclasses import dataclass

import numpy as np

from blis_jax.errors import ConfigError
from blis_jax.metrics.scalars import Metric, lookup
from sweeps.runs.metrics import our_name

OBJECTIVE = "ttft_p99_ms[critical]"
CONSTRAINTS = ("ttft_p99_ms[sheddable]<=200%", "tokens_per_sec>=95%")


@dataclass(frozen=True)
class MapConstraint:
    """A bound on a metric's mean over the seeds, absolute or in % of the first strategy's mean."""

    metric: str
    is_upper: bool
    limit: float
    is_relative: bool

    def __str__(self) -> str:
        sign = "<=" if self.is_upper else ">="
        return f"{self.metric}{sign}{self.limit:g}{'%' if self.is_relative else ''}"

    def keeps(self, means: np.ndarray) -> np.ndarray:
        """Which strategies keep it, `[…, strategy]`; without a value of the first all keep a relative one."""
        bound = self.limit / 100 * means[..., :1] if self.is_relative else np.array(self.limit)
        excess = means - bound if self.is_upper else bound - means
        kept: np.ndarray = ~(excess > 0)
        return kept


def read_constraint(text: str) -> MapConstraint:
    """A constraint from `METRIC<=LIMIT` or `METRIC>=LIMIT`, `%` behind for one in % of the first."""
    found = re.fullmatch(r"\s*(\S+?)\s*(<=|>=)\s*([0-9.eE+-]+)\s*(%?)\s*", text)
    try:
        limit = float(found[3]) if found else np.nan
    except ValueError:
        limit = np.nan
    if found is None or not np.isfinite(limit):
        raise ConfigError(
            f"constraint {text!r} is not METRIC<=LIMIT or METRIC>=LIMIT; write for instance "
            "'ttft_p99_ms[sheddable]<=200%' for twice the first strategy's"
        )
    metric = our_name(found[1])
    lookup(metric)
    return MapConstraint(metric, found[2] == "<=", limit, bool(found[4]))


@dataclass(frozen=True)
class Question:
    """What is asked of a map."""

    objective: str = OBJECTIVE
    constraints: tuple[MapConstraint, ...] = tuple(map(read_constraint, CONSTRAINTS))
    confidence: float = 0.95
    random_state: int = 0

    def __post_init__(self) -> None:
        """Refuses unknown metrics and impossible confidence."""
        lookup(self.objective)
        if not 0.5 < self.confidence < 1:
            raise ConfigError(f"--confidence must be between 0.5 and 1, got {self.confidence:g}")

    @property
    def metric(self) -> Metric:
        """The objective's metric; its direction says what is better."""
        return lookup(self.objective)[0]

    @property
    def names(self) -> tuple[str, ...]:
        """Every metric that is needed."""
        return tuple(dict.fromkeys((self.objective, *(one.metric for one in self.constraints))))
