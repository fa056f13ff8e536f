"""Every option of BLIS (f90a1e3a): `run` takes it, or ends with exit code 3 and a sentence."""

from __future__ import annotations

import warnings
from pathlib import Path
from typing import Any

import pytest

from blis_jax import run
from blis_jax.commands.cli import Notes
from blis_jax.commands.cluster_settings import cluster_config
from blis_jax.commands.door.catalogue import COMMANDS
from blis_jax.commands.door.dispatch import main as door
from blis_jax.commands.parser import declared
from blis_jax.commands.run import one_run
from blis_jax.commands.run.flags import RunOptions, make_parser
from blis_jax.commands.run.workload import source_of
from blis_jax.errors import ConfigError, ConfigWarning, UnsupportedError

MODEL = ["--model", "meta-llama/llama-3.1-8b-instruct"]
# `blis run --help`
RUN = """
admission-latency admission-policy alpha-coeffs beta-coeffs block-size-in-tokens cache-signal-delay concurrency
counterfactual-k decode-hardware decode-instances decode-latency-model decode-max-model-len decode-routing-scorers
decode-tp defaults-filepath detectors dispatch-order dispatch-tick-interval dp enable-expert-parallel encode-decider
encode-instances fairness-policy fitness-weights flow-control gpu-memory-utilization hardware hardware-config horizon
in-flight-eviction kv-cache-util-threshold kv-cpu-blocks kv-offload-config kv-offload-threshold kv-transfer-bandwidth
kv-transfer-base-latency latency-model lazy-generation log long-prefill-token-threshold lora-adapter-capacity
lora-config lora-footprint-bytes-per-rank lora-load-bandwidth-bytes-us lora-load-base-latency-us lora-scorer-weight
max-concurrency max-gateway-queue-depth max-model-len max-num-batched-tokens max-num-seqs metrics-path model
model-autoscaler-interval-us model-config-folder moe-comm-backend num-instances num-requests output-tokens
output-tokens-max output-tokens-min output-tokens-stdev pd-decider pd-prefix-threshold pd-transfer-bandwidth
pd-transfer-base-latency pd-transfer-contention per-band-capacity policy-config preemption-policy
prefill-decode-instances prefill-hardware prefill-instances prefill-latency-model prefill-max-model-len
prefill-routing-scorers prefill-tp prefix-tokens prompt-tokens prompt-tokens-max prompt-tokens-min prompt-tokens-stdev
queue-depth-threshold queue-shedding rate request-ttl routing-latency routing-policy routing-scorers saturation-config
saturation-detector saturation-final-window saturation-report scheduler seed slo-e2e slo-itl slo-targets slo-ttft
snapshot-refresh-interval summarize-trace think-time-ms timeout token-bucket-capacity token-bucket-refill-rate
total-kv-blocks tp trace-level trace-output usage-limit-threshold workload workload-spec
"""
# `blis replay --help`: these, and all of RUN but those
REPLAY_ALONE = "results-path session-mode think-time-dist trace-data trace-header"
RUN_ALONE = """
concurrency num-requests output-tokens output-tokens-max output-tokens-min output-tokens-stdev prefix-tokens
prompt-tokens prompt-tokens-max prompt-tokens-min prompt-tokens-stdev rate timeout workload workload-spec
"""
REPLAY = sorted({*RUN.split(), *REPLAY_ALONE.split()} - {*RUN_ALONE.split()})
# `blis observe --help` and `blis calibrate --help`, without what they share with the others
OBSERVE = """
api-format api-key itl-output kv-metrics-url no-streaming prewarm-duration record-itl rtt-ms scrape-kv-metrics
server-type server-url unconstrained-output vllm-commit warmup-requests
"""
CALIBRATE = """
adapter-mape-threshold adapter-reference hit-rate-tolerance-pp itl-data network-bandwidth-mbps network-rtt-us report
sim-metrics sim-metrics-blind sim-results slo-e2e slo-itl slo-ttft trace-data trace-header ttft-mape-threshold
"""


@pytest.mark.parametrize(
    ("command", "name"),
    [*(("run", name) for name in RUN.split()), *(("replay", name) for name in REPLAY)],
)
def test_an_option_of_blis_is_taken_or_refused_as_not_supported(command: str, name: str) -> None:
    parser = declared(COMMANDS[command].main())
    is_declared = f"--{name}" in parser._option_string_actions
    if is_declared and name.replace("-", "_") not in parser.refused:
        return
    with pytest.raises(UnsupportedError, match=f"^--{name} is "):
        parser.given([f"--{name}", "1"])


@pytest.mark.parametrize(
    ("command", "names"), [("run", OBSERVE), ("calibrate", CALIBRATE)], ids=["observe", "calibrate"]
)
def test_options_of_other_commands_of_blis_are_not_supported(
    command: str, names: str, capsys: pytest.CaptureFixture[str]
) -> None:
    for name in names.split():
        assert door([command, f"--{name}", "1"]) == 3
        assert capsys.readouterr().err.startswith(
            f"blis-jax {command}: error: --{name} is not supported: "
        )


def test_a_command_that_measures_is_not_supported(capsys: pytest.CaptureFixture[str]) -> None:
    assert door(["observe", "--server-url", "http://localhost:8000"]) == 3
    assert "observe is not supported: BLIS's observe measures" in capsys.readouterr().err


def test_without_a_workload_the_requests_are_those_of_blis() -> None:
    for profile in ("scheduling", "blis-2026-08"):
        source = source_of(RunOptions.of({"variant": profile, "seed": 7}))
        said = source_of(
            RunOptions.of({"variant": profile, "workload": "distribution", "rate": 1.0, "seed": 7})
        )
        assert source.is_default and not said.is_default
        assert (source.title, source.seed) == ("distribution", 7)
        assert (source.spec, source.distribution) == (said.spec, said.distribution)


