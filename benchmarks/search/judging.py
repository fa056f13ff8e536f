"""Searches' best points scored again on seeds that no search saw, against a reference point.

The estimand is how much worse than the reference point a point's expected score is, over the
workload's seeds. It is estimated on common seeds, so that what a seed does to both drops out.
"""

from __future__ import annotations

import json
import math
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np
from scipy.stats import binom, binomtest

from benchmarks.search.turbo import (
    NUM_SEEDS,
    RACED,
    Plan,
    experiment_of,
    is_led,
    record_of,
    searched,
)
from blis_jax.errors import ConfigError
from blis_jax.files.atomic_write import write_json
from sweeps.search.engines.denoised import recommended
from sweeps.search.engines.encoding import Encoding
from sweeps.search.loop import PointRuns, Race, SearchRecord, Tried, best_of, most_runs, runs_at
from sweeps.search.objectives import Valuation

if TYPE_CHECKING:
    import pandas as pd

    from sweeps.search.engines import Told
    from sweeps.search.loop import Tried
    from sweeps.search.objectives import Runs
    from sweeps.strategies.space import Point, Space

BEST_FILE = Path(__file__).with_name("best.json")
FIRST_TO_JUDGE, FIRST_TO_CHOOSE = 700_000, 3_000_000  # seeds; those of searches lie between
NUM_JUDGING = 256
WITHIN = 1.0  # % of the reference's score that is near enough, if the standard error is not larger
# Times the score that a search ends at, and the reference's: what is above is not near, and not scored again.
FAR, FAR_FROM_REFERENCE = 1.1, 1.07
GROUPS = 32  # of seeds, of which one at a time is left out for standard errors
SHORT_LIST = 8  # candidates for the reference that get all seeds


class Search(NamedTuple):
    """One search as far as it went."""

    engine: str
    random_state: int
    points: list[Any]
    scores: list[float]
    recommended: list[int] | None = None  # by a model, places after each batch
    stood: list[Found] | None = None  # of a search with rungs, after each stage

    @property
    def evaluations(self) -> int:
        """Return the number of evaluations spent; in a search with rungs, as many runs count as one evaluation."""
        return self.stood[-1].evaluation if self.stood else len(self.scores)

    @property
    def end(self) -> int:
        """Return the index of the point at which the search ends."""
        return self.stood[-1].place if self.stood else int(np.argmin(self.scores))

    def found(self, batch: int) -> list[Found]:
        """Return the points at which the search stood after its batches, without repetitions of the same point in a
        row.
        """
        if self.stood is not None:
            return [
                point
                for before, point in zip([None, *self.stood], self.stood, strict=False)
                if before is None or point.place != before.place
            ]
        ends = batch_ends(len(self.scores), batch)
        places = self.recommended or [int(np.argmin(self.scores[:end])) for end in ends]
        steps, before = list[Found](), 0
        for place, end in zip(places, ends, strict=True):
            if not steps or place != steps[-1].place:
                steps.append(Found(place, place + 1 if place >= before else end))
            before = end
        return steps

    def near(self, batch: int, reference: float = math.inf) -> list[Found]:
        """Return the points of `found` from the first that is not far from the search's end or the
        reference's score.
        """
        last = self.scores[self.end]
        most = min(
            last + (FAR - 1) * abs(last), reference + (FAR_FROM_REFERENCE - 1) * abs(reference)
        )
        steps = self.found(batch)
        is_near = [self.scores[step.place] <= most for step in steps[:-1]] + [True]
        return steps[is_near.index(True) :]


class Verdict(NamedTuple):
    """A point against the reference on common seeds."""

    score: float
    difference: float
    standard_error: float


def searches(plan: Plan, space: Space) -> Iterator[Search]:
    """Yield every recorded search, unfinished ones too."""
    encoding = Encoding(space)
    for engine in plan.engines:
        for repetition in plan.repetitions:
            valuation = Valuation(plan.with_search(repetition, engine))
            if not plan.record(engine, repetition).exists():
                continue
            if searched(engine) in RACED:
                yield from _raced(plan, space, engine, repetition)
                continue
            entries = record_of(plan, space, engine, repetition).read()
            if entries:
                tried = [Tried(*entry, valuation.worth(entry[1])) for entry in entries]
                by_model = None
                if searched(engine) != engine:
                    ends = batch_ends(len(tried), plan.strategy.search.batch)
                    told = [point.told() for point in tried]
                    by_model = [recommended(encoding, told[:end]) for end in ends]
                points, scores = (
                    [point.point for point in tried],
                    [point.worth.score for point in tried],
                )
                yield Search(engine, repetition, points, scores, by_model)


