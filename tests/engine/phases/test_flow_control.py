"""The gateway's queue against a plain one, and against recorded runs of August 2026."""

import dataclasses
import random
from functools import partial
from types import SimpleNamespace
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from benchmarks.golden import committed
from blis_jax.cluster.config import AUGUST, ClusterConfig
from blis_jax.core.groups import Groups
from blis_jax.core.pytrees import HasParts, Parts
from blis_jax.core.types import SLO_CLASSES, EngineShape
from blis_jax.engine import mechanism
from blis_jax.engine.cluster_params import NO_TARGET, queue_params
from blis_jax.engine.phases.waiting import Waiting, entry_of, pick
from blis_jax.records import invariants
from blis_jax.records.record import Status
from blis_jax.runs.many_runs import simulate
from blis_jax.tables.gateways import Place, empty_queue, gateways_of, unchanged, written
from blis_jax.tables.requests import Req, Request
from tests.support.oracles.plain_queue import NOBODY, PlainQueue
from tests.support.oracles.plain_queue import Waiting as PlainWaiting
from tests.support.recorded.golden_2026_08 import SIZES, AugustScenario, differences
from tests.support.scenes import Fields

FOLDER = committed() / "blis_2026_08"
SIZE = 60
FIRST = mechanism.mechanism(ClusterConfig())  # of one gateway
PRIORITIES = np.array([3, 4, 3, -2, -1, -3])  # in the order of SLO_CLASSES
SETTINGS = (
    {},
    {"per_band_capacity": 4, "usage_limit_threshold": 0.4},
    {"max_gateway_queue_depth": 6, "queue_shedding": True, "fairness_policy": "round-robin"},
    {"dispatch_order": "slo-deadline", "slo_targets": "critical=40,standard=9,batch=70"},
    {
        "dispatch_order": "slo-deadline",
        "slo_targets": "standard=30",
        "fairness_policy": "round-robin",
        "usage_limit_threshold": 0.7,
        "max_gateway_queue_depth": 9,
    },
)


class Numbers(HasParts):
    """Those of a cluster that the queue reads."""

    def __init__(self, *own):
        self.own, self.admission_latency_us = Parts(*own), jnp.int64(0)


def plain_of(config):
    targets = None
    if config.dispatch_order == "slo-deadline":
        params = queue_params(config, None)
        targets = {
            number: int(target)
            for number, target in enumerate(params.target_us)
            if target != NO_TARGET
        }
    return PlainQueue(
        config.per_band_capacity,
        config.max_gateway_queue_depth,
        config.queue_shedding,
        config.usage_limit_threshold,
        config.fairness_policy == "round-robin",
        targets,
    )


def listed(dispatches, queue, slo_class):
    """Link who is in the queue, as the engine does after each event."""
    for mine in range(len(SLO_CLASSES)):
        numbers = np.arange(SIZE)[
            (dispatches.place[:SIZE] == Place.QUEUED) & (slo_class[:SIZE] == mine)
        ]
        ends = [SIZE, *numbers, SIZE]
        each = queue.each
        each.num_queued[mine], each.first[mine], each.last[mine] = len(numbers), ends[1], ends[-2]
        queue.previous[ends[1:]], queue.following[ends[:-1]] = ends[:-1], ends[1:]


@pytest.fixture(scope="module")
def decide():
    """Entry and choice, compiled once for all settings."""

    def both(params, arrival, slo_class, tenant, tables, newcomer, asks, saturation):
        groups = Groups(SIZE)
        table = jnp.zeros((SIZE + 1, len(Req)), jnp.int32)
        table = table.at[:, Req.SLO_CLASS].set(slo_class).at[:, Req.TENANT].set(tenant)
        ctx: Any = SimpleNamespace(
            params=SimpleNamespace(cluster=Numbers(params)),
            requests=Fields(arrival=arrival, table=table),
            shape=SimpleNamespace(num_requests=SIZE),
            spare_request=jnp.int32(SIZE),
            groups=groups,
            gateways=gateways_of(FIRST),
            between=partial(groups.between, whole=False),
            request=lambda number: Request(table[number]),
        )
        dispatches, queue = tables
        waiting = Waiting.before(ctx, dispatches, queue, jnp.int32(0))
        entry = entry_of(ctx, waiting, slo_class[newcomer], asks)
        return entry, pick(ctx, queue.each, waiting, queue.each.has_band, saturation)

    return jax.jit(both)


@pytest.mark.parametrize("settings", SETTINGS, ids=range(len(SETTINGS)))
def test_the_queue_is_as_a_plain_one(decide, settings):
    config = ClusterConfig(flow_control=True, **settings)
    draw, plain = random.Random(str(settings)), plain_of(config)
    slo_class = np.array([draw.randrange(6) for _ in range(SIZE)] + [0], np.int32)
    tenant = np.array([draw.randrange(3) for _ in range(SIZE)] + [0], np.int32)
    arrival = np.append(np.sort([draw.randrange(300) for _ in range(SIZE)]), 2**60)
    shape, functions = EngineShape(1, 1, SIZE, 1, 1, clock="int64"), mechanism.mechanism(config)
    with jax.enable_x64(True):
        tables = jax.tree.map(np.array, empty_queue(shape, gateways_of(functions)))
        dispatches, queue = tables
        asked = queue_params(config, None), arrival, slo_class, tenant
        for newcomer in range(SIZE):
            entry, _ = decide(*asked, tables, np.int32(newcomer), np.bool_(True), 0.0)
            mine = int(slo_class[newcomer])
            one = PlainWaiting(newcomer, int(PRIORITIES[mine]), int(tenant[newcomer]), mine)
            enters, victim = plain.enter(one)
            queue.each.has_band[mine] = True
            assert bool(entry.enters) == enters
            assert (int(entry.victim) if entry.sheds else NOBODY) == victim
            if enters:
                dispatches.place[newcomer] = Place.QUEUED
            if victim != NOBODY:
                dispatches.place[victim] = Place.SHED
            for _ in range(draw.randrange(3)):
                listed(dispatches, queue, slo_class)
                saturation = draw.choice([0.0, 0.35, 0.55, 0.8, 0.95, 1.0])
                _, (chosen, is_due, last, _) = decide(
                    *asked, tables, np.int32(SIZE), np.bool_(False), saturation
                )
                expected = plain.dispatch(saturation, arrival.tolist())
                assert (int(chosen) if is_due else NOBODY) == expected
                if is_due:
                    dispatches.place[int(chosen)] = Place.DISPATCHED
                    queue.each.last_tenant[...] = last
            listed(dispatches, queue, slo_class)
    assert any(dispatches.place == Place.DISPATCHED)


