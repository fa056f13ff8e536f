"""Recognising formats, refusing what is none, the table of every format."""

import bz2
import gzip
import json
import lzma
import re
import shutil
from pathlib import Path

import numpy as np
import pytest

from blis_jax.commands.options import trace_flags
from blis_jax.errors import ConfigError
from blis_jax.traces import __main__ as command
from blis_jax.traces.columns import A_DATE
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
        ('{"prompt": "hello"}\n', "is not recognised"),
    ],
)
def test_unknown_files_are_refused_with_the_formats(tmp_path, text, words):
    with pytest.raises(ConfigError) as caught:
        read_text(tmp_path, text)
    assert words in str(caught.value)
    assert "give --trace-format, one of servegen, trace-v3, trace-v2, mooncake" in str(caught.value)


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("", "is empty; give a trace with a header"),
        (
            "arrival_s,input_tokens\n0,5\n",
            "no column for the tokens of outputs (name it output_tokens)",
        ),
        (
            '{"input_length": 5, "output_length": 2}\n',
            "no column for a time of arrival (name it arrival_s)",
        ),
        (
            '[{"timestamp": 0, "input_length": 5}]',
            "no column for the tokens of outputs (name it output_tokens)",
        ),
        (
            "arrival_s,input_tokens,output_tokens\n",
            "has no request; give a trace with one per line",
        ),
    ],
)
def test_what_a_file_lacks_is_said(tmp_path, text, words):
    with pytest.raises(ConfigError) as caught:
        read_text(tmp_path, text)
    assert words in str(caught.value)
    assert "--trace-format" not in str(caught.value)


def test_missing_and_unreadable_files_are_refused(tmp_path):
    with pytest.raises(ConfigError, match="does not exist"):
        read_trace(tmp_path / "none.csv")
    (tmp_path / "broken.csv.gz").write_bytes(b"no gzip")
    with pytest.raises(ConfigError, match="is not recognised"):
        read_trace(tmp_path / "broken.csv.gz")


