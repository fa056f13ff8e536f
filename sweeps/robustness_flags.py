"""The options of `python -m sweeps.robustness`."""

from __future__ import annotations

from blis_jax import cli
from blis_jax.cli import Flag, Parser

NAME = "sweeps.robustness"
DEFAULT_OUTPUT = "out/robustness.zarr"
DEFAULT_SEEDS = "42,43,44,45,46,47,48,49"
AXES = {  # by option
    "rate": "requests per second (500 to 3,000)",
    "arrival-cv": "coefficients of variation of the gaps between a client's arrivals (1,2,3.5)",
    "kv-blocks": "KV blocks of an instance (2,000 to 132,139)",
    "kv-cpu-blocks": "blocks of an instance's CPU tier, 0 for none (0,2000,44000)",
    "instances": "numbers of instances (4,8,16)",
    "shape": "workloads: built-in names or .yaml files (mixed,nonorthogonal,asymmetric,"
    "multiprefix,multiturn)",
    "step-constant": "fixed cost of a step, beta_0, in us (2000,4000,6910.42…,14000)",
}

_DESCRIPTION = """\
Run strategies in many regimes (rate, burstiness, KV memory, CPU tier, instances, workload shape, cost
of a step) on the same requests, and say which one is best where, how surely, and where the answer turns
round. ARM is [LABEL=]STRATEGY[@POINT][:NAME=VALUE;…]; the first is what the others are compared with.
Writes a Dataset (.zarr), the recommendations (.json), one row a cell (.csv), and a map (.png).
"""
_EXAMPLES = """\
examples:
  1,024 regimes of the seven default axes, baseline against the ledger's last optimum:
    %(prog)s baseline=iter00_baseline tuned=iter08_token_budget@published

  two axes in full, three strategies, another objective:
    %(prog)s iter00_baseline iter05_simplified iter08_token_budget@published --design grid \\
      --rate 1000,2000,3000 --kv-blocks 2000,3000,5000 --arrival-cv 2 --kv-cpu-blocks 44000 \\
      --instances 8 --shape mixed --step-constant 6910.42 --objective 'goodput_rps' --output out/kv.zarr

  another question to runs that are there already (nothing is run again):
    %(prog)s baseline=iter00_baseline tuned=iter08_token_budget@published --resume \\
      --constraint 'ttft_p99_ms[standard]<=110%%'

Without --requests, requests come for the same time in every cell, so twice the rate means twice the
requests and not half the time. The engine settings of a cell (KV blocks, CPU tier, instances, step
constant) replace those of the arms. A strategy whose runs do not all end, or that drops requests, is
not recommended in that cell; where BLIS's own defects are what fails, ARM:corrected=true runs without
them. After a kill, --resume goes on with the cells that are missing.
"""
_DESIGN = (
    Flag("design", cli.one_of("sobol", "latin-hypercube", "grid"), "sobol", "NAME",
         "sobol or latin-hypercube: so many cells spread evenly; grid: all combinations"),
    Flag("cells", cli.whole, 1024, "N", "cells to run; fewer if the axes have fewer combinations"),
    Flag("random-state", cli.whole, 0, "N", "seed of the design, the bootstrap and the trees"),
    Flag("reference", str, None, "NAME=VALUE,…", "regime whose order of strategies the others are "
         "compared with (default: the ledger's, or the nearest on the axes)"),
)  # fmt: skip
_REQUESTS = (
    Flag("seeds", str, DEFAULT_SEEDS, "A,B,…", "seeds of the requests, the same in every cell"),
    Flag("duration", cli.number, 0.5, "S", "seconds in which requests come, in every cell"),
    Flag("requests", cli.whole, None, "N", "a fixed number of requests instead, whatever the rate"),
    Flag("rng", cli.one_of("reference", "jax"), "reference", "NAME",
         "who draws the requests: reference as BLIS does, so that cells can be checked against it, "
         "or jax as blis_jax.sweep does"),
)  # fmt: skip
_VERDICT = (
    Flag("objective", str, "ttft_p99_ms[critical]", "METRIC", "what is to be best, [class] behind"),
    Flag("constraint", str, None, "TEXT", "METRIC<=LIMIT or METRIC>=LIMIT, % behind for one in % of "
         "the first arm; repeat it; none for none (default: ttft_p99_ms[sheddable]<=200% and "
         "tokens_per_sec>=95%)"),
    Flag("confidence", cli.number, 0.95, "P", "bootstrap probability that a recommendation needs"),
    Flag("depth", cli.whole, 3, "N", "depth of the decision tree"),
    Flag("targets", str, None, "CLASS.LIMIT=MS", "SLO target of goodput and attainment; repeat it"),
    Flag("window", str, None, "WARM,COOL", "seconds of arrivals at the start and at the end that are "
         "not measured (default: the workload's `measure`)"),
)  # fmt: skip
_OUTPUT = (
    Flag("output", str, DEFAULT_OUTPUT, "PATH", "Dataset to write, .zarr; the others lie beside it"),
    Flag("figure", str, None, "PATH", "PNG to write, or none (default: beside the Dataset)"),
    Flag("map-axes", str, "kv_blocks,rate", "X,Y", "axes of each heat map"),
    Flag("map-facets", str, "shape,instances", "COLUMN,ROW", "axes that tell the heat maps apart"),
    Flag("differences", str, None, "PATH", "also write all metrics' paired differences to the first "
         "arm, .zarr or .nc"),
)  # fmt: skip
_SWITCHES = {
    "resume": "take over the cells that the output has already, and run the others",
    "overwrite": "replace an existing output",
    "every-seed": "run all seeds even of a strategy that livelocks on the first one (a livelock "
    "takes as long as hundreds of usual runs)",
    "quiet": "print nothing but errors",
    "no-cache": "compile again instead of using programs kept from earlier runs",
}
_REPEATED = ("constraint", "targets")


def parser() -> Parser:
    """The command's parser."""
    made = Parser(prog=f"python -m {NAME}", description=_DESCRIPTION, epilog=_EXAMPLES)
    made.add_argument("arms", metavar="ARM", nargs="*", help="two strategies or more")
    axes = tuple(Flag(name, str, None, "A,B,…", text) for name, text in AXES.items())
    for title, flags in (
        ("axes, values with commas", axes),
        ("cells", _DESIGN),
        ("requests", _REQUESTS),
        ("verdict", _VERDICT),
        ("output", _OUTPUT),
    ):
        group = made.add_flags(title, [flag for flag in flags if flag.name not in _REPEATED])
        for flag in flags:
            if flag.name in _REPEATED:
                text = flag.help.replace("%", "%%")
                group.add_argument(
                    f"--{flag.name}", action="append", metavar=flag.metavar, help=text
                )
    made.add_switches("switches", _SWITCHES)
    return made
