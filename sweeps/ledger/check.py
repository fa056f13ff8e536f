"""Checks of a ledger: that no record was changed, and that a row's runs give its figures again."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from datetime import datetime
from pathlib import Path
from types import MappingProxyType
from typing import Any

from blis_jax.cluster.config import ClusterConfig
from blis_jax.cluster.router import with_weights
from blis_jax.errors import ConfigError
from blis_jax.files import chain
from blis_jax.files.chain import Contents, Record
from blis_jax.files.content import digest
from blis_jax.metrics.scalars import lookup
from sweeps.claims.grammar import CHANGED
from sweeps.claims.judge import RELATIVE, RULE
from sweeps.ledger.book import HYPOTHESIS, NOTE, RESULT, Ledger, LedgerRow
from sweeps.ledger.hypothesis import Hypothesis, hypothesis_of
from sweeps.ledger.render import anchor_in, page_text, rendered
from sweeps.ledger.result import conclusions, measured_from_record, measured_from_runs, runs_content
from sweeps.ledger.trial import (
    BASELINE,
    REFERENCE,
    STRATEGY,
    Experiments,
    Known,
    arm_records,
    config_of,
    git_says,
    policy_seeds_of,
    run_hypothesis,
    versions,
)

MOST_RELATIVE_DIFFERENCE = 1e-7  # of conclusions drawn again; they are kept to nine digits


@dataclass
class CheckReport:
    """The problems and remarks of a check of the ledger."""

    problems: list[str] = field(default_factory=list)
    remarks: list[str] = field(default_factory=list)
    num_records: int = 0


def check(ledger: Ledger, anchor: str | None = None) -> CheckReport:
    """Check all that needs no runs; `anchor` is the hash of a record, kept outside of the ledger."""
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
            f"{ledger.page} does not match the records; run blis-jax ledger render"
        )
    return report


# --- what records say of each other ---------------------------------------------------------------


def _inconsistencies(records: Sequence[Record]) -> list[str]:
    """Return the first record that contradicts an earlier record, or itself."""
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
            if digest(arm.settings) != arm.hash:
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
    """Return where the recorded conclusions differ from those that the recorded figures give; None if nowhere."""
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


def _first_difference(before: object, after: object, where: str, size: float = 0.0) -> str | None:
    """Return the path of the first difference between two contents; numbers of a list may differ by rounding of the
    largest.

    So an interval's end near 0 may differ by as much as its other end: rules 1 and 2 used quantiles of Student's t
    with seven digits only.
    """
    if isinstance(before, Mapping) and isinstance(after, Mapping):
        if before.keys() != after.keys():
            return where
        pairs = [(before[key], after[key], f"{where}.{key}") for key in before]
    elif isinstance(before, list) and isinstance(after, list):
        if len(before) != len(after):
            return where
        pairs = [
            (a, b, f"{where}[{place}]")
            for place, (a, b) in enumerate(zip(before, after, strict=True))
        ]
        size = max((abs(entry) for entry in after if isinstance(entry, float | int)), default=0.0)
    elif isinstance(before, float | int) and isinstance(after, float | int):
        is_near = math.isclose(
            before,
            after,
            rel_tol=MOST_RELATIVE_DIFFERENCE,
            abs_tol=max(size * MOST_RELATIVE_DIFFERENCE, 1e-9),
        )
        return None if is_near else where
    else:
        return None if before == after else where
    return next(
        (difference for a, b, path in pairs if (difference := _first_difference(a, b, path, size))),
        None,
    )


# --- what is known of it elsewhere ----------------------------------------------------------------


def _against_anchors(ledger: Ledger, contents: Contents, known: str | None) -> list[str]:
    """Return problems with the anchor on the page, and with an anchor `known` from elsewhere."""
    problems = []
    hashes = [record["hash"] for record in contents.records]
    if known is not None and not any(value.startswith(known.lower()) for value in hashes):
        problems.append(f"no record has the hash {known}: the chain was written anew or cut short")
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
    """Return a problem if the file does not begin with every committed version; and how far git's history reaches."""
    place = f"./{path.name}"
    commits = git_says(path.parent, "log", "--first-parent", "--format=%H", "--", place)
    if commits is None:
        return [], "git's history: not available here"
    versions = commits.decode().split()
    if not versions:
        return [], "git's history: the file was never committed"
    later = path.read_bytes() if path.exists() else b""
    for commit in versions:  # the newest first, each against the one after it
        before = git_says(path.parent, "show", f"{commit}:{place}")
        if before is None:
            continue
        if not later.startswith(before) and not _begins(_hashes(later), _hashes(before)):
            what = f"what commit {commit[:12]} has of {path} is not the beginning of it"
            return [f"{what}: records were changed or removed since"], "git's history: broken"
        later = before
    return [], f"git's history: {len(versions)} committed versions, each the beginning of the file"


def _begins(hashes: Sequence[str], first: Sequence[str]) -> bool:
    return list(hashes[: len(first)]) == list(first)


def _hashes(data: bytes) -> list[str]:
    """Return the hashes in a file's records, including records whose large parts are stored beside the file."""
    lines = (chain.parsed(line) for line in data.split(b"\n"))
    return [line[0]["hash"] for line in lines if line and "hash" in line[0]]


