"""The figures of the routing record; every script draws one from saved data."""

from __future__ import annotations

from papers.record.figures import figures_of

PACKAGE = "papers.routing_evolution"
FIGURES = figures_of(
    PACKAGE,
    {
        "weight_ratios": "when affinity outvotes load, on prompts of which different parts are shared",
        "burst_ablation": "the parts of the compound under bursts, and the gain as arrivals vary more",
        "cluster_sizes": "the gain by the number of instances, at equal counts and at equal duration",
        "memory_term": "KV pressure with and without a memory term in the router",
        "disaggregation": "prefill and decode apart, as published and with one step at a time",
    },
)
BY_NAME = {figure.name: figure for figure in FIGURES}
