"""The judges that turn arms' runs into intervals and verdicts: over seeds or windows, or over the requests of one
trace.

The requests of one trace are taken in blocks of arrival time, the same for all arms.
"""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any

import numpy as np

from blis_jax.errors import ConfigError
from blis_jax.metrics.run_summary import GOOD, REJECTED, RequestFigures, RunSummary
from blis_jax.metrics.scalars import lookup
from blis_jax.metrics.summaries import ALL, LATENCIES
from blis_jax.statistics import intervals, paired
from blis_jax.statistics.intervals import CONFIDENCE, NO_INTERVAL, Estimate, Inference
from blis_jax.statistics.paired import (
    OF_POOLED,
    UNCLEAR,
    Difference,
    Pair,
    fewest_for_verdict,
    joint_words,
)
from blis_jax.statistics.trace_blocks import (
    LEAST_REQUESTS,
    TimeBlocks,
    num_bins,
    time_blocks,
    usual_number,
)
from sweeps.runs.measured import metric_values, num_values, pair_of

if TYPE_CHECKING:
    from jaxtyping import Float

    from blis_jax.traces.source import TraceSource
    from sweeps.compare.document import CommonSetting

LATENCIES_LOOKED_AT = ("ttft", "e2e")
TAIL = 0.99
LEAST_OF_CLASS = 30  # requests from which a class has intervals
MUST_OUTLIVE = 0.5  # further blocks against a difference, see `benchmarks.coverage.blocks`
LEAST_BEYOND = 5  # requests beyond a percentile from which it has one: of a P99 500 in all

SHARES = {"attainment": (GOOD, 1.0), "slo_miss_rate": (GOOD, -1.0), "reject_rate": (REJECTED, 1.0)}


def check_block(block_s: float | None, trace: TraceSource | None) -> None:
    """Refuse a block length that no judge would use, or that leaves too few blocks in the trace."""
    if block_s is None:
        return
    if trace is None or trace.num_windows is not None:
        why = "without --trace" if trace is None else "with --trace-windows, each a run"
        raise ConfigError(f"--block-s has no meaning {why}; leave it out")
    fewest = fewest_for_verdict(CONFIDENCE)
    longest = trace.span_s / fewest
    if not 0 < block_s <= longest:
        raise ConfigError(
            f"--block-s: got {block_s:g}, allowed is above 0 up to {longest:.4g}, so that the trace of "
            f"{trace.span_s:.4g} s holds {fewest} blocks"
        )


