import csv
import dataclasses
import json

import pytest

from blis_jax.errors import ConfigError
from blis_jax.latency.registry import Coefficients, known_models, lookup
from tests.support.recorded.reference_data import REVISIONS, SHARED_DIR

LLAMA = "meta-llama/llama-3.1-8b-instruct"
VLLM_0_8_4 = "vllm/vllm-openai:v0.8.4"


def test_defaults_fill_what_is_left_out():
    assert lookup(LLAMA) == Coefficients(
        model=LLAMA,
        gpu="H100",
        tp=2,
        vllm_version=VLLM_0_8_4,
        alpha=(1601.350510688092, 3.512476196805965, 1805.5430360826988),
        beta=(6910.420479880494, 17.67057489844186, 2.8377471109943855),
        total_kv_blocks=132139,
    )


def test_given_values_win_over_defaults():
    one_gpu = lookup(LLAMA, tp=1)
    assert (one_gpu.gpu, one_gpu.tp, one_gpu.total_kv_blocks) == ("H100", 1, 29205)
    assert one_gpu.beta == (5752.705191348184, 17.25086436834028, 5.999143920128404)
    a100 = lookup(LLAMA, gpu="A100-80")
    assert (a100.gpu, a100.tp) == ("A100-80", 2)


def test_model_names_ignore_case():
    assert lookup("meta-llama/Llama-3.1-8B-Instruct") == lookup(LLAMA)


def test_setting_listed_twice_upstream_takes_the_first():
    assert lookup("redhatai/phi-4-fp8-dynamic", tp=1).alpha[0] == 6933.519704638618


def test_every_model_answers_without_arguments_unless_it_has_no_default():
    without_default = set()
    for model in known_models():
        try:
            found = lookup(model)
        except ConfigError:
            without_default.add(model)
        else:
            assert found.total_kv_blocks > 0
            assert all(isinstance(value, float) for value in found.alpha + found.beta)
    assert without_default == {"mistralai/mixtral-8x7b-instruct-v0.1"}


def test_model_without_default_needs_the_whole_setting():
    mixtral = "mistralai/mixtral-8x7b-instruct-v0.1"
    with pytest.raises(ConfigError, match=r"has no default gpu, tp, vllm_version .*give gpu"):
        lookup(mixtral)
    with pytest.raises(ConfigError, match="has no default tp, vllm_version "):
        lookup(mixtral, gpu="H100")
    assert lookup(mixtral, gpu="H100", tp=2, vllm_version=VLLM_0_8_4).tp == 2


def test_unknown_model_suggests_the_nearest_name():
    with pytest.raises(ConfigError, match=rf"'llama-3.1-8b-instruct'.*did you mean '{LLAMA}'"):
        lookup("llama-3.1-8b-instruct")


@pytest.mark.parametrize(
    ("setting", "words"),
    [
        ({"tp": 3}, r"fitted: A100-80 × 1, 2, 4; H100 × 1, 2, 4\): choose"),
        ({"tp": 0}, "gpu=H100 tp=0"),
        ({"gpu": ""}, "gpu= tp=2"),
        ({"gpu": "A100"}, "did you mean 'A100-80'"),
        ({"gpu": "H200"}, r"H100 × 1, 2, 4\): choose"),  # which is no H100
        ({"vllm_version": "v0.8.4"}, rf"vllm_version=v0.8.4 \(fitted: {VLLM_0_8_4}\)"),
    ],
)
def test_setting_that_was_not_fitted_lists_those_that_were(setting, words):
    with pytest.raises(ConfigError, match=words):
        lookup(LLAMA, **setting)


def test_gpus_as_drivers_write_them_have_their_fits():
    assert lookup(LLAMA, gpu="NVIDIA-A100-SXM4-80GB") == lookup(LLAMA, gpu="A100-80")


def test_coefficients_cannot_be_changed():
    with pytest.raises(dataclasses.FrozenInstanceError):
        lookup(LLAMA).tp = 4


@pytest.mark.golden
def test_table_equals_the_published_list():
    path = SHARED_DIR / "data" / "blis_reference" / "alpha_beta_coefficients_2026-02-28.csv"
    if not path.is_file():
        pytest.skip("the published list is not in ../shared/data")
    first_rows = {}
    with path.open(newline="") as file:
        for row in csv.DictReader(file):
            key = (row["model"], row["gpu"], int(row["tensor_parallelism"]), row["vllm_version"])
            numbers = [float(row[name]) for name in row if name.startswith(("alpha", "beta"))]
            first_rows.setdefault(key, (*numbers, int(row["total_kv_blocks"])))
    for key, numbers in first_rows.items():
        found = lookup(*key)
        assert (*found.alpha, *found.beta, found.total_kv_blocks) == numbers
    later = {"qwen/qwen3-14b"}  # fitted in March, as the fits of vLLM 0.11 are
    assert {key[0] for key in first_rows} == set(known_models()) - later


@pytest.mark.golden
def test_reference_used_these_coefficients_in_its_recorded_runs(golden_dir):
    num_compared = 0
    for path in sorted(
        path for name in REVISIONS for path in golden_dir.glob(f"{name}/scenarios/*.json")
    ):
        config = json.loads(path.read_text())["config"]
        if not config["tp"]:  # coefficients given on the command line
            continue
        found = lookup(config["model"], config["hardware"], config["tp"])
        assert found.alpha == tuple(config["alpha-coeffs"]), path.name
        assert found.beta == tuple(config["beta-coeffs"]), path.name
        num_compared += 1
    assert num_compared > 0


@pytest.mark.parametrize("model", ["qwen/qwen3-32b", "qwen/qwen3-32b-FP8"])
def test_a_model_without_a_fit_is_told_what_knows_it(model):
    with pytest.raises(
        ConfigError, match=r"give --latency-model trained-physics .* knows its size"
    ):
        lookup(model)
    with pytest.raises(ConfigError) as refused:
        lookup("nobody/knows-this")
    assert "trained-physics" not in str(refused.value)
