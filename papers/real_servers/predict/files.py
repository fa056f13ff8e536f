"""Files of runs: read and recognised by their columns, and written with predictions in them."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from importlib import import_module
from pathlib import Path
from typing import Any

from blis_jax.errors import ConfigError
from blis_jax.files.input_files import check_regular
from blis_jax.lazy import pandas
from papers.real_servers.predict.prediction import PredictedUnit
from papers.real_servers.predict.scene import Collection

COLLECTIONS = ("vllm_runs", "llmd_runs", "inferencex")
MEASURED = "_measured"
REASON = "not_predicted"


@dataclass(frozen=True)
class RunsFile:
    """A file of runs."""

    collection: Collection
    table: pandas.DataFrame

    @property
    def rows(self) -> list[dict[str, Any]]:
        """Return the rows, numbers as numbers."""
        rows: list[dict[str, Any]] = self.table.to_dict("records")
        return rows


def read_runs_file(path: Path) -> RunsFile:
    """Read the runs in a CSV file.

    Raises:
        ConfigError: the file cannot be read, has no row, or its columns are those of no known collection.
    """
    check_regular(path)
    try:
        table = pandas.read_csv(path)
    except (OSError, ValueError, pandas.errors.ParserError) as error:
        raise ConfigError(f"{path} cannot be read as CSV ({error}); give a file of runs") from None
    if table.empty:
        raise ConfigError(f"{path} has no rows; give a file of runs")
    return RunsFile(recognised(path, list(table.columns)), table)


def recognised(path: Path, columns: Sequence[str]) -> Collection:
    """Return the collection whose columns these are.

    Raises:
        ConfigError: there is none.
    """
    lacking = {}
    for name in COLLECTIONS:
        module: Any = import_module(f"papers.real_servers.predict.collections.{name}")
        lacking[name] = [column for column in module.COLUMNS if column not in columns]
        if not lacking[name]:
            collection: Collection = module
            return collection
    nearest = min(lacking, key=lambda name: len(lacking[name]))
    raise ConfigError(
        f"{path}: its columns are those of no known collection ({', '.join(COLLECTIONS)}); "
        f"{nearest} is the nearest, and {', '.join(lacking[nearest])} is missing"
    )


def filled(file: RunsFile, predictions: Sequence[PredictedUnit]) -> pandas.DataFrame:
    """Fill the file's table with predictions in its own columns, their intervals, and why a row has none.

    What a column held before goes to the same name with `_measured`.
    """
    table = file.table.copy()
    for column in file.collection.VALUES:
        if column in table.columns and table[column].notna().any():
            table[f"{column}{MEASURED}"] = table[column]
        table[column] = float("nan")
        for suffix in ("_low", "_high"):
            table[f"{column}{suffix}"] = float("nan")
    reasons = [""] * len(table)
    for prediction in predictions:
        for row in prediction.unit.rows:
            reasons[row] = prediction.problem
        for cell, value in prediction.values.items():
            for suffix, number in zip(("", "_low", "_high"), value, strict=True):
                place = table.columns.get_loc(f"{cell.column}{suffix}")
                table.iloc[cell.row, place] = number
    table[REASON] = reasons
    return table
