"""The tables of docs/results/real-servers.md, its figure, and the file of fits."""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import replace
from importlib import import_module
from pathlib import Path
from typing import Any

import yaml

from blis_jax.latency.served_physics import BETA, COEFFICIENTS
from blis_jax.reports import render
from blis_jax.reports.findings import Answer
from papers.pages import write_between_markers
from papers.real_servers.__main__ import FITS, PAGE
from papers.real_servers.clusters import ClusterRun, ClusterStudy, coverage, read_clusters, study
from papers.real_servers.designs import (
    DESIGNS,
    Error,
    Fitter,
    LayoutAgreement,
    agreement,
    held_out,
    learned_of,
    median_interval,
    nothing_fitted,
    published,
    published_of,
    widths,
)
from papers.real_servers.figure import draw
from papers.real_servers.predict.closed import LoopView
from papers.real_servers.predict.learned import Learned, learned, to_document
from papers.real_servers.predict.scene import FITTED, PUBLISHED
from papers.real_servers.step_fit import StepLaw
from papers.real_servers.vllm import ESTIMATES, mean_steps, read_runs

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
# Made by `python -m papers.real_servers --write`. Runs: inference-sim/sim-to-real-accuracy-validation (vllm_runs),
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
            else f"Written: {PAGE}, {FITS}",
        ),
        *tables.values(),
    )
    if writes:
        for name, text in tables.items():
            write_between_markers(PAGE, f"real-servers-{name}", text)
        write_fits(FITS, fits)


def write_fits(path: Path, fits: Mapping[str, Mapping[str, Learned]]) -> None:
    """Put the fits of these collections into the file; those of others stay."""
    found = yaml.safe_load(path.read_text("utf-8")) if path.exists() else {}
    for name, of_model in fits.items():
        found[name] = {model: to_document(one) for model, one in of_model.items()}
    text = yaml.safe_dump(found, default_flow_style=None, width=110, sort_keys=True)
    path.write_text(f"{_HEAD}\n{text}", "utf-8")


def _vllm(path: Path, writes: bool) -> tuple[str, dict[str, Learned]]:
    runs = read_runs(path)
    fitter = Fitter(runs, StepLaw(mean_steps(runs)))
    ours = nothing_fitted(runs)
    by_design = {design: held_out(fitter, design) for design in DESIGNS}
    fits = {FITTED: learned_of(fitter, by_design), PUBLISHED: published_of(fitter, ours)}
    rows: list[tuple[str, Sequence[Error]]] = [
        (f"published: {words}", published(runs, name)) for name, words in ESTIMATES.items()
    ]
    rows.append(("ours, nothing fitted", ours))
    rows += [(f"ours, fitted, one {design} left out", by_design[design]) for design in DESIGNS]
    if writes:
        draw(runs, ours, by_design["model"])
    parts = [error_table(rows), worst_table(by_design), coefficient_table(fits[FITTED])]
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
        runs = read_clusters(
            folder / file, import_module(f"papers.real_servers.predict.collections.{name}")
        )
        if name == "inferencex":
            done = study(runs, LoopView())
            alone, text = done.learned, design_table(done)
        else:
            before = alone or learned("inferencex", FITTED)
            as_labelled = study(runs, LoopView(follows_pools=True), before)
            done = study(runs, LoopView(follows_pools=False), before)
            text = llmd_tables(done, as_labelled)
        bare = replace(
            done.learned,
            beta=None,
            pace={},
            errors={},
            view=LoopView(),
            effects={},
            layouts=frozenset(),
        )
        fits_by_cluster[name] = text, {FITTED: done.learned, PUBLISHED: bare}
    return fits_by_cluster


def design_table(
    study: ClusterStudy, is_split: Mapping[str, bool] | None = None, side: bool = False
) -> str:
    """Make the table of errors on runs left out, by design and figure, and how much intervals hold of new layouts.

    Args:
        found: the study.
        is_split: whether a run is of pools, by its name; None: all runs make one table.
        side: which of them are in the table.
    """
    words = "left out" if is_split is None else ("pools, left out" if side else "equal, left out")
    head = ["figure", "runs", "median error, % [95 %]", "worst, %", "interval, ± %", "holds"]
    rows = [[words, *head]]
    rows.append(["---"] * len(rows[0]))
    for design, everything in study.errors.items():
        errors = [error for error in everything if is_split is None or is_split[error.run] == side]
        half, held = widths(errors), coverage(errors)
        for name, cells in _figures(errors).items():
            width = 100 * (math.exp(half[name]) - 1)
            number = sum(error.figure == name for error in errors)
            last = [f"{width:.0f}", _percent(held.get(name))]
            rows.append([design, name, str(number), *cells, *last])
    return _markdown(rows)


