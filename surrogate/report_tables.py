"""What `blis-jax surrogate report` does: the tables and figures of a surrogate beside its test points."""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence
from itertools import compress
from pathlib import Path
from typing import TYPE_CHECKING

from blis_jax import progress
from blis_jax.commands import cli
from blis_jax.errors import ConfigError, closest
from blis_jax.files.atomic_write import write_csv
from blis_jax.lazy import pandas as pd
from blis_jax.reports import render
from blis_jax.reports.findings import Answer
from blis_jax.reports.render import table_lines
from surrogate import report_figures as figure
from surrogate.coverage import MOST_WANTED
from surrogate.levels.fit import OwnData, any_seeds_lines, any_seeds_table, load_own
from surrogate.levels.predict import levels_of
from surrogate.scores import (
    NOT_MET,
    Score,
    coverage_table,
    evaluate,
    learning_curve,
    pair_of,
    region_lines,
    regions_table,
    sizes_of,
    verdict,
    verdict_lines,
)

if TYPE_CHECKING:
    from surrogate.data import Data
    from surrogate.predictor import Surrogate
    from surrogate.report import SurrogateReportOptions

SHOWN = (
    MOST_WANTED, "ttft_p99_ms[standard]", "ttft_p99_ms[sheddable]", "e2e_p99_ms[critical]",
    "goodput_rps", "tokens_per_sec",
)  # fmt: skip


def make_report(options: SurrogateReportOptions, folder: Path) -> int:
    """Write the report of a surrogate into a folder, and print where it lies; return the exit code."""
    surrogate, data = pair_of(options)
    own_data = _own(options.seeds_data, surrogate, data)
    main_output = _main_output(options.main, surrogate)
    sizes = _sizes(options.curve, int(surrogate.about["num_points"]))
    with cli.writing(folder):
        folder.mkdir(parents=True, exist_ok=True)
    with progress.phase(f"writing {folder}"):
        write_report(surrogate, data, folder, main_output, sizes, options.curve_steps, own_data)
    render.show_answer(
        Answer.of(
            f"How good is the surrogate {options.model}?",
            f"Written: {folder / 'report.md'} with figures and tables",
            "points of test, which it was not trained on.",
            f"{len(sizes)} surrogates of fewer points were trained for the learning curve.",
            "report.md says what it can be asked, and what not.",
        )
    )
    return 0


def _own(path: str | None, surrogate: Surrogate, data: Data) -> OwnData | None:
    """Read the runs on seeds outside the pool; None if no path is given. Refuse a surrogate without levels."""
    if path is None:
        return None
    levels_of(surrogate)
    return load_own(Path(path), data)


def _main_output(name: str | None, surrogate: Surrogate) -> str:
    learned = list(compress(surrogate.outputs, surrogate.scales.is_learned))
    if name is None:
        return MOST_WANTED if MOST_WANTED in learned else learned[0]
    if name not in learned:
        raise ConfigError(
            f"--main: {name!r} is not among what the surrogate learned"
            f"{closest(name, learned)}; there are {', '.join(learned)}"
        )
    return name


def _sizes(text: str | None, num_points: int) -> tuple[int, ...]:
    if text is None:
        return sizes_of(num_points)
    if text == "none":
        return ()
    try:
        sizes = tuple(sorted({int(part) for part in text.split(",")}))
    except ValueError:
        raise ConfigError(
            f"--curve: {text!r} is not a list such as 256,512,1024, or none"
        ) from None
    if not 2 <= sizes[0] <= sizes[-1] <= num_points:
        raise ConfigError(f"--curve: allowed is 2 to {num_points}, the training points")
    return sizes


