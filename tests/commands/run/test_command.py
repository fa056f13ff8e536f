"""The run command: refusals, help, drawn and recorded requests, replay of recorded scenarios."""

import dataclasses
import json
import os
import re
import subprocess
import sys
from pathlib import Path
from types import SimpleNamespace

import numpy as np
import pytest

from blis_jax import run
from blis_jax.cluster.config import FIELDS, POLICY_NAMES, from_flags
from blis_jax.commands import cluster_settings
from blis_jax.commands.options import cluster_flags
from blis_jax.commands.run import flags as run_flags
from blis_jax.commands.run import requests as sessions
from blis_jax.commands.run.flags import RunOptions, make_parser
from blis_jax.commands.run.requests import requests_of
from blis_jax.commands.run.workload import source_of, warn_of_idle_options
from blis_jax.core.outcome import Outcome
from blis_jax.errors import ConfigError
from blis_jax.reports.words import cluster_line
from blis_jax.workload.distribution import PRESETS, Distribution, GaussianLengths
from blis_jax.workload.reference.distribution import distribution_arrays
from tests.support.recorded.reference_data import REPO_ROOT

simulating = pytest.mark.lenient_promotion  # the engine adds flags to counts

MODEL = "meta-llama/llama-3.1-8b-instruct"
BASE = ["--model", MODEL]
LOW_LOAD = [*BASE, "--num-instances", "2", "--workload-spec", "lowload", "--num-requests", "30"]
REFERENCE_FLAGS = """
    seed horizon log defaults-filepath model-config-folder hardware-config workload
    workload-traces-filepath total-kv-blocks max-num-running-reqs max-num-scheduled-tokens
    beta-coeffs alpha-coeffs block-size-in-tokens max-model-len long-prefill-token-threshold model
    hardware tp vllm-version roofline rate num-requests prefix-tokens prompt-tokens
    prompt-tokens-stdev prompt-tokens-min prompt-tokens-max output-tokens output-tokens-stdev
    output-tokens-min output-tokens-max num-instances admission-policy admission-latency
    routing-latency token-bucket-capacity token-bucket-refill-rate routing-policy routing-scorers
    priority-policy scheduler slo-base-critical slo-base-standard slo-base-sheddable slo-age-weight
    slo-threshold-standard slo-threshold-sheddable slo-scorer-bias-critical
    slo-scorer-bias-sheddable slo-priority-bridge load-adaptive-low load-adaptive-high
    slo-gated-threshold slo-prefill slo-prefill-critical slo-prefill-sheddable slo-preemption
    policy-config fitness-weights trace-level counterfactual-k summarize-trace workload-spec
    kv-cpu-blocks kv-offload-threshold kv-transfer-bandwidth kv-transfer-base-latency
    snapshot-refresh-interval results-path
"""


@pytest.fixture(autouse=True)
def in_empty_folder(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)


def workload_arrays(num=6, block_size=16):
    """A golden workload without shared contents."""
    lengths = np.full(num, 3 * block_size, np.int32)
    num_blocks = 4
    zeros = np.zeros(num, np.int16)
    return {
        "arrival_us": np.arange(num, dtype=np.int64) * 1000,
        "input_len": lengths,
        "output_len": np.full(num, block_size, np.int32),
        "slo_class": np.arange(num, dtype=np.int8) % 4,
        "tenant": zeros,
        "client": zeros,
        "session": np.full(num, -1, np.int32),
        "round_index": zeros,
        "id_rank": np.arange(num, dtype=np.int32),
        "block_ptr": np.arange(num + 1) * num_blocks,
        "block_ids_delta": np.diff(np.arange(num * num_blocks), prepend=0).astype(np.int32),
        "block_size": np.int32(block_size),
        "short_input_id": np.full(num, -1, np.int32),
        "tenant_names": np.array(["tenant-a"]),
        "prefix_group_names": np.array([], "U1"),
    }


def save_workload(path, **changes):
    path.parent.mkdir(parents=True, exist_ok=True)
    arrays = {**workload_arrays(), **changes}
    np.savez(path, **{name: array for name, array in arrays.items() if array is not None})
    return path


CONFIG = {
    "num-instances": 2,
    "total-kv-blocks": 1000,
    "alpha-coeffs": [1600.0, 3.5, 1800.0],
    "beta-coeffs": [6900.0, 17.5, 2.75],
    "routing-policy": "least-loaded",
}


def save_scenario(folder, name="one", **changes):
    """A scenario beside its workload; a change to None removes the key."""
    save_workload(folder / "workloads" / "w.npz")
    document = {"name": name, "workload": "w", "seed": 42, "config": CONFIG, **changes}
    document = {key: value for key, value in document.items() if value is not None}
    path = folder / "scenarios" / f"{name}.json"
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(json.dumps(document))
    return path


def config_with(**changes):
    changes = {key.replace("_", "-"): value for key, value in changes.items()}
    return {key: value for key, value in {**CONFIG, **changes}.items() if value is not None}


def all_files(folder):
    return {path: path.stat().st_mtime_ns for path in sorted(folder.rglob("*"))}


def flags(*more):
    return lambda folder: [*BASE, "--workload-spec", "lowload", *more]


def spec_file(text):
    def arguments(folder):
        (folder / "w.yaml").write_text(text)
        return [*BASE, "--workload-spec", "w.yaml"]

    return arguments


def requests_file(content=None, **changes):
    def arguments(folder):
        if content is None:
            save_workload(folder / "w.npz", **changes)
        else:
            (folder / "w.npz").write_bytes(content)
        return [*BASE, "--requests", "w.npz"]

    return arguments


def scenario(*more, **changes):
    return lambda folder: ["--scenario", str(save_scenario(folder, **changes)), *more]


