"""The commands on a made dataset, one after the other."""

import json
from pathlib import Path

import numpy as np
import pandas as pd
import pytest

import blis_jax
from blis_jax.errors import ConfigError, ConfigWarning
from surrogate import coverage, predict, report, scores, train, training
from surrogate.predictor import Surrogate
from surrogate.scores import p_value_finite
from tests.support.damages import WAYS, damaged, files_of
from tests.surrogate import made_data

pytestmark = pytest.mark.lenient_promotion

SMALL = ["--members", "2", "--width", "8", "--depth", "1", "--steps", "60", "--batch", "64"]


@pytest.fixture(scope="module")
def model(store: Path) -> Path:
    path = store.with_name("made.surrogate")
    assert train.main([str(store), *SMALL, "--out", str(path), "--overwrite", "--quiet"]) == 0
    return path


def test_training_leaves_nothing_half_done(model: Path) -> None:
    assert not model.with_name(model.name + ".state").exists()
    about = Surrogate.load(model).about
    assert about["data"] == "made" and about["num_points"] == 192


def test_training_says_how_each_output_is_met_and_draws_it(store: Path, tmp_path: Path) -> None:
    result = blis_jax.train_surrogate(
        str(store), members=2, width=8, depth=1, steps=60, batch=64, output=str(tmp_path / "s")
    )
    frame = result.to_dataframe()
    learned = Surrogate.load(tmp_path / "s").scales.is_learned
    assert len(frame) == learned.sum() and (frame["R²"] <= 1).all()
    assert (frame["error (root mean square)"] >= 0).all()
    assert result.pictures == ["Predicted against simulated"] and result.plot().axes


