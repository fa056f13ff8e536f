"""Findings, report, feedback and the bundle: complete, traceable, and honest about what was measured."""

from __future__ import annotations

import hashlib
import re
import subprocess
from pathlib import Path
from typing import Any

import pytest
import yaml

from blis_jax.metrics.scalars import lookup
from sweeps.promote.bundle import (
    BESIDE_PATCH,
    BODY,
    MANIFEST,
    MESSAGE,
    PATCH,
    _by_reason,
    bundle_files,
)
from sweeps.promote.evidence.verdicts import VERDICTS, evidence_findings, hypothesis_findings
from sweeps.promote.pages import REPORT, document_files, resolution_of
from sweeps.promote.promotion import Files
from tests.sweeps.promote import made_content
from tests.sweeps.promote.made_content import entry

SECTIONS = [
    "Hypothesis", "Experiment Design", "Results", "Root Cause Analysis", "Devil's Advocate",
    "Findings Classification", "Standards Audit", "Scope and Limitations", "Evidence Quality", "Implications",
    "Reproducing",
]  # fmt: skip


@pytest.fixture(scope="module", params=["simulated", "measured"])
def kind(request: pytest.FixtureRequest) -> str:
    return str(request.param)


@pytest.fixture(scope="module")
def before(kind: str) -> Files:
    return made_content.files(kind == "simulated")


@pytest.fixture(scope="module")
def documents(before: Files) -> Files:
    return document_files(made_content.promotion(), before)


@pytest.fixture(scope="module")
def bundle(before: Files, documents: Files) -> Files:
    return bundle_files(made_content.promotion(), {**before, **documents})


def pages(documents: Files) -> dict[str, str]:
    return {path: text for path, text in documents.items() if "/findings/" in path}


# --- documents ------------------------------------------------------------------------------------


def test_findings_have_every_section_filled(documents: Files) -> None:
    assert len(pages(documents)) == 7
    for text in pages(documents).values():
        assert re.findall(r"^## (.+)$", text, re.MULTILINE) == SECTIONS
        for section in re.split(r"^## .+$", text, flags=re.MULTILINE)[1:]:
            assert section.strip()
        assert not re.search(r"\| \||\bNone\b|\bnan\b", text)


def test_nothing_simulated_is_called_measured(documents: Files, bundle: Files, kind: str) -> None:
    texts = {
        **pages(documents),
        **{path: documents[path] for path in (REPORT,)},
        BODY: bundle[BODY],
    }
    for path, text in texts.items():
        spared = re.sub(
            r"not measured|nothing .{0,20}was measured|measured on a cluster",
            "",
            text,
            flags=re.IGNORECASE,
        )
        if kind == "simulated":
            assert "measured" not in spared, path
            assert "simulated" in text
        elif path != BODY and "B-lora" not in path:
            assert "measured" in spared
            assert "evidence | simulated" not in text.replace("**", "").lower()


def test_what_was_not_compared_says_so(documents: Files) -> None:
    text = documents["documents/findings/B-lora.md"]
    assert "Figures: not measured." in text
    assert "Reports: not measured." in text
    assert "not simulated yet: no adapters" in text


def test_figures_are_those_of_the_verdicts(documents: Files) -> None:
    text = documents["documents/findings/A-gain.md"]
    assert "| treatment - baseline | 300 ms | 200.2 ms | −33.2 % [" in text
    assert "6 of 6" in text and "A-gain-treatment-3" in text
    assert (
        "If it fails, the engine ignores priorities."
        in documents["documents/findings/A-reversed.md"]
    )


def test_the_report_has_counts_gates_and_concerns(documents: Files) -> None:
    text = documents[REPORT]
    assert "| A: what the simulation found | 1 | 1 | 1 | 3 |" in text
    assert "| C: what must not change | 1 | 1 | 0 | 2 |" in text
    assert "| 1 | 1 IMPORTANT | approve | A. Reviewer | read |" in text
    assert "| 2 | none | not measured | not measured | not measured |" in text
    assert "| No priorities | −75.0 % [−80.0, −70.0] | reversed |" in text


