"""The tables beside the joint one: iterations, searches and parts of the routing track, and regimes of two maps."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Mapping, Sequence
from functools import cached_property, partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import xarray as xr

from blis_jax.errors import ConfigError
from blis_jax.files.input_files import read_json
from blis_jax.metrics.metric import split_name
from blis_jax.metrics.scalars import lookup
from blis_jax.statistics.paired import Pair, differences
from papers.pages import csv_of, write_text
from papers.record.parts import SettingsAsk
from papers.record.runs import PaperRuns
from papers.two_tracks import joint
from sweeps.ledger.book import Ledger, LedgerRow
from sweeps.ledger.trial import REFERENCE, STRATEGY
from sweeps.robustness.cells import KINDS
from sweeps.robustness.rules import MapRule, RuleCondition, Rules, rules_of
from sweeps.strategies.file import load_strategy

if TYPE_CHECKING:
    from papers.two_tracks.__main__ import TwoTracksOptions


TRACK = "sweeps/tracks/routing"
METRICS = ("worst_ttft_p99_ms", "ttft_p99_ms", "slo_miss_rate", "reject_rate")
DESIGNS = ("added alone", "left out")  # of contributions that every design has
SHARES = ("slo_miss_rate", "reject_rate")


def ledger_rows(
    folder: Path, metrics: tuple[str, ...] = METRICS, ids: tuple[str, ...] = ()
) -> list[dict[str, str]]:
    """Compare each row's strategy with its reference on every metric; verdicts hold for all of them (Holm).

    Changes are in %, of shares in points; intervals are the family's. `ids` names the rows; if empty, it is all rows.
    """
    rows = [
        row
        for row in Ledger(folder).rows()
        if row.result is not None and row.id in (ids or [row.id])
    ]
    compared = [(row, metric) for row in rows for metric in metrics]
    judged = differences([_pair(row, metric) for row, metric in compared])
    table = []
    for (row, metric), difference in zip(compared, judged, strict=True):
        hypothesis = row.hypothesis
        assert hypothesis.workload is not None and row.result is not None
        table.append(
            {
                "row": row.id,
                "name": hypothesis.name,
                "hypothesis": hypothesis.statement,
                "strategy": hypothesis.arms[STRATEGY].text,
                "reference": hypothesis.arms[REFERENCE].text,
                "workload": hypothesis.workload.name,
                "seeds": str(len(hypothesis.seeds)),
                "verdict": str(row.result["status"]),
                "metric": metric,
                "reference mean": f"{difference.first_mean:.6g}",
                "mean": f"{difference.second_mean:.6g}",
                **joint.change_cells(difference, split_name(metric)[0] in SHARES),
                "judged": difference.verdict,
            }
        )
    return table


def _pair(row: LedgerRow, metric: str) -> Pair:
    assert row.result is not None
    runs = row.result["runs"]
    first, second = (_values(runs[role]["figures"][metric]) for role in (REFERENCE, STRATEGY))
    return Pair(first, second, lookup(metric)[0].direction)


def _values(kept: Iterable[float | None]) -> np.ndarray:
    return np.array([np.nan if value is None else value for value in kept], float)


def search_rows(folder: Path) -> list[dict[str, str]]:
    """Return what each search of a folder found, from the files of `blis-jax optimize`."""
    rows = []
    for path in sorted(folder.glob("routing*.json")):
        document: dict[str, Any] = read_json(path, "a result of sweeps.optimize")
        if document["best_score"] is None:
            continue
        numbers = document["best_parameters"].items()
        objective = document["objectives"][0]["metric"]
        rows.append(
            {
                "row": _row_of(path),
                "strategy": path.stem,
                "workload": _workload_of(path.stem),
                "calls": str(document["n_calls"]),
                "best call": str(document["best_call"] + 1),
                "objective": objective,
                "best score": f"{document['best_score']:.4g}",
                "parameters": ", ".join(f"{name} {_short(value)}" for name, value in numbers),
            }
        )
    return rows


def _short(value: object) -> str:
    return f"{value:.4g}" if isinstance(value, float) else str(value)


def _row_of(path: Path) -> str:
    """Return the row of the track's ledger whose strategy a file is named as."""
    row_ids = [
        row.id
        for row in Ledger(Path(TRACK)).rows()
        if row.hypothesis.arms[STRATEGY].text.partition("@")[0] == path.stem
    ]
    if len(row_ids) != 1:
        raise ConfigError(f"{path}: {path.stem} is the strategy of {len(row_ids)} rows of {TRACK}")
    return row_ids[0]


