"""The options of `python -m sweeps.sensitivity`."""

from __future__ import annotations

from blis_jax.commands import cli
from blis_jax.commands.cli import Flag, Parser
from blis_jax.commands.flags import trace_flags
from blis_jax.commands.flags.seed_options import seed_flags
from blis_jax.commands.flags.shared_options import switches
from sweeps.runs.options import RNG

NAME = "sweeps.sensitivity"
FOLDER = "out/sensitivity"
NUM_SEEDS = 8

_DESCRIPTION = """\
Say which parameters of a strategy matter, for every metric and class: Sobol indices with bootstrap
intervals, Morris screening, derivative-based measures, effects of one and of two parameters, and
where the best points are; on the simulator, on a surrogate, or on both with a comparison. STRATEGY
is a name of the library (sweeps/strategies/library) or the path of a .yaml file.
"""
_EXAMPLES = """\
examples:
  the space of the ledger's iteration 8, on 8 common seeds:
    %(prog)s iter08_token_budget

  how much that would simulate:
    %(prog)s iter08_token_budget --plan

  a strategy of your own, more rows, two metrics for every class:
    %(prog)s mine.yaml --base 512 --metrics ttft_p99_ms,tpot_mean_ms --output out/mine

  what matters where chunks are not tiny, and in the best quarter:
    %(prog)s iter08_token_budget --within "best; prefill_crit=64:"

  simulator and surrogate side by side:
    %(prog)s iter08_token_budget --surrogate out/surrogate
"""
WITHIN = Flag(
    "within",
    str,
    "best",
    "REGIONS",
    "further regions for total indices: best (the box of the best quarter of the points), none, or "
    "PARAMETER=LOW:HIGH,…; separate several by semicolons",
)
_WHAT = (
    Flag("metrics", str, None, "LIST", "metrics, each taken of every class (default: see below)"),
    Flag("surrogate", str, None, "FOLDER", "a surrogate to look at as well"),
    Flag(
        "model",
        cli.one_of("simulator", "surrogate", "both"),
        None,
        "NAME",
        "simulator, surrogate or both (default: both if a surrogate is given)",
    ),
    WITHIN,
)
BASE = Flag("base", cli.whole, 128, "N", "rows of the Saltelli design, a power of two")
_SIZES = (
    BASE,
    Flag("trajectories", cli.whole, 20, "N", "trajectories of the Morris screening"),
    Flag("gradients", cli.whole, 64, "N", "points that derivatives are taken at"),
    Flag("levels", cli.whole, 9, "N", "values of a parameter at which its effect is taken"),
    Flag("bases", cli.whole, 16, "N", "points that an effect is averaged over"),
    Flag("pairs", cli.whole, 3, "N", "pairs of parameters with a map"),
    Flag("random-state", cli.whole, 0, "N", "seed of designs and resampling"),
    Flag("confidence", cli.number, 0.95, "P", "confidence of intervals"),
    Flag("bootstrap", cli.whole, 1000, "N", "resamples of the rows"),
)
_REQUESTS = (
    *seed_flags(f"default: {NUM_SEEDS}"),
    Flag("num-requests", cli.at_least(1), None, "N", "requests in place of the workload's number"),
    RNG,
)
_OUTPUT = (Flag("output", str, None, "FOLDER", f"results (default: {FOLDER}/STRATEGY)"),)
_SWITCHES = {
    "plan": "say how much would be simulated, and stop",
    "resume": "continue from the record in the output folder, also with larger designs",
    "overwrite": "replace an existing output",
    **switches("no-figures", "quiet", "no-cache"),
}


def parser() -> Parser:
    """What reads the options."""
    found = Parser(prog=f"python -m {NAME}", description=_DESCRIPTION, epilog=_EXAMPLES)
    found.add_argument("strategy", metavar="STRATEGY", nargs="?", help="name or path")
    usual = "TTFT P99 and E2E P99 of every class, throughput, reject rate"
    what = tuple(flag._replace(help=flag.help.replace("see below", usual)) for flag in _WHAT)
    found.add_flags("what", what)
    found.add_flags("sizes", _SIZES)
    found.add_flags("requests", _REQUESTS)
    found.add_flags("trace", trace_flags.STUDY_FLAGS)
    found.add_flags("output", _OUTPUT)
    found.add_switches("switches", _SWITCHES)
    return found
