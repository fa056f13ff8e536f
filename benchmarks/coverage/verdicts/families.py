"""`python -m benchmarks.coverage.verdicts.families`: how often an answer of many differences says something false.

An answer has many differences (classes, metrics, arms), judged together by Holm's method with simultaneous intervals,
as `compare`, `sweep`, `ablate`, ledger and maps do. In the made-up worlds each difference has a standard deviation
of 1 over the seeds, and some are not 0. A verdict is false if it names a difference that is 0, or the wrong side.
Columns: answers with a false verdict by each difference's own 95 % interval, by the family's verdicts, and by the
family's anytime-valid verdicts at any look of `--decide` up to 153 seeds; answers whose simultaneous intervals all
hold the truth; true differences that the family's verdicts find.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import NamedTuple

import numpy as np

from benchmarks.coverage.verdicts.sequential import looks
from benchmarks.coverage.worlds import number_option
from blis_jax.statistics.intervals import BY_STUDENT, Inference
from blis_jax.statistics.paired import BETTER, WORSE, Pair, differences, own_verdict
from papers.pages import print_rows

NUM_SAMPLES, NUM_SEEDS, MOST_SEEDS = 500, 20, 153
SIZE, LARGE = 17, 0.8  # of a family; of an effect, in standard deviations
ANYTIME = Inference(num_resamples=0, is_anytime=True)
Noise = Callable[[np.random.Generator, tuple[int, int]], np.ndarray]


class Answer(NamedTuple):
    """The errors in one answer's verdicts and intervals."""

    is_false_alone: bool
    is_false: bool
    is_false_at_any_look: bool
    all_hold: bool
    share_found: float  # of the differences that are not 0; NaN if there are none


def normal(rng: np.random.Generator, shape: tuple[int, int]) -> np.ndarray:
    """Draw independent differences."""
    return rng.normal(size=shape)


def correlated(rng: np.random.Generator, shape: tuple[int, int]) -> np.ndarray:
    """Draw differences all correlated by 0.9, as metrics of one class are."""
    common = rng.normal(size=shape[1])
    return np.asarray(np.sqrt(0.9) * common + np.sqrt(0.1) * rng.normal(size=shape))


def exponential(rng: np.random.Generator, shape: tuple[int, int]) -> np.ndarray:
    """Draw independent and skewed differences."""
    return rng.exponential(size=shape) - 1


WORLDS: dict[str, tuple[Noise, int]] = {  # noise, and how many of a family are not 0
    "normal, no difference": (normal, 0),
    "normal, 5 differences": (normal, 5),
    "correlated by 0.9, no difference": (correlated, 0),
    "correlated by 0.9, 5 differences": (correlated, 5),
    "exponential, no difference": (exponential, 0),
    "exponential, 5 differences": (exponential, 5),
}


def answered(rng: np.random.Generator, noise: Noise, num_effects: int) -> Answer:
    """Return one answer of made-up differences; effects are of either sign by turns."""
    truths = np.zeros(SIZE)
    truths[:num_effects] = LARGE * (-1.0) ** np.arange(num_effects)
    changes = truths[:, None] + noise(rng, (SIZE, MOST_SEEDS))
    base = 100 + 5 * rng.normal(size=MOST_SEEDS)
    pairs = [Pair(base[:NUM_SEEDS], base[:NUM_SEEDS] + change[:NUM_SEEDS]) for change in changes]
    judged = differences(pairs, BY_STUDENT)
    verdicts = [difference.verdict for difference in judged]
    counts = [count for count in looks() if count <= MOST_SEEDS]
    later = (verdicts_on(base[:count], changes[:, :count]) for count in counts)
    simultaneous = zip(judged, truths, strict=True)
    return Answer(
        is_false(list(map(own_verdict, pairs)), truths),
        is_false(verdicts, truths),
        any(is_false(each, truths) for each in later),
        all(difference.simultaneous.holds(truth) for difference, truth in simultaneous),
        float(np.mean([verdict in (BETTER, WORSE) for verdict in verdicts[:num_effects]]))
        if num_effects
        else np.nan,
    )


def verdicts_on(base: np.ndarray, changes: np.ndarray) -> list[str]:
    """Return anytime-valid verdicts on changes `[difference, seed]`."""
    return [
        difference.verdict
        for difference in differences([Pair(base, base + change) for change in changes], ANYTIME)
    ]


def is_false(verdicts: list[str], truths: np.ndarray) -> bool:
    """Return whether one of the verdicts names a difference that is not there; less is better."""
    return any(
        (verdict == BETTER and truth >= 0) or (verdict == WORSE and truth <= 0)
        for verdict, truth in zip(verdicts, truths, strict=True)
    )


def row(noise: Noise, num_effects: int, num_samples: int) -> str:
    """Return the cells of a world, %."""
    rng = np.random.default_rng(6)
    shares = np.mean([answered(rng, noise, num_effects) for _ in range(num_samples)], axis=0)
    return " | ".join("–" if np.isnan(share) else f"{100 * share:.1f}" for share in shares)


def main() -> None:
    """Print the table."""
    num_samples = number_option(__doc__, "samples", NUM_SAMPLES)
    heads = [
        "false, own intervals", "false, family", "false at any look, anytime-valid",
        "all simultaneous intervals hold", "differences found",
    ]  # fmt: skip
    print(f"% of answers of {SIZE} differences on {NUM_SEEDS} seeds")
    rows = ((name, row(*world, num_samples)) for name, world in WORLDS.items())
    print_rows(("world", *heads), rows)


if __name__ == "__main__":
    main()
