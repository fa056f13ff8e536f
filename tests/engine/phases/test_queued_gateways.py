"""Several gateways with a queue each: random scenes that stay or move, with evictions and without, and twins."""

from __future__ import annotations

from typing import Any, NamedTuple

import numpy as np
import pytest

from blis_jax import Options, simulate
from blis_jax.cluster.config import NO_HORIZON, from_flags
from blis_jax.records.record import RunRecord, Status
from tests.engine.phases.test_evictions import evicting_scene, num_evicted, same
from tests.engine.scenes.test_moving_scenes import MECHANISMS, NODES, OPTIONS
from tests.engine.scenes.test_queued_scenes import ELASTIC, check_scene, queued_scene, run, sound
from tests.support.scenes import table_of

Scene = tuple[dict[str, np.ndarray], dict[str, Any]]


class Kind(NamedTuple):
    """What a scene has; one program each."""

    moves: str  # stay, or one of `MECHANISMS`
    num_gateways: int
    evicts: bool


KINDS = (
    Kind("stay", 1, True),  # by BLIS's rule
    Kind("stay", 2, False),
    Kind("stay", 2, True),
    Kind("stay", 5, True),
    Kind("pools", 2, True),
    Kind("outage", 3, False),
    Kind("outage", 2, True),
    Kind("both", 2, False),
    Kind("both", 3, True),
    Kind("own router", 2, True),
)


def scene_of(seed: int, kind: Kind) -> Scene:
    """A scene with tenants and deadlines, often with ticks and arrivals of several gateways at one time."""
    base = "outage" if kind.moves == "stay" else kind.moves
    workload, settings = evicting_scene(seed, base) if kind.evicts else queued_scene(seed, base)
    rng = np.random.default_rng([seed, 23])
    workload = workload | {
        "tenant": rng.integers(3, size=24).astype(np.int16),
        "arrival_us": workload["arrival_us"] // 3,
    }
    settings |= {
        "num-gateways": kind.num_gateways,
        "in-flight-eviction": kind.evicts,
        "max-concurrency": int(rng.choice([1, 1, 2])),
        "max-gateway-queue-depth": int(rng.choice([0, 0, 2, 4])),
        "fairness-policy": str(rng.choice(["global-strict", "round-robin"])),
        "dispatch-order": str(rng.choice(["fifo", "slo-deadline"])),
        "slo-targets": "critical=4000,standard=9000,background=2000",
    }
    if kind.moves == "stay":
        settings |= {"cluster-policy": "none", "hand-over-policy": "none"}
    if rng.integers(2):
        workload["arrival_us"] = workload["arrival_us"] // 1000 * 1000
        settings |= {"dispatch-tick-interval": 1000, "request-ttl": int(rng.choice([0, 4000]))}
    return workload, settings


def run_of(made: Scene, form: str = "rows", **changes: Any) -> RunRecord:
    workload, settings = made
    settings = settings | {name.replace("_", "-"): value for name, value in changes.items()}
    cluster = from_flags({**settings, "variant": "scheduling"})
    options = Options(**OPTIONS, kv_model="no-eviction", form=form)
    return simulate(cluster, table_of(workload, **NODES), options)


@pytest.mark.slow
def test_two_queues_are_equal_to_the_oracle() -> None:
    found = [check_scene(*scene_of(seed, KINDS[2])) for seed in range(6)]
    assert sum(int((record.requests.gateway_wait_us > 0).sum()) for record in found) > 20


@pytest.mark.slow
@pytest.mark.parametrize("kind", KINDS, ids=["-".join(map(str, kind)) for kind in KINDS])
def test_many_scenes_are_equal_to_the_oracle(kind: Kind) -> None:
    found = [check_scene(*scene_of(seed, kind)) for seed in range(6000, 6030)]
    statuses = np.concatenate([record.requests.status for record in found])
    assert all((statuses == one).any() for one in (Status.QUEUE_FULL, Status.EXPIRED))
    assert sum(int((record.requests.gateway_wait_us > 0).sum()) for record in found) > 80
    assert (num_evicted(found) > 40) == kind.evicts
    if "hand_over_policy" in MECHANISMS.get(kind.moves, {}):
        assert sum(int(record.requests.hand_overs.sum()) for record in found) > 50


@pytest.mark.slow
@pytest.mark.parametrize("moves", ["stay", "both"])
def test_queues_that_hold_nothing_back_are_as_none(moves: str) -> None:
    """Every request finds room at once: the gateways' runs without queues, bit for bit."""
    for seed in range(8):
        made = scene_of(seed, Kind(moves, 3, False))
        free = {
            "saturation_detector": "never",
            "max_gateway_queue_depth": 0,
            "per_band_capacity": 0,
        }
        through = run_of(made, **free)
        without = run_of(made, flow_control=False)
        assert not (through.requests.gateway_wait_us > 0).any()
        same(through, without, beside=("gateway_wait_us",))


@pytest.mark.slow
@pytest.mark.parametrize("moves", ["stay", "both"])
def test_where_saturation_never_reaches_1_nobody_is_evicted(moves: str) -> None:
    for seed in range(8):
        made = scene_of(seed, Kind(moves, 2, True))
        roomy = {"saturation_detector": "concurrency", "max_concurrency": 1000}
        on, off = (run_of(made, in_flight_eviction=one, **roomy) for one in (True, False))
        assert not num_evicted([on])
        same(on, off)


@pytest.mark.slow
def test_a_gateway_for_each_request_turns_nobody_away() -> None:
    """A queue of length one is never full; with two gateways it is."""
    counts = []
    for num_gateways in (2, 24):
        found = []
        for seed in range(6):
            workload, settings = scene_of(seed, Kind("stay", num_gateways, False))
            more = {"max-gateway-queue-depth": 1, "per-band-capacity": 1, "horizon": NO_HORIZON}
            more |= {"saturation-detector": "concurrency", "max-concurrency": 1}
            found.append(check_scene(workload, settings | more))
        statuses = np.concatenate([record.requests.status for record in found])
        counts.append(int(np.isin(statuses, [Status.QUEUE_FULL, Status.SHED]).sum()))
    assert counts[0] > 10 and counts[1] == 0


@pytest.mark.slow
def test_many_lanes_give_the_same() -> None:
    for seed in range(4):
        made = scene_of(seed, Kind("both", 3, True))
        same(run_of(made, "rows"), run_of(made, "lanes"))


@pytest.mark.slow
def test_gateways_of_an_elastic_cluster_keep_what_must_hold() -> None:
    changes = ELASTIC | {"hand-over-policy": "pools", "num-gateways": 2, "in-flight-eviction": True}
    changes |= {"saturation-detector": "concurrency", "max-concurrency": 2}
    found = [run(seed, changes) for seed in range(20)]
    for record in found:
        sound(record)
    assert sum(int(record.instances.times_down.sum()) for record in found) > 10
    assert num_evicted(found) > 10
