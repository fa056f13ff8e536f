import dataclasses

import numpy as np
import pytest

from blis_jax.calibrate.calibration import CalibrationPlan, Simulator, calibrate, to_document
from blis_jax.calibrate.fit import (
    Fit,
    FitTarget,
    Latencies,
    mean_concurrency,
    robust_cost,
    starting_points,
)
from blis_jax.calibrate.report import _ends
from blis_jax.calibrate.uncertainty import uncertainty
from blis_jax.calibrate.validation import by_request, cold_start, errors, errors_table, naive
from blis_jax.errors import ConfigError
from tests.calibrate import runs


@pytest.fixture(scope="module")
def exact():
    return runs.measured()


def test_known_coefficients_come_back(exact):
    found = calibrate(exact, runs.CLUSTER, CalibrationPlan(runs.TERMS, num_fitted=30, num_starts=2))
    assert found.fit.values == pytest.approx(runs.TRUE, rel=0.02)
    off = {row.part: abs(row.error) for row in found.errors if row.metric == "tpot_ms"}
    assert off.pop("naive") > 0.01 and max(off.values()) < 1e-3
    assert {row.part for row in found.errors} == {"fitted", "held out", "naive", "all"}
    assert [row.latency for row in found.by_request] == ["ttft_ms", "tpot_ms", "e2e_ms"]
    assert all(row.simulated < 0.1 * row.training_mean for row in found.by_request)
    document = to_document(found)
    assert document["beta_coeffs"] == pytest.approx(found.fit.values[1:].tolist())
    assert document["fit"]["num_fitted"] == 30


def test_requests_held_out_do_not_move_the_fit(exact):
    """Latencies of the last requests may be anything: no number of the fit changes."""
    spoilt = np.where(np.arange(len(exact)) < 25, 1.0, 3.0)
    other = type(exact)(exact.rows, exact.ttft_us * spoilt, exact.e2e_us * spoilt)
    starts = starting_points(exact, runs.TERMS, 1, 0)
    simulator = Simulator(exact, runs.CLUSTER, runs.TERMS)
    is_used = np.arange(len(exact)) < 25
    one, two = (FitTarget(run, is_used).residuals(simulator(starts[0])) for run in (exact, other))
    np.testing.assert_array_equal(one[0], two[0])
    np.testing.assert_array_equal(one[1], two[1])


def test_starts_use_only_the_fitted_requests(exact):
    spoilt = np.where(np.arange(len(exact)) < 25, 1.0, 3.0)
    other = type(exact)(exact.rows, exact.ttft_us * spoilt, exact.e2e_us * spoilt)
    is_used = np.arange(len(exact)) < 25
    one, two = (starting_points(run, runs.TERMS, 3, 0, is_used) for run in (exact, other))
    np.testing.assert_array_equal(one, two)


def test_residuals_have_the_derivatives_of_differences(exact):
    simulator = Simulator(exact, runs.CLUSTER, runs.TERMS)
    target = FitTarget(exact, np.arange(len(exact)) < 40)
    at, step = runs.TRUE * 1.001, 1e-6
    _, slopes = target.residuals(simulator(at))
    for place, size in enumerate(at):
        change = np.zeros(4)
        change[place] = step * size
        up, down = (target.residuals(simulator(at + sign * change))[0] for sign in (1, -1))
        difference = (up - down) / (2 * step * size)
        assert slopes[:, :, place] == pytest.approx(difference, rel=1e-4, abs=1e-9)


def test_what_the_run_cannot_tell_is_named():
    """Two terms with the same effect, and one without any."""
    random = np.random.default_rng(0)
    effect = random.normal(size=(60, 3, 1))
    jacobian = np.concatenate([effect, effect, np.zeros_like(effect), 2 * effect[::-1]], axis=2)
    fit = Fit(
        terms=("beta0", "beta2", "alpha1", "beta1"),
        values=np.array([5.0, 5.0, 1.0, 3.0]),
        cost=1.0,
        residuals=0.01 * random.normal(size=(60, 3)),
        jacobian=jacobian,
        start_costs=(1.0,),
        sizes=(5.0, 5.0, 1.0, 3.0),
    )
    known = uncertainty(fit)
    assert known.is_identified[3] and not known.is_identified[2]
    assert any("alpha1" in remark for remark in known.remarks)
    assert any("nearly singular" in remark for remark in known.remarks)
    assert np.all(known.intervals[:, 0] <= fit.values) and np.all(
        known.intervals[:, 1] >= fit.values
    )


