"""Settings of the gateway and of an instance's wait queue; and reading and writing scorers as text."""

from __future__ import annotations

import math
from collections.abc import Collection, Iterable, Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from blis_jax.cluster.settings import setting
from blis_jax.core.kinds import DEFAULT_SCORERS
from blis_jax.core.types import SLO_CLASSES
from blis_jax.errors import ConfigError, closest

if TYPE_CHECKING:
    from blis_jax.cluster.config import ClusterConfig

# --- flow control, the queue of the gateway, under the names of BLIS's options --------------------


DETECTORS = ("never", "utilization", "concurrency")  # by the number that the engine has
DEFAULT_TICK_US = 1000
MOST_TENANTS = 256  # that can have a budget


@dataclass(frozen=True)
class FlowSettings:
    """Settings of the gateway's queue; without `flow_control` the others have no effect, as in BLIS."""

    flow_control: bool = setting(False, "admitted requests wait in a queue of the gateway")
    saturation_detector: str = setting(
        "never", "when the gateway's queue holds requests back: never, utilization or concurrency", choices=DETECTORS,
    )  # fmt: skip
    queue_depth_threshold: float = setting(
        5.0, "utilization: wait queue of an instance that counts as full", "requests", low=0, excludes_low=True,
    )  # fmt: skip
    kv_cache_util_threshold: float = setting(
        0.8, "utilization: share of KV blocks in use that counts as full", "share", low=0, excludes_low=True,
    )  # fmt: skip
    max_concurrency: int = setting(
        100, "concurrency: requests at an instance that count as full", "requests", low=0, excludes_low=True,
    )  # fmt: skip
    usage_limit_threshold: float = setting(
        1.0, "saturation (above 0, at most 1) from which the least urgent requests are held back; the most urgent at 1",
        "share", low=0, high=1, excludes_low=True,
    )  # fmt: skip
    dispatch_order: str = setting(
        "fifo", "fifo or priority, which both serve urgent classes first, or slo-deadline: the earliest deadline of a "
        "class and tenant",
        choices=("fifo", "priority", "slo-deadline"),
    )  # fmt: skip
    slo_targets: str = setting(
        "",
        "slo-deadline: µs from the gateway's queue to a class's deadline, such as critical=100000,standard=500000",
        "µs", words="`CLASS=N` pairs with whole µs above 0", metavar="LIST",
    )  # fmt: skip
    fairness_policy: str = setting(
        "global-strict", "between tenants of one class: global-strict, the oldest first, or round-robin",
        choices=("global-strict", "round-robin"),
    )  # fmt: skip
    max_gateway_queue_depth: int = setting(
        0, "most requests in the gateway's queue; 0: no limit", "requests", low=0
    )
    per_band_capacity: int = setting(
        0, "most requests of one priority in the gateway's queue; 0: no limit", "requests", low=0
    )
    queue_shedding: bool = setting(
        False, "a full gateway queue gives up its least urgent sheddable request for a more urgent one",
    )  # fmt: skip
    request_ttl: int = setting(
        0, "µs after which a request leaves the gateway's queue for good; 0: never", "µs", low=0
    )
    dispatch_tick_interval: int = setting(
        DEFAULT_TICK_US, "µs between two looks at the gateway's queue while requests wait; 0: 1000", "µs", low=0,
    )  # fmt: skip
    in_flight_eviction: bool = setting(
        False, "saturated instances give up sheddable requests while a more urgent one waits at the gateway",
    )  # fmt: skip


def slo_targets(text: str) -> dict[str, int]:
    """Return each class's target time to dispatch, in µs, from a text such as `critical=100000,standard=500000`.

    Raises:
        ConfigError: a pair is not a class and a whole number above 0.
    """
    targets = {}
    for part in text.split(",") if text.strip() else ():
        name, _, value = (word.strip() for word in part.partition("="))
        if name not in SLO_CLASSES[1:]:
            hint = closest(name, SLO_CLASSES[1:]) or f"; known: {', '.join(SLO_CLASSES[1:])}"
            raise ConfigError(f"slo_targets: {name!r} is no SLO class{hint}")
        if not value.isdigit() or not 0 < int(value) < 2**62:
            raise ConfigError(
                f"slo_targets: {part.strip()!r} must be CLASS=N with whole µs above 0, such as critical=100000"
            )
        targets[name] = int(value)
    return targets


