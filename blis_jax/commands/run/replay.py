"""`python -m blis_jax.commands.run.replay`: BLIS's command `replay` of August 2026, a TraceV2 trace on one cluster."""

from __future__ import annotations

import json
import sys
import tempfile
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from blis_jax.commands import cli
from blis_jax.commands.cli import Flag, Notes, Parser
from blis_jax.commands.flags import cluster_flags, trace_flags
from blis_jax.commands.run import decisions, scores
from blis_jax.commands.run.command import simulate_one
from blis_jax.commands.run.flags import REFUSED, engine_flags
from blis_jax.errors import ConfigError, UnsupportedError
from blis_jax.files.atomic_write import write_json
from blis_jax.files.overwriting import SWITCH, refuse_existing
from blis_jax.workload.versions import REVISED

if TYPE_CHECKING:
    from blis_jax.workload.reference.generate import DrawnWorkload

NAME = "blis_jax.commands.run.replay"
_DESCRIPTION = """\
Simulate one cluster on a TraceV2 trace as BLIS of August 2026 does: requests arrive when the trace says, and the run
ends at twice the time of the last arrival. `run --trace` reads traces of other formats and has no such end.
"""
_EXAMPLES = """\
examples:
  a trace that BLIS has written, on two instances:
    %(prog)s --trace-header t.yaml --trace-data t.csv --model qwen/qwen3-14b --num-instances 2

exit codes: 0 done; 2 input that cannot be used; 3 a run needs a mechanism of BLIS that is not here, or has no result.
"""
_FLAGS = (
    Flag("trace-header", str, None, "FILE", "YAML header of the trace"),
    Flag("trace-data", str, None, "FILE", "rows of the trace (CSV)"),
    Flag("seed", cli.whole, trace_flags.DEFAULT_SEED, "N", "seed of whatever policies draw"),
    Flag("horizon", cli.whole, None, "US", "µs after which the simulation stops; if not given twice the last arrival"),
    Flag("results-path", str, None, "FILE", "file for the latencies of completed requests, a JSON list"),
    Flag("metrics-path", str, None, "FILE", "file for the figures and every request (JSON)"),
    trace_flags.OUTPUT_FLAG,
    Flag(
        "session-mode",
        cli.one_of("fixed", "closed-loop"),
        "fixed",
        "NAME",
        "fixed: later rounds of sessions arrive as recorded; closed-loop: when the round before is answered",
    ),
    Flag("think-time-ms", cli.whole, 0, "MS", "closed-loop: ms from answer to next round; if not given the trace's"),
    Flag("think-time-dist", str, None, "LAW", "closed-loop: likewise, such as lognormal:mu=2.0,sigma=0.6,max=30s"),
    Flag("lazy-generation", cli.truth, False, "BOOL", "without effect, as in BLIS"),
    Flag("log", cli.one_of(*cli.LOG_LEVELS), "warn", "LEVEL", "how much is said on stderr"),
)  # fmt: skip


def main(arguments: Sequence[str] | None = None) -> int:
    """Run the command; the exit code."""
    return cli.run_command(NAME, _command, arguments)


def _command(arguments: Sequence[str] | None) -> int:
    parser = Parser(
        prog=f"python -m {NAME}",
        usage="%(prog)s --trace-header FILE --trace-data FILE --model NAME [options]",
        description=_DESCRIPTION,
        epilog=_EXAMPLES,
    )
    parser.add_flags("replay", _FLAGS)
    parser.add_flags("verdicts on the run, as BLIS of August 2026 computes them", scores.FLAGS)
    parser.add_flags("decisions of the run", decisions.FLAGS)
    cluster_flags.add_cluster_flags(parser)
    parser.add_flags("engine", engine_flags())
    parser.add_switches("switches", SWITCH)
    parser.refuse(REFUSED, unsupported=REFUSED)
    given = parser.given(arguments)
    notes = Notes(NAME, given.get("log", "warn"))
    cli.silence_warnings(given.get("log", "warn"))
    as_run, users = _as_run(given), _users(given)
    if users is not None:
        if not users.sessions:
            notes.warn("--session-mode closed-loop has no effect: the trace has no sessions")
        from blis_jax.traces.closed_loop import end_of

        last = max(request.arrival_us for request in users.requests)
        as_run["horizon"] = given.get("horizon", end_of(last))
    if "results_path" not in given:
        return simulate_one(as_run, notes, users)
    results = Path(given["results_path"])
    cli.check_writable(results)
    refuse_existing(given, {"--results-path": results})
    with tempfile.TemporaryDirectory() as folder:
        metrics = {"results_path": str(Path(folder) / "metrics.json")} | as_run
        code = simulate_one(metrics, notes, users)
        if code == 0:
            document = json.loads(Path(metrics["results_path"]).read_text(encoding="utf-8"))
            with cli.writing(results):
                write_json(results, latencies(document.get("requests", ())))
    return code


