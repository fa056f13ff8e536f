"""Options of `python -m blis_jax.run`: the reference's, under its names, and those that are refused."""

from __future__ import annotations

from pathlib import Path

from blis_jax.commands import cli
from blis_jax.commands.cli import Flag, Parser
from blis_jax.commands.flags import cluster_flags, report_flags, trace_flags
from blis_jax.commands.flags.cluster_flags import SLOTS
from blis_jax.commands.run import decisions, scores
from blis_jax.files import overwriting

NAME = "blis_jax.run"
STREAM = "reference"  # the random stream that requests are drawn from
STREAMS = ("reference", "jax")
PRESETS = ("chatbot", "summarization", "contentgen", "multidoc")
WORKLOAD_MODES = (*PRESETS, "distribution", trace_flags.TRACES)
MOST_SLOTS = 8192
MOST_SEEDS = 2**32
LATEST_US = 2**60  # arrivals from here on would overflow a clock's sums

_DESCRIPTION = """\
Simulate one cluster of LLM instances under one workload and print the figures that BLIS prints.
Options, defaults and output are those of BLIS's `run` command. Times are whole microseconds (µs)
on the way in and milliseconds on the way out; lengths are tokens, memory is KV blocks.
"""
_EXAMPLES = """\
examples:
  a built-in workload on four instances, coefficients of the model's default GPU and TP:
    %(prog)s --model meta-llama/llama-3.1-8b-instruct \\
      --num-instances 4 --workload-spec mixed

  weighted routing and SLO-tiered priorities, chunked prefill, figures and requests to a file:
    %(prog)s --model meta-llama/llama-3.1-8b-instruct \\
      --hardware H100 --tp 2 --num-instances 8 \\
      --workload-spec mixed --seed 43 --long-prefill-token-threshold 256 \\
      --routing-policy weighted --routing-scorers prefix-affinity:3,queue-depth:2 \\
      --scheduler priority-fcfs --priority-policy slo-tiered --results-path results.json

  a preset of BLIS, and a simple workload made of options:
    %(prog)s --model meta-llama/llama-3.1-8b-instruct --workload chatbot --rate 5
    %(prog)s --model meta-llama/llama-3.1-8b-instruct --rate 20 --num-requests 150 \\
      --prompt-tokens 300 --prompt-tokens-stdev 100
  a trace, its format found from its content, twice as fast and with classes of our choice:
    %(prog)s --model meta-llama/llama-3.1-8b-instruct --num-instances 8 \\
      --trace trace.jsonl --time-scale 0.5 --slo-mix critical:0.2,standard:0.8

  recorded scenarios again, one .npz and one .json per scenario:
    %(prog)s --scenario scenarios/*.json --results-path replayed

exit codes: 0 done; 2 input that cannot be used, nothing was written; 3 a run needs a mechanism of
BLIS that is not here, or has no result (with --scenario the others were written).
Requests are those that BLIS draws from the same workload and seed. --rng jax draws from the same
laws with the generator that sweeps use for many seeds at once; its requests are other ones.
"""


_STEADY = {"steady": "also print mean and P99 of the steady state, without warm-up, with intervals"}


def _run_flags() -> tuple[Flag, ...]:
    return (
        Flag(
            "seed",
            cli.whole,
            None,
            "N",
            "seed of the drawn requests; if not given the workload file's, else 42",
        ),
        Flag(
            "horizon",
            cli.whole,
            None,
            "US",
            "µs after which the simulation stops; none if not given",
        ),
        Flag(
            "results-path/output/metrics-path",
            str,
            None,
            "PATH",
            "file for the figures and every request (JSON); with --scenario a folder",
        ),
        Flag(
            "kv-timeline",
            str,
            None,
            "FILE",
            "file for the KV memory of every instance step by step: .csv, .nc or .zarr",
        ),
        report_flags.TIMELINE,
        trace_flags.OUTPUT_FLAG,
        Flag(
            "log",
            cli.one_of(*cli.LOG_LEVELS),
            "warn",
            "LEVEL",
            "how much is said on stderr: " + ", ".join(cli.LOG_LEVELS),
        ),
    )


def _workload_flags() -> tuple[Flag, ...]:
    folder = Path(__file__).parents[2] / "data" / "workloads"
    builtin = ", ".join(sorted(file.stem for file in folder.glob("*.yaml")))
    return (
        Flag(
            "workload-spec",
            str,
            None,
            "FILE",
            f"YAML workload file (version 2), or the name of a built-in one: {builtin}",
        ),
        Flag(
            "workload",
            str,
            None,
            "NAME",
            f"{', '.join(WORKLOAD_MODES)}, without effect beside --workload-spec; or what "
            "--workload-spec takes",
        ),
        Flag(
            "num-requests",
            cli.whole,
            None,
            "N",
            "requests to draw; if not given the file's number, else 100",
        ),
        Flag("requests", str, None, "FILE", "recorded requests (.npz, the golden workload format)"),
        Flag(
            "rng",
            cli.one_of(*STREAMS),
            STREAM,
            "NAME",
            "random stream of the drawn requests: reference (BLIS's own) or jax",
        ),
        Flag(
            "timeout",
            cli.number,
            None,
            "S",
            "s after which a request is given up, negative for never, under --profile blis-2026-08; if "
            "not given 300, in workload files what they say",
        ),
        Flag(
            "lazy-generation",
            cli.truth,
            False,
            "BOOL",
            "BLIS's way to save memory; the results are the same, and so this has no effect",
        ),
    )


