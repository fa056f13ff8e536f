"""`blis-jax papers calibration`: fits to four real vLLM runs, held-out errors, and a published simulator's."""

from __future__ import annotations

import sys
from pathlib import Path

from blis_jax.backend import prepare_backend
from blis_jax.commands import cli, values
from blis_jax.commands.options import CommandOptions, option, switch
from blis_jax.errors import ConfigError

NAME = "papers.calibration"
DATA = Path(__file__).resolve().parents[3] / "shared" / "data" / "vllm_bench_llmservingsim"
RUNS = (
    "RTX4090_Llama-3.1-8B",
    "RTXPRO6000_Llama-3.1-8B",
    "RTXPRO6000_Qwen3-30B-A3B-Instruct-2507",
    "RTXPRO6000_Qwen3-32B",
)
_DESCRIPTION = """\
Fit the step-time model to four vLLM runs of 300 requests (LLMServingSim's benchmark, casys-kaist,
ISPASS 2026): on the latencies of the first 150 requests, predicting the last 150; and on all 300,
beside the errors that the published simulator reports of itself. Runs that are done are kept in the
output folder and not fitted again.
"""
_EXAMPLES = """\
examples:
  both tables, from the traces beside the checkout:
    %(prog)s

  one run, from another folder:
    %(prog)s --data bench/examples --runs RTXPRO6000_Qwen3-32B
"""


class _What(CommandOptions, title="what"):
    """Options for the runs to fit, and for the fits."""

    data: str | None = option(
        str, None, "FOLDER", "folder of the four runs (default: shared/data beside the checkout)"
    )
    runs: str = option(str, ",".join(RUNS), "LIST", "runs to fit")
    starts: int = option(values.whole, 4, "N", "starting points of each fit")
    output: str = option(str, "out/calibration", "FOLDER", "where fits, figures and tables go")


class CalibrationPaperOptions(
    _What, title="switches", command=NAME, description=_DESCRIPTION, examples=_EXAMPLES
):
    """Options of the command."""

    overwrite: bool = switch("fit again what is kept already")


@CalibrationPaperOptions.as_main
def main(options: CalibrationPaperOptions) -> int:
    """Run the command; return its exit code."""
    data = DATA if options.data is None else Path(options.data)
    names = [name.strip() for name in options.runs.split(",")]
    for name in names:
        if not (data / name / "requests.jsonl").is_file():
            raise ConfigError(
                f"{data / name / 'requests.jsonl'} does not exist; give the folder of the four runs "
                "with --data, from bench/examples of github.com/casys-kaist/LLMServingSim"
            )
    output = Path(options.output)
    output.mkdir(parents=True, exist_ok=True)
    cli.check_writable(output, is_folder=True)
    prepare_backend()

    from papers.calibration.tables import fit_runs

    return fit_runs(options, data, names, output)


if __name__ == "__main__":
    sys.exit(main())