class OneTrace:
    """Differences and intervals of arms that were run on the same trace."""

    def __init__(
        self,
        arms: Sequence[Sequence[RunSummary]],
        inference: Inference,
        block_s: float | None = None,
    ) -> None:
        """Take every arm's runs, the reference first; unless given, the block length follows from the arms'
        differences."""
        self.inference = inference
        requests = [run.requests for arm in arms for run in arm]
        self._kept: dict[tuple[int, Ingredient], Float[np.ndarray, "block"] | None] = {}
        self.num_requests = max(
            (len(of_run) for of_run in requests if of_run is not None), default=0
        )
        self.by_seed: list[TimeBlocks] = []
        self.num_wanted = 0  # blocks as long as differences ask for
        if self.num_requests >= LEAST_REQUESTS:
            self._lay_blocks(arms, block_s)

    def _lay_blocks(self, arms: Sequence[Sequence[RunSummary]], block_s: float | None) -> None:
        runs_by_seed = zip(*arms, strict=True)
        present = [
            next((run.requests for run in runs if run.requests), None) for runs in runs_by_seed
        ]
        arrivals = [outcomes.arrivals() for outcomes in present if outcomes is not None]
        if len(arrivals) < len(present):
            return
        bins = num_bins(min(map(len, arrivals)))
        self.num_wanted = usual_number(_series(arms[0][0].requests, arms, bins))
        number = self.num_wanted
        if block_s is not None:
            number = max(int(np.ptp(arrivals[0]) / 1e6 / block_s), self.fewest)
        self.by_seed = [time_blocks(of_seed, number) for of_seed in arrivals]

    @property
    def fewest(self) -> int:
        """Return the fewest blocks that give a verdict."""
        return fewest_for_verdict(self.inference.confidence)

    @property
    def num_blocks(self) -> int:
        """Return the number of blocks in which requests arrive; 0 if the trace has too few requests."""
        return self.by_seed[0].num_filled if self.by_seed else 0

    @property
    def block_s(self) -> float | None:
        """Return the length of a block, s; None if the trace has no blocks."""
        return self.by_seed[0].block_s if self.by_seed else None

    def differences(
        self, compared: Sequence[tuple[Sequence[RunSummary], Sequence[RunSummary], str]]
    ) -> list[Difference]:
        """Return second minus first for every entry (first, second, metric), judged together."""
        pairs = [self._pair(*entry) for entry in compared]
        judged = paired.differences(pairs, self.inference)
        return [
            difference
            if difference.num_pairs > 1
            else replace(
                difference, num_pairs=self.num_blocks * difference.num_pairs, verdict=UNCLEAR
            )
            for difference in judged
        ]

    def _pair(self, first: Sequence[RunSummary], second: Sequence[RunSummary], name: str) -> Pair:
        """Return a metric of two arms by block; as one value without a spread where blocks have no part in it."""
        before, after = self._by_block(first, name), self._by_block(second, name)
        means = [self._mean(runs, name) for runs in (first, second)]
        if before is None or after is None:
            before, after = (np.array([mean]) for mean in means)
        both = np.isfinite(before) & np.isfinite(after)
        before, after = (
            mean + of_arm[both] - of_arm[both].mean() if both.any() else of_arm
            for mean, of_arm in zip(means, (before, after), strict=True)
        )
        return Pair(before, after, lookup(name)[0].direction, must_outlive=MUST_OUTLIVE)

    def interval(self, runs: Sequence[RunSummary], name: str) -> Estimate:
        """Return the interval of one arm's metric, from the blocks of the trace."""
        values = self._by_block(runs, name)
        if values is None:
            mean = self._mean(runs, name)
            return Estimate(mean, math.nan, math.nan, self.num_blocks, NO_INTERVAL)
        known = values[np.isfinite(values)]
        known += self._mean(runs, name) - known.mean()
        return intervals.interval_of(intervals.seed_mean, [known], self.inference)

    @staticmethod
    def _mean(runs: Sequence[RunSummary], name: str) -> float:
        return float(np.mean([run.value(name) for run in runs]))

    def _by_block(self, runs: Sequence[RunSummary], name: str) -> Float[np.ndarray, "block"] | None:
        """Return what each block contributes to one arm's metric, the mean over its runs; None where blocks have no
        part in it, or too few requests have a value."""
        how = ingredient_of(name)
        requests = [run.requests for run in runs if run.requests is not None]
        if how is None or not self.by_seed or len(requests) < len(runs):
            return None
        parts = [
            self._part(of_run, of_seed, how)
            for of_run, of_seed in zip(requests, self.by_seed, strict=True)
        ]
        known = [part for part in parts if part is not None]
        if len(known) < len(parts):
            return None
        by_block: np.ndarray = np.mean(known, axis=0)
        return by_block

    def _part(
        self, requests: RequestFigures, of_seed: TimeBlocks, how: Ingredient
    ) -> Float[np.ndarray, "block"] | None:
        """Return one run's contributions; several seeds that share one run compute them once."""
        key = id(requests), how
        if key not in self._kept:
            column, least = requests.column(how.column, how.slo_class), LEAST_OF_CLASS
            if how.level is not None:
                least = max(least, round(LEAST_BEYOND / (1 - how.level)))
            if np.isfinite(column).sum() < least:  # a percentile of so few is one of them
                self._kept[key] = None
            elif how.level is None:
                self._kept[key] = how.sign * of_seed.mean(column)
            else:
                self._kept[key] = how.sign * of_seed.quantile(column, how.level)
        return self._kept[key]

    def sentence(self) -> str:
        """Return a sentence on how single intervals are computed."""
        if not self.by_seed:
            return (
                f"none: {self.num_requests} requests are too few for an interval from one trace, which "
                f"needs {LEAST_REQUESTS}"
            )
        usual = interval_sentence(self.num_blocks, self.inference, "block")
        warning = (
            "; neighbouring requests are alike for longer than a block, so a verdict is surer than it should be: "
            "leave --block-s out"
        ) * (self.num_wanted < self.num_blocks)
        return (
            f"the trace in {self.num_blocks} blocks of {self.by_seed[0].block_s:.3g} s of arrivals, the same for all "
            f"arms; {usual}{warning}"
        )


