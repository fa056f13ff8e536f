"""`python -m surrogate.predict MODEL POINTS`: what a surrogate says of points in a file."""

from __future__ import annotations

import csv
import io
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from blis_jax import progress
from blis_jax.commands import cli
from blis_jax.commands.options import CommandOptions, OverwriteSwitch, option, word
from blis_jax.commands.options.outputs import output_path
from blis_jax.commands.options.seed_options import SeedOptions, given_seeds, seeds_option
from blis_jax.errors import ConfigError, closest
from blis_jax.files import input_files
from blis_jax.files.atomic_write import replacing
from blis_jax.reports import render
from blis_jax.reports.findings import Answer

if TYPE_CHECKING:
    import numpy as np
    import xarray as xr

    from blis_jax.workload.spec import WorkloadSpec
    from surrogate.predictor import Surrogate

NAME = "surrogate.predict"

_DESCRIPTION = """\
Predict the metrics of points: mean over the pool's seeds with a calibrated interval, spread of single
runs, and whether the surrogate can be trusted there. A surrogate that was trained with --seeds-data
also says what holds for any seeds: the mean over 32 that nobody knows, or over the seeds that you
name; and the difference from its baseline on the same seeds. Of seeds that you name the requests are
drawn and the baseline is simulated, once a seed, which gives the level; --level requests simulates
nothing. POINTS is a .csv with a column for every parameter, or a .json with a list of points, each a
mapping of its parameters.
"""
_EXAMPLES = """\
examples:
  what MODEL asks for, and in which ranges:
    %(prog)s out/iter08.surrogate

  points of a table, one metric on the screen:
    %(prog)s out/iter08.surrogate points.csv --metrics "ttft_p99_ms[critical]"

  the means over your seeds, and over those of a workload of your own:
    %(prog)s out/iter08.surrogate points.csv --seeds 16 --first-seed 5000
    %(prog)s out/iter08.surrogate points.csv --seeds 16 --first-seed 5000 --workload mine.yaml

  the same from the requests of the seeds alone, without a simulation:
    %(prog)s out/iter08.surrogate points.csv --seeds 16 --first-seed 5000 --level requests

  everything, one line a point and metric, as a table:
    %(prog)s out/iter08.surrogate points.json --output predicted.csv
"""
BY_BASELINE, BY_REQUESTS = "simulated", "requests"  # where the level of given seeds comes from


class _Output(CommandOptions, title="output"):
    """Options for the metrics to predict, and for the confidence of intervals."""

    metrics: str | None = option(str, None, "LIST", "metrics to show (default: all)")
    confidence: float = option(cli.number, 0.9, "P", "confidence of the intervals")
    output: str | None = option(
        str, None, "PATH", "table to write, .csv, or everything as .nc or .zarr"
    )


class _Seeds(SeedOptions, title="seeds"):
    """The seeds that are asked about."""

    seeds: str | None = seeds_option("32 that nobody knows")
    workload: str | None = option(
        str, None, "NAME", "built-in workload or .yaml file that the seeds draw from (default: the dataset's)",
    )  # fmt: skip
    level: str | None = option(
        cli.one_of(BY_BASELINE, BY_REQUESTS), None, "NAME", "what the level of these seeds comes from: "
        f"{BY_BASELINE}, the baseline's runs on them, or {BY_REQUESTS}, their requests alone (default: "
        f"{BY_BASELINE}, where the baseline can be simulated)",
    )  # fmt: skip


_KNOWN = {  # by what is known of the seeds: which they are, and where the level comes from
    "unknown": ("any", ""),
    "given": ("these", ", level from their requests"),
    "simulated": ("these", ", level from the baseline's runs"),
}
FORMATS = (".csv", ".nc", ".zarr")


class PredictOptions(
    _Output, _Seeds, OverwriteSwitch, command=NAME, description=_DESCRIPTION, examples=_EXAMPLES
):
    """Options of the command."""

    model: str | None = word("MODEL", "folder of surrogate.train")
    points: str | None = word("POINTS", ".csv or .json")


def main(arguments: Sequence[str] | None = None) -> int:
    """Run the command; return its exit code."""
    return cli.run_command(NAME, _predict, arguments)


