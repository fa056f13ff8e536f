"""Percentiles of pooled requests: exact from the kept tails, and with intervals that hold the truth."""

import numpy as np
import pytest
from scipy import stats

from blis_jax.metrics.run_summary import NUM_EXACT, RANKS, Tails, kept_of, tails_of_runs
from blis_jax.statistics.intervals import estimate
from blis_jax.statistics.paired import p_value
from blis_jax.statistics.pooled import (
    NUM_VALUES,
    contributions_ms,
    excess_against,
    excess_counts,
    excess_score,
    only,
    whole,
)
from sweeps.runs.measured import pooled_pair


def tails(runs: list[np.ndarray | None]) -> Tails:
    return tails_of_runs([None if run is None else kept_of(np.sort(run)) for run in runs])


def drawn(rng: np.random.Generator, num_runs: int, size: int) -> list[np.ndarray]:
    """Latencies in µs that a run has in common with itself, and some of its own."""
    level = rng.normal(0, 0.15, num_runs)
    return [np.exp(11 + own + rng.normal(0, 0.4, size)).astype(np.int64) for own in level]


@pytest.mark.parametrize("size", [20, 400, 3000])
def test_the_mean_of_the_contributions_is_harrells_and_daviss_percentile(size: int) -> None:
    """Exactly while no run has more than 32 near or above it; of 3,000 requests some have."""
    runs = drawn(np.random.default_rng(size), 20, size)
    pool = np.concatenate(runs) / 1000
    (expected,) = stats.mstats.hdquantiles(pool, [0.99])
    found = contributions_ms(tails(runs)).mean()
    assert found == pytest.approx(expected, rel=1e-9 if size < 3000 else 1e-3)
    assert found == pytest.approx(np.percentile(pool, 99), rel=0.05 if size == 20 else 0.01)


def test_the_spread_is_that_of_leaving_out_each_run() -> None:
    """The estimate is smooth, so its infinitesimal jackknife is the jackknife."""
    runs = drawn(np.random.default_rng(8), 40, 300)
    parts = contributions_ms(tails(runs))
    without = np.array(
        [contributions_ms(tails([*runs[:at], *runs[at + 1 :]])).mean() for at in range(40)]
    )
    jackknife = 40 * parts.mean() - 39 * without
    assert np.corrcoef(parts, jackknife)[0, 1] > 0.99
    assert parts.std() == pytest.approx(jackknife.std(), rel=0.1)


def test_differences_of_nearly_equal_arms_are_not_taken_for_certain() -> None:
    """The same requests are the slowest in both arms: counts beyond the P99 would see no difference at all."""
    rng = np.random.default_rng(9)
    changes, errors = [], []
    for _ in range(100):
        runs = drawn(rng, 20, 200)
        slower = [run * rng.normal(1.01, 0.005, 200) for run in runs]
        change = contributions_ms(tails(slower)) - contributions_ms(tails(runs))
        changes.append(change.mean())
        errors.append(change.std(ddof=1) / np.sqrt(20))
    assert 0.9 < np.sqrt(np.mean(np.square(errors))) / np.std(changes) < 2  # on the safe side


def test_ranks_are_whole_first_and_a_tenth_apart_then() -> None:
    assert RANKS[:NUM_EXACT] == tuple(range(NUM_EXACT))
    later = np.array(RANKS[NUM_EXACT - 1 :]) + 1
    assert np.all(np.diff(later) >= 1) and np.all(later[1:] <= 1.1 * later[:-1] + 1)
    assert RANKS[-1] > 10_000


def test_a_run_counts_by_its_requests_not_as_one_of_many() -> None:
    """One busy run of a hundred makes the whole tail, where the mean of the runs' P99 hardly sees it."""
    runs = [np.full(100, 1000) for _ in range(99)] + [np.full(1000, 50_000)]
    found = contributions_ms(tails(runs))
    assert found.mean() == pytest.approx(50.0)
    assert np.mean([np.percentile(run, 99) for run in runs]) / 1000 < 2


def test_runs_that_did_not_end_are_left_out() -> None:
    runs = drawn(np.random.default_rng(3), 6, 300)
    holed = tails([*runs[:2], None, *runs[2:]])
    assert whole(holed).tolist() == [True, True, False, True, True, True, True]
    found = contributions_ms(holed)
    assert np.isnan(found[2])
    assert np.delete(found, 2) == pytest.approx(contributions_ms(tails(runs)))
    some = only(tails(runs), np.arange(6) < 4)
    assert contributions_ms(some)[:4] == pytest.approx(contributions_ms(tails(runs[:4])))


def test_no_request_at_all_has_no_percentile() -> None:
    empty = tails([np.array([], np.int64)] * 3)
    assert np.isnan(contributions_ms(empty)).all()


def test_a_class_without_requests_in_some_run() -> None:
    runs = [*drawn(np.random.default_rng(4), 5, 200), np.array([], np.int64)]
    found = contributions_ms(tails(runs))
    assert np.isfinite(found).all()
    assert found.mean() == pytest.approx(contributions_ms(tails(runs[:5])).mean())


