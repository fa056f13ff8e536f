"""Coverage commands of random policies, grouped jackknives, penalties and families, at a small size."""

from __future__ import annotations

import numpy as np
import pytest

from benchmarks.coverage import policy_randomness
from benchmarks.coverage.searches import grouped, penalties, racing
from benchmarks.coverage.verdicts import alike as alike_arms
from benchmarks.coverage.verdicts import families, maps
from benchmarks.coverage.worlds import mean_wait
from benchmarks.search.judging import grouped_error
from blis_jax.policies.seeds import policy_seed

METRICS = len(policy_randomness.METRICS)


def test_one_policy_seed_for_all_makes_intervals_that_miss_the_truth() -> None:
    """Made-up runs: the policy's part of an interval is drawn once, or on every seed."""
    rng = np.random.default_rng(0)
    shape = (3, 40 * 20, METRICS)

    def runs(policy: np.ndarray) -> np.ndarray:
        return np.array(5 + rng.normal(size=shape) + policy)

    alike = np.repeat(rng.normal(size=(3, 40, METRICS)), 20, axis=1)
    lines = policy_randomness.table(
        runs(rng.normal(size=shape)), runs(alike), runs(rng.normal(size=shape)), 20
    )
    assert len(lines) == len(policy_randomness.FIGURES) * METRICS
    cells = np.array([line.split(" | ")[2:] for line in lines])
    anew, fixed, width = (np.char.strip(column, " |").astype(float) for column in cells.T)
    assert anew.mean() > 88 and fixed.mean() < 60 and (width < 0.9).all()


@pytest.mark.slow
def test_a_gate_with_one_policy_seed_sheds_the_same_requests_of_every_seed() -> None:
    alike = policy_randomness.measured(range(3), [policy_seed(7)] * 3)
    anew = policy_randomness.measured(range(3), [policy_seed(seed) for seed in range(3)])
    rejected = policy_randomness.METRICS.index("reject_rate")
    assert np.ptp(alike[0, :, rejected]) < np.ptp(anew[0, :, rejected])
    np.testing.assert_array_equal(alike[2], anew[2])  # without a gate nothing is drawn


def test_groups_of_one_seed_are_the_jackknife_of_a_mean() -> None:
    values = np.random.default_rng(1).normal(size=50)
    error = grouped_error(lambda places: float(values[places].mean()), 50, 50)
    assert error == pytest.approx(values.std(ddof=1) / np.sqrt(50))
    in_tens = grouped_error(lambda places: float(values[places].mean()), 50, 5)
    means = values.reshape(5, 10).mean(axis=1)
    assert in_tens == pytest.approx(means.std(ddof=1) / np.sqrt(5))


def test_a_jackknife_over_groups_holds_away_from_the_limit() -> None:
    """60 samples of 64 seeds at 95 %; fewer than 51 have a chance under 0.2 %."""
    cells = grouped.scores(grouped.normal_world, 64, 60)
    shares = [float(cell.partition(" / ")[0]) for cell in cells]
    assert shares[0] >= 85
    assert shares[grouped.BEYOND.index(1)] < shares[0]  # the mean may lie on the limit's other side


def test_expected_penalties_end_within_the_limit() -> None:
    world = penalties.WORLDS["best at the limit"]
    broken = {
        rule: float((world.excess[penalties.ends(world, rule, 8, 25)] > 0).mean())
        for rule in ("seed-mean", "expected")
    }
    assert broken["expected"] < broken["seed-mean"]


def test_the_best_points_of_the_worlds_are_where_the_worlds_say() -> None:
    at_limit, within, queue = (world.regret for world in penalties.WORLDS.values())
    assert penalties.SLACKS[at_limit.argmin()] == 0 and penalties.SLACKS[within.argmin()] == 30
    assert penalties.LOADS[queue.argmin()] == pytest.approx(penalties.LIMITED_LOAD)
    assert queue.min() == 0 and (queue >= 0).all()
    assert penalties.WORLDS["M/M/1"].excess[-1] == pytest.approx(mean_wait(0.85) - mean_wait(0.7))


def test_families_say_less_that_is_false_than_single_intervals() -> None:
    """30 answers of 17 differences that are not there: own intervals err in 58 %, the family in 5 %."""
    rng = np.random.default_rng(2)
    found = [families.answered(rng, families.normal, 0) for _ in range(30)]
    alone, together, at_any_look, hold, _ = np.mean(found, axis=0)
    assert alone > 0.3 and together < 0.25 and at_any_look < 0.25 and hold == 1 - together


def test_a_verdict_is_false_on_the_wrong_side() -> None:
    truths = np.array([-1.0, 1.0])
    assert not families.is_false(["better", "worse"], truths)
    assert families.is_false(["worse", "worse"], truths)
    assert not families.is_false(["unclear", "unclear"], truths)


def test_rungs_end_nearer_with_as_many_runs() -> None:
    """12 searches each, always the same; `python -m benchmarks.coverage.searches.racing` has more."""
    world = penalties.WORLDS["best at the limit"]
    usual, raced = (
        racing.cell(world, "expected", racing.WAYS[way], 12) for way in ("16 seeds", "4, 16 and 64")
    )
    assert raced[0] < usual[0] and raced[1] < 1.2 and usual[1] == 1


@pytest.mark.slow
@pytest.mark.lenient_promotion  # jax.numpy promotes implicitly in what recommends
def test_a_model_that_says_who_goes_on_ends_nearer_than_luck() -> None:
    """12 searches each, with at most as many runs as 16 seeds for every point take."""
    world = penalties.WORLDS["best at the limit"]
    raced, modelled = (
        racing.cell(world, "expected", racing.WAYS[way], 12)
        for way in ("4, 16 and 64", "4 to 256 by a model")
    )
    assert modelled[0] < raced[0] and modelled[1] <= 1


def test_maps_recommend_what_leads_and_nothing_where_nothing_does() -> None:
    """60 cells each: six wrong ones of 60 have a chance of 8 % at a rate of 5 %, and the seeds are fixed."""
    wrong = maps.row(maps.World(maps.normal, 2, 0.0), 60).split(" | ")
    right = maps.row(maps.World(maps.normal, 2, 1.0), 60).split(" | ")
    broken = maps.row(maps.World(maps.normal, 2, 1.0, -3.0), 60).split(" | ")
    edge = maps.row(maps.World(maps.normal, 2, 1.0, 0.0), 60).split(" | ")
    assert max(float(one[place]) for one in (wrong, broken, edge) for place in (1, 3)) < 10
    assert min(float(right[0]), float(right[2]), float(broken[2])) > 90


def test_arms_by_run_are_alike_in_the_mean_and_are_named_where_they_are_not() -> None:
    """Figures of two arms that are far apart: alike in the mean either way, and named where nothing is done to them."""
    rng = np.random.default_rng(5)
    values = {"figure": np.array([rng.normal(100, 5, 800), rng.normal(50, 5, 800)])}
    for kind in (alike_arms.EXCHANGED, alike_arms.ONE_MEAN):
        first, second = alike_arms.alike_by_run(rng, kind, values, 800)["figure"]
        assert first.mean() == pytest.approx(second.mean(), rel=0.06)
    named = list(alike_arms.falsely_named({"figure": values["figure"][:, :153]}))
    assert named == [True] * (len(alike_arms.SEEDS_BY_RUN) + 1)
