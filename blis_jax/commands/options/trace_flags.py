"""Options about traces, for `blis-jax run` and the commands that study strategies."""

from __future__ import annotations

from collections.abc import Collection, Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

from blis_jax import lazy, progress
from blis_jax.commands import cli, values
from blis_jax.commands.cli import Notes
from blis_jax.commands.options import CommandOptions, option
from blis_jax.errors import ConfigError, as_option
from blis_jax.files.atomic_write import refuse_existing
from blis_jax.traces import rows

if TYPE_CHECKING:
    from blis_jax.cluster.config import ClusterConfig
    from blis_jax.traces import read as reading
    from blis_jax.traces import source
    from blis_jax.workload.table import RequestTable, WorkloadNames
else:  # `--help` does not wait for them
    reading = lazy.Module("blis_jax.traces.read")
    source = lazy.Module("blis_jax.traces.source")

FORMAT_NAMES = (
    "mooncake",
    "azure",
    "burstgpt",
    "servegen",
    "trace-v2",
    "trace-v3",
    "blis-csv",
    "vidur",
    "plain",
    "benchmark",
)
WITH_UNITS = ("mooncake", "burstgpt", "blis-csv", "vidur", "plain")  # whose times are numbers
TIME_UNITS = ("s", "ms", "us", "ns", "auto")
DEFAULT_SEED = 42  # the reference's
TRACES = "traces"  # the reference's name of a workload read from its CSV format
_NEEDS_TRACE = (
    "trace_format",
    "trace_header",
    "trace_block_size",
    "trace_stage",
    "time_unit",
    "from_",
    "until",
    "time_scale",
    "limit",
    "slo_mix",
    "prefix_model",
    "strict",
)


class GivenTrace(CommandOptions, title="trace"):
    """A recorded trace, and how it is read."""

    trace: str | None = option(
        str, None, "FILE", "recorded trace, or a benchmark's result; a folder for ServeGen"
    )
    trace_format: str | None = option(
        values.OneOf(*FORMAT_NAMES), None, "NAME",
        f"{', '.join(FORMAT_NAMES)}; detected if not given",
    )  # fmt: skip
    trace_header: str | None = option(
        str, None, "FILE", "YAML header of a TraceV2 trace; the file beside it if not given"
    )
    trace_block_size: int | None = option(
        values.whole, None, "N", "tokens that one hash id of a Mooncake trace stands for", shown=512
    )
    trace_stage: int | None = option(
        values.whole, None, "N", "run of a benchmark file that holds several, from 0"
    )
    time_unit: str | None = option(
        values.OneOf(*TIME_UNITS), None, "UNIT",
        "unit of the trace's times: s, ms, us, ns, or auto for the first that can be true (default: the format's)",
    )  # fmt: skip
    from_: float | None = option(
        values.number, None, "S", "take the requests from S seconds after the first one on, which becomes time 0",
    )  # fmt: skip
    until: float | None = option(
        values.number, None, "S", "take the requests before S seconds after the first one"
    )
    time_scale: float | None = option(
        values.number, None, "F", "factor on arrival times; 0.5 doubles the rate", shown=1.0
    )
    limit: int | None = option(
        values.whole, None, "N", "usable rows to read, from the start of the file or of --from"
    )
    slo_mix: str | None = option(
        str, None, "MIX", "class weights for requests without a class: critical:0.2,standard:0.5,sheddable:0.3",
    )  # fmt: skip
    prefix_model: str | None = option(
        str, None, "MODEL", "which prompts begin alike, if the trace does not say: none, shared:TOKENS, "
        "groups:NUMBER:TOKENS[:SHARE], sessions, deltas (a turn's row holds its new tokens only); if not given, "
        "sessions for a mooncake, burstgpt or plain trace that has them, else none",
    )  # fmt: skip
    strict: bool | None = option(
        values.truth, None, "BOOL", "refuse a trace with malformed rows", shown=False
    )


class StudyTrace(GivenTrace, title="trace"):
    """A trace that a study runs whole or in windows."""

    trace_windows: int | None = option(
        values.at_least(1), None, "N",
        "cut the trace into N equal spans of arrivals, each a run of its own that begins on an idle cluster",
        also="windows",
    )  # fmt: skip


def _trace_file(text: str) -> str:
    """Return the .csv file for a name with or without that ending, as BLIS does."""
    return text if text.endswith(".csv") else f"{text}.csv"


def output_option() -> Any:
    """Declare `--trace-output`."""
    words = (
        "the run as a TraceV2 trace: PREFIX.csv with its header PREFIX.yaml; PREFIX may end in .csv"
    )
    return option(_trace_file, None, "PREFIX", words)


def renamed(named: Mapping[str, Any]) -> dict[str, Any]:
    """Replace BLIS's `--workload traces` by the equivalent options of this program.

    Raises:
        ConfigError: the file is missing, or given without `--workload traces`, or `--trace` is
            given too.
    """
    renamed = dict(named)
    if named.get("workload") != TRACES:
        if "workload_traces_filepath" in named:
            raise ConfigError(
                f"--workload-traces-filepath has no meaning without --workload {TRACES}; "
                "give the file with --trace"
            )
        return renamed
    if "trace" in named:
        raise ConfigError(f"--trace and --workload {TRACES} are both given; give one of them")
    if "workload_traces_filepath" not in named:
        raise ConfigError(
            f"--workload {TRACES} needs a file; give it with --workload-traces-filepath"
        )
    del renamed["workload"]
    renamed["trace"] = renamed.pop("workload_traces_filepath")
    renamed.setdefault("trace_format", "blis-csv")
    # these options replay BLIS, --trace stands for real servers
    renamed.setdefault("corrected", False)
    return renamed