def test_no_number_of_requests_needs_a_horizon() -> None:
    given = {"variant": "blis-2026-08", "num_requests": 0, "rate": 3.0}
    with pytest.raises(ConfigError, match="--num-requests 0 has no end without --horizon"):
        source_of(RunOptions.of(given))
    spec = source_of(RunOptions.of({**given, "horizon": 5_000_000})).spec
    assert spec is not None and (spec.num_requests, spec.horizon) == (0, 5_000_000)
    users = {"variant": "blis-2026-08", "num_requests": 0, "concurrency": 3, "horizon": 5_000_000}
    assert source_of(RunOptions.of(users)).spec == source_of(
        RunOptions.of({**users, "num_requests": 9})
    ).spec.model_copy(  # type: ignore[union-attr]
        update={"num_requests": 0}
    )


def test_a_word_or_a_file_given_as_nothing_is_not_given() -> None:
    words = ["--trace-level", "", "--pd-decider=", "--policy-config", "", "--rate", "2"]
    assert make_parser().given(words) == {"rate": 2.0}
    for name in ("--log", "--rate"):  # which '' is no value of in BLIS either
        with pytest.raises(ConfigError, match=f"^{name}: "):
            make_parser().given([name, ""])


@pytest.mark.parametrize("text", ["run1", "run1.csv"])
def test_a_trace_is_named_by_its_prefix(text: str) -> None:
    assert make_parser().given(["--trace-output", text]) == {"trace_output": "run1.csv"}


@pytest.mark.parametrize(
    "given",
    [
        {"pd_decider": "always"},
        {"decode_tp": 2, "prefill_hardware": "H100", "pd_prefix_threshold": 5},
        {"decode_max_model_len": 5000, "pd_transfer_bandwidth": 1.0},
        {"prefill_routing_scorers": "queue-depth:1"},
    ],
)
def test_options_of_pools_have_no_effect_without_pools(given: dict[str, Any]) -> None:
    usual = {"model": MODEL[1], "variant": "blis-2026-08"}
    with pytest.warns(ConfigWarning, match="has no effect without --prefill-instances"):
        found = cluster_config({**usual, **given})
    assert found == cluster_config(usual)
    with pytest.raises(
        ConfigError, match="--pd-decider 'sometimes' is not known; use never or always or"
    ):
        cluster_config({**usual, "pd_decider": "sometimes"})


def test_a_longest_request_has_no_effect_under_blis_of_february() -> None:
    named = {"model": MODEL[1], "variant": "blis-2026-02"}
    with pytest.warns(ConfigWarning, match="--max-model-len has no effect under --profile"):
        found = cluster_config({**named, "max_model_len": 60})
    assert found == cluster_config(named)
    for more in ({"corrected": True}, {"variant": "scheduling"}):
        with pytest.raises(ConfigError, match="--max-model-len limits requests in the revision"):
            cluster_config({**named, "max_model_len": 60, **more})


def test_scorers_of_pools_are_not_said_to_have_no_effect(
    capsys: pytest.CaptureFixture[str],
) -> None:
    pools = {"num_instances": 2, "prefill_instances": 1, "decode_instances": 1}
    given = {"variant": "blis-2026-08", "decode_routing_scorers": "queue-depth:1"}
    for more, number in ((pools, 0), ({}, 1)):
        usual = {"model": MODEL[1], "variant": "blis-2026-08", **more}
        with warnings.catch_warnings():
            warnings.simplefilter("ignore", ConfigWarning)
            config = cluster_config({**usual, **given})
        one_run._warn_of_idle_options(
            RunOptions.of({**usual, **given}),
            config,
            source_of(RunOptions.of(usual)),
            Notes("run"),
        )
        assert capsys.readouterr().err.count("--decode-routing-scorers has no effect") == number


def test_instances_have_the_usual_gpus_where_they_are_placed(tmp_path: Path) -> None:
    pool = "{name: p, gpu_type: H100, gpus_per_node: 4, gpu_memory_gib: 80, initial_nodes: 1, max_nodes: 4}"
    (tmp_path / "nodes.yaml").write_text(f"node_pools: [{pool}]")
    given = {
        "model": "codellama/codellama-34b-instruct-hf",
        "variant": "blis-2026-08",
        "policy_config": str(tmp_path / "nodes.yaml"),
        "num_instances": 2,
    }
    config = cluster_config(given)
    assert config.num_instances == 2
    with pytest.warns(ConfigWarning, match="room for 2 instances of 2 GPUs.* others never start"):
        assert cluster_config({**given, "num_instances": 3}) == config  # as in BLIS
    (tmp_path / "nodes.yaml").write_text(
        f"node_pools: [{pool}]\nautoscaler: {{interval_us: 1000000}}"
    )
    with pytest.warns(ConfigWarning, match="room for 2 instances of 2 GPUs.* others never start"):
        assert cluster_config({**given, "num_instances": 3}).num_instances == 2


@pytest.mark.parametrize(
    ("words", "sentence"),
    [
        (MODEL, "model meta-llama/llama-3.1-8b-instruct has no experts"),
        ([*MODEL, "--latency-model", "roofline"], "needs --latency-model trained-physics"),
    ],
)
def test_expert_parallelism_needs_experts(
    words: list[str], sentence: str, capsys: pytest.CaptureFixture[str]
) -> None:
    code = run.main([*words, "--profile", "blis-2026-08", "--enable-expert-parallel"])
    assert code == 2 and sentence in capsys.readouterr().err
