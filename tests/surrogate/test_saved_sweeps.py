"""Saved sweeps as datasets: what becomes an input, which points have which role, and what is refused."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
import xarray as xr

from blis_jax.cluster.config import ClusterConfig
from blis_jax.errors import ConfigError
from blis_jax.files.atomic_write import fingerprint
from blis_jax.metrics.measure import Measure
from blis_jax.results.dataset import save
from blis_jax.workload.spec import parse_spec
from surrogate import coverage, train
from surrogate.data import load_all, load_data
from surrogate.predictor import Surrogate
from sweeps.runs.axes import StudyAxis
from sweeps.runs.experiment import Experiment
from sweeps.runs.requests import StudyRequests
from sweeps.strategies.arms import Arm
from sweeps.sweep.data import Summarizer, to_dataset
from sweeps.sweep.plan import SweepPlan

pytestmark = pytest.mark.lenient_promotion

SPEC = parse_spec(
    """
version: '2'
seed: 1
category: language
aggregate_rate: 10.0
num_requests: 20
clients:
  - {id: a, tenant_id: a, slo_class: critical, rate_fraction: 1.0, streaming: true, arrival: {process: poisson},
     input_distribution: {type: constant, params: {value: 10}},
     output_distribution: {type: constant, params: {value: 10}}}
""",
    "made.yaml",
)
BUDGETS = tuple(range(100, 3300, 100))
TINY = [
    "--members",
    "2",
    "--width",
    "8",
    "--depth",
    "1",
    "--steps",
    "60",
    "--batch",
    "64",
    "--quiet",
]


def ttft_ms(budget: int, instances: int) -> float:
    """What a made run has, in place of a simulation."""
    return 1000.0 / budget + 10.0 / instances


def swept(path: Path, instances: tuple[int, ...] = (1, 2, 3, 4), seeds: int = 4) -> Path:
    """Write what `blis_jax.sweep` does of a grid, with made figures."""
    arm = Arm("mine", ClusterConfig(num_instances=1))
    axes = (StudyAxis("max_num_scheduled_tokens", BUDGETS), StudyAxis("num_instances", instances))
    requests = StudyRequests(SPEC, tuple(range(seeds)), "jax", "made")
    plan = SweepPlan(Experiment(requests, (), {}), (arm,), axes)
    summarizer = Summarizer([SPEC], Measure())
    table = summarizer.empty((len(plan.points), seeds))
    table["outcome"] = 0
    for row, point in zip(table, plan.points, strict=True):
        value = ttft_ms(point.config.max_num_scheduled_tokens, point.config.num_instances)
        row["ttft_mean_ms"] = value + np.arange(seeds)[:, None]
    save(to_dataset(plan, summarizer, table, {"sweep": fingerprint([str(path)])}), path)
    return path


def test_axes_are_inputs_and_every_point_has_a_role(tmp_path: Path) -> None:
    data = load_data(swept(tmp_path / "a.zarr"))
    assert [column.name for column in data.columns] == ["max_num_scheduled_tokens", "num_instances"]
    assert [(column.low, column.high) for column in data.columns] == [(100, 3200), (1, 4)]
    assert data.columns[0].is_log and not data.columns[1].is_log
    parts = (data.train, data.calibration, data.test)
    assert sum(len(part.inputs) for part in parts) == 4 * len(BUDGETS) and not data.num_left_out
    place = data.outputs.index("ttft_mean_ms[critical]")
    for part in parts:
        wanted = [ttft_ms(int(budget), int(count)) for budget, count in part.inputs]
        np.testing.assert_allclose(part.runs[:, 2, place], np.array(wanted) + 2, rtol=1e-6)
    assert "goodput_rps" not in data.outputs  # the runs have none


def test_points_of_two_sweeps_keep_their_roles(tmp_path: Path) -> None:
    """A point that both have counts once, and none that one sweep tests is learned from beside another."""
    one, two = swept(tmp_path / "a.zarr"), swept(tmp_path / "b.zarr", (4, 5))
    both, alone = load_all([one, two]), load_data(one)
    assert sum(len(part.inputs) for part in (both.train, both.calibration, both.test)) == 5 * len(
        BUDGETS
    )
    learned = set(map(tuple, both.train.inputs.tolist()))
    assert not learned & set(map(tuple, alone.test.inputs.tolist()))


def test_strategies_are_a_choice(tmp_path: Path) -> None:
    """Two strategies differ in many settings; which one it is says them all."""
    path = swept(tmp_path / "a.zarr")
    from blis_jax.results.dataset import load

    first = load(path)
    second = first.assign_coords(
        strategy=["other"], fingerprint=first["fingerprint"].astype(str).str.replace("^.", "0")
    )
    whole = xr.concat([first, second], "strategy", combine_attrs="override")
    config = first.attrs["config"]
    whole.attrs["config"] = config[:-1] + ', "other": ' + config[len('{"mine": ') : -1] + "}"
    save(whole.drop_encoding(), tmp_path / "both.zarr")
    columns = load_data(tmp_path / "both.zarr").columns
    assert columns[0].name == "strategy" and columns[0].categories == ("mine", "other")
    assert len(columns) == 3


def test_a_surrogate_of_sweeps_is_trained_and_tested(
    tmp_path: Path, capsys: pytest.CaptureFixture
) -> None:
    paths = [str(swept(tmp_path / "a.zarr")), str(swept(tmp_path / "b.zarr", (5,)))]
    model = tmp_path / "made.surrogate"
    assert train.main([*paths, *TINY, "--output", str(model)]) == 0
    surrogate = Surrogate.load(model)
    assert surrogate.names == ("max_num_scheduled_tokens", "num_instances")
    found = surrogate.predict([{"max_num_scheduled_tokens": 500, "num_instances": 3}])
    assert np.isfinite(found["mean"].values).all()
    assert coverage.main([str(model), *paths]) == 0
    assert coverage.main([str(model), paths[0]]) == 2
    assert "fitted to another dataset" in capsys.readouterr().err


def test_what_cannot_be_learned_from_is_refused(tmp_path: Path) -> None:
    few = swept(tmp_path / "few.zarr", (1,))
    with pytest.raises(ConfigError, match=r"has 32 points, of which .* sweep 100 points or more"):
        load_data(few)
    with pytest.raises(ConfigError, match=r"other\.zarr and .* differ in seeds"):
        load_all([few, swept(tmp_path / "other.zarr", seeds=3)])
    from blis_jax.results.dataset import load

    one = load(few).isel(max_num_scheduled_tokens=[0])
    one.attrs["grid"] = '{"max_num_scheduled_tokens": [100], "num_instances": [1]}'
    save(one.drop_encoding(), tmp_path / "one.zarr")
    with pytest.raises(ConfigError, match="differ in nothing to learn from; sweep a setting"):
        load_data(tmp_path / "one.zarr")
