"""`blis-jax papers`: what each reproduction asks, what it found, what it takes, and its command."""

from __future__ import annotations

import sys
import textwrap
from functools import partial
from pathlib import Path

from blis_jax.commands.options import CommandOptions, option
from blis_jax.reports.findings import Answer
from blis_jax.reports.render import WIDTH, show_answer, table_text
from papers.pages import Result, results, with_abstract, write_between_markers, write_text

NAME = "papers"
_DESCRIPTION = """\
List the results that come with the package: what each page asks, what was found, the command that
makes it again, and what that takes.
"""
_EXAMPLES = """\
examples:
  all results, with their commands:
    %(prog)s

  the index of the results pages, and their abstracts:
    %(prog)s --page docs/results/index.md
"""


class PapersOptions(
    CommandOptions, title="what", command=NAME, description=_DESCRIPTION, examples=_EXAMPLES
):
    """Options of the command."""

    page: str | None = option(
        str,
        None,
        "FILE",
        "also write the tables of the index of results, and the abstracts of the pages beside it",
    )


def _answer(listed: list[Result]) -> Answer:
    ours = (f"blis-jax {NAME} ", f"python -m {NAME}.")
    by_us = [result for result in listed if result.command.startswith(ours)]
    return Answer.of(
        asked="which results come with the package, and how are they made again?",
        verdict=f"{len(listed)} results; {len(by_us)} are made by papers, the others by sweeps, benchmarks and tests",
        sure="each page, in docs/results, states its intervals, its seeds, and what was chosen on which of them",
        price="nothing was simulated; what each takes stands behind its command",
        next="give a command below; with --saved, papers print their tables without simulating",
    )


def _block(result: Result) -> str:
    """Return what is printed of a result: question and page, finding, command and what it takes."""
    wrapped = partial(textwrap.fill, width=WIDTH, initial_indent="  ", subsequent_indent="  ")
    return "\n".join(
        [
            f"{result.question} {result.title}, {result.page}",
            wrapped(f"Found: {result.found}"),
            wrapped(f"Takes: {result.takes}"),
            f"  {result.command}",
        ]
    )


def _write_index(page: Path, listed: list[Result]) -> None:
    answers = table_text(
        ("question", "what was found"),
        ((each.question, f"[{each.title}]({each.page}): {each.found}") for each in listed),
    )
    made = table_text(
        ("page, command", "takes"),
        ((f"[{each.title}]({each.page}), `{each.command}`", each.takes) for each in listed),
    )
    write_between_markers(page, "found", answers)
    write_between_markers(page, "made", made)
    for result in listed:
        beside = page.parent / result.page
        if beside.exists():
            write_text(beside, with_abstract(beside.read_text(encoding="utf-8"), result.page))


@PapersOptions.as_main
def main(options: PapersOptions) -> int:
    """Run the command; return its exit code."""
    listed = results()
    show_answer(_answer(listed), *map(_block, listed))
    if options.page is not None:
        _write_index(Path(options.page), listed)
    return 0


if __name__ == "__main__":
    sys.exit(main())
