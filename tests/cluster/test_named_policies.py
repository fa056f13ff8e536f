"""What is made once for each configuration, and what is made again."""

from __future__ import annotations

import os
from pathlib import Path

import numpy as np
import pytest

from blis_jax import ClusterConfig
from blis_jax.cluster.named_policies import made_once, names_files
from blis_jax.engine.mechanism import mechanism, params
from blis_jax.errors import ConfigError


def test_made_once_for_equal_configurations() -> None:
    calls: list[tuple[int, int]] = []

    @made_once
    def doubled(config: ClusterConfig, factor: int) -> int | None:
        calls.append((config.num_instances, factor))
        return None if factor == 0 else factor * config.num_instances

    two, again, three = (ClusterConfig(num_instances=count) for count in (2, 2, 3))
    assert [doubled(one, 2) for one in (two, again, three, two)] == [4, 4, 6, 4]
    assert [doubled(two, 0), doubled(two, 0)] == [None, None]
    assert calls == [(2, 2), (3, 2), (2, 0)]


def test_a_refusal_is_made_again() -> None:
    calls: list[int] = []

    @made_once
    def refused(config: ClusterConfig) -> None:
        calls.append(config.num_instances)
        raise ConfigError("no")

    for _ in range(2):
        with pytest.raises(ConfigError, match="no"):
            refused(ClusterConfig())
    assert calls == [1, 1]


def test_a_changed_file_brings_another_policy_and_the_same_text_the_same_one(
    tmp_path: Path,
) -> None:
    path = tmp_path / "own.py"
    text = (
        "from blis_jax.policies import NoParams, priority_policy\n\n\n@priority_policy()\n"
        "def mine(params, state, context):\n    return {sign}context.request.arrival_us.astype(float), state\n"
    )
    found = []
    for sign in "+-+":  # as long, and in the same second
        path.write_text(text.format(sign=sign), encoding="utf-8")
        os.utime(path, (0, 0))
        config = ClusterConfig(priority_policy=f"{path}:mine", scheduler="priority-fcfs")
        found.append(mechanism(config))
    assert names_files(config) and not names_files(ClusterConfig())
    assert found[0].priority != found[1].priority and found[0] == found[2]


def test_runs_of_two_seeds_differ_in_what_is_drawn_alone() -> None:
    config = ClusterConfig(num_instances=3, snapshot_phases="drawn", load_refresh_interval=1000)
    one, again, other = (params(config, policy_seed=seed) for seed in (1, 1, 2))
    assert [int(each.policy.seed) for each in (one, again, other)] == [1, 1, 2]
    phases = [np.asarray(each.cluster.signals.phase) for each in (one, again, other)]
    assert np.array_equal(phases[0], phases[1]) and not np.array_equal(phases[0], phases[2])
    assert other.cluster.alpha is one.cluster.alpha
