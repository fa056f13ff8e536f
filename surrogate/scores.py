"""How good a surrogate is on points that it has not seen: R², its ceiling, coverage of intervals."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np
import pandas as pd
from scipy.stats import betabinom, binomtest

from blis_jax import progress
from blis_jax.errors import ConfigError
from blis_jax.files.atomic_write import write_csv
from blis_jax.reports import render
from blis_jax.reports.findings import Answer
from blis_jax.statistics.paired import holm
from surrogate.columns import BEST, BRANCH, REGIONS, WHOLE
from surrogate.data import Data, Part, load_all
from surrogate.fitting.learn import learn, one_run_each
from surrogate.predictor import CONFIDENCE, Surrogate, read_about

if TYPE_CHECKING:
    from surrogate.coverage import CoverageOptions, PairOptions
    from surrogate.fitting.network import Settings


NUM_SPLITS = 20
CRITICAL_BAR, BAR, CEILING_SHARE = 0.98, 0.95, 0.9
LEAST_RELIABILITY = 0.5  # below it the noise of the seeds is larger than what points differ by
MET, NOT_MET, NO_SIGNAL = "met", "not met", "no signal"
RUN_SEED = 1  # of the run that is drawn of each test point


@dataclass(frozen=True)
class Score:
    """One output on the test points."""

    output: str
    unit: str
    mean: float  # of the target over the points
    sd: float  # of the target over the points
    rmse: float
    r2: float  # against the mean over the pool's seeds
    reliability: float  # R² that a perfect surrogate of the expectation would have: its ceiling
    r2_other: float  # against the mean over other seeds, level and all
    r2_other_shape: float  # the same after the levels are made equal
    seed_noise: float  # standard error of the target: sd over seeds ÷ root of their number
    num_points: int


def r_squared(target: np.ndarray, predicted: np.ndarray) -> float:
    """Return 1 − squared error ÷ variance of the target; NaN where the target is constant."""
    spread = float(np.square(target - target.mean()).sum())
    if spread <= 0:
        return float("nan")
    return 1.0 - float(np.square(target - predicted).sum()) / spread


def reliability(runs: np.ndarray, seed: int = 0) -> float:
    """Estimate the reliability of a mean over all seeds from means over halves, `[point, seed]`.

    The correlation of the halves over the points, stepped up to the full number of seeds as Spearman
    and Brown do; the mean of several random splits, which are the same for all points.
    """
    rng = np.random.default_rng(seed)
    num_seeds = runs.shape[1]
    if num_seeds < 2:
        return float("nan")
    reliabilities = []
    for _ in range(NUM_SPLITS):
        order = rng.permutation(num_seeds)
        first = np.nanmean(runs[:, order[: num_seeds // 2]], axis=1)
        second = np.nanmean(runs[:, order[num_seeds // 2 :]], axis=1)
        if first.std() == 0 or second.std() == 0:
            return float("nan")
        half = float(np.corrcoef(first, second)[0, 1])
        reliabilities.append(2 * half / (1 + half))
    return float(np.mean(reliabilities))


def is_within(target: np.ndarray, low: np.ndarray, high: np.ndarray) -> np.ndarray:
    """Return whether each target lies in its interval, apart from errors of single precision."""
    slack = 1e-6 * np.abs(target)
    return np.asarray((target >= low - slack) & (target <= high + slack))


def evaluate(surrogate: Surrogate, data: Data) -> list[Score]:
    """Score all outputs that are not constant on the test points, and on other seeds if there are some."""
    predictions = surrogate.predict(data.test.inputs)
    other = surrogate.predict_mean(data.other.inputs) if len(data.other.inputs) else None
    target = data.test.means
    scores = []
    for place in np.flatnonzero(surrogate.scales.is_learned).tolist():
        name = surrogate.outputs[place]
        y, predicted = target[:, place], predictions["mean"].values[:, place]
        runs = data.test.runs[:, :, place]
        sd = np.nanstd(runs, axis=1, ddof=1) / np.sqrt(runs.shape[1])
        there, shape = _on_others(data.other, other, name, place)
        scores.append(
            Score(
                name, surrogate.units[place], float(y.mean()), float(y.std()),
                float(np.sqrt(np.square(y - predicted).mean())), r_squared(y, predicted),
                reliability(runs), there, shape, float(np.sqrt(np.square(sd).mean())), len(y),
            )
        )  # fmt: skip
    return scores


def coverages(
    surrogate: Surrogate, data: Data, confidence: float = CONFIDENCE, region: str = WHOLE
) -> list[tuple[str, str, int, int]]:
    """Return for means, and for one run of each point: output, kind of interval, points covered, and all points.

    The points are the test points of a region; a region without points has no rows.
    """
    part = data.branch_test if region == BRANCH else data.test
    if not len(part.inputs):
        return []
    predicted = surrogate.predict(part.inputs, confidence)
    targets = {"mean": part.means, "run": one_run_each(part, RUN_SEED)}
    ends = {"mean": ("low", "high"), "run": ("run_low", "run_high")}
    is_here = (predicted["region"].values == region) | (region == WHOLE)
    counts = []
    for place in np.flatnonzero(surrogate.scales.is_learned).tolist():
        for kind, target in targets.items():
            low, high = (predicted[end].values[:, place] for end in ends[kind])
            covered = int(is_within(target[:, place], low, high)[is_here].sum())
            counts.append((surrogate.outputs[place], kind, covered, int(is_here.sum())))
    return counts


def _on_others(
    part: Part, predicted: dict[str, np.ndarray] | None, name: str, place: int
) -> tuple[float, float]:
    """Return R² against the mean over other seeds, as predicted and with the mean moved to the target's."""
    if predicted is None:
        return float("nan"), float("nan")
    y = np.nanmean(part.runs[:, :, place], axis=1)
    guess = predicted[name]
    return r_squared(y, guess), r_squared(y, guess - guess.mean() + y.mean())