def _series(
    first: RequestFigures | None, arms: Sequence[Sequence[RunSummary]], number: int
) -> list[np.ndarray]:
    """Return each arm's latencies, and requests beyond its P99, and their differences from the reference's, by bin of
    time."""
    series: list[np.ndarray] = [np.zeros(number)]
    for arm in arms:
        other = arm[0].requests
        if first is None or other is None or len(first) != len(other):
            continue
        bins = time_blocks(first.arrivals(), number)
        for name in LATENCIES_LOOKED_AT:
            before, after = first.column(name, None), other.column(name, None)
            tail = _beyond(after)
            for values in (after, tail, after - before, tail - _beyond(before)):
                known = np.nan_to_num(values - np.nanmean(values))
                series.append(np.bincount(bins.place, known, number))
    return series


def _beyond(values: np.ndarray) -> np.ndarray:
    return np.where(values > np.nanquantile(values, TAIL), 1.0, 0.0)


@dataclass(frozen=True)
class Ingredient:
    """A metric of single requests as a statistic: the mean, or a quantile, of a column of the requests."""

    column: str
    slo_class: str | None
    level: float | None = None  # of a quantile
    sign: float = 1.0  # −1: one minus the mean


def ingredient_of(name: str) -> Ingredient | None:
    """Return the statistic over single requests that is the metric `name`, `[class]` included; None if there is
    none."""
    metric, slo_class = lookup(name)
    if metric.name in SHARES:
        column, sign = SHARES[metric.name]
        return Ingredient(column, slo_class, sign=sign)
    for latency in LATENCIES:
        rest = metric.name.removeprefix(f"{latency}_")
        if rest == "mean_ms":
            return Ingredient(latency, slo_class)
        if rest != metric.name and rest[0] == "p" and rest[1:-3].isdecimal():
            return Ingredient(latency, slo_class, int(rest[1:-3]) / 100)
    return None


@dataclass(frozen=True)
class BySeeds:
    """Inference from the runs of several seeds, or of several windows of a trace."""

    inference: Inference

    def differences(
        self, compared: Sequence[tuple[Sequence[RunSummary], Sequence[RunSummary], str]]
    ) -> list[Difference]:
        """Return second minus first for every entry (first, second, metric), judged together."""
        pairs = [pair_of(first, second, name) for first, second, name in compared]
        return paired.differences(pairs, self.inference)

    def interval(self, runs: Sequence[RunSummary], name: str) -> Estimate:
        """Return the interval of one arm's metric, over the seeds."""
        values = metric_values(runs, name)
        known = values[np.isfinite(values)]
        return intervals.interval_of(intervals.seed_mean, [known], self.inference)


Judge = BySeeds | OneTrace


def judge_of(setting: CommonSetting, arms: Sequence[Sequence[RunSummary]]) -> Judge:
    """Return the judge for the runs of these arms, of which the first is the reference."""
    if setting.is_one_trace:
        return OneTrace(arms, setting.inference, setting.block_s)
    return BySeeds(setting.inference)


