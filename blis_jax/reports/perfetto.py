"""A trace of runs for Perfetto (Chrome's trace-event JSON): steps, queues, KV use, spans of each request.

An instance is a process with a thread of steps and counters; a request is an asynchronous span of its instance, which
contains its stays in the queue, in prefill and in decode. Viewers colour spans by name, and put spans of one name on
common rows: so a step is named after its batch, a request after its class.
Times are those of the simulation, in µs.
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

from blis_jax.core.types import CLASS_NAMES
from blis_jax.files.atomic_write import replacing
from blis_jax.records.record import TTFT_PARTS, Status
from blis_jax.records.step_records import expand_steps

if TYPE_CHECKING:
    from blis_jax.records.record import RunRecord

Event = dict[str, Any]
REQUESTS_THREAD, STEPS_THREAD = 0, 1


class TracedRun(NamedTuple):
    """A run to trace, and its name, by which processes are named; empty for the only run."""

    name: str
    record: RunRecord
    block_size_in_tokens: int


def write_trace(runs: Sequence[TracedRun], path: Path, about: dict[str, str]) -> None:
    """Write the trace of all runs to one file, atomically."""
    document = {"traceEvents": trace_events(runs), "displayTimeUnit": "ms", "otherData": about}
    with replacing(path) as written, written.open("w", encoding="utf-8") as file:
        json.dump(document, file, separators=(",", ":"))


def trace_events(runs: Sequence[TracedRun]) -> list[Event]:
    """Return the events of all runs, each run with its own processes: first names, then events in order of time."""
    names: list[Event] = []
    events: list[Event] = []
    first_process = 1
    for run in runs:
        num_instances = len(run.record.instances.step_count)
        names += _names(run, first_process, num_instances)
        events += _steps(run, first_process + 1)
        events += _requests(run, first_process)
        first_process += num_instances + 1
    # spans that touch keep their order
    return names + sorted(events, key=lambda event: event["ts"])


def _names(run: TracedRun, gateway: int, num_instances: int) -> Iterator[Event]:
    """Name the processes: the gateway's, then one per instance."""
    before = f"{run.name}: " if run.name else ""
    labels = ["gateway", *(f"instance {instance}" for instance in range(num_instances))]
    for place, label in enumerate(labels):
        process = gateway + place
        yield _meta("process_name", process, name=before + label)
        yield _meta("process_sort_index", process, sort_index=process)
        yield _meta("thread_name", process, REQUESTS_THREAD, name="requests")
        if place:
            yield _meta("thread_name", process, STEPS_THREAD, name="steps")


def _meta(kind: str, process: int, thread: int = REQUESTS_THREAD, **arguments: object) -> Event:
    return {"ph": "M", "name": kind, "pid": process, "tid": thread, "args": arguments}


def _steps(run: TracedRun, first: int) -> Iterator[Event]:
    """Return a slice for each step, and counters at its start and after the last step before a pause."""
    columns = [column.tolist() for column in expand_steps(run.record, run.block_size_in_tokens)]
    rows = list(zip(*columns, strict=True))
    totals = run.record.instances.total_kv_blocks.tolist()
    for place, row in enumerate(rows):
        instance, start, duration, running, waiting, blocks = row
        following = rows[place + 1] if place + 1 < len(rows) else None
        next_start = following[1] if following and following[0] == instance else None
        end = start + duration
        shown = duration if next_start is None else min(duration, next_start - start)
        arguments = {"batch": running, "waiting": waiting, "KV blocks": blocks,
                     "KV blocks in all": totals[instance], "duration_us": duration}  # fmt: skip
        yield {"ph": "X", "name": f"batch of {running}", "cat": "step", "pid": first + instance,
               "tid": STEPS_THREAD, "ts": start, "dur": max(shown, 0), "args": arguments}  # fmt: skip
        yield from _counters(first + instance, start, running, waiting, blocks)
        if next_start is None or next_start > end:
            yield from _counters(first + instance, end, 0, 0, 0)


def _counters(process: int, time: int, running: int, waiting: int, blocks: int) -> Iterator[Event]:
    for name, value in (("running", running), ("waiting", waiting), ("KV blocks", blocks)):
        yield {"ph": "C", "name": name, "pid": process, "tid": STEPS_THREAD, "ts": time,
               "args": {name: value}}  # fmt: skip


