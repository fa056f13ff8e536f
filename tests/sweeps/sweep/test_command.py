"""The sweep command: what it runs, says and writes, goes on with and refuses."""

from __future__ import annotations

import html
import json
import re
import subprocess
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import xarray as xr

from blis_jax.cluster.config import ClusterConfig, from_flags
from blis_jax.commands import cli
from blis_jax.errors import ConfigError
from blis_jax.latency.registry import lookup
from blis_jax.metrics.measure import Measure, read_targets, read_window, window_of
from blis_jax.metrics.scalars import evaluate
from blis_jax.metrics.summaries import Window
from blis_jax.reports.render import WIDTH
from blis_jax.results.dataset import load, save
from blis_jax.runs import driver
from blis_jax.statistics.pooled import values_of
from sweeps.strategies.arms import arm_of
from sweeps.strategies.file import parse_strategy
from sweeps.strategies.space import space_of
from sweeps.sweep import command as sweep
from sweeps.sweep import execution as sweep_run
from sweeps.sweep.data import CURVE, INVARIANTS, LEVELS, NOT_RUN, Summarizer
from sweeps.sweep.plan import make_plan
from sweeps.sweep.report import window_line
from tests.support.damages import damaged
from tests.support.findings_forms import assert_all_forms_agree, shown_findings
from tests.support.report_page import embedded, marks, row, rows
from tests.support.tiny_records import whole_run

WORKLOAD = """\
version: "2"
aggregate_rate: 500.0
num_requests: 40
clients:
  - {id: fast, slo_class: critical, rate_fraction: 0.5, arrival: {process: poisson},
     input_distribution: &len {type: gaussian, params: {mean: 256, std_dev: 50, min: 32, max: 512}},
     output_distribution: {type: constant, params: {value: 6}}}
  - {id: slow, slo_class: sheddable, rate_fraction: 0.5, arrival: {process: poisson},
     input_distribution: *len, output_distribution: {type: constant, params: {value: 6}}}
"""
STRATEGY = """\
name: plain
mechanism: {num_instances: 2, scheduler: priority-fcfs, priority_policy: slo-tiered}
"""


def test_points_are_compared_with_the_first_strategy_at_their_place() -> None:
    grid = ["num_instances=2:4:2"]
    two, alone = make_plan(grid=grid), make_plan(strategies=["baseline"], grid=grid)
    assert [two.reference_of(point) for point in range(4)] == [0, 1, 0, 1]
    assert [two.labels(point) for point in two.points[2:]] == [
        ("it08_opt", "num_instances=2"),
        ("it08_opt", "num_instances=4"),
    ]
    assert [alone.reference_of(point) for point in range(2)] == [0, 0]
    assert alone.labels(alone.points[1]) == ("num_instances=4", "")


