"""Files that options of BLIS of August name, against the KV blocks that BLIS (f90a1e3a) finds with them."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
import yaml

from blis_jax.cluster.config import AUGUST, ClusterConfig
from blis_jax.cluster.machines import blocks_of
from blis_jax.commands.cluster_settings import cluster_config
from blis_jax.commands.run.flags import RunOptions
from blis_jax.commands.run.workload import source_of
from blis_jax.errors import ConfigError, UnsupportedError
from blis_jax.latency.deployment import gpu_description

LLAMA = "meta-llama/llama-3.1-8b-instruct"
GPUS = {
    "X1": {"_comment": "x", "TFlopsPeak": 700, "BwPeakTBs": 2.5, "mfuPrefill": 0.5, "mfuDecode": 0.25,
           "MemoryGiB": 64},
    "H100": {"TFlopsPeak": 900, "BwPeakTBs": 3, "mfuPrefill": 0.5, "mfuDecode": 0.25},
    "X2": {"TFlopsPeak": 700, "BwPeakTBs": 2.5, "mfuPrefill": 0.5, "mfuDecode": 0.25, "MEMORYGIB": 48},
}  # fmt: skip
DEFAULTS = {
    "version": "0.0.1",
    "defaults": {LLAMA: {"GPU": "X1", "tensor_parallelism": 2, "hf_repo": "a/b"}},
    "workloads": {
        "chatbot": {
            "prefix_tokens": 64, "prompt_tokens": 333, "prompt_tokens_stdev": 100, "prompt_tokens_min": 2,
            "prompt_tokens_max": 800, "output_tokens": 256, "output_tokens_stdev": 100, "output_tokens_min": 1,
            "output_tokens_max": 1024,
        },
    },
    "trained_physics_coefficients": {
        "alpha_coeffs": [12345.6, 777.3455, 45.907545], "beta_coeffs": [0.1, 0, 1, 1, 30, 4, 126],
    },
}  # fmt: skip
CONFIG_JSON = {  # of qwen2.5-7b-instruct
    "num_hidden_layers": 28, "hidden_size": 3584, "num_attention_heads": 28, "num_key_value_heads": 4,
    "vocab_size": 152064, "intermediate_size": 18944, "hidden_act": "silu", "tie_word_embeddings": False,
    "torch_dtype": "bfloat16", "model_type": "qwen2", "max_position_embeddings": 32768,
}  # fmt: skip


def config_of(**given: Any) -> ClusterConfig:
    return cluster_config({"model": LLAMA, "variant": AUGUST, **given})


@pytest.fixture
def gpus(tmp_path: Path) -> str:
    (tmp_path / "gpus.json").write_text(json.dumps(GPUS))
    return str(tmp_path / "gpus.json")


@pytest.fixture
def defaults(tmp_path: Path) -> Path:
    (tmp_path / "defaults.yaml").write_text(yaml.safe_dump(DEFAULTS))
    return tmp_path / "defaults.yaml"


def test_gpus_of_a_file_take_the_place_of_the_shipped(gpus: str) -> None:
    config = config_of(hardware_config=gpus, hardware="X1")
    assert (config.hardware, config.total_kv_blocks) == (f"{gpus}:X1", 18940)
    assert config_of(hardware_config=gpus).total_kv_blocks == 1_000_000  # it says no memory
    x1, h100 = gpu_description(f"{gpus}:X1"), gpu_description(f"{gpus}:H100")
    assert (x1.peak_tflops, x1.bandwidth_tbs, x1.prefill_mfu, x1.decode_mfu) == (
        700,
        2.5,
        0.5,
        0.25,
    )
    assert (x1.fp8_tflops, x1.memory_gib, h100.peak_tflops) == (0, 64, 900)


def test_the_pools_gpus_are_of_the_file_too(gpus: str) -> None:
    pools = {"num_instances": 2, "prefill_instances": 1, "decode_instances": 1}
    config = config_of(
        hardware_config=gpus, hardware="X1", decode_hardware="X2", pd_decider="always", **pools
    )
    assert config.decode_hardware == f"{gpus}:X2"
    assert blocks_of(config, config.decode_hardware, 1, 1) == 11567


def test_a_file_is_read_again_when_it_has_changed(gpus: str) -> None:
    assert config_of(hardware_config=gpus, hardware="X1").total_kv_blocks == 18940
    Path(gpus).write_text(json.dumps({"X1": {**GPUS["X1"], "MemoryGiB": 48}}))
    assert config_of(hardware_config=gpus, hardware="X1").total_kv_blocks == 11567


@pytest.mark.parametrize(
    ("text", "sentence"),
    [
        (json.dumps(GPUS), "has no GPU 'X3'"),
        ("[]", "allowed is an object of GPUs"),
        ('{"X3": 5}', "allowed is an object of GPUs"),
        ('{"X3": {"TFlopsPeak": "many"}}', "got 'many', allowed is a number"),
        ('{"X3": {"TFlopsPeak": 5}}', "bandwidth_tbs must be above 0"),
        ("{", "is not JSON"),
    ],
)
def test_a_file_without_the_gpu(text: str, sentence: str, tmp_path: Path) -> None:
    (tmp_path / "gpus.json").write_text(text)
    with pytest.raises(ConfigError, match=sentence):
        config_of(hardware_config=str(tmp_path / "gpus.json"), hardware="X3")


def test_a_models_folder_is_its_config_json(tmp_path: Path) -> None:
    (tmp_path / "config.json").write_text(json.dumps(CONFIG_JSON))
    config = config_of(model_config_folder=str(tmp_path))
    assert (config.total_kv_blocks, config.max_model_len) == (61048, 32768)
    with pytest.raises(ConfigError, match="--model-config-folder is given too"):
        config_of(model_config_folder=str(tmp_path), model_config="x")


def test_defaults_are_those_of_the_file_and_of_the_files_beside_it(
    gpus: str, defaults: Path, tmp_path: Path
) -> None:
    (tmp_path / "hardware_config.json").write_text(json.dumps(GPUS))
    folder = tmp_path / "model_configs" / "llama-3.1-8b-instruct"
    folder.mkdir(parents=True)
    (folder / "config.json").write_text(json.dumps(CONFIG_JSON))
    config = config_of(defaults_filepath=str(defaults))
    assert config.hardware == f"{tmp_path / 'hardware_config.json'}:X1" and config.tp == 2
    assert config.model_config == str(folder / "config.json")
    assert config.alpha_coeffs == (12345.6, 777.3455, 45.907545) and len(config.beta_coeffs) == 7
    given = config_of(defaults_filepath=str(defaults), hardware="X2", tp=1, hardware_config=gpus)
    assert (given.hardware, given.tp) == (f"{gpus}:X2", 1)
    assert config_of(defaults_filepath=str(defaults), latency_model="roofline").beta_coeffs == ()


def test_presets_are_those_of_the_file(defaults: Path) -> None:
    given = {"variant": AUGUST, "workload": "chatbot", "rate": 2.0}
    spec = source_of(RunOptions.of({**given, "defaults_filepath": str(defaults)})).spec
    usual = source_of(RunOptions.of(given)).spec
    assert spec is not None and usual is not None
    assert spec.clients[0].input_distribution.params.mean == 333  # type: ignore[union-attr]
    assert spec.clients[0].prefix_length == 64
    assert spec.clients[0].output_distribution == usual.clients[0].output_distribution
    with pytest.raises(ConfigError, match="workloads has no 'multidoc'"):
        source_of(
            RunOptions.of({**given, "workload": "multidoc", "defaults_filepath": str(defaults)})
        )


@pytest.mark.parametrize(
    ("text", "sentence"),
    [
        ("models: []", r"the section 'models' is unknown \(of February\?\)"),
        ("defaults: 5", "defaults: got 5, allowed is a mapping"),
        ("version: 1", "trained_physics_coefficients needs a list of numbers alpha_coeffs"),
    ],
)
def test_other_files_are_no_defaults(text: str, sentence: str, tmp_path: Path) -> None:
    (tmp_path / "defaults.yaml").write_text(text)
    with pytest.raises(ConfigError, match=sentence):
        config_of(defaults_filepath=str(tmp_path / "defaults.yaml"))


def test_defaults_of_february_are_not_supported() -> None:
    with pytest.raises(UnsupportedError, match="is not supported for BLIS of February"):
        cluster_config({"model": LLAMA, "defaults_filepath": "x"})


@pytest.mark.parametrize(
    ("model", "tp"),
    [(LLAMA, 1), ("codellama/codellama-34b-instruct-hf", 2), ("OpenAI/gpt-oss-120b", 4)],
)
def test_gpus_per_instance_are_those_of_blis_if_not_given(model: str, tp: int) -> None:
    assert config_of(model=model).tp == tp and config_of(model=model, tp=8).tp == 8


def test_steps_with_adapters_cost_what_the_two_files_say(defaults: Path, tmp_path: Path) -> None:
    """An empty map stands for none; a file of defaults without the map leaves steps as they are, as in BLIS."""

    def ranks_of(own: str, usual: str | None) -> list[int]:
        lora = f"adapters: [{{id: a, rank: 16}}], adapter_capacity: 2{own}"
        (tmp_path / "lora.yaml").write_text(f"lora: {{{lora}}}")
        given = {"lora_config": str(tmp_path / "lora.yaml"), "hardware": "H100"}
        if usual is not None:
            defaults.write_text(yaml.safe_dump(DEFAULTS) + usual)
            given["defaults_filepath"] = str(defaults)
        return [tier.rank for tier in config_of(**given).lora_config.tiers]

    usual = "lora: {load_base_latency_us: 9, step_overhead_tiers: {4: {k6: 1, k7: 1}}}"
    own = ", step_overhead_tiers: {99: {k6: 1, k7: 1}}"
    empty = ", step_overhead_tiers: {}"
    assert ranks_of(own, usual) == [99]
    assert ranks_of("", usual) == ranks_of(empty, usual) == [4]
    assert ranks_of("", "lora: {load_base_latency_us: 9}") == ranks_of("", "") == []
    assert ranks_of("", None) == ranks_of(empty, None) == [8, 16, 32]
