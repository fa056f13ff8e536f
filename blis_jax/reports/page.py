"""The page of any findings: one file that opens offline, the answer and a picture first."""

from __future__ import annotations

import html
import json
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import replace
from importlib import resources
from pathlib import Path
from typing import Any

from blis_jax.files.atomic_write import replacing
from blis_jax.reports.differences import findings, title_of
from blis_jax.reports.drawing import svg
from blis_jax.reports.findings import Findings, Remarks, Table
from blis_jax.reports.pictures import Picture
from blis_jax.reports.render import answer_html, section_html
from blis_jax.reports.study import Study
from blis_jax.reports.study_pictures import pictures

LONGEST_SHORT = 140  # characters of a line of the provenance that is not folded away
MOST_ROWS = 60  # of a table that is not folded away
HINT = (
    "Point at a mark to read its numbers. Where a point is a seed or a window, the same one is marked in every "
    "picture; a click keeps it marked."
)
PLACE = "place"  # the choice that rows of tables follow, too


def write_study(study: Study, path: Path, further: Findings | None = None) -> None:
    """Write the page of a comparison atomically; `further` replaces its findings, except the pictures."""
    shown = findings(study) if further is None else replace(further, pictures=pictures(study))
    write(shown, path, study.title or title_of(study), study.command, study.provenance)


def write(
    findings: Findings, path: Path, title: str, command: str, provenance: Mapping[str, Any]
) -> None:
    """Write the page of findings atomically; `command` is the command line that reproduces them."""
    with replacing(path) as written:
        written.write_text(page(findings, title, command, provenance), encoding="utf-8")


def page(findings: Findings, title: str, command: str, provenance: Mapping[str, Any]) -> str:
    """Return the page as a text: answer, first picture, all tables and notes, the other pictures."""
    first, others = list(findings.pictures[:1]), list(findings.pictures[1:])
    first += [other for other in others if first and other.name == first[0].name]
    others = [other for other in others if other not in first]
    place = list(_place(findings))
    seen = {PLACE} if place else set()
    blocks = [
        f"<h1>{html.escape(title)}</h1>",
        answer_html(findings.answer),
        *place,
        *_drawn(first, findings, seen),
        *([f'<p class="note">{HINT}</p>'] if first else []),
        *map(_section, findings.filled),
        *_drawn(others, findings, seen),
        *_origin(command, provenance),
    ]
    return (
        '<!doctype html>\n<html lang="en">\n<head>\n<meta charset="utf-8">\n'
        '<meta name="viewport" content="width=device-width, initial-scale=1">\n'
        "<meta http-equiv=\"Content-Security-Policy\" content=\"default-src 'none'; script-src 'unsafe-inline'; "
        "style-src 'unsafe-inline'; img-src data:\">\n"
        f'<link rel="icon" href="data:,">\n<title>{html.escape(title)}</title>\n'
        f"<style>\n{_file('page.css')}</style>\n</head>\n<body>\n<main>\n"
        + "\n".join(blocks)
        + f'\n</main>\n<script type="application/json" id="report-data">{_embedded(findings)}</script>\n'
        f"<script>\n{_file('page.js')}</script>\n</body>\n</html>\n"
    )


def _embedded(findings: Findings) -> str:
    """Return the findings as JSON for a script element, with `<` and `&` escaped."""
    text = json.dumps(
        findings.to_json(), allow_nan=False, ensure_ascii=False, separators=(",", ":")
    )
    return text.replace("<", "\\u003c").replace("&", "\\u0026")


def _file(name: str) -> str:
    return (resources.files("blis_jax") / "reports" / name).read_text(encoding="utf-8")


def _section(section: Table | Remarks) -> str:
    """Return a table or remarks as HTML; a long table is folded."""
    text = section_html(section)
    if not isinstance(section, Table) or len(section.rows) <= MOST_ROWS:
        return text
    return f"<details><summary>{len(section.rows)} rows</summary>{text}</details>"


# --- pictures and what a reader chooses -----------------------------------------------------------


def _place(findings: Findings) -> Iterator[str]:
    """Yield the control to choose a place of the grid, if rows of tables have several places."""
    places = list(
        dict.fromkeys(row.place for table in findings.tables for row in table.rows if row.place)
    )
    if len(places) > 1:
        yield f'<p class="place">{_select(PLACE, findings.place_title, places)}</p>'
        drawn = len(_values(findings.pictures, PLACE))
        if 0 < drawn < len(places):
            yield f'<p class="note">Pictures show the first {drawn} of {len(places)} places.</p>'


def _values(pictures: Iterable[Picture], choice: str) -> list[str]:
    """Return the values of a choice that pictures have."""
    chosen = (value for picture in pictures for name, value in picture.choices if name == choice)
    return list(dict.fromkeys(chosen))


def _select(name: str, words: str, values: Iterable[str]) -> str:
    options = "".join(f"<option>{html.escape(value)}</option>" for value in values)
    return f'<label><b>{html.escape(words)}:</b> <select data-choice="{name}">{options}</select></label>'


def _drawn(pictures: Sequence[Picture], findings: Findings, seen: set[str]) -> Iterator[str]:
    """Yield each picture, below its heading and its choice controls, except those in `seen`."""
    for picture in pictures:
        if picture.heading and picture.heading not in seen:
            yield f"<h2>{html.escape(picture.heading)}</h2>"
        for name, _ in picture.choices:
            values = _values(pictures, name)
            if name not in seen and len(values) > 1:
                title = findings.place_title if name == PLACE else name.capitalize()
                yield f"<p>{_select(name, title, values)}</p>"
        seen |= {picture.heading, *(name for name, _ in picture.choices)}
        number = next(at for at, other in enumerate(findings.pictures) if other is picture)
        chosen = f' data-picture="{number}"'
        chosen += "".join(f' data-{name}="{html.escape(value)}"' for name, value in picture.choices)
        yield (
            f'<figure class="{picture.name}"{chosen} role="img" aria-label="{html.escape(picture.title)}">'
            f"{svg(picture)}</figure>"
        )


# --- where the numbers come from ------------------------------------------------------------------


def _origin(command: str, provenance: Mapping[str, Any]) -> Iterator[str]:
    yield "<h2>Where do these numbers come from?</h2>"
    yield f'<p>This command makes them again:</p><pre id="command">{html.escape(command)}</pre>'
    short, long = [], []
    for name, value in provenance.items():
        text = value if isinstance(value, str) else json.dumps(value, indent=1, ensure_ascii=False)
        name, text, is_long = html.escape(name), html.escape(text), len(text) > LONGEST_SHORT
        if is_long or "\n" in text:
            long.append(f"<details><summary>{name}</summary><pre>{text}</pre></details>")
        else:
            short.append(f"<tr><th>{name}</th><td>{text}</td></tr>")
    yield f'<table id="provenance"><tbody>{"".join(short)}</tbody></table>'
    yield from long
