"""A made world whose seeds shift every point: levels, differences and what their intervals hold."""

import dataclasses
from pathlib import Path

import numpy as np
import pytest
import xarray as xr

from blis_jax.errors import ConfigError, ConfigWarning
from surrogate import predict
from surrogate.columns import BEST, BRANCH, WHOLE
from surrogate.data import Data, Part, load_data
from surrogate.fitting.network import Settings
from surrogate.levels.fit import (
    OwnData,
    any_seeds_table,
    common_seeds_table,
    load_own,
    unexplained_table,
    with_levels,
)
from surrogate.levels.model import SIMULATED
from surrogate.levels.predict import predict_any
from surrogate.predictor import Surrogate
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
    assert (
        width["simulated", "level"] < 0.7 * width["given", "level"]
    )  # two noisy runs beside a seed


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


def baseline_runs(seeds: np.ndarray) -> np.ndarray:
    """The baseline's runs on seeds of a deck, as the dataset has them, `[seed, output]`."""
    runs = made_data.runs_at(np.array([[1.0, 0.0, 0.0]]), np.arange(1000, 1768), 0.02)[0]
    return np.column_stack([runs[seeds - 1000], np.zeros(len(seeds))])


def test_a_level_follows_the_simulated_baseline(
    knowing: Surrogate, both: tuple[Data, OwnData]
) -> None:
    seeds = np.arange(1520, 1552)  # of the test points' deck
    np.testing.assert_allclose(both[1].seeds.baseline[520:552], baseline_runs(seeds), rtol=1e-6)
    points, given = both[1].test.inputs[:24], made_data.covariates_of(seeds)
    truth = made_data.runs_at(points, seeds, 0.0)[..., 0].mean(axis=1)
    blind, seeing = (
        predict_any(knowing, points, given=given, baseline=runs)
        for runs in (None, baseline_runs(seeds))
    )
    off = [
        abs(float(np.log(one["mean"].sel(output="latency_ms") / truth).mean()))
        for one in (blind, seeing)
    ]
    assert seeing.attrs["seeds"] == "simulated" and off[1] < min(off[0], 0.01)
    np.testing.assert_allclose(seeing["difference"], seeing["mean"] - seeing["baseline"])
    np.testing.assert_allclose(seeing["baseline"][3], baseline_runs(seeds).mean(axis=0))
    reach = seeing["difference_high"] - seeing["difference"]
    np.testing.assert_allclose(
        reach.sel(output="latency_ms"),
        (seeing["high"] - seeing["mean"]).sel(output="latency_ms"),
        rtol=1e-6,
    )


def test_common_seeds_are_known_better_beside_the_baseline(
    knowing: Surrogate, both: tuple[Data, OwnData]
) -> None:
    deck = np.arange(1512, 1768)
    order = np.argsort(made_data.seed_effects(deck))
    seeds = deck[
        np.concatenate([order[:32], order[-32:]])
    ]  # a set of fast ones, and one of slow ones
    points = both[1].test.inputs[:40]
    part = Part(points, np.pad(made_data.runs_at(points, seeds, 0.02), ((0, 0), (0, 0), (0, 1))))
    found = common_seeds_table(knowing, part, seeds, both[1].seeds, 0.9)
    one = found[found["output"] == "latency_ms"]
    assert one["first_seed"].tolist() == [seeds[0], seeds[32]] and (one["num_seeds"] == 32).all()
    assert (1 - one["r2_simulated"] < 0.5 * (1 - one["r2_pool"])).all()
    assert (
        one["r2"] > one["r2_pool"]
    ).all()  # such seeds are rare: what requests do not tell, all points share
    assert (one["share_simulated"] > one["share"] + 0.5).all()
    assert (one["half_width_simulated"] < one["half_width"]).all()
    left = unexplained_table(knowing, both[1]).set_index("output").loc["latency_ms"]
    assert left["beside_baseline"] < 0.5 * left["at_points"] < 0.4  # requests tell half of it


