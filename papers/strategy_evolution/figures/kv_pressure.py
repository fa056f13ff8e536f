"""Figure 4: KV blocks of an instance."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Any

from papers import figure_style as style
from papers.record.figures import Expected, chosen, draw_one, read
from papers.strategy_evolution.figures import BY_NAME

NAME = "kv_pressure"
POLICIES = ("baseline", "iteration 5")
NO_TIER = ", no CPU tier"
PUBLISHED = (2000, 118)  # blocks, critical TTFT P99 in ms
# the reference's means of seeds 42 to 44, ms and preemptions
EXPECTED = tuple(
    Expected({"policy": policy, "x": number, "slo_class": slo_class, "metric": metric}, value, 0.15)
    for policy, number, slo_class, metric, value in (
        ("baseline", 5000, "critical", "ttft_p99_ms", 273.5),
        ("iteration 5", 2000, "all", "num_preemptions", 27.7),
        ("baseline, no CPU tier", 2000, "standard", "ttft_p99_ms", 558.3),
        ("iteration 5", 132139, "critical", "ttft_p99_ms", 90.0),
        ("iteration 5", 5000, "sheddable", "ttft_p99_ms", 437.0),
        ("iteration 5, no CPU tier", 2000, "critical", "ttft_p99_ms", 99.5),
    )
)
LEAST_ENDED = 0.02  # share of runs below which a mean says nothing
PLACES = (1750, 2000, 2500, 3000, 4000, 5000, 10000, 20000, 132139)
WORDS = ("1.75", "2", "2.5", "3", "4", "5", "10", "20", "132")


def draw(data: Path, path: Path) -> None:
    """Draw tails of critical and sheddable requests, preemptions, and how many runs end at all."""
    table = read(data, NAME)
    num_seeds = int(table["num_seeds"].max())
    with style.figure(5.0, 2, 2) as (figure, panels):
        critical, sheddable, preempted, ended = panels.reshape(-1)
        _lines(critical, table, "ttft_p99_ms", "critical")
        number, value = PUBLISHED
        critical.plot(PLACES.index(number), value, "x", color=style.BLACK, markersize=8, zorder=6)
        critical.set_title("critical requests")
        critical.set_ylabel("TTFT P99 (ms)")
        _lines(sheddable, table, "ttft_p99_ms", "sheddable")
        sheddable.set_title("sheddable requests")
        sheddable.set_ylabel("TTFT P99 (ms)")
        _lines(preempted, table, "num_preemptions", "all")
        preempted.set_title("preemptions")
        preempted.set_ylabel("per run of 1,000 requests")
        _lines(ended, table, "share_ended", "all", 100)
        ended.set_title("runs that come to their end")
        ended.set_ylabel("% of the runs")
        for panel in (critical, sheddable):
            panel.set_yscale("log")
            ticks = [100, 200, 500, 1000, 2000]
            panel.set_yticks(ticks, [f"{tick:,}" for tick in ticks])
            panel.minorticks_off()
        for panel in (preempted, ended):
            panel.set_ylim(bottom=0)
        for panel in panels.reshape(-1):
            panel.set_xticks(range(len(PLACES)), WORDS)
            panel.set_xlabel("KV blocks of an instance (1,000; uneven steps)")
        caption = (
            f"{style.BURST} The CPU tier has a third as many blocks, as in the record. Below "
            "2,500 blocks the reference crashes or never ends in some runs "
            "(in nearly all of the baseline with a CPU tier), and this simulator, which is "
            f"equal to it, says so; figures are of the runs that end. {num_seeds} seeds, requests by this "
            "simulator's generator; bars: 95 % interval of the mean. The cross is of seed 42 alone."
        )
        title = "Memory hardly matters down to 2,500 blocks; below, sheddable requests pay first"
        legend = [
            *style.policy_handles(POLICIES),
            style.line_handle("with a CPU tier (solid, dots)", color=style.BLACK, marker="o"),
            style.line_handle(
                "without a CPU tier (dotted, squares)", color=style.BLACK, linestyle=":", marker="s"
            ),
            style.line_handle(
                "published, iteration 5", color=style.BLACK, marker="x", linestyle="none"
            ),
        ]
        style.save(figure, path, title, caption, legend)


def _lines(panel: Any, table: Any, metric: str, slo_class: str, scale: float = 1.0) -> None:
    for policy in POLICIES:
        for tier, kind, mark in (("", "-", "o"), (NO_TIER, ":", "s")):
            rows = chosen(table, policy=policy + tier, metric=metric, slo_class=slo_class)
            few = chosen(table, policy=policy + tier, metric="share_ended")
            has_runs = few[few["mean"] >= LEAST_ENDED]["x"]
            if metric != "share_ended":
                rows = rows[rows["x"].isin(has_runs)]
            rows = rows.assign(**{name: scale * rows[name] for name in ("mean", "low", "high")})
            rows = rows.assign(x=[PLACES.index(int(number)) for number in rows["x"]])
            style.line(panel, rows, style.POLICY_COLOURS[policy], linestyle=kind, marker=mark)


if __name__ == "__main__":
    sys.exit(draw_one(BY_NAME[NAME]))
