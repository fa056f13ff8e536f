"""Fit coefficients or the step law, or judge a prediction, as options of `blis-jax calibrate` say; write the files."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from blis_jax import progress
from blis_jax.calibrate import report, step_report
from blis_jax.calibrate.calibration import CalibrationPlan, calibrate, to_document
from blis_jax.calibrate.described_steps import GPU, Describe
from blis_jax.calibrate.posterior import ALL_TERMS, load, load_steps
from blis_jax.calibrate.step_fits import LAW, PredictedSteps, StepFits, rows_in_order, source_of
from blis_jax.cluster.config import ClusterConfig
from blis_jax.commands.cli import Notes
from blis_jax.commands.options.outputs import (
    File,
    OutputPaths,
    draw,
    output_path,
    outputs_of,
    show,
    study_files,
    write_files,
)
from blis_jax.errors import ConfigError, as_option, closest
from blis_jax.files.atomic_write import replacing, write_json
from blis_jax.files.python_files import with_absolute_files
from blis_jax.latency.model_description import ModelDescription, is_shipped, model_description
from blis_jax.lazy import pandas
from blis_jax.traces.measured.recorded import read_result
from blis_jax.traces.measured.run import AS_VLLM, cluster_values, silent
from blis_jax.traces.measured.sent import Summary, no_requests
from blis_jax.traces.measured.steps import StepFile, holds_steps, read_steps

if TYPE_CHECKING:
    from blis_jax.calibrate.__main__ import CalibrateOptions
    from blis_jax.calibrate.calibration import Calibration
    from blis_jax.traces.measured.run import MeasuredRun


def fit_or_predict(options: CalibrateOptions, trace: Path) -> int:
    """Fit coefficients to a measured run or to steps, or compare a prediction with it; return the exit code."""
    if holds_steps(trace):
        return _steps(options, trace)
    residual = ["residual"] * (options.residual is not None)
    for name in (*options.engine(), *options.described(), *residual):
        raise ConfigError(
            f"{as_option(name)} is for measured steps, and {trace} has requests; leave it out"
        )
    if options.coefficients_from is not None or options.predicted is not None:
        return _predict(options, trace)
    paths = outputs_of(options, options.usual_output)
    notes = Notes(options.command, options.log)
    plan = _plan(options)
    run = _run(options, trace, plan.num_fitted)
    server = options.server()
    config = _config(run, server)
    stated = silent(run.settings, server, run.notes)
    with progress.phase("fitting", plan.num_starts, "starts") as work:
        calibration = calibrate(
            run,
            config,
            plan,
            lambda number, cost: work.show(
                number + 1, f"start {number + 1} ended at cost {cost:.2f}"
            ),
        )
    _write(calibration, stated, paths, options)
    for remark in dict.fromkeys([*stated, *calibration.remarks]):
        notes.warn(remark)
    return 0


def _run(options: CalibrateOptions, trace: Path, num_fitted: int | None = None) -> MeasuredRun:
    run = _read(options, trace, num_fitted)
    if isinstance(run, Summary):
        raise ConfigError(f"{no_requests(str(trace), run)}; {report.how_to_predict(run.load)}")
    return run


def _read(
    options: CalibrateOptions, trace: Path, num_fitted: int | None = None
) -> MeasuredRun | Summary:
    result = read_result(trace, options.format, num_fitted, options.stage)
    if isinstance(result, Summary):
        if options.warm_up:
            raise ConfigError(
                f"--warm-up: {trace} has no requests to leave out; leave the option out"
            )
        return result
    return result.warmed_up(options.warm_up)


def _predict(options: CalibrateOptions, trace: Path) -> int:
    """Print the errors of a prediction; write a result file only if asked to, and no figure."""
    _refuse_beside_prediction(options)
    output = None
    if options.output is not None:
        output = output_path(options.output, "--output", (".json",), options.overwrite)
    if options.predicted is not None:
        prediction = report.by_run(_read(options, trace), Path(options.predicted), str(trace))
    else:
        run = _run(options, trace)
        fit = load(Path(str(options.coefficients_from)))
        prediction = report.by_fit(run, fit, options.server(), str(trace))
    write = [(output, lambda path: write_json(path, prediction.document()))]
    show(prediction.findings(), lambda: write_files(write), options)
    notes = Notes(options.command, options.log)
    for remark in dict.fromkeys(prediction.remarks):
        notes.warn(remark)
    return 0


def _refuse_beside_prediction(options: CalibrateOptions) -> None:
    given_options = options.given()
    idle = {"figure", *options.of_fit()}
    if options.predicted is not None:
        idle |= {"coefficients_from", *options.server()}
    first = "coefficients-from" if options.predicted is None else "predicted"
    for name in sorted(idle):
        if name in given_options:
            raise ConfigError(
                f"{as_option(name)} has no meaning beside --{first}; leave one of them out"
            )


def _plan(options: CalibrateOptions) -> CalibrationPlan:
    text = options.usual_terms if options.terms is None else options.terms
    terms = [part.strip() for part in text.split(",") if part.strip()]
    if options.context_term and "beta3" not in terms:
        terms.append("beta3")
    for term in terms:
        if term not in ALL_TERMS:
            known = ", ".join(ALL_TERMS)
            raise ConfigError(
                f"--terms: {term!r} is unknown; use some of {known}{closest(term, ALL_TERMS)}"
            )
    if "beta0" not in terms and "beta2" not in terms:
        raise ConfigError("--terms: without beta0 or beta2 decode steps take no time; add one")
    starts = 8 if options.starts is None else options.starts
    if not 1 <= starts <= 1000:
        raise ConfigError(f"--starts: got {starts}, allowed is 1 to 1000")
    ordered = tuple(term for term in ALL_TERMS if term in terms)
    return CalibrationPlan(
        ordered, options.fit_first, starts, options.random_state or 0, options.explore is not False
    )


def _config(run: MeasuredRun, server: Mapping[str, Any]) -> ClusterConfig:
    return ClusterConfig(**cluster_values(run.settings, server), **AS_VLLM)


def _write(
    calibration: Calibration, stated: Sequence[str], paths: OutputPaths, options: CalibrateOptions
) -> None:
    findings, document = report.findings_of(calibration), to_document(calibration, stated)
    show(findings, lambda: write_files(study_files(findings, document, paths)), options)


# --- measured steps -------------------------------------------------------------------------------

_OF_STEPS = (
    "trace",
    "output",
    "figure",
    "log",
    "overwrite",
    "all",
    "explain",
    "coefficients_from",
    "residual",
)


def _steps(options: CalibrateOptions, trace: Path) -> int:
    """Fit the step law to measured steps, or predict them; return the exit code."""
    for name in options.given():
        if name not in (*_OF_STEPS, *options.engine(), *options.described()):
            raise ConfigError(
                f"{as_option(name)} has no meaning for measured steps, which {trace} has; leave it out"
            )
    file = read_steps(trace, options.engine())
    notes = Notes(options.command, options.log)
    if options.coefficients_from is None:
        _fit_steps(options, trace, file)
    else:
        _predict_steps(options, file)
    for remark in file.notes:
        notes.warn(remark)
    return 0


def _fit_steps(options: CalibrateOptions, trace: Path, file: StepFile) -> None:
    paths = outputs_of(options, options.usual_output)
    gpu = options.hardware or GPU
    law = LAW
    if options.residual is not None:
        law = with_absolute_files(options.residual)
        if law == LAW:
            raise ConfigError(
                f"--residual: {law} is the law itself; give FILE:NAME of what bends step-law, or leave it out"
            )
    fits = StepFits.of(file, source_of(trace), _describe(options, file), gpu, law)
    predicted = [fits.predicted(steps).ms for steps in file.runs]
    title = f"{trace.name}: measured and fitted times of steps"
    findings = step_report.findings_of_fits(fits, file.runs, predicted, str(paths.result), title)
    show(findings, lambda: write_files(study_files(findings, fits.document(), paths)), options)


def _describe(options: CalibrateOptions, file: StepFile) -> Describe:
    """Return a function from a model's name to its description: the given config.json, else the shipped one."""
    config_file = options.model_config
    names = {steps.engine.model for steps in file.runs}
    if config_file is not None and len(names) > 1:
        raise ConfigError(
            f"--model-config is of one model, and the steps are of {', '.join(sorted(names))}; give a file of one"
        )

    def describe(name: str) -> ModelDescription | None:
        if config_file is None and not is_shipped(name):
            return None
        return model_description(name, config_file or "")

    return describe


