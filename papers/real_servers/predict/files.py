"""Files of runs: read and recognised by their columns, and written with predictions in them."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

from blis_jax import progress
from blis_jax.commands import cli
from blis_jax.commands.cli import Notes
from blis_jax.errors import ConfigError
from blis_jax.files.atomic_write import replacing
from blis_jax.files.input_files import check_regular
from blis_jax.lazy import pandas
from blis_jax.reports import render
from blis_jax.reports.findings import Answer
from papers.real_servers.predict.collections import COLLECTIONS, Collection
from papers.real_servers.predict.figures import predicted
from papers.real_servers.predict.learned import Learned, learned
from papers.real_servers.predict.scene import AskedCell, ClosedLoad, Scene, Unit
from papers.real_servers.predict.simulation import SimulatedRequests, simulated, simulated_loop

if TYPE_CHECKING:
    from papers.real_servers.predict.__main__ import RunPredictOptions


# --- predictions: every scene simulated once, every cell with an interval -------------------------


class PredictedValue(NamedTuple):
    """A prediction and its interval."""

    value: float
    low: float
    high: float


@dataclass(frozen=True)
class PredictedUnit:
    """A unit with what was predicted, or why nothing was."""

    unit: Unit
    values: Mapping[AskedCell, PredictedValue]
    problem: str = ""


def predict(
    units: Sequence[Unit], learned: Learned, told: Callable[[int], None] = lambda done: None
) -> list[PredictedUnit]:
    """Predict all units; a unit that cannot be predicted has the reason, and the others go on.

    Args:
        units: what is asked for.
        learned: coefficients, and how far predictions were off.
        told: is called after every unit with the number of units done.
    """
    known: dict[Scene, SimulatedRequests] = {}
    predictions = []
    for number, unit in enumerate(units):
        predictions.append(_predicted(unit, learned, known))
        told(number + 1)
    return predictions


def with_configs(units: Sequence[Unit], folder: Path) -> list[Unit]:
    """Give the units the model descriptions that lie in a folder, by the last part of a model's name.

    Raises:
        ConfigError: there is no such folder.
    """
    if not folder.is_dir():
        raise ConfigError(f"{folder} is no folder; give one that holds options.command/config.json")
    by_name = {path.parent.name.lower(): path for path in folder.glob("*/config.json")}

    def described(unit: Unit) -> Unit:
        """Return a unit whose server knows the file of its model, if there is one."""
        if unit.scene is None:
            return unit
        path = by_name.get(unit.scene.server.model.rpartition("/")[2].lower())
        if path is None:
            return unit
        server = replace(unit.scene.server, model_config=str(path))
        return replace(unit, scene=replace(unit.scene, server=server))

    return [described(unit) for unit in units]


def _predicted(
    unit: Unit, learned: Learned, known: dict[Scene, SimulatedRequests]
) -> PredictedUnit:
    scene = unit.scene
    if scene is None:
        return PredictedUnit(unit, {}, unit.problem)
    try:
        if scene not in known:
            known[scene] = _simulated(scene, learned)
        values = {cell: _value(scene, known[scene], cell, learned) for cell in unit.cells}
    except ConfigError as error:
        return PredictedUnit(unit, {}, str(error))
    return PredictedUnit(unit, values)


def _simulated(scene: Scene, learned: Learned) -> SimulatedRequests:
    """Closed loops in segments by the fitted step law, all else by the engine."""
    beta = learned.beta_on(scene.server.hardware)
    if beta is not None and isinstance(scene.load, ClosedLoad):
        return simulated_loop(scene, beta, learned.view)
    return simulated(scene, beta)


def _value(
    scene: Scene, requests: SimulatedRequests, cell: AskedCell, learned: Learned
) -> PredictedValue:
    value = predicted(scene, requests, cell, learned.client_of(scene))
    return PredictedValue(value, *learned.interval(cell.figure, value, scene))


# --- files ----------------------------------------------------------------------------------------


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
    for name, collection in COLLECTIONS.items():
        lacking[name] = [column for column in collection.columns if column not in columns]
        if not lacking[name]:
            return collection
    nearest = min(lacking, key=lambda name: len(lacking[name]))
    raise ConfigError(
        f"{path}: its columns are those of no known collection ({', '.join(COLLECTIONS)}); "
        f"{nearest} is the nearest, and {', '.join(lacking[nearest])} is missing"
    )


def filled(file: RunsFile, predictions: Sequence[PredictedUnit]) -> pandas.DataFrame:
    """Return the file's table with predictions in its own columns, their intervals, and why a row has no prediction.

    Earlier values of a column move to a column with `_measured` behind its name.
    """
    table = file.table.copy()
    for column in file.collection.values:
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


def predict_runs(options: RunPredictOptions, source: Path, output: Path) -> int:
    """Predict the runs of a file, and write and print them; return the exit code."""
    notes = Notes(options.command, options.log)

    file = read_runs_file(source)
    units = file.collection.units(file.rows)
    if options.model_configs is not None:
        units = with_configs(units, Path(options.model_configs))
    with progress.phase("predicting", len(units), "runs") as work:
        predictions = predict(units, learned(file.collection.name, options.model), work.show)
    for problem in dict.fromkeys(
        prediction.problem for prediction in predictions if prediction.problem
    ):
        notes.warn(problem)
    table = filled(file, predictions)

    with cli.writing(output), replacing(output) as scratch:
        table.to_csv(scratch, index=False)
    head, *errors = summary(file, table).splitlines()
    render.show_answer(
        Answer.of(
            f"What would the runs of {source} measure?",
            head,
            "fitted to runs of that collection; errors below where the file has measured values.",
            f"{sum(not each.problem for each in predictions)} of {len(units)} runs predicted.",
            f"Written: {output}",
        ),
        *(["\n".join(errors)] if errors else []),
    )
    return 0


def summary(file: RunsFile, table: pandas.DataFrame) -> str:
    """Say how many rows were predicted, and how far off they are where the file has measured values."""
    number = int((table[REASON] == "").sum())
    lines = [f"{number} of {len(table)} rows predicted as {file.collection.name}."]
    by = "metric_name" if "metric_name" in table.columns else None
    for column in file.collection.values:
        if f"{column}{MEASURED}" not in table.columns:
            continue
        measured = pandas.to_numeric(table[f"{column}{MEASURED}"], errors="coerce")
        off = (table[column] / measured - 1).abs() * 100
        groups = off.groupby(table[by]) if by else [(column, off)]
        for name, values in groups:
            if values.notna().any():
                lines.append(
                    f"  {name}: median error {values.median():.1f} %, worst {values.max():.1f} %"
                )
    return "\n".join(lines)
