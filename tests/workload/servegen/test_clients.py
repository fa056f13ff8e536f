"""Clients that February makes of ServeGen data: arrivals and lengths are those of BLIS."""

import json

import numpy as np
import pytest

from blis_jax.errors import ConfigError, ConfigWarning
from blis_jax.workload.drawing.plan import compile_plan
from blis_jax.workload.reference import drawn
from blis_jax.workload.remarks import ineffective_settings
from blis_jax.workload.spec import parse_spec
from tests.workload.servegen.scenes import make_data

LENGTHS = {"input_tokens": "{5: 1, 7: 0.0}", "output_tokens": "{3: 1}"}

# arrival in us, input and output tokens, chunk; of BLIS's results files
WHOLE = [
    (32393, 103, 20, 3), (51933, 101, 91, 1), (81298, 300, 91, 1), (99606, 7, 20, 1), (122206, 7, 20, 1),
    (131299, 7, 92, 2), (211827, 7, 95, 5), (214155, 7, 0, 0), (283311, 7, 20, 5), (288253, 105, 95, 5),
    (309461, 300, 95, 5), (360369, 7, 90, 0),
]  # fmt: skip
SPAN = [
    (32393, 103, 20, 3), (51933, 101, 91, 1), (81298, 350, 91, 1), (131299, 7, 92, 2), (211827, 7, 95, 5),
    (214155, 7, 0, 0), (283311, 7, 20, 5), (288253, 105, 95, 5), (309461, 350, 95, 5), (348346, 105, 20, 5),
    (358358, 350, 20, 1), (359330, 350, 95, 5),
]  # fmt: skip


def text_of(folder, more=""):
    return (
        "version: '2'\nseed: 11\naggregate_rate: 20\nnum_requests: 12\n"
        f"servegen_data: {{path: '{folder}'{more}}}\n"
    )


def make_chunk(folder, trace, dataset, number="0"):
    (folder / f"chunk-{number}-trace.csv").write_text(trace)
    (folder / f"chunk-{number}-dataset.json").write_text(json.dumps(dataset))


@pytest.mark.parametrize(
    ("more", "expected"), [("", WHOLE), (", span_start: 600, span_end: 30000", SPAN)]
)
def test_requests_are_those_of_the_reference(tmp_path, more, expected):
    spec = parse_spec(text_of(make_data(tmp_path), more))
    made = drawn(spec)
    assert [
        (
            each.arrival_us,
            each.input_len,
            len(each.output),
            int(made.clients[each.client].tenant_id.removeprefix("chunk-")),
        )
        for each in made.requests
    ] == expected
    assert ineffective_settings(spec) == []


def test_a_client_has_its_busiest_window_and_the_first_lengths_in_the_order_of_texts(tmp_path):
    trace = "0,2,1.5,Gamma,1,1\n600,4,0.5,WEIBULL,1,1\n1200,4,9,,1,1\n"
    later = {"input_tokens": "{9: 1}", "output_tokens": "{0: 0.5, 2.9: 1e-1}"}
    make_chunk(tmp_path, trace, {"600": LENGTHS, "1200": later, "-1": {"input_tokens": "{4: 1}"}})
    make_chunk(tmp_path, "0,0,0,,0,0\n", {}, "1")
    (client,) = parse_spec(text_of(tmp_path)).clients
    assert (client.id, client.tenant_id, client.rate_fraction) == (
        "servegen-chunk-0",
        "chunk-0",
        4.0,
    )
    assert (client.arrival.process, client.arrival.cv) == ("weibull", 0.5)
    assert client.input_distribution.params == {9: 1.0}
    assert client.output_distribution.params == {0: 0.5, 2: 0.1}


def test_sweeps_draw_such_clients_with_their_own_generator(tmp_path):
    plan = compile_plan(parse_spec(text_of(make_data(tmp_path))))
    assert len(plan.shape.clients) == 7


def test_changed_files_are_another_workload(tmp_path):
    make_chunk(tmp_path, "0,2,1,,0,0\n", {"0": LENGTHS})
    before = parse_spec(text_of(tmp_path)).content()
    assert before == parse_spec(text_of(tmp_path)).content()
    make_chunk(tmp_path, "0,3,1,,0,0\n", {"0": LENGTHS})
    assert before != parse_spec(text_of(tmp_path)).content()


def test_rows_that_are_no_window_are_told(tmp_path):
    make_chunk(tmp_path, "start,rate,cv,family\n0,2,1,\n", {"0": LENGTHS, "x": LENGTHS})
    with pytest.warns(ConfigWarning) as told:
        parse_spec(text_of(tmp_path))
    texts = [str(each.message) for each in told]
    assert texts == [
        "chunk-0-trace.csv: left out as in BLIS, for they are no window: line 1",
    ]


@pytest.mark.parametrize(
    ("trace", "dataset", "words"),
    [
        ("0,0,1,,0,0\n", {"0": LENGTHS}, "no client sends a request; give other chunks"),
        ("0,2,1,,0,0\n600,1\n", {"0": LENGTHS}, "line 2: has 2 cells, but the first line has 6"),
        ("0,2,0,Gamma,0,0\n", {"0": LENGTHS}, r"clients\[0\]\.arrival\.cv: got 0\.0"),
        ("nan,2,0,Gamma\n", {"0": LENGTHS}, "starts at nan"),
        ("0,2,1,\n", {"0": {"input_tokens": "{5: 1}"}}, "has no window with input_tokens and"),
        ("0,2,1,\n", {"0": LENGTHS | {"output_tokens": "{}"}}, "window 0: input_tokens and"),
        ("0,2,1,\n", {"0": LENGTHS | {"output_tokens": 5}}, "window 0: is not an object of texts"),
        (
            "0,2,1,\n",
            {"0": LENGTHS | {"input_tokens": "{0: 1}"}},
            "has token count 0, allowed is 1",
        ),
    ],
)
def test_data_without_a_way_to_clients_are_refused(tmp_path, trace, dataset, words):
    make_chunk(tmp_path, trace, dataset)
    with pytest.raises(ConfigError, match=words) as refused:
        parse_spec(text_of(tmp_path))
    assert "\n" not in str(refused.value)


def test_a_folder_that_is_not_there_is_refused(tmp_path):
    with pytest.raises(ConfigError, match=r"holds no chunk-\*-trace\.csv"):
        parse_spec(text_of(tmp_path / "none"))


def test_prompts_and_answers_have_lengths_of_the_data(tmp_path):
    requests = drawn(parse_spec(text_of(make_data(tmp_path)))).requests
    assert {each.input_len for each in requests} <= {7, *range(100, 107), 300}
    assert np.min([len(each.output) for each in requests]) == 0
