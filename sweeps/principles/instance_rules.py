"""Rules on what happens inside an instance, and on how a strategy was found."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

import numpy as np

from blis_jax.cluster.config import ClusterConfig
from blis_jax.cluster.instance_groups import per_instance
from blis_jax.cluster.step_times import model_of
from blis_jax.errors import ConfigError
from blis_jax.workload.reference import draw
from blis_jax.workload.spec import ClientSpec, WorkloadSpec
from sweeps.principles.probes import prefix_shares

if TYPE_CHECKING:
    from sweeps.strategies.file import Strategy


# --- what can be told of a strategy and its workload without a run -------------------------------


ROOM = 3.0  # times the estimated need from which memory is called plentiful


def fewest_blocks(config: ClusterConfig) -> int:
    """Return the KV blocks of the instance that has the fewest."""
    return min(per_instance(config, "total_kv_blocks"))


@dataclass(frozen=True)
class StrategyFacts:
    """Estimates from the requests of one seed."""

    least_share: float  # prefix ÷ prompt, over requests with a prefix; NaN if there are none
    most_share: float
    prefill_load: (
        float  # prefill work that no cache saves ÷ what the instances can do; NaN if unknown
    )
    blocks_needed: float  # per instance, by Little's law, requests that share nothing
    blocks_of_all: int  # of all requests together
    classes: tuple[str, ...]
    has_equal_laws: bool  # all classes have the same lengths and the same prefix
    num_prefixes: int
    has_conversations: bool

    def is_plentiful(self, config: ClusterConfig) -> bool:
        """Return whether KV blocks will not run short: all requests fit at once, or three times the need."""
        total = fewest_blocks(config)
        return self.blocks_of_all <= total or ROOM * self.blocks_needed <= total


@dataclass(frozen=True)
class Case:
    """A strategy under scrutiny."""

    config: ClusterConfig
    spec: WorkloadSpec
    facts: StrategyFacts
    strategy: Strategy | None = None

    @property
    def weights(self) -> dict[str, float]:
        """Return scorers with their weights; none unless routing is weighted."""
        return dict(self.config.scorers())

    @property
    def affinity(self) -> float:
        """Return the weight of cached prefixes."""
        return self.weights.get("prefix-affinity", 0.0)

    @property
    def load_weight(self) -> float:
        """Add up the weights of all scorers that go from 1 to 0 as an instance becomes the most loaded one."""
        weights, config = self.weights, self.config
        bias = min(config.slo_scorer_bias_critical, config.slo_scorer_bias_sheddable)
        by_load = weights.get("queue-depth", 0.0) + weights.get("load-balance", 0.0)
        return by_load + bias * weights.get("slo-priority", 0.0)

    @property
    def has_priorities(self) -> bool:
        """Return whether the order of the wait queue depends on the class."""
        by_class = self.config.priority_policy in ("slo-tiered", "load-adaptive", "slo-class")
        return by_class and self.config.scheduler == "priority-fcfs"

    @property
    def has_gate(self) -> bool:
        """Return whether some classes are turned away under load."""
        return self.config.admission_policy in ("slo-gated", "slo-queue-gated")

    @property
    def is_overloaded(self) -> bool:
        """Return whether requests bring more prefill work than the instances can do."""
        return self.facts.prefill_load >= 1


def facts_of(config: ClusterConfig, spec: WorkloadSpec, seed: int) -> StrategyFacts:
    """Compute the facts of a workload on a cluster: shared prefixes, load, memory.

    Raises:
        ConfigError: the latency model has no coefficients.
    """
    table, _ = draw(spec, seed, config.block_size_in_tokens)
    shares = prefix_shares(spec, seed)
    prompt = np.asarray(table.input_len, float)
    output = np.asarray(table.output_len, float)
    blocks = np.ceil((prompt + output) / config.block_size_in_tokens)
    seconds = max(float(np.asarray(table.arrival_us).max()) / 1e6, 1e-6)
    rate = len(prompt) / seconds / config.num_instances
    by_class = {client.slo_class or "default": _laws(client) for client in spec.clients}
    has_conversations = any(client.multi_turn for client in spec.clients)
    saved = float((shares * prompt[: len(shares)]).sum()) if len(shares) == len(prompt) else 0.0
    if model_of(config).sizes is not None:
        raise ConfigError(
            f"principles read the cost of a step from its coefficients, and latency_model "
            f"{config.latency_model} computes it from sizes; use blackbox"
        )
    slowest = np.max(per_instance(config, "beta_coeffs"), axis=0)
    work = slowest[1] / 1e6 * (prompt.sum() - saved) / len(prompt)
    residence = output * slowest[0] / 1e6
    return StrategyFacts(
        least_share=float(shares.min()) if len(shares) else math.nan,
        most_share=float(shares.max()) if len(shares) else math.nan,
        prefill_load=math.nan if has_conversations else float(rate * work),
        blocks_needed=float(rate * (residence * blocks).mean()),
        blocks_of_all=int(blocks.sum()),
        classes=tuple(by_class),
        has_equal_laws=len(set(by_class.values())) == 1,
        num_prefixes=len({c.prefix_group for c in spec.clients if c.prefix_group}),
        has_conversations=has_conversations,
    )


def _laws(client: ClientSpec) -> str:
    """Return what a request's lengths depend on, and which prefix it has."""
    laws = client.input_distribution, client.output_distribution, client.reasoning
    return repr((*laws, client.prefix_group, client.prefix_length))


