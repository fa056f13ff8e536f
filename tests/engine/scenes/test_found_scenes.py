"""Scenes that random testing has found unequal to the oracle once, each with what was wrong."""

import json
from pathlib import Path

import numpy as np
import pytest

from blis_jax import simulate
from tests.engine.test_properties import NODES, OPTIONS
from tests.support.oracles import oracle
from tests.support.scenes import differences, flags, from_flags, table_of

SCENES = json.loads((Path(__file__).parents[2] / "data" / "found_scenes.json").read_text())


@pytest.mark.slow
@pytest.mark.parametrize(
    "scene",
    [
        pytest.param(
            SCENES[0],
            id="a crash in an order of ties that is not BLIS's",
            marks=pytest.mark.slow,
        ),
        pytest.param(SCENES[1], id="one request, two disturbed lists that end at one position"),
        pytest.param(SCENES[2], id="an order found for the instance that the request then leaves"),
    ],
)
def test_scene_equals_oracle(scene: dict) -> None:
    workload = {name: np.array(rows, dtype) for name, (dtype, rows) in scene["workload"].items()}
    given = flags() | scene["flags"]
    expected = oracle.simulate(workload, given, profile=scene["variant"])
    cluster = from_flags({**given, "variant": scene["variant"]})
    record = simulate(cluster, table_of(workload, **NODES), OPTIONS)
    assert expected.outcome == oracle.FINISHED and record.num_open_ties == 0
    assert not differences(record, expected, scene["block_size"])
