"""Workload files of August 2026: what is accepted, and the one sentence for what is not."""

import pytest

from blis_jax.errors import ConfigError, UnsupportedError
from blis_jax.workload.drawing.plan import compile_plan
from blis_jax.workload.expansion import expanded
from blis_jax.workload.reference import draw
from blis_jax.workload.remarks import ineffective_settings
from blis_jax.workload.revised_spec import CohortSpec, RevisedClient, RevisedWorkload
from blis_jax.workload.source import FIRST_REVISION, REVISED
from blis_jax.workload.spec import (
    WorkloadSpec,
    list_builtin,
    load_builtin,
    load_spec,
    override,
    parse_spec,
)
from tests.support.recorded.revised_data import FOLDER

LAWS = """
    input_distribution: {type: gaussian, params: {mean: 20, std_dev: 4, min: 2, max: 40}}
    output_distribution: {type: exponential, params: {mean: 10, min: 2, max: 30}}"""
BASE = f"""
version: "2"
aggregate_rate: 50
num_requests: 20
clients:
  - id: a
    slo_class: critical
    rate_fraction: 0.5
    arrival: {{process: gamma, cv: 2}}{LAWS}
    timeout: 900
  - id: b
    slo_class: standard
    rate_fraction: 0.5
    arrival: {{process: weibull, cv: 2}}{LAWS}
    lifecycle: {{windows: [{{start_us: 0, end_us: 9000}}]}}
    reasoning: {{multi_turn: {{max_rounds: 3, think_time_us: 10}}}}
"""
COHORT = f"""
cohorts:
  - id: k
    population: 3
    slo_class: batch
    rate_fraction: 1
    arrival: {{process: poisson}}{LAWS}
    prefix_group: g
"""
SPIKE = COHORT.replace("slo_class: batch", "slo_class: ''").replace(
    "prefix_group: g", "spike: {start_time_us: 0, duration_us: 9, trace_rate: 2}"
)
POOL = f"""
version: "2"
num_requests: 9
clients:
  - id: u
    concurrency: 3
    think_time_us: 50{LAWS}
"""
CHAT = """
version: "1"
num_requests: 9
inference_perf:
  stages: [{rate: 4, duration: 5}]
  shared_prefix: {num_unique_system_prompts: 2, num_users_per_system_prompt: 3,
    system_prompt_len: 16, question_len: 8, output_len: 4, enable_multi_turn_chat: true}
"""


def parsed(text):
    return parse_spec(text, "w.yaml", REVISED)


def swapped(text, old, new):
    assert text.count(old) == 1, old
    return text.replace(old, new)


