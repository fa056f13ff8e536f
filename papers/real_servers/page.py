"""The tables of docs/results/real-servers.md and real-servers-loops.md, the figure, and the file of fits."""

from __future__ import annotations

import itertools
import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import yaml
from matplotlib.ticker import FuncFormatter, LogLocator, NullLocator

from blis_jax.latency.served_physics import BETA, COEFFICIENTS
from blis_jax.reports import render, style
from blis_jax.reports.findings import Answer
from blis_jax.reports.render import table_text
from papers.pages import ROOT, write_between_markers
from papers.real_servers import widths
from papers.real_servers.clusters import ClusterRun, ClusterStudy, of_side, read_clusters, study
from papers.real_servers.designs import (
    DESIGNS,
    Fitter,
    LayoutAgreement,
    agreement,
    held_out,
    learned_of,
    median_interval,
    nothing_fitted,
    of_new_servers,
    published,
    published_of,
)
from papers.real_servers.predict.collections import COLLECTIONS
from papers.real_servers.predict.learned import OF_POOLS, Learned, learned, to_document
from papers.real_servers.predict.scene import FITTED, PUBLISHED
from papers.real_servers.predict.simulation import LoopView
from papers.real_servers.step_fit import ABSENT, ESTIMATES, StepLaw, VllmRun, mean_steps, read_runs
from papers.real_servers.widths import Apart, Error, HalfWidths, HeldApart

PAGE = ROOT / "docs" / "results" / "real-servers.md"
LOOPS = PAGE.with_name("real-servers-loops.md")
FITS = Path(__file__).parent / "predict" / "served_fits.yaml"
BARS = {"e2e_mean": 5.0, "e2e_p99": 8.0, "itl_mean": 5.0, "ttft_mean": 15.0, "ttft_p99": 25.0}
WORDS = {
    "e2e_mean": "E2E mean",
    "e2e_p99": "E2E P99",
    "itl_mean": "ITL mean",
    "ttft_mean": "TTFT mean",
    "ttft_p99": "TTFT P99",
}
_HEAD = """\
# Fits of step times and client times to measured runs of real servers; numbers of ours, none of the data.
# Made by `blis-jax papers real_servers --write`. Runs: inference-sim/sim-to-real-accuracy-validation (vllm_runs),
# llm-d/llm-d-prism (llmd_runs), ai-dynamo/aiconfigurator (inferencex). `beta`: coefficients of served-physics;
# `errors`: half-widths of 90 % intervals, in logarithms, by what the fit had not seen. Closed loops: `view`, `layouts`
# and `effects`, logarithms of factors by figure and group, one for each of `predict.effects.features`.
"""


def make(folder: Path, parts: Sequence[str], writes: bool) -> None:
    """Compute the parts, print their tables, and write them if asked to."""
    fits: dict[str, Any] = {}
    tables: dict[str, str] = {}
    if "vllm" in parts:
        tables["vllm"], fits["vllm_runs"] = _vllm(folder / "vllm_runs.csv", writes)
    for name, pair in _clusters(folder, parts).items():
        tables[name], fits[name] = pair
    render.show_answer(
        Answer.of(
            "How far are predictions from measured runs of real servers?",
            f"tables of {', '.join(tables)} below; each has the errors beside those of published estimates.",
            "errors of runs that the fit had not seen: one model, hardware or load left out.",
            f"fits of {', '.join(tables)}, and closed loops of each run.",
            "--write puts tables, figure and fits into the package."
            if not writes
            else f"Written: {PAGE}, {LOOPS}, {FITS}",
        ),
        *tables.values(),
    )
    if writes:
        for name, text in tables.items():
            write_between_markers(PAGE if name == "vllm" else LOOPS, f"real-servers-{name}", text)
        write_fits(FITS, fits)


def write_fits(path: Path, fits: Mapping[str, Mapping[str, Learned]]) -> None:
    """Put the fits of these collections into the file; fits of other collections stay."""
    documents = yaml.safe_load(path.read_text("utf-8")) if path.exists() else {}
    for name, of_model in fits.items():
        documents[name] = {model: to_document(fit) for model, fit in of_model.items()}
    text = yaml.safe_dump(documents, default_flow_style=None, width=110, sort_keys=True)
    path.write_text(f"{_HEAD}\n{text}", "utf-8")


