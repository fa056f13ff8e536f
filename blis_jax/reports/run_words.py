"""What tells the runs of one strategy apart, in words: a random seed, a window of a trace, or nothing."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

MOST_LISTED = 8


class RunWords(NamedTuple):
    """A word for what numbers the runs, and a sentence that explains the word."""

    one: str
    about: str
    kind: str = ""  # before the word where all are counted

    @property
    def many(self) -> str:
        """The plural."""
        return f"{self.one}s"

    def counted(self, count: int) -> str:
        """`1 seed`, `3 windows`."""
        return f"{count} {self.one if count == 1 else self.many}"

    def listed(self, numbers: Sequence[int], has_kind: bool = True) -> str:
        """How many, and which: `3 random seeds (42 to 44)`."""
        kind = f"{self.kind} " * (has_kind and bool(self.kind))
        if len(numbers) == 1:
            return f"one {kind}{self.one} ({numbers[0]})"
        if len(numbers) > 2 and list(numbers) == list(range(numbers[0], numbers[0] + len(numbers))):
            return f"{len(numbers)} {kind}{self.many} ({numbers[0]} to {numbers[-1]})"
        which = ", ".join(map(str, numbers[:MOST_LISTED]))
        return f"{len(numbers)} {kind}{self.many} ({which}{', …' * (len(numbers) > MOST_LISTED)})"

    def in_text(self, text: str) -> str:
        """A sentence about seeds, said of these runs; options and names of files stay."""
        return re.sub(r"(?<![-\w.])seed(s?)(?![-\w.=])", rf"{self.one}\1", text)


SEEDS = RunWords(
    "seed",
    "A seed is one random draw of the requests: when they arrive, and how long they are.",
    "random",
)
WINDOWS = RunWords(
    "window",
    "A window is one span of the trace's arrival time, simulated by itself on an idle cluster.",
)
DRAWN = RunWords(
    "seed",
    "The requests are those of one trace. A seed draws only what the trace leaves open, or what a policy draws.",
    "random",
)
ONE_RUN = RunWords("run", "The requests are those of one trace, so each strategy has one run.")


def run_words(trace: Mapping[str, Any] | None, num_runs: int) -> RunWords:
    """The words for runs of a workload, or of a trace as `TraceSource.about` describes it."""
    if not trace:
        return SEEDS
    if trace["windows"]:
        return WINDOWS
    return DRAWN if num_runs > 1 else ONE_RUN


def words_of(document: Mapping[str, Any]) -> RunWords:
    """The words for the runs of a result document."""
    return run_words(document.get("trace"), len(document["seeds"]))
