"""Recognising formats, refusing what is none, the table of every format."""

import gzip
import json
import re
import shutil
from pathlib import Path

import numpy as np
import pytest

from blis_jax.commands.options import trace_flags
from blis_jax.errors import ConfigError
from blis_jax.traces import __main__ as command
from blis_jax.traces.read import FORMATS, TraceOptions, module_of, read_trace
from blis_jax.traces.rows import to_table
from blis_jax.traces.write import WRITABLE, write_trace
from tests.support.recorded.reference_data import REPO_ROOT
from tests.traces.scenes import assert_same_rows, read_text

EXAMPLES = REPO_ROOT / "examples" / "traces"
OF_FORMAT = {
    "mooncake": "mooncake.jsonl",
    "azure": "azure.csv",
    "burstgpt": "burstgpt.csv",
    "servegen": "servegen",
    "trace-v2": "trace_v2.csv",
    "trace-v3": "trace_v3.csv",
    "blis-csv": "blis.csv",
    "vidur": "vidur.csv",
    "plain": "plain.csv",
    "benchmark": "../measured_run",
}


def test_there_is_an_example_of_every_format():
    assert OF_FORMAT.keys() == FORMATS.keys() == set(trace_flags.FORMAT_NAMES)
    for name in FORMATS:
        assert callable(module_of(name).matches)


@pytest.mark.parametrize("name", FORMATS)
def test_examples_are_recognised_and_clean(name):
    trace = read_trace(EXAMPLES / OF_FORMAT[name], TraceOptions(strict=True))
    assert trace.format == name
    assert not np.any(np.diff(trace.rows.arrival_us) < 0)
    table, names = to_table(trace.rows, 16)
    assert table.num_rows == len(names.request_numbers) == len(trace.rows)
    assert sorted(table.tie_rank.tolist()) == list(range(table.num_rows))


@pytest.mark.parametrize("name", WRITABLE)
def test_what_a_format_holds_survives_it(tmp_path, name):
    rows = read_trace(EXAMPLES / OF_FORMAT[name]).rows
    path = tmp_path / OF_FORMAT[name]
    write_trace(rows, path, name)
    again = read_trace(path, TraceOptions(strict=True))
    assert again.format == name
    contents = ("segments",) if name == "blis-csv" else ()  # whose names are made up anew
    assert_same_rows(again.rows, rows, but=contents)


@pytest.mark.parametrize("name", FORMATS)
def test_every_format_can_become_plain(tmp_path, name):
    rows = read_trace(EXAMPLES / OF_FORMAT[name]).rows
    write_trace(rows, tmp_path / "plain.csv")
    assert_same_rows(read_trace(tmp_path / "plain.csv").rows, rows)


def test_traffic_descriptions_cannot_be_written(tmp_path):
    rows = read_trace(EXAMPLES / "plain.csv").rows
    with pytest.raises(ConfigError, match="'servegen' cannot be written; use"):
        write_trace(rows, tmp_path / "folder", "servegen")


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("a,b\n1,2\n", "is not recognised (it begins with 'a,b')"),
        ("", "is not recognised (it is empty)"),
        ('{"prompt": "hello"}\n', "is not recognised"),
    ],
)
def test_unknown_files_are_refused_with_the_formats(tmp_path, text, words):
    with pytest.raises(ConfigError) as caught:
        read_text(tmp_path, text)
    assert words in str(caught.value)
    assert "give --trace-format, one of servegen, trace-v3, trace-v2, mooncake" in str(caught.value)


def test_missing_and_unreadable_files_are_refused(tmp_path):
    with pytest.raises(ConfigError, match="does not exist"):
        read_trace(tmp_path / "none.csv")
    (tmp_path / "broken.csv.gz").write_bytes(b"no gzip")
    with pytest.raises(ConfigError, match="cannot be read"):
        read_trace(tmp_path / "broken.csv.gz")