def verdict(score: Score, most_wanted: str) -> str:
    """Judge whether R² reaches its bar: 0.98 for the output most wanted, else 0.95 or, if less, 0.9 of the ceiling.

    `no signal` where points differ by less than their seeds' noise, so that there is no bar.
    """
    if not score.reliability >= LEAST_RELIABILITY:
        return NO_SIGNAL
    if score.output == most_wanted:
        is_met = score.r2 >= CRITICAL_BAR
    else:
        is_met = score.r2 >= min(BAR, CEILING_SHARE * score.reliability)
    return MET if is_met else NOT_MET


def p_value(covered: int, num_points: int, confidence: float = CONFIDENCE) -> float:
    """Return the two-sided exact binomial p-value of a coverage."""
    return float(binomtest(covered, num_points, confidence).pvalue)


def p_value_finite(
    covered: int, num_points: int, num_calibration: int, confidence: float = CONFIDENCE
) -> float:
    """Test a coverage when it is itself drawn, as that of a split conformal interval is; return the two-sided p-value.

    Given n calibration points it has a beta law with parameters n + 1 - k and k, k being the place
    of the score taken from above.
    """
    place = int((1 - confidence) * (num_calibration + 1))
    if place < 1:
        return float("nan")
    law = betabinom(num_points, num_calibration + 1 - place, place)
    below, above = law.cdf(covered), law.sf(covered - 1)
    return float(min(1.0, 2 * min(below, above)))


# --- the learning curve ---------------------------------------------------------------------------

SMALLEST = 128