def _raced(plan: Plan, space: Space, engine: str, repetition: int) -> Iterator[Search]:
    """A search with rungs."""
    tried, stood = stood_at(plan, space, engine, repetition, by_model=searched(engine) != engine)
    if stood:
        points, scores = [point.point for point in tried], [point.worth.score for point in tried]
        yield Search(engine, repetition, points, scores, None, stood)


def batch_ends(count: int, batch: int) -> list[int]:
    """Return after how many evaluations of `count` the batches end."""
    return [*range(batch, count, batch), count]


def scored(plan: Plan, space: Space, points: Sequence[Point], seeds: range) -> dict[Point, Runs]:
    """Return the runs of points on seeds; those in the record are read, the others are made and recorded."""
    name = f"scored_{seeds[0]}_{len(seeds)}.jsonl"
    content = {"strategy": plan.strategy.name, "seeds": tuple(seeds)}
    record = SearchRecord(plan.folder / name, content)
    known = dict(record.read())
    record.begin()
    left = [point for point in dict.fromkeys(points) if point not in known]
    batch = plan.strategy.search.batch
    run = runs_at(space, experiment_of(plan.strategy, tuple(seeds))) if left else None
    for at in range(0, len(left), batch):
        assert run is not None
        some = left[at : at + batch]
        made = dict(zip(some, run(some, range(len(seeds))), strict=True))
        record.add([PointRuns(*pair) for pair in made.items()])
        known |= made
    return {point: known[point] for point in points}


def verdict(valuation: Valuation, runs: Runs, reference: Runs) -> Verdict:
    """Return a point's score and its difference from the reference's, with a jackknife's standard error."""
    score = valuation.worth(runs).score

    def difference(places: np.ndarray) -> float:
        ours, theirs = ([of[place] for place in places] for of in (runs, reference))
        return valuation.worth(ours).score - valuation.worth(theirs).score

    whole = score - valuation.worth(reference).score
    return Verdict(score, whole, grouped_error(difference, len(runs)))


def grouped_error(
    statistic: Callable[[np.ndarray], float], num_seeds: int, num_groups: int = GROUPS
) -> float:
    """Return the standard error of a statistic, which takes indices of seeds, by leaving out one group at a time."""
    places = np.arange(num_seeds)
    groups = np.array_split(places, min(num_groups, num_seeds))
    values = [statistic(np.delete(places, group)) for group in groups]
    count = len(groups)
    return math.sqrt((count - 1) / count * float(np.square(values - np.mean(values)).sum()))


# --- the reference point --------------------------------------------------------------------------


def reference_of(plan: Plan) -> Point:
    """Return the best known point of a strategy.

    Raises:
        ConfigError: none is known.
    """
    known = _known()
    if plan.strategy.name not in known:
        raise ConfigError(
            f"{BEST_FILE.name} has no point of {plan.strategy.name}; search, then --choose one"
        )
    return tuple(known[plan.strategy.name]["point"])


