"""Table, judged points and figure of repeated searches."""

from __future__ import annotations

import math
from pathlib import Path
from typing import TYPE_CHECKING, NamedTuple

import numpy as np
import pandas as pd

from benchmarks.search.judging import (
    FIRST_TO_JUDGE,
    Search,
    is_near_at,
    median_interval,
    reference_of,
    scored,
    searches,
    share_interval,
    tolerance_of,
    verdict,
)
from benchmarks.search.ratios import OURS, bar_lines, censored, distance_line, needed_in, ratio_line
from benchmarks.search.turbo import NUM_SEEDS, Plan
from blis_jax.errors import ConfigError
from blis_jax.files.atomic_write import write_csv
from blis_jax.reports.style import (
    BLACK,
    BLUE,
    GREEN,
    GREY,
    ORANGE,
    PINK,
    RED,
    figure,
    line_handle,
    save,
)
from sweeps.search.objectives import Valuation

if TYPE_CHECKING:
    from pathlib import Path

    import pandas as pd

    from sweeps.strategies.space import Space


# --- how many searches are near the best known point after so many evaluations -------------------


COLOURS = {
    "ensemble": RED,
    "ensemble-expected": ORANGE,
    "ensemble-raced-expected": BLUE,
    "denoised-raced-expected-recommended": PINK,
    "denoised": GREEN,
    "denoised-recommended": PINK,
    "turbo": BLACK,
    "turbo-expected": GREEN,
    "tpe": PINK,
    "random": GREY,
    "sobol": GREY,
}

LABELS = {"denoised-raced-expected-recommended": "denoised, led by its model"}


def draw(points: pd.DataFrame, path: Path, strategy: str, goal: float) -> None:
    """Draw the share of searches whose best point is near enough, by evaluation, to a PNG.

    `points` is the table of `report.judged`, `goal` the difference that is near enough.
    """
    level, _, error = tolerance_of(points)
    handles = []
    with figure(3.6) as (made, panels):
        panel = panels[0][0]
        for engine, of_engine in points.groupby("engine", sort=False):
            each = [search for _, search in of_engine.groupby("random_state")]
            evaluations = range(1, int(of_engine["calls"].max()) + 1)
            shares = [
                100 * sum(is_near_at(search, at, goal) for search in each) / len(each)
                for at in evaluations
            ]
            colour = COLOURS.get(str(engine), BLACK)
            panel.step(evaluations, shares, where="post", color=colour)
            handles.append(
                line_handle(
                    f"{LABELS.get(str(engine), engine)} ({len(each)} searches)", color=colour
                )
            )
        panel.set_ylim(0, 102)
        panel.set_xlabel("evaluations")
        panel.set_ylabel("searches near enough (%)")
        title = f"Searches that are near the best known point, {strategy}"
        caption = (
            f"Near enough: at most {goal:.2f} above the best known point's {level:.2f} on seeds that no "
            f"search saw. The standard error of a difference is {error:.2f}."
        )
        save(made, path, title, caption, handles)


# --- table, judged points and figure of repeated searches ----------------------------------------


CHECKPOINTS = (50, 100, 150, 200)
# against which evaluations are compared in pairs
RIVALS = (
    "turbo",
    "turbo-expected",
    "turbo-recommended",
    "turbo-raced-expected-recommended",
)


class Judging(NamedTuple):
    """The difference that is near enough (None: the usual one), and at how many numbers of pairs a plan looks."""

    within: float | None = None
    looks: int = 1


def report(
    plan: Plan, space: Space, num_judging: int, judging: Judging, beside: Path | None = None
) -> int:
    """Score the best points again, write the files and print the table; return the exit code.

    `beside` is a table of points of other engines that were judged before on the same seeds.
    """
    all_searches = list(searches(plan, space))
    whole = [search for search in all_searches if search.evaluations >= plan.calls]
    if not whole:
        raise ConfigError(
            f"{plan.folder} has no searches of {plan.calls} evaluations yet; leave --report out to "
            "make some"
        )
    points = judged(plan, space, whole, num_judging)
    if beside is not None:
        points = joined(points, beside)
    write_csv(plan.folder / "judged.csv", points)
    print(f"{plan.strategy.name}: searches of {plan.calls} evaluations on {NUM_SEEDS} seeds each; points scored "
          f"again on {num_judging} seeds.")  # fmt: skip
    _say(points, plan.folder, plan.strategy.name, judging)
    if left := [search for search in all_searches if search not in whole]:
        names = (f"{search.engine} {search.random_state} ({search.evaluations})" for search in left)
        print(f"Unfinished and left out: {', '.join(names)}.")
    return 0


def report_saved(plan: Plan, tables: str, judging: Judging) -> int:
    """Print the report of the plan's engines from saved tables of judged points; return the exit code."""
    points = None
    for path in map(Path, tables.split(",")):
        table = pd.read_csv(path)
        table = table[table["engine"].isin(plan.engines)]
        if not table.empty:
            points = table if points is None else _together(points, table, path)
    if points is None:
        raise ConfigError(
            f"--saved: {tables} has no row of {', '.join(plan.engines)}; name others with --engines"
        )
    _say(points, plan.folder, plan.strategy.name, judging)
    return 0


