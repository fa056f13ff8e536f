"""Read traces of any known format into rows by arrival."""

from __future__ import annotations

import json
import re
from collections.abc import Iterator
from dataclasses import dataclass, replace
from functools import cached_property
from importlib import import_module
from itertools import islice
from pathlib import Path
from typing import Any

import numpy as np

from blis_jax.errors import MOST_SHOWN, ConfigError
from blis_jax.files.input_files import NOT_WHOLE, absent, check_regular, open_text
from blis_jax.traces import options, times
from blis_jax.traces.columns import plain_name
from blis_jax.traces.delimited import header_names
from blis_jax.traces.measured.sent import parse
from blis_jax.traces.names import foreign, lacks
from blis_jax.traces.rows import (
    DELAY,
    MOST_NAMED,
    ROW_PREFIX,
    Reading,
    Report,
    TraceRows,
    by_arrival,
    num_repeated,
    repeated_ids,
    single_tokens,
)

LINES_LOOKED_AT, CHARACTERS_LOOKED_AT = 50, 1_000_000
PARQUET_MARK = b"PAR1"


@dataclass(frozen=True)
class Sniff:
    """A path and its first non-blank lines; no lines for folders and Parquet."""

    path: Path
    lines: tuple[str, ...]
    is_parquet: bool = False

    @cached_property
    def names(self) -> tuple[str, ...]:
        """Return the names in the first line as CSV."""
        return header_names(self.lines[0]) if self.lines else ()

    @cached_property
    def header(self) -> frozenset[str]:
        """Return the names in the first line without case and separators."""
        return frozenset(plain_name(name) for name in self.names)

    @cached_property
    def objects(self) -> list[dict[str, Any]]:
        """Return the JSON objects among the first lines."""
        objects_ = []
        for line in self.lines:
            try:
                value = json.loads(line) if line.lstrip().startswith("{") else None
            except (ValueError, RecursionError):
                continue
            if isinstance(value, dict):
                objects_.append(value)
        return objects_

    def has_columns(self, *names: str) -> bool:
        """Return whether the header has all of the given columns."""
        return self.header.issuperset(plain_name(name) for name in names)


def sniff(path: Path) -> Sniff:
    """Return the first lines of a file, or the folder's path."""
    if path.is_dir():
        return Sniff(path, ())
    check_regular(path)
    try:
        with path.open("rb") as file:
            if file.read(len(PARQUET_MARK)) == PARQUET_MARK:
                return Sniff(path, (), is_parquet=True)
        with open_text(path) as text:
            start = text.read(CHARACTERS_LOOKED_AT)
    except FileNotFoundError:
        raise ConfigError(absent(path, "a trace")) from None
    except (OSError, *NOT_WHOLE) as error:
        what = "; it ends too early: copy it again" if isinstance(error, EOFError) else ""
        raise ConfigError(
            f"{path} cannot be read ({error}){what or '; give the path of a trace'}"
        ) from None
    if start.lstrip().startswith("["):
        listed = (text for _, text in json_rows(path)[1])
        return Sniff(path, tuple(islice(listed, LINES_LOOKED_AT)))
    lines = (line for line in start.splitlines() if line.strip())
    return Sniff(path, tuple(islice(lines, LINES_LOOKED_AT)))


def json_rows(path: Path) -> tuple[str, Iterator[tuple[int, str]]]:
    """Return the numbered texts of a file's objects, and the unit of the numbers: lines, or members of one JSON list.

    Raises:
        ConfigError: the file begins as a list, but is damaged.
    """
    with open_text(path) as file:
        is_list = next((line for line in file if line.strip()), "").lstrip().startswith("[")
    rows = parse(path) if is_list else None
    if isinstance(rows, list):
        return "object", ((number, json.dumps(each)) for number, each in enumerate(rows, 1))
    return "line", _lines_of(path)


def _lines_of(path: Path) -> Iterator[tuple[int, str]]:
    with open_text(path) as file:
        yield from ((number, line) for number, line in enumerate(file, 1) if line.strip())


