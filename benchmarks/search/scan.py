"""The scores along one parameter through the best known point: is there a better one beside it?"""

from __future__ import annotations

from typing import TYPE_CHECKING

from benchmarks.search.plan import Plan, bench_of, best_known, best_point
from blis_jax.commands import cli
from blis_jax.commands.option_values import number_within
from blis_jax.errors import ConfigError
from blis_jax.files.atomic_write import replacing

if TYPE_CHECKING:
    import pandas as pd

NAME = "benchmarks.search"
MOST = 2000  # values


def scan(plan: Plan, text: str) -> int:
    """Runs every whole value `NAME=LOW:HIGH` of a parameter; writes a table, prints the lowest scores."""
    name, values = _values(plan, text)
    table = scores_along(plan, name, values)
    path = plan.folder / f"scan_{name}.csv"
    with cli.writing(path), replacing(path) as written:
        table.to_csv(written, index=False)
    print(
        f"{len(table)} values of {name} through the best known point, score {best_known(plan):.6g}:"
    )
    print(table.nsmallest(5, "score").to_string(index=False))
    print(f"Written: {path}")
    return 0


def scores_along(plan: Plan, name: str, values: range) -> pd.DataFrame:
    """Score and objective at each value, the other parameters as in the best known point."""
    import pandas as pd

    from sweeps.search.loop import runs_at
    from sweeps.search.objectives import Valuation
    from sweeps.strategies.space import space_of

    space, valuation = space_of(plan.strategy), Valuation(plan.strategy)
    run, place = runs_at(space, bench_of(plan)), space.names.index(name)
    centre = best_point(plan)
    points = [(*centre[:place], value, *centre[place + 1 :]) for value in values]
    worths = [
        valuation.worth(runs)
        for at in range(0, len(points), plan.strategy.search.batch)
        for runs in run(points[at : at + plan.strategy.search.batch])
    ]
    return pd.DataFrame({
        name: list(values),
        "score": [worth.score for worth in worths],
        "objective": [sum(worth.objectives) for worth in worths],
    })  # fmt: skip


def _values(plan: Plan, text: str) -> tuple[str, range]:
    from sweeps.strategies.space import space_of

    name, _, ends = text.partition("=")
    low_text, _, high_text = ends.partition(":")
    whole = {one.name: one for one in space_of(plan.strategy).dimensions if one.kind == "integer"}
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
