"""`python -m blis_jax.calibrate TRACE`: latency coefficients fitted to a measured run."""

from __future__ import annotations

import sys
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from blis_jax import progress
from blis_jax.backend import prepare_backend
from blis_jax.cluster.config import ClusterConfig
from blis_jax.commands import cli
from blis_jax.commands.cli import Notes
from blis_jax.commands.options import CommandOptions, FigureOption, OverwriteSwitch, option, word
from blis_jax.commands.options.outputs import OutputPaths, output_path, outputs_of, write_files
from blis_jax.errors import ConfigError, closest
from blis_jax.files.atomic_write import write_json

if TYPE_CHECKING:
    from blis_jax.calibrate.calibration import Calibration, CalibrationPlan
    from blis_jax.traces.measured.run import MeasuredRun
    from blis_jax.traces.measured.sent import Summary

NAME = "blis_jax.calibrate"
USUAL_OUTPUT, USUAL_TERMS = "out/calibration.json", "alpha0,beta0,beta1,beta2"
_DESCRIPTION = """\
Fit the coefficients of the step-time model to the TTFT, TPOT and E2E of a real server. The fit
follows derivatives through the simulator, from several starts, and simulates without the reference's
defects.
TRACE is recognised by its content: the result of `vllm bench serve --save-result --save-detailed`,
GuideLLM's benchmarks.json, SGLang's bench_serving --output-details, inference-perf's
per_request_lifecycle_metrics.json, AIPerf's profile_export.jsonl, a TraceV2 trace of BLIS's observe,
the requests.jsonl of vLLM's engine (one object a line with input_toks, output_toks, queued_ts,
first_token_ts and last_token_ts), a CSV with arrival_us, input_tokens, output_tokens, ttft_ms and
e2e_ms, or a folder of one of them. Prints a verdict, the coefficients with intervals, what the run
cannot tell, and the errors of mean, P50, P90 and P99, also for requests that were held out.
A result with figures only, such as that of `vllm bench serve` without --save-detailed, cannot be fitted
to. --predicted compares a simulation with it.
"""
_EXAMPLES = """\
examples:
  fit on the first 150 requests, predict the others, with a cost per token of context:
    %(prog)s runs/llama-3.1-8b --fit-first 150 --context-term

  from the result file of a benchmark, of whose server the file says little:
    %(prog)s vllm-10qps.json --max-num-running-reqs 128 --total-kv-blocks 20000 --output fit.json

  the same server at another pace: how well the fit predicts a run that it has not seen:
    %(prog)s vllm-14qps.json --coefficients-from fit.json

  strategies compared on what is known of the server:
    python -m sweeps.compare iter00_baseline iter05_simplified --coefficients-from fit.json

exit codes: 0 done; 2 input that cannot be used, nothing was written.
"""


class _Trace(CommandOptions, title="trace"):
    """Options for reading the run."""

    format: str | None = option(
        cli.one_of( "vllm-bench", "trace-v2", "latency-csv", "vllm-bench-serve", "sglang-bench-serving", "guidellm",
        "inference-perf", "aiperf", "genai-perf", "llm-d-benchmark-report", ), None, "NAME",
        "TRACE's format, where its content does not show it; vllm-bench is the engine's requests.jsonl",
    )  # fmt: skip
    stage: int | None = option(
        cli.at_least(0), None, "N", "which run of a TRACE with several, from 0"
    )
    warm_up: int = option(
        cli.at_least(0),
        0,
        "N",
        "requests at the beginning that arrive, but are not measured: a cold start",
    )


class _Predicted(CommandOptions, title="prediction, in place of a fit"):
    """Options for predicting with known coefficients in place of a fit, and comparing with the run."""

    coefficients_from: str | None = option(
        str, None, "FIT", "fit nothing: the errors of this fit on TRACE"
    )
    predicted: str | None = option(
        str, None, "RUN", "fit nothing: the errors of the figures in a result of blis_jax.run --results-path",
    )  # fmt: skip


