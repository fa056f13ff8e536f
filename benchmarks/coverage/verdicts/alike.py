"""`python -m benchmarks.coverage.verdicts.alike`: how often an answer finds a difference between arms that are alike.

The runs are real ones, of pairs of strategies on the built-in burst `mixed`. Two ways make the arms alike:

- *exchanged*: on each seed it is drawn which strategy's run goes by which name, so that no figure differs in truth;
- *one percentile*, *one mean*: the second arm's latencies, or its figures of each run, are scaled so that both arms
  have the same P99, or mean, over all seeds, while their distributions stay as different as the strategies make them.
  Seeds are drawn with replacement.

Printed are the % of answers with any verdict "better" or "worse", by what an answer is about, and by its number of
seeds; in the last column of `--decide`, which looks at 20, 30, 45, … seeds. A second table has the tests that a
verdict on a pooled P99 asks, each as if it were asked alone, for three classes on 20 seeds and each pair of strategies.
A third table has the verdict by pair of strategies of one percentile; beside it, in how many % of the differences that
are there it finds them. A fourth has answers about figures of each run, with the worst pair of strategies in brackets,
and answers about every two of all six strategies, as `compare --routers` gives them; on fewer seeds than a verdict
takes it says what the test alone would name. A fifth has the last of these by Student's t alone and with the further
seed of `blis_jax.statistics.skewed`, and how much of what differs in truth either finds. All are on seeds by which no
rule was chosen.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import replace
from itertools import combinations

import numpy as np

from benchmarks.coverage.verdicts.sequential import looks
from benchmarks.coverage.worlds import number_option
from blis_jax.backend import prepare_backend
from blis_jax.metrics.measure import DEFAULT_TARGETS, Measure
from blis_jax.metrics.run_summary import RunSummary
from blis_jax.statistics.intervals import BY_STUDENT, CONFIDENCE, Inference
from blis_jax.statistics.paired import (
    BETTER,
    WORSE,
    Pair,
    differences,
    fewest_for_verdict,
    holm,
    number_against,
    p_of_counts,
    p_value,
    with_some_against,
)
from papers.pages import print_rows
from sweeps.runs.experiment import Experiment
from sweeps.runs.measured import Recorder, metric_values, pair_of
from sweeps.runs.requests import load_workload
from sweeps.strategies.arms import arm_of

ARMS = (
    "iter00_baseline", "iter13_class_lead@found", "iter21_intent@found", "iter23_thin_tiers@begun",
    "iter22_joint@found", "iter25_every_class@found",
)  # fmt: skip
PAIRS = ((1, 2), (2, 3), (0, 1), (2, 4), (0, 5), (0, 3))
CLASSES = ("critical", "standard", "sheddable")
NUM_SAMPLES, POOL, FIRST_SEED = 300, 800, 600_000
SEEDS_OF_PAIRS, FOUND_IN_ONE_OF = (20, 30, 50, 100, 200, 500), 3
SEEDS, SEEDS_OF_TESTS, MOST_SEEDS = (5, 10, 20, 50, 100), 20, 153
SEEDS_BY_RUN = (3, 4, 5, 6, 8, 10, 20, 50, 100)
ANYTIME = Inference(num_resamples=0, is_anytime=True)
POOLED = tuple(f"pooled_ttft_p99_ms[{name}]" for name in CLASSES)
POOLED_E2E = tuple(f"pooled_e2e_p99_ms[{name}]" for name in CLASSES)
BY_RUN = tuple(f"ttft_p99_ms[{name}]" for name in CLASSES)
MEANS = tuple(f"ttft_mean_ms[{name}]" for name in CLASSES)
FAMILIES: Mapping[str, Sequence[str]] = {
    "TTFT P99 pooled, critical alone": POOLED[:1],
    "TTFT P99 pooled, sheddable alone": POOLED[2:],
    "TTFT P99 pooled, 3 classes": POOLED,
    "E2E P99 pooled, 3 classes": POOLED_E2E,
    "all of these, tokens/s, goodput: 14": (
        *MEANS, *BY_RUN, *POOLED, *POOLED_E2E, "output_tokens_per_s", "goodput_rps",
    ),
}  # fmt: skip
OF_RUN = {
    f"{title}, 3 classes": tuple(f"{metric}[{name}]" for name in CLASSES)
    for title, metric in (
        ("TTFT mean", "ttft_mean_ms"), ("TTFT P99", "ttft_p99_ms"), ("TPOT mean", "tpot_mean_ms"),
        ("E2E P99", "e2e_p99_ms"), ("goodput", "goodput_rps"),
    )
}  # fmt: skip
ALL_OF_RUN = (*(name for names in OF_RUN.values() for name in names), "output_tokens_per_s")
FAMILIES_BY_RUN: Mapping[str, Sequence[str]] = {
    **OF_RUN, "output tokens/s": ALL_OF_RUN[-1:], f"all of these: {len(ALL_OF_RUN)}": ALL_OF_RUN,
}  # fmt: skip
ALL_ARMS = tuple(range(len(ARMS)))
MORE_BY_RUN = 4  # times as many, since its tests are quick
MORE_SAMPLES = {"TTFT P99 pooled, 3 classes": 4}  # times as many for what `compare` headlines
EXCHANGED = "exchanged"
ONE_MEAN, AS_THEY_ARE = "one mean", "as they are"
KINDS = (EXCHANGED, "one percentile")
TESTS: Mapping[str, Callable[[Pair], float]] = {
    "t on contributions": lambda pair: p_value(pair.change()),
    "the same with further seeds against": lambda pair: p_value(
        with_some_against(pair.change(), number_against(SEEDS_OF_TESTS))
    ),
    "numbers above a common value": lambda pair: p_of_counts(of_counts(pair)),
    "the verdict": lambda pair: pair.p_value(),
}
Runs = Sequence[RunSummary]


def of_counts(pair: Pair) -> np.ndarray:
    """Return a pair's numbers of requests above common values, by which a pooled percentile is tested."""
    assert pair.excess is not None
    return pair.excess


