"""A store that lost a piece is refused with a sentence that names the piece, or gives the same data."""

from __future__ import annotations

import shutil
import warnings
from pathlib import Path

import pytest
import xarray as xr

from blis_jax.errors import ConfigError, ConfigWarning
from blis_jax.files import manifest
from blis_jax.results import dataset as results
from tests.support.damages import WAYS, damaged, files_of, flip
from tests.support.tiny_records import whole_run

COMMAND = "python -m blis_jax.made --seeds '1, 2'"


@pytest.fixture(scope="module")
def dataset() -> xr.Dataset:
    made = results.to_dataset([whole_run()] * 2, {"seed": [1, 2]}, results.Provenance())
    return made.assign_attrs(command=COMMAND)


@pytest.fixture
def store(dataset: xr.Dataset, tmp_path: Path) -> Path:
    results.save(dataset, tmp_path / "made.zarr")
    return tmp_path / "made.zarr"


def refusal(path: Path) -> str:
    with pytest.raises(ConfigError) as refused:
        results.load(path)
    assert "\n" not in str(refused.value)
    return str(refused.value)


@pytest.mark.parametrize("way", WAYS)
def test_every_damaged_file_of_a_store_is_named(store: Path, way: str) -> None:
    what = "is missing" if way == "deleted" else "has changed"
    pieces = files_of(store)
    assert len(pieces) > 50 and manifest.IN_ZARR in pieces
    for piece in pieces:
        with damaged(store, piece, way):
            said = refusal(store)
        of_manifest = piece == manifest.IN_ZARR
        again = "" if of_manifest else f": {COMMAND} --overwrite"
        assert said == f"{store} is damaged: {piece} {what}; make it again{again}"
    results.load(store)


def test_every_part_of_a_manifest_counts(store: Path) -> None:
    path = store / manifest.IN_ZARR
    content = path.read_bytes()
    for place in range(0, len(content), len(content) // 60):
        flip(path, place / len(content))
        assert "manifest/zarr.json has changed" in refusal(store)
        path.write_bytes(content)


def test_several_lost_pieces_are_counted(store: Path) -> None:
    shutil.rmtree(store / "ttft_ms" / "c")
    shutil.rmtree(store / "itl_ms")
    found = refusal(store)
    assert "itl_ms/c/0/0 is missing (and 2 more of its pieces); make it again" in found


def test_a_chunk_too_many_is_noticed_and_other_files_are_not(
    store: Path, dataset: xr.Dataset
) -> None:
    (store / "notes.txt").write_text("mine")
    (store / ".hidden").write_text("mine")
    (store / "ttft_ms" / "c" / "0.1234.partial").write_text("half")
    with warnings.catch_warnings():
        warnings.filterwarnings("ignore", "Object at (notes.txt|.hidden)", UserWarning)
        xr.testing.assert_identical(results.load(store), dataset)
    shutil.copytree(store / "ttft_ms" / "c" / "0", store / "ttft_ms" / "c" / "1")
    assert "ttft_ms/c/1/0/0 does not belong to it" in refusal(store)


def test_every_damage_of_a_netcdf_file_is_noticed(dataset: xr.Dataset, tmp_path: Path) -> None:
    path = tmp_path / "made.nc"
    results.save(dataset, path)
    content = path.read_bytes()
    last_line = len("\nblis_jax sha256 \n") + manifest.DIGITS
    for place in range(0, len(content) - last_line, len(content) // 60):
        flip(path, place / len(content))
        assert refusal(path) == f"{path} is damaged: its content has changed; make it again"
        path.write_bytes(content)
    other = b"1" if content[-3:-2] == b"0" else b"0"  # in the checksum, still a digit of one
    path.write_bytes(content[:-3] + other + content[-2:])
    with pytest.raises(ConfigError, match="its content has changed"):
        results.load(path)
    path.write_bytes(content[:-1])  # no checksum is left, but all of the data
    with pytest.warns(ConfigWarning, match="has no checksums"):
        xr.testing.assert_identical(results.load(path), dataset)
    path.write_bytes(content[:-1000])
    with pytest.raises(ConfigError, match=r"cannot be read .*; make it again"):
        results.load_or_refuse(path, "make it again")


@pytest.mark.parametrize("suffix", [".zarr", ".nc"])
def test_a_store_of_an_earlier_version_is_read_with_a_remark(
    dataset: xr.Dataset, tmp_path: Path, suffix: str
) -> None:
    path = tmp_path / f"old{suffix}"
    if suffix == ".zarr":
        results.save(dataset, path)
        shutil.rmtree(path / "manifest")
    else:
        dataset.to_netcdf(path, engine="h5netcdf")
    with pytest.warns(ConfigWarning, match=f"old{suffix} has no checksums, .*; make it again if"):
        found = results.load(path)
    xr.testing.assert_identical(found, dataset)


def test_other_readers_see_the_dataset_alone(store: Path, dataset: xr.Dataset) -> None:
    found = xr.open_zarr(store, consolidated=False)
    assert set(found.variables) == set(dataset.variables) and found.attrs == dataset.attrs
    results.save(dataset, store.with_suffix(".nc"))
    with xr.open_dataset(store.with_suffix(".nc"), engine="h5netcdf") as found:
        assert found.sizes == dataset.sizes