@pytest.mark.slow
def test_a_stopped_training_goes_on_to_the_same_surrogate(
    store: Path, model: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(training, "SECONDS_BETWEEN_STATES", 0.0)
    longer = [*SMALL[:-4], "--steps", "150", "--batch", "64"]
    whole, broken = tmp_path / "whole", tmp_path / "broken"
    assert train.main([str(store), *longer, "--out", str(whole), "--quiet"]) == 0

    keep = training.StateKeeper.keep

    def keep_and_stop(self: training.StateKeeper, state: object) -> None:
        keep(self, state)  # type: ignore[arg-type]
        raise KeyboardInterrupt

    with monkeypatch.context() as patch:
        patch.setattr(training.StateKeeper, "keep", keep_and_stop)
        assert train.main([str(store), *longer, "--out", str(broken), "--quiet"]) == 130
    assert not broken.exists()
    other = [*SMALL[:-4], "--steps", "151", "--batch", "32"]
    assert train.main([str(store), *other, "--out", str(broken), "--resume"]) == 2
    assert train.main([str(store), *longer, "--out", str(broken), "--resume", "--quiet"]) == 0
    points = np.array([[1.0, 5.0, 0.0]])
    one, two = Surrogate.load(whole), Surrogate.load(broken)
    assert one.predict(points).identical(two.predict(points))


@pytest.mark.parametrize("way", WAYS)
def test_a_damaged_dataset_is_not_learned_from(
    tmp_path: Path, capsys: pytest.CaptureFixture, way: str
) -> None:
    store = made_data.write(tmp_path / "made.zarr", (20, 20, 20))
    for piece in files_of(store):
        with damaged(store, piece, way):
            assert train.main([str(store), *SMALL, "--out", str(tmp_path / "none")]) == 2
        what = "is missing" if way == "deleted" else "has changed"
        error = f"surrogate.train: error: {store} is damaged: {piece} {what}; make it again\n"
        assert capsys.readouterr().err == error
    assert [path.name for path in tmp_path.iterdir()] == ["made.zarr"]


@pytest.mark.parametrize("way", WAYS)
def test_a_damaged_surrogate_is_not_used(model: Path, way: str) -> None:
    what = "is missing" if way == "deleted" else "has changed"
    for piece in files_of(model):
        if (piece, way) == ("manifest.json", "deleted"):
            continue
        with damaged(model, piece, way), pytest.raises(ConfigError) as refused:
            Surrogate.load(model)
        assert str(refused.value) == f"{model} is damaged: {piece} {what}; train it again"
    with damaged(model, "manifest.json", "deleted"), pytest.warns(ConfigWarning, match="checksums"):
        Surrogate.load(model)


def test_a_damaged_state_is_not_gone_on_with(
    store: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture
) -> None:
    monkeypatch.setattr(training, "SECONDS_BETWEEN_STATES", 0.0)
    words = [str(store), *SMALL, "--out", str(tmp_path / "made"), "--quiet"]
    with monkeypatch.context() as patch:
        patch.setattr(training.StateKeeper, "forget", lambda _: None)
        assert train.main(words) == 0
    state = tmp_path / "made.state"
    for piece in files_of(state):
        if piece != "manifest.json":
            with damaged(state, piece, "deleted"):
                assert train.main([*words, "--resume"]) == 2
            said = f"{state} is damaged: {piece} is missing; train without --resume\n"
            assert said in capsys.readouterr().err


def test_predictions_of_a_table(model: Path, tmp_path: Path, capsys: pytest.CaptureFixture) -> None:
    points = tmp_path / "points.csv"
    points.write_text("load,chunk,order\n1.0,5,first\n9.0,5,last\n")
    assert predict.main([str(model), str(points), "--metrics", "latency_ms"]) == 0
    said = capsys.readouterr().out
    assert "do not trust this: load 9 is above the data" in said and "share" not in said
    out = tmp_path / "found.csv"
    assert predict.main([str(model), str(points), "--out", str(out)]) == 0
    table = pd.read_csv(out)
    assert len(table) == 2 * 4 and {"mean", "low", "high", "q5", "in_domain"} <= set(table)
    as_json = tmp_path / "points.json"
    as_json.write_text(json.dumps([{"load": 1.0, "chunk": 5, "order": "first"}]))
    again = tmp_path / "again.csv"
    assert predict.main([str(model), str(as_json), "--out", str(again)]) == 0
    assert pd.read_csv(again)["mean"].tolist() == table["mean"][:4].tolist()


def test_without_points_it_says_what_it_asks_for(
    model: Path, capsys: pytest.CaptureFixture
) -> None:
    assert predict.main([str(model)]) == 0
    said = capsys.readouterr().out
    assert "load: 0.5 to 2 1" in said and "order: first, last" in said


def test_coverage_prints_every_output(
    model: Path, store: Path, capsys: pytest.CaptureFixture
) -> None:
    assert coverage.main([str(model), str(store)]) == 0
    said = capsys.readouterr().out
    assert said.count("latency_ms") == 2 and "rejected at 1 % each" in said


def test_coverage_takes_fresh_points_of_the_same_population_only(
    model: Path, tmp_path: Path, capsys: pytest.CaptureFixture
) -> None:
    sizes = (16, 16, 128)
    fresh = made_data.write(tmp_path / "fresh.zarr", sizes, random_state=8)
    assert coverage.main([str(model), str(fresh)]) == 0
    said = capsys.readouterr().out
    assert "/128" in said
    table = scores.coverage_table(
        *scores.read_pair(model, fresh, allows_fresh=True), confidence=0.9
    )
    assert (table["points"] == 128).all()
    row = table.iloc[0]
    assert row["p_finite_calibration"] == p_value_finite(row["covered"], 128, 96, 0.9)
    other = made_data.write(tmp_path / "other.zarr", sizes, random_state=8, population="load")
    assert coverage.main([str(model), str(other)]) == 2
    assert "or one with other points of the same space" in capsys.readouterr().err
    assert report.main([str(model), str(fresh), "--out", str(tmp_path / "report")]) == 2
    assert "give the one it was fitted to\n" in capsys.readouterr().err


@pytest.mark.slow
def test_report_has_figures_and_tables(model: Path, store: Path, tmp_path: Path) -> None:
    folder = tmp_path / "report"
    words = [str(model), str(store), "--out", str(folder), "--curve", "64,128"]
    assert report.main([*words, "--curve-steps", "30"]) == 0
    names = {path.name for path in folder.iterdir()}
    figures = {"parity.png", "residuals.png", "calibration.png", "learning_curve.png"}
    assert figures | {"report.md", "scores.csv", "coverage.csv"} <= names
    text = (folder / "report.md").read_text()
    assert "latency_ms" in text and "rejections" in text
    curve = pd.read_csv(folder / "learning_curve.csv")
    assert set(curve["points"]) == {64, 128} and set(curve["runs"]) == {256, 512}


@pytest.mark.parametrize(
    ("command", "words", "said"),
    [
        (train, [], "no dataset is given"),
        (train, ["none.zarr"], "does not exist"),
        (train, ["none.zarr", "--members", "1"], "--members: got 1, allowed is 2 to 64"),
        (train, ["none.zarr", "--learning-rate", "0"], "--learning-rate"),
        (train, ["none.zarr", "--resume", "--overwrite"], "contradict"),
        (predict, ["none"], "is no surrogate"),
        (predict, ["none", "points.txt"], "must end in .csv or .json"),
        (predict, ["none", "--confidence", "1"], "--confidence"),
        (coverage, ["none"], "give a surrogate and a dataset"),
        (report, ["none", "none.zarr"], "is no surrogate"),
    ],
)
def test_wrong_input_is_refused_in_a_sentence(
    command: object, words: list[str], said: str, capsys: pytest.CaptureFixture
) -> None:
    assert command.main(words) == 2  # type: ignore[attr-defined]
    error = capsys.readouterr().err
    assert said in error and error.count("\n") == 1
