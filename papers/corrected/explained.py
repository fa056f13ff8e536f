"""The most surprising conclusions, and what time to first token consists of with and without the defects."""

from __future__ import annotations

import csv
import io
from collections.abc import Iterable, Sequence

from papers.corrected.profiles import CONCLUSION, TURNED, ProfileVerdict, without_defects
from papers.record.measures import ALL, Measurement, ttft_parts
from papers.record.runs import PaperRuns

NUM_SURPRISES = 5
PARTS = {  # by what a reader sees; the parts of a record that each adds up
    "waiting": ("queueing_time", "waiting"),
    "computing": ("prefill_compute", "chunk_overhead"),
    "lost by preemption": ("preempted_service",),
    "other": ("admission_delay", "routing_delay", "output_processing"),
}
COLUMNS = ("track", "row", "setting", "profile", "requests", *PARTS, "TTFT")
_PROFILES = ("exact", "corrected")
_WHICH = (ALL, "slowest")


def surprises(verdicts: Iterable[ProfileVerdict]) -> list[ProfileVerdict]:
    """The conclusions that the defects turn, by how far they move a figure; one of each workload and memory."""
    turned = [
        verdict
        for verdict in verdicts
        if verdict.verdict in TURNED and verdict.kind == CONCLUSION and verdict.moved is not None
    ]
    turned.sort(key=lambda verdict: -_size(verdict))
    found: list[ProfileVerdict] = []
    seen: set[tuple[str, str, int]] = set()
    for verdict in turned:
        assert verdict.moved is not None
        setting = verdict.record.settings[verdict.moved.setting]
        place = (verdict.record.name, setting.choice.name, setting.config.total_kv_blocks)
        if _size(verdict) > 0 and place not in seen and len(found) < NUM_SURPRISES:
            found.append(verdict)
            seen.add(place)
    return found


def _size(verdict: ProfileVerdict) -> float:
    return abs(verdict.moved.log_ratio) if verdict.moved is not None else 0.0


def measurement() -> Measurement:
    """Parts of TTFT of all requests and of the slowest 5 %."""
    return ttft_parts((ALL,))


def parts_of(verdict: ProfileVerdict, runs: PaperRuns) -> list[dict[str, str]]:
    """The parts of the setting that moved most, in ms, by profile and which requests."""
    assert verdict.moved is not None
    record, measured = verdict.record, measurement()
    setting = record.settings[verdict.moved.setting]
    rows = []
    for profile, made in zip(_PROFILES, (setting, without_defects(setting)), strict=True):
        sample = runs.get([made], record.seeds, measured)[made.name]
        for which in _WHICH:
            values = {
                name: sum(float(sample.column(f"{ALL}/{which}/{part}").mean()) for part in parts)
                for name, parts in PARTS.items()
            }
            rows.append(
                {
                    "track": record.name,
                    "row": verdict.claim.row,
                    "setting": setting.name,
                    "profile": profile,
                    "requests": which,
                    **{name: f"{value:.1f}" for name, value in values.items()},
                    "TTFT": f"{sum(values.values()):.1f}",
                }
            )
    return rows


def csv_of(rows: Sequence[dict[str, str]], columns: Sequence[str]) -> str:
    """Rows as CSV."""
    text = io.StringIO()
    writer = csv.DictWriter(text, list(columns), lineterminator="\n")
    writer.writeheader()
    writer.writerows(rows)
    return text.getvalue()
