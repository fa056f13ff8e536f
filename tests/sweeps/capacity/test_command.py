"""The command at a tiny size: the answer, its files, going on, and refusals."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
import yaml

from blis_jax.errors import ConfigError
from blis_jax.files.journal import Journal
from sweeps.capacity.__main__ import CapacityOptions, main
from sweeps.capacity.command import _question
from tests.sweeps.tiny import TINY

TARGETS = ["--targets", "critical.ttft_ms=60@90,all.e2e_ms=2000@80"]


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A strategy, its workload at a high rate, and one answer."""
    folder = tmp_path_factory.mktemp("tiny")
    (folder / "tiny.yaml").write_text(TINY)
    load = yaml.safe_load(TINY)["workload"] | {"num_requests": 30}
    (folder / "load.yaml").write_text(yaml.safe_dump(load))
    assert main(words(folder, "answer.json")) == 0
    return folder


def words(folder: Path, output: str, *further: str) -> list[str]:
    policy = f"tiny={folder / 'tiny.yaml'}"
    given = ["--policy", policy, "--seeds", "96", "--max-instances", "8", "--rate", "600"]
    return [str(folder / "load.yaml"), *TARGETS, *given, "--output", str(folder / output), *further]


def test_the_answer_and_its_files(folder: Path) -> None:
    answer = json.loads((folder / "answer.json").read_text())
    (cluster,) = answer["clusters"]
    tried = {one["num_instances"]: one for one in cluster["tried"]}
    size = cluster["num_instances"]
    assert tried[size]["answer"] == "meets"
    assert all(one["answer"] != "meets" for number, one in tried.items() if number < size)
    assert cluster["num_gpus"] == 2 * size  # an instance has as many as the model has by default
    assert answer["cheapest"].startswith("tiny on ")
    for one in tried.values():
        for share in one["in_time"]:
            assert 0 <= share["low"] <= share["share"] <= share["high"] <= 1
    shares = [tried[number]["in_time"][0]["share"] for number in sorted(tried)]
    assert shares == sorted(shares) and shares[0] < 1
    page = (folder / "answer.md").read_text()
    assert "critical requests keep their TTFT within 60 ms" in page and "answer.png" in page
    assert (folder / "answer.png").stat().st_size > 10_000


def test_going_on_runs_nothing_again(folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    before = (folder / "answer.json").read_text()
    assert main(words(folder, "answer.json", "--resume")) == 0
    printed = capsys.readouterr().out
    answer = json.loads(before)
    assert "0 of them made now, in " in printed
    for line in answer["lines"]:
        heading, _, said = line.partition(": ")
        assert f"{heading}:" in printed and said in " ".join(printed.split())
        assert said in (folder / "answer.md").read_text()
    assert (folder / "answer.json").read_text() == before


def test_a_grid_asks_about_settings_too(folder: Path) -> None:
    """One request at a time needs more instances than eight; the page has answer and picture."""
    grid = ["--grid", "max_num_seqs=1,8", "--report", str(folder / "grid.html")]
    assert main(words(folder, "grid.json", *grid)) == 0
    answer = json.loads((folder / "grid.json").read_text())
    one, eight = answer["clusters"]
    assert [one["policy"], eight["policy"]] == ["max_num_seqs=1", "max_num_seqs=8"]
    assert eight["num_instances"] < (one["num_instances"] or 9)
    assert answer["cheapest"].startswith("max_num_seqs=8 on ")
    page = (folder / "grid.html").read_text()
    assert (
        "max_num_seqs=8 " in page
        and "<svg" in page
        and "http://" not in page.replace("http://www.w3.org", "")
    )


def test_a_grid_of_the_workload_is_refused(
    folder: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    grid = ["--grid", "workload.aggregate_rate=1,2"]
    assert main(words(folder, "no.json", *grid)) == 2
    assert "workload.aggregate_rate is of the workload" in capsys.readouterr().err


def test_stopped_and_resumed_equals_unstopped(
    folder: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    append = Journal.append

    def stopped(self: Journal, entry: object) -> None:
        append(self, entry)
        raise KeyboardInterrupt

    with monkeypatch.context() as patch:
        patch.setattr(Journal, "append", stopped)
        assert main(words(folder, "stopped.json")) == 130
    said = capsys.readouterr().err
    assert f"{folder / 'stopped.jsonl'} has what was done; --resume goes on from there" in said
    assert main(words(folder, "stopped.json", "--resume")) == 0
    first, again = ((folder / f"{name}.jsonl").read_bytes() for name in ("answer", "stopped"))
    assert first == again
    first, again = (
        json.loads((folder / f"{name}.json").read_text()) for name in ("answer", "stopped")
    )
    assert first["clusters"] == again["clusters"] and first["lines"] == again["lines"]


def test_it_is_said_where_the_runs_are_too_few_for_the_target(
    folder: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    stricter = words(folder, "other.json", "--targets", "all.e2e_ms=2000@99.9")
    question = _question(CapacityOptions.read(stricter))
    assert len(question.requests.seeds) == 96
    assert "at least 4096 are needed" in capsys.readouterr().err


@pytest.mark.parametrize(
    ("changes", "says"),
    [
        ([], "answer.json exists"),
        (
            ["--overwrite", "--seeds", "3"],
            "3 runs are too few for critical.ttft_ms=60@90; 32 is the least",
        ),
        (["--overwrite", "--gpus", "T4"], "--gpus T4: "),
        (["--overwrite", "--tp", "2"], "no meaning without --gpus"),
        (["--overwrite", "--prices", "H100"], "GPU=PRICE"),
        (["--overwrite", "--confidence", "1"], "below 1"),
        (["--overwrite", "--trace-windows", "3"], "no meaning without --trace"),
    ],
)
def test_refusals(
    folder: Path, changes: list[str], says: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(words(folder, "answer.json", *changes)) == 2
    assert says in capsys.readouterr().err


def test_without_a_workload(capsys: pytest.CaptureFixture[str]) -> None:
    assert main([]) == 2
    assert "no workload is given" in capsys.readouterr().err


def test_a_trace_is_cut_into_as_many_windows_as_the_target_needs(
    folder: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """32 runs are the fewest for 90 %; up to twice as many where that leaves 50 requests in each."""
    path = folder / "trace.csv"
    rows = [f"{at * 100_000},64,4" for at in range(2000)]
    path.write_text("\n".join(["arrival_us,input_tokens,output_tokens", *rows]))
    given = [str(path), "--output", str(folder / "no.json"), "--targets"]

    def windows(*more: str) -> int:
        return len(_question(CapacityOptions.read([*given, *more])).requests.seeds)

    assert windows("all.ttft_ms=500@90") == 40
    assert "cut into 40 windows of 5 s, 50 requests each" in capsys.readouterr().err
    assert windows("all.ttft_ms=500@90", "--limit", "1000") == 32
    assert windows("all.ttft_ms=500@90", "--trace-windows", "16") == 16
    with pytest.raises(ConfigError, match=r"512 windows .* or ask for no more than @90"):
        windows("all.ttft_ms=500")
