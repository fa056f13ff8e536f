"""Figures show what their commands draw today, or the numbers of their pages: the data that a PNG carries are compared.

Pictures that are drawn from data in the repository are all drawn again; those of runs are where the runs take minutes,
in turn with other slow tests. Of those that take hours, the numbers are those of a table on the page, or of a file.
"""

from __future__ import annotations

import csv
import importlib.util
import itertools
import json
import lzma
import math
import re
import shlex
import shutil
import statistics
from collections.abc import Callable
from importlib import import_module
from pathlib import Path
from typing import Any

import pytest
from PIL import Image

from blis_jax.__main__ import main
from blis_jax.reports.style import DATA
from papers.record.figures import PaperFigure, shipped_data
from papers.routing_evolution.figures import FIGURES as OF_ROUTING
from papers.strategy_evolution.figures import FIGURES as OF_SCHEDULING
from tests.support.recorded.reference_data import REPO_ROOT
from tests.support.rotation import rotating

DOCS = REPO_ROOT / "docs"
FIGURES = DOCS / "figures"
BEST = "iter08_token_budget@published"
DRAWN_BY = {
    "routers": "compare --trace examples/traces/bursts.csv --routers all",
    "compare_best_t1024": f"compare iter00_baseline best={BEST} t1024={BEST}:max_tokens=1024",
    "ablate_best": f"ablate {BEST} --against iter00_baseline --design full",
    "goodput_limits": "limits iter00_baseline row13=iter13_class_lead@found row21=iter21_intent@found "
    "thin=iter23_thin_tiers@begun every=iter25_every_class@found --seeds 60 --first-seed 96000 --rng jax",
    "search_iter08_token_budget": "optimize iter08_token_budget --output out.json",
    "sweep_baseline_vs_it08_opt": "sweep --vmap-seeds 256 --output out/sweep.zarr",
}
FROM_DATA = {  # of the repository: the picture, the module that draws it, its words, and the file that it writes
    "sensitivity_agreement_iter08": (
        "docs/figures/sensitivity_agreement_iter08.png",
        "papers.sensitivity",
        "--saved --output out",
        "out/agreement_iter08_token_budget.png",
    ),
    "curve of bred routers": (
        "papers/router_search/pictures/curve.png",
        "papers.router_search",
        "--saved --picture curve.png",
        "curve.png",
    ),
}
SEARCHES = "benchmarks/results/search_joint_all_layers"
DRAWN_BY_MODULES = {  # the module that draws it, its words, and the file that it writes
    "search_reliability_joint_all_layers": (
        "benchmarks.search",
        "--engines ensemble,turbo,denoised,denoised-recommended,ensemble-raced-expected --strategy joint_all_layers "
        f"--saved {SEARCHES}_judged.csv.xz --output out",
        "out/joint/reliability.png",
    ),
    "search_reliability_joint_by_model": (
        "benchmarks.search",
        "--engines denoised-raced-expected-recommended,ensemble,turbo --strategy joint_all_layers "
        f"--saved {SEARCHES}_judged.csv.xz,{SEARCHES}_by_model_judged.csv.xz --output out",
        "out/joint/reliability.png",
    ),
    "sensitivity_iter08_token_budget": (
        "blis_jax",
        "sensitivity iter08_token_budget --output out",
        "out/effects.png",
    ),
    "sawtooth": (
        "benchmarks.derivatives.sawtooth",
        "--seeds 2 --figure sawtooth.png",
        "sawtooth.png",
    ),
}
# the page has their numbers, or a file
OF_CAPACITY = ("capacity_gpus", "capacity_policies", "capacity_roles")
OF_PAGES = ("adapters", "curve", "drafted_tokens", "real_servers", "surrogate_iter08_parity")
NOT_DATA = {
    "surrogate_iter08_residuals": "143,360 runs and a fit, which are not in the repository",
    "trace_viewer": "a screen of Perfetto",
}
OF_PARITY = {
    *(f"ttft_p99_ms[{one}]" for one in ("critical", "standard", "sheddable")),
    *("e2e_p99_ms[critical]", "goodput_rps", "tokens_per_sec"),
}
LATENCIES: dict[str, tuple[float, Callable[[dict[str, float]], float]]] = {
    # the unit of the panel, s, and the latency in s
    "TTFT": (1.0, lambda one: one["first_token_ts"] - one["queued_ts"]),
    "TPOT": (1e-3, lambda one: (one["last_token_ts"] - one["first_token_ts"]) / max(one["output_toks"] - 1, 1)),
    "E2E": (1.0, lambda one: one["last_token_ts"] - one["queued_ts"]),
}  # fmt: skip
CLOSE = 1e-3  # what another machine's logarithms may change