def sizes_of(num_points: int) -> tuple[int, ...]:
    """Return the number of training points, its half, the half of that and so on, the smallest first."""
    sizes = [num_points]
    while sizes[-1] // 2 >= SMALLEST:
        sizes.append(sizes[-1] // 2)
    return tuple(reversed(sizes))


def learning_curve(
    data: Data,
    settings: Settings,
    sizes: Sequence[int],
    path: Path,
    on_size: Callable[[int], None] | None = None,
) -> pd.DataFrame:
    """Return R² and error of every output by number of training points; sizes in the file `path` are kept."""
    identity = f"{data.about} {sorted(dataclasses.asdict(settings).items())}"
    table = pd.read_csv(path) if path.exists() else pd.DataFrame()
    if len(table) and set(table["identity"]) != {identity}:
        table = pd.DataFrame()
    for size in sizes:
        if len(table) and size in set(table["points"]):
            continue
        if on_size is not None:
            on_size(size)
        surrogate = learn(data, settings, size)
        num_runs = int((~np.isnan(data.train.runs[:size]).all(axis=2)).sum())
        rows = [
            {
                "points": size, "runs": num_runs, "output": score.output, "r2": score.r2,
                "rmse": score.rmse, "identity": identity,
            }
            for score in evaluate(surrogate, data)
        ]  # fmt: skip
        table = pd.concat([table, pd.DataFrame(rows)], ignore_index=True)
        write_csv(path, table, 6)
    return table[table["points"].isin(list(sizes))].sort_values(["points", "output"])


def show_coverage(options: CoverageOptions, out: Path | None) -> int:
    """Count how often intervals cover, print it, and write the table; return the exit code."""
    confidence, level = options.confidence, options.level
    surrogate, data = pair_of(options, allows_fresh=True)
    with progress.phase("counting"):
        table = coverage_table(surrogate, data, confidence)
        regions = regions_table(surrogate, data, confidence)
    if out is not None:
        write_csv(out, table, 6)
    answer = Answer.of(
        f"Do the intervals of {options.model} cover as often as they say?",
        verdict_lines(table, confidence, level),
        f"binomial tests on {int(table['points'].max())} points of test.",
        "nothing was simulated.",
        "--output FILE.csv keeps the table." if out is None else f"Written: {out}",
    )
    render.show_answer(answer, "\n".join(lines(table, level)), "\n".join(region_lines(regions)))
    return 0


def pair_of(options: PairOptions, allows_fresh: bool = False) -> tuple[Surrogate, Data]:
    """Return the surrogate and the dataset that options name, both required; see `read_pair`."""
    if options.model is None or not options.data:
        raise ConfigError(
            "give a surrogate and a dataset: the folder of surrogate.train, then the .zarr of "
            "sweeps.dataset or blis_jax.sweep"
        )
    return read_pair(Path(options.model), *map(Path, options.data), allows_fresh=allows_fresh)


def read_pair(model: Path, *sources: Path, allows_fresh: bool = False) -> tuple[Surrogate, Data]:
    """Return a surrogate and the dataset that it was fitted to; refuse any other dataset.

    With `allows_fresh`, a dataset with other points of the same space and workload on the same seeds is allowed.
    """
    about = read_about(model)["about"]
    data = load_all(sources)
    is_same = about.get("data_identity") == data.about
    is_alike = data.population != "" and about.get("data_population") == data.population
    if not is_same and not (allows_fresh and is_alike):
        raise ConfigError(
            f"{model} was fitted to another dataset than {sources[0]} ({about.get('data')} against "
            f"{data.name}, or other sizes, seeds or points); give the one it was fitted to"
            + (
                ", or one with other points of the same space on the same seeds"
                if allows_fresh
                else ""
            )
        )
    return Surrogate.load(model), data


def coverage_table(
    surrogate: Surrogate, data: Data, confidence: float, region: str = "whole space"
) -> pd.DataFrame:
    """Return counts and p-values on a region's test points, one line per output and kind of interval."""
    rows = []
    of_point = surrogate.calibration.region
    if region == WHOLE:
        num_calibration = int((of_point != REGIONS.index(BRANCH)).sum())
    else:
        num_calibration = int((of_point == REGIONS.index(region)).sum())
    for output, kind, covered, num_points in coverages(surrogate, data, confidence, region):
        rows.append(
            {
                "output": output,
                "interval": kind,
                "covered": covered,
                "points": num_points,
                "share": covered / num_points,
                "p_binomial": p_value(covered, num_points, confidence),
                "p_finite_calibration": p_value_finite(
                    covered, num_points, num_calibration, confidence
                ),
            }
        )
    return pd.DataFrame(rows)


def regions_table(surrogate: Surrogate, data: Data, confidence: float) -> pd.DataFrame:
    """Return the rows of `coverage_table` for the whole space, its best quarter and the branch, with a
    column `region`.
    """
    tables = [
        coverage_table(surrogate, data, confidence, region).assign(region=region)
        for region in (WHOLE, BEST, BRANCH)
    ]
    return pd.concat([table for table in tables if len(table)], ignore_index=True)


def region_lines(table: pd.DataFrame) -> list[str]:
    """Say in a sentence the coverage in each region."""
    words = []
    for (region, kind), part in table.groupby(["region", "interval"], sort=False):
        share = part["share"]
        words.append(
            f"{region}, {part['points'].iloc[0]} points, intervals of the {kind}: {share.min():.3f} to "
            f"{share.max():.3f} over the outputs, median {share.median():.3f}."
        )
    return words


def lines(table: pd.DataFrame, level: float) -> list[str]:
    """Return the table as lines of text, with coverages rejected at `level` marked."""
    rows = [
        f"{'output':28s} {'interval':8s} {'covered':>12s} {'share':>7s} {'p':>9s} {'p, finite':>9s}"
    ]
    for row in table.itertuples():
        mark = "rejected" if row.p_binomial < level else ""
        count = f"{row.covered}/{row.points}"
        rows.append(
            f"{row.output:28s} {row.interval:8s} {count:>12s} {row.share:7.3f} {row.p_binomial:9.4f} "
            f"{row.p_finite_calibration:9.4f} {mark}".rstrip()
        )
    return rows


def verdict_lines(table: pd.DataFrame, confidence: float, level: float) -> list[str]:
    """Return a line for each kind of interval: how many coverages the tests reject at `level`."""
    rows = []
    for kind, part in table.groupby("interval"):
        rejected = int((part["p_binomial"] < level).sum())
        finite = int((part["p_finite_calibration"] < level).sum())
        together = int((holm(part["p_binomial"].to_numpy()) < level).sum())
        rows.append(
            f"{100 * confidence:g} % intervals of the {kind}: {rejected} of {len(part)} rejected at "
            f"{100 * level:g} % each, {together} if all {len(part)} are one question (Holm), {finite} with the "
            "finite calibration set taken into account."
        )
    return rows
