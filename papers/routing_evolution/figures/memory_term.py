"""KV pressure with and without a memory term in the router."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Any

from papers import figure_style as style
from papers.record.figures import Expected, chosen, draw_one, read
from papers.routing_evolution.figures import BY_NAME
from papers.routing_evolution.figures.settings import BLOCKS, MEMORY

NAME = "memory_term"
COLOURS = {
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
EXPECTED = tuple(
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


def draw(data: Path, path: Path) -> None:
    """Draw left the tails, right how many requests are completed."""
    table = read(data, NAME)
    places = list(reversed(BLOCKS))
    with style.figure(2.9, 1, 2) as (figure, panels):
        tails, completed = panels[0]
        for policy in MEMORY:
            share = _placed(chosen(table, policy=policy, metric="completion_rate"), places)
            share = share.assign(**{name: 100 * share[name] for name in ("mean", "low", "high")})
            style.line(completed, share, COLOURS[policy])
            rows = _placed(chosen(table, policy=policy, metric="ttft_p99_ms"), places)
            style.line(tails, rows, COLOURS[policy])
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
            "42, 123 and 7777 with BLIS's own requests; bars: 95 % interval of the mean."
        )
        title = "Three seeds: a memory term lengthens the tail at 2,000 blocks, and lets runs end at 1,000"
        legend = [
            style.line_handle(WORDS[name], color=COLOURS[name], marker="o") for name in MEMORY
        ]
        style.save(figure, path, title, caption, legend)


def _placed(rows: Any, places: list[int]) -> Any:
    return rows.assign(x=[places.index(int(number)) for number in rows["x"]])


if __name__ == "__main__":
    sys.exit(draw_one(BY_NAME[NAME]))
