"""The command at a tiny size: verdicts, components, criteria, failures, resume, refusals."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from blis_jax.cluster.config import ClusterConfig
from blis_jax.core.outcome import Outcome
from blis_jax.metrics.run_summary import Overtaking, RequestFigures, RunSummary, read_summary
from blis_jax.reports.answers import metric_title
from blis_jax.reports.render import WIDTH, text
from sweeps.compare.__main__ import main
from sweeps.compare.report import idle_lines
from sweeps.compare.study import findings_of
from sweeps.runs.experiment import Experiment
from tests.support.browser import opened
from tests.support.findings_forms import assert_all_forms_agree
from tests.support.report_page import embedded, marks, row, rows
from tests.sweeps.busy import SMALL, result, write_strategies
from tests.sweeps.tiny import change_runs, interrupted_calls


def compare(folder: Path, *words: str) -> int:
    return main([*words, "--output", str(folder / "out.json")])


@pytest.fixture(scope="module")
def whole(tmp_path_factory: pytest.TempPathFactory) -> tuple[dict[str, Any], Path]:
    """Three arms on 16 seeds, the third the same as the second."""
    folder = tmp_path_factory.mktemp("whole")
    plain, priority = write_strategies(folder)
    words = [f"base={plain}", f"priority={priority}", f"twin={priority}:slo_priority_bridge=false"]
    reports = ["--report", str(folder / "out.html"), "--timeline", str(folder / "trace.json")]
    assert compare(folder, *words, *SMALL, *reports) == 0
    return result(folder), folder


def one(document: dict[str, Any], arm: str, slo_class: str, metric: str) -> dict[str, Any]:
    (found,) = [
        entry
        for entry in document["comparisons"]
        if (entry["arm"], entry["class"], entry["metric"]) == (arm, slo_class, metric)
    ]
    return dict(found)


def test_who_gains_and_who_loses(whole: tuple[dict[str, Any], Path]) -> None:
    document, _ = whole
    critical = one(document, "priority", "critical", "ttft_p99_ms")
    sheddable = one(document, "priority", "sheddable", "ttft_p99_ms")
    assert critical["verdict"] == "better" and critical["simultaneous"]["high"] < 0
    assert sheddable["verdict"] == "worse" and sheddable["num_pairs"] == 16
    assert critical["difference"]["method"] == "bootstrap (BCa)"
    assert document["inference"]["family_size"] == 2 * (3 * 7 + 2) == len(document["comparisons"])


def test_figures_are_those_of_single_seeds(whole: tuple[dict[str, Any], Path]) -> None:
    document, _ = whole
    figures = {arm["name"]: arm["figures"]["critical"]["ttft_p99_ms"] for arm in document["arms"]}
    pairs = zip(figures["base"]["per_seed"], figures["priority"]["per_seed"], strict=True)
    changes = [after - before for before, after in pairs]
    entry = one(document, "priority", "critical", "ttft_p99_ms")
    assert entry["difference"]["mean"] == pytest.approx(sum(changes) / 16)
    base = figures["base"]["mean"]
    assert entry["percent"]["mean"] == pytest.approx(100 * sum(changes) / 16 / base)


def test_pooled_percentiles_are_of_all_requests(whole: tuple[dict[str, Any], Path]) -> None:
    """16 runs of 60 requests; each seed's part is kept, so that anybody can take the interval again."""
    document, _ = whole
    entry = one(document, "priority", "critical", "pooled_ttft_p99_ms")
    by_run = one(document, "priority", "critical", "ttft_p99_ms")
    # by run these seeds are enough; a pooled percentile asks more of so few
    assert entry["num_pairs"] == 16 and entry["verdict"] == "unclear"
    assert entry["difference"]["mean"] < 0 and by_run["verdict"] == "better"
    assert entry["reference_mean"] > by_run["reference_mean"]
    figures = {arm["name"]: arm["figures"]["critical"] for arm in document["arms"]}
    parts = [figures[name]["pooled_ttft_p99_ms"]["per_seed"] for name in ("base", "priority")]
    assert sum(parts[0]) / 16 == pytest.approx(entry["reference_mean"])
    change = [after - before for before, after in zip(*parts, strict=True)]
    assert sum(change) / 16 == pytest.approx(entry["difference"]["mean"])