def test_damaged_gzip_and_folders_are_refused(tmp_path):
    packed = gzip.compress((EXAMPLES / "azure.csv").read_bytes() * 2000)
    (tmp_path / "cut.csv.gz").write_bytes(packed[: len(packed) // 2])
    with pytest.raises(ConfigError, match=r"not a whole packed file|cannot be read"):
        read_trace(tmp_path / "cut.csv.gz", TraceOptions(format="azure"))
    small = gzip.compress(b"timestamp,isl,osl\n0,100,10\n1,200,20\n")
    (tmp_path / "end.csv.gz").write_bytes(small[:-6])
    with pytest.raises(ConfigError, match=r"it ends too early: copy it again"):
        read_trace(tmp_path / "end.csv.gz")
    with pytest.raises(ConfigError, match="is a folder, but a azure trace is a file"):
        read_trace(tmp_path, TraceOptions(format="azure"))


@pytest.mark.parametrize("name", ["azure", "mooncake", "burstgpt", "vidur", "blis-csv", "plain"])
def test_a_trace_without_usable_rows_is_refused(tmp_path, name):
    text = (EXAMPLES / OF_FORMAT[name]).read_text()
    header = "" if name == "mooncake" else text.splitlines()[0] + "\n"
    with pytest.raises(ConfigError, match=r"has no usable request \(line \d"):
        read_text(tmp_path, header + "what\n", format=name)
    with pytest.raises(ConfigError, match=r"is empty|has no request;"):
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


@pytest.mark.parametrize(
    ("slow_gap", "named"),
    [(2, {}), (30, {"busiest minute": "3.333"}), (600, {"busiest hour": "0.057"})],
)
def test_a_ramp_shows_beside_the_mean_rate(tmp_path, slow_gap, named):
    """Sixty slow gaps, then 200 requests within a minute: 200 in 60 s, 205 in 3,600 s."""
    moments = np.concatenate([np.arange(60) * slow_gap, 60 * slow_gap + np.arange(200) * 0.3])
    rows = "".join(f"{at:.1f},50,5\n" for at in moments)
    trace = read_text(tmp_path, f"arrival_s,input_tokens,output_tokens\n{rows}")
    figures = command.summary(trace)
    begin = f"{60 * slow_gap:,}" if slow_gap == 30 else ""
    assert {name for name in figures if name.startswith("busiest")} == {*named}
    for name, rate in named.items():
        assert figures[name].startswith(f"{rate} requests/s, from second {begin}")


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


# by header: a row sent at t s with i tokens of prompt and o of output
SPELT = {
    "arrival_time,prompt_len,gen_len": "{t},{i},{o}",
    "request_arrival_time,num_prompt_tokens,num_output_tokens": "{t},{i},{o}",
    "arrival_timestamp,prompt_size,token_size": "{t},{i},{o}",  # Splitwise
    "received_at,usage.prompt_tokens,usage.completion_tokens": "{t},{i},{o}",
    "start_time_unix_nano,gen_ai.usage.input_tokens,gen_ai.usage.output_tokens": "{ns},{i},{o}",
    "sent_at|n_prompt_tokens|n_decode_tokens": "{t}|{i}|{o}",
    "arrival_offset_ms,tokens_in,tokens_out": "{ms},{i},{o}",
    "TIMESTAMP,ContextTokens,GeneratedTokens": "{t},{i},{o}",  # Azure's names, but times in s
    "arrival_s,input_tokens,output_tokens": '{t},"{i:,}",{o}',
    "arrival_s;input_tokens;output_tokens;what, why": "{t};{i};{o};",
}


@pytest.mark.parametrize("header", SPELT)
def test_usual_names_of_columns_are_read(tmp_path, header):
    line = SPELT[header]
    rows = [(0, 1800, 32), (1, 300, 15), (3, 1400, 60)]
    text = "".join(line.format(t=t, ms=1000 * t, ns=10**9 * t, i=i, o=o) + "\n" for t, i, o in rows)
    found = read_text(tmp_path, f"{header}\n{text}").rows
    assert found.arrival_us.tolist() == [0, 1_000_000, 3_000_000]
    assert found.input_len.tolist() == [1800, 300, 1400]
    assert found.output_len.tolist() == [32, 15, 60]


@pytest.mark.parametrize(
    ("header", "of_failed", "of_others"),
    [
        ("status", "500", "200"), ("status", "timed out", "ok"), ("success", "False", "True"),
        ("error", "connection refused", ""), ("error_code", "429", ""), ("cancelled", "true", "false"),
        ("finish_reason", "abort", "length"),
    ],
)  # fmt: skip
def test_rows_that_say_that_they_failed_are_left_out(tmp_path, header, of_failed, of_others):
    text = f"arrival_s,input_tokens,output_tokens,{header}\n" + "".join(
        f"{k},100,20,{of_failed if k == 1 else of_others}\n" for k in range(4)
    )
    trace = read_text(tmp_path, text)
    assert trace.rows.arrival_us.tolist() == [0, 2_000_000, 3_000_000]
    assert "1 failed requests (by their status or error) left out" in trace.report.notes


@pytest.mark.parametrize("form", ["csv", "json", "burstgpt"])
def test_several_models_in_one_file_are_told(tmp_path, form):
    rows = [(0, "small", 100, 20), (1, "large", 200, 30)]
    if form == "json":
        text = "".join(
            json.dumps({"timestamp": 1e3 * t, "model": m, "input_length": i, "output_length": o})
            + "\n"
            for t, m, i, o in rows
        )
    else:
        names = (
            "Timestamp,Model,Request tokens,Response tokens"
            if form == "burstgpt"
            else ("arrival_s,model,input_tokens,output_tokens")
        )
        text = names + "\n" + "".join(",".join(map(str, row)) + "\n" for row in rows)
    notes = read_text(tmp_path, text).report.notes
    assert any(note.startswith("requests name 2 models (large, small)") for note in notes)
    assert not any(
        "2 models" in note
        for note in read_text(tmp_path, text.replace("large", "small")).report.notes
    )


def test_what_rows_cannot_mean_is_told(tmp_path):
    head = "arrival_s,input_tokens,output_tokens\n"
    rows = "".join(f"{k},{100 + k},{k}\n" for k in range(4))
    notes = read_text(tmp_path, head + rows + rows).report.notes
    assert any(
        note.startswith("4 rows have the time and the lengths of another row") for note in notes
    )
    assert any(note.startswith("2 requests have no output token") for note in notes)
    assert not any(
        "of another row" in note for note in read_text(tmp_path, head + rows).report.notes
    )


def test_turns_that_come_before_their_turn_are_told(tmp_path):
    head = "arrival_s,session_id,turn,input_tokens,output_tokens\n"
    late, early = (f"{head}1,a,0,100,5\n{at},a,1,120,5\n" for at in (2, 0))
    told = "1 later turns arrive before the turn before them"
    assert not any(told in note for note in read_text(tmp_path, late).report.notes)
    assert any(told in note for note in read_text(tmp_path, early).report.notes)


def test_a_column_that_has_no_effect_is_not_called_read(tmp_path, capsys):
    row = {"created": 1, "model": "m", "usage": {"prompt_tokens": 9, "completion_tokens": 2}}
    path = tmp_path / "log.jsonl"
    path.write_text("\n".join(json.dumps({**row, "created": at}) for at in range(3)))
    assert command.main([str(path)]) == 0
    lines = capsys.readouterr().out.splitlines()
    (used,) = (line for line in lines if line.startswith("columns read"))
    assert used.split()[2:] == ["prompt_tokens,", "completion_tokens,", "created"]


def test_a_bad_cell_leaves_the_decimal_commas_of_others(tmp_path):
    rows = "0,5;100;20\nx;100;20\n2,125;1000;20\n"
    trace = read_text(tmp_path, "arrival_s;input_tokens;output_tokens\n" + rows)
    assert trace.rows.arrival_us.tolist() == [500_000, 2_125_000]
    assert trace.report.first_bad == [
        ("line 3", f"arrival_s is x, not a number of seconds from 0 on, nor {A_DATE}")
    ]


@pytest.mark.parametrize(("gap", "is_odd"), [(3, True), (50, False)])
def test_whole_seconds_read_as_ms_are_doubted(tmp_path, gap, is_odd):
    lines = ({"timestamp": gap * k, "input_length": 2000, "output_length": 100} for k in range(200))
    notes = read_text(tmp_path, "".join(json.dumps(line) + "\n" for line in lines)).report.notes
    assert any("if they are s, give --time-unit s" in note for note in notes) == is_odd


@pytest.mark.parametrize(
    ("num_single", "words"), [(0, []), (1, ["it is of the others"]), (10, ["there is none"])]
)
def test_requests_without_a_gap_between_tokens_are_told(tmp_path, num_single, words):
    rows = "".join(f"{k},100,{1 if k < num_single else 9}\n" for k in range(10))
    notes = read_text(tmp_path, "arrival_s,input_tokens,output_tokens\n" + rows).report.notes
    assert [note.partition("no TPOT: ")[2] for note in notes] == words


def test_a_trace_of_failures_alone_is_called_so(tmp_path):
    text = "Timestamp,Model,Request tokens,Response tokens\n5,a,10,0\n45,a,100,0\n"
    with pytest.raises(ConfigError, match="has no request that was answered: 2 failed requests"):
        read_text(tmp_path, text)


@pytest.mark.parametrize(
    ("encoding", "pack"),
    [
        ("utf-16", bytes),
        *(("utf-8-sig", pack) for pack in (bytes, gzip.compress, bz2.compress, lzma.compress)),
    ],
)
def test_a_trace_may_be_packed_whatever_its_name(tmp_path, encoding, pack):
    text = "arrival_s,input_tokens,output_tokens\r\n0,5,2\r\n1,6,3\r\n"
    (tmp_path / "trace.csv").write_bytes(pack(text.encode(encoding)))
    assert read_trace(tmp_path / "trace.csv").rows.input_len.tolist() == [5, 6]


@pytest.mark.parametrize(
    ("start", "words"),
    [
        (b"\x28\xb5\x2f\xfd", "is packed with zstd"),
        (b"PK\x03\x04", "is a zip archive or a spreadsheet"),
    ],
)
def test_archives_that_are_not_unpacked_are_named(tmp_path, start, words):
    (tmp_path / "trace.csv").write_bytes(start + bytes(20))
    with pytest.raises(ConfigError, match=words):
        read_trace(tmp_path / "trace.csv")
