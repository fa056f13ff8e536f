"""`blis-jax capacity WORKLOAD`: the smallest cluster that meets its service targets, and how surely."""

from __future__ import annotations

import sys
from typing import ClassVar

from blis_jax.backend import prepare_backend
from blis_jax.commands import values
from blis_jax.commands.options import (
    AllSwitch,
    CommandOptions,
    FigureOption,
    OutputSwitches,
    option,
    outputs,
    switch,
    word,
)
from blis_jax.commands.options.outputs import PageOption
from blis_jax.commands.options.seed_options import CountedRequests, seeds_option
from blis_jax.commands.options.trace_flags import StudyTrace
from sweeps.runs.options import FOLDER, USUAL_ARM, ArmRequests, FitOption

NAME = "sweeps.capacity"
DEFAULT_OUTPUT = f"{FOLDER}/capacity.json"
NUM_SEEDS = 1024
MOST_INSTANCES = 64

_DESCRIPTION = """\
Find the smallest cluster that meets service targets. WORKLOAD is a built-in name, a .yaml file or a recorded
trace. Sizes are tried by halving. Each is simulated on more and more common seeds until it is clear whether it
meets every target, or the seeds are used up. Writes the answer (.json), a page (.md), and a figure (.png).
"""
_EXAMPLES = """\
examples:
  how many instances does the mixed workload need, and what does a router save?
    %(prog)s mixed --targets critical.ttft_ms=200@99 \\
      --strategy vllm --strategy llm-d-default

  which GPUs, alone or mixed, at which price?
    %(prog)s mixed --targets all.e2e_ms=10000@95 \\
      --gpus H100,A100-80 --prices H100=3.0,A100-80=1.6

  are pools for prefill and decode cheaper?
    %(prog)s mixed --targets critical.ttft_ms=200@99,all.tpot_ms=30@95 --roles

  which token budget, and which router?
    %(prog)s mixed --targets critical.ttft_ms=200@99 --strategy llm-d-default \
      --grid max_num_batched_tokens=2048,8192 --grid routing_policy=weighted,least-loaded

  a trace, in as many windows as 90 %% needs:
    %(prog)s trace.jsonl --targets all.ttft_ms=500@90

A request that is rejected, dropped or not finished has missed its targets. A layout with more instances is taken to do
no worse than one with fewer.
"""


class _Asked(CommandOptions, title="question"):
    """Options for the targets, and for how surely they must be met."""

    targets: tuple[str, ...] = option(
        str, (), "LIST",
        "CLASS.LIMIT=MS[@PERCENT], several with commas: PERCENT of the class's requests keep LIMIT (ttft_ms, "
        "tpot_ms or e2e_ms); PERCENT is 99 if left out, CLASS may be all", is_repeated=True,
    )  # fmt: skip
    strategy: tuple[str, ...] = option(
        str, (), "ARM", f"[LABEL=]STRATEGY[@POINT][:NAME=VALUE;…]; repeat it (default: {USUAL_ARM})",
        also="policy", is_repeated=True,
    )  # fmt: skip
    grid: tuple[str, ...] = option(
        str, (), "KEY=VALUES", "a setting with values to compare, such as max_num_batched_tokens=2048,8192 or "
        "routing_policy=weighted,round-robin: each ARM gets an answer for each value; repeat it", is_repeated=True,
    )  # fmt: skip
    confidence: float = option(
        values.number,
        0.95,
        "P",
        "confidence of the answer for each policy and kind of cluster as a whole",
    )
    max_instances: int = option(values.at_least(1), MOST_INSTANCES, "N", "largest cluster to try")


class _Clusters(CommandOptions, title="clusters"):
    """Options for the clusters to try."""

    gpus: str | None = option(
        str, None, "A,B,…",
        "GPUs to compare, with the fitted coefficients of --model on each; also every two of them mixed "
        "(default: the ARM's own instances)",
    )  # fmt: skip
    model: str | None = option(str, None, "NAME", "model of --gpus (default: the ARM's)")
    tp: int | None = option(
        values.at_least(1),
        None,
        "N",
        "tensor parallelism of --gpus (default: the ARM's; of another --model its own)",
    )
    prices: str | None = option(
        str, None, "LIST", "price of a GPU-hour, such as H100=3.0,A100-80=1.6 (default: 1 each)"
    )


class _Requests(ArmRequests, CountedRequests, title="requests"):
    """Options for the requests that every cluster serves."""

    workload: str | None = option(str, None, "NAME", "the same as WORKLOAD")

    seeds: str | None = seeds_option(
        f"how many may be used at most; default: {NUM_SEEDS}, or what shares near 100 % need"
    )


class _Switches(OutputSwitches, title="switches"):
    """The switch for trying split roles as well."""

    roles: bool = switch(
        "also split every cluster into pools for prefill and decode; all layouts are then simulated without "
        "BLIS's defects, by which steps of one instance overlap"
    )


class CapacityOptions(
    _Asked, _Clusters, FitOption, _Requests, StudyTrace, FigureOption, PageOption, _Switches, AllSwitch,
    title="output", command=NAME, description=_DESCRIPTION, examples=_EXAMPLES,
):  # fmt: skip
    """Options of the command."""

    usual_seeds: ClassVar[int] = NUM_SEEDS
    usual_max_instances: ClassVar[int] = MOST_INSTANCES

    source: str | None = word("WORKLOAD", "workload, or a trace as --trace")
    output: str | None = option(
        str, None, "PATH", "answer to write, .json; a page with its tables lies beside it, .md", shown=DEFAULT_OUTPUT,
    )  # fmt: skip


@CapacityOptions.as_main
def main(options: CapacityOptions) -> int:
    """Run the command; return its exit code."""
    paths = outputs.outputs_of(options, DEFAULT_OUTPUT, beside=(".jsonl", ".md"))
    prepare_backend(use_cache=not options.no_cache)

    from sweeps.capacity.command import size_clusters

    return size_clusters(options, paths, options.line())


if __name__ == "__main__":
    sys.exit(main())
