"""The command `predict`: files in, files out."""

import numpy as np
import pandas as pd
import pytest

from papers.real_servers.predict import __main__ as command
from papers.real_servers.predict import files
from papers.real_servers.predict.simulation import SimulatedRequests
from tests.support.recorded.reference_data import REPO_ROOT, SHARED_DIR

EXAMPLE = REPO_ROOT / "examples" / "predict" / "runs.csv"
REAL = SHARED_DIR / "data" / "real_serving_runs" / "vllm_runs.csv"


def made_up(scene, beta):
    """Ten requests at constant gaps, one in each second of every stage."""
    arrival = np.linspace(
        0, sum(stage.duration_s for stage in scene.load.stages), 10, endpoint=False
    )
    itl = np.full(10, 10.0 if beta is None else 12.0)
    return SimulatedRequests(
        arrival, np.full(10, 20.0), 20 + 246 * itl, itl, scene.load.output, np.zeros(10, int)
    )


def test_predictions_are_written_and_summed_up(tmp_path, monkeypatch, capsys):
    monkeypatch.setattr(files, "simulated", made_up)
    runs, output = tmp_path / "runs.csv", tmp_path / "out.csv"
    table = pd.read_csv(EXAMPLE)
    table["actual"] = table["actual"].astype(object)
    table.loc[2, "actual"], table.loc[3, "actual"] = 12.0, "abc"
    pd.concat([table, table[:1].assign(run="odd")]).to_csv(runs, index=False)
    assert command.main([str(runs), "--output", str(output)]) == 0
    said = capsys.readouterr()
    assert "5 of 6 rows predicted as vllm_runs." in said.out
    assert "itl_mean: median error 0.0 %" in said.out
    assert "names no known workload" in said.err
    found = pd.read_csv(output)
    assert (found["actual_low"] < found["actual"])[:5].all()
    assert command.main([str(runs), "--output", str(output)]) == 2
    assert "exists; give --overwrite" in capsys.readouterr().err
    plain = ["--model", "trained-physics", "--overwrite"]
    assert command.main([str(runs), "--output", str(output), *plain]) == 0
    assert pd.read_csv(output)["actual"][2] == 10.0


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        ([], "RUNS.csv is missing"),
        (["none.csv"], "none.csv"),
        ([str(EXAMPLE), "--model", "best"], "best"),
    ],
)
def test_what_cannot_be_used_is_refused(tmp_path, monkeypatch, capsys, arguments, words):
    monkeypatch.chdir(tmp_path)
    assert command.main(arguments) == 2
    assert words in capsys.readouterr().err


@pytest.mark.slow
def test_the_example_is_predicted_near_what_such_a_server_measured(tmp_path):
    output = tmp_path / "out.csv"
    assert command.main([str(EXAMPLE), "--output", str(output)]) == 0
    found = pd.read_csv(output)
    assert found["not_predicted"].isna().all()
    itl = found[found["metric_name"] == "itl_mean"]["actual"].item()
    assert 11 < itl < 17
    if REAL.is_file():
        measured = pd.read_csv(REAL).query("run == '14-qwen3-14b-tp1-codegen-1'")
        both = found.merge(measured, on=["stage_index", "metric_name"])
        assert ((both["actual_x"] / both["actual_y"] - 1).abs() < 0.15).all()
