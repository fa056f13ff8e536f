"""ServeGen data: windows and lengths as given, requests drawn from them by seed."""

import json
import math

import numpy as np
import pytest

from blis_jax.errors import ConfigError
from blis_jax.traces.formats import servegen
from blis_jax.traces.read import TraceOptions, read_trace
from tests.traces.scenes import assert_same_rows, real_file

LENGTHS = {"input_tokens": "{100: 0.5, 200: 0.5}", "output_tokens": "{10: 1.0}"}


def make_folder(folder, traces, datasets=None):
    """Files of clients given as the text of their traces."""
    for number, text in traces.items():
        (folder / f"chunk-{number}-trace.csv").write_text(text)
        document = (datasets or {}).get(number, {"0": LENGTHS})
        (folder / f"chunk-{number}-dataset.json").write_text(json.dumps(document))
    return folder


def test_requests_follow_the_windows(tmp_path):
    folder = make_folder(tmp_path, {"7": "0,5,1,Gamma,1,0.2\n100,0,0,,0,0\n200,20,1,,0,0\n"})
    trace = read_trace(folder)
    seconds = trace.rows.arrival_us / 1e6
    assert trace.format == "servegen"
    counts = np.histogram(seconds, [0, 100, 200, 300])[0]
    assert counts[1] == 0
    assert abs(counts[0] - 500) < 5 * math.sqrt(500)
    assert abs(counts[2] - 2000) < 5 * math.sqrt(2000)
    assert set(trace.rows.input_len.tolist()) == {100, 200}
    assert set(trace.rows.output_len.tolist()) == {10}
    assert trace.rows.client_names == ("servegen-chunk-7",)
    assert trace.rows.tenant_names == ("chunk-7",)


@pytest.mark.parametrize(
    ("window", "cv"),
    [
        ("0,100,2,Gamma,0.25,0.04", 2.0),
        ("0,100,2,Gamma", 2.0),
        ("0,100,9,Weibull,0.5,1", math.sqrt(5)),
        ("0,100,0.5,weibull", 0.5),
        ("0,100,1,", 1.0),
    ],
)
def test_gaps_have_the_mean_of_the_rate_and_the_spread_of_the_family(tmp_path, window, cv):
    folder = make_folder(tmp_path, {"1": f"{window}\n"})
    gaps = np.diff(read_trace(folder).rows.arrival_us) / 1e6
    assert gaps.mean() == pytest.approx(0.01, rel=0.1)
    assert gaps.std() / gaps.mean() == pytest.approx(cv, rel=0.1)


def test_lengths_are_those_of_the_last_window_at_or_before(tmp_path):
    later = {"input_tokens": "{900: 1}", "output_tokens": "{9: 1}"}
    folder = make_folder(
        tmp_path,
        {"1": "0,1,1,,0,0\n600,1,1,,0,0\n1200,1,1,,0,0\n"},
        {"1": {"0": LENGTHS, "300": {"input_tokens": "{}", "output_tokens": "{}"}, "1200": later}},
    )
    rows = read_trace(folder).rows
    is_late = rows.arrival_us >= 1200e6
    assert set(rows.input_len[is_late].tolist()) == {900}
    assert set(rows.input_len[~is_late].tolist()) == {100, 200}


def test_the_seed_decides_and_a_client_does_not_move_another(tmp_path):
    texts = {"1": "0,2,1,,0,0\n", "2": "0,3,1,Weibull,0.7,1\n"}
    folder = make_folder(tmp_path, texts)
    both = read_trace(folder).rows
    assert_same_rows(both, read_trace(folder).rows)
    assert not np.array_equal(
        both.arrival_us[:9], read_trace(folder, TraceOptions(seed=1)).rows.arrival_us[:9]
    )
    alone = read_trace(folder / "chunk-2-trace.csv").rows
    is_second = np.array(both.client_names, object)[both.client] == "servegen-chunk-2"
    np.testing.assert_array_equal(both.arrival_us[is_second], alone.arrival_us)


def test_limit_takes_the_earliest_requests_of_all_clients(tmp_path):
    texts = {"1": "0,2,1,,0,0\n600,2,1,,0,0\n", "2": "300,50,1,,0,0\n", "3": "900,9,1,,0,0\n"}
    folder = make_folder(tmp_path, texts)
    everything = read_trace(folder).rows
    for limit in (10, 700, 20_000):
        part = read_trace(folder, TraceOptions(limit=limit)).rows
        np.testing.assert_array_equal(part.arrival_us, everything.arrival_us[:limit])


def test_too_many_requests_need_a_limit(tmp_path):
    folder = make_folder(tmp_path, {"1": "0,50000,1,,0,0\n1000,1,1,,0,0\n"})
    with pytest.raises(ConfigError, match=r"about 5e\+07 requests.*give --limit"):
        read_trace(folder)


def test_malformed_windows_are_named_by_file_and_line(tmp_path):
    text = "0,1,1,,0,0\nx,1,1,,0,0\n\n600,1\n1200,-1,1,,0,0\n1800,1,1,,0,0\n"
    folder = make_folder(
        tmp_path, {"1": text}, {"1": {"0": LENGTHS, "600": {"input_tokens": "import os"}}}
    )
    trace = read_trace(folder)
    assert [row.place for row in trace.report.first_bad] == [
        *(f"chunk-1-trace.csv, line {number}" for number in (2, 4, 5)),
        "chunk-1-dataset.json, window 600",
    ]
    with pytest.raises(ConfigError, match="has 4 malformed rows"):
        read_trace(folder, TraceOptions(strict=True))


@pytest.mark.parametrize(
    ("document", "words"),
    [
        (None, "does not exist"),
        ("[1]", "not an object"),
        ("{", "not JSON"),
        ('{"0": {"input_tokens": "{}", "output_tokens": "{}"}}', "has no window"),
    ],
)
def test_unusable_lengths_are_refused(tmp_path, document, words):
    (tmp_path / "chunk-1-trace.csv").write_text("0,1,1,,0,0\n")
    if document is not None:
        (tmp_path / "chunk-1-dataset.json").write_text(document)
    with pytest.raises(ConfigError, match=words):
        read_trace(tmp_path)


def test_silent_clients_and_empty_folders_are_refused(tmp_path):
    with pytest.raises(ConfigError, match=r"a folder without chunk-\*-trace\.csv"):
        read_trace(tmp_path)
    make_folder(tmp_path, {"1": "0,0,0,,0,0\n"})
    with pytest.raises(ConfigError, match="no client ever sends a request"):
        read_trace(tmp_path)


@pytest.mark.parametrize("cv", [0.1, 0.5, 1.0, 3.0, 5.0])
def test_weibull_shape_gives_the_coefficient_of_variation(cv):
    shape = servegen._weibull_shape(cv)
    ratio = math.gamma(1 + 2 / shape) / math.gamma(1 + 1 / shape) ** 2
    assert math.sqrt(ratio - 1) == pytest.approx(cv, rel=1e-6)


def test_real_clients_have_the_rates_of_their_windows():
    folder = real_file("servegen_sample/language/m-small")
    rows = read_trace(folder, TraceOptions(limit=100_000)).rows
    names = np.array(rows.client_names, object)[rows.client]
    expected = {"servegen-chunk-14": 19.05, "servegen-chunk-17": 2.965, "servegen-chunk-27": 88.06}
    in_first = rows.arrival_us < 600e6
    for name, rate in expected.items():
        counted = np.count_nonzero(in_first & (names == name)) / 600
        assert counted == pytest.approx(rate, rel=0.25)  # bursts of CV up to 32 in 600 s
