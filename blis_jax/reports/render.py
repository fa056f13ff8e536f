"""Findings as text for a terminal, as Markdown and as HTML."""

from __future__ import annotations

import contextlib
import html
import re
import shutil
import sys
import textwrap
from collections.abc import Iterable, Iterator, Sequence
from contextvars import ContextVar

from blis_jax.reports.findings import Answer, Cell, Findings, Quantity, Remarks, Row, Table

WIDTH = 100  # columns where the output is no terminal
MARGIN = 9  # of the answer's texts
GAP = "  "
ABOUT = "docs/how-to/compare-properly.md"  # what a comparison tells, and how surely
COLOURS = {"better": "\33[32m", "worse": "\33[31m"}
NO_COLOUR = "\33[0m"


_taken: ContextVar[list[Findings] | None] = ContextVar("findings that are taken", default=None)


@contextlib.contextmanager
def taken() -> Iterator[list[Findings]]:
    """Collect findings in the list yielded, in place of printing them, while the block lasts."""
    shown: list[Findings] = []
    before = _taken.set(shown)
    try:
        yield shown
    finally:
        _taken.reset(before)


def is_taken() -> bool:
    """Return whether findings are collected in place of printing them."""
    return _taken.get() is not None


def show(findings: Findings, has_all: bool = False, has_notes: bool = False) -> None:
    """Print findings on standard output, as wide as the terminal; see `text`."""
    collected = _taken.get()
    if collected is not None:
        collected.append(findings)
        return
    is_terminal = sys.stdout.isatty()
    width = shutil.get_terminal_size((WIDTH, 24)).columns if is_terminal else WIDTH
    print(text(findings, has_all, width, has_colours=is_terminal, has_notes=has_notes))


def show_answer(answer: Answer, *texts: str) -> None:
    """Print an answer on standard output, then each of the texts after an empty line."""
    collected = _taken.get()
    if collected is not None:
        collected.append(Findings(answer, [Remarks(texts)] if texts else []))
        return
    print("\n\n".join(["\n".join(answer_lines(answer)), *texts]))


# --- text -----------------------------------------------------------------------------------------


def text(
    findings: Findings,
    has_all: bool = False,
    width: int = WIDTH,
    has_colours: bool = False,
    has_notes: bool = False,
) -> str:
    """Return the answer and the short tables; with `has_all` every row and note, with `has_notes` every note."""
    lines = list(answer_lines(findings.answer, width))
    for section in findings.filled:
        if isinstance(section, Table):
            shown = section if has_all else section.brief()
            if shown.rows:
                lines += ["", *_table_lines(shown, width, has_colours)]
        elif section.is_brief or has_all or has_notes:
            lines += ["", *_note_lines(section, width)]
    left_out = None if has_all else left_out_line(findings, has_notes)
    return "\n".join([*lines, *([] if left_out is None else ["", *_wrapped(left_out, width)])])


def answer_lines(answer: Answer, width: int = WIDTH) -> Iterator[str]:
    """Yield the lines of the answer; long lines are wrapped, with an indent."""
    for heading, line in answer.lines():
        first = f"{heading}:" if heading else ""
        yield from _wrapped(line, width, f"{first:<{MARGIN}}", " " * MARGIN)


def left_out_line(findings: Findings, has_notes: bool = False) -> str | None:
    """Return a sentence on how many rows and notes are left out, and which option prints them; None if none are."""
    rows = sum(not row.is_brief for table in findings.tables for row in table.rows)
    notes = sum(
        len(section.lines)
        for section in findings.sections
        if isinstance(section, Remarks) and not section.is_brief
    )
    said = [f"--all prints {rows} more row{'s' * (rows > 1)}"] if rows else []
    if notes and not has_notes:
        said.append(
            f"--explain tells how figures, intervals and verdicts are made ({notes} note{'s' * (notes > 1)}; {ABOUT})"
        )
    return f"{'; '.join(said)}." if said else None


def _wrapped(line: str, width: int, first: str = "", later: str = "") -> list[str]:
    """Return a text as lines of at most `width` columns; a number is not separated from its unit."""
    room = width - max(len(first), len(later))
    words = [
        word if len(word) <= room else re.sub(r"(?<=[/;:])(?=.)", " \1", word)
        for word in re.sub(r"(?<=\d) (?=[%a-zµ])", "\0", line).split(" ")
    ]
    wrapped = textwrap.wrap(
        " ".join(words),
        width,
        initial_indent=first,
        subsequent_indent=later,
        break_on_hyphens=False,
    )
    joined = (piece.replace(" \1", "").replace("\1", "").replace("\0", " ") for piece in wrapped)
    return list(joined) or [first.rstrip()]


def _note_lines(notes: Remarks, width: int) -> Iterator[str]:
    indent = ""
    if notes.title:
        yield from _wrapped(f"{notes.title}:", width)
        indent = "  "
    for line in notes.lines:
        yield from _wrapped(line, width, indent, indent + "  ")


def _table_lines(table: Table, width: int, has_colours: bool) -> Iterator[str]:
    """Yield the lines of a table; a table that is too wide is split into pieces, each with the key columns."""
    cells = [[str(cell) for cell in row.cells] for row in table.rows]
    widths = [
        max(len(column), *(len(row[at]) for row in cells))
        for at, column in enumerate(table.columns)
    ]
    is_right = _are_numbers(table)
    if table.title:
        yield from _wrapped(table.title, width)
    for number, columns in enumerate(_pieces(widths, table.num_keys, width)):
        if number:
            yield ""
        yield _row_line(table.columns, columns, widths, is_right)
        yield GAP.join("─" * widths[at] for at in columns)
        before: Sequence[str] = ()
        for row in cells:
            if before and table.num_keys > 1 and row[0] != before[0]:
                yield ""
            line = _row_line(
                _without_repeats(row, before, table.num_keys), columns, widths, is_right
            )
            yield _coloured(line, row) if has_colours else line
            before = row


