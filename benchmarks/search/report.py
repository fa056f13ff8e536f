"""Table, curves, ends and figure of repeated searches."""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

from benchmarks.search.plan import Plan, best_known, record_of, target
from blis_jax.commands import cli
from blis_jax.errors import ConfigError
from blis_jax.files.atomic_write import replacing

if TYPE_CHECKING:
    import numpy as np
    import pandas as pd


class Search(NamedTuple):
    """One search as far as it went."""

    random_state: int
    points: list[Any]
    scores: list[float]

    @property
    def best(self) -> np.ndarray:
        """The best score so far by evaluation."""
        import numpy as np

        found: np.ndarray = np.minimum.accumulate(self.scores)
        return found

    def is_finished(self, calls: int, goal: float) -> bool:
        """Whether it used its budget, or stopped since it was near enough."""
        return len(self.scores) >= calls or min(self.scores) <= goal


def searches(plan: Plan, engine: str) -> Iterator[Search]:
    """Each search that is there, unfinished ones too."""
    from sweeps.search.objectives import Valuation

    valuation = Valuation(plan.strategy)
    for repetition in plan.repetitions:
        if not plan.record(engine, repetition).exists():
            continue
        entries = record_of(plan, engine, repetition).read()
        if entries:
            scores = [valuation.worth(runs).score for _, runs in entries]
            yield Search(repetition, [point for point, _ in entries], scores)


def ends(plan: Plan, finished: Mapping[str, Sequence[Search]]) -> pd.DataFrame:
    """The best point of every finished search."""
    import pandas as pd

    names = [parameter.name for parameter in plan.strategy.parameters]
    rows = []
    for engine, found in finished.items():
        for one in found:
            place = one.scores.index(min(one.scores))
            rows.append({
                "engine": engine, "random_state": one.random_state, "evaluations": len(one.scores),
                "score": one.scores[place], "at": place + 1,
                **dict(zip(names, one.points[place], strict=True)),
            })  # fmt: skip
    return pd.DataFrame(rows)


def unfinished_line(plan: Plan, found: Mapping[str, Sequence[Search]], goal: float) -> str:
    """Which searches are left out; empty if none is."""
    cut = [
        f"{engine} {one.random_state} ({len(one.scores)} evaluations)"
        for engine, of_engine in found.items()
        for one in of_engine
        if not one.is_finished(plan.calls, goal)
    ]
    return f"Unfinished and left out everywhere: {', '.join(cut)}." if cut else ""


def report(plan: Plan) -> int:
    """Table, curves and figure of the searches that are there."""
    import pandas as pd

    from benchmarks.search.figure import draw
    from benchmarks.search.statistics import regret_table

    found = {engine: list(searches(plan, engine)) for engine in plan.engines}
    lowest = [min(one.scores) for of_engine in found.values() for one in of_engine]
    if not lowest:
        raise ConfigError(f"{plan.folder} has no searches yet; leave --report out to make some")
    best = min(best_known(plan), *lowest)
    goal = target(best, plan.within)
    whole = {
        engine: [one for one in of_engine if one.is_finished(plan.calls, goal)]
        for engine, of_engine in found.items()
    }
    if not any(whole.values()):
        raise ConfigError(
            f"{plan.folder} has unfinished searches only; leave --report out to go on"
        )
    finished = {engine: [one.best for one in of_engine] for engine, of_engine in whole.items()}
    rows = [_row(engine, curves, goal, plan.calls) for engine, curves in finished.items() if curves]
    table = pd.DataFrame(rows)
    _write(plan, "summary.csv", table)
    _write(plan, "ends.csv", ends(plan, whole))
    regret = regret_table(finished, best, plan.calls)
    _write(plan, "regret.csv", regret)
    print(f"{plan.strategy.name}, {len(plan.seeds)} fixed seeds, at most {plan.calls} evaluations; best "
          f"known score {best:.4f}, within {plan.within:g} % is {goal:.4f}.")  # fmt: skip
    print(table.to_string(index=False))
    _print_ratio(table)
    if left_out := unfinished_line(plan, found, goal):
        print(left_out)
    figure = plan.folder / "regret.png"
    counts = {engine: len(curves) for engine, curves in finished.items()}
    name = Path(plan.strategy.source).stem
    draw(regret, counts, best, figure, name, len(plan.seeds), plan.within)
    names = ("summary.csv", "ends.csv", "regret.csv", figure.name)
    print(f"Written: {', '.join(str(plan.folder / name) for name in names)}")
    return 0


def _row(engine: str, curves: Sequence[np.ndarray], goal: float, calls: int) -> dict[str, Any]:
    import numpy as np

    from benchmarks.search.statistics import median_interval, needed

    counts = [needed(curve, goal) for curve in curves]
    middle, low, high = median_interval(counts)
    return {
        "engine": engine,
        "repetitions": len(curves),
        "reached": int(np.isfinite(counts).sum()),
        "median_needed": _censored(middle, calls),
        "low": _censored(low, calls),
        "high": _censored(high, calls),
        "median_final_score": round(float(np.median([curve[-1] for curve in curves])), 4),
    }


def _censored(count: float, calls: int) -> str:
    if math.isnan(count):
        return "–"
    return f">{calls}" if math.isinf(count) else f"{count:g}"


def _print_ratio(table: pd.DataFrame) -> None:
    """The bar: the ensemble's median against half of the Gaussian process'."""
    medians = dict(zip(table["engine"], table["median_needed"], strict=True))
    if {"gp", "ensemble"} <= set(medians):
        print(
            f"Median evaluations, ensemble against gp: {medians['ensemble']} against {medians['gp']}."
        )


def _write(plan: Plan, name: str, table: pd.DataFrame) -> None:
    with cli.writing(plan.folder / name), replacing(plan.folder / name) as written:
        table.to_csv(written, index=False)