def test_the_lists_of_classes_are_plain_ones() -> None:
    """In each event one request may leave, one come, and one leave behind that, perhaps the one that came."""
    draw, spare, shape = random.Random(7), SIZE, EngineShape(1, 1, SIZE, 1, 1, clock="int64")
    slo_class = np.array([draw.randrange(3) for _ in range(SIZE)] + [0], np.int32)
    ctx: Any = SimpleNamespace(
        shape=shape,
        spare_request=jnp.int32(SIZE),
        gateways=gateways_of(FIRST),
        request=lambda number: Request(
            jnp.zeros((len(Req),), jnp.int32).at[Req.SLO_CLASS].set(jnp.asarray(slo_class)[number])
        ),
    )

    @jax.jit
    def event(tables, leaves, comes, leaves_then):
        dispatches, queue = tables
        waiting = Waiting.before(ctx, dispatches, queue, jnp.int32(0))
        waiting = waiting.without(leaves).having(comes).without(leaves_then)
        lists = {"num_queued": waiting.num_queued, "first": waiting.oldest_of}
        each = dataclasses.replace(queue.each, **lists, last=waiting.youngest_of)
        before, behind = (jnp.stack(ends) for ends in zip(*waiting.links, strict=True))
        change = unchanged(dispatches, queue)
        change = dataclasses.replace(change, before=before, behind=behind, each=each)
        return written(dispatches, queue, change)

    plain: list[int] = []
    with jax.enable_x64(True):
        tables = empty_queue(shape, ctx.gateways)
        for comes in range(SIZE):
            gone = []
            for newcomer in ([], [comes]):
                plain += newcomer
                gone.append(draw.choice([spare, spare, draw.choice([*plain, spare])]))
                plain = [one for one in plain if one != gone[-1]]
            tables = event(tables, np.int32(gone[0]), np.int32(comes), np.int32(gone[1]))
            queue = jax.tree.map(np.asarray, tables[1])
            for mine in range(3):
                expected = [one for one in plain if slo_class[one] == mine]
                forward, backward = [int(queue.each.first[mine])], [int(queue.each.last[mine])]
                while forward[-1] != spare:
                    forward.append(int(queue.following[forward[-1]]))
                while backward[-1] != spare:
                    backward.append(int(queue.previous[backward[-1]]))
                assert forward[:-1] == backward[-2::-1] == expected
                assert queue.each.num_queued[mine] == len(expected)
    assert len(plain) > 3


@pytest.mark.parametrize(
    "name",
    ["fc_shed_s42", "fc_ttl_band_s42", "fc_evict_s42", "timeouts_s42", "tenant_budget_s42"],
)
@pytest.mark.slow
def test_a_recorded_run(name):
    scenario = AugustScenario(FOLDER, name)
    record = scenario.run()
    assert differences(record, scenario) == []
    assert not any(invariants.violations(record).values())


def pressed(**settings):
    """Requests of all classes on an instance whose KV cache is too small for them."""
    scenario = AugustScenario(FOLDER, "fc_evict_s42")
    table = scenario.table()
    columns = {
        field.name: getattr(table, field.name)[:80]
        for field in dataclasses.fields(table)
        if not field.name.startswith("node_")
    }
    table = dataclasses.replace(table, **columns)
    config = ClusterConfig(
        total_kv_blocks=90,
        flow_control=True,
        saturation_detector="concurrency",
        max_concurrency=6,
        num_instances=2,
        **settings,
    )
    return table, simulate(config, table, SIZES)


@pytest.mark.slow
@pytest.mark.parametrize(
    "settings",
    [
        {"revision": AUGUST, "in_flight_eviction": True},
        {"corrected": True, "in_flight_eviction": True, "request_ttl": 400_000},
        {"corrected": True},
    ],
    ids=["august", "ours", "without eviction"],
)
def test_a_run_under_pressure_keeps_what_must_hold(settings):
    table, record = pressed(**settings)
    status = record.requests.status
    assert not any(invariants.violations(record).values())
    assert record.preemptions.request.size > 0
    assert np.isin(status, (Status.COMPLETED, Status.EVICTED, Status.EXPIRED)).all()
    assert bool(np.any(status == Status.EVICTED)) == ("in_flight_eviction" in settings)
    assert np.all(record.instances.used_blocks_at_end == 0)
    urgent = np.isin(table.slo_class, (SLO_CLASSES.index("critical"), 0))
    assert not np.any(status[urgent] == Status.EVICTED)
