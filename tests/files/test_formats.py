"""Numbers of file formats: a file of a later version is refused wherever one is read."""

from __future__ import annotations

import json
import lzma
from pathlib import Path

import numpy as np
import pytest
import xarray as xr

import blis_jax
from blis_jax.calibrate import posterior, step_fits
from blis_jax.errors import ConfigError
from blis_jax.files.formats import FORMATS, number_of, refuse_newer
from blis_jax.results.dataset import load, save
from tests.support.recorded.reference_data import REPO_ROOT

SENTENCE = "reads formats up to .*; install the version that wrote it"


@pytest.mark.parametrize("kind", FORMATS)
def test_present_and_earlier_formats_are_read(kind: str) -> None:
    for number in (None, *range(1, number_of(kind) + 1), np.int64(number_of(kind))):
        refuse_newer(number, kind, "a file")


@pytest.mark.parametrize("kind", FORMATS)
@pytest.mark.parametrize("of", [int, np.int64])
def test_a_later_format_is_refused(kind: str, of: type) -> None:
    with pytest.raises(ConfigError, match=f"a file is a {kind} of format 99.*{SENTENCE}"):
        refuse_newer(of(99), kind, "a file")


@pytest.mark.parametrize("suffix", [".zarr", ".nc"])
def test_a_dataset_of_a_later_format_is_refused(suffix: str, tmp_path) -> None:
    if suffix == ".nc":
        pytest.importorskip("h5netcdf")
    path = tmp_path / f"later{suffix}"
    save(xr.Dataset({"x": ("a", [1.0])}, attrs={"kind": "runs", "format": 99}), path)
    with pytest.raises(ConfigError, match=SENTENCE):
        load(path)


@pytest.mark.parametrize("kind", [posterior.KIND, step_fits.KIND])
def test_a_fit_of_a_later_format_is_refused(kind: str, tmp_path) -> None:
    path = tmp_path / "fit.json"
    path.write_text(json.dumps({"kind": kind, "format": 99}))
    with pytest.raises(ConfigError, match=SENTENCE):
        posterior.load(path)


BEFORE = REPO_ROOT / "tests" / "data" / "v0_1"  # what commands of 0.1.0 (commit 127ab9e3) wrote


def unpacked(name: str, folder: Path) -> Path:
    path = folder / name
    path.write_bytes(lzma.decompress((BEFORE / f"{name}.xz").read_bytes()))
    return path


def test_a_sweep_of_version_0_1_is_read(tmp_path: Path) -> None:
    """`blis_jax.sweep --strategy iter00_baseline --set workload.num_requests=20 --seeds 3`; its figures are today's."""
    pytest.importorskip("h5netcdf")
    dataset = load(unpacked("sweep.nc", tmp_path))
    assert dataset.attrs["package_version"] == "0.1.0" and dataset.sizes["seed"] == 3
    runs = blis_jax.sweep("iter00_baseline", set="workload.num_requests=20", seeds=3)
    now = runs.to_dataset()
    shared = set(dataset.variables) & set(now.variables)
    assert {"ttft_ms", "e2e_ms", "tokens_per_sec"} <= shared
    for name in ("ttft_ms", "e2e_ms", "tokens_per_sec", "num_completed"):
        np.testing.assert_array_equal(np.squeeze(dataset[name]), np.squeeze(now[name]))


def test_a_fit_of_version_0_1_is_read(tmp_path: Path) -> None:
    """`blis_jax.calibrate examples/measured_run`."""
    path = unpacked("fit.json", tmp_path)
    written = json.loads(path.read_text(encoding="utf-8"))
    assert written["format"] == 1 and posterior.load(path).coefficients
