"""Verdicts: what confirms, what refutes, and everything that must not."""

from __future__ import annotations

import json
from typing import Any

import pytest

from blis_jax.traces.measured.llmd_report import AGGREGATE
from sweeps.promote.evidence.judging import TransferFinding, judge
from sweeps.promote.evidence.runs import FOLDER
from tests.sweeps.promote.evidence.test_reports import PUBLISHED
from tests.sweeps.promote.made_reports import (
    CRITICAL,
    by_class,
    equivalence,
    files_of,
    hypothesis,
    metric_of,
    report,
    row,
    scenes,
    three_arms,
)

SLOW = (0.30, 0.31, 0.29, 0.30, 0.295, 0.305)
FAST = (0.200, 0.212, 0.188, 0.201, 0.195, 0.2055)
TARGETS = {"critical": 100.0}


def verdict(files: Any, one: Any = None) -> TransferFinding:
    (found,) = judge([one or hypothesis()], scenes(files), TARGETS)
    return found


def test_a_direction_is_confirmed() -> None:
    found = verdict(three_arms(SLOW, FAST))
    assert (found.verdict.word, found.verdict.finer) == ("confirmed", "confirmed")
    assert found.changes["treatment - baseline"].reading.mean.mean == pytest.approx(-33.3, abs=0.1)
    assert "6 of 6 runs" in found.verdict.reason
    assert found.evidence == "measured"
    assert {
        f"{arm}-{place}" for arm in ("baseline", "control", "treatment") for place in range(6)
    } == set(found.run_ids)


def test_the_other_direction_is_refuted() -> None:
    assert verdict(three_arms(FAST, SLOW)).verdict.word == "refuted"


def test_an_effect_that_is_unclear_is_inconclusive() -> None:
    found = verdict(three_arms(SLOW, (0.2, 0.4, 0.25, 0.33, 0.28, 0.31)))
    assert found.verdict.word == "inconclusive" and "holds 0" in found.verdict.reason


def test_nothing_changed_refutes_a_direction() -> None:
    found = verdict(three_arms(SLOW, SLOW))
    assert found.verdict.word == "refuted" and "equal to the baseline" in found.verdict.reason


def test_an_effect_of_the_plugin_path_is_not_the_policys() -> None:
    found = verdict(three_arms(SLOW, FAST, control=FAST))
    assert found.verdict.word == "inconclusive" and "plugin path" in found.verdict.reason


def test_verdicts_of_many_hypotheses_are_a_family() -> None:
    baseline, treatment = SLOW, (0.285, 0.30, 0.28, 0.293, 0.285, 0.303)
    files = scenes(three_arms(baseline, treatment))
    (alone,) = judge([hypothesis()], files, TARGETS)
    many = judge([hypothesis(id=f"A-{place}") for place in range(60)], files, TARGETS)
    assert alone.verdict.word == "confirmed"
    assert {one.verdict.word for one in many} == {"inconclusive"}


# --- preconditions --------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("of_treatment", "problem"),
    [
        ({"failures": 20}, "failures"),
        ({"rate": 25.0}, "offered load"),
        ({"total": 900}, "requests"),
        ({"input_length": 700.0}, "input_length"),
        ({"units": "tokens/s"}, "wrong unit"),
    ],
)
def test_arms_that_do_not_agree_are_not_compared(of_treatment: Any, problem: str) -> None:
    found = verdict(three_arms(SLOW, FAST, **of_treatment))
    assert (found.verdict.word, found.problem) == ("inconclusive", problem)
    assert found.run_ids


def test_units_may_differ_between_arms() -> None:
    found = verdict(three_arms(SLOW, [1000 * value for value in FAST], units="ms"))
    assert found.verdict.word == "confirmed"


@pytest.mark.parametrize("count", [1, 5])
def test_few_runs_confirm_nothing(count: int) -> None:
    found = verdict(three_arms(SLOW[:count], FAST[:count]))
    assert (found.verdict.word, found.problem) == ("inconclusive", "too few runs")


def test_a_missing_percentile_is_missing() -> None:
    one = hypothesis(metric=metric_of(hypothesis().metric.path, "p99p9", "ms", "lower"))
    found = verdict(three_arms(SLOW, FAST), one)
    assert (found.verdict.word, found.problem) == ("inconclusive", "missing statistic")


def test_a_malformed_report_is_not_left_out() -> None:
    files = three_arms(SLOW, FAST) | {f"{FOLDER}/mixed/treatment/run-1/report.yaml": "{broken\n"}
    found = verdict(files)
    assert (found.verdict.word, found.problem) == ("inconclusive", "malformed")
    assert "treatment/run-1" in found.verdict.reason


