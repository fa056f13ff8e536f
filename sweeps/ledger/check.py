"""Proof that no record was changed: the chain, what records say of each other, anchors, git's history."""

from __future__ import annotations

import math
import subprocess
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path

from blis_jax.errors import ConfigError
from blis_jax.files import chain
from blis_jax.files.chain import Contents, Record
from sweeps.ledger.book import HYPOTHESIS, NOTE, RESULT, Ledger
from sweeps.ledger.render import anchor_in, page_text, rendered
from sweeps.ledger.rows.hypothesis import Hypothesis, hypothesis_of
from sweeps.ledger.rows.result import conclusions, measured_from_record
from sweeps.tracks.verdicts import RELATIVE, RULE

MOST_RELATIVE_DIFFERENCE = 1e-7  # of conclusions drawn again; they are kept to nine digits


@dataclass
class CheckReport:
    """What was found."""

    problems: list[str] = field(default_factory=list)
    remarks: list[str] = field(default_factory=list)
    num_records: int = 0


def check(ledger: Ledger, anchor: str | None = None) -> CheckReport:
    """Everything that can be checked without running anything; `anchor` is a hash kept elsewhere."""
    contents = ledger.contents()
    report = CheckReport(num_records=len(contents.records))
    if not contents.size:
        report.problems.append(f"{ledger.path} has no records")
    if contents.problem:
        report.problems.append(contents.problem)
    if contents.torn:
        report.remarks.append(
            f"the last {len(contents.torn)} bytes are no whole record: a write was cut off there; "
            "they are not counted, and the next record will say so"
        )
    if contents.lacks_end:
        report.remarks.append("the last record lacks its end of line, but is whole and counts")
    numbers = [record.get("rule", RULE) for record in contents.records]
    rules = Counter(number for number in numbers if isinstance(number, int) and number != RULE)
    for number in sorted(rules):
        how = "checked by it" if number in RELATIVE else "not checked: it is unknown here"
        report.remarks.append(f"{rules[number]} results were judged by rule {number} and are {how}")
    if not contents.problem:
        report.problems += _inconsistencies(contents.records)
    report.problems += _against_anchors(ledger, contents, anchor)
    problems, remark = _against_history(ledger.path)
    report.problems += problems
    report.remarks.append(remark)
    if not report.problems and rendered(ledger, contents) != page_text(ledger):
        report.remarks.append(
            f"{ledger.page} does not match the records; run python -m sweeps.ledger render"
        )
    return report


# --- what records say of each other ---------------------------------------------------------------


def _inconsistencies(records: Sequence[Record]) -> list[str]:
    """The first record that contradicts an earlier one, or itself."""
    planned: dict[str, tuple[Record, Hypothesis]] = {}
    results: dict[str, Record] = {}
    for record in records[1:]:
        try:
            problem = _inconsistency(record, planned, results)
        except (ConfigError, KeyError, TypeError, ValueError, AttributeError) as error:
            problem = f"it cannot be understood ({type(error).__name__}: {error})"
        if problem:
            name = record.get("id", "?")
            return [f"record {record['number']} ({name}) is inconsistent: {problem}"]
    return []


def _inconsistency(
    record: Record, planned: dict[str, tuple[Record, Hypothesis]], results: dict[str, Record]
) -> str | None:
    kind, name = record["kind"], record["id"]
    if kind == HYPOTHESIS:
        if name in planned:
            return "its id has a hypothesis already"
        hypothesis = hypothesis_of(chain.content_of(record))
        planned[name] = record, hypothesis
        for role, arm in hypothesis.arms.items():
            if chain.digest(arm.settings) != arm.hash:
                return f"the settings of its {role} are not those that their hash was taken of"
        return None
    if kind not in (RESULT, NOTE):
        return f"its kind {kind!r} is unknown"
    if name not in planned:
        return "there is no hypothesis before it"
    if kind == NOTE:
        is_about = name in results and record["result"] == results[name]["hash"]
        return None if is_about else "it is about another result"
    before, hypothesis = planned[name]
    if name in results:
        return "its hypothesis has a result already"
    results[name] = record
    if record["hypothesis"] != before["hash"]:
        return "it refers to another hypothesis"
    if record["written"] < before["written"]:
        return "it is older than its hypothesis"
    return _other_conclusions(record, hypothesis) if record.get("runs") else None