BAD = [
    (
        BASE,
        "rate_fraction: 0.5\n    arrival: {process: gamma",
        "rate_fraction: 0.5\n    concurrency: 4\n    arrival: {process: gamma",
        "clients[0].concurrency: got 4 beside rate_fraction 0.5, allowed is one of them; leave "
        "rate_fraction out",
    ),
    (
        BASE,
        "    rate_fraction: 0.5\n    arrival: {process: gamma",
        "    arrival: {process: gamma",
        "clients[0].rate_fraction: missing, but it must be given, or concurrency in its place",
    ),
    (
        BASE,
        "    arrival: {process: gamma, cv: 2}\n",
        "\n",
        "clients[0].arrival: missing, but it must be given, or concurrency in its place",
    ),
    (
        BASE,
        "timeout: 900",
        "timeout: -1",
        "clients[0].timeout: got -1, allowed is a number of at least 0",
    ),
    (
        BASE,
        "weibull, cv: 2",
        "weibull, cv: 20",
        "clients[1].arrival.cv: got 20, allowed for weibull is 0.01 to 10.4",
    ),
    (
        BASE,
        "weibull, cv: 2",
        "weibull, shape: 0, scale: 3",
        "clients[1].arrival.shape: got 0, allowed is a number greater than 0",
    ),
    (
        BASE,
        "end_us: 9000",
        "end_us: 0",
        "clients[1].lifecycle.windows[0].end_us: got 0, allowed is more than start_us = 0",
    ),
    (
        BASE,
        "[{start_us: 0, end_us: 9000}]",
        "[]",
        "clients[1].lifecycle.windows: the list is empty, allowed is one entry or more",
    ),
    (
        BASE,
        "end_us: 9000",
        "end_us: 9000, trace_rate: -1",
        "clients[1].lifecycle.windows[0].trace_rate: got -1, allowed is a number of at least 0",
    ),
    (
        BASE,
        "max_rounds: 3",
        "max_rounds: 0",
        "clients[1].reasoning.multi_turn.max_rounds: got 0, allowed is a number of at least 1",
    ),
    (
        BASE,
        "slo_class: standard",
        "slo_class: ''",
        "clients[1].slo_class: missing, but clients[0] has one; give all clients and cohorts a class, "
        "or none",
    ),
    (
        BASE,
        "aggregate_rate: 50",
        "aggregate_rate: 0",
        "clients[0].lifecycle: missing, but without an aggregate_rate every client needs rates of its "
        "own; give windows with trace_rate, or aggregate_rate",
    ),
    (
        BASE,
        "aggregate_rate: 50",
        "aggregate_rate: 50\nservegen_data: {path: x}",
        "servegen_data: given beside clients, allowed is one of clients, servegen_data, "
        "inference_perf; leave one out",
    ),
    (
        BASE + COHORT,
        "population: 3",
        "population: 100001",
        "cohorts[0].population: got 100001, allowed is a number of at most 100000",
    ),
    (
        BASE + COHORT,
        "prefix_group: g",
        "prefix_sharing: per_member",
        "cohorts[0].prefix_sharing: got 'per_member', which needs a prefix_group; give one",
    ),
    (
        BASE + COHORT,
        "prefix_group: g",
        "diurnal: {peak_hour: 24, peak_to_trough_ratio: 2}",
        "cohorts[0].diurnal.peak_hour: got 24, allowed is a number of at most 23",
    ),
    (
        BASE + COHORT,
        "prefix_group: g",
        "spike: {start_time_us: 0, duration_us: 0}",
        "cohorts[0].spike.duration_us: got 0, allowed is a number of at least 1",
    ),
    (
        POOL + SPIKE,
        "spike: {start_time_us: 0, duration_us: 9, trace_rate: 2}",
        "drain: {start_time_us: 0, ramp_duration_us: 9}",
        "cohorts[0].drain: not allowed where without an aggregate_rate every client needs rates of "
        "its own; give a spike with trace_rate, or aggregate_rate",
    ),
    (
        POOL,
        "think_time_us: 50",
        "think_time_us: 50\n    reasoning: {multi_turn: {max_rounds: 2}}",
        "clients[0].reasoning.multi_turn: not allowed beside clients[0].concurrency; leave one of "
        "them out",
    ),
    (
        POOL,
        "concurrency: 3",
        "concurrency: -3",
        "clients[0].concurrency: got -3, allowed is a number of at least 0",
    ),
    (
        POOL,
        "max: 40",
        "max: 1",
        "clients[0].input_distribution.params.min: got 2, allowed is a number of at most max = 1",
    ),
    (
        POOL,
        "mean: 10, min: 2, max: 30",
        "mean: 10, min: 31, max: 30",
        "clients[0].output_distribution.params.min: got 31, allowed is a number of at most max = 30",
    ),
    (
        POOL,
        "type: exponential",
        "type: lognorma",
        "clients[0].output_distribution: type 'lognorma' is unknown, allowed is one of gaussian, "
        "exponential, pareto_lognormal, empirical, constant, lognormal; did you mean 'lognormal'?",
    ),
    (
        CHAT,
        "rate: 4",
        "rate: 1",
        "inference_perf.stages[0]: rate 1 for 5 s makes 5 requests, allowed is one or more for each "
        "of the 6 users; raise rate or duration",
    ),
    (
        CHAT,
        "duration: 5",
        "duration: 0",
        "inference_perf.stages[0].duration: got 0, allowed is a number of at least 1",
    ),
    (
        CHAT,
        "num_users_per_system_prompt: 3",
        "num_users_per_system_prompt: 600000",
        "inference_perf.shared_prefix: 1200000 clients, users of all stages, allowed are 1000000; "
        "lower num_unique_system_prompts or num_users_per_system_prompt",
    ),
    (
        CHAT,
        "question_len: 8",
        "question_len: -8",
        "inference_perf.shared_prefix.question_len: got -8, allowed is a number of at least 0",
    ),
    (
        CHAT.replace("true", "false"),
        "rate: 4, duration: 5",
        "rate: 1e9, duration: 1",
        "inference_perf.stages[0]: rate 1e+09 makes 166666667 requests of one user, allowed are "
        "1000000; lower rate or duration, or give more users",
    ),
]


@pytest.mark.parametrize(("text", "old", "new", "expected"), BAD)
def test_bad_input_gives_one_sentence(text, old, new, expected):
    parsed(text)
    with pytest.raises(ConfigError) as caught:
        parsed(swapped(text, old, new))
    assert str(caught.value) == f"w.yaml: {expected}"


