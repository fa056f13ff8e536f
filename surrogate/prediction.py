"""What a surrogate predicts, printed and written as options of `surrogate.predict` say."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from blis_jax import progress
from blis_jax.commands import cli
from blis_jax.commands.options.seed_options import given_seeds
from blis_jax.errors import ConfigError, closest
from blis_jax.files.atomic_write import replacing
from blis_jax.reports import render
from blis_jax.reports.findings import Answer
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
        found = surrogate.predict(points, confidence)
        further = _any_seeds(options, surrogate, points, confidence)
        found = (found if further is None else found.assign(further.data_vars)).sel(output=chosen)
    if out is not None:
        _write(found, out)
        render.show_answer(_answer(found, confidence, f"Written: {out}"))
        return 0
    render.show_answer(_answer(found, confidence, "the figures of each point are below."))
    for row in range(len(points)):
        one = found.isel(point=row)
        trusted = "" if bool(one["in_domain"]) else f" — do not trust this: {one['reason'].item()}"
        print(f"point {row + 1}{trusted}")
        for place, name in enumerate(chosen):
            mean, low, high = (float(one[key].values[place]) for key in ("mean", "low", "high"))
            sd, unit = float(one["aleatoric_sd"].values[place]), str(one["unit"].values[place])
            print(
                f"  {name:28s} {mean:12.5g} [{low:.5g}, {high:.5g}] {unit} in this pool, sd of runs {sd:.3g}"
            )
            if further is not None:
                print("\n".join(_words_of_any(one.isel(output=place), further.attrs)))
    return 0


def _any_seeds(
    options: PredictOptions, surrogate: Surrogate, points: Any, confidence: float
) -> xr.Dataset | None:
    """Return what is predicted for seeds outside the pool, its names with `any_` before; None if nothing can be."""
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
    found = predict_any(surrogate, points, confidence, of_seeds, baseline=baseline)
    return found.rename({name: f"any_{name}" for name in found.data_vars})


def _on_seeds(
    options: PredictOptions, surrogate: Surrogate, seeds: Sequence[int], spec: WorkloadSpec | None
) -> np.ndarray | None:
    """Return the baseline's runs on the seeds; None if the requests are to do, or if it cannot be simulated here."""
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


def _words_of_any(one: xr.Dataset, about: Mapping[str, Any]) -> list[str]:
    """Return one metric of one point for any seeds, and beside the baseline."""
    which, how = _KNOWN[about["seeds"]]
    who = f"{which} {about['num_seeds']} seeds{how}"
    values = [
        tuple(float(one[f"any_{name}"]) for name in names)
        for names in (
            ("mean", "low", "high"), ("difference", "difference_low", "difference_high")
        )
    ]  # fmt: skip
    (mean, low, high), (off, least, most) = values
    return [
        f"  {'':28s} {mean:12.5g} [{low:.5g}, {high:.5g}] for {who}",
        f"  {'':28s} {off:+12.5g} [{least:+.5g}, {most:+.5g}] against {about['baseline']} on them",
    ]


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


def _answer(found: xr.Dataset, confidence: float, verdict: str) -> Answer:
    """Return how many points are predicted, and how many of them can be trusted."""
    trusted = found["in_domain"].values
    return Answer.of(
        f"What would the runs of {len(trusted)} points give?",
        f"{len(trusted)} points. {verdict}",
        f"{int(trusted.sum())} of {len(trusted)} points lie where the surrogate was trained; "
        f"{100 * confidence:g} % intervals.",
        "nothing was simulated.",
        "simulate what you rely on: blis-jax compare.",
    )


def _describe(document: Mapping[str, Any]) -> None:
    """Print what the surrogate asks for and gives."""
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


def _write(found: Any, out: Path) -> None:
    if out.suffix != ".csv":
        found["reason"] = found["reason"].astype(str)
        with cli.writing(out):
            save(found, out)
        return

    table = found.drop_dims("level").to_dataframe().reset_index()
    for level in found["level"].values:
        table[f"q{100 * level:g}"] = found["quantile"].sel(level=level).values.ravel()
    with cli.writing(out), replacing(out) as written:
        table.to_csv(written, index=False)
