"""The corrected profile: the reference without its named defects."""

import dataclasses

import hypothesis
import numpy as np
import pytest
from hypothesis import strategies as st

from blis_jax.cluster import config
from blis_jax.core.outcome import Outcome
from blis_jax.core.revision_rules import NO_DEFECTS, REFERENCE_DEFECTS
from blis_jax.engine.mechanism import mechanism
from blis_jax.records.record import Status
from blis_jax.records.step_records import overlaps
from blis_jax.runs.many_runs import simulate
from tests.engine.test_properties import (
    LONG_NODES,
    OPTIONS,
    PHASES,
    STATICS,
    TALKATIVE,
    Scene,
    scenes,
)
from tests.support.oracles import oracle
from tests.support.scenes import Prompt, flags, table_of, workload_of

CORRECTED = (STATICS[1], STATICS[3])


def test_every_defect_is_off():
    assert not any(dataclasses.asdict(NO_DEFECTS).values())
    assert all(dataclasses.asdict(REFERENCE_DEFECTS).values())
    reference, corrected = config.ClusterConfig(), config.ClusterConfig(corrected=True)
    assert mechanism(reference).defects == REFERENCE_DEFECTS
    assert mechanism(corrected).defects == NO_DEFECTS
    assert corrected.profile != reference.profile


@pytest.mark.slow
@pytest.mark.timeout(1800)
@hypothesis.settings(max_examples=150, phases=PHASES)
@hypothesis.given(st.one_of(scenes(CORRECTED), scenes(TALKATIVE[2:], has_conversations=True)))
def test_no_orphaned_block_and_no_overlapping_step(scene: Scene):
    cluster = config.from_flags(scene.flags).replace(variant=scene.static.variant, corrected=True)
    record = simulate(cluster, table_of(scene.workload, **LONG_NODES), OPTIONS)
    # memory that is too small for one request alone still makes no progress
    assert record.outcome in (Outcome.COMPLETED, Outcome.HORIZON, Outcome.LIVELOCK)
    requests = record.requests
    assert overlaps(record) == (0, 0)
    done = requests.status == Status.COMPLETED
    assert np.all(requests.ttft_us[done] >= 0)
    assert np.all(requests.progress_index[done] == requests.input_len[done] + _steps(record)[done])
    alone = done & (requests.preemptions == 0)
    # handing out a token takes its time again with every token, as in the reference
    handing_out = record.instances.output_time_us[requests.instance] * (1 + _steps(record))
    served = requests.left_us + handing_out
    assert np.all(requests.e2e_us[alone] == (served - requests.arrival_us)[alone])
    if record.outcome == Outcome.COMPLETED:
        assert not record.instances.used_blocks_at_end.any()


def _steps(record) -> np.ndarray:
    return np.maximum(record.requests.output_len, 1) - 1


def under_pressure() -> dict[str, np.ndarray]:
    """Two requests whose outputs outgrow the memory that their prompts fit into."""
    rows = [Prompt(0, 30, 20), Prompt(1, 30, 20), Prompt(2, 5, 2)]
    return workload_of(rows, 4)


@pytest.mark.slow
def test_a_roll_back_leaks_blocks_only_in_the_reference():
    numbers = flags(block_size_in_tokens=4, total_kv_blocks=18)
    cluster, table = config.from_flags(numbers), table_of(under_pressure())
    reference = simulate(cluster, table, OPTIONS)
    corrected = simulate(cluster.replace(corrected=True), table, OPTIONS)
    assert reference.outcome == Outcome.LIVELOCK or reference.instances.used_blocks_at_end.any()
    assert corrected.outcome == Outcome.COMPLETED
    assert not corrected.instances.used_blocks_at_end.any()


def test_a_reload_that_finds_more_than_a_chunk_stops_only_the_reference():
    rows = [Prompt(0, 45, 9), Prompt(1000, 22, 8, 0, 1, 28), Prompt(1000, 29, 6, 0, 1, 8)]
    numbers = flags(
        block_size_in_tokens=4,
        total_kv_blocks=23,
        kv_cpu_blocks=30,
        kv_offload_threshold=0.5,
        long_prefill_token_threshold=10,
        max_num_scheduled_tokens=16,
    )
    workload = workload_of(rows, 4)
    cluster, table = config.from_flags(numbers), table_of(workload)
    assert oracle.simulate(workload, numbers).outcome.startswith("crash: slice bounds")
    assert simulate(cluster, table, OPTIONS).outcome == Outcome.REFERENCE_CRASH
    corrected = simulate(cluster.replace(corrected=True), table, OPTIONS)
    assert corrected.outcome == Outcome.COMPLETED
    assert corrected.instances.cpu_reloads.any()
    assert not corrected.instances.used_blocks_at_end.any()


def test_an_instance_is_busy_until_its_step_has_ended():
    rows = [Prompt(0, 4, 1), Prompt(500, 4, 1)]
    cluster, table = config.from_flags(flags()), table_of(workload_of(rows))
    reference = simulate(cluster, table, OPTIONS)
    corrected = simulate(cluster.replace(corrected=True), table, OPTIONS)
    assert reference.steps.start_us.tolist() == [0, 500]
    assert corrected.steps.start_us.tolist() == [0, 1000]
    assert reference.requests.e2e_us.tolist() == [2000, 2000]
    assert corrected.requests.e2e_us.tolist() == [1000, 1500]
