"""The YAML specification: what is accepted, and the one sentence for what is not."""

import re

import pytest

from blis_jax.core.types import SLO_CLASSES
from blis_jax.errors import ConfigError
from blis_jax.workload.distribution import prefix_lengths
from blis_jax.workload.remarks import ineffective_settings
from blis_jax.workload.spec import (
    ClientSpec,
    list_builtin,
    load_builtin,
    load_spec,
    override,
    parse_spec,
)
from tests.support.recorded.reference_data import REVISIONS

BASE = """
version: "2"
seed: 42
category: language
aggregate_rate: 2000.0
num_requests: 1000
clients:
  - id: critical
    tenant_id: premium
    slo_class: critical
    rate_fraction: 0.4
    arrival: {process: gamma, cv: 2.0}
    input_distribution: {type: gaussian, params: {mean: 256, std_dev: 100, min: 32, max: 2048}}
    output_distribution: {type: exponential, params: {mean: 128}}
    prefix_group: system-prompt
    prefix_length: 512
    streaming: true
  - id: standard
    slo_class: standard
    rate_fraction: 0.6
    arrival: {process: poisson}
    input_distribution: {type: constant, params: {value: 20}}
    output_distribution: {type: empirical, params: {'16': 0.2, '100': 0.8}}
"""
OUTPUT = "{type: exponential, params: {mean: 128}}"


def swapped(old, new):
    assert BASE.count(old) == 1, old
    return BASE.replace(old, new)


def message(text):
    with pytest.raises(ConfigError) as caught:
        parse_spec(text, "w.yaml")
    return str(caught.value)