def _say(points: pd.DataFrame, folder: Path, strategy: str, judging: Judging) -> None:
    """Print tolerance, table, bar, ratios and distances; write summary and figure."""
    near, goal, error = tolerance_of(points, judging.within)
    summary = summary_of(points, goal)
    write_csv(folder / "summary.csv", summary)
    print(f"Reference {near:.2f}; near enough is {goal:.2f} above it, the standard error of a difference is "
          f"{error:.2f}.\n{summary.to_string(index=False)}")  # fmt: skip
    for line in bar_lines(summary):
        print(line)
    engines = set(points["engine"])
    for ours, theirs in ((ours, theirs) for ours in OURS for theirs in RIVALS):
        if {ours, theirs} <= engines:
            print(ratio_line(points, ours, theirs, goal, judging.looks))
            print(distance_line(points, ours, theirs))
    draw(points, folder / "reliability.png", strategy, goal)
    print(f"Written: in {folder}: summary.csv, reliability.png")


def joined(points: pd.DataFrame, path: Path) -> pd.DataFrame:
    """Put judged points after those of a file; refuse an engine that is in both, or points with another reference."""
    others = pd.read_csv(path)
    if both := sorted(set(points["engine"]) & set(others["engine"])):
        raise ConfigError(f"{path}: it has {both[0]}, too; leave {both[0]} out of --engines")
    return _together(others, points, path)


def _together(first: pd.DataFrame, then: pd.DataFrame, path: Path) -> pd.DataFrame:
    if missing := [name for name in then.columns if name not in first]:
        raise ConfigError(f"{path}: there is no column {missing[0]}; give a table of judged points")
    if not np.isclose(first["reference"], then["reference"].iloc[0]).all():
        raise ConfigError(f"{path}: its points were judged by another reference or on other seeds")
    return pd.concat([first[then.columns], then], ignore_index=True)


def report_ends(plan: Plan, space: Space, table: Path, num_judging: int) -> int:
    """Score the ends of earlier searches again, one for each row of a table; print how many are near enough."""
    kinds = {dimension.name: int for dimension in space.dimensions if dimension.kind == "integer"}
    rows = pd.read_csv(table, dtype=kinds)
    if missing := [
        name for name in ("engine", "random_state", "score", *space.names) if name not in rows
    ]:
        raise ConfigError(f"{table}: there is no column {missing[0]}; give a table of ends")
    rows = rows[rows["engine"].isin(plan.engines)]
    if rows.empty:
        raise ConfigError(
            f"{table}: there is no row of {', '.join(plan.engines)}; name others with --engines"
        )
    ends = [
        Search(row["engine"], row["random_state"], [tuple(row[name] for name in space.names)], [row["score"]])
        for row in rows.to_dict("records")
    ]  # fmt: skip
    points = judged(plan, space, ends, num_judging)
    level, goal, error = tolerance_of(points)
    written = plan.folder / "judged_ends.csv"
    write_csv(written, points.drop(columns=["evaluation", "is_end", "calls"]))
    print(f"Reference {level:.2f} on {num_judging} seeds; near enough is {goal:.2f} above it, the standard "
          f"error of a difference is {error:.2f}.")  # fmt: skip
    columns = ["engine", "searches", "near", "near_low", "near_high", "median_difference"]
    print(summary_of(points, goal)[columns].to_string(index=False))
    print(f"Written: {written}")
    return 0


def judged(plan: Plan, space: Space, to_judge: list[Search], num_judging: int) -> pd.DataFrame:
    """Judge every best point so far that is not far from its search's end, on the judging seeds.

    `is_end` marks the row of a search's end. `evaluation` counts from 1.
    """
    valuation, batch = Valuation(plan.strategy), plan.strategy.search.batch
    reference = reference_of(plan)
    seeds = range(FIRST_TO_JUDGE, FIRST_TO_JUDGE + num_judging)
    level = valuation.worth(scored(plan, space, [reference], seeds)[reference]).score
    steps = [search.near(batch, level) for search in to_judge]
    points = [
        tuple(search.points[step.place])
        for search, its in zip(to_judge, steps, strict=True)
        for step in its
    ]
    runs = scored(plan, space, [reference, *points], seeds)
    verdicts = {point: verdict(valuation, runs[point], runs[reference]) for point in runs}
    rows = []
    for search, its in zip(to_judge, steps, strict=True):
        for step in its:
            point = tuple(search.points[step.place])
            rows.append({
                "engine": search.engine, "random_state": search.random_state, "evaluation": step.evaluation,
                "is_end": step is its[-1], "calls": search.evaluations,
                "search_score": search.scores[step.place],
                "reference": level, **verdicts[point]._asdict(),
                **dict(zip(space.names, point, strict=True)),
            })  # fmt: skip
    return pd.DataFrame(rows)


def summary_of(points: pd.DataFrame, goal: float) -> pd.DataFrame:
    """Return a row for each engine: ends near enough, evaluations needed, and the ends' differences."""
    rows = []
    for engine, of_engine in points.groupby("engine", sort=False):
        each = [run for _, run in of_engine.groupby("random_state")]
        ends = of_engine[of_engine["is_end"]]
        near = int((ends["difference"] <= goal).sum())
        low, high = share_interval(near, len(each))
        counts = [needed_in(run, goal) for run in each]
        middle, least, most = median_interval(counts)
        calls = int(of_engine["calls"].max())
        rows.append({
            "engine": engine, "searches": len(each), "near": near,
            "near_low": round(low, 2), "near_high": round(high, 2),
            "met": sum(math.isfinite(count) for count in counts),
            "needed": censored(middle, calls), "needed_low": censored(least, calls),
            "needed_high": censored(most, calls),
            **{f"near_at_{at}": sum(is_near_at(run, at, goal) for run in each) for at in CHECKPOINTS if at <= calls},
            "median_difference": round(float(ends["difference"].median()), 2),
            "mean_difference": round(float(ends["difference"].mean()), 2),
            "most_difference": round(float(ends["difference"].max()), 2),
        })  # fmt: skip
    return pd.DataFrame(rows)
