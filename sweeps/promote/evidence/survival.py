"""Test whether a gain survives: strategy against baseline under each concern of a real cluster, on common seeds.

Every row has the same seeds and requests, so each row is compared seed by seed with the row without a concern. The
verdicts of all rows on the main metric are adjusted together (Holm).
"""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from blis_jax.cluster.config import ClusterConfig
from blis_jax.commands import cli
from blis_jax.errors import ConfigError
from blis_jax.files.atomic_write import json_text, plain, write_text
from blis_jax.files.content import digest
from blis_jax.files.journal import Journal
from blis_jax.metrics.metric import LOWER, name_in, names_in, split_name
from blis_jax.metrics.scalars import lookup
from blis_jax.progress import Phase, phase
from blis_jax.statistics.intervals import BY_STUDENT, Estimate, estimate, relative_change
from blis_jax.statistics.paired import BETTER, SAME, WORSE, Difference, Pair, differences
from blis_jax.workload.spec import WorkloadSpec
from sweeps.claims.grammar import our_name
from sweeps.promote.evidence.concerns import Concern, concerns
from sweeps.promote.llmd.deployment import workload_of_promotion
from sweeps.promote.promotion import Promotion
from sweeps.promote.store import render
from sweeps.runs.experiment import Experiment
from sweeps.strategies.arms import key_of

if TYPE_CHECKING:
    from jaxtyping import Float

    Values = Float[np.ndarray, "seed"]

STREAM = "reference"
WRITTEN = re.compile(r"(?s)<!-- (abstract|reading):begin -->\n(.*?)<!-- \1:end -->\n")
NOTHING = "none"
DIGITS = 6
SURVIVES, SMALLER, LARGER, UNCLEAR, REVERSED, NO_EFFECT = (
    "survives", "survives, smaller", "survives, larger", "not shown", "reversed", "no effect",
)  # fmt: skip


@dataclass(frozen=True)
class SurvivalRow:
    """Describe what a concern does to the gain; `changes` is empty where the concern is not simulated."""

    name: str
    title: str
    about: str
    verdict: str  # of the words above, or why there is none
    changes: Mapping[str, Estimate]  # %, by metric
    # %, of the ratio to the baseline, against that without any concern
    against_none: Estimate | None
    # of the main metric over the seeds: that of the baseline, that of the strategy
    means: tuple[float, ...] = ()


@dataclass(frozen=True)
class Survival:
    """Hold the survival table of one strategy."""

    strategy: str
    baseline: str
    workload: str
    main: str  # metric
    metrics: tuple[str, ...]
    seeds: tuple[int, ...]
    rows: tuple[SurvivalRow, ...]

    def plain(self) -> dict[str, Any]:
        """Return the table as plain data, with None for NaN and infinity."""
        document: dict[str, Any] = plain(asdict(self), DIGITS)
        return document


@dataclass(frozen=True)
class Survivals:
    """Hold the survival tables of several strategies on the same seeds."""

    tables: tuple[Survival, ...]
    against_first: tuple[Survival, ...]  # the later strategies, with the first one as the baseline

    def plain(self) -> dict[str, Any]:
        """Return the tables as plain data, with None for NaN and infinity."""
        document: dict[str, Any] = plain(asdict(self), DIGITS)
        return document


def survival_of(
    promotion: Promotion,
    seeds: Sequence[int],
    num_requests: int | None = None,
    runs: SeedRuns | None = None,
    only: Sequence[str] = (),
    parts: EvidenceParts | None = None,
) -> Survival:
    """Run baseline and strategy under every concern that the engine can simulate.

    Args:
        promotion: the strategy and its baseline.
        seeds: the seeds of the workload, the same for both and for every concern.
        num_requests: the number of requests; None for the workload's own number.
        runs: runs of other tables on the same seeds, to be reused; None for fresh runs.
        only: names of the concerns that get a row; if empty, all do.
        parts: stores fresh runs and counts the concerns that are done.

    Raises:
        ConfigError: the strategy's file has no workload that can be generated.
    """
    spec = workload_of_promotion(promotion, num_requests)
    names = metrics_of(promotion, spec)
    runs = runs or SeedRuns(seeds, names, parts)
    arms = (promotion.baseline.config, promotion.arm.config)
    pairs: dict[str, dict[str, tuple[Values, Values]]] = {}
    refused: dict[str, str] = {}
    for concern in simulated_concerns(only):
        with runs.parts.step(concern.name):
            try:
                changed = [concern.applied(config, spec) for config in arms]
            except ConfigError as error:
                refused[concern.name] = str(error)
                continue
            first, second = (runs.values(config, drawn) for config, drawn in changed)
            pairs[concern.name] = {name: (first[name], second[name]) for name in names}
    rows = _rows(_concerns(only), pairs, refused, names)
    return Survival(
        promotion.given,
        promotion.baseline.name,
        promotion.workload_name,
        names[0],
        names,
        tuple(seeds),
        rows,
    )


