"""Figures of the policies: distributions and parts of TTFT, parts of the strategies, and the published searches."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np

from blis_jax.reports import style
from papers.record.figures import (
    BURST,
    POLICY_COLOURS,
    SEEDS,
    FigureWords,
    chosen,
    expected,
    policy_handles,
    shows,
)
from papers.record.measures import CLASSES
from papers.strategy_evolution.figures.data import FOUR, MAIN

PACKAGE = "papers.strategy_evolution"


# --- figure 1 -------------------------------------------------------------------------------------


SHARES = {"critical": "20 %", "standard": "50 %", "sheddable": "30 %"}


@shows(
    PACKAGE, "TTFT distributions by class, baseline against 8-opt", (3.0, 1, 3),
    expected("policy slo_class", (
        ("baseline", "critical", 268.8),
        ("baseline", "sheddable", 264.8),
        ("iteration 5", "critical", 90.0),
        ("iteration 5", "standard", 187.1),
        ("8-opt", "critical", 70.8),
        ("8-opt", "sheddable", 599.2),
    ), metric="ttft_p99_ms"),
    sharey=True,
)  # fmt: skip
def ttft_distributions(panels: Any, table: Any) -> FigureWords:
    """Draw one panel per class: mean curves over the seeds, the middle 90 % of them, and the tails."""
    for panel, slo_class in zip(panels[0], CLASSES, strict=True):
        _draw_class(panel, chosen(table, slo_class=slo_class))
        panel.set_title(f"{slo_class} ({SHARES[slo_class]} of requests)")
        panel.set_xlabel("time to first token (ms)")
    panels[0][0].set_ylabel("requests with first token (%)")
    return FigureWords(
        "Critical requests get their first token far sooner, sheddable ones far later",
        f"{BURST} Every policy served the same requests, drawn with {{num_seeds}} seeds by "
        "this simulator's generator. Lines: time within which a share of the class had its first "
        "token, mean over seeds. Bands: the middle 90 % of the seeds. Dots with numbers: 99th "
        "percentile, mean over seeds with its 95 % interval (narrower than the dots where none is seen).",
        policy_handles(MAIN),
        1,
    )


def _draw_class(panel: Any, table: Any) -> None:
    for place, policy in enumerate(MAIN):
        colour = POLICY_COLOURS[policy]
        curve = chosen(table, policy=policy, metric="ttft_ms").sort_values("x")
        share = 100 * curve["x"]
        panel.fill_betweenx(
            share, curve["low"], curve["high"], color=colour, alpha=0.18, linewidth=0
        )
        panel.plot(curve["mean"], share, color=colour)
        (tail,) = chosen(table, policy=policy, metric="ttft_p99_ms").itertuples()
        reach = [[tail.mean - tail.low], [tail.high - tail.mean]]
        panel.errorbar([tail.mean], [99], xerr=reach, color=colour, marker="o", zorder=5)
        panel.text(
            0.98, 0.23 - 0.085 * place, f"99 % within {tail.mean:.0f} ms", color=colour, ha="right",
            transform=panel.transAxes, bbox={"color": "white", "alpha": 0.75, "pad": 0.4},
        )  # fmt: skip
    longest = float(table["high"].max())
    panel.set_xlim(0, longest * 1.7 if longest > 500 else longest)  # room for the words
    panel.set_ylim(0, 101)


# --- figure 9: what time to first token consists of, by class and policy --------------------------


PARTS = (  # by what a reader sees; the smallest ones together
    (style.PARTS["waiting"][0], "waiting for the batch", ["queueing_time", "waiting"]),
    (style.PARTS["compute"][0], "computing the prompt", ["prefill_compute"]),
    (style.PARTS["chunk overhead"][0], "further steps because of chunks", ["chunk_overhead"]),
    (
        style.PARTS["fixed"][0], "output processing and the rest",
        ["output_processing", "admission_delay", "routing_delay", "preempted_service"],
    ),
)  # fmt: skip
ROWS = {"all": "all requests", "slowest": "the slowest 5 %"}


@shows(
    PACKAGE, "what time to first token consists of", (5.4, 2, 3),
    # the published constant of a request after its first token, ms
    expected(
        "policy", [(policy, 1.8055) for policy in FOUR], 1e-3,
        x="all", slo_class="critical", metric="output_processing",
    ),
    sharey="row",
)  # fmt: skip
def ttft_parts(panels: Any, table: Any) -> FigureWords:
    """Draw one row for all requests of a class and one for its slowest, one column per class."""
    for row, (which, words) in zip(panels, ROWS.items(), strict=True):
        for panel, slo_class in zip(row, CLASSES, strict=True):
            _draw_bars(panel, chosen(table, x=which, slo_class=slo_class))
            panel.set_title(f"{slo_class}, {words}")
        row[0].set_ylabel("mean TTFT (ms)")
    return FigureWords(
        "Priorities take the waiting from critical requests; computing prompts remains",
        f"{BURST} Mean over the requests of a class with a first token, then over {{num_seeds}} seeds, "
        "requests by this simulator's generator. The parts add up to time to first token. Bars "
        "on the whole column: 95 % interval of the mean of its largest part. A step is shared by all "
        "requests in it, so computing a prompt includes the time of the others' tokens; further steps because of "
        "chunks are the constant part of the steps that a prompt would not have needed in one piece.",
        [style.area_handle(words, color=colour) for colour, words, _ in PARTS],
    )


def _draw_bars(panel: Any, table: Any) -> None:
    for place, policy in enumerate(FOUR):
        rows = chosen(table, policy=policy).set_index("metric")
        bottom = 0.0
        for colour, _, names in PARTS:
            height = float(rows.loc[names, "mean"].sum())
            panel.bar(place, height, 0.72, bottom=bottom, color=colour)
            bottom += height
        largest = rows.loc[rows["mean"].idxmax()]
        half = (largest["high"] - largest["low"]) / 2
        panel.errorbar([place], [bottom], yerr=[half], color="0.2", linewidth=1)
        panel.text(place, bottom + half, f"{bottom:.0f}", ha="center", va="bottom", fontsize=8)
    words = [policy.replace("iteration", "iter.") for policy in FOUR]
    panel.set_xticks(range(len(FOUR)), words)
    for label, policy in zip(panel.get_xticklabels(), FOUR, strict=True):
        label.set_color(POLICY_COLOURS[policy])
    panel.margins(y=0.12)
    panel.grid(axis="x", visible=False)


# --- figure 8: the strategies' parts, alone and together, and taken back one at a time ------------


SQUARE = {
    "neither": (POLICY_COLOURS["baseline"], "neither (baseline)"),
    "whole prompts only": (style.ORANGE, "whole prompts only"),
    "priorities only": (POLICY_COLOURS["iteration 1"], "priorities only"),
    "both": (POLICY_COLOURS["iteration 5"], "both (iteration 5)"),
}
EDGE = 90.0  # % beyond which a change is only written


@shows(
    PACKAGE, "parts of the strategies, alone and together", (6.2, 2, 1),
    expected("policy", (
        ("neither", 268.8),
        ("whole prompts only", 252.7),
        ("priorities only", 134.4),
        ("both", 90.0),
    ), slo_class="critical", metric="ttft_p99_ms"),
    gridspec_kw={"height_ratios": [1, 1.25]},
)  # fmt: skip
def ablation(panels: Any, table: Any) -> FigureWords:
    """Draw above the 2 × 2 of priorities and whole prompts, below 8-opt with a part taken back."""
    _draw_square(panels[0, 0], table)
    _draw_parts(panels[1, 0], table)
    (both,) = chosen(table, policy="interaction").itertuples()
    return FigureWords(
        "Critical requests gain most by priorities, and more with whole prompts on top",
        f"{BURST} Above: priorities by class, and prompts of critical and sheddable "
        "requests whole instead of in chunks of 256 tokens, each on and off. Together they bring "
        f"{-both.mean:.0f} ms [{-both.high:.0f}, {-both.low:.0f}] more for critical requests than the sum "
        "of both alone. Below: 8-opt with one part as it was before; to the right of 0 the part helps the class. "
        f"{SEEDS}, below of the change paired by seed.",
    )


def _draw_square(panel: Any, table: Any) -> None:
    width = 0.8 / len(SQUARE)
    for place, (name, (colour, _)) in enumerate(SQUARE.items()):
        rows = chosen(table, policy=name, metric="ttft_p99_ms").set_index("slo_class")
        rows = rows.loc[list(CLASSES)]
        at = np.arange(len(CLASSES)) + width * (place - 1.5)
        reach = [rows["mean"] - rows["low"], rows["high"] - rows["mean"]]
        panel.bar(at, rows["mean"], width, yerr=reach, color=colour, ecolor="0.2")
        for x, value in zip(at, rows["mean"], strict=True):
            panel.text(x, value + 13, f"{value:.0f}", ha="center", fontsize=8.5, color=colour)
    panel.set_xticks(np.arange(len(CLASSES)), CLASSES)
    panel.margins(y=0.1)
    panel.grid(axis="x", visible=False)
    panel.set(ylabel="TTFT P99 (ms)", title="priorities and whole prompts, each on and off")
    handles = [style.area_handle(words, color=colour) for colour, words in SQUARE.values()]
    panel.legend(handles=handles, loc="upper left", ncols=2)


def _draw_parts(panel: Any, table: Any) -> None:
    rows = table[table["x"] == "from 8-opt"]
    rows = rows[rows["metric"] == "ttft_p99_ms_change_percent"]
    names = list(dict.fromkeys(rows["policy"]))
    critical = rows[rows["slo_class"] == "critical"].set_index("policy")["mean"]
    names.sort(key=lambda name: critical[name])
    heights = np.arange(len(names))
    for place, slo_class in enumerate(CLASSES):
        of_class = rows[rows["slo_class"] == slo_class].set_index("policy").loc[names]
        reach = [of_class["mean"] - of_class["low"], of_class["high"] - of_class["mean"]]
        panel.errorbar(
            of_class["mean"], heights + 0.22 * (1 - place), xerr=reach,
            label=slo_class, **(style.class_style(slo_class) | {"linestyle": "none"}),
        )  # fmt: skip
        for height, value in zip(heights, of_class["mean"], strict=True):
            if value > EDGE:
                panel.text(
                    1.24 * EDGE, height + 0.22 * (1 - place), f"+{value:.0f} % →", ha="right",
                    va="center", fontsize=8.5, color=style.CLASS_COLOURS[slo_class],
                )  # fmt: skip
    panel.axvline(0, color=POLICY_COLOURS["8-opt"], linewidth=1.2, zorder=0, label="8-opt")
    panel.set_xlim(-45, 1.25 * EDGE)
    panel.set_yticks(heights, names)
    panel.grid(axis="y", visible=False)
    panel.set(xlabel="change of TTFT P99 against 8-opt (%)", title="8-opt, one part taken back")
    panel.legend(loc="lower right")


# --- figure 7: the two published searches, call by call, beside the same searches here ------------


SEARCHES = {  # colour, title, name of the record's file, published best in ms
    "iter01_priority_cascade": ("iteration 1", "iteration 1: 30 calls", "iter1", 131.78480),
    "iter08_token_budget": ("8-opt", "iteration 8: 40 calls", "iter8", 70.77781),
}
# where the record's own files lie, if they are here
RECORD = Path("data") / "blis_reference" / "strategy_pr452"


@shows(
    PACKAGE, "the two published searches, call by call", (3.0, 1, 2),
    expected("policy x", (  # published scores of the first two calls, ms
        ("iter08_token_budget", 1, 575.3187333),
        ("iter08_token_budget", 2, 105.3497133),
        ("iter01_priority_cascade", 1, 132.61257),
        ("iter01_priority_cascade", 2, 131.78480),  # the best
    ), 1e-5),
)  # fmt: skip
def searches(panels: Any, table: Any) -> FigureWords:
    """Draw scores and the best so far; published scores where the record's files are at hand."""
    has_record = False
    for panel, (strategy, (policy, words, name, level)) in zip(
        panels[0], SEARCHES.items(), strict=True
    ):
        recorded = published_scores(name)
        has_record = has_record or recorded is not None
        _draw_search(panel, chosen(table, policy=strategy), POLICY_COLOURS[policy], recorded)
        panel.axhline(level, color=style.BLACK, linestyle="--", linewidth=1)
        panel.text(
            1, level * 0.955, f"published best: {level:.2f} ms", va="top", fontsize=8,
            bbox={"color": "white", "alpha": 0.7, "pad": 0.3}, zorder=7,
        )  # fmt: skip
        style.plain_log(panel, "y", (60, 80, 100, 150, 200, 500, 1000, 2000))
        panel.set(title=words, xlabel="call", ylim=(55, None))
    panels[0][0].set_ylabel("score: critical TTFT P99 (ms) + penalties")
    known = (
        "Crosses: the record's scores."
        if has_record
        else "The record's scores of each call are not at hand here."
    )
    return FigureWords(
        "The published searches, run again, end at the same point once and above it once",
        f"{BURST} Each call is one setting of the parameters on seeds 42, 43 and 44 with the "
        "reference's own requests; the score is a mean of these three runs; bars: its standard error. "
        f"{known} The same Gaussian-process search chooses the same points up to call 19 and call 15, then "
        "they part, presumably by versions of its libraries; iteration 1 still ends at the published point, "
        "iteration 8 above it.",
        _searches_handles(has_record),
        4,
    )


