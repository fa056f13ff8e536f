"""Options of `blis-jax run`: BLIS's, under its names; refused ones; and a trace of decisions."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import field, replace
from typing import TYPE_CHECKING, Any

from blis_jax.cluster.named_policies import numbered
from blis_jax.commands import cli, values
from blis_jax.commands.cli import Notes
from blis_jax.commands.options import (
    CommandOptions,
    OverwriteSwitch,
    cluster_flags,
    option,
    outputs,
    switch,
    trace_flags,
)
from blis_jax.commands.options.cluster_flags import SlotsOption
from blis_jax.commands.parser import Parser
from blis_jax.commands.run import scores
from blis_jax.errors import UnsupportedError
from blis_jax.policies.contract import Policies
from blis_jax.policies.routing.by_load import watched

if TYPE_CHECKING:
    from blis_jax.cluster.config import ClusterConfig


class DecisionTraceOptions(CommandOptions, title="decisions of the run"):
    """Options for printing the decisions of admission and the router."""

    trace_level: str = option(
        values.OneOf("none", "decisions"),
        "none",
        "LEVEL",
        "whether --summarize-trace prints the decisions",
    )
    counterfactual_k: int = option(
        values.at_least(0), 0, "N", "above 0: print also by how much a better instance was missed; all instances "
        "count, as in BLIS",
    )  # fmt: skip
    summarize_trace: bool = option(
        values.truth,
        False,
        "BOOL",
        "with --trace-level decisions, print what admission and the router decided",
    )

    @property
    def is_shown(self) -> bool:
        """Return whether the decisions are printed."""
        return self.summarize_trace and self.trace_level == "decisions"

    @property
    def wants_regret(self) -> bool:
        """Return whether the router's regret, what better choices would have saved, is printed too."""
        return self.is_shown and self.counterfactual_k > 0


_BY_LOAD = ("round-robin", "always-busiest")  # they miss better instances, as BLIS scores them
_BEST = ("least-loaded", "weighted")  # they never do, with a picker that takes the best
_OF_BEST = ("first-best", "drawn-best", "random-best")


def check(options: DecisionTraceOptions, config: ClusterConfig, notes: Notes) -> None:
    """Warn of options that have no effect.

    Raises:
        UnsupportedError: --counterfactual-k is given, and the routing policy has none of BLIS's scores.
    """
    has_level = options.trace_level == "decisions"
    if options.counterfactual_k and not options.is_shown:
        notes.warn("--counterfactual-k has no effect without --trace-level and --summarize-trace")
    if options.summarize_trace and not has_level:
        notes.warn("--summarize-trace has no effect without --trace-level decisions")
    if has_level and not options.summarize_trace:
        notes.warn("--trace-level has no effect without --summarize-trace")
    is_known = config.routing_policy in (*_BY_LOAD, *_BEST)
    is_best = config.routing_policy != "weighted" or config.routing_picker in _OF_BEST
    if options.wants_regret and not (is_known and is_best):
        what = config.routing_picker if is_known else config.routing_policy
        raise UnsupportedError(
            f"--counterfactual-k is not supported with {what}: only {', '.join((*_BY_LOAD, *_BEST))} have "
            "BLIS's scores; leave it out, or take one of them"
        )


def router_watched(options: DecisionTraceOptions, config: ClusterConfig) -> Policies | None:
    """Return a router that also records its regret for each request; None if not asked for or always 0."""
    if not options.wants_regret or config.routing_policy not in _BY_LOAD:
        return None

    used = numbered(config)
    if used.decode is not None:  # its scorers choose for all requests that are not split
        return None
    return Policies(routing=watched(used.routing))


NAME = "blis_jax.run"
STREAM = "reference"  # the random stream that requests are drawn from
STREAMS = ("reference", "jax")
PRESETS = ("chatbot", "summarization", "contentgen", "multidoc")
WORKLOAD_MODES = (*PRESETS, "distribution", trace_flags.TRACES)
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
    %(prog)s --model meta-llama/llama-3.1-8b-instruct --num-instances 4 --workload-spec mixed

  weighted routing and SLO-tiered priorities, figures and requests to a file:
    %(prog)s --model meta-llama/llama-3.1-8b-instruct --hardware H100 --tp 2 \\
      --num-instances 8 --workload-spec mixed --routing-policy weighted \\
      --routing-scorers prefix-affinity:3,queue-depth:2 --scheduler priority-fcfs \\
      --priority-policy slo-tiered --results-path results.json

  a trace, its format found from its content, twice as fast and with classes of our choice:
    %(prog)s --model meta-llama/llama-3.1-8b-instruct --num-instances 8 \\
      --trace trace.jsonl --time-scale 0.5 --slo-mix critical:0.2,standard:0.8