def check(given: Collection[str]) -> None:
    """Refuse trace options without a trace, and a second source of requests; `given` names the options given."""
    if "trace" in given:
        for name in ("workload_spec", "requests", "workload"):
            if name in given:
                raise ConfigError(f"--trace and {as_option(name)} are both given; give one of them")
        return
    for name in (*_NEEDS_TRACE, "trace_windows"):
        if name in given:
            raise ConfigError(f"{as_option(name)} has no meaning without --trace; leave it out")


def check_output(output: str | None, overwrite: bool) -> None:
    """Refuse a path to which the trace cannot be written."""
    if output is not None:
        path = Path(output)
        for file in (path, path.with_suffix(".yaml")):
            cli.check_writable(file)
            refuse_existing({"--trace-output": file}, overwrite)


def study_source(
    options: StudyTrace,
    command: str,
    *,
    usual_windows: int | None = None,
    is_quiet: bool,
    allowed: Collection[str] = (),
    follows: bool = True,
) -> source.TraceSource | None:
    """Return the trace of a study, None if none is given.

    With a trace, options about drawn requests are refused unless `allowed` names them. `follows` says whether, in the
    command's runs, a session's next request waits for the answer to the last.
    """
    named = options.given()
    check(named)
    if options.trace is None:
        return None
    for name, instead in _OF_DRAWN.items():
        if name in named and name not in allowed:
            raise ConfigError(f"{as_option(name)} has no meaning with --trace; {instead}")
    windows = options.trace_windows
    if windows is None and not {"seeds", "num_seeds"} & set(named):
        windows = usual_windows
    made = source.TraceSource(Path(options.trace), trace_options(options), windows)
    notes = Notes(command, "error" if is_quiet else "info")
    _say(options, made.trace, notes)
    if made.waits and not follows:
        notes.warn(
            "turns with a delay arrive here as if the answers before them took no time; run and compare let them wait"
        )
    return made


_OF_DRAWN = {
    "num_requests": "--limit cuts the trace",
    "rng": "its requests are not drawn; leave it out",
    "rate": "--time-scale changes how fast its requests come",
    "shape": "the trace is the shape",
    "arrival_cv": "its arrivals are as bursty as recorded",
    "duration": "--limit cuts the trace",
}


def read(
    options: GivenTrace, notes: Notes, seed: int = DEFAULT_SEED, horizon_us: int | None = None
) -> reading.Trace:
    """Read the trace given by --trace; report malformed rows and remarks on stderr."""
    assert options.trace is not None
    with progress.phase(f"reading {options.trace}"):
        trace = reading.read_trace(Path(options.trace), trace_options(options, seed, horizon_us))
    _say(options, trace, notes)
    return trace


def trace_options(
    options: GivenTrace, seed: int = DEFAULT_SEED, horizon_us: int | None = None
) -> reading.TraceOptions:
    """Return the options for reading the trace."""
    return reading.TraceOptions(
        format=options.trace_format,
        limit=options.limit,
        time_unit=options.time_unit,
        from_s=options.from_,
        until_s=options.until,
        time_scale=1.0 if options.time_scale is None else options.time_scale,
        slo_mix=options.slo_mix,
        prefix_model=options.prefix_model,
        strict=bool(options.strict),
        seed=seed,
        block_size=options.trace_block_size,
        header=options.trace_header,
        horizon_us=horizon_us,
        stage=options.trace_stage,
    )


def _say(options: GivenTrace, trace: reading.Trace, notes: Notes) -> None:
    notes.block(trace.report.lines())
    for note in trace.report.notes:
        notes.warn(note)
    for name, value, formats in (
        ("trace-header", options.trace_header, ("trace-v2", "trace-v3")),
        ("trace-block-size", options.trace_block_size, ("mooncake",)),
        ("trace-stage", options.trace_stage, ("benchmark",)),
        ("time-unit", options.time_unit, WITH_UNITS),
    ):
        if value is not None and trace.format not in formats:
            notes.warn(f"--{name} has no effect on a {trace.format} trace")
    notes.info(f"{len(trace.rows)} requests read as {trace.format}")


def to_table(trace: reading.Trace, config: ClusterConfig) -> tuple[RequestTable, WorkloadNames]:
    """Return the requests as a table at the engine's block size, with shared prompt prefixes; and their names."""
    with progress.phase("counting what prompts share"):
        return rows.to_table(trace.rows, config.block_size_in_tokens)


def provenance(options: GivenTrace, seed: int) -> dict[str, Any]:
    """Return the entries of a results file about the trace."""
    named = options.given()
    chosen = {name: named[name] for name in _NEEDS_TRACE if name in named}
    return {"trace_options": chosen | {"seed": seed}} if options.trace is not None else {}
