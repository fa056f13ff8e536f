"""The answers that the ledger's actions print: of a check, a replay, the state of the search, a new result.

An iteration is null if none of its rows, with its hypothesis confirmed, improves on the best
objective so far by more than `MARGIN_PERCENT`. Only rows with the workload and the baseline of the first
measured row count as better or worse; their seeds may differ, so the objective is taken as a share of the
baseline's on the same seeds.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np

from blis_jax.files.chain import Record
from blis_jax.metrics.measure import DEFAULT_TARGETS
from blis_jax.metrics.metric import HIGHER
from blis_jax.metrics.scalars import lookup
from blis_jax.reports.findings import Answer, Findings, Quantity, Remarks, Sentence
from blis_jax.reports.words import limits_lines
from sweeps.claims.words import CONFIRMED
from sweeps.ledger.book import Ledger, LedgerRow
from sweeps.ledger.trial import BASELINE, STRATEGY
from sweeps.tracks.criteria import line_of

if TYPE_CHECKING:
    from sweeps.ledger.check import CheckReport, Replayed

MARGIN_PERCENT = 1.0


@dataclass(frozen=True)
class Standing:
    """The state of a search."""

    num_rows: int
    verdicts: dict[str, int]
    best: LedgerRow | None  # None while nothing is better than the baseline
    # mean of the objective over the best row's seeds, at first the baseline's
    best_value: float | None
    baseline_value: float | None  # on the same seeds
    null_iterations: tuple[str, ...]  # the last ones, up to now
    open_rows: tuple[LedgerRow, ...]


def standing(rows: Sequence[LedgerRow], objective: str) -> Standing:
    """Return the state of the search after all rows: verdicts, best row, iterations without improvement, open rows."""
    done = [row for row in rows if row.result is not None]
    verdicts: dict[str, int] = {}
    for row in done:
        verdict = str(row.result and row.result["verdict"])
        verdicts[verdict] = verdicts.get(verdict, 0) + 1
    best: LedgerRow | None = None
    best_share = 1.0
    nulls: list[str] = []
    for iteration, members in _iterations(done).items():
        is_null = True
        for row in members:
            share = _share(row, done, objective)
            if share is not None and _is_improvement(row, share, best_share, objective):
                best, best_share, is_null = row, share, False
        nulls = [*nulls, iteration] if is_null else []
    open_rows = tuple(row for row in rows if row.result is None)
    shown = best or _first_measured(done)
    baseline_value = None if shown is None else _mean(shown, BASELINE, objective)
    best_value = baseline_value if best is None else _mean(best, STRATEGY, objective)
    return Standing(len(rows), verdicts, best, best_value, baseline_value, tuple(nulls), open_rows)


def _iterations(rows: Sequence[LedgerRow]) -> dict[str, list[LedgerRow]]:
    by_iteration: dict[str, list[LedgerRow]] = {}
    for row in rows:
        by_iteration.setdefault(row.hypothesis.iteration, []).append(row)
    return by_iteration


def _share(row: LedgerRow, rows: Sequence[LedgerRow], objective: str) -> float | None:
    """Return the objective's mean ÷ the baseline's; None unless the row ran like the first measured row."""
    first = _first_measured(rows)
    if first is None or not row.result or not row.result.get("runs"):
        return None
    if _circumstances(row) != _circumstances(first):
        return None
    value, baseline = _mean(row, STRATEGY, objective), _mean(row, BASELINE, objective)
    return None if value is None or not baseline else value / baseline


def _first_measured(rows: Sequence[LedgerRow]) -> LedgerRow | None:
    return next((row for row in rows if row.result and row.result.get("runs")), None)


def _mean(row: LedgerRow, role: str, objective: str) -> float | None:
    values = row.result["runs"][role]["figures"].get(objective) if row.result else None
    return None if values is None or None in values else float(np.mean(values))


def _circumstances(row: LedgerRow) -> tuple[object, ...]:
    hypothesis = row.hypothesis
    workload = hypothesis.workload.hash if hypothesis.workload else ""
    return workload, hypothesis.arms[BASELINE].hash


def _is_improvement(row: LedgerRow, share: float, best: float, objective: str) -> bool:
    if row.result is None or row.result["verdict"] != CONFIRMED:
        return False
    is_higher_better = lookup(objective)[0].direction == HIGHER
    gain = (share - best) if is_higher_better else (best - share)
    return 100 * gain > MARGIN_PERCENT * abs(best)


NOTHING_RUN = Sentence.of("nothing was run.")


def of_check(report: CheckReport, ledger: Ledger) -> Findings:
    """Answer whether the records are as they were written; problems themselves are printed on standard error."""
    count = Quantity.whole(report.num_records)
    broken = len(report.problems)
    return Findings(
        Answer(
            asked=f"Is every record of {ledger.path} as it was written?",
            verdict=(
                Sentence.of(
                    "No: ", Quantity.whole(broken), " broken, see above; of ", count, " records."
                )
                if broken
                else Sentence.of("Yes: ", count, " records, each as it was written."),
            ),
            sure=Sentence.of("hashes, the page's anchor, git's history, conclusions drawn again."),
            price=NOTHING_RUN,
            next="restore the file from git." if broken else "replay ID runs a row again.",
        ),
        (Remarks(tuple(report.remarks), "Notes", is_brief=True),),
    )


def of_replay(replayed: Replayed, name: str) -> Findings:
    """Answer whether a row's figures are reproduced, and which are not."""
    differing = len(replayed.differences)
    same = Quantity.whole(replayed.num_figures - differing)
    redefined = [
        f"{metric} is not compared, since it meant something else when the row was written"
        for metric in replayed.redefined
    ]
    verdict = Sentence.of(f"{name}: all ", same, " figures come out again, exactly.")
    if differing:
        largest = f" differ, by up to {replayed.largest:.2g} relative; "
        verdict = Sentence.of(
            f"{name}: ", Quantity.whole(differing), largest, same, " figures compared equal."
        )
    return Findings(
        Answer(
            asked=f"Do the figures of row {name} come out again?",
            verdict=(verdict,),
            sure=Sentence.of(
                "up to rounding: other versions or another backend."
                if replayed.other_versions
                else "to the bit: versions and backend are the record's."
            ),
            price=Sentence.of("the row's runs, made again."),
            next=(
                "check proves that the record was not changed."
                if replayed.is_good
                else "look at what the row depends on below: arms, versions, metrics."
            ),
        ),
        (
            Remarks((*replayed.changed_arms, *replayed.other_versions, *redefined), "Notes", True),
            Remarks(replayed.differences, "Differs", True),
        ),
    )


