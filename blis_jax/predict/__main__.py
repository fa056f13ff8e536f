"""`python -m blis_jax.predict RUNS.csv`: what real servers would measure, with intervals."""

from __future__ import annotations

import sys
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from blis_jax import progress
from blis_jax.backend import prepare_backend
from blis_jax.commands import cli
from blis_jax.commands.cli import Flag, Notes, Parser
from blis_jax.errors import ConfigError
from blis_jax.files.overwriting import SWITCH, refuse_existing
from blis_jax.predict.learned import FITTED, MODELS

if TYPE_CHECKING:
    import pandas

    from blis_jax.predict.files import RunsFile

NAME = "blis_jax.predict"
_DESCRIPTION = """\
Predict the latencies of real servers. RUNS.csv has a row for each run, or for each figure of a run, in the
columns of one of three public collections, by which it is recognised: vLLM runs (run, model, hardware, tp,
stage_index, metric_name), llm-d clusters (model, hw, arch, config, isl, osl, conc), and vLLM deployments
at several concurrencies (model_path, system, precision, isl, osl, tp_size, concurrency). Every row becomes a
server and a load, which are simulated. The same columns are written with predictions in them, _low and _high
hold an interval; what the file had measured moves to _measured and is not used. A row that cannot be predicted
says why in the column not_predicted.
"""
_EXAMPLES = """\
examples:
  predictions beside the file, in runs_predicted.csv:
    %(prog)s runs.csv

  with the coefficients that BLIS publishes, nothing fitted:
    %(prog)s runs.csv --model trained-physics --output out/plain.csv
"""
_FLAGS = (
    Flag(
        "model",
        cli.one_of(*MODELS),
        FITTED,
        "NAME",
        "fitted: step and client times fitted to public runs of such servers; trained-physics: as BLIS publishes it",
    ),
    Flag(
        "model-configs",
        str,
        None,
        "FOLDER",
        "config.json of models that are not shipped: FOLDER/NAME/config.json",
    ),
    Flag("output", str, None, "FILE", "CSV file to write (default: RUNS_predicted.csv)"),
    Flag("log", cli.one_of(*cli.LOG_LEVELS), "warn", "LEVEL", "how much to say"),
)


def main(arguments: Sequence[str] | None = None) -> int:
    """Run the command; the exit code."""
    return cli.run_command(NAME, _command, arguments)


def _command(arguments: Sequence[str] | None) -> int:
    parser = Parser(
        prog=f"python -m {NAME}",
        usage="%(prog)s RUNS.csv [options]",
        description=_DESCRIPTION,
        epilog=_EXAMPLES,
    )
    parser.add_argument("runs", metavar="RUNS.csv", nargs="?", help="the runs")
    parser.add_flags("prediction", _FLAGS)
    parser.add_switches("switches", SWITCH)
    given = parser.given(sys.argv[1:] if arguments is None else arguments)
    if "runs" not in given:
        raise ConfigError("RUNS.csv is missing; give a file of runs, see --help")
    source = Path(given["runs"])
    output = Path(given.get("output", source.with_name(f"{source.stem}_predicted.csv")))
    prepare_backend()
    cli.check_writable(output)
    refuse_existing(given, {"--output": output})
    notes = Notes(NAME, given.get("log", "warn"))

    from blis_jax.predict.files import filled, read_runs_file
    from blis_jax.predict.learned import learned
    from blis_jax.predict.prediction import predict, with_configs

    file = read_runs_file(source)
    units = file.collection.units(file.rows)
    if "model_configs" in given:
        units = with_configs(units, Path(given["model_configs"]))
    with progress.phase("predicting", len(units), "runs") as work:
        found = predict(units, learned(file.collection.NAME, given.get("model", FITTED)), work.show)
    for problem in dict.fromkeys(one.problem for one in found if one.problem):
        notes.warn(problem)
    table = filled(file, found)
    from blis_jax.files.atomic_write import replacing

    with cli.writing(output), replacing(output) as scratch:
        table.to_csv(scratch, index=False)
    print(summary(file, table))
    print(f"Written: {output}")
    return 0


def summary(file: RunsFile, table: pandas.DataFrame) -> str:
    """How many rows were predicted, and how far off they are where the file has measured values."""
    import pandas

    from blis_jax.predict.files import MEASURED, REASON

    number = int((table[REASON] == "").sum())
    lines = [f"{number} of {len(table)} rows predicted as {file.collection.NAME}."]
    by = "metric_name" if "metric_name" in table.columns else None
    for column in file.collection.VALUES:
        if f"{column}{MEASURED}" not in table.columns:
            continue
        measured = pandas.to_numeric(table[f"{column}{MEASURED}"], errors="coerce")
        off = (table[column] / measured - 1).abs() * 100
        groups = off.groupby(table[by]) if by else [(column, off)]
        for name, values in groups:
            if values.notna().any():
                lines.append(
                    f"  {name}: median error {values.median():.1f} %, worst {values.max():.1f} %"
                )
    return "\n".join(lines)


if __name__ == "__main__":
    sys.exit(main())