def data_of(path: Path) -> Any:
    """Return the data in a PNG that a command wrote, in the form of `Picture.to_json`."""
    with Image.open(path) as image:
        return json.loads(image.text[DATA])  # type: ignore[attr-defined]


def different(one: Any, other: Any, place: str = "") -> list[str]:
    """Return the places at which two pieces of JSON differ, numbers by more than a thousandth."""
    if isinstance(one, dict) and isinstance(other, dict) and one.keys() == other.keys():
        return [found for key in one for found in different(one[key], other[key], f"{place}/{key}")]
    if isinstance(one, list) and isinstance(other, list) and len(one) == len(other):
        pairs = enumerate(zip(one, other, strict=True))
        return [found for at, (a, b) in pairs for found in different(a, b, f"{place}/{at}")]
    if isinstance(one, float | int) and isinstance(other, float | int):
        is_same = math.isclose(one, other, rel_tol=CLOSE, abs_tol=CLOSE)
    else:
        is_same = one == other
    return [] if is_same else [f"{place}: {one} and {other}"]


def test_a_changed_number_is_found() -> None:
    shown: Any = data_of(FIGURES / "routers.png")
    assert different(shown, shown) == []
    assert different({"a": [1.0, "x"]}, {"a": [1.1, "x"]}) == ["/a/0: 1.0 and 1.1"]
    assert different({"a": [1.0]}, {"a": [1.0, 2.0]}) != []


@pytest.mark.parametrize("name", DRAWN_BY)
def test_a_figure_carries_its_data(name: str) -> None:
    assert data_of(FIGURES / f"{name}.png")["panels"]


