"""Input that is damaged, endless or huge: one sentence, exit code 2, nothing left behind."""

import errno
import gzip
import json
import os
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest

from blis_jax import run
from blis_jax.commands import cli
from blis_jax.errors import ConfigError, reads_store, refusing_damage
from blis_jax.files import input_files, python_files
from blis_jax.files.atomic_write import replacing
from blis_jax.traces.read import read_trace
from tests.commands.run.test_command import BASE, YAML, save_scenario, save_workload
from tests.support.recorded.reference_data import REPO_ROOT

DIGITS = "9" * 5000


@pytest.fixture(autouse=True)
def in_empty_folder(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)


def refused(arguments, capsys, main=run.main):
    """The one sentence that the command ends with."""
    assert main([str(argument) for argument in arguments]) == 2
    out, err = capsys.readouterr()
    assert out == "" and err.count("\n") == 1 and "error: " in err, err
    assert len(err) < 1500 and "Traceback" not in err and "Warning" not in err
    return err


WORKLOADS = {
    "nested lists": (YAML + "measure: " + "[" * 5000, "nested too deeply"),
    "nested mappings": (YAML + "measure: " + "{a: " * 5000, "nested too deeply"),
    "digits": (YAML.replace("num_requests: 5", f"num_requests: {DIGITS}"), "whole number"),
    "digits in base 16": (YAML.replace("num_requests: 5", f"num_requests: 0x{DIGITS}"), "got"),
    "long key": (YAML + f"? {'k' * 100_000}\n: 1\n", "unknown key"),
    "long key twice": (YAML + f"? {'k' * 100_000}\n: 1\n" * 2, "given twice"),
    "long text": (YAML.replace("poisson", "p" * 100_000), "clients[0].arrival.process"),
    "half a character": (YAML.replace("- rate", '- id: "\\ud800"\n    rate'), "half of a char"),
}


@pytest.mark.parametrize("case", WORKLOADS)
def test_malformed_workload(case, tmp_path, capsys):
    text, words = WORKLOADS[case]
    (tmp_path / "w.yaml").write_text(text)
    err = refused([*BASE, "--workload-spec", "w.yaml"], capsys)
    assert words in err and "w.yaml" in err


def test_half_character_in_a_scenario_is_refused_before_anything_is_written(tmp_path, capsys):
    path = save_scenario(tmp_path, note="x\ud800y")
    before = sorted(tmp_path.rglob("*"))
    assert "half of a character" in refused(["--scenario", path, "--results-path", "out"], capsys)
    assert sorted(tmp_path.rglob("*")) == before


def test_text_that_cannot_be_written_ends_in_a_sentence(capsys):
    def command(arguments):
        "caf\udce9".encode()
        return 0

    assert cli.run_command("it", command, []) == 2
    assert "'caf\\udce9' cannot be written as UTF-8" in capsys.readouterr().err


@pytest.mark.parametrize("nested", ["[" * 100_000, '{"a":' * 100_000])
def test_nested_json_is_refused(nested, tmp_path, capsys):
    (tmp_path / "s.json").write_text(nested)
    assert "s.json is not JSON" in refused(["--scenario", "s.json"], capsys)


@pytest.mark.parametrize(
    "changes",
    [
        {"input_len": np.full(6, 1e12)},
        {"output_len": np.full(6, 2**40)},
        {"input_len": np.full(6, np.nan)},
        {"arrival_us": np.array([0, 1, 2, 3, 4, np.inf])},
    ],
)
def test_number_beyond_its_type_is_refused_without_a_warning(changes, tmp_path, capsys):
    save_workload(tmp_path / "w.npz", **changes)
    err = refused([*BASE, "--requests", "w.npz"], capsys)
    (name,) = changes
    assert f"{name}[" in err and "bits" in err


READERS = {
    "--workload-spec": ("pipe.yaml", run.main, BASE),
    "--requests": ("pipe.npz", run.main, BASE),
    "--trace": ("pipe.csv", run.main, BASE),
    "--scenario": ("pipe.json", run.main, ()),
}


@pytest.mark.parametrize("option", READERS)
def test_named_pipe_is_refused_at_once(option, tmp_path, capsys):
    name, main, more = READERS[option]
    os.mkfifo(tmp_path / name)
    assert f"{name} is a named pipe" in refused([*more, option, name], capsys, main)


def test_named_pipe_as_a_measured_run_or_a_trace_is_refused(tmp_path, capsys):
    from blis_jax.calibrate import __main__ as calibrate
    from blis_jax.traces import __main__ as traces_command

    os.mkfifo(tmp_path / "pipe.csv")
    for main in (calibrate.main, traces_command.main):
        assert "pipe.csv is a named pipe" in refused(["pipe.csv"], capsys, main)


PACKED = {
    "one line": (b"x" * 1_000_000, "has a line of more than"),
    "many lines": (b"arrival_s,input_tokens,output_tokens\n" + b"1,2,3\n" * 300_000, "unpacks to"),
    "a long second line": (
        b"arrival_s,input_tokens,output_tokens\n" + b"1" * 1_000_000,
        "has a line of more than",
    ),
}


@pytest.mark.parametrize("case", PACKED)
def test_packed_file_is_unpacked_up_to_a_limit(case, tmp_path, monkeypatch):
    content, words = PACKED[case]
    path = tmp_path / "t.csv.gz"
    path.write_bytes(gzip.compress(content))
    monkeypatch.setattr(input_files, "MOST_UNPACKED", 2**20)
    monkeypatch.setattr(input_files, "LONGEST_LINE", 2**18)
    with pytest.raises(ConfigError, match=rf"t\.csv\.gz {words} more than|{words}"):
        read_trace(path)


