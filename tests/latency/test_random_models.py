"""Step times of made-up models on made-up batches against plain Python: whatever the sizes, to the microsecond."""

from typing import Any

import jax
import numpy as np
import pytest

from blis_jax.core.exact import runtime_infinity
from blis_jax.latency.deployment import Deployment, gpu_description
from blis_jax.latency.model_description import describe
from blis_jax.latency.registry import SIZED, find
from tests.support.recorded import latency_2026_08 as plain

CASES, SLOTS = 500, 48


def _model(rng: np.random.Generator) -> dict[str, Any]:
    heads, groups = int(rng.choice([1, 2, 3, 4, 8, 12])), int(rng.choice([1, 2, 5, 7, 8]))
    config: dict[str, Any] = {
        "num_hidden_layers": int(rng.integers(2, 127)),
        # not always a multiple of the heads
        "hidden_size": heads * groups * int(rng.choice([64, 96, 100, 128]))
        + int(rng.choice([0, 8])),
        "num_attention_heads": heads * groups,
        "num_key_value_heads": heads,
        "vocab_size": 32000,
        "intermediate_size": int(rng.integers(512, 40000)),
        "torch_dtype": str(rng.choice(["bfloat16", "float32", "int8"])),
    }
    if rng.random() < 0.6:
        config["num_experts"] = int(rng.choice([2, 3, 7, 16, 60, 128, 256]))
        config["num_experts_per_tok"] = int(rng.integers(1, min(config["num_experts"], 9) + 1))
    for name, most in (
        ("moe_intermediate_size", 4000),
        ("interleave_moe_layer_step", 4),
        ("intermediate_size_mlp", 20000),
        ("n_shared_experts", 3),
    ):
        if rng.random() < 0.4:
            config[name] = int(rng.integers(1, most + 1))
    if rng.random() < 0.4:
        config["quantization_config"] = {"bits": int(rng.choice([3, 4, 8]))}
    return config


def _deployment(rng: np.random.Generator, name: str) -> Deployment:
    model = describe(_model(rng), "made-up")
    fitting = [tp for tp in range(1, 9) if model.num_kv_heads % tp == 0]
    spreads = model.is_moe and name == "trained-physics"
    return Deployment(
        model,
        gpu_description(str(rng.choice(["H100", "A100-SXM", "L40S"]))),
        tp=int(rng.choice(fitting)),
        dp=int(rng.integers(1, 5)) if spreads else 1,
        moe_comm_backend=str(rng.choice(["", "pplx", "naive"])),
    )


def _batch(rng: np.random.Generator) -> list[tuple[int, int, int, int]]:
    longest, members = int(rng.choice([9000, 1_000_000])), []
    for _ in range(int(rng.integers(1, SLOTS + 1))):
        prompt = int(rng.integers(1, longest))
        if rng.random() < 0.3:
            done = int(rng.integers(0, prompt)) if rng.random() < 0.5 else 0
            new = int(rng.integers(1, min(prompt - done, 3000) + 1))
            members.append((prompt, int(rng.integers(0, 3)), done, new))
        else:  # without output it is neither a prompt nor a decode
            members.append((prompt, int(rng.integers(0, 500)), prompt + int(rng.integers(500)), 1))
    return members


@pytest.mark.parametrize("name", SIZED)
def test_made_up_models_take_the_plain_time(name):
    rng = np.random.default_rng(7)
    model = find(name)
    assert model.sizes is not None
    deployments = [_deployment(rng, name) for _ in range(CASES)]
    betas = [tuple(3 * rng.random(int(rng.integers(7, 13)))) for _ in range(CASES)]
    batches = [_batch(rng) for _ in range(CASES)]
    served = zip(deployments, betas, batches, strict=True)
    expected = [plain.STEP_TIMES[name](*one) for one in served]
    vectors = np.array([model.sizes.vector(*one) for one in zip(betas, deployments, strict=True)])

    def in_engine(vector: Any, batch: Any, infinity: Any) -> Any:
        with runtime_infinity(infinity):
            return model.step_time(vector, batch)

    with jax.enable_x64(True):
        of_all = jax.jit(jax.vmap(in_engine, (0, 0, None)))
        times = of_all(vectors, plain.step_batches(batches, SLOTS), np.float64(np.inf))
    np.testing.assert_array_equal(np.asarray(times).astype(np.int64), expected)
