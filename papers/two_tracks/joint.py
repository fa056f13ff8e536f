"""The winners of both tracks on the workloads of both, paired by seed with each workload's published optimum."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np

from blis_jax.metrics.scalars import evaluate, lookup
from blis_jax.statistics.intervals import estimate
from blis_jax.statistics.paired import Difference, Pair, differences
from papers.record.measures import Measurement, scalars
from papers.record.runs import PaperRuns, SettingSample
from papers.record.settings import RunSetting, of_arm
from sweeps.principles.lab import TRACK_TARGETS

if TYPE_CHECKING:
    from blis_jax.records.record import RunRecord

FIRST_SEED, NUM_SEEDS = 6000, 64  # seen by no search, no row of a ledger and no map
SCHEDULING, ROUTING = "scheduling", "routing"
ARMS = {  # by the name that tables have
    "baseline": "iter00_baseline",
    "8-opt": "iter08_token_budget@published",
    "class lead": "iter13_class_lead@found",
    "round-robin": "routing00_round_robin",
    "compound": "routing11_compound@published",
    "compound, searched": "routing11_compound@found",
    "gate alone": "routing13_gate_alone@found",
    "all layers": "routing20_all_layers@found",
}
WORKLOADS = {
    "mixed": SCHEDULING,
    "nonorthogonal": SCHEDULING,
    "multiprefix": SCHEDULING,
    "orth": ROUTING,
    "orth_gamma2": ROUTING,
    "groups8_sessions": ROUTING,
}
# the cluster of a workload's track; what a strategy does not decide
CLUSTERS: Mapping[str, Mapping[str, object]] = {
    SCHEDULING: {"kv_cpu_blocks": 44000, "kv_offload_threshold": 0.9},
    ROUTING: {"kv_cpu_blocks": 0, "kv_offload_threshold": 0.9},
}
PUBLISHED = {SCHEDULING: "8-opt", ROUTING: "compound"}
OBJECTIVE = {SCHEDULING: "ttft_p99_ms[critical]", ROUTING: "worst_ttft_p99_ms"}
MISSED = "slo_miss_rate"
MISSED_BUDGETS = "missed_budgets"  # the same for the budgets of the track's predictive admission
METRICS = (
    "worst_ttft_p99_ms",
    "ttft_p99_ms",
    "ttft_p99_ms[critical]",
    "ttft_p99_ms[standard]",
    "ttft_p99_ms[sheddable]",
    MISSED,
    "reject_rate",
    "tokens_per_sec",
)
CHANGES = ("objective", "missed", "budgets")
_CHANGE_COLUMNS = ("change", "low", "high", "p", "verdict")
COLUMNS = (
    "workload",
    "track",
    "arm",
    *METRICS,
    MISSED_BUDGETS,
    "objective",
    *(f"{name} {column}" for name in CHANGES for column in _CHANGE_COLUMNS),
    "seeds",
)


@dataclass(frozen=True)
class JointCell:
    """An arm on a workload."""

    arm: str
    workload: str

    @property
    def setting(self) -> RunSetting:
        """Return the setting to simulate: the arm's policies on the cluster of the workload's track."""
        cluster = CLUSTERS[WORKLOADS[self.workload]]
        changes = ";".join(f"{name}={value}" for name, value in cluster.items())
        return of_arm(
            f"{self.arm} on {self.workload}", f"{ARMS[self.arm]}:{changes}", self.workload
        )


def cells() -> list[JointCell]:
    """Return every arm on every workload, workload after workload."""
    return [JointCell(arm, workload) for workload in WORKLOADS for arm in ARMS]


def measurement() -> Measurement:
    """Return the measurement of a run: metrics, and the share of requests that missed the track's targets."""
    registered = scalars(METRICS)

    def compute(record: RunRecord) -> np.ndarray:
        missed = evaluate(record, [MISSED], TRACK_TARGETS)[MISSED]
        return np.append(registered.compute(record), missed)

    return Measurement("joint", (*METRICS, MISSED_BUDGETS), compute)


def rows(runs: PaperRuns, seeds: tuple[int, ...]) -> list[dict[str, str]]:
    """Make the table: means, and changes against the published optimum of each workload's track.

    The verdicts hold for all changes of the table together (Holm).
    """
    places = cells()
    sample_by_name = runs.get([place.setting for place in places], seeds, measurement())
    samples = {place: sample_by_name[place.setting.name] for place in places}
    compared = [place for place in places if place.arm != _reference(place.workload)]
    pairs = [
        _pair(samples, place, of)
        for place in compared
        for of in (OBJECTIVE[WORKLOADS[place.workload]], MISSED, MISSED_BUDGETS)
    ]
    judged = iter(differences(pairs))
    changes = {place: [next(judged) for _ in CHANGES] for place in compared}
    table = []
    for place in places:
        sample, track = samples[place], WORKLOADS[place.workload]
        row = {"workload": place.workload, "track": track, "arm": place.arm}
        row |= {of: f"{estimate(sample.column(of)).mean:.6g}" for of in (*METRICS, MISSED_BUDGETS)}
        row |= {"objective": OBJECTIVE[track], "seeds": str(len(seeds))}
        for name, difference in zip(CHANGES, changes.get(place, ()), strict=False):
            texts = change_cells(difference, name != "objective")
            row |= {f"{name} {column}": text for column, text in texts.items()}
            row[f"{name} verdict"] = difference.verdict
        table.append({name: row.get(name, "") for name in COLUMNS})
    return table


def change_cells(difference: Difference, is_share: bool) -> dict[str, str]:
    """Return a change, its interval, which holds for the family, and its p as text; a share's change is in points, else
    in %.
    """
    shown = difference.simultaneous if is_share else difference.simultaneous_percent
    ends = {"change": shown.mean, "low": shown.low, "high": shown.high}
    scale = 100 if is_share else 1
    cells = {name: f"{scale * value:+.4g}" for name, value in ends.items()}
    return cells | {"p": f"{difference.p_adjusted:.3g}"}


def _reference(workload: str) -> str:
    return PUBLISHED[WORKLOADS[workload]]


def _pair(samples: Mapping[JointCell, SettingSample], place: JointCell, of: str) -> Pair:
    base = samples[JointCell(_reference(place.workload), place.workload)]
    return Pair(
        base.column(of),
        samples[place].column(of),
        lookup(MISSED if of == MISSED_BUDGETS else of)[0].direction,
    )