def test_on_nine_sets_of_ten_at_least_so_many_points_are_held(
    knowing: Surrogate, both: tuple[Data, OwnData]
) -> None:
    """What the requests do not tell of a seed is common to all points; the baseline's runs tell it."""
    seeds = np.random.default_rng(4).permutation(np.arange(1512, 1768))
    points = both[1].test.inputs[:40]
    part = Part(points, np.pad(made_data.runs_at(points, seeds, 0.02), ((0, 0), (0, 0), (0, 1))))
    table = common_seeds_table(knowing, part, seeds, both[1].seeds, 0.9)
    shares = table[table["output"] == "latency_ms"]["share"]
    given = made_data.covariates_of(seeds[:32])
    least = predict_any(knowing, points, given=given)["least_held"].sel(output="latency_ms").mean()
    assert len(shares) == 8 and 0.6 < least < 0.85
    assert (shares >= float(least)).sum() >= 7
    alone = predict_any(knowing, points, given=given, baseline=baseline_runs(seeds[:32]))
    assert alone["least_held"].sel(output="latency_ms").mean() > least


def test_runs_of_the_baseline_that_do_not_fit_are_refused(knowing: Surrogate) -> None:
    point, seeds = np.array([[1.0, 50.0, 0.0]]), np.arange(1600, 1604)
    runs, given = baseline_runs(seeds), made_data.covariates_of(seeds)
    for wrong in ({"baseline": runs}, {"baseline": runs[:2], "given": given}):
        with pytest.raises(ConfigError, match=r"allowed is \[seed, output\], 4 outputs"):
            predict_any(knowing, point, **wrong)
    assert knowing.levels is not None
    noise = {mode: one for mode, one in knowing.levels.noise.items() if mode != SIMULATED}
    older = dataclasses.replace(knowing, levels=dataclasses.replace(knowing.levels, noise=noise))
    with pytest.raises(ConfigError, match="does not know how runs go with those of the baseline"):
        predict_any(older, point, given=given, baseline=runs)


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
    assert "against made baseline" in said
    assert predict.main([*words, "--workload", "mixed"]) == 2
    assert "give --seeds too" in capsys.readouterr().err


def test_the_command_simulates_the_baseline_on_seeds_that_are_named(
    knowing: Surrogate,
    tmp_path: Path,
    capsys: pytest.CaptureFixture,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """What is drawn and simulated is made here; tests of `levels.predict` and of datasets have the real ones."""
    knowing.save(tmp_path / "made.surrogate")
    points = tmp_path / "points.csv"
    points.write_text("load,chunk,order\n1.0,50,first\n")
    words = [str(tmp_path / "made.surrogate"), str(points), "--metrics", "latency_ms"]
    named = [*words, "--seeds", "4", "--first-seed", "1600"]
    drawn = "surrogate.prediction.covariates_of_seeds"
    monkeypatch.setattr(drawn, lambda _, seeds, spec: made_data.covariates_of(np.array(seeds)))
    assert predict.main(named) == 0  # the made baseline has no settings
    said = capsys.readouterr()
    assert "for these 4 seeds, level from their requests" in said.out
    assert "does not know the settings of its baseline" in said.err
    assert predict.main([*named, "--level", "simulated"]) == 2
    assert "does not know the settings of its baseline" in capsys.readouterr().err
    monkeypatch.setattr("surrogate.prediction.baseline_config", lambda surrogate: None)
    runs = baseline_runs(np.arange(1600, 1604))
    monkeypatch.setattr("surrogate.prediction.baseline_on_seeds", lambda *_: runs)
    assert predict.main(named) == 0
    assert "for these 4 seeds, level from the baseline's runs" in capsys.readouterr().out
    assert predict.main([*named, "--level", "requests"]) == 0
    said = capsys.readouterr()
    assert "level from their requests" in said.out and not said.err
    assert predict.main([*words, "--level", "requests"]) == 2
    assert "--level: a level is known by seeds; give --seeds too" in capsys.readouterr().err


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