class _Fit(CommandOptions, title="fit"):
    """Options for which coefficients are fitted, and how."""

    fit_first: int | None = option(
        cli.whole, None, "N", "fit on the first N requests, predict the others"
    )
    terms: str | None = option(
        str, None, "LIST",
        "coefficients to fit; those left out are 0. alpha0, alpha1: µs before the queue per request and prompt "
        "token; alpha2: per output token; beta0: per step; beta1, beta2: per prefill and decode token; beta3: "
        "per token of context, of the latency model blackbox-context", shown=USUAL_TERMS,
    )  # fmt: skip
    context_term: bool | None = option(
        cli.truth, None, "BOOL", "fit beta3 of blackbox-context too", shown=False
    )
    starts: int | None = option(cli.whole, None, "N", "starting points", shown=8)
    explore: bool | None = option(
        cli.truth, None, "BOOL",
        "intervals over all fits that do nearly as well, of a form with a cost of context too; two to three "
        "times the simulations", shown=True,
    )  # fmt: skip
    random_state: int | None = option(
        cli.at_least(0), None, "N", "seed of the starting points", shown=0
    )


class _Server(CommandOptions, title="server, where the run's own files are silent or wrong"):
    """Settings of the server that was measured."""

    num_instances: int | None = option(cli.whole, None, "N", "engines behind one router")
    routing_policy: str | None = option(
        str, None, "NAME", "how requests find an engine (default: least-loaded)"
    )
    max_num_running_reqs: int | None = option(
        cli.whole, None, "N", "most requests in the running batch"
    )
    max_num_scheduled_tokens: int | None = option(cli.whole, None, "N", "token budget of one step")
    long_prefill_token_threshold: int | None = option(
        cli.whole, None, "N", "most prompt tokens in a step"
    )
    block_size_in_tokens: int | None = option(cli.whole, None, "N", "tokens of a KV block")
    total_kv_blocks: int | None = option(cli.whole, None, "N", "KV blocks of one instance")


class _Output(FigureOption, title="output"):
    """Options for the file with the result, and for the log."""

    output: str | None = option(
        str, None, "FILE", "result, to be read by --coefficients-from", shown=USUAL_OUTPUT
    )
    log: str = option(cli.one_of(*cli.LOG_LEVELS), "warn", "LEVEL", "how much to say")


class CalibrateOptions(
    _Trace, _Fit, _Predicted, _Server, _Output, OverwriteSwitch,
    command=NAME, usage="%(prog)s TRACE [options]", description=_DESCRIPTION, examples=_EXAMPLES,
):  # fmt: skip
    """Options of the command."""

    trace: str | None = word("TRACE", "the measured run")


def main(arguments: Sequence[str] | None = None) -> int:
    """Run the command; the exit code."""
    return cli.run_command(NAME, _command, arguments)


def _command(arguments: Sequence[str] | None) -> int:
    options = CalibrateOptions.read(arguments)
    if options.trace is None:
        raise ConfigError("TRACE is missing; give the file or folder of a measured run, see --help")
    prepare_backend()
    trace = Path(options.trace)
    if options.coefficients_from is not None or options.predicted is not None:
        return _predict(options, trace)
    paths = outputs_of(options, USUAL_OUTPUT)
    notes = Notes(NAME, options.log)
    plan = _plan(options)
    run = _run(options, trace, plan.num_fitted)

    from blis_jax.calibrate.calibration import calibrate
    from blis_jax.traces.measured import run as measured_run

    server = _server(options)
    config = _config(run, server)
    stated = measured_run.silent(run.settings, server, run.notes)
    with progress.phase("fitting", plan.num_starts, "starts") as work:
        found = calibrate(
            run,
            config,
            plan,
            lambda number, cost: work.show(
                number + 1, f"start {number + 1} ended at cost {cost:.2f}"
            ),
        )
    _write(found, stated, paths)
    for remark in dict.fromkeys([*stated, *found.remarks]):
        notes.warn(remark)
    return 0


def _run(options: CalibrateOptions, trace: Path, num_fitted: int | None = None) -> MeasuredRun:
    from blis_jax.traces.measured.sent import Summary, no_requests

    found = _read(options, trace, num_fitted)
    if isinstance(found, Summary):
        from blis_jax.calibrate.report import how_to_predict

        raise ConfigError(f"{no_requests(str(trace), found)}; {how_to_predict(found.load)}")
    return found


