"""Numbers and names that BLIS of August 2026 reads and one would not write; the lengths are those that it drew."""

import warnings

import pytest

from blis_jax.commands.run.flags import RunOptions
from blis_jax.commands.run.workload import source_of
from blis_jax.errors import ConfigError, ConfigWarning
from blis_jax.workload.reference.generate import drawn
from blis_jax.workload.source import FIRST_REVISION, REVISED
from blis_jax.workload.spec import override, parse_spec

FORTY = "{type: constant, params: {value: 40}}"
SPEC = """
version: "2"
seed: 3
aggregate_rate: 20
num_requests: 12
clients:
- id: a
  rate_fraction: 1
  arrival: {process: poisson}
  input_distribution: INPUT
  output_distribution: OUTPUT
"""
PARETO = "{type: pareto_lognormal, params: {alpha: 2, xm: 10, mu: 2, sigma: 1, mix_weight: WEIGHT}}"
ODD = {
    "constants below 1": (
        "{type: constant, params: {value: 0}}",
        "{type: constant, params: {value: -3}}",
        [1] * 12,
        [1] * 12,
    ),
    "fractions": (
        "{type: constant, params: {value: -2.7}}",
        "{type: constant, params: {value: 3.9}}",
        [1] * 12,
        [3] * 12,
    ),
    "means up to 0": (
        "{type: exponential, params: {mean: 0}}",
        "{type: exponential, params: {mean: -5}}",
        [1] * 12,
        [1] * 12,
    ),
    "count 0": (
        "{type: empirical, params: {0: 0.5, 30: 0.5}}",
        FORTY,
        [0, 30, 30, 0, 30, 30, 0, 30, 0, 0, 0, 0],
        [40] * 12,
    ),
    "weight above 1": (
        PARETO.replace("WEIGHT", "1.5"),
        FORTY,
        [11, 10, 13, 57, 13, 12, 33, 14, 18, 14, 22, 18],
        [40] * 12,
    ),
    "negative bound": (
        "{type: gaussian, params: {mean: 5, std_dev: 3, min: -4, max: 8}}",
        FORTY,
        [6, 8, 3, 6, 3, 6, 4, 7, 2, 6, 5, 5],
        [40] * 12,
    ),
    "unknown numbers": (
        "{type: constant, params: {value: 40, foo: 3}}",
        "{type: gaussian, params: {mean: 20, std_dev: 0, min: 2, max: 60, bar: 2}}",
        [40] * 12,
        [20] * 12,
    ),
}


def text_of(inputs=FORTY, outputs=FORTY, **changes):
    text = SPEC.replace("INPUT", inputs).replace("OUTPUT", outputs)
    for old, new in changes.items():
        text = text.replace(f"{old}: ", f"{new}: ")
    return text


@pytest.mark.parametrize("case", ODD)
def test_lengths_are_those_of_the_reference(case):
    inputs, outputs, prompts, answers = ODD[case]
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", ConfigWarning)
        requests = drawn(parse_spec(text_of(inputs, outputs), "w.yaml", REVISED)).requests
    assert [request.input_len for request in requests] == prompts
    assert [len(request.output) for request in requests] == answers


def test_what_has_no_effect_is_said_once():
    with pytest.warns(ConfigWarning, match="params.foo has no effect on constant lengths") as said:
        spec = parse_spec(text_of(ODD["unknown numbers"][0]), "w.yaml", REVISED)
        override(spec, num_requests=3)
    assert len(said) == 1


@pytest.mark.parametrize(
    ("inputs", "outputs", "words"),
    [
        ("{type: empirical, params: {0: 1}}", "{type: empirical, params: {0: 1}}", "any token"),
        ("{type: gaussian, params: {mean: 1, std_dev: 1, min: -2, max: -2}}", FORTY, "max: got -2"),
        ("{type: constant, params: {value: 40, foo: x}}", FORTY, "params.foo: unknown key"),
        ("{type: pareto_lognormal, params: {alpha: 2}}", FORTY, "params.xm: missing"),
    ],
)
def test_what_stops_the_reference_is_refused(inputs, outputs, words):
    with pytest.raises(ConfigError, match=words):
        drawn(parse_spec(text_of(inputs, outputs), "w.yaml", REVISED))


