"""The learning curve: how good a surrogate is with fewer training points."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np

if TYPE_CHECKING:
    import pandas as pd

    from surrogate.data import Data
    from surrogate.fitting.fit import Settings

SMALLEST = 128


def sizes_of(num_points: int) -> tuple[int, ...]:
    """Halves of halves of the training points, the smallest first."""
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
    """R² and error of every output by number of training points; sizes that `path` has are kept."""
    import pandas as pd

    from surrogate.coverage import write_table
    from surrogate.fitting.learn import learn
    from surrogate.scores import evaluate

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