def scenario_text(text):
    def arguments(folder):
        save_scenario(folder).write_text(text)
        return ["--scenario", "scenarios/one.json", "--results-path", "out"]

    return arguments


def simple(*more):
    return lambda folder: [*BASE, *more]


def requests_file_and(*more):
    return lambda folder: [*requests_file()(folder), *more]


def damaged_workload(folder):
    path = save_scenario(folder)
    workload = folder / "workloads" / "w.npz"
    workload.write_bytes(workload.read_bytes()[:700])
    return ["--scenario", str(path), "--results-path", "out"]


def same_name_twice(folder):
    paths = [save_scenario(folder), save_scenario(folder / "other")]
    return ["--scenario", *map(str, paths), "--results-path", "out"]


def results_in_file(folder):
    (folder / "taken").write_text("mine")
    return [*LOW_LOAD, "--results-path", "taken/r.json"]


def replay_into_file(folder):
    (folder / "taken").write_text("mine")
    return ["--scenario", str(save_scenario(folder)), "--results-path", "taken"]


YAML = """
version: "2"
aggregate_rate: 10.0
num_requests: 5
clients:
  - rate_fraction: 1.0
    arrival: {process: poisson}
    input_distribution: {type: constant, params: {value: 64}}
    output_distribution: {type: constant, params: {value: 8}}
"""