def test_a_term_at_its_bound_is_not_identified():
    random = np.random.default_rng(1)
    fit = Fit(
        terms=("beta0", "beta1"),
        values=np.array([5.0, 0.0]),
        cost=1.0,
        residuals=0.01 * random.normal(size=(60, 3)),
        jacobian=random.normal(size=(60, 3, 2)),
        start_costs=(1.0,),
        sizes=(5.0, 1.0),
    )
    known = uncertainty(fit)
    assert known.is_identified == (True, False)
    assert "bound" in known.remarks[0]


def test_unmeasured_latencies_are_left_out(exact):
    some = np.where(np.arange(len(exact)) % 2, np.nan, 1.0)
    run = type(exact)(exact.rows, exact.ttft_us * some, exact.e2e_us * some)
    target = FitTarget(run, np.ones(len(run), bool))
    zeros = np.zeros((len(run), 1))
    values, slopes = target.residuals(Latencies(exact.ttft_us, exact.e2e_us, zeros, zeros))
    assert values.shape == (20, 3) and slopes.shape == (20, 3, 1)
    assert values == pytest.approx(np.zeros((20, 3)), abs=1e-12)
    with pytest.raises(ConfigError, match="no request"):
        FitTarget(run, np.zeros(len(run), bool))


def test_errors_by_hand(exact):
    rows = errors(exact, exact.ttft_us * 1.1, exact.e2e_us * 1.1, np.arange(40) < 10, "part")
    assert len(rows) == 12
    assert [row.error for row in rows] == pytest.approx([0.1] * 12)
    ttft = next(row for row in rows if (row.metric, row.statistic) == ("ttft_ms", "p90"))
    assert ttft.measured == pytest.approx(np.percentile(exact.ttft_us[:10] / 1e3, 90))
    assert {str(row.cells[-1]) for row in errors_table(rows).rows} == {"+10.0 %"}


def test_the_naive_prediction_by_hand(exact):
    """The fitted requests' own figures, and per request their mean."""
    is_fitted = np.arange(40) < 30
    rows = {(row.metric, row.statistic): row for row in naive(exact, is_fitted)}
    ttft, e2e = exact.ttft_us / 1e3, exact.e2e_us / 1e3
    p90 = rows["ttft_ms", "p90"]
    assert p90.measured == pytest.approx(np.percentile(ttft[30:], 90))
    assert p90.simulated == pytest.approx(np.percentile(ttft[:30], 90))
    found = by_request(exact, exact.ttft_us, exact.e2e_us + 5000.0, is_fitted)[2]
    assert found.simulated == pytest.approx(5.0)
    assert found.training_mean == pytest.approx(np.mean(np.abs(e2e[30:] - e2e[:30].mean())))
    assert not by_request(exact, exact.ttft_us, exact.e2e_us, np.ones(40, bool))


def test_plan_is_checked(exact):
    with pytest.raises(ConfigError, match="--fit-first: got 4, allowed is 5 to 40"):
        calibrate(exact, runs.CLUSTER, CalibrationPlan(runs.TERMS, num_fitted=4))


def test_starts_are_seeded_and_above_zero(exact):
    one, two = (starting_points(exact, runs.TERMS, 5, 3) for _ in range(2))
    np.testing.assert_array_equal(one, two)
    assert len(one) == 5 and np.all(np.asarray(one) > 0)
    assert 1 < mean_concurrency(exact) < 40


