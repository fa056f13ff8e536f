"""At which point a search with rungs stands, stage by stage.

By a model it is the best point by that model. A model takes a second and is asked at every stage, so its answers are
kept beside the record.
"""

from __future__ import annotations

import json
import math
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, NamedTuple

from benchmarks.search.plan import NUM_SEEDS, Plan, record_of

if TYPE_CHECKING:
    from sweeps.search.engines import Told
    from sweeps.search.racing import Tried
    from sweeps.strategies.space import Space

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
        """The place of the best of the points so far, of those with at least `num_runs` runs."""
        key = sum(one.num_runs for one in told), num_runs
        if key not in self.known:
            self.known[key] = self.best(told, num_runs)
            with self.path.open("a") as file:
                file.write(json.dumps([*key, self.known[key]]) + "\n")
        return self.known[key]


def stood_at(
    plan: Plan, space: Space, engine: str, repetition: int, by_model: bool
) -> tuple[list[Tried], list[Found]]:
    """The points of one search with the scores that they have at the end, and where it stood after which evaluation.

    By a model, a search stands at the point that it would report if it tried no further one: the best one by the
    model. To report it, a search first gives it all runs, so those that it lacks count.
    """
    from benchmarks.search.engines import is_led
    from sweeps.search.engines.denoised import recommended
    from sweeps.search.engines.modelled.encoding import Encoding
    from sweeps.search.objectives import Valuation
    from sweeps.search.racing import Race, best_of, most_runs

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