def _other_conclusions(record: Record, hypothesis: Hypothesis) -> str | None:
    """Where the recorded figures do not give what was concluded from them."""
    if record["rule"] not in RELATIVE:
        return None
    used = hypothesis.on(record.get("seeds", hypothesis.seeds))
    again = conclusions(used, measured_from_record(record), record["rule"])
    if not hypothesis.predictions:
        again = {name: again[name] for name in ("comparison", "published")}
    for name, value in again.items():
        where = _first_difference(value, record[name], name)
        if where:
            return f"its figures do not give its {where}"
    return None


def _first_difference(one: object, other: object, where: str, size: float = 0.0) -> str | None:
    """The path at which two contents part; numbers of one list are as sure as the largest of them.

    So an interval's end near 0 may differ as much as its other end: rules 1 and 2 had quantiles of
    Student's t to seven digits only.
    """
    if isinstance(one, Mapping) and isinstance(other, Mapping):
        if one.keys() != other.keys():
            return where
        pairs = [(one[key], other[key], f"{where}.{key}") for key in one]
    elif isinstance(one, list) and isinstance(other, list):
        if len(one) != len(other):
            return where
        pairs = [
            (a, b, f"{where}[{place}]") for place, (a, b) in enumerate(zip(one, other, strict=True))
        ]
        size = max((abs(entry) for entry in other if isinstance(entry, float | int)), default=0.0)
    elif isinstance(one, float | int) and isinstance(other, float | int):
        is_near = math.isclose(
            one,
            other,
            rel_tol=MOST_RELATIVE_DIFFERENCE,
            abs_tol=max(size * MOST_RELATIVE_DIFFERENCE, 1e-9),
        )
        return None if is_near else where
    else:
        return None if one == other else where
    return next(
        (found for a, b, path in pairs if (found := _first_difference(a, b, path, size))), None
    )


# --- what is known of it elsewhere ----------------------------------------------------------------


def _against_anchors(ledger: Ledger, contents: Contents, given: str | None) -> list[str]:
    """The page's anchor, and one that somebody kept elsewhere."""
    problems = []
    hashes = [record["hash"] for record in contents.records]
    if given is not None and not any(value.startswith(given.lower()) for value in hashes):
        problems.append(f"no record has the hash {given}: the chain was written anew or cut short")
    anchor = anchor_in(page_text(ledger)) if ledger.page.exists() else None
    if anchor is None:
        return problems
    number, value = anchor
    if number >= len(hashes):
        if not contents.problem:
            problems.append(
                f"{ledger.page} vouches for record {number}, but there are only {len(hashes)} records: "
                "records were removed"
            )
    elif hashes[number] != value:
        problems.append(
            f"record {number} has another hash than the anchor in {ledger.page}: the chain was "
            "written anew"
        )
    return problems


def _against_history(path: Path) -> tuple[list[str], str]:
    """Whether every committed version is the beginning of the file; and how far that could be seen."""
    place = f"./{path.name}"
    commits = _git(path.parent, "log", "--first-parent", "--format=%H", "--", place)
    if commits is None:
        return [], "git's history: not available here"
    versions = commits.decode().split()
    if not versions:
        return [], "git's history: the file was never committed"
    data = path.read_bytes() if path.exists() else b""
    for commit in versions:
        before = _git(path.parent, "show", f"{commit}:{place}")
        if before is not None and not data.startswith(before):
            what = f"what commit {commit[:12]} has of {path} is not the beginning of it"
            return [f"{what}: records were changed or removed since"], "git's history: broken"
    return [], f"git's history: {len(versions)} committed versions, each the beginning of the file"


def _git(folder: Path, *words: str) -> bytes | None:
    try:
        done = subprocess.run(
            ["git", "-C", str(folder), *words], capture_output=True, timeout=60, check=False
        )
    except (OSError, subprocess.TimeoutExpired):
        return None
    return done.stdout if done.returncode == 0 else None
