"""Requests answered as `blis-jax evaluate` says: one, a batch with its page, or a stream, line by line."""

from __future__ import annotations

import functools
import itertools
import json
import sys
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from blis_jax.commands import cli
from blis_jax.errors import ConfigError
from blis_jax.files import input_files
from blis_jax.files.atomic_write import finite, json_text, write_json
from blis_jax.metrics.scalars import lookup
from blis_jax.metrics.summaries import ALL
from blis_jax.reports.page import write_study
from blis_jax.reports.study import (
    VERDICT_RULE,
    MetricChange,
    RunWords,
    SeedValues,
    Study,
    provenance_of,
    run_words,
)
from blis_jax.reports.words import target_line
from blis_jax.statistics.intervals import BY_STUDENT
from blis_jax.statistics.paired import Pair, differences, joint_words
from sweeps.claims.grammar import our_name
from sweeps.search.evaluator import Evaluator, refusal

if TYPE_CHECKING:
    from sweeps.evaluate import EvaluateOptions

Answer = Mapping[str, Any]
COMMON = ("workload", "seeds", "rng", "num_requests", "targets")


def write_report(answers: Sequence[Answer], runs: RunWords, command: str, path: Path) -> None:
    """Write the page of a batch; refuse answers that cannot be compared."""
    study = study_of(answers, runs, command)
    with cli.writing(path):
        write_study(study, path)


def study_of(answers: Sequence[Answer], runs: RunWords, command: str) -> Study:
    """Return the report of answers in the form that `blis-jax evaluate` prints; the first answer is the reference."""
    _check(answers)
    values = {
        name: _values_of(answer) for name, answer in zip(_names(answers), answers, strict=True)
    }
    first = answers[0]
    metrics = tuple(
        name for name in next(iter(values.values())) if all(name in of for of in values.values())
    )
    if not metrics:
        raise ConfigError(
            "--report: the requests have no metric in common; name some in each request"
        )
    return Study(
        command=command,
        workload=first["workload"],
        strategies=tuple(values),
        descriptions={},
        kinds={
            name: answer["strategy"] or "" for name, answer in zip(values, answers, strict=True)
        },
        classes=tuple(dict.fromkeys(lookup(name)[1] or ALL for name in metrics)),
        seeds=tuple(first["seeds"]),
        runs=runs,
        differences=tuple(_differences(values, metrics)),
        intervals=BY_STUDENT.method,
        joint=joint_words(BY_STUDENT),
        verdicts=VERDICT_RULE,
        values=tuple(
            SeedValues(
                name,
                lookup(metric)[1] or ALL,
                lookup(metric)[0].name,
                tuple(map(finite, of[metric].tolist())),
            )
            for name, of in values.items()
            for metric in metrics
        ),
        limits=target_line(first["targets"]),
        checks=tuple(_failures(values, answers)),
        provenance={
            **provenance_of(first, runs),
            "configurations": {
                name: answer["configuration"] for name, answer in zip(values, answers, strict=True)
            },
        },
    )


def _check(answers: Sequence[Answer]) -> None:
    for place, answer in enumerate(answers):
        if answer["error"] is not None:
            raise ConfigError(f"--report: {answer['error']}; there is nothing to compare")
        for key in COMMON:
            if answer[key] != answers[0][key]:
                raise ConfigError(
                    f"--report: requests[{place}] has other {key} than requests[0]; a comparison needs the "
                    "same"
                )


def _names(answers: Sequence[Answer]) -> list[str]:
    """Return names for answers: the id, else the strategy; numbered where several are the same."""
    wanted = [
        str(answer["id"] if answer["id"] is not None else answer["strategy"] or "arm")
        for answer in answers
    ]
    return [
        name if wanted.count(name) == 1 else f"{name} #{place}" for place, name in enumerate(wanted)
    ]


def _values_of(answer: Answer) -> dict[str, np.ndarray]:
    return {
        our_name(name): np.array(
            [np.nan if value is None else value for value in figure["per_seed"]], np.float64
        )
        for name, figure in answer["metrics"].items()
    }


def _differences(
    values: Mapping[str, Mapping[str, np.ndarray]], metrics: Sequence[str]
) -> Iterator[MetricChange]:
    first, *others = values
    compared = list(itertools.product(others, metrics))
    pairs = [
        Pair(values[first][metric], values[other][metric], lookup(metric)[0].direction)
        for other, metric in compared
    ]
    for (other, metric), change in zip(compared, differences(pairs, BY_STUDENT), strict=True):
        yield MetricChange.of(change, other, first, metric)