def _are_numbers(table: Table) -> list[bool]:
    """Return for each column whether it has numbers, so is aligned right."""
    columns = range(len(table.columns))
    return [any(isinstance(row.cells[at], Quantity) for row in table.rows) for at in columns]


def _pieces(widths: Sequence[int], num_keys: int, width: int) -> list[list[int]]:
    """Return the columns of each piece, the key columns first."""
    keys = list(range(num_keys))
    pieces: list[list[int]] = [[]]
    used = start = sum(widths[at] + len(GAP) for at in keys)
    for at in range(num_keys, len(widths)):
        if used + widths[at] > width and pieces[-1]:
            pieces.append([])
            used = start
        pieces[-1].append(at)
        used += widths[at] + len(GAP)
    return [[*keys, *piece] for piece in pieces]


def _without_repeats(row: Sequence[str], before: Sequence[str], num_keys: int) -> list[str]:
    """Return the cells, with leading keys that equal those of the row above left blank, except the last key."""
    same = 0
    while same < min(num_keys - 1, len(before)) and row[same] == before[same]:
        same += 1
    return ["" if at < same else cell for at, cell in enumerate(row)]


def _row_line(
    cells: Sequence[str], columns: Sequence[int], widths: Sequence[int], is_right: Sequence[bool]
) -> str:
    return GAP.join(
        cells[at].rjust(widths[at]) if is_right[at] else cells[at].ljust(widths[at])
        for at in columns
    ).rstrip()


def _coloured(line: str, row: Sequence[str]) -> str:
    colour = COLOURS.get(row[-1])
    if colour is None or not line.endswith(row[-1]):
        return line
    return f"{line.removesuffix(row[-1])}{colour}{row[-1]}{NO_COLOUR}"


# --- Markdown -------------------------------------------------------------------------------------


def markdown(findings: Findings, title: str = "") -> str:
    """Return findings in Markdown, with every row and note."""
    blocks = [f"# {title}"] if title else []
    lines = findings.answer.lines()
    blocks.append(
        "\n".join(f"- **{heading}** {line}" if heading else f"  {line}" for heading, line in lines)
    )
    for section in findings.filled:
        if section.title:
            blocks.append(f"## {section.title}")
        if isinstance(section, Remarks):
            blocks.append("\n".join(f"- {line}" for line in section.lines))
        else:
            rows = [
                section.columns,
                ["---"] * len(section.columns),
                *(row.cells for row in section.rows),
            ]
            blocks.append("\n".join(f"| {' | '.join(map(_in_markdown, row))} |" for row in rows))
    return "\n\n".join(filter(None, blocks)) + "\n"


def row_line(cells: Iterable[object]) -> str:
    """Return a row of a table in Markdown."""
    return f"| {' | '.join(map(str, cells))} |"


def table_lines(head: Sequence[str], rows: Iterable[Iterable[object]]) -> list[str]:
    """Return the lines of a table in Markdown."""
    return [row_line(head), f"|{'---|' * len(head)}", *map(row_line, rows)]


def table_text(head: Sequence[str], rows: Iterable[Iterable[object]]) -> str:
    """Return a table in Markdown."""
    return "\n".join(table_lines(head, rows))


def _in_markdown(cell: Cell) -> str:
    return str(cell).replace("|", "\\|")


# --- HTML -----------------------------------------------------------------------------------------


def answer_html(answer: Answer) -> str:
    """Return the five lines as a list of terms."""
    entries = (
        (f"<dt>{heading}</dt>" if heading else "") + f"<dd>{html.escape(line)}</dd>"
        for heading, line in answer.lines()
    )
    return f'<dl id="answer">{"".join(entries)}</dl>'


def table_html(table: Table) -> str:
    """Return a table as HTML with every row; a row has its place in a grid as an attribute."""
    is_right = _are_numbers(table)
    head = "".join(
        _html_cell("th", column, "number" if right else "")
        for column, right in zip(table.columns, is_right, strict=True)
    )
    body = "\n".join(map(_html_row, table.rows))
    name = f' id="{html.escape(table.name)}"' if table.name else ""
    return f"<table{name}><thead><tr>{head}</tr></thead>\n<tbody>{body}</tbody></table>"


def _html_row(row: Row) -> str:
    cells = []
    for cell in row.cells:
        kind = "number" if isinstance(cell, Quantity) else cell if cell in COLOURS else ""
        cells.append(_html_cell("td", str(cell), kind))
    place = f' data-place="{html.escape(row.place)}"' if row.place else ""
    return f"<tr{place}>{''.join(cells)}</tr>"


def _html_cell(tag: str, text: str, kind: str) -> str:
    classed = f' class="{kind}"' if kind else ""
    return f"<{tag}{classed}>{html.escape(text)}</{tag}>"


def section_html(section: Table | Remarks) -> str:
    """Return a title, then every row of a table or every sentence."""
    title = f"<h2>{html.escape(section.title)}</h2>\n" if section.title else ""
    if isinstance(section, Table):
        return title + table_html(section)
    lines = [html.escape(line) for line in section.lines]
    if not title:
        return "\n".join(f'<p class="note">{line}</p>' for line in lines)
    return f"{title}<ul>{''.join(f'<li>{line}</li>' for line in lines)}</ul>"
