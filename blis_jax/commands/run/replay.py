"""`blis-jax replay`: BLIS's command `replay` of August 2026, a TraceV2 trace on one cluster."""

from __future__ import annotations

import json
import sys
import tempfile
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from blis_jax import lazy
from blis_jax.cluster import offload_tiers
from blis_jax.cluster.config import ClusterConfig
from blis_jax.cluster.disaggregation import OF_ONE_POOL
from blis_jax.cluster.node_pools import AUTOSCALER, POOLS
from blis_jax.commands import cli, values
from blis_jax.commands.august_files import devices_of, options_of
from blis_jax.commands.cli import Notes
from blis_jax.commands.options import CommandOptions, OverwriteSwitch, option, trace_flags
from blis_jax.commands.parser import Parser
from blis_jax.commands.run.flags import RunOptions, add_options
from blis_jax.errors import ConfigError, as_option
from blis_jax.files.atomic_write import refuse_existing, write_json
from blis_jax.traces.formats.trace_v3 import header_of
from blis_jax.traces.read import TraceOptions, read_trace
from blis_jax.traces.rows import Report
from blis_jax.workload.source import REVISED

if TYPE_CHECKING:
    from blis_jax.commands.run import one_run
    from blis_jax.traces import closed_loop
    from blis_jax.workload.reference.generate import DrawnWorkload
else:  # `--help` does not wait for them
    one_run = lazy.Module("blis_jax.commands.run.one_run")
    closed_loop = lazy.Module("blis_jax.traces.closed_loop")

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


class _Replay(CommandOptions, title="replay"):
    """Options for the trace, its replay, and the files written."""

    trace_header: str | None = option(str, None, "FILE", "YAML header of the trace")
    trace_data: str | None = option(str, None, "FILE", "rows of the trace (CSV)")
    seed: int = option(
        values.whole, trace_flags.DEFAULT_SEED, "N", "seed of whatever policies draw"
    )
    horizon: int | None = option(
        values.whole, None, "US", "µs after which the simulation stops; if not given twice the last arrival",
    )  # fmt: skip
    results_path: str | None = option(
        str, None, "FILE", "file for the latencies of completed requests, a JSON list"
    )
    metrics_path: str | None = option(
        str, None, "FILE", "file for the figures and every request (JSON)"
    )
    session_mode: str = option(
        values.OneOf("fixed", "closed-loop"), "fixed", "NAME",
        "fixed: later rounds of sessions arrive as recorded; closed-loop: when the round before is answered",
    )  # fmt: skip
    think_time_ms: int | None = option(
        values.whole, None, "MS", "closed-loop: ms from answer to next round; if not given the trace's", shown=0,
    )  # fmt: skip
    think_time_dist: str | None = option(
        str,
        None,
        "LAW",
        "closed-loop: law of the time from answer to next round, such as lognormal:mu=2.0,sigma=0.6,max=30s",
    )
    lazy_generation: bool = option(values.truth, False, "BOOL", "without effect, as in BLIS")
    log: str = option(values.OneOf(*cli.LOG_LEVELS), "warn", "LEVEL", "how much is said on stderr")
    trace_output: str | None = trace_flags.output_option()


class ReplayOptions(_Replay, OverwriteSwitch):
    """Options of `replay` that `run` lacks or reads differently."""


def main(arguments: Sequence[str] | None = None) -> int:
    """Run the command; return its exit code."""
    return cli.run_command(NAME, _command, arguments)


def _command(arguments: Sequence[str] | None) -> int:
    parser = Parser(
        prog=f"python -m {NAME}",
        usage="%(prog)s --trace-header FILE --trace-data FILE --model NAME [options]",
        description=_DESCRIPTION,
        epilog=_EXAMPLES,
    )
    add_options(parser, (_Replay,), (OverwriteSwitch,))
    named = parser.given(arguments)
    options = ReplayOptions.of(named)
    notes = Notes(NAME, options.log)
    cli.silence_warnings(options.log)
    as_run, users = _as_run(named), _users(options)
    if as_run["variant"] == REVISED:
        _refuse(as_run)
        as_run |= _tiers(as_run)
    if as_run.pop("fitness_weights", None) is not None:
        notes.warn(
            "--fitness-weights has no effect in replay, as in BLIS; `run --trace` prints a fitness"
        )
    if users is not None:
        if not users.sessions:
            notes.warn("--session-mode closed-loop has no effect: the trace has no sessions")
        last = max(request.arrival_us for request in users.requests)
        as_run["horizon"] = closed_loop.end_of(last) if options.horizon is None else options.horizon
    if options.results_path is None:
        return one_run.simulate_one(RunOptions.of(as_run), notes, users)
    results = Path(options.results_path)
    cli.check_writable(results)
    refuse_existing({"--results-path": results}, options.overwrite)
    with tempfile.TemporaryDirectory() as folder:
        metrics = {"results_path": str(Path(folder) / "metrics.json")} | as_run
        code = one_run.simulate_one(RunOptions.of(metrics), notes, users)
        if code == 0:
            document = json.loads(Path(metrics["results_path"]).read_text(encoding="utf-8"))
            with cli.writing(results):
                write_json(results, latencies(document.get("requests", ())))
    return code


