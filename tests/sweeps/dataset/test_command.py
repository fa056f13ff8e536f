"""The command on a tiny workload, up to a surrogate of its output."""

import dataclasses
import shutil
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
import xarray as xr

from blis_jax.cluster.config import ClusterConfig
from blis_jax.errors import ConfigError
from blis_jax.policies.seeds import policy_seed
from blis_jax.results.dataset import load
from blis_jax.runs.runs import Row
from blis_jax.workload.table import RequestTable
from surrogate.data import NOT_PLANNED, load_data
from surrogate.levels.predict import baseline_on_seeds
from sweeps.dataset import __main__ as dataset
from sweeps.dataset.command import DatasetStore
from sweeps.runs import drawn
from tests.support.damages import flip
from tests.surrogate.levels.test_model import beside_levels
from tests.sweeps.tiny import TINY

SMALL = ["--points", "16", "--calibration", "16", "--test", "16", "--seeds", "2", "--quiet"]


@pytest.fixture(scope="module")
def strategy(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("tiny") / "tiny.yaml"
    path.write_text(TINY.replace("slo_base_critical: [5, 20]", "slo_base_critical: [5, 20]"))
    return path


@pytest.fixture(scope="module")
def made(strategy: Path) -> Path:
    out = strategy.with_name("whole.zarr")
    words = [str(strategy), *SMALL, "--train-seeds", "1", "--other-points", "2"]
    assert dataset.main([*words, "--out", str(out)]) == 0
    return out


def test_every_planned_run_is_there(made: Path) -> None:
    found = load(made)
    outcome = found["outcome"].values
    assert (outcome >= 0).sum() == 16 + 2 * 32 + 4
    assert not np.isnan(found["value"].values[outcome != NOT_PLANNED]).all(axis=1).any()
    data = load_data(made)
    assert data.columns[2].categories == (1, 2) and len(data.other.inputs) == 2
    place = data.outputs.index("ttft_p99_ms[critical]")
    assert data.units[place] == "ms" and (data.test.means[:, place] > 0).all()


def test_a_stopped_command_ends_with_the_same_file(
    made: Path, strategy: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    from sweeps.dataset import plan as dataset_plan

    monkeypatch.setattr(dataset_plan, "RUNS_PER_PART", 32)
    out = tmp_path / "broken.zarr"
    words = [str(strategy), *SMALL, "--train-seeds", "1", "--other-points", "2", "--out", str(out)]
    write, calls = DatasetStore.write, []

    def write_twice(self: DatasetStore, first: int, runs: object) -> None:
        if len(calls) == 2:
            raise KeyboardInterrupt
        calls.append(first)
        write(self, first, runs)  # type: ignore[arg-type]

    with monkeypatch.context() as patch:
        patch.setattr(DatasetStore, "write", write_twice)
        assert dataset.main(words) == 130
    assert (load(out)["outcome"].values == -1).any()
    assert dataset.main(words) == 2  # it exists
    assert dataset.main([*words, "--resume"]) == 0
    one, two = load(made), load(out)
    for name in ("inputs", "value", "outcome"):
        np.testing.assert_array_equal(one[name].values, two[name].values)


def test_every_seed_of_the_pool_has_policy_draws_of_its_own(
    strategy: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """All points on one seed share them, as they share its requests."""
    seen: dict[bytes, set[int]] = {}

    def noted(config: ClusterConfig, table: RequestTable, seed: int) -> Row:
        seen.setdefault(np.asarray(table.arrival_us).tobytes(), set()).add(seed)
        return Row(config, table, seed)

    monkeypatch.setattr(drawn, "Row", noted)
    words = [str(strategy), *SMALL, "--num-requests", "20", "--first-seed", "7"]
    assert dataset.main([*words, "--train-seeds", "1", "--out", str(tmp_path / "d.zarr")]) == 0
    assert sorted(map(list, seen.values())) == sorted([[policy_seed(7)], [policy_seed(8)]])


@pytest.mark.parametrize("piece", ["value/c/0/0/0", "run_seed/c/0/0"])
def test_damaged_points_are_made_again(
    made: Path, strategy: Path, tmp_path: Path, capsys: pytest.CaptureFixture, piece: str
) -> None:
    out = tmp_path / "whole.zarr"
    shutil.copytree(made, out)
    words = [str(strategy), *SMALL, "--train-seeds", "1", "--other-points", "2", "--out"]
    flip(out / piece)
    again = f"python -m sweeps.dataset {' '.join(words)} {made} --resume"
    with pytest.raises(ConfigError) as refused:
        load_data(out)
    assert str(refused.value) == f"{out} is damaged: {piece} has changed; make it again: {again}"
    assert dataset.main([*words, str(out), "--resume"]) == 0
    said = f"sweeps.dataset: note: {out}: {piece} has changed; the parts concerned are made again"
    assert capsys.readouterr().err == f"{said}\n"
    xr.testing.assert_identical(load(out), load(made))
    (out / "role" / "c" / "0").unlink()
    assert dataset.main([*words, str(out), "--resume"]) == 2
    assert "role/c/0 is missing; make it again: python" in capsys.readouterr().err


def test_another_dataset_is_not_gone_on_with(
    made: Path, strategy: Path, capsys: pytest.CaptureFixture
) -> None:
    words = [str(strategy), *SMALL, "--train-seeds", "2", "--out", str(made), "--resume"]
    assert dataset.main(words) == 2
    assert "was made with different sizes" in capsys.readouterr().err


def test_populations_differ_by_seeds_and_not_by_points(
    made: Path, strategy: Path, tmp_path: Path
) -> None:
    def population(*words: str) -> str:
        out = tmp_path / f"{len(list(tmp_path.iterdir()))}.zarr"
        small = [str(strategy), *SMALL, "--train-seeds", "1", "--num-requests", "20"]
        assert dataset.main([*small, *words, "--out", str(out)]) == 0
        return load_data(out).population

    first = population()
    assert first == population("--random-state", "1", "--points", "32") != ""
    assert first != population("--first-seed", "5")
    assert first != load_data(made).population  # as many requests as the strategy says


def test_descriptors_vary_from_point_to_point(strategy: Path, tmp_path: Path) -> None:
    out = tmp_path / "varied.zarr"
    words = [str(strategy), *SMALL, "--vary", "rate=100:400,instances=2:3,share_critical=0.2:0.6"]
    assert dataset.main([*words, "--out", str(out)]) == 0
    data = load_data(out)
    assert [column.name for column in data.columns[-3:]] == ["rate", "instances", "share_critical"]
    assert set(data.test.inputs[:, -2]) == {2.0, 3.0}
    rate = data.train.inputs[:, -3]
    spread = np.corrcoef(rate, data.train.means[:, data.outputs.index("requests_per_s")])[0, 1]
    assert spread > 0.5  # more arrive, more are done


@pytest.mark.parametrize(
    ("words", "said"),
    [
        ([], "no strategy is given"),
        (["iter08_token_budget", "--out", "data.csv"], "must end in .zarr"),
        (["iter08_token_budget", "--points", "1", "--out", "none.zarr"], "--points: got 1"),
        (["iter08_token_budget", "--vary", "rats=1:2", "--out", "none.zarr"], "did you mean"),
        (["iter08_token_budget", "--random-state", "-1", "--out", "n.zarr"], "--random-state"),
    ],
)
def test_wrong_input_is_refused_in_a_sentence(
    words: list[str], said: str, capsys: pytest.CaptureFixture
) -> None:
    assert dataset.main(words) == 2
    error = capsys.readouterr().err
    assert said in error and error.count("\n") == 1


def test_plan_says_how_many_runs(strategy: Path, capsys: pytest.CaptureFixture) -> None:
    out = strategy.with_name("none.zarr")
    assert dataset.main([str(strategy), *SMALL, "--plan", "--out", str(out)]) == 0
    assert "48 points, 96 runs" in capsys.readouterr().out and not out.exists()


@pytest.mark.parametrize("stream", ["jax", "reference"])
def test_a_surrogate_simulates_the_baseline_as_the_dataset_has_it(
    strategy: Path, tmp_path: Path, stream: str
) -> None:
    """All its levels need stands in the dataset: settings, targets, workload and who draws."""
    words = [str(strategy), *SMALL, "--train-seeds", "1", "--rng", stream, "--first-seed", "7"]
    path = tmp_path / "d.zarr"
    baseline = f"{strategy}:max_num_running_reqs=6"
    assert dataset.main([*words, "--baseline", baseline, "--out", str(path)]) == 0
    data = load_data(path)
    assert data.seeds is not None and data.baseline["max_num_running_reqs"] == 6
    levels = dataclasses.replace(
        beside_levels(), settings=data.baseline, targets=data.targets, workload=data.workload,
        stream=data.stream,
    )  # fmt: skip
    knowing: Any = SimpleNamespace(levels=levels, outputs=data.outputs)
    found = baseline_on_seeds(knowing, data.seeds.seeds.tolist())
    np.testing.assert_array_equal(found.astype(np.float32), data.seeds.baseline.astype(np.float32))
    assert (found[0] != found[1]).any()