def test_damaged_gzip_and_folders_are_refused(tmp_path):
    packed = gzip.compress((EXAMPLES / "azure.csv").read_bytes() * 2000)
    (tmp_path / "cut.csv.gz").write_bytes(packed[: len(packed) // 2])
    with pytest.raises(ConfigError, match=r"not a whole gzip file|cannot be read"):
        read_trace(tmp_path / "cut.csv.gz", TraceOptions(format="azure"))
    with pytest.raises(ConfigError, match="is a folder, but a azure trace is a file"):
        read_trace(tmp_path, TraceOptions(format="azure"))


@pytest.mark.parametrize("name", ["azure", "mooncake", "burstgpt", "vidur", "blis-csv", "plain"])
def test_a_trace_without_usable_rows_is_refused(tmp_path, name):
    text = (EXAMPLES / OF_FORMAT[name]).read_text()
    header = "" if name == "mooncake" else text.splitlines()[0] + "\n"
    with pytest.raises(ConfigError, match=r"has no usable request \(line \d"):
        read_text(tmp_path, header + "what\n", format=name)
    with pytest.raises(ConfigError, match=r"is empty|has no usable request;"):
        read_text(tmp_path, header, format=name)


@pytest.mark.parametrize(
    "wrong", ["mooncake", "azure", "burstgpt", "vidur", "trace-v2", "trace-v3", "servegen"]
)
def test_the_wrong_format_ends_in_one_sentence(wrong):
    with pytest.raises(ConfigError):
        read_trace(EXAMPLES / "plain.csv", TraceOptions(format=wrong))


@pytest.mark.parametrize(
    ("options", "words"),
    [
        ({"limit": 0}, "--limit must be at least 1"),
        ({"block_size": 0}, "--trace-block-size must be at least 1"),
        ({"seed": -1}, "--seed must be between"),
        ({"format": "csv"}, "'csv' is not one of"),
    ],
)
def test_impossible_options_are_refused(options, words):
    with pytest.raises(ConfigError, match=re.escape(words)):
        read_trace(EXAMPLES / "plain.csv", TraceOptions(**options))


def test_the_command_summarises_and_converts(tmp_path, capsys):
    source = tmp_path / "trace.jsonl"
    shutil.copy(EXAMPLES / "mooncake.jsonl", source)
    with source.open("a") as file:
        file.write("not json\n")
    output = tmp_path / "plain.csv"
    assert command.main([str(source), "--output", str(output), "--slo-mix", "critical:1"]) == 0
    printed = capsys.readouterr()
    assert "requests:              8\n" in printed.out
    assert "classes:               critical 8\n" in printed.out
    assert "note: 1 malformed row is left out:\n  line 9: not a JSON object\n" in printed.err
    assert read_trace(output).rows.slo_class.tolist() == [1] * 8
    assert command.main([str(source), "--strict"]) == 2
    assert "has 1 malformed row, the first at line 9" in capsys.readouterr().err


def test_help_names_every_format(capsys):
    with pytest.raises(SystemExit):
        command.main(["--help"])
    printed = " ".join(capsys.readouterr().out.split())
    assert all(name in printed for name in set(FORMATS) - {"blis-csv"})  # broken at its hyphen


def test_paths_and_text_both_name_a_trace():
    path = EXAMPLES / "plain.csv"
    assert_same_rows(read_trace(str(path)).rows, read_trace(Path(path)).rows)


@pytest.mark.parametrize("separator", [";", "\t"])
def test_other_separators_and_decimal_commas(tmp_path, separator):
    point = "," if separator == ";" else "."
    cells = [("arrival_s", "input_tokens", "output_tokens"), (f"0{point}25", 700, 20), (1, 90, 4)]
    text = "".join(separator.join(map(str, row)) + "\n" for row in cells)
    trace = read_text(tmp_path, text)
    assert trace.format == "plain"
    assert trace.rows.arrival_us.tolist() == [250_000, 1_000_000]
    assert trace.rows.input_len.tolist() == [700, 90]


def test_a_field_too_many_is_named_whatever_the_separator(tmp_path):
    text = "arrival_us;input_tokens;output_tokens\n0;9;1\n5;9;1;7\n"
    assert read_text(tmp_path, text).report.first_bad == [("line 3", "more fields than the header")]


def test_a_benchmark_file_with_several_runs_needs_a_stage(tmp_path):
    row = {"request_throughput": 1.0, "mean_ttft_ms": 1.0, "request_rate": 2.0, "completed": 2}
    lists = {
        "input_lens": [7, 8],
        "output_lens": [2, 3],
        "ttfts": [0.1, 0.1],
        "itls": [[0.1], [0.1, 0.1]],
    }
    runs = [row | lists | {"start_times": [5.0, 5.0 + gap]} for gap in (1.5, 2.5)]
    path = tmp_path / "runs.jsonl"
    path.write_text("".join(json.dumps(run) + "\n" for run in runs))
    with pytest.raises(ConfigError, match="has 2 runs; choose one with --trace-stage"):
        read_trace(path)
    trace = read_trace(path, TraceOptions(stage=1))
    assert trace.format == "benchmark"
    assert trace.rows.arrival_us.tolist() == [0, 2_500_000]
    assert trace.rows.input_len.tolist() == [7, 8]


def test_a_benchmark_of_figures_alone_has_nothing_to_replay(tmp_path):
    path = tmp_path / "figures.json"
    path.write_text(json.dumps({"request_throughput": 1.0, "mean_ttft_ms": 9.0, "completed": 50}))
    with pytest.raises(ConfigError, match="but no requests to replay: it has no lists by request"):
        read_trace(path)