def test_refuted_hypotheses_are_fed_back(documents: Files, kind: str) -> None:
    found = {path: yaml.safe_load(text) for path, text in documents.items()
             if path.startswith("feedback/") and path.endswith(".yaml")}  # fmt: skip
    assert set(found) == {
        "feedback/structural/A-reversed.yaml", "feedback/concerns/B-outage.yaml", "feedback/constraints/C-worse.yaml",
    }  # fmt: skip
    assert found["feedback/structural/A-reversed.yaml"]["family"] == "Structural model"
    assert found["feedback/concerns/B-outage.yaml"]["concern"] == "Map C: pod-failure"
    constraint = found["feedback/constraints/C-worse.yaml"]["constraint"]
    assert constraint == {"metric": "ttft_p99_ms", "direction": "min", "threshold": 315.0}
    assert lookup(constraint["metric"])
    for one in found.values():
        assert one["seen"]["evidence"] == kind and one["seen"]["run_ids"]


def test_resolutions_are_words_of_the_ledger(before: Files) -> None:
    from sweeps.ledger.hypothesis import check_resolution

    for one in yaml.safe_load(before[VERDICTS])["verdicts"]:
        check_resolution(resolution_of(one), one["verdict"])


# --- the bundle -----------------------------------------------------------------------------------


def test_the_body_counts_and_cites(bundle: Files, before: Files) -> None:
    body, manifest = bundle[BODY], yaml.safe_load(bundle[MANIFEST])
    assert "2 of 7 hypotheses are confirmed" in body
    (row,) = re.findall(r"^\| .*A-gain.* \|$", body, re.MULTILINE)
    cells = [cell.strip() for cell in row.strip("|").split("|")]
    assert (
        cells[1:3] == ["300 ms", "200.2 ms"]
        and cells[4] == "better"
        and cells[3].startswith("−33.2 %")
    )
    ids = manifest["runs"][cells[5]]
    verdict = next(
        one for one in yaml.safe_load(before[VERDICTS])["verdicts"] if one["id"] == "A-gain"
    )
    assert ids == verdict["run_ids"] and len(ids) == 18
    cited = {uid for ids in manifest["runs"].values() for uid in ids}
    in_reports = set(re.findall(r"uid: (\S+)", "".join(before.values())))
    assert cited <= in_reports


def test_the_change_of_the_director_is_in_the_bundle(before: Files) -> None:
    """Where a plugin denies requests, as a patch of its own; the change itself leaves the director alone."""
    patch = "--- a/pkg/director.go\n+++ b/pkg/director.go\n@@ -1,1 +1,2 @@\n one\n+two\n"
    made = bundle_files(made_content.promotion(), {**before, "go/denial.patch": patch})
    assert made["bundle/denial.patch"] == f"diff --git a/pkg/director.go b/pkg/director.go\n{patch}"
    assert "director.go" not in made[PATCH]
    assert "answers a denial with 500" in made[BODY]
    assert "answers a denial with 500" not in bundle_files(made_content.promotion(), before)[BODY]


def test_the_manifest_has_every_file_with_its_hash(bundle: Files, before: Files) -> None:
    files = yaml.safe_load(bundle[MANIFEST])["files"]
    for path, text in {**bundle, **before}.items():
        if path != MANIFEST:
            assert files[path] == hashlib.sha256(text.encode()).hexdigest()
    assert set(yaml.safe_load(bundle[MANIFEST])["identities"]) == {"translation", "cluster", "run"}


def test_the_patch_applies_to_a_minimal_tree(bundle: Files, tmp_path: Path) -> None:
    tree = tmp_path / "router"
    (tree / "cmd/epp/runner").mkdir(parents=True)
    (tree / "cmd/epp/runner/runner.go").write_text(made_content.RUNNER)
    (tmp_path / "change.patch").write_text(bundle[PATCH])
    subprocess.run(["git", "init", "-q", str(tree)], check=True)
    for words in (["--check"], []):
        subprocess.run(["git", "apply", *words, "../change.patch"], cwd=tree, check=True)
    assert "// registered" in (tree / "cmd/epp/runner/runner.go").read_text()
    branch = {
        path.removeprefix("bundle/branch/"): text
        for path, text in bundle.items()
        if "/branch/" in path
    }
    code = {path for path in branch if not path.startswith("docs/promotions/class-lead/")}
    assert code == {"pkg/epp/framework/plugins/a/a.go"}
    assert not (tree / "docs").exists()
    (tmp_path / "evidence.patch").write_text(bundle[BESIDE_PATCH])
    subprocess.run(["git", "apply", "../evidence.patch"], cwd=tree, check=True)
    for path, text in branch.items():
        assert (tree / path).read_text() == text