def of_status(ledger: Ledger, objective: str, null_limit: int | None) -> Findings:
    """Answer which row is the best so far, and whether the search should go on."""
    rows = ledger.rows()
    state = standing(rows, objective)
    best = Sentence.of(f"best {objective}: no row is better than the baseline.")
    if state.best is not None and state.best_value is not None and state.baseline_value:
        change = 100 * (state.best_value / state.baseline_value - 1)
        best = Sentence.of(
            f"best {objective}: ", Quantity(state.best_value),
            f" in row {state.best.id} ({state.best.hypothesis.name}), ",
            Quantity(change, unit=" %", is_signed=True), " against the baseline.",
        )  # fmt: skip
    counts = ", ".join(f"{count} {name}" for name, count in state.verdicts.items())
    nulls = state.null_iterations
    limit = ledger.problem.stop_after if null_limit is None else null_limit
    names = f" ({', '.join(nulls)})" if nulls else ""
    rule = (
        f"null iterations in a row: {len(nulls)}{names}; stopping rule: {limit}, an improvement is more "
        f"than {MARGIN_PERCENT:g} %."
    )
    num_runs = sum(map(_num_runs, (row.result for row in rows if row.result is not None)))
    open_rows = [
        f"{row.id}, {row.hypothesis.statement} (since {row.planned['written']})"
        for row in state.open_rows
    ]
    return Findings(
        Answer(
            asked=f"Where does the search of {ledger.path} stand?",
            verdict=(best,),
            sure=Sentence.of(
                Quantity.whole(state.num_rows), f" rows: {counts or 'no result yet'}."
            ),
            price=Sentence.of(Quantity.whole(num_runs), " runs so far; none was made now."),
            next=f"{'stop' if len(nulls) >= limit else 'go on'}: {rule}",
        ),
        (Remarks(tuple(open_rows), "Open", True),),
    )