def _vllm(path: Path, writes: bool) -> tuple[str, dict[str, Learned]]:
    runs = read_runs(path)
    fitter = Fitter(runs, StepLaw(mean_steps(runs)))
    ours = nothing_fitted(runs)
    by_design = {design: held_out(fitter, design) for design in DESIGNS}
    everything = list(itertools.chain.from_iterable(by_design.values()))
    untouched = published_of(fitter, ours)
    least = of_new_servers(untouched)
    fits = {FITTED: learned_of(fitter, everything, least), PUBLISHED: untouched}
    rows: list[tuple[str, Sequence[Error]]] = [
        (f"published: {words}", published(runs, name)) for name, words in ESTIMATES.items()
    ]
    rows.append(("ours, nothing fitted", ours))
    rows += [
        (f"ours, fitted, one {design} left out", by_design[design])
        for design in DESIGNS
        if design != "run"
    ]
    if writes:
        draw(runs, ours, by_design["model"])
    parts = [error_table(rows), kind_table(everything), least_table(least), worst_table(by_design)]
    parts.append(coefficient_table(fits[FITTED]))
    return "\n\n".join(parts), fits


CLUSTERS = {"inferencex": "inferencex_vllm.csv", "llmd_runs": "llmd_runs.csv"}
RANKED = ("req_s", "e2e_mean", "ttft_mean", "tpot_mean")


def _clusters(folder: Path, parts: Sequence[str]) -> dict[str, tuple[str, dict[str, Learned]]]:
    """Tables of the collections of closed loops, and their fits; llm-d starts from what vLLM alone says."""
    fits_by_cluster: dict[str, tuple[str, dict[str, Learned]]] = {}
    alone: Learned | None = None
    for name, file in CLUSTERS.items():
        if name not in parts:
            continue
        runs = read_clusters(folder / file, COLLECTIONS[name])
        if name == "inferencex":
            done = study(runs, LoopView())
            alone, text = done.learned, kind_table(done.everything, apart=done.apart)
        else:
            before = alone or learned("inferencex", FITTED)
            done = study(runs, LoopView(), before)
            text = llmd_tables(done)
        bare = replace(done.learned, beta=None, pace={}, errors={}, view=LoopView(), effects={})
        fits_by_cluster[name] = text, {FITTED: done.learned, PUBLISHED: bare}
    return fits_by_cluster


KIND_WORDS = {
    "same": "as measured before",
    "other_concurrency": "up to twice as many or half as few at once as measured",
    "other_layout": "other workload, lengths, number of instances, sharing of experts, or farther in numbers at once",
    "other_deployment": "other TP, copies of attention, or GPU of those measured",
    "other_software": "version of vLLM not measured with this model",
    "other_model": "other model",
    "other_hardware": "GPU that was never measured",
}


def kind_table(
    errors: Sequence[Error], title: str = "the row is", apart: Apart = (), suffix: str = ""
) -> str:
    """Make the table of errors on runs left out, and what intervals made without their group hold, by kind of row.

    Intervals are as wide as rows kept apart ask for or, where there are none, as groups left out in turn ask for.
    `suffix` ends the names of the kinds of rows kept apart.
    """
    head = (
        title, "figure", "figures", "groups", "median error, % [95 %]", "worst, %", "interval, ± %", "holds",
        *["of figures kept apart, before and after widening"] * bool(apart),
    )  # fmt: skip
    rows = []
    of = widths.width if apart else widths.stretched
    half = widths.widened(widths.half_widths(errors, of=of), apart, suffix)
    held, far = widths.checks(errors, of), widths.held_apart(apart)
    for kind, words in KIND_WORDS.items():
        of_kind = [error for error in errors if error.kind == kind]
        every = [share for (_, of), share in held.items() if of == kind]
        of_apart = {name: far.get((name, f"{kind}{suffix}")) for name in _figures(of_kind)}
        for name, cells in _figures(of_kind).items():
            of_figure = [error for error in of_kind if error.figure == name]
            width = half.get(name, {}).get(kind)
            check = held.get((name, kind))
            last = ["" if width is None else f"{100 * (math.exp(width) - 1):.0f}"]
            last += [_percent(check and check.held), *[_apart_cell([of_apart[name]])] * bool(apart)]
            groups = len({error.group for error in of_figure})
            rows.append([words, name, str(len(of_figure)), str(groups), *cells, *last])
        if number := sum(held_share.figures for held_share in every):
            share, low, high = widths.together(every)
            interval = "" if apart else f" [{100 * low:.0f}, {100 * high:.0f}]"
            last = [_percent(share) + interval, *[_apart_cell(of_apart.values())] * bool(apart)]
            rows.append([words, "all of these", str(number), "", "", "", "", *last])
    return table_text(head, rows)


def _apart_cell(shares: Iterable[HeldApart | None]) -> str:
    """Say how many figures were kept apart, and what intervals hold of them."""
    every = [each for each in shares if each is not None]
    weights = [each.figures for each in every]
    if not every:
        return ""
    held = np.average([each[1:] for each in every], axis=0, weights=weights)
    return f"{sum(weights)}: {100 * held[0]:.0f}, {100 * held[1]:.0f} %"


