"""A run as data frames and as a dataset, in one step."""

from __future__ import annotations

import warnings
from pathlib import Path

import numpy as np
import pytest
import xarray as xr

from blis_jax import ClusterConfig
from blis_jax.errors import ConfigError
from blis_jax.metrics.scalars import evaluate
from blis_jax.results.dataset import load, run_dataset, save
from tests.support.tiny_records import pressed_run, run_of, whole_run


def test_what_never_happened_is_missing_and_codes_are_words() -> None:
    run = run_of(
        {
            "arrival_us": [0, 5, 9],
            "slo_class": [1, 0, 1],
            "status": [0, 1, 3],
            "instance": [1, -1, 0],
            "ttft_us": [70, -1, -1],
            "ttft_parts_us": np.array([[10, 0, 20, 40, 0, 0, 0, 0], [-1] * 8, [-1] * 8]),
        }
    )
    frame = run.to_dataframe()
    assert frame.index.name == "request" and len(frame) == 3
    assert frame["slo_class"].tolist() == ["critical", "default", "critical"]
    assert frame["status"].tolist() == ["completed", "rejected", "waiting"]
    assert frame["instance"].isna().tolist() == [False, True, False]
    assert frame.groupby("slo_class", observed=True)["ttft_us"].mean()["critical"] == 70
    parts = frame.filter(regex="^ttft_.+_us$")
    assert parts.shape[1] == 8
    np.testing.assert_array_equal(parts.sum(axis=1, skipna=False), frame["ttft_us"])


@pytest.mark.parametrize("table", ["steps", "instances", "preemptions"])
def test_other_tables_have_every_column(table: str) -> None:
    run = pressed_run()
    frame = run.to_dataframe(table)
    assert frame.index.name == table[:-1]
    for name in frame:
        np.testing.assert_array_equal(frame[name], getattr(getattr(run, table), name))


def test_an_unknown_table_is_refused() -> None:
    with pytest.raises(ConfigError, match=r"no table 'request'.*did you mean 'requests'"):
        whole_run().to_dataframe("request")


def test_a_run_as_a_dataset_has_its_figures_and_settings() -> None:
    run, config = whole_run(), ClusterConfig(num_instances=2)
    dataset = run.to_dataset(config)
    assert "run" not in dataset.dims
    p99 = dataset["ttft_ms"].sel(slo_class="all", quantile=0.99).item()
    assert p99 == evaluate(run, ["ttft_p99_ms"])["ttft_p99_ms"]
    assert dataset["ttft_ms"].attrs["units"] == "ms"
    assert '"num_instances": 2' in dataset.attrs["config"]
    xr.testing.assert_equal(run_dataset(run), run.to_dataset())


@pytest.mark.parametrize("name", ["run.zarr", "run.nc"])
def test_a_saved_dataset_opens_without_a_warning(tmp_path: Path, name: str) -> None:
    dataset = whole_run().to_dataset()
    save(dataset, tmp_path / name)
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        opened = xr.load_dataset(tmp_path / name)
        xr.testing.assert_equal(load(tmp_path / name), dataset)
    assert set(opened.data_vars) == set(dataset.data_vars)
