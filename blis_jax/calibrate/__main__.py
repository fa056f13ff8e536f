"""`python -m blis_jax.calibrate TRACE`: latency coefficients fitted to a measured run."""

from __future__ import annotations

import sys
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from blis_jax import progress
from blis_jax.backend import prepare_backend
from blis_jax.commands import cli
from blis_jax.commands.cli import Flag, Notes, Parser
from blis_jax.errors import ConfigError, closest
from blis_jax.files.overwriting import SWITCH, refuse_existing

if TYPE_CHECKING:
    from blis_jax.calibrate.calibration import Calibration, CalibrationPlan
    from blis_jax.calibrate.formats.contract import Summary
    from blis_jax.calibrate.measured_run import MeasuredRun
    from blis_jax.cluster.config import ClusterConfig

NAME = "blis_jax.calibrate"
_DESCRIPTION = """\
Fit the coefficients of the step-time model to the TTFT, TPOT and E2E of a real server. The fit
follows derivatives through the simulator, from several starts, and simulates without the reference's
defects.
TRACE is recognised by its content: the result of `vllm bench serve --save-result --save-detailed`,
GuideLLM's benchmarks.json, inference-perf's per_request_lifecycle_metrics.json, AIPerf's
profile_export.jsonl, a TraceV2 trace of BLIS's observe, the requests.jsonl of vLLM's engine (one object
a line with input_toks, output_toks, queued_ts, first_token_ts and last_token_ts), a CSV with arrival_us,
input_tokens, output_tokens, ttft_ms and e2e_ms, or a folder of one of them. Prints the coefficients
with intervals, what the run cannot tell, and the errors of mean, P50, P90 and P99, also for requests
that were held out.
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
_TRACE = (
    Flag(
        "format",
        cli.one_of(
            *("vllm-bench", "trace-v2", "latency-csv"),
            *("vllm-bench-serve", "guidellm", "inference-perf", "aiperf"),
        ),
        None,
        "NAME",
        "TRACE's format, where its content does not show it; vllm-bench is the engine's requests.jsonl",
    ),
    Flag("stage", cli.at_least(0), None, "N", "which run of a TRACE with several, from 0"),
)
_PREDICTION = (
    Flag("coefficients-from", str, None, "FIT", "fit nothing: the errors of this fit on TRACE"),
    Flag(
        "predicted",
        str,
        None,
        "RUN",
        "fit nothing: the errors of the figures in a result of blis_jax.run --results-path",
    ),
)
_FIT = (
    Flag("fit-first", cli.whole, None, "N", "fit on the first N requests, predict the others"),
    Flag(
        "terms",
        str,
        "alpha0,beta0,beta1,beta2",
        "LIST",
        "coefficients to fit; those left out are 0. alpha0, alpha1: µs before the queue per request and "
        "prompt token; alpha2: per output token; beta0: per step; beta1, beta2: per prefill and decode "
        "token; beta3: per token of context, of the latency model blackbox-context",
    ),
    Flag("context-term", cli.truth, False, "BOOL", "fit beta3 of blackbox-context too"),
    Flag("starts", cli.whole, 8, "N", "starting points"),
    Flag(
        "explore",
        cli.truth,
        True,
        "BOOL",
        "intervals over all fits that do nearly as well, of a form with a cost of context too; two to three "
        "times the simulations",
    ),
    Flag("random-state", cli.at_least(0), 0, "N", "seed of the starting points"),
)
_SERVER = (
    Flag("num-instances", cli.whole, None, "N", "engines behind one router"),
    Flag(
        "routing-policy", str, None, "NAME", "how requests find an engine (default: least-loaded)"
    ),
    Flag("max-num-running-reqs", cli.whole, None, "N", "most requests in the running batch"),
    Flag("max-num-scheduled-tokens", cli.whole, None, "N", "token budget of one step"),
    Flag("long-prefill-token-threshold", cli.whole, None, "N", "most prompt tokens in a step"),
    Flag("block-size-in-tokens", cli.whole, None, "N", "tokens of a KV block"),
    Flag("total-kv-blocks", cli.whole, None, "N", "KV blocks of one instance"),
)
_OUTPUT = (
    Flag(
        "output", str, "out/calibration.json", "FILE", "result, to be read by --coefficients-from"
    ),
    Flag("figure", str, None, "FILE", "PNG, or none (default: beside the result)"),
    Flag("log", cli.one_of(*cli.LOG_LEVELS), "warn", "LEVEL", "how much to say"),
)


def main(arguments: Sequence[str] | None = None) -> int:
    """Run the command; the exit code."""
    return cli.run_command(NAME, _command, arguments)


def _parser() -> Parser:
    parser = Parser(
        prog=f"python -m {NAME}",
        usage="%(prog)s TRACE [options]",
        description=_DESCRIPTION,
        epilog=_EXAMPLES,
    )
    parser.add_argument("trace", metavar="TRACE", nargs="?", help="the measured run")
    parser.add_flags("trace", _TRACE)
    parser.add_flags("fit", _FIT)
    parser.add_flags("prediction, in place of a fit", _PREDICTION)
    parser.add_flags("server, where the run's own files are silent or wrong", _SERVER)
    parser.add_flags("output", _OUTPUT)
    parser.add_switches("switches", SWITCH)
    return parser


def _command(arguments: Sequence[str] | None) -> int:
    given = _parser().given(sys.argv[1:] if arguments is None else arguments)
    if "trace" not in given:
        raise ConfigError("TRACE is missing; give the file or folder of a measured run, see --help")
    prepare_backend()
    if "coefficients_from" in given or "predicted" in given:
        return _predict(given)
    output, figure = cli.result_paths(given, "out/calibration.json")
    refuse_existing(given, {"--output": output, "--figure": figure})
    notes = Notes(NAME, given.get("log", "warn"))
    plan = _plan(given)
    run = _run(given, plan.num_fitted)

    from blis_jax.calibrate import settings
    from blis_jax.calibrate.calibration import calibrate

    config = _config(run, given)
    stated = settings.silent(run.settings, given, run.notes)
    with progress.phase("fitting", plan.num_starts, "starts") as work:
        found = calibrate(
            run,
            config,
            plan,
            lambda number, cost: work.show(
                number + 1, f"start {number + 1} ended at cost {cost:.2f}"
            ),
        )
    _write(found, stated, output, figure)
    for remark in dict.fromkeys([*stated, *found.remarks]):
        notes.warn(remark)
    return 0


def _run(given: Mapping[str, Any], num_fitted: int | None = None) -> MeasuredRun:
    from blis_jax.calibrate.formats.contract import Summary
    from blis_jax.calibrate.measured import no_requests

    found = _read(given, num_fitted)
    if isinstance(found, Summary):
        from blis_jax.calibrate.prediction import how_to_predict

        raise ConfigError(f"{no_requests(given['trace'], found)}; {how_to_predict(found.load)}")
    return found


def _read(given: Mapping[str, Any], num_fitted: int | None = None) -> MeasuredRun | Summary:
    from blis_jax.calibrate.measured import read_result

    return read_result(Path(given["trace"]), given.get("format"), num_fitted, given.get("stage"))


def _predict(given: Mapping[str, Any]) -> int:
    """Errors of a prediction; a result file only where one was asked for, and no figure."""
    from blis_jax.calibrate import prediction

    _refuse_beside_prediction(given)
    output = None
    if "output" in given:
        output, _ = cli.result_paths({**given, "figure": "none"}, "")
        refuse_existing(given, {"--output": output})
    if "predicted" in given:
        found = prediction.by_run(_read(given), Path(given["predicted"]), given["trace"])
    else:
        from blis_jax.calibrate.intervals.posterior import load

        run = _run(given)
        fit = load(Path(given["coefficients_from"]))
        found = prediction.by_fit(run, fit, _server(given), given["trace"])
    print(found.text())
    if output is not None:
        from blis_jax.files.atomic_write import write_json

        with cli.writing(output):
            write_json(output, found.document())
        print(f"Written: {output}")
    notes = Notes(NAME, given.get("log", "warn"))
    for remark in dict.fromkeys(found.remarks):
        notes.warn(remark)
    return 0


def _refuse_beside_prediction(given: Mapping[str, Any]) -> None:
    first = "predicted" if "predicted" in given else "coefficients_from"
    idle = {flag.name for flag in (*_FIT, Flag("figure", str, None, "FILE", ""))}
    if first == "predicted":
        idle |= {"coefficients-from", *(flag.name for flag in _SERVER)}
    for name in sorted(idle):
        if name.replace("-", "_") in given:
            raise ConfigError(
                f"--{name} has no meaning beside --{first.replace('_', '-')}; leave one of them out"
            )


def _plan(given: Mapping[str, Any]) -> CalibrationPlan:
    from blis_jax.calibrate.calibration import CalibrationPlan
    from blis_jax.calibrate.intervals.posterior import ALL_TERMS

    text = given.get("terms", "alpha0,beta0,beta1,beta2")
    terms = [part.strip() for part in text.split(",") if part.strip()]
    if given.get("context_term") and "beta3" not in terms:
        terms.append("beta3")
    for term in terms:
        if term not in ALL_TERMS:
            known = ", ".join(ALL_TERMS)
            raise ConfigError(
                f"--terms: {term!r} is unknown; use some of {known}{closest(term, ALL_TERMS)}"
            )
    if "beta0" not in terms and "beta2" not in terms:
        raise ConfigError("--terms: without beta0 or beta2 decode steps take no time; add one")
    starts = given.get("starts", 8)
    if not 1 <= starts <= 1000:
        raise ConfigError(f"--starts: got {starts}, allowed is 1 to 1000")
    ordered = tuple(term for term in ALL_TERMS if term in terms)
    return CalibrationPlan(
        ordered,
        given.get("fit_first"),
        starts,
        given.get("random_state", 0),
        given.get("explore", True),
    )


def _config(run: MeasuredRun, given: Mapping[str, Any]) -> ClusterConfig:
    from blis_jax.calibrate.settings import AS_VLLM, cluster_values
    from blis_jax.cluster.config import ClusterConfig

    return ClusterConfig(**cluster_values(run.settings, _server(given)), **AS_VLLM)


def _server(given: Mapping[str, Any]) -> dict[str, Any]:
    """The options that say how the server was set."""
    names = [flag.name.replace("-", "_") for flag in _SERVER]
    return {name: given[name] for name in names if name in given}


def _write(found: Calibration, stated: Sequence[str], output: Path, figure: Path | None) -> None:
    from blis_jax.calibrate.calibration import to_document
    from blis_jax.calibrate.report import text
    from blis_jax.files.atomic_write import write_json

    with cli.writing(output):
        write_json(output, to_document(found, stated))
    written = [output]
    if figure is not None:
        from blis_jax.calibrate.figure import draw

        with cli.writing(figure):
            draw(found, figure)
        written.append(figure)
    print(text(found))
    print(f"Written: {', '.join(map(str, written))}")


if __name__ == "__main__":
    sys.exit(main())