def tenant_budgets(text: str) -> dict[int, float]:
    """Return the share of each tenant that has a budget, from a text such as `0=0.02,2=0.05`; keys are tenant numbers.

    Raises:
        ConfigError: a pair is not a tenant's number and a share from 0 to 1.
    """
    budgets = {}
    for part in text.split(",") if text.strip() else ():
        tenant, _, share = (word.strip() for word in part.partition("="))
        try:
            value = float(share)
        except ValueError:
            value = -1.0
        if not tenant.isdigit() or int(tenant) >= MOST_TENANTS or not 0 <= value <= 1:
            raise ConfigError(
                f"tenant_budgets: {part.strip()!r} must be TENANT=SHARE with a number below {MOST_TENANTS}, in the "
                "order of the tenants' names, and a share from 0 to 1, such as 0=0.02"
            )
        budgets[int(tenant)] = value
    return budgets


def check(config: ClusterConfig) -> None:
    """Refuse targets and budgets that cannot be read.

    Raises:
        ConfigError: the message says what is allowed.
    """
    slo_targets(config.slo_targets)
    tenant_budgets(config.tenant_budgets)
    _check_batches(config)


# --- the most requests of a batch and its token budget, as vLLM starts ------------------------------------------


def is_as_vllm(config: ClusterConfig) -> bool:
    """Return whether the servers follow vLLM, not BLIS, which allows a token budget below the number of requests."""
    return config.corrected and not config.is_august


def limits(config: ClusterConfig, given: Collection[str]) -> dict[str, Any]:
    """Return a default for the most requests in a batch, unless given: at most the token budget, as in vLLM."""
    if not is_as_vllm(config) or "max_num_running_reqs" in given:
        return {}
    return {
        "max_num_running_reqs": min(config.max_num_running_reqs, config.max_num_scheduled_tokens)
    }


def with_room(settings: Mapping[str, Any], changes: Mapping[str, Any]) -> dict[str, Any]:
    """Return `changes` with vLLM's batch limited to no more requests than its token budget.

    This applies if the budget changes alone, or if BLIS's servers become vLLM's: vLLM derives the most requests from
    the budget if they are not given, but `settings` already hold a number from a strategy or a default.
    """
    merged = {**settings, **changes}
    most, budget = merged.get("max_num_running_reqs"), merged.get("max_num_scheduled_tokens")
    is_new = "max_num_scheduled_tokens" in changes or "corrected" in changes
    is_alone = "max_num_running_reqs" not in changes and merged.get("corrected")
    if is_new and is_alone and isinstance(budget, int) and isinstance(most, int) and budget < most:
        return {**changes, "max_num_running_reqs": max(budget, 1)}
    return dict(changes)


def _check_batches(config: ClusterConfig) -> None:
    most, budget = config.max_num_running_reqs, config.max_num_scheduled_tokens
    if is_as_vllm(config) and budget < most:
        raise ConfigError(
            f"max_num_batched_tokens {budget} is below max_num_seqs {most}, and vLLM does not start so: each running "
            "request needs a token a step; give at least as many tokens as requests, or leave max_num_seqs out"
        )


# --- scorers with their weights, as one text ------------------------------------------------------


def parse_scorers(text: str, setting: str = "routing_scorers") -> list[tuple[str, float]]:
    """Return the scorers and weights in a text of the form `name:weight,name:weight`.

    Raises:
        ConfigError: an entry has another form, or a scorer is given twice; the message names `setting`.
    """
    pairs: list[tuple[str, float]] = []
    for part in text.split(","):
        name, colon, weight = part.strip().rpartition(":")
        try:
            value = float(weight) if colon else math.nan
        except ValueError:
            value = math.nan
        if not (math.isfinite(value) and value > 0):
            raise ConfigError(
                f"{setting}: {part.strip()!r} is not name:weight with a weight above 0; "
                f"write for instance {DEFAULT_SCORERS}"
            )
        if name.strip() in dict(pairs):
            raise ConfigError(
                f"{setting}: {name.strip()!r} is given twice; give each scorer one weight"
            )
        pairs.append((name.strip(), value))
    return pairs


def short_name(name: str) -> str:
    """Return the name under which a scorer's weight and numbers are given; of one from a file, the function's name."""
    return name.rpartition(":")[2]


def weights_of(scorers: Iterable[tuple[str, float]]) -> dict[str, float]:
    """Return the weights by short name."""
    return {short_name(name): weight for name, weight in scorers}


def with_weights(scorers: Iterable[tuple[str, float]], weights: Mapping[str, float]) -> str:
    """Return the text of scorers with the weights in `weights`, keyed by short name, in place of the old ones."""
    return ",".join(f"{name}:{weights.get(short_name(name), weight)!r}" for name, weight in scorers)


def without_scorer(scorers: Iterable[tuple[str, float]], name: str) -> str:
    """Return the text of scorers without the scorer `name`; empty if no other is left."""
    return with_weights([scorer for scorer in scorers if scorer[0] != name], {})