exit codes: 0 done; 2 input that cannot be used, nothing was written; 3 a run needs a mechanism of
BLIS that is not here, or has no result (with --scenario the others were written).
"""


class WorkloadOptions(CommandOptions, title="workload"):
    """Options for the source of the requests."""

    workload_spec: str | None = option(
        str,
        None,
        "FILE",
        "workload file (.yaml), or a built-in one that `blis-jax workloads` lists",
    )
    workload: str | None = option(
        str, None, "NAME", f"{', '.join(WORKLOAD_MODES)}, or what --workload-spec takes",
    )  # fmt: skip
    workload_traces_filepath: str | None = option(
        str,
        None,
        "FILE",
        "trace of --workload traces, as in BLIS: --trace FILE --trace-format blis-csv",
    )
    num_requests: int | None = option(
        values.whole, None, "N", "requests to draw (default: the file's number, else 100)"
    )
    requests: str | None = option(
        str, None, "FILE", "recorded requests (.npz, the golden workload format)"
    )
    rng: str | None = option(
        values.OneOf(*STREAMS), None, "NAME", "random stream of the drawn requests: reference (BLIS's own), or jax (of "
        "sweeps: other requests of the same laws)", shown=STREAM,
    )  # fmt: skip
    timeout: float | None = option(
        values.number, None, "S", "s after which a request is given up, negative for never, under --profile "
        "blis-2026-08; if not given 300, in workload files what they say",
    )  # fmt: skip
    lazy_generation: bool | None = option(
        values.truth, None, "BOOL", "BLIS's way to save memory; the results are the same, and so this has no effect",
        shown=False,
    )  # fmt: skip


def _length(default: int, words: str) -> Any:
    return option(values.whole, None, "N", f"{words} length", shown=default)


class SimpleOptions(CommandOptions, title="simple workloads (lengths in tokens, for distribution)"):
    """Options of --workload; the lengths are those of distribution alone."""

    rate: float | None = option(
        values.number, None, "RPS", "requests per second, evenly spaced", shown=1.0
    )
    concurrency: int | None = option(
        values.whole, None, "N", "users in place of a rate, each of whom sends again after an answer; under --profile "
        "blis-2026-08", shown=0,
    )  # fmt: skip
    think_time_ms: int | None = option(
        values.whole, None, "MS", "ms from an answer to the user's next request", shown=0
    )
    prefix_tokens: int | None = option(
        values.whole, None, "N", "tokens that all prompts begin with", shown=0
    )
    prompt_tokens: int | None = _length(512, "mean prompt")
    prompt_tokens_stdev: int | None = _length(256, "standard deviation of the prompt")
    prompt_tokens_min: int | None = _length(2, "least prompt")
    prompt_tokens_max: int | None = _length(7000, "greatest prompt")
    output_tokens: int | None = _length(512, "mean output")
    output_tokens_stdev: int | None = _length(256, "standard deviation of the output")
    output_tokens_min: int | None = _length(2, "least output")
    output_tokens_max: int | None = _length(7000, "greatest output")


class RunFiles(CommandOptions, title="run"):
    """Seed and end of a run, and what is written of it."""

    seed: int | None = option(
        values.whole,
        None,
        "N",
        "seed of the drawn requests (default: the workload file's, else 42)",
    )
    horizon: int | None = option(
        values.whole, None, "US", "µs after which the simulation stops; none if not given"
    )
    results_path: str | None = option(
        str, None, "PATH", "file for figures and all requests (JSON); a folder for --scenario",
        also="output/metrics-path",
    )  # fmt: skip
    kv_timeline: str | None = option(
        str,
        None,
        "FILE",
        "file for the KV memory of every instance step by step: .csv, .nc or .zarr",
    )
    timeline: str | None = outputs.timeline_option()
    trace_output: str | None = trace_flags.output_option()
    log: str = option(
        values.OneOf(*cli.LOG_LEVELS),
        "warn",
        "LEVEL",
        "how much is said on stderr: " + ", ".join(cli.LOG_LEVELS),
    )


class EngineOptions(SlotsOption, title="engine"):
    """Options of the engine itself."""

    clock: str = option(
        values.OneOf("int32", "int64", "float64"), "int32", "TYPE",
        "type of simulated time: int32 (64 bits beyond 35 minutes), int64 or float64",
    )  # fmt: skip
    variant: str | None = option(
        values.OneOf("scheduling", "routing", "blis-2026-02", "blis-2026-08"), None, "NAME",
        "BLIS's revision, or its track of February 2026, to reproduce; in routing, slo-gated looks at queue depth",
        also="profile", shown="scheduling",
    )  # fmt: skip
    corrected: bool | None = option(
        values.truth, None, "BOOL", "simulate without the reference's defects: leaked blocks, overlapping steps and "
        "others", shown=False,
    )  # fmt: skip
    no_cache: bool = option(
        values.truth, False, "BOOL",
        "do not keep compiled programs in $JAX_COMPILATION_CACHE_DIR or else ~/.cache/blis_jax/xla",
    )  # fmt: skip


class _Scenarios(CommandOptions, title="replay of recorded scenarios"):
    workloads_dir: str | None = option(
        str,
        None,
        "DIR",
        "folder of the workload files; if not given, ../workloads from each scenario's folder",
    )


class _Switches(OverwriteSwitch, title="switches"):
    """Switches for further output."""

    steady: bool = switch("print mean and P99 of the steady state, too, with intervals")


class RunOptions(
    WorkloadOptions, SimpleOptions, trace_flags.GivenTrace, RunFiles, scores.ScoreOptions,
    DecisionTraceOptions, EngineOptions, _Switches, _Scenarios,
):  # fmt: skip
    """Options of the command; `named` has all given options by name, from which the cluster's settings are read."""

    scenario: tuple[str, ...] = ()
    named: Mapping[str, Any] = field(default_factory=dict)

    @classmethod
    def of(cls, named: Mapping[str, Any]) -> RunOptions:
        """Return options with the values in `named`."""
        return replace(super().of(named), named=dict(named))

    @property
    def seed_of_record(self) -> int:
        """Return the seed, or BLIS's default where none is given."""
        return trace_flags.DEFAULT_SEED if self.seed is None else self.seed


