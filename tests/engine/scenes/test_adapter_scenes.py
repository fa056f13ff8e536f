"""Random small clusters whose requests name LoRA adapters: the engine equals instances in plain Python."""

from __future__ import annotations

import dataclasses
from collections import Counter
from typing import Any

import numpy as np
import pytest

from blis_jax.cluster.adapters import load_times, overheads
from blis_jax.cluster.config import ClusterConfig
from blis_jax.core.outcome import WHOLE
from blis_jax.records import invariants
from blis_jax.runs.many_runs import simulate
from blis_jax.workload.table import with_column, with_timeouts
from tests.memory.test_mirror import MODEL, SIZES, URGENCY, Scene, cluster, differences, scene
from tests.support.oracles.adapter_loads import Declared, Loader, run
from tests.support.oracles.mirrored_oracle import askers_of
from tests.support.oracles.oracle import requests_of_workload
from tests.support.scenes import flags, table_of

RANKS = (8, 16, 24, 32, 64, 8, 16)


def with_loads(config: ClusterConfig, rng: np.random.Generator) -> ClusterConfig:
    """The cluster with seven adapters, of which there is room for few."""
    lora = {
        "adapter_capacity": int(rng.integers(1, 5)),
        "load_base_latency_us": float(rng.choice([0.0, 700.5, 30_000.0, 400_000.0])),
        "load_bandwidth_bytes_us": float(rng.choice([2e6, 8000.0, 500.0])),
        "adapters": [{"id": f"a{place}", "rank": rank} for place, rank in enumerate(RANKS)],
    }
    if rng.random() < 0.3:
        lora["step_overhead_tiers"] = {"16": {"k6": 1.0, "k7": 3.0}, "32": {"k6": 0.0, "k7": 1.0}}
    return ClusterConfig(
        **{field.name: getattr(config, field.name) for field in dataclasses.fields(config)}
        | {"lora_config": lora, "lora_adapter_capacity": lora["adapter_capacity"]}
    )


def both(seed: int, one: Scene, scheduler: str) -> list[Loader]:
    """Assert that the engine's run of the scene is that of plain instances, and return these."""
    rng = np.random.default_rng(seed)
    config = with_loads(cluster(one).replace(scheduler=scheduler), rng)
    popular = rng.permutation(len(RANKS))
    count = len(one.workload["arrival_us"])
    named = np.where(
        rng.random(count) < 0.15, -1, popular[np.minimum(rng.geometric(0.4, count) - 1, 6)]
    )
    table = with_column(table_of(one.workload, num_nodes=64, depth=8), "adapter", named + 1)
    if one.timeout_us is not None:
        table = with_timeouts(table, one.timeout_us)
    record = simulate(config, table, SIZES)
    assert record.outcome in WHOLE and record.adapters is not None
    instances, askers = plain(one, config, named.tolist())
    assert differences(record, instances, askers) == []
    for row, instance in enumerate(instances):
        for ours, theirs in (
            (record.adapters.num_loads, instance.loads),
            (record.adapters.num_evictions, instance.losses),
        ):
            counts = {at: int(n) for at, n in enumerate(ours[row][: len(RANKS)]) if n}
            assert counts == dict(Counter(theirs))
    broken = {name for name, number in invariants.violations(record).items() if number}
    assert broken <= {"latencies_of_completed_requests"}
    return instances


def plain(one: Scene, config: ClusterConfig, named: list[int]) -> tuple[list[Loader], list[Any]]:
    given = flags(
        **one.settings, latency_model="trained-physics", model=MODEL, hardware="H100", tp=1,
        alpha_coeffs=list(config.alpha_coeffs), beta_coeffs=list(config.beta_coeffs),
    ) | {"max-model-len": config.max_model_len}  # fmt: skip
    tokens = [request.tokens for request in requests_of_workload(one.workload)]
    askers = askers_of(one.workload, tokens, URGENCY)
    for asker in askers if one.timeout_us is not None else ():
        asker.deadline = asker.arrival + int(one.timeout_us[asker.index])
    declared = [
        Declared(*numbers)
        for numbers in zip(load_times(config), RANKS, overheads(config), strict=True)
    ]
    capacity, by_length = config.lora_adapter_capacity, config.scheduler == "sjf"
    instances = [
        Loader(given, declared, capacity, named, by_length) for _ in range(given["num-instances"])
    ]
    run(instances, askers, given["horizon"])
    return instances, askers


@pytest.mark.slow
@pytest.mark.parametrize(
    ("scheduler", "is_urgent", "has_timeouts", "has_tier"),
    [("fcfs", False, False, True), ("fcfs", True, True, False), ("sjf", False, True, False)],
    ids=["CPU tier", "priority and timeouts", "shortest first"],
)
def test_equals_plain_instances(
    scheduler: str, is_urgent: bool, has_timeouts: bool, has_tier: bool
) -> None:
    """Scenes of one compilation; together they load, evict, wait for a slot, and preempt who holds a pin."""
    found: list[Loader] = []
    for seed in range(300, 312):
        one = scene(seed, 16, is_urgent, has_timeouts)
        if not has_tier:
            one = dataclasses.replace(one, settings=one.settings | {"kv_cpu_blocks": 0})
        found += both(seed, one, scheduler)
    assert sum(one.loads.total() for one in found) > 60
    assert sum(one.losses.total() for one in found) > 20
    assert sum(one.blocked for one in found) > 5