# By name; a format is a module, or a name in one, with `matches`, `read` and `write`. Asked in this order.
FORMATS = {
    "servegen": "blis_jax.traces.formats.servegen",
    "trace-v3": "blis_jax.traces.formats.trace_v3",
    "trace-v2": "blis_jax.traces.formats.trace_v2",
    "mooncake": "blis_jax.traces.formats.mooncake",
    "azure": "blis_jax.traces.formats.csv_traces:AZURE",
    "burstgpt": "blis_jax.traces.formats.csv_traces:BURSTGPT",
    "vidur": "blis_jax.traces.formats.csv_traces:VIDUR",
    "blis-csv": "blis_jax.traces.formats.csv_traces:BLIS",
    "plain": "blis_jax.traces.formats.plain",
    "benchmark": "blis_jax.traces.measured.recorded",
}
# Formats whose sessions may stand for what prompts share.
MAY_SHARE = ("plain", "burstgpt", "mooncake")
OF_FOLDERS = ("servegen", "benchmark")  # formats whose trace may be a folder


@dataclass(frozen=True)
class TraceOptions:
    """Options for reading a trace, and additions to it.

    Attributes:
        format: one of `FORMATS`; found from the content if None.
        limit: usable rows to read, from the start of the file; all if None.
        time_unit: unit of the times in the file, `s`, `ms`, `us`, `ns`, or `auto` for the first plausible unit; the
            format's unit if None.
        from_s: s after the first arrival from which requests are taken; this moment becomes time 0.
        until_s: s after the first arrival until which requests are taken; `limit` counts within the window.
        time_scale: factor on arrival times, above 0.
        slo_mix: class weights for requests without a class, such as `critical:0.2,standard:0.8`.
        prefix_model: common beginnings of prompts, if the trace has none of its own: `none`, `shared:TOKENS`,
            `groups:NUMBER:TOKENS[:SHARE]` or `sessions`.
        strict: refuse malformed rows instead of leaving them out.
        seed: seed of all draws for the trace, 0 to 2^63 − 1.
        block_size: tokens of a hash block of the trace, not of the engine's KV block; the format's if None.
        header: path of TraceV2's header if it is not beside the rows.
        horizon_us: µs from which arrivals are left out.
        stage: number of a run in a benchmark file with several runs, from 0.
    """

    format: str | None = None
    limit: int | None = None
    time_unit: str | None = None
    from_s: float | None = None
    until_s: float | None = None
    time_scale: float = 1.0
    slo_mix: str | None = None
    prefix_model: str | None = None
    strict: bool = False
    seed: int = 42
    block_size: int | None = None
    header: str | None = None
    horizon_us: int | None = None
    stage: int | None = None


@dataclass(frozen=True)
class Trace:
    """The requests of a trace and the notes on reading them."""

    rows: TraceRows
    format: str
    report: Report
    is_drawn: bool = False  # whether another seed makes other requests of it


def read_trace(path: str | Path, wanted: TraceOptions | None = None) -> Trace:
    """Return the recorded requests in a file or a folder.

    Args:
        path: the file, which may be packed with gzip, bzip2 or xz, or the folder of a ServeGen trace.
        wanted: how to read the trace; defaults if None.

    Returns:
        The requests by arrival, ties in the order of the file, with the format and the notes on reading.

    Raises:
        ConfigError: the file cannot be read, its format is not recognised, or no row can be used.
    """
    wanted = wanted or TraceOptions()
    path = Path(path)
    _check(wanted)
    name = format_of(sniff(path), wanted.format)
    has_window = wanted.from_s is not None or wanted.until_s is not None
    reading = Reading(
        limit=None if has_window else wanted.limit,
        seed=wanted.seed,
        block_size=wanted.block_size,
        horizon_us=wanted.horizon_us,
        header=wanted.header,
        time_unit=wanted.time_unit,
        stage=wanted.stage,
    )
    rows, reading = times.read_in_unit(lambda how: _read(path, name, how), reading)
    report = reading.report
    if wanted.strict:
        report.refuse_bad(path)
    if not len(rows):
        raise _nothing_usable(path, name, reading)
    num_late = int(np.count_nonzero(np.diff(rows.arrival_us) < 0))
    if num_late and DELAY not in rows.others:
        report.notes.append(
            f"{num_late} rows came earlier than the row above; all are sorted by arrival"
        )
    if num_late and (repeated := num_repeated(rows)) >= 0.4 * len(rows):
        report.notes.append(
            f"{repeated} rows have the time and the lengths of another row: if the file was joined with itself, take "
            "them out"
        )
    report.notes += _unsaid(rows, wanted, report)
    rows = _placed_in_time(by_arrival(rows), wanted, reading)
    if name in MAY_SHARE and wanted.prefix_model is None:
        wanted = _with_sessions(rows, wanted, report)
    rows, is_drawn = _completed(rows, wanted, report)
    return Trace(rows, name, report, is_drawn or name == "servegen")


