"""Make stage 7, the bundle: the change as branch and patches, a commit message, a text for reviewers, a manifest."""

from __future__ import annotations

import hashlib
import re
import textwrap
from collections.abc import Iterable, Mapping
from typing import Any

from blis_jax.traces.measured.llmd_report import AGGREGATE
from sweeps.claims.words import CONFIRMED
from sweeps.promote.evidence.hypotheses import LOWER, SAME
from sweeps.promote.evidence.reports import CLASSES
from sweeps.promote.evidence.survival import LARGER, NOTHING, SMALLER, SURVIVES
from sweeps.promote.llmd.documents import CONFIG
from sweeps.promote.pages import PromotionContent, Verdict, main_change
from sweeps.promote.promotion import Files, Promotion
from sweeps.promote.store import hashes_of, number, percent, render, wide_yaml


def patch_of(files: Files) -> str:
    """Return a patch for `git apply` that adds the files; every file must end with a newline."""
    return "".join(_added(path, files[path]) for path in sorted(files))


def _added(path: str, text: str) -> str:
    lines = text.splitlines(keepends=True)
    mode = "100755" if text.startswith("#!") else "100644"
    head = (
        f"diff --git a/{path} b/{path}\nnew file mode {mode}\nindex 0000000..{_blob(text)[:7]}\n"
        f"--- /dev/null\n+++ b/{path}\n@@ -0,0 +1,{len(lines)} @@\n"
    )
    return head + "".join(f"+{line}" for line in lines)


def _blob(text: str) -> str:
    """Return Git's blob id of a text."""
    data = text.encode()
    return hashlib.sha1(b"blob %d\0" % len(data) + data, usedforsecurity=False).hexdigest()


GO = "go/"  # of the translation: below it, paths are those of the target's repository
# changes a file of the target, so it is in the patch alone
REGISTRATION = f"{GO}registration.patch"
DENIAL = f"{GO}denial.patch"  # of the director, which answers a denial with 500; beside the change
TREATMENT_CONFIG = f"configs/arms/treatment/{CONFIG}"
SAMPLES, DOCUMENTS = "deploy/config", "docs/promotions"  # of the target's repository
_BESIDE = (
    "profiles/", "experiments/", "tests/", "evidence/", "documents/", "hypotheses.", "configs/translation-report",
)  # fmt: skip


def branch_files(promotion: Promotion, files: Files) -> dict[str, str]:
    """Return the new files of the change and its documents, by their path in the target's repository."""
    branch = {
        path.removeprefix(GO): text
        for path, text in files.items()
        if path.startswith(GO) and not path.endswith(".patch")
    }
    if TREATMENT_CONFIG in files:
        branch[f"{SAMPLES}/{change_name(promotion)}-epp-config.yaml"] = files[TREATMENT_CONFIG]
    folder = f"{DOCUMENTS}/{change_name(promotion)}"
    for path, text in files.items():
        if path.startswith(_BESIDE) and not path.startswith("evidence/reports/"):
            branch[f"{folder}/{path}"] = text
    return branch


def change_patch(promotion: Promotion, files: Files) -> str:
    """Return the patch for `git apply` with code, configuration, and the lines that register the plugins."""
    code = {
        path: text
        for path, text in branch_files(promotion, files).items()
        if not _is_evidence(path)
    }
    return patch_of(code) + _with_head(files.get(REGISTRATION, ""))


def evidence_patch(promotion: Promotion, files: Files) -> str:
    """Return the patch with the evidence: the test vectors, and the documents of the promotion."""
    branch = branch_files(promotion, files)
    return patch_of({path: text for path, text in branch.items() if _is_evidence(path)})


def _is_evidence(path: str) -> bool:
    return path.endswith("/testdata/vectors.json") or path.startswith(f"{DOCUMENTS}/")


def change_name(promotion: Promotion) -> str:
    """Return the strategy's name in kebab case, for files and titles."""
    strategy = promotion.arm.strategy
    name = strategy.name if strategy is not None else promotion.given
    return re.sub(r"[^a-z0-9]+", "-", name.lower()).strip("-")


def _with_head(text: str) -> str:
    """Return a patch with Git's `diff --git` line before each file."""
    return re.sub(
        r"^--- a/(?P<path>.+)$",
        r"diff --git a/\g<path> b/\g<path>\n\g<0>",
        text,
        flags=re.MULTILINE,
    )


FOLDER = "bundle"
BRANCH = f"{FOLDER}/branch"
BODY, MESSAGE, PATCH, BESIDE_PATCH, MANIFEST = (
    f"{FOLDER}/{name}"
    for name in (
        "pr-body.md", "commit-message.txt", "change.patch", "evidence.patch", "manifest.yaml",
    )
)  # fmt: skip
_WIDTH = 72  # of a commit message


def bundle_files(promotion: Promotion, files: Files) -> dict[str, str]:
    """Return the files of the bundle, by path."""
    content = PromotionContent(promotion, files)
    branch = branch_files(promotion, files)
    sets = report_sets(content)
    made = {f"{BRANCH}/{path}": text for path, text in branch.items()}
    made |= {
        PATCH: change_patch(promotion, files),
        BESIDE_PATCH: evidence_patch(promotion, files) or "\n",
        MESSAGE: _message(content, branch),
        BODY: _body(content, branch, sets),
    }
    if DENIAL in files:
        made[f"{FOLDER}/{DENIAL.removeprefix(GO)}"] = _with_head(files[DENIAL])
    made[MANIFEST] = _manifest(content, made, sets)
    return made


def report_sets(content: PromotionContent) -> dict[str, list[str]]:
    """Return the sets of run ids that verdicts cite, each once, under short names: R1, R2, …"""
    sets: dict[str, list[str]] = {}
    for verdict in content.verdicts:
        ids = list(verdict["run_ids"])
        if ids and ids not in sets.values():
            sets[f"R{len(sets) + 1}"] = ids
    return sets


