"""Parts of a command's runs, joined: the bytes of the undivided run, and one sentence for what does not fit."""

from __future__ import annotations

import json
import re
import shutil
from pathlib import Path

import pytest

from blis_jax.commands.door.catalogue import COMMANDS
from blis_jax.commands.lacking import elsewhere
from blis_jax.results.dataset import load, save
from blis_jax.runs import driver
from sweeps.runs.parts import RunPart, with_output
from tests.sweeps.busy import SMALL, write_strategies
from tests.sweeps.tiny import TINY, interrupted_calls

SWEEP = ["plain.yaml", "priority.yaml", "--seeds", "3", "--figure", "none", "--quiet"]
MAP = """tiny.yaml other=tiny.yaml:slo_base_critical=-5 --rate 200,400 --kv-blocks 10,1000 --arrival-cv 1
--kv-cpu-blocks 0 --instances 2 --step-constant 6910.42 --shape load.yaml --seeds 42,43 --duration 0.2
--design grid --figure none --quiet"""
COMPARE = ["plain.yaml", "priority.yaml", *SMALL, "--inert", "records", "--figure", "none"]


def call(*words: str) -> int:
    """Run a command."""
    name, *rest = words
    return COMMANDS[name].main()(rest)


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A folder with strategies and a workload, which is the current one."""
    write_strategies(tmp_path)
    (tmp_path / "tiny.yaml").write_text(TINY)
    load = TINY[TINY.index("workload:\n") + len("workload:\n") :]
    lines = (line[2:] for line in load.splitlines() if line.startswith("  "))
    (tmp_path / "load.yaml").write_text("\n".join(lines))
    monkeypatch.chdir(tmp_path)
    return tmp_path


def content(path: Path) -> dict[str, bytes]:
    """All bytes of a result by file, but for when and to where it was written."""
    files = [path] if path.is_file() else sorted(one for one in path.rglob("*") if one.is_file())
    found = {}
    for file in files:
        text = file.read_bytes()
        if file.name == "zarr.json":
            text = re.sub(
                rb'"created": "[^"]*"|--output [^" ]*|"(zarr.json|checksum)": "[0-9a-f]*"',
                b"",
                text,
            )
        found[str(file.relative_to(path))] = text
    return found


def assert_parts_are_the_whole(words: list[str], ending: str, *, ends: str = "") -> None:
    """Make a command's runs at once and in three parts; the results have the same bytes."""
    written = ends or ending
    assert call(*words, "--output", f"all{ending}") == 0
    for number in (3, 1, 2):
        assert call(*words, "--part", f"{number}/3", "--output", f"p{number}{ending}") == 0
    parts = [f"p{number}{written}" for number in (2, 1, 3)]
    assert call("merge", *parts, "--output", f"joined{written}", "--quiet") == 0
    assert content(Path(f"joined{written}")) == content(Path(f"all{written}"))


def test_the_parts_of_a_sweep_have_its_bytes(folder: Path) -> None:
    assert_parts_are_the_whole(["sweep", *SWEEP], ".zarr")
    assert call("sweep", *SWEEP, "--output", "joined.zarr", "--resume") == 0


def test_the_parts_of_a_comparison_have_its_bytes(folder: Path) -> None:
    words = ["compare", *COMPARE, "--quiet"]
    assert_parts_are_the_whole(words, ".json", ends=".jsonl")
    assert not Path("p1.json").exists()
    with pytest.MonkeyPatch.context() as patch, interrupted_calls(patch, 0):  # nothing is run
        assert call(*words, "--output", "joined.json", "--resume") == 0
    assert Path("joined.json").read_bytes() == Path("all.json").read_bytes()


def test_the_parts_of_a_map_have_its_bytes(folder: Path) -> None:
    assert_parts_are_the_whole(["robustness", *MAP.split()], ".zarr")
    assert call("robustness", *MAP.split(), "--output", "joined.zarr", "--resume") == 0