RELIES, AGAINST, NO_EFFECT = "relies on", "contradicts", "has no effect, by"


@dataclass(frozen=True)
class Touch:
    """A setting that a principle speaks of, with a sentence and what takes the setting away."""

    principle: str
    relation: str
    setting: str
    advice: str
    instead: Mapping[str, Any] = field(default_factory=dict)  # settings to measure against


Rule = Callable[[Case], Iterator[Touch]]


# --- rules on what happens inside an instance, and on how a strategy was found -------------------


MANY_PARAMETERS, FEW_CALLS = 10, 50
LONG_STARVATION_S = 5.0


def moderate_load(case: Case) -> Iterator[Touch]:
    """Advise by RP-5: while wait queues are empty, their order has no effect."""
    if case.has_priorities and case.facts.prefill_load < 0.3:
        yield Touch(
            "RP-5",
            NO_EFFECT,
            "scheduler",
            f"At {case.facts.prefill_load:.0%} prefill load wait queues are empty, so there is nothing "
            "to order.",
            {"scheduler": "fcfs", "priority_policy": "constant"},
        )


def bridge(case: Case) -> Iterator[Touch]:
    """Advise by C-20: the instance does not read the priority that the router stamps."""
    if case.config.slo_priority_bridge:
        yield Touch(
            "C-20",
            NO_EFFECT,
            "slo_priority_bridge",
            "The instance recomputes all priorities before it orders its queue, so what the router "
            "stamps is never read.",
            {"slo_priority_bridge": False},
        )


def adaptive_gap(case: Case) -> Iterator[Touch]:
    """Advise by S7: under overload the adaptive gap stays open and slo-tiered gives the same."""
    if case.config.priority_policy == "load-adaptive" and case.is_overloaded:
        yield Touch(
            "S7",
            NO_EFFECT,
            "priority_policy",
            "Under overload queues stay above the upper threshold and the gap stays fully open; "
            "slo-tiered gives the same.",
            {"priority_policy": "slo-tiered"},
        )


