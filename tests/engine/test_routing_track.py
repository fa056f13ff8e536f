"""Random small clusters with the routing track's mechanisms: the engine equals the oracle in every array."""

from __future__ import annotations

import dataclasses
from typing import Any

import hypothesis
import pytest
from hypothesis import strategies as st

from blis_jax.core.outcome import WHOLE
from blis_jax.records.record import BLOCK_LEVEL
from tests.engine.test_properties import (
    OPTIONS,
    PHASES,
    Scene,
    Static,
    check,
    run,
    scenes,
)
from tests.support.oracles import oracle
from tests.support.scenes import Prompt, differences, flags, workload_of

EVERY_SCORER = "kv-pressure:2,slo-headroom:2.5,cost-benefit:0.7,prefix-affinity:3,load-balance:1,queue-depth:1.3"
STATICS = (
    Static(3, "adaptive-weighted", "", "always-admit", "fcfs", "slo-class", 4, "routing", True),
    Static(2, "adaptive-weighted", "", "predictive-slo", "sjf", "slo-based", 16, "routing", True),
    Static(3, "kv-adaptive", "", "slo-gated", "priority-fcfs", "slo-class", 4, "routing"),
    Static(2, "kv-adaptive", "", "token-bucket", "sjf", "constant", 16, "routing", True),
    Static(2, "epoch-adaptive", "", "slo-gated", "priority-fcfs", "slo-class", 16, "routing"),
    Static(
        3, "epoch-adaptive", "", "token-bucket", "reverse-priority", "inverted-slo", 4, "routing", True
    ),
    Static(
        4, "weighted", "cost-benefit:3,queue-depth:2", "predictive-slo", "fcfs", "constant", 4, "routing"
    ),
    Static(
        3, "weighted", EVERY_SCORER, "slo-gated", "priority-fcfs", "slo-class", 16, "routing", True
    ),
)  # fmt: skip

# The caches feed the index of prefix-affinity; that of cost-benefit stays empty then, and other policies keep theirs.
PRECISE = tuple(
    each._replace(is_precise=True, has_cpu_tier=False)
    for each in (STATICS[7], STATICS[6], STATICS[2])
)


@st.composite
def track_scenes(draw: Any, statics: tuple[Static, ...]) -> Scene:
    """A scene; epochs are shorter than BLIS's 100 requests, so that small workloads have some."""
    scene = draw(scenes(statics))
    if scene.static.routing != "epoch-adaptive":
        return scene
    size = float(draw(st.sampled_from([1, 3, 7, 20])))
    return scene._replace(flags=scene.flags | {"policy-numbers": (("routing.epoch_size", size),)})


@st.composite
def tier_scenes(draw: Any) -> Scene:
    """Caches too small for what runs, over a CPU tier: in many of them an instance reloads and thrashes."""

    def pick(*values: Any) -> Any:
        return draw(st.sampled_from(values))

    gap, count, output, input_len = (
        pick(20, 50, 200), pick(60, 60, 40), pick(20, 40), pick(10, 40)
    )  # fmt: skip
    groups, prefix_len, own = pick(3, 5), pick(8, 8, 32), st.integers(0, 19)
    classes = st.integers(0, 5)
    rows = [
        Prompt(gap * i, input_len + draw(own), output, draw(classes), i % groups, prefix_len)
        for i in range(count)
    ]
    numbers = flags(
        num_instances=STATICS[0].num_instances,
        routing_policy="adaptive-weighted",
        priority_policy="slo-class",
        block_size_in_tokens=4,
        horizon=150_000,
        beta_coeffs=[pick(300.0, 40.0, 900.0), 0.0, 0.0],
        total_kv_blocks=pick(25, 25, 40),
        kv_cpu_blocks=pick(500, 10),
        kv_offload_threshold=pick(0.1, 0.1, 0.3),
        kv_transfer_base_latency=pick(0, 700),
        snapshot_refresh_interval=pick(0, 0, 500, 20_000),
    )
    return Scene(workload_of(rows, 4), numbers, STATICS[0])


@pytest.mark.slow
@pytest.mark.timeout(6000)
@hypothesis.settings(max_examples=400, phases=PHASES)
@hypothesis.given(track_scenes(STATICS))
def test_equals_oracle_often(scene: Scene):
    check(scene)


@pytest.mark.slow
@pytest.mark.timeout(1800)
@hypothesis.settings(max_examples=100, phases=PHASES)
@hypothesis.given(tier_scenes())
def test_router_s_view_of_the_cpu_tier_equals_oracle(scene: Scene):
    check(scene)


@pytest.mark.slow
@pytest.mark.timeout(1800)
@hypothesis.settings(max_examples=60, phases=PHASES)
@hypothesis.given(track_scenes(PRECISE))
def test_with_precise_routing_equals_oracle(scene: Scene):
    check(scene)


def thrashing_scene() -> Scene:
    """Small caches over a CPU tier, and steps so short that blocks come back within 1 ms of their offload."""
    rows = [Prompt(200 * i, 10 + 7 * i % 20, 20, i % 6, i % 3, 8) for i in range(60)]
    changes = {"beta_coeffs": [300.0, 0.0, 0.0], "total_kv_blocks": 25, "kv_cpu_blocks": 500}
    changes |= {"kv_offload_threshold": 0.1, "num_instances": 3, "block_size_in_tokens": 4}
    changes |= {"horizon": 150_000}
    numbers = flags(routing_policy="adaptive-weighted", priority_policy="slo-class", **changes)
    return Scene(workload_of(rows, 4), numbers, STATICS[0])


@pytest.mark.slow
def test_requests_are_kept_from_instances_that_thrash(monkeypatch: pytest.MonkeyPatch):
    """The rule decides here: without it the oracle routes otherwise."""
    scene = thrashing_scene()
    record = run(scene)
    assert record.outcome in WHOLE and record.kv_model == BLOCK_LEVEL
    check(scene)
    monkeypatch.setattr("tests.support.recorded.routing_track._is_healthy", lambda _: True)
    without = oracle.simulate(scene.workload, scene.flags, profile="routing")
    assert differences(record, without, 4)


@pytest.mark.slow
@pytest.mark.timeout(1800)
def test_the_view_of_the_cpu_tier_is_the_same_in_lanes_form():
    scene = thrashing_scene()
    scene = scene._replace(flags=scene.flags | {"horizon": 60_000})
    record = run(scene, dataclasses.replace(OPTIONS, form="lanes", num_copies=4, num_chains=4))
    assert record.outcome in WHOLE
    expected = oracle.simulate(scene.workload, scene.flags, profile="routing")
    assert not differences(record, expected, 4)
