"""A small store that is filled in three parts of two rows, for tests."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import xarray as xr

from blis_jax.commands.store import Store
from blis_jax.results.schema import NOT_RUN

# Zarr keeps no chunk whose values are all 0, as those of the first part's outcomes.
FIRST = {"value": np.arange(100.0, 112.0).reshape(2, 2, 3), "outcome": np.zeros((2, 2), np.int8)}
PART = {"value": np.arange(12.0).reshape(2, 2, 3), "outcome": np.ones((2, 2), np.int8)}


def made(path: Path) -> Store:
    """The store with its first part filled."""
    empty = xr.Dataset(
        {
            "value": (("row", "seed", "metric"), np.full((6, 2, 3), np.nan)),
            "outcome": (("row", "seed"), np.full((6, 2), NOT_RUN, np.int8)),
        },
        {"name": ("row", np.arange(6))},
        {"command": "python -m sweeps.made"},
    )
    empty["value"].encoding = {"chunks": (2, 2, 3)}
    empty["outcome"].encoding = {"chunks": (2, 2)}
    store = Store(path, "sweeps.made")
    store.begin(empty, is_resumed=False)
    store.write(0, FIRST)
    return store


def accept(_: xr.Dataset) -> None:
    """Every store may be gone on with."""
