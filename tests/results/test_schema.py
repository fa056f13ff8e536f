"""What datasets have in common, and how those of the first format are read."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
import xarray as xr

from blis_jax.results.dataset import load, save
from blis_jax.results.schema import (
    FORMAT,
    RUNS,
    SWEEP,
    Provenance,
    new_dataset,
    outcome_attributes,
    upgraded,
)


def sweep_of_format_1() -> xr.Dataset:
    """As sweeps were saved before formats had numbers."""
    dataset = new_dataset(SWEEP, Provenance(), {"strategy": ["a"], "seed": [1, 2]}, {"sweep": "x"})
    del dataset.attrs["kind"], dataset.attrs["format"]
    dataset.coords["fingerprint"] = ("strategy", ["f"])
    attributes = {"flag_meanings": "not_run completed horizon", "first_flag": -1}
    codes = np.array([[0, -1]], np.int8)
    dataset.coords["outcome"] = (("strategy", "seed"), codes, attributes)
    return dataset


@pytest.mark.parametrize("name", ["old.zarr", "old.nc"])
def test_a_file_of_the_first_format_opens_as_one_of_the_present(tmp_path: Path, name: str) -> None:
    save(sweep_of_format_1(), tmp_path / name)
    found = load(tmp_path / name)
    assert found.attrs["kind"] == SWEEP and found.attrs["format"] == FORMAT
    outcome = found["outcome"].attrs
    assert list(outcome["flag_values"]) == [-1, 0, 1] and "first_flag" not in outcome


def test_runs_and_foreign_datasets() -> None:
    runs = xr.Dataset(attrs=Provenance().attributes() | {"slo_targets": "{}"})
    assert upgraded(runs).attrs["kind"] == RUNS
    foreign = xr.Dataset(attrs={"title": "not ours"})
    assert upgraded(foreign).attrs == {"title": "not ours"}


def test_outcomes_say_what_their_codes_mean() -> None:
    found = outcome_attributes(skipped=-2, not_run=-1)
    meanings = dict(zip(found["flag_meanings"].split(), found["flag_values"], strict=True))
    assert meanings["skipped"] == -2 and meanings["not_run"] == -1 and meanings["completed"] == 0
