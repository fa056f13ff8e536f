"""Workloads that look odd and that the reference accepts: the same requests here, from both generators."""

import dataclasses
import warnings

import numpy as np
import pytest

from blis_jax.commands.run.requests import draw_requests
from blis_jax.errors import ConfigError, ConfigWarning
from blis_jax.workload.reference import draw
from blis_jax.workload.remarks import ineffective_settings
from blis_jax.workload.spec import parse_spec

HORIZON_US = 2_000_000
SPEC = """
version: "2"
seed: 7
aggregate_rate: 40.0
num_requests: 60
horizon: HORIZON
clients:
  - id: a
    rate_fraction: 1.0
    arrival: {process: poisson}
    input_distribution: {type: gaussian, params: {mean: 40, std_dev: 30, min: 8, max: 90}}
    output_distribution: {type: constant, params: {value: 12}}
    prefix_group: shared
  - id: b
    rate_fraction: 2.0
    arrival: {process: gamma, cv: 2.0}
    input_distribution: {type: constant, params: {value: 20}}
    output_distribution: {type: exponential, params: {mean: 9}}
    prefix_group: shared
    MORE
  - id: c
    rate_fraction: 1.0
    arrival: {process: constant}
    input_distribution: {type: constant, params: {value: 30}}
    output_distribution: {type: constant, params: {value: 4}}
"""
CLOSED = f"lifecycle: {{windows: [{{start_us: {HORIZON_US}, end_us: {HORIZON_US + 9}}}]}}"


def text_of(more="streaming: false", horizon=HORIZON_US, old="", new=""):
    text = SPEC.replace("MORE", more).replace("HORIZON", str(horizon))
    assert not old or text.count(old) == 1
    return text.replace(old, new) if old else text


def read(text):
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", ConfigWarning)
        return parse_spec(text, "w.yaml")


def tables_of(text):
    spec = read(text)
    return draw(spec)[0], draw_requests(spec, 7, 16)[0]


def assert_same_requests(text, other):
    for mine, theirs in zip(tables_of(text), tables_of(other), strict=True):
        assert mine.num_rows > 20
        for field in dataclasses.fields(mine):
            left, right = getattr(mine, field.name), getattr(theirs, field.name)
            np.testing.assert_array_equal(left, right, err_msg=field.name)


SILENT = {
    "no window": "lifecycle: {windows: []}",
    "empty window": "lifecycle: {windows: [{start_us: 5, end_us: 5}]}",
    "no rounds": "reasoning: {multi_turn: {max_rounds: 0}}",
}


@pytest.mark.parametrize("more", SILENT.values(), ids=SILENT)
def test_client_without_windows_or_rounds_sends_nothing_and_keeps_its_share_of_the_rate(more):
    assert_same_requests(text_of(more), text_of(CLOSED))
    assert "so this client sends nothing" in ineffective_settings(read(text_of(more)))[-1]


@pytest.mark.slow
def test_empty_window_beside_an_open_one_changes_nothing():
    window = "{start_us: 100000, end_us: 900000}"
    both = f"lifecycle: {{windows: [{{start_us: 5, end_us: 5}}, {window}]}}"
    for mine, theirs in zip(
        tables_of(text_of(both)),
        tables_of(text_of(f"lifecycle: {{windows: [{window}]}}")),
        strict=True,
    ):
        np.testing.assert_array_equal(mine.arrival_us, theirs.arrival_us)


@pytest.mark.parametrize(
    ("old", "new", "whole"),
    [
        ("min: 8, max: 90", "min: 8.9, max: 90.2", "min: 8, max: 90"),
        ("{value: 30}", "{value: 30.999}", "{value: 30}"),
        ("min: 8, max: 90", "min: 0.5, max: 90", "min: 0, max: 90"),
    ],
)
def test_fraction_of_a_token_is_cut_off(old, new, whole):
    assert_same_requests(text_of(old=old, new=new), text_of(old=old, new=whole))
    with pytest.warns(ConfigWarning, match=r"params\.\w+: .* tokens are read as \d+, as BLIS does"):
        parse_spec(text_of(old=old, new=new))


def test_clients_may_have_one_id():
    assert_same_requests(text_of(old="id: b", new="id: a"), text_of())


@pytest.mark.parametrize("version", ["'3'", "3", "draft"])
def test_version_that_nobody_knows_is_read_as_version_2(version):
    text = text_of(old='version: "2"', new=f"version: {version}")
    assert_same_requests(text, text_of())
    with pytest.warns(ConfigWarning, match=r"w\.yaml: version .* is not known; .* as version 2"):
        parse_spec(text, "w.yaml")


def test_horizon_before_the_first_request_leaves_none():
    for table in tables_of(text_of(horizon=3)):
        assert table.num_rows == 0


def test_silence_without_a_horizon_is_refused_because_the_reference_would_not_end():
    silent = f"rate_fraction: 1.0\n    {SILENT['no rounds']}"
    text = text_of(SILENT["no window"], horizon=0).replace("rate_fraction: 1.0", silent)
    spec = read(text)
    for drawn in (lambda: draw(spec), lambda: draw_requests(spec, 7, 16)):
        with pytest.raises(ConfigError, match="none of them ever sends a request, and no horizon"):
            drawn()