def _concerns(only: Sequence[str]) -> tuple[Concern, ...]:
    nothing = Concern(NOTHING, "", "As simulated", "no concern", lambda config, _: config)
    return (nothing, *(concern for concern in concerns() if not only or concern.name in only))


def simulated_concerns(only: Sequence[str] = ()) -> tuple[Concern, ...]:
    """Return the simulated concerns of a table, starting with no concern; `only` names the concerns that get a row."""
    return tuple(concern for concern in _concerns(only) if concern.is_simulated)


class SeedRuns:
    """Run configurations on workloads over common seeds, each once, and keep their metrics."""

    def __init__(
        self, seeds: Sequence[int], names: Sequence[str], parts: EvidenceParts | None = None
    ) -> None:
        """Set the seeds, and the names of all metrics that the tables need."""
        self.seeds, self.names = tuple(seeds), tuple(names)
        self.parts = parts or EvidenceParts()
        self.experiments: dict[str, Experiment] = {}
        self.done: dict[tuple[str, str], dict[str, Values]] = {}

    def values(self, config: ClusterConfig, spec: WorkloadSpec) -> dict[str, Values]:
        """Return the metrics by name, one value for each seed; NaN where a seed has no value."""
        drawn = json.dumps(spec.content(), sort_keys=True)
        key = drawn, key_of(config)
        if key not in self.done:
            made = self.parts.of(
                f"runs {digest(key)[:16]}", lambda: self._made(drawn, spec, config)
            )
            self.done[key] = {name: np.array(made[name], np.float64) for name in self.names}
        return self.done[key]

    def _made(
        self, drawn: str, spec: WorkloadSpec, config: ClusterConfig
    ) -> dict[str, list[float]]:
        (summaries,) = self._experiment(drawn, spec).run([config])
        return {
            name: [float(summary.metrics.get(name, np.nan)) for summary in summaries]
            for name in self.names
        }

    def _experiment(self, drawn: str, spec: WorkloadSpec) -> Experiment:
        if drawn not in self.experiments:
            self.experiments[drawn] = Experiment.on(spec, self.seeds, STREAM, self.names)
        return self.experiments[drawn]


def survivals_of(
    promotions: Sequence[Promotion],
    seeds: Sequence[int],
    num_requests: int | None = None,
    only: Sequence[str] = (),
    parts: EvidenceParts | None = None,
) -> Survivals:
    """Return each strategy's table, and each later strategy's table against the first strategy; every run is reused.

    Raises:
        ConfigError: the strategies have different workloads, or a strategy has no workload that can be generated.
    """
    drawn = [workload_of_promotion(promotion, num_requests) for promotion in promotions]
    names: list[str] = []
    first = promotions[0]
    for promotion, spec in zip(promotions, drawn, strict=True):
        if spec.content() != drawn[0].content():
            raise ConfigError(
                f"{promotion.given} is for workload {promotion.workload_name}, {first.given} for "
                f"{first.workload_name}; give a page to each"
            )
        names += metrics_of(promotion, spec)
    runs = SeedRuns(seeds, tuple(dict.fromkeys(names)), parts)
    num_tables = 2 * len(promotions) - 1
    runs.parts.expect(num_tables * len(simulated_concerns(only)), "concerns")
    arm = replace(first.arm, name=first.given)
    others = [replace(promotion, baseline=arm) for promotion in promotions[1:]]
    return Survivals(
        tuple(survival_of(promotion, seeds, num_requests, runs, only) for promotion in promotions),
        tuple(survival_of(other, seeds, num_requests, runs, only) for other in others),
    )


def metrics_of(promotion: Promotion, spec: WorkloadSpec) -> tuple[str, ...]:
    """Return metric names: the strategy's objectives, constraints and criteria, then each class's tail latency."""
    strategy = promotion.arm.strategy
    names: list[str] = []
    if strategy is not None:
        names = [objective.metric for objective in strategy.objectives]
        names += [constraint.metric for constraint in strategy.constraints]
        names += [criterion.metric for criterion in strategy.success_criteria]
    names += names_in(["ttft_p99_ms"], spec.slo_classes)
    if len(spec.slo_classes) == 1:
        parts = [split_name(name) for name in names]
        names = [base if c in spec.slo_classes else name_in(base, c) for base, c in parts]
    return tuple(dict.fromkeys(our_name(name) for name in (*names, "output_tokens_per_s")))


# --- rows -----------------------------------------------------------------------------------------


