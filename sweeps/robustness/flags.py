"""The options of `python -m sweeps.robustness`."""

from __future__ import annotations

from blis_jax.commands import cli
from blis_jax.commands.cli import Flag, Parser
from blis_jax.commands.flags import trace_flags
from blis_jax.commands.flags.report_flags import REPORT
from blis_jax.commands.flags.seed_options import seed_flags
from blis_jax.commands.flags.shared_options import switches
from blis_jax.commands.flags.stopping_flags import MOST, PRECISION

NAME = "sweeps.robustness"
DEFAULT_OUTPUT = "out/robustness.zarr"
NUM_SEEDS = 8
MOST_SEEDS = 100  # of a cell where a rule adds seeds; the dataset has room for all of them
AXES = {  # by option; its last spelling is the axis's name
    "rate": "requests per second (500 to 3,000)",
    "arrival-cv": "coefficients of variation of the gaps between a client's arrivals (1,2,3.5)",
    "total-kv-blocks/kv-blocks": "KV blocks of an instance (2,000 to 132,139)",
    "kv-cpu-blocks": "blocks of an instance's CPU tier, 0 for none (0,2000,44000)",
    "num-instances/instances": "numbers of instances (4,8,16)",
    "shape": "workloads: built-in names or .yaml files (mixed,nonorthogonal,asymmetric,"
    "multiprefix,multiturn)",
    "step-constant": "fixed cost of a step, beta_0, in us (2000,4000,6910.42…,14000)",
    "signal-age": "us between two looks of the router at load and KV (the strategies' own)",
}

_DESCRIPTION = """\
Run strategies in many regimes (rate, burstiness, KV memory, CPU tier, instances, workload shape, cost
of a step) on the same requests. Say which strategy is best where, how sure that is, and where the order of
strategies changes. ARM is [LABEL=]STRATEGY[@POINT][:NAME=VALUE;…]; the first is what the others are compared with.
Writes a Dataset (.zarr), the recommendations (.json), a table with a row for each cell (.csv), and a map (.png).
"""
_EXAMPLES = """\
examples:
  1,024 regimes of the seven default axes, baseline against the ledger's last optimum:
    %(prog)s baseline=iter00_baseline tuned=iter08_token_budget@published

  two axes in full, three strategies, another objective:
    %(prog)s iter00_baseline iter05_simplified iter08_token_budget@published --design grid \\
      --rate 1000,2000,3000 --total-kv-blocks 2000,3000,5000 --arrival-cv 2 --kv-cpu-blocks 44000 \\
      --num-instances 8 --shape mixed --step-constant 6910.42 --objective 'goodput_rps' --output out/kv.zarr

  rates around that of a trace of your own, in eight windows of it:
    %(prog)s iter00_baseline iter05_simplified --trace trace.jsonl --slo-mix critical:0.3,sheddable:0.7 \\
      --total-kv-blocks 5000 --kv-cpu-blocks 0 --step-constant 6910.42 --output out/trace.zarr

  another question to runs that are there already (nothing is run again):
    %(prog)s baseline=iter00_baseline tuned=iter08_token_budget@published --resume \\
      --constraint 'ttft_p99_ms[standard]<=110%%'

Without --num-requests, requests come for the same time in every cell, so twice the rate means twice the
requests and not half the time. The engine settings of a cell (KV blocks, CPU tier, instances, step
constant) replace those of the arms. A strategy whose runs do not all end, or that drops requests, is
not recommended in that cell; where BLIS's own defects are what fails, ARM:corrected=true runs without
them. After a kill, --resume makes the missing cells.
"""
_DESIGN = (
    Flag("design", cli.one_of("sobol", "latin-hypercube", "grid"), "sobol", "NAME",
         "sobol or latin-hypercube: --cells cells, spread evenly; grid: all combinations"),
    Flag("cells", cli.whole, 1024, "N", "cells to run; fewer if the axes have fewer combinations"),
    Flag("random-state", cli.whole, 0, "N", "seed of the design, the bootstrap and the trees"),
    Flag("reference", str, None, "NAME=VALUE,…", "regime whose order of strategies the others are "
         "compared with (default: the ledger's, or the nearest on the axes)"),
)  # fmt: skip
_REQUESTS = (
    *seed_flags(f"the same in every cell; default: {NUM_SEEDS}"),
    PRECISION,
    MOST._replace(help=f"the most seeds that --precision and --decide take in a cell (default: {MOST_SEEDS})"),
    Flag("duration", cli.number, 0.5, "S", "seconds in which requests come, in every cell"),
    Flag("num-requests", cli.whole, None, "N", "requests in every cell, whatever the rate, in place of --duration"),
    Flag("rng", cli.one_of("reference", "jax"), "reference", "NAME",
         "who draws the requests: reference as BLIS does, so that cells can be checked against it, "
         "or jax as blis_jax.sweep does"),
)  # fmt: skip
_VERDICT = (
    Flag("objective", str, "ttft_p99_ms[critical]", "METRIC", "metric to be best in, with [class] behind it"),
    Flag("constraint", str, None, "TEXT", "METRIC<=LIMIT or METRIC>=LIMIT; a LIMIT with % is in % of "
         "the first arm; repeat it; none for no constraint (default: ttft_p99_ms[sheddable]<=200% and "
         "tokens_per_sec>=95%)", is_repeated=True),
    Flag("confidence", cli.number, 0.95, "P", "bootstrap probability that a recommendation needs"),
    Flag("depth", cli.whole, 3, "N", "depth of the decision tree"),
    Flag("targets", str, None, "CLASS.LIMIT=MS", "SLO target of goodput and attainment; repeat it",
         is_repeated=True),
    Flag("window", str, None, "WARM,COOL", "seconds of arrivals at the start and at the end that are "
         "not measured (default: the workload's `measure`)"),
)  # fmt: skip
_OUTPUT = (
    Flag("output", str, DEFAULT_OUTPUT, "PATH", "Dataset to write, .zarr; the others lie beside it"),
    Flag("figure", str, None, "PATH", "PNG to write, or none (default: beside the Dataset)"),
    REPORT,
    Flag("map-axes", str, "kv_blocks,rate", "X,Y", "axes of each heat map"),
    Flag("map-facets", str, "shape,instances", "COLUMN,ROW", "axes that tell the heat maps apart"),
    Flag("differences", str, None, "PATH", "also write all metrics' paired differences to the first "
         "arm, .zarr or .nc"),
)  # fmt: skip
_SWITCHES = {
    "resume": "take over the cells that the output has already, and run the others",
    "overwrite": "replace an existing output",
    "decide": "add seeds in every cell until its recommendation is safe; tests and intervals hold however often one "
    "looks",
    "every-seed": "run all seeds even of a strategy that livelocks on the first one (a livelock "
    "takes as long as hundreds of usual runs)",
    **switches("quiet", "no-cache"),
}


def parser() -> Parser:
    """The command's parser."""
    made = Parser(prog=f"python -m {NAME}", description=_DESCRIPTION, epilog=_EXAMPLES)
    made.add_argument("arms", metavar="ARM", nargs="*", help="two strategies or more")
    axes = tuple(Flag(name, str, None, "A,B,…", text) for name, text in AXES.items())
    for title, flags in (
        ("axes, values with commas", axes),
        ("cells", _DESIGN),
        ("requests", _REQUESTS),
        (
            "trace, in place of --shape, --arrival-cv and the options of requests",
            trace_flags.STUDY_FLAGS,
        ),
        ("verdict", _VERDICT),
        ("output", _OUTPUT),
    ):
        made.add_flags(title, flags)
    made.add_switches("switches", _SWITCHES)
    return made
