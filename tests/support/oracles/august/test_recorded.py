"""The plain cluster of August 2026 against recorded runs: pools, the gateway's queue, budgets, time-outs."""

from __future__ import annotations

import numpy as np
import pytest

from tests.support.oracles.august import scenes
from tests.support.oracles.august.records import arrays
from tests.support.recorded.golden_2026_08 import AT_END, AugustScenario
from tests.support.recorded.reference_data import find_golden_dir

pytestmark = pytest.mark.golden

FOLDER = find_golden_dir()
FOLDER = FOLDER / "blis_2026_08" if FOLDER else None
FAST = ("pd_shared_s42", "fc_evict_s42", "timeouts_pd_s44")
NAMES = [
    "fc_conc_fifo_c5_s42",
    "fc_conc_fifo_s42",
    "fc_conc_prio_s42",
    "fc_evict_s42",
    "fc_never_s42",
    "fc_shed_s42",
    "fc_ttl_band_s42",
    "fc_util_deadline_s42",
    "fc_util_prio_tick_s42",
    "pd_1p1d_s42",
    "pd_1p3d_s42",
    "pd_2p2d_s42",
    "pd_2p2d_weighted_s42",
    "pd_3p1d_s42",
    "pd_chunked_s42",
    "pd_contention_s42",
    "pd_default_rr_s42",
    "pd_encode_s42",
    "pd_kv_mid_s42",
    "pd_kv_small_s42",
    "pd_multi_turn_s42",
    "pd_never_s42",
    "pd_one_token_s42",
    "pd_roofline_s42",
    "pd_shared_s42",
    "pd_threshold_s42",
    "pd_tp_hetero_s42",
    "tenant_budget_s42",
    "timeouts_pd_s44",
    "timeouts_queue_s44",
    "timeouts_s42",
]
OF_WHOLE = (
    "queued_at_us",
    "completed_at_us",
    "preemptions",
    "num_scheduled",
    "cached_tokens_first_sched",
)
# without a transfer that has ended, or without completion, a recording has numbers of its own here
OF_MOVED = ("pd_transfer_complete_us", "decode_preempt", "decode_first_sched", "decode_last_sched")
OF_DONE = ("decode_completed_at", "decode_num_itl")
COMPLETED, DROPPED, DROPPED_AT_DECODE, EVICTED = 0, 2, 13, 10


def compared(name: str, recorded: dict[str, np.ndarray]) -> np.ndarray:
    """Entries of an array that mean the same in a recording and here."""
    status = recorded["status"]
    is_split = recorded.get("pd_prefill_instance", np.full(len(status), -1)) >= 0
    if name == "status":
        return np.full(len(status), True)
    if name in AT_END:
        return (status == COMPLETED) & ~is_split
    if name in OF_WHOLE:
        return ~is_split & (status != DROPPED)
    if name in OF_DONE:
        return is_split & (status == COMPLETED)
    if name in OF_MOVED:
        return is_split & (status != DROPPED_AT_DECODE)
    if name.startswith(("pd_", "prefill_")):
        return is_split
    if name.startswith("gw_"):
        return np.isin(status, (COMPLETED, EVICTED))
    return status != DROPPED


@pytest.mark.parametrize(
    "name", [pytest.param(one, marks=[] if one in FAST else pytest.mark.slow) for one in NAMES]
)
def test_equals_a_recorded_run(name: str) -> None:
    if FOLDER is None or not (FOLDER / "index.json").exists():
        pytest.skip("no reference results of August: ../shared/golden/blis_2026_08 is not here")
    scenario = AugustScenario(FOLDER, name)
    with np.load(FOLDER / "workloads" / f"{scenario.recorded['workload']}.npz") as file:
        workload = dict(file)
    size = len(workload["arrival_us"])
    workload["short_input_id"] = np.zeros(size, np.int64)
    deadline = workload["deadline_us"]
    timeout = np.where(deadline > 0, deadline - workload["arrival_us"], 0)
    cluster = scenes.run(scenario.cluster, workload, scenario.seed, timeout)
    recorded = scenario.arrays()
    mine = {one: of for one, of in arrays(cluster).items() if one in recorded}
    assert len(mine) > 20
    for one, values in mine.items():
        assert len(values) == len(recorded[one]), one
        kept = slice(None) if one.startswith("step_") else compared(one, recorded)
        np.testing.assert_array_equal(values[kept], recorded[one][kept], one)