def test_components_add_up_to_the_reported_number(whole: tuple[dict[str, Any], Path]) -> None:
    document, _ = whole
    for arm in document["arms"]:
        for slo_class, views in arm["ttft_parts"].items():
            for view, metric in (("mean", "ttft_mean_ms"), ("p99", "ttft_p99_ms")):
                whole_ms = arm["figures"][slo_class][metric]["mean"]
                assert sum(views[view]["parts"].values()) == pytest.approx(whole_ms)
                assert sum(views[view]["groups"].values()) == pytest.approx(whole_ms)
    for change in document["ttft_changes"]:
        assert sum(change["groups"].values()) == pytest.approx(change["total"], abs=1e-9)
    (critical,) = [
        one
        for one in document["ttft_changes"]
        if (one["arm"], one["class"], one["view"]) == ("priority", "critical", "p99")
    ]
    assert critical["groups"]["waiting"] < 0
    entry = one(document, "priority", "critical", "ttft_p99_ms")
    assert critical["total"] == pytest.approx(entry["difference"]["mean"])


def test_the_twin_is_the_same(whole: tuple[dict[str, Any], Path]) -> None:
    document, _ = whole
    same = {arm["name"]: arm["same_as"] for arm in document["arms"]}
    assert same == {"base": [], "priority": ["twin"], "twin": ["priority"]}
    inert = {
        arm["name"]: [m["feature"] for m in arm["mechanisms"] if m["status"] == "inert"]
        for arm in document["arms"]
    }
    assert "priority bridge" in inert["priority"] and "priority bridge" not in inert["twin"]
    assert "CPU KV tier" in inert["base"]


def test_criteria_and_ageing(whole: tuple[dict[str, Any], Path]) -> None:
    document, _ = whole
    asked = [entry for entry in document["criteria"] if entry["is_asked"]]
    assert len(asked) == 4  # two criteria, two arms
    change = next(entry for entry in asked if "change_percent" in entry)
    assert change["is_met"] and change["is_sure"] and change["num_seeds_met"] == 16
    others = [entry for entry in document["criteria"] if not entry["is_asked"]]
    assert not next(entry for entry in others if entry["class"] == "sheddable")["is_met"]
    base, priority, _ = document["arms"]
    assert base["crossovers"][0]["observed"]["num_overtaking"] > 0
    assert priority["crossovers"][0]["age_us"] == pytest.approx(1.1e6)
    assert priority["crossovers"][0]["observed"]["num_overtaking"] == 0


def test_words_and_figure(
    whole: tuple[dict[str, Any], Path], capsys: pytest.CaptureFixture[str]
) -> None:
    from blis_jax.reports.render import show

    document, folder = whole
    show(findings_of(document))
    said = " ".join(capsys.readouterr().out.split())
    asked = "Asked: Do priority and twin beat base in time to first token (pooled P99)? Workload"
    cluster = "Cluster: llama-3.1-8b-instruct; 2 × 2 H100 = 4 GPUs; budget"
    assert said.startswith(cluster) and asked in said
    words = "not told from chance: critical −"
    verdict, sure = said.index(f" Verdict: priority: {words}"), said.index(" Sure: 95 %")
    assert verdict < said.index(" sheddable +") < said.index(f" twin: {words}") < sure
    show(findings_of(document), has_all=True)
    lines = capsys.readouterr().out.splitlines()
    assert max(map(len, lines)) <= WIDTH
    said = " ".join(" ".join(lines).split())
    for part in (
        "CPU KV tier is required by the strategy, but inert: nothing was offloaded",
        "priority and twin are the same",
        "sheddable overtakes critical from an age of 1.1 s",
        "in fact none did",
        "waiting",
        "bootstrap of the seeds (BCa, 199 resamples), 95 %",
        "They are 46 comparisons",
        "met (16 of 16 seeds)",
        "(beyond the criteria)",
    ):
        assert part in said, part
    assert document["answer"] == findings_of(document).answer.to_json()
    assert (folder / "out.png").read_bytes().startswith(b"\x89PNG")


def test_all_forms_have_the_same_numbers(whole: tuple[dict[str, Any], Path]) -> None:
    assert_all_forms_agree(findings_of(whole[0]))


