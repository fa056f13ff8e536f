"""The reference's options about the cluster and its policies."""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence

from blis_jax.commands.cli import Flag, Parser, number, one_of, truth, whole
from blis_jax.commands.flags.flow_flags import FLOW_FLAGS
from blis_jax.commands.flags.model_flags import MODEL_FLAGS
from blis_jax.commands.flags.pool_flags import POOL_FLAGS
from blis_jax.policies import registry


def policy_numbers(text: str) -> tuple[tuple[str, float], ...]:
    """`routing.candidates=3,scorer.Mine.gain=0.5` as pairs."""
    pairs = []
    for part in text.split(",") if text else ():
        name, _, value = part.partition("=")
        pairs.append((name.strip(), number(value.strip())))
    return tuple(pairs)


SLOTS = Flag(
    "slots", whole, None, "N", "requests that one instance can hold; determined if not given"
)
BATCH_FLAGS = (
    Flag(
        "max-num-running-reqs/max-num-seqs", whole, 256, "N", "most requests in the running batch"
    ),
    Flag(
        "max-num-scheduled-tokens/max-num-batched-tokens",
        whole,
        2048,
        "N",
        "token budget of one step",
    ),
    Flag(
        "long-prefill-token-threshold",
        whole,
        0,
        "N",
        "most prompt tokens of one request in a step; 0: prompts are not chunked",
    ),
    Flag(
        "max-model-len",
        whole,
        0,
        "N",
        "most tokens of a request, prompt and output, in blis-2026-08, which drops longer ones; 0: no limit",
    ),
    Flag("slo-prefill", truth, False, "BOOL", "chunk critical and sheddable prompts separately"),
    Flag("slo-prefill-critical", whole, 128, "N", "threshold of critical requests, tokens"),
    Flag(
        "slo-prefill-sheddable", whole, 0, "N", "threshold of sheddable requests, tokens; 0: none"
    ),
    Flag(
        "slo-preemption", truth, False, "BOOL", "evict the least priority instead of the batch tail"
    ),
    Flag(
        "preemption-mode",
        str,
        "restart",
        "MODE",
        "what becomes of an evicted request: restart makes its output again, as in BLIS; recompute keeps it and "
        "computes prompt and output again in one prefill, as in vLLM (with --corrected)",
    ),
    Flag(
        "preemption-policy",
        one_of("fcfs", "priority"),
        None,
        "NAME",
        "priority: the same as --slo-preemption true, under the name of blis-2026-08; fcfs: false",
    ),
)


def _numbers(kinds: Collection[str]) -> tuple[Flag, ...]:
    """An option for every number of the package's policies of these kinds, as the policies declare it."""
    flags = []
    for setting, one in registry.settings().items():
        if one.kind in kinds:
            declared = one.number
            default = int(declared.default) if declared.is_whole else declared.default
            metavar = "US" if declared.unit == "µs" else "N" if declared.is_whole else "X"
            words = f"{', '.join(one.policies)}: {declared.meaning}"
            read = whole if declared.is_whole else number
            flags.append(Flag(setting.replace("_", "-"), read, default, metavar, words))
    return tuple(flags)


