"""`run --scenario` on recordings of August 2026, whose command line says what was run."""

import gzip
import json
from pathlib import Path

import numpy as np
import pytest

from blis_jax.run import main
from tests.commands.run.test_command import MODEL, save_workload, workload_arrays
from tests.support.recorded.reference_data import assert_totals_equal, find_golden_dir

GOLDEN = find_golden_dir()
LINE = ["run", "--model", MODEL, "--num-instances", "2", "--routing-policy", "least-loaded"]
POLICY = "scheduler: sjf\n"


@pytest.fixture(autouse=True)
def in_empty_folder(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)


def save_recording(folder, line=LINE, **changes):
    """A recording beside its requests, which have no ids of short prompts but deadlines."""
    arrival_us = workload_arrays()["arrival_us"]
    save_workload(
        folder / "workloads" / "w.npz", short_input_id=None, deadline_us=arrival_us + 90_000
    )
    document = {
        "name": "one",
        "workload": "w",
        "config": {"alpha": [1.0]},
        "closed_loop": False,
        "cli_args": line,
        **changes,
    }
    path = folder / "scenarios" / "one.json"
    path.parent.mkdir(exist_ok=True)
    path.write_text(
        json.dumps({key: value for key, value in document.items() if value is not None})
    )
    return str(path)


def test_a_command_line_is_run_with_the_files_beside_it(tmp_path, capsys):
    (tmp_path / "specs").mkdir()
    (tmp_path / "specs" / "policy.yaml").write_text(POLICY)
    path = save_recording(tmp_path, [*LINE, "--policy-config", "specs/policy.yaml"])
    assert main(["--scenario", path, "--results-path", "out"]) == 0
    out, _ = capsys.readouterr()
    assert '"timed_out_requests": 6' in out
    written = json.loads(Path("out/one.json").read_text())
    assert (
        written["config"]["scheduler"] == "sjf"
        and written["cluster_json"]["timed_out_requests"] == 6
    )
    again = ["--scenario", "out/one.json", "--workloads-dir", "workloads", "--results-path", "out2"]
    assert main(again) == 0  # what is written can be read again
    assert Path("out2/one.json").read_text() == Path("out/one.json").read_text()


def test_an_option_that_is_lacking_ends_in_one_sentence(tmp_path, capsys):
    words = [*LINE, "--rtt-ms", "1"]
    path = Path(save_recording(tmp_path, words, workload=None, config=None))
    packed = path.with_suffix(".json.gz")
    packed.write_bytes(gzip.compress(path.read_bytes()))
    assert main(["--scenario", str(packed), "--results-path", "out"]) == 3
    out, err = capsys.readouterr()
    assert out == "" and err.count("\n") == 1 and "skipped one: " in err and "--rtt-ms" in err


@pytest.mark.parametrize(
    ("changes", "words"),
    [
        ({"cli_args": []}, "'cli_args' is []"),
        ({"cli_args": "run --model m"}, "must be a list of the command line's words"),
        ({"cli_args": ["run", 3]}, "must be a list"),
        ({"cli_args": [*LINE, "--nosuch", "1"]}, "unknown option '--nosuch'"),
        ({"cli_args": [*LINE, "--policy-config", "specs/no.yaml"]}, "specs/no.yaml"),
        ({"workload": None}, "'workload' is missing"),
    ],
)
def test_damaged_recordings_are_refused_in_one_sentence(tmp_path, capsys, changes, words):
    assert main(["--scenario", save_recording(tmp_path, **changes), "--results-path", "out"]) == 2
    err = capsys.readouterr().err
    assert words in err and err.count("\n") == 1 and not Path("out").exists()


def test_a_cut_gzip_file_is_refused(tmp_path, capsys):
    packed = tmp_path / "one.json.gz"
    packed.write_bytes(gzip.compress(b"{}" * 99)[:-9])
    assert main(["--scenario", str(packed)]) == 2
    assert "is not a whole packed file" in capsys.readouterr().err


@pytest.mark.golden
@pytest.mark.parametrize(
    "name",
    [
        "horizon_cut_s42",
        *(
            pytest.param(one, marks=pytest.mark.slow)
            for one in ("multi_turn_closed_s42", "timeouts_s42")
        ),
    ],
)
def test_recorded_runs_give_the_recorded_figures(name, capsys):
    path = (GOLDEN or Path()) / "blis_2026_08" / "scenarios" / f"{name}.json"
    if not path.is_file():
        pytest.skip(f"no recorded run {name}: ../shared/golden/blis_2026_08 is not here")
    assert main(["--scenario", str(path), "--results-path", "out"]) == 0, capsys.readouterr().err
    written = json.loads(Path(f"out/{name}.json").read_text())
    recorded = json.loads(path.read_text())
    assert_totals_equal(written["cluster_json"], recorded["cluster_json"])
    with np.load(f"out/{name}.npz") as ours, np.load(path.with_suffix(".npz")) as theirs:
        assert np.array_equal(ours["ttft_us"], theirs["ttft_us"])
