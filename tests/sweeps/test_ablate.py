"""The command at a tiny size, and the record's 2 × 2 at full size."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest

from blis_jax.cluster.config import ClusterConfig
from blis_jax.core.outcome import Outcome
from blis_jax.metrics.run_summary import RunSummary
from blis_jax.reports.style import class_words
from sweeps.ablate import main
from sweeps.compare.ablation.report import KINDS
from tests.support.browser import opened
from tests.support.findings_forms import assert_all_forms_agree
from tests.support.report_page import embedded, marks
from tests.sweeps.busy import SMALL, result, write_strategies
from tests.sweeps.tiny import change_runs

GATED = ":slo_age_weight=0.001;slo_threshold_sheddable=0;max_num_scheduled_tokens=900"


def ablate(folder: Path, *words: str) -> int:
    return main([*words, "--output", str(folder / "out.json")])


@pytest.fixture(scope="module")
def whole(tmp_path_factory: pytest.TempPathFactory) -> tuple[dict[str, Any], Path]:
    """All combinations of priorities, their numbers, the bridge and the token budget."""
    folder = tmp_path_factory.mktemp("whole")
    plain, priority = write_strategies(folder)
    words = [priority + GATED, "--against", plain, "--design", "full"]
    reports = ["--report", str(folder / "out.html"), "--timeline", str(folder / "trace.json")]
    assert ablate(folder, *words, *SMALL, *reports) == 0
    return result(folder), folder


def contribution(
    document: dict[str, Any], component: str, kind: str, slo_class: str = "critical"
) -> dict[str, Any]:
    (found,) = [
        one
        for one in document["contributions"]
        if (one["component"], one["kind"], one["class"], one["metric"])
        == (component, kind, slo_class, "ttft_p99_ms")
    ]
    return dict(found)


def test_components_and_what_they_need(whole: tuple[dict[str, Any], Path]) -> None:
    document, _ = whole
    components = {one["name"]: one for one in document["components"]}
    assert list(components) == ["priority", "priority numbers", "priority bridge", "token budget"]
    assert len(document["combinations"]) == 16 and document["design"] == "full"
    assert components["priority bridge"]["status"] == "inert"
    assert components["priority bridge"]["num_contexts_inert"] == 8
    assert components["priority numbers"]["needs"] == ["priority"]
    assert components["priority"]["status"] == "active" and components["priority"]["needs"] == []
    assert components["priority numbers"]["settings"]["slo_age_weight"] == [1e-5, 1e-3]


def test_contributions_are_differences_of_combinations(whole: tuple[dict[str, Any], Path]) -> None:
    document, _ = whole
    means = {
        frozenset(one["on"]): one["figures"]["critical"]["ttft_p99_ms"]["mean"]
        for one in document["combinations"]
    }
    names = {one["name"] for one in document["components"]}
    for name in names:
        added = contribution(document, name, "added alone")["difference"]["mean"]
        assert added == pytest.approx(means[frozenset([name])] - means[frozenset()])
        left = contribution(document, name, "left out")["difference"]["mean"]
        assert left == pytest.approx(means[frozenset(names)] - means[frozenset(names - {name})])
    values = [contribution(document, name, "Shapley")["difference"]["mean"] for name in names]
    (total,) = [
        one for one in document["total"]
        if (one["class"], one["metric"]) == ("critical", "ttft_p99_ms")
    ]  # fmt: skip
    assert sum(values) == pytest.approx(total["difference"]["mean"])
    assert contribution(document, "priority", "added alone")["verdict"] == "better"
    assert contribution(document, "priority bridge", "Shapley")["verdict"] == "same"


def test_interactions(whole: tuple[dict[str, Any], Path]) -> None:
    document, _ = whole
    found = {
        tuple(one["components"]): one
        for one in document["interactions"]
        if (one["class"], one["metric"]) == ("critical", "ttft_p99_ms")
    }
    assert len(found) == 6
    with_bridge = found["priority", "priority bridge"]
    assert with_bridge["difference"]["mean"] == 0 and with_bridge["verdict"] == "same"
    assert with_bridge["ratio"]["together"] == pytest.approx(with_bridge["ratio"]["expected"])
    assert found["priority", "priority numbers"]["difference"]["mean"] != 0
    ratio = found["priority", "token budget"]["ratio"]
    joint = ratio["together"] / ratio["expected"]
    assert ratio["interaction"]["mean"] == pytest.approx(joint)
    assert ratio["interaction"]["low"] < joint < ratio["interaction"]["high"]
    assert "averaged" in with_bridge


def test_words_and_figure(
    whole: tuple[dict[str, Any], Path], capsys: pytest.CaptureFixture[str]
) -> None:
    from blis_jax.reports.render import show
    from sweeps.compare.ablation.study import findings_of

    document, folder = whole
    assert_all_forms_agree(findings_of(document))
    show(findings_of(document))
    said = " ".join(capsys.readouterr().out.split())
    assert said.startswith("Cluster: ") and " Asked: Which part of " in said
    whole_change = said.index("Verdict: in all better: critical −")
    assert whole_change < said.index(" most of it (") < said.index(" Sure: 95 %")
    show(findings_of(document), has_all=True)
    said = " ".join(capsys.readouterr().out.split())  # lines are wrapped
    for part in (
        "4 components, 16 combinations (all combinations)",
        "priority bridge: slo_priority_bridge off → on — inert",
        "does nothing without priority",
        "TTFT P99 by run, ms, critical:",
        "0, on every seed",
        "priority × priority numbers",
        "Shapley",
    ):
        assert part in said, part
    assert (folder / "out.png").read_bytes().startswith(b"\x89PNG")


def test_single_design_and_own_components(arms: tuple[str, str], tmp_path: Path) -> None:
    words = [arms[1] + GATED, "--against", arms[0], "--figure", "none", "--quiet"]
    words += ["--components", "all priorities=priority,priority numbers,priority bridge"]
    assert ablate(tmp_path, *words, *SMALL) == 0
    document = result(tmp_path)
    assert [one["name"] for one in document["components"]] == ["all priorities", "token budget"]
    assert document["design"] == "full"  # of two components it is
    assert len(document["interactions"]) == 4


def test_smaller_designs_say_nothing_that_they_cannot(
    arms: tuple[str, str], tmp_path: Path
) -> None:
    words = [arms[1] + GATED, "--against", arms[0], "--quiet", "--figure", "none"]
    words += ["--components", "weight=slo_age_weight", *SMALL]
    assert ablate(tmp_path, *words) == 0
    single = result(tmp_path)
    assert single["interactions"] == [] and len(single["combinations"]) == 12
    assert {one["kind"] for one in single["contributions"]} == {"added alone", "left out"}
    assert ablate(tmp_path, *words, "--design", "pairs", "--resume") == 0
    pairs = result(tmp_path)
    assert len(pairs["combinations"]) == 22 and len(pairs["interactions"]) == 40
    assert all("averaged" not in one for one in pairs["interactions"])
    assert pairs["contributions"] == single["contributions"]


@pytest.mark.slow
def test_combinations_that_cannot_be_or_fail_are_reported(
    arms: tuple[str, str],
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    livelock = RunSummary(Outcome.LIVELOCK)

    def change(config: ClusterConfig, place: int, run: RunSummary) -> RunSummary:
        return livelock if config.max_num_scheduled_tokens == 900 and place == 0 else run

    change_runs(monkeypatch, change)
    base = arms[0] + ":routing_policy=weighted;routing_scorers=queue-depth:1"
    arm = arms[0] + ":routing_policy=weighted;routing_scorers=load-balance:1"
    words = ["--components", "old=routing_scorers.queue-depth;new=routing_scorers.load-balance"]
    words += ["--design", "pairs", "--metrics", "ttft_p99_ms", *SMALL]
    arm += ";max_num_scheduled_tokens=900"
    assert ablate(tmp_path, arm, "--against", base, *words) == 0
    document = result(tmp_path)
    errors = {"+".join(one["on"]): one["error"] for one in document["combinations"]}
    assert "no scorer is left" in errors["old"] and errors["old+new"] is None
    assert contribution(document, "old", "added alone")["num_pairs"] == 0
    assert contribution(document, "new", "added alone")["num_pairs"] == 16
    assert contribution(document, "token budget", "added alone")["num_pairs"] == 15
    said = " ".join(capsys.readouterr().out.split())  # lines are wrapped
    assert "old: no scorer is left of a weighted router" in said
    assert "token budget: on seed 42 an instance made 10,000 steps" in said
    assert "1 of 16 seeds failed" in said


def test_resumed_equals_unkilled(
    arms: tuple[str, str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    words = [arms[1], "--against", arms[0], *SMALL, "--figure", "none", "--quiet"]
    assert ablate(tmp_path, *words) == 0
    unkilled = result(tmp_path)
    record = tmp_path / "out.jsonl"
    lines = record.read_text().splitlines(keepends=True)
    record.write_text("".join(lines[:3]) + lines[3][:40])
    (tmp_path / "out.json").unlink()
    assert ablate(tmp_path, *words, "--resume") == 0
    assert result(tmp_path) == unkilled
    assert record.read_text() == "".join(lines)


@pytest.mark.parametrize(
    ("words", "problem"),
    [
        ([], "ARM, the arm to take apart, is missing"),
        (["{plain}"], "--against BASE is missing"),
        (["{plain}", "--against", "{plain}"], "nothing to take apart"),
        (["{priority}", "--against", "{plain}", "--components", "a=b"], "neither a setting nor"),
        (["{priority}", "--against", "{plain}", "--design", "half"], "--design"),
        (["{priority}", "--against", "nobody"], "arm 'nobody': strategy 'nobody' is unknown"),
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
    named = [word.format(plain=arms[0], priority=arms[1]) for word in words]
    assert ablate(tmp_path, *named) == 2
    said = capsys.readouterr().err
    assert problem in said and said.count("\n") == 1
    assert sorted(tmp_path.iterdir()) == before


@pytest.mark.slow
@pytest.mark.golden
def test_the_records_two_by_two(tmp_path: Path) -> None:
    """Principle S4, means of seeds 42 to 44: 268.8, 134.4, 252.6, 90.0 ms, so −28.2 ms."""
    words = ["iter05_simplified", "--against", "iter00_baseline", "--seeds", "42,43,44"]
    words += ["--components", "priority=priority,priority bridge;no chunks=chunks by class"]
    assert ablate(tmp_path, *words, "--figure", "none", "--quiet") == 0
    document = result(tmp_path)
    cells = {
        "+".join(one["on"]): one["figures"]["critical"]["ttft_p99_ms"]
        for one in document["combinations"]
    }
    means = {name: round(cell["mean"], 1) for name, cell in cells.items()}
    assert means == {"": 268.8, "priority": 134.4, "no chunks": 252.6, "priority+no chunks": 90.0}
    (found,) = [one for one in document["interactions"] if one["class"] == "critical"]
    assert found["difference"]["mean"] == pytest.approx(-28.2, abs=0.2)
    assert found["ratio"]["together"] == pytest.approx(0.335, abs=5e-4)
    assert found["ratio"]["expected"] == pytest.approx(0.470, abs=5e-4)
    per_seed = np.array([cells[name]["per_seed"] for name in cells])
    spread = per_seed[3] - per_seed[1] - per_seed[2] + per_seed[0]
    assert found["difference"]["mean"] == pytest.approx(spread.mean())
    assert found["num_pairs"] == 3 and found["verdict"] == "unclear"


def test_the_picture_has_every_contribution_of_the_first_metric(
    whole: tuple[dict[str, Any], Path],
) -> None:
    document, folder = whole
    content = embedded(folder / "out.html")
    metric = document["contributions"][0]["metric"]
    for entry in document["contributions"]:
        if entry["metric"] == metric and entry["kind"] in KINDS:
            panel = class_words(entry["class"])
            found = marks(content, "what each component", panel, KINDS[entry["kind"]][2])
            assert entry["difference"]["mean"] in [one["x"][0] for one in found]
    total = document["total"][0]
    (whole_change,) = marks(
        content, "what each component", class_words(total["class"]), "the whole change"
    )
    assert whole_change["x_low"] == [total["difference"]["low"]]
    left_out = [one for one in content["pictures"] if one["choices"].get("place") == "left out"]
    panels = [panel["title"] for one in left_out for panel in one["panels"]]
    assert all(any(name["name"] in title for title in panels) for name in document["components"])


@pytest.mark.slow
def test_another_kind_of_contribution_is_drawn_when_it_is_chosen(
    whole: tuple[dict[str, Any], Path],
) -> None:
    _, folder = whole
    with opened(folder / "out.html") as page:
        choose = (
            "const place = document.querySelector('select[data-choice=place]');"
            "place.value = arguments[0]; place.dispatchEvent(new Event('change'))"
        )
        for kind in ("left out", "added alone"):  # others have no single seeds
            page.run(choose, kind)
            visible = "return [...document.querySelectorAll('figure.seeds:not([hidden])')]"
            assert page.run(f"{visible}.map((one) => one.dataset.place)") == [kind]
        assert page.console() == []
