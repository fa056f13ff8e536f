"""Figure 2: the threshold of the gate for sheddable requests."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Any

from papers import figure_style as style
from papers.strategy_evolution.figures import chosen, main, read

NAME = "fig2_admission_threshold"
POLICY, NO_GATE = "iteration 3", "iteration 1"
COLOUR = style.POLICY_COLOURS[POLICY]
PUBLISHED = {
    100: (51.9, 7),
    50: (51.1, 21),
    20: (60.1, 31),
}  # threshold: critical gain %, rejected %


def draw(data: Path, path: Path) -> None:
    """Tails by class, rejections, and what completes, against the threshold."""
    table = read(data, NAME)
    num_seeds = int(table["num_seeds"].max())
    with style.figure(2.9, 1, 3) as (figure, panels):
        tails, rejected, rates = panels[0]
        for slo_class, words in style.CLASS_LINES.items():
            _line(tails, table, "ttft_p99_ms", slo_class, f"{slo_class}", words)
        tails.set_ylabel("TTFT P99 of admitted requests (ms)")
        tails.set_title("who waits")
        _line(rejected, table, "reject_rate", "sheddable", "of sheddable requests", ":", 100)
        _line(rejected, table, "reject_rate", "all", "of all requests", "-", 100)
        known = sorted(PUBLISHED)
        rejected.plot(
            known, [PUBLISHED[gate][1] for gate in known], "x", color=style.BLACK, markersize=7,
            label="published, of all", zorder=5,
        )  # fmt: skip
        rejected.set_ylabel("rejected requests (%)")
        rejected.set_title("who is turned away")
        _line(rates, table, "tokens_per_sec", "all", "all output tokens", "-", 1e-3)
        rates.set_ylabel("1,000 output tokens per second")
        rates.set_title("what is served")
        _mark_without(table, tails, rejected, rates)
        for panel in panels[0]:
            panel.set_xscale("log")
            panel.set_xticks([5, 10, 20, 50, 100, 200], ["5", "10", "20", "50", "100", "200"])
            panel.minorticks_off()
            panel.set_xlabel("gate: mean load per instance")
            panel.set_ylim(bottom=0)
            panel.legend(loc="best")
        caption = (
            f"{style.BURST} Iteration 3 rejects a sheddable request while the mean number of requests "
            f"on an instance is above the threshold. {num_seeds} seeds, requests by this simulator's "
            "generator; bars: 95 % interval of the mean. Grey lines: iteration 1, the same without a "
            "gate. Crosses: the record's numbers, which are of one seed. The percentiles are of "
            "admitted requests only, so a strict gate improves the sheddable tail by not serving it."
        )
        title = "A gate moves the sheddable tail first, at the price of rejections"
        style.save(figure, path, title, caption)


def _line(
    panel: Any, table: Any, metric: str, slo_class: str, label: str, kind: str, scale: float = 1.0
) -> None:
    rows = chosen(table, policy=POLICY, metric=metric, slo_class=slo_class)
    rows = rows.assign(**{name: scale * rows[name] for name in ("mean", "low", "high")})
    style.line(panel, rows, COLOUR, linestyle=kind, label=label)


def _mark_without(table: Any, tails: Any, rejected: Any, rates: Any) -> None:
    """Where everything would be without the gate."""
    for slo_class, kind in style.CLASS_LINES.items():
        (row,) = chosen(
            table, policy=NO_GATE, metric="ttft_p99_ms", slo_class=slo_class
        ).itertuples()
        tails.axhline(row.mean, color="0.6", linestyle=kind, linewidth=1, zorder=0)
    (row,) = chosen(table, policy=NO_GATE, metric="tokens_per_sec").itertuples()
    rates.axhline(row.mean / 1e3, color="0.6", linewidth=1, zorder=0, label="without a gate")


if __name__ == "__main__":
    sys.exit(main(NAME))