# --- gateway and wait queue -----------------------------------------------------------------------


MAX_GATEWAYS = 64  # a gateway has a prefix index and states of its own


@dataclass(frozen=True)
class RouterSettings(FlowSettings):
    """The gateway: how long it takes, what it knows of the instances and how old that is, and its queue."""

    admission_latency: int = setting(0, "µs from arrival to the admission decision", "µs", low=0)
    tenant_budgets: str = setting(
        "",
        "shares of all batches above which a tenant's sheddable requests are rejected: TENANT=SHARE pairs, such as "
        "0=0.02; tenants are numbered in the order of their names",
        words="`TENANT=SHARE` pairs with shares from 0 to 1", metavar="LIST",
    )  # fmt: skip
    routing_latency: int = setting(0, "µs from admission to the routing decision", "µs", low=0)
    network_delay: int = setting(0, "µs from the routing decision to the instance", "µs", low=0)
    snapshot_refresh_interval: int = setting(
        0, "µs between refreshes of the router's view of KV use; 0: always fresh", "µs", low=0
    )
    load_refresh_interval: int = setting(
        0, "µs between refreshes of the router's view of queue depths and batch sizes; 0: always fresh", "µs", low=0,
    )  # fmt: skip
    snapshot_phases: str = setting(
        "aligned",
        "when instances are refreshed: aligned, or each at times of its own: even over the interval, or drawn",
        choices=("aligned", "even", "drawn"), metavar="WHEN",
    )  # fmt: skip
    in_flight_counts: bool = setting(
        True,
        "requests sent to an instance and not yet in its queue are part of its load; the router knows them at once",
    )  # fmt: skip
    num_gateways: int = setting(
        1, "gateways that do not see each other's decisions; requests are dealt to them in turn", "gateways", low=1,
        high=MAX_GATEWAYS,
    )  # fmt: skip
    prefix_index_delay: int = setting(
        0, "µs from a routing, or an event of a KV cache, until the router's index knows of it", "µs", low=0,
    )  # fmt: skip
    prefix_index_loss: float = setting(
        0.0, "probability (0 to 1) that the router's index misses a routing decision, or an event of the caches",
        "share", low=0, high=1,
    )  # fmt: skip
    cache_signal_delay: int = setting(
        50_000, "µs between two copies of the KV caches that precise-prefix-cache looks at; 0: always fresh", "µs",
        low=0,
    )  # fmt: skip
    precise_kv_routing: bool = setting(
        False, "the KV caches feed the prefix index of weighted routing, not the routings; needs prefix-affinity",
    )  # fmt: skip
    slo_priority_bridge: bool = setting(False, "router stamps priorities (changes no result)")


@dataclass(frozen=True)
class BatchSettings:
    """The wait queue and the batch of an instance: how many requests and tokens, in which pieces, who gives way."""

    max_num_running_reqs: int = setting(
        256, "most requests in the running batch", "requests", low=0, excludes_low=True,
    )  # fmt: skip
    max_num_scheduled_tokens: int = setting(
        2048, "token budget of one step", "tokens", low=0, excludes_low=True,
    )  # fmt: skip
    long_prefill_token_threshold: int = setting(
        0, "most prompt tokens of one request in a step; 0: as many as the token budget leaves", "tokens", low=0,
    )  # fmt: skip
    max_model_len: int = setting(
        0, "most tokens of a request, prompt and output, in blis-2026-08, which drops longer ones; 0: no limit",
        "tokens", low=0,
    )  # fmt: skip
    slo_prefill: bool = setting(False, "chunk critical and sheddable prompts separately")
    slo_prefill_critical: int = setting(
        128, "threshold of critical requests, tokens", "tokens", low=0
    )
    slo_prefill_sheddable: int = setting(
        0, "threshold of sheddable requests, tokens; 0: none", "tokens", low=0
    )
    slo_preemption: bool = setting(False, "evict the least priority instead of the batch tail")
    mamba_cache_mode: str = setting(
        "none",
        "where prompts are cut: align at whole KV blocks, where vLLM keeps the state of linear attention (with "
        "--corrected); none by budget and threshold alone",
        choices=("none", "align"), metavar="MODE",
    )  # fmt: skip
    preemption_mode: str = setting(
        "restart",
        "what becomes of an evicted request: restart makes its output again, as in BLIS; recompute keeps it and "
        "computes prompt and output again in one prefill, as in vLLM (with --corrected)",
        choices=("restart", "recompute"), metavar="MODE",
    )  # fmt: skip
