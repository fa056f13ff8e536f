"""Files of runs: recognised by columns, rows into scenes, refusals in sentences, tables with predictions."""

import pandas as pd
import pytest

from blis_jax.errors import ConfigError
from papers.real_servers.predict.collections import (
    INFERENCEX,
    LLMD_RUNS,
    SHORTEST,
    VLLM_RUNS,
    full_name,
    shared_prefix_load,
    sharing,
)
from papers.real_servers.predict.files import (
    PredictedUnit,
    PredictedValue,
    filled,
    read_runs_file,
    recognised,
    with_configs,
)
from papers.real_servers.predict.scene import (
    ClosedLoad,
    LoadStage,
    RealServer,
    ServerPool,
    StagedLoad,
    whole,
)

VLLM_ROW = {
    "run": "9-general-lite-1",
    "model": "Qwen/Qwen3-14B",
    "hardware": "A100-80GB",
    "tp": 1,
    "gpu_mem_util": float("nan"),
    "max_num_batched_tokens": 1024,
    "stage_index": 1,
    "metric_name": "ttft_p99",
    "actual": 12.0,
}
LLMD_ROW = {
    "model": "Llama-3.1-70B",
    "hw": "H100",
    "arch": "aggregated",
    "config": "2 TP4",
    "isl": 9999,
    "osl": 1000,
    "conc": 8,
}
INFERENCEX_ROW = {
    "model_path": "Qwen/Qwen3-235B-A22B-FP8",
    "system": "h200_sxm",
    "precision": "fp8",
    "isl": 1000,
    "osl": 100,
    "tp_size": 4,
    "concurrency": 16,
    "attention_dp_size": float("nan"),
}


@pytest.mark.parametrize(
    ("row", "name"),
    [(VLLM_ROW, "vllm_runs"), (LLMD_ROW, "llmd_runs"), (INFERENCEX_ROW, "inferencex")],
)
def test_files_are_recognised_by_their_columns(tmp_path, row, name):
    path = tmp_path / "runs.csv"
    pd.DataFrame([row]).to_csv(path, index=False)
    file = read_runs_file(path)
    assert name == file.collection.name
    (unit,) = file.collection.units(file.rows)
    assert unit.scene is not None and unit.rows == (0,)


def test_other_columns_are_refused_with_what_is_missing(tmp_path):
    with pytest.raises(ConfigError, match="llmd_runs is the nearest, and conc is missing"):
        recognised(tmp_path / "x.csv", [name for name in LLMD_ROW if name != "conc"])
    (tmp_path / "empty.csv").write_text("run,model\n")
    with pytest.raises(ConfigError, match="has no rows"):
        read_runs_file(tmp_path / "empty.csv")


def test_a_vllm_run_is_one_scene_with_a_cell_for_each_row():
    rows = [VLLM_ROW, VLLM_ROW | {"stage_index": -1, "metric_name": "itl_mean"}]
    (unit,) = VLLM_RUNS.units(rows)
    assert [(c.row, c.figure, c.stage) for c in unit.cells] == [
        (0, "ttft_p99", 1),
        (1, "itl_mean", None),
    ]
    server, load = unit.scene.server, unit.scene.load
    assert (server.hardware, server.max_num_scheduled_tokens, server.memory_utilization) == (
        "A100-80",
        1024,
        0.9,
    )
    assert load == StagedLoad((LoadStage(2.5, 600), LoadStage(6.0, 600)), 45, 547, 248)


@pytest.mark.parametrize(
    ("change", "words"),
    [
        ({"run": "9-odd"}, "names no known workload"),
        ({"hardware": "TPU"}, "GPU 'TPU' has no description"),
        ({"stage_index": 2}, "stage_index is 2, the workload has stages 0 to 1"),
        ({"metric_name": "speed"}, "metric_name 'speed' is not predicted"),
        ({"tp": "two"}, "tp is 'two', it must be a whole number"),
        ({"tp": 0}, "tp must be at least 1, got 0"),
        ({"tp": True}, "tp is True, it must be a whole number"),
        ({"tp": 10**18}, "tp is 1e+18, it must be at most 1,000,000"),
        ({"tp": float("inf")}, "tp is inf, it must be a whole number"),
        ({"gpu_mem_util": "abc"}, "gpu_mem_util is 'abc', it must be a number"),
        ({"gpu_mem_util": 0}, "gpu_mem_util is 0, it must be above 0 and at most 1"),
    ],
)
def test_a_row_that_cannot_be_predicted_says_why(change, words):
    units = VLLM_RUNS.units([VLLM_ROW | change, VLLM_ROW | {"run": "other-general"}])
    assert sorted(words in unit.problem for unit in units) == [False, True]


