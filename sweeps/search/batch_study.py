"""The answers to a batch of evaluations as a report: each request against the first, on common seeds."""

from __future__ import annotations

import itertools
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from blis_jax.commands import cli
from blis_jax.errors import ConfigError
from blis_jax.files.atomic_write import finite
from blis_jax.metrics.scalars import lookup
from blis_jax.metrics.summaries import ALL
from blis_jax.reports.page import write_study
from blis_jax.reports.study import (
    RunWords,
    SeedValues,
    ShownDifference,
    Study,
    shown_difference,
)
from blis_jax.reports.words import target_line
from blis_jax.statistics.intervals import BY_STUDENT
from blis_jax.statistics.paired import Pair, differences, joint_words
from sweeps.claims.metrics import our_name

Answer = Mapping[str, Any]
OF_TARGETS = ("goodput_rps", "attainment", "slo_miss_rate")  # metrics that look at the targets
COMMON = ("workload", "seeds", "rng", "num_requests", "targets")


def write_report(answers: Sequence[Answer], runs: RunWords, command: str, path: Path) -> None:
    """Write the page of a batch; refuse, in a sentence, what cannot be compared."""
    study = study_of(answers, runs, command)
    with cli.writing(path):
        write_study(study, path)


def study_of(answers: Sequence[Answer], runs: RunWords, command: str) -> Study:
    """Make the report of answers as `sweeps.evaluate` gives them; the first is the reference."""
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
        verdicts="A change is called better or worse where Holm's method, which corrects for the number of "
        "requests and metrics, tells it from chance.",
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
        notes=(target_line(first["targets"]),)
        if any(lookup(name)[0].name in OF_TARGETS for name in metrics)
        else (),
        checks=tuple(_failures(values, answers)),
        provenance={
            **first["versions"],
            "random stream": first["rng"],
            runs.many: ", ".join(map(str, first["seeds"])),
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
    """An answer's id, else its strategy; numbered where several have the same."""
    wanted = [
        str(one["id"] if one["id"] is not None else one["strategy"] or "arm") for one in answers
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
) -> Iterator[ShownDifference]:
    first, *others = values
    asked = list(itertools.product(others, metrics))
    pairs = [
        Pair(values[first][metric], values[other][metric], lookup(metric)[0].direction)
        for other, metric in asked
    ]
    for (other, metric), change in zip(asked, differences(pairs, BY_STUDENT), strict=True):
        yield shown_difference(change, other, first, metric)


def _failures(names: Mapping[str, Any], answers: Sequence[Answer]) -> Iterator[str]:
    for name, answer in zip(names, answers, strict=True):
        if answer["failure"] is not None:
            yield f"{name}: {answer['failure']['message']}"
