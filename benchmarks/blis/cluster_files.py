"""Random files for `lines`: LoRA adapters, off-load tiers, policies, node pools, saturation detectors."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import yaml

from benchmarks.blis.workloads import CLASSES, LLAMA, Draw

GPUS = ("H100", "A100-SXM", "A100-80", "L40S")
DEVICES = ("nvme_gen4", "nvme_gen3", "sata_ssd", "cpu_dram", "s3")


def adapters(draw: Draw, path: Path) -> tuple[str, ...]:
    """Write a file of LoRA adapters; return their names."""
    value, names = draw.value, [f"a{index}" for index in range(draw.shape.choice((1, 3, 8)))]
    based = {"base_model": LLAMA} if draw.has(0.2) and draw.has(0.5) else {}
    entries = [{"id": name, "rank": value.choice((4, 8, 16, 20, 64)), **based} for name in names]
    lora: dict[str, Any] = {"adapters": entries}
    lora |= {"adapter_capacity": value.randint(1, 4)} if draw.has(0.9) else {}
    if draw.has(0.3):
        lora["step_overhead_tiers"] = {8: {"k6": 0.05, "k7": 0.7}, 32: {"k6": 0.2, "k7": 1.3}}
    if draw.has(0.3):
        lora["load_base_latency_us"] = value.choice((0.0, 2500.5, 40000.0))
    path.write_text(yaml.safe_dump({"lora": lora}))
    return tuple(names)


def offload(draw: Draw, path: Path) -> None:
    """Write a file of tiers for KV blocks."""
    value = draw.value
    block = 2 * 2**20  # bytes of 16 tokens of Llama 3.1 8B
    tiered: dict[str, Any] = {"cpu_bytes_to_use": value.choice((3, 20, 60, 200, 3000)) * block}
    tiers = []
    for _ in range(draw.shape.choice((0, 1, 1, 2))):
        tier: dict[str, Any] = {"type": "fs", "root_dir": "/kv", "direct_io": value.random() < 0.7}
        tier["device_class"] = value.choice(DEVICES)
        if value.random() < 0.3:
            tier |= {"read_bandwidth": value.choice((90.5, 900.0)), "base_latency": 2500.5}
        if value.random() < 0.4:
            tier |= {"n_read_threads": value.randint(1, 4), "n_write_threads": value.randint(1, 4)}
        tiers.append(tier)
    tiered |= {"secondary_tiers": tiers} if tiers else {}
    tiered |= {"offload_prompt_only": False} if draw.has(0.3) else {}
    path.write_text(yaml.safe_dump({"kv_offload": tiered}))


def policies(draw: Draw, path: Path) -> None:
    """Write a file of policies, tenants' budgets, node pools and an autoscaler."""
    value, chosen = draw.value, dict[str, Any]()
    if draw.has(0.5):
        name = draw.shape.choice(("tier-shed", "gaie-legacy", "token-bucket", "always-admit"))
        priority = value.choice((-2, 0, 3, 4))
        full = {
            "gaie_qd_threshold": value.choice((0.5, 4.0)),
            "gaie_kv_threshold": value.choice((0.1, 0.5)),
        }
        refill = value.choice((100.0, 9000.0))
        numbers = {
            "tier-shed": {
                "tier_shed_threshold": value.choice((0, 3, 20)),
                "tier_shed_min_priority": priority,
            },
            "gaie-legacy": full,
            "token-bucket": {"token_bucket_capacity": 4000.0, "token_bucket_refill_rate": refill},
        }
        chosen["admission"] = {"policy": name, **numbers.get(name, {})}
        if draw.has(0.5):
            given = {name: value.randint(-9, 9) for name in value.sample(CLASSES, 2)}
            chosen["admission"]["slo_priorities"] = given
    if draw.has(0.3):
        chosen["tenant_budgets"] = {
            "a": value.choice((0, 0.002, 0.02)),
            "b": value.choice((0.001, 1)),
        }
    chosen |= {"scheduler": "priority-fcfs"} if draw.has(0.2) else {}
    chosen |= {"preemption": {"policy": "priority"}} if draw.has(0.2) else {}
    if draw.has(0.3):
        chosen["routing"] = {
            "policy": "weighted",
            "scorers": [{"name": "queue-depth", "weight": 1.5}],
        }
    if draw.has(0.35):
        chosen |= _nodes(draw)
    path.write_text(yaml.safe_dump(chosen or {"scheduler": "fcfs"}))


def _nodes(draw: Draw) -> dict[str, Any]:
    value = draw.value
    pool: dict[str, Any] = {
        "name": "p",
        "gpu_type": value.choice(GPUS),
        "gpu_memory_gib": 80.0,
        "cost_per_hour": 3.0,
    }
    pool |= {
        "gpus_per_node": draw.shape.choice((2, 4, 8)),
        "initial_nodes": draw.shape.randint(1, 3),
    }
    pool |= {"min_nodes": 1, "max_nodes": 4}
    loading = {"mean": value.choice((0.0, 0.5, 2.0)), "stddev": value.choice((0.0, 0.1))}
    nodes: dict[str, Any] = {
        "node_pools": [pool],
        "instance_lifecycle": {
            "loading_delay": loading,
            "warm_start_initial_instances": draw.has(0.7),
        },
    }
    if draw.has(0.6):
        limits = {"scale_down_boundary": 0.3, "scale_up_threshold": 0.7}
        nodes["autoscaler"] = {
            "interval_us": value.choice((100000, 250000, 500000)),
            "hpa_scrape_delay": {"mean": value.choice((0.0, 0.1))},
            "analyzer": {"kv_cache_threshold": value.choice((0.01, 0.05)), **limits},
        }
    return nodes


def saturation(draw: Draw, path: Path) -> None:
    """Write a file of numbers of the detectors of saturation."""
    drift = {
        "window_size_sec": draw.value.choice((1, 2)),
        "min_windows": 2,
        "warmup_windows": draw.value.choice((0, 1)),
    }
    limits = {"threshold_ms": draw.value.choice((80.5, 900.0))}
    path.write_text(yaml.safe_dump({"threshold": limits, "backlog_drift": drift}))