def _rows(
    every: Sequence[Concern],
    pairs: Mapping[str, Mapping[str, tuple[Values, Values]]],
    refused: Mapping[str, str],
    names: Sequence[str],
) -> tuple[SurvivalRow, ...]:
    main = names[0]
    direction = lookup(main)[0].direction
    family = [Pair(*pairs[name][main], direction) for name in pairs]
    verdicts = dict(zip(pairs, differences(family, BY_STUDENT), strict=True))
    rows = []
    for concern in every:
        if concern.name not in pairs:
            why = refused.get(concern.name, f"not simulated yet: {concern.about}")
            rows.append(SurvivalRow(concern.name, concern.title, concern.about, why, {}, None))
            continue
        changes = {name: _change(*pairs[concern.name][name]) for name in names}
        against = None
        if concern.name != NOTHING:
            against = _against(pairs[NOTHING][main], pairs[concern.name][main])
        verdict = _verdict(verdicts[concern.name], against, direction)
        means = tuple(float(np.nanmean(values)) for values in pairs[concern.name][main])
        named = concern.name, concern.title, concern.about
        rows.append(SurvivalRow(*named, verdict, changes, against, means))
    return tuple(rows)


def _change(first: Values, second: Values) -> Estimate:
    both = np.isfinite(first) & np.isfinite(second)
    return relative_change(first[both], second[both])


def _against(before: tuple[Values, Values], after: tuple[Values, Values]) -> Estimate:
    """Return by how much, in %, a concern changes the ratio to the baseline; averaged as logarithms over the seeds."""
    with np.errstate(divide="ignore", invalid="ignore"):
        ratios = np.log(after[1] / after[0]) - np.log(before[1] / before[0])
    change = estimate(ratios)
    mean, low, high = (
        100 * float(np.expm1(value)) for value in (change.mean, change.low, change.high)
    )
    return Estimate(mean, low, high, change.num_seeds, change.method)


def _verdict(difference: Difference, against: Estimate | None, direction: str) -> str:
    if difference.verdict in (SAME, WORSE):
        return NO_EFFECT if difference.verdict == SAME else REVERSED
    if difference.verdict != BETTER:
        return UNCLEAR
    if against is None or against.holds(0.0):
        return SURVIVES
    return SMALLER if (against.mean > 0) == (direction == LOWER) else LARGER


# --- texts ----------------------------------------------------------------------------------------


def write_page(
    path: Path,
    promotions: Sequence[Promotion],
    seeds: Sequence[int],
    num_requests: int | None,
    command: str,
    only: Sequence[str] = (),
    parts: EvidenceParts | None = None,
) -> None:
    """Write the tables of one or several strategies on one page, with the numbers in a .json file beside it."""
    if len(promotions) == 1:
        (parts := parts or EvidenceParts()).expect(len(simulated_concerns(only)), "concerns")
        table = survival_of(promotions[0], seeds, num_requests, only=only, parts=parts).plain()
    else:
        table = survivals_of(promotions, seeds, num_requests, only, parts).plain()
    text = page_of(table, command, written_on(path))
    write_text(path, text)
    write_text(path.with_suffix(".json"), json_text(table, indent=None))


def page_of(
    table: Mapping[str, Any], command: str, written: Mapping[str, str] | None = None
) -> str:
    """Return the page of one or several strategies' tables in plain form, with the passages that people wrote."""
    if "tables" in table:
        return render(
            "survivals.md.j2",
            found=table,
            command=command,
            **{"abstract": "", "reading": ""} | dict(written or {}),
        )
    return render("survival.md.j2", table=table, command=command)


def written_on(path: Path) -> dict[str, str]:
    """Return the passages that people wrote between the marks of an existing page, by mark; empty without a page."""
    text = path.read_text(encoding="utf-8") if path.is_file() else ""
    return {match[1]: match[2] for match in WRITTEN.finditer(text)}


class EvidenceParts:
    """Compute named parts or read them from the journal; show how many are done."""

    def __init__(self, shown: Phase | None = None, journal: Journal | None = None) -> None:
        self.shown, self.journal = shown, journal
        self.kept: dict[str, Any] = dict(journal.lines()) if journal is not None else {}
        if journal is not None:
            journal.begin()

    def expect(self, total: int, unit: str) -> None:
        """Set the total number of steps, and the unit that progress shows."""
        if self.shown is not None:
            self.shown.total, self.shown.unit = total, unit

    def of(self, name: str, make: Callable[[], Any]) -> Any:
        """Return the part with this name, as plain JSON values; compute it with `make` if it is not stored yet."""
        if name not in self.kept:
            self.kept[name] = make()
            if self.journal is not None:
                self.journal.append([name, self.kept[name]])
        return self.kept[name]

    @contextmanager
    def step(self, item: str) -> Iterator[None]:
        """Show `item` as in progress during the `with` block, then count it as done."""
        if self.shown is not None:
            self.shown.show(self.shown.done, item)
        before = len(self.kept)
        yield
        if self.shown is not None:
            self.shown.done_earlier += len(self.kept) == before  # taken from the journal
            self.shown.advance()


@contextmanager
def journaled(
    command: str, what: str, path: Path, content: Mapping[str, Any], is_resumed: bool
) -> Iterator[EvidenceParts]:
    """Keep parts in a journal during the `with` block; remove the journal when the block completes."""
    journal = Journal(path, "evidence", content)
    with cli.resumable(command, path), journal.held(is_resumed):
        with phase(what) as shown:
            yield EvidenceParts(shown, journal)
        path.unlink(missing_ok=True)