def format_of(sniffed: Sniff, name: str | None = None) -> str:
    """Return the format's name: the given one, else the first that recognises the content."""
    if name is not None:
        if name not in FORMATS:
            raise ConfigError(f"trace format {name!r} is not one of {', '.join(FORMATS)}")
        return name
    for each in FORMATS:
        if module_of(each).matches(sniffed):
            return each
    raise ConfigError(_why_unknown(sniffed))


def _why_unknown(sniffed: Sniff) -> str:
    """Return what a file or folder of no known format lacks, and what to do about it."""
    if not sniffed.path.is_dir() and not sniffed.lines:
        return f"{sniffed.path} is empty; give a trace with a header, or objects, and one request per line"
    columns = [*sniffed.objects[0]] if sniffed.objects else sniffed.names
    if sniffed.lines and (lacking := lacks(columns)) is not None:
        return f"{sniffed.path} is no trace that can be replayed: {lacking}"
    if sniffed.lines and (what := foreign(sniffed.lines[0])) is not None:
        return f"{sniffed.path} is no trace: {what}"
    hint = f"give --trace-format, one of {', '.join(FORMATS)}"
    if sniffed.lines and sniffed.lines[0].lstrip().startswith("{"):
        hint += "; if its requests are a list within an object, write that list alone (jq .requests FILE)"
    return f"the format of {sniffed.path} is not recognised ({_first_sight(sniffed)}); {hint}"


def _first_sight(sniffed: Sniff) -> str:
    """Return a description of a file or folder of no known format."""
    if sniffed.path.is_dir():
        return "it is a folder without chunk-*-trace.csv"
    start = sniffed.lines[0][:MOST_SHOWN].strip()
    return f"it begins with {start!r}" if start.isprintable() else "it is not a text"


def module_of(name: str) -> Any:
    """Return the module, or the object in a module, that reads and writes a format."""
    module, _, part = FORMATS[name].partition(":")
    return getattr(import_module(module), part) if part else import_module(module)


def _read(path: Path, name: str, reading: Reading) -> TraceRows:
    if path.is_dir() and name not in OF_FOLDERS:
        raise ConfigError(f"{path} is a folder, but a {name} trace is a file; give its path")
    try:
        return module_of(name).read(path, reading)
    except NOT_WHOLE as error:
        raise ConfigError(f"{path} is not a whole packed file ({error})") from None


def _nothing_usable(path: Path, name: str, reading: Reading) -> ConfigError:
    report = reading.report
    first = (
        f" ({report.first_bad[0].place}: {report.first_bad[0].reason})" if report.num_bad else ""
    )
    failed = next((note for note in report.notes if "failed requests" in note), None)
    if failed is not None:
        return ConfigError(
            f"{path}, read as {name}, has no request that was answered{first}: {failed}"
        )
    if not report.num_bad and not report.notes:
        return ConfigError(
            f"{path}, read as {name}, has no request; give a trace with one per line"
        )
    is_late = re.search(r" is [0-9]{10}[0-9.e+]*, not a number", first) is not None
    unit = (
        ""
        if reading.time_unit is None or not is_late
        else ", or --time-unit if its times are in another unit"
    )
    return ConfigError(
        f"{path}, read as {name}, has no usable request{first}; "
        f"give --trace-format if it is another format{unit}"
    )


