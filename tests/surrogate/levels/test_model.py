from __future__ import annotations

import dataclasses

import numpy as np
import pytest

from blis_jax.workload.table import NEVER_US, RequestTable
from surrogate.levels.model import (
    COVARIATES,
    DIFFERENCE,
    FOLDS,
    GIVEN,
    LEVEL,
    SIMULATED,
    UNKNOWN,
    Levels,
    Noise,
    covariates,
    key,
    least_held,
    regress,
    waits,
)


def made_levels() -> Levels:
    """One covariate in units of 2 about 10, two outputs, a point's feature that doubles the slope."""
    weights = np.zeros((2, 2, 2))
    weights[0, 0], weights[1, 0], weights[1, 1, 0] = (0.5, 0.0), (1.0, -1.0), 1.0
    noise = Noise(np.array([1.0, 1.0]), np.array([3.0, 0.0]), np.array([0.5, 0.0]))
    return Levels(
        np.array([10.0, 7.0]), np.array([2.0, 0.0]), np.zeros(2),
        np.concatenate([weights, np.zeros((1, 2, 2))]), np.array([100.0, 5.0]),
        np.array([[1.0, 0.0], [4.0, 0.0], [0.0, 0.0]]), {GIVEN: noise, UNKNOWN: noise},
        {"given level 1": np.ones((2, 3))}, np.zeros(3, np.int32), "b", "{}", 5.0,
    )  # fmt: skip


def test_a_level_moves_with_the_covariates_and_the_point() -> None:
    levels = made_levels()
    level = levels.standard(np.array([14.0, 9.0]))
    assert level.tolist() == [2.0, 0.0]  # what never varies says nothing
    phi = np.array([[1.0, 0.0], [1.0, 1.0]])
    np.testing.assert_allclose(levels.shift(phi, level), [[2.5, -2.0], [4.5, -2.0]])
    each = np.array([[2.0, 0.0], [0.0, 0.0]])
    np.testing.assert_allclose(levels.shift(phi, each), [[2.5, -2.0], [0.5, 0.0]])
    np.testing.assert_allclose(levels.baseline_at(level), [109.0, 5.0])


def beside_levels() -> Levels:
    """The same, knowing that the second output moves with the baseline's first, whose runs have an sd of 10."""
    beside = np.zeros((5, 2, 2))
    beside[3, 0, 1] = 2.0
    return dataclasses.replace(
        made_levels(), baseline_spread=np.array([10.0, 0.0]), beside=beside,
        noise=made_levels().noise | {SIMULATED: Noise(np.ones(2), np.zeros(2), np.zeros(2))},
        settings={"num_instances": 3}, targets={"critical": {"ttft_ms": 90.0}},
    )  # fmt: skip


def test_a_level_moves_with_what_the_baseline_did() -> None:
    levels = beside_levels()
    level = levels.standard(np.array([14.0, 9.0]), np.array([115.0, 6.0]))
    assert level.tolist() == [2.0, 0.0, 1.5, 0.0]
    phi = np.array([[1.0, 0.0], [1.0, 1.0]])
    np.testing.assert_allclose(levels.shift(phi, level, SIMULATED), [[0.0, 3.0]] * 2)
    np.testing.assert_allclose(levels.baseline_at(level[:2]), [109.0, 5.0])
    one = np.ones((1, 2))
    sigma = levels.sigma(SIMULATED, DIFFERENCE, 0 * one, one, 4)
    np.testing.assert_allclose(sigma, [[0.5, 0.5]])  # no more than that of the metric


def test_the_difference_from_a_simulated_baseline_has_the_metrics_scores() -> None:
    assert key(SIMULATED, DIFFERENCE, 4) == key(SIMULATED, LEVEL, 4) != key(GIVEN, LEVEL, 4)
    assert key(GIVEN, DIFFERENCE, 4) != key(GIVEN, LEVEL, 4)


