"""The runs of a paper in parts, joined: the files of the undivided command, and one sentence for what does not fit."""

from __future__ import annotations

from pathlib import Path

import pytest

from blis_jax.errors import ConfigError
from papers.corrected.__main__ import main as corrected
from papers.record import runs as module
from papers.record.command import RecordOptions
from papers.record.measures import scalars
from papers.record.parts import SettingsAsk, make_paper_part, take_joined
from papers.record.runs import PaperRuns
from papers.two_tracks.__main__ import main as two_tracks
from sweeps import merge
from tests.papers.record.test_runs import SETTINGS

OPTIONS = RecordOptions.called("papers.tiny", "", "")


def asks(kept: str, num_seeds: int = 3) -> list[SettingsAsk]:
    """Return what is asked for: settings on published seeds and on many, of which two are the same."""
    published = SettingsAsk(PaperRuns(Path(kept), "reference"), SETTINGS[1:], (42, 43), scalars())
    many = SettingsAsk(PaperRuns(Path(kept), "jax"), SETTINGS, range(num_seeds), scalars())
    return [published, many]


def make(folder: str, part: str, num_seeds: int = 3) -> int:
    options = OPTIONS.read(["--part", part, "--output", folder, "--quiet"])
    assert options.part is not None
    return make_paper_part(options, options.part, asks(f"{folder}/parts", num_seeds))


def join(*folders: str) -> int:
    words = [f"{one}/record.jsonl" for one in folders]
    return merge.main([*words, "--output", "all/record.jsonl", "--overwrite"])


def kept(folder: str) -> dict[str, bytes]:
    files = Path(folder).rglob("*.npz")
    return {str(path.relative_to(folder)): path.read_bytes() for path in files}


@pytest.fixture(scope="module")
def parts(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("parts")
    with pytest.MonkeyPatch.context() as patch:
        patch.chdir(folder)
        for number in (2, 1):
            assert make(f"p{number}", f"{number}/2") == 0
    return folder


def test_joined_parts_are_the_undivided_runs(
    parts: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(parts)
    for ask in asks("whole"):
        ask.runs.get(ask.settings, ask.seeds, ask.measurement)
    assert join("p1", "p2") == 0
    assert "papers.tiny --output all --quiet" in " ".join(capsys.readouterr().out.split())
    monkeypatch.setattr(module, "_Work", None)  # nothing is simulated
    wanted = asks("joined")
    take_joined(OPTIONS.read([]), Path("all"), wanted)
    for ask in wanted:
        assert not ask.runs.missing(ask.settings, ask.seeds, ask.measurement)
    assert kept("joined") == kept("whole") and len(kept("whole")) == 4
    assert not kept("p1")


def test_a_part_goes_on_where_it_was_stopped(parts: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(parts)
    whole = Path("p1/record.jsonl").read_bytes()
    Path("q1").mkdir()
    Path("q1/record.jsonl").write_bytes(b"".join(whole.splitlines(keepends=True)[:3]))
    assert make("q1", "1/2") == 0
    assert Path("q1/record.jsonl").read_bytes().count(b"\n") >= 3
    assert join("p1", "p2") == 0
    joined = Path("all/record.jsonl").read_bytes()
    words = ["q1/record.jsonl", "p2/record.jsonl", "--output", "again/record.jsonl", "--quiet"]
    assert merge.main(words) == 0
    assert Path("again/record.jsonl").read_bytes() == joined


def test_what_does_not_fit_is_refused(
    parts: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(parts)
    assert make("more", "2/2", num_seeds=4) == 0
    assert join("p1", "more") == 2
    assert "made with different runs" in capsys.readouterr().err
    with pytest.raises(ConfigError, match="is not a record of this work"):
        take_joined(OPTIONS.read([]), Path("p1"), asks("p1/parts"))


@pytest.mark.parametrize("main", [corrected, two_tracks])
def test_a_part_of_what_is_not_simulated_is_refused(
    main: object, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:  # fmt: skip
    monkeypatch.chdir(tmp_path)
    assert callable(main)
    assert main(["--part", "1/2", "--quiet"]) == 2
    assert "give --output" in capsys.readouterr().err
    assert main(["--part", "1/2", "--output", "p1", "--saved"]) == 2
    assert "--saved simulates nothing" in capsys.readouterr().err
