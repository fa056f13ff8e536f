"""`blis-jax evaluate`: a strategy and its parameters to metrics, as JSON, for optimisers of any kind.

From Python, `evaluate(strategy="iter08_token_budget", parameters={"max_tokens": 1024})`.
"""

from __future__ import annotations

import sys
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from blis_jax.backend import prepare_backend
from blis_jax.commands.options import (
    OverwriteSwitch,
    SchedulerOption,
    option,
    switch,
    trace_flags,
    word,
)
from blis_jax.commands.options.outputs import PageOption, output_path, page_path
from blis_jax.commands.options.trace_flags import StudyTrace
from blis_jax.errors import ConfigError
from blis_jax.files.atomic_write import json_text
from blis_jax.lazy import Module

if TYPE_CHECKING:
    from sweeps.search import answering
else:
    answering = Module("sweeps.search.answering")

NAME = "sweeps.evaluate"

_DESCRIPTION = """\
Evaluate strategies for an optimiser outside: a JSON request comes from a file or standard input, a
JSON answer goes to standard output or --output. A request names a strategy and what to change:

  {"strategy": NAME | PATH | CONTENT,   of a strategy file          or  {"arm": TEXT}, see
   "point": NAME,                       one of its named points         blis-jax compare --help
   "parameters": {NAME: VALUE, ...},    the strategy's parameters
   "settings": {NAME: VALUE, ...},      any settings of the cluster
   "workload": NAME | PATH | CONTENT,   instead of the strategy's
   "trace": {"trace": FILE, "time_scale": F, "trace_windows": N, ...},   instead of a workload
   "num_requests": N, "seeds": [...], "rng": "reference" | "jax",
   "metrics": ["ttft_p99_ms[critical]", ...], "targets": {CLASS: {"ttft_ms": MS}},
   "id": ANYTHING}                      given back

All but strategy or arm may be left out; {"requests": [...]} is a batch. The answer has, per metric,
mean, interval and the value of every seed, the same by class, the strategy's score with objectives
and penalties, the outcome of every seed, failure (null, or code, message and seeds), the resolved
configuration, and versions. There is no NaN: what does not exist is null. A request that is refused
has an answer with error, and the exit code is 2. --schema prints the JSON schema of all this.
"""
_EXAMPLES = """\
examples:
  one request, one answer:
    echo '{"strategy": "iter08_token_budget", "parameters": {"max_tokens": 1024}}' | %(prog)s

  a stream for an optimiser: one request a line, one answer a line, programs stay compiled:
    %(prog)s --jsonl < requests.jsonl > answers.jsonl

  a batch from a file, and a page that compares its requests with the first of them:
    %(prog)s batch.json --output out/answers.json --report out/answers.html
"""


class EvaluateOptions(
    StudyTrace, PageOption, OverwriteSwitch, SchedulerOption,
    title="output", command=NAME, description=_DESCRIPTION, examples=_EXAMPLES,
):  # fmt: skip
    """Options of the command; the trace is for requests that name neither workload nor trace."""

    request: str | None = word("REQUEST", "a .json file, or - for stdin")
    output: str | None = option(str, None, "PATH", "write the answer to a .json file instead")
    jsonl: bool = switch("read one request a line until the end, answer each at once")
    compile_programs: bool = switch(
        "compile each router of a file; by default those that fit are tables of operations in one program"
    )
    schema: bool = switch("print the JSON schema of requests and answers")
    no_cache: bool = switch()


def evaluate(
    strategy: str | Path | Mapping[str, Any] | None = None,
    parameters: Mapping[str, Any] | None = None,
    *,
    arm: str | None = None,
    point: str | None = None,
    settings: Mapping[str, Any] | None = None,
    workload: str | Path | Mapping[str, Any] | None = None,
    trace: str | Path | Mapping[str, Any] | None = None,
    num_requests: int | None = None,
    seeds: Sequence[int] | None = None,
    rng: str = "reference",
    metrics: Sequence[str] | None = None,
    targets: Mapping[str, Mapping[str, float]] | None = None,
) -> dict[str, Any]:
    """Return the answer to one request, in the command's schema; ConfigError if it is refused.

    `trace` is a path, or the options of a trace by name with underscores, `trace` being the path.

    Times are in ms, rates per second. Requests drawn and programs compiled are kept for later calls;
    where JAX is not imported yet, it is set up as for the command.
    """
    request = {
        "strategy": str(strategy) if isinstance(strategy, Path) else strategy,
        "parameters": dict(parameters or {}),
        "arm": arm,
        "point": point,
        "settings": dict(settings or {}),
        "workload": str(workload) if isinstance(workload, Path) else workload,
        "trace": _trace_keys(trace),
        "num_requests": num_requests,
        "seeds": list(seeds) if seeds is not None else None,
        "rng": rng,
        "metrics": list(metrics) if metrics is not None else None,
        "targets": {name: dict(target) for name, target in targets.items()} if targets else None,
    }
    prepare_backend()
    (answer,) = answering.the_evaluator().answers([request], ["request"])
    if answer["error"] is not None:
        raise ConfigError(answer["error"])
    return answer


def _trace_keys(trace: str | Path | Mapping[str, Any] | None) -> dict[str, Any] | None:
    if isinstance(trace, Mapping):
        return {**trace, "trace": str(trace["trace"])} if "trace" in trace else dict(trace)
    return {"trace": str(trace)} if trace is not None else None


# --- the command ----------------------------------------------------------------------------------


@EvaluateOptions.as_main
def main(options: EvaluateOptions) -> int:
    """Run the command; return its exit code."""
    if options.schema:
        from sweeps.search.request_schema import schema

        print(json_text(schema()))
        return 0
    source = options.request or "-"
    output = _output(options)
    page = page_path(options.report, options.overwrite)
    if page is not None and options.jsonl:
        raise ConfigError(
            "--report: it compares the requests of one batch; --jsonl answers each by itself"
        )
    if source == "-" and sys.stdin.isatty():
        raise ConfigError("no request is given; give a .json file, or one on standard input")
    trace = StudyTrace.of(options.given()).given() or None
    trace_flags.check(trace or ())
    prepare_backend(use_cache=not options.no_cache)
    return answering.answer_requests(options, source, trace, output, page, options.line())


def _output(options: EvaluateOptions) -> Path | None:
    if options.output is None:
        return None
    if options.jsonl:
        raise ConfigError("--output: --jsonl answers on standard output, line by line; redirect it")
    return output_path(options.output, "--output", (".json",), options.overwrite)


if __name__ == "__main__":
    sys.exit(main())
