"""The contents of a report as plain data, which each command builds from its results; and the words for its runs."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np

from blis_jax.metrics.metric import name_in
from blis_jax.metrics.scalars import lookup
from blis_jax.metrics.summaries import ALL
from blis_jax.reports.style import strategy_colours
from blis_jax.statistics.intervals import CONFIDENCE
from blis_jax.statistics.paired import Difference, fewest_for_verdict

if TYPE_CHECKING:
    from blis_jax.reports.findings import Answer, Sentence, Table
    from blis_jax.reports.pictures import Picture
    from blis_jax.statistics.intervals import Estimate


MOST_LISTED = 8


class RunWords(NamedTuple):
    """The word for one of a study's runs, such as seed or window, and a sentence that explains it."""

    one: str
    about: str
    kind: str = ""  # before the word where all are counted

    @property
    def many(self) -> str:
        """Return the plural of the word for a run."""
        return f"{self.one}s"

    def counted(self, count: int) -> str:
        """Return a count with its noun, such as `1 seed` or `3 windows`."""
        return f"{count} {self.one if count == 1 else self.many}"

    def listed(self, numbers: Sequence[int], has_kind: bool = True) -> str:
        """Return number and list of the runs in words: `3 random seeds (42 to 44)`."""
        kind = f"{self.kind} " * (has_kind and bool(self.kind))
        if len(numbers) == 1:
            return f"one {kind}{self.one} ({numbers[0]})"
        if len(numbers) > 2 and list(numbers) == list(range(numbers[0], numbers[0] + len(numbers))):
            return f"{len(numbers)} {kind}{self.many} ({numbers[0]} to {numbers[-1]})"
        which = ", ".join(map(str, numbers[:MOST_LISTED]))
        return f"{len(numbers)} {kind}{self.many} ({which}{', …' * (len(numbers) > MOST_LISTED)})"

    def in_text(self, text: str) -> str:
        """Replace the word seed in a text by the word for these runs, except in names of options and files."""
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
    """Return the words for runs of a workload (seeds), or of the trace that `TraceSource.about` describes."""
    if not trace:
        return SEEDS
    if trace["windows"]:
        return WINDOWS
    return DRAWN if num_runs > 1 else ONE_RUN


def words_of(document: Mapping[str, Any]) -> RunWords:
    """Return the words for the runs of a result document."""
    return run_words(document.get("trace"), len(document["seeds"]))


# Shares of the requests by which a distribution is kept; finer where the tail is.
CURVE_LEVELS = (*(round(0.04 * step, 2) for step in range(25)), 0.98, 0.985, 0.99, 0.995, 1.0)
EVERYWHERE = "*"  # a place of what is drawn whichever place is chosen
BAND = (5, 95)  # percent of the seeds, between which a distribution's band lies


NO_FIGURE, TOO_FEW = "no figure", "too few requests to judge"


@dataclass(frozen=True)
class MetricChange:
    """The change of one metric in one class from reference to strategy, on the seeds that both have."""

    strategy: str
    reference: str
    slo_class: str
    metric: str
    change: Difference
    place: str = ""

    @classmethod
    def of(
        cls, change: Difference, strategy: str, reference: str, metric: str, place: str = ""
    ) -> MetricChange:
        """Return the change of a metric, whose name may end in `[class]`."""
        kind, slo_class = lookup(metric)
        return cls(strategy, reference, slo_class or ALL, kind.name, change, place)

    @classmethod
    def of_json(cls, entry: Mapping[str, Any]) -> MetricChange:
        """Return the change from an entry of a result document."""
        metric = name_in(entry["metric"], entry["class"])
        return cls.of(
            Difference.of_json(entry),
            entry["arm"],
            entry["reference"],
            metric,
            entry.get("place", ""),
        )

    @property
    def judgement(self) -> str:
        """Return the verdict; `NO_FIGURE` if an arm has no figure, `TOO_FEW` if figures have no interval."""
        if self.change.num_pairs:
            return self.change.verdict
        means = (self.change.first_mean, self.change.second_mean)
        return TOO_FEW if np.isfinite(means).all() else NO_FIGURE


@dataclass(frozen=True)
class ShownFigure:
    """The mean over runs of one metric of one class under one strategy."""

    strategy: str
    slo_class: str
    metric: str
    value: Estimate
    place: str = ""


@dataclass(frozen=True)
class SeedValues:
    """One metric of one class under one strategy, one value for each seed; None for a run without a value."""

    strategy: str
    slo_class: str
    metric: str
    values: tuple[float | None, ...]
    place: str = ""


@dataclass(frozen=True)
class Curve:
    """The TTFT distribution of one class under one strategy, ms: mean and band over seeds at each of `Study.levels`."""

    strategy: str
    slo_class: str
    mean: Sequence[float]
    low: Sequence[float]
    high: Sequence[float]
    place: str = ""  # or EVERYWHERE

    @classmethod
    def of(cls, strategy: str, slo_class: str, rows: np.ndarray, place: str = "") -> Curve:
        """Return the curve of TTFTs in ms, `[seed, level]`."""
        low, high = np.percentile(rows, BAND, axis=0)
        mean = rows.mean(axis=0)
        return cls(strategy, slo_class, mean.tolist(), low.tolist(), high.tolist(), place)


@dataclass(frozen=True)
class TtftShare:
    """One part of a class's TTFT in one of `summaries.VIEWS`, as mean over seeds."""

    strategy: str
    slo_class: str
    view: str
    group: str
    mean_ms: float


@dataclass(frozen=True)
class Timeline:
    """One run over time: means over each span of time on every instance."""

    strategy: str
    seed: int
    edges_s: Sequence[float]
    running: np.ndarray  # [instance, span], requests in the running batch, 0 between steps
    waiting: np.ndarray  # requests in the wait queue
    kv_percent: np.ndarray  # KV blocks in use, % of the instance's
    num_requests: int
    num_steps: int