# what is wrong -> (arguments, words that the sentence must hold)
BAD_INPUTS = {
    "no model": (lambda _: ["--workload-spec", "lowload"], ["--model", "missing"]),
    "empty model": (lambda _: ["--model", "", "--workload-spec", "lowload"], ["--model"]),
    "unknown model": (
        lambda _: ["--model", "lama", "--workload-spec", "lowload"],
        ["lama", "known"],
    ),
    "unknown hardware": (flags("--hardware", "H999"), ["H999", "fitted"]),
    "unknown tp": (flags("--tp", "3"), ["tp=3", "fitted"]),
    "negative tp": (flags("--tp=-1"), ["--tp", "-1"]),
    "unknown vllm": (flags("--vllm-version", "9"), ["vllm_version=9"]),
    "alpha alone": (flags("--alpha-coeffs", "1,2,3"), ["--alpha-coeffs", "--beta-coeffs"]),
    "two coefficients": (flags("--beta-coeffs", "1,2"), ["--beta-coeffs", "three"]),
    "word as coefficient": (flags("--beta-coeffs", "1,2,x"), ["--beta-coeffs", "'x'", "number"]),
    "negative coefficient": (flags("--beta-coeffs=-1,2,3"), ["--beta-coeffs", "at least 0"]),
    "infinite coefficient": (flags("--beta-coeffs=inf,2,3"), ["--beta-coeffs", "finite"]),
    "unknown flag": (flags("--num-instancs", "2"), ["--num-instancs", "--num-instances"]),
    "abbreviated flag": (flags("--num-inst", "2"), ["unknown option", "--num-inst"]),
    "stray word": (flags("hello"), ["'hello'", "--help"]),
    "no value": (flags("--num-instances"), ["--num-instances", "value"]),
    "word for a number": (flags("--num-instances", "two"), ["--num-instances", "'two'", "whole"]),
    "fraction for a count": (flags("--num-instances", "2.5"), ["'2.5'", "whole"]),
    "huge number": (flags("--total-kv-blocks", "9" * 5000), ["--total-kv-blocks", "whole"]),
    "too many blocks": (flags("--total-kv-blocks", "3000000000"), ["--total-kv-blocks", "large"]),
    "no instance": (flags("--num-instances", "0"), ["--num-instances", "between 1 and 32767"]),
    "too many instances": (flags("--num-instances", "32768"), ["--num-instances", "32768"]),
    "no blocks": (flags("--total-kv-blocks", "0"), ["--total-kv-blocks", "above 0"]),
    "no block size": (flags("--block-size-in-tokens", "0"), ["--block-size-in-tokens"]),
    "negative latency": (flags("--admission-latency=-5"), ["--admission-latency", "-5"]),
    "no number": (flags("--slo-age-weight", "nan"), ["--slo-age-weight", "finite"]),
    "underscores": (flags("--token-bucket-capacity", "1_000"), ["'1_000'", "number"]),
    "bias above 1": (flags("--slo-scorer-bias-critical", "2"), ["--slo-scorer-bias-critical"]),
    "offload above 1": (flags("--kv-offload-threshold", "1.5"), ["--kv-offload-threshold"]),
    "not a truth": (flags("--slo-prefill", "perhaps"), ["--slo-prefill", "true nor false"]),
    "admission policy": (
        flags("--admission-policy", "all"),
        ["--admission-policy", "always-admit"],
    ),
    "routing policy": (flags("--routing-policy", "rr"), ["--routing-policy", "round-robin"]),
    "priority policy": (flags("--priority-policy", "x"), ["--priority-policy", "slo-tiered"]),
    "scheduler": (flags("--scheduler", "lifo"), ["--scheduler", "sjf"]),
    "scorer": (
        flags("--routing-policy", "weighted", "--routing-scorers", "queue:1"),
        ["--routing-scorers", "queue-depth"],
    ),
    "scorer weight": (
        flags("--routing-policy", "weighted", "--routing-scorers", "queue-depth:-1"),
        ["--routing-scorers", "name:weight"],
    ),
    "scorer twice": (
        flags("--routing-policy", "weighted", "--routing-scorers", "queue-depth:1,queue-depth:2"),
        ["queue-depth", "twice"],
    ),
    "clock": (flags("--clock", "int16"), ["--clock", "int32"]),
    "slots": (flags("--slots", "0"), ["--slots", "allowed is 1 to 8192"]),
    "variant": (flags("--variant", "other"), ["--variant", "scheduling", "routing"]),
    "log level": (flags("--log", "loud"), ["--log", "'loud'", "warn"]),
    "negative seed": (flags("--seed=-1", "--rng", "jax"), ["--seed", "-1", "--rng jax"]),
    "seed beyond 64 bits": (flags("--seed", str(2**63)), ["--seed", "64 bits"]),
    "no horizon": (flags("--horizon", "0"), ["--horizon", "at least 1"]),
    "negative requests": (flags("--num-requests=-3"), ["--num-requests", "-3"]),
    "unbounded": (flags("--num-requests", "0"), ["num_requests", "horizon"]),
    "too many requests": (flags("--num-requests", "2000000000"), ["2000000000", "num_requests"]),
    "too many draws": (
        flags("--num-requests", "2000000000", "--rng", "jax"),
        ["draws", "num_requests"],
    ),
    "other stream": (flags("--rng", "go"), ["--rng", "'go'", "reference, jax"]),
    "unknown preset": (simple("--workload", "chatbots"), ["chatbots", "did you mean 'chatbot'?"]),
    "trace mode": (
        simple("--workload", "traces"),
        ["--workload traces", "--workload-traces-filepath"],
    ),
    "trace file": (flags("--workload-traces-filepath", "x"), ["--workload traces", "--trace"]),
    "preset on jax": (simple("--workload=chatbot", "--rng=jax"), ["--rng jax", "--workload-spec"]),
    "preset and record": (requests_file_and("--workload", "chatbot"), ["--requests", "both"]),
    "rate of zero": (simple("--rate", "0"), ["--rate", "above 0"]),
    "rate of nothing": (simple("--rate", "nan"), ["--rate", "finite"]),
    "rate too low": (simple("--rate", "1e-14"), ["--rate", "too low"]),
    "no simple requests": (simple("--rate=1", "--num-requests=0"), ["--num-requests", "1 and"]),
    "mean below least": (simple("--prompt-tokens", "1"), ["--prompt-tokens", "-min 2"]),
    "stdev above greatest": (
        simple("--output-tokens-stdev", "7001"),
        ["--output-tokens-stdev is 7001", "--output-tokens-max 7000"],
    ),
    "no tokens": (
        simple(*(f"--prompt-tokens{part}=0" for part in ("", "-stdev", "-min", "-max"))),
        ["--prompt-tokens-min", "at least 1"],
    ),
    "policy file": (
        flags("--policy-config", "p.yaml"),
        ["p.yaml does not exist", "policy file of BLIS"],
    ),
    "two workloads": (flags("--requests", "w.npz"), ["--workload-spec", "--requests", "both"]),
    "unknown workload": (lambda _: [*BASE, "--workload-spec", "mixt"], ["'mixt'", "mixed"]),
    "missing spec": (
        lambda _: [*BASE, "--workload-spec", "no.yaml"],
        ["no.yaml", "cannot be read"],
    ),
    "spec is a folder": (lambda _: [*BASE, "--workload-spec", "./"], ["cannot be read"]),
    "spec is no yaml": (spec_file("a: [1"), ["w.yaml"]),
    "spec with a typo": (spec_file(YAML.replace("poisson", "poison")), ["w.yaml", "poisson"]),
    "spec without requests": (spec_file(YAML.replace("num_requests: 5", "")), ["num_requests"]),
    "missing requests": (lambda _: [*BASE, "--requests", "no.npz"], ["no.npz", "not exist"]),
    "requests are text": (requests_file(b"hello"), ["w.npz", ".npz"]),
    "requests are empty": (requests_file(b""), ["w.npz", ".npz"]),
    "array missing": (requests_file(arrival_us=None), ["w.npz", "arrival_us"]),
    "array of words": (requests_file(output_len=np.array(["x"] * 6)), ["w.npz", "format"]),
    "array too short": (requests_file(tenant=np.zeros(2, int)), ["w.npz", "tenant", "shape"]),
    "unknown class": (requests_file(slo_class=np.full(6, 9, np.int8)), ["slo_class", "9"]),
    "unknown tenant": (requests_file(tenant=np.full(6, 7, np.int16)), ["tenant", "7"]),
    "before time 0": (requests_file(arrival_us=np.arange(6) - 9), ["arrival_us", "-9"]),
    "other block size": (
        lambda folder: [*requests_file()(folder), "--block-size-in-tokens", "32"],
        ["32", "16"],
    ),
    "results are a folder": (flags("--results-path", "."), ["folder", "file"]),
    "results in a file": (results_in_file, ["taken/r.json", "not a folder"]),
    "results name too long": (flags("--results-path", "x" * 300 + "/r"), ["too long"]),
    "missing scenario": (lambda _: ["--scenario", "no.json"], ["no.json", "does not exist"]),
    "no scenario": (lambda _: ["--scenario"], ["--scenario", "value"]),
    "scenario is a folder": (lambda _: ["--scenario", "."], ["cannot be read"]),
    "scenario is no json": (scenario_text("{"), ["one.json", "JSON"]),
    "scenario is a list": (scenario_text("[]"), ["one.json", "object"]),
    "scenario without config": (scenario(config=None), ["config", "missing"]),
    "scenario without workload": (scenario(workload=None), ["workload", "missing"]),
    "workload elsewhere": (scenario(workload="../secret"), ["workload", "plain file name"]),
    "workload missing": (scenario(workload="gone"), ["gone.npz", "--workloads-dir"]),
    "workloads elsewhere": (scenario("--workloads-dir", "no"), ["w.npz", "--workloads-dir"]),
    "workload damaged": (damaged_workload, ["w.npz"]),
    "scenario typo": (scenario(config=config_with(num_instance=3)), ["num-instances"]),
    "scenario lacks a key": (scenario(config=config_with(beta_coeffs=None)), ["beta-coeffs"]),
    "scenario value": (scenario(config=config_with(num_instances=0)), ["one", "num_instances"]),
    "scenario word": (scenario(config=config_with(num_instances="x")), ["one", "num_instances"]),
    "scenario policy": (
        scenario(config=config_with(routing_policy="psychic")),
        ["one", "routing_policy 'psychic'", "round-robin"],
    ),
    "scenario list": (scenario(config=config_with(alpha_coeffs=3)), ["one", "wrong type"]),
    "scenario and cluster": (scenario("--num-instances", "3"), ["--num-instances", "--scenario"]),
    "scenario and workload": (scenario("--workload-spec", "mixed"), ["--workload-spec"]),
    "same name twice": (same_name_twice, ["two scenarios", "'one'"]),
    "replay into a file": (replay_into_file, ["taken", "not a folder"]),
    "folder alone": (flags("--workloads-dir", "x"), ["--workloads-dir", "--scenario"]),
}


