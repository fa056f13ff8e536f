"""Known numbers of what models of 2026 keep: blocks that vLLM logs or cuts prompts to, parameters, bytes."""

import pytest

from blis_jax import ClusterConfig
from blis_jax.cluster.step_times import vectors
from blis_jax.errors import ConfigError
from blis_jax.latency.caches import LayerKinds, entry_bytes
from blis_jax.latency.deployment import (
    GIB,
    Deployment,
    block_tokens,
    gpu_description,
    kv_blocks,
    kv_bytes_per_token,
    request_bytes,
    weight_bytes,
)
from blis_jax.latency.model_description import describe, model_description, num_parameters
from tests.support.recorded.reference_data import REPO_ROOT

QWEN, DENSE, DEEPSEEK = "qwen/qwen3.6-35b-a3b", "qwen/qwen3.8-27b", "deepseek-ai/deepseek-v4-flash"


def served(name: str, tp: int = 1, dp: int = 1, gpu: str = "B300") -> Deployment:
    return Deployment(model_description(name), gpu_description(gpu), tp, dp)


@pytest.mark.parametrize(
    ("name", "tp", "tokens"),
    [
        (QWEN, 1, 1056),  # the measured engines cut prompts to multiples of 1,056, 1,056 and 528
        (QWEN, 2, 1056),
        (QWEN, 4, 528),
        (DENSE, 1, 784),  # of vLLM's log
        (DEEPSEEK, 1, 256),
        ("qwen/qwen3-32b", 2, 16),
    ],
)
def test_blocks_are_those_of_vllm(name, tp, tokens):
    assert block_tokens(served(name, tp)) == tokens


def test_bytes_by_hand():
    # 10 of 40 layers, 2 KV heads of 256 in 16 bits; on four GPUs each head has two copies
    assert kv_bytes_per_token(served(QWEN)) == 10 * 2 * 2 * 256 * 2
    assert kv_bytes_per_token(served(QWEN, 4)) == 10 * 2 * 256 * 2
    state = 32 * 128 * 128 * 4 + (2 * 16 + 32) * 128 * 3 * 2
    assert request_bytes(served(QWEN)) == 30 * state
    assert request_bytes(served(QWEN, 4)) == 30 * state / 4
    assert entry_bytes(512, 64) == 584
    assert kv_bytes_per_token(served(DEEPSEEK)) == 21 * (584 + 132) / 4 + 20 * 584 / 128
    windows = 43 * 128 * 584
    compressing = 21 * 8 * 4 * (512 + 128) * 4 + 20 * 128 * 2 * 512 * 4
    assert request_bytes(served(DEEPSEEK)) == windows + compressing
    assert kv_bytes_per_token(served("deepseek-ai/deepseek-v3", 8)) == 61 * 576 * 2
    assert request_bytes(served("qwen/qwen3-32b")) == 0


@pytest.mark.parametrize(
    ("name", "billions", "most_off"),
    [
        (QWEN, 35.0, 0.02),
        (DENSE, 27.3, 0.02),  # 27.8 with pictures and the drafting head
        (DEEPSEEK, 284.0, 0.002),
        ("deepseek-ai/deepseek-v3", 671.0, 0.002),
    ],
)
def test_parameters_are_those_that_are_published(name, billions, most_off):
    assert num_parameters(model_description(name)) / 1e9 == pytest.approx(billions, rel=most_off)


def test_weights_have_two_precisions():
    assert weight_bytes(served(DEEPSEEK)) / 1e9 == pytest.approx(149, rel=0.04)  # its files
    assert weight_bytes(served(DEEPSEEK, 1, 4)) < weight_bytes(served(DEEPSEEK)) / 3
    assert model_description(DEEPSEEK).mtp_layers == model_description(QWEN).mtp_layers == 1