@pytest.mark.slow
@pytest.mark.parametrize("name", tuple(DRAWN_BY))
def test_a_figure_is_what_its_command_draws(
    name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    shutil.copytree(REPO_ROOT / "examples" / "traces", tmp_path / "examples" / "traces")
    monkeypatch.chdir(tmp_path)
    drawn = tmp_path / f"{name}.png"
    assert main([*shlex.split(DRAWN_BY[name]), "--figure", str(drawn)]) == 0
    assert different(data_of(FIGURES / f"{name}.png"), data_of(drawn)) == []


@pytest.mark.slow
@pytest.mark.parametrize("name", DRAWN_BY_MODULES)
def test_a_figure_of_a_module_is_what_it_draws(
    name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    module, words, written = DRAWN_BY_MODULES[name]
    shutil.copytree(REPO_ROOT / "benchmarks" / "results", tmp_path / "benchmarks" / "results")
    monkeypatch.chdir(tmp_path)
    draws = next(
        found for place in (f"{module}.__main__", module) if (found := _main_of(place)) is not None
    )
    assert draws(words.split()) == 0
    assert different(data_of(FIGURES / f"{name}.png"), data_of(tmp_path / written)) == []


def _main_of(place: str) -> Any:
    try:
        return import_module(place).main
    except ModuleNotFoundError:
        return None


def test_the_drawing_of_a_request_is_what_its_script_draws(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    kept = FIGURES / "way_of_a_request.png"
    spec = importlib.util.spec_from_file_location("drawing", kept.with_suffix(".py"))
    assert spec is not None and spec.loader is not None
    drawing = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(drawing)
    monkeypatch.setattr(drawing, "__file__", str(tmp_path / "fresh.py"))  # it draws beside itself
    drawing.main()
    assert different(data_of(kept), data_of(tmp_path / "fresh.png")) == []


def test_every_figure_is_compared_or_said_why_not() -> None:
    of_data = ("sensitivity_agreement_iter08", "way_of_a_request", "calibration")
    known = [*DRAWN_BY, *DRAWN_BY_MODULES, *OF_CAPACITY, *OF_PAGES, *of_data, *NOT_DATA]
    assert sorted(known) == sorted(path.stem for path in FIGURES.glob("*.png"))


@pytest.mark.parametrize(
    "figure",
    rotating([*OF_ROUTING, *OF_SCHEDULING], always=[OF_ROUTING[0], OF_SCHEDULING[0]]),
)
def test_a_picture_of_a_record_is_what_its_data_draw(figure: PaperFigure, tmp_path: Path) -> None:
    package = shipped_data(figure.package)
    figure.draw(package, tmp_path / "fresh.png")
    kept = package.parent / "pictures" / f"{figure.name}.png"
    assert different(data_of(kept), data_of(tmp_path / "fresh.png")) == []


@pytest.mark.parametrize("name", FROM_DATA)
def test_a_figure_of_saved_results_is_what_they_draw(
    name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    kept, module, words, written = FROM_DATA[name]
    monkeypatch.chdir(tmp_path)
    assert import_module(f"{module}.__main__").main(words.split()) == 0
    assert different(data_of(REPO_ROOT / kept), data_of(tmp_path / written)) == []


@pytest.mark.parametrize("name", OF_CAPACITY)
def test_a_figure_of_capacity_has_the_numbers_of_its_page(name: str) -> None:
    page = (DOCS / "results" / "capacity.md").read_text(encoding="utf-8")
    table = page.partition(f"figures/{name}.png")[0].rpartition("| kind of cluster |")[2]
    said = set(re.findall(r"([\d.]+) % \[([\d.]+), ([\d.]+)\]", table))
    marks = [
        mark for panel in data_of(FIGURES / f"{name}.png")["panels"] for mark in panel["marks"]
    ]
    drawn = {
        tuple(f"{mark[key][0]:.2f}" for key in ("y", "y_low", "y_high"))
        for mark in marks
        if mark.get("y_low")
    }
    assert drawn and drawn == said


def _table_below(page: str, text: str) -> list[list[str]]:
    """Return the rows of the first table behind a text of a page."""
    lines = (DOCS / page).read_text(encoding="utf-8").partition(text)[2].split("\n")
    begin = next(at for at, line in enumerate(lines) if line.startswith("|"))
    rows = itertools.takewhile(lambda line: line.startswith("|"), lines[begin:])
    return [[cell.strip() for cell in row.strip("|").split("|")] for row in rows]


def test_the_figure_of_adapters_has_the_numbers_of_its_page() -> None:
    (_, _, *names), _, *rows = _table_below("how-to/adapters.md", "figures/adapters.png")
    (_, panel, _) = data_of(FIGURES / "adapters.png")["panels"]
    assert panel["title"].endswith("^1") and {row[0] for row in rows} == {"1"}
    drawn = {mark["label"]: dict(zip(mark["x"], mark["y"], strict=True)) for mark in panel["marks"]}
    for _, slots, *cells in rows:
        said = [float(cell.partition(" ms")[0].replace(",", "")) for cell in cells]
        assert [round(1000 * drawn[name][int(slots)]) for name in names] == said


def test_the_figure_of_a_curve_has_the_numbers_of_its_page() -> None:
    """All 16 points, which the page's command prints, as the slow test of its sample says."""
    text = (
        (DOCS / "how-to" / "curve.md").read_text(encoding="utf-8").partition("  TTFT P99, ms\n")[2]
    )
    rows = [line.split() for line in text.partition("```")[0].split("\n")[1:] if line.strip()]
    said = [re.findall(r"([\d.]+) ± ", " ".join(row)) for row in rows]
    latency, trade = data_of(FIGURES / "curve.png")["panels"]
    drawn = [
        (per_gpu, per_user, ttft)
        for of_latency, of_trade in zip(latency["marks"], trade["marks"][:2], strict=True)
        for per_gpu, ttft, per_user, again in zip(
            of_latency["x"], of_latency["y"], of_trade["x"], of_trade["y"], strict=True
        )
        if per_gpu == again
    ]
    assert [[f"{one[0]:.0f}", f"{one[1]:.1f}", f"{one[2]:.1f}"] for one in drawn] == said


def test_the_figure_of_drafts_has_the_numbers_of_its_page() -> None:
    head, _, *rows = _table_below("how-to/drafted-tokens.md", "figures/drafted_tokens.png")
    panels = {
        panel["title"]: panel["marks"]
        for panel in data_of(FIGURES / "drafted_tokens.png")["panels"]
    }
    drawn = {
        (title.removeprefix("acceptance "), mark["label"].removeprefix("K = ")): mark
        for title, marks in panels.items()
        for mark in marks
        if mark["label"].startswith("K = ")
    }
    assert drawn.keys() == {(row[0], row[1]) for row in rows}
    for acceptance, number, *cells, _ in rows:
        mark = drawn[acceptance, number]
        said = [re.findall(r"[-\d.]+", cell) for cell in cells]
        assert mark["x"] == [int(name.split()[0]) for name in head[2:-1]]
        assert [round(y) for y in mark["y"]] == [int(mean) for mean, _ in said]
        errors = zip(mark["y"], mark["y_low"], said, strict=True)
        assert all(abs((y - low) / 2 - float(error)) <= 0.051 for y, low, (_, error) in errors)


def test_the_figure_of_real_servers_has_the_errors_of_its_page() -> None:
    """Their medians over 31 runs, with nothing fitted and with the run's model left out."""
    (_, *columns), _, *rows = _table_below("results/real-servers.md", "real-servers-vllm:begin")
    said = {row[0]: dict(zip(columns, row[1:], strict=True)) for row in rows}
    panels = data_of(FIGURES / "real_servers.png")["panels"]
    for panel, figure in zip(
        panels, ("ITL mean", "E2E mean", "TTFT mean", "TTFT P99"), strict=True
    ):
        points = [line[0] for line in panel["lines"] if len(line) == 1]
        errors = [100 * abs(predicted / measured - 1) for measured, predicted in points]
        half = len(errors) // 2
        for kind, part in (
            ("nothing fitted", errors[:half]),
            ("fitted, one model left out", errors[half:]),
        ):
            cell = said[f"ours, {kind}"][figure]
            assert said[f"ours, {kind}"]["runs"] == str(len(part))
            assert f"{statistics.median(part):.1f} " in cell and f"], {max(part):.0f}" in cell


def test_the_figure_of_a_surrogate_has_the_r2_of_its_data() -> None:
    with lzma.open(
        REPO_ROOT / "papers" / "surrogate" / "data" / "iter08_bars.csv.xz", "rt"
    ) as file:
        kept = [float(row["r2"]) for row in csv.DictReader(file) if row["output"] in OF_PARITY]
    titles = [
        panel["title"] for panel in data_of(FIGURES / "surrogate_iter08_parity.png")["panels"]
    ]
    assert sorted(title.partition("R² ")[2] for title in titles) == sorted(
        f"{r2:.3f}" for r2 in kept
    )


def test_the_figure_of_a_fit_has_the_measured_run_and_the_numbers_of_its_page() -> None:
    """That run's latencies, and means of the 20 requests held out as the first questions show them."""
    lines = (REPO_ROOT / "examples" / "measured_run" / "requests.jsonl").read_text(encoding="utf-8")
    run = [json.loads(line) for line in lines.splitlines()]
    page = (DOCS / "how-to" / "first-questions.md").read_text(encoding="utf-8")
    shown = page.partition("calibrate examples/measured_run --fit-first 60")[2]
    panels = data_of(FIGURES / "calibration.png")["panels"]
    for panel, (name, (unit, latency)) in zip(panels, LATENCIES.items(), strict=True):
        measured, simulated = (mark["y"] for mark in panel["marks"][:2])
        assert measured == pytest.approx([latency(one) / unit for one in run], abs=1e-6)
        means = [1000 * unit * statistics.fmean(part[60:]) for part in (measured, simulated)]
        (row,) = re.findall(rf"{name} +mean +(.*)", shown)
        assert re.findall(r"([\d.]+) ms", row) == [f"{mean:.1f}" for mean in means], row
