"""What a refusal offers in the place of an unknown word, and the folders of outputs."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from blis_jax.__main__ import main
from blis_jax.commands import cli
from blis_jax.commands.options import FigureOption, OutputSwitches, option
from blis_jax.commands.options.outputs import outputs_of
from blis_jax.errors import MOST_LISTED, ConfigError, choices

MANY = [f"strategy{number:02}_of_many" for number in range(MOST_LISTED + 1)]


@pytest.mark.parametrize(
    ("word", "allowed", "sentence"),
    [
        ("blu", ["blue", "red"], "use one of blue, red; did you mean 'blue'?"),
        ("x", ["blue", "red"], "use one of blue, red"),
        ("tree", [*MANY, "trees", "treed"], "did you mean 'trees' or 'treed'? (23 are known)"),
        ("oak", [*MANY, "an_oak_of_old"], "did you mean 'an_oak_of_old'? (22 are known)"),
        ("x", MANY, f"use one of {', '.join(MANY)}"),
    ],
)
def test_a_short_list_is_given_whole_and_a_long_one_by_its_nearest(
    word: str, allowed: list[str], sentence: str
) -> None:
    assert choices(word, allowed) == sentence


def test_the_folder_of_an_output_is_made_unless_a_file_is_in_the_way(tmp_path: Path) -> None:
    cli.check_writable(tmp_path / "new" / "deep" / "result.json")
    assert (tmp_path / "new" / "deep").is_dir()
    (tmp_path / "taken").write_text("a file")
    with pytest.raises(ConfigError, match="taken is not a folder"):
        cli.check_writable(tmp_path / "taken" / "result.json")


_VLLM_JSON = {"elapsed_time": 10.1, "num_requests": 100, "requests_per_second": 9.9}
_ROUTER = """
apiVersion: inference.networking.x-k8s.io/v1alpha1
kind: EndpointPickerConfig
plugins: [{type: queue-scorer}, {type: prefix-cache-scorer}, {type: max-score-picker}]
schedulingProfiles:
- name: default
  plugins:
  - {pluginRef: queue-scorer, weight: 2}
  - {pluginRef: prefix-cache-scorer, weight: 3}
  - {pluginRef: max-score-picker}
