"""Table, curves, ends and figure of repeated searches."""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING, Any

from benchmarks.search_plan import Plan, best_known, record_of, target
from blis_jax import cli
from blis_jax.atomic_write import replacing
from blis_jax.errors import ConfigError

if TYPE_CHECKING:
    import numpy as np
    import pandas as pd


def searches(plan: Plan, engine: str) -> Iterator[tuple[int, list[Any], list[float]]]:
    """Random state, points and scores of each search that is there."""
    from sweeps.objectives import Valuation

    valuation = Valuation(plan.strategy)
    for repetition in plan.repetitions:
        if not plan.record(engine, repetition).exists():
            continue
        entries = record_of(plan, engine, repetition).read()
        if entries:
            scores = [valuation.worth(runs).score for _, runs in entries]
            yield repetition, [point for point, _ in entries], scores


def running_best(plan: Plan, engine: str) -> list[np.ndarray]:
    """The best score by evaluation of each search that is there."""
    import numpy as np

    return [np.minimum.accumulate(scores) for _, _, scores in searches(plan, engine)]


def ends(plan: Plan) -> pd.DataFrame:
    """The best point of every search that is there."""
    import pandas as pd

    names = [parameter.name for parameter in plan.strategy.parameters]
    rows = []
    for engine in plan.engines:
        for repetition, points, scores in searches(plan, engine):
            place = scores.index(min(scores))
            rows.append({
                "engine": engine, "random_state": repetition, "evaluations": len(scores),
                "score": scores[place], "at": place + 1,
                **dict(zip(names, points[place], strict=True)),
            })  # fmt: skip
    return pd.DataFrame(rows)


def is_finished(plan: Plan, curve: np.ndarray, goal: float) -> bool:
    """Whether a search used its budget, or stopped since it was near enough."""
    return len(curve) >= plan.calls or bool(curve[-1] <= goal)


def report(plan: Plan) -> int:
    """Table, curves and figure of the searches that are there."""
    import pandas as pd

    from benchmarks.search_figure import draw
    from benchmarks.search_statistics import regret_table

    curves = {engine: running_best(plan, engine) for engine in plan.engines}
    lowest = [float(curve[-1]) for found in curves.values() for curve in found]
    if not lowest:
        raise ConfigError(f"{plan.folder} has no searches yet; leave --report out to make some")
    best = min(best_known(plan), *lowest)
    goal = target(best, plan.within)
    finished = {
        engine: [curve for curve in found if is_finished(plan, curve, goal)]
        for engine, found in curves.items()
    }
    rows = [_row(engine, found, goal, plan.calls) for engine, found in finished.items() if found]
    table = pd.DataFrame(rows)
    _write(plan, "summary.csv", table)
    _write(plan, "ends.csv", ends(plan))
    _write(plan, "regret.csv", regret_table(finished, best, plan.calls))
    print(f"{plan.strategy.name}, {plan.num_seeds} fixed seeds, at most {plan.calls} evaluations; best "
          f"known score {best:.4f}, within {plan.within:g} % is {goal:.4f}.")  # fmt: skip
    print(table.to_string(index=False))
    _print_ratio(table)
    figure = plan.folder / "regret.png"
    draw(finished, best, plan.calls, figure, plan.strategy.name, plan.num_seeds, plan.within)
    names = ("summary.csv", "ends.csv", "regret.csv", figure.name)
    print(f"Written: {', '.join(str(plan.folder / name) for name in names)}")
    return 0


def _row(engine: str, curves: Sequence[np.ndarray], goal: float, calls: int) -> dict[str, Any]:
    import numpy as np

    from benchmarks.search_statistics import median_interval, needed

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