def _workload_of(strategy: str) -> str:
    return str(load_strategy(strategy).workload)


def part_rows(folder: Path) -> list[dict[str, str]]:
    """Return what each component contributes, from the files of `blis-jax ablate` in a folder."""
    rows = []
    for path in sorted(folder.glob("routing*.json")):
        for entry in read_json(path, "a result of sweeps.ablate")["contributions"]:
            if entry["class"] != "all" or entry["kind"] not in DESIGNS:
                continue
            is_share = entry["metric"] in SHARES
            shown = entry["simultaneous" if is_share else "simultaneous_percent"]
            scale = 100 if is_share else 1
            numbers = {name: _number(shown[key], scale) for name, key in _ENDS.items()}
            rows.append(
                {
                    "row": _row_of(path),
                    "component": entry["component"],
                    "kind": entry["kind"],
                    "metric": entry["metric"],
                    **numbers,
                    "p": f"{entry['p_adjusted']:.3g}",
                    "verdict": entry["verdict"],
                }
            )
    return rows


_ENDS = {"change": "mean", "low": "low", "high": "high"}


def _number(value: float | None, scale: float) -> str:
    return "" if value is None else f"{scale * value:+.4g}"


# --- regimes --------------------------------------------------------------------------------------

Cell = Mapping[str, Any]
NONE = "none"  # where no arm is feasible
DEPTH = 2
# cells where some arm is feasible, where the chosen one is, where it is near the best; % over the best feasible arm
FARES = ("cells", "feasible", "best or within 5 %", "mean excess %", "worst excess %")
CHECK_COLUMNS = ("policy", *FARES)
RULE_COLUMNS = (
    "regime", "recommended", "cells", "with that label", "check cells", "feasible", "best", "mean excess %",
)  # fmt: skip
NEAR_PERCENT = 5.0


def holds(rule: MapRule, cell: Cell) -> bool:
    """Return whether a cell lies in the regime of a rule."""
    return all(_is_met(condition, cell[condition.axis]) for condition in rule.where)


def _is_met(condition: RuleCondition, value: Any) -> bool:
    if condition.sign == "is":
        return bool(value == condition.value)
    if condition.sign == "is not":
        return bool(value != condition.value)
    return bool(value >= condition.value if condition.sign == "≥" else value < condition.value)


class RobustnessMap:
    """A map as `blis-jax robustness` writes it in JSON."""

    def __init__(self, path: Path) -> None:
        document = read_json(path, "the .json of a robustness map")
        if "cells" not in document or "strategies" not in document:
            raise ConfigError(
                f"{path} is not the .json of a robustness map; give that of sweeps.robustness"
            )
        self.document = document
        self.arms: list[str] = document["strategies"]
        self.objective: str = document["objective"]
        self.cells: list[Cell] = document["cells"]
        self.seeds: list[int] = document["seeds"]

    @cached_property
    def rules(self) -> Rules:
        """Return the decision tree that says which arm to take; see `label`."""
        axes = {kind.name: ("cell", [cell[kind.name] for cell in self.cells]) for kind in KINDS}
        return rules_of(xr.Dataset(coords=axes), [self.label(cell) for cell in self.cells], DEPTH)

    def label(self, cell: Cell) -> str:
        """Return the first arm, in the map's order, that is feasible and within 5 % of the best."""
        limit = self._best(cell) * (1 + NEAR_PERCENT / 100)
        near = [arm for arm in self.arms if self.value(cell, arm) <= limit < math.inf]
        return near[0] if near else NONE

    def value(self, cell: Cell, arm: str) -> float:
        """Return an arm's objective in a cell; infinite where it fails or breaks a constraint."""
        if arm == NONE:
            return math.inf
        objective = cell[f"{arm}: {self.objective}"]
        if objective is None or cell[f"{arm}: breaks"] or cell[f"{arm}: failures"]:
            return math.inf
        return float(objective)

    def judged(self, chosen: Sequence[tuple[Cell, str]]) -> list[str]:
        """Return how the chosen arms fare, in the order of `FARES`; cells in which no arm is feasible are left out."""
        able = [(cell, arm) for cell, arm in chosen if math.isfinite(self._best(cell))]
        excesses = [
            100 * (self.value(cell, arm) / self._best(cell) - 1)
            for cell, arm in able
            if math.isfinite(self.value(cell, arm))
        ]
        near = sum(excess <= NEAR_PERCENT for excess in excesses)
        mean = sum(excesses) / len(excesses) if excesses else math.nan
        worst = max(excesses, default=math.nan)
        return [str(len(able)), str(len(excesses)), str(near), f"{mean:.1f}", f"{worst:.1f}"]

    def _best(self, cell: Cell) -> float:
        return min(self.value(cell, arm) for arm in self.arms)


