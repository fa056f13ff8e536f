"""What a surrogate predicts, printed and written as options of `blis-jax surrogate predict` say."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from blis_jax import progress
from blis_jax.commands import cli
from blis_jax.commands.options.seed_options import given_seeds
from blis_jax.errors import ConfigError, closest
from blis_jax.files.atomic_write import finite, write_csv
from blis_jax.reports import render
from blis_jax.reports.findings import Answer, Findings, Quantity, Remarks, Row, Table
from blis_jax.reports.words import unit_text
from blis_jax.results.dataset import save
from blis_jax.workload.spec import WorkloadSpec, list_builtin, load_builtin, load_spec
from surrogate.levels.predict import (
    baseline_config,
    baseline_on_seeds,
    covariates_of_seeds,
    levels_of,
    predict_any,
)
from surrogate.predictor import Surrogate, read_about

if TYPE_CHECKING:
    import numpy as np
    import xarray as xr

    from surrogate.predict import PredictOptions


_KNOWN = {  # by what is known of the seeds: which they are, and where the level comes from
    "unknown": ("any", ""),
    "given": ("these", ", level from their requests"),
    "simulated": ("these", ", level from the baseline's runs"),
}


def show_prediction(
    options: PredictOptions, path: Path, points: list[dict[str, Any]] | None, out: Path | None
) -> int:
    """Predict the points, and print or write it; return the exit code."""
    confidence = options.confidence
    document = read_about(path)
    chosen = _metrics(options.metrics, document["outputs"])
    if points is None:
        _describe(document)
        return 0

    with progress.phase("predicting"):
        surrogate = Surrogate.load(path)
        predictions = surrogate.predict(points, confidence)
        further = _any_seeds(options, surrogate, points, confidence)
        predictions = (
            predictions if further is None else predictions.assign(further.data_vars)
        ).sel(output=chosen)
    if out is not None:
        _write(predictions, out)
    told = "the figures of each point are below." if out is None else f"Written: {out}"
    tables = _tables(predictions, {} if further is None else further.attrs, is_brief=out is None)
    findings = Findings(_answer(predictions, confidence, told), tables)
    render.show(findings, options.all, options.explain)
    return 0


def _tables(
    predictions: xr.Dataset, about: Mapping[str, Any], is_brief: bool
) -> tuple[Table | Remarks, ...]:
    """Return tables with a row for each point and metric, and the reasons not to trust a point."""
    which, how = _KNOWN[about["seeds"]] if about else ("", "")
    seeds = f"for {which} {about['num_seeds']} seeds" if about else ""
    further = (seeds, f"against {about['baseline']}") if about else ()
    rows, doubts = [], []
    for number in range(predictions.sizes["point"]):
        point = predictions.isel(point=number)
        if not bool(point["in_domain"]):
            doubts.append(f"point {number + 1}: do not trust this: {point['reason'].item()}")
        for place, metric in enumerate(point["output"].values):
            output = point.isel(output=place)
            unit = unit_text(str(output["unit"].item()))
            values = [
                _estimate(output, ("mean", "low", "high"), unit),
                _number(output, "aleatoric_sd", unit),
            ]
            if about:
                values.append(_estimate(output, ("any_mean", "any_low", "any_high"), unit))
                names = ("any_difference", "any_difference_low", "any_difference_high")
                values.append(_estimate(output, names, unit, is_signed=True))
            rows.append(Row((str(number + 1), str(metric), *values), is_brief))
    columns = ("point", "metric", "mean in this pool", "sd of runs", *further)
    notes = (*doubts, f"The last two columns are {seeds}{how}.") if how else tuple(doubts)
    points = Table(columns, tuple(rows), num_keys=2, name="points")
    if not about:
        return points, Remarks(notes, is_brief=True)
    held = 100 * predictions["any_least_held"].mean("point").to_series().sort_values()
    least, most = held.index[0], held.index[-1]
    said = (
        f"Points on one set of seeds share what is not known of it: on nine sets of ten at least {held[least]:.0f} % "
        f"of them ({least}) to {held[most]:.0f} % ({most}) lie in their intervals {seeds}."
    )
    by_metric = tuple(
        Row((name, Quantity(share, unit=" %")), is_brief=False) for name, share in held.items()
    )
    columns = ("metric", "points in their intervals, on 9 of 10 sets of seeds at least")
    return (
        points,
        Remarks((*notes, said), is_brief=True),
        Table(columns, by_metric, num_keys=1, name="sets of seeds"),
    )


def _number(output: xr.Dataset, name: str, unit: str) -> Quantity:
    return Quantity(finite(float(output[name])), unit=unit)


def _estimate(
    output: xr.Dataset, names: Sequence[str], unit: str, is_signed: bool = False
) -> Quantity:
    mean, low, high = (finite(float(output[name])) for name in names)
    return Quantity(mean, low, high, unit=unit, is_signed=is_signed)


def _any_seeds(
    options: PredictOptions, surrogate: Surrogate, points: Any, confidence: float
) -> xr.Dataset | None:
    """Return predictions for seeds outside the pool, with names that begin with `any_`; None if there can be none."""
    seeds = given_seeds(options, "jax" if surrogate.levels is None else surrogate.levels.stream)
    for name, value in (("workload", options.workload), ("level", options.level)):
        if seeds is None and value is not None:
            raise ConfigError(f"--{name}: a {name} is known by seeds; give --seeds too")
    if seeds is None and surrogate.levels is None:
        return None
    levels_of(surrogate)
    of_seeds = baseline = None
    if seeds is not None:
        workload, spec = options.workload, None
        if workload:
            is_known = workload in list_builtin()
            spec = load_builtin(workload) if is_known else load_spec(Path(workload))
        of_seeds = covariates_of_seeds(surrogate, seeds, spec)
        baseline = _on_seeds(options, surrogate, seeds, spec)
    predictions = predict_any(surrogate, points, confidence, of_seeds, baseline=baseline)
    return predictions.rename({name: f"any_{name}" for name in predictions.data_vars})


def _on_seeds(
    options: PredictOptions, surrogate: Surrogate, seeds: Sequence[int], spec: WorkloadSpec | None
) -> np.ndarray | None:
    """Return the baseline's runs on the seeds; None if only requests are to count, or if none can be made here."""
    if options.level == options.by_requests:
        return None
    try:
        baseline_config(surrogate)
    except ConfigError as error:
        if options.level == options.by_baseline:
            raise
        cli.say(options.command, f"note: the level comes from the requests alone: {error}")
        return None
    return baseline_on_seeds(surrogate, seeds, spec)


