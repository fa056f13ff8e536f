"""The answer as a Markdown page: sentences, the table of costs, every cluster that was tried."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

from sweeps.capacity.document import answer_lines, cost_rows, in_time_words
from sweeps.capacity.finding import Smallest
from sweeps.capacity.targets import ServiceTarget


def page_lines(
    found: Sequence[Smallest],
    targets: Sequence[ServiceTarget],
    setting: Mapping[str, Any],
    has_prices: bool,
    figure: Path | None,
) -> Iterator[str]:
    """The page, line by line."""
    yield "# The smallest cluster that meets the targets"
    yield ""
    yield f"Workload {setting['workload']}; `{setting['command']}`"
    yield ""
    yield from (
        f"- {line}" for line in answer_lines(found, targets, setting["confidence"], has_prices)
    )
    yield ""
    yield from _table(cost_rows(found))
    yield ""
    if figure is not None:
        yield f"![Requests in time against the number of instances]({figure.name})"
        yield ""
    yield "## What was tried"
    yield ""
    yield (
        "Shares of requests in time, with the interval of the last look; a cluster is looked at after "
        "32 seeds, 64, 128 and so on, until its answer is clear."
    )
    yield ""
    heading = ("policy", "kind of cluster", "instances", *map(str, targets), "seeds", "answer")
    rows = [
        (
            one.arm.name,
            one.family.name,
            str(size),
            *map(in_time_words, decision.attained),
            str(decision.num_seeds),
            decision.answer.value,
        )
        for one in found
        for size, decision in one.tried.items()
    ]
    yield from _table([heading, *rows])


def _table(rows: Iterable[Sequence[str]]) -> Iterator[str]:
    heading, *others = rows
    yield f"| {' | '.join(heading)} |"
    yield "|---" * len(heading) + "|"
    yield from (f"| {' | '.join(row)} |" for row in others)
