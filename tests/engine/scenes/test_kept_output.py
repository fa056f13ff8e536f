"""Preempted requests that keep their output, where requests move: equal to a plain event loop that does the same."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from blis_jax import Options, simulate
from blis_jax.cluster.config import from_flags
from blis_jax.metrics.summaries import Window
from blis_jax.records.invariants import violations
from blis_jax.records.record import RunRecord, Status
from tests.engine.scenes.test_moving_scenes import MOVES, NODES
from tests.engine.scenes.test_outage_scenes import OPTIONS as OUTAGE_OPTIONS
from tests.engine.scenes.test_outage_scenes import (
    Kind,
    Scene,
    all_is_equal,
    harder,
    simulated,
    uneven,
)
from tests.metrics.test_lane import assert_equal, both
from tests.support.oracles import moving_oracle
from tests.support.oracles.kept_output import KeepingCluster, gaps_of
from tests.support.scenes import REQUEST_ARRAYS, Prompt, flags, table_of, workload_of

KEEPS = {"corrected": True, "preemption_mode": "recompute"}
SHARED = {"num_shared_blocks": 16}  # so that all scenes share one program


def run_both(made: Scene, blocks: str, **options: Any) -> tuple[RunRecord, Any, KeepingCluster]:
    workload, settings, changes = made
    record = simulated(made, blocks, KEEPS, **SHARED, **options)
    made_by: list[KeepingCluster] = []

    def make(*given: Any) -> KeepingCluster:
        made_by.append(KeepingCluster(*given))
        return made_by[0]

    expected = moving_oracle.simulate(workload, settings | {"changes": changes}, make)
    return record, expected, made_by[0]


def check(made: Scene, blocks: str) -> RunRecord:
    record, expected, cluster = run_both(made, blocks)
    all_is_equal(record, expected, blocks)
    gaps = record.preemptions.gap_us
    assert gaps is None or sorted(gaps.tolist()) == sorted(gaps_of(cluster).tolist())
    return record


KINDS = (
    Kind("pools", "few"),
    Kind("none", "few"),
    Kind("own", "few"),
    Kind("pools", "few", fails=False),
    Kind("pools", "plenty"),
)


def num_resumed(found: list[RunRecord]) -> int:
    """Tokens that came after a preemption."""
    return sum(int((one.preemptions.gap_us >= 0).sum()) for one in found)


@pytest.mark.slow
@pytest.mark.timeout(1200)
@pytest.mark.parametrize("kind", KINDS, ids=lambda kind: "-".join(map(str, kind)))
@pytest.mark.parametrize("part", range(4))
def test_scenes_are_equal_to_the_oracle(part: int, kind: Kind) -> None:
    first = 30_000 + 25 * part
    found = [check(harder(seed, kind), kind.blocks) for seed in range(first, first + 25)]
    assert kind.blocks == "plenty" or num_resumed(found) > 5
    assert (sum(int(one.requests.restarts.sum()) for one in found) > 5) == kind.fails
    assert (sum(int(one.requests.hand_overs.sum()) for one in found) > 50) == (kind.pools != "none")


@pytest.mark.slow
@pytest.mark.timeout(1200)
@pytest.mark.parametrize("part", range(4))
def test_scenes_with_late_hand_overs_are_equal_to_the_oracle(part: int) -> None:
    """The shortest prompt first, kept output included."""
    first = 31_000 + 25 * part
    made = [uneven(seed) for seed in range(first, first + 25)]
    found = [check((one, two | {"scheduler": "sjf"}, three), "few") for one, two, three in made]
    assert num_resumed(found) > 2


@pytest.mark.slow
def test_both_forms_of_the_program_keep_the_same() -> None:
    for seed in (31_006, 31_018):
        one, other = (run_both(uneven(seed), "few", form=form)[0] for form in ("rows", "lanes"))
        for name in (*REQUEST_ARRAYS, *MOVES):
            mine, theirs = getattr(one.requests, name), getattr(other.requests, name)
            np.testing.assert_array_equal(mine, theirs, name)


@pytest.mark.slow
def test_figures_of_the_compiled_call_are_the_hosts() -> None:
    workload, settings, _ = uneven(31_006)
    cluster = from_flags({**settings, "variant": "scheduling"}).replace(**KEEPS)
    options = Options(**OUTAGE_OPTIONS, **SHARED)
    record, host, report = both(cluster, table_of(workload, **NODES), options, Window(0, None))
    assert record.preemptions.gap_us.max() > 0 and record.requests.hand_overs.any()
    assert_equal(record, host, report)


def test_a_request_is_dropped_after_its_first_token_where_its_prompt_is_too_long() -> None:
    """The instance that computes prompts has room for it, the other one has not; a step takes 1,000 µs."""
    instances = [
        {"count": 1, "role": "prefill", "total_kv_blocks": 20},
        {"count": 1, "role": "decode", "total_kv_blocks": 5},
    ]
    settings = flags(instances=instances, num_instances=2, hand_over_policy="pools")
    cluster = from_flags({**settings, "variant": "scheduling"})
    prompts = [Prompt(0, 100, 4), Prompt(10, 50, 4)]
    record = simulate(cluster, table_of(workload_of(prompts)))
    requests = record.requests
    assert requests.status.tolist() == [Status.DROPPED, Status.COMPLETED]
    assert requests.ttft_us.tolist() == [1000, 1000] and requests.num_scheduled.tolist() == [1, 1]
    assert not {name: count for name, count in violations(record).items() if count}