def _requests(run: TracedRun, gateway: int) -> Iterator[Event]:
    """Return a span from arrival to end for each request on an instance, and an instant for each other request."""
    requests = run.record.requests
    output = requests.ttft_parts_us[:, TTFT_PARTS.index("output_processing")].tolist()
    names = ("arrival_us", "instance", "status", "slo_class", "input_len", "output_len", "ttft_us",
             "e2e_us", "left_us", "first_sched_delay_us", "preemptions")  # fmt: skip
    columns = zip(*(getattr(requests, name).tolist() for name in names), strict=True)
    last_us = max(
        int(run.record.instances.sim_ended_time_us.max(initial=0)),
        int(requests.arrival_us.max(initial=0)),
    )
    for number, values in enumerate(columns):
        of = dict(zip(names, values, strict=True))
        status = Status(of["status"])
        slo_class = CLASS_NAMES[of["slo_class"]]
        about = {"request": number, "class": slo_class, "input tokens": of["input_len"],
                 "output tokens": of["output_len"], "status": status.name.lower(),
                 "preemptions": of["preemptions"]}  # fmt: skip
        for name in ("ttft_us", "e2e_us"):
            if of[name] >= 0:
                about[f"{name.removesuffix('_us').upper()} (ms)"] = of[name] / 1000
        if of["instance"] < 0:
            title = f"request {number} ({slo_class}) {status.name.lower()}"
            yield {"ph": "i", "s": "p", "name": title, "cat": "request", "pid": gateway,
                   "tid": REQUESTS_THREAD, "ts": of["arrival_us"], "args": about}  # fmt: skip
            continue
        process = gateway + 1 + of["instance"]
        end = of["left_us"] if of["left_us"] >= 0 else last_us
        title = "request" if slo_class == CLASS_NAMES[0] else f"{slo_class} request"
        spans = [(title, of["arrival_us"], end)]
        spans += _stays(of, output[number], end)
        yield from _span_events(spans, f"{process}.{number}", process, about)
    yield from _evictions(run, gateway)


def _stays(of: dict[str, int], output_us: int, end: int) -> Iterator[tuple[str, int, int]]:
    """Return the request's stays in the queue, in prefill and in decode, as far as it came."""
    arrival = of["arrival_us"]
    scheduled = arrival + of["first_sched_delay_us"] if of["first_sched_delay_us"] >= 0 else end
    scheduled = min(scheduled, end)
    # the engine's clock: TTFT holds the output processing, which delays no step
    first_token = arrival + of["ttft_us"] - max(output_us, 0) if of["ttft_us"] >= 0 else end
    first_token = min(max(first_token, scheduled), end)
    yield "queue", arrival, scheduled
    if scheduled < end:
        yield "prefill", scheduled, first_token
    if first_token < end:
        yield "decode", first_token, end


def _span_events(
    spans: Sequence[tuple[str, int, int]], number: str, process: int, about: dict[str, Any]
) -> Iterator[Event]:
    """Return nested events: the first span contains the others, which follow each other."""
    common = {"cat": "request", "id": number, "pid": process, "tid": REQUESTS_THREAD}
    whole, *parts = spans
    yield {"ph": "b", "name": whole[0], "ts": whole[1], **common, "args": about}
    for name, start, end in parts:
        yield {"ph": "b", "name": name, "ts": start, **common, "args": {}}
        yield {"ph": "e", "name": name, "ts": end, **common, "args": {}}
    yield {"ph": "e", "name": whole[0], "ts": whole[2], **common, "args": {}}


def _evictions(run: TracedRun, gateway: int) -> Iterator[Event]:
    preemptions = run.record.preemptions
    columns = zip(
        preemptions.request.tolist(),
        preemptions.instance.tolist(),
        preemptions.time_us.tolist(),
        strict=True,
    )
    for request, instance, time in columns:
        yield {"ph": "i", "s": "p", "name": f"request {request} preempted", "cat": "preemption",
               "pid": gateway + 1 + instance, "tid": STEPS_THREAD, "ts": time}  # fmt: skip
