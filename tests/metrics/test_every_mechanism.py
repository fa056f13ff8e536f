"""What holds of the metrics in every mechanism: they agree with each other, the step law and the compiled call."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Iterator
from typing import Any

import numpy as np
import pytest

from blis_jax.cluster.config import AUGUST, ClusterConfig
from blis_jax.commands.run.requests import draw_requests
from blis_jax.metrics.summaries import Window
from blis_jax.records.invariants import violations
from blis_jax.records.record import BLOCK_LEVEL, NO_EVICTION, RunRecord, Status
from blis_jax.runs.closed_loop import simulate_closed_loop
from blis_jax.runs.options import Options
from blis_jax.workload.reference import drawn
from blis_jax.workload.spec import load_builtin, override
from blis_jax.workload.table import RequestTable, pad_to, with_timeouts
from tests.metrics.test_lane import assert_equal, both
from tests.support.metric_laws import assert_metrics_agree

POOLS = [{"count": 1, "role": "prefill"}, {"count": 2, "role": "decode"}]


@dataclasses.dataclass(frozen=True)
class Scene:
    """A mechanism: settings of its cluster, its memory, and what its requests have besides."""

    settings: dict[str, Any]
    memory: str = BLOCK_LEVEL
    has_happened: Callable[[RunRecord], Any] = lambda record: True  # that it acted
    has_deadlines: bool = False
    is_closed_loop: bool = False

    @property
    def config(self) -> ClusterConfig:
        return ClusterConfig(**({"num_instances": 3} | self.settings))

    def table(self, seed: int) -> RequestTable:
        """Some requests of all classes, or of sessions whose rounds follow each other."""
        if self.is_closed_loop:
            sessions = override(load_builtin("multiturn"), num_requests=32)
            return simulate_closed_loop(
                self.config, drawn(sessions, seed, None), self.options
            ).table
        spec = override(load_builtin("mixed"), num_requests=48)
        table = draw_requests(spec, seed, self.config.block_size_in_tokens)[0]
        if not self.has_deadlines:
            return table
        rng = np.random.default_rng(seed)
        return with_timeouts(table, rng.integers(20_000, 900_000, len(table.arrival_us)))

    @property
    def options(self) -> Options:
        return Options(kv_model=self.memory, num_slots=64, log_capacity=4096, num_chains=8)

    def runs(self, seeds: range) -> Iterator[tuple[RunRecord, dict[str, float], Any]]:
        """A record, its metrics and the report of the compiled call for each seed, by one program."""
        tables = [self.table(seed) for seed in seeds]
        sizes = [(each.num_rows, each.num_nodes, each.depth) for each in tables]
        for table in tables:
            padded = pad_to(table, *(max(size) for size in zip(*sizes, strict=True)))
            yield both(self.config, padded, self.options, Window())


CORRECTED: dict[str, Any] = {"corrected": True}
FEW = {"total_kv_blocks": 80, "max_num_scheduled_tokens": 256}
IN_AUGUST: dict[str, Any] = {"revision": AUGUST}
SCENES = {
    "no eviction": Scene(CORRECTED, NO_EVICTION),
    "block level": Scene(CORRECTED | FEW, has_happened=lambda one: one.requests.preemptions.any()),
    "CPU tier": Scene(
        CORRECTED | FEW | {"kv_cpu_blocks": 200, "kv_offload_threshold": 0.3},
        has_happened=lambda one: one.instances.cpu_offloads.any(),
    ),
    "pools": Scene(
        CORRECTED | {"instances": POOLS, "hand_over_policy": "pools"},
        has_happened=lambda one: one.requests.hand_overs.any(),
    ),
    "outages": Scene(
        CORRECTED | {"cluster_policy": "outages", "outages_mtbf_s": 0.2, "outages_mttr_s": 0.1},
        has_happened=lambda one: one.instances.times_down.any(),
    ),
    "flow control": Scene(
        IN_AUGUST
        | {"flow_control": True, "saturation_detector": "concurrency", "max_concurrency": 4}
        | {"max_gateway_queue_depth": 6, "request_ttl": 300_000},
        has_happened=lambda one: (one.requests.gateway_wait_us > 0).any(),
    ),
    "deadlines": Scene(
        IN_AUGUST,
        has_happened=lambda one: (one.requests.status == Status.TIMED_OUT).any(),
        has_deadlines=True,
    ),
    "closed loop": Scene(IN_AUGUST, is_closed_loop=True),
    "August": Scene(
        IN_AUGUST | {"total_kv_blocks": 80, "scheduler": "priority-fcfs"},
        has_happened=lambda one: one.requests.preemptions.any(),
    ),
    "August's pools": Scene(
        IN_AUGUST | {"prefill_instances": 1, "decode_instances": 2, "pd_decider": "always"},
        has_happened=lambda one: one.splits.is_split.any(),
    ),
}


def check(scene: Scene, seeds: range) -> None:
    acted = []
    for record, host, report in scene.runs(seeds):
        assert_metrics_agree(record, host)
        assert not {name: count for name, count in violations(record).items() if count}
        assert_equal(record, host, report)
        acted.append(bool(scene.has_happened(record)))
    assert any(acted)


def test_metrics_agree() -> None:
    check(SCENES["block level"], range(1))


@pytest.mark.slow
@pytest.mark.timeout(1200)
@pytest.mark.parametrize("name", SCENES)
def test_metrics_agree_in_every_mechanism(name: str) -> None:
    check(SCENES[name], range(3))
