"""An instance that fails: what it runs is finished, computed again elsewhere, or lost; and it comes back cold."""

from typing import Any

import numpy as np
import pytest

from blis_jax import ClusterConfig, Options, simulate
from blis_jax.core.outcome import Outcome
from blis_jax.metrics.reference import aggregates, cluster_json
from blis_jax.metrics.scalars import class_summary, evaluate
from blis_jax.records.invariants import violations
from blis_jax.records.record import RunRecord, Status
from blis_jax.results.blis_files import results_text
from tests.support.scenes import Prompt, table_of, workload_of

STEP_US = 1000
# requests 0 and 2 go to instance 0, which runs one at a time; request 2 waits there when it fails
FOUR = [Prompt(at, 32, 4) for at in (0, 10, 20, 30)]


def run(prompts: list[Prompt], running: int, kv_model: str = "auto", **changes: Any) -> RunRecord:
    """Steps of one millisecond, no defects; instance 0 fails at 1.5 ms, and requests are routed again after 0.3 ms."""
    settings = {
        "num_instances": 2,
        "alpha_coeffs": (0.0, 0.0, 0.0),
        "beta_coeffs": (float(STEP_US), 0.0, 0.0),
        "max_num_running_reqs": 1,
        "corrected": True,
        "cluster_policy": "outage-at",
        "outage_at_time_s": 0.0015,
        "outage_at_reroute_ms": 0.3,
        "outage_at_running": running,
    }
    options = Options(num_slots=8, log_capacity=256, kv_model=kv_model)
    record = simulate(
        ClusterConfig(**(settings | changes)), table_of(workload_of(prompts)), options
    )
    assert record.outcome == Outcome.COMPLETED
    assert not {name: count for name, count in violations(record).items() if count}
    return record


def test_what_an_instance_runs_is_finished_by_default() -> None:
    record = run(FOUR, running=0)
    assert record.requests.instance.tolist() == [0, 1, 1, 1]
    assert record.requests.e2e_us.tolist()[0] == 4 * STEP_US
    assert record.instances.times_down.tolist() == [1, 0]


def test_what_it_runs_is_computed_again_elsewhere() -> None:
    """Its second step ends at 2,000. Request 0 comes to instance 1 at 2,300, behind requests 1, 3 and 2."""
    record = run(FOUR, running=1)
    assert record.requests.instance.tolist() == [1, 1, 1, 1]
    assert record.requests.restarts.tolist() == [1, 0, 0, 0]
    assert (record.requests.status == Status.COMPLETED).all()
    # instance 1 works from 10 µs on, four steps a request
    assert record.requests.ttft_us.tolist() == [13_010, 1000, 9010 - 20, 5010 - 30]
    assert record.requests.e2e_us.tolist() == [16_010, 4000, 12_010 - 20, 8010 - 30]
    assert record.requests.num_itl.tolist() == [1 + 3, 3, 3, 3]  # one of the attempt that was lost
    assert record.requests.num_scheduled.tolist() == [2, 1, 1, 1]
    assert record.instances.used_blocks_at_end.tolist() == [0, 0]


def test_what_it_runs_is_lost_and_counted_in_every_summary() -> None:
    record = run(FOUR, running=2)
    assert record.requests.status.tolist() == [Status.LOST, *[Status.COMPLETED] * 3]
    assert [values[0] for values in (record.requests.ttft_us, record.requests.e2e_us)] == [-1, -1]
    assert record.instances.lost_requests.tolist() == [1, 0]
    names = ["num_lost", "num_completed", "attainment", "num_lost[critical]"]
    assert list(evaluate(record, names).values()) == [1, 3, 0.75, 0]
    assert class_summary(record)["all"]["num_lost"] == 1
    assert aggregates(record)["status_counts"]["lost"] == 1
    assert "Lost Requests: 1" in results_text(record)
    cluster = cluster_json(record)
    assert cluster is not None
    assert (cluster["lost_requests"], cluster["injected_requests"]) == (1, 4)
    assert record.to_dataframe()["status"].tolist()[0] == "lost"


@pytest.mark.parametrize(
    "kv_model", ["no-eviction", pytest.param("block-level", marks=pytest.mark.slow)]
)
def test_an_instance_comes_back_cold(kv_model: str) -> None:
    """Three prompts share 32 tokens; the last one comes to instance 0 after its return."""
    prompts = [Prompt(at, 48, 2, group=0, prefix_len=32) for at in (0, 5000, 20_000)]
    changes = {"num_instances": 1, "outage_at_time_s": 0.01, "outage_at_lasting_s": 0.005}
    cold = run(prompts, 1, kv_model, **changes)
    assert cold.requests.cached_tokens_first_sched.tolist() == [0, 32, 0]
    warm = run(prompts, 1, kv_model, **(changes | {"outage_at_instance": 5}))
    assert warm.requests.cached_tokens_first_sched.tolist() == [0, 32, 32]
    assert cold.instances.used_blocks_at_end.tolist() == [0]


@pytest.mark.slow
def test_an_outage_of_an_idle_instance_changes_nothing() -> None:
    """Least-loaded keeps to instance 0 while the requests come one after the other."""
    prompts = [Prompt(10_000 * place, 32, 4) for place in range(4)]
    changes = {"routing_policy": "least-loaded", "outage_at_time_s": 0.012}
    there = run(prompts, 1, **changes, outage_at_instance=1)
    nowhere = run(prompts, 1, **changes, outage_at_instance=9)
    for field in ("instance", "ttft_us", "e2e_us", "cached_tokens_first_sched", "num_scheduled"):
        one, other = getattr(there.requests, field), getattr(nowhere.requests, field)
        np.testing.assert_array_equal(one, other)
    np.testing.assert_array_equal(there.steps.start_us, nowhere.steps.start_us)
