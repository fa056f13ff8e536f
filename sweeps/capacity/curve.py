"""Curves of latency against throughput as options of `blis-jax curve` say: measured, described and drawn."""

from __future__ import annotations

import time
from collections.abc import Iterator, Mapping, Sequence
from typing import TYPE_CHECKING, Any

from blis_jax import progress
from blis_jax.commands import cli
from blis_jax.commands.options import outputs
from blis_jax.commands.options.seed_options import seeds_of
from blis_jax.files.formats import number_of
from blis_jax.files.journal import Journal
from blis_jax.reports.findings import Answer, Findings, Quantity, Remarks, Row, Sentence, Table
from blis_jax.reports.pictures import Axis, Panel, Picture, Series, Style
from blis_jax.reports.style import BLACK, STRATEGY_COLOURS, WIDTH
from blis_jax.reports.words import cluster_line, joined
from sweeps.capacity.rates import CurvePoint, Measuring, RateCurve, front
from sweeps.runs.axes import at_each_place
from sweeps.runs.measured import versions
from sweeps.runs.options import USUAL_ARM
from sweeps.runs.requests import check_count, check_seeds, workload_content, workload_from
from sweeps.strategies.arms import Arm, arms_of, as_served

if TYPE_CHECKING:
    from blis_jax.commands.options.outputs import OutputPaths
    from sweeps.curve import CurveOptions


# --- the document ---------------------------------------------------------------------------------


MOST_CURVES = len(STRATEGY_COLOURS)
MOST_SAID = 3
USER, GPU = "tokens_per_s_user", "tokens_per_s_gpu"
COLUMNS = {
    "requests_per_s": "leave, 1/s",
    GPU: "tokens/s per GPU",
    USER: "tokens/s per user",
    "ttft_mean_ms": "TTFT mean, ms",
    "ttft_p99_ms": "TTFT P99, ms",
    "tpot_mean_ms": "TPOT mean, ms",
}


def to_document(
    curves: Sequence[RateCurve], setting: Mapping[str, Any], findings: Findings
) -> dict[str, Any]:
    """Return the JSON document: the question, every point, the Pareto front, and the answer."""
    return {
        "format": number_of("curve"),
        "kind": "curve",
        **setting,
        "arms": [
            {
                "arm": curve.arm.name,
                "num_gpus": curve.num_gpus,
                "full_at": curve.full.to_json(),
                "points": [point.to_json() for point in curve.points],
            }
            for curve in curves
        ],
        "front": [[curve.arm.name, point.rate] for curve, point in front(curves)],
        "answer": findings.answer.to_json(),
    }


def findings_of(
    curves: Sequence[RateCurve],
    setting: Mapping[str, Any],
    num_runs: int,
    seconds: float | None = None,
) -> Findings:
    """Return the answer, every point as a table, and the picture; `seconds` is the wall time of this call."""
    seeds, level = len(setting["seeds"]), f"{100 * setting['confidence']:g} %"
    names = joined([curve.arm.name for curve in curves])
    names = names if len(curves) <= MOST_SAID else f"{len(curves)} clusters"
    return Findings(
        Answer(
            asked=f"What does throughput cost in latency under {names}? Workload {setting['workload']}, {seeds} seeds.",
            verdict=(*map(_said, curves[:MOST_SAID]), *_front_said(curves)),
            sure=Sentence.of(f"{level} for each figure by itself, over {seeds} seeds; the front is of means."),
            price=Sentence.of(Quantity.whole(num_runs), " runs."),
            time=None if seconds is None else Sentence.of(Quantity(seconds, like=10.0), " s in all."),
            next="blis-jax recommend MODEL GPU --targets … finds the smallest cluster for a target.",
            cluster=setting["cluster"],
        ),
        (Remarks(tuple(_warnings(curves)), is_brief=True), _full_table(curves), _point_table(curves)),
        (picture(curves, setting),),
    )  # fmt: skip


