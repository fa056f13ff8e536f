"""The figures of the routing record, each drawn from saved data."""

from __future__ import annotations

from papers.routing_evolution.figures import policies

FIGURES = (
    policies.weight_ratios,
    policies.burst_ablation,
    policies.cluster_sizes,
    policies.memory_term,
    policies.disaggregation,
)