def _simple_flags() -> tuple[Flag, ...]:
    """Options of --workload; the lengths are those of distribution alone."""
    lengths = (
        Flag(f"{kind}-tokens{part}", cli.whole, default, "N", f"{words} {kind} length")
        for kind in ("prompt", "output")
        for part, default, words in (
            ("", 512, "mean"),
            ("-stdev", 256, "standard deviation of the"),
            ("-min", 2, "least"),
            ("-max", 7000, "greatest"),
        )
    )
    return (
        Flag("rate", cli.number, 1.0, "RPS", "requests per second, evenly spaced"),
        Flag(
            "concurrency",
            cli.whole,
            0,
            "N",
            "users in place of a rate, each of whom sends again after an answer; under --profile "
            "blis-2026-08",
        ),
        Flag("think-time-ms", cli.whole, 0, "MS", "ms from an answer to the user's next request"),
        Flag("prefix-tokens", cli.whole, 0, "N", "tokens that all prompts begin with"),
        *lengths,
    )


def engine_flags() -> tuple[Flag, ...]:
    """Options of the engine itself."""
    return (
        Flag(
            "clock",
            cli.one_of("int32", "int64", "float64"),
            "int32",
            "TYPE",
            "type of simulated time: int32 (64 bits beyond 35 minutes), int64 or float64",
        ),
        SLOTS,
        Flag(
            "variant/profile",
            cli.one_of("scheduling", "routing", "blis-2026-02", "blis-2026-08"),
            "scheduling",
            "NAME",
            "BLIS's revision, or its track of February 2026, to reproduce; in routing, slo-gated looks at "
            "queue depth",
        ),
        Flag(
            "corrected",
            cli.truth,
            False,
            "BOOL",
            "simulate without the reference's defects: leaked blocks, overlapping steps and others",
        ),
        Flag(
            "no-cache",
            cli.truth,
            False,
            "BOOL",
            f"do not keep compiled programs in {_cache_words()}",
        ),
    )


_SCENARIO_FLAGS = (
    Flag(
        "workloads-dir",
        str,
        None,
        "DIR",
        "folder of the workload files; if not given, ../workloads from each scenario's folder",
    ),
)
# What may stand beside --scenario; the rest is in the scenario.
BESIDE_SCENARIO = {"scenario", "workloads_dir", "results_path", "log", "clock", "slots"}
BESIDE_SCENARIO |= {"variant", "corrected", "no_cache", "overwrite"}

REFUSED = {
    "roofline": "the roofline latency model of this revision is not supported yet; give --latency-model roofline, "
    "that of August 2026",
}


def _cache_words() -> str:
    return "$JAX_COMPILATION_CACHE_DIR or else ~/.cache/blis_jax/xla"


def _refused_words() -> str:
    import textwrap

    names = ", ".join(f"--{name}" for name in REFUSED)
    text = f"Options of BLIS that are refused, each with a sentence: {names}."
    return textwrap.fill(text, 99, break_on_hyphens=False)


def make_parser() -> Parser:
    """The command's options."""
    parser = Parser(
        prog=f"python -m {NAME}",
        usage="%(prog)s --model NAME --workload-spec FILE [options]\n"
        "       %(prog)s --model NAME --workload NAME --rate RPS [options]\n"
        "       %(prog)s --model NAME --trace FILE [options]\n"
        "       %(prog)s --scenario FILE [FILE ...] [--results-path DIR]",
        description=_DESCRIPTION,
        epilog=_EXAMPLES + _refused_words(),
    )
    parser.add_flags("workload", _workload_flags())
    parser.add_flags("simple workloads (lengths in tokens, for distribution)", _simple_flags())
    parser.add_flags("trace", trace_flags.FLAGS)
    parser.add_flags("run", _run_flags())
    parser.add_flags("verdicts on the run, as BLIS of August 2026 computes them", scores.FLAGS)
    parser.add_flags("decisions of the run", decisions.FLAGS)
    cluster_flags.add_cluster_flags(parser)
    parser.add_flags("engine", engine_flags())
    parser.add_switches("switches", _STEADY | overwriting.SWITCH)
    replay = parser.add_flags("replay of recorded scenarios", _SCENARIO_FLAGS)
    replay.add_argument(
        "--scenario",
        nargs="+",
        action="extend",
        metavar="FILE",
        help="recorded runs of BLIS, of February or August (.json, .json.gz); each brings its cluster and requests",
    )
    parser.refuse(REFUSED, unsupported=REFUSED)
    return parser
