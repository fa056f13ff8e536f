"""BLIS's autoscaler: equal to its runs request by request, and its rules against plain ones on random numbers."""

import dataclasses
import math
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from blis_jax.commands.cluster_settings import cluster_config
from blis_jax.commands.run.flags import RunOptions, make_parser
from blis_jax.commands.run.requests import requests_of
from blis_jax.commands.run.workload import source_of, with_workload_spec
from blis_jax.core.outcome import WHOLE, Outcome
from blis_jax.core.views import FleetParams, FleetView
from blis_jax.engine.cluster_params import instance_names
from blis_jax.metrics.figures import ended_us
from blis_jax.metrics.reference import instance_name
from blis_jax.policies.movement.placement import (
    Placed,
    Replicas,
    Thresholds,
    freed,
    nobody,
    wanted,
    with_fewer,
    with_more,
)
from blis_jax.records.invariants import violations
from blis_jax.records.record import RunRecord, Status
from blis_jax.runs.many_runs import simulate
from blis_jax.runs.options import Options
from tests.support.recorded.autoscaler_runs import RUNS, recorded, written

ROWS, KINDS = 6, 2
COLUMNS = ("ttft_us", "e2e_us", "sched_delay_us")


def run(name: str, folder: Path) -> RunRecord:
    given = make_parser().given(["--profile", "blis-2026-08", *written(RUNS[name], folder, name)])
    given = with_workload_spec(given)
    config = cluster_config(given)
    table, _ = requests_of(source_of(RunOptions.of(given)), config)
    return simulate(config, table, Options(num_slots=512), RUNS[name].seed)


@pytest.mark.slow
@pytest.mark.parametrize("name", RUNS)
def test_equals_the_reference_request_by_request(name: str, tmp_path: Path) -> None:
    record, theirs = run(name, tmp_path), recorded()[name]
    requests, at = record.requests, theirs["request"]
    assert record.outcome in WHOLE
    handled = [theirs["names"][one] for one in theirs["handled_by"]]
    ours = [instance_name(one, record.names) for one in requests.instance[at].tolist()]
    assert ours == handled
    for column in COLUMNS:
        expected = np.asarray(theirs[column])
        np.testing.assert_array_equal(
            np.maximum(getattr(requests, column)[at], 0), expected, column
        )
    # what the reference does not list was never queued
    others = np.setdiff1d(np.arange(len(requests.status)), at)
    assert (requests.queued_at_us[others] < 0).all()
    assert (requests.status == Status.UNROUTED).sum() == theirs["unrouted"]
    assert ended_us(record) / 1e6 == theirs["duration_s"]
    assert not {name: count for name, count in violations(record).items() if count}


def test_recorded_runs_show_what_they_are_for() -> None:
    """Instances made, orders without GPUs, requests turned away, and more than one kind of GPU."""
    runs = recorded()
    assert set(runs) == set(RUNS)
    made = {name: sum("autoscale-" in one for one in run["names"]) for name, run in runs.items()}
    assert made["churn"] > 5 - 2  # more than its machines hold at a time
    assert runs["churn"]["unrouted"] > 0 and runs["fresh_signals"]["unrouted"] == 228
    assert made["no_machines"] == 0
    assert sum(count > 3 for count in made.values()) >= 8


# --- the rules ------------------------------------------------------------------------------------