def starvation(case: Case) -> Iterator[Touch]:
    """Advise by S5: after some time a sheddable request passes a new critical one."""
    config = case.config
    if not case.has_priorities or config.priority_policy == "slo-class":
        return
    gap = config.slo_base_critical - config.slo_base_sheddable
    weight = config.slo_age_weight
    seconds = gap / weight / 1e6 if weight else math.inf
    seconds += config.slo_threshold_sheddable / 1e6
    is_long = seconds > LONG_STARVATION_S
    yield Touch(
        "S5",
        AGAINST if is_long else RELIES,
        "slo_age_weight",
        f"A sheddable request passes a new critical one after {seconds:.3g} s; "
        + ("raise the weight or close the gap." if is_long else "say so beside the results."),
    )


def chunks(case: Case) -> Iterator[Touch]:
    """Advise by S9, S10 and S16: which prompts are cut into chunks, and what that costs."""
    config = case.config
    threshold = config.long_prefill_token_threshold
    is_whole = config.slo_prefill and config.slo_prefill_critical == 0
    if threshold and not is_whole and "critical" in case.facts.classes:
        yield Touch(
            "S9",
            AGAINST,
            "long_prefill_token_threshold",
            f"Critical prompts are cut at {config.slo_prefill_critical if config.slo_prefill else threshold} "
            "tokens and pay a step for each piece; leave them whole.",
            {"slo_prefill": True, "slo_prefill_critical": 0, "slo_prefill_sheddable": threshold},
        )
    if is_whole and threshold and config.slo_prefill_sheddable == 0:
        yield Touch(
            "S16",
            AGAINST,
            "slo_prefill",
            f"Standard requests are still cut at {threshold} tokens; set "
            "long_prefill_token_threshold to 0 if no prompt is to be cut.",
            {"long_prefill_token_threshold": 0},
        )
    elif is_whole and threshold:
        yield Touch("S10", RELIES, "slo_prefill", "Chunk sizes by class cost no throughput.")


def eviction_by_class(case: Case) -> Iterator[Touch]:
    """Advise by S15: evicting by class costs sheddable requests more than it saves."""
    if case.config.slo_preemption:
        none = case.facts.is_plentiful(case.config)
        yield Touch(
            "S15",
            NO_EFFECT if none else AGAINST,
            "slo_preemption",
            "Nothing is evicted while blocks are plentiful."
            if none
            else "Evicting the least urgent request computes it again, which costs sheddable requests "
            "more than it saves.",
            {"slo_preemption": False},
        )


def scarce_memory(case: Case) -> Iterator[Touch]:
    """Advise by S12: with few KV blocks a part of the gain is lost."""
    config = case.config
    fewest = fewest_blocks(config)
    if fewest < 3000 and not case.facts.is_plentiful(config):
        yield Touch(
            "S12",
            RELIES,
            "total_kv_blocks",
            f"{fewest} blocks are in the range where part of the gain is lost.",
            {"total_kv_blocks": 132139},
        )


def many_parameters(case: Case) -> Iterator[Touch]:
    """Advise by S3: many parameters in few calls need repeated searches."""
    strategy = case.strategy
    if strategy is None or len(strategy.parameters) < MANY_PARAMETERS:
        return
    if strategy.search.calls <= FEW_CALLS:
        yield Touch(
            "S3",
            AGAINST,
            "parameters",
            f"{len(strategy.parameters)} parameters in {strategy.search.calls} calls: repeat the search "
            "with other random states before trusting its best point.",
        )


def added_up(case: Case) -> Iterator[Touch]:
    """Advise by S4: mechanisms that act together must be run alone before any is credited."""
    parts = [
        case.has_priorities,
        case.has_gate,
        case.config.slo_prefill,
        case.config.slo_preemption,
    ]
    if sum(parts) >= 2:
        yield Touch(
            "S4",
            RELIES,
            "mechanism",
            f"{sum(parts)} mechanisms at once: run each alone and all pairs before crediting any.",
        )


RULES: tuple[Rule, ...] = (
    moderate_load,
    bridge,
    adaptive_gap,
    starvation,
    chunks,
    eviction_by_class,
    scarce_memory,
    many_parameters,
    added_up,
)
