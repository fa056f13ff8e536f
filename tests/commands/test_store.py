"""A store filled part by part: damaged or half-written parts are made again, other damage is refused."""

from __future__ import annotations

import shutil
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest
import xarray as xr

from blis_jax.commands.store import Store
from blis_jax.errors import ConfigError, ConfigWarning
from blis_jax.files import manifest
from blis_jax.results.dataset import load
from blis_jax.results.schema import NOT_RUN
from tests.commands.made_parts import FIRST, PART, accept, made
from tests.files.test_leftovers import ENVIRONMENT
from tests.support.damages import WAYS, damage, damaged, files_of
from tests.support.killed import ROOT


def done(dataset: xr.Dataset) -> list[bool]:
    """Which of the parts are there."""
    return [bool((rows != NOT_RUN).all()) for rows in dataset["outcome"].values.reshape(3, 2, 2)]


@pytest.fixture
def whole(tmp_path: Path) -> xr.Dataset:
    """The store with two parts, read."""
    store = made(tmp_path / "whole.zarr")
    store.write(2, PART)
    return load(store.path)


def test_parts_are_there_once_they_are_written(tmp_path: Path) -> None:
    store = made(tmp_path / "made.zarr")
    assert done(load(store.path)) == [True, False, False]
    store.write(2, PART)
    found = store.resume(accept)
    assert done(found) == [True, True, False]
    np.testing.assert_array_equal(found["value"].values[2:4], PART["value"])


PIECES = {"outcome/c/1/0": 1, "outcome/c/2/0": 2, "value/c/0/0/0": 0, "value/c/1/0/0": 1}


@pytest.mark.parametrize("way", WAYS)
@pytest.mark.parametrize("piece", PIECES)
def test_damaged_parts_are_made_again(
    tmp_path: Path, whole: xr.Dataset, capsys: pytest.CaptureFixture[str], piece: str, way: str
) -> None:
    store, part = Store(tmp_path / "whole.zarr", "sweeps.made"), PIECES[piece]
    damage(store.path / piece, way)
    again = f"{piece} .*; make it again: python -m sweeps.made --resume"
    with pytest.raises(ConfigError, match=again):
        load(store.path)
    found = store.resume(accept)
    assert f"note: {store.path}: {piece} " in capsys.readouterr().err
    assert done(found) == [part != 0, part != 1, False]
    unrun = {"outcome": np.full((2, 2), NOT_RUN, np.int8)}
    store.write(2 * part, (FIRST, PART, unrun)[part])
    xr.testing.assert_identical(load(store.path), whole)


@pytest.mark.parametrize("way", WAYS)
def test_other_damage_is_refused(tmp_path: Path, whole: xr.Dataset, way: str) -> None:
    store = Store(tmp_path / "whole.zarr", "sweeps.made")
    pieces = [piece for piece in files_of(store.path) if piece not in PIECES]
    assert set(pieces) == {
        "zarr.json", "manifest/zarr.json", "name/c/0",
        *(f"{name}/zarr.json" for name in ("name", "outcome", "value")),
    }  # fmt: skip
    for piece in pieces:
        said = f"whole.zarr is damaged: {piece} .*; make it again"
        with damaged(store.path, piece, way), pytest.raises(ConfigError, match=said):
            store.resume(accept)
    xr.testing.assert_identical(load(store.path), whole)


def test_killed_anywhere_in_a_part_it_is_gone_on_with(tmp_path: Path, whole: xr.Dataset) -> None:
    made(tmp_path / "kills" / "start" / "parts.zarr")
    words = [sys.executable, "-m", "tests.support.killed", str(tmp_path / "kills"), "write_part"]
    subprocess.run(words, check=True, env=ENVIRONMENT, cwd=ROOT)
    counts = set()
    copies = [path for path in (tmp_path / "kills").iterdir() if path.name != "start"]
    for copy in copies:
        store = Store(copy / "parts.zarr", "sweeps.made")
        found = store.resume(accept)
        counts.add(done(found).count(True))
        assert done(found)[0] and not done(found)[2]
        store.write(2, PART)
        xr.testing.assert_equal(load(store.path), whole)
        assert not list(store.path.rglob("*.partial"))
    assert len(copies) > 6 and counts == {1, 2}


def test_another_store_is_refused_before_its_pieces_are_touched(tmp_path: Path) -> None:
    store = made(tmp_path / "made.zarr")
    (store.path / "value" / "c" / "0" / "0" / "0").write_bytes(b"damaged")
    before = files_of(store.path)

    def refuse(dataset: xr.Dataset) -> None:
        raise ConfigError(f"made by {dataset.attrs['command']}")

    with pytest.raises(ConfigError, match=r"made by python -m sweeps\.made"):
        store.resume(refuse)
    assert files_of(store.path) == before


def test_a_store_of_an_earlier_version_gets_its_manifest(tmp_path: Path, whole: xr.Dataset) -> None:
    store = made(tmp_path / "made.zarr")
    shutil.rmtree(store.path / "manifest")
    with pytest.warns(ConfigWarning, match="has no checksums"):
        found = store.resume(accept)
    assert done(found) == [True, False, False]
    store.write(2, PART)
    xr.testing.assert_equal(load(store.path), whole)
    assert manifest.check(store.path)
