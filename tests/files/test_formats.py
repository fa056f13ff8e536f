"""Numbers of file formats: a file of a later version is refused wherever one is read."""

from __future__ import annotations

import json

import numpy as np
import pytest
import xarray as xr

from blis_jax.calibrate import posterior, step_fits
from blis_jax.errors import ConfigError
from blis_jax.files.formats import FORMATS, number_of, refuse_newer
from blis_jax.results.dataset import load, save

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
