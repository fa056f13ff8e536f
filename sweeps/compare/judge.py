"""The judges that turn arms' runs into intervals and verdicts: over seeds or windows, or over the requests of one
trace.

The requests of one trace are resampled in blocks of arrival time, with the same blocks for all arms.
"""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np

from blis_jax.errors import ConfigError
from blis_jax.metrics.run_summary import GOOD, REJECTED, RequestFigures, RunSummary
from blis_jax.metrics.scalars import lookup
from blis_jax.metrics.summaries import ALL, LATENCIES
from blis_jax.statistics import intervals, paired
from blis_jax.statistics import moving_blocks as blocks
from blis_jax.statistics.intervals import Estimate, Inference
from blis_jax.statistics.moving_blocks import BlockResampling, Resampled, ResampledPair
from blis_jax.statistics.paired import OF_POOLED, Difference, joint_words
from sweeps.runs.measured import metric_values, num_values, pair_of

if TYPE_CHECKING:
    from blis_jax.traces.source import TraceSource
    from sweeps.compare.document import CommonSetting

LATENCIES_LOOKED_AT = ("ttft", "e2e")
TAIL = 0.99
LEAST_OF_CLASS = 30  # requests from which a class has intervals; a P99 needs 100

SHARES = {"attainment": (GOOD, 1.0), "slo_miss_rate": (GOOD, -1.0), "reject_rate": (REJECTED, 1.0)}