def test_printed_intervals_are_those_behind_the_verdict(whole: tuple[dict[str, Any], Path]) -> None:
    """By itself a difference may leave out 0 that does not among all: unclear, with an interval that holds 0."""
    document = json.loads(json.dumps(whole[0]))
    entry = dict(document["comparisons"][0], verdict="better", arm="made")
    for name, low, high in (
        ("difference", -7.7, -1.1), ("percent", -6.6, -2.2),
        ("simultaneous", -9.9, 3.3), ("simultaneous_percent", -8.8, 4.4),
    ):  # fmt: skip
        entry[name] = {"mean": -5.5, "low": low, "high": high, "method": ""}
    document["comparisons"] = [entry]
    found = findings_of(document)
    assert "−5.50 [−8.80, +4.40]" in text(found) and "−6.60" not in text(found)
    assert "−5.50 [−9.90, +3.30]" in text(found, has_all=True)
    entry["simultaneous_percent"]["high"] = None  # infinite
    assert "[−8.80, ∞]" in text(findings_of(document))


def test_each_throughput_has_a_name_and_a_definition_of_its_own(
    whole: tuple[dict[str, Any], Path],
) -> None:
    from blis_jax.metrics.scalars import metric_names
    from blis_jax.reports.words import table_title

    names = [table_title(name) for name in metric_names()]
    assert len(set(names)) == len(names)
    assert table_title("tokens_per_sec") == "decode tokens/s"
    said = " ".join(text(findings_of(whole[0]), has_all=True).split())
    assert "output tokens/s counts all output tokens" in said
    assert "decode tokens/s is BLIS's tokens_per_sec" in said


def fail(
    monkeypatch: pytest.MonkeyPatch, should_fail: Callable[[ClusterConfig, int], bool]
) -> None:
    crash = RunSummary(Outcome.REFERENCE_CRASH)
    change_runs(
        monkeypatch, lambda config, place, run: crash if should_fail(config, place) else run
    )


