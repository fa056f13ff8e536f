"""Fits of step times to measured runs, and their errors beside published ones."""

from __future__ import annotations

import json
import re
import time
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pandas

from blis_jax.calibrate.calibration import CalibrationPlan, calibrate, to_document
from blis_jax.calibrate.report import picture
from blis_jax.calibrate.validation import NAIVE
from blis_jax.cluster.config import ClusterConfig
from blis_jax.files import input_files
from blis_jax.files.atomic_write import write_csv, write_json
from blis_jax.reports import drawing, render
from blis_jax.reports.findings import Answer
from blis_jax.traces.measured.recorded import read_measured
from blis_jax.traces.measured.run import AS_VLLM, cluster_values

if TYPE_CHECKING:
    from papers.calibration.__main__ import CalibrationPaperOptions


TERMS = {
    "blackbox": ("alpha0", "beta0", "beta1", "beta2"),
    "with context": ("alpha0", "beta0", "beta1", "beta2", "beta3"),
}
NUM_FITTED = 150
BARS = {"tpot_ms": 0.03, "ttft_ms": 0.10}  # of the means of the requests held out
LEAST_RUNS_WITHIN = 3

_METRICS = ("ttft_ms", "tpot_ms", "e2e_ms")
_STATISTICS = ("mean", "p50", "p90", "p99")


def fit_runs(
    options: CalibrationPaperOptions, data: Path, names: Sequence[str], output: Path
) -> int:
    """Fit step times to the runs, and write and print the errors; return the exit code."""
    documents = [
        _fitted(data, name, model, part, options)
        for name in names
        for part in ("first", "all")
        for model in TERMS
    ]
    rows = list(_rows(documents))
    write_csv(output / "errors.csv", pandas.DataFrame(rows), 6)
    render.show_answer(
        Answer.of(
            "How far are fitted step times from four measured runs of a real server?",
            _verdicts(rows, names),
            f"errors on requests that no fit saw: the first {NUM_FITTED} of each run were fitted.",
            f"{len(documents)} fits; those that were kept are not made again.",
            f"Written: {output}/errors.csv, and a fit and a figure for each run",
        ),
        _tables(rows, documents, data, names),
    )
    return 0


def _fitted(
    data: Path, name: str, model: str, part: str, options: CalibrationPaperOptions
) -> dict[str, Any]:
    """Return a saved fit, or make it and save it."""
    path = Path(options.output) / f"{name}-{model.replace(' ', '-')}-{part}.json"
    if path.is_file() and not options.overwrite:
        kept: dict[str, Any] = json.loads(path.read_text(encoding="utf-8"))
        return kept
    start = time.perf_counter()
    plan = CalibrationPlan(TERMS[model], NUM_FITTED if part == "first" else None, options.starts)
    run = read_measured(data / name, num_fitted=plan.num_fitted)
    config = ClusterConfig(**cluster_values(run.settings, {}), **AS_VLLM)
    calibration = calibrate(run, config, plan)
    document = to_document(calibration)
    document["paper"] = {"run": name, "model": model, "part": part}
    document["wall_s"] = time.perf_counter() - start
    drawing.save(picture(calibration), path.with_suffix(".png"))
    write_json(path, document)
    return document


def _rows(documents: Sequence[Mapping[str, Any]]) -> Iterator[dict[str, Any]]:
    for document in documents:
        for row in document["errors"]:
            yield {**document["paper"], **{("of" if k == "part" else k): v for k, v in row.items()}}


# --- tables ---------------------------------------------------------------------------------------


def _tables(
    rows: Sequence[Mapping[str, Any]],
    documents: Sequence[Mapping[str, Any]],
    data: Path,
    names: Sequence[str],
) -> str:
    def errors(name: str, model: str, part: str, of: str) -> dict[tuple[str, str], float]:
        """Return a fit's errors in one part of a run, by metric and statistic."""
        return {
            (row["metric"], row["statistic"]): row["error"]
            for row in rows
            if (row["run"], row["model"], row["part"], row["of"]) == (name, model, part, of)
        }

    lines = [
        f"Fitted on the first {NUM_FITTED}, errors on the requests held out, of the same episode, %; naive: each "
        "figure predicted by that of the fitted requests:",
        _head(),
    ]
    for name in names:
        lines += [_line(name, model, errors(name, model, "first", "held out")) for model in TERMS]
        lines.append(_line(name, NAIVE, errors(name, next(iter(TERMS)), "first", NAIVE)))
    lines += ["", "Fitted on all 300, errors on them, %:", _head()]
    for name in names:
        lines += [_line(name, model, errors(name, model, "all", "all")) for model in TERMS]
        lines.append(_line(name, "published", published(data / name / "summary.txt")))
    return "\n".join([*lines, "", *_coefficients(documents)])


def _head() -> str:
    titles = [
        f"{metric.split('_')[0].upper()} {name}" for metric in _METRICS for name in _STATISTICS
    ]
    return f"{'run':<40}{'model':<14}" + "".join(f"{title:>11}" for title in titles)


def _line(name: str, title: str, errors: Mapping[tuple[str, str], float]) -> str:
    cells = [f"{100 * errors[metric, s]:>+11.1f}" for metric in _METRICS for s in _STATISTICS]
    return f"{name:<40}{title:<14}" + "".join(cells)


def published(path: Path) -> dict[tuple[str, str], float]:
    """Return relative errors of the published simulator, by metric and statistic."""
    kinds = {"TTFT": "ttft_ms", "TPOT": "tpot_ms", "Latency": "e2e_ms"}
    errors = {}
    for line in input_files.read_text(path, "the published simulator's summary").splitlines():
        match = re.match(r"(TTFT|TPOT|Latency) (\w+)\s+([\d.]+)\s+([\d.]+)", line)
        if match:
            statistic = {"mean": "mean", "median": "p50"}.get(match[2].lower(), match[2].lower())
            errors[kinds[match[1]], statistic] = float(match[4]) / float(match[3]) - 1.0
    return errors


def _verdicts(rows: Sequence[Mapping[str, Any]], names: Sequence[str]) -> list[str]:
    """Return for each model in how many runs the errors of the held-out requests' means are small enough."""
    lines = []
    for model in TERMS:
        within = [name for name in names if _is_within(rows, name, model)]
        verdict = "kept" if len(within) >= LEAST_RUNS_WITHIN else "not kept"
        lines.append(
            f"{model}: TPOT mean within 3 % and TTFT mean within 10 % on {len(within)} of {len(names)} "
            f"runs (bar: {LEAST_RUNS_WITHIN}): {verdict}"
        )
    return lines


def _is_within(rows: Sequence[Mapping[str, Any]], name: str, model: str) -> bool:
    errors = {
        row["metric"]: abs(row["error"])
        for row in rows
        if (row["run"], row["model"], row["part"], row["of"], row["statistic"])
        == (name, model, "first", "held out", "mean")
    }
    return all(errors[metric] <= bar for metric, bar in BARS.items())


def _coefficients(documents: Sequence[Mapping[str, Any]]) -> list[str]:
    lines = ["Coefficients with 95 % intervals, µs; * not identifiable:"]
    for document in documents:
        paper = document["paper"]
        cells = [
            f"{term} {entry['value']:.4g} [{entry['low']:.4g}, {entry['high']:.4g}]"
            + "*" * (not entry["is_identified"])
            for term, entry in document["coefficients"].items()
        ]
        which = f"{paper['run']}, {paper['model']}, {paper['part']}"
        lines.append(f"  {which}: " + "; ".join(cells))
    return lines
