"""An index that hears late of what the KV caches do, against plain caches whose messages travel as long."""

from __future__ import annotations

from typing import Any

import hypothesis
import hypothesis.strategies as st
import numpy as np
import pytest

from blis_jax.cluster.config import ClusterConfig
from blis_jax.core.outcome import WHOLE
from blis_jax.engine.mechanism import mechanism, of_one_program
from blis_jax.results.records import RunRecord
from blis_jax.runs import sizes
from tests.engine.phases.router_view.test_lost_news import SETTINGS, Drawn, run, scene
from tests.engine.test_properties import (
    LONG_NODES,
    PHASES,
    PRECISE,
    Scene,
    check,
    scenes,
    small_router_index,  # noqa: F401 - a fixture
)
from tests.support.oracles import oracle
from tests.support.scenes import REQUEST_ARRAYS, differences, flags, table_of

ARRAYS = (*REQUEST_ARRAYS, "expected_cached_tokens")


def compare(seed: int, delay: int, loss: float = 0.0, **changes: Any) -> tuple[RunRecord, Any]:
    """Both runs of one scene; ours, and the plain router's index."""
    workload, clusters = scene(seed), list[Any]()

    def with_losses(*given: Any) -> oracle.Cluster:
        cluster = oracle.Cluster(*given)
        clusters.append(cluster)
        if loss:
            cluster.fate = Drawn(loss, table_of(workload), given[0])  # type: ignore[attr-defined]
        return cluster

    late = changes | {"prefix_index_delay": delay, "prefix_index_loss": loss}
    record = run(workload, **late)
    expected = oracle.simulate(workload, flags(**(SETTINGS | late)), "routing", with_losses)
    assert record.outcome in WHOLE and not differences(record, expected)
    matched = expected.requests["route_match_blocks"].astype(int)
    at_its_own = np.take_along_axis(matched, record.requests.instance[:, None].astype(int), axis=1)
    np.testing.assert_array_equal(record.requests.expected_cached_tokens, 16 * at_its_own[:, 0])
    return record, clusters[0].router.index


def same(one: RunRecord, other: RunRecord) -> bool:
    return all(
        np.array_equal(getattr(one.requests, name), getattr(other.requests, name))
        for name in ARRAYS
    )


@pytest.mark.slow
@pytest.mark.parametrize("delay", [1, 3_000, 20_000, 60_000])
def test_late_news_equals_oracle(delay: int) -> None:
    """Delays from less than a step up to most of the run; the longer ones change what is routed where."""
    changed, most = 0, 0
    for seed in range(50):
        record, index = compare(seed, delay)
        changed += not same(record, run(scene(seed)))
        most = max(most, index.most_on_their_way)
    assert most > 1
    assert changed > 25 or delay == 1


@st.composite
def heard_late(draw: Any, **which: bool) -> Scene:
    """A scene of precise routing whose messages are on their way for up to 0.1 s."""
    made = draw(scenes(PRECISE[:2], **which))
    delay = draw(st.one_of(st.integers(1, 5_000), st.integers(1, 100_000)))
    return made._replace(flags=made.flags | {"prefix-index-delay": delay})


@pytest.mark.slow
@pytest.mark.timeout(3000)
@hypothesis.settings(max_examples=200, phases=PHASES)
@hypothesis.given(heard_late())
def test_precise_routing_with_late_news_equals_oracle(made: Scene) -> None:
    check(made)


@pytest.mark.slow
@pytest.mark.timeout(3000)
@hypothesis.settings(max_examples=100, phases=PHASES)
@hypothesis.given(heard_late(has_conversations=True))
def test_conversations_heard_of_late_equal_oracle(made: Scene) -> None:
    check(made, LONG_NODES)


@pytest.mark.slow
@pytest.mark.timeout(3000)
@pytest.mark.usefixtures("small_router_index")
@hypothesis.settings(
    max_examples=100,
    phases=PHASES,
    suppress_health_check=[hypothesis.HealthCheck.function_scoped_fixture],
)
@hypothesis.given(heard_late())
def test_a_full_index_that_hears_late_equals_oracle(made: Scene) -> None:
    check(made)


@pytest.mark.slow
@pytest.mark.parametrize(
    "changes",
    [
        {"routing_latency": 500, "network_delay": 300},
        {"num_gateways": 2},
        {"total_kv_blocks": 400},
        {"flow_control": True, "max_gateway_queue_depth": 8},
    ],
    ids=lambda changes: next(iter(changes)),
)
def test_other_parts_of_a_cluster_beside_late_news_equal_the_run_without_it(
    changes: dict[str, Any],
) -> None:
    """A delay of nearly nothing is none: the same requests in the program that delays, bit for bit."""
    workload = scene(2)
    at_once = run(workload, **changes)
    assert same(at_once, run(workload, prefix_index_delay=1, **changes))
    assert not same(at_once, run(workload, prefix_index_delay=40_000, **changes))


@pytest.mark.slow
def test_messages_that_are_lost_and_late_equal_oracle() -> None:
    for seed in range(50):
        compare(seed, 15_000, 0.3)


@pytest.mark.slow
def test_both_forms_of_the_program_hear_the_same() -> None:
    workload = scene(1)
    one, other = (run(workload, form=form, prefix_index_delay=15_000) for form in ("rows", "lanes"))
    assert same(one, other)


@pytest.mark.slow
def test_a_log_that_is_too_small_grows(monkeypatch: pytest.MonkeyPatch) -> None:
    """Nothing is heard before the end, so all messages are on their way at once."""
    whole = run(scene(3), prefix_index_delay=10**9)
    monkeypatch.setattr(sizes, "_num_touches", lambda *_: 8)
    assert same(whole, run(scene(3), prefix_index_delay=10**9))
    assert not whole.requests.expected_cached_tokens.any()


def test_the_caches_may_be_heard_late_and_one_program_has_all_delays() -> None:
    precise = ClusterConfig(routing_policy="weighted", precise_kv_routing=True)
    plain, late = (mechanism(precise.replace(prefix_index_delay=delay)) for delay in (0, 5_000))
    assert late.is_precise and late.delays_index and not plain.delays_index
    first, second = of_one_program([plain, late])
    assert first == second == late
