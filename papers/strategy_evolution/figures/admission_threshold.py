"""Figure 2: the threshold of the gate for sheddable requests."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Any

from papers import figure_style as style
from papers.record.figures import Expected, chosen, draw_one, read
from papers.record.measures import CLASSES
from papers.strategy_evolution.figures import BY_NAME

NAME = "admission_threshold"
POLICY, NO_GATE = "iteration 3", "iteration 1"
# the reference's means of seeds 42 to 44
EXPECTED = tuple(
    Expected({"policy": POLICY, "x": gate, "slo_class": slo_class, "metric": metric}, value, within)
    for gate, slo_class, metric, value, within in (
        (20, "critical", "ttft_p99_ms", 120.3, 0.15),
        (100, "critical", "ttft_p99_ms", 133.5, 0.15),
        (100, "sheddable", "ttft_p99_ms", 464.3, 0.15),
        (20, "sheddable", "ttft_p99_ms", 306.7, 0.15),  # 100 seeds; the first three give 114
        (20, "all", "reject_rate", 0.269, 0.1),
        (50, "all", "reject_rate", 0.180, 0.2),
        (20, "all", "tokens_per_sec", 13306, 0.15),
    )
)
PUBLISHED = {
    100: (51.9, 7),
    50: (51.1, 21),
    20: (60.1, 31),
}  # threshold: critical gain %, rejected %


def draw(data: Path, path: Path) -> None:
    """Draw tails by class, rejections, and what completes, against the threshold."""
    table = read(data, NAME)
    num_seeds = int(table["num_seeds"].max())
    with style.figure(2.9, 1, 3) as (figure, panels):
        tails, rejected, rates = panels[0]
        for slo_class in CLASSES:
            _line(tails, table, "ttft_p99_ms", slo_class)
        tails.set_ylabel("TTFT P99 of those admitted (ms)")
        tails.set_title("who waits")
        for slo_class in ("sheddable", "all"):
            _line(rejected, table, "reject_rate", slo_class, 100)
        known = sorted(PUBLISHED)
        rates_known = [PUBLISHED[gate][1] for gate in known]
        rejected.plot(known, rates_known, "x", color=style.BLACK, markersize=7, zorder=5)
        rejected.set_ylabel("rejected requests (%)")
        rejected.set_title("who is turned away")
        _line(rates, table, "tokens_per_sec", "all", 1e-3)
        rates.set_ylabel("1,000 decode tokens per second")
        rates.set_title("what is served")
        _mark_without(table, tails, rates)
        for panel in panels[0]:
            panel.set_xscale("log")
            panel.set_xticks([5, 10, 20, 50, 100, 200], ["5", "10", "20", "50", "100", "200"])
            panel.minorticks_off()
            panel.set_xlabel("gate (requests per instance)")
            panel.set_ylim(bottom=0)
        tails.set_ylim(top=560)
        (strict,) = chosen(table, x=20, slo_class="sheddable", metric="ttft_p99_ms").itertuples()
        caption = (
            f"{style.BURST} Iteration 3 rejects a sheddable request while the mean number of requests "
            f"on an instance is above the threshold. {num_seeds} seeds, requests by this simulator's "
            "generator; bars: 95 % interval of the mean. Thin grey lines: iteration 1, the same without "
            "a gate. Crosses: the record's numbers, which are of seed 42 alone. Percentiles are of "
            "admitted requests only: a strict gate improves the sheddable tail by not serving it. At a "
            f"gate of 20 the record's three seeds give a sheddable tail of 114 ms, these {num_seeds} "
            f"seeds {strict.mean:.0f} ms."
        )
        title = "A gate moves the sheddable tail by rejections; critical requests gain little"
        legend = [
            *style.class_handles([*CLASSES, "all"]),
            style.line_handle("without a gate", color="0.45", linewidth=1),
            style.line_handle(
                "published, of all requests", color=style.BLACK, marker="x", linestyle="none"
            ),
        ]
        style.save(figure, path, title, caption, legend)


def _line(panel: Any, table: Any, metric: str, slo_class: str, scale: float = 1.0) -> None:
    """Draw one line in its class's style."""
    rows = chosen(table, policy=POLICY, metric=metric, slo_class=slo_class)
    rows = rows.assign(**{name: scale * rows[name] for name in ("mean", "low", "high")})
    style.line(panel, rows, **style.class_style(slo_class))


def _mark_without(table: Any, tails: Any, rates: Any) -> None:
    """Mark where everything would be without the gate."""
    for slo_class in CLASSES:
        (row,) = chosen(
            table, policy=NO_GATE, metric="ttft_p99_ms", slo_class=slo_class
        ).itertuples()
        tails.axhline(row.mean, color="0.45", linewidth=1, zorder=0)
    (row,) = chosen(table, policy=NO_GATE, metric="tokens_per_sec").itertuples()
    rates.axhline(row.mean / 1e3, color="0.45", linewidth=1, zorder=0)


if __name__ == "__main__":
    sys.exit(draw_one(BY_NAME[NAME]))
