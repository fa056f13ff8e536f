"""The scores along one parameter through the reference point: is there a better one beside it?"""

from __future__ import annotations

from typing import TYPE_CHECKING

import pandas as pd

from benchmarks.search.judging import FIRST_TO_CHOOSE, reference_of, scored
from benchmarks.search.plan import Plan
from blis_jax.commands import cli
from blis_jax.commands.values import number_within
from blis_jax.errors import ConfigError
from blis_jax.files.atomic_write import replacing
from sweeps.search.objectives import Valuation

if TYPE_CHECKING:
    from sweeps.strategies.space import Space

MOST = 2000  # values


def scan(plan: Plan, space: Space, text: str, num_seeds: int) -> int:
    """Run every whole value `NAME=LOW:HIGH` of a parameter; write a table, print the lowest scores."""
    name, values = _values(space, text)
    table = scores_along(plan, space, name, values, num_seeds)
    path = plan.folder / f"scan_{name}.csv"
    with cli.writing(path), replacing(path) as written:
        table.to_csv(written, index=False)
    last = FIRST_TO_CHOOSE + num_seeds - 1
    print(
        f"{len(table)} values of {name} through the reference point, on seeds {FIRST_TO_CHOOSE} to {last}:"
    )
    print(table.nsmallest(5, "score").to_string(index=False))
    print(f"Written: {path}")
    return 0


def scores_along(
    plan: Plan, space: Space, name: str, values: range, num_seeds: int
) -> pd.DataFrame:
    """Return score and objective at each value, the other parameters as in the reference point."""
    centre, place = reference_of(plan), space.names.index(name)
    points = [(*centre[:place], value, *centre[place + 1 :]) for value in values]
    seeds = range(FIRST_TO_CHOOSE, FIRST_TO_CHOOSE + num_seeds)
    valuation, runs = Valuation(plan.strategy), scored(plan, space, points, seeds)
    worths = [valuation.worth(runs[point]) for point in points]
    return pd.DataFrame({
        name: list(values),
        "score": [worth.score for worth in worths],
        "objective": [sum(worth.objectives) for worth in worths],
    })  # fmt: skip


def _values(space: Space, text: str) -> tuple[str, range]:
    name, _, ends = text.partition("=")
    low_text, _, high_text = ends.partition(":")
    whole = {one.name: one for one in space.dimensions if one.kind == "integer"}
    if name not in whole:
        raise ConfigError(
            f"--scan: {text!r} is not NAME=LOW:HIGH of a whole-number parameter; there are "
            f"{', '.join(whole) or 'none'}"
        )
    low, high = (
        int(number_within(f"--scan: {name}", end, whole[name].low, whole[name].high, True))
        for end in (low_text, high_text)
    )
    if not 0 <= high - low < MOST:
        raise ConfigError(f"--scan: {ends!r} must go up, over at most {MOST} values")
    return name, range(low, high + 1)
