"""`blis-jax curve ARM…`: latency against throughput over the rate, and the Pareto front of clusters."""

from __future__ import annotations

import sys

from blis_jax.backend import prepare_backend
from blis_jax.commands import values
from blis_jax.commands.options import AllSwitch, CommandOptions, option, words
from blis_jax.commands.options.outputs import PageOption, outputs_of
from blis_jax.commands.options.seed_options import CountedRequests, seeds_option
from blis_jax.errors import ConfigError
from sweeps.runs.options import FOLDER, USUAL_ARM, FitOption, ResultFiles, check_statistics

NAME = "sweeps.curve"
NUM_SEEDS, NUM_REQUESTS = 4, 2000  # requests for each instance
WORKLOAD = "stationary"

_DESCRIPTION = """\
Draw latency against throughput, and tokens/s per user against tokens/s per GPU with its Pareto front. For each ARM the
rate is found at which its cluster is full: more requests come than leave. Then it serves parts of that rate, or those
of --rate, on common seeds. An ARM is [LABEL=]STRATEGY[:NAME=VALUE;…]; --grid varies settings.
"""
_EXAMPLES = """\
examples:
  one cluster, from a tenth of its saturation rate to all of it:
    %(prog)s vllm:num_instances=4

  tensor parallelism and batch limit on 4 GPUs, and pools:
    %(prog)s "1x4=vllm:num_instances=4" "2x2=vllm:num_instances=2;tensor_parallel_size=2" \\
      "1P3D=vllm:instances=1P3D" --workload stationary

  token budget and sequences, with a page:
    %(prog)s vllm:num_instances=2 --grid max_num_batched_tokens=2048,8192 --grid max_num_seqs=64,256 \\
      --report out/curve.html
"""


class _Asked(CommandOptions, title="question"):
    """Options for the clusters and the rates."""

    grid: tuple[str, ...] = option(
        str, (), "KEY=VALUES", "a setting with several values, such as max_num_seqs=64,256 or "
        "instances=1P3D;2P2D: each ARM with each; repeat it", is_repeated=True,
    )  # fmt: skip
    rate: tuple[float, ...] = option(
        values.numbers,
        (),
        "R,…",
        "requests per second (default: parts of the rate at which a cluster is full)",
    )
    confidence: float = option(values.number, 0.95, "P", "confidence of intervals")


class _Requests(CountedRequests, title="requests"):
    """Options for the requests that every cluster serves."""

    workload: str = option(
        str, WORKLOAD, "NAME", "built-in workload or .yaml file; its rate is replaced"
    )
    seeds: str | None = seeds_option(f"default: {NUM_SEEDS}")
    num_requests: int | None = option(
        values.at_least(100), None, "N", "requests of a run for each instance", shown=NUM_REQUESTS
    )


class CurveOptions(
    _Asked, FitOption, _Requests, ResultFiles, PageOption, AllSwitch,
    command=NAME, description=_DESCRIPTION, examples=_EXAMPLES,
):  # fmt: skip
    """Options of the command."""

    arms: tuple[str, ...] = words("ARM", f"clusters to draw (default: {USUAL_ARM})")


@CurveOptions.as_main
def main(options: CurveOptions) -> int:
    """Run the command; return its exit code."""
    check_statistics(options.confidence)
    paths = outputs_of(options, f"{FOLDER}/curve.json", beside=(".jsonl",))
    for rate in options.rate:
        if rate <= 0:
            raise ConfigError(f"--rate: {rate:g} is not above 0; give requests per second")
    prepare_backend(use_cache=not options.no_cache)
    from sweeps.capacity.curve import drawn

    return drawn(options, paths, NUM_SEEDS, NUM_REQUESTS, options.line())


if __name__ == "__main__":
    sys.exit(main())
