"""Total indices of studies as a table: simulator, surrogate, and whether they agree."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import pandas as pd

from blis_jax.commands import cli
from blis_jax.errors import ConfigError, as_option
from blis_jax.files.atomic_write import write_csv
from blis_jax.reports.drawing import save
from blis_jax.results.dataset import load
from papers.pages import answer
from sweeps.sensitivity import __main__ as sensitivity
from sweeps.sensitivity.figure import totals
from sweeps.sensitivity.indices import FIGURES, Agreement, agreement_of, verdict
from sweeps.sensitivity.model import SIMULATOR, SURROGATE
from sweeps.sensitivity.report import agreement_cells
from sweeps.sensitivity.words import interval_words
from sweeps.strategies.file import load_strategy

if TYPE_CHECKING:
    import xarray as xr

    from papers.sensitivity.__main__ import SensitivityPaperOptions

DATA = Path(__file__).parent / "data"
TABLE = "total_indices.csv"
DIGITS = 5
_HEADS = ("simulator", "surrogate", "meet", "simulator, lowered", "surrogate, lowered", "meet")
_WIDTHS = (22, 22, 4, 18, 18, 4)
_NOTHING = "–"


def totals_of(rows: pd.DataFrame) -> tuple[list[str], dict[str, tuple[np.ndarray, np.ndarray]]]:
    """Return a space's parameters, and by metric total indices of simulator and surrogate `[parameter, figure]`."""
    names = rows["parameter"].unique().tolist()
    totals = {}
    for metric, part in rows.groupby("metric", sort=False):
        simulated, predicted = (
            part[[f"{model}_total_{figure}" for figure in FIGURES]].to_numpy()
            for model in (SIMULATOR, SURROGATE)
        )
        if not np.isnan(predicted).any():
            totals[str(metric)] = simulated, predicted
    return names, totals


def rows_of(space: str, dataset: xr.Dataset) -> list[dict[str, Any]]:
    """Return a row for each metric and parameter of a study; metrics that do not vary have none."""
    rows = []
    models = dataset["model"].values.tolist()
    for metric in dataset["metric"].values.tolist():
        for parameter in dataset["parameter"].values.tolist():
            place = {"metric": metric, "parameter": parameter}
            row: dict[str, Any] = {"space": space, **place}
            kept: dict[str, tuple[np.ndarray, np.ndarray]] = {}
            for model in (SIMULATOR, SURROGATE):
                if model not in models:
                    continue
                part = dataset.sel(model=model)
                for order in ("first", "total"):
                    values = part[f"{order}_order"].sel(place).values
                    names = [f"{model}_{order}_{name}" for name in FIGURES]
                    row |= dict(zip(names, values.round(DIGITS).tolist(), strict=True))
                dummy = part["dummy_total_order"].sel(metric=metric).values
                row[f"{model}_dummy_high"] = round(float(dummy[2]), DIGITS)
                total = part["total_order"].sel(place).values
                if total[0] == total[0]:
                    row[f"{model}_verdict"] = verdict(total, dummy)
                    kept[model] = total, dummy
            if row[f"{models[0]}_total_estimate"] == row[f"{models[0]}_total_estimate"]:
                rows.append(row | _agreement(kept))
    return rows


def _agreement(kept: Mapping[str, tuple[np.ndarray, np.ndarray]]) -> dict[str, Any]:
    """Return whether both models' intervals meet, by the bootstrap alone and with the noise of each."""
    if len(kept) < 2:
        return {}
    (simulated, one_dummy), (predicted, other_dummy) = kept.values()
    agreement = agreement_of((simulated, predicted), (one_dummy, other_dummy))
    return {"agree_bootstrap": agreement.do_meet, "agree": agreement.do_meet_with_noise}


def printed(table: pd.DataFrame) -> list[str]:
    """Write the table for people, below how many intervals of simulator and surrogate have a value in common."""
    spaces = ", ".join(table["space"].unique())
    lines = answer(
        f"Do simulator and surrogate agree on what matters in {spaces}?",
        [count_words(table)],
        "95 % for each index by itself, over seeds and resampled points.",
        f"{len(table)} indices; each space's study has its number of runs.",
        "blis-jax sensitivity SPACE studies a space of your own.",
    )
    for space, part in table.groupby("space", sort=False):
        lines += [f"{space}, total indices [95 %]:"]
        width = max(len(f"{row.metric} {row.parameter}") for row in part.itertuples())
        lines.append(_line(f"{'metric and parameter':{width}}", _HEADS))
        for row in part.to_dict("records"):
            lines.append(_line(f"{row['metric']} {row['parameter']}".ljust(width), _cells(row)))
        lines.append("")
    return lines[:-1]


def _line(name: str, cells: Sequence[str]) -> str:
    padded = [f"{cell:{width}}" for cell, width in zip(cells, _WIDTHS, strict=True)]
    return "  ".join(["", name, *padded]).rstrip()


