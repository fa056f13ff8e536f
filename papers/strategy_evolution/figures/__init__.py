"""The figures of the scheduling record, each drawn from saved data."""

from __future__ import annotations

from papers.strategy_evolution.figures import places, policies, robustness_map

FIGURES = (
    policies.ttft_distributions,
    places.admission_threshold,
    places.rate_sweep,
    places.kv_pressure,
    places.instance_scaling,
    places.step_constant,
    policies.searches,
    policies.ablation,
    policies.ttft_parts,
    robustness_map.robustness_map,
)