# what exact equality may depend on; of ours every version gives the same
NUMBERS = (
    "jax",
    "numpy",
    "backend",
)
ROUNDING = 1e-9  # relative; what another version or backend may change


@dataclass(frozen=True)
class Replayed:
    """The comparison of a repeated row with its record."""

    num_figures: int
    differences: tuple[str, ...]  # one sentence each
    largest: float  # relative difference
    other_versions: tuple[str, ...]
    changed_arms: tuple[str, ...]  # whose strategy file means something else by now
    redefined: tuple[str, ...]  # metrics that meant something else then; they are not compared

    @property
    def is_good(self) -> bool:
        """Return whether all figures are equal; up to rounding if the versions differ."""
        if self.changed_arms:
            return False
        if self.other_versions:
            return self.largest <= ROUNDING
        return not self.differences


def made_again(
    ledger: Ledger, name: str, known: Known = MappingProxyType({})
) -> tuple[LedgerRow, Hypothesis, Experiments]:
    """Return a row, its hypothesis on the seeds of its result, and the experiments that repeat its runs.

    Raises:
        ConfigError: the row has no runs.
    """
    row = ledger.row(name)
    if row.result is None or not row.result.get("runs"):
        what = "no result yet" if row.result is None else f"no runs: {row.result['evidence']}"
        raise ConfigError(f"{name} has {what}; there is nothing to replay")
    figures = row.result["runs"][STRATEGY]["figures"]
    hypothesis = row.hypothesis.on(row.result.get("seeds", row.hypothesis.seeds))
    return row, hypothesis, Experiments([name for name in figures if name != CHANGED], known)


def replay(ledger: Ledger, name: str, known: Known = MappingProxyType({})) -> Replayed:
    """Run a row again from its recorded settings, and compare the figures; runs in `known` are not made again."""
    row, hypothesis, experiments = made_again(ledger, name, known)
    assert row.result is not None
    figures = row.result["runs"][STRATEGY]["figures"]
    runs = run_hypothesis(hypothesis, ledger.folder, experiments, policy_seeds_of(row.result))
    again = runs_content(runs, measured_from_runs(runs))
    redefined = _redefined(figures, row.result["written"])
    differences, count, largest = _differences(row.result["runs"], again, redefined)
    before, now = row.result["versions"], versions()
    other = tuple(
        f"{key} {before.get(key)} → {now.get(key)}"
        for key in NUMBERS
        if before.get(key) != now.get(key)
    )
    changed = _changed_arms(ledger, name)
    return Replayed(count, tuple(differences), largest, other, changed, redefined)


def _redefined(names: Iterable[str], written: str) -> tuple[str, ...]:
    """Return the metrics whose definition has changed since a record was written."""
    time = datetime.fromisoformat(written)
    metrics = {name: lookup(name)[0] for name in names if name != CHANGED}
    return tuple(
        name
        for name, metric in metrics.items()
        if metric.redefined and time < datetime.fromisoformat(metric.redefined)
    )


def _differences(
    recorded: Mapping[str, Any], again: Mapping[str, Any], redefined: Collection[str]
) -> tuple[list[str], int, float]:
    """Return the differences, the number of figures compared, and the largest relative difference."""
    differences, count, largest = [], 0, 0.0
    for role, arm in recorded.items():
        if arm["outcomes"] != again[role]["outcomes"]:
            differences.append(
                f"{role}: outcomes {again[role]['outcomes']} instead of {arm['outcomes']}"
            )
            largest = float("inf")
        for metric, values in arm["figures"].items():
            if metric in redefined:
                continue
            now = again[role]["figures"].get(metric)
            count += len(values)
            if now == values:
                continue
            size = _relative(values, now)
            largest = max(largest, size)
            differences.append(f"{role}: {metric} is {now} instead of {values}")
    return differences, count, largest


def _relative(values: list[float | None], now: list[float | None] | None) -> float:
    largest = 0.0
    for before, after in zip(values, now or [None] * len(values), strict=True):
        if before is None or after is None:
            largest = largest if before is after else float("inf")
        elif before != after:
            largest = max(largest, abs(after - before) / max(abs(before), abs(after)))
    return largest


def _changed_arms(ledger: Ledger, name: str) -> tuple[str, ...]:
    """Return the arms whose text now gives other settings than the recorded ones."""
    hypothesis = ledger.row(name).hypothesis
    texts = {role: arm.text for role, arm in hypothesis.arms.items()}
    try:
        now = arm_records(texts[STRATEGY], texts[BASELINE], texts.get(REFERENCE), hypothesis.over)
    except ConfigError as error:
        return (str(error),)
    return tuple(
        f"{role} {texts[role]} has other settings by now"
        for role, arm in hypothesis.arms.items()
        if not _means_the_same(config_of(now[role].settings), config_of(arm.settings))
    )


def _means_the_same(first: ClusterConfig, second: ClusterConfig) -> bool:
    """Return whether two configurations have equal settings, and equal policy numbers, given or by default."""
    numbers = {name for config in (first, second) for name, _ in config.policy_numbers}
    plain = [
        config.replace(policy_numbers=(), routing_scorers=with_weights(config.scorers(), {}))
        for config in (first, second)
    ]
    return plain[0] == plain[1] and all(first.value(name) == second.value(name) for name in numbers)
