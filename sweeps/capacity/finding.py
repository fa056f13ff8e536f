"""The smallest cluster of a kind, by doubling and halving its number of instances, on common seeds.

With more instances a cluster is taken to do no worse. Then the sizes on the way to the right answer are fixed before
any run, and the allowed error is divided among them: the answer is wrong with no more than that probability. One
program runs clusters of about one size.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np

from blis_jax.cluster.config import ClusterConfig
from blis_jax.core.outcome import WHOLE
from blis_jax.metrics.measure import Measure, window_of
from blis_jax.metrics.summaries import select
from blis_jax.records.record import RunRecord
from blis_jax.runs.driver import Runner
from blis_jax.runs.options import Options, default_form
from blis_jax.statistics.sequential import (
    DECIDED,
    GOES_ON,
    SPENT,
    FixedCounts,
    Look,
    look_until_end,
)
from sweeps.capacity.deciding import Decision, ServiceTarget, decide, looks, num_tries
from sweeps.capacity.layouts import LayoutFamily
from sweeps.claims.words import FAILS, MEETS, OPEN
from sweeps.runs.drawn import DrawnRows
from sweeps.strategies.arms import Arm, key_of

if TYPE_CHECKING:
    from blis_jax.files.chain import Journal
    from sweeps.runs.requests import StudyRequests

Counts = tuple[tuple[int, int], ...]  # in time and in all, by target
ROWS = 16  # of a call
OnSize = Callable[[int, Decision], None]


@dataclass(frozen=True)
class InTime:
    """Count the measured requests of each target, and those in time; in a run that was cut off none is."""

    targets: tuple[ServiceTarget, ...]
    measure: Measure

    def __call__(self, record: RunRecord) -> Counts:
        """Return both counts by target."""
        window, is_whole = window_of(self.measure, record), record.outcome in WHOLE
        found = []
        for target in self.targets:
            chosen = select(record, target.as_slo(), window).of_name(target.slo_class)
            found.append((chosen.num_good if is_whole else 0, chosen.num_requests))
        return tuple(found)


class CountedRuns:
    """Run clusters on the first seeds of a list; what the journal has is not run again."""

    def __init__(
        self, requests: StudyRequests, in_time: InTime, journal: Journal | None = None
    ) -> None:
        self.requests, self.in_time = requests, in_time
        self.journal, self.num_runs = journal, 0
        self.drawn = DrawnRows(requests.stream)
        self.runner = Runner(Options(form=default_form()), ROWS)
        self.found: dict[tuple[str, int], Counts] = {}
        if journal is not None:
            for key, first, rows in journal.lines():
                self._keep(key, first, (tuple(map(tuple, row)) for row in rows))
            journal.begin()

    @property
    def seeds(self) -> tuple[int, ...]:
        """Return all that may be used."""
        return self.requests.seeds

    def of(
        self, config: ClusterConfig, num_seeds: int, wider: ClusterConfig
    ) -> tuple[np.ndarray, np.ndarray]:
        """Return the requests in time and in all `[seed, target]`, of the first seeds.

        `wider` is a larger cluster of the same kind, for which the program is made, so that others may use it, too.
        """
        key = key_of(config)
        first = next((at for at in range(num_seeds) if (key, at) not in self.found), num_seeds)
        if first < num_seeds:
            source, seeds = self.requests.source, self.requests.seeds
            self.runner.expect(self.drawn.rows(wider, source, seeds[:1]))
            rows = self.drawn.rows(config, source, seeds[first:num_seeds])
            counted = self.runner.run(rows, self.in_time)
            self.num_runs += len(rows)
            self._keep(key, first, counted)
            if self.journal is not None:
                self.journal.append([key, first, counted])
        both = np.array([self.found[key, at] for at in range(num_seeds)], np.float64)
        return both[..., 0], both[..., 1]

    def _keep(self, key: str, first: int, rows: Iterable[Counts]) -> None:
        self.found.update(((key, first + at), row) for at, row in enumerate(rows))


@dataclass(frozen=True)
class Smallest:
    """Hold what is known of one policy on one kind of cluster."""

    arm: Arm
    family: LayoutFamily
    tried: dict[int, Decision]  # by number of instances, in ascending order

    @property
    def num_instances(self) -> int | None:
        """Return the fewest instances that meet the targets; None if none of those tried does."""
        return next((size for size, one in self.tried.items() if one.answer == MEETS), None)

    @property
    def fails_at(self) -> int | None:
        """Return the most instances below that do not; None if that was not found."""
        below = [
            size
            for size, one in self.tried.items()
            if one.answer == FAILS and size < (self.num_instances or size + 1)
        ]
        return max(below, default=None)

    @property
    def is_sharp(self) -> bool:
        """Return whether one instance less is known not to suffice."""
        if self.num_instances is None:
            return False
        return self.num_instances == self.family.least or self.fails_at == self.num_instances - 1


@dataclass(frozen=True)
class Finder:
    """Search by doubling, then between two sizes."""

    runs: CountedRuns
    confidence: float
    most: int  # instances

    @property
    def num_tries(self) -> int:
        """Return how many sizes are tried at most: some by doubling or halving, then between two of them."""
        return num_tries(self.most)

    def find(self, arm: Arm, family: LayoutFamily, is_corrected: bool, on_size: OnSize) -> Smallest:
        """Return the smallest cluster of one kind for one policy."""
        tried: dict[int, Decision] = {}

        def meets(size: int) -> bool:
            if size not in tried:
                tried[size] = self._decision(arm, family, size, is_corrected)
                on_size(size, tried[size])
            return tried[size].answer == MEETS

        least = family.least
        size = min(max(arm.config.num_instances, least), self.most)
        if meets(size):
            while size > least and meets(max(size // 2, least)):
                size = max(size // 2, least)
            low, high = max(size // 2, least), size
        else:
            while size < self.most and not meets(min(2 * size, self.most)):
                size = min(2 * size, self.most)
            low, high = size, min(2 * size, self.most)
        while high - low > 1:
            middle = (low + high) // 2
            low, high = (low, middle) if meets(middle) else (middle, high)
        return Smallest(arm, family, dict(sorted(tried.items())))

    def _decision(self, arm: Arm, family: LayoutFamily, size: int, is_corrected: bool) -> Decision:
        shares = [target.share for target in self.runs.in_time.targets]
        every = looks(len(self.runs.seeds))
        wider = min(max(1 << (size - 1).bit_length(), family.least), max(self.most, size))
        configs = [
            family.of(number).configured(arm.config, is_corrected) for number in (size, wider)
        ]
        error = (1 - self.confidence) / self.num_tries

        def look_at(num_seeds: int) -> Look[Decision]:
            counts = self.runs.of(configs[0], num_seeds, configs[1])
            decision = decide(*counts, shares, error, len(every))
            end = SPENT if num_seeds == every[-1] else GOES_ON
            return Look(num_seeds, decision, end=end if decision.answer == OPEN else DECIDED)

        return look_until_end(FixedCounts(every), every[0], look_at)[-1].found