def test_memory_holds_blocks_and_states():
    deployment = served(QWEN, 2)
    alone = kv_blocks(deployment, 1056)
    for requests in (1, 100):
        blocks = kv_blocks(deployment, 1056, max_requests=requests)
        bytes_of_block = 1056 * kv_bytes_per_token(deployment)
        gone = requests * request_bytes(deployment) / bytes_of_block
        assert alone - blocks == pytest.approx(gone, abs=1)
    free = deployment.gpu.memory_gib * 0.9 - weight_bytes(deployment) / GIB - 8.0 / 2 - 0.6
    assert alone == int(free * GIB // (1056 * kv_bytes_per_token(deployment)))
    with pytest.raises(ConfigError, match=r"of states of 50000 requests.*fewer requests at once"):
        kv_blocks(deployment, 1056, max_requests=50_000)


@pytest.mark.parametrize("tp", [2, 4, 8, 16])
@pytest.mark.parametrize(
    ("name", "whole_bytes", "most_parts"),
    [
        ("meta-llama/llama-3.1-70b-instruct", 327_680, 8),
        ("deepseek-ai/deepseek-v2-lite", 31_104, 1),
    ],
)
def test_as_in_vllm_a_block_has_its_place_on_every_gpu(name, whole_bytes, most_parts, tp):
    """A token of a GQA model is split by KV heads (beyond them GPUs hold copies), a latent vector not at all."""
    deployment = Deployment(model_description(name), gpu_description("H200"), tp)
    blocks = kv_blocks(deployment, as_vllm=True)
    held = blocks * 16 * whole_bytes / min(tp, most_parts)
    free = deployment.gpu.memory_gib * 0.9 * GIB - weight_bytes(deployment)
    assert 0 < free - held < 9 * GIB  # activations and CUDA
    assert kv_blocks(deployment) == pytest.approx(
        tp * blocks * max(tp / most_parts, 1) ** (most_parts > 1), rel=0.02
    )


def test_a_server_of_several_gpus_has_the_blocks_that_fit():
    model = "meta-llama/llama-3.1-70b-instruct"
    blis = ClusterConfig(model=model, hardware="H100", tp=4, latency_model="trained-physics")
    ours = blis.replace(corrected=True, preemption_mode="recompute")
    assert ours.total_kv_blocks == blis.total_kv_blocks // 4


def test_a_configuration_takes_the_model_s_block_and_blis_s_own_profile_does_not():
    ours = ClusterConfig(model=QWEN, hardware="B300", tp=4, latency_model="served-physics")
    assert ours.block_size_in_tokens == 528
    assert ours.total_kv_blocks == kv_blocks(
        served(QWEN, 4), 528, 0.9, 0, ours.max_num_running_reqs
    )
    given = ours.replace(block_size_in_tokens=64)
    assert given.block_size_in_tokens == 64 and given.total_kv_blocks > ours.total_kv_blocks
    settings = {"model": QWEN, "hardware": "B300", "tp": 1, "latency_model": "trained-physics"}
    august = ClusterConfig(revision="blis-2026-08", **settings)
    assert august.block_size_in_tokens == 16 and vectors(august)
    with pytest.raises(ConfigError, match=r"of the 40 layers of .* 30 have linear attention"):
        vectors(ClusterConfig(**settings))


@pytest.mark.parametrize("law", ["roofline", "served-physics", "trained-physics"])
def test_compressed_attention_is_refused_by_name(law):
    with pytest.raises(ConfigError, match="43 have compressed attention; use latency_model step-l"):
        vectors(ClusterConfig(model=DEEPSEEK, hardware="B300", tp=1, latency_model=law))


def test_kinds_are_read_from_a_file():
    plain = {
        "num_hidden_layers": 4, "hidden_size": 256, "num_attention_heads": 8, "vocab_size": 1000,
        "intermediate_size": 512, "torch_dtype": "bfloat16", "head_dim": 64,
    }  # fmt: skip
    assert describe(plain, "m").kinds == LayerKinds()
    types = ["sliding_attention", "full_attention"] * 2
    sliding = describe({**plain, "layer_types": types, "sliding_window": 128}, "m")
    assert (sliding.kinds.sliding, sliding.kinds.window, sliding.num_attention_layers) == (
        2,
        128,
        2,
    )
    deployment = Deployment(sliding, gpu_description("H100"))
    assert kv_bytes_per_token(deployment) == 2 * 2 * 8 * 64 * 2
    assert request_bytes(deployment) == 128 * kv_bytes_per_token(deployment)
    kimi = {"kda_layers": [1, 2, 3], "num_heads": 8, "head_dim": 32, "short_conv_kernel_size": 4}
    found = describe({**plain, "linear_attn_config": kimi, "kv_lora_rank": 96}, "m")
    assert found.kinds.linear == 3 and found.num_attention_layers == 1
    state = 8 * 32 * 32 * 4 + 3 * 8 * 32 * 3 * 2
    assert request_bytes(Deployment(found, gpu_description("H100"))) == 3 * state
    # a width of linear attention is missing: such layers cannot be told from others
    assert describe({**plain, "full_attention_interval": 4}, "m").kinds == LayerKinds()


def test_a_file_whose_layers_all_have_experts_needs_no_dense_width():
    given = {
        "num_hidden_layers": 4, "hidden_size": 256, "num_attention_heads": 8, "vocab_size": 1000,
        "moe_intermediate_size": 64, "num_experts": 8, "num_experts_per_tok": 2, "torch_dtype": "bfloat16",
    }  # fmt: skip
    assert describe(given, "m").intermediate_size == 64
    with pytest.raises(ConfigError, match="intermediate_size must be above 0"):
        describe({**given, "num_experts": 0}, "m")


def test_the_page_s_table_has_these_numbers():
    page = (REPO_ROOT / "docs" / "how-to" / "latency-models.md").read_text(encoding="utf-8")
    rows = [
        [cell.strip() for cell in line.strip("|").split("|")]
        for line in page[page.index("### Models of 2026") :].splitlines()
        if line.startswith("| `")
    ]
    assert len(rows) == 7
    for names, layers, experts, _, per_token, beside, block, drafts in rows:
        for name in names.replace("`", "").split(", "):
            deployment = served(name)
            model = deployment.model
            assert int(layers) == model.num_layers
            of = f"{model.num_experts}, {model.num_experts_per_tok}"
            assert experts == (of if model.is_moe else "–")
            assert per_token == f"{kv_bytes_per_token(deployment):,.0f} B"
            grows_not = request_bytes(deployment)
            assert beside == (f"{grows_not / 1e6:.1f} MB" if grows_not else "–")
            assert block == f"{block_tokens(deployment):,}"
            assert drafts == (str(model.mtp_layers) if model.mtp_layers else "–")
