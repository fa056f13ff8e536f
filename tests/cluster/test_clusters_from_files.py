"""A latency model and instances from files in run, sweep, compare and optimize."""

from __future__ import annotations

import json
import shutil
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from blis_jax.cluster.config import ClusterConfig
from blis_jax.results import dataset as results
from blis_jax.run import main as run
from sweeps.ablate import main as ablate
from sweeps.compare.__main__ import main as compare
from sweeps.optimize import main as optimize
from sweeps.strategies.moved import config_from_arguments
from sweeps.sweep.command import main as sweep
from tests.support.recorded.reference_data import REPO_ROOT
from tests.sweeps.tiny import TINY

MODEL = REPO_ROOT / "examples" / "policies" / "step_times.py"
RUN = ["--model", "meta-llama/llama-3.1-8b-instruct", "--workload", "chatbot", "--rate", "20"]

pytestmark = pytest.mark.lenient_promotion


def groups(mixed_us: float) -> list[dict[str, Any]]:
    """A fast instance and a slow one; a step with prompts beside decoding takes longer on both."""
    return [
        {"count": 1, "name": "fast", "beta_coeffs": [1000.0, 3.0, 7.0, mixed_us]},
        {"count": 1, "name": "slow", "beta_coeffs": [9000.0, 3.0, 7.0, mixed_us]},
    ]


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    shutil.copy(MODEL, tmp_path / "model.py")
    for name, mixed_us in (("cheap", 0.0), ("dear", 20_000.0)):
        (tmp_path / f"{name}.yaml").write_text(json.dumps(groups(mixed_us)))
    text = TINY.replace(
        "mechanism: {num_instances: 2,",
        "mechanism: {num_instances: 3, latency_model: 'model.py:interference', "
        "instances: cheap.yaml,",
    ).replace("num_instances: 3, ", "")
    text = text.replace(
        "  - {metric: ttft_p99_ms, direction: min, change_percent: 10}\n", ""
    )  # which would run the baseline
    (tmp_path / "mine.yaml").write_text(text)
    return tmp_path


