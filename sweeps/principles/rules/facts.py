"""What can be told of a strategy and its workload without a run: shared prefixes, load, memory."""

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
