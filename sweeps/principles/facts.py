"""Facts about a strategy and its workload that need no run: settings, and estimates from one seed's requests."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np

from blis_jax.cluster.config import ClusterConfig
from blis_jax.cluster.instance_groups import per_instance
from blis_jax.cluster.router import with_weights, without_scorer
from blis_jax.cluster.step_times import model_of
from blis_jax.errors import ConfigError
from blis_jax.metrics.metric import split_name
from blis_jax.workload.reference import draw
from blis_jax.workload.spec import ClientSpec, WorkloadSpec
from sweeps.principles.probes import prefix_shares
from sweeps.strategies.crossover import crossover

if TYPE_CHECKING:
    from sweeps.strategies.file import Strategy


ROOM = 3.0  # times the estimated need from which memory is called plentiful
LATENCIES = ("ttft", "e2e", "scheduling_delay")
COUNTS_SHED = ("goodput_rps", "attainment", "slo_miss_rate", "reject_rate", "num_rejected")


@dataclass(frozen=True)
class StrategyFacts:
    """Estimates from the requests of one seed."""

    least_share: float  # prefix ÷ prompt, over requests with a prefix; NaN if there are none
    most_share: float
    # prefill work that no cache saves ÷ what the instances can do; NaN if unknown
    prefill_load: float
    blocks_needed: float  # per instance, by Little's law, requests that share nothing
    blocks_of_all: int  # of all requests together
    classes: tuple[str, ...]
    has_equal_laws: bool  # all classes have the same lengths and the same prefix
    num_prefixes: int
    has_conversations: bool

    @property
    def least_ratio(self) -> float:
        """Return the smallest ratio of affinity to load at which some request stays on a warm, loaded instance."""
        return 1 / self.most_share if self.most_share else math.inf

    @property
    def sure_ratio(self) -> float:
        """Return the smallest ratio of affinity to load at which every request stays on a warm, loaded instance."""
        return 1 / self.least_share if self.least_share else math.inf


@dataclass(frozen=True)
class Case:
    """A strategy to be checked, with its workload and facts."""

    config: ClusterConfig
    spec: WorkloadSpec
    facts: StrategyFacts
    strategy: Strategy | None = None

    @property
    def weights(self) -> dict[str, float]:
        """Return scorers with their weights; empty unless routing is weighted."""
        return dict(self.config.scorers())

    @property
    def affinity(self) -> float:
        """Return the weight of the prefix-affinity scorer."""
        return self.weights.get("prefix-affinity", 0.0)

    @property
    def load_weight(self) -> float:
        """Return the summed weights of all scorers that fall from 1 to 0 as an instance becomes the most loaded one."""
        weights, config = self.weights, self.config
        bias = min(config.slo_scorer_bias_critical, config.slo_scorer_bias_sheddable)
        by_load = weights.get("queue-depth", 0.0) + weights.get("load-balance", 0.0)
        return by_load + bias * weights.get("slo-priority", 0.0)

    @property
    def ratio(self) -> float:
        """Return the ratio of affinity to load weights; NaN without both, or where no prefix is shared."""
        is_known = self.affinity and self.load_weight and not math.isnan(self.facts.most_share)
        return self.affinity / self.load_weight if is_known else math.nan

    @property
    def fewest_blocks(self) -> int:
        """Return the number of KV blocks of the instance that has the fewest."""
        return min(per_instance(self.config, "total_kv_blocks"))

    @property
    def is_plentiful(self) -> bool:
        """Return whether KV blocks suffice: for all requests at once, or for three times the estimated need."""
        total = self.fewest_blocks
        return self.facts.blocks_of_all <= total or ROOM * self.facts.blocks_needed <= total

    @property
    def has_priorities(self) -> bool:
        """Return whether the order of the wait queue depends on the class."""
        by_class = self.config.priority_policy in ("slo-tiered", "load-adaptive", "slo-class")
        return by_class and self.config.scheduler == "priority-fcfs"

    @property
    def has_gate(self) -> bool:
        """Return whether some classes are rejected under load."""
        return self.config.admission_policy in ("slo-gated", "slo-queue-gated")

    @property
    def is_overloaded(self) -> bool:
        """Return whether requests bring more prefill work than the instances can compute."""
        return self.facts.prefill_load >= 1

    @property
    def is_ungated_overload(self) -> bool:
        """Return whether the instances are overloaded and no gate rejects requests."""
        is_open = not self.has_gate and self.config.admission_policy == "always-admit"
        return self.is_overloaded and is_open

    @property
    def overtaking_s(self) -> float:
        """Return the age at which a sheddable request passes a new critical one, s; NaN where age does not count."""
        if not self.has_priorities or self.config.priority_policy == "slo-class":
            return math.nan
        return crossover(self.config, "sheddable", "critical").age_s

    @property
    def keeps_critical_whole(self) -> bool:
        """Return whether critical prompts are never cut into chunks although other prompts are."""
        config = self.config
        is_whole = config.slo_prefill and config.slo_prefill_critical == 0
        return bool(is_whole and config.long_prefill_token_threshold)

    @property
    def critical_chunk(self) -> int:
        """Return the chunk size of critical prompts in tokens; 0 where these are not cut."""
        config = self.config
        is_by_class = config.slo_prefill and config.long_prefill_token_threshold
        return config.slo_prefill_critical if is_by_class else config.long_prefill_token_threshold

    @property
    def signal_age_ms(self) -> float:
        """Return the greatest age of routing snapshots, ms."""
        return self.config.snapshot_refresh_interval / 1000

    @property
    def num_mechanisms(self) -> int:
        """Return how many of priorities, gate, chunks by class and eviction by class the strategy has."""
        config = self.config
        return sum([self.has_priorities, self.has_gate, config.slo_prefill, config.slo_preemption])

    @property
    def num_parameters(self) -> int:
        """Return the number of the strategy's parameters; 0 without a strategy file."""
        return len(self.strategy.parameters) if self.strategy is not None else 0

    @property
    def num_calls(self) -> int:
        """Return the number of calls of the search that found the strategy; 0 without a strategy file."""
        return self.strategy.search.calls if self.strategy is not None else 0

    @property
    def sheds_unseen(self) -> bool:
        """Return whether requests are rejected while the strategy's score counts only admitted ones."""
        strategy = self.strategy
        if strategy is None or not (
            self.has_gate or self.config.admission_policy == "token-bucket"
        ):
            return False
        metrics = [split_name(objective.metric)[0] for objective in strategy.objectives]
        bounded = [split_name(constraint.metric)[0] for constraint in strategy.constraints]
        is_latency = any(name.startswith(LATENCIES) for name in metrics)
        return is_latency and not any(name in COUNTS_SHED for name in (*metrics, *bounded))

    def without_scorer(self, name: str) -> dict[str, Any]:
        """Return settings without one scorer; empty if the router has no other."""
        others = without_scorer(self.config.scorers(), name)
        return {"routing_scorers": others} if others else {}

    def with_ratio(self, ratio: float) -> dict[str, Any]:
        """Return settings in which the affinity weight is `ratio` × the summed load weights."""
        weights = dict(self.config.scorers()) | {"prefix-affinity": ratio * self.load_weight}
        return {"routing_scorers": with_weights(weights.items(), {})}


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
    """Return a text that is equal for clients with equal length distributions and the same prefix."""
    laws = client.input_distribution, client.output_distribution, client.reasoning
    return repr((*laws, client.prefix_group, client.prefix_length))