def test_a_file_without_any_client_is_refused():
    with pytest.raises(
        ConfigError, match="clients: no client is given, allowed is one or more, or"
    ):
        parsed("version: '2'\nnum_requests: 3\n")


@pytest.mark.parametrize(
    ("text", "old", "new", "expected"),
    [
        (
            BASE,
            "timeout: 900",
            "adapter: x",
            r"clients\[0\]\.adapter: LoRA adapters belong to a cluster",
        ),
        (BASE + COHORT, "prefix_group: g", "adapter: x", r"cohorts\[0\]\.adapter: LoRA"),
        (
            POOL,
            "clients:",
            f"clients:\n  - {{id: u, concurrency: 2, {', '.join(LAWS.split(chr(10) + '    ')[1:])}}}",
            r"clients\[1\]\.id: 'u' is that of clients\[0\] too",
        ),
    ],
)
def test_what_is_right_for_blis_and_missing_here_is_told_apart(text, old, new, expected):
    with pytest.raises(UnsupportedError, match=expected):
        draw(parsed(swapped(text, old, new)))


def test_the_first_revision_refuses_the_new_keys():
    for text, key in ((BASE, "timeout"), (POOL, "concurrency"), (BASE + COHORT, "cohorts")):
        with pytest.raises(ConfigError, match=f"{key}: unknown key, allowed here"):
            parse_spec(text, revision=FIRST_REVISION)


def test_an_unknown_revision_is_named():
    with pytest.raises(ConfigError, match=r"'blis-2026-8' is unknown.*did you mean 'blis-2026-08'"):
        parse_spec(BASE, revision="blis-2026-8")


def test_the_revision_stays_with_the_workload():
    spec = override(parsed(BASE), aggregate_rate=70)
    assert isinstance(spec, RevisedWorkload) and spec.aggregate_rate == 70
    assert spec.revision == REVISED and spec.content()["revision"] == REVISED
    first = load_builtin("mixed")
    assert first.revision == FIRST_REVISION and "revision" not in first.content()
    with pytest.raises(ConfigError, match="aggregate_rate: got -1"):
        override(spec, aggregate_rate=-1)


def test_recorded_and_builtin_files_are_accepted():
    files = sorted((FOLDER / "specs").glob("*.yaml"))
    assert len(files) == 26
    for file in files:
        assert isinstance(load_spec(file, REVISED), RevisedWorkload)
    for name in list_builtin():
        assert load_builtin(name, REVISED).clients


def test_every_key_of_a_cohort_is_one_of_its_clients_or_makes_windows():
    own = {"id", "population", "prefix_sharing", "diurnal", "spike", "drain"}
    assert set(CohortSpec.model_fields) - own <= set(RevisedClient.model_fields)
    missing = set(RevisedClient.model_fields) - set(CohortSpec.model_fields)
    assert missing == {"lifecycle", "concurrency", "think_time_us"}


def test_sessions_are_closed_loops_unless_the_file_says_otherwise():
    plain, chat = parsed(BASE).clients
    assert not plain.is_closed_loop and chat.is_closed_loop
    more = "max_rounds: 3, think_time_us: 10}}\n    closed_loop: false"
    _, open_chat = parsed(swapped(BASE, "max_rounds: 3, think_time_us: 10}}", more)).clients
    assert not open_chat.is_closed_loop


def test_classes_are_those_of_clients_cohorts_and_users():
    assert parsed(BASE + COHORT).slo_classes == ("critical", "standard", "batch")
    assert parsed(CHAT).slo_classes == ("standard",)
    assert parsed(POOL).slo_classes == ("default",)


def test_sweeps_say_that_they_draw_other_requests():
    with pytest.raises(UnsupportedError, match="requests of blis-2026-08 are drawn by BLIS's own"):
        compile_plan(parsed(BASE))


def test_settings_without_effect_are_named():
    assert ineffective_settings(parsed(BASE)) == []
    grouped = "timeout: 900\n    prefix_group: g"
    text = swapped(
        swapped(BASE, "timeout: 900", grouped), "end_us: 9000", "end_us: 9, trace_rate: 3"
    )
    assert ineffective_settings(parsed(text)) == [
        "clients[0]: sends nothing, since others have windows with rates or laws of their own; give "
        "it windows too"
    ]
    assert ineffective_settings(parsed(CHAT + "aggregate_rate: 3\n")) == [
        "aggregate_rate has no effect beside inference_perf: the stages have the rates"
    ]
    first = parse_spec(BASE.replace("    timeout: 900\n", ""))
    assert isinstance(first, WorkloadSpec)
    assert "clients[1].lifecycle has no effect on multi-turn sessions" in ineffective_settings(
        first
    )