def test_intervals_of_differences_hold_the_truth() -> None:
    """300 samples of 30 runs; below 92 % or above 99 % has a chance under 1 % at a coverage of 95 to 96 %."""
    rng = np.random.default_rng(11)
    ratio, held = 0.8, []
    truth = np.percentile(np.concatenate(drawn(rng, 4000, 100)), 99) / 1000 * (ratio - 1)
    for _ in range(300):
        runs = drawn(rng, 30, 100)
        faster = [run * ratio * np.exp(rng.normal(0, 0.05)) for run in runs]
        change = contributions_ms(tails(faster)) - contributions_ms(tails(runs))
        held.append(estimate(change).holds(truth))
    assert 0.92 <= np.mean(held) <= 0.99


def bursty(rng: np.random.Generator, num_runs: int, share: float = 0.15) -> list[np.ndarray]:
    """Latencies of runs of which a few are busy and make most of the tail."""
    is_busy = rng.random(num_runs) < share
    return [np.exp(11 + 1.5 * busy * rng.random() + rng.normal(0, 0.2, 200)) for busy in is_busy]


def swapped(rng: np.random.Generator, num_seeds: int) -> tuple[Tails, Tails]:
    """Two arms of which nobody knows which is which."""
    arms = [bursty(rng, num_seeds), [0.7 * run for run in bursty(rng, num_seeds, 0.3)]]
    is_other = rng.random(num_seeds) < 0.5
    return (
        tails([arms[int(other)][at] for at, other in enumerate(is_other)]),
        tails([arms[1 - int(other)][at] for at, other in enumerate(is_other)]),
    )


def test_excesses_are_the_numbers_above_each_value_less_one_in_a_hundred() -> None:
    rng = np.random.default_rng(3)
    arms = [[rng.integers(1, 10**6, size) for size in (20, 30, 0, 25)] for _ in range(2)]
    excess = excess_counts(*map(tails, arms))
    pool = np.sort(np.concatenate([run for arm in arms for run in arm]))[::-1]
    assert excess.shape == (len({*range(1, 8)}), 2, 4)  # ranks 1 to 7 of 150, 5 % of them
    for row, value in zip(excess, pool[7:0:-1], strict=True):
        wanted = [[(run > value).sum() - 0.01 * len(run) for run in arm] for arm in arms]
        assert row == pytest.approx(np.array(wanted))
    assert excess_counts(*map(tails, reversed(arms))) == pytest.approx(excess[:, ::-1])
    assert len(excess_counts(*[tails([np.arange(1, 4001)] * 9)] * 2)) <= NUM_VALUES


def test_seeds_that_did_not_end_are_left_out_of_both_arms() -> None:
    first, second = swapped(np.random.default_rng(4), 6)
    is_whole = np.arange(6) != 2
    kept = [Tails(arm.count[is_whole], arm.top_us[is_whole]) for arm in (first, second)]
    assert excess_counts(only(first, is_whole), second) == pytest.approx(excess_counts(*kept))
    nothing = [only(arm, np.zeros(6, bool)) for arm in (first, second)]
    assert excess_counts(*nothing).shape == (0, 2, 0)


def test_the_score_is_the_least_distance_of_both_means_from_0() -> None:
    """Hotelling's T² by an inverse matrix; values at which a variance is 0 say nothing."""
    rng = np.random.default_rng(5)
    excess = rng.normal(size=(6, 2, 12)) + np.arange(6)[:, None, None] - 2.5
    squares = [
        12 * (row.mean(axis=1) @ np.linalg.inv(np.cov(row)) @ row.mean(axis=1)) for row in excess
    ]
    wanted = np.sqrt(min(squares) * 10 / 11)
    assert excess_score(excess) == pytest.approx(wanted)
    with_constant = np.concatenate([excess, np.zeros((1, 2, 12))])
    assert excess_score(with_constant) == pytest.approx(wanted)
    assert excess_score(excess[..., :2]) == excess_score(excess[:0]) == 0.0


def test_a_seed_against_has_the_largest_excess_in_the_arm_that_seems_better() -> None:
    excess = np.array([[[1.0, 2.0, 3.0], [5.0, 7.0, 9.0]]])
    assert excess_against(excess, True, 0.5)[0, :, 3].tolist() == [4.5, 3.5]
    assert excess_against(excess, False, 0.5)[0, :, 3].tolist() == [1.0, 4.5]


def test_verdicts_on_arms_that_are_alike_are_seldom_wrong() -> None:
    """Student's t alone is wrong in one of eight of these at 5 %."""
    rng, wrong = np.random.default_rng(6), np.zeros(2)
    for _ in range(400):
        pair = pooled_pair(*swapped(rng, 20), "lower")
        wrong += p_value(pair.change()) < 0.05, pair.p_value() < 0.05
    assert wrong[0] / 400 > 0.08
    assert wrong[1] / 400 < 0.05
