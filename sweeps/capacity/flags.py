"""The options of `python -m sweeps.capacity`."""

from __future__ import annotations

from blis_jax.commands import cli
from blis_jax.commands.cli import Flag, Parser
from blis_jax.commands.flags import trace_flags
from blis_jax.commands.flags.seed_options import seed_flags
from blis_jax.commands.flags.shared_options import switches
from sweeps.runs.options import FOLDER, RNG

NAME = "sweeps.capacity"
DEFAULT_OUTPUT = f"{FOLDER}/capacity.json"
NUM_SEEDS = 256
MOST_INSTANCES = 64

_DESCRIPTION = """\
Find the smallest cluster that meets service targets. WORKLOAD is a built-in name, a .yaml file or a recorded
trace. Sizes are tried by halving. Each is simulated on more and more common seeds until it is clear whether it
meets every target, or the seeds are used up. Writes the answer (.json), a page (.md), and a figure (.png).
"""
_EXAMPLES = """\
examples:
  how many instances does the mixed workload need, and what does a better policy save?
    %(prog)s mixed --targets critical.ttft_ms=200@99 \\
      --policy iter00_baseline --policy iter13_class_lead@found

  which GPUs, alone or mixed, at which price?
    %(prog)s mixed --targets all.e2e_ms=10000@95 --model meta-llama/llama-3.1-8b-instruct \\
      --gpus H100,A100-80 --prices H100=3.0,A100-80=1.6

  are pools for prefill and decode cheaper?
    %(prog)s mixed --targets critical.ttft_ms=200@99,all.tpot_ms=30@95 --roles

  a trace, in twenty windows:
    %(prog)s trace.jsonl --trace-windows 20 --targets all.ttft_ms=500@95

A request that is rejected, dropped or not finished has missed its targets. A layout with more instances is taken to do
no worse than one with fewer.
"""
_QUESTION = (
    Flag("targets", str, None, "LIST", "CLASS.LIMIT=MS[@PERCENT], several with commas: PERCENT of the class's "
         "requests keep LIMIT (ttft_ms, tpot_ms or e2e_ms); PERCENT is 99 if left out, CLASS may be all",
         is_repeated=True),
    Flag("policy", str, None, "ARM", "[LABEL=]STRATEGY[@POINT][:NAME=VALUE;…]; repeat it (default: iter00_baseline)",
         is_repeated=True),
    Flag("confidence", cli.number, 0.95, "P", "of the whole answer, of each policy and kind of cluster"),
    Flag("max-instances", cli.at_least(1), MOST_INSTANCES, "N", "largest cluster to try"),
)  # fmt: skip
_CLUSTERS = (
    Flag("gpus", str, None, "A,B,…", "GPUs to compare, with the fitted coefficients of --model on each; also every "
         "two of them mixed (default: the policy's own instances)"),
    Flag("model", str, None, "NAME", "model of --gpus"),
    Flag("tp", cli.at_least(1), None, "N", "tensor parallelism of --gpus (default: the model's)"),
    Flag("prices", str, None, "LIST", "price of a GPU-hour, such as H100=3.0,A100-80=1.6 (default: 1 each)"),
)  # fmt: skip
_REQUESTS = (
    *seed_flags(f"how many may be used at most; default: {NUM_SEEDS}"),
    RNG,
    Flag("num-requests", cli.at_least(1), None, "N", "requests in place of the workload's number"),
    Flag("rate", cli.number, None, "R", "requests per second in place of the workload's"),
)
_OUTPUT = (
    Flag(
        "output",
        str,
        DEFAULT_OUTPUT,
        "PATH",
        "answer to write, .json; a page with its tables lies beside it, .md",
    ),
    Flag("figure", str, None, "PATH", "PNG to write, or none (default: beside the answer)"),
)
_SWITCHES = {
    "roles": "also split every cluster into pools for prefill and decode; all layouts are then simulated without "
    "BLIS's defects, by which steps of one instance overlap",
    "resume": "continue from the record beside the output",
    "overwrite": "replace an existing output",
    **switches("quiet", "no-cache"),
}


def parser() -> Parser:
    """The command's parser."""
    made = Parser(prog=f"python -m {NAME}", description=_DESCRIPTION, epilog=_EXAMPLES)
    made.add_argument("workload", metavar="WORKLOAD", nargs="?", help="workload or trace")
    traces = tuple(flag for flag in trace_flags.STUDY_FLAGS if flag.name != "trace")
    for title, flags in (
        ("question", _QUESTION),
        ("clusters", _CLUSTERS),
        ("requests", _REQUESTS),
        ("trace", traces),
        ("output", _OUTPUT),
    ):
        made.add_flags(title, flags)
    made.add_switches("switches", _SWITCHES)
    return made