def test_run(folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    mean_e2e = {}
    for name in ("cheap", "dear"):
        path = folder / f"{name}.json"
        words = ["--num-requests", "24", "--latency-model", f"{folder / 'model.py'}:interference"]
        words += ["--instances", str(folder / f"{name}.yaml"), "--log", "info"]
        assert run([*RUN, *words, "--results-path", str(path)]) == 0
        document = json.loads(path.read_text())
        assert document["provenance"]["profile"].endswith("/interference")
        by_instance: dict[str, list[float]] = {}
        for request in document["requests"]:
            by_instance.setdefault(request["handled_by"], []).append(request["e2e_ms"])
        mean_e2e[name] = [np.mean(by_instance[f"instance_{place}"]) for place in range(2)]
    config = document["provenance"]["config"]
    assert (config["instances"], config["num-instances"]) == (groups(20_000.0), 2)
    assert mean_e2e["cheap"][1] > 3 * mean_e2e["cheap"][0]
    assert all(np.array(mean_e2e["dear"]) > mean_e2e["cheap"])
    assert "1 × slow: coefficients" in capsys.readouterr().err


@pytest.mark.slow
def test_sweep(folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    output = folder / "out.zarr"
    words = ["--workload", "mixed", "--vmap-seeds", "2", "--strategy", "baseline"]
    words += ["--set", "workload.num_requests=20", "--set", "beta_coeffs=1000,3,7,0"]
    words += ["--set", f"latency_model={folder / 'model.py'}:interference"]
    cheap, dear = (str(folder / f"{name}.yaml") for name in ("cheap", "dear"))
    assert sweep([*words, "--grid", f"instances={cheap};{dear}", "--output", str(output)]) == 0
    means = results.load(output)["e2e_mean_ms"].sel(slo_class="all").mean("seed").squeeze()
    assert float(means[1]) > float(means[0]) + 10
    assert sweep([*words, "--instances", dear, "--output", str(folder / "one.zarr")]) == 0
    one = results.load(folder / "one.zarr")
    saved = json.loads(one.attrs["config"])["baseline"]
    assert (saved["instances"], saved["num_instances"]) == (groups(20_000.0), 2)
    same = one["e2e_mean_ms"].sel(slo_class="all").mean("seed").squeeze()
    assert float(same) == float(means[1])


def test_compare(folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    mine = folder / "mine.yaml"
    words = ["--num-seeds", "4", "--bootstrap", "99", "--inert", "records"]

    def compared(*more: str) -> Any:
        output = folder / f"{len(more)}.json"
        assert compare([*more, *words, "--output", str(output)]) == 0
        return json.loads(output.read_text())

    document = compared(f"cheap={mine}", f"dear={mine}:instances={folder / 'dear.yaml'}")
    (one,) = [
        each
        for each in document["comparisons"]
        if (each["metric"], each["class"]) == ("ttft_mean_ms", "all")
    ]
    assert one["difference"]["low"] > 10
    arms = document["arms"]
    assert [arm["settings"]["instances"] for arm in arms] == [groups(0.0), groups(20_000.0)]
    again = config_from_arguments(arms[1]["cli_args"])
    assert again.instances == ClusterConfig(instances=groups(20_000.0)).instances
    arms = [f"one={mine}", f"two={mine}:slo_base_critical=9"]
    document = compared(*arms, "--instances", str(folder / "dear.yaml"))
    written = [arm["settings"]["instances"] for arm in document["arms"]]
    assert written == [groups(20_000.0)] * 2


def test_optimize(folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    path = folder / "found.json"
    words = [str(folder / "mine.yaml"), "--calls", "2", "--output", str(path)]
    assert optimize([*words, "--instances", str(folder / "dear.yaml")]) == 0
    document = json.loads(path.read_text())
    config = config_from_arguments(document["cli_args"])
    assert config.latency_model.endswith("model.py:interference") and config.num_instances == 2
    assert config.instances == ClusterConfig(instances=groups(20_000.0)).instances
    # a search on other instances is another search
    assert optimize([*words, "--resume"]) == 2
    assert "instances" in capsys.readouterr().err


TWO = "groups of instances add up to 2"


@pytest.mark.parametrize(
    ("command", "words", "sentence"),
    [
        (run, [*RUN, "--num-instances", "1", "--instances", "cheap.yaml"], TWO),
        (run, [*RUN, "--num-instances", "3", "--instances", "cheap.yaml"], TWO),
        (run, [*RUN, "--instances", "nowhere.yaml"], "nowhere.yaml does not exist"),
        (run, [*RUN, "--instances", "typo.yaml"], "did you mean 'total_kv_blocks'?"),
        (run, [*RUN, "--instances", "negative.yaml"], "negative.yaml: group 2 (b): total_kv_bl"),
        (run, [*RUN, "--instances", "cheap.yaml", "--latency-model", "blackbox"], "be three"),
        (sweep, ["--instances", "cheap.yaml", "--set", "num_instances=3"], TWO),
        (sweep, ["--instances", "cheap.yaml", "--set", f"instances={groups(0)}"], "given twice"),
        (compare, ["baseline", "it08_opt", "--instances", "typo.yaml"], "did you mean"),
        (ablate, ["baseline", "--against", "it08_opt", "--instances", "typo.yaml"], "did you mean"),
        (
            optimize,
            ["iter08_token_budget", "--instances", "negative.yaml"],
            "group 2 (b): total_kv_blocks",
        ),
    ],
)
def test_bad_files_end_with_one_sentence(
    folder: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
    command: Any,
    words: list[str],
    sentence: str,
) -> None:
    monkeypatch.chdir(folder)
    Path("typo.yaml").write_text("- {count: 2, total_kv_block: 5}\n")
    Path("negative.yaml").write_text("- {count: 2}\n- {name: b, total_kv_blocks: -5}\n")
    assert command(words) == 2
    said = capsys.readouterr().err
    assert sentence in said and said.count("\n") == 1 and "Traceback" not in said