def test_more_seeds_leave_what_is_fixed() -> None:
    levels = made_levels()
    fixed, run_sd = np.array([[4.0, 0.0]]), np.array([[3.0, 2.0]])
    np.testing.assert_allclose(levels.sigma(GIVEN, LEVEL, fixed, run_sd, 1), [[5.0, 2.0]])
    np.testing.assert_allclose(levels.sigma(GIVEN, LEVEL, fixed, run_sd, 10**8)[0, 0], 4.0)
    of_both = np.sqrt(16 + 9 + 9 - 2 * 0.5 * 9)
    np.testing.assert_allclose(levels.sigma(GIVEN, DIFFERENCE, fixed, run_sd, 1)[0, 0], of_both)


def test_scores_are_those_of_the_most_seeds_that_are_no_more() -> None:
    scores = {f"given level {rung}": np.ones((2, 3)) for rung in (1, 2, 8)}
    levels = dataclasses.replace(made_levels(), scores=scores)
    assert [levels.rung(count) for count in (1, 3, 8, 5000)] == [1, 2, 8, 8]


def test_what_is_written_is_read_again() -> None:
    levels = beside_levels()
    again = Levels.read(levels.arrays(), levels.document())
    assert again.baseline == "b" and again.rate_rps == 5.0
    assert again.settings == levels.settings and again.targets == levels.targets
    np.testing.assert_array_equal(again.weights, levels.weights)
    np.testing.assert_array_equal(again.beside, levels.beside)
    assert again.noise[UNKNOWN].baseline.tolist() == [3.0, 0.0] and SIMULATED in again.modes


def test_what_an_earlier_version_wrote_is_read_without_the_last_mode() -> None:
    levels = made_levels()
    document = levels.document()
    del document["settings"], document["targets"]
    tree = levels.arrays()
    assert "beside" not in tree  # a checkpoint cannot hold what is empty
    assert Levels.read(tree, document).modes == (GIVEN, UNKNOWN)


def test_regression_finds_main_effects_and_products() -> None:
    rng = np.random.default_rng(0)
    phi = np.column_stack([np.ones(600), rng.uniform(-1, 1, 600)])
    level = rng.normal(size=(600, 2))
    both = np.stack([2 + level[:, 0], level[:, 1] * (1 + 3 * phi[:, 1])], axis=1) + rng.normal(
        0, 0.1, (600, 2)
    )
    weights, left = regress(phi, level, both, np.arange(600) % FOLDS)
    np.testing.assert_allclose(weights[0, 0], [2, 0], atol=0.1)
    np.testing.assert_allclose(weights[1:, 0], [[1, 0], [0, 1]], atol=0.2)
    assert abs(weights[2, 1, 0]) < 0.1 and 1.5 < weights[2, 1, 1] < 3  # shrunk: 100 of 600 runs
    assert left[:, 0].std() < 0.15 and left[:, 1].std() < 0.6 * both[:, 1].std()


def test_what_fits_only_the_points_of_the_fit_is_left_out() -> None:
    """Each point goes its own way with the seeds: a product helps on other seeds of these points alone."""
    rng = np.random.default_rng(1)
    num_points, each = 24, 60
    point = np.repeat(np.arange(num_points), each)
    feature = rng.uniform(
        -1, 1, (num_points, 12)
    )  # half as many as points, so points are told apart
    phi = np.column_stack([np.ones(len(point)), feature[point]])
    level = rng.normal(size=(len(point), 1))
    slope = 1 + rng.normal(0, 0.5, num_points)
    target = (slope[point] * level[:, 0] + rng.normal(0, 0.1, len(point)))[:, None]
    fold = rng.integers(0, FOLDS, len(point))
    by_seeds, _ = regress(phi, level, target, fold)
    by_points, left = regress(phi, level, target, fold, point)
    products = [np.abs(one[1, 1:, 0]).sum() for one in (by_seeds, by_points)]
    assert products[1] < 0.5 * products[0] and abs(by_points[1, 0, 0] - slope.mean()) < 0.1
    is_tried = ~np.isnan(left[:, 0])
    np.testing.assert_array_equal(is_tried, fold == point % FOLDS)


