"""Figures of the routing record: KV memory of the router's instances, and pools for prefill."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from papers import figure_style as style
from papers.record.figures import Expected, chosen, read, shows
from papers.routing_evolution.figures.settings import (
    BLOCKS,
    MEMORY,
    PREFILL2,
    PREFILL4,
    SERIAL,
    SHARED,
    SHARED_ALL,
)

PACKAGE = "papers.routing_evolution"


# --- kV pressure with and without a memory term in the router -------------------------------------


MEMORY_TERM_COLOURS = {
    "round-robin": style.POLICY_COLOURS["baseline"],
    "with kv-utilization": style.POLICY_COLOURS["iteration 13"],
    "without": style.POLICY_COLOURS["iteration 5"],
}
WORDS = {
    "round-robin": "round-robin",
    "with kv-utilization": "prefix-affinity:3, queue-depth:2, kv-utilization:2",
    "without": "prefix-affinity:3, queue-depth:2",
}
# the reference's means of seeds 42, 123 and 7777, ms
MEMORY_TERM_EXPECTED = tuple(
    Expected({"policy": policy, "x": number, "metric": "ttft_p99_ms"}, value, 1e-3)
    for policy, number, value in (
        ("round-robin", 132139, 114.64),
        ("with kv-utilization", 132139, 49.36),
        ("without", 132139, 49.52),
        ("with kv-utilization", 2000, 80.71),
        ("without", 2000, 49.52),
        ("with kv-utilization", 1000, 87.34),
    )
)


@shows(PACKAGE, "KV pressure with and without a memory term in the router", MEMORY_TERM_EXPECTED)
def memory_term(data: Path, path: Path) -> None:
    """Draw left the tails, right how many requests are completed."""
    table = read(data, "memory_term")
    places = list(reversed(BLOCKS))
    with style.figure(2.9, 1, 2) as (figure, panels):
        tails, completed = panels[0]
        for policy in MEMORY:
            share = _placed(chosen(table, policy=policy, metric="completion_rate"), places)
            share = share.assign(**{name: 100 * share[name] for name in ("mean", "low", "high")})
            style.line(completed, share, MEMORY_TERM_COLOURS[policy])
            rows = _placed(chosen(table, policy=policy, metric="ttft_p99_ms"), places)
            style.line(tails, rows, MEMORY_TERM_COLOURS[policy])
        tails.set_ylabel("TTFT P99 (ms)")
        tails.set_ylim(bottom=0)
        tails.set_title("where every request is completed")
        completed.set_ylabel("% of the requests")
        completed.set_ylim(0, 105)
        completed.set_title("completed requests")
        labels = [f"{number / 1000:g}" if number < 1e5 else "132" for number in places]
        for panel in panels[0]:
            panel.set_xticks(range(len(places)), labels)
            panel.set_xlabel("KV blocks of an instance (1,000; uneven steps)")
        caption = (
            "MIXED at 50 requests/s, 300 requests, 4 instances: a stand-in, since the track's workload was never "
            "committed. Without a memory term, runs with 1,000 blocks are cut at 20 s, twice what the "
            "others take: requests evict each other's blocks without end. P99 of all requests of the cluster, seeds "
            "42, 123 and 7777 with BLIS's own requests; bars: 95 % interval of the mean; "
            "they overlap at 2,000 blocks."
        )
        title = "With 1,000 blocks affinity ends runs only with a memory term; three seeds do not tell its cost"
        legend = [
            style.line_handle(WORDS[name], color=MEMORY_TERM_COLOURS[name], marker="o")
            for name in MEMORY
        ]
        style.save(figure, path, title, caption, legend)


def _placed(rows: Any, places: list[int]) -> Any:
    return rows.assign(x=[places.index(int(number)) for number in rows["x"]])


# --- prefill and decode apart ---------------------------------------------------------------------


LINES = {
    SHARED: (style.POLICY_COLOURS["baseline"], "-", "8 shared instances, 5,000 blocks each"),
    SHARED_ALL: (style.POLICY_COLOURS["baseline"], "--", "8 shared instances, 132,139 blocks each"),
    PREFILL4: (style.POLICY_COLOURS["8-opt"], "-", "4 instances for prefill alone"),
    PREFILL2: (style.POLICY_COLOURS["8-opt"], "--", "2 instances for prefill alone"),
}
PANELS = {"": "as published: steps overlap", SERIAL: "one step at a time, no lost blocks"}
# the reference's means of seeds 42, 123 and 7777, ms
DISAGGREGATION_EXPECTED = tuple(
    Expected({"policy": policy, "x": rate, "metric": "worst_ttft_p99_ms"}, value, 1e-3)
    for policy, rate, value in (
        (SHARED, 100, 46.59),
        (SHARED, 200, 51.17),
        (SHARED, 400, 7839.83),
        (PREFILL4, 400, 32.01),
        (PREFILL2, 400, 22.96),
        (PREFILL4 + SERIAL, 400, 771.9),
    )
)


@shows(
    PACKAGE,
    "prefill and decode apart, as published and with one step at a time",
    DISAGGREGATION_EXPECTED,
)
def disaggregation(data: Path, path: Path) -> None:
    """Draw TTFT P99 against the rate, one panel per way of computing steps."""
    table = read(data, "disaggregation")
    with style.figure(3.1, 1, len(PANELS), sharey=True) as (figure, panels):
        for panel, (suffix, words) in zip(panels[0], PANELS.items(), strict=True):
            for policy, (colour, kind, _) in LINES.items():
                rows = chosen(table, policy=policy + suffix, metric="worst_ttft_p99_ms")
                style.line(panel, rows, colour, linestyle=kind)
            panel.set_title(words)
            panel.set_xlabel("arrival rate (requests/s)")
            panel.set_xticks((100, 200, 300, 400))
            panel.set_xlim(80, 420)
            style.plain_log(panel, "y", (20, 50, 100, 200, 500, 1000, 2000, 5000, 10000))
        panels[0][0].set_ylabel("TTFT P99 (ms)")
        caption = (
            "GROUPS-8: prompts of 1,024 tokens, half of them shared in one of eight groups; 10 s, 4:3 routing; P99 of "
            "the worst instance. A pool for prefill gets the same prompts with one token to make. In BLIS such "
            "a request ends in its prefill step, after which the instance counts as idle from the step's start: "
            "it computes any number of steps in parallel. And the shared instances run out of their 5,000 blocks at "
            "400 requests/s. Seeds 42, 123 and 7777 with BLIS's own requests; bars: 95 % interval of the mean."
        )
        title = "A pool for prefill gains by parallel steps and by exhausted caches; without them it loses"
        legend = [
            style.line_handle(words, color=colour, linestyle=kind, marker="o")
            for colour, kind, words in LINES.values()
        ]
        style.save(figure, path, title, caption, legend)
