"""`python -m surrogate.predict MODEL POINTS`: what a surrogate says of points in a file."""

from __future__ import annotations

import sys
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from blis_jax import progress
from blis_jax.commands import cli
from blis_jax.commands.cli import Flag, Parser
from blis_jax.errors import ConfigError, closest
from blis_jax.files.overwriting import SWITCH, refuse_existing

NAME = "surrogate.predict"

_DESCRIPTION = """\
Predict the metrics of points: mean over seeds with a calibrated interval, spread of single runs,
and whether the surrogate can be trusted there. POINTS is a .csv with a column for every parameter,
or a .json with a list of points, each a mapping of its parameters.
"""
_EXAMPLES = """\
examples:
  what MODEL asks for, and in which ranges:
    %(prog)s out/iter08.surrogate

  points of a table, one metric on the screen:
    %(prog)s out/iter08.surrogate points.csv --metrics "ttft_p99_ms[critical]"

  everything, one line a point and metric, as a table:
    %(prog)s out/iter08.surrogate points.json --output predicted.csv
"""
_FLAGS = (
    Flag("metrics", str, None, "LIST", "metrics to show (default: all)"),
    Flag("confidence", cli.number, 0.9, "P", "confidence of the intervals"),
    Flag("output", str, None, "PATH", "table to write, .csv, or everything as .nc or .zarr"),
)
FORMATS = (".csv", ".nc", ".zarr")


def _parser() -> Parser:
    parser = Parser(prog=f"python -m {NAME}", description=_DESCRIPTION, epilog=_EXAMPLES)
    parser.add_argument("model", metavar="MODEL", nargs="?", help="folder of surrogate.train")
    parser.add_argument("points", metavar="POINTS", nargs="?", help=".csv or .json")
    parser.add_flags("output", _FLAGS)
    parser.add_switches("switches", SWITCH)
    return parser


def main(arguments: Sequence[str] | None = None) -> int:
    """The command; returns its exit code."""
    return cli.run_command(NAME, _predict, arguments)


def _predict(arguments: Sequence[str] | None) -> int:
    given = _parser().given(sys.argv[1:] if arguments is None else arguments)
    if given.get("model") is None:
        raise ConfigError("no surrogate is given; give a folder that surrogate.train wrote")
    path, confidence = Path(given["model"]), given.get("confidence", 0.9)
    if not 0 < confidence < 1:
        raise ConfigError(f"--confidence: got {confidence:g}, allowed is between 0 and 1")
    out = Path(given["output"]) if "output" in given else None
    if out is not None:
        if out.suffix not in FORMATS:
            raise ConfigError(f"--output: {str(out)!r} must end in {', '.join(FORMATS)}")
        cli.check_writable(out, is_folder=out.suffix == ".zarr")
        refuse_existing(given, {"--output": out})
    points = None if given.get("points") is None else read_points(Path(given["points"]))

    from surrogate.store import read_about

    document = read_about(path)
    chosen = _metrics(given, document["outputs"])
    if points is None:
        _describe(document)
        return 0

    from surrogate.predictor import Surrogate

    with progress.phase("predicting"):
        surrogate = Surrogate.load(path)
        found = surrogate.predict(points, confidence).sel(output=chosen)
    if out is not None:
        _write(found, out)
        print(f"{len(points)} points. Written: {out}")
        return 0
    for row in range(len(points)):
        one = found.isel(point=row)
        trusted = "" if bool(one["in_domain"]) else f" — do not trust this: {one['reason'].item()}"
        print(f"point {row + 1}{trusted}")
        for place, name in enumerate(chosen):
            mean, low, high = (float(one[key].values[place]) for key in ("mean", "low", "high"))
            sd, unit = float(one["aleatoric_sd"].values[place]), str(one["unit"].values[place])
            print(f"  {name:28s} {mean:12.5g} [{low:.5g}, {high:.5g}] {unit}, sd of runs {sd:.3g}")
    return 0


def read_points(path: Path) -> list[dict[str, Any]]:
    """The points in a .csv or .json file."""
    if path.suffix == ".json":
        points = cli.read_json(path, "a list of points")
        points = [points] if isinstance(points, dict) else points
        if not isinstance(points, list) or not all(isinstance(one, dict) for one in points):
            raise ConfigError(f"{path} must hold a list of points, each NAME: VALUE")
    elif path.suffix == ".csv":
        import csv
        import io

        points = list(csv.DictReader(io.StringIO(cli.read_text(path, "points"))))
        for row, point in enumerate(points):
            if None in point or None in point.values():
                raise ConfigError(f"{path}: row {row + 1} has not as many cells as the header")
    else:
        raise ConfigError(f"{path} must end in .csv or .json")
    if not points:
        raise ConfigError(f"{path} has no points")
    return points


def _metrics(given: Mapping[str, Any], outputs: Sequence[str]) -> list[str]:
    if "metrics" not in given:
        return list(outputs)
    chosen = [part.strip() for part in given["metrics"].split(",") if part.strip()]
    for name in chosen:
        if name not in outputs:
            raise ConfigError(
                f"--metrics: {name!r} is not predicted{closest(name, outputs)}; there are "
                f"{', '.join(outputs)}"
            )
    return chosen


def _describe(document: Mapping[str, Any]) -> None:
    """What the surrogate asks for and gives."""
    about = document["about"]
    print(f"Surrogate of {about.get('data', '')}, {about.get('num_points', '?')} training points.")
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
    from blis_jax.files.atomic_write import replacing

    table = found.drop_dims("level").to_dataframe().reset_index()
    for level in found["level"].values:
        table[f"q{100 * level:g}"] = found["quantile"].sel(level=level).values.ravel()
    with cli.writing(out), replacing(out) as written:
        table.to_csv(written, index=False)


if __name__ == "__main__":
    sys.exit(main())