@pytest.mark.parametrize("case", BAD_INPUTS)
def test_bad_input_ends_in_one_sentence(case, tmp_path, capsys):
    make_arguments, words = BAD_INPUTS[case]
    arguments = make_arguments(tmp_path)
    if "--results-path" not in arguments and "--scenario" not in arguments:
        arguments = [*arguments, "--results-path", "results.json"]
    before = all_files(tmp_path)

    assert run.main(arguments) == 2

    out, err = capsys.readouterr()
    assert out == ""
    assert err.endswith("\n") and err.count("\n") == 1, err
    assert err.startswith("blis_jax.run: error: ")
    assert "Traceback" not in err
    for word in words:
        assert word in err, f"{word!r} is not in {err!r}"
    assert len(err) < 2500
    assert all_files(tmp_path) == before


def fresh_python(code, **environment):
    """Runs code in a new interpreter; its output."""
    inherited = {key: os.environ[key] for key in os.environ if not key.startswith(("JAX", "XLA"))}
    done = subprocess.run(
        [sys.executable, "-c", code],
        capture_output=True,
        text=True,
        env={**inherited, "PYTHONPATH": str(REPO_ROOT), **environment},
        check=True,
    )
    return done.stdout


def test_help_comes_at_once_and_names_everything():
    text = fresh_python(
        "import sys\nfrom blis_jax.run import main\n"
        "try: main(['--help-all'])\n"
        "except SystemExit: print('loaded:', {'jax', 'xarray', 'pydantic'} & set(sys.modules))"
    )
    assert text.rstrip().endswith("loaded: set()")
    joined = re.sub(r"-\n +", "-", text)  # argparse breaks lines after hyphens
    words = set(re.split(r"[\s,]+", joined))
    words |= {word.strip(".()") for word in words}
    assert {f"--{name}" for name in REFERENCE_FLAGS.split()} <= words
    assert "examples:" in text and "µs" in text


def test_defaults_are_the_references():
    fitted = {"model", "hardware", "tp", "alpha_coeffs", "beta_coeffs", "total_kv_blocks"}
    fitted |= {
        "lora_config",
        "lora_adapter_capacity",
        "kv_offload_config",
        "speculative_config",
    }  # of files
    for flag in cluster_flags.CLUSTER_FLAGS:
        name = cluster_flags.name_of(flag)
        if name in FIELDS and name not in fitted | {"routing_scorers"}:
            assert flag.default == FIELDS[name].default, name
    given = cluster_settings.cluster_config({"model": MODEL.upper()})
    assert dataclasses.asdict(given) | {"model": "", "routing_scorers": ""} == dataclasses.asdict(
        cluster_settings.cluster_config(
            {"model": MODEL, "tp": given.tp, "hardware": given.hardware}
        )
    ) | {"model": "", "routing_scorers": ""}


def test_empty_policy_name_is_the_default_as_in_the_reference():
    empty = dict.fromkeys(POLICY_NAMES, "")
    config = cluster_settings.cluster_config({"model": MODEL, **empty})
    assert config == cluster_settings.cluster_config({"model": MODEL})
    dashed = {name.replace("_", "-"): "" for name in POLICY_NAMES}
    assert from_flags({**CONFIG, **dashed}) == from_flags(config_with(routing_policy=None))


@simulating
@pytest.mark.parametrize("stream", ["reference", "jax"])
def test_horizon_before_the_first_request_has_no_figures(stream, tmp_path, capsys):
    arguments = [*LOW_LOAD, "--rng", stream, "--horizon", "1", "--results-path", "r.json"]
    assert run.main(arguments) == 0
    out, err = capsys.readouterr()
    assert out == "" and "no request arrives before the horizon" in err
    document = json.loads((tmp_path / "r.json").read_text())
    assert (document["injected_requests"], "requests" in document) == (0, False)


@simulating
def test_that_nothing_completed_is_said_where_nothing_is_printed(capsys):
    assert run.main([*LOW_LOAD, "--horizon", "131000"]) == 0  # the first request comes at 130385
    out, err = capsys.readouterr()
    assert out == "" and "no request completed before the run ended" in err


@simulating
def test_figures_of_survivors_are_called_so(capsys):
    assert run.main([*LOW_LOAD, "--horizon", "3000000"]) == 0
    printed = capsys.readouterr()
    completed = blocks_of(printed.out)["cluster"]["completed_requests"]
    arrived = blocks_of(printed.out)["cluster"]["injected_requests"]
    assert 0 < completed < arrived
    assert f"{completed} of the {arrived} requests that arrived have completed (" in printed.err