def least_table(least: HalfWidths) -> str:
    """Make the table of the least half-widths on new servers, of the figures that have one."""
    halves = {figure: max(of_kind.values()) for figure, of_kind in least.items() if of_kind}
    cells = [f"{100 * math.expm1(half):.0f}" for half in halves.values()]
    return table_text(["figure", *halves], [["interval of a new server at least, ± %", *cells]])


SIDES = (("equal instances; the row is", False, ""), ("pools; the row is", True, OF_POOLS))


def llmd_tables(study: ClusterStudy) -> str:
    """Make the tables of errors by kind of row, for equal instances and for pools, and of which layout wins."""
    parts = [
        kind_table(of_side(study.everything, study.runs, side), words, study.apart, suffix)
        for words, side, suffix in SIDES
    ]
    return "\n\n".join([*parts, rank_table(study)])


def rank_table(of_clusters: ClusterStudy) -> str:
    """Make the table of which layout wins, each layout predicted from the others."""
    head = (
        "at once", "layouts", "figure", "pairs", "right, % [95 %]", "decided, %", "of these right, %",
    )  # fmt: skip
    rows = []
    by_name = {run.name: run for run in of_clusters.runs}
    layout_of = {run.name: run.layout for run in of_clusters.runs}
    errors = of_clusters.errors["one layout"]
    half: dict[str, dict[str, float]] = {name: {} for name in RANKED}
    for _, side, suffix in SIDES:
        of_layouts = of_side(errors, of_clusters.runs, side)
        wide = widths.widened(widths.half_widths(of_layouts), of_clusters.apart, suffix)
        for missed in of_layouts:
            if missed.figure in half:
                half[missed.figure][missed.run] = wide.get(missed.figure, {}).get(
                    missed.kind, math.inf
                )
    for words, chosen in (("all", None), ("16 GPUs", 16)):
        for concurrency in sorted({run.concurrency for run in of_clusters.runs}):
            for name in RANKED:
                of_layouts = [
                    error
                    for error in errors
                    if error.figure == name
                    and by_name[error.run].concurrency == concurrency
                    and (chosen is None or num_gpus(by_name[error.run]) == chosen)
                ]
                order = agreement(of_layouts, layout_of, half[name])
                rows.append([str(concurrency), f"{order.layouts}, {words}", name, *_shares(order)])
    return table_text(head, rows)


def num_gpus(run: ClusterRun) -> int:
    """Return the number of GPUs of the cluster."""
    server = run.scene.server
    if server.pools:
        return sum(pool.count * pool.tp for pool in server.pools)
    return server.num_instances * server.tp


def _shares(layouts: LayoutAgreement) -> list[str]:
    if not layouts.pairs:
        return ["0", "", "", ""]
    right = f"{100 * layouts.right:.0f} [{100 * layouts.low:.0f}, {100 * layouts.high:.0f}]"
    of_decided = "" if layouts.decided == 0 else f"{100 * layouts.decided_right:.0f}"
    return [str(layouts.pairs), right, f"{100 * layouts.decided:.0f}", of_decided]


def _percent(share: float | None) -> str:
    return "" if share is None else f"{100 * share:.0f} %"


def _figures(errors: Sequence[Error]) -> dict[str, list[str]]:
    cells = {}
    # that of tokens/s is that of requests/s, times tokens
    for name in sorted({error.figure for error in errors} - {"tok_s"}):
        of_figure = [error for error in errors if error.figure == name]
        median, low, high = median_interval(of_figure)
        worst = max(error.percent for error in of_figure)
        cells[name] = [f"{median:.1f} [{low:.1f}, {high:.1f}]", f"{worst:.0f}"]
    return cells


def error_table(rows: Iterable[tuple[str, Sequence[Error]]]) -> str:
    """Make the table of median and worst errors of whole runs by simulator, and whether the bars are met."""
    lines = [["bar", "", *(f"{bar:g}" for bar in BARS.values())]]
    for name, errors in rows:
        whole = [error for error in errors if error.stage is None]
        number = len({error.run for error in whole})
        cells = [
            _cell([error for error in whole if error.figure == figure], bar)
            for figure, bar in BARS.items()
        ]
        lines.append([name, str(number), *cells])
    return table_text(("predicted by", "runs", *(WORDS[name] for name in BARS)), lines)


def _cell(errors: Sequence[Error], bar: float) -> str:
    if not errors:
        return ""
    median, low, high = median_interval(errors)
    met = " ✓" if median <= bar else ""
    return (
        f"{median:.1f} [{low:.1f}, {high:.1f}], {max(error.percent for error in errors):.0f}{met}"
    )


