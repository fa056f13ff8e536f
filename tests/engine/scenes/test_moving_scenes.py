"""Random scenes with pools, transfers and an outage: equal to the plain oracle, and every invariant holds."""

from typing import Any

import numpy as np
import pytest

from blis_jax import Options, simulate
from blis_jax.cluster.config import NO_HORIZON, from_flags
from blis_jax.core.outcome import WHOLE, Outcome
from blis_jax.records.invariants import violations
from blis_jax.records.record import RunRecord, Status
from blis_jax.records.step_records import expand_steps
from tests.support.oracles import moving_oracle
from tests.support.scenes import REQUEST_ARRAYS, STEP_ARRAYS, Prompt, flags, table_of, workload_of

OPTIONS = {"num_slots": 32, "log_capacity": 2048, "resolve_ties": False}
NODES = {"num_nodes": 6, "depth": 2}  # the most that a scene has, so that all share one program
MOVES = ("transfer_us", "handed_wait_us", "restarts", "hand_overs")
POOLS = {"hand_over_policy": "pools"}
OUTAGE = {"cluster_policy": "outage-at"}
TURNS = {"decode_routing_policy": "round-robin"}
MECHANISMS = {
    "pools": POOLS,
    "outage": OUTAGE,
    "both": POOLS | OUTAGE,
    "own router": POOLS | OUTAGE | TURNS,
}


def scene(seed: int, mechanism: str) -> tuple[dict[str, np.ndarray], dict[str, Any]]:
    """24 requests on four instances, and numbers small and large."""
    rng = np.random.default_rng(seed)

    def pick(*values: Any) -> Any:
        return values[rng.integers(len(values))]

    roles = ["prefill", "decode", pick("prefill", "decode", "both"), pick("both", "decode")]
    prompts = [
        Prompt(
            int(rng.integers(40_000)),
            int(rng.integers(1, 160)),
            int(rng.integers(1, 14)),
            group=int(rng.integers(-1, 3)),
            prefix_len=32,
        )
        for _ in range(24)
    ]
    settings = flags(
        instances=[{"count": 1, "role": str(role)} for role in rng.permutation(roles)],
        num_instances=4,
        routing_policy="least-loaded",
        alpha_coeffs=[float(rng.integers(300)), pick(0.0, 1.7), float(rng.integers(90))],
        beta_coeffs=[float(rng.integers(300, 2500)), pick(0.0, 3.7, 17.3), pick(0.0, 11.3)],
        max_num_running_reqs=pick(1, 2, 7, 256),
        max_num_scheduled_tokens=pick(50, 200, 2048),
        long_prefill_token_threshold=pick(0, 0, 40),
        horizon=pick(NO_HORIZON, NO_HORIZON, NO_HORIZON, int(rng.integers(2000, 60_000))),
        pools_link_latency_us=float(rng.integers(900)),
        pools_link_gb_per_s=pick(0.05, 1.0, 50.0),
        pools_kv_bytes_per_token=pick(0.0, 1000.0, 3333.0),
        pools_share_link=pick(0, 1),
        pools_split_above_tokens=pick(0.0, 0.0, 60.0),
        pools_split_within_load=pick(1e9, 1e9, 2.0),
        outage_at_instance=int(rng.integers(4)),
        outage_at_time_s=int(rng.integers(1000, 45_000)) / 1e6,
        outage_at_lasting_s=int(rng.integers(1, 30_000)) / 1e6,
        outage_at_running=pick(0, 1, 2),
        outage_at_reroute_ms=pick(0.0, 0.313, 5.0),
        **MECHANISMS[mechanism],
    )
    return workload_of(prompts), settings


def run_both(seed: int, mechanism: str, **options: Any) -> tuple[RunRecord, Any]:
    workload, settings = scene(seed, mechanism)
    cluster = from_flags({**settings, "variant": "scheduling"})
    record = simulate(cluster, table_of(workload, **NODES), Options(**OPTIONS, **options))
    return record, moving_oracle.simulate(workload, settings)


def arrays_are_equal(record: RunRecord, expected: Any, is_block_level: bool) -> None:
    """Every request and every step is the oracle's."""
    assert record.outcome in WHOLE
    arrays = expected.requests | expected.steps
    for name in (*REQUEST_ARRAYS, *MOVES):
        np.testing.assert_array_equal(getattr(record.requests, name), arrays[name], name)
    steps = expand_steps(record, 16)
    # which of several equal steps took a block is not known of attempts that a stop ended
    knows_blocks = is_block_level or not record.requests.restarts.any()
    for name in STEP_ARRAYS:
        if name != "step_used_blocks" or knows_blocks:
            np.testing.assert_array_equal(getattr(steps, name), arrays[name], name)


def check(seed: int, mechanism: str) -> RunRecord:
    record, expected = run_both(seed, mechanism, kv_model="no-eviction")
    arrays_are_equal(record, expected, is_block_level=False)
    for number, totals in enumerate(expected.instances):
        for name in ("gpu_hits", "gpu_misses", "used_blocks_at_end"):
            assert getattr(record.instances, name)[number] == totals["kv"][name], name
    assert not {name: count for name, count in violations(record).items() if count}
    assert not any(record.invariant_failures.values())
    return record


@pytest.mark.slow
def test_scenes_are_equal_to_the_oracle() -> None:
    found = [check(seed, "both") for seed in range(4)]
    assert sum(int(record.requests.hand_overs.sum()) for record in found) > 10


@pytest.mark.slow
@pytest.mark.parametrize("mechanism", MECHANISMS)
@pytest.mark.parametrize("part", range(5))
def test_many_scenes_are_equal_to_the_oracle(part: int, mechanism: str) -> None:
    found = [check(seed, mechanism) for seed in range(1000 + 50 * part, 1050 + 50 * part)]
    # what the scenes are for happens in them
    if "hand_over_policy" in MECHANISMS[mechanism]:
        assert sum(int(record.requests.hand_overs.sum()) for record in found) > 100
    if "cluster_policy" in MECHANISMS[mechanism]:
        assert sum(int((record.requests.restarts > 0).sum()) for record in found) > 3
        assert sum(int((record.requests.status == Status.LOST).sum()) for record in found) > 0


@pytest.mark.slow
@pytest.mark.parametrize(("form", "kv_model"), [("rows", "block-level"), ("lanes", "no-eviction")])
def test_many_lanes_and_memory_by_blocks_give_the_same(form: str, kv_model: str) -> None:
    for seed in range(1, 5):
        plain, _ = run_both(seed, "both", kv_model="no-eviction")
        other, _ = run_both(seed, "both", kv_model=kv_model, form=form)
        assert plain.outcome == other.outcome and other.outcome != Outcome.LIVELOCK
        for name in ("instance", "status", "ttft_us", "e2e_us", "num_itl", *MOVES):
            mine, theirs = getattr(plain.requests, name), getattr(other.requests, name)
            np.testing.assert_array_equal(mine, theirs, name)
