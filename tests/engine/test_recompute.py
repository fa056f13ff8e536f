"""Preempted requests that keep their output, as in vLLM, against a plain replay."""

import dataclasses
from typing import Any, NamedTuple

import hypothesis
import numpy as np
import pytest
from hypothesis import strategies as st

from blis_jax.cluster import config
from blis_jax.core.outcome import Outcome
from blis_jax.errors import ConfigError
from blis_jax.metrics.distributions import itl_sample
from blis_jax.metrics.summaries import Window
from blis_jax.records import invariants
from blis_jax.runs.many_runs import simulate
from blis_jax.workload.table import RequestTable
from tests.engine.test_properties import NODES, OPTIONS, PHASES, STATICS, Scene, scenes
from tests.metrics.test_lane import assert_equal, both
from tests.support.oracles.recompute import Replay, Served
from tests.support.scenes import Prompt, flags, table_of, workload_of

BLOCK = 4


class Pressed(NamedTuple):
    """One run to make."""

    rows: list[tuple[int, int, int]]  # arrival, prompt, output
    numbers: dict[str, Any]


def cluster_of(**numbers: Any) -> config.ClusterConfig:
    given = flags(block_size_in_tokens=BLOCK, beta_coeffs=[5000.0, 1000.0, 0.0], **numbers)
    return config.from_flags(given).replace(corrected=True, preemption_mode="recompute")


def replayed(prompts: list[Prompt], cluster: config.ClusterConfig) -> list[Served]:
    replay = Replay(
        blocks=cluster.total_kv_blocks,
        block_size=BLOCK,
        threshold=cluster.long_prefill_token_threshold,
        most_running=cluster.max_num_running_reqs,
        step_us=5000,
        prefill_us=1000,
        output_us=int(cluster.alpha_coeffs[2]),
    )
    return replay.run([Served(p.arrival_us, p.input_len, p.output_len) for p in prompts])


def check(scene: Pressed) -> None:
    prompts = [Prompt(*row) for row in scene.rows]
    cluster = cluster_of(**scene.numbers)
    table = table_of(workload_of(prompts, BLOCK), **NODES)
    record = simulate(cluster, table, OPTIONS)
    assert record.outcome == Outcome.COMPLETED
    expected = replayed(prompts, cluster)
    requests = record.requests
    assert requests.preemptions.tolist() == [each.preemptions for each in expected]
    assert requests.ttft_us.tolist() == [each.ttft for each in expected]
    assert requests.e2e_us.tolist() == [each.e2e for each in expected]
    assert requests.num_itl.tolist() == [max(each.output, 1) - 1 for each in expected]
    gaps = [np.diff(each.token_ends) + int(cluster.alpha_coeffs[2]) for each in expected]
    found = itl_sample(record)
    assert np.repeat(found.values, np.diff(found.ends, prepend=0)).tolist() == sorted(
        np.concatenate(gaps).tolist()
    )
    assert not any(invariants.violations(record).values())


@st.composite
def pressed(draw: Any) -> Pressed:
    """Short prompts with long outputs, arrivals of which no two ever fall on the end of one step."""
    size = draw(st.integers(2, 12))
    gaps = draw(st.lists(st.sampled_from([0, 3, 9, 30]), min_size=size, max_size=size))
    lengths = st.tuples(st.integers(1, BLOCK - 1), st.integers(0, 40))
    rows = draw(st.lists(lengths, min_size=size, max_size=size))
    times = np.cumsum(gaps) * 1000 + np.arange(size)
    told = [(int(at), *lengths) for at, lengths in zip(times, rows, strict=True)]
    return Pressed(
        told,
        {
            "total_kv_blocks": draw(st.sampled_from([12, 14, 20, 40])),
            "long_prefill_token_threshold": draw(st.sampled_from([0, 3, 5])),
            "max_num_running_reqs": draw(st.sampled_from([2, 5, 256])),
            "alpha_coeffs": [0.0, 0.0, draw(st.sampled_from([0.0, 45.0]))],
        },
    )


PRESSED = Pressed(
    [(0, 3, 40), (1, 2, 30), (2, 3, 25), (3, 1, 33), (30_004, 2, 0)],
    {
        "total_kv_blocks": 14,
        "long_prefill_token_threshold": 5,
        "max_num_running_reqs": 5,
        "alpha_coeffs": [0.0, 0.0, 45.0],
    },
)


@pytest.mark.slow
@pytest.mark.timeout(1200)
@hypothesis.settings(max_examples=400, phases=PHASES)
@hypothesis.example(PRESSED)
@hypothesis.given(pressed())
def test_equals_a_plain_replay(scene: Pressed) -> None:
    check(scene)


@pytest.mark.slow
@pytest.mark.timeout(1200)
@hypothesis.settings(max_examples=50, phases=PHASES)
@hypothesis.given(scenes((STATICS[1], STATICS[3])))
def test_invariants_hold_and_only_preempted_requests_differ(scene: Scene) -> None:
    """Of runs without preemption in which memory is tight, too."""
    cluster = config.from_flags(scene.flags).replace(variant=scene.static.variant, corrected=True)
    table = table_of(scene.workload, **NODES)
    record = simulate(cluster.replace(preemption_mode="recompute"), table, OPTIONS)
    assert record.outcome in (Outcome.COMPLETED, Outcome.HORIZON, Outcome.LIVELOCK)
    if record.outcome == Outcome.LIVELOCK:
        return
    assert not any(invariants.violations(record).values())
    done = record.requests.e2e_us >= 0
    tokens = np.maximum(record.requests.output_len, 1)
    assert np.array_equal(record.requests.num_itl[done], tokens[done] - 1)
    if record.instances.preemption_count.any():
        return
    restarted = simulate(cluster, table, OPTIONS)
    for name in ("ttft_us", "e2e_us", "left_us", "num_itl"):
        assert np.array_equal(getattr(record.requests, name), getattr(restarted.requests, name))


def pressed_run() -> tuple[config.ClusterConfig, RequestTable]:
    """A run with preemptions, made by hand."""
    workload = workload_of([Prompt(*row) for row in PRESSED.rows], BLOCK)
    return cluster_of(**PRESSED.numbers), table_of(workload, **NODES)


@pytest.mark.slow
def test_figures_of_the_compiled_call_are_the_hosts() -> None:
    record, host, report = both(*pressed_run(), OPTIONS, Window(0, None))
    assert record.instances.preemption_count.sum() > 0
    assert_equal(record, host, report)


@pytest.mark.slow
def test_lanes_are_rows() -> None:
    cluster, table = pressed_run()
    record = simulate(cluster, table, OPTIONS)
    assert record.instances.preemption_count.sum() > 0
    lanes = simulate(cluster, table, dataclasses.replace(OPTIONS, form="lanes", resolve_ties=False))
    for name in ("ttft_us", "e2e_us", "preemptions", "num_itl", "sched_delay_us"):
        assert np.array_equal(getattr(lanes.requests, name), getattr(record.requests, name))


def test_it_is_of_the_corrected_profile() -> None:
    with pytest.raises(ConfigError, match="corrected profile"):
        config.ClusterConfig(preemption_mode="recompute")
    with pytest.raises(ConfigError, match="use restart or recompute"):
        config.ClusterConfig(preemption_mode="recompile", corrected=True)