def worst_table(by_design: Mapping[str, Sequence[Error]]) -> str:
    """Make the table of the runs that are predicted worst, by design."""
    lines = []
    for design, errors in by_design.items():
        for name in BARS:
            worst = max(
                (error for error in errors if error.figure == name and error.stage is None),
                key=lambda error: error.percent,
            )
            off = 100 * (worst.predicted / worst.measured - 1)
            lines.append([design, worst.run, WORDS[name], f"{off:+.0f}".replace("-", "−")])
    return table_text(("left out", "run", "figure", "error, %"), lines)


def coefficient_table(learned: Learned) -> str:
    """Make the table of the coefficients fitted to all runs, beside their values before any run."""
    assert learned.beta is not None
    lines = []
    for words, before, value in zip(COEFFICIENTS[:-1], BETA, learned.beta, strict=False):
        lines.append([words, f"{before:g}", f"{value:.3g}" if value > ABSENT else "left out"])
    for name, pace in learned.pace.items():
        lines.append([f"pace of {name}, H100 = 1", "", f"{pace:.3g}"])
    client = learned.client
    lines.append(["first token, ms at the client", "3", f"{client.first_token_ms:.3g}"])
    lines.append(["first token, steps more", "1", f"{client.first_token_steps:.3g}"])
    lines.append(["share of the tokens asked for", "", f"{client.token_share:.3f}"])
    return table_text(("coefficient", "before any run", "fitted"), lines)


# --- predicted against measured figures of held-out runs, as a picture ----------------------------


PICTURE = Path(__file__).resolve().parents[2] / "docs" / "figures" / "real_servers.png"
FIGURES = {
    "itl_mean": "ITL mean",
    "e2e_mean": "E2E mean",
    "ttft_mean": "TTFT mean",
    "ttft_p99": "TTFT P99",
}
TITLE = (
    "Fitted to other models, predictions lie near the line; with nothing fitted, TTFT is too short"
)
CAPTION = (
    "A point is a run of one vLLM server. Colours: served-physics fitted to the runs of all other models. "
    "Crosses: trained-physics as BLIS publishes it. On the grey line prediction and measurement are equal."
)
MARK: dict[str, Any] = {"linestyle": "None", "markersize": 4.5}
PLAIN: dict[str, Any] = MARK | {"marker": "x", "color": style.GUIDE_COLOUR}


def draw(runs: Sequence[VllmRun], ours: Sequence[Error], fitted: Sequence[Error]) -> None:
    """Draw one panel for each figure: runs by model, nothing fitted and fitted to other models."""
    model_of = {run.name: run.model for run in runs}
    models = sorted(set(model_of.values()))
    marks = {
        model: MARK | {"marker": "o", "color": colour}
        for model, colour in zip(models, _colours(len(models)), strict=True)
    }
    legend = [style.line_handle(model.split("/")[-1], **marks[model]) for model in models]
    legend.append(style.line_handle("nothing fitted", **PLAIN))
    with style.figure(5.6, 2, 2) as (made, panels):
        for panel, (name, words) in zip(panels.flat, FIGURES.items(), strict=True):
            points = [error for error in fitted if error.figure == name and error.stage is None]
            for error in ours:
                if error.figure == name and error.stage is None:
                    panel.plot(error.measured, error.predicted, **PLAIN)
            for error in points:
                panel.plot(error.measured, error.predicted, **marks[model_of[error.run]])
            _arrange(panel, [error.measured for error in points])
            panel.set(title=words, xlabel="measured (ms)", ylabel="predicted (ms)")
        style.save(made, PICTURE, TITLE, CAPTION, legend)


def _colours(count: int) -> list[str]:
    chosen = [*style.STRATEGY_COLOURS[1:], style.STRATEGY_COLOURS[0]]
    return [chosen[place % len(chosen)] for place in range(count)]


def _arrange(panel: Any, measured: Sequence[float]) -> None:
    """Both axes logarithmic, with plain numbers, and the line of equality."""
    ends = [min(measured) * 0.8, max(measured) * 1.25]
    panel.plot(ends, ends, color=style.GUIDE_COLOUR, linewidth=0.8, zorder=1)
    panel.set(xscale="log", yscale="log", xlim=ends)
    for axis in (panel.xaxis, panel.yaxis):
        axis.set_major_locator(LogLocator(subs=(1.0, 2.0, 5.0)))
        axis.set_major_formatter(FuncFormatter(lambda value, _: f"{value:,g}"))
        axis.set_minor_locator(NullLocator())
