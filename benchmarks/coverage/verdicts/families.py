"""`python -m benchmarks.coverage.verdicts.families`: how often an answer of many differences says something false.

The first table has all pairs of two, four and six arms, on 6 to 50 seeds, in worlds of several shapes. Arms are alike
in their mean, and differ in spread or shape, so that differences are skewed; then every second arm leads. Columns:
answers with a false verdict, and true differences that are found, in %; before the arrow by Student's t alone, behind
it by the p-value of verdicts, which allows for a further seed where it is small (`blis_jax.statistics.skewed`).

The second table has families of 17 on 20 seeds.

An answer has many differences (classes, metrics, arms), judged together by Holm's method with simultaneous intervals,
as `compare`, `sweep`, `ablate`, ledger and maps do. In the made-up worlds each difference has a standard deviation
of 1 over the seeds, and some are not 0. A verdict is false if it names a difference that is 0, or the wrong side.
Columns: answers with a false verdict by each difference's own 95 % interval, by the family's verdicts, and by the
family's anytime-valid verdicts at any look of `--decide` up to 153 seeds; answers whose simultaneous intervals all
hold the truth; true differences that the family's verdicts find.
"""

from __future__ import annotations

from collections.abc import Callable
from itertools import combinations
from typing import NamedTuple

import numpy as np

from benchmarks.coverage.verdicts.sequential import looks
from benchmarks.coverage.worlds import number_option
from blis_jax.statistics.intervals import BY_STUDENT, CONFIDENCE, Inference
from blis_jax.statistics.paired import BETTER, WORSE, Pair, differences, holm, own_verdict
from papers.pages import print_rows

NUM_SAMPLES, NUM_SEEDS, MOST_SEEDS = 500, 20, 153
SIZE, LARGE = 17, 0.8  # of a family; of an effect, in standard deviations
ANYTIME = Inference(num_resamples=0, is_anytime=True)
ARMS, SEEDS = (2, 4, 6), (6, 10, 20, 50)  # of the first table
LEAD = 5.0  # of every second arm, in standard errors of a figure of standard deviation 1
Noise = Callable[[np.random.Generator, tuple[int, int]], np.ndarray]


# --- all pairs of some arms -----------------------------------------------------------------------


def normal_arms(rng: np.random.Generator, shape: tuple[int, int]) -> np.ndarray:
    """Draw figures `[arm, seed]` of mean 0 that are normal, as all worlds of the first table have mean 0."""
    return rng.normal(size=shape)


def skewed_arms(rng: np.random.Generator, shape: tuple[int, int]) -> np.ndarray:
    """Draw exponential figures, of which each arm has half the spread of the one before."""
    scales = 0.5 ** np.arange(shape[0])
    return np.asarray(scales[:, None] * (rng.exponential(size=shape) - 1))


def heavy_arms(rng: np.random.Generator, shape: tuple[int, int]) -> np.ndarray:
    """Draw figures with the tails of Student's t with three degrees of freedom."""
    return rng.standard_t(3, size=shape) / np.sqrt(3)


def counted_arms(rng: np.random.Generator, shape: tuple[int, int]) -> np.ndarray:
    """Draw numbers of events less their mean: of every second arm in groups of four, of the others one by one."""
    sizes = np.where(np.arange(shape[0]) % 2, 4, 1)[:, None]
    return np.asarray(sizes * rng.poisson(1 / sizes, size=shape) - 1.0)


def mostly_equal_arms(rng: np.random.Generator, shape: tuple[int, int]) -> np.ndarray:
    """Draw figures that are equal on seven seeds of ten, and normal on the others."""
    return rng.normal(size=shape) * (rng.random(shape[1]) < 0.3)


def rarely_bad_arms(rng: np.random.Generator, shape: tuple[int, int]) -> np.ndarray:
    """Draw figures that are better by little on most seeds, and worse by ten times as much on one seed in eleven."""
    is_bad = (rng.random(shape) < 1 / 11) * (np.arange(shape[0]) % 2)[:, None]
    better = (np.arange(shape[0]) % 2)[:, None]
    return 11 * is_bad - 1.0 * better + 0.3 * rng.normal(size=shape)


PAIRED_WORLDS: dict[str, Noise] = {
    "normal": normal_arms,
    "skewed": skewed_arms,
    "heavy tails": heavy_arms,
    "counts": counted_arms,
    "equal on most seeds": mostly_equal_arms,
    "bad on one seed in eleven": rarely_bad_arms,
}


def named(figures: np.ndarray, *, is_guarded: bool) -> np.ndarray:
    """Return the signs of the named differences, second less first, of all pairs of `figures` `[arm, seed]`."""
    pairs = [Pair(first, second) for first, second in combinations(figures, 2)]
    adjusted = holm(np.array([pair.p_value(is_guarded=is_guarded) for pair in pairs]))
    signs = np.array([np.sign(pair.change().sum()) for pair in pairs])
    return np.where(adjusted <= 1 - CONFIDENCE, signs, 0.0)


def paired_cell(noise: Noise, num_arms: int, num_seeds: int, num_samples: int) -> tuple[str, str]:
    """Return % of answers with a false verdict, and of true differences found, by t alone and by the verdict."""
    rng, level = np.random.default_rng(num_arms), 100.0
    leads = LEAD / np.sqrt(num_seeds) * (np.arange(num_arms) % 2)[:, None]
    truths = -np.sign([second - first for first, second in combinations(leads[:, 0], 2)])
    false, found = np.zeros((num_samples, 2)), np.zeros((num_samples, 2))
    for sample in range(num_samples):
        alike = level + noise(rng, (num_arms, num_seeds))
        for at, is_guarded in enumerate((False, True)):
            false[sample, at] = named(alike, is_guarded=is_guarded).any()
            signs = named(alike - leads, is_guarded=is_guarded)
            found[sample, at] = (signs == truths)[truths != 0].mean()
    cells = [" → ".join(f"{100 * share:.0f}" for share in of.mean(axis=0)) for of in (false, found)]
    return cells[0], cells[1]


# --- families of one size -------------------------------------------------------------------------


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
    print(
        "% of answers about all pairs of some arms: false, Student's t → verdict; found, t → verdict"
    )
    print_rows(("world", "differences", *(f"{count} seeds: false, found" for count in SEEDS)), (
        (name, len(list(combinations(range(arms), 2))),
         *("; ".join(paired_cell(noise, arms, count, num_samples)) for count in SEEDS))
        for name, noise in PAIRED_WORLDS.items()
        for arms in ARMS
    ))  # fmt: skip
    print()
    heads = [
        "false, own intervals", "false, family", "false at any look, anytime-valid",
        "all simultaneous intervals hold", "differences found",
    ]  # fmt: skip
    print(f"% of answers of {SIZE} differences on {NUM_SEEDS} seeds")
    rows = ((name, row(*world, num_samples)) for name, world in WORLDS.items())
    print_rows(("world", *heads), rows)


if __name__ == "__main__":
    main()