BAD = [
    ("cv: 2.0", "cv: -1", "clients[0].arrival.cv: got -1, allowed is a number greater than 0"),
    (
        "cv: 2.0",
        "cv: .nan",
        "clients[0].arrival.cv: got nan (a number), allowed is a finite number",
    ),
    (
        "cv: 2.0",
        "cv: .inf",
        "clients[0].arrival.cv: got inf (a number), allowed is a finite number",
    ),
    ("cv: 2.0", "cv: high", "clients[0].arrival.cv: got 'high' (a text), allowed is a number"),
    ("cv: 2.0", "cv: true", "clients[0].arrival.cv: got true, allowed is a number"),
    ("cv: 2.0", "cw: 2.0", "clients[0].arrival.cw: unknown key, allowed here: process, cv"),
    (
        "process: gamma, cv: 2.0",
        "process: weibull, cv: 11",
        "clients[0].arrival.cv: got 11, allowed for weibull is 0.01 to 10.4",
    ),
    (
        "cv: 2.0",
        "cv: 1.0e-200",
        "clients[0].arrival.cv: got 1e-200, allowed for gamma is 1e-150 or more",
    ),
    (
        "process: gamma",
        "process: gama",
        "clients[0].arrival.process: got 'gama', allowed is 'poisson', 'gamma', "
        "'weibull' or 'constant'; did you mean 'gamma'?",
    ),
    (
        "{process: gamma, cv: 2.0}",
        "gamma",
        "clients[0].arrival: got 'gamma' (a text), allowed is a mapping of keys to values",
    ),
    ("seed: 42", "seed: 4.5", "seed: got 4.5 (a number), allowed is a whole number"),
    (
        "seed: 42",
        "seed: 99999999999999999999",
        "seed: got 99999999999999999999, allowed is a number less than 9.22337e+18",
    ),
    (
        'version: "2"',
        "version: true",
        "version: got True, allowed is a text such as '2'",
    ),
    (
        "category: language",
        "category: speech",
        "category: got 'speech', allowed is '', 'language', 'multimodal' or 'reasoning'",
    ),
    (
        "aggregate_rate: 2000.0",
        "aggregate_rate: 0",
        "aggregate_rate: got 0, allowed is a number greater than 0",
    ),
    (
        "aggregate_rate: 2000.0",
        "",
        "aggregate_rate: missing, but it must be given (requests per second)",
    ),
    (
        "num_requests: 1000",
        "num_requests: -1",
        "num_requests: got -1, allowed is a number of at least 0",
    ),
    (
        "num_requests: 1000",
        "measure: {warm_up: 3}",
        "measure.warm_up: unknown key, allowed here: warm_up_s, cool_down_s; did you "
        "mean 'warm_up_s'?",
    ),
    (
        "num_requests: 1000",
        "measure: {cool_down_s: -3}",
        "measure.cool_down_s: got -3, allowed is a number of at least 0",
    ),
    (
        "rate_fraction: 0.4",
        "rate_fraction: 0",
        "clients[0].rate_fraction: got 0, allowed is a number greater than 0",
    ),
    (
        "slo_class: critical",
        "slo_class: realtime",
        "clients[0].slo_class: got 'realtime', allowed is '', 'critical', "
        "'standard', 'sheddable', 'batch' or 'background'",
    ),
    (
        "streaming: true",
        "streaming: maybe",
        "clients[0].streaming: got 'maybe' (a text), allowed is true or false",
    ),
    (
        "prefix_length: 512",
        "prefix_length: -1",
        "clients[0].prefix_length: got -1, allowed is a number of at least 0",
    ),
    (
        "min: 32",
        "min: 4000",
        "clients[0].input_distribution.params.min: got 4000, allowed is a number of "
        "at most max = 2048",
    ),
    (
        "min: 32",
        "min: -3.5",
        "clients[0].input_distribution.params.min: got -3.5 (a number), allowed is a whole number",
    ),
    (
        "std_dev: 100, ",
        "",
        "clients[0].input_distribution.params.std_dev: missing, but it must be given",
    ),
    (
        "std_dev: 100",
        "std_dev: -3",
        "clients[0].input_distribution.params.std_dev: got -3, allowed is a number of at least 0",
    ),
    (
        "type: gaussian",
        "type: gausian",
        "clients[0].input_distribution: type 'gausian' is unknown, allowed is one of "
        "gaussian, exponential, "
        "pareto_lognormal, empirical, constant; did you mean 'gaussian'?",
    ),
    (
        "type: gaussian, ",
        "",
        "clients[0].input_distribution: the key 'type' is missing, allowed is one of "
        "gaussian, exponential, "
        "pareto_lognormal, empirical, constant",
    ),
    (
        "mean: 128",
        "mean: 128, sd: 3",
        "clients[0].output_distribution.params.sd: unknown key, allowed here: mean, min, max",
    ),
    (
        OUTPUT,
        "{type: empirical, file: x.csv, params: {1: 1}}",
        "clients[0].output_distribution.file: got 'x.csv', but files are not "
        "supported; write the values under params",
    ),
    (
        OUTPUT,
        "{type: pareto_lognormal, params: {alpha: 1, xm: 1, mu: 1, sigma: 1, mix_weight: 1.5}}",
        "clients[0].output_distribution.params.mix_weight: got 1.5, allowed is a "
        "number of at most 1",
    ),
    (
        "{'16': 0.2, '100': 0.8}",
        "{}",
        "clients[1].output_distribution.params: no token count has a probability "
        "above 0; give at least one",
    ),
    (
        "{'16': 0.2, '100': 0.8}",
        "{'16': -0.2}",
        "clients[1].output_distribution.params.16: got -0.2, allowed is a number of at least 0",
    ),
    (
        "{'16': 0.2, '100': 0.8}",
        "{'16': 0.2, 16: 0.3}",
        "clients[1].output_distribution.params: a token count is given twice; keep one of them",
    ),
    (
        "{type: constant, params: {value: 20}}",
        "{type: empirical, params: {0: 1}}",
        "clients[1].input_distribution.params: has token count 0, allowed is 1 token or more",
    ),
    (
        "{value: 20}",
        "{value: 0}",
        "clients[1].input_distribution.params.value: got 0, allowed is 1 token or more",
    ),
    (
        "streaming: true",
        "lifecycle: {windows: [{start_us: 5, end_us: 4}]}",
        "clients[0].lifecycle.windows[0].end_us: got 4, allowed is start_us = 5 or more",
    ),
    (
        "streaming: true",
        "lifecycle: {}",
        "clients[0].lifecycle.windows: missing, but it must be given",
    ),
    (
        "streaming: true",
        "reasoning: {multi_turn: {max_rounds: -1}}",
        "clients[0].reasoning.multi_turn.max_rounds: got -1, allowed is a number of at least 0",
    ),
    (
        "streaming: true",
        "reasoning: {multi_turn: {max_rounds: 2, think_time_us: -1}}",
        "clients[0].reasoning.multi_turn.think_time_us: got -1, allowed is a number of at least 0",
    ),
    (
        "streaming: true",
        "network: {rtt_ms: -1}",
        "clients[0].network.rtt_ms: got -1, allowed is a number of at least 0",
    ),
    (
        "clients:",
        "client:",
        "client: unknown key, allowed here: version, seed, category, aggregate_rate, "
        "num_requests, horizon, clients, "
        "servegen_data, inference_perf, measure; did you mean 'clients'?",
    ),
    (
        "num_requests: 1000",
        "inference_perf: {stages: [], shared_prefix: {}}",
        "inference_perf.stages: the list is empty, allowed is one entry or more",
    ),
]


