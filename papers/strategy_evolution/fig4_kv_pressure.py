"""Figure 4: KV blocks of an instance."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Any

from papers import figure_style as style
from papers.strategy_evolution.figures import chosen, main, read

NAME = "fig4_kv_pressure"
POLICIES = ("baseline", "iteration 5")
NO_TIER = ", no CPU tier"
PUBLISHED = (2000, 118)  # blocks, critical TTFT P99 in ms
LEAST_ENDED = 0.02  # share of runs below which a mean says nothing
TICKS = {2000: "2", 3000: "3", 5000: "5", 10000: "10", 20000: "20", 132139: "132"}


def draw(data: Path, path: Path) -> None:
    """Tails of critical and sheddable requests, preemptions, and how many runs end at all."""
    table = read(data, NAME)
    num_seeds = int(table["num_seeds"].max())
    with style.figure(5.0, 2, 2) as (figure, panels):
        critical, sheddable, preempted, ended = panels.reshape(-1)
        _lines(critical, table, "ttft_p99_ms", "critical")
        critical.plot(
            *PUBLISHED, "x", color=style.BLACK, markersize=8, label="published, iteration 5"
        )
        critical.legend(loc="upper right")
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
        for panel in panels.reshape(-1):
            panel.set_xscale("log")
            panel.set_xticks(list(TICKS), list(TICKS.values()))
            panel.minorticks_off()
            panel.set_ylim(bottom=0)
            panel.set_xlabel("KV blocks of an instance (1,000)")
        caption = (
            f"{style.BURST} Solid lines: with a CPU tier of a third as many blocks, as the record has "
            "it; dotted: without. Below 3,000 blocks the reference crashes in many runs with a CPU tier (all "
            "runs of the baseline at 2,000), and so does this simulator, which is equal to it; figures "
            f"are of the runs that end. {num_seeds} seeds, requests by this simulator's generator; "
            "bars: 95 % interval of the mean."
        )
        title = "Memory hardly matters down to 3,000 blocks; below, sheddable requests pay"
        style.save(figure, path, title, caption, style.policy_handles(POLICIES))


def _lines(panel: Any, table: Any, metric: str, slo_class: str, scale: float = 1.0) -> None:
    for policy in POLICIES:
        for tier, kind, mark in (("", "-", "o"), (NO_TIER, ":", "s")):
            rows = chosen(table, policy=policy + tier, metric=metric, slo_class=slo_class)
            few = chosen(table, policy=policy + tier, metric="share_ended")
            has_runs = few[few["mean"] >= LEAST_ENDED]["x"]
            if metric != "share_ended":
                rows = rows[rows["x"].isin(has_runs)]
            rows = rows.assign(**{name: scale * rows[name] for name in ("mean", "low", "high")})
            style.line(panel, rows, style.POLICY_COLOURS[policy], linestyle=kind, marker=mark)


if __name__ == "__main__":
    sys.exit(main(NAME))
