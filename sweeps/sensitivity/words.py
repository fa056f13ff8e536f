"""Indices with their intervals in words, and those of all regions side by side."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from sweeps.robustness.output.words import metric_words
from sweeps.sensitivity.indices import MATTERS, TotalIndices, verdict
from sweeps.sensitivity.study import SensitivityStudy

_MISSING = "–"


def region_lines(study: SensitivityStudy, model: str) -> list[str]:
    """A table of total indices by metric and parameter, a column for every region and scale."""
    views = study.findings[model].regions
    heads = [head for one in views for head in (one.region.name, f"{one.region.name}, logarithm")]
    lines = [
        "Total indices of the metric itself and of its logarithm, over the whole space and inside parts "
        "of it. The metric itself says what avoids its largest values; the logarithm counts a change "
        "from 50 to 100 ms like one from 5 to 10 s; a region says what is left to tune there. **Bold** "
        "parameters matter in that column beyond seed noise.",
        *(f"- `{one.region.name}`: {one.region.words(study.dimensions)}" for one in views[1:]),
        "",
        f"| metric | parameter | {' | '.join(heads)} |",
        f"|---|---|{'---|' * len(heads)}",
    ]
    for metric in study.metrics:
        columns = [by.get(metric) for one in views for by in (one.plain, one.log)]
        for place, name in enumerate(study.names):
            cells = [_cell(one, place) for one in columns]
            if any(cell.startswith("**") for cell in cells):
                lines.append(f"| {metric_words(metric)} | {name} | {' | '.join(cells)} |")
    return lines


def _cell(found: TotalIndices | None, place: int) -> str:
    if found is None:
        return _MISSING
    words = interval_words(found.total[place])
    return f"**{words}**" if verdict(found.total[place], found.dummy) == MATTERS else words


def interval_words(figures: Sequence[float] | np.ndarray) -> str:
    """An index with its interval."""
    return f"{_index(figures[0])} {ends_words(figures)}"


def ends_words(figures: Sequence[float] | np.ndarray) -> str:
    """The interval of an index."""
    return f"[{_index(figures[1])}, {_index(figures[2])}]"


def _index(value: float) -> str:
    return f"{0.0 if abs(value) < 5e-4 else value:.3f}".replace("-", "−")