def _predict(arguments: Sequence[str] | None) -> int:
    options = PredictOptions.read(arguments)
    if options.model is None:
        raise ConfigError("no surrogate is given; give a folder that surrogate.train wrote")
    path, confidence = Path(options.model), options.confidence
    if not 0 < confidence < 1:
        raise ConfigError(f"--confidence: got {confidence:g}, allowed is between 0 and 1")
    out = None
    if options.output is not None:
        out = output_path(options.output, "--output", FORMATS, options.overwrite)
    points = None if options.points is None else read_points(Path(options.points))

    from surrogate.store import read_about

    document = read_about(path)
    chosen = _metrics(options.metrics, document["outputs"])
    if points is None:
        _describe(document)
        return 0

    from surrogate.predictor import Surrogate

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
    """What is predicted for seeds outside the pool, its names with `any_` before; None if nothing can be."""
    seeds = given_seeds(options, "jax" if surrogate.levels is None else surrogate.levels.stream)
    for name, value in (("workload", options.workload), ("level", options.level)):
        if seeds is None and value is not None:
            raise ConfigError(f"--{name}: a {name} is known by seeds; give --seeds too")
    if seeds is None and surrogate.levels is None:
        return None
    from surrogate.levels.predict import covariates_of_seeds, levels_of, predict_any

    levels_of(surrogate)
    of_seeds = baseline = None
    if seeds is not None:
        from blis_jax.workload.spec import list_builtin, load_builtin, load_spec

        workload, spec = options.workload, None
        if workload:
            is_known = workload in list_builtin()
            spec = load_builtin(workload) if is_known else load_spec(Path(workload))
        of_seeds = covariates_of_seeds(surrogate, seeds, spec)
        baseline = _on_seeds(options.level, surrogate, seeds, spec)
    found = predict_any(surrogate, points, confidence, of_seeds, baseline=baseline)
    return found.rename({name: f"any_{name}" for name in found.data_vars})


def _on_seeds(
    level: str | None, surrogate: Surrogate, seeds: Sequence[int], spec: WorkloadSpec | None
) -> np.ndarray | None:
    """The baseline's runs on the seeds; None if the requests are to do, or if it cannot be simulated here."""
    if level == BY_REQUESTS:
        return None
    from surrogate.levels.predict import baseline_config, baseline_on_seeds

    try:
        baseline_config(surrogate)
    except ConfigError as error:
        if level == BY_BASELINE:
            raise
        cli.say(NAME, f"note: the level comes from the requests alone: {error}")
        return None
    return baseline_on_seeds(surrogate, seeds, spec)


def _words_of_any(one: xr.Dataset, about: Mapping[str, Any]) -> list[str]:
    """One metric of one point for any seeds, and beside the baseline."""
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


def read_points(path: Path) -> list[dict[str, Any]]:
    """Read the points in a .csv or .json file.

    Raises:
        ConfigError: the file has another form, or no points.
    """
    if path.suffix == ".json":
        points = input_files.read_json(path, "a list of points")
        points = [points] if isinstance(points, dict) else points
        if not isinstance(points, list) or not all(isinstance(entry, dict) for entry in points):
            raise ConfigError(f"{path} must hold a list of points, each NAME: VALUE")
    elif path.suffix == ".csv":
        points = list(csv.DictReader(io.StringIO(input_files.read_text(path, "points"))))
        for row, point in enumerate(points):
            if None in point or None in point.values():
                raise ConfigError(
                    f"{path}: row {row + 1} does not have as many cells as the header"
                )
    else:
        raise ConfigError(f"{path} must end in .csv or .json")
    if not points:
        raise ConfigError(f"{path} has no points")
    return points


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
        "simulate what you rely on: python -m sweeps.compare.",
    )


def _describe(document: Mapping[str, Any]) -> None:
    """What the surrogate asks for and gives."""
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
        from blis_jax.results.dataset import save

        found["reason"] = found["reason"].astype(str)
        with cli.writing(out):
            save(found, out)
        return

    table = found.drop_dims("level").to_dataframe().reset_index()
    for level in found["level"].values:
        table[f"q{100 * level:g}"] = found["quantile"].sel(level=level).values.ravel()
    with cli.writing(out), replacing(out) as written:
        table.to_csv(written, index=False)


if __name__ == "__main__":
    sys.exit(main())