def _check(wanted: TraceOptions) -> None:
    for name, value in (("--limit", wanted.limit), ("--trace-block-size", wanted.block_size)):
        if value is not None and value < 1:
            raise ConfigError(f"{name} must be at least 1, got {value}")
    if wanted.time_unit not in (None, *times.TIME_UNITS):
        raise ConfigError(
            f"--time-unit: got {wanted.time_unit!r}, allowed is one of {', '.join(times.TIME_UNITS)}"
        )
    if not 0 <= wanted.seed < 2**63:
        raise ConfigError(f"--seed must be between 0 and 2^63 - 1, got {wanted.seed}")


def _unsaid(rows: TraceRows, wanted: TraceOptions, report: Report) -> list[str]:
    """Return notes on columns without effect and on implausible values of a trace."""
    notes = []
    if report.unread:
        plural = "s" if len(report.unread) > 1 else ""
        notes.append(
            f"column{plural} without effect: {', '.join(list(report.unread)[:MOST_NAMED])}"
        )
    if repeated := len(rows) - np.unique(rows.request_id).size:
        notes.append(repeated_ids(repeated))
    if num_silent := int(np.count_nonzero(rows.output_len == 0)):
        notes.append(
            f"{num_silent} requests have no output token: they end with their prompt, and their TTFT counts"
        )
    if (single := single_tokens(rows.output_len)) is not None:
        notes.append(single)
    if DELAY not in rows.others and (num_early := options.turns_before_their_time(rows)):
        notes.append(
            f"{num_early} later turns arrive before the turn before them, though their prompts may begin with its "
            "answer; are their numbers or their times right?"
        )
    num_short, num_later = options.short_turns(rows)
    if 2 * num_short > num_later and wanted.prefix_model != "deltas":
        notes.append(
            f"{num_short} of {num_later} later turns have a shorter prompt than the turn before: if rows hold only "
            "the new tokens of a turn, give --prefix-model deltas"
        )
    return notes


def _placed_in_time(rows: TraceRows, wanted: TraceOptions, reading: Reading) -> TraceRows:
    """Return the rows in the requested time window, moved to begin near time 0; implausible times are noted."""
    odd = times.remark(rows, reading.time_unit)
    rows, moved = times.from_zero(rows)
    cut = times.window(rows, wanted.from_s, wanted.until_s)
    reading.report.notes += [note for note in (odd, moved, times.lonely_gap(cut)) if note]
    return cut if cut is rows else cut.take(np.arange(len(cut))[: wanted.limit])


def _with_sessions(rows: TraceRows, wanted: TraceOptions, report: Report) -> TraceOptions:
    """Return the options, with the prefix model `sessions` if the trace's later turns hold the whole conversation."""
    num_short, num_later = options.short_turns(rows)
    if not num_later or 2 * num_short > num_later or rows.tells_what_is_shared:
        return wanted
    report.notes.append(
        "a later turn of a session begins with what was said before, as in a chat (--prefix-model sessions; turns so "
        f"read: {num_later}); --prefix-model none keeps turns apart"
    )
    return replace(wanted, prefix_model="sessions")


def _completed(rows: TraceRows, wanted: TraceOptions, report: Report) -> tuple[TraceRows, bool]:
    """Return the rows with the additions that the options request, and whether any of the additions was drawn."""
    rows = options.scale_time(rows, wanted.time_scale)
    is_drawn = False
    if wanted.slo_mix is not None:
        weights = options.parse_slo_mix(wanted.slo_mix)
        if rows.slo_class.all():
            report.notes.append("--slo-mix has no effect: the trace gives every request a class")
        is_drawn = not rows.slo_class.all() and len(weights) > 1
        rows = options.mix_classes(rows, weights, wanted.seed)
    if wanted.prefix_model is not None:
        model = options.parse_prefix_model(wanted.prefix_model)
        if rows.tells_what_is_shared and wanted.prefix_model != "none":
            report.notes.append("--prefix-model has no effect: the trace says what prompts share")
        elif not rows.tells_what_is_shared:
            others = {key: rows.others[key] for key in rows.others if key != ROW_PREFIX}
            rows = replace(model(rows, wanted.seed), others=others)
            is_drawn |= wanted.prefix_model.startswith("groups")
    return rows, is_drawn
