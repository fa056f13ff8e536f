"""`blis-jax calibrate TRACE`: latency coefficients fitted to a measured run."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Any, ClassVar

from blis_jax.backend import prepare_backend
from blis_jax.commands import cli, values
from blis_jax.commands.options import (
    AllSwitch,
    CommandOptions,
    FigureOption,
    OverwriteSwitch,
    option,
    word,
)
from blis_jax.errors import ConfigError

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
Where TRACE has the times of an engine's steps, the step law is fitted to these instead: Dynamo's
fpm_metrics_detail.csv or a folder of several, the lines of vLLM's --enable-logging-iteration-details,
or a table (CSV, Parquet) with a row for each step. Prints the errors on steps that were held out.
A result with figures only, such as that of `vllm bench serve` without --save-detailed, cannot be fitted
to. --predicted compares a simulation with it.
"""
_EXAMPLES = """\
examples:
  fit on the first 150 requests, predict the others, with a cost per token of context:
    %(prog)s runs/llama-3.1-8b --fit-first 150 --context-term

  from the result file of a benchmark, of whose server the file says little:
    %(prog)s vllm-10qps.json --max-num-seqs 128 --num-gpu-blocks 20000 --output fit.json

  the same server at another pace: how well the fit predicts a run that it has not seen:
    %(prog)s vllm-14qps.json --coefficients-from fit.json

  from the steps of an engine, and the errors on other steps, each row with its predicted_ms:
    %(prog)s first.parquet --output steps.json
    %(prog)s second.parquet --coefficients-from steps.json --output errors.csv

  likewise on a model that was not measured, from its description, with an interval:
    %(prog)s other.parquet --coefficients-from steps.json --model-config config.json --output errors.csv

  one and two of that server compared, on what is known of it:
    blis-jax compare one=vllm:num_instances=1 two=vllm:num_instances=2 --coefficients-from fit.json

exit codes: 0 done; 2 input that cannot be used, nothing was written.
"""


class _Trace(CommandOptions, title="trace"):
    """Options for reading the run."""

    format: str | None = option(
        values.OneOf( "vllm-bench", "trace-v2", "latency-csv", "vllm-bench-serve", "sglang-bench-serving", "guidellm",
        "inference-perf", "aiperf", "genai-perf", "llm-d-benchmark-report", ), None, "NAME",
        "TRACE's format, where its content does not show it; vllm-bench is the engine's requests.jsonl",
    )  # fmt: skip
    stage: int | None = option(
        values.at_least(0), None, "N", "which run of a TRACE with several, from 0"
    )
    warm_up: int = option(
        values.at_least(0),
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
        str, None, "RUN", "fit nothing: the errors of the figures in a result of blis-jax run --results-path",
    )  # fmt: skip


class _Fit(CommandOptions, title="fit"):
    """Options for which coefficients are fitted, and how."""

    fit_first: int | None = option(
        values.whole, None, "N", "fit on the first N requests, predict the others"
    )
    terms: str | None = option(
        str, None, "LIST",
        "coefficients to fit; those left out are 0. alpha0, alpha1: µs before the queue per request and prompt "
        "token; alpha2: per output token; beta0: per step; beta1, beta2: per prefill and decode token; beta3: "
        "per token of context, of the latency model blackbox-context", shown=USUAL_TERMS,
    )  # fmt: skip
    context_term: bool | None = option(
        values.truth, None, "BOOL", "fit beta3 of blackbox-context too", shown=False
    )
    starts: int | None = option(values.whole, None, "N", "starting points", shown=8)
    explore: bool | None = option(
        values.truth, None, "BOOL",
        "make intervals from all fits that do nearly as well, also of a form with a cost per token of context; "
        "takes two to three times the simulations", shown=True,
    )  # fmt: skip
    random_state: int | None = option(
        values.at_least(0), None, "N", "seed of the starting points", shown=0
    )
    residual: str | None = option(
        str,
        None,
        "FILE:NAME",
        "function that corrects the step law, such as surrogate/step_network.py:network",
    )


class _Server(CommandOptions, title="server, where the run's own files are silent or wrong"):
    """Settings of the server that was measured."""

    num_instances: int | None = option(values.whole, None, "N", "engines behind one router")
    routing_policy: str | None = option(
        str, None, "NAME", "how requests find an engine (default: least-loaded)"
    )
    max_num_running_reqs: int | None = option(
        values.whole, None, "N", "most requests in the running batch"
    )
    max_num_scheduled_tokens: int | None = option(
        values.whole, None, "N", "token budget of one step"
    )
    long_prefill_token_threshold: int | None = option(
        values.whole, None, "N", "most prompt tokens in a step"
    )
    block_size_in_tokens: int | None = option(values.whole, None, "N", "tokens of a KV block")
    total_kv_blocks: int | None = option(values.whole, None, "N", "KV blocks of one instance")


class _Engine(CommandOptions, title="engine, where measured steps do not name it"):
    """What ran the steps that were measured."""

    model: str | None = option(str, None, "NAME", "the model, as the engine calls it")
    tp: int | None = option(values.whole, None, "N", "GPUs that share the model's tensors")
    dp: int | None = option(values.whole, None, "N", "ranks of data parallelism")
    ep: int | None = option(
        values.whole, None, "N", "GPUs that share the experts; 1 without expert parallelism"
    )


class _Described(CommandOptions, title="models whose steps were not measured"):
    """What a model is that is predicted from its description."""

    model_config: str | None = option(
        str, None, "FILE", "config.json of the steps' model, where it has no shipped description"
    )
    hardware: str | None = option(
        str, None, "GPU", "GPU that ran the steps; the law from descriptions has its speeds", shown="B300",
    )  # fmt: skip


class _Output(FigureOption, title="output"):
    """Options for the file with the result, and for the log."""

    output: str | None = option(
        str, None, "FILE", "result, to be read by --coefficients-from", shown=USUAL_OUTPUT
    )
    log: str = option(values.OneOf(*cli.LOG_LEVELS), "warn", "LEVEL", "how much to say")


class CalibrateOptions(
    _Trace, _Fit, _Predicted, _Server, _Engine, _Described, _Output, AllSwitch, OverwriteSwitch,
    command=NAME, usage="%(prog)s TRACE [options]", description=_DESCRIPTION, examples=_EXAMPLES,
):  # fmt: skip
    """Options of the command."""

    usual_output: ClassVar[str] = USUAL_OUTPUT
    usual_terms: ClassVar[str] = USUAL_TERMS

    trace: str | None = word("TRACE", "the measured run")

    def of_fit(self) -> dict[str, Any]:
        """Return the options that were given of the fit, by name."""
        return _Fit.of(self.given()).given()

    def server(self) -> dict[str, Any]:
        """Return the options that say how the server was set, by name."""
        return _Server.of(self.given()).given()

    def engine(self) -> dict[str, Any]:
        """Return the options that say what ran measured steps, by name."""
        return _Engine.of(self.given()).given()

    def described(self) -> dict[str, Any]:
        """Return the options for models that are predicted from descriptions, by name."""
        return _Described.of(self.given()).given()


@CalibrateOptions.as_main
def main(options: CalibrateOptions) -> int:
    """Run the command; return its exit code."""
    if options.trace is None:
        raise ConfigError("TRACE is missing; give the file or folder of a measured run, see --help")
    prepare_backend()

    from blis_jax.commands.calibrate import fit_or_predict

    return fit_or_predict(options, Path(options.trace))


if __name__ == "__main__":
    sys.exit(main())
