"""What killed processes leave behind: the next one takes it over or removes it, and spares the living."""

from __future__ import annotations

import os
import platform
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from blis_jax.commands import cli
from blis_jax.errors import ConfigError
from blis_jax.files.atomic_write import clear_leftovers, discard, replacing, sole_writer
from tests.support.killed import ROOT

ENVIRONMENT = os.environ | {"PYTHONPATH": str(ROOT)}


def killed_everywhere(folder: Path, step: str) -> list[Path]:
    """Copies of FOLDER/start, each with what a step left behind that was killed somewhere; the last one was not."""
    words = [sys.executable, "-m", "tests.support.killed", str(folder), step]
    subprocess.run(words, check=True, env=ENVIRONMENT, cwd=ROOT)
    return sorted(
        (path for path in folder.iterdir() if path.name != "start"), key=lambda p: int(p.name)
    )


def texts(folder: Path) -> dict[str, str]:
    return {path.name: path.read_text() for path in folder.iterdir()}


def begun(tmp_path: Path) -> Path:
    (tmp_path / "start" / "result").mkdir(parents=True)
    for name in ("one", "two"):
        (tmp_path / "start" / "result" / name).write_text("old")
    return tmp_path


def names(folder: Path) -> list[str]:
    return sorted(path.name for path in folder.iterdir())


def test_a_folder_is_old_or_new_wherever_its_writer_is_killed(tmp_path: Path) -> None:
    copies = killed_everywhere(begun(tmp_path), "replace_folder")
    found = []
    for copy in copies:
        (copy / ".result.other.tmp").mkdir()  # not ours
        cli.check_writable(copy / "result", is_folder=True)
        assert names(copy) == [".result.other.tmp", "result"], copy
        found.append(texts(copy / "result"))
    old, new = (dict.fromkeys(("one", "two"), text) for text in ("old", "new"))
    count = found.index(new)
    assert len(copies) > 10 and 0 < count < len(copies)
    assert found == [old] * count + [new] * (len(copies) - count)


def test_a_file_is_old_or_new_wherever_its_writer_is_killed(tmp_path: Path) -> None:
    (tmp_path / "start").mkdir()
    (tmp_path / "start" / "result").write_text("old")
    copies = killed_everywhere(tmp_path, "replace_file")
    assert any(len(names(copy)) > 1 for copy in copies)
    for copy in copies:
        assert (copy / "result").read_text() in ("old", "new")
        with replacing(copy / "result") as written:
            written.write_text("newer")
        assert names(copy) == ["result"] and (copy / "result").read_text() == "newer"


def test_a_discarded_folder_is_whole_or_gone_wherever_the_process_is_killed(tmp_path: Path) -> None:
    copies = killed_everywhere(begun(tmp_path), "discard")
    kept = 0
    for copy in copies:
        clear_leftovers(copy / "result")
        if (copy / "result").exists():
            assert texts(copy / "result") == {"one": "old", "two": "old"}
            kept += 1
            discard(copy / "result")
        assert names(copy) == []
    assert 0 < kept < len(copies)


HOLDER = """
import sys
from pathlib import Path
from blis_jax.files.atomic_write import replacing
from blis_jax.files.atomic_write import sole_writer
path = Path(sys.argv[2])
with {"replacing": replacing, "sole_writer": sole_writer}[sys.argv[1]](path) as written:
    print("begun", flush=True)
    input()
    if written:
        written.write_text("of the other process")
"""


@contextmanager
def another(what: str, path: Path) -> Iterator[subprocess.Popen[str]]:
    """A living process that writes a path."""
    words = [sys.executable, "-c", HOLDER, what, str(path)]
    pipes = {"stdin": subprocess.PIPE, "stdout": subprocess.PIPE}
    with subprocess.Popen(words, env=ENVIRONMENT, text=True, **pipes) as process:  # type: ignore[call-overload]
        assert process.stdout.readline() == "begun\n"
        yield process
        process.kill()


def test_what_a_living_process_writes_is_left_alone(tmp_path: Path) -> None:
    path = tmp_path / "result"
    with another("replacing", path) as process:
        cli.check_writable(path)
        with replacing(path) as written:
            written.write_text("mine")
        assert len(names(tmp_path)) == 2
        process.communicate("\n")
        assert process.returncode == 0
    assert texts(tmp_path) == {"result": "of the other process"}
    with another("replacing", path):
        pass
    assert len(names(tmp_path)) == 2
    cli.check_writable(path)
    assert names(tmp_path) == ["result"]


def test_what_another_machine_left_is_left_alone(tmp_path: Path) -> None:
    path = tmp_path / "result"
    with another("replacing", path):
        pass
    (scratch,) = tmp_path.iterdir()
    pid, machine = (scratch / "lock").read_text().split()
    assert machine == platform.node()
    (scratch / "lock").write_text(f"{pid} another-{machine}\n")
    clear_leftovers(path)
    assert names(tmp_path) == [scratch.name]


def test_one_process_at_a_time_fills_a_store_and_a_killed_one_is_followed(tmp_path: Path) -> None:
    path = tmp_path / "made.zarr"
    with another("sole_writer", path) as process:
        said = rf"made\.zarr is being written by another process \({process.pid} on .*\); wait"
        with pytest.raises(ConfigError, match=said), sole_writer(path):
            pass
    assert names(tmp_path) == [".made.zarr.lock"]
    with sole_writer(path):
        pass
    assert names(tmp_path) == []