def check_block(block_s: float | None, trace: TraceSource | None) -> None:
    """Refuse a block length that no judge would use, or that leaves too few blocks in the trace."""
    if block_s is None:
        return
    if trace is None or trace.num_windows is not None:
        why = "without --trace" if trace is None else "with --trace-windows, each a run"
        raise ConfigError(f"--block-s has no meaning {why}; leave it out")
    longest = trace.span_s / blocks.LEAST_BLOCKS
    if not 0 < block_s <= longest:
        raise ConfigError(
            f"--block-s: got {block_s:g}, allowed is above 0 up to {longest:.4g}, so that the trace of "
            f"{trace.span_s:.4g} s holds {blocks.LEAST_BLOCKS} blocks"
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
        self.arms, self.inference = arms, inference
        requests = [run.requests for arm in arms for run in arm]
        self._kept: dict[tuple[int, Ingredient], Resampled] = {}
        self.is_short = False  # against the time over which differences stay alike
        self.num_requests = max(
            (len(of_run) for of_run in requests if of_run is not None), default=0
        )
        self.resamplings: list[BlockResampling] = []
        self.chosen = np.ones((inference.num_resamples, 1), np.int64)
        if self.num_requests >= blocks.LEAST_REQUESTS:
            self._lay_blocks(arms, block_s)

    def _lay_blocks(self, arms: Sequence[Sequence[RunSummary]], block_s: float | None) -> None:
        by_seed = list(zip(*arms, strict=True))
        present = [next((run.requests for run in runs if run.requests), None) for runs in by_seed]
        bins = [
            blocks.time_bins(outcomes.arrivals()) for outcomes in present if outcomes is not None
        ]
        if len(bins) < len(present):
            return
        num_bins = min(outcomes.num_bins for outcomes in bins)
        if block_s is None:
            series = _series(arms[0][0].requests, arms, num_bins)
            length = blocks.usual_length(series)
            self.is_short = blocks.longest_wanted(series) > length
        else:
            length = max(
                min(math.ceil(block_s / bins[0].bin_s), num_bins // blocks.LEAST_BLOCKS), 1
            )
        weights = blocks.block_weights(num_bins, length, self.inference)
        self.resamplings = [
            BlockResampling(blocks.time_bins(outcomes.arrivals(), num_bins), length, weights)
            for outcomes in present
            if outcomes is not None
        ]
        self.chosen = blocks.seed_counts(len(by_seed), self.inference)

    @property
    def num_blocks(self) -> int:
        """Return the number of blocks of the trace; 0 if the trace has too few requests."""
        return self.resamplings[0].num_blocks if self.resamplings else 0

    @property
    def block_s(self) -> float | None:
        """Return the length of a block, s; None if the trace has no blocks."""
        return self.resamplings[0].block_s if self.resamplings else None

    def differences(
        self, compared: Sequence[tuple[Sequence[RunSummary], Sequence[RunSummary], str]]
    ) -> list[Difference]:
        """Return second minus first for every entry (first, second, metric), judged together."""
        pairs = [
            ResampledPair(
                self.resampled(first, name), self.resampled(second, name), lookup(name)[0].direction
            )
            for first, second, name in compared
        ]
        return blocks.differences(pairs, self.num_blocks, self.inference)

    def interval(self, runs: Sequence[RunSummary], name: str) -> Estimate:
        """Return the interval of one arm's metric, from resamples of the trace."""
        resampled = self.resampled(runs, name)
        return blocks.interval_of(resampled, self.num_blocks, self.inference.confidence)

    def resampled(self, runs: Sequence[RunSummary], name: str) -> Resampled:
        """Return one arm's metric as measured and in every resample; with several seeds the mean over the runs."""
        values = np.array([run.metrics.get(name, math.nan) for run in runs])
        value, how = float(values.mean()), ingredient_of(name)
        if how is None or not self.resamplings or any(run.requests is None for run in runs):
            return blocks.only_a_value(value, self.inference.num_resamples)
        parts = [
            self._part(run.requests, resampling, how)
            for run, resampling in zip(runs, self.resamplings, strict=True)
            if run.requests is not None
        ]
        return dataclasses.replace(blocks.average(parts, self.chosen), value=value)

    def _part(
        self, requests: RequestFigures, resampling: BlockResampling, how: Ingredient
    ) -> Resampled:
        """Return a statistic of one run in every resample; several seeds that share one run are resampled once."""
        key = id(requests), how
        if key not in self._kept:
            column, least = requests.column(how.column, how.slo_class), LEAST_OF_CLASS
            if how.level is None:
                resampled = resampling.mean(column)
            else:
                resampled = resampling.quantile(column, how.level)
                least = max(least, round(1 / (1 - how.level)))
            if np.isfinite(column).sum() < least:  # a percentile of so few is one of them
                resampled = blocks.only_a_value(resampled.value, self.inference.num_resamples)
            self._kept[key] = (
                resampled if how.sign > 0 else Resampled(1 - resampled.value, 1 - resampled.draws)
            )
        return self._kept[key]

    def sentence(self) -> str:
        """Return a sentence on how single intervals are computed."""
        level = f"{100 * self.inference.confidence:g} %"
        if not self.resamplings:
            return (
                f"none: {self.num_requests} requests are too few for an interval from one trace, which "
                f"needs {blocks.LEAST_REQUESTS}"
            )
        resampling = self.resamplings[0]
        warning = (
            "; neighbouring requests are alike for longer than a block, so these intervals are too narrow; "
            "a longer trace has better ones"
        ) * self.is_short
        return (
            f"bootstrap of the trace in blocks of {resampling.block_s:.3g} s of arrivals, the same for all arms "
            f"({resampling.num_blocks} blocks, {self.inference.num_resamples} resamples), {level}{warning}"
        )


def _series(
    first: RequestFigures | None, arms: Sequence[Sequence[RunSummary]], num_bins: int
) -> list[np.ndarray]:
    """Return each arm's differences from the reference by bin of time: latencies, and requests beyond each arm's
    P99."""
    series: list[np.ndarray] = [np.zeros(num_bins)]
    for arm in arms[1:]:
        other = arm[0].requests
        if first is None or other is None or len(first) != len(other):
            continue
        bins = blocks.time_bins(first.arrivals(), num_bins)
        for name in LATENCIES_LOOKED_AT:
            before, after = first.column(name, None), other.column(name, None)
            for change in (after - before, _beyond(after) - _beyond(before)):
                change = np.nan_to_num(change - np.nanmean(change))
                series.append(np.bincount(bins.place, change, num_bins))
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
        word: that in which the runs of an arm differ, `seed` or `window`.
    """
    inference, is_resampled = judge.inference, isinstance(judge, OneTrace)
    most = max((difference.num_pairs for difference in differences), default=0)
    are_exact = most > 0 and all(entry.is_exact for entry in differences if entry.num_pairs)
    test = "t-test with the resamples' standard error" if is_resampled else "paired t-test by seed"
    more = (
        ""
        if is_resampled
        else f", below 5 % with a further seed against the difference; {OF_POOLED}"
    )
    test = ("anytime-valid " * inference.is_anytime + test).replace("seed", word)
    return {
        **dataclasses.asdict(inference),
        **family,
        "test": test,
        "p_values": f"{test}, two-sided{more.replace('seed', word)}; adjusted by Holm's method over the family",
        "simultaneous_intervals": joint_words(inference).partition("; ")[2],
        "intervals": judge.sentence()
        if isinstance(judge, OneTrace)
        else interval_sentence(most, inference, word, are_exact),
        "are_exact": are_exact,
        "block_s": judge.block_s if isinstance(judge, OneTrace) else None,
    }