def _set_name(verdict: Verdict, sets: Mapping[str, list[str]]) -> str:
    return next((name for name, ids in sets.items() if ids == list(verdict["run_ids"])), "none")


def _body(content: PromotionContent, branch: Files, sets: Mapping[str, list[str]]) -> str:
    counts = content.counts()
    confirmed = [verdict for verdict in content.verdicts if verdict["verdict"] == CONFIRMED]
    by_track = ", ".join(
        f"{row[CONFIRMED]} of {row['total']} of track {row['track']} ({row['about']}; {row['different']} different "
        f"{'simulations' if content.evidence == 'simulated' else 'sets of runs'})"
        for row in counts
    )
    return render(
        "pr-body.md.j2",
        what=_what(content, branch),
        paths=sorted(path for path in branch if not _is_evidence(path)),
        release_note=f"Alpha strategy {change_name(content.promotion)}; without it in a configuration nothing changes.",
        gains=[_gain(verdict, sets) for verdict in confirmed if verdict["track"] == "A"],
        evidence=content.evidence,
        denies=DENIAL in content.files,
        num_confirmed=len(confirmed),
        num_total=len(content.verdicts),
        by_track=by_track,
        others=_by_reason(one for one in content.verdicts if one["verdict"] != CONFIRMED),
        survival=_survived(content),
        identities=content.document["identities"],
        report_sets=sets,
    )


def _by_reason(verdicts: Iterable[Verdict]) -> list[dict[str, str]]:
    """Group the given verdicts by verdict, evidence and reason; return one row for each group."""
    groups: dict[tuple[str, str, str], list[str]] = {}
    for one in verdicts:
        groups.setdefault((one["verdict"], one["evidence"], one["reason"]), []).append(one["id"])
    return [
        {"ids": ", ".join(ids), "verdict": verdict, "evidence": evidence, "reason": reason}
        for (verdict, evidence, reason), ids in groups.items()
    ]


def _what(content: PromotionContent, branch: Files) -> str:
    strategy = content.promotion.arm.strategy
    about = (
        " ".join(strategy.description.split())
        if strategy and strategy.description
        else content.promotion.given
    )
    code = sum(path.endswith(".go") for path in branch)
    kind = (
        f"{code} Go files, registered as Alpha"
        if code
        else "a configuration; no new plugin is needed"
    )
    return f"{about.rstrip('.')}. The change is {kind}, compiled from the policies that were simulated."


def _gain(verdict: Verdict, sets: Mapping[str, list[str]]) -> dict[str, str]:
    main = main_change(verdict)
    assert main is not None  # a confirmed hypothesis was compared
    metric = verdict["metric"]
    name = metric["path"].removeprefix(f"{AGGREGATE}.").removeprefix(f"{CLASSES}.")
    return {
        "name": f"{name} {metric['statistic']} ({verdict['id']}, {verdict['evidence']})",
        "before": f"{number(main['first_mean'])} {metric['unit']}",
        "after": f"{number(main['second_mean'])} {metric['unit']}",
        "percent": percent(main["percent"]),
        "effect": _effect(verdict, main),
        "reports": _set_name(verdict, sets),
    }


def _effect(verdict: Verdict, main: Mapping[str, Any]) -> str:
    """Return `better` or `worse` for a change; `same` where the hypothesis expects no change."""
    if verdict["expected"] == SAME:
        return "same"
    is_lower = main["second_mean"] < main["first_mean"]
    return "better" if is_lower == (verdict["metric"]["better"] == LOWER) else "worse"


def _survived(content: PromotionContent) -> dict[str, Any]:
    """Return the titles of the concerns, grouped by whether the gain survives them or they are not simulated."""
    rows = [row for row in content.survival["rows"] if row["name"] != NOTHING]
    done = [row for row in rows if row["changes"]]
    good = [row["title"] for row in done if row["verdict"] in (SURVIVES, SMALLER, LARGER)]
    return {
        "seeds": len(content.survival["seeds"]),
        "total": len(done),
        "good": good,
        "bad": [f"{row['title']} ({row['verdict']})" for row in done if row["title"] not in good],
        "missing": [row["title"] for row in rows if not row["changes"]],
    }


def _message(content: PromotionContent, branch: Files) -> str:

    confirmed = sum(verdict["verdict"] == CONFIRMED for verdict in content.verdicts)
    names = [gate["by"] for gate in content.gates() if gate["by"]]
    return render(
        "commit-message.txt.j2",
        title=f"Add {change_name(content.promotion)} as an alpha strategy"[:_WIDTH],
        body=textwrap.fill(_what(content, branch), _WIDTH),
        promotion=content.promotion,
        identities=content.document["identities"],
        evidence=content.evidence,
        num_confirmed=confirmed,
        num_total=len(content.verdicts),
        signed=list(dict.fromkeys(names)),
    )


def _manifest(content: PromotionContent, made: Files, sets: Mapping[str, list[str]]) -> str:
    """Return the manifest: every file with its SHA-256, the identities, and the runs behind every verdict."""
    document = {
        "strategy": content.promotion.given,
        "baseline": content.promotion.baseline.name,
        "target": content.promotion.target,
        "evidence": content.evidence,
        "identities": content.document["identities"],
        "verdicts": {
            verdict["id"]: {
                "verdict": verdict["verdict"],
                "evidence": verdict["evidence"],
                "runs": _set_name(verdict, sets),
            }
            for verdict in content.verdicts
        },
        "runs": dict(sets),
        "files": {**hashes_of(made), **hashes_of(content.files)},
    }
    return wide_yaml(document)
