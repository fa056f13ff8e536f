import json
from pathlib import Path

import numpy as np
import pytest

from blis_jax.files.atomic_write import write_json
from sweeps.compare.__main__ import CompareOptions, main
from sweeps.compare.report import draw_tables
from sweeps.compare.study import draws_of, probability_of_best
from sweeps.strategies.arms import arms_of


def test_probability_of_best_by_hand():
    """The first arm is better in three draws of four whatever the seeds, and equal in the last."""
    values = np.array([[[1.0, 1.0], [1.0, 1.0], [1.0, 1.0], [2.0, 2.0]], [[2.0, 2.0]] * 4])
    assert probability_of_best(values, True, 0).tolist() == [0.875, 0.125]
    assert probability_of_best(values, False, 0).tolist() == [0.125, 0.875]


def test_seeds_count_too():
    """One draw; which arm is best depends on the seed that a resample holds more of."""
    values = np.array([[[1.0, 4.0]], [[2.0, 3.0]]])
    share = probability_of_best(values, True, 0)
    assert share.sum() == pytest.approx(1.0) and 0.1 < share[0] < 0.9


def test_comparison_with_drawn_coefficients(tmp_path: Path, capsys):
    """Without spread every draw gives the figures of the fit; with it there is a margin."""
    fit = {
        "kind": "calibration",
        "terms": ["beta0", "beta1"],
        "coefficients": {"beta0": {"value": 7000.0}, "beta1": {"value": 18.0}},
        "covariance": [[250_000.0, 0.0], [0.0, 1.0]],
    }
    write_json(tmp_path / "fit.json", fit)
    arguments = ["iter00_baseline", "t512=iter00_baseline:max_num_scheduled_tokens=512"]
    arguments += ["--seeds", "42,43", "--num-requests", "100", "--inert", "records"]
    arguments += ["--coefficients-from", str(tmp_path / "fit.json"), "--draws", "4"]
    arguments += ["--metrics", "ttft_p99_ms,tokens_per_sec", "--figure", "none"]
    assert main([*arguments, "--output", str(tmp_path / "out.json")]) == 0
    document = json.loads((tmp_path / "out.json").read_text())
    found = document["coefficients"]
    assert len(found["draws"]) == 4 and found["terms"] == ["beta0", "beta1"]
    for entry in found["figures"]:
        assert entry["low"] < entry["mean"] < entry["high"]
    by_metric: dict[tuple[str, str], float] = {}
    for entry in found["figures"]:
        key = entry["metric"], entry["class"]
        by_metric[key] = by_metric.get(key, 0.0) + entry["probability_of_best"]
    assert all(total == pytest.approx(1.0) for total in by_metric.values())
    settings = document["arms"][0]["settings"]
    assert settings["beta_coeffs"] == [7000.0, 18.0, 0.0]
    assert f"On 4 draws of the coefficients of {tmp_path / 'fit.json'}" in " ".join(
        capsys.readouterr().out.split()
    )
    (table,) = draw_tables(document)
    assert len(table.rows) == 2 * len(by_metric)
    assert {row.cells[1] for row in table.brief().rows} == {"TTFT P99 by run, ms"}


def test_arms_that_are_alike_have_no_probability_of_being_best():
    same = {"metric": "attainment", "class": "all", "mean": 1.0, "low": 1.0, "high": 1.0}
    figures = [{**same, "arm": name, "probability_of_best": 0.5} for name in ("one", "two")]
    section = {"draws": [[1.0]], "source": "fit.json", "figures": figures}
    (table,) = draw_tables({"coefficients": section})
    assert [tuple(map(str, row.cells)) for row in table.rows] == [
        ("all", "within targets, %", name, "100.0 [100.0, 100.0]", "alike")
        for name in ("one", "two")
    ]


def test_arms_run_on_the_server_of_the_fit(tmp_path: Path):
    """What an arm's text says stays, and so do what its strategy tunes, its number of instances and its router."""
    cluster = {"max_num_running_reqs": 128, "max_num_scheduled_tokens": 1024, "num_instances": 1,
               "long_prefill_token_threshold": 0, "block_size_in_tokens": 16, "total_kv_blocks": 9000,
               "routing_policy": "least-loaded"}  # fmt: skip
    fit = {"kind": "calibration", "terms": [], "coefficients": {}, "covariance": [], "cluster": cluster,
           "fixed": {"beta0": 7000.0}, "server": {"model": "mine", "gpu": "L4"}}  # fmt: skip
    write_json(tmp_path / "fit.json", fit)
    options = CompareOptions.read(["--coefficients-from", str(tmp_path / "fit.json")])
    draws = draws_of(options, 0)
    assert draws is not None
    texts = [
        "vllm",
        "iter08_token_budget@published",
        "vllm:max_num_running_reqs=64",
        "baseline:corrected=false",
    ]
    arms = arms_of(texts, fit=str(tmp_path / "fit.json"))
    served, tuned, said, exact = (arm.config for arm in arms)
    of_server = {
        name: cluster[name] for name in cluster if name not in ("num_instances", "routing_policy")
    }
    for config in (served, tuned, said, exact):
        found = {name: getattr(config, name) for name in of_server}
        kept = {name for name in of_server if found[name] != of_server[name]}
        assert kept == (
            {"max_num_scheduled_tokens"} if config is tuned
            else {"max_num_running_reqs"} if config is said
            else set()
        )  # fmt: skip
        assert (config.num_instances, config.model, config.hardware) == (8, "mine", "L4")
        assert config.beta_coeffs == (7000.0, 0.0, 0.0)
        assert config.corrected == (config is not exact)
        assert (config.preemption_mode == "recompute") == (config is not exact)
    assert served.routing_policy == "round-robin"


@pytest.mark.parametrize(
    ("options", "words"),
    [
        (["--draws", "8"], "no --coefficients-from"),
        (["--coefficients-from", "nowhere.json"], "does not exist"),
    ],
)
def test_bad_input(options: list[str], words: str, capsys):
    assert main(["iter00_baseline", "iter05_simplified", *options]) == 2
    assert words in capsys.readouterr().err