@pytest.mark.parametrize("revision", [FIRST_REVISION, REVISED])
def test_names_are_read_as_they_are_written(revision):
    more = "  tenant_id: 0x10\n  model: 2026-08-01\n  prefix_group: 7.50\n"
    text = text_of().replace("- id: a\n", "- id: 007\n" + more)
    client = parse_spec(text, "w.yaml", revision).clients[0]
    assert (client.id, client.tenant_id, client.model) == ("007", "0x10", "2026-08-01")
    assert client.prefix_group == "7.50"


COHORT = text_of().replace("clients:\n- id: a\n", "cohorts:\n- id: a\n  population: 3\n")
HOLES = {
    "spike": "  spike: {start_time_us: 9223372036854775000, duration_us: 9000}\n",
    "drain": "  drain: {start_time_us: 9223372036854775000, ramp_duration_us: 9000}\n",
    "rate_fraction": "",
}


@pytest.mark.parametrize("name", HOLES)
def test_a_cohort_whose_members_cannot_be_is_refused_in_a_sentence(name):
    text = COHORT + HOLES[name]
    if name == "rate_fraction":
        text = text.replace("rate_fraction: 1\n", "rate_fraction: 5.0e-324\n")
    with pytest.raises(ConfigError, match=rf"cohorts\[0\].*{name}"):
        drawn(parse_spec(text, "w.yaml", REVISED))


def test_a_cohort_may_have_lengths_of_0():
    text = COHORT.replace(FORTY, "{type: empirical, params: {0: 1}}", 1)
    requests = drawn(parse_spec(text, "w.yaml", REVISED)).requests
    assert {request.input_len for request in requests} == {0} and len(requests) == 12


def test_inference_perf_with_too_many_requests_is_refused_in_a_sentence():
    text = """
version: "2"
inference_perf:
  stages: [{rate: 1.0e+308, duration: 1000}]
  shared_prefix: {num_unique_system_prompts: 1, num_users_per_system_prompt: 1,
    system_prompt_len: 1, question_len: 1, output_len: 1}
"""
    with pytest.raises(ConfigError, match=r"inference_perf.stages\[0\]"):
        drawn(parse_spec(text, "w.yaml", REVISED))


def given(**options):
    return {"variant": REVISED, "rate": 5.0, "num_requests": 9, **options}


def test_a_deviation_of_0_makes_lengths_constant():
    source = source_of(
        RunOptions.of(given(prompt_tokens=300, prompt_tokens_stdev=0, output_tokens_stdev=0))
    )
    requests = drawn(source.spec, 42).requests
    assert {(one.input_len, len(one.output)) for one in requests} == {(300, 512)}


@pytest.mark.parametrize("option", ["prompt_tokens_min", "output_tokens_max"])
def test_lengths_of_options_have_a_token(option):
    with pytest.raises(ConfigError, match="must be at least 1, got 0"):
        source_of(RunOptions.of(given(**{option: 0})))


def test_the_first_revision_has_its_own_bounds():
    options = given(prompt_tokens_stdev=0) | {"variant": "scheduling"}
    with pytest.raises(ConfigError, match="mean and stdev must lie between"):
        source_of(RunOptions.of(options))
    assert (
        source_of(RunOptions.of(options | {"prompt_tokens_min": 0})).distribution.prompt.stdev == 0
    )


def test_a_number_that_only_fits_an_option_is_refused_in_a_sentence():
    with pytest.raises(ConfigError, match="think_time_us"):
        source_of(RunOptions.of({"variant": REVISED, "concurrency": 2, "think_time_ms": 2**63 - 1}))


@pytest.mark.parametrize("seconds", [float("inf"), float("nan"), 1e300])
def test_a_timeout_that_no_time_can_be_added_to_is_refused(seconds):
    with pytest.raises(ConfigError, match="--timeout must be below"):
        source_of(RunOptions.of(given(timeout=seconds)))
    text = text_of().replace("- id: a\n", "- id: a\n  timeout: 9223372036854775807\n")
    with pytest.raises(ConfigError, match="timeout: got 9223372036854775807"):
        parse_spec(text, "w.yaml", REVISED)


def test_another_growth_of_prompts_is_none_and_said():
    turns = "  reasoning: {multi_turn: {max_rounds: 2, context_growth: Accumulate}}\n"
    with pytest.warns(ConfigWarning, match="did you mean 'accumulate'"):
        spec = parse_spec(text_of() + turns, "w.yaml", REVISED)
    assert spec.clients[0].multi_turn.context_growth == ""
