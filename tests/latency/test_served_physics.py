"""served-physics: times by hand, what experts and GPUs change, and a run of the engine."""

import numpy as np
import pytest

from blis_jax.cluster.config import ClusterConfig
from blis_jax.errors import ConfigError
from blis_jax.latency.deployment import Deployment, GpuDescription
from blis_jax.latency.model_description import ModelDescription, model_description
from blis_jax.latency.served_physics import BETA, ServedNumbers, sizes_of, step_us, vector
from blis_jax.runs.many_runs import simulate
from blis_jax.runs.options import Options
from tests.support.scenes import Prompt, table_of, workload_of

GPU = GpuDescription("made", 1000.0, 2.0, 0.5, 0.5, memory_gib=80.0)  # 1e9 FLOP/µs, 2e6 bytes/µs
DENSE = ModelDescription("dense", 10, 1000, 10, 5, 50_000, 3000, 2.0)
EXPERTS = ModelDescription(
    "moe", 10, 1000, 10, 5, 50_000, 3000, 2.0, num_experts=4, num_experts_per_tok=1
)
ONES = (1.0,) * len(BETA)


def numbers(model: ModelDescription, tp: int = 1, beta: tuple = ONES) -> ServedNumbers:
    return ServedNumbers(*vector(beta, Deployment(model, GPU, tp)))


def test_a_decode_step_by_hand():
    found = numbers(DENSE)
    weights = 10 * (1000 * (2 * 1000 + 2 * 500) + 3 * 1000 * 3000) + 50_000 * 1000
    assert found.fixed_weights_us == pytest.approx(2 * weights / 2e6)
    assert found.kv_us == pytest.approx(10 * 2 * 500 * 2 / 2e6)
    assert found.every_step_us == 10
    assert found.per_decode_us == pytest.approx(0.5 + 10 * 1000 / 1e6)
    time = float(step_us(found, 0.0, 0.0, 0.0, 3.0, 600.0))
    assert time == pytest.approx(2 * weights / 2e6 + 0.01 * 600 + 10 + 3 * 0.51)


def test_long_prompts_cost_their_arithmetic_and_short_ones_none():
    found = numbers(DENSE)
    idle = float(step_us(found, 0.0, 0.0, 0.0, 0.0, 0.0))
    short = float(step_us(found, 1.0, 8.0, 8.0 * 4, 0.0, 0.0))
    assert short - idle == pytest.approx(1.0)  # the prompt as such
    tokens = 4096.0
    long = float(step_us(found, 1.0, tokens, tokens**2 / 2, 0.0, 0.0))
    arithmetic = tokens * found.token_us + tokens**2 / 2 * found.attention_us
    assert arithmetic > found.fixed_weights_us and long == pytest.approx(arithmetic + 10 + 1)
    assert found.attention_us == pytest.approx(4 * 10 * 1000 / 1e9)


def test_a_batch_loads_the_experts_that_it_chooses():
    found = numbers(EXPERTS)
    assert found.unchosen == 0.75
    experts = 2 * 10 * 4 * 3 * 1000 * 3000 / 2e6
    assert found.expert_weights_us == pytest.approx(experts)
    one, many = (float(step_us(found, 0.0, 0.0, 0.0, n, 0.0)) for n in (1.0, 100.0))
    assert one < many
    assert one == pytest.approx(
        found.fixed_weights_us + experts / 4 + 10 + 10 + found.per_decode_us
    )


def test_gpus_share_weights_and_their_overheads_grow():
    alone, shared = numbers(DENSE), numbers(DENSE, tp=5)
    assert shared.fixed_weights_us == pytest.approx(alone.fixed_weights_us / 5)
    assert shared.every_step_us == 10 * (1 + 4)
    slow = numbers(DENSE, beta=(*ONES[:-1], 2.0))
    assert slow.every_step_us == 2 * alone.every_step_us
    assert slow.fixed_weights_us == alone.fixed_weights_us
    with pytest.raises(ConfigError, match="tp 3 does not divide"):
        numbers(DENSE, tp=3)


def test_llama_4_has_a_shared_expert_and_experts_in_every_layer():
    scout = Deployment(
        model_description("redhatai/llama-4-scout-17b-16e-instruct-fp8-dynamic"), GPU, 2
    )
    sizes = sizes_of(scout)
    assert sizes.num_moe_layers == 48
    assert sizes.expert_bytes * 2 == pytest.approx(48 * 16 * 3 * 5120 * 8192)


@pytest.mark.parametrize("suffix", ["", "-FP8", "-w4a16"])
def test_a_precision_behind_the_name(suffix):
    found = model_description(f"openai/gpt-oss-120b{suffix}")
    assert found.weight_bytes == {"": 2.0, "-FP8": 1.0, "-w4a16": 0.5}[suffix]


@pytest.mark.slow
def test_the_engine_makes_steps_of_these_times():
    config = ClusterConfig(
        corrected=True,
        latency_model="served-physics",
        model="qwen/qwen2.5-7b-instruct",
        tp=1,
        max_num_running_reqs=8,
    )
    record = simulate(config, table_of(workload_of([Prompt(0, 100, 3)])), Options(num_slots=8))
    served = Deployment(model_description("qwen/qwen2.5-7b-instruct"), GPU)
    from blis_jax.latency.deployment import gpu_description

    served = Deployment(served.model, gpu_description("H100"))
    found = ServedNumbers(*vector(BETA, served))
    wanted = [step_us(found, 1.0, 100.0, 5000.0, 0.0, 0.0)]
    wanted += [step_us(found, 0.0, 0.0, 0.0, 1.0, context) for context in (101.0, 102.0)]
    steps = record.steps
    np.testing.assert_array_equal(
        np.repeat(steps.duration_us, steps.num_steps), [int(one) for one in wanted]
    )