def test_a_missing_arm_is_said() -> None:
    files = {path: text for path, text in three_arms(SLOW, FAST).items() if "/control/" not in path}
    found = verdict(files)
    assert (found.verdict.word, found.problem) == ("inconclusive", "missing arm")
    assert found.verdict.reason.startswith("scene mixed has no reports of arm control; run its")
    misspelt = {
        path.replace("/control/", "/contrl/"): text for path, text in three_arms(SLOW, FAST).items()
    }
    assert "arm control; did you mean 'contrl'?" in verdict(misspelt).verdict.reason
    elsewhere = {path.replace("/mixed/", "/mixd/"): text for path, text in files.items()}
    reason = verdict(elsewhere).verdict.reason
    assert (
        "no reports of scene mixed; did you mean 'mixd'?" in reason and "mixed/ARM/RUN/" in reason
    )
    assert verdict(files, hypothesis(arms=("baseline", "treatment"))).verdict.word == "confirmed"


def test_a_strategy_against_itself_confirms_nothing() -> None:
    arms = {arm: [report(f"{arm}{at}", value) for at, value in enumerate(SLOW)]
            for arm in ("baseline", "control", "treatment")}  # fmt: skip
    for one in (hypothesis(), equivalence()):
        found = verdict(files_of(arms), one)
        assert (found.verdict.word, found.problem) == ("inconclusive", "same stack")


def test_simulated_evidence_is_never_measured() -> None:
    files = three_arms(SLOW, FAST, keywords=["evidence: simulated"])
    assert verdict(files).evidence == "simulated"


# --- equivalence ----------------------------------------------------------------------------------


def test_equivalence_within_the_tolerance() -> None:
    found = verdict(three_arms(SLOW, [value * 1.01 for value in SLOW]), equivalence())
    assert found.verdict.word == "confirmed" and "within ±5 %" in found.verdict.reason


def test_measured_runs_of_a_scenario_say_nothing_of_another() -> None:
    """One simulation stands for all scenarios with its workload; measured runs are of one alone."""
    pair = [equivalence(id=f"C-{name}", scene=f"scenario-{name}") for name in ("one", "two")]

    def judged(folder: str, evidence: str = "measured") -> list[str]:
        moved = {
            path.replace("/mixed/", f"/{folder}/"): text.replace(
                "keywords: []", f"keywords: ['evidence: {evidence}']"
            )
            for path, text in three_arms(SLOW, SLOW).items()
        }
        return [one.verdict.word for one in judge(pair, scenes(moved), TARGETS)]

    assert judged("scenario-one") == ["confirmed", "inconclusive"]
    assert judged("workload-mixed") == ["inconclusive", "inconclusive"]
    assert judged("workload-mixed", "simulated") == ["confirmed", "confirmed"]


def test_a_planted_regression_is_caught() -> None:
    found = verdict(three_arms(SLOW, [value * 1.08 for value in SLOW]), equivalence())
    assert found.verdict.word == "refuted" and "worse by more than 5 %" in found.verdict.reason


def test_wide_intervals_prove_no_equivalence() -> None:
    found = verdict(three_arms(SLOW, (0.25, 0.36, 0.29, 0.31)), equivalence())
    assert found.verdict.word == "inconclusive"


def test_better_than_the_tolerance_is_no_regression() -> None:
    found = verdict(three_arms(SLOW, FAST), equivalence())
    assert (found.verdict.word, found.verdict.finer) == ("confirmed", "confirmed with nuance")


def test_a_fall_of_what_should_be_high_is_a_regression() -> None:
    metric = metric_of(hypothesis().metric.path, "p99", "ms", "higher")
    assert verdict(three_arms(SLOW, FAST), equivalence(metric=metric)).verdict.word == "refuted"


def test_the_control_alone_can_be_the_subject() -> None:
    path = hypothesis().metric
    one = equivalence(metric=path, arms=("baseline", "control"))
    found = verdict(three_arms(SLOW, FAST), one)
    assert found.verdict.word == "confirmed" and list(found.changes) == ["control - baseline"]
    assert (
        verdict(three_arms(SLOW, FAST, control=[1.2 * value for value in SLOW]), one).verdict.word
        == "refuted"
    )


# --- where something is shed ----------------------------------------------------------------------


