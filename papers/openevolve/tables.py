"""Three tables: published numbers beside the same runs here, changes on new seeds by class, and scores."""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path

import numpy as np

from blis_jax import progress
from blis_jax.metrics.run_summary import RunSummary
from blis_jax.statistics.intervals import estimate
from blis_jax.statistics.paired import differences
from papers.openevolve.experiments import (
    CLASSES,
    HANDED_OVER,
    METRICS,
    NEW_SEEDS,
    ArmsOnWorkload,
    published,
)
from sweeps.runs.experiment import Experiment
from sweeps.runs.measured import metric_values, pair_of

NAME = "papers.openevolve"
FIGURES, CHANGES, SCORES = "figures", "changes", "scores"
TABLES = (FIGURES, SCORES, CHANGES)
TOLERANCE = 1e-12  # relative: the files have 15 to 17 digits
LEAST_PERCENT = 1e-9
Row = dict[str, str]
Runs = Mapping[str, Sequence[RunSummary]]
BY_CLASS = tuple(f"{name}[{slo_class}]" for name in METRICS for slo_class in CLASSES)
PUBLISHED_SCORES = {
    ("C", "baseline"): -4564.475420055555,
    ("C", "oracle"): -3988.0102153555554,
    ("C", "load-only"): -3883.601207488889,
    (HANDED_OVER, "evolved"): 11.464534120276209,
    (HANDED_OVER, "lor"): -6.549429491636838,
    (HANDED_OVER, "glia"): -8.805680512482695,
}


def runs_of(group: ArmsOnWorkload, seeds: Sequence[int], arms: Sequence[str], folder: Path) -> Runs:
    """Run arms of a group on seeds; what was run before is read from the folder."""
    names = METRICS if len(seeds) < len(NEW_SEEDS) else (*METRICS, *BY_CLASS)
    experiment = Experiment.on(group.spec, tuple(seeds), "reference", names)
    name = f"{group.set}-{group.workload}-{len(seeds)}".replace("/", "").replace(" ", "-")
    folder.mkdir(parents=True, exist_ok=True)
    journal = experiment.journal(folder / f"{name}.jsonl", NAME)
    with experiment.kept_runs(NAME, journal, len(arms), ()) as kept:
        return {
            arm: kept.of(group.arms[arm], f"{group.set} {group.workload} {arm}") for arm in arms
        }


def figures(
    data: Path, groups: Sequence[ArmsOnWorkload], folder: Path
) -> tuple[list[Row], dict[str, Runs]]:
    """Return every published number beside the same run here, and the runs by set and workload."""
    rows: list[Row] = []
    kept: dict[str, Runs] = {}
    for group in groups:
        runs = kept[f"{group.set} {group.workload}"] = runs_of(
            group, group.seeds, list(group.arms), folder
        )
        for arm, of_arm in runs.items():
            for (seed, metric), wanted in published(data, group, arm).items():
                values = dict(
                    zip(map(str, group.seeds), metric_values(of_arm, metric), strict=True)
                )
                here = float(np.mean(list(values.values()))) if seed == "mean" else values[seed]
                is_equal = math.isclose(here, wanted, rel_tol=TOLERANCE)
                rows.append({
                    "set": group.set, "workload": group.workload, "arm": arm, "seed": seed, "metric": metric,
                    "published": repr(wanted), "here": repr(float(here)), "equal": str(is_equal).lower(),
                    "difference %": f"{100 * (here / wanted - 1):+.3g}",
                })  # fmt: skip
    return rows, kept


def changes(group: ArmsOnWorkload, runs: Runs) -> list[Row]:
    """Return how arms differ from the first one on new seeds, of all requests and by class, judged together."""
    base, *others = runs
    with_class = [
        name for name in (*METRICS, *BY_CLASS) if np.isfinite(metric_values(runs[base], name)).any()
    ]
    compared = [(arm, name) for arm in others for name in with_class]
    judged = differences([pair_of(runs[base], runs[arm], name) for arm, name in compared])
    return [
        {
            "set": group.set, "workload": group.workload, "arm": arm, "against": base, "metric": name,
            "mean": f"{found.second_mean:.6g}", "of the other": f"{found.first_mean:.6g}",
            "change %": _percent(found.simultaneous_percent.mean),
            "low": _percent(found.simultaneous_percent.low), "high": _percent(found.simultaneous_percent.high),
            "verdict": found.verdict, "seeds": str(found.num_pairs),
        }
        for (arm, name), found in zip(compared, judged, strict=True)
    ]  # fmt: skip