def _predict_steps(options: CalibrateOptions, file: StepFile) -> None:
    """Predict steps; write files only if asked to."""
    fits = load_steps(Path(str(options.coefficients_from)))
    paths = None
    if options.output is not None:
        paths = outputs_of(options, options.output, (".csv", ".parquet"))
    elif options.figure is not None:
        raise ConfigError("--figure: give --output FILE.csv too, beside which the picture goes")
    if options.hardware is not None:
        raise ConfigError(
            "--hardware belongs to the fit, and --coefficients-from has one; leave it out"
        )
    if options.residual is not None:
        raise ConfigError(
            "--residual belongs to the fit, and --coefficients-from has one; leave one of them out"
        )
    describe = _describe(options, file)
    predicted = [fits.predicted(steps, describe) for steps in file.runs]
    fit = str(options.coefficients_from)
    findings = step_report.findings_of_predictions(
        file.runs, predicted, fits, fit, paths is not None
    )

    def write(path: Path) -> None:
        table = _with_predictions(file, predicted)
        with replacing(path) as whole:
            if path.suffix == ".csv":
                table.to_csv(whole, index=False)
            else:
                table.to_parquet(whole, index=False)

    files: list[File] = []
    if paths is not None:
        draw_first = partial(draw, findings.pictures[0])
        files = [(paths.result, write), (paths.figure, draw_first)]
    show(findings, lambda: write_files(files), options)


def _with_predictions(file: StepFile, predicted: Sequence[PredictedSteps]) -> pandas.DataFrame:
    """Return the rows of the file with the predicted times, and with their intervals if there are any."""
    ms = rows_in_order(file, [times.ms for times in predicted])
    table = file.table.assign(predicted_ms=ms)
    if all(times.factor is None for times in predicted):
        return table
    factors = [np.full(len(times.ms), times.factor or np.nan) for times in predicted]
    factor = rows_in_order(file, factors)
    return table.assign(predicted_low_ms=ms / factor, predicted_high_ms=ms * factor)
