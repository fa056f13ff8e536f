"""Runs of BLIS's autoscaler beyond the recorded set: what went in, and what came out for every request.

The results in `autoscaler_runs.json.gz` are those of the revision of August 2026 (commit f90a1e3a). It was built with
Go 1.27.3, and its standard output was that of the recorded `autoscale_s42`.
"""

from __future__ import annotations

import gzip
import json
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import yaml

from benchmarks.golden import committed

FOLDER = committed() / "blis_2026_08"
BASE = ("--model", "meta-llama/llama-3.1-8b-instruct", "--hardware", "H100", "--tp", "1")
LEAST_LOADED = ("--num-instances", "2", "--routing-policy", "least-loaded")
H100 = (("H100", 4, 2, 80.0, 3.0),)  # kind, GPUs of a node, nodes, GiB, cost of a node


@dataclass(frozen=True)
class AutoscalerRun:
    """Options, and the numbers of a policy file; delays are pairs of mean and deviation, s."""

    options: tuple[str, ...] = LEAST_LOADED
    pools: tuple[tuple[str, int, int, float, float], ...] = H100
    interval_us: int = 100_000
    windows_us: tuple[int, int] = (0, 0)
    scrape_s: tuple[float, float] = (0.0, 0.0)
    loading_s: tuple[float, float] = (0.1, 0.05)
    is_warm: bool = True
    thresholds: tuple[float, float, float, float] = (0.01, 0.6, 0.4, 512.0)
    others: dict[str, Any] = field(default_factory=dict)
    num_waves: int = 3
    low_rate: float = 12.0
    seed: int = 42


RUNS = {
    "waves": AutoscalerRun(num_waves=5),
    # machines are freed and taken again, orders fail for want of GPUs, delays are drawn
    "churn": AutoscalerRun(
        pools=(("H100", 5, 1, 80.0, 3.0),),
        interval_us=60_000,
        loading_s=(0.05, 0.02),
        scrape_s=(0.05, 0.05),
        thresholds=(0.01, 0.6, 0.5, 512.0),
        num_waves=5,
        seed=7,
    ),
    "windows": AutoscalerRun(windows_us=(150_000, 250_000), scrape_s=(0.12, 0.0), seed=3),
    # between the waves nobody comes, and all instances are told to go
    "pauses": AutoscalerRun(low_rate=0.0001, thresholds=(0.01, 0.6, 0.5, 512.0)),
    "cold": AutoscalerRun(is_warm=False, loading_s=(0.3, 0.1)),
    "no_machines": AutoscalerRun(pools=(), thresholds=(0.5, 0.8, 0.3, 512.0)),
    "horizon": AutoscalerRun((*LEAST_LOADED, "--horizon", "2500000")),
    "fresh_signals": AutoscalerRun(
        (*LEAST_LOADED, "--snapshot-refresh-interval", "0"), loading_s=(0.0, 0.0)
    ),
    "latencies": AutoscalerRun(
        (*LEAST_LOADED, "--admission-latency", "5000", "--routing-latency", "3000")
    ),
    "scorers": AutoscalerRun(
        (
            *("--num-instances", "3", "--routing-policy", "weighted", "--routing-scorers"),
            "precise-prefix-cache:2,no-hit-lru:1,queue-depth:1,kv-utilization:1,prefix-affinity:1",
        )
    ),
    "saturated": AutoscalerRun(
        ("--num-instances", "2", "--routing-policy", "round-robin"),
        is_warm=False,
        others={
            "admission": {
                "policy": "gaie-legacy",
                "gaie_qd_threshold": 1,
                "gaie_kv_threshold": 0.01,
            }
        },
    ),
    # names of more than ten instances are told to go in the order of texts
    "many": AutoscalerRun(
        ("--num-instances", "12", "--routing-policy", "least-loaded"),
        pools=(("H100", 5, 3, 80.0, 3.0),),
    ),
    "kinds": AutoscalerRun(pools=(("H100", 1, 1, 80.0, 3.0), ("L40S", 4, 2, 48.0, 1.0))),
    "queue": AutoscalerRun(
        (
            *(*LEAST_LOADED, "--flow-control", "--saturation-detector", "concurrency"),
            *("--max-concurrency", "4"),
        ),
        is_warm=False,
    ),
}


def _client(name: str, slo_class: str, mean: int, out: int, windows: list[Any]) -> dict[str, Any]:
    lengths = {"mean": mean, "std_dev": mean / 4, "min": 8, "max": 2 * mean}
    return {
        "id": name,
        "tenant_id": name,
        "slo_class": slo_class,
        "rate_fraction": 1.0,
        "arrival": {"process": "poisson"},
        "input_distribution": {"type": "gaussian", "params": lengths},
        "output_distribution": {"type": "exponential", "params": {"mean": out}},
        "streaming": False,
        "lifecycle": {
            "windows": [
                {"start_us": at * 1_000_000, "end_us": (at + 1) * 1_000_000, "trace_rate": rate}
                for at, rate in windows
            ]
        },
    }


def workload_of(run: AutoscalerRun) -> dict[str, Any]:
    """Seconds with many requests, and seconds with few between them."""
    waves = [
        (2 * wave + half, (90.0, run.low_rate)[half])
        for wave in range(run.num_waves)
        for half in (0, 1)
    ]
    others = [(at, rate / 3) for at, rate in waves]
    clients = [
        _client("a", "critical", 400, 60, waves),
        _client("b", "sheddable", 700, 40, others),
    ]
    return {
        "version": "2",
        "seed": 42,
        "category": "language",
        "aggregate_rate": 40.0,
        "num_requests": 600,
        "clients": clients,
    }


def policy_of(run: AutoscalerRun) -> dict[str, Any]:
    """The policy file."""
    names = ("kv_cache_threshold", "scale_up_threshold", "scale_down_boundary", "avg_input_tokens")

    def delay(given: tuple[float, float]) -> dict[str, float]:
        return {"mean": given[0], "stddev": given[1]}

    pools = [
        {
            "name": f"p{at}",
            "gpu_type": kind,
            "gpus_per_node": gpus,
            "gpu_memory_gib": memory,
            "initial_nodes": nodes,
            "min_nodes": 0,
            "max_nodes": nodes,
            "cost_per_hour": cost,
        }
        for at, (kind, gpus, nodes, memory, cost) in enumerate(run.pools)
    ]
    up, down = run.windows_us
    return {
        **({"node_pools": pools} if pools else {}),
        "autoscaler": {
            "interval_us": run.interval_us,
            "scale_up_stabilization_window_us": up,
            "scale_down_stabilization_window_us": down,
            "hpa_scrape_delay": delay(run.scrape_s),
            "analyzer": dict(zip(names, run.thresholds, strict=True)),
        },
        "instance_lifecycle": {
            "loading_delay": delay(run.loading_s),
            "warm_start_initial_instances": run.is_warm,
        },
        **run.others,
    }


def written(run: AutoscalerRun, folder: Path, name: str) -> list[str]:
    """The options of the run, whose files are written to a folder."""
    workload, policy = folder / f"{name}_workload.yaml", folder / f"{name}_policy.yaml"
    workload.write_text(yaml.safe_dump(workload_of(run)))
    policy.write_text(yaml.safe_dump(policy_of(run)))
    files = ["--workload-spec", str(workload), "--policy-config", str(policy)]
    return [*BASE, *run.options, *files, "--seed", str(run.seed)]


def recorded() -> dict[str, Any]:
    """What the reference computed, by run."""
    text = gzip.decompress((FOLDER / "autoscaler_runs.json.gz").read_bytes())
    return dict(json.loads(text))