@pytest.mark.parametrize(("old", "new", "expected"), BAD)
def test_bad_input_gives_one_sentence(old, new, expected):
    text = message(swapped(old, new))
    of_august = "; BLIS of August 2026 knows it: "  # who reads lengths of 0
    assert text.partition(of_august)[0] == f"w.yaml: {expected}"
    assert (of_august in text) == ("allowed is 1 token or more" in text)
    assert "\n" not in text


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        (BASE + "seed: 43\n", r"w\.yaml, line 24: the key 'seed' is given twice; keep one of them"),
        (BASE.replace("mean: 256", "mean: 256, mean: 1"), "the key 'mean' is given twice"),
        ("", r"w\.yaml: the top level is empty, allowed is a mapping"),
        ("- a", r"w\.yaml: the top level is a list, allowed is a mapping"),
        ("a: b: c", r"w\.yaml, line 1: mapping values are not allowed here"),
        ("a: [1", r"w\.yaml, line 1: "),
        ("\x00", r"w\.yaml: not a YAML text"),
        ("a: !!python/name:os.system", "could not determine a constructor"),
        ("version: 2\naggregate_rate: 3", "clients: no client is given, allowed is one or more"),
    ],
)
def test_broken_yaml_gives_one_sentence(text, expected):
    assert re.search(expected, message(text))


def test_a_good_file_is_accepted():
    spec = parse_spec(BASE)
    assert spec.clients[0].arrival.cv == 2.0
    assert spec.clients[1].output_distribution.params == {16: 0.2, 100: 0.8}
    assert spec.measure.warm_up_s == 0.0


def test_numbers_that_yaml_reads_as_text_are_numbers():
    assert parse_spec(swapped("cv: 2.0", "cv: 1e-1")).clients[0].arrival.cv == 0.1
    assert parse_spec(swapped("num_requests: 1000", "num_requests: 1e3")).num_requests == 1000


def test_every_key_of_the_reference_is_known():
    law = "{type: constant, params: {value: 3}}"
    extra = f"""streaming: false
    model: m
    network: {{rtt_ms: 1, bandwidth_mbps: 2}}
    lifecycle: {{windows: [{{start_us: 0, end_us: 9}}]}}
    reasoning:
      reason_ratio_distribution: {law}
      multi_turn: {{max_rounds: 2, think_time_us: 5, context_growth: accumulate}}
    multimodal: {{text_distribution: {law}, image_distribution: {law},
      image_count_distribution: {law},
      audio_distribution: {law}, audio_count_distribution: {law}, video_distribution: {law},
      video_count_distribution: {law}}}"""
    text = (
        swapped("streaming: true", extra)
        + """
horizon: 5
servegen_data: {path: x, span_start: 1, span_end: 2}
inference_perf:
  stages: [{rate: 1, duration: 2}]
  shared_prefix: {num_unique_system_prompts: 1, num_users_per_system_prompt: 1,
    system_prompt_len: 1, question_len: 1, output_len: 1, enable_multi_turn_chat: true}
"""
    )
    spec = parse_spec(text)
    assert spec.inference_perf.shared_prefix.enable_multi_turn_chat
    assert spec.clients[0].reasoning.multi_turn.max_rounds == 2


def test_classes_are_those_of_the_engine():
    assert ClientSpec.model_fields["slo_class"].annotation.__args__ == SLO_CLASSES


def test_override_is_checked():
    spec = parse_spec(BASE)
    assert override(spec, aggregate_rate=5).aggregate_rate == 5.0
    with pytest.raises(ConfigError, match="aggregate_rate: got -5"):
        override(spec, aggregate_rate=-5)


def test_the_first_client_sets_the_prefix():
    spec = load_builtin("nonorthogonal")
    assert prefix_lengths(spec.clients) == {"system-prompt": 256}
    assert ineffective_settings(spec) == [
        "clients[1], [2]: prefix_length has no effect: the group's first client sets 256 tokens"
    ]


def test_a_prefix_without_length_has_the_default():
    spec = parse_spec(swapped("prefix_length: 512", "prefix_length: 0"))
    assert prefix_lengths(spec.clients) == {"system-prompt": 50}
    assert ineffective_settings(spec) == []


