"""Figures of reports: versions, units, and what cannot be read."""

from __future__ import annotations

import json

import pytest
import yaml

from blis_jax.traces.measured.llmd_report import (
    MALFORMED,
    MISLEADING,
    MISSING,
    MISSING_STATISTIC,
    NO_DATA,
    WRONG_UNIT,
)
from sweeps.promote.evidence.reports import MalformedReportError, goodput, parse_report, sheds_only
from sweeps.promote.evidence.runs import scenes_of
from tests.support.recorded.reference_data import REPO_ROOT
from tests.sweeps.promote.made_reports import CRITICAL, TTFT, by_class, report, row

PUBLISHED = REPO_ROOT.parent / "shared" / "data" / "benchmark_reports"


def of(document: object) -> object:
    return parse_report(yaml.safe_dump(document), "a.yaml")


@pytest.mark.parametrize(
    ("units", "value", "wanted", "expected"),
    [("s", 0.25, "ms", 250.0), ("ms", 250.0, "s", 0.25), ("s", 0.25, "s", 0.25)],
)
def test_units_are_converted(units: str, value: float, wanted: str, expected: float) -> None:
    found = parse_report(yaml.safe_dump(report("u", value, units=units)), "a.yaml")
    assert found.figure(TTFT, "p99", wanted).value == pytest.approx(expected)


@pytest.mark.parametrize(
    ("path", "statistic", "unit", "problem"),
    [
        (TTFT, "p99", "tokens/s", WRONG_UNIT),
        (TTFT, "p90", "ms", MISSING_STATISTIC),
        (TTFT.replace("first_token", "second_token"), "p99", "ms", MISSING),
        (TTFT.replace("time_to_first_token", "inter_token_latency"), "p99", "ms/token", MISLEADING),
    ],
)
def test_what_cannot_be_read_has_a_reason(
    path: str, statistic: str, unit: str, problem: str
) -> None:
    found = parse_report(yaml.safe_dump(report("u", 0.2)), "a.yaml").figure(path, statistic, unit)
    assert (found.problem, found.is_there) == (problem, False)
    assert found.reason


def test_the_tpot_of_guidellm_is_the_mean_of_its_gaps() -> None:
    document = report("u", 0.2)
    document["scenario"] = {"load": {"standardized": {"tool": "guidellm"}}}
    latency = document["results"]["request_performance"]["aggregate"]["latency"]
    latency["time_per_output_token"] = {"units": "ms/token", "mean": 12.0, "p99": 20.0}
    latency["inter_token_latency"] = {"units": "ms/token", "mean": 11.0, "p99": 19.0}
    path = TTFT.replace("time_to_first_token", "time_per_output_token")
    found = parse_report(yaml.safe_dump(document), "a.yaml")
    assert found.figure(path, "mean", "ms/token").value == pytest.approx(11.0)
    assert found.figure(path, "p99", "ms/token").problem == MISLEADING


def test_a_statistic_that_is_no_number_is_malformed() -> None:
    document = report("u", 0.2)
    latency = document["results"]["request_performance"]["aggregate"]["latency"]
    latency["time_to_first_token"]["p99"] = "fast"
    found = parse_report(yaml.safe_dump(document), "a.yaml").figure(TTFT, "p99", "ms")
    assert found.problem == MALFORMED
    del latency["time_to_first_token"]["units"]
    found = parse_report(yaml.safe_dump(document), "a.yaml").figure(TTFT, "p99", "ms")
    assert found.problem == MALFORMED and "no units" in found.reason


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("[1, 2]", "holds no mapping"),
        ("{unclosed", "neither YAML nor JSON"),
        ("version: '0.7'\nresults: {}\n", "version '0.7' is not known"),
        ("version: '0.2'\nrun: {uid: a}\nresults: {}\n", "nothing to judge"),
        ("summary: {}\n", "traffic_classes is missing"),
    ],
)
def test_malformed_files_end_in_a_sentence(text: str, words: str) -> None:
    with pytest.raises(MalformedReportError, match=words):
        parse_report(text, "a.yaml")


