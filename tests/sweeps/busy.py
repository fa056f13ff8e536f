"""A small overloaded cluster, with and without priorities, for the commands that compare."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

NUM_SEEDS = 16  # everywhere, so that tests share compiled programs
SMALL = ["--num-seeds", str(NUM_SEEDS), "--bootstrap", "199"]
SEEDS = tuple(range(42, 42 + NUM_SEEDS))
WORKLOAD = """
  version: '2'
  category: language
  aggregate_rate: 2000.0
  num_requests: 60
  clients:
  - id: a
    slo_class: critical
    rate_fraction: 0.4
    arrival: {process: poisson}
    input_distribution: {type: constant, params: {value: 500}}
    output_distribution: {type: constant, params: {value: 6}}
  - id: b
    slo_class: sheddable
    rate_fraction: 0.6
    arrival: {process: poisson}
    input_distribution: {type: constant, params: {value: 500}}
    output_distribution: {type: constant, params: {value: 6}}
"""
BASE = (
    """
name: plain
mechanism: {num_instances: 2, routing_policy: least-loaded, kv_cpu_blocks: 100,
            long_prefill_token_threshold: 256, max_num_running_reqs: 8}
parameters:
  max_num_scheduled_tokens: [600, 2048]
objectives: [{metric: "ttft_p99_ms[critical]"}]
success_criteria:
  - {metric: "ttft_p99_ms[critical]", direction: min, change_percent: -15}
  - {metric: e2e_p99_ms, direction: min, threshold: 1.0e+6}
required_settings: {kv_cpu_blocks: {min: 1}}
seeds: [42, 43, 44, 45, 46, 47, 48, 49, 50, 51, 52, 53, 54, 55, 56, 57]
workload:"""
    + WORKLOAD
)
PRIORITY = BASE.replace("name: plain", "name: first-class").replace(
    "mechanism: {",
    "mechanism: {scheduler: priority-fcfs, priority_policy: slo-tiered, slo_priority_bridge: true,"
    "\n            ",
)


def write_strategies(folder: Path) -> tuple[str, str]:
    """Paths of the two strategies, without and with priorities."""
    paths = folder / "plain.yaml", folder / "priority.yaml"
    for path, text in zip(paths, (BASE, PRIORITY), strict=True):
        path.write_text(text)
    return str(paths[0]), str(paths[1])


def result(folder: Path) -> dict[str, Any]:
    """What a command wrote into `out.json` of the folder."""
    found: dict[str, Any] = json.loads((folder / "out.json").read_text())
    return found