def recorded(num_seeds: int) -> list[Runs]:
    """Return the runs of every strategy on `num_seeds` seeds."""
    names = (*ALL_OF_RUN, "goodput_rps")
    recorder = Recorder(names, Measure(DEFAULT_TARGETS), CLASSES)
    seeds = range(FIRST_SEED, FIRST_SEED + num_seeds)
    experiment = Experiment.on(load_workload("mixed"), seeds, "jax")
    return [experiment.summaries([arm_of(text).config], recorder)[0] for text in ARMS]


def exchanged(rng: np.random.Generator, first: Runs, second: Runs, size: int) -> tuple[Runs, Runs]:
    """Return the runs of `size` drawn seeds, with the strategies' names drawn anew on each."""
    seeds = rng.choice(len(first), size, replace=False)
    names = rng.random(size) < 0.5
    arms = [
        (second[at], first[at]) if is_swapped else (first[at], second[at])
        for at, is_swapped in zip(seeds, names, strict=True)
    ]
    return [first for first, _ in arms], [second for _, second in arms]


def of_one_percentile(first: Runs, second: Runs) -> Runs:
    """Return the second arm's runs with each class's latencies scaled to the first arm's pooled P99."""
    factors = {
        (latency, name): metric_values(first, f"pooled_{latency}_p99_ms[{name}]").mean()
        / metric_values(second, f"pooled_{latency}_p99_ms[{name}]").mean()
        for latency in ("ttft", "e2e")
        for name in CLASSES
    }
    return [replace(run, tails=_scaled(run, factors)) for run in second]


def _scaled(
    run: RunSummary, factors: Mapping[tuple[str, str], float]
) -> dict[str, dict[str, list[float]]]:
    return {
        latency: {
            name: [kept[0], *(value * factors[latency, name] for value in kept[1:])]
            for name, kept in by_class.items()
            if name in CLASSES
        }
        for latency, by_class in run.tails.items()
    }


def is_false(first: Runs, second: Runs, names: Sequence[str], inference: Inference) -> bool:
    """Return whether any of the metrics, judged together, gets the verdict better or worse."""
    pairs = [pair_of(first, second, name) for name in names]
    return any(
        difference.verdict in (BETTER, WORSE) for difference in differences(pairs, inference)
    )


def drawn(
    rng: np.random.Generator, kind: str, first: Runs, second: Runs, size: int
) -> tuple[Runs, Runs]:
    """Draw the runs of two arms on `size` seeds; where `kind` is exchanged, draw each seed's names anew."""
    if kind == EXCHANGED:
        return exchanged(rng, first, second, size)
    seeds = rng.integers(0, len(first), size)
    return [first[at] for at in seeds], [second[at] for at in seeds]


def worlds(arms: Sequence[Runs], kind: str) -> list[tuple[Runs, Runs]]:
    """Return the pairs of strategies, the second's latencies scaled to the first's P99 unless names are exchanged."""
    pairs = [(arms[first], arms[second]) for first, second in PAIRS]
    if kind == EXCHANGED:
        return pairs
    return [(first, of_one_percentile(first, second)) for first, second in pairs]


