"""What is compared when searches are repeated, where it is kept, and the best known points."""

from __future__ import annotations

import json
import math
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from blis_jax.errors import ConfigError
from blis_jax.files.atomic_write import write_json

if TYPE_CHECKING:
    from sweeps.runs.bench import Bench
    from sweeps.search.loop import SearchRecord
    from sweeps.strategies.file import Strategy

BEST_FILE = Path(__file__).with_name("best.json")
NUM_SEEDS = 16
WITHIN = 1.0  # % above the best known score


@dataclass(frozen=True)
class Plan:
    """What is compared, and on what."""

    strategy: Strategy
    engines: tuple[str, ...]
    repetitions: range  # their random states
    seeds: tuple[int, ...]  # of the requests
    folder: Path
    is_stopped_at_target: bool
    within: float  # % of the best known score

    @property
    def calls(self) -> int:
        """The budget of a search."""
        return self.strategy.search.calls

    def record(self, engine: str, repetition: int) -> Path:
        """Where one search writes what it tried."""
        return self.folder / f"{engine}_{repetition:02d}.jsonl"

    def with_search(self, **changes: Any) -> Strategy:
        """The strategy with another way to search it."""
        search = self.strategy.search.model_copy(update=changes)
        return self.strategy.model_copy(update={"search": search, "seeds": self.seeds})


def record_of(plan: Plan, engine: str, repetition: int) -> SearchRecord:
    """What one search tried; refused if it was made with other settings."""
    from sweeps.search.loop import SearchRecord

    search = plan.with_search(engine=engine, random_state=repetition).search
    how = search.model_dump(exclude={"calls"})
    content = {"strategy": plan.strategy.name, "way to search": how, "seeds": plan.seeds}
    return SearchRecord(plan.record(engine, repetition), content)


def key_of(plan: Plan) -> str:
    """Under which a best known point is written down."""
    first, last = plan.seeds[0], plan.seeds[-1]
    is_row = plan.seeds == tuple(range(first, last + 1))
    seeds = f"{first} to {last}" if is_row else ", ".join(map(str, plan.seeds))
    return f"{plan.strategy.name}, seeds {seeds}"


def best_known(plan: Plan) -> float:
    """The lowest score that is written down; infinite if none is."""
    found = json.loads(BEST_FILE.read_text()) if BEST_FILE.exists() else {}
    return float(found.get(key_of(plan), {}).get("score", math.inf))


def best_point(plan: Plan) -> tuple[Any, ...]:
    """Where the lowest score that is written down was found."""
    found = json.loads(BEST_FILE.read_text()) if BEST_FILE.exists() else {}
    if key_of(plan) not in found:
        raise ConfigError(
            f"{BEST_FILE.name} has no point of {key_of(plan)}; search with --best first"
        )
    return tuple(found[key_of(plan)]["point"])


def note_best(plan: Plan, score: float, point: list[Any], found_by: str) -> None:
    """Writes a point down if it is better than the one that is there."""
    if score >= best_known(plan):
        return
    document = json.loads(BEST_FILE.read_text()) if BEST_FILE.exists() else {}
    document[key_of(plan)] = {"score": score, "point": point, "found_by": found_by}
    write_json(BEST_FILE, document)


def target(best: float, within: float = WITHIN) -> float:
    """The score that is so many % above the best one."""
    return best + within / 100 * abs(best)


def bench_of(plan: Plan) -> Bench:
    """What runs points on the fixed seeds."""
    from sweeps.runs.bench import Bench, measure_of, targets_of, workload_of
    from sweeps.search.objectives import Valuation

    spec = workload_of(plan.strategy)
    measure = measure_of(targets_of(plan.strategy), spec)
    names = Valuation(plan.strategy).names
    batch = plan.strategy.search.batch
    return Bench(spec, plan.seeds, "reference", names, measure, batch)
