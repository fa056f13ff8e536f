"""The tables of docs/results/real-servers.md, its figure, and the file of fits."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

from blis_jax.predict.figures import NOTHING
from blis_jax.predict.learned import FITTED, PUBLISHED, Learned, to_document
from papers.real_servers.clusters import ClusterStudy, rank_agreement, read_clusters, study
from papers.real_servers.designs import (
    DESIGNS,
    Error,
    Fitter,
    held_out,
    learned_of,
    median_interval,
    nothing_fitted,
    published,
    published_of,
)
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
# `errors`: half-widths of 90 % intervals, in logarithms, by what the fit had not seen.
"""


def make(folder: Path, parts: Sequence[str], writes: bool) -> None:
    """Compute the parts, print their tables, and write them if asked to."""
    from papers.real_servers.__main__ import FITS, PAGE

    fits: dict[str, Any] = {}
    tables: dict[str, str] = {}
    if "vllm" in parts:
        tables["vllm"], fits["vllm_runs"] = _vllm(folder / "vllm_runs.csv", writes)
    for name in CLUSTERS:
        if name in parts:
            tables[name], fits[name] = _cluster(folder, name)
    for text in tables.values():
        print(f"{text}\n")
    if writes:
        from benchmarks.pages import write_between_markers

        for name, text in tables.items():
            write_between_markers(PAGE, f"real-servers-{name}", text)
        write_fits(FITS, fits)


def write_fits(path: Path, fits: Mapping[str, Mapping[str, Learned]]) -> None:
    """Put the fits of these collections into the file; those of others stay."""
    import yaml

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
    learned = {FITTED: learned_of(fitter, by_design), PUBLISHED: published_of(fitter, ours)}
    rows: list[tuple[str, Sequence[Error]]] = [
        (f"published: {words}", published(runs, name)) for name, words in ESTIMATES.items()
    ]
    rows.append(("ours, nothing fitted", ours))
    rows += [(f"ours, fitted, one {design} left out", by_design[design]) for design in DESIGNS]
    if writes:
        from papers.real_servers.figure import draw

        draw(runs, ours, by_design["model"])
    parts = [error_table(rows), worst_table(by_design), coefficient_table(learned[FITTED])]
    return "\n\n".join(parts), learned


CLUSTERS = {"llmd_runs": ("llmd_runs.csv", 42), "inferencex": ("inferencex_vllm.csv", 24)}


def _cluster(folder: Path, name: str) -> tuple[str, dict[str, Learned]]:
    """Tables of a collection of closed loops, and its fit; `CLUSTERS` has how many runs of each half are simulated."""
    from importlib import import_module

    file, most = CLUSTERS[name]
    runs = read_clusters(folder / file, import_module(f"blis_jax.predict.{name}"))
    found = study(runs, most)
    bare = replace(found.learned, beta=None, pace={}, client=NOTHING, errors={}, deployments={})
    rows: list[list[str]] = [["predicted", "runs", "figure", "median error, % [95 %]", "worst, %"]]
    rows.append(["---"] * len(rows[0]))
    for words, errors in (
        ("other concurrencies", found.errors),
        ("the same, deployments unknown", found.without_factors),
    ):
        rows += [[words, str(len(found.tested)), *cells] for cells in _figures(errors)]
    text = _markdown(rows)
    if name == "llmd_runs":
        text += f"\n\n{_ranks(found)}"
    return text, {FITTED: found.learned, PUBLISHED: bare}


def _ranks(found: ClusterStudy) -> str:
    """Rank agreement of layouts."""
    rows: list[list[str]] = [["concurrency", "layouts", "E2E mean", "requests/s"], ["---"] * 4]
    e2e = rank_agreement(found.errors, found.tested, "e2e_mean")
    rate = rank_agreement(found.errors, found.tested, "req_s")
    for concurrency, one in e2e.items():
        number = sum(run.concurrency == concurrency for run in found.tested)
        rows.append([str(concurrency), str(number), f"{one:.2f}", f"{rate[concurrency]:.2f}"])
    return _markdown(rows)


def _figures(errors: Sequence[Error]) -> list[list[str]]:
    found = []
    for name in sorted({one.figure for one in errors}):
        mine = [one for one in errors if one.figure == name]
        median, low, high = median_interval(mine)
        worst = max(one.percent for one in mine)
        found.append([name, f"{median:.1f} [{low:.1f}, {high:.1f}]", f"{worst:.0f}"])
    return found


def error_table(rows: Iterable[tuple[str, Sequence[Error]]]) -> str:
    """Median and worst errors of whole runs by simulator, and whether the bars are met."""
    head = ["predicted by", "runs", *(WORDS[name] for name in BARS)]
    lines = [head, ["---"] * len(head), ["bar", "", *(f"{bar:g}" for bar in BARS.values())]]
    for name, errors in rows:
        whole = [one for one in errors if one.stage is None]
        number = len({one.run for one in whole})
        cells = [
            _cell([one for one in whole if one.figure == figure], bar)
            for figure, bar in BARS.items()
        ]
        lines.append([name, str(number), *cells])
    return _markdown(lines)


def _cell(errors: Sequence[Error], bar: float) -> str:
    if not errors:
        return ""
    median, low, high = median_interval(errors)
    met = " ✓" if median <= bar else ""
    return f"{median:.1f} [{low:.1f}, {high:.1f}], {max(one.percent for one in errors):.0f}{met}"


def worst_table(by_design: Mapping[str, Sequence[Error]]) -> str:
    """The runs that are predicted worst, by design."""
    lines = [["left out", "run", "figure", "error, %"]]
    lines.append(["---"] * len(lines[0]))
    for design, errors in by_design.items():
        for name in BARS:
            worst = max(
                (one for one in errors if one.figure == name and one.stage is None),
                key=lambda one: one.percent,
            )
            off = 100 * (worst.predicted / worst.measured - 1)
            lines.append(
                [
                    design,
                    worst.run,
                    WORDS[name],
                    f"{off:+.0f}".replace("-", "−"),
                ]
            )
    return _markdown(lines)


def coefficient_table(learned: Learned) -> str:
    """What the fit to all runs says."""
    from blis_jax.latency.served_physics import BETA, COEFFICIENTS

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
