"""Results that exist are replaced only with --overwrite, by whichever command."""

import json
from pathlib import Path

import pytest

from blis_jax import run
from blis_jax.calibrate import __main__ as calibrate
from blis_jax.traces import __main__ as traces
from surrogate import coverage, predict, report
from sweeps import gradient
from sweeps.ledger import __main__ as ledger
from tests.commands.run.test_command import LOW_LOAD, save_scenario
from tests.support.recorded.reference_data import REPO_ROOT

MEASURED = str(REPO_ROOT / "examples" / "measured_run")
TRACE = "arrival_s,input_tokens,output_tokens\n0,20,3\n1,30,4\n"
# command, arguments before the outputs, the file that is there, its option and value
OUTPUTS = {
    "results": (run.main, LOW_LOAD, "r.json", ("--results-path", "r.json")),
    "timeline": (run.main, LOW_LOAD, "k.csv", ("--kv-timeline", "k.csv")),
    "trace of a run": (run.main, LOW_LOAD, "t.csv", ("--trace-output", "t.csv")),
    "header of a trace": (run.main, LOW_LOAD, "t.yaml", ("--trace-output", "t.csv")),
    "trace": (traces.main, ["in.csv"], "out.csv", ("--output", "out.csv")),
    "fit": (calibrate.main, [MEASURED], "fit.json", ("--output", "fit.json")),
    "figure of a fit": (calibrate.main, [MEASURED], "fit.png", ("--output", "fit.json")),
    "gradient": (
        gradient.main,
        ["iter00_baseline", "--perturb", "max_num_scheduled_tokens=64"],
        "g.json",
        ("--output", "g.json"),
    ),
    "prediction": (predict.main, ["model"], "p.csv", ("--out", "p.csv")),
    "coverage": (coverage.main, ["model", "data.zarr"], "c.csv", ("--out", "c.csv")),
    "report": (report.main, ["model", "data.zarr"], "r/report.md", ("--out", "r")),
}


@pytest.fixture(autouse=True)
def in_folder_with_a_trace(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "in.csv").write_text(TRACE)


@pytest.mark.parametrize("case", OUTPUTS)
def test_existing_result_is_refused_with_the_flag_that_allows_it(case, tmp_path, capsys):
    main, arguments, name, option = OUTPUTS[case]
    path = tmp_path / name
    path.parent.mkdir(exist_ok=True)
    path.write_text("mine")
    assert main([*arguments, *option]) == 2
    out, err = capsys.readouterr()
    assert out == "" and err.count("\n") == 1
    assert f"{name} exists; give --overwrite to replace it, or another --" in err
    assert path.read_text() == "mine"


@pytest.mark.lenient_promotion
def test_results_are_replaced_if_asked_to(tmp_path, capsys):
    (tmp_path / "r.json").write_text("mine")
    assert run.main([*LOW_LOAD, "--results-path", "r.json", "--overwrite"]) == 0
    assert json.loads((tmp_path / "r.json").read_text())["completed_requests"] == 30
    (tmp_path / "out.csv").write_text("mine")
    assert traces.main(["in.csv", "--output", "out.csv", "--overwrite"]) == 0
    assert (tmp_path / "out.csv").read_text() != "mine"


def test_file_of_a_scenario_that_exists_is_refused_before_any_run(tmp_path, capsys):
    paths = [str(save_scenario(tmp_path, name)) for name in ("one", "two")]
    (tmp_path / "out").mkdir()
    (tmp_path / "out" / "two.npz").write_text("mine")
    assert run.main(["--scenario", *paths, "--results-path", "out"]) == 2
    assert "two.npz exists; give --overwrite" in capsys.readouterr().err
    assert [path.name for path in (tmp_path / "out").iterdir()] == ["two.npz"]


def test_device_is_no_place_for_a_result(capsys):
    assert run.main([*LOW_LOAD, "--results-path", "/dev/null", "--overwrite"]) == 2
    assert "/dev/null is not a file" in capsys.readouterr().err
    assert not Path("/dev/null").is_file()


@pytest.mark.parametrize(
    ("name", "format_name", "endings"),
    [
        ("x.xyz", "plain", ".csv or .parquet"),
        ("x.csv", "mooncake", ".jsonl"),
        ("x.parquet", "azure", ".csv"),
        ("x", "vidur", ".csv"),
    ],
)
def test_ending_says_the_format_of_a_written_trace(name, format_name, endings, tmp_path, capsys):
    assert traces.main(["in.csv", "--output", name, "--output-format", format_name]) == 2
    err = capsys.readouterr().err
    assert err.count("\n") == 1 and f"--output {name} must end in {endings} for" in err
    assert not (tmp_path / name).exists()


def test_ledger_without_an_action_is_bad_input(capsys):
    assert ledger.main([]) == 2
    out, err = capsys.readouterr()
    assert out == "" and "no action is given; use one of plan, add" in err
