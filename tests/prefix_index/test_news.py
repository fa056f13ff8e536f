"""An index that hears late of what the KV caches do, or never, against plain caches whose messages fare alike."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import hypothesis
import hypothesis.strategies as st
import jax
import numpy as np
import pytest

from blis_jax.cluster import config
from blis_jax.cluster.config import ClusterConfig
from blis_jax.core.outcome import WHOLE
from blis_jax.engine.loop import _shared_numbers
from blis_jax.engine.mechanism import mechanism, of_one_program
from blis_jax.policies.seeds import policy_seed
from blis_jax.prefix_index.news import removals_heard
from blis_jax.records.record import RunRecord
from blis_jax.runs import sizes
from blis_jax.runs.many_runs import simulate
from blis_jax.runs.options import Options
from blis_jax.workload.table import RequestTable
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
from tests.support.oracles.precise_index import Fate
from tests.support.scenes import REQUEST_ARRAYS, Prompt, differences, flags, table_of, workload_of

# --- late -----------------------------------------------------------------------------------------


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


# --- lost -----------------------------------------------------------------------------------------


LOSS, REMOVAL_LOSS = 1005, 1006  # the numbers that their keys are made of
NODES = {"num_nodes": 16, "depth": 4, "node_blocks": 8}
SETTINGS: dict[str, Any] = {
    "num_instances": 3,
    "routing_policy": "weighted",
    "routing_scorers": "prefix-affinity:4,queue-depth:1",
    "precise_kv_routing": True,
    "total_kv_blocks": 24,
    "long_prefill_token_threshold": 40,
    "beta_coeffs": [1000.0, 20.0, 5.0],
}


def scene(seed: int) -> dict[str, np.ndarray]:
    """40 prompts of six applications with prefixes of up to five blocks, which do not all stay in 24 blocks."""
    rng = np.random.default_rng(seed)
    sizes = rng.integers(1, 6, size=6) * 16
    prompts = []
    for at in range(40):
        group = int(rng.integers(-1, 6))
        prefix = int(sizes[group]) if group >= 0 else 0
        own = int(rng.integers(1, 70))
        output = int(rng.integers(1, 12))
        prompts.append(Prompt(2500 * at, prefix + own, output, 0, group, prefix))
    return workload_of(prompts)


def run(workload: dict[str, np.ndarray], *, form: Any = "rows", **changes: Any) -> RunRecord:
    cluster = config.from_flags({**flags(**(SETTINGS | changes)), "variant": "routing"})
    # so large that all scenes have one program
    options = Options(form=form, kv_model="block-level", num_shared_blocks=32, num_slots=64)
    return simulate(cluster, table_of(workload, **NODES), options)


@jax.jit
def _draw(seed: jax.Array, numbers: jax.Array) -> jax.Array:
    key = jax.random.key(seed)
    for at in range(numbers.shape[0]):
        key = jax.random.fold_in(key, numbers[at])
    return jax.random.uniform(key, dtype="float64")


class Drawn(Fate):
    """The draws of policy seed 0, written anew: of request and progress, or of instance, step and content."""

    def __init__(self, loss: float, table: RequestTable, requests: list[oracle.Request]) -> None:
        self.loss, self.counts = loss, {"allocations": 0, "removals": 0}
        self.content: dict[Any, tuple[int, int]] = {}
        with jax.enable_x64(True):
            path = np.where(table.path_nodes < 0, table.num_nodes, table.path_nodes)
            shape: Any = SimpleNamespace(num_nodes=table.num_nodes)
            numbers = _shared_numbers(shape, path, table.node_start, table.node_blocks)
        starts, shifts, num_shared = (np.asarray(each) for each in numbers)
        for one in requests:
            for at, key in enumerate(one.prompt_keys):
                number = at + int(shifts[one.index][starts[one.index] <= at].sum())
                is_shared = at < num_shared[one.index]
                self.content[key] = (0, number) if is_shared else (one.index + 1, at)

    def _is_lost(self, name: str, *numbers: int) -> bool:
        with jax.enable_x64(True):
            about = np.asarray(numbers, np.int64)
            is_lost = float(_draw(np.uint64(policy_seed(0)), about)) < self.loss
        self.counts[name] += is_lost
        return is_lost

    def loses_allocation(self, request: oracle.Request) -> bool:
        about = request.index, request.num_scheduled, request.progress_index
        return self._is_lost("allocations", LOSS, *about)

    def loses_removal(self, instance: int, step: int, key: Any) -> bool:
        if key not in self.content:  # of no prompt: the router has never heard of it
            return False
        return self._is_lost("removals", REMOVAL_LOSS, instance, step, *self.content[key])


def compare_lost(seed: int, loss: float) -> dict[str, int]:
    """Both runs of one scene; how many messages were lost."""
    workload, fates = scene(seed), []

    def with_losses(*given: Any) -> oracle.Cluster:
        cluster = oracle.Cluster(*given)
        fates.append(Drawn(loss, table_of(workload), given[0]))
        cluster.fate = fates[-1]  # type: ignore[attr-defined]
        return cluster

    record = run(workload, prefix_index_loss=loss)
    plain = flags(**(SETTINGS | {"prefix_index_loss": loss}))
    expected = oracle.simulate(workload, plain, "routing", with_losses)
    assert record.outcome in WHOLE and not differences(record, expected)
    matched = expected.requests["route_match_blocks"].astype(int)
    at_its_own = np.take_along_axis(matched, record.requests.instance[:, None].astype(int), axis=1)
    np.testing.assert_array_equal(record.requests.expected_cached_tokens, 16 * at_its_own[:, 0])
    return fates[0].counts


@pytest.mark.slow
def test_both_kinds_of_lost_news_equal_oracle() -> None:
    lost = [compare_lost(seed, loss) for seed in range(8) for loss in (0.1, 0.4, 0.9)]
    assert sum(each["allocations"] for each in lost) > 300, lost
    assert sum(each["removals"] for each in lost) > 150, lost


@pytest.mark.slow
def test_a_loss_of_nearly_0_is_the_run_without_and_loss_1_hears_of_nothing() -> None:
    """The program that loses, with a loss that no draw is below, bit for bit; and both forms of the program."""
    workload = scene(1)
    plain, none = run(workload), run(workload, prefix_index_loss=1e-300)
    some, all_lost = (run(workload, prefix_index_loss=loss) for loss in (0.4, 1.0))
    lanes = run(workload, form="lanes", prefix_index_loss=0.4)
    for one, other in ((plain, none), (some, lanes)):
        for name in (*REQUEST_ARRAYS, "expected_cached_tokens"):
            mine, theirs = getattr(one.requests, name), getattr(other.requests, name)
            np.testing.assert_array_equal(mine, theirs, name)
    assert some.requests.expected_cached_tokens.sum() > 0
    assert not all_lost.requests.expected_cached_tokens.any()


def test_what_feeds_the_index_may_lose_news_and_one_program_has_all_losses() -> None:
    precise = ClusterConfig(routing_policy="weighted", precise_kv_routing=True)
    plain, lossy = (mechanism(precise.replace(prefix_index_loss=loss)) for loss in (0.0, 0.3))
    assert lossy.is_precise and lossy.loses_index and not plain.loses_index
    first, second = of_one_program([plain, lossy])
    assert first == second == lossy


def test_removals_are_heard_as_often_as_given_and_each_by_itself() -> None:
    """6,000 draws: the standard error is 0.6 %; one content's fate says nothing of the next step's."""
    signals = SimpleNamespace(index_loss=np.float64(0.3))
    params = SimpleNamespace(
        policy=SimpleNamespace(seed=np.uint64(7)), cluster=SimpleNamespace(signals=signals)
    )
    ctx: Any = SimpleNamespace(mechanism=SimpleNamespace(loses_index=True), params=params)
    blocks = np.arange(2000, dtype=np.int32)
    with jax.enable_x64(True):
        heard = [
            np.asarray(removals_heard(ctx, np.int32(1), np.int32(step), blocks * 0, blocks)[0])
            for step in (1, 2, 1)
        ]
    assert abs(np.mean(heard[:2]) - 0.7) < 0.03
    assert abs(np.mean(heard[0] == heard[1]) - (0.49 + 0.09)) < 0.06
    np.testing.assert_array_equal(heard[0], heard[2])