def choose(
    plan: Plan, space: Space, all_searches: Sequence[Search], num_seeds: int
) -> Mapping[str, Any]:
    """Write down the best among all ends and the earlier reference, chosen on seeds that judge nothing else; return it.

    Every candidate runs on a quarter of the seeds; the candidates then in front run on all seeds.
    """
    valuation = Valuation(plan.strategy)
    ends = {
        tuple(search.points[search.end]): (
            f"{search.engine}, random state {search.random_state}, evaluation {search.end + 1}"
        )
        for search in all_searches
    }
    if (before := _known().get(plan.strategy.name)) is not None:
        ends[tuple(before["point"])] = before["found_by"]
    if not ends:
        raise ConfigError(f"{plan.folder} has no searches yet; search before you --choose")
    candidates = list(ends)
    for part in (4, 1):
        seeds = range(FIRST_TO_CHOOSE, FIRST_TO_CHOOSE + max(num_seeds // part, 1))
        runs = scored(plan, space, candidates, seeds)
        worth = {point: valuation.worth(runs[point]).score for point in candidates}
        candidates = sorted(candidates, key=lambda point: worth[point])[:SHORT_LIST]
    best = {
        "point": list(candidates[0]),
        "score": worth[candidates[0]],
        "seeds": f"{seeds[0]} to {seeds[-1]}",
        "found_by": ends[candidates[0]],
        "chosen_from": len(ends),
    }
    write_json(BEST_FILE, _known() | {plan.strategy.name: best})
    return best


def _known() -> dict[str, Any]:
    return json.loads(BEST_FILE.read_text()) if BEST_FILE.exists() else {}


def tolerance_of(points: pd.DataFrame, within: float | None = None) -> tuple[float, float, float]:
    """Return the reference's score, the difference that is near enough, and a difference's standard error.

    Unless `within` gives it, the tolerance is at least the median standard error of the searches' ends.
    """
    level = float(points["reference"].iloc[0])
    error = float(points.loc[points["is_end"], "standard_error"].median())
    return level, max(WITHIN / 100 * abs(level), error) if within is None else within, error


def is_near_at(search: pd.DataFrame, evaluations: int, goal: float) -> bool:
    """Return whether the best point after `evaluations` is near enough; a point that was not judged is far."""
    so_far = search[search["evaluation"] <= evaluations]
    return len(so_far) > 0 and bool(so_far["difference"].iloc[-1] <= goal)


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
    """The ratio of two medians over pairs, and its values on bootstrap samples of the pairs, ascending."""

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
    ends = binomtest(hits, count).proportion_ci(confidence)
    return float(ends.low), float(ends.high)


def needed(places: Sequence[int], is_near: Sequence[bool]) -> float:
    """Return the evaluations up to the first point, given by its index, that is near enough; infinite if none is."""
    evaluations = [place + 1 for place, near in zip(places, is_near, strict=True) if near]
    return float(min(evaluations)) if evaluations else math.inf


# --- standing -------------------------------------------------------------------------------------
# At which point a search with rungs stands, stage by stage. By a model it is the best point by that model, which takes
# a second and is asked at every stage, so its answers are kept beside the record.

# the place of the best of some points, of those with at least so many runs; None if all points failed
Best = Callable[["Sequence[Told]", int], int | None]


class Found(NamedTuple):
    """A point at which a search stood after a batch."""

    place: int
    evaluation: int  # after which it did, from 1


class ByModel:
    """The best points by a model after some runs, kept in a file so that each is looked for once."""

    def __init__(self, plan: Plan, engine: str, repetition: int, best: Best) -> None:
        """Read the file of one search; `best` finds points that the file lacks. A file without a record is removed."""
        record = plan.record(engine, repetition)
        self.path, self.best = record.with_suffix(".places"), best
        if not record.exists():
            self.path.unlink(missing_ok=True)
        lines = self.path.read_text().splitlines(keepends=True) if self.path.exists() else []
        whole = [json.loads(line) for line in lines if line.endswith("\n")]
        self.known = {(runs, least): place for runs, least, place in whole}

    def at(self, told: Sequence[Told], num_runs: int = 0) -> int | None:
        """Return the index of the best point among those with at least `num_runs` runs; None if none has."""
        key = sum(point.num_runs for point in told), num_runs
        if key not in self.known:
            self.known[key] = self.best(told, num_runs)
            with self.path.open("a") as file:
                file.write(json.dumps([*key, self.known[key]]) + "\n")
        return self.known[key]


def stood_at(
    plan: Plan, space: Space, engine: str, repetition: int, by_model: bool
) -> tuple[list[Tried], list[Found]]:
    """Return a search's points with their scores at its end, and the points at which it stood, each with its
    evaluation.

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
            place = best.at([point.told() for point in tried], least)
        if place is not None:
            lacking = race.num_lacking(place) if by_model and not is_end else 0
            stood.append(Found(place, math.ceil((race.num_runs + lacking) / NUM_SEEDS)))
    if stood and race.is_over(is_led(engine)):
        stood[-1] = stood[-1]._replace(evaluation=plan.calls)
    in_time = [point for point in stood[:-1] if point.evaluation <= plan.calls]
    return tried, [*sorted(in_time, key=lambda point: point.evaluation), *stood[-1:]]