def shedding(num_shed: int, status: int, latency_s: float = 0.05) -> dict[str, str]:
    """The treatment is fast, but does not serve some of 100 requests; half of the baseline's are late."""
    files: dict[str, str] = {}
    for arm in ("baseline", "control", "treatment"):
        is_it = arm == "treatment"
        whole, parts = [], []
        for place in range(6):
            late = [row(ttft_ms=50.0)] * (50 + place) + [row(ttft_ms=300.0)] * (50 - place)
            shed = [row(status)] * num_shed
            rows = [row(ttft_ms=50.0)] * (100 - num_shed) + shed if is_it else late
            failures = sum(one["status_code"] != 200 for one in rows)
            seconds = latency_s if is_it else 0.3 + 0.001 * place
            whole.append(report(f"{arm}-{place}", seconds, stack=arm, failures=failures, total=100))
            parts.append(by_class(f"{arm}-{place}", rows, 1000 * seconds))
        files |= files_of({arm: whole}) | files_of({arm: parts}, name="results.json")
    return files


def test_shedding_counts_by_what_was_demanded() -> None:
    found = verdict(shedding(20, 429))
    assert found.verdict.word == "confirmed" and "52.5% → 80.0%" in found.verdict.reason


def test_a_latency_that_is_paid_with_the_demanded_is_not_confirmed() -> None:
    found = verdict(shedding(80, 429))
    assert found.verdict.word == "inconclusive" and "52.5% → 20.0%" in found.verdict.reason


def test_a_denial_of_the_target_s_director_is_500() -> None:
    assert verdict(shedding(20, 500)).verdict.word == "confirmed"


def test_failures_that_nobody_decided_are_not_shedding() -> None:
    assert verdict(shedding(20, 503)).problem == "failures"


def test_an_overload_that_was_not_sent_proves_nothing() -> None:
    """The load that was really sent is a precondition, told by the harness or by what was completed."""
    files = shedding(20, 429)
    slow = {path: text.replace('"seconds": 0.1', '"seconds": 9.0') for path, text in files.items()}
    unknown = {path: text.replace('"offered"', '"wanted"') for path, text in files.items()}
    for given, words in ((slow, "11.11 requests/s were sent"), (unknown, "harness.patch")):
        found = verdict(given)
        assert (found.verdict.word, found.problem) == ("inconclusive", "offered load")
        assert words in found.verdict.reason


def test_pods_of_one_run_are_one_load() -> None:
    files: dict[str, str] = {}
    for path, text in shedding(20, 429).items():
        if path.endswith("report.yaml"):
            continue
        document = json.loads(text)
        rows = document["requests"]
        for pod in (0, 1):
            half = rows[pod::2]
            seconds = len(half) / 500.0
            part = by_class(f"{document['run']['uid']}-{pod}", half, 1.0)
            part["summary"]["offered"] = {"requests": len(half), "seconds": seconds}
            files[path.replace("results", f"results-{pod}")] = json.dumps(part) + "\n"
    (found,) = [run for arms in scenes(files).values() for run in arms["treatment"].values()][:1]
    assert (found.total(), found.failures(), found.reached()) == (100, 20, pytest.approx(1000))
    whole = f"{AGGREGATE}.latency.time_to_first_token"
    assert found.figure(whole, "p99", "ms", {}).value == 50.0


def test_goodput_can_be_the_metric() -> None:
    metric = metric_of("summary.goodput", "mean", "fraction", "higher")
    assert (
        verdict(shedding(20, 429), hypothesis(metric=metric, direction="higher")).verdict.word
        == "confirmed"
    )
    metric = metric_of(CRITICAL.replace("ttft_ms", "goodput"), "mean", "fraction", "higher")
    assert (
        verdict(shedding(80, 429), hypothesis(metric=metric, direction="higher")).verdict.word
        == "refuted"
    )


# --- published reports ----------------------------------------------------------------------------


@pytest.mark.skipif(not PUBLISHED.is_dir(), reason="no ../shared/data/benchmark_reports here")
def test_one_published_run_each_is_inconclusive() -> None:
    first = PUBLISHED / "br_v0_1_qwen3-32b_16xh100_optimized-baseline_rate60.yaml"
    other = PUBLISHED / "br_v0_1_qwen3-32b_16xh100_precise-prefix_rate60.yaml"
    files = {f"{FOLDER}/mixed/baseline/1.yaml": first.read_text(),
             f"{FOLDER}/mixed/treatment/1.yaml": other.read_text()}  # fmt: skip
    found = verdict(files, hypothesis(arms=("baseline", "treatment")))
    assert (found.verdict.word, found.problem) == ("inconclusive", "too few runs")
    assert found.evidence == "measured"
