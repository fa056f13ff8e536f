"""A made world whose seeds shift every point: levels, differences and what their intervals hold."""

from pathlib import Path

import numpy as np
import pytest
import xarray as xr

from blis_jax.errors import ConfigError, ConfigWarning
from surrogate import predict
from surrogate.data import Data, load_data
from surrogate.fitting.fit import Settings
from surrogate.levels.data import OwnData, load_own
from surrogate.levels.fit import with_levels
from surrogate.levels.predict import predict_any
from surrogate.levels.scores import any_seeds_table
from surrogate.predictor import Surrogate
from surrogate.regions import BEST, BRANCH, WHOLE
from tests.surrogate import made_data

pytestmark = pytest.mark.lenient_promotion


@pytest.fixture(scope="module")
def both(tmp_path_factory: pytest.TempPathFactory) -> tuple[Data, OwnData]:
    folder = tmp_path_factory.mktemp("seeds")
    data = load_data(made_data.write(folder / "made.zarr", (192, 96, 96), has_baseline=True))
    return data, load_own(made_data.write_own(folder / "own.zarr"), data)


@pytest.fixture(scope="module")
def knowing(surrogate: Surrogate, both: tuple[Data, OwnData]) -> Surrogate:
    """The package's surrogate, whose runs are those of `both`, with what seeds do."""
    return with_levels(surrogate, *both)


def test_the_baseline_changes_nothing_of_the_points(both: tuple[Data, OwnData], data: Data) -> None:
    np.testing.assert_array_equal(both[0].train.runs, data.train.runs)
    assert both[0].num_left_out == 0 and both[0].seeds is not None
    np.testing.assert_array_equal(both[0].seeds.seeds, np.arange(8))


@pytest.mark.statistical
def test_intervals_hold_for_seeds_that_nothing_was_fitted_to(
    knowing: Surrogate, both: tuple[Data, OwnData]
) -> None:
    """128 calibration and 128 test points: sd 3.8 points of a percent, so 4 sd are 15."""
    table = any_seeds_table(knowing, both[1], 0.9)
    whole = table[table["region"] == WHOLE]
    assert (whole["share"] - 0.9).abs().max() < 0.15
    assert {WHOLE, BEST} <= set(table["region"]) <= {WHOLE, BEST, BRANCH}
    one = whole[(whole["output"] == "latency_ms") & (whole["num_seeds"] == 1)]
    width = one.set_index(["seeds", "interval"])["half_width"]
    assert (
        width["given", "level"] < 0.85 * width["unknown", "level"]
    )  # half of the variance is known
    assert width["unknown", "difference"] < 0.5 * width["unknown", "level"]  # seeds cancel


def test_a_level_follows_the_seeds_that_are_given(knowing: Surrogate) -> None:
    seeds = np.arange(1600, 1700)
    order = np.argsort(made_data.covariates_of(seeds)[:, 0])
    point = np.array([[1.0, 50.0, 0.0]])
    slow, fast = (
        predict_any(knowing, point, given=made_data.covariates_of(seeds[chosen]))
        for chosen in (order[-32:], order[:32])
    )
    pair = [one["mean"].sel(output="latency_ms").item() for one in (slow, fast)]
    truth = [
        made_data.runs_at(point, seeds[chosen], 0.0)[0, :, 0].mean()
        for chosen in (order[-32:], order[:32])
    ]
    assert pair[0] / pair[1] == pytest.approx(truth[0] / truth[1], rel=0.06)
    assert slow.attrs["num_seeds"] == 32 and slow.attrs["baseline"] == "made baseline"


def test_requests_unlike_those_of_the_fit_are_warned_of(knowing: Surrogate) -> None:
    far = made_data.covariates_of(np.arange(1600, 1604))
    far[:, 0] += 1000
    with pytest.warns(ConfigWarning, match="span_ms is .* standard deviations off"):
        predict_any(knowing, np.array([[1.0, 50.0, 0.0]]), given=far)


def test_more_seeds_make_it_surer(knowing: Surrogate) -> None:
    point = np.array([[1.0, 50.0, 0.0]])
    few, many = (predict_any(knowing, point, num_seeds=count) for count in (1, 8))
    width = [float((one["high"] - one["low"]).sel(output="latency_ms")[0]) for one in (few, many)]
    assert 0 < width[1] < 0.6 * width[0]
    np.testing.assert_array_equal(few["mean"], many["mean"])


def test_saved_and_loaded_it_knows_the_same(knowing: Surrogate, tmp_path: Path) -> None:
    knowing.save(tmp_path / "made.surrogate")
    again = Surrogate.load(tmp_path / "made.surrogate")
    point = np.array([[1.0, 50.0, 0.0]])
    xr.testing.assert_allclose(predict_any(again, point), predict_any(knowing, point), rtol=1e-6)


def test_the_command_prints_both_intervals(
    knowing: Surrogate, tmp_path: Path, capsys: pytest.CaptureFixture
) -> None:
    knowing.save(tmp_path / "made.surrogate")
    points = tmp_path / "points.csv"
    points.write_text("load,chunk,order\n1.0,50,first\n")
    words = [str(tmp_path / "made.surrogate"), str(points), "--metrics", "latency_ms"]
    assert predict.main(words) == 0
    said = capsys.readouterr().out
    assert "in this pool" in said and "for any 32 seeds" in said
    assert "against made baseline on them" in said
    assert predict.main([*words, "--workload", "mixed"]) == 2
    assert "give --seeds too" in capsys.readouterr().err


def test_what_cannot_go_together_is_refused(
    surrogate: Surrogate, both: tuple[Data, OwnData], data: Data, tmp_path: Path, settings: Settings
) -> None:
    with pytest.raises(ConfigError, match="knows only its pool"):
        predict_any(surrogate, np.zeros((1, 3)))
    own = made_data.write_own(tmp_path / "own.zarr", (16, 16, 16), deck=16)
    with pytest.raises(ConfigError, match="has no baseline"):
        load_own(own, data)
    with pytest.raises(ConfigError, match="that sweeps"):
        load_data(own)
