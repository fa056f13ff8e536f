"""Searches beside each other: evaluations of ours over those of a rival, and how far both come, in pairs."""

from __future__ import annotations

import math
from typing import TYPE_CHECKING, Any

import numpy as np
import pandas as pd

from benchmarks.search.judging import Ratio, needed, ratio_of

if TYPE_CHECKING:
    from collections.abc import Sequence

BAR = 2 / 3  # of the best rival's evaluations
SAMPLES, DRAWS = 200, 1000
MOST_TIMES = 10  # as many pairs as there are, of a search for enough
AT_MOST = 0.8  # the ratio that the plan of fresh random states asks about
OURS = (
    "ensemble",
    "ensemble-recommended",
    "denoised",
    "denoised-recommended",
    "ensemble-raced",
    "ensemble-raced-expected",
    "denoised-raced-expected-recommended",
)


def needed_in(search: pd.DataFrame, goal: float) -> float:
    """Return the evaluations of a search up to the first point it stood at that is near enough; infinite if none is."""
    return needed((search["evaluation"] - 1).tolist(), (search["difference"] <= goal).tolist())


def ratio_line(points: pd.DataFrame, ours: str, theirs: str, goal: float, looks: int) -> str:
    """Say the ratio of the evaluations that `ours` needs to those of `theirs`, over the random states of both.

    With several looks at the pairs, each look's interval is wider, so that all of them together hold in 95 % of cases.
    """
    by_state = {
        engine: {
            state: needed_in(search, goal)
            for state, search in points[points["engine"] == engine].groupby("random_state")
        }
        for engine in (ours, theirs)
    }
    states = sorted(by_state[ours].keys() & by_state[theirs].keys())
    counts = [[by_state[engine][state] for state in states] for engine in (ours, theirs)]
    most = float(points["calls"].max())
    ratio = ratio_of(*counts, most)
    said = f"{ratio.ratio:.2f} {_bracket(ratio)}"
    if looks > 1:
        confidence = 1 - 0.05 / looks
        low, high = ratio.interval(confidence)
        sizes = [at * len(states) for at in range(1, looks + 1)]
        shares = [share_below(counts, most, size, confidence) for size in sizes]
        powers = [
            f"{100 * share:.0f} % of samples of {n}" for share, n in zip(shares, sizes, strict=True)
        ]
        verdict = "below" if high < AT_MOST else "above" if low > AT_MOST else "no verdict on"
        said += (
            f" at 95 %; as one of {looks} looks, at {100 * confidence:.1f} %, {_bracket(ratio, confidence)}: {verdict} "
            f"{AT_MOST:g}; if pairs are drawn from these, that interval lies below {AT_MOST:g} in {', '.join(powers)}; "
            f"in 95 % with {pairs_needed(counts, most, sizes[-1], confidence)} pairs"
        )
    return (
        f"Evaluations of {ours} over those of {theirs}, {len(states)} pairs: {said}; against {AT_MOST:g}: "
        f"p = {ratio.p_against(AT_MOST):.2g}. Bootstrap."
    )


def share_below(
    counts: Sequence[Sequence[float]], most: float, pairs: int, confidence: float
) -> float:
    """Return the share of samples of `pairs` pairs in which the interval of their ratio lies below `AT_MOST`."""
    known = np.array(counts, float)
    samples = np.random.default_rng(1).integers(known.shape[1], size=(SAMPLES, pairs))
    ratios = (ratio_of(*known[:, sample], most, DRAWS) for sample in samples)
    return float(np.mean([ratio.interval(confidence)[1] < AT_MOST for ratio in ratios]))


def pairs_needed(
    counts: Sequence[Sequence[float]], most: float, first: int, confidence: float
) -> str:
    """Return the number of pairs, in steps of those at hand, with which `share_below` reaches 95 %."""
    step = len(counts[0])
    sizes = range(first, MOST_TIMES * step + 1, step)
    needed = (size for size in sizes if share_below(counts, most, size, confidence) >= 0.95)
    return str(next(needed, f"more than {MOST_TIMES * step}"))


def _bracket(ratio: Ratio, confidence: float = 0.95) -> str:
    low, high = ratio.interval(confidence)
    return f"[{low:.2f}, {high:.2f}]"


def distance_line(points: pd.DataFrame, ours: str, theirs: str) -> str:
    """Say how much nearer to the reference the ends of `ours` are than those of `theirs`, over the random states of
    both.
    """
    ends = points[points["is_end"]].pivot_table("difference", "random_state", "engine")
    nearer = (ends[theirs] - ends[ours]).dropna().to_numpy()
    drawn = np.random.default_rng(0).choice(nearer, (4000, len(nearer))).mean(axis=1)
    low, high = np.quantile(drawn, [0.025, 0.975])
    return (
        f"Ends of {ours} nearer than those of {theirs} by {nearer.mean():.2f} [{low:.2f}, {high:.2f}] ms in the "
        f"mean, in {int((nearer > 0).sum())} of {len(nearer)} pairs."
    )


def censored(count: float, calls: int) -> str:
    """Write a number of evaluations; infinity, where a search never got near, as more than `calls`."""
    if math.isnan(count):
        return "–"
    return f">{calls}" if math.isinf(count) else f"{count:g}"


def bar_lines(summary: pd.DataFrame) -> list[str]:
    """Say whether engines of ours are as reliable as the best rival with two thirds of its evaluations."""
    rows: dict[str, dict[str, Any]] = {row["engine"]: row for row in summary.to_dict("records")}
    rivals = {
        name: row
        for name, row in rows.items()
        if name.partition("-")[0] not in ("ensemble", "denoised")
    }
    if not rivals:
        return []
    best = max(rivals, key=lambda name: rivals[name]["near"] / rivals[name]["searches"])
    return [_bar_line(rows[name], rivals[best]) for name in OURS if name in rows]


def _bar_line(ours: dict[str, Any], theirs: dict[str, Any]) -> str:
    is_reliable = ours["near"] / ours["searches"] >= theirs["near"] / theirs["searches"]
    words = (
        f"{ours['engine']} against {theirs['engine']}: near enough {ours['near']} of {ours['searches']} against "
        f"{theirs['near']} of {theirs['searches']}, evaluations {ours['needed']} against {theirs['needed']}"
    )
    if ours["needed"].startswith(">"):
        return f"{words}: the bar is not met."
    is_fast = float(ours["needed"]) <= BAR * float(theirs["needed"].removeprefix(">"))
    return f"{words}: the bar is {'met' if is_reliable and is_fast else 'not met'}."