INSTANCES = Flag(
    "instances",
    str,
    (),
    "FILE",
    "YAML or JSON list of groups of instances with numbers of their own, in place of --num-instances",
)
GATEWAY_FLAGS = (
    Flag("num-instances", whole, 1, "N", "instances behind the router"),
    INSTANCES,
    Flag(
        "admission-policy",
        str,
        "always-admit",
        "NAME",
        "which requests are let in",
    ),
    Flag(
        "tenant-budgets",
        str,
        "",
        "LIST",
        "shares of all batches above which a tenant's sheddable requests are rejected: TENANT=SHARE pairs, such as "
        "0=0.02; tenants are numbered in the order of their names",
    ),
    Flag("admission-latency", whole, 0, "US", "µs from arrival to the admission decision"),
    Flag("cluster-policy", str, "none", "NAME", "when instances go down and come up"),
    Flag("hand-over-policy", str, "none", "NAME", "which requests move on with their KV"),
    Flag("victim-policy", str, "none", "NAME", "who is evicted when KV blocks run out"),
    Flag("offload-policy", str, "none", "NAME", "which KV blocks get room in the CPU tier"),
    Flag(
        "routing-policy",
        str,
        "round-robin",
        "NAME",
        "which instance gets a request",
    ),
    Flag(
        "routing-scorers",
        str,
        "prefix-affinity:3,queue-depth:2,kv-utilization:2",
        "LIST",
        "name:weight pairs for weighted routing",
    ),
    Flag(
        "routing-picker",
        str,
        "first-best",
        "NAME",
        "which instance weighted routing takes by the scores",
    ),
    Flag(
        "decode-routing-policy",
        str,
        "same",
        "NAME",
        "which instance of the decode pool gets a request that --hand-over-policy sends there",
    ),
    Flag(
        "decode-routing-scorers",
        str,
        "",
        "LIST",
        "name:weight pairs for weighted routing there; those of --routing-scorers if not given",
    ),
    Flag(
        "decode-routing-picker",
        str,
        "same",
        "NAME",
        "which instance weighted routing takes there by the scores",
    ),
    Flag("routing-latency", whole, 0, "US", "µs from admission to the routing decision"),
    Flag("network-delay", whole, 0, "US", "µs from the routing decision to the instance"),
    Flag(
        "snapshot-refresh-interval",
        whole,
        0,
        "US",
        "µs between refreshes of the router's view of KV use; 0: always fresh",
    ),
    Flag(
        "load-refresh-interval",
        whole,
        0,
        "US",
        "µs between refreshes of the router's view of queue depths and batch sizes; 0: always fresh",
    ),
    Flag(
        "snapshot-phases",
        str,
        "aligned",
        "WHEN",
        "when instances are refreshed: aligned, or each at times of its own: even over the interval, or drawn",
    ),
    Flag(
        "in-flight-counts",
        truth,
        True,
        "BOOL",
        "requests sent to an instance and not yet in its queue are part of its load; the router knows them at once",
    ),
    Flag(
        "num-gateways",
        whole,
        1,
        "N",
        "gateways that do not see each other's decisions; requests are dealt to them in turn",
    ),
    Flag(
        "prefix-index-delay",
        whole,
        0,
        "US",
        "µs from a routing, or an event of a KV cache, until the router's index knows of it",
    ),
    Flag(
        "prefix-index-loss",
        number,
        0.0,
        "X",
        "probability (0 to 1) that the router's index misses a routing decision, or an event of the caches",
    ),
    Flag(
        "cache-signal-delay",
        whole,
        50_000,
        "US",
        "µs between two copies of the KV caches that precise-prefix-cache looks at; 0: always fresh",
    ),
    Flag(
        "precise-kv-routing",
        truth,
        False,
        "BOOL",
        "the KV caches feed the prefix index of weighted routing, not the routings; needs prefix-affinity",
    ),
    Flag(
        "slo-priority-bridge", truth, False, "BOOL", "router stamps priorities (changes no result)"
    ),
    *_numbers(
        ("admission", "routing", "scorer", "picker", "cluster", "hand_over", "victim", "offload")
    ),
    Flag(
        "policy-numbers",
        policy_numbers,
        (),
        "LIST",
        "numbers of policies from files: KIND.NAME=X pairs, such as routing.candidates=3",
    ),
)
ORDER_FLAGS = (
    Flag(
        "priority-policy",
        str,
        "constant",
        "NAME",
        "which requests are urgent",
    ),
    Flag("scheduler", str, "fcfs", "NAME", "which request is first"),
    *_numbers(("priority", "scheduler")),
)
KV_TIER_FLAGS = (
    Flag("kv-cpu-blocks", whole, 0, "N", "KV blocks in CPU memory per instance; 0: no CPU tier"),
    Flag(
        "kv-offload-threshold",
        number,
        0.9,
        "X",
        "GPU use (0 to 1) above which blocks move to CPU memory",
    ),
    Flag("kv-transfer-bandwidth", number, 100.0, "X", "tokens per µs between the tiers"),
    Flag(
        "kv-transfer-base-latency", whole, 0, "US", "µs that each transfer takes beside its tokens"
    ),
)
CLUSTER_FLAGS = (
    *MODEL_FLAGS,
    *BATCH_FLAGS,
    *GATEWAY_FLAGS,
    *FLOW_FLAGS,
    *ORDER_FLAGS,
    *KV_TIER_FLAGS,
    *POOL_FLAGS,
)


def add_cluster_flags(parser: Parser) -> None:
    """All options about the cluster and its policies, in groups."""
    from blis_jax.cluster.config import POLICY_NAMES, SCORER_NAMES
    from blis_jax.latency.registry import MODELS

    choices = {name.replace("_", "-"): names for name, names in POLICY_NAMES.items()}
    choices["routing-scorers"] = choices["decode-routing-scorers"] = SCORER_NAMES
    choices["prefill-routing-scorers"] = SCORER_NAMES
    choices["latency-model"] = tuple(MODELS)
    for title, flags in _CLUSTER_GROUPS:
        parser.add_flags(title, [_with_choices(flag, choices) for flag in flags])


_CLUSTER_GROUPS = (
    ("model and latency", MODEL_FLAGS),
    ("admission and routing", GATEWAY_FLAGS),
    ("the gateway's queue (flow control)", FLOW_FLAGS),
    ("priority and order of the wait queue", ORDER_FLAGS),
    ("batches", BATCH_FLAGS),
    ("KV blocks in CPU memory", KV_TIER_FLAGS),
    ("pools and policy files of blis-2026-08", POOL_FLAGS),
)


def _with_choices(flag: Flag, choices: Mapping[str, Sequence[str]]) -> Flag:
    names = choices.get(flag.name)
    if not names:
        return flag
    return flag._replace(help=f"{flag.help}: {', '.join(names)}, or path/to/file.py:Name")


def name_of(flag: Flag) -> str:
    """The name of an option's value; its other names are behind the first."""
    return flag.name.partition("/")[0].replace("-", "_")
