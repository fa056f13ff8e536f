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

from benchmarks.search.statistics import Found, stood_at
from benchmarks.search.turbo import RACED, Plan, experiment_of, record_of, searched
from blis_jax.errors import ConfigError
from blis_jax.files.atomic_write import write_json
from sweeps.search.engines.denoised import recommended
from sweeps.search.engines.encoding import Encoding
from sweeps.search.loop import PointRuns, SearchRecord, Tried, runs_at
from sweeps.search.objectives import Valuation

if TYPE_CHECKING:
    import pandas as pd

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
        """Return the place of the point that the search ends at, by scores."""
        return self.stood[-1].place if self.stood else int(np.argmin(self.scores))

    def found(self, batch: int) -> list[Found]:
        """Return the points that the search stood at after its batches, where another one than before."""
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
    """Yield each search that is there, unfinished ones too."""
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
                    told = [one.told() for one in tried]
                    by_model = [recommended(encoding, told[:end]) for end in ends]
                points, scores = [one.point for one in tried], [one.worth.score for one in tried]
                yield Search(engine, repetition, points, scores, by_model)


def _raced(plan: Plan, space: Space, engine: str, repetition: int) -> Iterator[Search]:
    """A search with rungs."""
    tried, stood = stood_at(plan, space, engine, repetition, by_model=searched(engine) != engine)
    if stood:
        points, scores = [one.point for one in tried], [one.worth.score for one in tried]
        yield Search(engine, repetition, points, scores, None, stood)


def batch_ends(count: int, batch: int) -> list[int]:
    """Return after how many evaluations of `count` the batches end."""
    return [*range(batch, count, batch), count]


def scored(plan: Plan, space: Space, points: Sequence[Point], seeds: range) -> dict[Point, Runs]:
    """Return the runs of points on seeds, from the record on."""
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
    """Return the standard error of a statistic of the places of seeds: one group at a time is left out."""
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


def choose(plan: Plan, space: Space, found: Sequence[Search], num_seeds: int) -> Mapping[str, Any]:
    """Write the best of all ends and the reference so far down, by seeds that judge nothing.

    Every candidate runs on a quarter of the seeds; those that are then in front run on all of them.
    """
    valuation = Valuation(plan.strategy)
    ends = {
        tuple(one.points[one.end]): (
            f"{one.engine}, random state {one.random_state}, evaluation {one.end + 1}"
        )
        for one in found
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

    Unless `within` gives it, the tolerance is never finer than the standard error, the median over the searches' ends.
    """
    level = float(points["reference"].iloc[0])
    error = float(points.loc[points["is_end"], "standard_error"].median())
    return level, max(WITHIN / 100 * abs(level), error) if within is None else within, error


def is_near_at(one: pd.DataFrame, evaluations: int, goal: float) -> bool:
    """Return whether the best point after `evaluations` is near enough; a point that was not judged is far."""
    so_far = one[one["evaluation"] <= evaluations]
    return len(so_far) > 0 and bool(so_far["difference"].iloc[-1] <= goal)
