"""Step times and KV blocks that BLIS's 2026-08 revision computed, all of them and to the microsecond."""

import gzip
import json
import re
from typing import Any

import jax
import numpy as np
import pytest

from blis_jax.errors import ConfigError
from blis_jax.latency import roofline, trained_physics
from blis_jax.latency.deployment import Deployment, gpu_description, kv_blocks, kv_bytes_per_token
from blis_jax.latency.model_description import model_description
from tests.support.recorded import latency_2026_08 as plain
from tests.support.recorded.reference_data import find_golden_dir

pytestmark = pytest.mark.golden

SLOTS = 200
FUNCTIONS = {
    "trained-physics": (trained_physics.trained_physics, trained_physics.vector),
    "roofline": (roofline.roofline, roofline.vector),
}


def _lines(name: str) -> list[dict[str, Any]]:
    golden = find_golden_dir()
    path = golden / "blis_2026_08" / "latency_vectors" / f"{name}.jsonl.gz" if golden else None
    if path is None or not path.is_file():
        pytest.skip("no recorded latency vectors beside the checkout")
    with gzip.open(path, "rt") as file:
        return [json.loads(line) for line in file]


@pytest.fixture(scope="module")
def recorded() -> dict[str, list[tuple[Deployment, list[float], dict[str, Any]]]]:
    lines = _lines("steps")
    models = {line["id"]: line for line in lines if line["type"] == "model"}
    deployments = {
        number: Deployment(
            model_description(line["model"]),
            gpu_description(line["gpu"]),
            line["tp"],
            line["dp"],
            line["moe_comm_backend"],
        )
        for number, line in models.items()
    }
    found: dict[str, Any] = {"trained-physics": [], "roofline": []}
    for line in lines:
        if line["type"] == "step":
            number = line["model"]
            found[models[number]["backend"]].append(
                (deployments[number], models[number]["beta"], line)
            )
    return found


@pytest.mark.parametrize("name", FUNCTIONS)
def test_every_step_takes_as_long_as_recorded(recorded, name):
    """Members lie in slots of any order; one compiled program serves all models."""
    model, vector = FUNCTIONS[name]
    steps = recorded[name]
    batches = plain.step_batches([line["batch"] for *_, line in steps], SLOTS)
    vectors = np.array([vector(beta, deployment) for deployment, beta, _ in steps])
    with jax.enable_x64(True):
        times = np.asarray(jax.jit(jax.vmap(model.step_time))(vectors, batches))
    expected = np.array([line["step_us"] for *_, line in steps])
    assert len(expected) > 300
    np.testing.assert_array_equal(times.astype(np.int64), expected)


@pytest.mark.parametrize("name", FUNCTIONS)
def test_the_plain_recomputation_is_the_recorded_time(recorded, name):
    """So that the engine can be compared with it on batches that nobody recorded."""
    for deployment, beta, line in recorded[name]:
        assert plain.STEP_TIMES[name](deployment, beta, line["batch"]) == line["step_us"]


def test_every_kv_cache_has_the_recorded_blocks():
    """Refusals name the same least number of GPUs."""
    counts = {"blocks": 0, "refused": 0}
    for line in _lines("kv_blocks"):
        model, gpu = model_description(line["model"]), gpu_description(line["gpu"])
        deployment = Deployment(model, gpu, line["tp"], line["dp"])
        assert kv_bytes_per_token(deployment) == line["kv_bytes_per_token_per_gpu"]
        size, share = line["block_size"], line["gpu_memory_utilization"]
        if "error" in line:
            counts["refused"] += 1
            least = re.search(r"required per instance: (\d+)", line["error"])
            with pytest.raises(ConfigError, match=rf"a tp of at least {least[1]}[ ,]"):
                kv_blocks(deployment, size, share)
        else:
            counts["blocks"] += 1
            assert kv_blocks(deployment, size, share) == line["total_kv_blocks"]
    assert counts == {"blocks": 684, "refused": 148}
