"""The tables of both profiles, as text for a terminal and as the page of results."""

from __future__ import annotations

import textwrap
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from blis_jax.commands import cli
from blis_jax.errors import capital
from blis_jax.metrics.metric import split_name
from blis_jax.reports.render import table_lines
from papers.corrected import profiles
from papers.corrected.profiles import (
    CONCLUSION,
    NUMBER,
    PARTS,
    TURNED,
    VERDICTS,
    ClaimByProfile,
    judged_profiles,
    without_defects,
)
from papers.pages import answer, cell_of, csv_of, texts_of, write_text
from papers.record.claims import SHARES, metric_label
from papers.record.parts import SettingsAsk
from papers.record.runs import PaperRuns
from papers.routing_evolution.record import RECORD as ROUTING
from papers.strategy_evolution.record import RECORD as SCHEDULING
from sweeps.claims.words import LOST, NO_FIGURES

if TYPE_CHECKING:
    from papers.corrected.__main__ import CorrectedOptions
    from papers.record.definition import PaperRecord

Row = Mapping[str, str]
COLUMNS = (
    "track", "row", "title", "claim", "kind", "published", "exact", "corrected", "shift", "verdict",
    "reason", "moved", "moved exact", "moved corrected",
)  # fmt: skip
TRACKS = {"strategy_evolution": "scheduling", "routing_evolution": "routing"}
WIDE_POINTS, WIDE_PERCENT = 5.0, 10.0  # as the records' own tolerances
_SHOWN = ("row", "claim", "published", "exact", "corrected", "shift", "verdict")


def row_of(verdict: ClaimByProfile) -> dict[str, str]:
    """Return one claim as a row of the table."""
    claim, moved = verdict.claim, verdict.moved
    unlike = getattr(claim, "unlike", "")
    return {
        "track": verdict.record.name,
        "row": claim.row,
        "title": claim.title,
        "claim": claim.label + (f"; but {unlike}" if unlike else ""),
        "kind": verdict.kind,
        "published": verdict.published,
        "exact": verdict.exact,
        "corrected": verdict.corrected,
        "shift": verdict.shift,
        "verdict": verdict.verdict,
        "reason": verdict.reason,
        "moved": "" if moved is None else f"{moved.of} of {moved.setting}",
        "moved exact": "" if moved is None else f"{moved.exact:.6g}",
        "moved corrected": "" if moved is None else f"{moved.corrected:.6g}",
    }


def printed(claims: Sequence[Row], parts: Sequence[Row]) -> list[str]:
    """Return the terminal's lines: how many claims the defects turn, claims by verdict, and the parts of TTFT."""
    counted = [
        f"{TRACKS[name]}, {kind}s: {', '.join(f'{word}: {counts[word]}' for word in VERDICTS if counts[word])}"
        for name in TRACKS
        for kind in (CONCLUSION, NUMBER)
        for counts in [_counts(claims, name, kind)]
    ]
    num_turned = sum(row["verdict"] in TURNED for row in claims)
    lines = answer(
        "Which claims of both records need the defects of BLIS?",
        [f"{num_turned} of {len(claims)} are turned.", *counted],
        "each record's own seeds, as published, so no figure has an interval.",
        "every setting twice, with the defects and without them.",
        "--page FILE writes every claim with both numbers.",
    )
    for row in claims:
        if row["verdict"] in TURNED:
            words = f"{row['published']} | {row['exact']} | {row['corrected']} | {row['verdict']}"
            lines += [f"{TRACKS[row['track']]} {row['row']}: {row['claim']}", f"    {words}"]
            lines += [f"    {line}" for line in textwrap.wrap(row["reason"], 110)]
    lines += ["", *(_printed_part(row) for row in parts)]
    return lines


def _printed_part(row: Row) -> str:
    values = ", ".join(f"{name} {row[name]}" for name in PARTS)
    who = f"{row['setting']}, {row['profile']}, {row['requests']}"
    return f"{who}: TTFT {row['TTFT']} ms ({values})"


