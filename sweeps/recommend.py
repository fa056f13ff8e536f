"""`blis-jax recommend MODEL GPU`: clusters that keep service targets, ranked, and how the best is started."""

from __future__ import annotations

import sys
from collections.abc import Collection
from typing import TYPE_CHECKING, Any

from blis_jax.backend import prepare_backend
from blis_jax.cluster.config import ClusterConfig
from blis_jax.cluster.revisions import aligns_chunks
from blis_jax.commands import values
from blis_jax.commands.options import (
    AllSwitch,
    CommandOptions,
    FigureOption,
    OutputSwitches,
    option,
    switch,
    word,
)
from blis_jax.commands.options.outputs import PageOption, outputs_of
from blis_jax.commands.options.seed_options import CountedRequests, seeds_option
from blis_jax.commands.options.trace_flags import StudyTrace
from blis_jax.errors import ConfigError
from blis_jax.latency.deployment import Deployment, gpu_description, kv_blocks
from blis_jax.latency.model_description import is_shipped, model_description, usual_tp
from blis_jax.latency.registry import fitted, gpu_named
from blis_jax.policies.their_names import POLICIES
from sweeps.capacity.__main__ import CapacityOptions
from sweeps.runs.options import FOLDER, USUAL_ARM
from sweeps.strategies.moved import known_as

if TYPE_CHECKING:
    from sweeps.capacity.finding import Smallest

# --- candidates for a model on a GPU -------------------------------------------------------------


USUAL_REQUESTS = 256  # at once, of the strategies; states of so many must fit
API_VERSION = "llm-d.ai/v1alpha1"


def candidates(
    strategy: str, model: str, gpu: str, counts: Collection[int] = ()
) -> tuple[str, ...]:
    """Return one arm for each tensor parallelism that is fitted for this model and GPU; without any fit, one arm with
    the smallest that holds the model.

    Args:
        strategy: the name of servers and a router, with or without settings.
        model: the model's name.
        gpu: the GPU's name.
        counts: the tensor parallelisms to try in place of all that are fitted.

    Raises:
        ConfigError: the model is neither fitted nor described on the GPU, or its memory does not fit on any number of
            these GPUs.
    """
    gpu = gpu_named(gpu)
    tps = {fit.tp for fit in fitted(model) if fit.gpu == gpu}
    arm = f"{strategy}{';' if ':' in strategy else ':'}model={model};hardware={gpu}"
    if tps and tps >= set(counts):
        return tuple(f"tp{tp}={arm};tensor_parallel_size={tp}" for tp in sorted(counts or tps))
    if not is_shipped(model):
        raise ConfigError(
            f"{model} is neither fitted on {gpu} nor described; blis-jax models lists what is"
        )
    law = "trained-physics" if model_description(model).kinds.is_plain else "served-physics"
    return tuple(
        f"tp{tp}={arm};tensor_parallel_size={tp};latency_model={law}"
        for tp in sorted(counts or (_least_tp(model, gpu),))
    )


def _least_tp(model: str, gpu: str) -> int:
    """Return the fewest GPUs that hold a described model: its usual number, or that number doubled up to four times."""
    least = usual_tp(model)
    for tp in (least << doublings for doublings in range(5)):
        deployment = Deployment(model_description(model), gpu_description(gpu), tp)
        try:
            kv_blocks(deployment, max_requests=USUAL_REQUESTS)
        except ConfigError as error:
            refused = error
        else:
            return tp
    raise refused


def how_to_start(smallest: Smallest) -> tuple[list[str], dict[str, Any] | None]:
    """Return sentences on how to start the cluster, and the configuration of llm-d's router; None for routers that
    llm-d lacks."""
    size = smallest.num_instances or 0
    layout = smallest.family.of(size)
    config, is_split = smallest.arm.config, len(layout.parts) > 1
    roles = (
        ", ".join(f"{part.count} {part.role}" for part in layout.parts) if is_split else str(size)
    )
    lines = [f"{roles} × {vllm_command(config)}"]
    router = picker_config(config)
    if router is None:
        lines.append(f"Router: {known_as(config.routing_policy)}, as a plain load balancer has it.")
    else:
        scorers = ", ".join(
            f"{plugin['pluginRef']} {plugin['weight']:g}"
            for plugin in router["schedulingProfiles"][0]["plugins"]
            if "weight" in plugin
        )
        lines.append(
            f"llm-d's router: {scorers} (the .yaml beside the result, and `router` in it)."
        )
    if is_split:
        lines.append("Pools need llm-d's disaggregation: blis-jax promote writes its profiles.")
    return lines, router


def vllm_command(config: ClusterConfig) -> str:
    """Return the command line that starts one instance."""
    flags: dict[str, int | str] = {
        "tensor-parallel-size": config.tp,
        "max-num-batched-tokens": config.max_num_scheduled_tokens,
        "max-num-seqs": config.max_num_running_reqs,
        "block-size": config.block_size_in_tokens,
    }
    if aligns_chunks(config):
        flags["mamba-cache-mode"] = config.mamba_cache_mode
    words = [f"--{name} {value}" for name, value in flags.items()]
    caching = (
        "--enable-prefix-caching" if config.enable_prefix_caching else "--no-enable-prefix-caching"
    )
    return " ".join(["vllm serve", config.model, *words, caching])


