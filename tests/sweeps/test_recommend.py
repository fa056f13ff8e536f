"""`recommend`: the fewest GPUs come first, what starts them is valid, and unknown models are refused."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
import yaml

from sweeps.recommend import candidates, main, picker_config, vllm_command
from sweeps.strategies.arms import arm_of
from tests.sweeps.tiny import TINY

MODEL = "meta-llama/llama-3.1-8b-instruct"


def test_the_fewest_gpus_come_first_with_what_starts_them(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """A rate that one GPU serves: each tensor parallelism needs one instance, so the one of one GPU is best."""
    load = yaml.safe_load(TINY)["workload"] | {"num_requests": 20}
    (tmp_path / "load.yaml").write_text(yaml.safe_dump(load))
    words = [
        MODEL,
        "A100-80",
        "--workload",
        str(tmp_path / "load.yaml"),
        "--rate",
        "5",
        "--seeds",
        "32",
    ]
    asked = [
        "--targets",
        "all.e2e_ms=60000@80",
        "--grid",
        "max_num_seqs=64",
        "--max-instances",
        "2",
    ]
    assert main([*words, *asked, "--output", str(tmp_path / "out.json")]) == 0
    answer = json.loads((tmp_path / "out.json").read_text())
    assert [one["num_gpus"] for one in answer["clusters"]] == [1, 2, 4]
    assert answer["cheapest"].startswith("tp1 at max_num_seqs=64 on ")
    shown = " ".join(capsys.readouterr().out.split())
    assert (
        f"1 × vllm serve {MODEL} --tensor-parallel-size 1 " in shown
        and "--max-num-seqs 64" in shown
    )
    router = yaml.safe_load((tmp_path / "out.yaml").read_text())
    assert router["kind"] == "EndpointPickerConfig" and answer["router"] == router
    assert answer["start"][0].startswith(f"1 × vllm serve {MODEL} ")
    (profile,) = router["schedulingProfiles"]
    assert {one["pluginRef"] for one in profile["plugins"]} == {
        one["type"] for one in router["plugins"]
    }
    weights = {one["pluginRef"]: one.get("weight") for one in profile["plugins"]}
    assert weights["prefix-cache-scorer"] == 3.0 and weights["max-score-picker"] is None


def test_a_described_model_has_one_candidate_with_computed_step_times() -> None:
    (one,) = candidates("vllm", "qwen/qwen3-14b", "H200")
    assert "latency_model=trained-physics" in one and arm_of(one).config.hardware == "H200"


def test_a_model_that_no_single_gpu_holds_gets_the_least_number_that_does() -> None:
    """131.4 GiB of weights and what is beside them are more than 2 × 43.2 GiB, and less than 4 × 43.2 GiB."""
    (one,) = candidates("vllm", "meta-llama/llama-3.1-70b-instruct", "L40S")
    assert arm_of(one).config.tp == 4


def test_a_router_without_scorers_needs_no_configuration() -> None:
    config = arm_of("vllm:enable_prefix_caching=false").config
    assert picker_config(config) is None
    assert vllm_command(config).endswith("--no-enable-prefix-caching")


@pytest.mark.parametrize(
    ("given", "sentence"),
    [
        ([], "give a model and a GPU"),
        ([MODEL, "A100"], "did you mean 'A100-SXM' or 'A100-80'?"),
        (["no/such-model", "H100"], "no/such-model is neither fitted on H100 nor described"),
    ],
)
def test_refusals(
    given: list[str], sentence: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    words = [*given, "--targets", "all.ttft_ms=100", "--output", str(tmp_path / "out.json")]
    assert main(words) == 2
    assert sentence in capsys.readouterr().err


def test_notes_are_those_of_this_command(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "trace.csv").write_text("arrival_s,input_tokens,output_tokens\n0,9,9\n1,9,9\n")
    assert main([MODEL, "A100-80", "--trace", str(tmp_path / "trace.csv")]) == 2
    said = capsys.readouterr().err
    assert "sweeps.recommend: 2 requests read as plain" in said and "sweeps.capacity" not in said