def test_settings_without_effect_are_named():
    text = swapped("mean: 128", "mean: 128, min: 16").replace(
        "process: poisson", "process: poisson, cv: 2"
    )
    assert ineffective_settings(
        parse_spec(text.replace("    prefix_group: system-prompt\n", ""))
    ) == [
        "clients[0].prefix_length has no effect without a prefix_group",
        "clients[0].output_distribution: min and max have no effect on an exponential law",
        "clients[1].arrival.cv has no effect on poisson arrivals",
    ]


def test_settings_that_contradict_each_other_are_named():
    (remark,) = ineffective_settings(
        parse_spec(swapped("rate_fraction: 0.4", "rate_fraction: 0.22"))
    )
    assert remark.startswith("rate_fraction: the clients' add up to 0.82, not to 1")
    (remark,) = ineffective_settings(parse_spec(swapped("mean: 256,", "mean: 9000,")))
    assert "input_distribution: mean 9000 lies outside min" in remark
    assert "2048 is drawn most of the time" in remark


def test_settings_without_effect_on_multimodal_prompts_are_named():
    law = "{type: constant, params: {value: 3}}"
    text = swapped(
        "streaming: true",
        f"multimodal: {{text_distribution: {law}, audio_distribution: {law}, "
        f"video_count_distribution: {law}}}",
    )
    assert ineffective_settings(parse_spec(text)) == [
        "clients[0].input_distribution has no effect on multimodal prompts",
        "clients[0].multimodal: images, sound and video count as prompt tokens; encoding them takes no time here",
        "clients[0].multimodal.audio_distribution has no effect without audio_count_distribution",
        "clients[0].multimodal.video_count_distribution has no effect without video_distribution",
    ]


def test_a_gamma_law_that_is_not_drawn_is_named():
    (remark,) = ineffective_settings(parse_spec(swapped("cv: 2.0", "cv: 10.5")))
    assert remark.startswith("clients[0].arrival.cv") and "poisson" in remark
    assert ineffective_settings(parse_spec(swapped("cv: 2.0", "cv: 10"))) == []


def test_settings_without_effect_on_sessions_are_named():
    law = "{type: constant, params: {value: 3}}"
    reasoning = (
        f"reasoning: {{multi_turn: {{max_rounds: 2}}, reason_ratio_distribution: {law}}}\n"
        "    lifecycle: {windows: [{start_us: 0, end_us: 9}]}"
    )
    spec = parse_spec(swapped("streaming: true", reasoning))
    assert ineffective_settings(spec) == [
        "clients[0].prefix_group has no effect on multi-turn sessions",
        "clients[0].lifecycle has no effect on multi-turn sessions",
        "clients[0].reasoning.reason_ratio_distribution has no effect: "
        "reasoning tokens are output like any other",
    ]
    assert ineffective_settings(load_builtin("multiturn")) == []


def test_missing_files_are_named(tmp_path):
    with pytest.raises(
        ConfigError, match=r"none\.yaml: cannot be read \(No such file or directory\)"
    ):
        load_spec(tmp_path / "none.yaml")
    with pytest.raises(ConfigError, match=r"workload 'mixd' is unknown; .* did you mean 'mixed'"):
        load_builtin("mixd")


def test_builtin_workloads_are_valid():
    assert {"mixed", "stationary", "nonorthogonal", "asymmetric", "multiprefix"} <= set(
        list_builtin()
    )
    for name in list_builtin():
        assert load_builtin(name).clients
    assert load_builtin("stationary").measure.warm_up_s > 0


@pytest.mark.golden
def test_recorded_specifications_are_accepted(golden_dir):
    files = sorted(path for name in REVISIONS for path in golden_dir.glob(f"{name}/specs/*.yaml"))
    assert files
    for file in files:
        load_spec(file)


@pytest.mark.golden
def test_builtin_workloads_are_the_recorded_ones(golden_dir):
    compared = 0
    for name in list_builtin():
        file = golden_dir / "scheduling" / "specs" / f"{name}.yaml"
        if file.exists():
            assert load_builtin(name) == load_spec(file)
            compared += 1
    assert compared


@pytest.mark.parametrize("revision", ["blis-2026-02", "blis-2026-08"])
def test_a_window_begins_at_0_and_a_network_takes_no_time_if_nothing_is_said(revision):
    more = "lifecycle: {windows: [{end_us: 4}]}\n    network: {bandwidth_mbps: 3.0}\n    streaming: true"
    client = parse_spec(swapped("streaming: true", more), "w.yaml", revision).clients[0]
    assert client.lifecycle.windows[0].start_us == 0
    assert client.network.rtt_ms == 0.0
