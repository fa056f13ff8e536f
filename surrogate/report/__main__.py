"""`python -m surrogate.report MODEL DATA.zarr`: how far a surrogate can be trusted, in figures."""

from __future__ import annotations

import dataclasses
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from blis_jax import progress
from blis_jax.commands import cli
from blis_jax.commands.cli import Flag, Parser
from blis_jax.errors import ConfigError, closest
from blis_jax.files.overwriting import SWITCH, refuse_existing

if TYPE_CHECKING:
    import pandas as pd

    from surrogate.data import Data
    from surrogate.levels.data import OwnData
    from surrogate.predictor import Surrogate
    from surrogate.scores import Score

NAME = "surrogate.report"
MOST_WANTED = "ttft_p99_ms[critical]"
SHOWN = (
    MOST_WANTED, "ttft_p99_ms[standard]", "ttft_p99_ms[sheddable]", "e2e_p99_ms[critical]",
    "goodput_rps", "tokens_per_sec",
)  # fmt: skip

_DESCRIPTION = """\
Compare a surrogate with the test points of its dataset: R² and errors beside what the noise of the
seeds allows, coverage of intervals in the whole space, its best quarter and on the branch, residuals
over every input, and the learning curve. With --seeds-data also coverage for seeds outside the pool.
Writes a folder with report.md, figures and tables.
"""
_EXAMPLES = """\
examples:
  everything; the learning curve fits an ensemble a size:
    %(prog)s out/iter08.surrogate out/iter08.zarr --output out/iter08_report

  without the learning curve:
    %(prog)s out/iter08.surrogate out/iter08.zarr --curve none --output out/iter08_report
"""
_FLAGS = (
    Flag("output", str, None, "FOLDER", "where the report goes (default: MODEL with .report)"),
    Flag("curve", str, None, "A,B,…", "training points of the learning curve (default: halves of "
         "halves), or none"),
    Flag("curve-steps", cli.whole, None, "N", "gradient steps of its ensembles (default: MODEL's)"),
    Flag("seeds-data", str, None, "DATA", "runs on seeds outside the pool, .zarr of sweeps.dataset "
         "--own-seeds: coverage for any seeds"),
    Flag("main", str, MOST_WANTED, "METRIC", "the output whose residuals are drawn"),
)  # fmt: skip


def _parser() -> Parser:
    parser = Parser(prog=f"python -m {NAME}", description=_DESCRIPTION, epilog=_EXAMPLES)
    parser.add_argument("model", metavar="MODEL", nargs="?", help="folder of surrogate.train")
    parser.add_argument("data", metavar="DATA", nargs="?", help="dataset, .zarr")
    parser.add_flags("report", _FLAGS)
    parser.add_switches("switches", SWITCH)
    return parser


def main(arguments: Sequence[str] | None = None) -> int:
    """The command; returns its exit code."""
    return cli.run_command(NAME, _report, arguments)


def _report(arguments: Sequence[str] | None) -> int:
    from surrogate.coverage import read_pair, two_paths

    given = _parser().given(sys.argv[1:] if arguments is None else arguments)
    model, source = two_paths(given)
    folder = Path(given.get("output", str(model.with_suffix(".report"))))
    cli.check_writable(folder, is_folder=True)
    refuse_existing(given, {"--output": folder / "report.md"})
    surrogate, data = read_pair(model, source)
    own = _own(given, surrogate, data)
    main_output = _main_output(given, surrogate)
    sizes = _sizes(given, int(surrogate.about["num_points"]))
    with cli.writing(folder):
        folder.mkdir(parents=True, exist_ok=True)
    with progress.phase(f"writing {folder}"):
        write_report(surrogate, data, folder, main_output, sizes, given.get("curve_steps"), own)
    print(f"Written: {folder / 'report.md'} with figures and tables")
    return 0


def _own(given: Mapping[str, Any], surrogate: Surrogate, data: Data) -> OwnData | None:
    """The runs on seeds outside the pool, if they are given and the surrogate can be asked."""
    if "seeds_data" not in given:
        return None
    from surrogate.levels.data import load_own
    from surrogate.levels.predict import levels_of

    levels_of(surrogate)
    return load_own(given["seeds_data"], data)


