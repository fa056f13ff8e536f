"""Units of times, their beginning, windows, and notes on times that cannot be true."""

import json

import numpy as np
import pytest

from blis_jax.commands.options import trace_flags
from blis_jax.errors import ConfigError
from blis_jax.traces import times
from blis_jax.traces.read import TraceOptions, read_trace
from tests.traces.scenes import read_text


def mooncake(moments):
    return "".join(
        json.dumps({"timestamp": at, "input_length": 800, "output_length": 50}) + "\n"
        for at in moments
    )


IN_SECONDS = [0.0, 0.4, 1.1, 2.05, 3.0]  # 4 gaps in 3 s


def test_the_command_offers_the_units_that_there_are():
    assert trace_flags.TIME_UNITS == times.TIME_UNITS


@pytest.mark.parametrize(("unit", "factor"), [("s", 1), ("ms", 1e3), ("us", 1e6), ("ns", 1e9)])
@pytest.mark.parametrize("asked", [None, "auto"])
def test_every_unit_gives_the_same_times(tmp_path, unit, factor, asked):
    text = mooncake([at * factor for at in IN_SECONDS])
    trace = read_text(tmp_path, text, time_unit=asked or unit)
    assert trace.rows.arrival_us.tolist() == [0, 400_000, 1_100_000, 2_050_000, 3_000_000]


def test_seconds_read_as_milliseconds_are_noted_with_the_unit_and_its_rate(tmp_path):
    (note,) = read_text(tmp_path, mooncake(IN_SECONDS)).report.notes
    assert note.startswith("times are read as ms: 1,333 requests/s and 1,416,667 tokens/s")
    assert note.endswith("if they are s, give --time-unit s (1.33 requests/s)")
    told = read_text(tmp_path, mooncake(IN_SECONDS), time_unit="s")
    assert told.report.notes == []


def test_milliseconds_read_as_seconds_are_noted(tmp_path):
    header = "Timestamp,Model,Request tokens,Response tokens,Total tokens,Log Type\n"
    rows = "".join(f"{400 * row},m,300,20,320,c\n" for row in range(20))
    (note,) = read_text(tmp_path, header + rows).report.notes
    assert "if they are ms, give --time-unit ms (2.5 requests/s)" in note
    told = read_text(tmp_path, header + rows, time_unit="ms")
    assert told.rows.arrival_us[1] == 400_000
    assert told.report.notes == []


@pytest.mark.parametrize("moments", [[0, 400, 1100, 2050], [0, 0, 0], [7]])
def test_times_that_can_be_true_are_not_noted(tmp_path, moments):
    assert read_text(tmp_path, mooncake(moments)).report.notes == []


@pytest.mark.parametrize(("num_rows", "num_notes"), [(4, 0), (40, 1)])
def test_a_few_rows_of_a_column_that_says_its_unit_may_be_fast(tmp_path, num_rows, num_notes):
    rows = "".join(f"{at},900,20\n" for at in range(0, 100 * num_rows, 100))
    text = "arrival_us,input_tokens,output_tokens\n" + rows
    assert len(read_text(tmp_path, text).report.notes) == num_notes


def test_times_since_1970_begin_at_0(tmp_path):
    text = mooncake([1.79e9 + at for at in IN_SECONDS])
    (odd, moved) = read_text(tmp_path, text).report.notes
    assert "give --time-unit s" in odd
    assert "moved" in moved
    trace = read_text(tmp_path, text, time_unit="auto")
    np.testing.assert_allclose(trace.rows.arrival_us, np.multiply(IN_SECONDS, 1e6), atol=1)
    assert trace.report.notes == [
        "times are read as s, the first unit that can be true; --time-unit names another",
        "the first request comes 20,718 days after time 0, which is moved to it",
    ]


@pytest.mark.parametrize("factor", [1.0, 1e3])
def test_a_time_that_was_never_set_is_no_arrival(tmp_path, factor):
    text = "start_time,input_tokens,output_tokens\n0,10,1\n" + "".join(
        f"{(1.79e9 + at) * factor:.1f},10,1\n" for at in range(9)
    )
    trace = read_text(tmp_path, text)
    assert np.ptp(trace.rows.arrival_us) == 8e6
    assert any(note.startswith("1 rows have a time near 0") for note in trace.report.notes)


def test_other_units_of_plain_columns(tmp_path):
    text = "arrival_us,input_tokens,output_tokens\n0,10,1\n1.5,10,1\n"
    trace = read_text(tmp_path, text, time_unit="s")
    assert trace.rows.arrival_us.tolist() == [0, 1_500_000]


def test_one_long_silence_is_told(tmp_path):
    """Half of the rows in seconds, half in milliseconds, under one column of seconds."""
    moments = np.arange(1, 61) * 0.2
    mixed = np.concatenate([moments[:30], 1e3 * moments[30:]])
    told = "no request arrives for 6,194 s of the trace's 12,000 s, between requests 30 and 31"
    for taken, is_told in ((mixed, True), (moments, False)):
        path = tmp_path / f"{is_told}.csv"
        rows = "".join(f"{at:.1f},50,5\n" for at in taken)
        path.write_text(f"arrival_s,input_tokens,output_tokens\n{rows}")
        assert any(told in note for note in read_trace(path).report.notes) == is_told


def test_a_burst_of_one_moment_has_no_silence(tmp_path):
    trace = read_text(tmp_path, mooncake([1000] * 40))
    assert not any("no request arrives" in note for note in trace.report.notes)


def test_a_window_of_a_trace(tmp_path):
    text = mooncake([500, 1000, 2000, 3000, 4500])
    assert read_text(tmp_path, text, from_s=0.5, until_s=4.0).rows.arrival_us.tolist() == [
        0,
        1_000_000,
        2_000_000,
    ]
    first = read_text(tmp_path, text, from_s=0.5, until_s=4.0, limit=2)
    assert first.rows.arrival_us.tolist() == [0, 1_000_000]


@pytest.mark.parametrize(
    ("asked", "words"),
    [
        (
            {"from_s": 3.0, "until_s": 1.0},
            "--from must be at least 0 and below --until, got 3 and 1",
        ),
        ({"from_s": 9.0}, "no request arrives there; the trace lasts 4.000 s"),
        ({"time_unit": "min"}, "allowed is one of s, ms, us, ns, auto"),
    ],
)
def test_windows_and_units_that_cannot_be(tmp_path, asked, words):
    path = tmp_path / "trace.jsonl"
    path.write_text(mooncake([500, 4500]))
    with pytest.raises(ConfigError) as caught:
        read_trace(path, TraceOptions(**asked))
    assert words in str(caught.value)


def test_a_length_that_no_server_computes_says_nothing_about_the_unit(tmp_path):
    """A prompt of a billion tokens made every unit odd but the one in which all times are one moment."""
    text = "timestamp,prompt_tokens,completion_tokens\n0,1000000000,10\n1,200,20\n2,300,4\n"
    trace = read_text(tmp_path, text, "odd.csv", time_unit="auto")
    assert trace.rows.arrival_us.tolist() == [0, 1_000_000, 2_000_000]
    (note,) = [one for one in trace.report.notes if "tokens/s" in one]
    assert note.endswith("no server computes so much; look at the lengths")
