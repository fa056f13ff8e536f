"""With prefix caching off every prompt is computed whole, as in an oracle that finds no block."""

from __future__ import annotations

import dataclasses
from typing import Any

import numpy as np
import pytest

from blis_jax import ClusterConfig, ConfigError, simulate
from blis_jax.workload.contents import NO_NODE
from tests.support.oracles import oracle
from tests.support.scenes import burst, differences, flags, run_both, table_of, workload_of

OFF = {"enable_prefix_caching": False}


@pytest.mark.parametrize(
    ("memory", "seed"),
    [
        ({}, 0),
        ({"total_kv_blocks": 20, "long_prefill_token_threshold": 48}, 2),
        ({"routing_policy": "weighted", "routing_scorers": "prefix-affinity:1"}, 3),
    ],
    ids=["plenty", "evictions", "a router that expects hits"],
)  # fmt: skip
def test_a_run_equals_the_oracle(
    memory: dict[str, Any], seed: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(oracle.GpuCache, "cached_prefix", lambda self, request: [])
    settings = flags(num_instances=2, max_num_running_reqs=8, **memory) | {
        "enable-prefix-caching": False
    }
    record, expected = run_both(workload_of(burst(seed, num_times=220_000)), settings)
    assert expected.outcome == oracle.FINISHED and not differences(record, expected)
    assert record.requests.cached_tokens_first_sched.max() == 0
    assert (record.requests.preemptions.sum() > 0) == ("total_kv_blocks" in memory)


def test_prompts_that_begin_alike_cost_what_private_ones_do() -> None:
    """Where nothing is evicted; an evicted request finds its own blocks again only with caching on."""
    table = table_of(workload_of(burst(3, num_times=220_000)))
    alone = dataclasses.replace(table, path_nodes=np.full_like(table.path_nodes, NO_NODE))
    scarce: dict[str, Any] = {
        "total_kv_blocks": 20,
        "corrected": True,
        "preemption_mode": "recompute",
    }
    plenty: dict[str, Any] = {}
    for memory in (plenty, scarce):
        config = ClusterConfig(num_instances=2, max_num_running_reqs=8, **memory)
        off, private_off, private_on, on = (
            simulate(config.replace(enable_prefix_caching=is_on), requests).requests.e2e_us.tolist()
            for is_on, requests in ((False, table), (False, alone), (True, alone), (True, table))
        )
        assert off == private_off and on != off
        assert (private_on == off) == (memory is not scarce)


@pytest.mark.parametrize(
    ("changes", "says"),
    [
        ({"kv_cpu_blocks": 50}, "kv_cpu_blocks 50 needs blocks that are found again"),
        ({"precise_kv_routing": True}, "precise_kv_routing True needs blocks that are found"),
        ({"revision": "blis-2026-08"}, "enable_prefix_caching False is not part of blis-2026-08"),
    ],
)
def test_what_needs_caching_is_refused(changes: dict[str, Any], says: str) -> None:
    with pytest.raises(ConfigError, match=says):
        ClusterConfig(**OFF, **changes)