def of_plan(ledger: Ledger, row: LedgerRow) -> Answer:
    """Answer that a hypothesis is written."""
    record = row.planned
    return Answer.of(
        f"Is the hypothesis of row {row.id} written down before it is run?",
        f"Yes: {row.id}: written as record {record['number']} at {record['written']}, {record['hash']}",
        "the record is chained to those before it, so that check finds a later change.",
        "nothing was run.",
        f"add {row.id} runs it; written: {ledger.path}, {ledger.page}",
    )


def of_note(ledger: Ledger, name: str, record: Record) -> Answer:
    """Answer that findings or a resolution are written."""
    return Answer.of(
        f"Is the note on row {name} written down?",
        f"Yes: {name}: noted as record {record['number']}, {record['hash'][:12]}",
        "the note stands behind the result, which it cannot change.",
        "nothing was run.",
        f"check proves the records; written: {ledger.path}, {ledger.page}",
    )


def of_file(ledger: Ledger, num_added: int, num_rows: int) -> Answer:
    """Answer how many rows of a file the ledger has now."""
    return Answer.of(
        "Which rows of the file were missing, and are there now?",
        f"{num_added} of {num_rows} rows added; {ledger.page} is rendered",
        "rows that were there already were not run again.",
        f"the runs of {num_added} rows.",
        "status says where the search stands.",
    )


def of_page(ledger: Ledger, is_written: bool) -> Answer:
    """Answer that the page shows the ledger's records."""
    page = f"{ledger.page} matches the records"
    return Answer.of(
        "Is the page that of the records?",
        f"Written: {ledger.page}" if is_written else page,
        "the page is made of the records alone.",
        "nothing was run.",
        "check proves that the records are as they were written.",
    )


def of_result(ledger: Ledger, record: Record) -> Findings:
    """Answer with a new result: its verdict, predictions, figures, and the track's criteria."""
    predictions = record.get("predictions", ())
    runs = record.get("runs", {})
    figures = [
        f"{slo_class} {name}: {_figure(of_class[name])}"
        for slo_class, of_class in record.get("comparison", {}).items()
        for name in ("ttft_p99_ms", "goodput_rps", "tokens_per_sec")
        if name in of_class
    ]
    said = [name for of_class in record.get("comparison", {}).values() for name in of_class]
    broken = [f"constraint broken: {text}" for text in record.get("broken_constraints", ())]
    criteria = [
        line_of(*(criterion[key] for key in ("criterion", "class", "goal", "verdict", "reason")))
        for criterion in record.get("criteria", ())
    ]
    if record.get("criteria_changed"):
        criteria.append("the track's criteria have changed since the hypothesis was written")
    where = f"record {record['number']}, {record['hash'][:12]}"
    lines = [
        f"predicted {prediction['claim']}: {prediction['status']}; {prediction['reason']}"
        for prediction in predictions
    ]
    seeds = Quantity.whole(len(record.get("seeds", ())))
    return Findings(
        Answer(
            asked=f"What became of the hypothesis of row {record['id']}?",
            verdict=(Sentence.of(f"{record['id']}: {record['status']} ({where})."),),
            sure=Sentence.of(
                *(("95 % intervals over ", seeds, " seeds.") if runs else ("judged without runs.",))
            ),
            price=Sentence.of(Quantity.whole(_num_runs(record)), " runs.") if runs else NOTHING_RUN,
            next=f"note {record['id']} --findings … --resolution …; written: {ledger.path}, {ledger.page}",
        ),
        (
            Remarks((*lines, *broken), "Predictions", True),
            Remarks((*figures, *limits_lines(said, DEFAULT_TARGETS)), "Figures", True),
            Remarks(tuple(criteria), "Criteria of the track", True),
        ),
    )


def _num_runs(result: Mapping[str, Any]) -> int:
    """Return the number of runs in a result."""
    return sum(len(arm["outcomes"]) for arm in result.get("runs", {}).values())


def _figure(figure: Mapping[str, Any]) -> str:
    value, percent = figure["value"][0], figure["percent"]
    if value is None or percent[0] is None:
        return "no figure" if value is None else f"{value:.5g}"
    around = "" if percent[1] is None else f" [{percent[1]:+.1f}, {percent[2]:+.1f}]"
    return f"{value:.5g}, {percent[0]:+.1f} %{around} {figure['verdict']}"