def _read(
    options: CalibrateOptions, trace: Path, num_fitted: int | None = None
) -> MeasuredRun | Summary:
    from blis_jax.traces.measured.recorded import read_result
    from blis_jax.traces.measured.sent import Summary

    found = read_result(trace, options.format, num_fitted, options.stage)
    if isinstance(found, Summary):
        if options.warm_up:
            raise ConfigError(
                f"--warm-up: {trace} has no requests to leave out; leave the option out"
            )
        return found
    return found.warmed_up(options.warm_up)


def _predict(options: CalibrateOptions, trace: Path) -> int:
    """Errors of a prediction; a result file only where one was asked for, and no figure."""
    from blis_jax.calibrate import report

    _refuse_beside_prediction(options)
    output = None
    if options.output is not None:
        output = output_path(options.output, "--output", (".json",), options.overwrite)
    if options.predicted is not None:
        found = report.by_run(_read(options, trace), Path(options.predicted), str(trace))
    else:
        from blis_jax.calibrate.posterior import load

        run = _run(options, trace)
        fit = load(Path(str(options.coefficients_from)))
        found = report.by_fit(run, fit, _server(options), str(trace))
    print(found.text())
    if output is not None:
        with cli.writing(output):
            write_json(output, found.document())
        print(f"Written: {output}")
    notes = Notes(NAME, options.log)
    for remark in dict.fromkeys(found.remarks):
        notes.warn(remark)
    return 0


def _refuse_beside_prediction(options: CalibrateOptions) -> None:
    given_options = options.given()
    idle = {"figure", *_Fit.of(given_options).given()}
    if options.predicted is not None:
        idle |= {"coefficients_from", *_server(options)}
    first = "coefficients-from" if options.predicted is None else "predicted"
    for name in sorted(idle):
        if name in given_options:
            raise ConfigError(
                f"--{name.replace('_', '-')} has no meaning beside --{first}; leave one of them out"
            )


def _plan(options: CalibrateOptions) -> CalibrationPlan:
    from blis_jax.calibrate.calibration import CalibrationPlan
    from blis_jax.calibrate.posterior import ALL_TERMS

    text = USUAL_TERMS if options.terms is None else options.terms
    terms = [part.strip() for part in text.split(",") if part.strip()]
    if options.context_term and "beta3" not in terms:
        terms.append("beta3")
    for term in terms:
        if term not in ALL_TERMS:
            known = ", ".join(ALL_TERMS)
            raise ConfigError(
                f"--terms: {term!r} is unknown; use some of {known}{closest(term, ALL_TERMS)}"
            )
    if "beta0" not in terms and "beta2" not in terms:
        raise ConfigError("--terms: without beta0 or beta2 decode steps take no time; add one")
    starts = 8 if options.starts is None else options.starts
    if not 1 <= starts <= 1000:
        raise ConfigError(f"--starts: got {starts}, allowed is 1 to 1000")
    ordered = tuple(term for term in ALL_TERMS if term in terms)
    return CalibrationPlan(
        ordered, options.fit_first, starts, options.random_state or 0, options.explore is not False
    )


def _config(run: MeasuredRun, server: Mapping[str, Any]) -> ClusterConfig:
    from blis_jax.traces.measured.run import AS_VLLM, cluster_values

    return ClusterConfig(**cluster_values(run.settings, server), **AS_VLLM)


def _server(options: CalibrateOptions) -> dict[str, Any]:
    """Return the options that say how the server was set, by name."""
    return _Server.of(options.given()).given()


def _write(found: Calibration, stated: Sequence[str], paths: OutputPaths) -> None:
    from blis_jax.calibrate.calibration import to_document
    from blis_jax.calibrate.report import draw, text

    written = write_files(
        [
            (paths.result, lambda path: write_json(path, to_document(found, stated))),
            (paths.figure, lambda path: draw(found, path)),
        ]
    )
    print(text(found))
    print(f"Written: {', '.join(map(str, written))}")


if __name__ == "__main__":
    sys.exit(main())