# What may stand beside --scenario; the rest is in the scenario.
BESIDE_SCENARIO = {"scenario", "workloads_dir", "results_path", "log", "clock", "slots"}
BESIDE_SCENARIO |= {"variant", "corrected", "no_cache", "overwrite"}

NEEDS_TEXT = ("latency-model", "workload", "defaults-filepath", "log")  # which '' is no value of


def make_parser() -> Parser:
    """Declare the options of `blis-jax run`."""
    parser = Parser(
        prog=f"python -m {NAME}",
        usage="%(prog)s --model NAME --workload-spec FILE [options]\n"
        "       %(prog)s --model NAME --workload NAME --rate RPS [options]\n"
        "       %(prog)s --model NAME --trace FILE [options]",
        description=_DESCRIPTION,
        epilog=_EXAMPLES,
    )
    parts = (WorkloadOptions, SimpleOptions, trace_flags.GivenTrace, RunFiles)
    add_options(parser, parts, (_Switches, _Scenarios))
    parser.hide(["scenario"])
    parser.add_flags(_Scenarios.title, ()).add_argument(
        "--scenario",
        nargs="+",
        action="extend",
        metavar="FILE",
        help="recorded runs of BLIS, of February or August (.json, .json.gz); each brings its cluster and requests",
    )
    return parser


def add_options(
    parser: Parser, first: Sequence[type[CommandOptions]], last: Sequence[type[CommandOptions]]
) -> None:
    """Add the groups `first`, the groups that `run` and `replay` share, then `last`."""
    groups: list[type[CommandOptions]]
    groups = [*first, scores.ScoreOptions, DecisionTraceOptions]
    for group in groups:
        group.add_to(parser)
    cluster_flags.add_cluster_flags(parser)
    EngineOptions.add_to(parser)
    for group in last:
        group.add_to(parser)
    parser.drop_empty(but=NEEDS_TEXT)
