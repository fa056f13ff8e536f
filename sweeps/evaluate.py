"""`python -m sweeps.evaluate`: a strategy and its parameters to metrics, as JSON, for optimisers of any kind.

From Python, `evaluate(strategy="iter08_token_budget", parameters={"max_tokens": 1024})`.
"""

from __future__ import annotations

import functools
import json
import sys
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from blis_jax.backend import prepare_backend
from blis_jax.commands import cli
from blis_jax.commands.options import (
    OverwriteSwitch,
    option,
    switch,
    trace_flags,
    word,
)
from blis_jax.commands.options.outputs import PageOption, output_path, page_path
from blis_jax.commands.options.trace_flags import StudyTrace
from blis_jax.errors import ConfigError
from blis_jax.files import input_files
from blis_jax.files.atomic_write import json_text, write_json

if TYPE_CHECKING:
    from sweeps.search.evaluator import Evaluator

NAME = "sweeps.evaluate"

_DESCRIPTION = """\
Evaluate strategies for an optimiser outside: a JSON request comes from a file or standard input, a
JSON answer goes to standard output or --output. A request names a strategy and what to change:

  {"strategy": NAME | PATH | CONTENT,   of a strategy file          or  {"arm": TEXT}, see
   "point": NAME,                       one of its named points         sweeps.compare --help
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
    StudyTrace, PageOption, OverwriteSwitch,
    title="output", command=NAME, description=_DESCRIPTION, examples=_EXAMPLES,
):  # fmt: skip
    """Options of the command; the trace is for requests that name neither workload nor trace."""

    request: str | None = word("REQUEST", "a .json file, or - for stdin")
    output: str | None = option(str, None, "PATH", "write the answer to a .json file instead")
    jsonl: bool = switch("read one request a line until the end, answer each at once")
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
        "targets": {name: dict(one) for name, one in targets.items()} if targets else None,
    }
    (answer,) = _evaluator().answers([request], ["request"])
    if answer["error"] is not None:
        raise ConfigError(answer["error"])
    return answer


def _trace_keys(trace: str | Path | Mapping[str, Any] | None) -> dict[str, Any] | None:
    if isinstance(trace, Mapping):
        return {**trace, "trace": str(trace["trace"])} if "trace" in trace else dict(trace)
    return {"trace": str(trace)} if trace is not None else None


@functools.cache
def _evaluator() -> Evaluator:
    """One for all calls: it decides how fast an answer comes, not what it is."""
    prepare_backend()

    from sweeps.search.evaluator import Evaluator

    return Evaluator()


# --- the command ----------------------------------------------------------------------------------


def main(arguments: Sequence[str] | None = None) -> int:
    """Run the command; return its exit code."""
    return cli.run_command(NAME, _command, arguments)


def _command(arguments: Sequence[str] | None) -> int:
    options = EvaluateOptions.read(arguments)
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
    if options.jsonl:
        return _stream(source, trace)
    text = (
        sys.stdin.read() if source == "-" else input_files.read_text(Path(source), "a JSON request")
    )
    if page is not None:
        _check_batch(text)
    document, is_refused = _answered(text, trace)
    if output is None:
        print(json_text(document), flush=True)
    else:
        with cli.writing(output):
            write_json(output, document)
    if page is not None:
        _write_report(page, document, _first_trace(text, trace), cli.command_text(NAME, arguments))
    return cli.EXIT_BAD_INPUT if is_refused else 0


def _output(options: EvaluateOptions) -> Path | None:
    if options.output is None:
        return None
    if options.jsonl:
        raise ConfigError("--output: --jsonl answers on standard output, line by line; redirect it")
    return output_path(options.output, "--output", (".json",), options.overwrite)


def _answered(text: str, trace: Mapping[str, Any] | None = None) -> tuple[dict[str, Any], bool]:
    """The answer to a text, one request or a batch; and whether anything was refused."""
    from sweeps.search.evaluator import refusal

    try:
        document = read_json(text)
        if isinstance(document, dict) and "requests" in document:
            requests = [_on_trace(one, trace) for one in _batch(document)]
            wheres = [f"requests[{place}]" for place in range(len(requests))]
            answers = _evaluator().answers(requests, wheres)
            is_refused = any(answer["error"] is not None for answer in answers)
            return {"answers": answers}, is_refused
    except ConfigError as error:
        return refusal(None, str(error)), True
    (answer,) = _evaluator().answers([_on_trace(document, trace)], ["request"])
    return answer, answer["error"] is not None


def _on_trace(request: object, trace: Mapping[str, Any] | None) -> object:
    """The request with the command's trace, if it names nothing of its own."""
    if trace is None or not isinstance(request, dict) or {"workload", "trace"} & set(request):
        return request
    return {**request, "trace": dict(trace)}