def _said(curve: RateCurve) -> Sentence:
    ends = [curve.points[at] for at in dict.fromkeys((0, len(curve.points) - 1))]
    gpus = f" on {curve.num_gpus} GPU{'s' * (curve.num_gpus > 1)}"
    return Sentence.of(
        f"{curve.arm.name}{gpus} is full at ", Quantity.of(curve.full), " requests/s.",
        *(part for point in ends for part in _point_said(point)),
    )  # fmt: skip


def _point_said(point: CurvePoint) -> Iterator[str | Quantity]:
    figures = point.figures
    yield " At "
    yield Quantity(point.rate)
    yield " requests/s: TTFT P99 "
    yield Quantity.of(figures["ttft_p99_ms"], "bare")
    yield " ms, "
    yield Quantity.of(figures[USER], "bare")
    yield " tokens/s per user, "
    yield Quantity.of(figures[GPU], "bare")
    yield " tokens/s per GPU."


def _front_said(curves: Sequence[RateCurve]) -> Iterator[Sentence]:
    if len(curves) < 2:
        return
    points = front(curves)
    names = [curve.arm.name for curve, _ in points]
    parts = [f"{names.count(name)} of {name}" for name in dict.fromkeys(names)]
    yield Sentence.of(f"The Pareto front, the fastest for the user first: {', '.join(parts)}.")


def _warnings(curves: Sequence[RateCurve]) -> Iterator[str]:
    for curve in curves:
        if curve.is_short:
            yield (
                f"{curve.arm.name}: requests are served for long against the time of the arrivals, so the cluster may "
                "carry more than it shows: give more --num-requests."
            )


def _full_table(curves: Sequence[RateCurve]) -> Table:
    """Return a table of the rate at which each cluster is full, one row per cluster; nothing for a single cluster."""
    rows = tuple(
        Row(
            (
                curve.arm.name,
                Quantity.whole(curve.num_gpus),
                Quantity.of(curve.full),
                Quantity.of(curve.full_of_gpu),
            )
        )
        for curve in (curves if len(curves) > MOST_SAID else ())
    )
    columns = ("cluster", "GPUs", "full at, requests/s", "per GPU")
    return Table(columns, rows, "Where clusters are full", name="full")


def _point_table(curves: Sequence[RateCurve]) -> Table:
    best = [(curve.arm.name, point.rate) for curve, point in front(curves)]
    rows = tuple(
        Row(
            (
                curve.arm.name,
                Quantity(point.rate),
                *(Quantity.of(point.figures[name], "half") for name in COLUMNS),
                "front" if (curve.arm.name, point.rate) in best else "",
            ),
            is_brief=len(curves) <= MOST_SAID,
        )
        for curve in curves
        for point in curve.points
    )
    columns = ("cluster", "arrive, 1/s", *COLUMNS.values(), "")
    brief = [2 + list(COLUMNS).index(name) for name in (GPU, USER, "ttft_p99_ms")]
    short = (0, 1, *brief, len(columns) - 1)
    return Table(columns, rows, num_keys=2, name="points", brief_columns=short)