def check_disjoint(built: RobustnessMap, other: RobustnessMap) -> None:
    """Refuse maps with different arms or objectives, and maps that share seeds or cells."""
    if built.arms != other.arms or built.objective != other.objective:
        raise ConfigError(
            "the two maps have other strategies or another objective; make both with the same"
        )
    if set(built.seeds) & set(other.seeds):
        raise ConfigError("the two maps share seeds; make one of them with another --first-seed")
    names = [kind.name for kind in KINDS]

    def places(robustness_map: RobustnessMap) -> set[tuple[Any, ...]]:
        return {tuple(cell[name] for name in names) for cell in robustness_map.cells}

    if places(built) & places(other):
        raise ConfigError("the two maps share cells; make one of them with another --random-state")


def policies(built: RobustnessMap, cells: Sequence[Cell]) -> dict[str, list[tuple[Cell, str]]]:
    """Return pairs of a cell and an arm by name: the tree's choice in every cell, then for each arm this arm in every
    cell.
    """
    leaves = built.rules.leaves

    def chosen(cell: Cell) -> str:
        return next(leaf.label for leaf in leaves if holds(leaf, cell))

    choices = {"the tree": [(cell, chosen(cell)) for cell in cells]}
    return choices | {arm: [(cell, arm) for cell in cells] for arm in built.arms}


def check_rows(built: RobustnessMap, other: RobustnessMap) -> list[dict[str, str]]:
    """Return how the tree and every single arm fare on the cells of the other map."""
    return [
        dict(zip(CHECK_COLUMNS, (name, *other.judged(chosen)), strict=True))
        for name, chosen in policies(built, other.cells).items()
    ]


def rule_rows(built: RobustnessMap, other: RobustnessMap) -> list[dict[str, str]]:
    """Return every regime with the arm to take, and how this arm fares on the other map's cells."""
    rows = []
    for leaf in built.rules.leaves:
        *fares, _ = other.judged([(cell, leaf.label) for cell in other.cells if holds(leaf, cell)])
        values = (leaf.words(), leaf.label, str(leaf.num_cells), str(leaf.num_right), *fares)
        rows.append(dict(zip(RULE_COLUMNS, values, strict=True)))
    return rows


def make_tables(folder: Path, options: TwoTracksOptions) -> None:
    """Make the tables whose files are given, and write each."""
    for name, make in _tables(folder, options):
        _write(folder / f"{name}.csv", make())


def _tables(
    folder: Path, options: TwoTracksOptions
) -> list[tuple[str, Callable[[], list[dict[str, str]]]]]:
    """Return the tables to make, by name; those whose files are not given stay as they are."""
    made: list[tuple[str, Callable[[], list[dict[str, str]]]]] = []
    if Path(TRACK).is_dir():
        made.append(("iterations", lambda: ledger_rows(Path(TRACK))))
    if options.searches is not None:
        made.append(("searches", partial(search_rows, options.searches)))
    if options.ablations is not None:
        made.append(("parts", partial(part_rows, options.ablations)))
    if options.map is not None and options.check is not None:
        built, other = RobustnessMap(options.map), RobustnessMap(options.check)
        check_disjoint(built, other)
        made.append(("regimes", lambda: rule_rows(built, other)))
        made.append(("check", lambda: check_rows(built, other)))
    if not options.no_joint:
        made.append(("joint", lambda: _joint(folder, options)))
    return made


def asks(options: TwoTracksOptions, folder: Path) -> list[SettingsAsk]:
    """Return the runs that the joint table needs."""
    count = joint.NUM_SEEDS if options.seeds is None else options.seeds
    seeds = tuple(range(joint.FIRST_SEED, joint.FIRST_SEED + count))
    runs = PaperRuns(Path(options.parts or folder / "parts"), "jax")
    return [SettingsAsk(runs, [cell.setting for cell in joint.cells()], seeds, joint.measurement())]


def _joint(folder: Path, options: TwoTracksOptions) -> list[dict[str, str]]:
    (ask,) = wanted = asks(options, folder)
    options.take_joined(folder, wanted)
    return joint.rows(ask.runs, tuple(ask.seeds))


def _write(path: Path, rows: Sequence[dict[str, str]]) -> None:
    if not rows:
        raise ConfigError(f"there is nothing to write into {path}; look at what the options name")
    write_text(path, csv_of(rows))
