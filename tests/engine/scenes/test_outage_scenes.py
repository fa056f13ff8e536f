"""Random scenes with many outages and few KV blocks, with pools and without: equal to the plain oracle.

Several instances fail, again and again and at one time, also until none is up. Blocks are so few that requests wait
for them and are preempted, before and after a hand-over and when they are computed again.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import pytest

from blis_jax import Options, simulate
from blis_jax.cluster.config import from_flags
from blis_jax.policies import Policies
from blis_jax.records.invariants import violations
from blis_jax.records.record import RunRecord, Status
from tests.engine.scenes.test_moving_scenes import NODES, arrays_are_equal, scene
from tests.support.oracles import moving_oracle, oracle
from tests.support.outage_schedule import Changes, schedule_of
from tests.support.scenes import flags, table_of

OPTIONS = {
    "num_slots": 32,
    "log_capacity": 4096,
    "resolve_ties": False,
    "num_chains": 8,
    "num_copies": 16,
    "num_blocks": 64,
    "num_evictions": 1024,
    "max_scan_steps": 1_000_000,
}
KV_MODELS = {"plenty": "no-eviction", "few": "block-level"}


Scene = tuple[dict[str, np.ndarray], dict[str, Any], Changes]


class Kind(NamedTuple):
    """What a scene has; one program each."""

    pools: str  # none, pools, or own: with a router of the decode pool's own
    blocks: str  # plenty or few
    fails: bool = True


def schedule(rng: np.random.Generator) -> Changes:
    """Up to eight failures and returns of four instances, some at one time."""
    changes: dict[int, dict[int, int]] = {}
    times = rng.integers(500, 60_000, size=8)
    if rng.integers(3) == 0:  # steps and arrivals may be at such times
        times = times // 1000 * 1000
    running = rng.integers(3)
    for at in times[: rng.integers(2, 9)]:
        own = int(rng.integers(3)) if rng.integers(2) else int(running)
        changes.setdefault(int(at), {})[int(rng.integers(4))] = own
    if rng.integers(3) == 0:  # none is up for a while
        begin, end = sorted(int(at) for at in rng.integers(500, 40_000, size=2))
        changes = {begin: dict.fromkeys(range(4), int(running))}
        changes[end + 1] = {0: 0, 2: 0}
        changes[end + 1 + int(rng.integers(1, 9000))] = {1: 0, 3: 0}
    return sorted(changes.items())


def harder(seed: int, kind: Kind) -> Scene:
    """A scene of `test_moving_scenes`, with a schedule of outages or few blocks."""
    workload, settings = scene(seed, "pools" if kind.pools != "none" else "outage")
    rng = np.random.default_rng([seed, 50])

    def pick(*values: Any) -> Any:
        return values[rng.integers(len(values))]

    changes = schedule(rng)
    settings = settings | {"outage-at-reroute-ms": pick(0.0, 0.313, 5.0), "cluster-policy": "none"}
    if kind.pools == "own":
        settings |= {"decode-routing-policy": "round-robin"}
    if kind.blocks == "few":
        few = {"total-kv-blocks": int(pick(9, 11, 12, 14, 18, 30)), "horizon": 150_000}
        settings |= few | {"max-num-running-reqs": int(pick(2, 7, 256))}
    if rng.integers(4) == 0:
        workload = workload | {"arrival_us": workload["arrival_us"] // 1000 * 1000}
    return workload, settings, changes if kind.fails else []


def simulated(
    made: Scene, blocks: str, changed: Mapping[str, Any] | None = None, **options: Any
) -> RunRecord:
    """The engine's run, with some settings of the cluster changed."""
    workload, settings, changes = made
    cluster = from_flags({**settings, "variant": "scheduling"}).replace(**(changed or {}))
    delay_us = int(settings["outage-at-reroute-ms"] * 1e3)
    policies = Policies(cluster=schedule_of(changes, delay_us)) if changes else None
    options = OPTIONS | {"kv_model": KV_MODELS[blocks]} | options
    return simulate(cluster, table_of(workload, **NODES), Options(**options), 0, policies)


def run_both(made: Scene, blocks: str, **options: Any) -> tuple[RunRecord, Any]:
    workload, settings, changes = made
    record = simulated(made, blocks, **options)
    return record, moving_oracle.simulate(workload, settings | {"changes": changes})


def check(made: Scene, blocks: str) -> RunRecord:
    record, expected = run_both(made, blocks)
    all_is_equal(record, expected, blocks)
    return record