def _metrics(listed: str | None, outputs: Sequence[str]) -> list[str]:
    if listed is None:
        return list(outputs)
    chosen = [part.strip() for part in listed.split(",") if part.strip()]
    for name in chosen:
        if name not in outputs:
            raise ConfigError(
                f"--metrics: {name!r} is not predicted{closest(name, outputs)}; there are "
                f"{', '.join(outputs)}"
            )
    return chosen


def _answer(predictions: xr.Dataset, confidence: float, verdict: str) -> Answer:
    """Return how many points are predicted, and how many of them can be trusted."""
    trusted = predictions["in_domain"].values
    return Answer.of(
        f"What would the runs of {len(trusted)} points give?",
        f"{len(trusted)} points. {verdict}",
        f"{int(trusted.sum())} of {len(trusted)} points lie where the surrogate was trained; "
        f"{100 * confidence:g} % intervals.",
        "nothing was simulated.",
        "simulate what you rely on: blis-jax compare.",
    )


def _describe(document: Mapping[str, Any]) -> None:
    """Print a surrogate's inputs and outputs."""
    about = document["about"]
    render.show_answer(
        Answer.of(
            "What can the surrogate be asked?",
            f"Surrogate of {about.get('data', '')}, {about.get('num_points', '?')} training points.",
            f"{len(document['outputs'])} outputs, each with its interval.",
            "nothing was computed.",
            "give POINTS, a .csv or .json with a column for each input below.",
        )
    )
    print()
    for column in document["columns"]:
        values = (
            ", ".join(map(str, column["categories"]))
            if column["categories"]
            else f"{column['low']:g} to {column['high']:g} {column['unit']}".rstrip()
        )
        print(f"  {column['name']}: {values}")
    print(f"Outputs: {', '.join(document['outputs'])}")


def _write(predictions: Any, out: Path) -> None:
    if out.suffix != ".csv":
        predictions["reason"] = predictions["reason"].astype(str)
        with cli.writing(out):
            save(predictions, out)
        return

    table = predictions.drop_dims("level").to_dataframe().reset_index()
    for level in predictions["level"].values:
        table[f"q{100 * level:g}"] = predictions["quantile"].sel(level=level).values.ravel()
    write_csv(out, table)
