"""`convert` and `compose`: the text is BLIS's of August 2026, byte for byte."""

import pytest

from blis_jax.commands.workload_files import compose, convert
from blis_jax.workload.source import REVISED
from blis_jax.workload.spec import load_spec, parse_spec
from blis_jax.workload.written import go_number
from tests.support.recorded.revised_data import FOLDER

ODD = """\
version: "2"
category: language
aggregate_rate: 1500000.5
clients:
- id: "yes"
  tenant_id: "- x: y"
  slo_class: batch
  rate_fraction: 1e-7
  prefix_group: "12"
  model: "a #b"
  timeout: 0
  closed_loop: false
  arrival: {process: gamma, cv: 0.5}
  input_distribution: {type: empirical, params: {100: 0.25, 9: 0.25, 30: 5e-9}}
  output_distribution: {type: constant, params: {value: 123456789}}
  network: {rtt_ms: 3}
- id: "é ü: "
  slo_class: batch
  concurrency: 3
  think_time_us: 10
  input_distribution: {type: constant, params: {value: 1}}
  output_distribution: {type: constant, params: {value: 2}}
  multimodal:
    text_distribution: {type: constant, params: {value: 1}}
"""
ODD_WRITTEN = """\
version: "2"
seed: 0
category: language
clients:
    - id: "yes"
      tenant_id: '- x: y'
      slo_class: batch
      model: 'a #b'
      rate_fraction: 1e-07
      arrival:
        process: gamma
        cv: 0.5
      input_distribution:
        type: empirical
        params:
            "9": 0.25
            "30": 5e-09
            "100": 0.25
      output_distribution:
        type: constant
        params:
            value: 1.23456789e+08
      prefix_group: "12"
      streaming: false
      network:
        rtt_ms: 3
      timeout: 0
      closed_loop: false
    - id: 'é ü: '
      tenant_id: ""
      slo_class: batch
      rate_fraction: 0
      concurrency: 3
      think_time_us: 10
      arrival:
        process: ""
      input_distribution:
        type: constant
        params:
            value: 1
      output_distribution:
        type: constant
        params:
            value: 2
      streaming: false
      multimodal:
        text_distribution:
            type: constant
            params:
                value: 1
        image_distribution:
            type: ""
        image_count_distribution:
            type: ""
        audio_distribution:
            type: ""
        audio_count_distribution:
            type: ""
        video_distribution:
            type: ""
        video_count_distribution:
            type: ""
aggregate_rate: 1.5000005e+06
"""
CHATBOT = """\
version: "2"
seed: 0
category: language
clients:
    - id: preset-chatbot
      tenant_id: ""
      slo_class: ""
      rate_fraction: 1
      arrival:
        process: constant
      input_distribution:
        type: gaussian
        params:
            max: 800
            mean: 256
            min: 2
            std_dev: 100
      output_distribution:
        type: gaussian
        params:
            max: 1024
            mean: 256
            min: 1
            std_dev: 100
      streaming: false
aggregate_rate: 2.5
num_requests: 100
"""
DEFAULTS = """
workloads:
  mine: {prefix_tokens: 9, prompt_tokens: 20, prompt_tokens_stdev: 4, prompt_tokens_min: 2, prompt_tokens_max: 80,
    output_tokens: 5, output_tokens_stdev: 5, output_tokens_min: 5, output_tokens_max: 5}
"""
PERF = """
version: "1"
seed: 7
inference_perf:
  stages: [{rate: 4, duration: 5}, {rate: 8, duration: 2}]
  shared_prefix: {num_unique_system_prompts: 1, num_users_per_system_prompt: 2,
    system_prompt_len: 16, question_len: 0, output_len: 4}
"""


@pytest.fixture(autouse=True)
def in_empty_folder(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)


@pytest.mark.parametrize(
    ("value", "text"),
    [(0.0, "0"), (2.5, "2.5"), (100000.0, "100000"), (1e6, "1e+06"), (123456789.0, "1.23456789e+08"),
     (5e-9, "5e-09"), (0.0001, "0.0001"), (0.00001, "1e-05"), (-4.0, "-4"), (1e100, "1e+100"),
     (0.1 + 0.2, "0.30000000000000004")],
)  # fmt: skip
def test_numbers_are_written_as_in_go(value, text):
    assert go_number(value) == text