def test_robust_cost_is_square_then_linear():
    assert robust_cost(np.array([1e-3])) == pytest.approx(0.5e-6, rel=1e-3)
    assert robust_cost(np.array([1e4])) == pytest.approx(1e4, rel=1e-3)


def test_a_term_with_little_effect_is_not_taken_for_certain():
    """The same relative uncertainty whatever unit a term is counted in."""
    random = np.random.default_rng(2)
    jacobian = random.normal(size=(60, 3, 2))
    residuals = 0.01 * random.normal(size=(60, 3))

    def known(unit: float):
        return uncertainty(
            Fit(
                terms=("beta0", "alpha0"),
                values=np.array([5.0, 1.0 / unit]),
                cost=1.0,
                residuals=residuals,
                jacobian=jacobian * np.array([1.0, unit]),
                start_costs=(1.0,),
                sizes=(5.0, 1.0),
            )
        )

    one, tiny = known(1.0), known(1e-7)
    assert np.ptp(one.intervals[1]) > 0
    assert tiny.intervals[1] == pytest.approx(one.intervals[1] * 1e7, rel=1e-6)
    assert tiny.intervals[0] == pytest.approx(one.intervals[0], rel=1e-6)


def ended(costs: tuple[float, ...], values: tuple[float, ...]) -> Fit:
    """A fit of one term at 5, with starts that ended at these values."""
    random = np.random.default_rng(0)
    return Fit(
        terms=("beta0",),
        values=np.array([5.0]),
        cost=min(costs),
        residuals=0.01 * random.normal(size=(60, 3)),
        jacobian=random.normal(size=(60, 3, 1)),
        start_costs=costs,
        start_values=tuple((value,) for value in values),
        sizes=(5.0,),
    )


def test_starts_that_end_as_well_elsewhere_widen_the_intervals():
    alone = uncertainty(ended((1.0,), (5.0,)))
    near = uncertainty(ended((1.0, 1.5), (5.0, 7.0)))
    worse = uncertainty(ended((1.0, 9.0), (5.0, 7.0)))
    assert near.covariance == pytest.approx(alone.covariance + 2.0)
    assert worse.covariance == pytest.approx(alone.covariance)
    assert near.intervals[0, 1] > 7.0 > alone.intervals[0, 1]


def test_a_cold_start_is_noted_and_can_be_left_out():
    run = runs.measured(noise=0.01)
    late_us = np.where(np.arange(len(run)) < 4, 2e6, 0.0)
    cold = dataclasses.replace(run, ttft_us=run.ttft_us + late_us, e2e_us=run.e2e_us + late_us)
    (note,) = cold_start(cold, run.ttft_us)
    assert note.startswith(
        "the first 4 measured requests have 100 % of what the fit misses of TTFT"
    )
    assert note.endswith("a cold start? --warm-up 4 leaves them out")
    assert cold_start(run, 1.01 * run.ttft_us) == []
    warm = cold.warmed_up(4)
    assert np.isnan(warm.ttft_us).tolist() == [True] * 4 + [False] * (len(run) - 4)
    found = calibrate(warm, runs.CLUSTER, CalibrationPlan(runs.TERMS, num_starts=2))
    np.testing.assert_allclose(found.fit.values[1], runs.TRUE[1], rtol=0.02)
    assert not any("cold start" in remark for remark in found.remarks)
    with pytest.raises(ConfigError, match="--warm-up: got 40, allowed is 0 to 39 requests"):
        cold.warmed_up(40)


@pytest.mark.parametrize(
    ("costs", "words"),
    [
        ((1.0,), "one start was made"),
        ((1.0, 1.0), "all 2 starts end at the same fit"),
        ((1.0, 1.5), "1 of 2 starts end at the best fit"),
        ((1.3, 1.5), "none of 2 starts ended at the best fit, found while"),
        ((1.3,), "the one start did not end at the best fit"),
    ],
)
def test_the_starts_are_told_in_a_sentence_that_answers(costs, words):
    found = dataclasses.replace(ended(costs, costs), cost=1.0)
    assert _ends(found).startswith(words)