def write_report(
    surrogate: Surrogate,
    data: Data,
    folder: Path,
    main_output: str,
    sizes: Sequence[int] = (),
    curve_steps: int | None = None,
    own_data: OwnData | None = None,
) -> None:
    """Write tables, figures and report.md into a folder."""
    scores = evaluate(surrogate, data)
    predictions = surrogate.predict(data.test.inputs)
    shown = [name for name in SHOWN if name in {score.output for score in scores}] or [main_output]
    tables = {c: coverage_table(surrogate, data, c) for c in (*figure.CONFIDENCES,)}
    rows = [dataclasses.asdict(score) for score in scores]
    write_csv(folder / "scores.csv", pd.DataFrame(rows), 6)
    write_csv(folder / "coverage.csv", tables[0.9], 6)
    every = pd.concat([table.assign(confidence=c) for c, table in tables.items()])
    r2 = {score.output: score.r2 for score in scores}
    figure.draw_parity(folder / "parity.png", data, predictions, shown, r2)
    figure.draw_residuals(folder / "residuals.png", data, predictions, main_output)
    figure.draw_calibration(folder / "calibration.png", every, len(data.test.inputs))
    if sizes:
        settings = surrogate.settings
        if curve_steps is not None:
            settings = dataclasses.replace(settings, steps=curve_steps)
        work = progress.begin("learning curve", len(sizes), "sizes")
        curve = learning_curve(
            data, settings, sizes, folder / "learning_curve.csv",
            lambda size: work.show(list(sizes).index(size) + 1, f"{size} points"),
        )  # fmt: skip
        work.clear()
        figure.draw_curve(folder / "learning_curve.png", curve, shown, main_output)
    further = region_lines(regions_table(surrogate, data, 0.9))
    if own_data is not None:
        of_seeds = any_seeds_table(surrogate, own_data, 0.9)
        write_csv(folder / "any_seeds.csv", of_seeds, 6)
        further += ["", *any_seeds_lines(of_seeds)]
    report = _markdown(surrogate, data, scores, tables[0.9], main_output, further, bool(sizes))
    text = "\n".join(report)
    (folder / "report.md").write_text(text + "\n", encoding="utf-8")


def score_rows(scores: Sequence[Score], coverage: pd.DataFrame, main_output: str) -> list[str]:
    """Write the scores as a table in Markdown."""
    shares = coverage.set_index(["output", "interval"])["share"]
    head = (
        "output", "unit", "mean", "sd over points", "RMSE", "R²", "ceiling", "R² other seeds",
        "the same, levels equal", "coverage mean, run", "bar",
    )  # fmt: skip
    rows = []
    for score in scores:
        mark = verdict(score, main_output)
        mark = f"**{mark}**" if mark == NOT_MET else mark
        both = f"{shares[score.output, 'mean']:.3f}, {shares[score.output, 'run']:.3f}"
        rows.append((
            score.output, score.unit, f"{score.mean:.5g}", f"{score.sd:.3g}", f"{score.rmse:.3g}",
            f"{score.r2:.4f}", f"{score.reliability:.4f}", f"{score.r2_other:.3f}",
            f"{score.r2_other_shape:.3f}", both, mark,
        ))  # fmt: skip
    return table_lines(head, rows)


def _markdown(
    surrogate: Surrogate,
    data: Data,
    scores: Sequence[Score],
    coverage: pd.DataFrame,
    main_output: str,
    further: Sequence[str],
    has_curve: bool,
) -> list[str]:
    constant = compress(surrogate.outputs, ~surrogate.scales.is_learned)
    return [
        f"# Surrogate of {data.name}",
        "",
        f"{len(data.columns)} inputs ({', '.join(surrogate.names)}), {len(data.train.inputs)} training "
        f"points, {len(data.calibration.inputs)} calibration points, {len(data.test.inputs)} test points "
        f"with {data.test.runs.shape[1]} seeds each, {data.num_runs} runs in all; "
        f"{data.num_left_out} points are left out, since no run of theirs finished. "
        f"{surrogate.settings.members} networks.",
        "",
        "R² is that of means over the pool's seeds at the test points. The ceiling is the reliability of "
        "these means by split halves of the seeds. Other seeds are ones that nothing was fitted to.",
        "",
        *score_rows(scores, coverage, main_output),
        "",
        f"Constant in the training data, and not learned: {', '.join(constant) or 'none'}.",
        "",
        *verdict_lines(coverage, 0.9, 0.01)[-2:],
        "",
        *further,
        "",
        "![Predicted and simulated](parity.png)",
        "![Residuals](residuals.png)",
        "![Calibration](calibration.png)",
        *(["![Learning curve](learning_curve.png)"] if has_curve else []),
    ]