"""
AT_HAND = [  # what people have, where it is given, and what they are told
    ("traces a.csv", "<!DOCTYPE html><html></html>", "it is a web page; download the file itself"),
    ("traces a.csv", "version https://git-lfs.github.com/spec/v1\noid sha256:4d", "git lfs pull"),
    ("traces a.json", '[{"id": "a", "conversations": [{"from": "human"}]}]', "as ShareGPT has"),
    ("traces a.jsonl", '{"session_id": "a", "turns": [{"delay": 5}]}', "give a line for each turn"),
    ("traces a.jsonl", '{"custom_id": "1", "url": "/v1", "body": {"model": "m"}}', "OpenAI's batches"),
    ("traces a.json", '{"resourceSpans": [{"scopeSpans": []}]}', "spans of OpenTelemetry"),
    ("traces a.txt", "# HELP vllm:num_requests_running x", "counters of a server"),
    ("traces a.log", "INFO 05-01 10:00:00 [loggers.py:118] Engine 000", "the log of a server"),
    ("traces a.csv", "request_rate,mean_ttft_ms,p99_ttft_ms\n1,30,60", "figures of whole runs"),
    ("traces a.csv", "0,100,20\n0.5,100,20", "write the columns' names above it"),
    ("traces a.csv", "timestamp,isl,osl\n05/01/2026 10:00:00 PM,9,9", "nor a date and time like"),
    ("traces https://example.org/t.csv", "", "https://example.org/t.csv is an address; download"),
    ("calibrate a.txt", "===== Serving Benchmark Result =====\nMean TTFT (ms): 9.1", "--save-detailed"),
    ("calibrate a.csv", "Metric,avg,min,max,p99\nTime to First Token (ms),24,1,2,3", "profile_export_aiperf"),
    ("compare vllm llm-d-default --workload mixed --rate inf", "", "such as 100000"),
    ("calibrate a.json", json.dumps(_VLLM_JSON), "vllm bench latency or throughput"),
    ("compare vllm a.yaml", _ROUTER, "routing_scorers=queue-scorer:2,prefix-cache-scorer:3'"),
    ("compare vllm a.yaml", "replicaCount: 3", "it is a file of Kubernetes or Helm"),
    ("compare vllm a.yaml", "max-num-seqs: 64", "max-num-seqs is a setting; write 'mechanism:'"),
    ("compare vllm llm-d-default --workload a.yaml", "target: http://x\ndata: prompt_tokens=512", "GuideLLM"),
    (
        "run --model meta-llama/llama-3.1-8b-instruct --workload-spec a.yaml",
        "load: {type: constant}\ndata: {type: random}", "inference-perf",
    ),
    ("traces a.csv", "# by grafana\ntimestamp,isl,osl\n0,9,9", "its first line is a comment"),
    ("compare --trace a.json --routers all", '{"coefficients": {}}', "which --coefficients-from takes"),
    ("compare vllm llm-d-default --workload sharegpt", "", "which blis-jax workloads lists"),
    ("compare vllm sglang", "", "are known)"),
    ("compare vllm vllm:kv_transfer_config=nixl", "", "prefill and decode apart are instances=1P2D"),
    ("compare vllm vllm:max_num_seqs=8,tp=2", "", "write a semicolon between settings"),
    ("compare vllm vllm:gpu=A100", "", "did you mean 'A100-80'?"),
    ("compare vllm mine=vllm:routing_policy=a.go:S", "", "a policy is a function in a file of Python"),
    ("compare vllm mine=vllm:routing_policy=a.py", "", "give path/to/file.py:Name"),
    ("compare vllm llm-d-default --seed 42", "", "--first-seed the first of them"),
    ("capacity mixed --targets all.ttft_ms=9@90 --request-rate 0", "", "--request-rate: got 0, allowed is"),
    ("compare vllm a=vllm:queue=3", "", "has its kind before it, such as routing.queue"),
    ("curve vllm --rate 100,-2", "", "--rate: -2 is not above 0"),
    ("promote llm-d-default", "", "would be compared with itself, as its baseline is llm-d-default"),
    ("promote survival iter13_class_lead@found --concerns nil", "", "no row of Map C; use one of llm-d-r"),
    ("robustness vllm", "", "give two or more, such as vllm llm-d-default"),
    ("run --model meta-llama/llama-3.1-8b-instruct --max-num-seqs lots", "", "--max-num-seqs: 'lots' is"),
    ("run --model meta-llama/llama-3.1-8b-instruct --max-num-seqs 0", "", "--max-num-seqs must be above 0"),
]  # fmt: skip


class _Asked(FigureOption, OutputSwitches, command="it", description=""):
    output: str | None = option(str, None, "PATH", "result")


@pytest.mark.parametrize(("words", "content", "sentence"), AT_HAND)
def test_what_people_have_at_hand_is_told_for_what_it_is(
    words: str,
    content: str,
    sentence: str,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    monkeypatch.chdir(tmp_path)
    for word in words.split():
        if word.startswith("a."):
            Path(word).write_text(content)
    assert main(words.split()) == 2
    said = capsys.readouterr()
    assert said.out == "" and said.err.count("\n") == 1
    assert sentence in said.err and len(said.err) < 600


def test_a_refusal_is_one_sentence_beside_an_earlier_result_too(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    Path("out").mkdir()
    Path("out/capacity.json").write_text("{}")
    assert main(["capacity", "mixed", "--targets", "gold.ttft_ms=150@90"]) == 2
    said = capsys.readouterr().err
    assert said.count("\n") == 1 and "SLO class 'gold' is unknown" in said


def test_a_second_question_has_a_place_of_its_own(tmp_path: Path) -> None:
    """The usual place is kept; `--resume` goes on with the last, `--overwrite` replaces the first."""
    usual = tmp_path / "compare.json"

    def place(*words: str) -> str:
        return outputs_of(_Asked.read(words), usual, beside=(".jsonl",)).result.name

    assert place() == "compare.json"
    usual.write_text("{}")
    assert place() == "compare-2.json"
    (tmp_path / "compare-2.jsonl").write_text("{}")  # begun, not done
    assert (place(), place("--resume")) == ("compare-3.json", "compare-2.json")
    assert place("--overwrite") == "compare.json"
    with pytest.raises(ConfigError, match="exists; give --resume"):
        place("--output", str(usual))