def llmd_tables(study: ClusterStudy, as_labelled: ClusterStudy) -> str:
    """Make the tables of errors by design, of pools under two readings of their labels, and of which layout wins."""
    is_split = {run.name: bool(run.scene.server.pools) for run in study.runs}
    rows = [["one layout left out", "figure", "runs", "median error, % [95 %]", "worst, %"]]
    rows.append(["---"] * len(rows[0]))
    for words, done, wanted in (
        ("equal instances", study, False),
        ("pools, every instance serves whole requests", study, True),
        ("pools, as labelled", as_labelled, True),
    ):
        errors = [error for error in done.errors["one layout"] if is_split[error.run] == wanted]
        number = len({error.run for error in errors})
        rows += [[words, name, str(number), *cells] for name, cells in _figures(errors).items()]
    parts = [design_table(study, is_split, side) for side in (False, True)]
    return "\n\n".join([*parts, _markdown(rows), rank_table(study)])


def rank_table(found: ClusterStudy) -> str:
    """Make the table of which layout wins, each layout predicted from the others."""
    head = [
        "at once",
        "layouts",
        "figure",
        "pairs",
        "right, % [95 %]",
        "decided, %",
        "of these right, %",
    ]
    rows = [head, ["---"] * len(head)]
    by_name = {run.name: run for run in found.runs}
    layout_of = {run.name: run.layout for run in found.runs}
    is_split = {run.name: bool(run.scene.server.pools) for run in found.runs}
    errors = found.errors["one layout"]
    half = {
        name: {
            run: width
            for side in (False, True)
            for width in widths(
                [e for e in errors if e.figure == name and is_split[e.run] == side]
            ).values()
            for run in is_split
            if is_split[run] == side
        }
        for name in RANKED
    }
    for words, chosen in (("all", None), ("16 GPUs", 16)):
        for concurrency in sorted({run.concurrency for run in found.runs}):
            for name in RANKED:
                mine = [
                    one
                    for one in errors
                    if one.figure == name
                    and by_name[one.run].concurrency == concurrency
                    and (chosen is None or num_gpus(by_name[one.run]) == chosen)
                ]
                one = agreement(mine, layout_of, half[name])
                rows.append([str(concurrency), f"{one.layouts}, {words}", name, *_shares(one)])
    return _markdown(rows)


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
    for name in sorted(
        {error.figure for error in errors} - {"tok_s"}
    ):  # that of requests/s, times tokens
        mine = [error for error in errors if error.figure == name]
        median, low, high = median_interval(mine)
        worst = max(error.percent for error in mine)
        cells[name] = [f"{median:.1f} [{low:.1f}, {high:.1f}]", f"{worst:.0f}"]
    return cells


def error_table(rows: Iterable[tuple[str, Sequence[Error]]]) -> str:
    """Make the table of median and worst errors of whole runs by simulator, and whether the bars are met."""
    head = ["predicted by", "runs", *(WORDS[name] for name in BARS)]
    lines = [head, ["---"] * len(head), ["bar", "", *(f"{bar:g}" for bar in BARS.values())]]
    for name, errors in rows:
        whole = [error for error in errors if error.stage is None]
        number = len({error.run for error in whole})
        cells = [
            _cell([error for error in whole if error.figure == figure], bar)
            for figure, bar in BARS.items()
        ]
        lines.append([name, str(number), *cells])
    return _markdown(lines)


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
    lines = [["left out", "run", "figure", "error, %"]]
    lines.append(["---"] * len(lines[0]))
    for design, errors in by_design.items():
        for name in BARS:
            worst = max(
                (error for error in errors if error.figure == name and error.stage is None),
                key=lambda error: error.percent,
            )
            off = 100 * (worst.predicted / worst.measured - 1)
            lines.append([design, worst.run, WORDS[name], f"{off:+.0f}".replace("-", "−")])
    return _markdown(lines)


def coefficient_table(learned: Learned) -> str:
    """Make the table of the coefficients fitted to all runs, beside those before any run."""
    assert learned.beta is not None
    lines = [["coefficient", "before any run", "fitted"], ["---"] * 3]
    for words, before, value in zip(COEFFICIENTS[:-1], BETA, learned.beta, strict=False):
        lines.append([words, f"{before:g}", f"{value:.3g}"])
    for name, pace in learned.pace.items():
        lines.append([f"pace of {name}, H100 = 1", "", f"{pace:.3g}"])
    client = learned.client
    lines.append(["first token, ms at the client", "3", f"{client.first_token_ms:.3g}"])
    lines.append(["first token, steps more", "1", f"{client.first_token_steps:.3g}"])
    lines.append(["share of the tokens asked for", "", f"{client.token_share:.3f}"])
    return _markdown(lines)


def _markdown(lines: Iterable[Sequence[str]]) -> str:
    return "\n".join(f"| {' | '.join(line)} |" for line in lines)
