from pathlib import Path

import numpy as np
import pytest
import zarr

from blis_jax.errors import ConfigError
from blis_jax.files import manifest
from blis_jax.results.schema import NOT_RUN
from surrogate.data import CALIBRATION, FAILED, TRAIN, load_data
from tests.surrogate import made_data


def test_roles_are_kept_apart(tmp_path: Path) -> None:
    data = made_data.data_at(tmp_path, sizes=(20, 17, 18))
    assert [len(p.inputs) for p in (data.train, data.calibration, data.test)] == [20, 17, 18]
    assert data.num_runs == 20 * 4 + (17 + 18) * 8
    assert np.isnan(data.train.runs[..., 0]).mean() == 0.5
    assert data.outputs[-1] == FAILED and not len(data.other.inputs)


def test_failed_runs_become_an_output(tmp_path: Path) -> None:
    path = made_data.write(tmp_path / "made.zarr")
    group = zarr.open_group(path, mode="r+")
    group["outcome"][100, :2] = 6
    group["value"][100, :2] = np.nan
    group["outcome"][101, :] = 6
    group["value"][101, :] = np.nan
    manifest.seal(path)
    data = load_data(path)
    assert data.num_left_out == 1
    assert data.calibration.means[100 - 96, -1] == 0.25


def test_unfinished_dataset_is_refused(tmp_path: Path) -> None:
    path = made_data.write(tmp_path / "made.zarr")
    zarr.open_group(path, mode="r+")["outcome"][200, 3] = NOT_RUN
    manifest.seal(path)
    with pytest.raises(ConfigError, match="1 runs are missing"):
        load_data(path)
    assert len(load_data(path, (TRAIN, CALIBRATION)).test.inputs) == 63  # enough to fit


def test_other_stores_are_refused(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="does not exist"):
        load_data(tmp_path / "none.zarr")
    path = made_data.write(tmp_path / "made.zarr")
    zarr.open_group(path, mode="r+").attrs["kind"] = "robustness map"
    manifest.seal(path)
    with pytest.raises(ConfigError, match=r"is something else; give the [.]zarr that sweeps"):
        load_data(path)
    made_data.write(path, sizes=(4, 20, 20))
    with pytest.raises(ConfigError, match="4 train points"):
        load_data(path)