def _as_run(named: Mapping[str, Any]) -> dict[str, Any]:
    """Return the options under the names that `run` has for them."""
    for name in ("trace_header", "trace_data"):
        if name not in named:
            raise ConfigError(f"{as_option(name)} is missing; give the file")
    if "model" not in named:
        raise ConfigError("--model is missing; give the model that the instances serve")
    options = {"variant": REVISED, "trace_format": "trace-v3", **named}
    options["trace"] = options.pop("trace_data")
    for name in (
        "results_path",
        "session_mode",
        "think_time_ms",
        "think_time_dist",
        "lazy_generation",
    ):
        options.pop(name, None)
    if "metrics_path" in options:
        options["results_path"] = options.pop("metrics_path")
    options.setdefault("horizon", _horizon_us(options))
    return options


def _refuse(options: Mapping[str, Any]) -> None:
    """Refuse the options that BLIS's `replay` refuses, although its `run` uses or ignores them."""
    machines = (
        options_of(options["policy_config"]).get("instances", {})
        if "policy_config" in options
        else {}
    )
    sections = [name for name in (POOLS, AUTOSCALER) if machines.get(name)]
    if sections == [AUTOSCALER] and not (machines[AUTOSCALER] or {}).get("interval_us"):
        sections = []
    refused = [f"{name} in --policy-config" for name in sections]
    if "model_autoscaler_interval_us" in options:
        refused.append("--model-autoscaler-interval-us")
    if refused:
        raise ConfigError(
            f"{refused[0]}: a replay keeps its instances, as in BLIS; leave it out, or give run --trace FILE"
        )
    decider = options.get("pd_decider") or "never"
    if "pd_prefix_threshold" in options and decider != "prefix-threshold":
        raise ConfigError(
            f"--pd-prefix-threshold has no effect with --pd-decider {decider}, and BLIS's replay refuses it; leave it "
            "out, or give --pd-decider prefix-threshold"
        )
    idle = [name for name in OF_ONE_POOL if name in options]
    if (idle or decider != "never") and not options.get("prefill_instances"):
        name = "pd_decider" if decider != "never" else idle[0]
        raise ConfigError(
            f"{as_option(name)} has no effect without --prefill-instances, and BLIS's replay refuses it; give "
            "--prefill-instances and --decode-instances, or leave it out"
        )


def _tiers(options: Mapping[str, Any]) -> dict[str, Any]:
    """Return the off-load tiers in the trace's header, which a replay uses in place of options, as BLIS does."""
    named, path = options.get("kv_offload_config"), str(options["trace_header"])
    header = header_of(Path(path))
    size = options.get("block_size_in_tokens", ClusterConfig.block_size_in_tokens)
    devices = devices_of(options.get("defaults_filepath"))
    given = None if named is None else offload_tiers.given_config(named, devices)
    block = None if header is None else header.kv_offload
    if not block:
        if given is not None and header is not None and header.mode != "real":
            raise ConfigError(
                f"--kv-offload-config: {path} has no kv_offload, and BLIS's replay adds no tiers to a simulated run; "
                "leave it out, or give run --trace FILE"
            )
        return {}
    recorded = offload_tiers.of_header(block, f"{path}: kv_offload")
    asked, had = (offload_tiers.header_of(one or recorded, size, 0) for one in (given, recorded))
    if asked != had:
        raise ConfigError(
            f"--kv-offload-config: {named} is not what {path} has as kv_offload, which counts in a replay, as in BLIS; "
            "leave it out"
        )
    return {"kv_offload_config": recorded}


def _horizon_us(settings: Mapping[str, Any]) -> int:
    """Return twice the last arrival, µs; warnings about the trace come later, when the run reads it again."""
    wanted = TraceOptions(format=settings["trace_format"], header=settings["trace_header"])
    return closed_loop.end_of(int(read_trace(settings["trace"], wanted).rows.arrival_us[-1]))


def _users(options: ReplayOptions) -> DrawnWorkload | None:
    """Return the trace as a workload whose later rounds wait for answers; None if rounds arrive as recorded."""
    think_ms, law = options.think_time_ms, options.think_time_dist
    if think_ms is not None and think_ms < 0:
        raise ConfigError(f"--think-time-ms must be at least 0, got {think_ms}")
    if think_ms is not None and law is not None:
        raise ConfigError("--think-time-ms and --think-time-dist are both given; give one of them")
    if options.session_mode != "closed-loop":
        for name, value in (("--think-time-ms", think_ms), ("--think-time-dist", law)):
            if value:
                raise ConfigError(f"{name} needs --session-mode closed-loop; leave it out")
        return None
    text = f"constant:value={think_ms}ms" if think_ms else law
    return closed_loop.closed_loop_of_trace(
        str(options.trace_data),
        str(options.trace_header),
        options.seed,
        Report(),
        None if text is None else closed_loop.parse_think_time(text),
        options.horizon,
    )


def latencies(requests: Sequence[Mapping[str, Any]]) -> list[dict[str, Any]]:
    """Return the entry that BLIS's calibrate reads for each completed request, by request number; times in µs."""
    rows = []
    for request in requests:
        number = request["requestID"].removeprefix("request_")
        if not request["e2e_ms"] or not number.isdecimal():
            continue
        words = {name: request[name] for name in ("slo_class", "model") if request.get(name)}
        rows.append(
            {
                "request_id": int(number),
                "ttft_us": round(request["ttft_ms"] * 1000),
                "e2e_us": round(request["e2e_ms"] * 1000),
                "input_tokens": request["num_prefill_tokens"],
                "output_tokens": request["num_decode_tokens"],
                **words,
                **({"itl_mean_us": request["itl_ms"] * 1000} if request["itl_ms"] else {}),
            }
        )
    return sorted(rows, key=lambda request: request["request_id"])


if __name__ == "__main__":
    sys.exit(main())