def picker_config(config: ClusterConfig) -> dict[str, Any] | None:
    """Return llm-d's EndpointPickerConfig; None where the router has no scorers, or has a scorer that llm-d lacks."""
    theirs = {ours: name for name, ours in POLICIES["scorer"].items()}
    scorers = [(theirs.get(known_as(name)), weight) for name, weight in config.scorers()]
    if not scorers or any(name is None for name, _ in scorers):
        return None
    plugins = [{"pluginRef": name, "weight": float(weight)} for name, weight in scorers]
    return {
        "apiVersion": API_VERSION,
        "kind": "EndpointPickerConfig",
        "plugins": [*({"type": name} for name, _ in scorers), {"type": "max-score-picker"}],
        "schedulingProfiles": [
            {"name": "default", "plugins": [*plugins, {"pluginRef": "max-score-picker"}]}
        ],
    }


# --- `blis-jax recommend MODEL GPU` --------------------------------------------------------------


NAME = "sweeps.recommend"
WORKLOAD, MOST_INSTANCES = "mixed", 32
BUDGETS = "max_num_batched_tokens=2048,8192"

_DESCRIPTION = """\
Recommend a cluster for a model on a GPU: for each tensor parallelism that is known, and each token budget, the fewest
instances that keep the targets, ranked by GPUs. Prints how the best is started with vLLM, and writes the configuration
of llm-d's router. The models and GPUs are those of blis-jax models and blis-jax gpus.
"""
_EXAMPLES = """\
examples:
  what serves 400 requests a second so that 99 of 100 critical ones have their first token in 200 ms?
    %(prog)s meta-llama/llama-3.1-8b-instruct H100 --rate 400 --targets critical.ttft_ms=200@99

  the same on an A100, with other budgets and batch limits, and with pools:
    %(prog)s meta-llama/llama-3.1-8b-instruct A100-80 --rate 100 --targets all.ttft_ms=500@95 \\
      --grid max_num_batched_tokens=2048 --grid max_num_seqs=128,256 --roles
"""


class _Asked(CommandOptions, title="question"):
    """Options for the targets, and for what is tried."""

    targets: tuple[str, ...] = option(
        str, (), "LIST", "CLASS.LIMIT=MS[@PERCENT], several with commas: PERCENT of the class's requests keep LIMIT "
        "(ttft_ms, tpot_ms or e2e_ms); PERCENT is 99 if left out, CLASS may be all", is_repeated=True,
    )  # fmt: skip
    strategy: str = option(str, USUAL_ARM, "ARM", "servers and router, STRATEGY[:NAME=VALUE;…]")
    tp: tuple[int, ...] = option(
        values.wholes,
        (),
        "A,B,…",
        "tensor parallelism to try (default: all that are fitted on the GPU)",
    )
    grid: tuple[str, ...] = option(
        str, (), "KEY=VALUES", f"settings to try (default: {BUDGETS}); repeat it", is_repeated=True
    )
    roles: bool = switch("also split every cluster into pools for prefill and decode")
    confidence: float = option(values.number, 0.95, "P", "confidence of each cluster's answer")
    max_instances: int = option(values.at_least(1), MOST_INSTANCES, "N", "largest cluster to try")


class _Requests(CountedRequests, title="requests"):
    """Options for the requests."""

    workload: str | None = option(
        str, None, "NAME", f"built-in workload or .yaml file (default: {WORKLOAD})"
    )
    seeds: str | None = seeds_option("how many may be used at most; default: as capacity")
    rate: float | None = option(
        values.number, None, "R", "requests per second in place of the workload's"
    )


class RecommendOptions(
    _Asked, _Requests, StudyTrace, FigureOption, PageOption, OutputSwitches, AllSwitch,
    title="output", command=NAME, description=_DESCRIPTION, examples=_EXAMPLES,
):  # fmt: skip
    """Options of the command."""

    model: str | None = word("MODEL", "model")
    gpu: str | None = word("GPU", "GPU")
    output: str | None = option(
        str, None, "PATH",
        "answer to write, .json; a page, .md, and the router's configuration, .yaml, lie beside it",
        shown=f"{FOLDER}/recommend.json",
    )  # fmt: skip


@RecommendOptions.as_main
def main(options: RecommendOptions) -> int:
    """Run the command; return its exit code."""
    if options.model is None or options.gpu is None:
        raise ConfigError(
            "give a model and a GPU, such as meta-llama/llama-3.1-8b-instruct H100; blis-jax models and "
            "blis-jax gpus list them"
        )
    paths = outputs_of(options, f"{FOLDER}/recommend.json", beside=(".jsonl", ".md", ".yaml"))
    prepare_backend(use_cache=not options.no_cache)

    from sweeps.capacity.command import size_clusters
    from sweeps.recommend import candidates, how_to_start

    policies = candidates(options.strategy, options.model, options.gpu, options.tp)
    workload = options.workload or (None if options.trace else WORKLOAD)
    values = vars(options) | {
        "strategy": policies, "grid": options.grid or (BUDGETS,), "model": None, "workload": workload, "tp": None,
    }  # fmt: skip
    command = options.line()
    sizing = CapacityOptions.called(options.command, options.description, options.examples)
    return size_clusters(sizing.of(values), paths, command, how_to_start)


if __name__ == "__main__":
    sys.exit(main())
