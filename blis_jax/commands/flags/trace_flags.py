"""Options that concern traces, of `blis_jax.run` and of the commands that study strategies."""

from __future__ import annotations

from collections.abc import Collection, Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

from blis_jax import progress
from blis_jax.commands import cli
from blis_jax.commands.cli import Flag, Notes
from blis_jax.errors import ConfigError
from blis_jax.files.overwriting import refuse_existing

if TYPE_CHECKING:
    from blis_jax.cluster.config import ClusterConfig
    from blis_jax.results.records import RunRecord
    from blis_jax.results.scores.goodput import Limits
    from blis_jax.traces.read import Trace, TraceOptions
    from blis_jax.traces.source import TraceSource
    from blis_jax.workload.spec import WorkloadSpec
    from blis_jax.workload.table import RequestTable, WorkloadNames

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
)
DEFAULT_SEED = 42  # the reference's
TRACES = "traces"  # the reference's name of a workload read from its CSV format
_NEEDS_TRACE = (
    "trace_format",
    "trace_header",
    "trace_block_size",
    "time_scale",
    "limit",
    "slo_mix",
    "prefix_model",
    "strict",
)

FLAGS = (
    Flag("trace", str, None, "FILE", "recorded trace to simulate; a folder for ServeGen"),
    Flag(
        "workload-traces-filepath",
        str,
        None,
        "FILE",
        "trace of --workload traces, as in BLIS: --trace FILE --trace-format blis-csv",
    ),
    Flag(
        "trace-format",
        cli.one_of(*FORMAT_NAMES),
        None,
        "NAME",
        f"format of the trace: {', '.join(FORMAT_NAMES)}; detected if not given",
    ),
    Flag(
        "trace-header",
        str,
        None,
        "FILE",
        "YAML header of a TraceV2 trace; the file beside it if not given",
    ),
    Flag(
        "trace-block-size",
        cli.whole,
        512,
        "N",
        "tokens that one hash id of a Mooncake trace stands for",
    ),
    Flag("time-scale", cli.number, 1.0, "F", "factor on arrival times; 0.5 doubles the rate"),
    Flag("limit", cli.whole, None, "N", "usable rows to read, from the start of the file"),
    Flag(
        "slo-mix",
        str,
        None,
        "MIX",
        "class weights for requests without a class: critical:0.2,standard:0.5,sheddable:0.3",
    ),
    Flag(
        "prefix-model",
        str,
        "none",
        "MODEL",
        "which prompts begin alike, if the trace does not say: none, shared:TOKENS, "
        "groups:NUMBER:TOKENS[:SHARE], sessions",
    ),
    Flag("strict", cli.truth, False, "BOOL", "refuse a trace with malformed rows"),
)
WINDOWS = Flag(
    "trace-windows/windows",
    cli.at_least(1),
    None,
    "N",
    "cut the trace into N equal spans of arrivals, each a run of its own that begins on an idle cluster",
)
STUDY_FLAGS = (*(flag for flag in FLAGS if flag.name != "workload-traces-filepath"), WINDOWS)
STUDY_NAMES = tuple(flag.name.partition("/")[0].replace("-", "_") for flag in STUDY_FLAGS)


def _trace_file(text: str) -> str:
    """The .csv file of a trace, which is named or stands for a prefix, as in BLIS."""
    return text if text.endswith(".csv") else f"{text}.csv"


OUTPUT_FLAG = Flag(
    "trace-output",
    _trace_file,
    None,
    "PREFIX",
    "the run as a TraceV2 trace: PREFIX.csv with its header PREFIX.yaml; PREFIX may end in .csv",
)


def renamed(given: Mapping[str, Any]) -> dict[str, Any]:
    """The options with the reference's `--workload traces` as what it means here."""
    renamed = dict(given)
    if given.get("workload") != TRACES:
        if "workload_traces_filepath" in given:
            raise ConfigError(
                f"--workload-traces-filepath has no meaning without --workload {TRACES}; "
                "give the file with --trace"
            )
        return renamed
    if "trace" in given:
        raise ConfigError(f"--trace and --workload {TRACES} are both given; give one of them")
    if "workload_traces_filepath" not in given:
        raise ConfigError(
            f"--workload {TRACES} needs a file; give it with --workload-traces-filepath"
        )
    del renamed["workload"]
    renamed["trace"] = renamed.pop("workload_traces_filepath")
    renamed.setdefault("trace_format", "blis-csv")
    return renamed


def check(given: Mapping[str, Any]) -> None:
    """Refuse trace options that nothing would use."""
    if "trace" in given:
        for name in ("workload_spec", "requests", "workload"):
            if name in given:
                raise ConfigError(f"--trace and --{_dashed(name)} are both given; give one of them")
        return
    for name in (*_NEEDS_TRACE, "trace_windows"):
        if name in given:
            raise ConfigError(f"--{_dashed(name)} has no meaning without --trace; leave it out")