def plain_wanted(
    seen: list[tuple[int, float, float]], pending: float, limits: list[float], costs: list[float]
) -> tuple[int, int]:
    """The analyzer and the optimizer in plain Python; `seen` has kind, capacity and demand of each instance."""
    usable, up, down = limits
    supply, demand, count = ([0.0] * KINDS for _ in range(3))
    for kind, capacity, tokens in seen:
        supply[kind] += capacity * usable
        demand[kind] += tokens
        count[kind] += 1
    by_cost = sorted((kind for kind in range(KINDS) if count[kind]), key=lambda kind: costs[kind])
    total, asked = (sum((values[kind] for kind in by_cost), 0.0) for values in (supply, demand))
    required = asked / up - (total + pending * usable)
    if required > 0 and by_cost:
        kind = by_cost[0]
        return max(1, math.ceil(required / (supply[kind] / count[kind]))), kind
    spare = total - asked / down
    if sum(count) <= 1 or spare <= 0:
        return 0, 0
    if not total - max(supply[kind] / count[kind] for kind in by_cost) > asked / down:
        return 0, 0
    kind = sorted(by_cost, key=lambda kind: (-costs[kind], kind))[0]
    fewer = math.floor(spare / (supply[kind] / count[kind]))
    return -int(min(max(fewer, 1), count[kind])), kind


def test_wishes_are_those_of_the_plain_rule() -> None:
    rng = np.random.default_rng(5)
    size = 400
    kind = rng.integers(0, KINDS, (size, ROWS)).astype(np.int32)
    is_seen = rng.random((size, ROWS)) < 0.7
    capacity = np.where(kind == 0, 40_000.0, 17_000.0)
    demand = rng.integers(0, 3000, (size, ROWS)) * rng.choice([0.1, 1.0, 4.0], (size, 1))
    pending = rng.choice([0.0, 40_000.0], size)
    limits = np.stack([rng.choice([0.1, 0.37], size), rng.choice([0.7, 0.8], size),
                       rng.choice([0.3, 0.5], size)])  # fmt: skip
    costs = [3.0, 1.0]
    up, down = jnp.asarray([1, 0], jnp.int32), jnp.asarray([0, 1], jnp.int32)

    def one(seen: Replicas, thresholds: Thresholds) -> Any:
        return wanted(seen, thresholds, up, down)

    with jax.enable_x64(True):
        seen = Replicas(*(jnp.asarray(x) for x in (is_seen, kind, capacity, demand, pending)))
        given = Thresholds(*(jnp.asarray(x) for x in limits))
        found = jax.device_get(jax.jit(jax.vmap(one))(seen, given))
    signs = set()
    for row in range(size):
        rows = zip(kind[row], capacity[row], demand[row], strict=True)
        there = [
            (int(k), float(c), float(d))
            for (k, c, d), is_it in zip(rows, is_seen[row], strict=True)
            if is_it
        ]
        change, of = plain_wanted(there, float(pending[row]), limits[:, row].tolist(), costs)
        assert int(found.change[row]) == change, row
        if change:
            assert int(found.kind[row]) == of
        signs.add(np.sign(change))
    assert signs == {-1, 0, 1}


class PlainFleet:
    """Nodes and instances as lists."""

    def __init__(
        self, nodes: list[tuple[int, int]], gpus: int, kinds: list[int], first: list[int]
    ) -> None:
        self.nodes, self.gpus, self.kinds = nodes, gpus, kinds
        self.node, self.state, self.order = list(first), ["up"] * len(first), [0] * len(first)
        self.num_first, self.orders = len(first), 0

    def order_more(self, kind: int, wanted: int) -> None:
        for _ in range(wanted):
            self.orders += 1
            for at, (of, size) in enumerate(self.nodes):
                used = sum(
                    self.gpus
                    for node, state in zip(self.node, self.state, strict=True)
                    if node == at and state != "over"
                )
                if of == kind and size - used >= self.gpus:
                    self.node.append(at)
                    self.state.append("up")
                    self.order.append(self.orders)
                    break

    def let_go(self, kind: int, wanted: int) -> None:
        names = instance_names_of(self.order)
        for _ in range(wanted):
            there = [
                at
                for at, state in enumerate(self.state)
                if state == "up" and self.kinds[at] == kind
            ]
            if there:
                self.state[min(there, key=lambda at: names[at])] = "told"


def instance_names_of(orders: list[int]) -> tuple[str, ...]:
    from blis_jax import ClusterConfig

    return instance_names(ClusterConfig(), orders)


