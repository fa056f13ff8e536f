"""How papers and benchmarks hand over their tables: on stdout, as CSV, and in pages."""

from __future__ import annotations

import argparse
import csv
import io
import sys
from collections.abc import Callable, Iterable, Mapping, Sequence
from importlib.resources import files
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

from blis_jax import lazy
from blis_jax.backend import prepare_backend
from blis_jax.commands import cli
from blis_jax.commands.options import SchedulerOption, option, switch
from blis_jax.errors import capital
from blis_jax.files.atomic_write import replacing
from blis_jax.files.input_files import open_text
from blis_jax.files.strict_yaml import read_yaml
from blis_jax.reports.findings import Answer
from blis_jax.reports.render import answer_lines, row_line, table_lines
from sweeps.runs.options import PartOption

if TYPE_CHECKING:
    from papers.record import parts
    from sweeps.runs.parts import RunPart
else:  # it loads JAX, for which no refusal waits
    parts = lazy.Module("papers.record.parts")

ROOT = Path(__file__).parent.parent


class Result(NamedTuple):
    """A page of results; the sentences are its abstract."""

    page: str  # its file in docs/results
    title: str
    question: str
    found: str
    sure: str
    on_what: str
    so: str  # what to do about it
    command: str
    takes: str  # time, and what else it needs

    def abstract(self) -> str:
        """Return the five lines with which the page begins."""
        lines = {
            "Question": self.question,
            "Answer": self.found,
            "How sure": self.sure,
            "On what": self.on_what,
            "So what": self.so,
        }
        return "\n".join(f"> **{head}** {capital(words)}  " for head, words in lines.items())


def results() -> list[Result]:
    """Return all results in the order of the index."""
    text = files("papers").joinpath("results.yaml").read_text(encoding="utf-8")
    return [Result(**entry) for entry in read_yaml(text, "results.yaml")]


def with_abstract(text: str, page: str) -> str:
    """Return the text of a page of results with its abstract below the title; an earlier abstract is replaced."""
    abstract = next(result.abstract() for result in results() if result.page == page)
    title, _, rest = text.partition("\n\n")
    if rest.startswith(_BEGIN):
        rest = rest.partition(f"{_END}\n\n")[2]
    return f"{title}\n\n{_BEGIN}\n{abstract}\n{_END}\n\n{rest}"


_BEGIN, _END = "<!-- abstract:begin -->", "<!-- abstract:end -->"


class TableOptions(SchedulerOption, title="tables"):
    """Options of a command whose tables come with the package."""

    page: str | None = option(str, None, "FILE", "also write the page of results")
    saved: bool = switch("use the tables that come with the package instead of simulating")
    quiet: bool = switch()
    no_cache: bool = switch()


class PartedTableOptions(TableOptions, PartOption, title="tables"):
    """Options of a command whose tables come with the package and whose runs are known before the first run."""

    def make_part(self, part: RunPart, asks: Sequence[parts.PaperAsk]) -> int:
        """Make one part of the runs that `asks` name; return the exit code."""
        return parts.make_paper_part(self, part, asks)

    def take_joined(self, folder: Path, asks: Sequence[parts.PaperAsk]) -> None:
        """Write the runs that `merge` has joined in `folder` to where the command looks for them; without any do
        nothing.
        """
        parts.take_joined(self, folder, asks)


def folder_of_tables(name: str, options: TableOptions, output: str) -> Path:
    """Return the folder of a command's tables: with `--saved` the package's, else `output`, ready to be filled."""
    if options.saved:
        return Path(str(files(name))) / "data"
    folder = Path(output)
    cli.check_writable(folder, is_folder=True)
    prepare_backend(use_cache=not options.no_cache)
    return folder


def show(
    options: TableOptions, printed: Iterable[str], page: Callable[[], str], of_page: str
) -> None:
    """Print lines unless the options are `--quiet`, and write the page of results if they name one.

    `of_page` is the file that the page has in docs/results.
    """
    if not options.quiet:
        print("\n".join(printed))
    if options.page is not None:
        write_text(Path(options.page), with_abstract(page(), of_page))


def answer(question: str, verdict: Sequence[str], sure: str, price: str, next: str) -> list[str]:
    """Return the five lines with which a command begins, and an empty one."""
    return [*answer_lines(Answer.of(question, verdict, sure, price, next)), ""]


def texts_of(package: str) -> dict[str, Any]:
    """Return the texts of a paper's page, from the `page.yaml` that comes with it."""
    text = files(package).joinpath("page.yaml").read_text(encoding="utf-8")
    texts: dict[str, Any] = read_yaml(text, "page.yaml")
    return texts


def cell_of(text: str) -> str:
    """Return a text as a cell of a table in Markdown, a negative number with a minus in place of its hyphen."""
    is_negative = text.startswith("-") and text[1:2].isdigit()
    return text.replace("|", "\\|").replace("-", "−", int(is_negative))


def csv_of(rows: Sequence[Mapping[str, str]], columns: Sequence[str] = ()) -> str:
    """Return rows as CSV; the columns are those of the first row if none are named."""
    text = io.StringIO()
    writer = csv.DictWriter(text, list(columns or rows[0]), lineterminator="\n")
    writer.writeheader()
    writer.writerows(rows)
    return text.getvalue()


def rows_of(path: Path) -> list[dict[str, str]]:
    """Return the rows of a CSV file, or of the packed one that ships in its place; none if there is no file."""
    packed = path.with_name(f"{path.name}.xz")
    path = path if path.is_file() or not packed.is_file() else packed
    if not path.is_file():
        return []
    with open_text(path) as file:
        return list(csv.DictReader(file))


def write_text(path: Path, text: str) -> None:
    """Write a text, whole or not at all."""
    with cli.writing(path), replacing(path) as written:
        written.write_text(text, encoding="utf-8")


def write_between_markers(page: Path, name: str, text: str) -> None:
    """Put the text between `<!-- NAME:begin -->` and `<!-- NAME:end -->`; the rest of the page stays.

    Raises:
        SystemExit: the page lacks a marker.
    """
    begin, end = f"<!-- {name}:begin -->", f"<!-- {name}:end -->"
    before, found_begin, rest = page.read_text().partition(begin)
    _, found_end, after = rest.partition(end)
    if not (found_begin and found_end):
        raise SystemExit(f"{page} has no {begin} followed by {end}; put both where the table goes")
    page.write_text(f"{before}{begin}\n{text}\n{end}{after}")


def table_parser(name: str | None, text: str | None, page: str = "") -> argparse.ArgumentParser:
    """Return the parser of `python -m NAME`, whose help is a module's docstring; with `--write` if a page is named."""
    parser = argparse.ArgumentParser(
        prog=name and f"python -m {name}", description=text,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )  # fmt: skip
    if page:
        parser.add_argument("--write", action="store_true", help=f"also write {page}")
    return parser


def print_rows(heads: Sequence[str], rows: Iterable[Sequence[object]]) -> None:
    """Print a table in Markdown, each row as soon as it is there."""
    print("\n".join(table_lines(heads, ())))
    for row in rows:
        print(row_line(row), flush=True)


def hand_over(text: str, page: Path | None, name: str) -> int:
    """Print the table and write it into the page, if one is given; return the exit code."""
    print(text)
    if page is not None:
        write_between_markers(page, name, text)
    return 0


def refuse(sentence: str) -> int:
    """Print why the command does nothing; return the exit code."""
    print(sentence, file=sys.stderr)
    return 2