def test_a_failed_seed_is_left_out_of_both_and_named(
    arms: tuple[str, str],
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    fail(monkeypatch, lambda config, place: config.scheduler != "fcfs" and place == 1)
    assert compare(tmp_path, *arms, *SMALL, "--inert", "records") == 0
    document = result(tmp_path)
    assert {entry["num_pairs"] for entry in document["comparisons"]} == {15}
    failure = document["arms"][1]["failure"]
    assert failure["code"] == "REFERENCE_CRASH" and failure["seeds"] == [43]
    said = " ".join(capsys.readouterr().out.split())  # lines are wrapped
    assert "on seed 43 the reference stops here" in said and "may flatter it" in said


def test_an_arm_without_any_run_stays_in_the_result(
    arms: tuple[str, str],
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    fail(monkeypatch, lambda config, _: config.scheduler != "fcfs")
    assert compare(tmp_path, *arms, *SMALL, "--inert", "records") == 3
    document = result(tmp_path)
    assert [arm["failure"] is None for arm in document["arms"]] == [True, False]
    assert {entry["num_pairs"] for entry in document["comparisons"]} == {0}
    assert all(
        entry["reached"]["mean"] is None or entry["num_seeds"] for entry in document["criteria"]
    )
    assert "it has no figures" in " ".join(capsys.readouterr().out.split())


def test_resumed_after_a_kill_equals_unkilled(
    arms: tuple[str, str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    words = [*arms, *SMALL, "--figure", "none", "--quiet"]
    assert compare(tmp_path, *words) == 0
    unkilled, journal = result(tmp_path), tmp_path / "out.jsonl"
    record = journal.read_bytes()
    with interrupted_calls(monkeypatch, 1):  # in the middle of the first arm
        assert compare(tmp_path, *words, "--overwrite") == 130
    assert record.count(b"\n") > journal.read_bytes().count(b"\n") == 2
    assert compare(tmp_path, *words, "--resume") == 0
    assert result(tmp_path) == unkilled and journal.read_bytes() == record
    monkeypatch.setattr(Experiment, "each", None)  # all is in the record
    assert compare(tmp_path, *words, "--resume") == 0
    assert result(tmp_path) == unkilled
    assert compare(tmp_path, *words[:2], "--num-seeds", "4", "--resume") == 2


def test_options(arms: tuple[str, str], tmp_path: Path) -> None:
    words = ["--rng", "jax", "--seeds", "5,9", "--num-requests", "30", "--quiet"]
    words += ["--metrics", "ttft_p99_ms,throughput_tps", "--targets", "critical.ttft_ms=1"]
    words += ["--criteria", arms[0], "--inert", "records", "--figure", "none"]
    assert compare(tmp_path, *arms, *words) == 0
    document = result(tmp_path)
    assert document["seeds"] == [5, 9] and document["rng"] == "jax"
    assert document["num_requests"] == 30 and document["targets"]["critical"] == {"ttft_ms": 1}
    names = {(entry["class"], entry["metric"]) for entry in document["comparisons"]}
    assert names == {
        ("all", "ttft_p99_ms"), ("critical", "ttft_p99_ms"), ("sheddable", "ttft_p99_ms"),
        ("all", "tokens_per_sec"),
    }  # fmt: skip
    assert "too few for a bootstrap" in document["inference"]["intervals"]


@pytest.mark.parametrize(
    ("words", "problem"),
    [
        (["--num-seeds", "0"], "--num-seeds: got 0"),
        (["--seeds", "1,2", "--first-seed", "3"], "--first-seed: --seeds lists the seeds"),
        (["--seeds", "1,x"], "--seeds: '1,x' is neither a number of seeds nor a list"),
        (["--seeds", "1,1"], "a seed is given twice"),
        (["--confidence", "1"], "--confidence: got 1"),
        (["--bootstrap", "5"], "--bootstrap: got 5"),
        (["--random-state=-1"], "--random-state: got -1"),
        (["--metrics", "ttft_p98_ms"], "--metrics: metric 'ttft_p98_ms' is unknown"),
        (["--targets", "critical=3"], "--targets: 'critical=3' is not CLASS.LIMIT=MS"),
        (["--workload", "nowhere.yaml"], "--workload: 'nowhere.yaml' is neither a file"),
        (["--criteria", "idea1_tiered"], "did you mean 'idea1_tiered_cascade'"),
        (["--num-requests", "0"], "--num-requests: got 0"),
        (["--inert", "no"], "--inert"),
        (["--resume", "--overwrite"], "contradict"),
        (["--figure", "a.pdf"], "--figure"),
    ],
)
def test_refusals_write_nothing(
    arms: tuple[str, str],
    tmp_path: Path,
    capsys: pytest.CaptureFixture[str],
    words: list[str],
    problem: str,
) -> None:
    before = sorted(tmp_path.iterdir())
    assert compare(tmp_path, *arms, *words) == 2
    said = capsys.readouterr().err
    assert problem in said and said.count("\n") == 1
    assert sorted(tmp_path.iterdir()) == before


@pytest.mark.parametrize("count", [0, 1])
def test_two_arms_are_needed(
    arms: tuple[str, str], tmp_path: Path, capsys: pytest.CaptureFixture[str], count: int
) -> None:
    assert compare(tmp_path, *arms[:count]) == 2
    assert f"--routers all; got {count}" in capsys.readouterr().err


def test_existing_results_are_kept(
    arms: tuple[str, str], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "out.json").write_text("mine")
    assert compare(tmp_path, *arms) == 2
    assert "exists; give --resume" in capsys.readouterr().err
    assert (tmp_path / "out.json").read_text() == "mine"


def test_measured_runs_survive_their_way_through_json() -> None:
    run = RunSummary(
        Outcome.HORIZON,
        {"a": 1.5},
        {"requests": 2},
        {"ttft": {"all": [1, 5]}},
        {"all": {"p99": [1.0]}},
        overtaking={"a>b": Overtaking(1, 2, 3, 4, None)},
        acted={"x": 1},
        fingerprint="f",
        requests=RequestFigures([1], [0], {"ttft": [2.5]}),
    )
    assert read_summary(json.loads(json.dumps(run.document()))) == run
    earlier = {"outcome": "COMPLETED", "metrics": {"a": 1.0}, "num_broken_invariants": 3}
    assert read_summary(earlier).num_broken_invariants == 3


@pytest.mark.slow
@pytest.mark.golden
def test_a_crash_of_the_reference_and_an_idle_adaptation(tmp_path: Path) -> None:
    """The record's row 7: with 2,000 blocks and a CPU tier the baseline crashes, iteration 5 does not;
    principle S7: adapting to load changes no request."""
    small = ":total_kv_blocks=2000;kv_cpu_blocks=666"
    tiered = "tiered=iter02_load_adaptive:priority_policy=slo-tiered"
    words = [f"best=iter05_simplified{small}", f"base=iter00_baseline{small}"]
    words += ["iter02_load_adaptive", tiered, "--seeds", "42,43,44", "--inert", "records"]
    assert compare(tmp_path, *words, "--figure", "none", "--quiet") == 0
    document = result(tmp_path)
    best, base, adaptive, twin = document["arms"]
    assert round(best["figures"]["critical"]["ttft_p99_ms"]["mean"], 1) == 99.5
    assert round(best["figures"]["sheddable"]["ttft_p99_ms"]["mean"], 1) == 543.2
    assert best["acted"]["num_preemptions"] == 16 + 33 + 34
    assert base["failure"]["by_code"] == {"REFERENCE_CRASH": [42, 43, 44]}
    assert adaptive["same_as"] == ["tiered"] and twin["same_as"] == ["iter02_load_adaptive"]
    pairs = {entry["arm"]: entry["num_pairs"] for entry in document["comparisons"]}
    assert pairs == {"base": 0, "iter02_load_adaptive": 3, "tiered": 3}


SHORT_ANSWERS = """
version: "1"
aggregate_rate: 20.0
num_requests: 12
clients:
  - id: all
    slo_class: standard
    rate_fraction: 1.0
    arrival: {process: poisson}
    input_distribution: {type: constant, params: {value: 50}}
    output_distribution: {type: constant, params: {value: 5}}
"""


def test_the_doubled_last_gap_is_said_of_the_arms_that_have_it(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """Answers of five tokens have four gaps, of which February's BLIS makes five: 25 %."""
    workload = tmp_path / "short.yaml"
    workload.write_text(SHORT_ANSWERS)
    arms = ["with=iter00_baseline", "without=iter00_baseline:corrected=true"]
    words = [*arms, "--workload", str(workload), "--seeds", "2", "--inert", "records"]
    assert compare(tmp_path, *words, "--figure", "none") == 0
    said = capsys.readouterr().err
    assert "note: with: BLIS of February counts the last gap" in said
    assert "TPOT is 25 % too long" in said


# --- the report -----------------------------------------------------------------------------------


def test_the_page_has_the_numbers_of_the_result(whole: tuple[dict[str, Any], Path]) -> None:
    document, folder = whole
    content = embedded(folder / "out.html")
    assert len(rows(content, "differences")) == len(document["comparisons"])
    drawn = content["pictures"][0]["panels"]
    for entry in document["comparisons"]:
        title = metric_title(entry["metric"])
        where = {"strategy": entry["arm"], "class": entry["class"], "metric": title}
        found = row(content, "differences", **where)
        assert found["difference [95 %]"]["mean"] == entry["difference"]["mean"] * scale(entry)
        assert found["in % [95 %]"]["low"] == entry["percent"]["low"]
        assert found["verdict"] == entry["verdict"]
        numbers = [one for panel in drawn for mark in panel["marks"] for one in mark.get("x", [])]
        assert entry["percent"]["mean"] in numbers
    per_seed = {
        arm["name"]: arm["figures"]["critical"]["e2e_p99_ms"]["per_seed"]
        for arm in document["arms"]
    }
    (apart,) = marks(content, "E2E P99 by run, ms: diff", "priority − base", "critical")
    pairs = zip(per_seed["priority"], per_seed["base"], strict=True)
    assert apart["y"] == pytest.approx([after - before for after, before in pairs])
    (over_time,) = [one for one in content["pictures"] if one["title"] == "Instances over time"]
    running = [one for one in over_time["panels"] if one["title"] == "Running batch, priority"]
    values = running[0]["marks"][0]["values"]
    assert len(values) == 2 and max(map(max, values)) > 0


def scale(entry: dict[str, Any]) -> float:
    return 100.0 if entry["metric"] == "attainment" else 1.0


def test_the_page_opens_offline_and_follows_the_choice_of_a_metric(
    whole: tuple[dict[str, Any], Path],
) -> None:
    _, folder = whole
    with opened(folder / "out.html") as page:
        shown = "return [...document.querySelectorAll('figure.seeds:not([hidden])')]"
        shown += ".map((one) => one.dataset.metric)"
        assert page.run(shown) == ["TTFT P99 pooled, ms"]
        page.run(
            "const select = document.querySelector('select[data-choice=metric]');"
            "select.value = 'goodput, requests/s'; select.dispatchEvent(new Event('change'))"
        )
        assert page.run(shown) == ["goodput, requests/s"]
        assert page.run("return document.querySelectorAll('figure.changes svg').length") == 1
        asked = [one for one in page.requests() if not one.startswith("data:")]
        assert asked == [(folder / "out.html").resolve().as_uri()]
        assert page.console() == []


def test_arms_that_are_the_same_have_one_line() -> None:
    """Of four routers three fare exactly alike."""
    alike = ["a", "c", "d"]
    arms = [
        {
            "name": name,
            "mechanisms": [],
            "same_as": [one for one in alike if name in alike and one != name],
        }
        for name in "abcd"
    ]
    (line,) = idle_lines({"arms": arms, "ranking": {}})
    assert line == "a, c and d are the same: every request fared exactly the same, on every seed"