def test_packed_file_below_the_limit_is_read_as_before(tmp_path):
    lines = "arrival_s,input_tokens,output_tokens\n" + "1,20,3\n" * 2000
    (tmp_path / "t.csv").write_text(lines)
    (tmp_path / "t.csv.gz").write_bytes(gzip.compress(lines.encode()))
    plain, packed = (read_trace(tmp_path / name).rows for name in ("t.csv", "t.csv.gz"))
    np.testing.assert_array_equal(plain.input_len, packed.input_len)
    (tmp_path / "u.csv.gz").write_bytes(gzip.compress(lines.encode())[:-20])
    with pytest.raises(ConfigError, match="ended before the end"):
        read_trace(tmp_path / "u.csv.gz")


def in_child_with_little_room(code, limit):
    """Runs code whose files may not grow beyond so many bytes, as on a full disk."""

    limited = f"import resource\nresource.setrlimit(resource.RLIMIT_FSIZE, ({limit}, {limit}))\n"
    return subprocess.run(
        [sys.executable, "-c", limited + code],
        capture_output=True,
        text=True,
        env={**os.environ, "PYTHONPATH": str(REPO_ROOT)},
        check=False,
    )


def test_scenario_on_a_full_disk_leaves_no_half_of_its_files(tmp_path):
    path = save_scenario(tmp_path)
    code = (
        "import sys\nfrom blis_jax import run\n"
        f"sys.exit(run.main(['--scenario', {str(path)!r}, '--results-path', 'out', '--no-cache']))"
    )
    done = in_child_with_little_room(code, 3500)  # room for the rows, not for the text
    assert done.returncode == 2, done.stderr
    assert done.stderr.count("\n") == 1 and "out cannot be written" in done.stderr
    assert not [file for file in (tmp_path / "out").rglob("*") if file.is_file()]


def test_netcdf_on_a_full_disk_ends_in_a_sentence(tmp_path):
    code = (
        "import sys, numpy, xarray\nfrom pathlib import Path\nfrom blis_jax.commands import cli\n"
        "from blis_jax.results import dataset as results\n"
        "def command(arguments):\n"
        "    path = Path('big.nc')\n"
        "    with cli.writing(path):\n"
        "        results.save(xarray.Dataset({'a': ('x', numpy.arange(100_000.0))}), path)\n"
        "sys.exit(cli.run_command('it', command, []))"
    )
    done = in_child_with_little_room(code, 20_000)
    assert done.returncode == 2, (done.returncode, done.stderr)
    assert done.stderr.count("\n") == 1 and "big.nc cannot be written" in done.stderr
    assert not list(tmp_path.iterdir())


@pytest.mark.parametrize("is_buffered", [True, False])
def test_a_full_disk_behind_standard_output_is_named(is_buffered):
    code = (
        "import sys\nfrom blis_jax.commands import cli\n"
        "sys.exit(cli.run_command('it', lambda words: print('x' * 5000) or 0, []))"
    )
    with Path("/dev/full").open("w") as full:
        done = subprocess.run(
            [sys.executable, *([] if is_buffered else ["-u"]), "-c", code],
            stdout=full,
            stderr=subprocess.PIPE,
            text=True,
            env={**os.environ, "PYTHONPATH": str(REPO_ROOT), "PYTHONUNBUFFERED": ""},
            check=False,
        )
    assert done.returncode == 2
    assert done.stderr == "it: error: standard output: No space left on device\n"


def test_closed_streams_are_empty_ones():
    code = (
        "import sys\nfrom blis_jax.commands import cli\n"
        "sys.exit(cli.run_command('it', lambda words: len(sys.stdin.read()) + sys.stdout.isatty(), []))"
    )
    done = subprocess.run(
        ["sh", "-c", 'exec "$0" -c "$1" <&- >&-', sys.executable, code],
        stderr=subprocess.PIPE,
        text=True,
        env={**os.environ, "PYTHONPATH": str(REPO_ROOT)},
        check=False,
    )
    assert (done.returncode, done.stderr) == (0, "")


def test_a_file_that_is_replaced_is_named_where_the_disk_is_full(tmp_path, capsys):
    def command(words):
        with replacing(tmp_path / "result.txt"):
            raise OSError(errno.ENOSPC, "No space left on device")

    assert cli.run_command("it", command, []) == 2
    said = f"it: error: {tmp_path / 'result.txt'}: No space left on device\n"
    assert capsys.readouterr().err == said


def test_what_a_users_function_raises_is_said_with_its_line(tmp_path, capsys):
    path = tmp_path / "mine.py"
    path.write_text("def boom():\n    raise RuntimeError('no such thing')\n")

    def command(words):
        vars(python_files._module(path, path.read_bytes()))["boom"]()

    assert cli.run_command("it", command, []) == 2
    assert capsys.readouterr().err == f"it: error: {path}, line 2: RuntimeError: no such thing\n"


def test_words_that_are_no_utf8_are_refused_before_anything_runs(capsys):
    assert run.main(["--seed", "1", "--workload-spec", "\udcc3\udca9.yaml"]) == 2
    said = capsys.readouterr().err
    assert "'\\udcc3\\udca9.yaml' is not UTF-8 text; use names of valid Unicode" in said


def test_damage_to_a_store_is_one_sentence_and_a_full_disk_is_not_damage(tmp_path):
    @reads_store("make it again")
    def read(path):
        return {}["value"]

    with pytest.raises(ConfigError, match=r"x\.zarr is damaged \('value' is missing\); make it"):
        read(tmp_path / "x.zarr")
    for error, kind in (
        (json.JSONDecodeError("no", "", 0), ConfigError),
        (OSError(28, "No space left on device"), OSError),
        (KeyboardInterrupt(), KeyboardInterrupt),
    ):
        with pytest.raises(kind), refusing_damage(tmp_path, "make it again"):
            raise error