def picture(curves: Sequence[RateCurve], setting: Mapping[str, Any]) -> Picture:
    """Return two panels: TTFT P99 against throughput, and a user's throughput against a GPU's with the Pareto front."""
    left, right = [], []
    for at, curve in enumerate(curves[:MOST_CURVES]):
        colour = STRATEGY_COLOURS[(at + 1) % len(STRATEGY_COLOURS)]
        style = Style(colour, "o", "-", size=4.0)
        left.append(_drawn(curve, GPU, "ttft_p99_ms", style, curve.arm.name))
        right.append(_drawn(curve, USER, GPU, style, ""))
    points = [point for _, point in front(curves)]
    if len(curves) > 1:
        means = [[point.figures[name].mean for point in points] for name in (USER, GPU)]
        right.append(Series(means[0], means[1], Style(BLACK, line="--", width=1.1), "Pareto front"))
    level = f"{100 * setting['confidence']:g} %"
    caption = (
        f"Workload {setting['workload']}, {len(setting['seeds'])} seeds at each rate; lines through means, bars: "
        f"{level} intervals over seeds. Points are rates up to the one at which the cluster is full. Right: up and to "
        "the right is better; tokens/s per user are 1 ÷ TPOT."
    )
    left_out = len(curves) - MOST_CURVES
    caption += f" {left_out} more clusters are in the table." * (left_out > 0)
    of_gpu = Axis("tokens/s per GPU", limits=(0.0, None), most_ticks=5)
    panels = [
        Panel(left, of_gpu, Axis("TTFT P99 (ms)", "log"), "latency"),
        Panel(right, Axis("tokens/s per user"), of_gpu, "user and GPU"),
    ]
    height = 2.9 + 0.16 * min(len(curves), MOST_CURVES)
    return Picture("Latency against throughput", caption, [panels], [height], WIDTH, name="curve")


def _drawn(curve: RateCurve, x: str, y: str, style: Style, label: str) -> Series:
    across = [point.figures[x] for point in curve.points]
    up = [point.figures[y] for point in curve.points]
    return Series(
        [estimate.mean for estimate in across], [estimate.mean for estimate in up], style, label,
        y_low=[estimate.low for estimate in up], y_high=[estimate.high for estimate in up], told=curve.arm.name,
    )  # fmt: skip


def drawn(
    options: CurveOptions, paths: OutputPaths, usual_seeds: int, usual_requests: int, command: str
) -> int:
    """Measure and write the curves; return the exit code.

    Args:
        options: the command's options.
        paths: the files to write.
        usual_seeds: the number of seeds where the options give none.
        usual_requests: the number of requests per instance in a run where the options give none.
        command: the command line that reproduces the results.
    """
    named_arms = arms_of(options.arms or (USUAL_ARM,), fit=options.coefficients_from)
    arms = at_each_place(named_arms, options.grid)
    arms = as_served(arms, is_real=False)
    began = time.monotonic()
    spec = workload_from(options.workload, "--workload", follows=False)
    per_instance = options.num_requests or usual_requests
    seeds, stream = seeds_of(options, usual_seeds, options.stream), options.stream
    check_seeds(seeds, stream)
    check_count(seeds, 2, "for an interval", stream)
    setting: dict[str, Any] = {
        "workload": options.workload, "num_requests": per_instance, "seeds": list(seeds), "rng": stream,
        "confidence": options.confidence, "versions": versions(), "command": command,
        "cluster": cluster_line({arm.name: arm.config for arm in arms}),
    }  # fmt: skip
    about = {"num_requests": per_instance, "seeds": seeds, "stream": stream}
    content = {"workload": workload_content(spec), **about}
    journal = Journal(paths.beside(".jsonl"), "curve", content)
    with cli.resumable(options.command, journal.path), journal.held(options.resume):
        measuring = Measuring(spec, per_instance, seeds, stream, options.confidence, journal)
        curves = _curves(measuring, arms, options.rate)
        seconds = time.monotonic() - began
        findings = findings_of(curves, setting, measuring.num_runs, seconds)
        document = to_document(curves, setting, findings)
        title = "Latency against throughput"
        files = outputs.study_files(findings, document, paths, title, command, versions())
        outputs.show(findings, lambda: outputs.write_files(files), options)
    return 0


def _curves(measuring: Measuring, arms: Sequence[Arm], rates: Sequence[float]) -> list[RateCurve]:
    curves = []
    with progress.phase("drawing curves", len(arms), "clusters") as work:
        for at, arm in enumerate(arms):

            def show(what: str, at: int = at, name: str = arm.name) -> None:
                work.show(at, f"{name}: {what}")

            curves.append(measuring.curve(arm, rates, show))
    return curves