def _first_trace(text: str, trace: Mapping[str, Any] | None) -> Mapping[str, Any] | None:
    """The trace of a batch's first request, as its keys; None if it has none."""
    first = _on_trace(_batch(read_json(text))[0], trace)
    return first.get("trace") if isinstance(first, dict) else None


def _check_batch(text: str) -> None:
    """Refuses, before anything is simulated, what has nothing to compare."""
    document = read_json(text)
    if not isinstance(document, dict) or "requests" not in document or len(_batch(document)) < 2:
        raise ConfigError(
            "--report: one request is no comparison; give a batch of two or more, the reference first"
        )


def _write_report(
    page: Path, document: Mapping[str, Any], trace: Mapping[str, Any] | None, command: str
) -> None:
    """The page of a batch, and a word on stderr, as the answer may be on stdout."""
    from blis_jax.reports.study import run_words
    from sweeps.search.batch_study import write_report

    answers = document["answers"]
    about = {"windows": trace.get("trace_windows")} if trace else None
    write_report(answers, run_words(about, len(answers[0]["seeds"] or ())), command, page)
    cli.say(NAME, f"written: {page}")


def _batch(document: Mapping[str, Any]) -> list[Any]:
    requests = document["requests"]
    others = [key for key in document if key != "requests"]
    if others:
        raise ConfigError(
            f"{others[0]}: no other key is allowed beside requests; put it into each request"
        )
    if not isinstance(requests, list) or not requests:
        raise ConfigError("requests: allowed is a list of one request or more")
    return requests


def read_json(text: str) -> Any:
    """Read JSON without NaN and infinities, and without a key given twice.

    Raises:
        ConfigError: the text is not such JSON.
    """

    def refuse(constant: str) -> Any:
        raise ConfigError(f"request: {constant} is no JSON; leave the key out, or give a number")

    def unique(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
        names = [name for name, _ in pairs]
        for name in names:
            if names.count(name) > 1:
                raise ConfigError(f"request: {name}: the key is given twice; keep one of them")
        return dict(pairs)

    try:
        return json.loads(text, parse_constant=refuse, object_pairs_hook=unique)
    except (ValueError, RecursionError) as error:
        if isinstance(error, ConfigError):
            raise
        reason = str(error) if isinstance(error, ValueError) else "nested too deeply"
        raise ConfigError(f"request: not JSON ({reason}); give an object, see --help") from None


def _stream(source: str, trace: Mapping[str, Any] | None) -> int:
    """An answer for every line, at once; a line that is refused does not end the stream."""
    is_refused = False
    for line in _lines(source):
        if not line.strip():
            continue
        document, is_wrong = _answered(line, trace)
        is_refused |= is_wrong
        print(json.dumps(document, allow_nan=False, ensure_ascii=False), flush=True)
    return cli.EXIT_BAD_INPUT if is_refused else 0


def _lines(source: str) -> Iterator[str]:
    if source == "-":
        yield from iter(sys.stdin.readline, "")
    else:
        yield from input_files.read_text(Path(source), "JSON requests, one a line").splitlines()


if __name__ == "__main__":
    sys.exit(main())