def _main_output(given: Mapping[str, Any], surrogate: Surrogate) -> str:
    learned = [
        name for name, is_learned in zip(surrogate.outputs, surrogate.scales.is_learned, strict=True)
        if is_learned
    ]  # fmt: skip
    if "main" not in given:
        return MOST_WANTED if MOST_WANTED in learned else learned[0]
    if given["main"] not in learned:
        raise ConfigError(
            f"--main: {given['main']!r} is not among what the surrogate learned"
            f"{closest(given['main'], learned)}; there are {', '.join(learned)}"
        )
    return str(given["main"])


def _sizes(given: Mapping[str, Any], num_points: int) -> tuple[int, ...]:
    from surrogate.fitting.curve import sizes_of

    text = given.get("curve")
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
    own: OwnData | None = None,
) -> None:
    """Tables, figures and report.md in a folder."""
    import pandas as pd

    from surrogate.coverage import coverage_table, region_lines, regions_table, write_table
    from surrogate.fitting.curve import learning_curve
    from surrogate.report import figure
    from surrogate.scores import evaluate

    scores = evaluate(surrogate, data)
    found = surrogate.predict(data.test.inputs)
    shown = [name for name in SHOWN if name in {score.output for score in scores}] or [main_output]
    tables = {c: coverage_table(surrogate, data, c) for c in (*figure.CONFIDENCES,)}
    write_table(
        pd.DataFrame([dataclasses.asdict(score) for score in scores]), folder / "scores.csv"
    )
    write_table(tables[0.9], folder / "coverage.csv")
    every = pd.concat([table.assign(confidence=c) for c, table in tables.items()])
    r2 = {score.output: score.r2 for score in scores}
    figure.draw_parity(folder / "parity.png", data, found, shown, r2)
    figure.draw_residuals(folder / "residuals.png", data, found, main_output)
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
    if own is not None:
        from surrogate.levels.scores import any_seeds_lines, any_seeds_table

        of_seeds = any_seeds_table(surrogate, own, 0.9)
        write_table(of_seeds, folder / "any_seeds.csv")
        further += ["", *any_seeds_lines(of_seeds)]
    lines = _markdown(surrogate, data, scores, tables[0.9], main_output, further, bool(sizes))
    text = "\n".join(lines)
    (folder / "report.md").write_text(text + "\n", encoding="utf-8")


def score_rows(scores: Sequence[Score], coverage: pd.DataFrame, main_output: str) -> list[str]:
    """The scores as a table in Markdown."""
    from surrogate.scores import NOT_MET, verdict

    shares = coverage.set_index(["output", "interval"])["share"]
    found = [
        "| output | unit | mean | sd over points | RMSE | R² | ceiling | R² other seeds | the same, "
        "levels equal | coverage mean, run | bar |",
        "|---|---|---|---|---|---|---|---|---|---|---|",
    ]
    for score in scores:
        mark = verdict(score, main_output)
        mark = f"**{mark}**" if mark == NOT_MET else mark
        both = f"{shares[score.output, 'mean']:.3f}, {shares[score.output, 'run']:.3f}"
        found.append(
            f"| {score.output} | {score.unit} | {score.mean:.5g} | {score.sd:.3g} | {score.rmse:.3g} "
            f"| {score.r2:.4f} | {score.reliability:.4f} | {score.r2_other:.3f} "
            f"| {score.r2_other_shape:.3f} | {both} | {mark} |"
        )
    return found


def _markdown(
    surrogate: Surrogate,
    data: Data,
    scores: Sequence[Score],
    coverage: pd.DataFrame,
    main_output: str,
    further: Sequence[str],
    has_curve: bool,
) -> list[str]:
    from surrogate.coverage import lines

    constant = [
        name for name, is_learned in zip(surrogate.outputs, surrogate.scales.is_learned, strict=True)
        if not is_learned
    ]  # fmt: skip
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
        *lines(coverage, 0.9, 0.01)[-2:],
        "",
        *further,
        "",
        "![Predicted and simulated](parity.png)",
        "![Residuals](residuals.png)",
        "![Calibration](calibration.png)",
        *(["![Learning curve](learning_curve.png)"] if has_curve else []),
    ]


if __name__ == "__main__":
    sys.exit(main())