def view_of(fleet: FleetParams, emptied: np.ndarray) -> FleetView:
    """Of instances that all have work; `emptied` says since when some had none."""
    rows = len(emptied)
    zeros, never = jnp.zeros(rows, jnp.int32), jnp.full(rows, 2**61, jnp.int64)
    nothing = jnp.zeros(rows, bool)
    return FleetView(
        fleet,
        zeros,
        jnp.int32(16),
        jnp.array(True),
        ~nothing,
        jnp.asarray(emptied),
        nothing,
        never,
        never,
    )


def test_placement_is_that_of_the_plain_rule() -> None:
    """Orders, orders that find no GPUs, instances told to go in the order of their names, machines that are freed."""
    rng = np.random.default_rng(9)
    rows, first = 16, [0, 0, 1]
    nodes, gpus = [(0, 4), (0, 2), (0, 2)], 2
    fleet = FleetParams(
        node_kind=jnp.asarray([0, 0, 0], jnp.int32),
        node_gpus=jnp.asarray([4, 2, 2], jnp.int32),
        gpus_each=jnp.int32(gpus),
        has_nodes=jnp.array(True),
        num_first=jnp.int32(len(first)),
        first_node=jnp.asarray(first + [0] * (rows - len(first)), jnp.int32),
        row_kind=jnp.zeros(rows, jnp.int32),
        drain_rank=jnp.asarray([0, 1, 2, *range(3 - rows, 0)], jnp.int32),
        rank_up=jnp.zeros(1, jnp.int32),
        rank_down=jnp.zeros(1, jnp.int32),
        loading_draws=jnp.zeros(rows),
        scrape_draws=jnp.zeros(1),
        is_endless=jnp.array(True),
    )

    @jax.jit
    def act(placed: Placed, emptied: jax.Array, change: jax.Array, now: jax.Array) -> Any:
        view = view_of(fleet, emptied)
        free = freed(placed, view, now)
        more, outcome = with_more(free, fleet, jnp.int32(0), change, now, jnp.zeros(rows))
        return with_fewer(more, view, jnp.int32(0), -change, now), outcome

    with jax.enable_x64(True):
        for _ in range(4):
            plain = PlainFleet(nodes, gpus, [0] * rows, first)
            is_first = np.arange(rows) < len(first)
            placed = dataclasses.replace(
                nobody(rows),
                is_there=jnp.asarray(is_first),
                node=fleet.first_node,
                ready_us=jnp.where(jnp.asarray(is_first), 0.0, jnp.inf),
                num_there=jnp.int32(len(first)),
            )
            emptied, told_at = np.full(rows, -1, np.int64), np.zeros(rows, np.int64)
            for step in range(12):
                now, change = 10 * (step + 1), int(rng.integers(-2, 4))
                for at, state in enumerate(plain.state):
                    if state == "told" and now > told_at[at] and rng.random() < 0.5:
                        emptied[at], plain.state[at] = now - 1, "over"
                before = list(plain.state)
                plain.order_more(0, max(change, 0))
                plain.let_go(0, max(-change, 0))
                for at, state in enumerate(plain.state[: len(before)]):
                    if state == "told" and before[at] == "up":
                        told_at[at] = now
                given = jnp.asarray(emptied), jnp.int32(change), jnp.float64(now)
                placed, outcome = act(placed, *given)
                if len(plain.node) > rows:
                    assert int(outcome) == Outcome.INSTANCES_FULL
                    break
                assert int(outcome) == 0
                count = len(plain.node)
                assert int(placed.num_there) == count and int(placed.num_orders) == plain.orders
                assert placed.node[:count].tolist() == plain.node
                assert placed.order[:count].tolist() == plain.order
                told = np.isfinite(np.asarray(placed.drained_us[:count])).tolist()
                assert told == [state != "up" for state in plain.state]