def _as_run(given: Mapping[str, Any]) -> dict[str, Any]:
    """The options as those of `run`."""
    for name in ("trace_header", "trace_data"):
        if name not in given:
            raise ConfigError(f"--{name.replace('_', '-')} is missing; give the file")
    if "model" not in given:
        raise ConfigError("--model is missing; give the model that the instances serve")
    found = {"variant": REVISED, "trace_format": "trace-v3", **given}
    found["trace"] = found.pop("trace_data")
    for name in (
        "results_path",
        "session_mode",
        "think_time_ms",
        "think_time_dist",
        "lazy_generation",
    ):
        found.pop(name, None)
    if "metrics_path" in found:
        found["results_path"] = found.pop("metrics_path")
    found.setdefault("horizon", _horizon_us(found))
    return found


def _horizon_us(found: Mapping[str, Any]) -> int:
    """Twice the last arrival; the trace is read again with the run, which says what it lacks."""
    from blis_jax.traces.closed_loop import end_of
    from blis_jax.traces.read import TraceOptions, read_trace

    wanted = TraceOptions(format=found["trace_format"], header=found["trace_header"])
    return end_of(int(read_trace(found["trace"], wanted).rows.arrival_us[-1]))


def _users(given: Mapping[str, Any]) -> DrawnWorkload | None:
    """The trace as a workload whose later rounds wait for their answers; None where they arrive as recorded."""
    thinks = [name for name in ("think_time_ms", "think_time_dist") if name in given]
    options = [f"--{name.replace('_', '-')}" for name in thinks]
    if given.get("think_time_ms", 0) < 0:
        raise ConfigError(f"--think-time-ms must be at least 0, got {given['think_time_ms']}")
    if len(thinks) > 1:
        raise ConfigError(f"{' and '.join(options)} are both given; give one of them")
    if given.get("session_mode") != "closed-loop":
        if thinks and given[thinks[0]]:
            raise ConfigError(f"{options[0]} needs --session-mode closed-loop; leave it out")
        return None
    if "trace_output" in given:
        raise UnsupportedError(
            "--trace-output beside --session-mode closed-loop is not supported yet; leave one of them out"
        )
    from blis_jax.traces.closed_loop import closed_loop_of_trace, parse_think_time
    from blis_jax.traces.rows import Report

    text = given.get("think_time_dist")
    if given.get("think_time_ms"):
        text = f"constant:value={given['think_time_ms']}ms"
    return closed_loop_of_trace(
        given["trace_data"],
        given["trace_header"],
        given.get("seed", trace_flags.DEFAULT_SEED),
        Report(),
        None if text is None else parse_think_time(text),
        given.get("horizon"),
    )


def latencies(requests: Sequence[Mapping[str, Any]]) -> list[dict[str, Any]]:
    """What BLIS's calibrate reads of each completed request, by number; times in µs."""
    found = []
    for one in requests:
        number = one["requestID"].removeprefix("request_")
        if not one["e2e_ms"] or not number.isdecimal():
            continue
        words = {name: one[name] for name in ("slo_class", "model") if one.get(name)}
        found.append(
            {
                "request_id": int(number),
                "ttft_us": round(one["ttft_ms"] * 1000),
                "e2e_us": round(one["e2e_ms"] * 1000),
                "input_tokens": one["num_prefill_tokens"],
                "output_tokens": one["num_decode_tokens"],
                **words,
                **({"itl_mean_us": one["itl_ms"] * 1000} if one["itl_ms"] else {}),
            }
        )
    return sorted(found, key=lambda one: one["request_id"])


if __name__ == "__main__":
    sys.exit(main())
