"""The actions on a tiny track: two stages, judged criteria, notes, replay, tampering, refusals."""

from __future__ import annotations

import json
import lzma
import os
import shutil
import subprocess
import sys
import time
from collections.abc import Sequence
from functools import partial
from pathlib import Path
from typing import Any

import pytest

from blis_jax.files import chain
from blis_jax.files.content import COLUMNS, ENDING, Beside, canonical, pack, unpack
from blis_jax.policies.seeds import ALL_ALIKE
from sweeps.ledger import book
from sweeps.ledger.__main__ import main
from sweeps.ledger.book import Ledger
from sweeps.ledger.trial import run_hypothesis
from tests.support.recorded.reference_data import REPO_ROOT
from tests.sweeps.ledger.tiny_track import ROW, STRATEGY, make_track

PAGE = "tracks/tiny/ledger.md"


def said_in(capsys: pytest.CaptureFixture[str]) -> str:
    """Standard output with every gap as one space, since long lines are wrapped."""
    return " ".join(capsys.readouterr().out.split())


@pytest.fixture(scope="module")
def finished(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder whose track has one row with a result."""
    folder = tmp_path_factory.mktemp("finished")
    make_track(folder)
    with pytest.MonkeyPatch.context() as patch:
        patch.chdir(folder)
        assert main(["add", "1", "--track", "tiny", *ROW]) == 0
    return folder


@pytest.fixture
def track(finished: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The track of a copy of it, from which commands are run."""
    folder = tmp_path / "copy"
    shutil.copytree(finished, folder)
    monkeypatch.chdir(folder)
    return folder / "tracks" / "tiny"


@pytest.fixture
def empty(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.chdir(tmp_path)
    return make_track(tmp_path)


def ledger(action: str, *words: str) -> int:
    return main([action, *words, "--track", "tiny"])


def records(track: Path) -> tuple[Any, ...]:
    contents = chain.read(track / "ledger.jsonl")
    assert contents.problem is None
    return contents.records


def lines(track: Path) -> list[bytes]:
    """The records, whole, as lines; a ledger may have its figures within them."""
    path = track / "ledger.jsonl"
    stored = (json.loads(line) for line in path.read_bytes().splitlines())
    return [chain.line_of(Beside.of(path).expanded(record))[:-1] for record in stored]


def write_lines(track: Path, content: Sequence[bytes]) -> None:
    (track / "ledger.jsonl").write_bytes(b"".join(line + b"\n" for line in content))


# --- two stages -----------------------------------------------------------------------------------


def test_the_hypothesis_is_on_the_disk_before_anything_runs(
    empty: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def killed(*_: Any) -> None:
        kinds = [record["kind"] for record in records(empty)]
        assert kinds == ["ledger", "hypothesis"]
        raise KeyboardInterrupt

    with monkeypatch.context() as patch:
        patch.setattr("sweeps.ledger.adding.run_until_enough", killed)
        assert ledger("add", "1", *ROW) == 130
    (planned,) = records(empty)[1:]
    assert ledger("add", "1") == 0
    result = records(empty)[2]
    assert result["hypothesis"] == planned["hash"] and result["verdict"] == "confirmed"


def test_killed_in_its_runs_and_added_again(empty: Path) -> None:
    words = [sys.executable, "-m", "sweeps.ledger", "add", "1", "--track", "tiny", *ROW]
    environment = os.environ | {"PYTHONPATH": str(REPO_ROOT)}
    killed = subprocess.Popen(words, env=environment, stderr=subprocess.DEVNULL)
    path = empty / "ledger.jsonl"
    while killed.poll() is None and (not path.exists() or path.read_bytes().count(b"\n") < 2):
        time.sleep(0.01)
    killed.kill()
    killed.wait()
    before = lines(empty)
    assert len(before) == 2
    assert ledger("add", "1") == 0
    assert lines(empty)[:2] == before and ledger("check") == 0
    assert records(empty)[2]["verdict"] == "confirmed"


@pytest.mark.slow
def test_seeds_are_added_until_the_verdict_is_safe(empty: Path) -> None:
    words = ("--rng", "jax", "--seeds", "20", "--decide", "--most-seeds", "30")
    assert ledger("add", "1", *ROW[:6], "--type", "dominance", *ROW[-2:], *words) == 2
    assert ledger("add", "1", *ROW, *words) == 0
    planned, result = records(empty)[1:]
    assert planned["stopping"] == {"decides": True, "precision": None, "most_seeds": 30}
    looks = result["stopping"]["looks"]
    assert len(result["seeds"]) == looks[-1] and looks[0] == 20 == len(planned["seeds"])
    assert "--decide --most-seeds 30" in result["command"]
    assert f"seeds {result['seeds'][0]} to {result['seeds'][-1]} (seeds were added" in (
        empty / "ledger.md"
    ).read_text(encoding="utf-8")
    assert ledger("check") == 0 and ledger("replay", "1") == 0


def test_two_that_add_one_row_at_once(
    empty: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    assert ledger("plan", "1", *ROW) == 0
    original = book.run_hypothesis

    def slower(*given: Any) -> Any:
        monkeypatch.setattr("sweeps.ledger.book.run_hypothesis", original)
        assert ledger("add", "1") == 0
        return original(*given)

    monkeypatch.setattr("sweeps.ledger.book.run_hypothesis", slower)
    assert ledger("add", "1") == 2
    assert "1 has a result already" in capsys.readouterr().err
    assert [record["kind"] for record in records(empty)] == ["ledger", "hypothesis", "result"]
    assert ledger("check") == 0


def test_a_result_needs_a_hypothesis(empty: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert ledger("add", "1", "--strategy", STRATEGY) == 2
    assert "1 has no hypothesis yet" in capsys.readouterr().err
    assert not (empty / "ledger.jsonl").exists()


def test_plan_and_add_with_other_options_is_refused(
    empty: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert ledger("plan", "1", *ROW) == 0
    assert "record 1" in said_in(capsys)
    assert "Open, without a result yet: 1" in (empty / "ledger.md").read_text()
    before = lines(empty)
    for words in (["--seeds", "1,2,3"], ["--rng", "jax"], ["--name", "other"]):
        assert ledger("add", "1", *words) == 2
        assert "was planned with another" in capsys.readouterr().err
    assert ledger("plan", "1", *ROW) == 2
    assert "in the ledger already" in capsys.readouterr().err
    assert lines(empty) == before


def test_a_strategy_changed_after_the_plan_is_refused(
    empty: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert ledger("plan", "1", *ROW) == 0
    file = Path(STRATEGY)
    file.write_text(file.read_text().replace("num_instances: 2", "num_instances: 3"))
    assert ledger("add", "1") == 2
    assert "has other settings than when the hypothesis was written" in capsys.readouterr().err


def test_a_workload_changed_after_the_plan_is_refused(
    empty: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert ledger("plan", "1", *ROW) == 0
    file = empty / "w.yaml"
    file.write_text(file.read_text().replace("num_requests: 40", "num_requests: 41"))
    assert ledger("add", "1") == 2
    assert "the workload w.yaml has changed" in capsys.readouterr().err


def test_a_row_has_one_result(track: Path, capsys: pytest.CaptureFixture[str]) -> None:
    before = lines(track)
    assert ledger("add", "1") == 2
    assert "has a result already (record 2)" in capsys.readouterr().err
    assert lines(track) == before


# --- what a result has ----------------------------------------------------------------------------


def test_a_result_has_what_is_needed_to_make_it_again(track: Path) -> None:
    planned, result = records(track)[1:]
    assert planned["arms"]["strategy"]["strategy"] == "tiny"
    assert planned["workload"]["name"] == "w.yaml" and planned["seeds"] == [*range(42, 48)]
    assert result["evidence"] == "simulation-reference-streams"
    assert result["command"].startswith("python -m sweeps.ledger add 1 --strategy tiny.yaml")
    assert {"blis_jax", "jax", "python", "backend"} <= result["versions"].keys()
    assert result["profile"] == "blis-2026-02/scheduling"
    assert len(result["runs"]["strategy"]["figures"]["ttft_p99_ms[critical]"]) == 6
    critical = result["comparison"]["critical"]["ttft_p99_ms"]
    assert critical["percent"][1] <= critical["percent"][0] <= critical["percent"][2]
    assert [one["verdict"] for one in result["predictions"]] == ["confirmed", "confirmed"]


def test_criteria_are_judged_for_every_class(track: Path) -> None:
    result = records(track)[2]
    judged = {(one["criterion"], one["class"]): one["verdict"] for one in result["criteria"]}
    assert {("tail", "all"), ("tail", "critical"), ("tail", "sheddable")} <= judged.keys()
    assert judged["served", "critical"] == judged["gap", "all"] == "met"
    assert judged["impossible", "all"] == "missed" and judged["verified", "all"] == "met"
    assert judged["slow tail", "critical"] in ("met", "missed", "unclear")
    assert judged["judges", "all"] == "for people to judge"
    assert result["broken_constraints"] == ["at most one instance (num_instances is 2)"]


def test_add_prints_the_criteria(empty: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert ledger("add", "1", *ROW) == 0
    said = said_in(capsys)
    assert "Verdict: 1: confirmed" in said and "predicted num_completed >= -1%: confirmed" in said
    assert "missed impossible: tokens_per_sec >= 500%" in said
    assert "goodput_rps" in said and "critical TTFT ≤ 100 ms" in said
    assert "tail [sheddable]" in said and "constraint broken: at most one instance" in said


def test_the_page_has_the_published_columns(track: Path) -> None:
    page = (track / "ledger.md").read_text()
    header = (
        "| Iter | Strategy Name | TTFT P99 Δ% | Throughput Δ% | SLO Gap | Key Mechanism | Status |"
    )
    row = next(line for line in page.splitlines() if line.startswith("| 1 |"))
    assert header in page and row.count("|") == 8 and "**confirmed**" in row
    last = records(track)[-1]
    assert f"Anchor: record {last['number']}, `{last['hash']}`" in page


def test_text_around_the_markers_stays(track: Path) -> None:
    page = track / "ledger.md"
    page.write_text("# Mine\n\n" + page.read_text() + "\nbehind\n")
    assert ledger("render") == 0
    text = page.read_text()
    assert text.startswith("# Mine\n\n") and text.endswith("\nbehind\n")
    assert ledger("render", "--check") == 0
    page.write_text(text.replace("**confirmed**", "**refuted**"))
    assert ledger("render", "--check") == 1


def test_judged_rows_and_null_results_are_rows(
    track: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    words = ("--hypothesis", "Stale signals do harm.", "--diagnostic", "they do not matter")
    judged = ("--evidence", "judge", "--name", "idea | two", *words)
    assert ledger("add", "2", *judged) == 2
    assert "give --verdict" in capsys.readouterr().err
    assert ledger("add", "2", "--verdict", "refuted", "--findings", "No effect.") == 0
    assert ledger("note", "2", "--resolution", "Clean confirmation") == 2
    assert "does not go with the verdict refuted" in capsys.readouterr().err
    assert ledger("note", "2", "--resolution", "Refuted - wrong mental model") == 0
    page = (track / "ledger.md").read_text()
    assert "| 2 | idea \\| two | – | – | – |" in page and "Findings: No effect." in page
    assert "Resolution: Refuted - wrong mental model" in page
    assert ledger("check") == 0


def test_the_same_arm_twice_is_a_null_result(track: Path) -> None:
    words = ["--reference", "tiny.yaml:max_num_scheduled_tokens=2048", "--strategy", STRATEGY]
    words += ["--hypothesis", "Nothing changes.", "--diagnostic", "something does"]
    words += ["--predict", "num_changed_requests <= 0", "--family", "invariants"]
    words += ["--type", "deterministic", "--vvuq", "verification"]
    assert ledger("add", "2", *words) == 0
    assert "null: no request differs" in (track / "ledger.md").read_text()
    assert records(track)[-1]["verdict"] == "confirmed"


def test_along_a_setting_and_rates(track: Path, capsys: pytest.CaptureFixture[str]) -> None:
    words = ["--strategy", STRATEGY, "--diagnostic", "there is no queue", "--family", "performance"]
    words += ["--type", "monotonicity", "--hypothesis", "Load makes requests wait."]
    words += ["--predict", "ttft_mean_ms rises"]
    assert ledger("add", "2", *words) == 2
    assert "needs --over" in capsys.readouterr().err
    assert ledger("add", "2", *words, "--over", "rate=50,400") == 0
    result = records(track)[-1]
    assert result["verdict"] == "confirmed" and "rate=400" in result["runs"]
    assert "at rate 50, 400" in (track / "ledger.md").read_text()
    assert ledger("check") == 0 and ledger("replay", "2") == 0


def test_other_streams(track: Path) -> None:
    assert ledger("add", "2", *ROW, "--rng", "jax") == 0
    first, second = (records(track)[place] for place in (2, -1))
    assert second["evidence"] == "simulation-jax-streams"
    assert first["runs"]["strategy"]["figures"] != second["runs"]["strategy"]["figures"]


# --- files ----------------------------------------------------------------------------------------

FILE = """
defaults: {registered: retrospective, origin: elsewhere, strategy: tiny.yaml, type: pareto}
rows:
  - id: 7
    hypothesis: Nobody is lost.
    diagnostic: somebody is
    predict: ["num_completed >= -1%", "tokens_per_sec >= -50%"]
    published: ["num_completed = 40", "tokens_per_sec = 1 +- 0.5"]
    findings: As it should be.
    resolution: Clean confirmation
  - id: 8
    hypothesis: Everybody is lost.
    diagnostic: nobody is
    predict: ["num_completed <= -99%", "tokens_per_sec >= -50%"]
"""


def test_files_are_added_once(track: Path, capsys: pytest.CaptureFixture[str]) -> None:
    Path("rows.yaml").write_text(FILE)
    assert ledger("add", "--from", "rows.yaml") == 0
    before = lines(track)
    assert [record["kind"] for record in records(track)[3:]] == [
        *("hypothesis", "result", "note"),
        *("hypothesis", "result"),
    ]
    assert ledger("add", "--from", "rows.yaml") == 0
    assert lines(track) == before and "0 of 2 rows added" in said_in(capsys)
    row = Ledger(track).row("7")
    assert row.hypothesis.registered == "retrospective" and row.resolution == "Clean confirmation"
    assert row.result is not None
    assert [one["basis"] for one in row.result["published"]] == [
        "the mean of the seeds",
        "not reproduced",
    ]
    assert "1 of 2 published figures reproduce" in (track / "ledger.md").read_text()


def test_a_file_with_a_bad_row_adds_nothing(
    track: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    before = lines(track)
    for old, new, problem in (
        ("num_completed <= -99%", "num_complete <= -99%", "num_complete"),
        ("diagnostic: nobody is", "diagnosis: nobody is", "did you mean 'diagnostic'"),
        ("id: 8", "id: 7", "given twice"),
        ("origin: elsewhere,", "", "needs an origin"),
    ):
        Path("rows.yaml").write_text(FILE.replace(old, new))
        assert ledger("add", "--from", "rows.yaml") == 2
        assert problem in capsys.readouterr().err
    assert lines(track) == before


# --- check ----------------------------------------------------------------------------------------


def test_check_passes_and_knows_the_anchor(track: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert ledger("check") == 0
    assert "3 records, each as it was written" in said_in(capsys)
    assert ledger("check", "--anchor", records(track)[1]["hash"][:16]) == 0
    assert ledger("check", "--anchor", "0123456789abcdef") == 1
    assert "no record has the hash" in capsys.readouterr().err


def test_check_names_the_first_broken_record(
    track: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    content = lines(track)
    write_lines(track, [content[0], content[1].replace(b"2048", b"4096", 1), content[2]])
    assert ledger("check") == 1
    assert "line 2 is broken: its content is not what its hash" in capsys.readouterr().err
    assert ledger("add", "2", *ROW) == 2
    assert ledger("render") == 2


def test_figures_stand_beside_and_are_part_of_what_is_proven(
    track: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    path, whole = track / "ledger.jsonl", lines(track)
    beside = sorted((track / "ledger").iterdir())
    assert path.stat().st_size < sum(map(len, whole)) - 1_000
    before = path.read_bytes()
    write_lines(track, whole)  # as version 0.1 wrote them
    assert ledger("check") == 0
    assert ledger("render", "--shorten") == 0
    assert "bytes shorter" in capsys.readouterr().err
    assert path.read_bytes() == before and sorted((track / "ledger").iterdir()) == beside
    assert ledger("render", "--shorten") == 0 and path.read_bytes() == before
    for file in beside:  # as versions before 1.0 kept columns
        if file.name.endswith(COLUMNS):
            text = canonical(unpack(file.read_bytes())).encode()
            file.with_name(file.name.replace(COLUMNS, ENDING)).write_bytes(lzma.compress(text))
            file.unlink()
    assert sorted((track / "ledger").iterdir()) != beside and ledger("check") == 0
    assert ledger("render", "--shorten") == 0
    assert path.read_bytes() == before and sorted((track / "ledger").iterdir()) == beside
    beside = [file for file in beside if file.name.endswith(COLUMNS)]
    figures = beside[0].read_bytes()
    beside[0].unlink()
    assert ledger("check") == 1
    assert f"{beside[0].name} (or .json.xz) is missing; restore the file" in capsys.readouterr().err
    beside[0].write_bytes(figures[:-20])
    assert ledger("check") == 1
    assert "cannot be read" in capsys.readouterr().err
    values = unpack(figures)
    values["e2e_mean_ms"] = values["ttft_mean_ms"]
    beside[0].write_bytes(pack(canonical(values).encode()) or b"")
    assert ledger("check") == 1 and ledger("add", "2", *ROW) == 2
    assert "its name is not its content's hash" in capsys.readouterr().err
    beside[0].write_bytes(figures)
    assert ledger("check") == 0


def rewritten(content: Sequence[bytes], old: bytes, new: bytes) -> list[bytes]:
    """The whole chain anew, with a text replaced."""
    previous, found = chain.NOTHING, []
    for line in content:
        record = json.loads(line.replace(old, new))
        record["previous"] = previous
        for key in ("hypothesis",):
            if key in record and found:
                record[key] = json.loads(found[-1])["hash"]
        record["hash"] = previous = chain.hash_of(record)
        found.append(canonical(record).encode())
    return found


def test_a_chain_written_anew_is_caught_by_the_page(
    track: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    write_lines(track, rewritten(lines(track), b"does not lose", b"does surely not lose"))
    assert chain.read(track / "ledger.jsonl").problem is None
    assert ledger("check") == 1
    assert "another hash than the anchor" in capsys.readouterr().err


def test_removed_records_are_caught_by_the_page(
    track: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    write_lines(track, lines(track)[:2])
    assert ledger("check") == 1
    assert "vouches for record 2, but there are only 2 records" in capsys.readouterr().err


def test_a_chain_and_page_written_anew_are_caught_by_git(
    track: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    def git(*words: str) -> None:
        who = ["-c", "user.name=a", "-c", "user.email=a@b.c", "-c", "commit.gpgsign=false"]
        subprocess.run(["git", *who, *words], check=True, capture_output=True)

    git("init", "-q")
    git("add", "-A")
    git("commit", "-qm", "one")
    assert ledger("check") == 0
    assert "1 committed versions" in said_in(capsys)
    write_lines(track, rewritten(lines(track), b"does not lose", b"does surely not lose"))
    assert ledger("render") == 0
    assert ledger("check") == 1
    assert "is not the beginning of it" in capsys.readouterr().err


def test_conclusions_that_do_not_follow_are_found(
    track: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    content = lines(track)
    result = json.loads(content[2])
    result["verdict"] = "refuted"
    result["hash"] = chain.hash_of(result)
    write_lines(track, [*content[:2], canonical(result).encode()])
    assert ledger("render") == 0
    assert ledger("check") == 1
    assert (
        "record 2 (1) is inconsistent: its figures do not give its verdict"
        in capsys.readouterr().err
    )


def test_a_torn_line_is_said(track: Path, capsys: pytest.CaptureFixture[str]) -> None:
    with (track / "ledger.jsonl").open("ab") as file:
        file.write(b'{"half')
    assert ledger("check") == 0
    assert "the last 6 bytes are no whole record" in said_in(capsys)
    assert ledger("note", "1", "--findings", "It went on.") == 0
    assert ledger("check") == 0 and records(track)[-1]["findings"] == "It went on."


# --- replay and status ----------------------------------------------------------------------------


def test_replay_gives_every_number_again(track: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert ledger("replay", "1") == 0
    assert "figures come out again, exactly" in said_in(capsys)


def test_replay_says_what_differs(track: Path, capsys: pytest.CaptureFixture[str]) -> None:
    content = lines(track)
    result = json.loads(content[2])
    value = result["runs"]["strategy"]["figures"]["ttft_p99_ms"][1]
    result["runs"]["strategy"]["figures"]["ttft_p99_ms"][1] = value * 1.5
    result["hash"] = chain.hash_of(result)
    write_lines(track, [*content[:2], canonical(result).encode()])
    assert ledger("replay", "1") == 1
    said = said_in(capsys)
    assert (
        "Differs: strategy: ttft_p99_ms is" in said and "1 differ, by up to 0.33 relative" in said
    )


GATED = (
    f"{STRATEGY}:admission_policy=class-gated;class_gated_sheddable=0;class_gated_probability=0.5"
)


def test_replay_draws_for_random_policies_as_the_record_says(
    empty: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """The first results name no rule: all their seeds had the same draws."""
    words = ["--strategy", GATED, *ROW[2:]]
    assert ledger("add", "new", *words) == 0
    with monkeypatch.context() as patch:
        alike = partial(run_hypothesis, policy_seeds=ALL_ALIKE)
        patch.setattr(book, "run_hypothesis", alike)
        assert ledger("add", "old", *words) == 0
    new, old = records(empty)[2], records(empty)[4]
    assert new["policy_seeds"] == "workload"
    figures = [one["runs"]["strategy"]["figures"]["num_rejected"] for one in (new, old)]
    assert figures[0] != figures[1]
    content = lines(empty)
    result = {key: value for key, value in old.items() if key != "policy_seeds"}
    result["hash"] = chain.hash_of(result)
    write_lines(empty, [*content[:4], canonical(result).encode()])
    assert ledger("check") == 1  # the page vouches for the record with the rule
    assert ledger("render") == 0 and ledger("check") == 0
    assert ledger("replay", "old") == 0 and ledger("replay", "new") == 0
    assert "figures come out again, exactly" in said_in(capsys)
    page = (empty / "ledger.md").read_text()
    assert "random policies drew anew on every seed" in page
    assert "random policies drew the same on every seed" in page


def test_replay_says_that_a_strategy_file_changed(
    track: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    file = Path(STRATEGY)
    file.write_text(file.read_text().replace("num_instances: 2", "num_instances: 3"))
    assert ledger("replay", "1") == 1
    said = said_in(capsys)
    assert "strategy tiny.yaml has other settings by now" in said and "exactly" in said


def test_status(track: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert ledger("status") == 0
    said = said_in(capsys)
    assert "1 rows: 1 confirmed" in said and "Next: go on" in said and "best ttft_p99_ms" in said
    judged = ["--evidence", "judge", "--name", "x", "--hypothesis", "h", "--diagnostic", "d"]
    for name in ("2", "3", "3-again"):
        words = (*judged, "--verdict", "refuted", "--findings", "f")
        assert ledger("add", name, *words) == 0
    assert ledger("plan", "4", *ROW) == 0
    capsys.readouterr()
    assert ledger("status") == 0
    said = said_in(capsys)
    assert "null iterations in a row: 3 (1, 2, 3); stopping rule: 2" in said and "stop:" in said
    assert "Open: 4, A budget" in said
    assert ledger("status", "--null-limit", "4") == 0
    assert "go on" in said_in(capsys)


# --- refusals -------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("words", "problem"),
    [
        (["plan"], "no row is given"),
        (["plan", "1", *ROW, "--type", "equivalence"], "predicts what stays"),
        (["plan", "1", *ROW, "--family", "invariants"], "type Pareto does not go with family"),
        (["plan", "1", *ROW, "--vvuq", "verification"], "does not go with type Pareto"),
        (["plan", "1", *ROW, "--family", "crosspolicy"], "did you mean 'cross-policy'"),
        (["plan", "1", *ROW, "--seeds", "1,1,2"], "a seed is given twice"),
        (["plan", "a b", *ROW], "id"),
        (["plan", "1", *ROW, "--workload", "mixd"], "did you mean 'mixed'"),
        (["plan", "1", *ROW, "--baseline", "nobody"], "strategy 'nobody' is unknown"),
        (["add", "1", *ROW, "--verdict", "confirmed"], "leave --verdict out"),
        (["add", "--from", "rows.yaml", "--seeds", "1"], "leave the id and the other options out"),
        (["note", "1"], "nothing to note"),
        (["note", "1", "--findings", "x"], "has no row '1'"),
        (["replay", "1"], "has no row '1'"),
        (["status", "--null-limit", "0"], "--null-limit must be at least 1"),
        (["status", "--objective", "ttft"], "ttft"),
        (["forget"], "action 'forget' is unknown"),
    ],
)
def test_refusals(
    empty: Path, capsys: pytest.CaptureFixture[str], words: list[str], problem: str
) -> None:
    assert main([*words, "--track", "tiny"]) == 2
    said = capsys.readouterr().err
    assert problem in said and said.count("\n") == 1
    if words[0] == "plan":
        assert not (empty / "ledger.jsonl").exists()


def test_no_ledger_here(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    assert main(["check"]) == 2
    assert "there is no ledger.jsonl in this folder" in capsys.readouterr().err
    assert main(["check", "--track", "nowhere"]) == 2
    assert "blis-jax init nowhere" in capsys.readouterr().err
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize("action", ["plan", "add", "note", "render", "check", "replay", "status"])
def test_help_has_examples(action: str, capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit):
        main([action, "--help"])
    assert f"examples: python -m sweeps.ledger {action}" in said_in(capsys)