def test_a_part_that_was_stopped_goes_on(
    folder: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    words = ["compare", *COMPARE, "--quiet", "--part", "1/2"]
    monkeypatch.setattr(driver, "ROWS_PER_CALL", 4)
    assert call(*words, "--output", "p1.json") == 0
    with interrupted_calls(monkeypatch, 2):
        assert call(*words, "--output", "q1.json") == 130
    rest = ["compare", *COMPARE, "--quiet", "--part", "2/2", "--output", "p2.json"]
    assert call(*rest) == 0
    capsys.readouterr()
    assert call("merge", "q1.jsonl", "p2.jsonl", "--output", "all.jsonl") == 2
    assert re.search(r"q1.jsonl lacks \d+ of its 16 runs; finish it", capsys.readouterr().err)
    assert call(*words, "--output", "q1.json", "--resume") == 0
    for first in "pq":
        given = [f"{first}1.jsonl", "p2.jsonl", "--output", f"{first}.jsonl"]
        assert call("merge", *given) == 0
    assert Path("q.jsonl").read_bytes() == Path("p.jsonl").read_bytes()


# --- refusals -------------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def made(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Parts of sweeps and of a comparison."""
    folder = tmp_path_factory.mktemp("made")
    write_strategies(folder)
    with pytest.MonkeyPatch.context() as patch:
        patch.chdir(folder)
        for number in "12":
            part = ["--part", f"{number}/2"]
            assert call("sweep", *SWEEP, *part, "--output", f"p{number}.zarr") == 0
        other = ["--part", "2/2", "--output", "other.zarr"]
        assert call("sweep", *SWEEP[:2], "--seeds", "4", *SWEEP[4:], *other) == 0
        third = ["--part", "3/3", "--output", "third.zarr"]
        assert call("sweep", *SWEEP, *third) == 0
        assert call("sweep", *SWEEP, "--output", "whole.zarr") == 0
    return folder


@pytest.mark.parametrize(
    ("given", "problem"),
    [
        (["p1.zarr"], "part 2/2 is not given; give all 2 parts"),
        (["p1.zarr", "p1.zarr"], "a part is given twice"),
        (["p1.zarr", "copy.zarr"], "p1.zarr and copy.zarr are both part 1/2"),
        (["p1.zarr", "other.zarr"], "other.zarr was made with different seeds"),
        (["p1.zarr", "third.zarr"], "give the parts of one division"),
        (["p1.zarr", "whole.zarr"], "whole.zarr is no part"),
        (["p1.zarr", "none.zarr"], "none.zarr does not exist"),
        (["p1.zarr", "machine.zarr"], "machine.zarr was made with another instruction set than p1.zarr"),
        (["p1.zarr", "p2.jsonl"], "give one ending"),
    ],
)  # fmt: skip
def test_gaps_doubles_and_foreign_parts_are_refused(
    made: Path,
    given: list[str],
    problem: str,
    capsys: pytest.CaptureFixture[str],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.chdir(made)
    if "copy.zarr" in given:
        shutil.copytree("p1.zarr", "copy.zarr")
    if "machine.zarr" in given:
        of_other_machine("p2.zarr", "machine.zarr")
    assert call("merge", *given, "--output", "joined.zarr") == 2
    said = capsys.readouterr().err
    assert problem in said and said.count("\n") == 1
    assert not Path("joined.zarr").exists()


def of_other_machine(path: str, copy: str) -> None:
    """Copy a part as if a machine of another type had made it."""
    part = load(path)
    maker = json.loads(part.attrs["made_by"]) | {"instruction set": "x86_64 avx999"}
    save(part.assign_attrs(made_by=json.dumps(maker)), copy)


@pytest.mark.parametrize("text", ["0/2", "3/2", "1", "1/x", "-1/2", "1/1000000"])
def test_what_names_no_part_is_refused(text: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert call("sweep", f"--part={text}", "--output", "p.zarr") == 2
    assert "--part: got" in capsys.readouterr().err


@pytest.mark.parametrize("command", ["optimize", "select", "capacity", "recommend", "curve", "evaluate"])  # fmt: skip
def test_searches_refuse_parts_by_name(command: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert call(command, "--part", "1/2") == 2
    said = capsys.readouterr().err
    assert "unknown option '--part': " in said
    assert (
        "; sweep, compare, ablate, robustness, sensitivity, dataset, ledger add and replay, and"
        in said
    )


@pytest.mark.parametrize(
    ("words", "problem"),
    [
        (["sweep", "--part", "1/2"], "give --output"),
        (["sweep", "--part", "1/2", "--decide", "--output", "p.zarr"], "add seeds by what was found"),
        (["compare", "baseline", "it08_opt", "--part", "1/2"], "give --output"),
        (["sweep", "baseline", "--seeds", "2", "--part", "1/3", "--output", "p.zarr"], "at most 2 parts"),
    ],
)  # fmt: skip
def test_parts_that_cannot_be_are_refused(
    folder: Path, words: list[str], problem: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert call(*words) == 2
    said = capsys.readouterr().err
    assert problem in said and said.count("\n") == 1


@pytest.mark.parametrize("total", [4, 5, 97])
@pytest.mark.parametrize("count", [1, 2, 3, 4])
def test_parts_are_all_runs_once_and_of_one_size(total: int, count: int) -> None:
    parts = [RunPart(number, count).of(total) for number in range(1, count + 1)]
    assert [run for part in parts for run in part] == list(range(total))
    assert max(map(len, parts)) - min(map(len, parts)) <= 1


@pytest.mark.parametrize("words", ["--output p1.zarr", "--out p1.zarr", "--output=p1.zarr"])
def test_the_command_names_the_new_output(words: str) -> None:
    found = with_output(f"blis-jax sweep {words} --seeds 3", Path("all.zarr"))
    assert found == f"blis-jax sweep {words.replace('p1.zarr', 'all.zarr')} --seeds 3"


@pytest.mark.parametrize(
    ("command", "why"),
    [
        ("blis-jax evaluate", "this command has none"),
        ("blis-jax optimize", "depends on those before"),
        ("blis-jax router_search", "depends on those before"),
    ],
)
def test_a_command_without_parts_says_why(command: str, why: str) -> None:
    told = elsewhere("part", command)
    assert told is not None and why in told and "--scheduler" in told