def all_is_equal(record: RunRecord, expected: Any, blocks: str) -> None:
    """Arrays and counters are the oracle's, and every invariant holds."""
    assert expected.outcome == oracle.FINISHED
    arrays_are_equal(record, expected, is_block_level=blocks == "few")
    for number, totals in enumerate(expected.instances):
        mine = {name: int(getattr(record.instances, name)[number]) for name in totals["kv"]}
        assert mine == totals["kv"], number
        for name in ("preemption_count", "kv_allocation_failures", "completed_requests"):
            assert int(getattr(record.instances, name)[number]) == totals[name], name
    assert not {name: count for name, count in violations(record).items() if count}
    assert not any(record.invariant_failures.values())


def uneven(seed: int) -> Scene:
    """Instances with few blocks and with fewer; for a while none decodes, so outputs begin where prompts are computed.

    A prompt may be too long for the instance that it is handed to.
    """
    workload, settings, _ = harder(seed, Kind("pools", "few", fails=False))
    rng = np.random.default_rng([seed, 51])
    blocks = rng.choice([9, 10, 11, 12, 14, 20], size=4)
    settings = settings | {
        "instances": [
            one | {"total_kv_blocks": int(few)}
            for one, few in zip(settings["instances"], blocks, strict=True)
        ]
    }
    is_decode = [one["role"] != "prefill" for one in settings["instances"]]
    begin, end = sorted(int(at) for at in rng.integers(500, 70_000, size=2))
    away = {number: int(rng.integers(3)) for number in np.flatnonzero(is_decode).tolist()}
    return workload, settings, [(begin, away), (end + 1, away)]


KINDS = (
    Kind("pools", "few"),
    Kind("none", "few"),
    Kind("own", "few"),
    Kind("pools", "few", fails=False),
    Kind("pools", "plenty"),
    Kind("none", "plenty"),
)
PART = 20


def what_happened(records: list[RunRecord], kind: Kind) -> None:
    """What the scenes are for happens in them."""
    total = {
        name: sum(int(getattr(one.requests, name).sum()) for one in records)
        for name in ("preemptions", "restarts", "hand_overs")
    }
    assert (total["preemptions"] > 20) == (kind.blocks == "few"), total
    assert (total["restarts"] > 5) == kind.fails, total
    assert (total["hand_overs"] > 50) == (kind.pools != "none"), total
    num_lost = sum(int((one.requests.status == Status.LOST).sum()) for one in records)
    assert (num_lost > 0) == kind.fails


def test_scenes_with_many_outages_and_few_blocks_are_equal_to_the_oracle() -> None:
    found = [check(harder(seed, KINDS[0]), "few") for seed in range(3)]
    assert sum(int(one.requests.preemptions.sum()) for one in found) > 5
    assert sum(int(one.requests.restarts.sum()) for one in found) > 0


@pytest.mark.slow
@pytest.mark.parametrize("kind", KINDS, ids=lambda kind: "-".join(map(str, kind)))
@pytest.mark.parametrize("part", range(9))
def test_many_such_scenes_are_equal_to_the_oracle(part: int, kind: Kind) -> None:
    first = 10_000 + PART * part
    records = [check(harder(seed, kind), kind.blocks) for seed in range(first, first + PART)]
    what_happened(records, kind)


@pytest.mark.slow
@pytest.mark.parametrize("part", range(2))
def test_scenes_with_uneven_instances_are_equal_to_the_oracle(part: int) -> None:
    """Some requests are dropped by the instance that they are handed to, after their first token."""
    first = 31_000 + PART * part
    found = [check(uneven(seed), "few").requests for seed in range(first, first + PART)]
    dropped = [(one.status == Status.DROPPED) & (one.hand_overs > 0) for one in found]
    assert sum(int(one.sum()) for one in dropped) > 0


FOUND = json.loads((Path(__file__).parents[2] / "data" / "found_moving_scenes.json").read_text())


@pytest.mark.slow
@pytest.mark.parametrize("scene", FOUND, ids=[one["what"] for one in FOUND])
def test_a_scene_that_was_found_is_equal_to_the_oracle(scene: dict[str, Any]) -> None:
    """Each has in `what` what was wrong."""
    workload = {name: np.array(rows, dtype) for name, (dtype, rows) in scene["workload"].items()}
    changes = [
        (at, {int(one): running for one, running in ones.items()}) for at, ones in scene["changes"]
    ]
    check((workload, flags() | scene["flags"], changes), scene["blocks"])
