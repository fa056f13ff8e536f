"""Transfers in the record: how long they take, alone and on a shared link, and the parts of E2E."""

from typing import Any

import numpy as np
import pytest

from blis_jax import ClusterConfig, simulate
from blis_jax.metrics.scalars import evaluate
from blis_jax.records.record import E2E_PARTS, RunRecord, e2e_parts_us
from tests.policies.movement.test_pools import STEP_US, config, run
from tests.support.scenes import Prompt, table_of, workload_of

TOGETHER = [Prompt(0, 160, 4), Prompt(0, 320, 4), Prompt(500, 80, 4), Prompt(500, 32, 1)]


def transfers(record: RunRecord) -> list[int]:
    found: list[int] = record.requests.transfer_us.tolist()
    return found


def test_a_transfer_and_the_wait_after_it_are_parts_of_e2e() -> None:
    """The first two share a step of the prefill instance; the third follows; the fourth ends with its first token."""
    record = run(TOGETHER, config())
    assert transfers(record) == [250 + 160, 250 + 320, 250 + 80, -1]
    # decode instances 1 and 2: the first comes to 1 at 1,410, the second to 2 at 1,570, the third to 1 at 2,330
    assert record.requests.handed_wait_us.tolist() == [0, 0, 2410 - 2330, -1]
    frame = record.to_dataframe()
    parts = frame[[f"e2e_{part}_us" for part in E2E_PARTS]]
    np.testing.assert_array_equal(parts.sum(axis=1), frame["e2e_us"])
    assert parts.loc[0].tolist() == [STEP_US, 410, 0, 3 * STEP_US]
    assert parts.loc[3].tolist() == [1500, 0, 0, 0]
    assert np.isnan(frame["transfer_us"][3])
    means = evaluate(record, ["transfer_mean_ms", "handed_wait_mean_ms", "transfer_mean_ms[batch]"])
    assert list(means.values())[:2] == [pytest.approx(1310 / 3000), pytest.approx(80 / 3000)]
    assert np.isnan(means["transfer_mean_ms[batch]"])
    assert frame["e2e_transfer_us"].tolist() == [410, 570, 330, 0]


def test_transfers_from_one_instance_share_its_link_by_their_number_at_the_start() -> None:
    """Both of the first step start at 1,000: the second one finds the first. The third begins at 2,000."""
    record = run(TOGETHER, config(pools_share_link=1))
    assert transfers(record) == [250 + 160, 250 + 2 * 320, 250 + 80, -1]
    slow = run(TOGETHER, config(pools_share_link=1, pools_link_gb_per_s=0.1))
    assert transfers(slow) == [250 + 1600, 250 + 2 * 3200, 250 + 3 * 800, -1]
    other = [{"count": 2, "role": "prefill"}, {"count": 1, "role": "decode"}]
    apart = simulate(config(other, pools_share_link=1), table_of(workload_of(TOGETHER[:2])))
    assert transfers(apart) == [250 + 160, 250 + 320]


def test_without_hand_overs_nothing_is_transferred() -> None:
    record = simulate(
        ClusterConfig(beta_coeffs=(1000.0, 0.0, 0.0)), table_of(workload_of(TOGETHER))
    )
    assert transfers(record) == [-1] * 4
    parts: Any = e2e_parts_us(record.requests)
    np.testing.assert_array_equal(parts.sum(axis=1), record.requests.e2e_us)
    assert (parts[:, 1:3] == 0).all() and (parts[:, 0] == record.requests.ttft_us).all()


def test_a_transfer_under_way_at_the_end_has_no_length_yet() -> None:
    record = simulate(config(horizon=1300), table_of(workload_of(TOGETHER[:1])))
    assert transfers(record) == [-1] and record.requests.handed_wait_us.tolist() == [-1]
    assert (e2e_parts_us(record.requests) == -1).all()