# --- priority-mix ---------------------------------------------------------------------------------


def test_zero_is_no_data() -> None:
    found = parse_report(json.dumps(by_class("u", [row()], 50.0)), "results.json")
    assert found.figure(CRITICAL, "p99", "s").value == pytest.approx(0.05)
    assert found.figure(CRITICAL, "mean", "ms").value == pytest.approx(25.0)
    assert found.figure(CRITICAL, "p90", "ms").problem == MISSING_STATISTIC
    assert found.figure(CRITICAL.replace("ttft", "tpot"), "p99", "ms/token").problem == NO_DATA


def test_latencies_leave_out_answers_429() -> None:
    rows = [row(latency_ms=800.0), row(latency_ms=1000.0), row(429, latency_ms=2.0)]
    document = by_class("u", rows, 50.0)
    found = parse_report(json.dumps(document), "results.json")
    path = CRITICAL.replace("ttft", "latency")
    assert found.figure(path, "mean", "ms").value == pytest.approx(
        900.0
    )  # not 5.0, as the summary has it
    document["requests"] = []
    without = parse_report(json.dumps(document), "results.json").figure(path, "mean", "ms")
    assert without.problem == MISSING and "counts errors" in without.reason


def test_goodput_counts_what_was_demanded() -> None:
    rows = [row(ttft_ms=50.0), row(ttft_ms=150.0), row(429), row(503)]
    found = parse_report(json.dumps(by_class("u", rows, 50.0)), "results.json")
    assert goodput(found, {"critical": 100.0}) == 0.25
    assert goodput(found, {}) == 0.5
    assert not sheds_only(found)
    shed = parse_report(json.dumps(by_class("u", rows[:3], 50.0)), "results.json")
    assert sheds_only(shed)


# --- published reports ----------------------------------------------------------------------------


@pytest.mark.skipif(not PUBLISHED.is_dir(), reason="no ../shared/data/benchmark_reports here")
def test_published_reports_are_read() -> None:
    first = PUBLISHED / "br_v0_1_qwen3-32b_16xh100_optimized-baseline_rate60.yaml"
    other = PUBLISHED / "br_v0_1_qwen3-32b_16xh100_precise-prefix_rate60.yaml"
    found = [parse_report(path.read_text(), path.name) for path in (first, other)]
    ttft = [one.figure(TTFT, "p99", "ms").value for one in found]
    assert ttft == pytest.approx([225.7, 564.0], rel=0.01)
    rate = TTFT.replace("latency.time_to_first_token", "throughput.request_rate")
    assert found[0].figure(rate, "mean", "queries/s").value == pytest.approx(14.41, rel=0.01)
    texts = {"evidence/reports/prefix/baseline/1.yaml": first.read_text(),
             "evidence/reports/prefix/treatment/1.yaml": other.read_text()}  # fmt: skip
    runs = scenes_of(texts)["prefix"]
    loads = [runs[arm]["1"].offered() for arm in ("baseline", "treatment")]
    assert loads == [("queries/s", 60.0)] * 2  # by the number of requests; metadata.stage says 2
    wide = PUBLISHED / "br_v0_2_deepseek-r1_32xh200_wide-ep_conc2048.yaml"
    report_v2 = parse_report(wide.read_text(), wide.name)
    assert report_v2.uid == "2c9ada2e-362f-4e90-9eba-453b9e0c200d"
    itl = TTFT.replace("time_to_first_token", "inter_token_latency")
    assert report_v2.figure(itl, "p50", "ms/token").problem == MISLEADING
    tpot = TTFT.replace("time_to_first_token", "time_per_output_token")
    assert report_v2.figure(tpot, "p50", "ms/token").value == pytest.approx(79.9, rel=0.01)
    closed = scenes_of({"evidence/reports/a/baseline/1.yaml": wide.read_text()})["a"]["baseline"][
        "1"
    ]
    assert closed.offered() == ("concurrency", 2048.0)