def print_answers(arms: Sequence[Runs], num_samples: int) -> None:
    """Print how often an answer names a difference; each sample takes the next pair of strategies."""
    every = [count for count in looks() if count <= MOST_SEEDS]
    print_rows(("answer", "arms", "answers", *(f"{n} seeds" for n in SEEDS), "--decide"), ())
    for family, names in FAMILIES.items():
        for kind in KINDS:
            if kind != EXCHANGED and not set(names) <= {*POOLED, *POOLED_E2E}:
                continue
            rng, pairs = np.random.default_rng(11), worlds(arms, kind)
            count = MORE_SAMPLES.get(family, 1) * num_samples
            wrong = np.zeros((count, len(SEEDS) + 1), bool)
            for sample in range(count):
                runs = drawn(rng, kind, *pairs[sample % len(pairs)], MOST_SEEDS)
                wrong[sample] = [
                    *(is_false(runs[0][:n], runs[1][:n], names, BY_STUDENT) for n in SEEDS),
                    any(is_false(runs[0][:n], runs[1][:n], names, ANYTIME) for n in every),
                ]
            shares = " | ".join(f"{100 * share:.1f}" for share in wrong.mean(axis=0))
            print(f"| {family} | {kind} | {count} | {shares} |", flush=True)


def alike_by_run(
    rng: np.random.Generator, kind: str, values: Mapping[str, np.ndarray], size: int
) -> dict[str, np.ndarray]:
    """Return figures `[arm, seed]` by name on `size` drawn seeds, of arms that are made alike as `kind` says."""
    num_arms, num_seeds = next(iter(values.values())).shape
    if kind != EXCHANGED:
        seeds = rng.integers(0, num_seeds, size)
        if kind == AS_THEY_ARE:
            return {name: of[:, seeds] for name, of in values.items()}
        means = {name: of.mean(axis=1, keepdims=True) for name, of in values.items()}
        return {name: of[:, seeds] * (means[name][0] / means[name]) for name, of in values.items()}
    seeds = rng.choice(num_seeds, size, replace=False)
    names = np.argsort(rng.random((num_arms, size)), axis=0)
    return {name: np.take_along_axis(of[:, seeds], names, 0) for name, of in values.items()}


def falsely_named(drawn: Mapping[str, np.ndarray]) -> Iterator[bool]:
    """Yield for each number of seeds, and for `--decide`, whether the test names any two arms in any figure."""
    yield from (bool(named(drawn, size).any()) for size in SEEDS_BY_RUN)
    yield any(named(drawn, size, True).any() for size in looks() if size <= MOST_SEEDS)


def named(
    drawn: Mapping[str, np.ndarray], size: int, is_anytime: bool = False, is_guarded: bool = True
) -> np.ndarray:
    """Return which differences between any two arms the first `size` seeds tell from chance, judged together."""
    p_values = [
        Pair(first[:size], second[:size]).p_value(is_anytime, is_guarded)
        for of in drawn.values()
        for first, second in combinations(of, 2)
    ]
    return holm(np.array(p_values)) <= 1 - CONFIDENCE


def print_by_run(arms: Sequence[Runs], num_samples: int) -> None:
    """Print how often an answer about figures of each run is false; in brackets the worst pair of strategies."""
    fewest = fewest_for_verdict(CONFIDENCE)
    few = {size: ", no verdict" * (size < fewest) for size in SEEDS_BY_RUN}
    sizes = (*(f"{size} seeds{words}" for size, words in few.items()), "--decide")
    print_rows(("answer by run", "arms", "answers", *sizes), ())
    values = {name: np.array([metric_values(runs, name) for runs in arms]) for name in ALL_OF_RUN}
    families: dict[str, tuple[Sequence[str], Sequence[Sequence[int]]]] = {
        title: (names, PAIRS) for title, names in FAMILIES_BY_RUN.items()
    }
    title = "TTFT P99, 3 classes, every two of six strategies: 45"
    families[title] = OF_RUN["TTFT P99, 3 classes"], [ALL_ARMS]
    for title, (names, groups) in families.items():
        for kind in (EXCHANGED, ONE_MEAN):
            rng, count = np.random.default_rng(17), MORE_BY_RUN * num_samples // len(groups)
            shares = np.array([
                np.mean([
                    list(falsely_named(alike_by_run(
                        rng, kind, {name: values[name][list(places)] for name in names}, MOST_SEEDS
                    )))
                    for _ in range(count)
                ], axis=0)
                for places in groups
            ])  # fmt: skip
            cells = [
                f"{100 * mean:.1f}" + (f" ({100 * worst:.0f})" if len(groups) > 1 else "")
                for mean, worst in zip(shares.mean(axis=0), shares.max(axis=0), strict=True)
            ]
            print(f"| {title} | {kind} | {count * len(groups)} | {' | '.join(cells)} |", flush=True)
    print()
    print_further_seed({name: values[name] for name in OF_RUN["TTFT P99, 3 classes"]}, num_samples)


