"""Evaluations needed, censored medians and shares, each with an exact interval."""

from __future__ import annotations

import json
import math
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, NamedTuple

import numpy as np
from scipy.stats import beta, binom

from benchmarks.search.turbo import NUM_SEEDS, Plan, is_led, record_of
from sweeps.search.engines.denoised import recommended
from sweeps.search.engines.encoding import Encoding
from sweeps.search.loop import Race, best_of, most_runs
from sweeps.search.objectives import Valuation

if TYPE_CHECKING:
    from sweeps.search.engines import Told
    from sweeps.search.loop import Tried
    from sweeps.strategies.space import Space


def median_interval(
    values: Sequence[float], confidence: float = 0.95
) -> tuple[float, float, float]:
    """Return the median and its interval from order statistics (exact binomial); infinite values are censored."""
    ordered = np.sort(np.asarray(values, float))
    count = len(ordered)
    middle = float(ordered[(count - 1) // 2])
    if count % 2 == 0:
        pair = ordered[count // 2 - 1 : count // 2 + 1]
        middle = float(pair.mean()) if np.isfinite(pair).all() else float(pair[1])
    rank = int(binom.ppf((1 - confidence) / 2, count, 0.5))
    if rank < 1:
        return middle, math.nan, math.nan
    return middle, float(ordered[rank - 1]), float(ordered[count - rank])


class Ratio(NamedTuple):
    """The ratio of two medians of pairs, and what bootstrap over the pairs makes of it, ascending."""

    ratio: float
    drawn: np.ndarray

    def interval(self, confidence: float = 0.95) -> tuple[float, float]:
        """Return the percentile interval."""
        low, high = np.quantile(self.drawn, [(1 - confidence) / 2, (1 + confidence) / 2])
        return float(low), float(high)

    def p_against(self, ratio: float) -> float:
        """Return the two-sided p-value of a ratio: twice the share of the draws on its rarer side."""
        fewest = min((self.drawn >= ratio).sum(), (self.drawn <= ratio).sum())
        return float(min(1, 2 * (fewest + 1) / (len(self.drawn) + 1)))


def ratio_of(
    ours: Sequence[float], theirs: Sequence[float], most: float, draws: int = 40_000
) -> Ratio:
    """Return the ratio of two medians of pairs. Medians above `most` count as `most`, infinite ones too."""
    pairs = np.stack([np.asarray(ours, float), np.asarray(theirs, float)])
    chosen = np.random.default_rng(0).integers(pairs.shape[1], size=(draws, pairs.shape[1]))
    drawn = np.minimum(np.median(pairs[:, chosen], axis=2), most)
    medians = np.minimum(np.median(pairs, axis=1), most)
    return Ratio(float(medians[0] / medians[1]), np.sort(drawn[0] / drawn[1]))


def share_interval(hits: int, count: int, confidence: float = 0.95) -> tuple[float, float]:
    """Return the exact interval (Clopper and Pearson) of a share that was met `hits` times of `count`."""
    tail = (1 - confidence) / 2
    low = float(beta.ppf(tail, hits, count - hits + 1)) if hits else 0.0
    high = float(beta.ppf(1 - tail, hits + 1, count - hits)) if hits < count else 1.0
    return low, high


def needed(places: Sequence[int], is_near: Sequence[bool]) -> float:
    """Return the evaluations up to the first of some places whose point is near enough; infinite if none is."""
    evaluations = [place + 1 for place, near in zip(places, is_near, strict=True) if near]
    return float(min(evaluations)) if evaluations else math.inf


# --- standing -------------------------------------------------------------------------------------
# At which point a search with rungs stands, stage by stage. By a model it is the best point by that model, which takes
# a second and is asked at every stage, so its answers are kept beside the record.

# the place of the best of some points, of those with at least so many runs; None if all points failed
Best = Callable[["Sequence[Told]", int], int | None]


class Found(NamedTuple):
    """A point that a search stood at after a batch."""

    place: int
    evaluation: int  # after which it did, from 1


class ByModel:
    """The best points by a model after some runs; those in the file are not looked for again."""

    def __init__(self, plan: Plan, engine: str, repetition: int, best: Best) -> None:
        """Of one search; `best` says what is not in the file. Without a record the file is of an earlier one."""
        record = plan.record(engine, repetition)
        self.path, self.best = record.with_suffix(".places"), best
        if not record.exists():
            self.path.unlink(missing_ok=True)
        lines = self.path.read_text().splitlines(keepends=True) if self.path.exists() else []
        whole = [json.loads(line) for line in lines if line.endswith("\n")]
        self.known = {(runs, least): place for runs, least, place in whole}

    def at(self, told: Sequence[Told], num_runs: int = 0) -> int | None:
        """Return the place of the best of the points so far, of those with at least `num_runs` runs;
        None if there is none.
        """
        key = sum(one.num_runs for one in told), num_runs
        if key not in self.known:
            self.known[key] = self.best(told, num_runs)
            with self.path.open("a") as file:
                file.write(json.dumps([*key, self.known[key]]) + "\n")
        return self.known[key]


def stood_at(
    plan: Plan, space: Space, engine: str, repetition: int, by_model: bool
) -> tuple[list[Tried], list[Found]]:
    """Return the points of one search with their scores at its end, and where it stood after which evaluation.

    By a model, a search stands at the point that it would report if it tried no further one: the best one by the
    model. To report it, a search first gives it all runs, so those that it lacks count.
    """
    strategy, encoding = plan.with_search(repetition, engine), Encoding(space)
    race = Race(Valuation(strategy), len(strategy.seeds))
    best = ByModel(plan, engine, repetition, lambda told, least: recommended(encoding, told, least))
    stages = record_of(plan, space, engine, repetition).stages()
    stood, tried = list[Found](), list["Tried"]()
    for number, entries in enumerate(stages, 1):
        race.add(entries)
        if math.ceil(race.num_runs / NUM_SEEDS) > plan.calls:
            break  # the record goes on beyond what is asked about
        is_end = number == len(stages)
        goes_on = not is_end and stages[number][0].call is not None
        tried = race.tried()
        place = None
        if not by_model:
            lowest = best_of(tried)
            place = None if lowest is None else tried.index(lowest)
        elif not goes_on:
            least = most_runs(tried) if is_end else 0
            place = best.at([one.told() for one in tried], least)
        if place is not None:
            lacking = race.num_lacking(place) if by_model and not is_end else 0
            stood.append(Found(place, math.ceil((race.num_runs + lacking) / NUM_SEEDS)))
    if stood and race.is_over(is_led(engine)):
        stood[-1] = stood[-1]._replace(evaluation=plan.calls)
    in_time = [one for one in stood[:-1] if one.evaluation <= plan.calls]
    return tried, [*sorted(in_time, key=lambda one: one.evaluation), *stood[-1:]]
