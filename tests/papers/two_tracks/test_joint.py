"""The joint table, from made-up runs of every arm on every workload."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

import numpy as np
import pytest

from blis_jax.core.outcome import Outcome
from papers.record.measures import Measurement
from papers.record.runs import SettingSample
from papers.record.settings import RunSetting
from papers.two_tracks import joint

SEEDS = tuple(range(12))


class MadeUpRuns:
    """Runs whose figures follow from the arm alone, with noise, most of which all arms share."""

    def get(
        self,
        settings: Iterable[RunSetting],
        seeds: Sequence[int],
        measurement: Measurement,
    ) -> dict[str, SettingSample]:
        noise = np.random.default_rng(0).normal(0, 1, (len(seeds), len(measurement.names)))
        found = {}
        for setting in settings:
            place = list(joint.ARMS).index(setting.name.rpartition(" on ")[0])
            own = np.random.default_rng(place + 1).normal(0, 0.1, noise.shape)
            values = 100.0 + 10 * place + noise + own
            outcomes = np.full(len(seeds), int(Outcome.COMPLETED), np.int8)
            found[setting.name] = SettingSample(
                setting, measurement.names, np.array(seeds), values, outcomes, 0
            )
        return found


@pytest.fixture(scope="module")
def table() -> list[dict[str, str]]:
    return joint.rows(MadeUpRuns(), SEEDS)  # type: ignore[arg-type]


def test_every_arm_is_compared_with_the_optimum_of_the_workloads_track(
    table: list[dict[str, str]],
) -> None:
    assert len(table) == len(joint.ARMS) * len(joint.WORKLOADS)
    for row in table:
        is_base = row["arm"] == joint.PUBLISHED[row["track"]]
        assert (row["objective change"] == "") == is_base
        if is_base:
            continue
        base = list(joint.ARMS).index(joint.PUBLISHED[row["track"]])
        difference = list(joint.ARMS).index(row["arm"]) - base
        expected = 1000.0 * difference  # 10 more an arm, in points
        assert float(row["missed change"]) == pytest.approx(expected, abs=20)
        assert row["objective verdict"] == ("worse" if difference > 0 else "better")


def test_an_arm_runs_on_the_cluster_of_the_workloads_track() -> None:
    for place in joint.cells():
        blocks = place.setting.config.kv_cpu_blocks
        assert blocks == (44000 if joint.WORKLOADS[place.workload] == joint.SCHEDULING else 0)


def test_no_seed_was_seen_before() -> None:
    from sweeps.strategies.file import load_strategy

    seeds = set(range(joint.FIRST_SEED, joint.FIRST_SEED + joint.NUM_SEEDS))
    for text in joint.ARMS.values():
        assert not seeds & set(load_strategy(text.partition("@")[0]).seeds)
