"""The archive of recorded runs gives back what was packed."""

from concurrent.futures import ProcessPoolExecutor
from multiprocessing import get_context
from pathlib import Path

import numpy as np
import pytest

from benchmarks.golden import ARCHIVE, committed, main, pack

ARRAYS = {
    "times": np.array([-5, 2**62, -(2**62), 7]),
    "small": np.array([[1, 2], [300, -4]], np.int16),
    "floats": np.array([0.1, np.nan, -0.0]),
    "flags": np.array([True, False]),
    "words": np.array(["a", "longer"]),
    "none": np.zeros((0, 3), np.int32),
    "one": np.array(4, np.int32),
}


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """A folder of three files, two of them with a column of the same name."""
    folder = tmp_path / "golden"
    (folder / "deep").mkdir(parents=True)
    np.savez(folder / "first.npz", **ARRAYS)
    np.savez(folder / "deep" / "second.npz", times=np.arange(5), words=np.array(["", "x"]))
    (folder / "deep" / "settings.json").write_bytes(b'{"seed": 3}\n')
    return folder


def test_what_comes_out_is_what_went_in(folder: Path) -> None:
    archive = folder.with_name("golden.tar.xz")
    pack(folder, archive)
    kept = folder.rename(folder.with_name("before"))
    assert committed(archive) == folder
    for name in ("first.npz", "deep/second.npz"):
        with np.load(kept / name) as before, np.load(folder / name) as after:
            assert before.files == after.files
            for array in before.files:
                assert before[array].dtype == after[array].dtype, array
                assert before[array].shape == after[array].shape, array
                assert before[array].tobytes() == after[array].tobytes(), array
    assert (folder / "deep" / "settings.json").read_bytes() == b'{"seed": 3}\n'


def test_the_same_files_give_the_same_archive(folder: Path) -> None:
    first, second = folder.with_name("golden.tar.xz"), folder.with_name("second.tar.xz")
    pack(folder, first)
    committed(first)
    pack(folder, second)
    assert first.read_bytes() == second.read_bytes()


def test_a_folder_of_another_archive_is_replaced(folder: Path) -> None:
    archive = folder.with_name("golden.tar.xz")
    pack(folder, archive)
    committed(archive)
    (folder / "deep" / "settings.json").write_text("{}")
    pack(folder, archive)
    (folder / "left.json").write_text("{}")
    committed(archive)
    assert (folder / "deep" / "settings.json").read_text() == "{}"
    assert not (folder / "left.json").exists()


def test_processes_may_unpack_side_by_side(folder: Path) -> None:
    archive = folder.with_name("golden.tar.xz")
    pack(folder, archive)
    with ProcessPoolExecutor(3, mp_context=get_context("spawn")) as pool:
        assert set(pool.map(committed, [archive] * 3)) == {folder}
    assert {path.name for path in archive.parent.iterdir()} == {"golden", "golden.tar.xz"}


def test_the_command_says_where_the_runs_are(capsys: pytest.CaptureFixture[str]) -> None:
    assert ARCHIVE.exists() and main([]) == 0
    assert capsys.readouterr().out.strip().endswith("golden")
