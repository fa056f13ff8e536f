"""Stage 7: the change as a branch-shaped folder, a patch, a commit message, a text for reviewers; a manifest of all."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import yaml

from sweeps.promote.documents.branch import branch_files, change_name, change_patch
from sweeps.promote.documents.content import PromotionContent, Verdict, main_change
from sweeps.promote.documents.render import number, percent, render
from sweeps.promote.evidence.hypothesis import LOWER, SAME
from sweeps.promote.evidence.priority_mix import CLASSES
from sweeps.promote.evidence.reports import AGGREGATE
from sweeps.promote.evidence.survival import LARGER, NOTHING, SMALLER, SURVIVES
from sweeps.promote.promotion import Files, Promotion
from sweeps.promote.store import hashes_of
from sweeps.tracks.verdicts import CONFIRMED

FOLDER = "bundle"
BRANCH = f"{FOLDER}/branch"
BODY, MESSAGE, PATCH, MANIFEST = (
    f"{FOLDER}/{name}"
    for name in ("pr-body.md", "commit-message.txt", "change.patch", "manifest.yaml")
)
_WIDTH = 72  # of a commit message


def bundle_files(promotion: Promotion, files: Files) -> dict[str, str]:
    """The bundle, by path."""
    content = PromotionContent(promotion, files)
    branch = branch_files(promotion, files)
    sets = report_sets(content)
    made = {f"{BRANCH}/{path}": text for path, text in branch.items()}
    made |= {
        PATCH: change_patch(promotion, files),
        MESSAGE: _message(content, branch),
        BODY: _body(content, branch, sets),
    }
    made[MANIFEST] = _manifest(content, made, sets)
    return made


def report_sets(content: PromotionContent) -> dict[str, list[str]]:
    """The run ids that verdicts cite, each set once, by a short name: R1, R2, …"""
    found: dict[str, list[str]] = {}
    for one in content.verdicts:
        ids = list(one["run_ids"])
        if ids and ids not in found.values():
            found[f"R{len(found) + 1}"] = ids
    return found


def _set_name(verdict: Verdict, sets: Mapping[str, list[str]]) -> str:
    return next((name for name, ids in sets.items() if ids == list(verdict["run_ids"])), "none")


def _body(content: PromotionContent, branch: Files, sets: Mapping[str, list[str]]) -> str:
    counts = content.counts()
    confirmed = [one for one in content.verdicts if one["verdict"] == CONFIRMED]
    by_track = ", ".join(
        f"{row[CONFIRMED]} of {row['total']} of track {row['track']} ({row['about']})"
        for row in counts
    )
    return render(
        "pr-body.md.j2",
        what=_what(content, branch),
        paths=sorted(branch),
        gains=[_gain(one, sets) for one in confirmed if one["track"] == "A"],
        evidence=content.evidence,
        num_confirmed=len(confirmed),
        num_total=len(content.verdicts),
        by_track=by_track,
        others=[one for one in content.verdicts if one["verdict"] != CONFIRMED],
        survival=_survived(content),
        identities=content.document["identities"],
        report_sets=sets,
    )


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
    """Whether the change is for the better; the same where the hypothesis says so."""
    if verdict["expected"] == SAME:
        return "same"
    is_lower = main["second_mean"] < main["first_mean"]
    return "better" if is_lower == (verdict["metric"]["better"] == LOWER) else "worse"


def _survived(content: PromotionContent) -> dict[str, Any]:
    """Titles of the concerns by what became of the gain."""
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
    import textwrap

    confirmed = sum(one["verdict"] == CONFIRMED for one in content.verdicts)
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
    """Every file with its SHA-256, the identities, and the runs behind every verdict."""
    document = {
        "strategy": content.promotion.given,
        "baseline": content.promotion.baseline.name,
        "target": content.promotion.target,
        "evidence": content.evidence,
        "identities": content.document["identities"],
        "verdicts": {
            one["id"]: {
                "verdict": one["verdict"],
                "evidence": one["evidence"],
                "runs": _set_name(one, sets),
            }
            for one in content.verdicts
        },
        "runs": dict(sets),
        "files": {**hashes_of(made), **hashes_of(content.files)},
    }
    return yaml.safe_dump(document, sort_keys=False, allow_unicode=True, width=110)
