"""What is read from a config.json, and from the shipped tables."""

import json

import pytest

from blis_jax.errors import ConfigError
from blis_jax.latency.deployment import Deployment, gpu_description, kv_blocks
from blis_jax.latency.model_description import (
    describe,
    model_description,
    num_parameters,
    shipped_models,
)

PLAIN = {
    "num_hidden_layers": 4,
    "hidden_size": 256,
    "num_attention_heads": 8,
    "vocab_size": 1000,
    "intermediate_size": 512,
    "torch_dtype": "bfloat16",
}


def described(name: str = "some/model", **more):
    return describe({**PLAIN, **more}, name)


def test_what_is_left_out():
    model = described()
    assert (model.num_kv_heads, model.activation_bytes, model.weight_bytes) == (8, 2.0, 2.0)
    assert not model.is_moe and model.num_moe_layers == 0 and model.dense_size == 512
    assert described(num_key_value_heads=0, num_kv_heads=2).num_kv_heads == 2
    assert described(multi_query_group_num=4).num_kv_heads == 4
    assert described(intermediate_size=0, ffn_hidden_size=77).intermediate_size == 77


def test_a_nested_text_config_wins():
    model = described(torch_dtype="float32", text_config={"torch_dtype": "float16", "head_dim": 64})
    assert (model.activation_bytes, model.head_dim) == (2.0, 64)
    other = describe({**PLAIN, "torch_dtype": None, "dtype": "float32"}, "other")
    assert other.activation_bytes == 4.0


@pytest.mark.parametrize(
    ("given", "name", "expected"),
    [
        ({"bits": 4}, "m", 0.5),
        ({"bits": "8"}, "m", 1.0),
        ({"quant_method": "FP8"}, "m", 1.0),
        (
            {
                "quant_method": "compressed-tensors",
                "config_groups": {
                    "group_1": {"weights": {"num_bits": 8}},
                    "group_0": {"weights": {"num_bits": 4}},
                },
            },
            "m",
            0.5,
        ),
        ({"quant_method": "compressed-tensors", "config_groups": {}}, "m-w4a16", 0.5),
        ({"quant_method": "awq"}, "m", 2.0),
        (None, "RedHatAI/Model-W8A8-dynamic", 1.0),
        (None, "some/model-FP8-dynamic", 1.0),
        (None, "some/model-FP8", 1.0),
        (None, "some/modelfp8", 2.0),
        (None, "some/model-w0a16", 2.0),
    ],
)
def test_precision_of_weights(given, name, expected):
    assert described(name, quantization_config=given).weight_bytes == expected


def test_experts_and_their_layers():
    model = described(num_experts=1, n_routed_experts=8, num_experts_per_tok=2, n_shared_experts=3)
    assert (model.num_experts, model.num_moe_layers, model.shared_expert_size) == (8, 4, 3 * 512)
    assert model.expert_size == 512
    small = described(num_experts=8, moe_intermediate_size=64, n_shared_experts=1)
    assert (small.expert_size, small.shared_expert_size) == (64, 64)
    assert described(num_experts=8, shared_expert_intermediate_size=99).shared_expert_size == 99
    mixed = described(num_local_experts=8, interleave_moe_layer_step=2, intermediate_size_mlp=1024)
    assert (mixed.num_moe_layers, mixed.dense_size) == (1, 1024)


def test_experts_without_a_number_leave_the_blocks_open():
    gpu = gpu_description("H100")
    assert kv_blocks(Deployment(described(num_experts_per_tok=2), gpu)) is None
    assert kv_blocks(Deployment(described(num_experts_per_tok=2, num_experts=4), gpu))


@pytest.mark.parametrize(
    ("more", "expected"),
    [
        ({}, 1000),
        ({"rope_scaling": None}, 1000),
        ({"rope_scaling": {"type": "linear", "factor": 2.5}}, 2500),
        ({"rope_scaling": {"type": "linear", "factor": 0.5}}, 1000),
        ({"rope_scaling": {"type": "yarn", "factor": 4, "original_max_position_embeddings": 300}}, 1200),
        ({"rope_scaling": {"rope_type": "llama3", "factor": 8.0}}, 1000),
        ({"rope_scaling": {"type": "longrope", "factor": 8.0}}, 1000),
        ({"rope_scaling": {"type": "linear", "factor": 8.0}, "model_type": "gemma3_text"}, 1000),
    ],
)  # fmt: skip
def test_the_longest_context(more, expected):
    assert described(max_position_embeddings=1000, **more).max_model_len == expected


def test_parameters_by_hand():
    attention = 256 * (256 + 2 * 256) + 256 * 256 + 2 * 256
    dense = 1000 * 256 + 4 * attention + 4 * 3 * 256 * 512 + 1000 * 256 + 256
    assert num_parameters(described()) == dense
    assert num_parameters(described(tie_word_embeddings=True)) == dense - 1000 * 256
    moe = described(num_experts=8, first_k_dense_replace=1)
    assert num_parameters(moe) == dense + 3 * (7 * 3 * 256 * 512 + 8 * 256)


def test_reserved_memory_is_kept_free():
    deployment = Deployment(model_description("qwen/qwen3-14b"), gpu_description("H100"))
    assert kv_blocks(deployment) == 15909
    less = kv_blocks(deployment, reserved_bytes=2.0**30)
    assert less == pytest.approx(15909 - 2**30 / (163840 * 16), abs=1)


def test_shipped_names():
    assert len(shipped_models()) == 13 + 15 and "qwen/qwen3-14b" in shipped_models()
    assert model_description("Qwen/Qwen3-14B") == model_description("qwen/qwen3-14b")


def test_a_file_or_its_folder(tmp_path):
    path = tmp_path / "config.json"
    path.write_text(json.dumps(PLAIN))
    assert (
        model_description("m", str(path)) == model_description("m", str(tmp_path)) == described("m")
    )


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("{", "is not JSON"),
        ("[1]", "got .*1.*, allowed is an object"),
        ("{}", "num_hidden_layers must be above 0, got 0; give the config.json of a language"),
        (json.dumps({**PLAIN, "torch_dtype": "float7"}), "torch_dtype is missing or not known"),
        (json.dumps({**PLAIN, "hidden_size": "large"}), "hidden_size must be above 0"),
    ],
)
def test_files_that_are_no_descriptions(tmp_path, text, words):
    (tmp_path / "config.json").write_text(text)
    with pytest.raises(ConfigError, match=words):
        model_description("m", str(tmp_path))


@pytest.mark.parametrize(
    ("more", "tp", "words"),
    [
        ({"hidden_act": "gelu"}, 1, "hidden_act 'gelu' cannot be counted"),
        ({}, 3, "tp 3 does not divide the 8 KV heads"),
        ({"num_hidden_layers": 100_000}, 1, "use a tp of at least"),
        ({"num_hidden_layers": 120_000}, 1, r"at least 3 \(4 divides its attention heads\)"),
        ({"hidden_size": 260}, 1, "hidden_size 260 is no multiple"),
    ],
)
def test_blocks_that_cannot_be_counted(more, tp, words):
    with pytest.raises(ConfigError, match=words):
        kv_blocks(Deployment(described(**more), gpu_description("H100"), tp))