def interval_sentence(
    num_pairs: int, inference: Inference, word: str = "seed", are_exact: bool = False
) -> str:
    """Return a sentence on how single intervals are computed from `num_pairs` seeds, or windows of a trace."""
    level = f"{100 * inference.confidence:g} %"
    if are_exact:
        return f"none needed: every {word} makes the same run, so the differences are exact"
    if not num_pairs:
        return f"none: no {word} has figures of both sides"
    if inference.is_anytime:
        return f"anytime-valid t over {word}s, {level}: they hold however often one has looked"
    if num_pairs < 2:
        return f"none: one {word} has no spread; give more {word}s"
    if not inference.num_resamples:
        return f"Student's t over {word}s, paired by {word}, {level}"
    if num_pairs >= intervals.LEAST_PAIRS_FOR_BOOTSTRAP:
        return f"bootstrap of the {word}s (BCa, {inference.num_resamples} resamples), {level}"
    return (
        f"Student's t, {level}: {num_pairs} {word}s are too few for a bootstrap interval, which needs "
        f"{intervals.LEAST_PAIRS_FOR_BOOTSTRAP}; it is right only if differences scatter normally"
    )


# --- entries of a document ------------------------------------------------------------------------


def figures_json(judge: Judge, runs: Sequence[RunSummary], names: Sequence[str]) -> dict[str, Any]:
    """Return one arm's metrics with their intervals as plain data, by class and metric."""
    figures: dict[str, dict[str, Any]] = {}
    for name in names:
        metric, slo_class = lookup(name)
        figures.setdefault(slo_class or ALL, {})[metric.name] = {
            "unit": metric.unit,
            **judge.interval(runs, name).to_json(),
            "num_seeds": num_values(runs, name),
        }
    return figures


def comparison_json(arm: str, reference: str, name: str, difference: Difference) -> dict[str, Any]:
    """Return an arm's difference from the reference in one metric, `[class]` included, as plain data."""
    return {"arm": arm, "reference": reference, **metric_json(name), **difference.to_json()}


def metric_json(name: str) -> dict[str, Any]:
    """Return a metric's class, name, unit and better direction, as plain data."""
    metric, slo_class = lookup(name)
    return {
        "class": slo_class or ALL,
        "metric": metric.name,
        "unit": metric.unit,
        "better": metric.direction,
    }


def inference_json(
    judge: Judge, differences: Sequence[Difference], family: Mapping[str, Any], word: str = "seed"
) -> dict[str, Any]:
    """Return as plain data how differences were judged.

    Args:
        judge: the judge of the differences.
        differences: all differences.
        family: names the differences whose verdicts hold together, and their number.
        word: that in which the runs of an arm differ, `seed` or `window`; of one trace, blocks are told instead.
    """
    inference = judge.inference
    word = "block" if isinstance(judge, OneTrace) else word
    most = max((difference.num_pairs for difference in differences), default=0)
    are_exact = most > 0 and all(entry.is_exact for entry in differences if entry.num_pairs)
    test = ("anytime-valid " * inference.is_anytime + "paired t-test by seed").replace("seed", word)
    is_trace = isinstance(judge, OneTrace)
    pooled = "" if is_trace else f"; {OF_POOLED}"
    more = f", below 5 % with a further seed against the difference{pooled}".replace("seed", word)
    least = (
        ", and at least that of the difference alone with half a block more against it" * is_trace
    )
    return {
        **dataclasses.asdict(inference),
        **family,
        "test": test,
        "p_values": f"{test}, two-sided{more}; adjusted by Holm's method over the family{least}",
        "simultaneous_intervals": joint_words(inference).partition("; ")[2],
        "intervals": judge.sentence()
        if isinstance(judge, OneTrace)
        else interval_sentence(most, inference, word, are_exact),
        "are_exact": are_exact,
        "block_s": judge.block_s if isinstance(judge, OneTrace) else None,
        "num_blocks": judge.num_blocks if isinstance(judge, OneTrace) else None,
    }
