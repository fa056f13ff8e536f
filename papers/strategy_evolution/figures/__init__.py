"""The figures of the scheduling record; every script draws one from saved data."""

from __future__ import annotations

from papers.record.figures import figures_of

PACKAGE = "papers.strategy_evolution"
FIGURES = figures_of(
    PACKAGE,
    {
        "ttft_distributions": "TTFT distributions by class, baseline against 8-opt",
        "admission_threshold": "what a gate for sheddable requests costs and brings",
        "rate_sweep": "arrival rates",
        "kv_pressure": "KV blocks of an instance",
        "instance_scaling": "cluster sizes at the published and at equal load",
        "step_constant": "the gain of whole prompts by the constant cost of a step",
        "searches": "the two published searches, call by call",
        "ablation": "parts of the strategies, alone and together",
        "ttft_parts": "what time to first token consists of",
        "robustness_map": "which strategy is best where, over 1,024 regimes",
    },
)
BY_NAME = {figure.name: figure for figure in FIGURES}