def print_further_seed(values: Mapping[str, np.ndarray], num_samples: int) -> None:
    """Print what a further seed changes where every two of six strategies are judged, by Student's t → by verdicts."""
    sizes = [size for size in SEEDS_BY_RUN if size >= fewest_for_verdict(CONFIDENCE)]
    print_rows(("every two of six strategies, %", *(f"{size} seeds" for size in sizes)), ())
    for title, kind in (("false answers", ONE_MEAN), ("differences found", AS_THEY_ARE)):
        rng, shares = np.random.default_rng(19), np.zeros((len(sizes), 2))
        for _ in range(num_samples):
            drawn = alike_by_run(rng, kind, values, MOST_SEEDS)
            for row, size in enumerate(sizes):
                for at, is_guarded in enumerate((False, True)):
                    found = named(drawn, size, is_guarded=is_guarded)
                    shares[row, at] += (
                        found.any() if kind == ONE_MEAN else found.mean()
                    ) / num_samples
        cells = (" → ".join(f"{100 * share:.1f}" for share in of_size) for of_size in shares)
        print(f"| {title} | {' | '.join(cells)} |", flush=True)


def print_tests(arms: Sequence[Runs], num_samples: int) -> None:
    """Print how often each test by itself names a difference in the pooled TTFT P99 of three classes."""
    shares = np.zeros((len(TESTS), len(KINDS), len(PAIRS)))
    for column, kind in enumerate(KINDS):
        for at, pair_of_arms in enumerate(worlds(arms, kind)):
            rng = np.random.default_rng(7)
            for _ in range(num_samples):
                runs = drawn(rng, kind, *pair_of_arms, SEEDS_OF_TESTS)
                pairs = [pair_of(*runs, name) for name in POOLED]
                for row, test in enumerate(TESTS.values()):
                    p_values = np.array([test(pair) for pair in pairs])
                    shares[row, column, at] += (holm(p_values) <= 0.05).any() / num_samples
    print_rows((f"test, {SEEDS_OF_TESTS} seeds", *KINDS), (
        (name, *(", ".join(f"{100 * share:.1f}" for share in of_kind) for of_kind in by_kind))
        for name, by_kind in zip(TESTS, shares, strict=True)
    ))  # fmt: skip


def print_pairs(arms: Sequence[Runs], num_samples: int) -> None:
    """Print how often an answer about three classes is false, and finds what is there, for each pair of strategies."""
    print_rows(
        ("pair of strategies", *(f"{size} seeds: false, found" for size in SEEDS_OF_PAIRS)), ()
    )
    for places in PAIRS:
        first, second = (arms[place] for place in places)
        alike, rng, cells = of_one_percentile(first, second), np.random.default_rng(13), []
        for size in SEEDS_OF_PAIRS:
            false, are_found = 0, list[bool]()
            for sample in range(num_samples):
                seeds = rng.integers(0, len(first), size)
                before, scaled, after = (
                    [runs[at] for at in seeds] for runs in (first, alike, second)
                )
                false += is_false(before, scaled, POOLED, BY_STUDENT)
                if not sample % FOUND_IN_ONE_OF:
                    pairs = [pair_of(before, after, name) for name in POOLED]
                    judged = differences(pairs, BY_STUDENT)
                    are_found += [difference.verdict in (BETTER, WORSE) for difference in judged]
            cells.append(f"{100 * false / num_samples:.1f}, {100 * np.mean(are_found):.0f}")
        names = " and ".join(ARMS[place].partition("_")[0] for place in places)
        print(f"| {names} | {' | '.join(cells)} |", flush=True)


def main() -> None:
    """Print the table."""
    num_samples = number_option(__doc__, "samples", NUM_SAMPLES)
    prepare_backend(use_cache=True)
    arms = recorded(POOL)
    print_answers(arms, num_samples)
    print()
    print_tests(arms, num_samples)
    print()
    print_pairs(arms, num_samples)
    print()
    print_by_run(arms, num_samples)


if __name__ == "__main__":
    main()
