"""`blis-jax surrogate predict MODEL POINTS`: what a surrogate says of points in a file."""

from __future__ import annotations

import csv
import io
import sys
from pathlib import Path
from typing import Any, ClassVar

from blis_jax.commands import values
from blis_jax.commands.options import AllSwitch, CommandOptions, OverwriteSwitch, option, word
from blis_jax.commands.options.outputs import output_path
from blis_jax.commands.options.seed_options import SeedOptions, seeds_option
from blis_jax.errors import ConfigError
from blis_jax.files import input_files

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
    confidence: float = option(values.number, 0.9, "P", "confidence of the intervals")
    output: str | None = option(
        str, None, "PATH", "table to write, .csv, or everything as .nc or .zarr"
    )


class _Seeds(SeedOptions, title="seeds"):
    """The seeds that are asked about."""

    by_baseline: ClassVar[str] = BY_BASELINE
    by_requests: ClassVar[str] = BY_REQUESTS

    seeds: str | None = seeds_option("32 that nobody knows")
    workload: str | None = option(
        str, None, "NAME", "built-in workload or .yaml file that the seeds draw from (default: the dataset's)",
    )  # fmt: skip
    level: str | None = option(
        values.OneOf(BY_BASELINE, BY_REQUESTS), None, "NAME", "what the level of these seeds comes from: "
        f"{BY_BASELINE}, the baseline's runs on them, or {BY_REQUESTS}, their requests alone (default: "
        f"{BY_BASELINE}, where the baseline can be simulated)",
    )  # fmt: skip


FORMATS = (".csv", ".nc", ".zarr")


class PredictOptions(
    _Output,
    _Seeds,
    AllSwitch,
    OverwriteSwitch,
    command=NAME,
    description=_DESCRIPTION,
    examples=_EXAMPLES,
):
    """Options of the command."""

    model: str | None = word("MODEL", "folder of surrogate.train")
    points: str | None = word("POINTS", ".csv or .json")


@PredictOptions.as_main
def main(options: PredictOptions) -> int:
    """Run the command; return its exit code."""
    if options.model is None:
        raise ConfigError("no surrogate is given; give a folder that surrogate.train wrote")
    path = Path(options.model)
    if not 0 < options.confidence < 1:
        raise ConfigError(f"--confidence: got {options.confidence:g}, allowed is between 0 and 1")
    out = None
    if options.output is not None:
        out = output_path(options.output, "--output", FORMATS, options.overwrite)
    points = None if options.points is None else read_points(Path(options.points))

    from surrogate.prediction import show_prediction

    return show_prediction(options, path, points, out)


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


if __name__ == "__main__":
    sys.exit(main())
