"""Every recorded workload drawn again: all arrays equal, byte for byte."""

import functools
import json
from itertools import pairwise
from pathlib import Path

import numpy as np
import pytest

from blis_jax.workload.distribution import Distribution, GaussianLengths
from blis_jax.workload.reference import golden_arrays
from blis_jax.workload.reference.distribution import distribution_arrays
from blis_jax.workload.spec import load_spec, override
from blis_jax.workload.table import load_table
from tests.support.recorded.reference_data import find_golden_dir

pytestmark = pytest.mark.golden


@functools.cache
def recorded_workloads() -> dict[str, Path]:
    """One scenario of each recorded workload."""
    folder = find_golden_dir()
    found: dict[str, Path] = {}
    for track in ("routing", "scheduling") if folder else ():
        index = json.loads((folder / track / "index.json").read_text())
        for entry in index["scenarios"]:
            if not entry["workload_spec"].startswith("traces"):
                found.setdefault(entry["workload"], folder / track / entry["config_file"])
    return found


def options_of(scenario):
    """The reference's options that decide the requests."""
    words = scenario["cli_args"]
    return {name[2:]: value for name, value in pairwise(words) if name.startswith("--")}


def drawn_from_spec(scenario, track):
    options = options_of(scenario)
    spec = load_spec(track / options["workload-spec"])
    changes = {
        key: int(options[flag])
        for flag, key in (("num-requests", "num_requests"), ("horizon", "horizon"))
        if flag in options
    }
    seed = int(options["seed"]) if "seed" in options else None
    block_size = int(options.get("block-size-in-tokens", 16))
    return golden_arrays(override(spec, **changes), seed, block_size)


def drawn_from_options(scenario):
    options = options_of(scenario)

    def lengths(kind):
        name = f"{kind}-tokens"
        return GaussianLengths(int(options[name]), int(options[f"{name}-stdev"]), 2, 7000)

    distribution = Distribution(
        rate=float(options["rate"]),
        num_requests=int(options["num-requests"]),
        prefix_tokens=int(options.get("prefix-tokens", 0)),
        prompt=lengths("prompt"),
        output=lengths("output"),
    )
    return distribution_arrays(distribution, int(options["seed"]))


@pytest.mark.parametrize("workload", recorded_workloads())
def test_drawn_arrays_equal_the_recorded_ones(workload):
    path = recorded_workloads()[workload]
    scenario = json.loads(path.read_text())
    is_simple = scenario["workload_spec"] == "distribution"
    track = path.parents[1]
    drawn = drawn_from_options(scenario) if is_simple else drawn_from_spec(scenario, track)
    with np.load(track / "workloads" / f"{workload}.npz") as file:
        recorded = dict(file)
    assert drawn.keys() >= recorded.keys()
    for name, array in recorded.items():
        assert np.array_equal(drawn[name], array), name


def test_some_workload_is_compared(golden_dir):
    assert len(recorded_workloads()) >= 40


def test_drawn_arrays_make_a_workload_file(golden_dir, tmp_path):
    workload, path = next(iter(recorded_workloads().items()))
    track = path.parents[1]
    np.savez(tmp_path / "w.npz", **drawn_from_spec(json.loads(path.read_text()), track))
    mine, names = load_table(tmp_path / "w.npz")
    theirs, their_names = load_table(track / "workloads" / f"{workload}.npz")
    assert names == their_names
    assert np.array_equal(mine.path_nodes, theirs.path_nodes)
