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

from surrogate.coverage import write_table
from surrogate.data import Data, Part
from surrogate.fitting.learn import learn, one_run_each
from surrogate.predictor import CONFIDENCE, Surrogate
from surrogate.regions import BRANCH, WHOLE

if TYPE_CHECKING:
    from surrogate.data import Data
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
    """Return where a target lies in its interval, single precision allowed for."""
    slack = 1e-6 * np.abs(target)
    return np.asarray((target >= low - slack) & (target <= high + slack))


def evaluate(surrogate: Surrogate, data: Data) -> list[Score]:
    """Score all outputs that are not constant on the test points, and on other seeds if there are some."""
    found = surrogate.predict(data.test.inputs)
    other = surrogate.predict_mean(data.other.inputs) if len(data.other.inputs) else None
    target = data.test.means
    scores = []
    for place in np.flatnonzero(surrogate.scales.is_learned).tolist():
        name = surrogate.outputs[place]
        y, predicted = target[:, place], found["mean"].values[:, place]
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
    """Return output, kind of interval, test points covered and all: of means, and of one run per point.

    The points are the test points of a region; none if it has none.
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
    """R² against the mean over other seeds, and after the levels are made equal."""
    if predicted is None:
        return float("nan"), float("nan")
    y = np.nanmean(part.runs[:, :, place], axis=1)
    guess = predicted[name]
    return r_squared(y, guess), r_squared(y, guess - guess.mean() + y.mean())


def verdict(score: Score, most_wanted: str) -> str:
    """Judge whether R² reaches its bar: 0.98 for the output most wanted, else 0.95 or 0.9 of the ceiling.

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
    """Return halves of halves of the training points, the smallest first."""
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
    """Return R² and error of every output by number of training points; sizes that `path` has are kept."""
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
        write_table(table, path)
    return table[table["points"].isin(list(sizes))].sort_values(["points", "output"])
