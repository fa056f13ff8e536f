"""A decision tree built from one robustness map, and checked on another with other cells and seeds."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any

from blis_jax.errors import ConfigError
from blis_jax.files.input_files import read_json
from sweeps.robustness.cells import KINDS
from sweeps.robustness.output.rules import MapRule, RuleCondition, Rules, rules_of

Cell = Mapping[str, Any]
NONE = "none"  # where no arm is feasible
DEPTH = 2
RULE_COLUMNS = (
    "regime",
    "recommended",
    "cells",
    "with that label",
    "check cells",
    "feasible",
    "best",
    "mean excess %",
)
CHECK_COLUMNS = (
    "policy",
    "cells",
    "feasible",
    "best or within 5 %",
    "mean excess %",
    "worst excess %",
)
NEAR_PERCENT = 5.0


def holds(rule: MapRule, cell: Cell) -> bool:
    """Whether a cell lies in the regime of a rule."""
    return all(_is_met(condition, cell[condition.axis]) for condition in rule.where)


def _is_met(condition: RuleCondition, value: Any) -> bool:
    if condition.sign == "is":
        return bool(value == condition.value)
    if condition.sign == "is not":
        return bool(value != condition.value)
    return bool(value >= condition.value if condition.sign == "≥" else value < condition.value)


@dataclass(frozen=True)
class RegimeJudgement:
    """How a choice of arms fares on cells: where it keeps the constraints, and how far from the best."""

    num_cells: int
    num_feasible: int
    num_near: int
    mean_excess: float  # % over the best feasible arm, of the cells where both are feasible
    worst_excess: float


class RobustnessMap:
    """A map as `sweeps.robustness` writes it in JSON."""

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
        """The tree that says which arm to take; see `label`."""
        import xarray as xr

        axes = {kind.name: ("cell", [cell[kind.name] for cell in self.cells]) for kind in KINDS}
        return rules_of(xr.Dataset(coords=axes), [self.label(cell) for cell in self.cells], DEPTH)

    def label(self, cell: Cell) -> str:
        """The first arm, in the map's order, that is feasible and within 5 % of the best."""
        limit = self._best(cell) * (1 + NEAR_PERCENT / 100)
        near = [arm for arm in self.arms if self.value(cell, arm) <= limit < math.inf]
        return near[0] if near else NONE

    def value(self, cell: Cell, arm: str) -> float:
        """An arm's objective in a cell; infinite where it fails or breaks a constraint."""
        if arm == NONE:
            return math.inf
        found = cell[f"{arm}: {self.objective}"]
        if found is None or cell[f"{arm}: breaks"] or cell[f"{arm}: failures"]:
            return math.inf
        return float(found)

    def judged(self, chosen: Sequence[tuple[Cell, str]]) -> RegimeJudgement:
        """How the chosen arms fare; cells in which no arm is feasible are left out."""
        able = [(cell, arm) for cell, arm in chosen if math.isfinite(self._best(cell))]
        excesses = [
            100 * (self.value(cell, arm) / self._best(cell) - 1)
            for cell, arm in able
            if math.isfinite(self.value(cell, arm))
        ]
        near = sum(excess <= NEAR_PERCENT for excess in excesses)
        mean = sum(excesses) / len(excesses) if excesses else math.nan
        return RegimeJudgement(
            len(able), len(excesses), near, mean, max(excesses, default=math.nan)
        )

    def _best(self, cell: Cell) -> float:
        return min(self.value(cell, arm) for arm in self.arms)


def check_disjoint(built: RobustnessMap, other: RobustnessMap) -> None:
    """Refuses a check on what the tree was built from."""
    if built.arms != other.arms or built.objective != other.objective:
        raise ConfigError(
            "the two maps have other strategies or another objective; make both with the same"
        )
    if set(built.seeds) & set(other.seeds):
        raise ConfigError("the two maps share seeds; make one of them with another --first-seed")
    names = [kind.name for kind in KINDS]

    def places(one: RobustnessMap) -> set[tuple[Any, ...]]:
        return {tuple(cell[name] for name in names) for cell in one.cells}

    if places(built) & places(other):
        raise ConfigError("the two maps share cells; make one of them with another --random-state")


def policies(built: RobustnessMap, cells: Sequence[Cell]) -> dict[str, list[tuple[Cell, str]]]:
    """The tree's choice in every cell, then every arm everywhere."""
    leaves = built.rules.leaves

    def chosen(cell: Cell) -> str:
        return next(leaf.label for leaf in leaves if holds(leaf, cell))

    found = {"the tree": [(cell, chosen(cell)) for cell in cells]}
    return found | {arm: [(cell, arm) for cell in cells] for arm in built.arms}


def check_rows(built: RobustnessMap, other: RobustnessMap) -> list[dict[str, str]]:
    """How the tree and every single arm fare on the cells of the other map."""
    rows = []
    for name, chosen in policies(built, other.cells).items():
        found = other.judged(chosen)
        values = (found.num_cells, found.num_feasible, found.num_near)
        excess = (f"{found.mean_excess:.1f}", f"{found.worst_excess:.1f}")
        rows.append(dict(zip(CHECK_COLUMNS, (name, *map(str, values), *excess), strict=True)))
    return rows


def rule_rows(built: RobustnessMap, other: RobustnessMap) -> list[dict[str, str]]:
    """Every regime with the arm to take, and how that fares on the other map's cells."""
    rows = []
    for leaf in built.rules.leaves:
        found = other.judged([(cell, leaf.label) for cell in other.cells if holds(leaf, cell)])
        values = (
            leaf.words(),
            leaf.label,
            str(leaf.num_cells),
            str(leaf.num_right),
            str(found.num_cells),
            str(found.num_feasible),
            str(found.num_near),
            f"{found.mean_excess:.1f}",
        )
        rows.append(dict(zip(RULE_COLUMNS, values, strict=True)))
    return rows