def _cells(row: Mapping[str, Any]) -> list[str]:
    """Return cells with both indices, whether they meet, what was tested with noise, and with what result."""
    agreement = _saved_agreement(row)
    if agreement is not None:
        return agreement_cells(agreement)
    cells = [_cell(row, model) for model in (SIMULATOR, SURROGATE)]
    return [*cells, *[_NOTHING] * (len(_HEADS) - len(cells))]


def _saved_agreement(row: Mapping[str, Any]) -> Agreement | None:
    """Return what was tested, from the figures of a row; None where a model has none."""
    totals, dummies = [], []
    for model in (SIMULATOR, SURROGATE):
        totals.append(_figures(row, model))
        dummies.append(np.array([np.nan, np.nan, row.get(f"{model}_dummy_high", np.nan)], float))
    if np.isnan(totals).any():
        return None
    return agreement_of((totals[0], totals[1]), (dummies[0], dummies[1]))


def _figures(row: Mapping[str, Any], model: str) -> np.ndarray:
    values = [row.get(f"{model}_total_{name}", np.nan) for name in FIGURES]
    return np.array(values, float)


def _cell(row: Mapping[str, Any], model: str) -> str:
    figures = _figures(row, model)
    return _NOTHING if np.isnan(figures).any() else interval_words(figures)


def count_words(table: pd.DataFrame) -> str:
    """Say, space by space, for how many indices the intervals of simulator and surrogate have a value in common."""
    if "agree" not in table or table["agree"].isna().all():
        return (
            f"{len(table)} total indices of the simulator in {table['space'].nunique()} spaces; no "
            "surrogate was given, so nothing is compared."
        )
    known = table[table["agree"].notna()]
    counts = []
    for column in ("agree_bootstrap", "agree"):
        parts = [
            f"{space} {int((part[column].astype(str) == 'True').sum())} of {len(part)}"
            for space, part in known.groupby("space", sort=False)
        ]
        counts.append(", ".join(parts))
    return (
        f"Total indices whose bootstrap intervals meet: {counts[0]}. With the lower ends lowered by what "
        "a dummy gets, as the bootstrap does not know of other seeds and other members, these meet: "
        f"{counts[1]}."
    )


def make_table(options: SensitivityPaperOptions) -> int:
    """Study the spaces, or take the indices that come with the package, and print them; return the exit code."""
    if options.saved:
        return _saved(options.output)
    spaces = _spaces(options)
    output = Path(options.folder if options.output is None else options.output)
    cli.check_writable(output, is_folder=True)
    rows: list[dict[str, Any]] = []
    for space in spaces:
        cli.say(options.command, f"{space}: {len(rows)} indices so far")
        code = sensitivity.main(_words(options, space, output / Path(space).stem))
        if code:
            return code
        rows += rows_of(Path(space).stem, load(output / Path(space).stem / "dataset.zarr"))
    table = pd.DataFrame(rows)
    write_csv(output / TABLE, table)
    print("\n".join(printed(table)))
    print(f"Written: {output / TABLE}")
    return 0


def _words(options: SensitivityPaperOptions, space: str, folder: Path) -> list[str]:
    """Return the options of one space's study."""
    words = [space, "--resume", "--quiet", "--output", str(folder)]
    values = options.given()
    for name in ("base", "seeds", "num_seeds", "first_seed"):
        if name in values:
            words += [as_option(name), str(values[name])]
    words += [as_option(name) for name in ("no_figures", "no_cache") if name in values]
    if options.surrogates is not None and (Path(options.surrogates) / space).exists():
        words += ["--surrogate", str(Path(options.surrogates) / space)]
    return words


def _spaces(options: SensitivityPaperOptions) -> list[str]:
    spaces = [name.strip() for name in options.spaces.split(",")]
    for name in spaces:
        if not load_strategy(name).parameters:
            raise ConfigError(f"--spaces: {name} has no parameters, so it is no space")
    folder = options.surrogates
    if folder is not None:
        surrogates = [name for name in spaces if (Path(folder) / name).exists()]
        if not surrogates:
            raise ConfigError(
                f"--surrogates: {folder} has no folder named as one of {', '.join(spaces)}"
            )
    return spaces


def _saved(output: str | None) -> int:
    """Print the indices that come with the package; with --output draw their figures, too."""
    table = pd.read_csv(DATA / TABLE)
    print("\n".join(printed(table)))
    if output is None:
        return 0
    folder = Path(output)
    folder.mkdir(parents=True, exist_ok=True)
    for space, rows in table.groupby("space", sort=False):
        path = folder / f"agreement_{space}.png"
        with cli.writing(path):
            save(totals(*totals_of(rows), (SIMULATOR, SURROGATE), str(space)), path)
        print(f"Written: {path}")
    return 0