@simulating
def test_prompts_that_do_not_fit_are_told_with_what_they_need(capsys):
    assert run.main([*LOW_LOAD, "--total-kv-blocks", "4"]) == 0
    assert re.search(
        r"[1-9][0-9]* requests are dropped, since their prompts need up to [0-9]+ KV blocks and an instance has 4:",
        capsys.readouterr().err,
    )


@simulating
@pytest.mark.parametrize(
    ("extra", "is_told"), [((), True), (("--total-kv-blocks", "128273"), False)]
)
def test_blocks_that_gpus_have_no_room_for_are_told(capsys, tmp_path, extra, is_told):
    """BLIS gives this model 128,273 blocks on four GPUs, four times what fits; 40 prompts take 50,000."""
    path = tmp_path / "t.csv"
    path.write_text("arrival_s,input_tokens,output_tokens\n" + "0,20000,500\n" * 40)
    of_server = ["--model", "meta-llama/llama-3.3-70b-instruct", "--tp", "4", "--trace", str(path)]
    assert run.main([*of_server, *extra]) == 0
    assert ("4 times as many; --total-kv-blocks 32068" in capsys.readouterr().err) == is_told


@simulating
def test_a_trace_tells_who_gave_up_and_how_many_tokens_were_made(tmp_path, capsys):
    """BLIS counts tokens without the first of each request; three of four requests wait 30 ms at most."""
    path = tmp_path / "t.csv"
    rows = "".join(f"0,1000,50,{30_000 * (at > 0)}\n" for at in range(4))
    path.write_text(f"arrival_s,input_tokens,output_tokens,timeout_us\n{rows}")
    steps = ["--alpha-coeffs", "0,0,0", "--beta-coeffs", "5000,10,100"]
    assert run.main(["--model", "m", *steps, "--trace", str(path)]) == 0
    printed = capsys.readouterr()
    assert "1 of the 4 requests that arrived have completed (3 timed out)" in printed.err
    assert "output tokens were made" not in printed.err  # the others made some, too
    path.write_text("arrival_s,input_tokens,output_tokens\n0,1000,5\n1,10,7\n")
    assert run.main(["--model", "m", *steps, "--trace", str(path)]) == 0
    printed = capsys.readouterr()
    assert blocks_of(printed.out)["cluster"]["total_output_tokens"] == 10
    assert "12 output tokens were made" in printed.err


def test_given_coefficients_win_and_bring_the_references_blocks():
    given = {"model": "some/model", "alpha_coeffs": (1.0, 2.0, 3.0), "beta_coeffs": (4.0, 5.0, 6.0)}
    config = cluster_settings.cluster_config(given)
    assert (config.alpha_coeffs, config.beta_coeffs) == ((1.0, 2.0, 3.0), (4.0, 5.0, 6.0))
    assert config.total_kv_blocks == 1_000_000
    fitted = cluster_settings.cluster_config({"model": MODEL, "hardware": "H100", "tp": 2})
    assert fitted.total_kv_blocks == 132_139
    assert (
        cluster_settings.cluster_config(
            {"model": MODEL, "tp": 2, "total_kv_blocks": 77}
        ).total_kv_blocks
        == 77
    )


def blocks_of(text):
    """The JSON blocks of the standard output, by instance."""
    decoder = json.JSONDecoder()
    parts = text.split("=== Simulation Metrics ===\n")[1:]
    blocks = [decoder.raw_decode(part)[0] for part in parts]
    return {block["instance_id"]: block for block in blocks}


@simulating
def test_results_file_holds_what_was_printed(tmp_path, capsys):
    assert run.main([*LOW_LOAD, "--results-path", "r.json", "--log", "error"]) == 0
    out, err = capsys.readouterr()
    assert err == ""
    printed = blocks_of(out)
    assert list(printed) == ["instance_0", "instance_1", "cluster"]
    document = json.loads((tmp_path / "r.json").read_text())
    assert printed["cluster"].items() <= document.items()
    assert len(document["requests"]) == 30
    origin = document["provenance"]
    assert (origin["stream"], origin["workload"]) == ("reference", "lowload")
    assert (origin["seed"], "distribution" in origin) == (42, False)
    assert origin["config"]["num-instances"] == 2
    assert sorted(path.name for path in tmp_path.iterdir()) == ["r.json"]


@simulating
@pytest.mark.parametrize("stream", ["reference", "jax"])
def test_seed_decides_the_requests(stream, capsys):
    def output(*more):
        assert run.main([*LOW_LOAD, "--rng", stream, "--log", "info", *more]) == 0
        captured = capsys.readouterr()
        return captured.out, captured.err

    first, said = output("--seed", "7")
    assert first == output("--seed", "7")[0]
    assert first != output("--seed", "8")[0]
    assert f"stream {stream}" in said and "seed 7" in said
    from_file, said = output()
    assert "seed 42" in said
    assert from_file == output("--seed", "42")[0]


@simulating
def test_only_another_stream_than_the_references_is_remarked(capsys):
    assert run.main(LOW_LOAD) == 0
    (line,) = capsys.readouterr().err.splitlines()
    assert "; budget 2,048 tokens, 256 requests; " in line
    assert run.main([*LOW_LOAD, "--rng", "jax"]) == 0
    assert "stream jax (not BLIS's)" in capsys.readouterr().err


