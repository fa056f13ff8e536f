"""The figures of the routing record, each drawn from saved data."""

from __future__ import annotations

from papers.routing_evolution.figures import policies, pools

FIGURES = (
    policies.weight_ratios,
    policies.burst_ablation,
    policies.cluster_sizes,
    pools.memory_term,
    pools.disaggregation,
)
