"""An index that the caches feed where instances fail and requests move, against plain caches that do the same."""

from __future__ import annotations

import dataclasses
from types import SimpleNamespace
from typing import Any

import jax.numpy as jnp
import numpy as np
import pytest

from blis_jax import simulate
from blis_jax.cluster.config import from_flags
from blis_jax.core.columns import branch
from blis_jax.prefix_index.news import without_own
from blis_jax.prefix_index.router_index import PromptBlocks, touch, write
from blis_jax.records.invariants import violations
from blis_jax.records.record import RunRecord
from blis_jax.tables.context import Context
from blis_jax.tables.requests import nodes_of
from blis_jax.tables.router import no_index
from tests.engine.scenes.test_moving_scenes import NODES, arrays_are_equal
from tests.engine.scenes.test_outage_scenes import Kind, Scene, harder, simulated
from tests.engine.test_properties import small_router_index  # noqa: F401 - a fixture
from tests.prefix_index.test_news import LOSS, Drawn
from tests.prefix_index.test_router_index import ASKS, BLOCKS, context
from tests.support.oracles import moving_oracle, oracle
from tests.support.oracles.moving_index import IndexedCluster
from tests.support.oracles.moving_instance import Journey
from tests.support.scenes import REQUEST_ARRAYS, Prompt, flags, table_of, workload_of

PRECISE = {
    "routing-policy": "weighted",
    "routing-scorers": "prefix-affinity:3,load-balance:1",
    "precise-kv-routing": True,
}


class MovingDrawn(Drawn):
    """The prompt of a request that comes with its KV is drawn as one that is computed, and counts as scheduled."""

    journeys: dict[int, Journey]

    def loses_allocation(self, request: oracle.Request) -> bool:
        journey = self.journeys[request.index]
        progress = request.input_len if journey.has_kv else request.progress_index
        num_scheduled = request.num_scheduled + journey.joins
        about = request.index, num_scheduled, progress
        return self._is_lost("allocations", LOSS, *about)


def run_both(
    made: Scene, blocks: str, delay: int = 0, loss: float = 0.0, **options: Any
) -> tuple[RunRecord, Any, IndexedCluster]:
    workload, settings, changes = made
    settings = settings | PRECISE | {"prefix-index-delay": delay, "prefix-index-loss": loss}
    record = simulated((workload, settings, changes), blocks, num_shared_blocks=16, **options)
    made_by: list[IndexedCluster] = []

    def make(*given: Any) -> IndexedCluster:
        made_by.append(IndexedCluster(*given))
        if loss:
            made_by[0].fate = MovingDrawn(loss, table_of(workload, **NODES), given[0])
            made_by[0].fate.journeys = made_by[0].journeys
        return made_by[0]

    expected = moving_oracle.simulate(workload, settings | {"changes": changes}, make)
    return record, expected, made_by[0]


def check(
    made: Scene, blocks: str, delay: int = 0, loss: float = 0.0
) -> tuple[RunRecord, IndexedCluster]:
    record, expected, cluster = run_both(made, blocks, delay, loss)
    assert expected.outcome == oracle.FINISHED
    arrays_are_equal(record, expected, is_block_level=blocks == "few")
    matched = expected.requests["route_match_blocks"].astype(int)
    at_its_own = np.take_along_axis(matched, record.requests.instance[:, None].astype(int), axis=1)
    found = np.where(at_its_own < 0, -1, 16 * at_its_own)[:, 0]  # -1: never routed
    np.testing.assert_array_equal(record.requests.expected_cached_tokens, found)
    assert not {name: count for name, count in violations(record).items() if count}
    assert not any(record.invariant_failures.values())
    return record, cluster


KINDS = (
    Kind("pools", "few"),
    Kind("none", "few"),
    Kind("pools", "few", fails=False),
    Kind("pools", "plenty"),
)


PART = range(20_000, 20_040)


def check_all(kind: Kind, delay: int, seeds: range, loss: float = 0.0) -> None:
    """All scenes, in which prompts are found and the index forgets."""
    found = [check(harder(seed, kind), kind.blocks, delay, loss) for seed in seeds]
    assert sum(int(record.requests.expected_cached_tokens.sum()) for record, _ in found) > 1000
    if kind.pools != "none":
        assert sum(int(record.requests.hand_overs.sum()) for record, _ in found) > 20
    told = [cluster.scored_by.index for _, cluster in found]
    assert (sum(index.num_emptied for index in told) > 0) == kind.fails
    comes_back = kind.fails and kind.pools != "none"
    assert sum(index.num_disowned for index in told) > 0 or not comes_back


