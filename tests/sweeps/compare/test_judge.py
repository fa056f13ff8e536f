"""`compare --trace`: routers on one trace and in windows, with intervals, a ranking and refusals."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from blis_jax.core.outcome import Outcome
from blis_jax.metrics.run_summary import RequestFigures, RunSummary
from blis_jax.reports.render import text
from blis_jax.statistics.intervals import NO_INTERVAL, Inference
from sweeps.compare.__main__ import main
from sweeps.compare.judge import OneTrace
from sweeps.compare.ranking import ranking_lines
from sweeps.compare.report import requests_line
from sweeps.compare.study import findings_of
from tests.sweeps.busy import BASE

NUM_REQUESTS, GAP_US = 640, 30_000
SMALL = ["--bootstrap", "399", "--figure", "none", "--quiet"]


def write_trace(folder: Path, num_requests: int = NUM_REQUESTS, gap_us: int = GAP_US) -> str:
    """Requests long and short by chance; at 15 ms they come faster than one instance serves them."""
    lengths = np.random.default_rng(4).choice([100, 1500], num_requests)
    rows = [
        f"{at * gap_us},{length},6,{'critical' if at % 3 else 'sheddable'}"
        for at, length in enumerate(lengths)
    ]
    path = folder / "trace.csv"
    path.write_text("arrival_us,input_tokens,output_tokens,slo_class\n" + "\n".join(rows) + "\n")
    return str(path)


def compared(folder: Path, *words: str, gap_us: int = GAP_US) -> dict[str, Any]:
    (folder / "plain.yaml").write_text(BASE)
    output = folder / "out.json"
    given = ["--trace", write_trace(folder, gap_us=gap_us), *words, str(folder / "plain.yaml")]
    assert main([*given, *SMALL, "--output", str(output), "--overwrite"]) == 0
    found: dict[str, Any] = json.loads(output.read_text())
    return found


@pytest.fixture(scope="module")
def whole(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Any]:
    folder = tmp_path_factory.mktemp("whole")
    return compared(folder, "--routers", "least-loaded,always-busiest,round-robin")


def one(document: dict[str, Any], arm: str, metric: str, slo_class: str = "all") -> dict[str, Any]:
    wanted = arm, metric, slo_class
    (found,) = [
        entry
        for entry in document["comparisons"]
        if (entry["arm"], entry["metric"], entry["class"]) == wanted
    ]
    return dict(found)


def test_round_robin_is_the_reference_and_the_best_router_is_said(whole: dict[str, Any]) -> None:
    assert [arm["name"] for arm in whole["arms"]] == [
        "round-robin",
        "least-loaded",
        "always-busiest",
    ]
    order = [entry["arm"] for entry in whole["ranking"]["order"]]
    assert order == ["round-robin", "least-loaded", "always-busiest"]
    shown = " ".join(text(findings_of(whole)).split())
    assert "Which of 3 routers is best in time to first token (P99)? Trace " in shown
    assert "Verdict: round-robin is best" in shown and "the next, least-loaded, has" in shown
    assert "95 % for all 3 pairs of routers at once" in shown
    assert "always-busiest" in whole["ranking"]["order"][0]["surely_ahead_of"]


def test_a_figure_has_one_verdict(whole: dict[str, Any]) -> None:
    """The ranked metric is judged between all pairs, every other one in a family of its own."""
    for entry in whole["ranking"]["order"]:
        if entry["arm"] != "round-robin":
            shown = one(whole, entry["arm"], "ttft_p99_ms")
            against = entry["against_reference"]
            assert {name: shown[name] for name in against} == against
    assert whole["inference"]["family_size"] == 3
    num_others = len(whole["comparisons"]) - 2
    assert f"a family of {num_others} comparisons" in whole["inference"]["family"]


def test_routers_that_fare_alike_are_one_place(tmp_path: Path) -> None:
    """Without anything in common prompts have no affinity, so prefix-affinity chooses the least loaded."""
    document = compared(tmp_path, "--routers", "round-robin,least-loaded,prefix-affinity")
    assert [entry["arm"] for entry in document["ranking"]["order"]] == [
        "round-robin",
        "least-loaded",
    ]
    assert {entry["arm"] for entry in document["comparisons"]} == {"least-loaded"}
    assert ranking_lines(document) == ["As least-loaded: prefix-affinity."]
    (drawn, *_) = findings_of(document).pictures
    assert [label for _, label in drawn.panels[0][0].y.ticks] == ["round-robin", "least-loaded"]  # type: ignore[union-attr]


def test_one_run_with_intervals_from_blocks_of_the_trace(whole: dict[str, Any]) -> None:
    assert whole["trace"]["num_requests"] == NUM_REQUESTS and len(whole["seeds"]) == 1
    assert "one run each, as nothing is drawn" in requests_line(whole)
    assert "blocks of" in text(findings_of(whole), has_all=True)
    worse = one(whole, "always-busiest", "ttft_mean_ms")
    assert worse["verdict"] == "worse" and worse["simultaneous_percent"]["low"] > 0
    assert worse["difference"]["low"] < worse["difference"]["mean"] < worse["difference"]["high"]
    figures = {arm["name"]: arm["figures"]["all"]["ttft_mean_ms"] for arm in whole["arms"]}
    change = figures["always-busiest"]["mean"] - figures["round-robin"]["mean"]
    assert worse["difference"]["mean"] == pytest.approx(change)
    assert one(whole, "always-busiest", "output_tokens_per_s")["difference"]["low"] is None


def test_a_trace_on_which_requests_queue_throughout_gives_no_verdict(tmp_path: Path) -> None:
    """It holds fewer than six stretches that do not depend on each other, however far figures are apart."""
    routers = "round-robin,least-loaded,always-busiest"
    document = compared(tmp_path, "--routers", routers, gap_us=15_000)
    assert 0 < document["inference"]["num_blocks"] < 6
    assert {entry["verdict"] for entry in document["comparisons"]} <= {"unclear", "same"}
    figures = [entry["value"] for entry in document["ranking"]["order"]]
    assert figures[-1] > 3 * figures[0]
    shown = " ".join(text(findings_of(document)).split())
    assert "least-loaded is best on this trace: TTFT P99" in shown
    assert "Sure: of these requests; other traffic like them may differ: a verdict takes 6" in shown
    assert "Next: a longer trace tells more, or a slower one (--time-scale above 1)" in shown
    assert "always-busiest falls behind: requests come faster than it serves them" in shown
    assert "round-robin falls behind" not in shown
    document["ranking"] = None  # as of arms that are not routers
    shown = " ".join(text(findings_of(document)).split())
    assert "Sure: of these requests" in shown and "Next: a longer trace" in shown
    assert "Verdict: least-loaded: on this trace: critical −" in shown


def test_windows_are_runs_that_are_paired(tmp_path: Path) -> None:
    words = ["--routers", "round-robin,least-loaded", "--trace-windows", "4"]
    document = compared(tmp_path, *words)
    assert document["seeds"] == [1, 2, 3, 4]
    found = one(document, "least-loaded", "ttft_mean_ms", "critical")
    assert found["num_pairs"] == 4 and found["difference"]["method"] == "Student's t"
    assert "4 windows of" in requests_line(document)
    assert "paired t-test by window" in document["inference"]["p_values"]


REFUSED = {
    "no trace": (["--limit", "5"], "--limit has no meaning without --trace"),
    "no windows without": (
        ["--trace-windows", "5"],
        "--trace-windows has no meaning without --trace",
    ),
    "workload": (
        ["--trace", "{trace}", "--workload", "mixed"],
        "--trace and --workload are both given",
    ),
    "rng": (["--trace", "{trace}", "--rng", "jax"], "--rng has no meaning with --trace"),
    "count": (["--trace", "{trace}", "--num-requests", "5"], "--limit cuts the trace"),
    "many windows": (
        ["--trace", "{trace}", "--trace-windows", "700"],
        " at most, or a longer trace",
    ),
    "block": (["--trace", "{trace}", "--block-s", "9"], "allowed is above 0 up to 3.195"),
    "blocks of seeds": (["--block-s", "1"], "--block-s has no meaning without --trace"),
    "class": (
        ["--trace", "{trace}", "--metrics", "ttft_p99_ms[standard]"],
        "has no requests of class standard; it has sheddable, critical",
    ),
    "one router": (["--routers", "weighted"], "names fewer than two routers"),
    "unknown router": (["--routers", "weighted,wieghted"], "wieghted"),
    "two arms": (["--routers", "all", "iter05_simplified"], "2 arms are given; give one"),
}


@pytest.mark.parametrize(("words", "sentence"), REFUSED.values(), ids=REFUSED)
def test_refusals(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], words: list[str], sentence: str
) -> None:
    trace = write_trace(tmp_path)
    given = [word.format(trace=trace) for word in words]
    arms = ["iter00_baseline"] if "--routers" in words else ["iter00_baseline", "iter05_simplified"]
    assert main([*given, *arms, "--output", str(tmp_path / "out.json")]) == 2
    assert sentence in capsys.readouterr().err
    assert not list(tmp_path.glob("out*"))


def made_up(num_requests: int, delay: float = 0.0) -> tuple[RunSummary, ...]:
    """One run whose requests have a TTFT of 1 to 9 ms and a delay."""
    values = (np.arange(num_requests) % 9 + 1.0 + delay).tolist()
    outcomes = RequestFigures(
        [10_000 * at for at in range(num_requests)],
        [0] * num_requests,
        dict.fromkeys(("ttft", "e2e", "tpot", "scheduling_delay", "good", "rejected"), values),
    )
    metrics = {"ttft_mean_ms": float(np.mean(values))}
    return (RunSummary(Outcome.COMPLETED, metrics, fingerprint="x", requests=outcomes),)


def test_a_short_trace_has_figures_but_no_intervals() -> None:
    arms = [made_up(60), made_up(60, delay=2.0)]
    judge = OneTrace(arms, Inference(num_resamples=99))
    (found,) = judge.differences([(arms[0], arms[1], "ttft_mean_ms")])
    assert found.verdict == "unclear" and found.absolute.method == NO_INTERVAL
    assert found.absolute.mean == pytest.approx(2.0)
    assert "60 requests are too few for an interval" in judge.sentence()
    long_enough = OneTrace([made_up(100), made_up(100, delay=2.0)], Inference(num_resamples=99))
    assert "the trace in 3 blocks of 0.33 s" in long_enough.sentence()


def test_a_rare_class_has_a_mean_with_an_interval_but_no_percentile() -> None:
    arms = [made_up(120), made_up(120, delay=2.0)]
    for (run,) in arms:
        assert run.requests is not None
        run.requests.slo_class[:] = [1, 0, 0] * 40  # type: ignore[index]
        run.metrics.update({"ttft_mean_ms[critical]": 1.0, "ttft_p99_ms[critical]": 9.0})  # type: ignore[attr-defined]
    judge = OneTrace(arms, Inference(num_resamples=99))
    mean, tail = (
        judge.interval(arms[0], f"{name}[critical]") for name in ("ttft_mean_ms", "ttft_p99_ms")
    )
    assert mean.method != NO_INTERVAL and tail.method == NO_INTERVAL


def test_an_arm_that_did_not_come_to_its_end_has_no_figures() -> None:
    arms = [made_up(100), (RunSummary(Outcome.LIVELOCK),), made_up(100, delay=2.0)]
    judge = OneTrace(arms, Inference(num_resamples=99))
    asked = [(arms[0], arm, "ttft_mean_ms") for arm in arms[1:]]
    failed, whole = judge.differences(asked)
    assert failed.num_pairs == 0 and failed.verdict == "unclear"
    assert whole.absolute.mean == pytest.approx(2.0)