def published_scores(name: str) -> list[float] | None:
    """Read the record's scores by call, if its files lie beside the checkout; they are not ours to ship."""
    for folder in Path(__file__).resolve().parents:
        path = folder / "shared" / RECORD / f"{name}-optimization-results.json"
        if path.is_file():
            scores: list[float] = json.loads(path.read_text(encoding="utf-8"))["convergence"]
            return scores
    return None


def _draw_search(panel: Any, table: Any, colour: str, recorded: list[float] | None) -> None:
    rows = table.sort_values("x")
    calls, scores = rows["x"].to_numpy(), rows["mean"].to_numpy()
    reach = [scores - rows["low"], rows["high"] - scores]
    panel.errorbar(calls, scores, yerr=reach, fmt="o", color=colour, alpha=0.75, capsize=0)
    best = np.minimum.accumulate(scores)
    panel.step(calls, best, where="post", color=colour)
    if recorded is not None:
        panel.plot(
            np.arange(1, len(recorded) + 1), recorded, "x", color=style.BLACK, markersize=5,
            markeredgewidth=0.9,
        )  # fmt: skip


def _searches_handles(has_record: bool) -> list[Any]:
    grey = {"color": "0.35"}
    handles = [
        style.line_handle("here, call by call", marker="o", linestyle="none", **grey),
        style.line_handle("best so far, here", **grey),
        style.line_handle("published best", color=style.BLACK, linestyle="--", linewidth=1),
    ]
    if has_record:
        mark = {"marker": "x", "linestyle": "none", "color": style.BLACK}
        handles.append(style.line_handle("published, call by call", **mark))
    return handles
