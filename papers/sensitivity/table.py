"""Total indices of studies as a table: simulator, surrogate, and whether they agree."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from sweeps.sensitivity_indices import FIGURES, do_agree, verdict, with_noise
from sweeps.sensitivity_model import SIMULATOR, SURROGATE
from sweeps.sensitivity_report import interval_words

if TYPE_CHECKING:
    import pandas as pd
    import xarray as xr

DATA = Path(__file__).parent / "data"
TABLE = "total_indices.csv"
DIGITS = 5
_WORDS = {"True": "yes", "False": "no"}


def rows_of(space: str, dataset: xr.Dataset) -> list[dict[str, Any]]:
    """A row for each metric and parameter of a study; metrics that do not vary have none."""
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
    """Whether both models' intervals meet, by the bootstrap alone and with the noise of each."""
    if len(kept) < 2:
        return {}
    return {
        "agree_bootstrap": do_agree(*(total for total, _ in kept.values())),
        "agree": do_agree(*(with_noise(total, dummy) for total, dummy in kept.values())),
    }


def printed(table: pd.DataFrame) -> list[str]:
    """The table for people, and how many indices agree."""
    lines = []
    for space, part in table.groupby("space", sort=False):
        lines += [f"{space}, total indices [95 %]:"]
        width = max(len(f"{row.metric} {row.parameter}") for row in part.itertuples())
        lines.append(f"  {'metric and parameter':{width}}  {'simulator':22} {'surrogate':22} agree")
        for row in part.to_dict("records"):
            name = f"{row['metric']} {row['parameter']}"
            cells = [_cell(row, model) for model in (SIMULATOR, SURROGATE)]
            word = _WORDS.get(str(row.get("agree")), "–")
            lines.append(f"  {name:{width}}  {cells[0]:22} {cells[1]:22} {word}")
        lines.append("")
    return [*lines, count_words(table)]


def _cell(row: dict[str, Any], model: str) -> str:
    figures: Sequence[Any] = [row.get(f"{model}_total_{name}") for name in FIGURES]
    if any(value is None or value != value for value in figures):
        return "–"
    return interval_words(figures)


def count_words(table: pd.DataFrame) -> str:
    """How many indices of simulator and surrogate agree, space by space."""
    if "agree" not in table or table["agree"].isna().all():
        return (
            f"{len(table)} total indices of the simulator in {table['space'].nunique()} spaces; no "
            "surrogate was given, so nothing is compared."
        )
    known = table[table["agree"].notna()]
    counts = []
    for column in ("agree", "agree_bootstrap"):
        parts = [
            f"{space} {int((part[column].astype(str) == 'True').sum())} of {len(part)}"
            for space, part in known.groupby("space", sort=False)
        ]
        counts.append(", ".join(parts))
    return (
        f"Total indices that agree within their intervals: {counts[0]}; by the bootstrap alone, without "
        f"the noise of seeds and members: {counts[1]}."
    )
