"""The two tables, as text for people, as CSV and as Markdown."""

from __future__ import annotations

import math
import textwrap
from collections import Counter
from collections.abc import Mapping, Sequence

from blis_jax.reports.render import table_lines
from papers.pages import cell_of
from papers.record.claims import AnyClaim, PublishedClaim
from papers.record.published import CLASSES, ReproducedClaim
from papers.record.survival import VERDICTS, SurvivalFinding

Record = Mapping[str, str]
WIDTHS = {  # of printed columns
    "row": 15,
    "claim": 50,
    "published": 15,
    "ours": 18,
    "difference": 14,
    "class": 26,
    "measured": 38,
    "pooled": 38,
    "three seeds": 28,
    "seeds": 5,
    "verdict": 17,
    "pooled verdict": 17,
}
REASON_WIDTH = 110


def published_records(rows: Sequence[ReproducedClaim], beside: str | None = None) -> list[Record]:
    """Return the rows at the published seeds, each a mapping from column to text.

    `beside` heads the column of the record's second metric, if it has one.
    """
    return [
        {
            **_claim_columns(row.claim),
            "published": row.published,
            "ours": row.ours,
            **({} if beside is None else {beside: row.beside}),
            "difference": row.difference,
            "class": row.kind,
            "reason": row.reason,
        }
        for row in rows
    ]


def survival_records(
    findings: Sequence[SurvivalFinding], pooled: Sequence[SurvivalFinding | None]
) -> list[Record]:
    """Return the verdicts at many seeds, by run and pooled, each a mapping from column to text."""
    return [_survival_record(*both) for both in zip(findings, pooled, strict=True)]


def _survival_record(finding: SurvivalFinding, pooled: SurvivalFinding | None) -> Record:
    claim, estimated = finding.claim, finding.estimate
    together = None if pooled is None else pooled.estimate
    numbers = {"mean": estimated.mean, "low": estimated.low, "high": estimated.high}
    for name in tuple(numbers):
        numbers[f"pooled_{name}"] = math.nan if together is None else getattr(together, name)
    numbers |= {"three_seeds_low": finding.spread[0], "three_seeds_high": finding.spread[1]}
    return {
        **_claim_columns(claim),
        "published": claim.published.text if isinstance(claim, PublishedClaim) else "statement",
        **{name: _number(claim, value) for name, value in numbers.items()},
        "unit": claim.published.unit if isinstance(claim, PublishedClaim) else "",
        "seeds": str(finding.num_seeds),
        "verdict": finding.verdict.word,
        "pooled_verdict": "" if pooled is None else pooled.verdict.word,
        "reason": finding.verdict.reason,
    }


def _claim_columns(claim: AnyClaim) -> Record:
    settings = claim.settings
    has_base = isinstance(claim, PublishedClaim) and claim.against is not None and settings
    against = settings[1:2] if has_base else ()
    return {
        "row": claim.row,
        "title": claim.title,
        "claim": claim.label,
        "settings": " ".join(name for name in settings if name not in against),
        "against": " ".join(against),
    }


def _number(claim: AnyClaim, value: float) -> str:
    if not math.isfinite(value) or not isinstance(claim, PublishedClaim):
        return ""
    decimals = min(claim.published.decimals + 1, 2)
    sign = "+" if claim.is_change else ""
    return f"{round(value, decimals) + 0.0:{sign}.{decimals}f}"  # no negative zero


# --- files ----------------------------------------------------------------------------------------


def markdown_text(
    heading: str, words: Sequence[str], records: Sequence[Record], columns: Sequence[str]
) -> str:
    """Return Markdown: a heading, paragraphs on how the table came about, and the table's `columns`."""
    lines = [f"# {heading}", ""]
    for paragraph in words:
        lines += [*textwrap.wrap(paragraph, 118), ""]
    cells = ([cell_of(record[name]) for name in columns] for record in records)
    return "\n".join([*lines, *table_lines(columns, cells), ""])


def published_columns(beside: str | None) -> tuple[str, ...]:
    """Return the columns for reading; that of the second metric, `beside`, follows ours."""
    first, last = PUBLISHED_COLUMNS[:4], PUBLISHED_COLUMNS[4:]
    return PUBLISHED_COLUMNS if beside is None else (*first, beside, *last)


PUBLISHED_COLUMNS = ("row", "claim", "published", "ours", "difference", "class", "reason")
SURVIVAL_COLUMNS = (
    "row",
    "claim",
    "published",
    "measured",
    "pooled",
    "three seeds",
    "seeds",
    "verdict",
    "pooled verdict",
    "reason",
)


def with_intervals(records: Sequence[Record]) -> list[Record]:
    """Return the verdicts with estimate and interval in one column each, for reading."""
    return [
        {
            **record,
            "measured": _interval_words(record, "mean", "low", "high"),
            "pooled": _interval_words(record, "pooled_mean", "pooled_low", "pooled_high"),
            "pooled verdict": record["pooled_verdict"],
            "three seeds": _interval_words(record, "", "three_seeds_low", "three_seeds_high"),
        }
        for record in records
    ]


def _interval_words(record: Record, mean: str, low: str, high: str) -> str:
    ends = f"[{record[low]}, {record[high]}]" if record[low] else ""
    centre = record[mean] if mean else ""
    return " ".join(filter(None, [centre, ends, record["unit"] if centre or ends else ""]))


# --- for people -----------------------------------------------------------------------------------


def printed(
    records: Sequence[Record], columns: Sequence[str], quiet_kinds: Sequence[str]
) -> list[str]:
    """Return the lines of a terminal; the reason follows below a row, unless its last column says it all."""
    shown = [name for name in columns if name != "reason"]
    rule = {name: "-" * _width(name) for name in shown}
    lines = [_line(shown, dict(zip(shown, shown, strict=True))), _line(shown, rule)]
    for record in records:
        lines.append(_line(shown, record))
        if record[shown[-1]] not in quiet_kinds and record["reason"]:
            lines += [f"{'':18}{part}" for part in textwrap.wrap(record["reason"], REASON_WIDTH)]
    return lines


def _line(columns: Sequence[str], record: Record) -> str:
    cells = [
        textwrap.shorten(record[name], _width(name), placeholder="…").ljust(_width(name))
        for name in columns
    ]
    return " | ".join(cells).rstrip()


def _width(column: str) -> int:
    return WIDTHS.get(column, WIDTHS["ours"])


def counts(records: Sequence[Record], column: str) -> str:
    """Say how many rows there are of each class or verdict."""
    count_by_name = Counter(record[column] for record in records)
    order = CLASSES if column == "class" else VERDICTS
    return ", ".join(f"{name}: {count_by_name[name]}" for name in order if count_by_name[name])
