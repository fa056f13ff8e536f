"""The roofline of February 2026: step times that BLIS computed, and what its option makes of a command line."""

import json
from pathlib import Path

import jax
import numpy as np
import pytest

from blis_jax.commands.cluster_settings import cluster_config
from blis_jax.errors import ConfigError, ConfigWarning
from blis_jax.latency.model_description import describe
from blis_jax.latency.registry import find, lookup
from blis_jax.latency.roofline_february import calibration, coefficients
from tests.support.recorded.latency_2026_08 import step_batches

# [model, GPU, tp, [progress, new tokens] of prompts, progress of decodes, µs] of `rooflineStepTime` at revision 452's
STEPS = Path(__file__).with_name("roofline_february.json")
KEYS = ("num_hidden_layers", "hidden_size", "num_attention_heads", "num_key_value_heads")
KEYS += ("intermediate_size", "torch_dtype")
MODELS = (
    (32, 4096, 32, 8, 14336, "bfloat16"),
    (40, 5120, 40, 10, 17920, "float32"),
    (28, 3584, 28, 4, 18944, "fp8"),
    (17, 1000, 7, 7, 3001, "float16"),
)
LLAMA = "meta-llama/llama-3.1-8b-instruct"
ASKED = {"model": LLAMA, "hardware": "H100", "tp": 2, "roofline": True}
GIVEN = {"alpha_coeffs": (1.0, 2.0, 3.0), "total_kv_blocks": 500}


def content(model: int) -> dict[str, object]:
    return {**dict(zip(KEYS, MODELS[model], strict=True)), "vocab_size": 1000}


def test_every_step_takes_as_long_as_recorded() -> None:
    steps = json.loads(STEPS.read_text())
    members = [
        [(p + n, 1, p, n) for p, n in prompts] + [(p, 1, p, 1) for p in decodes]
        for *_, prompts, decodes, _ in steps
    ]
    vectors = [
        coefficients(describe(content(model), "m"), calibration(gpu, None), tp)
        for model, gpu, tp, *_ in steps
    ]
    model = find("roofline-2026-02")
    with jax.enable_x64(True):
        times = jax.jit(jax.vmap(model.step_time))(np.array(vectors), step_batches(members, 32))
    assert len(steps) >= 150
    np.testing.assert_array_equal(np.asarray(times), [us for *_, us in steps])


def test_alpha_and_blocks_are_those_of_the_fit() -> None:
    config, fit = cluster_config(ASKED), lookup(LLAMA, "H100", 2)
    assert config.latency_model == "roofline-2026-02"
    assert (config.alpha_coeffs, config.total_kv_blocks) == (fit.alpha, fit.total_kv_blocks)
    other = cluster_config(ASKED | GIVEN)
    assert (other.alpha_coeffs, other.total_kv_blocks) == ((1.0, 2.0, 3.0), 500)
    assert other.beta_coeffs == config.beta_coeffs


def test_without_a_fit_alpha_is_zero_and_that_is_said() -> None:
    with pytest.warns(ConfigWarning, match="has no fit, so α is 0"):
        config = cluster_config(ASKED | {"model": "qwen/qwen3-14b"})
    assert (config.alpha_coeffs, config.total_kv_blocks) == ((0.0, 0.0, 0.0), 1_000_000)


def test_files_of_model_and_gpu_stand_for_the_option(tmp_path: Path) -> None:
    (tmp_path / "config.json").write_text(json.dumps(content(3)))
    gpu = {
        "tflopspeak": 700.25,
        "BwPeakTBs": 2.9,
        "bwEffConstant": 0.66,
        "mfuPrefill": 0.4,
        "mfuDecode": 0.2,
    }
    (tmp_path / "gpus.json").write_text(json.dumps({"H100": gpu}))
    files = {"model_config_folder": str(tmp_path), "hardware_config": str(tmp_path / "gpus.json")}
    config = cluster_config({**ASKED, **files, "roofline": False})
    expected = coefficients(
        describe(content(3), "m"), calibration("H100", files["hardware_config"]), 2
    )
    assert config.beta_coeffs == expected
    assert (config.alpha_coeffs, config.total_kv_blocks) == ((0.0, 0.0, 0.0), 1_000_000)
    betas = {"alpha_coeffs": (1.0, 2.0, 3.0), "beta_coeffs": (1000.0, 2.0, 3.0)}
    with pytest.warns(ConfigWarning, match="no effect beside coefficients"):
        fitted = cluster_config({**ASKED, **files, **betas, "roofline": False})
    assert fitted.beta_coeffs == (1000.0, 2.0, 3.0)
    del gpu["mfuDecode"]
    (tmp_path / "gpus.json").write_text(json.dumps({"H100": gpu}))
    with pytest.raises(ConfigError, match="mfuDecode must be a number above 0, got 0"):
        cluster_config({**ASKED, **files})


@pytest.mark.parametrize(
    ("changed", "sentence"),
    [
        ({"tp": 0}, "--roofline needs --tp"),
        ({"hardware": ""}, "--roofline needs --hardware"),
        ({"hardware": "L40S"}, "describes no GPU 'L40S'"),
        ({"latency_model": "step-law"}, "--latency-model is given too"),
        ({"variant": "blis-2026-08"}, "give --latency-model roofline"),
        ({"roofline": False, "hardware_config": "x"}, "give --roofline, or leave it out"),
    ],
)
def test_unusable_combination_is_one_sentence(changed: dict[str, object], sentence: str) -> None:
    with pytest.raises(ConfigError, match=sentence):
        cluster_config(ASKED | changed)


def test_what_has_no_effect_is_said() -> None:
    with pytest.warns(ConfigWarning, match="--beta-coeffs has no effect"):
        cluster_config(ASKED | {"beta_coeffs": (1.0, 2.0, 3.0)})
    with pytest.warns(ConfigWarning, match="for dense"):
        cluster_config(ASKED | GIVEN | {"model": "mistralai/mixtral-8x7b-v0.1", "tp": 4})