def _percent(value: float) -> str:
    """Return a change in %; an end that lies just off 0 is 0."""
    return f"{value:+.3g}" if abs(value) > LEAST_PERCENT else "0"


# --- scores ---------------------------------------------------------------------------------------


def _half_sums(runs: Sequence[RunSummary]) -> np.ndarray:
    """Return half the mean and half the P95 of E2E, ms, by seed."""
    first, second = (metric_values(runs, name) for name in METRICS)
    return 0.5 * first + 0.5 * second


def of_example(by_workload: Mapping[str, Runs], arm: str) -> np.ndarray:
    """Return the example's score by seed: minus half the E2E mean and half the P95, the workloads' mean."""
    parts = [[metric_values(runs[arm], name) for name in METRICS] for runs in by_workload.values()]
    means = np.mean(np.array(parts), axis=0)
    return np.asarray(-0.5 * means[0] - 0.5 * means[1])


def of_hand_over(by_workload: Mapping[str, Runs], arm: str) -> float:
    """Return the hand-over's score: the workloads' mean gain over 1_1 in %, of values averaged over the seeds."""
    gains = []
    for runs in by_workload.values():
        ours, theirs = (
            [float(np.mean(metric_values(runs[one], name))) for name in METRICS]
            for one in (arm, "1_1")
        )
        gains.append(1 - (0.5 * ours[0] + 0.5 * ours[1]) / (0.5 * theirs[0] + 0.5 * theirs[1]))
    return 100 * float(np.mean(gains))


def resampled_gain(
    by_workload: Mapping[str, Runs], arm: str, num: int = 9999
) -> tuple[float, float, float]:
    """Return the hand-over's score with the 95 % interval of resampled seeds."""
    pairs = [(_half_sums(runs[arm]), _half_sums(runs["1_1"])) for runs in by_workload.values()]
    size = len(pairs[0][0])
    chosen = np.random.default_rng(0).integers(0, size, (num, size))
    means = [(ours[chosen].mean(axis=1), theirs[chosen].mean(axis=1)) for ours, theirs in pairs]
    scores = 100 * np.mean([1 - ours / theirs for ours, theirs in means], axis=0)
    low, high = np.quantile(scores, (0.025, 0.975))
    return of_hand_over(by_workload, arm), float(low), float(high)


def scores(first: Mapping[str, Runs], new: Mapping[str, Runs]) -> Iterator[Row]:
    """Yield each published score, the same here, and its value on new seeds with a 95 % interval."""
    for (name, arm), wanted in PUBLISHED_SCORES.items():
        of_set, of_new = (
            {key: runs for key, runs in one.items() if key.startswith(f"{name} ")}
            for one in (first, new)
        )
        if not of_set or any(arm not in runs for runs in of_set.values()):
            continue
        if len(of_new) < len(of_set):
            of_new = {}
        row = {"set": name, "arm": arm, "published": repr(wanted)}
        if name == HANDED_OVER:
            here = of_hand_over(of_set, arm)
            found = resampled_gain(of_new, arm) if of_new else (math.nan,) * 3
        else:
            here = float(of_example(of_set, arm)[0])
            interval = estimate(of_example(of_new, arm)) if of_new else None
            found = (
                (math.nan,) * 3
                if interval is None
                else (interval.mean, interval.low, interval.high)
            )
        is_equal = str(math.isclose(here, wanted, rel_tol=TOLERANCE)).lower()
        row |= {"here": repr(here), "equal": is_equal}
        row |= dict(zip(("new seeds", "low", "high"), (f"{one:.5g}" for one in found), strict=True))
        yield row


def make(
    data: Path, groups: Sequence[ArmsOnWorkload], folder: Path
) -> Iterator[tuple[str, list[Row]]]:
    """Yield the tables by name, the first as soon as the published seeds are run."""
    with progress.phase("published seeds", len(groups), "workloads"):
        rows, first = figures(data, groups, folder)
    yield FIGURES, rows
    new: dict[str, Runs] = {}
    changed: list[Row] = []
    for group in groups:
        arms = [arm for arm in group.arms if arm not in group.slow]
        if arms:
            runs = new[f"{group.set} {group.workload}"] = runs_of(group, NEW_SEEDS, arms, folder)
            changed += changes(group, runs)
    yield CHANGES, changed
    yield SCORES, list(scores(first, new))
