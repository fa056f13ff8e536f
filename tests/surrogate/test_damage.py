"""Datasets, surrogates and training states that lost a piece, and a disk that is full."""

import json
import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from blis_jax.errors import ConfigError
from surrogate import predict, train
from surrogate.data import load_data
from tests.support.recorded.reference_data import REPO_ROOT

pytestmark = pytest.mark.lenient_promotion

SMALL = ["--members", "2", "--width", "8", "--depth", "1", "--steps", "40", "--batch", "64"]


@pytest.mark.parametrize("lost", ["inputs", "value", "outcome", "role", "unit", "is_other_seed"])
@pytest.mark.parametrize("metadata", [False, True], ids=["folder", "metadata"])
def test_dataset_without_a_variable_is_refused(
    store: Path, lost: str, metadata: bool, tmp_path: Path
) -> None:
    path = tmp_path / "made.zarr"
    shutil.copytree(store, path)
    if metadata:
        (path / lost / "zarr.json").unlink()
    else:
        shutil.rmtree(path / lost)
    with pytest.raises(ConfigError) as caught:
        load_data(path)
    assert str(path) in str(caught.value) and lost in str(caught.value)


def sentence(capsys: pytest.CaptureFixture) -> str:
    out, err = capsys.readouterr()
    assert out == "" and err.count("\n") == 1 and "error: " in err, err
    return str(err)


def test_surrogate_without_a_part_of_its_document_is_refused(
    store: Path, tmp_path: Path, capsys: pytest.CaptureFixture
) -> None:
    path = tmp_path / "s.surrogate"
    assert train.main([str(store), *SMALL, "--out", str(path), "--quiet"]) == 0
    whole = json.loads((path / "surrogate.json").read_text())
    points = tmp_path / "points.json"
    points.write_text(
        json.dumps(
            {one["name"]: (one["categories"] or [one["low"]])[0] for one in whole["columns"]}
        )
    )
    for lost in set(whole) - {"kind", "version"}:
        (path / "surrogate.json").write_text(json.dumps({**whole, lost: None}))
        assert predict.main([str(path), str(points)]) == 2
        assert "s.surrogate" in sentence(capsys)


@pytest.mark.parametrize("content", ["", "{", "[1, 2", '{"steps": '])
def test_unreadable_training_state_is_refused(
    content: str, store: Path, tmp_path: Path, capsys: pytest.CaptureFixture
) -> None:
    state = tmp_path / "s.surrogate.state"
    state.mkdir()
    (state / "fit.json").write_text(content)
    out = tmp_path / "s.surrogate"
    assert train.main([str(store), *SMALL, "--out", str(out), "--resume"]) == 2
    err = sentence(capsys)
    assert "s.surrogate.state" in err and "--overwrite" in err


@pytest.mark.slow
def test_training_on_a_full_disk_ends_in_one_sentence(store: Path, tmp_path: Path) -> None:
    arguments = [str(store), *SMALL, "--out", str(tmp_path / "s.surrogate"), "--quiet"]
    code = (
        "import resource, sys\nfrom surrogate import train\n"
        "resource.setrlimit(resource.RLIMIT_FSIZE, (2000, 2000))\n"
        f"sys.exit(train.main({arguments!r}))"
    )
    done = subprocess.run(
        [sys.executable, "-c", code],
        capture_output=True,
        text=True,
        env={**os.environ, "PYTHONPATH": str(REPO_ROOT)},
        check=False,
    )
    assert done.returncode == 2, done.stderr
    assert done.stderr.count("\n") == 1 and "cannot be written" in done.stderr, done.stderr
    assert not list(tmp_path.iterdir())