@simulating
def test_clients_add_their_model_and_their_network(tmp_path, capsys):
    clients = """
  - {slo_class: realtime, model: tuned, network: {rtt_ms: 3}, rate_fraction: 0.5, LAWS}
  - {rate_fraction: 0.5, LAWS}
"""
    fixed = "{type: constant, params: {value: 64}}"
    laws = (
        f"arrival: {{process: constant}}, input_distribution: {fixed}, output_distribution: {fixed}"
    )
    head = "aggregate_rate: 10\nnum_requests: 4\nclients:"
    (tmp_path / "w.yaml").write_text(head + clients.replace("LAWS", laws))

    arguments = [*BASE, "--workload-spec", "w.yaml", "--results-path", "r.json"]
    assert run.main(arguments) == 0
    said = capsys.readouterr().err
    assert said.count("\n") == 2  # and the cluster
    assert "w.yaml: clients[0].slo_class: 'realtime'" in said
    requests = json.loads((tmp_path / "r.json").read_text())["requests"]
    assert [request.get("model") for request in requests] == ["tuned", None] * 2
    for request in requests[::2]:
        assert request["slo_class"] == "critical"
        assert request["client_ttft_ms"] == pytest.approx(request["ttft_ms"] + 3)
        assert request["client_e2e_ms"] == pytest.approx(request["e2e_ms"] + 3)
    assert "client_ttft_ms" not in requests[1]
    assert run.main([*arguments, "--log", "error", "--overwrite"]) == 0
    assert capsys.readouterr().err == ""


@simulating
@pytest.mark.golden
@pytest.mark.parametrize(
    "name",
    [
        "cov_legacy_distribution_1_s42",
        pytest.param("cov_lifecycle_s42", marks=pytest.mark.slow),
        pytest.param("it11_multiturn_heavy_best_s44", marks=pytest.mark.slow),
    ],
)
def test_a_command_line_of_the_reference_gives_its_figures(name, golden_dir, monkeypatch, capsys):
    monkeypatch.chdir(golden_dir / "scheduling")
    recorded = json.loads(Path(f"scenarios/{name}.json").read_text())
    assert run.main(recorded["cli_args"]) == 0
    assert blocks_of(capsys.readouterr().out)["cluster"] == recorded["cluster_json"]


def drawn(*arguments):
    """The requests of a run, and what is said of options without effect."""
    given = make_parser().given([*BASE, *arguments])
    source = source_of(RunOptions.of(given))
    config = cluster_settings.cluster_config(given)
    table, _ = requests_of(source, config)
    said = []
    warn_of_idle_options(RunOptions.of(given), config, source, SimpleNamespace(warn=said.append))
    return table, said


def test_simple_workloads_are_the_references():
    table, said = drawn("--rate", "20", "--num-requests", "150", "--prompt-tokens", "300")
    expected = distribution_arrays(
        Distribution(20.0, 150, prompt=GaussianLengths(300, 256, 2, 7000)), seed=42
    )
    assert np.array_equal(table.arrival_us, expected["arrival_us"])
    assert np.array_equal(table.input_len, expected["input_len"])
    assert not said
    other, _ = drawn("--workload=distribution", "--seed=43", "--rate=20", "--num-requests=150")
    assert not np.array_equal(table.output_len, other.output_len)
    short, _ = drawn("--rate=20", "--horizon=100000")
    assert len(short.arrival_us) == 3  # at 0, 49,999 and 99,998


def test_a_mean_that_the_bounds_move_is_said_before_it_is_drawn():
    table, (said,) = drawn("--num-requests", "3000", "--output-tokens", "66")
    assert said.startswith("--output-tokens 66 will draw a mean of 139, for its deviation is 256")
    assert table.output_len.mean() == pytest.approx(139, rel=0.06)  # 139 ± 2.6 (1 sigma)
    bounds = ("--output-tokens-stdev", "20", "--output-tokens-min", "1")
    table, said = drawn("--num-requests", "3000", "--output-tokens", "66", *bounds)
    assert not said
    assert table.output_len.mean() == pytest.approx(66, rel=0.03)


def test_presets_have_their_own_lengths():
    table, said = drawn("--workload", "chatbot", "--prompt-tokens", "9", "--rate", "4")
    assert table.num_rows == 100 and 200 < table.input_len.mean() < 300
    assert said == ["--prompt-tokens has no effect on the preset chatbot"]
    assert table.arrival_us[1] == 250_000


def test_the_workload_file_comes_before_the_simple_options():
    table, said = drawn("--workload-spec", "lowload", "--workload", "chatbot", "--rate", "9")
    assert np.array_equal(table.input_len, drawn("--workload-spec", "lowload")[0].input_len)
    assert [remark.split()[0] for remark in said] == ["--workload", "--rate"]


def test_presets_of_the_options_are_those_of_the_workloads():
    assert set(run_flags.PRESETS) == set(PRESETS)
    flags = {flag.name: flag.default for flag in run_flags.make_parser().flags}
    usual = Distribution()
    assert (flags["rate"], flags["prefix-tokens"]) == (usual.rate, usual.prefix_tokens)
    for kind in ("prompt", "output"):
        lengths = getattr(usual, kind)
        shown = [flags[f"{kind}-tokens{part}"] for part in ("", "-stdev", "-min", "-max")]
        assert shown == [lengths.mean, lengths.stdev, lengths.min, lengths.max]


@simulating
def test_recorded_requests_run(tmp_path, capsys):
    save_workload(tmp_path / "w.npz")
    assert run.main([*BASE, "--requests", "w.npz", "--seed", "3", "--routing-scorers", "x:1"]) == 0
    out, err = capsys.readouterr()
    assert blocks_of(out)["cluster"]["completed_requests"] == 6
    assert "--seed has no effect" in err and "--routing-scorers has no effect" in err


@simulating
def test_run_that_cannot_be_simulated_writes_nothing(tmp_path, capsys, monkeypatch):
    simulated = sessions.simulated

    def tripped(*arguments):
        return dataclasses.replace(simulated(*arguments), outcome=Outcome.KV_CHECK_TRIPPED)

    monkeypatch.setattr(sessions, "simulated", tripped)
    assert run.main([*LOW_LOAD, "--results-path", "r.json", "--log", "error"]) == 3
    out, err = capsys.readouterr()
    assert out == "" and "KV cache" in err and err.count("\n") == 1
    assert "lower the load or give more memory" in err
    assert not list(tmp_path.iterdir())


