"""Axes, designs and the configuration of a cell."""

from __future__ import annotations

import itertools
from collections import Counter
from typing import Any

import pytest

from blis_jax.cluster.config import ClusterConfig
from blis_jax.errors import ConfigError
from sweeps.robustness.cells import (
    DEFAULT_CELLS,
    config_in,
    grid_size,
    make_axes,
    make_cells,
    reference_place,
)
from sweeps.runs.axes import StudyAxis

SMALL = {
    "rate": "100,200",
    "arrival_cv": "1",
    "kv_blocks": "100,500,1000",
    "kv_cpu_blocks": "0",
    "instances": "2,4",
    "shape": "mixed,multiturn",
    "step_constant": "5000",
}


def axes(**texts: str) -> tuple[StudyAxis, ...]:
    return make_axes(SMALL | texts)


def key(cell: dict[str, Any]) -> tuple[Any, ...]:
    return tuple(cell.values())


def test_default_axes_hold_the_ledgers_regime_and_enough_cells() -> None:
    place = reference_place(make_axes({}))
    assert place == {
        "rate": 2000.0,
        "arrival_cv": 2.0,
        "kv_blocks": 132139,
        "kv_cpu_blocks": 44000,
        "instances": 8,
        "shape": "mixed",
        "step_constant": ClusterConfig().beta_coeffs[0],
    }
    assert grid_size(make_axes({})) > DEFAULT_CELLS >= 1000


def test_values_are_read_and_ordered() -> None:
    rate, *_ = axes(rate="300,100.5")
    assert rate.values == (100.5, 300.0)
    assert axes(kv_blocks="7,5")[2].values == (5, 7)
    assert axes(shape="multiturn,mixed")[5].values == ("multiturn", "mixed")


@pytest.mark.parametrize(
    ("name", "text", "problem"),
    [
        ("rate", "0", "--rate: 0 is out of range"),
        ("rate", "fast", "--rate: 'fast' is not a number"),
        ("rate", "nan", "--rate: nan is out of range"),
        ("arrival_cv", "11", "--arrival-cv: 11 is out of range"),
        ("kv_blocks", "2000.5", "--total-kv-blocks: '2000.5' is not a whole number"),
        ("kv_blocks", "0", "--total-kv-blocks: 0 is out of range"),
        ("kv_cpu_blocks", "-1", "--kv-cpu-blocks: -1 is out of range"),
        ("instances", "65", "--num-instances: 65 is out of range; allowed is 1 to 64"),
        ("instances", "4,4", "--num-instances: 4 is given twice"),
        ("shape", "mixed,", "--shape: a value is empty"),
        ("step_constant", "-1", "--step-constant: -1 is out of range"),
        ("rate", ",".join(map(str, range(1, 66))), "65 values are given, allowed are 64"),
        ("rates", "1", "axis 'rates' is unknown"),
    ],
)
def test_bad_axes_are_refused(name: str, text: str, problem: str) -> None:
    with pytest.raises(ConfigError, match=problem.replace("(", r"\(")):
        axes(**{name: text})


def test_grid_has_every_combination_once() -> None:
    small = axes()
    cells = make_cells(small, "grid", 5, 0, reference_place(small))
    assert len(cells) == 24 == len(set(map(key, cells)))
    wanted = itertools.product(*(axis.values for axis in small))
    assert [key(cell) for cell in cells] == list(wanted)


@pytest.mark.parametrize("design", ["sobol", "latin-hypercube"])
def test_samples_are_distinct_even_repeatable_and_hold_the_reference(design: str) -> None:
    every = make_axes({})
    reference = reference_place(every, "rate=500,shape=multiturn,kv-blocks=2000")
    cells = make_cells(every, design, 300, 7, reference)
    assert len(cells) == 300 == len(set(map(key, cells)))
    assert reference in cells
    assert cells == make_cells(every, design, 300, 7, reference)
    assert cells != make_cells(every, design, 300, 8, reference)
    for axis in every:
        counts = Counter(cell[axis.name] for cell in cells)
        assert set(counts) == set(axis.values)
        expected = 300 / len(axis.values)
        assert max(abs(count - expected) for count in counts.values()) < 0.25 * expected


def test_a_sample_as_large_as_the_grid_is_the_grid() -> None:
    small = axes()
    reference = reference_place(small)
    assert make_cells(small, "sobol", 24, 0, reference) == make_cells(
        small, "grid", 1, 0, reference
    )
    assert len(make_cells(small, "sobol", 23, 0, reference)) == 23


@pytest.mark.parametrize(("design", "count"), [("sobol", 0), ("grid", -1), ("sobol", 10**6)])
def test_impossible_numbers_of_cells_are_refused(design: str, count: int) -> None:
    with pytest.raises(ConfigError, match="--cells must be between 1 and"):
        make_cells(axes(), design, count, 0, reference_place(axes()))


def test_too_large_grids_are_refused() -> None:
    many = make_axes({"rate": ",".join(map(str, range(1, 61)))})
    with pytest.raises(ConfigError, match="combinations, allowed are 100000"):
        make_cells(many, "grid", 10, 0, reference_place(many))


@pytest.mark.parametrize(
    ("text", "problem"),
    [
        ("rate", "is not NAME=VALUE"),
        ("speed=1", "is not NAME=VALUE with a NAME of rate"),
        ("rate=150", "rate 150 is not on its axis, which has 100, 200"),
        ("shape=lowload", "is not on its axis, which has mixed, multiturn"),
    ],
)
def test_bad_references_are_refused(text: str, problem: str) -> None:
    with pytest.raises(ConfigError, match=problem):
        reference_place(axes(), text)


def test_the_reference_is_the_nearest_value() -> None:
    place = reference_place(axes(rate="100,1900,2500", shape="lowload,multiturn"))
    assert place["rate"] == 1900 and place["shape"] == "lowload" and place["kv_blocks"] == 1000


def test_cells_set_memory_instances_and_step_constant_only() -> None:
    config = ClusterConfig(scheduler="priority-fcfs", beta_coeffs=(1.0, 2.0, 3.0))
    place = reference_place(axes())
    placed = config_in(config, place)
    assert placed == config.replace(
        total_kv_blocks=1000, kv_cpu_blocks=0, num_instances=4, beta_coeffs=(5000.0, 2.0, 3.0)
    )


def test_signals_have_an_age_where_the_map_has_that_axis() -> None:
    old = axes(signal_age="0,5000")
    assert [axis.name for axis in old] == [*(axis.name for axis in axes()), "signal_age"]
    cells = make_cells(old, "grid", 1, 0, reference_place(old))
    assert {cell["signal_age"] for cell in cells} == {0, 5000}
    mine = config_in(ClusterConfig(prefix_index_delay=7), cells[-1])
    assert mine.load_refresh_interval == mine.snapshot_refresh_interval == 5000
    assert mine.prefix_index_delay == 7
    own = config_in(ClusterConfig(load_refresh_interval=9), reference_place(axes()))
    assert own.load_refresh_interval == 9