def check_output(given: Mapping[str, Any]) -> None:
    """Refuse a place that the written trace cannot have."""
    if "trace_output" in given:
        path = Path(given["trace_output"])
        for file in (path, path.with_suffix(".yaml")):
            cli.check_writable(file)
            refuse_existing(given, {"--trace-output": file})


def study_source(
    given: Mapping[str, Any],
    command: str,
    usual_windows: int | None = None,
    allowed: Collection[str] = (),
) -> TraceSource | None:
    """The trace of a study, None if none is given; options that draw requests are refused beside it.

    But for those that are `allowed`, which mean something for a trace, too.
    """
    from blis_jax.traces.source import TraceSource

    check(given)
    if "trace" not in given:
        return None
    for name, instead in _OF_DRAWN.items():
        if name in given and name not in allowed:
            raise ConfigError(f"--{_dashed(name)} has no meaning with --trace; {instead}")
    windows = given.get(
        "trace_windows", None if {"seeds", "num_seeds"} & set(given) else usual_windows
    )
    source = TraceSource(Path(given["trace"]), _options({**given, "seed": DEFAULT_SEED}), windows)
    _say(given, source.trace, Notes(command, "error" if "quiet" in given else "info"))
    return source


_OF_DRAWN = {
    "num_requests": "--limit cuts the trace",
    "rng": "its requests are not drawn; leave it out",
    "rate": "--time-scale changes how fast its requests come",
    "shape": "the trace is the shape",
    "arrival_cv": "its arrivals are as bursty as recorded",
    "duration": "--limit cuts the trace",
}


def read(given: Mapping[str, Any], notes: Notes) -> Trace:
    """The trace that was asked for; malformed rows and remarks go to stderr."""
    from blis_jax.traces.read import read_trace

    with progress.phase(f"reading {given['trace']}"):
        trace = read_trace(Path(given["trace"]), _options(given))
    _say(given, trace, notes)
    return trace


def _options(given: Mapping[str, Any]) -> TraceOptions:
    from blis_jax.traces.read import TraceOptions

    return TraceOptions(
        format=given.get("trace_format"),
        limit=given.get("limit"),
        time_scale=given.get("time_scale", 1.0),
        slo_mix=given.get("slo_mix"),
        prefix_model=given.get("prefix_model"),
        strict=given.get("strict", False),
        seed=given.get("seed", DEFAULT_SEED),
        block_size=given.get("trace_block_size", 512),
        header=given.get("trace_header"),
        horizon_us=given.get("horizon"),
    )


def _say(given: Mapping[str, Any], trace: Trace, notes: Notes) -> None:
    notes.block(trace.report.lines())
    for note in trace.report.notes:
        notes.warn(note)
    for name, formats in (
        ("trace_header", ("trace-v2", "trace-v3")),
        ("trace_block_size", ("mooncake",)),
    ):
        if name in given and trace.format not in formats:
            notes.warn(f"--{_dashed(name)} has no effect on a {trace.format} trace")
    notes.info(f"{len(trace.rows)} requests read as {trace.format}")


def to_table(trace: Trace, config: ClusterConfig) -> tuple[RequestTable, WorkloadNames]:
    """The requests at the engine's block size."""
    from blis_jax.traces.to_table import to_table as fold

    with progress.phase("counting what prompts share"):
        return fold(trace.rows, config.block_size_in_tokens)


def write_output(
    given: Mapping[str, Any],
    record: RunRecord,
    trace: Trace | None,
    workload: tuple[RequestTable, WorkloadNames, WorkloadSpec | None],
    limits: Limits,
    notes: Notes,
) -> None:
    """The run as a trace, if it was asked for; without a trace from its table, names and spec."""
    from blis_jax.traces.write import from_table, write_run
    from blis_jax.traces.write_revised import write_replayed

    if "trace_output" in given:
        path = Path(given["trace_output"])
        table, names, spec = workload
        clients = tuple(client.id for client in spec.clients) if spec is not None else ()
        rows = from_table(table, names, clients) if trace is None else trace.rows
        with cli.writing(path):
            if record.is_august:
                remark = write_replayed(path, record, rows, limits)
            else:
                remark = write_run(path, record, rows, given.get("workload_spec", ""))
        if remark:
            notes.warn(remark)


def provenance(given: Mapping[str, Any]) -> dict[str, Any]:
    """What the results file says about the trace."""
    chosen = {name: given[name] for name in _NEEDS_TRACE if name in given}
    chosen["seed"] = given.get("seed", DEFAULT_SEED)
    return {"trace_options": chosen} if "trace" in given else {}


def _dashed(name: str) -> str:
    return name.replace("_", "-")
