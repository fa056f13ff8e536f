"""Rows of the table of derivatives, as Markdown and as CSV."""

from __future__ import annotations

import csv
import io
from collections.abc import Sequence
from dataclasses import asdict, dataclass

from papers.pages import csv_of


@dataclass(frozen=True)
class Line:
    """One pair of a parameter and a metric; derivatives per unit of the parameter."""

    case: str
    clock: str
    kind: str  # pathwise, smoothed, or surrogate
    parameter: str
    metric: str
    estimate: float
    estimate_error: float  # standard error
    difference: float  # the central one
    difference_low: float  # 95 %
    difference_high: float
    relative: float  # estimate ÷ difference - 1
    relative_error: float  # standard error, from the same seeds where both have them
    share_changed: float  # of the runs whose decisions differ between the two sides
    num_seeds: int
    verdict: str


def as_csv(lines: Sequence[Line]) -> str:
    """Write all figures as CSV, six digits."""
    rows = [
        {name: f"{v:.6g}" if isinstance(v, float) else v for name, v in asdict(line).items()}
        for line in lines
    ]
    return csv_of(rows, list(Line.__dataclass_fields__))


def from_csv(text: str) -> list[Line]:
    """Read the rows of a file that `to_csv` wrote."""
    kinds = {"float": float, "int": int, "str": str}
    fields = Line.__dataclass_fields__
    return [
        Line(**{name: kinds[str(fields[name].type)](value) for name, value in row.items()})
        for row in csv.DictReader(io.StringIO(text))
    ]


def table(lines: Sequence[Line]) -> str:
    """Write a Markdown table; derivatives per unit of the parameter (µs, µs per token, 1, tokens, …)."""
    heads = ("case", "parameter", "metric", "estimate ± s.e.", "central difference, 95 %")
    heads += ("relative ± s.e.", "runs changed", "")
    rows = [f"| {' | '.join(heads)} |", "|" + "---|" * len(heads)]
    for line in lines:
        clock = "" if line.clock == "int32" else f", {line.clock} clock"
        cells = (
            f"{line.case}{clock}",
            f"{line.kind} {line.parameter}",
            line.metric,
            f"{line.estimate:.4g} ± {line.estimate_error:.1g}",
            f"{line.difference:.4g} [{line.difference_low:.4g}, {line.difference_high:.4g}]",
            f"{100 * line.relative:+.2f} % ± {100 * line.relative_error:.2f}",
            f"{100 * line.share_changed:.1f} %",
            line.verdict,
        )
        rows.append(f"| {' | '.join(cells)} |")
    return "\n".join(rows).replace(" ± nan", "").replace("nan %", "–")