def _failures(names: Mapping[str, Any], answers: Sequence[Answer]) -> Iterator[str]:
    for name, answer in zip(names, answers, strict=True):
        if answer["failure"] is not None:
            yield f"{name}: {answer['failure']['message']}"


@functools.cache
def the_evaluator(compiles: bool = False) -> Evaluator:
    """Return the one evaluator that all calls share; sharing changes the speed of an answer, not its content."""
    return Evaluator(compiles)


def answer_requests(
    options: EvaluateOptions,
    source: str,
    trace: Mapping[str, Any] | None,
    output: Path | None,
    page: Path | None,
    command: str,
) -> int:
    """Answer the requests in a file or on standard input; return the exit code."""
    evaluator = the_evaluator(options.compile_programs)
    if options.jsonl:
        return _stream(evaluator, source, trace)
    text = (
        sys.stdin.read() if source == "-" else input_files.read_text(Path(source), "a JSON request")
    )
    if page is not None:
        _check_batch(text)
    document, is_refused = _answered(evaluator, text, trace)
    if output is None:
        print(json_text(document), flush=True)
    else:
        with cli.writing(output):
            write_json(output, document)
    if page is not None:
        _write_report(page, document, _first_trace(text, trace), command)
    return cli.EXIT_BAD_INPUT if is_refused else 0


def _answered(
    evaluator: Evaluator, text: str, trace: Mapping[str, Any] | None = None
) -> tuple[dict[str, Any], bool]:
    """Return the answer to a text, one request or a batch; and whether any request was refused."""
    try:
        document = read_json(text)
        if isinstance(document, dict) and "requests" in document:
            requests = [_on_trace(request, trace) for request in _batch(document)]
            wheres = [f"requests[{place}]" for place in range(len(requests))]
            answers = evaluator.answers(requests, wheres)
            is_refused = any(answer["error"] is not None for answer in answers)
            return {"answers": answers}, is_refused
    except ConfigError as error:
        return refusal(None, str(error)), True
    (answer,) = evaluator.answers([_on_trace(document, trace)], ["request"])
    return answer, answer["error"] is not None


def _on_trace(request: object, trace: Mapping[str, Any] | None) -> object:
    """Return the request with the command's trace added, if the request names neither workload nor trace."""
    if trace is None or not isinstance(request, dict) or {"workload", "trace"} & set(request):
        return request
    return {**request, "trace": dict(trace)}


def _first_trace(text: str, trace: Mapping[str, Any] | None) -> Mapping[str, Any] | None:
    """Return the trace of a batch's first request, as its keys; None if the request has none."""
    first = _on_trace(_batch(read_json(text))[0], trace)
    return first.get("trace") if isinstance(first, dict) else None


def _check_batch(text: str) -> None:
    """Refuse, before anything is simulated, a batch with nothing to compare."""
    document = read_json(text)
    if not isinstance(document, dict) or "requests" not in document or len(_batch(document)) < 2:
        raise ConfigError(
            "--report: one request is no comparison; give a batch of two or more, the reference first"
        )


def _write_report(
    page: Path, document: Mapping[str, Any], trace: Mapping[str, Any] | None, command: str
) -> None:
    """Write the page of a batch, and print its path on stderr, because the answer may be on stdout."""
    answers = document["answers"]
    about = {"windows": trace.get("trace_windows")} if trace else None
    write_report(answers, run_words(about, len(answers[0]["seeds"] or ())), command, page)
    cli.say("sweeps.evaluate", f"written: {page}")


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


def _stream(evaluator: Evaluator, source: str, trace: Mapping[str, Any] | None) -> int:
    """Print an answer for every line, at once; a refused line does not end the stream."""
    is_refused = False
    for line in _lines(source):
        if not line.strip():
            continue
        document, is_wrong = _answered(evaluator, line, trace)
        is_refused |= is_wrong
        print(json.dumps(document, allow_nan=False, ensure_ascii=False), flush=True)
    return cli.EXIT_BAD_INPUT if is_refused else 0


def _lines(source: str) -> Iterator[str]:
    if source == "-":
        yield from iter(sys.stdin.readline, "")
    else:
        yield from input_files.read_text(Path(source), "JSON requests, one a line").splitlines()