@pytest.mark.slow
@pytest.mark.timeout(1500)
@pytest.mark.parametrize("delay", [0, 3_000, 30_000])
@pytest.mark.parametrize("kind", KINDS, ids=lambda kind: "-".join(map(str, kind)))
def test_scenes_are_equal_to_the_oracle(kind: Kind, delay: int) -> None:
    check_all(kind, delay, PART)


@pytest.mark.slow
@pytest.mark.timeout(1500)
@pytest.mark.usefixtures("small_router_index")
@pytest.mark.parametrize("delay", [0, 3_000])
def test_a_full_index_is_equal_to_the_oracle(delay: int) -> None:
    """Private blocks count, on every instance that a request has been on."""
    check_all(KINDS[0], delay, range(20_000, 20_200))


@pytest.mark.slow
@pytest.mark.timeout(1500)
@pytest.mark.parametrize("delay", [0, 3_000])
def test_lost_messages_are_equal_to_the_oracle(delay: int) -> None:
    check_all(KINDS[0], delay, PART, loss=0.3)


@pytest.mark.slow
def test_an_outage_that_never_comes_changes_nothing() -> None:
    kind = KINDS[3]
    for seed in range(20_000, 20_005):
        workload, settings, _ = harder(seed, kind)
        never = [(10**9, {0: 0})]
        for delay in (0, 3_000):
            plain, *_ = run_both((workload, settings, []), kind.blocks, delay)
            other, *_ = run_both((workload, settings, never), kind.blocks, delay)
            arrays = (*REQUEST_ARRAYS, "expected_cached_tokens")
            for name in arrays:
                one, two = getattr(plain.requests, name), getattr(other.requests, name)
                np.testing.assert_array_equal(one, two, name)


@pytest.mark.slow
def test_both_forms_of_the_program_forget_the_same() -> None:
    made = harder(20_003, KINDS[0])
    one, other = (run_both(made, "few", 3_000, form=form)[0] for form in ("rows", "lanes"))
    for name in (*REQUEST_ARRAYS, "expected_cached_tokens"):
        np.testing.assert_array_equal(
            getattr(one.requests, name), getattr(other.requests, name), name
        )


@pytest.mark.slow
def test_every_gateway_s_index_forgets_a_cold_instance() -> None:
    """Groups of prompts that take turns as the gateways do: two indices know what one would."""
    prompts = [
        Prompt(2_000 * at, 90, 6, group=2 * (at // 2 % 3) + at % 2, prefix_len=64)
        for at in range(40)
    ]
    workload = workload_of(prompts)
    settings = flags(
        num_instances=3,
        routing_policy="weighted",
        routing_scorers="prefix-affinity:1",
        cluster_policy="outage-at",
        outage_at_time_s=0.03,
        outage_at_lasting_s=0.01,
        outage_at_running=1,
    )
    records = []
    for num_gateways in (1, 2):
        cluster = from_flags({**settings, "num-gateways": num_gateways, "variant": "routing"})
        records.append(simulate(cluster, table_of(workload)))
    one, two = (record.requests for record in records)
    for name in (*REQUEST_ARRAYS, "expected_cached_tokens"):
        np.testing.assert_array_equal(getattr(one, name), getattr(two, name), name)
    later = (two.arrival_us > 30_000) & (two.arrival_us < 42_000)
    assert two.restarts.any() and not two.expected_cached_tokens[later].all()
    assert set(two.instance) == {0, 1}


def test_only_the_private_blocks_of_a_request_on_that_instance_are_forgotten(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Shared blocks stay, and what it has elsewhere; a second time there is nothing to forget."""
    ctx, paths = context(branch, np.random.default_rng(3))
    asks = ASKS | {"is_precise": True, "moves_requests": True}
    mechanism: Any = SimpleNamespace(**asks, num_gateways=1)
    ctx = dataclasses.replace(ctx, mechanism=mechanism)
    index = no_index(ctx.shape, mechanism)
    request, num_own = jnp.int32(paths.index((0, 1))), 3
    length = jnp.int32(BLOCKS[[0, 1]].sum() + num_own)
    monkeypatch.setattr(Context, "request", lambda *_: SimpleNamespace(input_len=length))
    nodes = nodes_of(ctx.requests, request)
    for instance in range(2):
        done = touch(ctx, index, PromptBlocks(request, nodes, length), jnp.int32(instance))
        index = write(ctx, index, done)
    assert index.num_blocks.tolist() == [8, 8]
    for is_on, left in ((False, 8), (True, 5), (True, 5)):
        index = without_own(ctx, index, request, jnp.int32(0), jnp.array(is_on))
        assert index.num_blocks.tolist() == [left, 8]
