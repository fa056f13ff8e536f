"""Small clusters and workloads on which derivatives are checked, and the pairs that are looked at."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from blis_jax.cluster.config import ClusterConfig
from blis_jax.workload.spec import WorkloadSpec, load_builtin, override, parse_spec
from sweeps.sensitivity.smoothed import Perturbed


@dataclass(frozen=True)
class Pathwise:
    """One direction, the half width of its central difference, and the metrics looked at."""

    direction: str
    half_width: float  # relative to the coefficient; of arrival_scale itself; µs of a latency
    metrics: tuple[str, ...]


@dataclass(frozen=True)
class Smoothed:
    """One perturbed parameter and the metrics looked at."""

    parameter: Perturbed
    metrics: tuple[str, ...]


@dataclass(frozen=True)
class Case:
    """One cluster under one load, on one clock: `int32` is the simulator's own, `continuous` does not truncate."""

    name: str
    load: str  # in words
    spec: WorkloadSpec
    config: ClusterConfig
    clock: str
    pairs: tuple[Pathwise | Smoothed, ...]
    kv_model: str = "auto"


_LAWS = """
  input_distribution: {type: gaussian, params: {mean: %d, std_dev: %d, min: 16, max: 2048}}
  output_distribution: {type: exponential, params: {mean: %d}}
"""


def _spec(name: str, arrivals: str, rate: float, count: int, laws: tuple[int, int, int]) -> Any:
    body = (_LAWS % laws).replace("\n  ", "\n    ")
    return parse_spec(
        f"version: '2'\nseed: 42\ncategory: language\naggregate_rate: {rate}\n"
        f"num_requests: {count}\nclients:\n  - id: all\n    slo_class: standard\n"
        f"    rate_fraction: 1.0\n    arrival: {{process: {arrivals}}}{body}",
        name,
    )


def _shared_prefix(rate: float, count: int) -> WorkloadSpec:
    """Two groups of prompts, each with a prefix of its own."""
    clients = "".join(
        f"  - id: {group}\n    slo_class: standard\n    rate_fraction: 0.5\n"
        f"    arrival: {{process: poisson}}\n    prefix_group: {group}\n    prefix_length: 32\n"
        "    input_distribution: {type: gaussian, params: {mean: 48, std_dev: 20, min: 8, max: 96}}\n"
        "    output_distribution: {type: gaussian, params: {mean: 24, std_dev: 10, min: 1, max: 48}}\n"
        for group in ("red", "blue")
    )
    head = "version: '2'\nseed: 42\ncategory: language\n"
    return parse_spec(
        f"{head}aggregate_rate: {rate}\nnum_requests: {count}\nclients:\n{clients}", "tier"
    )


def cases() -> tuple[Case, ...]:
    """Return all cases, those without any flips first."""
    return (*_apart(), *_steady(), *_burst(), *_tiered(), *_tier())


def _apart() -> tuple[Case, ...]:
    """Nothing interacts, so no decision can flip."""
    apart = _spec("apart", "constant", 0.1, 20, (512, 200, 64))
    config = ClusterConfig(num_instances=1, admission_latency=100)
    return (
        Case(
            "apart",
            "requests 10 s apart, one instance",
            apart,
            config,
            "int32",
            (
                Pathwise("alpha0", 0.05, ("ttft_mean_ms",)),
                Pathwise("alpha1", 0.05, ("ttft_p99_ms",)),
                Pathwise("alpha2", 0.05, ("e2e_mean_ms",)),
                Pathwise("beta0", 0.05, ("e2e_mean_ms", "e2e_p99_ms")),
                Pathwise("beta1", 0.05, ("ttft_mean_ms", "ttft_p99_ms")),
                Pathwise("beta2", 0.5, ("e2e_mean_ms",)),
                Pathwise("arrival_scale", 0.05, ("requests_per_s",)),
                Pathwise("admission_latency", 50.0, ("ttft_mean_ms",)),
            ),
        ),
        Case(
            "apart",
            "requests 10 s apart, one instance",
            apart,
            config,
            "continuous",
            (Pathwise("beta2", 0.5, ("e2e_mean_ms",)),),
        ),
    )


def _steady() -> tuple[Case, ...]:
    """A moderate load."""
    steady = _spec("steady", "poisson", 4.0, 60, (512, 200, 48))
    two = ClusterConfig(num_instances=2)
    return (
        Case(
            "steady",
            "Poisson, 2 requests/s on each of 2 instances",
            steady,
            two,
            "int32",
            (
                Pathwise("beta0", 0.01, ("ttft_mean_ms", "e2e_mean_ms", "e2e_p99_ms")),
                Pathwise("beta1", 0.01, ("ttft_mean_ms",)),
                Pathwise("arrival_scale", 0.01, ("requests_per_s", "ttft_mean_ms")),
            ),
        ),
    )


def _burst() -> tuple[Case, ...]:
    """Everything at once."""
    burst = override(load_builtin("mixed"), num_requests=200)
    weighted = ClusterConfig(num_instances=2, routing_policy="weighted")
    return (
        Case(
            "burst",
            "200 requests of `mixed` on 2 instances",
            burst,
            weighted,
            "int32",
            (
                Pathwise("beta0", 0.02, ("ttft_mean_ms", "e2e_mean_ms", "requests_per_s")),
                Pathwise("beta1", 0.02, ("ttft_mean_ms", "ttft_p99_ms")),
                Pathwise("arrival_scale", 0.02, ("ttft_mean_ms",)),
            ),
        ),
    )


def _tiered() -> tuple[Case, ...]:
    """What acts through decisions."""
    burst = override(load_builtin("mixed"), num_requests=200)
    tiered = ClusterConfig(
        num_instances=2,
        routing_policy="weighted",
        scheduler="priority-fcfs",
        priority_policy="slo-tiered",
        slo_base_critical=7.0,
        slo_base_sheddable=2.8,
        slo_age_weight=5e-5,
        slo_threshold_standard=20_000,
        slo_threshold_sheddable=50_000,
        max_num_scheduled_tokens=1024,
        long_prefill_token_threshold=256,
    )
    critical = ("ttft_mean_ms[critical]", "ttft_p90_ms[critical]")
    return (
        Case(
            "tiered",
            "the burst, by class and age, prompts in chunks",
            burst,
            tiered,
            "int32",
            (
                Smoothed(Perturbed("slo_base_critical", 1.0), critical),
                Smoothed(Perturbed("slo_age_weight", 0.25, is_log=True), critical),
                Smoothed(Perturbed("max_num_scheduled_tokens", 64.0), ("ttft_mean_ms",)),
                Smoothed(Perturbed("long_prefill_token_threshold", 24.0), ("ttft_p99_ms",)),
                Smoothed(
                    Perturbed("routing_scorers.queue-depth", 0.3, is_log=True), ("ttft_p99_ms",)
                ),
            ),
        ),
    )


def _tier() -> tuple[Case, ...]:
    """Memory that is full, and a CPU tier."""
    tier = ClusterConfig(
        num_instances=1,
        admission_latency=100,
        total_kv_blocks=28,
        kv_cpu_blocks=400,
        corrected=True,  # the defects' leaked blocks end most of these runs in livelock
        kv_offload_threshold=0.1,
        kv_transfer_base_latency=200,
    )
    return (
        Case(
            "tier",
            "one small instance with a CPU tier",
            _shared_prefix(15.0, 40),
            tier,
            "int32",
            (Pathwise("kv_transfer_base_latency", 50.0, ("ttft_mean_ms", "e2e_mean_ms")),),
            "block-level",
        ),
    )