@simulating
def test_unsupported_scenario_is_named_and_the_others_written(tmp_path, capsys):
    paths = [
        save_scenario(tmp_path, "odd", config=config_with(roofline=True)),
        save_scenario(tmp_path, "odder", config=config_with(roofline=True)),
        save_scenario(tmp_path, "plain"),
    ]
    assert run.main(["--scenario", *map(str, paths), "--results-path", "out/all"]) == 3
    out, err = capsys.readouterr()
    assert "skipped odd:" in err and "skipped odder:" in err and "roofline" in err
    assert out.startswith("plain: 6 of 6 completed")
    written = sorted(path.name for path in (tmp_path / "out" / "all").iterdir())
    assert written == ["plain.json", "plain.npz"]


def test_mechanism_of_blis_that_is_not_here_has_the_exit_code_of_a_scenario_with_it(
    tmp_path, capsys
):
    assert run.main([*LOW_LOAD, "--defaults-filepath", "x", "--results-path", "r.json"]) == 3
    out, err = capsys.readouterr()
    assert out == "" and "not supported" in err and err.count("\n") == 1
    assert not list(tmp_path.iterdir())


@simulating
def test_written_scenario_can_be_replayed(tmp_path, capsys):
    path = save_scenario(tmp_path)
    assert run.main(["--scenario", str(path), "--results-path", "first"]) == 0
    again = ["--scenario", "first/one.json", "--workloads-dir", "workloads"]
    assert run.main([*again, "--results-path", "second"]) == 0
    assert (tmp_path / "first/one.json").read_text() == (tmp_path / "second/one.json").read_text()
    with np.load("first/one.npz") as first, np.load("second/one.npz") as second:
        assert first.files == second.files
        for name in first.files:
            np.testing.assert_array_equal(first[name], second[name])


@simulating
def test_clocks_agree(tmp_path, capsys):
    path = save_scenario(tmp_path)
    outputs = set()
    for clock in ("int32", "int64"):
        assert run.main(["--scenario", str(path), "--clock", clock, "--slots", "16"]) == 0
        outputs.add(capsys.readouterr().out)
    assert len(outputs) == 1


@simulating
@pytest.mark.golden
def test_replay_equals_the_reference(golden_dir, tmp_path, capsys):
    names = ("cov_adm_tokenbucket_s42", "cov_horizon300000_s42")
    paths = [golden_dir / "scheduling" / "scenarios" / f"{name}.json" for name in names]
    if not all(path.is_file() for path in paths):
        pytest.skip("these two recorded scenarios are not here")
    assert run.main(["--scenario", *map(str, paths), "--results-path", "out"]) == 0
    for path in paths:
        with np.load(path.with_suffix(".npz")) as golden, np.load(f"out/{path.stem}.npz") as ours:
            assert set(ours.files) == set(golden.files)
            for name in golden.files:
                assert ours[name].dtype == golden[name].dtype, name
                np.testing.assert_array_equal(ours[name], golden[name], err_msg=name)
        golden, ours = (
            json.loads(file.read_text()) for file in (path, tmp_path / "out" / path.name)
        )
        assert ours["config"].items() <= golden["config"].items()
        for key in ("cluster_json", "aggregates", "per_slo"):
            assert numbers_in(ours[key]) == pytest.approx(numbers_in(golden[key]), rel=1e-12)


def numbers_in(tree, path=""):
    """Every number of a nested mapping by its path."""
    if not isinstance(tree, dict):
        return {} if isinstance(tree, str) else {path: tree}
    parts = (numbers_in(part, f"{path}/{key}") for key, part in tree.items())
    return {place: value for part in parts for place, value in part.items()}


@simulating
@pytest.mark.golden
def test_standard_output_is_the_references_byte_for_byte(golden_dir, capsys):
    import hashlib

    path = golden_dir / "routing" / "scenarios" / "it11_default_scorers_r2000_s42.json"
    if not path.is_file():
        pytest.skip("this recorded scenario is not here")
    assert run.main(["--scenario", str(path)]) == 0
    digest = hashlib.sha256(capsys.readouterr().out.encode()).hexdigest()
    assert digest == json.loads(path.read_text())["stdout_sha256"]


def prepared(more="", first="os", **environment):
    code = (
        f"import os, {first}\nfrom blis_jax import backend\n"
        f"backend.prepare_backend({more})\n"
        "names = 'XLA_FLAGS', 'JAX_COMPILATION_CACHE_DIR', 'JAX_ENABLE_COMPILATION_CACHE'\n"
        "print(*(os.environ.get(name) for name in names), sep='|')"
    )
    return fresh_python(code, **environment).strip().split("|")


def test_backend_is_prepared_unless_the_user_did(tmp_path):
    cache = str(tmp_path / "cache")
    flags, folder, is_on = prepared(XDG_CACHE_HOME=cache)
    assert "small_while_loop" in flags and is_on == "None"
    assert Path(folder) == Path(cache) / "blis_jax" / "xla" and Path(folder).is_dir()
    theirs = prepared(XLA_FLAGS="--mine", JAX_COMPILATION_CACHE_DIR=str(tmp_path / "own"))
    assert theirs[0].startswith("--mine --xla_backend_extra_options=")
    assert theirs[1] == str(tmp_path / "own")
    assert prepared(XLA_FLAGS="", XDG_CACHE_HOME=cache)[0] == ""
    own = "--xla_backend_extra_options=xla_cpu_use_fusion_emitters=false"
    widest = "--xla_cpu_prefer_vector_width="
    assert prepared(XLA_FLAGS=own, XDG_CACHE_HOME=cache)[0].startswith(f"{own} {widest}")
    own = f"{widest}256 {own}"
    assert prepared(XLA_FLAGS=own, XDG_CACHE_HOME=cache)[0] == own
    assert prepared("use_cache=False", XDG_CACHE_HOME=cache)[2] == "false"
    (tmp_path / "file").write_text("")
    assert prepared(XDG_CACHE_HOME=str(tmp_path / "file"))[2] == "false"
    assert "small_while_loop" in prepared(first="jax", XDG_CACHE_HOME=cache)[0]