def test_a_file_of_august_is_called_so_where_februarys_is_wanted() -> None:
    text = """
version: "2"
seed: 1
category: language
num_requests: 6
clients:
  - id: users
    concurrency: 2
    input_distribution: {type: constant, params: {value: 50}}
    output_distribution: {type: constant, params: {value: 4}}
"""
    with pytest.raises(
        ConfigError, match=r"concurrency: unknown key.*BLIS of August 2026 knows it"
    ):
        parse_spec(text)
    with pytest.raises(ConfigError) as caught:
        parse_spec(text.replace("concurrency", "concurency"))
    assert "August" not in str(caught.value)
    read = parse_spec(text, revision=None)  # by what the file has
    assert isinstance(read, RevisedWorkload) and read.waits and not read.has_rate
    with pytest.raises(ConfigError, match="id_x: unknown key") as caught:
        parse_spec(text.replace("concurrency: 2", "concurrency: 2\n    id_x: 3"), revision=None)
    assert "think_time_us" in str(caught.value)  # the keys of August
    with pytest.raises(ConfigError, match="did you mean 'concurrency'"):
        parse_spec(text.replace("concurrency", "concurency"), revision=None)
    plain = """
version: "2"
aggregate_rate: 5
num_requests: 6
clients:
  - id: open
    rate_fraction: 1
    arrival: {process: poisson}
    input_distribution: {type: constant, params: {value: 50}}
    output_distribution: {type: constant, params: {value: 4}}
"""
    assert not isinstance(parse_spec(plain, revision=None), RevisedWorkload)


# Adapters by popularity

POPULAR = f"""
version: "2"
aggregate_rate: 50
num_requests: 20
adapters: {{names: [x, y, z], zipf: 1.0}}
clients:
  - id: a
    rate_fraction: 0.5
    arrival: {{process: poisson}}{LAWS}
  - id: b
    rate_fraction: 0.5
    adapter: own
    arrival: {{process: poisson}}{LAWS}
    lifecycle: {{windows: [{{start_us: 0, end_us: 9000, trace_rate: 3}}]}}
"""


def test_clients_without_an_adapter_are_spread_over_those_of_the_workload() -> None:
    first, second, third, own = expanded(parsed(POPULAR)).clients
    assert [one.adapter for one in (first, second, third, own)] == ["x", "y", "z", "own"]
    assert [one.id for one in (first, second, third, own)] == ["a-x", "a-y", "a-z", "b"]
    shares = [one.rate_fraction for one in (first, second, third)]
    assert shares == pytest.approx([0.5 * 6 / 11, 0.5 * 3 / 11, 0.5 * 2 / 11])
    assert first.arrival == third.arrival and first.input_distribution == own.input_distribution


def test_weights_take_the_place_of_the_law_and_rates_of_windows_are_shared_out() -> None:
    text = swapped(POPULAR, "zipf: 1.0", "weights: [1, 1, 2]").replace("    adapter: own\n", "")
    clients = expanded(parsed(text)).clients
    assert [one.rate_fraction for one in clients] == [0.125, 0.125, 0.25] * 2
    assert [one.lifecycle.windows[0].trace_rate for one in clients[3:]] == [0.75, 0.75, 1.5]
    assert (
        clients[:3]
        == expanded(
            parsed(
                swapped(
                    text,
                    "    lifecycle: {windows: [{start_us: 0, end_us: 9000, trace_rate: 3}]}\n",
                    "",
                )
            )
        ).clients[:3]
    )


@pytest.mark.parametrize(
    ("old", "new", "said"),
    [
        ("names: [x, y, z]", "names: []", "adapters.names"),
        ("names: [x, y, z]", "names: [x, x]", "given twice"),
        ("zipf: 1.0", "zipf: -1", "adapters.zipf"),
        ("zipf: 1.0", "zipf: 1.0, weights: [1, 2, 3]", "beside zipf"),
        ("zipf: 1.0", "weights: [1, 2]", "got 2, allowed is one for each of the 3"),
        ("rate_fraction: 0.5\n    adapter", "concurrency: 2\n    adapter", "users cannot be split"),
    ],
)
def test_a_popularity_that_makes_no_sense_is_refused(old: str, new: str, said: str) -> None:
    with pytest.raises(ConfigError, match=said):
        parsed(swapped(POPULAR, old, new))
