"""Which of several systems is best, with a stated probability of being right: Kim's and Nelson's procedure.

All systems are observed on the same seeds, a few at a time. After r seeds a system is out if the sum of what it is
worse by than another one exceeds

    W(r) = max(0, (h² S² ÷ δ - δ r) ÷ 2),   h² = (n - 1) ((2 α ÷ (k - 1))^(-2 ÷ (n - 1)) - 1),

with S² the variance of their differences over the first n seeds, k systems, and δ the indifference zone. With a
probability of at least 1 - α the one that is left is the best, if that one is better than all others by δ or more;
else it is within δ of the best with the same probability, as far as is known. Exact for normal differences, whatever
the seeds have in common. S.-H. Kim and B. L. Nelson, A fully sequential procedure for indifference-zone selection in
simulation, ACM TOMACS 11 (2001).

Constraints are judged the same way, each system by itself, with half of α (S. Andradóttir and S.-H. Kim, Fully
sequential procedures for comparing constrained systems via simulation, Naval Res. Logist. 57, 2010): a system whose
mean keeps a constraint by its tolerance or more is taken, one that misses it by as much is not, and between them
either will do. The probabilities of error of all constraints and systems add up to that half.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np

from blis_jax.errors import ConfigError

if TYPE_CHECKING:
    from jaxtyping import Float

KEPT, MISSED, OPEN = "kept", "missed", "open"


@dataclass(frozen=True)
class Slack:
    """By how much a constraint is kept on each seed, negative where it is missed; beyond `tolerance` it counts."""

    values: Float[np.ndarray, "seed"]
    tolerance: float


def spread_factor(num_first: int, error: float) -> float:
    """h², for a chance of error of one comparison that is looked at as often as one likes."""
    return (num_first - 1) * ((2 * error) ** (-2 / (num_first - 1)) - 1)


def boundary(variance: float, zone: float, factor: float, count: int) -> float:
    """W: how far a sum of differences must be from 0 after so many seeds."""
    return max(0.0, (factor * variance / zone - zone * count) / 2)


@dataclass(frozen=True)
class WhatIsLeft:
    """What is known after so many seeds."""

    feasible: tuple[str, ...]  # KEPT, MISSED or OPEN, by system
    left: tuple[int, ...]  # systems that may be the best; one if the procedure has come to its end
    out_by: tuple[int | None, ...]  # which system showed that one is not the best

    @property
    def is_over(self) -> bool:
        """Whether the best is known, or that there is none."""
        return OPEN not in self.feasible and len(self.left) <= 1


class Finalists:
    """The procedure: give it the values of all seeds so far, at every look."""

    def __init__(self, num_systems: int, num_first: int, zone: float, error: float) -> None:
        """`zone` in the unit of the values, of which smaller ones are better; `error` is α."""
        if num_systems < 2 or num_first < 3 or zone <= 0 or not 0 < error < 0.5:
            raise ConfigError(
                f"a selection needs two systems or more, three seeds or more, a zone above 0 and an error below "
                f"0.5; got {num_systems}, {num_first}, {zone:g}, {error:g}"
            )
        self.num_systems, self.num_first, self.zone, self.error = (
            num_systems, num_first, zone, error,
        )  # fmt: skip
        self.feasible = [OPEN] * num_systems
        self.out_by: list[int | None] = [None] * num_systems

    def look(
        self, values: Sequence[Float[np.ndarray, "seed"]], slacks: Sequence[Sequence[Slack]]
    ) -> WhatIsLeft:
        """What the seeds so far say; systems that are out may have fewer.

        `slacks` has the constraints of each system, the same number for all.
        """
        num_constraints = len(slacks[0]) if slacks else 0
        error = self.error / 2 if num_constraints else self.error
        self._judge_constraints(slacks, error, num_constraints)
        feasible = [at for at, verdict in enumerate(self.feasible) if verdict == KEPT]
        for one in feasible:
            for other in feasible:
                if self.out_by[one] is None and self.out_by[other] is None and one != other:
                    self._compare(values, one, other, error)
        left = tuple(
            at
            for at in range(self.num_systems)
            if self.feasible[at] != MISSED and self.out_by[at] is None
        )
        return WhatIsLeft(tuple(self.feasible), left, tuple(self.out_by))

    def _compare(
        self, values: Sequence[Float[np.ndarray, "seed"]], one: int, other: int, error: float
    ) -> None:
        worse = values[one] - values[other]
        factor = spread_factor(self.num_first, error / (self.num_systems - 1))
        variance = float(worse[: self.num_first].var(ddof=1))
        if float(worse.sum()) > boundary(variance, self.zone, factor, len(worse)):
            self.out_by[one] = other

    def _judge_constraints(
        self, slacks: Sequence[Sequence[Slack]], error: float, count: int
    ) -> None:
        if not count:
            self.feasible = [KEPT if one == OPEN else one for one in self.feasible]
            return
        factor = spread_factor(self.num_first, error / (self.num_systems * count))
        for at, of_system in enumerate(slacks):
            if self.feasible[at] == OPEN and self.out_by[at] is None:
                verdicts = [self._verdict(slack, factor) for slack in of_system]
                if MISSED in verdicts:
                    self.feasible[at] = MISSED
                elif OPEN not in verdicts:
                    self.feasible[at] = KEPT

    def _verdict(self, slack: Slack, factor: float) -> str:
        variance = float(slack.values[: self.num_first].var(ddof=1))
        limit = boundary(variance, slack.tolerance, factor, len(slack.values))
        total = float(slack.values.sum())
        if abs(total) < limit:
            return OPEN
        return KEPT if total >= 0 else MISSED