def test_the_commit_message_is_signed_and_honest(bundle: Files, kind: str) -> None:
    message = bundle[MESSAGE]
    title, blank, *_ = message.splitlines()
    assert title == "Add class-lead as an alpha strategy" and not blank
    assert f"Evidence: {kind} (2 of 7 hypotheses confirmed)" in message
    assert "Signed-off-by: A. Reviewer" in message
    assert max(map(len, message.splitlines())) <= 80


def test_everything_is_the_same_again(before: Files, documents: Files, bundle: Files) -> None:
    promotion = made_content.promotion()
    assert document_files(promotion, before) == documents
    assert bundle_files(promotion, {**before, **documents}) == bundle


# --- rules of the gates ---------------------------------------------------------------------------


def rules(found: object) -> set[tuple[str, str]]:
    return {(one.severity, one.rule) for one in found}  # type: ignore[attr-defined]


def test_gate_three_names_what_a_person_must_know(before: Files, kind: str) -> None:
    found = rules(evidence_findings(before))
    expected = {("CRITICAL", "regression"), ("IMPORTANT", "refuted"), ("IMPORTANT", "inconclusive"),
                ("SUGGESTION", "inconclusive")}  # fmt: skip
    assert found == expected | (
        {("IMPORTANT", "evidence-simulated")} if kind == "simulated" else set()
    )


def test_gate_three_is_closed_without_a_gain() -> None:
    found = made_content.files(False, [entry("A-reversed"), entry("B-outage"), entry("C-same")])
    assert ("CRITICAL", "no-gain") in rules(evidence_findings(found))


def test_gate_three_finds_verdicts_that_do_not_fit(before: Files) -> None:
    document = yaml.safe_load(before[VERDICTS])
    document["verdicts"][0]["run_ids"] = []
    document["verdicts"][1] |= {"problem": "malformed", "verdict": "inconclusive"}
    del document["verdicts"][2]
    found = rules(evidence_findings({**before, VERDICTS: yaml.safe_dump(document)}))
    assert {("CRITICAL", "verdict-without-runs"), ("CRITICAL", "report-malformed"),
            ("CRITICAL", "verdicts-incomplete")} <= found  # fmt: skip
    assert rules(evidence_findings({})) == {("CRITICAL", "no-verdicts")}


@pytest.mark.parametrize(
    ("changes", "rule"),
    [
        ({"metric": made_content.METRIC | {"path": "latency.fast"}}, "metric-not-in-reports"),
        ({"metric": made_content.METRIC | {"unit": "fortnights"}}, "metric-not-in-reports"),
        (
            {"metric": made_content.METRIC | {
                "path": made_content.TTFT.replace("time_to_first_token", "inter_token_latency")}},
            "chunks-for-tokens",
        ),
        ({"runs": 1}, "hypothesis-not-readable"),
        ({"diagnostic": " "}, "hypothesis-not-readable"),
        ({"arms": ["baseline", "treatment"]}, "arm-missing"),
        ({"metric": None}, "hypothesis-not-readable"),
        ({"id": "B-2", "track": "B"}, "track-is-empty"),
    ],
)  # fmt: skip
def test_gate_two_finds_what_cannot_be_judged(changes: dict[str, object], rule: str) -> None:
    def found(entries: list[dict[str, object]]) -> set[str]:
        files = {"hypotheses.yaml": made_content.text_of(entries)}
        return {one.rule for one in hypothesis_findings(files)}

    sound = [entry("A-1"), entry("B-1"), entry("C-1")]
    assert found(sound) == set()
    assert rule in found([entry("A-1", **changes), *sound[1:]])
    wrong = entry(
        "C-1", expected={"direction": "lower", "magnitude_sim": "not measured", "tolerance": 5.0}
    )
    assert found([*sound[:2], wrong]) == {"track-c-is-no-equivalence"}


def test_hypotheses_with_one_reason_share_a_line() -> None:
    def judged(name: str, reason: str) -> dict[str, Any]:
        return {"id": name, "verdict": "inconclusive", "evidence": "measured", "reason": reason}

    rows = _by_reason(
        [judged("C-1", "no reports"), judged("B-1", "n = 1"), judged("C-2", "no reports")]
    )
    assert [(row["ids"], row["reason"]) for row in rows] == [
        ("C-1, C-2", "no reports"),
        ("B-1", "n = 1"),
    ]