def test_a_handful_of_runs_is_fitted_too() -> None:
    fold = np.array([0, 1])
    weights, left = regress(np.ones((2, 1)), np.zeros((2, 1)), np.ones((2, 1)), fold, fold + 1)
    assert not np.isnan(left).any() and weights[0, 0, 0] > 0


def table_of(
    arrival_us: list[int], prompt: list[int], output: list[int], slo: list[int]
) -> RequestTable:
    """A table of these columns; a summary reads no other."""
    blank = {field.name: np.zeros(len(slo), np.int32) for field in dataclasses.fields(RequestTable)}
    given = {"arrival_us": arrival_us, "input_len": prompt, "output_len": output, "slo_class": slo}
    return RequestTable(**blank | {name: np.array(column) for name, column in given.items()})


def test_waits_are_those_of_a_queue_served_one_by_one() -> None:
    rng = np.random.default_rng(0)
    arrival, service = np.sort(rng.uniform(0, 50, 40)), rng.uniform(0.1, 3.0, 40)
    free, expected = 0.0, []
    for at, takes in zip(arrival, service, strict=True):
        expected.append(max(free - at, 0.0))
        free = max(free, at) + takes
    np.testing.assert_allclose(waits(arrival, service), expected, atol=1e-9)


def test_covariates_of_three_requests() -> None:
    table = table_of([0, 20_000, 160_000], [100, 300, 200], [10, 5, 40], [1, 2, 1])
    found = dict(zip(COVARIATES, covariates(table, 100.0), strict=True))
    assert found["span_ms"] == 160 and found["longest_output"] == 40
    assert found["last_end_at_10ms"] == 160 + 400
    assert found["tokens_per_ms_at_10ms"] == 55 / 560
    assert found["most_in_50ms"] == 2 and found["most_in_150ms"] == 2
    assert found["requests[critical]"] == 2 and found["requests[sheddable]"] == 0
    assert found["prompt_tokens[standard]"] == 300 and found["output_tokens[critical]"] == 50
    assert found["output_p50[all]"] == 10 and found["output_p50[sheddable]"] == 0
    # a request of mean length takes 10 ms at 100 requests/s: the second waits for none, at half the rate too
    assert found["wait_at_1_mean[all]"] == 0


def test_a_burst_waits_and_rows_that_pad_do_not_count() -> None:
    burst = table_of([0, 0, 0, int(NEVER_US)], [100] * 4, [10] * 4, [1, 1, 2, 1])
    found = dict(zip(COVARIATES, covariates(burst, 100.0), strict=True))
    assert found["wait_at_1_mean[all]"] == 10.0  # 0, 10 and 20 ms
    assert found["wait_at_2_mean[standard]"] == 10.0  # the last, at twice the rate
    assert found["requests[critical]"] == 2


@pytest.mark.parametrize("shared", [0.3, 0.8])
def test_on_nine_sets_of_ten_at_least_so_many_points_are_held(shared: float) -> None:
    """Against 2,000 sets of 400 points with normal errors, of which a part is common to a set."""
    rng = np.random.default_rng(6)
    common, own = rng.normal(size=(2000, 1)), rng.normal(size=(2000, 400))
    is_held = np.abs(np.sqrt(shared) * common + np.sqrt(1 - shared) * own) < 1.6449
    least = float(least_held(np.array(shared), 0.9))
    assert (is_held.mean(axis=1) >= least).mean() == pytest.approx(0.9, abs=0.03)
    assert float(least_held(np.array(0.0), 0.9)) == pytest.approx(0.9)


def test_what_the_seeds_share_shrinks_with_their_number() -> None:
    levels, fixed, run_sd = made_levels(), np.array([[1.0, 2.0]]), np.array([[4.0, 0.0]])
    np.testing.assert_allclose(levels.shared(GIVEN, fixed, run_sd, 4), [[0.8, 0.0]], atol=1e-12)
    np.testing.assert_allclose(levels.shared(GIVEN, fixed, run_sd, 16), [[0.5, 0.0]], atol=1e-12)