def _counts(claims: Sequence[Row], track: str, kind: str) -> Counter[str]:
    return Counter(
        row["verdict"] for row in claims if row["track"] == track and row["kind"] == kind
    )


# --- the page -------------------------------------------------------------------------------------


def page(claims: Sequence[Row], parts: Sequence[Row]) -> str:
    """Write the page of results, in Markdown."""
    return "\n".join(
        [*_beginning(claims), *_counted(claims), *_surprises(claims, parts), *_tables(claims)]
    )


def _beginning(claims: Sequence[Row]) -> list[str]:
    beginning = texts_of("papers.corrected")["beginning"]
    return [*(line.rstrip() for line in beginning.splitlines()), ""]


def _counted(claims: Sequence[Row]) -> list[str]:
    """Return how many conclusions and numbers of each track have which verdict."""
    columns = [(name, kind) for name in TRACKS for kind in (CONCLUSION, NUMBER)]
    heads = [f"{TRACKS[name]}, {kind}s" for name, kind in columns]
    rows = [
        (verdict, *(_counts(claims, *column)[verdict] for column in columns))
        for verdict in VERDICTS
    ]
    lines = table_lines(["verdict", *heads], (row for row in rows if any(row[1:])))
    equal = sum(row["shift"] == "none" for row in claims)
    able = sum(bool(row["shift"]) for row in claims)
    said = f"{equal} of {able} numbers are equal to the last digit under both profiles."
    return [*lines, "", said, ""]


def _surprises(claims: Sequence[Row], parts: Sequence[Row]) -> list[str]:
    """Return the page's lines on the parts of TTFT where the defects turn a conclusion most."""
    reasons = texts_of("papers.corrected")["reasons"]
    lines = ["## The five largest turns, by the parts of TTFT", "", *_wrapped(_PARTS_WORDS), ""]
    places = dict.fromkeys((row["track"], row["row"], row["setting"]) for row in parts)
    for number, (track, row, setting) in enumerate(places, 1):
        claim = next(
            candidate
            for candidate in claims
            if candidate["track"] == track
            and candidate["row"] == row
            and candidate["moved"].endswith(f" of {setting}")
            and candidate["verdict"] in TURNED
            and candidate["kind"] == CONCLUSION
        )
        words = f"**{number}. {_sentence(claim['claim'])}** ({TRACKS[track]}, iteration {row}: {claim['verdict']}.)"
        lines += [*_wrapped(f"{words} {_moved(claim, setting)}"), ""]
        lines += [*_wrapped(reasons[setting]), ""]
        names = ("TTFT", *PARTS)
        lines += table_lines(["profile, requests", *names], (
            (f"{part['profile']}, {_who(part)}", *(part[name] for name in names))
            for part in parts
            if (part["track"], part["row"], part["setting"]) == (track, row, setting)
        ))  # fmt: skip
        lines.append("")
    return lines


def _who(part: Row) -> str:
    return "all" if part["requests"] == "all" else "slowest 5 %"


def _moved(claim: Row, setting: str) -> str:
    """Return a sentence about the setting's figure that the defects move most."""
    metric = claim["moved"].partition(" of ")[0]
    scale, unit = (100, "%") if split_name(metric)[0] in SHARES else (1, "ms")
    exact, corrected = (scale * float(claim[f"moved {name}"]) for name in ("exact", "corrected"))
    label = metric_label(metric)
    values = f"{exact:,.1f} {unit} exact, {corrected:,.1f} {unit} corrected"
    return f"{capital(label)} of `{setting}`: {values}."


def _sentence(text: str) -> str:
    return f"{capital(text)}."


_PARTS_WORDS = (
    "Of the conclusions that turn, those whose figures move most, one of each workload and number of blocks. Means "
    "over the requests with a first token and then over the seeds, in ms."
)