@pytest.fixture
def place(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A folder with a small workload and a strategy; calls of one row, so that one program serves."""
    (tmp_path / "tiny.yaml").write_text(WORKLOAD)
    (tmp_path / "plain.yaml").write_text(STRATEGY)
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(driver, "ROWS_PER_CALL", 1)
    return tmp_path


TINY = ("--workload", "tiny.yaml", "--strategy", "plain.yaml", "--vmap-seeds", "4")
BUDGETS = ("--grid", "max_num_scheduled_tokens=256:512:256", "--figure", "none")


def run(*words: str) -> int:
    return sweep.main(words)


def figures(path: str) -> xr.Dataset:
    """What must not depend on how often a sweep was interrupted."""
    return load(path).drop_attrs()


# --- strategies and plans -------------------------------------------------------------------------


@pytest.mark.golden
@pytest.mark.parametrize(
    ("name", "scenario"),
    [
        ("baseline", "it00_baseline_s42"),
        ("iter00_baseline", "it00_baseline_s42"),
        ("it08_opt", "it08_opt_s44"),
        ("iter08_token_budget@published", "it08_opt_s44"),
    ],
)
def test_strategies_are_those_of_the_record(golden_dir: Path, name: str, scenario: str) -> None:
    path = golden_dir / "scheduling" / "scenarios" / f"{scenario}.json"
    assert arm_of(name).config == from_flags(json.loads(path.read_text())["config"])


def test_yaml_numbers_become_the_settings_type() -> None:
    strategy = parse_strategy("name: a\nmechanism: {slo_age_weight: 1e-4}", "a.yaml")
    assert space_of(strategy).base.slo_age_weight == 1e-4


def test_a_file_that_names_a_model_has_its_fit(tmp_path: Path) -> None:
    """Coefficients and KV blocks are those that BLIS takes for the model, GPU and TP."""
    path, model = tmp_path / "a.yaml", "qwen/qwen2.5-7b-instruct"
    path.write_text(f"name: a\nmechanism: {{model: {model}, hardware: H100, tp: 1}}")
    named, usual = lookup(model, "H100", 1), lookup(model)
    plans = (
        (named, make_plan(strategies=[str(path)])),
        (usual, make_plan(strategies=["baseline"], settings=[f"model={model}"])),
        (usual, make_plan(strategies=["baseline"], grid=[f"model={model}"])),
        (named, make_plan(strategies=[f"baseline:model={model};hardware=H100;tp=1"])),
    )
    for fit, plan in plans:
        config = plan.points[0].config
        assert (config.alpha_coeffs, config.beta_coeffs) == (fit.alpha, fit.beta)
        assert config.total_kv_blocks == fit.total_kv_blocks != ClusterConfig.total_kv_blocks
    ours = "name: a\nmechanism: {model: my/own, alpha_coeffs: [1, 2, 3], beta_coeffs: [4, 5, 6]}"
    assert space_of(parse_strategy(ours, "a.yaml")).base.beta_coeffs == (4, 5, 6)


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("mechanism: {}", "name"),
        ("name: a\nsettings: {}\nmechanism: {}", "settings: mechanism is given too"),
        ("name: a\nmechanism: {numinstances: 2}", "did you mean 'num_instances'"),
        ("name: a\nmechanism: {num_instances: 0}", "a.yaml: mechanism: num_instances must be"),
        ("name: a\nmechanism: {}\nbounds: {}", "bounds: the key is unknown"),
        ("- 1", "top level is a list"),
    ],
)
def test_bad_strategies_are_refused(text: str, words: str) -> None:
    with pytest.raises(ConfigError, match=words):
        space_of(parse_strategy(text, "a.yaml"))


def test_a_grid_is_every_combination() -> None:
    plan = make_plan(
        grid=["slo_age_weight=1e-5,1e-4", "max_num_scheduled_tokens=512:2048:512"],
        rates="1000,2000",
        settings=["workload.clients.critical.arrival.cv=1.5", "num-instances=4"],
        seeds=range(3),
    )
    assert plan.shape == (2, 2, 4, 2, 3)
    assert len(plan.points) == 32
    last = plan.points[-1]
    assert last.place == {
        "slo_age_weight": 1e-4,
        "max_num_scheduled_tokens": 2048,
        "workload.aggregate_rate": 2000,
    }
    assert (last.config.slo_age_weight, last.config.max_num_scheduled_tokens) == (1e-4, 2048)
    assert last.config.num_instances == 4
    assert (last.spec.aggregate_rate, last.spec.clients[0].arrival.cv) == (2000, 1.5)
    assert len({point.fingerprint for point in plan.points}) == 32


def test_texts_with_commas_are_kept_together() -> None:
    plan = make_plan(grid=["routing_scorers=queue-depth:1,kv-utilization:2;queue-depth:1"])
    assert plan.axes[0].values == ("queue-depth:1,kv-utilization:2", "queue-depth:1")


# --- measuring ------------------------------------------------------------------------------------


def test_targets_replace_the_defaults() -> None:
    targets = read_targets(["critical.ttft_ms=80", "standard.ttft_ms=none", "batch.e2e_ms=5e3"])
    assert targets["critical"] == {"ttft_ms": 80}
    assert targets["standard"] == {}
    assert targets["batch"] == {"e2e_ms": 5000}
    assert Measure(targets).slo_targets().by_class["critical"].ttft_ms == 80


def test_the_window_leaves_out_both_ends() -> None:
    record = whole_run()
    last = int(record.requests.arrival_us.max())
    assert window_of(Measure(), record) == Window()
    assert window_of(Measure(warm_up_s=1e-6), record) == Window(1)
    assert window_of(Measure(cool_down_s=1e-6), record) == Window(0, last - 1)
    spec = make_plan("stationary").requests.source
    assert read_window(None, spec) == (4.0, 2.0)
    assert read_window("0,1.5", spec) == (0.0, 1.5)


def test_a_saved_window_says_what_its_rates_count() -> None:
    """Earlier versions counted arrivals; the text differs, so their files are not gone on with."""
    assert json.loads(Measure().texts()["measure"]) == {"warm_up_s": 0.0, "cool_down_s": 0.0}
    text = Measure(warm_up_s=4.0).texts()["measure"]
    assert json.loads(text)["rates"] == "completions in the window"
    assert "throughput and goodput count what completes in the time between" in window_line(text)
    assert "All arrivals are measured" in window_line(Measure().texts()["measure"])


def test_a_row_holds_the_metrics_of_its_record(place: Path) -> None:
    spec = make_plan("tiny.yaml").requests.source
    summarizer = Summarizer([spec], Measure())
    assert summarizer.classes == ("all", "critical", "sheddable")
    record = whole_run()
    row = summarizer(record)
    names = ("ttft_p99_ms", "ttft_mean_ms", "output_tokens_per_s", "ttft_p50_ms[critical]")
    expected = evaluate(record, names)
    assert row["ttft_ms"][0, 3] == expected["ttft_p99_ms"]
    assert row["ttft_mean_ms"][0] == expected["ttft_mean_ms"]
    assert row["output_tokens_per_s"][0] == expected["output_tokens_per_s"]
    np.testing.assert_equal(float(row["ttft_ms"][1, 0]), expected["ttft_p50_ms[critical]"])
    assert row["outcome"] == record.outcome


# --- the command ----------------------------------------------------------------------------------


def test_a_comparison(
    place: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    seen = shown_findings(monkeypatch)
    second = STRATEGY.replace("plain", "short").replace("2,", "2, max_num_scheduled_tokens: 256,")
    (place / "short.yaml").write_text(second)
    reports = ("--report", "a.html", "--timeline", "a.json")
    assert run(*TINY, "--strategy", "short.yaml", "--output", "a.nc", "--all", *reports) == 0
    assert_all_forms_agree(*seen)
    printed = capsys.readouterr()
    assert printed.err == ""
    assert max(map(len, printed.out.splitlines())) <= WIDTH
    for words in (
        "asked: does short beat plain in time to first token (p99)?",
        "8 runs. ",
        "workload tiny.yaml, 4 seeds (0 to 3)",
        "ttft p99 pooled, ms",
        "ttft p99 by run, ms",
        "p99 pooled is the 99th percentile of the requests of all runs together",
        "critical ttft ≤ 100 ms",
        "what comes once in 2 seeds, such as far longer waits, is missing from 4 in 5 % of cases",
        "outcomes of 8 runs: plain 4 completed; short 4 completed.",
        "ties:",
        f"invariants: {len(INVARIANTS)} checked in every run, none broken.",
    ):
        assert words in " ".join(printed.out.lower().split()), words
    dataset = load("a.nc")
    assert dict(dataset["outcome"].sizes) == {"strategy": 2, "seed": 4}
    assert dataset["ttft_ms"].dims == ("strategy", "seed", "slo_class", "quantile")
    assert dataset[CURVE].sizes["level"] == len(LEVELS)
    assert dataset["ttft_ms"].attrs["units"] == "ms"
    assert int(dataset["num_requests"].sel(slo_class="all").min()) == 40
    for name in ("package_version", "jax_version", "profile", "device", "command", "clock"):
        assert dataset.attrs[name]
    assert "aggregate_rate: 500.0" in dataset.attrs["spec"]
    assert json.loads(dataset.attrs["policies"])["short"]["max_num_scheduled_tokens"] == 256
    assert json.loads(dataset.attrs["outcome_counts"]) == {"completed": 8}
    assert set(json.loads(dataset.attrs["invariant_violation_counts"]).values()) == {0}
    assert json.loads(dataset.attrs["seeds"]) == [0, 1, 2, 3]
    assert (place / "a.png").read_bytes().startswith(b"\x89PNG")
    assert_the_page_has_the_numbers_of(dataset, place / "a.html")
    assert_the_page_judges_as(printed.out, place / "a.html")
    traced = json.loads((place / "a.json").read_text())["traceEvents"]
    names = [event["args"]["name"] for event in traced if event["name"] == "process_name"]
    assert [name for name in names if name.endswith("instance 1")] == [
        "plain: instance 1",
        "short: instance 1",
    ]


def test_seeds_are_added_until_the_verdict_is_safe(
    place: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """9 ms more for each request show on 20 seeds; and so does that nothing differs at all."""
    settings = "{alpha_coeffs: [9000.0, 1.0, 0.0], num_instances: 2"
    slow = STRATEGY.replace("plain", "slow").replace("{num_instances: 2", settings)
    (place / "slow.yaml").write_text(slow)
    (place / "same.yaml").write_text(STRATEGY.replace("plain", "same"))
    words = (
        *TINY[:-2],
        "--strategy",
        "slow.yaml",
        "--deciding",
        "ttft_mean_ms",
        "--figure",
        "none",
    )
    assert run(*words, "--decide", "--json", "--output", "a.zarr") == 0
    printed = json.loads(capsys.readouterr().out)
    assert printed["seeds"] == list(range(20))
    assert "anytime-valid" in printed["inference"]["intervals"]
    assert "worse" in printed["enough_seeds"][1]
    words = (
        *TINY[:-2],
        "--strategy",
        "same.yaml",
        "--deciding",
        "ttft_mean_ms",
        "--figure",
        "none",
    )
    page = ("--report", "b.html")
    assert (
        run(
            *words,
            "--decide",
            "--precision",
            "1%",
            "--output",
            "b.zarr",
            "--all",
            "--explain",
            *page,
        )
        == 0
    )
    said = capsys.readouterr().out
    assert "same, TTFT mean of all requests: +0.00 [+0.00, +0.00] %, same" in said
    assert "anytime-valid paired t-test by seed" in said
    assert_the_page_judges_as(said, place / "b.html")


def test_a_sweep_that_goes_on_looks_where_it_looked_before(
    place: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    settings = "{alpha_coeffs: [1000.0, 1.0, 0.0], num_instances: 2"
    slow = STRATEGY.replace("plain", "slow").replace("{num_instances: 2", settings)
    (place / "slow.yaml").write_text(slow)
    words = (
        *TINY[:-2], "--strategy", "slow.yaml", "--figure", "none", "--json", "--output", "a.zarr",
        "--precision", "0.01%", "--most-seeds", "30",
    )  # fmt: skip
    said = []
    for more in [(), ("--resume",)]:
        assert run(*words, *more) == 0
        said.append(json.loads(capsys.readouterr().out)["enough_seeds"])
    assert said[0] == said[1] and "Looks at 20, 30; then no more seeds" in said[0][0]
    assert (
        run(*words[:-4], "--precision", "50%", "--resume") == 0
    )  # enough sooner, but 30 are there
    line, *_ = json.loads(capsys.readouterr().out)["enough_seeds"]
    assert line.startswith("30 seeds: ") and "Looks at 30; then every difference is" in line


def assert_the_page_judges_as(printed: str, path: Path) -> None:
    """The same sentence on verdicts, and an interval beside each that holds 0 where nothing is found."""
    page = html.unescape(re.sub(r"<[^>]+>", " ", path.read_text(encoding="utf-8")))
    sentences = [
        re.findall(r"They are \d+ comparisons: [^.]*\. P-values: [^.]*\.", " ".join(text.split()))
        for text in (printed, page)
    ]
    assert len(sentences[0]) == 1 and sentences[0][0] in sentences[1]
    method = re.search(r"intervals: ([^.;]* 95 %)[.;:]", " ".join(printed.split()))
    assert method is not None and method[1] in page and "stands for itself" not in page
    content = embedded(path)
    shown = rows(content, "differences")
    (head,) = [column for column in shown[0] if column.startswith("in %") and "all" in column]
    for one in shown:
        low, high = (one[head].get(end) for end in ("low", "high"))
        if one["verdict"] in ("better", "worse", "unclear") and low is not None:
            assert (low <= 0 <= high) if one["verdict"] == "unclear" else (low >= 0 or high <= 0)


def assert_the_page_has_the_numbers_of(dataset: xr.Dataset, path: Path) -> None:
    """Differences and values of the Dataset; and the runs made again are the Dataset's."""
    content = embedded(path)
    p99 = values_of(dataset, "ttft_p99_ms").sel(slo_class="critical")
    change = (p99.sel(strategy="short") - p99.sel(strategy="plain")).values
    found = row(content, "differences", metric="TTFT P99 by run, ms", **{"class": "critical"})
    (head,) = [
        column for column in found if column.startswith("difference [") and "all" not in column
    ]
    assert found[head]["mean"] == pytest.approx(change.mean())
    (apart,) = marks(content, "TTFT P99 by run, ms: diff", "short − plain", "critical")
    assert apart["y"] == pytest.approx(change.tolist()) and apart["x"] == [0, 1, 2, 3]
    curves = dataset[CURVE].sel(strategy="short", slo_class="sheddable").transpose("seed", "level")
    share = [
        one["title"] for one in content["pictures"][0]["panels"] if "sheddable" in one["title"]
    ]
    drawn = marks(content, "Time to first token by SLO class", *share)
    assert any(one["x"] == pytest.approx(curves.mean("seed").values) for one in drawn)
    parts = [one for of in content["pictures"] if "spent on" in of["title"] for one in of["panels"]]
    (whole,) = [one for one in parts if one["title"] == "all requests, mean"]
    again = dataset["ttft_mean_ms"].sel(strategy="short", slo_class="all").values.mean()
    assert sum(one["length"][0] for one in whole["marks"] if one["y"] == [1]) == pytest.approx(
        again
    )


def test_an_interrupted_sweep_resumes_to_the_same_result(
    place: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    assert run(*TINY, *BUDGETS, "--output", "whole.zarr", "--quiet") == 0
    keep = sweep_run._Keeper.keep
    rows: list[int] = []

    def counted(keeper: Any, point: int, seed: int, row: np.ndarray) -> None:
        keep(keeper, point, seed, row)
        rows.append(seed)
        if len(rows) == 3:
            raise KeyboardInterrupt

    monkeypatch.setattr(sweep_run._Keeper, "keep", counted)
    assert run(*TINY, *BUDGETS, "--output", "part.zarr", "--quiet") == cli.EXIT_INTERRUPTED
    assert "--resume goes on" in capsys.readouterr().err
    part = load("part.zarr")
    assert json.loads(part.attrs["outcome_counts"]) == {"not_run": 5, "completed": 3}
    assert int(np.isnan(part["ttft_mean_ms"].sel(slo_class="all")).sum()) == 5

    assert run(*TINY, *BUDGETS, "--output", "part.zarr", "--quiet") == cli.EXIT_BAD_INPUT
    assert "part.zarr exists" in capsys.readouterr().err
    assert run(*TINY, *BUDGETS, "--output", "part.zarr", "--resume", "--json") == 0
    assert len(rows) == 3 + 5
    xr.testing.assert_identical(figures("part.zarr"), figures("whole.zarr"))

    document = json.loads(capsys.readouterr().out)
    assert document["outcomes"] == {"plain": {"completed": 8}}
    names = ["max_num_scheduled_tokens=256", "max_num_scheduled_tokens=512"]
    assert [arm["name"] for arm in document["arms"]] == names
    (change,) = [
        entry for entry in document["comparisons"]
        if (entry["class"], entry["metric"]) == ("critical", "ttft_p99_ms")
    ]  # fmt: skip
    assert [change["reference"], change["arm"]] == names and change["num_pairs"] == 4
    whole = figures("whole.zarr").isel(strategy=0, max_num_scheduled_tokens=0)
    tail = whole["ttft_ms"].sel(slo_class="critical", quantile=0.99).mean("seed").item()
    (panel,) = [one for one in document["picture"]["panels"] if one["title"].startswith("critical")]
    assert [pytest.approx(tail)] in [mark["x"] for mark in panel["marks"] if mark["y"] == [99.0]]

    # more seeds take over what is there; fewer would lose rows; other settings are another sweep
    more = (*TINY[:-1], "5", *BUDGETS, "--output", "part.zarr", "--resume", "--quiet")
    assert run(*more) == 0
    assert len(rows) == 3 + 5 + 2
    fewer = (*TINY[:-1], "2", *BUDGETS, "--output", "part.zarr", "--resume")
    assert run(*fewer) == cli.EXIT_BAD_INPUT
    assert "would be lost" in capsys.readouterr().err
    assert run(*more, "--targets", "critical.ttft_ms=9") == cli.EXIT_BAD_INPUT
    assert "was made with different --targets" in capsys.readouterr().err
    assert run(*more, "--set", "routing_latency=3") == cli.EXIT_BAD_INPUT


def test_the_default_output_may_be_made_again_but_not_lost(
    place: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    few = (*TINY[:-1], "1", "--quiet")
    assert run(*few) == 0
    assert load("out/sweep.zarr").attrs["created"]
    assert run(*few) == 0
    created = load("out/sweep.zarr").attrs["created"]
    capsys.readouterr()
    assert run(*few, "--seeds", "7") == 0
    said = capsys.readouterr().err
    assert "out/sweep.zarr holds another result; this one goes to out/sweep-2.zarr" in said
    assert load("out/sweep-2.zarr")["seed"].values.tolist() == [7]
    assert load("out/sweep.zarr").attrs["created"] == created
    assert run(*few, "--seeds", "7", "--overwrite") == 0
    assert load("out/sweep.zarr")["seed"].values.tolist() == [7]


def test_rows_that_do_not_end_are_said_and_have_no_figures(
    place: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    options = sweep_run.How.options

    def hopeless(how: sweep_run.How) -> Any:
        from dataclasses import replace

        return replace(options(how), max_scan_steps=64)

    monkeypatch.setattr(sweep_run.How, "options", hopeless)
    assert run(*TINY, "--output", "cut.zarr") == cli.EXIT_UNSUPPORTED
    printed = capsys.readouterr()
    assert "4 × iterations_exhausted" in printed.out
    assert "no run finished" in printed.err
    assert not (place / "cut.png").exists()
    assert np.isnan(load("cut.zarr")["ttft_mean_ms"]).all()


BAD = [
    (("--vmap-seeds", "0"), "allowed is 1 to 1000000"),
    (("--vmap-seeds", "many"), "not a whole number"),
    (("--vmap-seeds",), "a value must follow"),
    (("--seeds", "1,x"), "neither a number of seeds nor a list"),
    (("--seeds=-1",), "allowed is 1 to 1000000"),
    (("--first-seed=-1",), "out of range"),
    (("--first-seed", "4294967295"), "out of range"),
    (("--seeds", "1,1"), "given twice"),
    (("--rng", "reference"), "blis-jax run --seed"),
    (("--rng", "go"), "use one of jax"),
    (("--seeds", "1,2", "--vmap-seeds", "3"), "lists 2 seeds"),
    (("--workload", "mixd"), "--workload: 'mixd' is neither a file"),
    (("--workload", "none.yaml"), "neither a file"),
    (("--strategy", "it8_opt"), "did you mean 'it08_opt'"),
    (("--strategy", "iter0_baseline"), "did you mean 'iter00_baseline'"),
    (("--strategy", "none.yaml"), "does not exist"),
    (("--strategy", "baseline", "--strategy", "baseline"), "given twice"),
    (("--set", "num_instances"), "is not KEY=VALUE"),
    (("--set", "num_instance=2"), "did you mean 'num_instances'"),
    (("--set", "num_instances=two"), "not a whole number"),
    (("--set", "num_instances=0"), "between 1 and"),
    (("--set", "workload.clients.gold.rate_fraction=1"), "does not exist"),
    (("--set", "workload.clients=1"), "is not one value"),
    (("--set", "workload.num_requests=-1"), "num_requests"),
    (("--set", "tp=1", "--grid", "tp=1,2"), "given twice"),
    (("--grid", "slo_age_weight=0:1:0"), "is empty"),
    (("--grid", "slo_age_weight=0:inf:1"), "not finite"),
    (("--grid", "slo_age_weight=0:1:1e-9"), "more than 10000 values"),
    (("--grid", "slo_age_weight=1,1.0"), "given twice"),
    (("--grid", "scheduler=fcfs,lifo"), "'lifo' is not known"),
    (("--grid", "num_instances=1:64:1", "--grid", "tp=1:99:1"), "allowed are 1000000"),
    (("--rate", "0"), "greater than 0"),
    (("--targets", "critical=80"), "is not CLASS.LIMIT=MS"),
    (("--targets", "gold.ttft_ms=80"), "SLO class 'gold' is unknown"),
    (("--targets", "critical.ttft_ms=0"), "above 0"),
    (("--window", "4"), "is not WARM_UP,COOL_DOWN"),
    (("--window", "1,1"), "leave nothing"),
    (("--window=-1,0",), "at least 0"),
    (("--output", "a.csv"), "must end in .zarr or .nc"),
    (("--figure", "a.svg"), "must end in .png"),
    (("--report", "a.pdf"), "must end in .html"),
    (("--clock", "int16"), "not known"),
    (("--device", "tpu"), "not known"),
    (("--slots", "0"), "allowed is 1 to 8192"),
    (("--resume", "--overwrite"), "contradict"),
    (("--vmap_seeds", "4"), "unknown option"),
    (("4",), "strategy '4' is unknown"),
]


@pytest.mark.parametrize(("words", "sentence"), BAD, ids=[" ".join(words) for words, _ in BAD])
def test_bad_input_is_one_sentence(
    place: Path, capsys: pytest.CaptureFixture[str], words: tuple[str, ...], sentence: str
) -> None:
    assert run(*words) == cli.EXIT_BAD_INPUT
    printed = capsys.readouterr()
    assert printed.out == ""
    assert sentence in printed.err
    assert printed.err.startswith("blis_jax.sweep: error: ")
    assert printed.err.count("\n") == 1
    assert {path.name for path in place.iterdir()} <= {"tiny.yaml", "plain.yaml", "out"}


def test_a_damaged_output_is_not_resumed(place: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (place / "a.nc").write_text("nothing")
    assert run(*TINY, "--output", "a.nc", "--resume") == cli.EXIT_BAD_INPUT
    assert "cannot be read" in capsys.readouterr().err


def test_a_sweep_that_lost_a_piece_is_not_gone_on_with(
    place: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    words = (*TINY[:-1], "1", "--output", "a.zarr", "--figure", "none", "--quiet")
    assert run(*words) == 0
    for piece in ("zarr.json", "ttft_ms/c/0/0/0/0"):
        with damaged(Path("a.zarr"), piece, "deleted"):
            assert run(*words, "--resume") == cli.EXIT_BAD_INPUT
        again = f"make it again: python -m blis_jax.sweep {' '.join(words)} --overwrite"
        said = f"blis_jax.sweep: error: a.zarr is damaged: {piece} is missing; {again}\n"
        assert capsys.readouterr().err == said
    assert run(*words, "--resume") == 0


def test_a_sweep_of_the_first_format_is_gone_on_with(
    place: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    words = (*TINY[:-1], "1", "--output", "a.zarr", "--figure", "none", "--quiet")
    assert run(*words) == 0
    made = load("a.zarr")
    old = made.copy(deep=True)
    del old.attrs["kind"], old.attrs["format"]
    meanings = old["outcome"].attrs["flag_meanings"]
    old["outcome"].attrs = {"flag_meanings": meanings, "first_flag": NOT_RUN}
    save(old, "a.zarr")
    assert run(*words, "--resume") == 0
    assert load("a.zarr").attrs["kind"] == "sweep"
    xr.testing.assert_identical(figures("a.zarr"), made.drop_attrs())
    save(made.assign_attrs(kind="runs"), "a.zarr")
    assert run(*words, "--resume") == cli.EXIT_BAD_INPUT
    assert "a.zarr is something else; give a sweep" in capsys.readouterr().err


def test_help_and_refusals_do_not_import_jax() -> None:
    program = """
import sys
from sweeps.sweep import command as sweep
try:
    sweep.main(["--help"])
except SystemExit as end:
    assert end.code == 0
assert not {"jax", "xarray", "matplotlib", "yaml"} & set(sys.modules)
for words in (["--bogus"], ["--workload", "x"], ["--set", "tp=x"], ["--grid", "tp=1:0:1"]):
    assert sweep.main(words) == 2, words
assert not {"jax", "xarray", "matplotlib"} & set(sys.modules)
"""
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    assert "--seeds N|A,B,…" in done.stdout
    assert "examples:" in done.stdout
