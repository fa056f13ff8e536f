"""Slopes of means, percentiles and rates against central differences of the metrics themselves."""

import numpy as np
import pytest

from blis_jax.errors import ConfigError
from blis_jax.metrics.scalars import evaluate
from blis_jax.runs.derivatives.slopes import (
    SMOOTH_METRICS,
    _Moving,
    grad,
    metric_slopes,
    percentile_slopes,
)
from blis_jax.runs.derivatives.times import Derivatives, Differentiator
from tests.runs.derivatives.test_times import (
    SMOOTH,
    STEPS,
    is_same_path,
    moved,
    settings,
    thousands,
)

NAMES = (*SMOOTH_METRICS, "ttft_p90_ms[critical]", "e2e_mean_ms[batch]")
WRT = ("alpha0", "beta0", "beta1")


@pytest.fixture(scope="module")
def differentiate() -> Differentiator:
    return Differentiator(WRT, SMOOTH)


@pytest.fixture(scope="module")
def found(differentiate: Differentiator) -> Derivatives:
    return differentiate.run(settings(), thousands(0))


def test_every_metric_moves_as_its_slope_says(differentiate, found):
    slopes = metric_slopes(found, NAMES)
    for place, name in enumerate(WRT):
        h = STEPS[name]
        ahead, back = (
            differentiate.run(*moved(settings(), thousands(0), name, sign * h)).record
            for sign in (1, -1)
        )
        assert is_same_path(ahead, back), name
        one, other = evaluate(ahead, NAMES), evaluate(back, NAMES)
        for metric in NAMES:
            change = (one[metric] - other[metric]) / (2 * h)
            slope = slopes[metric].slopes[place]
            assert change == pytest.approx(slope, rel=1e-5, abs=1e-7), (metric, name)


def test_values_are_those_of_the_metrics(found):
    values = evaluate(found.record, NAMES)
    for name, slope in metric_slopes(found, NAMES).items():
        assert slope.value == values[name]
        assert slope.slopes.shape == (len(WRT),) and np.all(np.isfinite(slope.slopes))


def test_slopes_have_labels_and_units(found):
    slopes = metric_slopes(found, ["ttft_mean_ms", "output_tokens_per_s"])
    dataset = slopes.to_dataset()
    assert dataset["slope"].dims == ("metric", "direction")
    assert dataset["unit"].values.tolist() == ["ms", "1/s"]
    assert dict(zip(WRT, dataset["direction_unit"].values, strict=True)) == {
        "alpha0": "µs", "beta0": "µs", "beta1": "µs/token",
    }  # fmt: skip
    mine = dataset["slope"].sel(metric="ttft_mean_ms", direction="beta0")
    assert float(mine) == slopes["ttft_mean_ms"].slopes[1]
    assert f"{float(mine):+.4g} ms per µs of beta0" in repr(slopes)
    requests = found.to_dataset()
    assert requests["d_ttft_us"].attrs["units"] == "µs per direction_unit"
    np.testing.assert_array_equal(requests["d_ttft_us"].sel(direction="beta1"), found.ttft_us[2])


def test_the_gradient_is_the_slopes_by_name(found):
    by_name = grad(settings(), thousands(0), "e2e_p99_ms", WRT, SMOOTH)
    slopes = metric_slopes(found, ["e2e_p99_ms"])["e2e_p99_ms"].slopes
    assert by_name == dict(zip(WRT, slopes.tolist(), strict=True))


def test_percentiles_of_a_weighted_sample_move_with_their_neighbours():
    values, weights = np.array([30.0, 10.0, 20.0]), np.array([1, 2, 1])  # 10 10 20 30
    sample = _Moving(values, np.array([[3.0, 1.0, 2.0]]), weights)
    assert percentile_slopes(sample, 50) == pytest.approx([1.5])
    assert percentile_slopes(sample, 0) == pytest.approx([1.0])
    assert percentile_slopes(sample, 100) == pytest.approx([3.0])


def test_metrics_that_count_are_refused(found):
    with pytest.raises(ConfigError, match="no pathwise derivative"):
        metric_slopes(found, ["attainment"])
    with pytest.raises(ConfigError, match="unknown"):
        metric_slopes(found, ["ttft_p98_ms"])
