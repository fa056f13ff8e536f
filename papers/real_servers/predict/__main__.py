"""`blis-jax predict RUNS.csv`: what real servers would measure, with intervals."""

from __future__ import annotations

import sys
from pathlib import Path

from blis_jax.backend import prepare_backend
from blis_jax.commands import cli, values
from blis_jax.commands.options import OverwriteSwitch, option, word
from blis_jax.commands.options.outputs import output_path
from blis_jax.errors import ConfigError
from papers.real_servers.predict.scene import FITTED, MODELS

NAME = "papers.real_servers.predict"
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


class RunPredictOptions(
    OverwriteSwitch, title="prediction",
    command=NAME, usage="%(prog)s RUNS.csv [options]", description=_DESCRIPTION, examples=_EXAMPLES,
):  # fmt: skip
    """Options of the command."""

    runs: str | None = word("RUNS.csv", "the runs")
    model: str = option(
        values.OneOf(*MODELS), FITTED, "NAME", "fitted: step and client times fitted to public runs of such "
        "servers; trained-physics: as BLIS publishes it",
    )  # fmt: skip
    model_configs: str | None = option(
        str, None, "FOLDER", "config.json of models that are not shipped: FOLDER/NAME/config.json"
    )
    output: str | None = option(
        str, None, "FILE", "CSV file to write (default: RUNS_predicted.csv)"
    )
    log: str = option(values.OneOf(*cli.LOG_LEVELS), "warn", "LEVEL", "how much to say")


@RunPredictOptions.as_main
def main(options: RunPredictOptions) -> int:
    """Run the command; return its exit code."""
    if options.runs is None:
        raise ConfigError("RUNS.csv is missing; give a file of runs, see --help")
    source = Path(options.runs)
    usual = source.with_name(f"{source.stem}_predicted.csv")
    output = output_path(options.output or usual, "--output", (), options.overwrite)
    prepare_backend()

    from papers.real_servers.predict.files import predict_runs

    return predict_runs(options, source, output)


if __name__ == "__main__":
    sys.exit(main())