def test_one_bad_cell_leaves_the_other_rows_of_its_run():
    good, bad = VLLM_RUNS.units([VLLM_ROW, VLLM_ROW | {"gpu_mem_util": "abc"}, VLLM_ROW])
    assert (bad.rows, good.rows, good.problem) == ((1,), (0, 2), "")


def test_runs_that_differ_only_in_what_is_not_simulated_stay_apart():
    """As 16 and 24 of the public file, of which one offloads to the CPU: each has its measured values."""
    one, other = VLLM_RUNS.units(
        [VLLM_ROW, VLLM_ROW | {"run": "24-general-lite-1", "cpu_offload": True}]
    )
    assert one.scene == other.scene and (one.rows, other.rows) == ((0,), (1,))


def test_layouts_and_precisions():
    (unit,) = LLMD_RUNS.units([LLMD_ROW])
    assert (unit.scene.server.num_instances, unit.scene.server.tp) == (2, 4)
    assert unit.scene.server.model == "meta-llama/Llama-3.1-70B"
    (pools,) = LLMD_RUNS.units([LLMD_ROW | {"arch": "disaggregated", "config": "3: 2P-TP4 1D-TP8"}])
    assert pools.scene.server.pools == (ServerPool("prefill", 2, 4), ServerPool("decode", 1, 8))
    assert full_name("Qwen3-32B") == "qwen/Qwen3-32B"
    assert full_name("Llama-9") == "meta-llama/Llama-9"
    (odd,) = LLMD_RUNS.units([LLMD_ROW | {"config": "1 pool"}])
    assert "layout '1 pool' (aggregated) is not known" in odd.problem
    (unit,) = INFERENCEX.units([INFERENCEX_ROW])
    assert unit.scene.server.model == "qwen/qwen3-235b-a22b-fp8"
    assert unit.scene.load == ClosedLoad(16, 1000, 100, shortest=SHORTEST)
    (odd,) = INFERENCEX.units([INFERENCEX_ROW | {"precision": "fp2"}])
    assert "precision 'fp2' is not known" in odd.problem
    shares = [
        {"attention_dp_size": 4, "moe_tp_size": 1, "moe_ep_size": 16},
        {"moe_tp_size": 8},
        {},
    ]
    assert [sharing(INFERENCEX_ROW | one) for one in shares] == [
        (1, 4, 4),
        (4, 2, 1),
        (4, 1, 1),
    ]
    (uneven,) = INFERENCEX.units([INFERENCEX_ROW | {"attention_dp_size": 3}])
    assert "must divide tp_size, 4" in uneven.problem
    (piped,) = INFERENCEX.units([INFERENCEX_ROW | {"pp_size": 2}])
    assert "pp_size is 2" in piped.problem


def test_longer_names_of_workloads_come_first():
    assert shared_prefix_load("x-general-lite-2")[0] == "general-lite"
    assert shared_prefix_load("x-general-2")[0] == "general"


def test_loads_and_servers_are_checked():
    with pytest.raises(ConfigError, match="rate must be above 0"):
        StagedLoad((LoadStage(0.0, 10),), 1, 1, 1)
    with pytest.raises(ConfigError, match="the load makes 500000 requests"):
        ClosedLoad(100_000, 1, 1, 5)
    with pytest.raises(ConfigError, match="num_instances must be at least 1"):
        RealServer("m", "H100", num_instances=0)
    assert whole({"n": ""}, "n", 3) == 3
    with pytest.raises(ConfigError, match="n is empty"):
        whole({}, "n")


def test_predictions_fill_the_files_own_columns(tmp_path):
    path = tmp_path / "runs.csv"
    pd.DataFrame([VLLM_ROW, VLLM_ROW | {"run": "odd"}]).to_csv(path, index=False)
    file = read_runs_file(path)
    one, other = file.collection.units(file.rows)
    table = filled(
        file,
        [
            PredictedUnit(one, {one.cells[0]: PredictedValue(10.0, 9.0, 11.0)}),
            PredictedUnit(other, {}, other.problem),
        ],
    )
    assert table.loc[0, ["actual", "actual_low", "actual_high", "actual_measured"]].tolist() == [
        10.0,
        9.0,
        11.0,
        12.0,
    ]
    assert table["actual"].isna().tolist() == [False, True]
    assert table["not_predicted"].str.contains("names no known workload").tolist() == [False, True]


def test_descriptions_from_a_folder(tmp_path):
    (tmp_path / "qwen3-14b").mkdir()
    (tmp_path / "qwen3-14b" / "config.json").write_text("{}")
    units = with_configs(VLLM_RUNS.units([VLLM_ROW, VLLM_ROW | {"run": "odd"}]), tmp_path)
    assert units[0].scene.server.model_config.endswith("qwen3-14b/config.json")
    assert units[1].scene is None
    with pytest.raises(ConfigError, match="is no folder"):
        with_configs(units, tmp_path / "none")
