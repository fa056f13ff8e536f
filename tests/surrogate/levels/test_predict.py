"""Why a baseline cannot be simulated, in one sentence; that its runs are a dataset's: see tests of `sweeps.dataset`."""

import dataclasses
import json
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
import yaml

from blis_jax.cluster.config import ClusterConfig
from blis_jax.cluster.setting_values import all_values
from blis_jax.core.outcome import Outcome
from blis_jax.errors import ConfigError
from blis_jax.metrics.run_summary import RunSummary
from blis_jax.workload.spec import parse_spec
from surrogate.data import FAILED
from surrogate.levels import predict
from surrogate.levels.predict import baseline_config, baseline_on_seeds
from tests.surrogate.levels.test_model import beside_levels, made_levels
from tests.sweeps.tiny import TINY

CLUSTER = ClusterConfig(num_instances=2, max_num_running_reqs=8)


def knowing(outputs: tuple[str, ...] = (), **changes: Any) -> Any:
    """What is asked of a surrogate: its outputs, and its levels with some things replaced."""
    given = {"settings": json.loads(json.dumps(all_values(CLUSTER))), "targets": {}} | changes
    return SimpleNamespace(outputs=outputs, levels=dataclasses.replace(beside_levels(), **given))


def tiny(**changes: Any) -> str:
    """A workload of 40 requests, as JSON."""
    content = yaml.safe_load(TINY)["workload"] | changes
    return json.dumps(parse_spec(json.dumps(content), "workload").content())


def test_the_baseline_is_the_cluster_that_was_written() -> None:
    assert baseline_config(knowing()) == CLUSTER


def test_a_baseline_that_cannot_be_made_is_refused() -> None:
    older: Any = SimpleNamespace(levels=made_levels(), outputs=())
    for surrogate in (older, knowing(settings={})):
        with pytest.raises(ConfigError, match="does not know the settings of its baseline"):
            baseline_config(surrogate)
    settings = all_values(CLUSTER) | {"routing_policy": "mine"}
    with pytest.raises(ConfigError, match=r"baseline b cannot be simulated here \(.*mine"):
        baseline_config(knowing(settings=settings))


def test_targets_count_and_a_run_that_ends_has_not_failed() -> None:
    outputs = ("slo_miss_rate[critical]", FAILED)
    loose, tight = (
        baseline_on_seeds(
            knowing(
                outputs, workload=tiny(), targets={"critical": {"ttft_ms": limit, "e2e_ms": None}}
            ),
            (3, 4),
        )
        for limit in (1e6, 1e-3)
    )
    np.testing.assert_array_equal(loose, [[0, 0], [0, 0]])
    np.testing.assert_array_equal(tight, [[1, 0], [1, 0]])


def test_a_figure_that_a_seed_does_not_have_is_named() -> None:
    with pytest.raises(ConfigError, match=r"seed 3: baseline b has no ttft_p99_ms\[standard\]"):
        baseline_on_seeds(knowing(("ttft_p99_ms[standard]",), workload=tiny()), (3,))


def test_a_run_that_does_not_end_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    stuck = SimpleNamespace(rows=((RunSummary(Outcome.LIVELOCK),),))
    monkeypatch.setattr(predict, "run_given", lambda *_: stuck)
    with pytest.raises(
        ConfigError, match=r"seed 3: baseline b does not come to its end \(LIVELOCK"
    ):
        baseline_on_seeds(knowing(("ttft_p99_ms",), workload=tiny()), (3,))