def _tables(claims: Sequence[Row]) -> list[str]:
    lines = ["## Every conclusion", ""]
    lines += [*_wrapped(_TABLE_WORDS), ""]
    for name in TRACKS:
        listed = [row for row in claims if _is_listed(row, name)]
        cells = ([cell_of(row[key]) for key in _SHOWN] for row in listed)
        lines += [f"### {_sentence(TRACKS[name])[:-1]}", "", *table_lines(_SHOWN, cells), ""]
    moved = [row for row in claims if row["kind"] == NUMBER and _is_wide(row) and row["exact"]]
    lines += ["## Numbers of single settings that the defects move", ""]
    lines += [*_wrapped(_NUMBER_WORDS.format(len(moved))), ""]
    columns = ("track", *_SHOWN)
    cells = ([TRACKS[row["track"]], *(cell_of(row[key]) for key in _SHOWN)] for row in moved)
    return [*lines, *table_lines(columns, cells), ""]


_TABLE_WORDS = (
    "Statements, changes and ratios. `exact` and `corrected` are the means of the published seeds; `shift` goes from "
    "exact to corrected."
)
_NUMBER_WORDS = (
    "All {0} that move by more than 10 %, or 5 points. The others, and every reason, are in "
    "`papers/corrected/data/claims.csv.xz`."
)


def _is_listed(row: Row, track: str) -> bool:
    return row["track"] == track and row["kind"] == CONCLUSION and row["verdict"] not in (LOST,)


def _is_wide(row: Row) -> bool:
    """Return whether a number moves by more than the tolerance, or has a figure under one profile alone."""
    if row["verdict"] in (*TURNED, NO_FIGURES):
        return True
    amount, _, unit = row["shift"].partition(" ")
    if not unit:
        return False
    return abs(float(amount)) > (WIDE_POINTS if unit == "points" else WIDE_PERCENT)


def _wrapped(text: str) -> list[str]:
    return textwrap.wrap(text, 138, break_on_hyphens=False)


CLAIMS_FILE, PARTS_FILE = "claims.csv", "ttft_parts.csv"


def asks(parts_folder: str | None) -> list[SettingsAsk]:
    """Return the runs to make: each record under both profiles; the parts of TTFT follow from the verdicts."""
    wanted = []
    for record in (SCHEDULING, ROUTING):
        kept = Path(parts_folder or Path(record.output) / "parts")
        cli.check_writable(kept, is_folder=True)
        runs, settings = PaperRuns(kept, "reference"), record.runnable(record.claims)
        for made in (settings, [without_defects(setting) for setting in settings]):
            wanted.append(SettingsAsk(runs, made, record.seeds, record.measurement))
    return wanted


def compute(options: CorrectedOptions, folder: Path) -> None:
    """Simulate both records under both profiles, and write what becomes of their claims."""
    wanted = asks(options.parts)
    options.take_joined(folder, wanted)
    verdicts: list[ClaimByProfile] = []
    runs: dict[str, PaperRuns] = {}
    for record, both in zip((SCHEDULING, ROUTING), (wanted[:2], wanted[2:]), strict=True):
        runs[record.name] = both[0].runs
        verdicts += _verdicts(record, both)
    parts = [
        row
        for verdict in profiles.surprises(verdicts)
        for row in profiles.parts_of(verdict, runs[verdict.record.name])
    ]
    write_text(folder / CLAIMS_FILE, csv_of([row_of(verdict) for verdict in verdicts], COLUMNS))
    write_text(folder / PARTS_FILE, csv_of(parts, profiles.COLUMNS))


def _verdicts(record: PaperRecord, both: Sequence[SettingsAsk]) -> Iterator[ClaimByProfile]:
    """Simulate a record under both profiles and judge its claims."""
    what = f"simulating {record.title}"
    exact, corrected = (
        ask.runs.get(ask.settings, ask.seeds, ask.measurement, what) for ask in both
    )
    yield from judged_profiles(record, record.claims, exact, corrected)