@dataclass(frozen=True)
class Study:
    """A comparison; the first strategy is the reference of the others."""

    command: str
    workload: str
    strategies: tuple[str, ...]
    descriptions: Mapping[str, str]
    classes: tuple[str, ...]  # "all" first
    seeds: tuple[int, ...]
    differences: tuple[MetricChange, ...]
    intervals: str  # how those of the differences are made, one sentence
    joint: str = ""  # the same of the joint ones
    verdicts: str = ""
    values: tuple[SeedValues, ...] = ()
    levels: tuple[float, ...] = ()
    curves: tuple[Curve, ...] = ()
    class_shares: Mapping[str, float] = field(default_factory=dict)  # % of the requests
    own: tuple[Picture, ...] = ()  # in place of the differences
    opens_with: str = "changes"  # or "distributions"
    parts: tuple[TtftShare, ...] = ()
    parts_of: str = ""  # which runs the parts are means of
    timelines: tuple[Timeline, ...] = ()
    runs: RunWords = SEEDS  # what `seeds` number
    pairs: str = ""  # what a difference counts, if not the runs: blocks of one trace
    places: tuple[str, ...] = ("",)  # of a grid; parts and timelines are of the first
    place_title: str = "Place in the grid"  # what a choice of one is called
    title: str = ""  # of the page; made of the strategies if empty
    kinds: Mapping[str, str] = field(default_factory=dict)  # which strategy a label stands for
    limits: str = ""  # what goodput counts: a sentence, which stands below every table that has it
    notes: tuple[str, ...] = ()  # window, failures: one sentence each
    checks: tuple[str, ...] = ()  # outcomes, ties, invariants: one sentence each
    more: Mapping[str, Sequence[str]] = field(default_factory=dict)  # further findings, by title
    brief: Mapping[str, Sequence[str]] = field(default_factory=dict)  # those that are shown unasked
    ranked: tuple[
        Table, ...
    ] = ()  # strategies from the best to the worst, in place of the short table
    tables: tuple[Table, ...] = ()  # further ones
    provenance: Mapping[str, Any] = field(default_factory=dict)
    figures: tuple[ShownFigure, ...] = ()
    tails: tuple[ShownFigure, ...] = ()  # those of pictures alone
    confidence: float = CONFIDENCE
    are_exact: bool = False  # the differences, since every seed makes the same run
    cluster: str = ""  # the first line, see `words.cluster_line`
    asked: str = ""  # the second; made of strategies, workload and runs if empty
    verdict: tuple[Sentence, ...] = ()  # the third; made of the differences if empty
    sure: Sentence | None = None  # the fourth; counts the verdicts if there is none
    too_short: str = ""  # why a trace gives no verdict, if so: see the function of this name
    remarks: tuple[
        str, ...
    ] = ()  # shown unasked: failures, broken invariants, how seeds were added
    # that were made or taken over; None: one of each strategy, place and seed
    num_runs: int | None = None
    time: Sentence | None = None
    next: str = ""  # what to do now, if the differences do not say it
    answer: Answer | None = None  # all five lines, if they are not those of the differences

    @property
    def colours(self) -> dict[str, str]:
        """Return the colour of each strategy."""
        return strategy_colours(self.strategies, self.kinds)

    @property
    def metrics(self) -> tuple[str, ...]:
        """Return the metrics in the order of the differences."""
        return tuple(dict.fromkeys(difference.metric for difference in self.differences))

    @property
    def source(self) -> str:
        """Return the word `Workload`, or `Trace`."""
        return "Workload" if self.runs is SEEDS else "Trace"

    @property
    def workload_name(self) -> str:
        """Return the file name of the workload or trace, without its folder and without `.yaml`."""
        path = Path(self.workload)
        return path.stem if path.suffix in (".yaml", ".yml") else path.name


VERDICT_RULE = (
    "A change is called better or worse where Holm's method, which corrects for the number of changes, "
    "tells it from chance."
)


def too_short(inference: Mapping[str, Any]) -> str:
    """Return a sentence on a trace that holds too few blocks for a verdict; else an empty one."""
    count, fewest = inference.get("num_blocks"), fewest_for_verdict(inference["confidence"])
    if not count or count >= fewest:
        return ""
    return (
        f"of these requests; other traffic like them may differ: a verdict takes {fewest} stretches of time that do "
        f"not depend on each other, and this trace holds {count} of {inference['block_s']:.3g} s."
    )


LONGER_TRACE = (
    "a longer trace tells more, or a slower one (--time-scale above 1), since stretches are long where requests queue; "
    "--trace-windows N makes several runs of it."
)


def judged(document: Mapping[str, Any]) -> dict[str, Any]:
    """Return the fields of a `Study` that say how the differences of a result document were judged."""
    inference = document["inference"]
    p_values = f" P-values: {inference['p_values']}." if "p_values" in inference else ""
    return {
        "confidence": inference["confidence"],
        "are_exact": inference.get("are_exact", False),
        "too_short": too_short(inference),
        "intervals": inference["intervals"],
        "joint": f"{100 * inference['confidence']:g} %; {inference['simultaneous_intervals']}",
        "verdicts": f"{VERDICT_RULE} They are {inference['family']}.{p_values}",
    }


def provenance_of(document: Mapping[str, Any], runs: RunWords) -> dict[str, Any]:
    """Return versions, random stream and seeds, on which a result document's numbers depend besides settings."""
    return {
        **document["versions"],
        "random stream": document["rng"],
        runs.many: ", ".join(map(str, document["seeds"])),
    }
