"""The trace for Perfetto: steps, counters and spans are those of the record, and well formed."""

from __future__ import annotations

import itertools
import json
from collections import Counter
from pathlib import Path
from typing import Any

import pytest

from blis_jax.records.record import RunRecord
from blis_jax.reports.perfetto import TracedRun, trace_events, write_trace
from tests.support.tiny_records import pressed_run, whole_run

BLOCK = 16
FIRST_INSTANCE = 2  # process 1 is the gateway


def events_of(record: RunRecord, kind: str, **where: Any) -> list[dict[str, Any]]:
    events = trace_events([TracedRun("", record, BLOCK)])
    return [
        event
        for event in events
        if event["ph"] == kind and all(event[name] == value for name, value in where.items())
    ]


def spans(record: RunRecord, number: str) -> dict[str, tuple[int, int]]:
    """Start and end of the spans of one request."""
    found: dict[str, tuple[int, int]] = {}
    open_at: dict[str, int] = {}
    for event in trace_events([TracedRun("", record, BLOCK)]):
        if event["ph"] == "b" and event["id"] == number:
            open_at[event["name"]] = event["ts"]
        elif event["ph"] == "e" and event["id"] == number:
            found[event["name"]] = (open_at.pop(event["name"]), event["ts"])
    assert not open_at
    return found


def test_every_step_is_a_slice_with_its_batch_and_its_blocks() -> None:
    steps = events_of(whole_run(), "X", pid=FIRST_INSTANCE)
    assert [(step["ts"], step["dur"]) for step in steps] == [(5, 50), (55, 10), (65, 5), (70, 30)]
    assert [step["args"]["duration_us"] for step in steps] == [50, 10, 10, 30]
    assert [step["args"]["KV blocks"] for step in steps] == [1, 2, 2, 1]
    waiting = [step["args"]["waiting"] for step in events_of(pressed_run(), "X")]
    assert sum(waiting) == 2 == pressed_run().instances.waiting_sum[0]


def test_counters_fall_to_zero_in_a_pause() -> None:
    counters = events_of(pressed_run(), "C", name="running")
    assert (counters[-1]["ts"], counters[-1]["args"]) == (85, {"running": 0})
    assert (counters[2]["ts"], counters[2]["args"]) == (20, {"running": 2})


def test_spans_of_a_request_follow_each_other_on_the_engines_clock() -> None:
    assert spans(whole_run(), "2.0") == {
        "critical request": (0, 75),
        "queue": (0, 5),
        "prefill": (5, 55),
        "decode": (55, 75),
    }
    first_token_is_the_last = spans(whole_run(), "2.1")
    assert first_token_is_the_last == {
        "standard request": (60, 100),
        "queue": (60, 70),
        "prefill": (70, 100),
    }


def test_who_is_rejected_evicted_or_unfinished_is_seen() -> None:
    (rejected,) = events_of(whole_run(), "i")
    assert (rejected["name"], rejected["ts"]) == ("request 2 (sheddable) rejected", 80)
    (evicted,) = events_of(pressed_run(), "i")
    assert (evicted["name"], evicted["ts"]) == ("request 1 preempted", 30)
    assert spans(pressed_run(), "2.1")["critical request"] == (
        0,
        85,
    )  # up to the end of the run


def test_runs_have_processes_of_their_own(tmp_path: Path) -> None:
    path = tmp_path / "trace.json"
    runs = [TracedRun("plain", whole_run(), BLOCK), TracedRun("pressed", pressed_run(), BLOCK)]
    write_trace(runs, path, {"seed": "7"})
    document = json.loads(path.read_text())
    assert document["otherData"] == {"seed": "7"}
    names = {
        event["pid"]: event["args"]["name"]
        for event in document["traceEvents"]
        if event["name"] == "process_name"
    }
    assert names == {
        1: "plain: gateway",
        2: "plain: instance 0",
        3: "pressed: gateway",
        4: "pressed: instance 0",
    }
    assert {event["pid"] for event in document["traceEvents"]} == set(names)


@pytest.mark.parametrize("record", [whole_run(), pressed_run()], ids=["whole", "pressed"])
def test_events_have_what_the_format_asks_for(record: RunRecord) -> None:
    needed = {"X": {"ts", "dur", "tid"}, "C": {"ts", "args"}, "b": {"ts", "id", "cat"},
              "e": {"ts", "id", "cat"}, "i": {"ts", "s"}, "M": {"args"}}  # fmt: skip
    events = trace_events([TracedRun("", record, BLOCK)])
    for event in events:
        assert {"name", "pid", "tid"} | needed[event["ph"]] <= set(event)
    times = [event["ts"] for event in events if event["ph"] != "M"]
    assert times == sorted(times) and all(isinstance(time, int) for time in times)
    named = {(e["pid"], e["tid"]) for e in events if e["name"] == "thread_name"}
    assert {(e["pid"], e["tid"]) for e in events} <= named
    for thread in {event["tid"] for event in events if event["ph"] == "X"}:
        slices = [event for event in events if event["ph"] == "X" and event["tid"] == thread]
        for before, after in itertools.pairwise(slices):
            assert before["ts"] + before["dur"] <= after["ts"]  # slices of a thread do not overlap
    assert Counter(e["ph"] for e in events)["b"] == Counter(e["ph"] for e in events)["e"]