@pytest.mark.parametrize(
    ("given", "text"),
    [("2030-01-01", '"2030-01-01"'), ("2030-13-45", "2030-13-45"), ("2030-1-1", '"2030-1-1"'), ("1e3", '"1e3"'),
     ("0o14", '"0o14"'), ("09", '"09"'), ("1.e3", '"1.e3"'), ("=", "="), ("'<<'", "<<"), ("~", '""'), ("_1", "_1"),
     ("12:30:00", '"12:30:00"'), ("1:2", '"1:2"'), ("1_000", '"1_000"'),
     ("2001-12-14t21:59:43.10-05:00", '"2001-12-14t21:59:43.10-05:00"')],
)  # fmt: skip
def test_names_are_quoted_as_in_the_reference(given, text, tmp_path, capsys):
    (tmp_path / "odd.yaml").write_text(ODD.replace('id: "yes"', f"id: {given}"))
    assert compose(["--from", "odd.yaml"]) == 0
    assert f"    - id: {text}\n" in capsys.readouterr().out


def test_a_preset_is_the_text_of_the_reference(capsys):
    assert convert(["preset", "--name", "chatbot", "--rate", "2.5"]) == 0
    assert capsys.readouterr().out == CHATBOT


def test_a_preset_of_a_defaults_file(tmp_path, capsys):
    (tmp_path / "mine.yaml").write_text(DEFAULTS)
    words = ["preset", "--name", "mine", "--num-requests", "7", "--defaults-filepath", "mine.yaml"]
    assert convert(words) == 0
    spec = parse_spec(capsys.readouterr().out, "w", REVISED)
    client = spec.clients[0]
    assert (client.id, client.prefix_group, client.prefix_length) == ("preset-mine", "shared", 9)
    assert client.output_distribution.params.max == 5 and spec.num_requests == 7


def test_the_clients_of_inference_perf(tmp_path, capsys):
    (tmp_path / "p.yaml").write_text(PERF)
    assert convert(["inference-perf", "--spec", "p.yaml"]) == 0
    text = capsys.readouterr().out
    spec = parse_spec(text, "w", REVISED)
    assert [one.id for one in spec.clients] == [
        f"stage-{s}-prompt-0-user-{u}" for s in (0, 1) for u in (0, 1)
    ]
    assert (spec.seed, spec.aggregate_rate, spec.category) == (7, 12, "language")
    assert "            value: 0\n" in text  # the length as it is given


def test_composed_clients_are_the_text_of_the_reference(tmp_path, capsys):
    (tmp_path / "odd.yaml").write_text(ODD)
    assert compose(["--from", "odd.yaml"]) == 0
    text = capsys.readouterr().out
    assert text == ODD_WRITTEN
    (tmp_path / "again.yaml").write_text(text)
    assert compose(["--from", "again.yaml"]) == 0
    assert capsys.readouterr().out == text


def test_rates_of_clients_stay_where_workloads_are_put_together(tmp_path, capsys):
    (tmp_path / "c.yaml").write_text(CHATBOT)
    (tmp_path / "d.yaml").write_text(CHATBOT.replace("rate: 2.5", "rate: 7.5"))
    assert compose(["--from", "c.yaml", "--from", "d.yaml"]) == 0
    spec = parse_spec(capsys.readouterr().out, "w", REVISED)
    assert spec.aggregate_rate == 10
    assert [one.rate_fraction * 10 for one in spec.clients] == [2.5, 7.5]


@pytest.mark.golden
def test_recorded_files_are_read_again_after_they_are_written(tmp_path, capsys):
    for path in sorted((FOLDER / "specs").glob("*.yaml")):
        if path.name.startswith("policy_") or not load_spec(path, REVISED).clients:
            continue
        assert compose(["--from", str(path)]) == 0
        written = parse_spec(capsys.readouterr().out, path.name, REVISED)
        assert written.clients == load_spec(path, REVISED).clients, path.name


@pytest.mark.parametrize(
    ("main", "words", "code", "said"),
    [
        (convert, ["preset"], 2, "--name is missing"),
        (convert, ["preset", "--name", "chatbt"], 2, "did you mean 'chatbot'?"),
        (convert, ["preset", "--name", "chatbot", "--rate", "0"], 2, "--rate must be"),
        (convert, ["preset", "--spec", "x"], 2, "--spec is no option of convert preset"),
        (convert, [], 2, "say what to convert"),
        (convert, ["inference-perf"], 2, "--spec is missing"),
        (convert, ["inference-perf", "--spec", "no.yaml"], 2, "no.yaml"),
        (compose, [], 2, "--from is missing"),
        (compose, ["--from", "no.yaml"], 2, "no.yaml does not exist"),
    ],
)
def test_refusals_are_one_sentence(main, words, code, said, capsys):
    assert main(words) == code
    out, err = capsys.readouterr()
    assert out == "" and said in err and err.count("\n") == 1


def test_files_without_clients_are_refused(tmp_path, capsys):
    (tmp_path / "p.yaml").write_text(PERF)
    assert compose(["--from", "p.yaml"]) == 2
    err = capsys.readouterr().err
    assert "inference_perf is left out, as in BLIS" in err and "the files have no clients" in err
