"""Requests in time, run by run: common seeds for every cluster, one program for clusters of about one size."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np

from blis_jax.cluster.config import ClusterConfig
from blis_jax.core.outcome import WHOLE
from blis_jax.metrics.measure import Measure, window_of
from blis_jax.metrics.reference import class_code
from blis_jax.metrics.summaries import ALL, select
from blis_jax.policies.seeds import BY_WORKLOAD, policy_seed_under
from blis_jax.results.records import RunRecord
from blis_jax.runs.driver import Runner
from blis_jax.runs.options import Options, default_form
from blis_jax.runs.simulation import Row
from blis_jax.workload.source import until_horizon
from sweeps.capacity.targets import ServiceTarget
from sweeps.runs.bench import placed, table_of
from sweeps.runs.measured import key_of

if TYPE_CHECKING:
    from blis_jax.files.journal import Journal
    from blis_jax.workload.source import RequestSource
    from blis_jax.workload.table import RequestTable

Counts = tuple[tuple[int, int], ...]  # in time and in all, by target
ROWS = 16  # of a call


@dataclass(frozen=True)
class InTime:
    """Counts the measured requests of each target, and those in time; in a run that was cut off none is."""

    targets: tuple[ServiceTarget, ...]
    measure: Measure

    def __call__(self, record: RunRecord) -> Counts:
        """By target."""
        window, is_whole = window_of(self.measure, record), record.outcome in WHOLE
        found = []
        for target in self.targets:
            chosen = select(record, target.as_slo(), window)
            if target.slo_class != ALL:
                chosen = chosen.where(record.requests.slo_class == class_code(target.slo_class))
            found.append((chosen.num_good if is_whole else 0, chosen.num_requests))
        return tuple(found)


class CountedRuns:
    """Runs clusters on the first seeds of a list; what the journal has is not run again."""

    def __init__(
        self,
        source: RequestSource,
        seeds: Sequence[int],
        stream: str,
        in_time: InTime,
        journal: Journal | None = None,
    ) -> None:
        """`stream` draws the requests, see `Bench`."""
        self.source, self.seeds, self.stream, self.in_time = source, tuple(seeds), stream, in_time
        self.journal, self.num_runs = journal, 0
        self.tables: dict[tuple[int, int], RequestTable] = {}
        self.runner = Runner(Options(form=default_form()), ROWS)
        self.found: dict[tuple[str, int], Counts] = {}
        if journal is not None:
            for key, first, rows in journal.lines():
                self._keep(key, first, (tuple(map(tuple, row)) for row in rows))
            journal.begin()

    def of(
        self, config: ClusterConfig, num_seeds: int, wider: ClusterConfig
    ) -> tuple[np.ndarray, np.ndarray]:
        """Requests in time and in all `[seed, target]`, of the first seeds.

        `wider` is a larger cluster of the same kind, for which the program is made, so that others may use it, too.
        """
        key = key_of(config)
        first = next((at for at in range(num_seeds) if (key, at) not in self.found), num_seeds)
        if first < num_seeds:
            config, wider = (until_horizon(one, self.source) for one in (config, wider))
            self.runner.expect([self._row(wider, 0)])
            rows = [self._row(config, at) for at in range(first, num_seeds)]
            counted = self.runner.run(rows, self.in_time)
            self.num_runs += len(rows)
            self._keep(key, first, counted)
            if self.journal is not None:
                self.journal.append([key, first, counted])
        both = np.array([self.found[key, at] for at in range(num_seeds)], np.float64)
        return both[..., 0], both[..., 1]

    def _keep(self, key: str, first: int, rows: Iterable[Counts]) -> None:
        self.found.update(((key, first + at), row) for at, row in enumerate(rows))

    def _row(self, config: ClusterConfig, at: int) -> Row:
        place = at, config.block_size_in_tokens
        if place not in self.tables:
            self.tables[place] = table_of(self.source, self.seeds[at], place[1], self.stream)
        table = placed(self.tables[place], self.source, self.seeds[at], config)
        return Row(config, table, policy_seed_under(BY_WORKLOAD, self.seeds[at]))