@pytest.mark.parametrize("first", ["", "jax.devices()"])
def test_a_backend_that_started_first_is_warned_of_once(first):
    code = (
        f"import jax, warnings\n{first}\nimport blis_jax\nfrom blis_jax import backend\n"
        "with warnings.catch_warnings(record=True) as said:\n"
        "    warnings.simplefilter('always')\n"
        "    backend.warn_if_late(); backend.warn_if_late()\n"
        "print([str(one.message) for one in said])"
    )
    said = fresh_python(code)
    assert said.strip() == "[]" if not first else said.count("restart Python") == 1


def test_coefficients_of_a_calibration(tmp_path):
    from blis_jax.files.atomic_write import write_json

    fit = {
        "kind": "calibration",
        "terms": ["beta0", "beta3"],
        "coefficients": {"beta0": {"value": 5000.0}, "beta3": {"value": 0.5}},
        "covariance": [[1.0, 0.0], [0.0, 0.01]],
    }
    write_json(tmp_path / "fit.json", fit)
    given = {"model": "some/model", "coefficients_from": str(tmp_path / "fit.json")}
    config = cluster_settings.cluster_config(given)
    assert (config.alpha_coeffs, config.beta_coeffs) == ((0.0,) * 3, (5000.0, 0.0, 0.0, 0.5))
    routing = cluster_settings.cluster_config({**given, "variant": "routing"})
    assert config.latency_model == routing.latency_model == "blackbox-context"
    assert config.corrected and config.preemption_mode == "recompute" and not routing.corrected
    with pytest.raises(ConfigError, match="--model is missing"):
        cluster_settings.cluster_config({"coefficients_from": given["coefficients_from"]})
    with pytest.raises(ConfigError, match="--latency-model: --coefficients-from is given too"):
        cluster_settings.cluster_config({**given, "latency_model": "blackbox-attention"})
    with pytest.raises(ConfigError, match="--beta-coeffs: --coefficients-from is given too"):
        cluster_settings.cluster_config({**given, "beta_coeffs": (1.0, 2.0, 3.0)})


def test_a_fit_brings_its_server(tmp_path: Path) -> None:
    """A made-up one: Qwen3-14B on four A100s with a small budget. What is given stays, and profiles stay exact."""
    from blis_jax.files.atomic_write import write_json

    fit = {
        "kind": "calibration",
        "terms": ["beta0"],
        "coefficients": {"beta0": {"value": 5000.0}},
        "covariance": [[1.0]],
        "server": {"model": "qwen/qwen3-14b", "gpu": "A100-80", "tp": 4},
        "cluster": {
            "num_instances": 3, "max_num_running_reqs": 24, "max_num_scheduled_tokens": 1024, "total_kv_blocks": 999,
            "block_size_in_tokens": 32, "long_prefill_token_threshold": 128, "routing_policy": "least-loaded",
        },
    }  # fmt: skip
    write_json(tmp_path / "fit.json", fit)
    given = {"coefficients_from": str(tmp_path / "fit.json")}
    config = cluster_settings.cluster_config(given)
    assert (config.model, config.hardware, config.tp) == ("qwen/qwen3-14b", "A100-80", 4)
    assert (config.max_num_running_reqs, config.max_num_scheduled_tokens) == (24, 1024)
    assert (config.total_kv_blocks, config.block_size_in_tokens) == (999, 32)
    assert config.long_prefill_token_threshold == 128
    # the router and the number of instances are of the deployment, not of a server
    assert (config.num_instances, config.routing_policy) == (1, "round-robin")
    assert config.corrected and config.preemption_mode == "recompute"
    assert cluster_line({"": config}).startswith(
        "qwen/qwen3-14b; 1 instance × 4 A100-80 = 4 GPUs; budget 1,024"
    )
    other = cluster_settings.cluster_config(
        given | {"model": "some/model", "max_num_scheduled_tokens": 8, "tp": 2}
    )
    assert (other.model, other.tp, other.max_num_running_reqs) == ("some/model", 2, 8)
    exact = cluster_settings.cluster_config(given | {"corrected": False})
    assert not exact.corrected and exact.preemption_mode == "restart" and exact.tp == 4


def test_the_steady_state_is_printed_after_the_figures(capsys: pytest.CaptureFixture[str]) -> None:
    words = ["--model", "meta-llama/llama-3.1-8b-instruct", "--workload", "chatbot"]
    assert run.main([*words, "--num-requests", "400", "--steady"]) == 0
    _, _, table = capsys.readouterr().out.partition("Steady state\n")
    rows = [line.split()[:3] for line in table.splitlines()[1:5]]
    assert [row[:2] for row in rows] == [["all", "TTFT"]] * 2 + [["all", "E2E"]] * 2
    assert "short" in table and "run longer, or take many seeds" in table
    assert run.main([*words, "--num-requests", "100", "--steady"]) == 0
    assert "100 requests; 320 are needed" in capsys.readouterr().out
    assert run.main(["--scenario", "x", "--steady"]) == 2
    assert "leave out --scenario" in capsys.readouterr().err
