"""Figures of the routing record: weights of the router, parts of the compound, cluster sizes, KV memory and pools."""

from __future__ import annotations

from typing import Any

import numpy as np

from blis_jax.reports import style
from papers.record.figures import (
    POLICY_COLOURS,
    SEEDS,
    FigureWords,
    at_load,
    chosen,
    cross_handle,
    draw_line,
    draw_lines,
    expected,
    shows,
    size_axes,
)
from papers.routing_evolution.figures.data import (
    ABLATION,
    BLOCKS,
    COMPOUND,
    COUNTS,
    EQUAL_DURATION,
    GATED,
    MEMORY,
    OWN_TOKENS,
    PREFILL2,
    PREFILL4,
    PREFIXES,
    PUBLISHED_COUNT,
    ROUND_ROBIN,
    SERIAL,
    SHARED,
    SHARED_ALL,
)
from papers.routing_evolution.record import TTFT, WORST_TTFT

PACKAGE = "papers.routing_evolution"
TAILS = {  # colour, words, mark
    WORST_TTFT: (style.ORANGE, "worst instance, the track's metric", "s"),
    TTFT: (style.BLACK, "all requests of the cluster", "o"),
}
# expected below: the reference's means of seeds 42, 123 and 7777, ms


# --- when affinity outvotes load ------------------------------------------------------------------


BLOCK = 16  # tokens
WEIGHT_RATIOS_PUBLISHED = 1.33


def bounds(prefix_tokens: int) -> tuple[float, float]:
    """Return the ratios from which on affinity outvotes load for the prompt that shares most, and for every prompt.

    A warm instance under the highest load is chosen before a cold one under the lowest if a·r > b, where
    a and b are the weights and r is the part of the prompt's blocks that the prefix fills.
    """
    least, most = OWN_TOKENS
    shared = prefix_tokens // BLOCK
    return (prefix_tokens + least) // BLOCK / shared, (prefix_tokens + most) // BLOCK / shared


@shows(
    PACKAGE, "when affinity outvotes load, on prompts of which different parts are shared", (4.4, 2, 3),
    expected(
        "x", [(f"{ratio:g}", ms) for ratio, ms in ((4 / 3, 112.5), (3 / 2, 111.4), (5 / 4, 109.2), (2, 1957.8))],
        policy=512, metric=TTFT,
    ),
    sharex=True, sharey="row",
)  # fmt: skip
def weight_ratios(panels: Any, table: Any) -> FigureWords:
    """Draw a column for each length of the prefix: tails above, completed requests below."""
    for (above, below), (_, tokens) in zip(panels.T, PREFIXES, strict=True):
        _draw_ratios(above, below, table[table["policy"].astype(str) == str(tokens)], tokens)
    panels[0][0].set_ylabel("TTFT P99 (ms)")
    panels[1][0].set_ylabel("completed requests (%)")
    return FigureWords(
        "Affinity cascades where a·r > b holds, which no fixed ratio of weights says",
        "The track's compound (gate, priorities by class) on 8 instances, 1,000 requests in about 0.5 s, one "
        "prefix for all. A warm instance under the highest load is chosen before a cold one under the lowest "
        "if a·r > b (a, b: weights of prefix-affinity and queue-depth; r: share of the prompt that the prefix "
        "fills). Left of the band that is so for no prompt, right of it for every prompt: then one instance "
        "serves all, and the gate turns the rest away. The published limit of 1.33 fits the second: "
        f"it is needlessly low for the first and too high for the third. {SEEDS}.",
        [
            *(
                style.line_handle(w, color=colour, marker=mark)
                for colour, w, mark in TAILS.values()
            ),
            style.area_handle("a·r > b for some prompts", color="0.88"),
            style.line_handle("published limit: 1.33", color=style.BLACK, linestyle=":"),
        ],
    )


def _draw_ratios(above: Any, below: Any, table: Any, tokens: int) -> None:
    for metric, (colour, _, mark) in TAILS.items():
        draw_line(above, chosen(table, metric=metric), colour, marker=mark)
    draw_line(below, chosen(table, metric="completion_rate"), style.BLACK, 100)
    for panel in (above, below):
        panel.axvspan(*bounds(tokens), color="0.88", zorder=0, linewidth=0)
        panel.axvline(WEIGHT_RATIOS_PUBLISHED, color=style.BLACK, linestyle=":", linewidth=1.2)
        style.plain_log(panel, "x", (0.5, 1, 2, 4))
    style.plain_log(above, "y", (100, 200, 500, 1000, 2000))
    below.set_ylim(0, 100)
    least, most = bounds(tokens)
    above.set_title(f"{100 / most:.0f} to {100 / least:.0f} % shared")
    below.set_xlabel("weight of affinity ÷ of load")


# --- what each part of the compound does under bursts, and whether bursts amplify its gain --------


GAINS = {
    (COMPOUND, 1000): (POLICY_COLOURS["8-opt"], "-", "compound, 1,000 requests"),
    (COMPOUND, 2000): (POLICY_COLOURS["8-opt"], "--", "compound, 2,000 requests"),
    (GATED, 1000): (POLICY_COLOURS["iteration 5"], "-", "4:3 and gate alone, 1,000 requests"),
    (GATED, 2000): (POLICY_COLOURS["iteration 5"], "--", "4:3 and gate alone, 2,000 requests"),
}


@shows(
    PACKAGE, "the parts of the compound under bursts, and the gain as arrivals vary more", (5.9, 2, 1),
    expected("policy", (
        ("round-robin", 461.4),
        ("4:3", 441.1),
        ("4:3, priorities", 579.7),
        ("4:3, gate", 103.4),
        ("4:3, both (compound)", 124.3),
        ("3:2, both", 124.9),
        ("round-robin, both", 145.2),
        ("least-loaded, both", 125.1),
    ), slo_class="all", metric=TTFT),
    gridspec_kw={"height_ratios": [1.25, 1]},
)  # fmt: skip
def burst_ablation(panels: Any, table: Any) -> FigureWords:
    """Draw above the arms of the ablation, below the gain as gaps between arrivals vary more."""
    _draw_arms(panels[0, 0], table)
    _draw_gains(panels[1, 0], table)
    return FigureWords(
        "The gate alone is better than the compound, and bursts lessen the gain",
        "4:3: the router weighs cached prefixes 4 and short queues 3; gate: sheddable requests are rejected under "
        "load; priorities: by class; compound: all three. The track's metric is the P99 of the worst instance. "
        "Above: 2,000 requests in about 1 s, gamma gaps with CV 2, 8 instances. The gate does the work; "
        "priorities without it make the tail of all worse, and on top of it too. Below: the gain against "
        "round-robin with the same number of requests on both sides, negative is better. The track's "
        f"65 % with bursts was of 2,000 requests, its 47 % without of 1,000. {SEEDS}, below of "
        "the change paired by seed.",
        [style.area_handle(words, color=colour) for colour, words, _ in TAILS.values()],
    )


def _draw_arms(panel: Any, table: Any) -> None:
    names = list(ABLATION)
    heights = np.arange(len(names))[::-1]
    for place, (metric, (colour, _, _)) in enumerate(TAILS.items()):
        rows = chosen(table, metric=metric, slo_class="all").set_index("policy").loc[names]
        at = heights + 0.2 * (1 - 2 * place)
        reach = [rows["mean"] - rows["low"], rows["high"] - rows["mean"]]
        panel.barh(at, rows["mean"], 0.38, xerr=reach, color=colour, ecolor="0.55")
        for height, value, high in zip(at, rows["mean"], rows["high"], strict=True):
            panel.text(high + 9, height, f"{value:.0f}", va="center", fontsize=8, color=colour)
    panel.set_yticks(heights, names)
    panel.grid(axis="y", visible=False)
    panel.set(xlim=(0, 720), xlabel="TTFT P99 (ms)", title="routing, and what is added to it")


def _draw_gains(panel: Any, table: Any) -> None:
    rows = table[table["metric"] == "ttft_p99_ms_change_percent"]
    parts = rows["x"].str.split(" ", expand=True)
    for (policy, count), (colour, kind, words) in GAINS.items():
        assert count in COUNTS
        some = rows.assign(x=parts[1].astype(float))
        some = some[(rows["policy"] == policy) & (parts[0] == str(count))]
        draw_line(panel, some, colour, linestyle=kind, label=words)
    panel.set_xlabel(
        "coefficient of variation of the gaps between a client's arrivals (1: Poisson)"
    )
    panel.set_ylabel("change of TTFT P99 (%)")
    panel.set_title("against round-robin, all requests of the cluster")
    panel.legend(loc="upper left", ncols=2, handlelength=3.2)
    panel.set_ylim(-85, -20)


# --- the gain of the compound by the number of instances ------------------------------------------


SIZES_COLOURS = {ROUND_ROBIN: POLICY_COLOURS["baseline"], COMPOUND: POLICY_COLOURS["8-opt"]}
LOADS = {
    PUBLISHED_COUNT: "2,000 requests at every size",
    EQUAL_DURATION: "1 s of arrivals at every size",
}
SIZES_PUBLISHED = {4: -83.5, 8: -69.6, 16: -51.2}  # change of the worst instance's P99, %


@shows(
    PACKAGE, "the gain by the number of instances, at equal counts and at equal duration", (4.6, 2, 2),
    expected("policy x", (
        ("round-robin", "published 4", 1460.5),
        ("round-robin", "published 8", 462.8),
        ("round-robin", "published 16", 266.3),
        ("compound", "published 16", 129.9),
        ("round-robin", "equal 4", 462.9),
        ("compound", "equal 4", 205.5),
        ("round-robin", "equal 16", 479.3),
        ("compound", "equal 16", 122.5),
    ), 0.2, metric=WORST_TTFT),
    sharex=True, sharey="row",
)  # fmt: skip
def cluster_sizes(panels: Any, table: Any) -> FigureWords:
    """Draw tails above and the gain below, one column per load."""
    gain = {COMPOUND: SIZES_COLOURS[COMPOUND]}
    for (above, below), (load, words) in zip(panels.T, LOADS.items(), strict=True):
        rows = at_load(table, load)
        draw_lines(above, rows, SIZES_COLOURS, metric=WORST_TTFT)
        draw_lines(below, rows, gain, metric=f"{WORST_TTFT}_change_percent")
        size_axes(above, below, 0)
        above.set_title(words)
        below.set_xlabel("instances")
    sizes, gains = zip(*SIZES_PUBLISHED.items(), strict=True)
    panels[1][0].plot(sizes, gains, "x", color=style.BLACK, markersize=8, zorder=6)
    panels[0][0].set_ylabel("TTFT P99 (ms)")
    panels[1][0].set_ylabel("change (%)")
    names = {ROUND_ROBIN: "round-robin", COMPOUND: "compound (4:3, gate, priorities)"}
    return FigureWords(
        "The gain does not fall with the cluster once every size has as long a burst",
        "4:3: cached prefixes weigh 4, short queues 3; gate: sheddable requests are rejected under load. Three classes "
        "share one prefix of 512 tokens, at 250 requests/s an instance; P99 of the worst instance, the track's "
        "metric. Left, as published: "
        "4 instances take 2,000 requests in 2 s, 16 in 0.5 s, and at overload the tail grows with the "
        f"duration. Right: as long a burst at every size. {SEEDS}, in the "
        "lower row of the change paired by seed.",
        [
            *(
                style.line_handle(words, color=SIZES_COLOURS[name], marker="o")
                for name, words in names.items()
            ),
            cross_handle("published"),
        ],
    )


# --- KV pressure with and without a memory term in the router -------------------------------------


ROUTERS = {  # colour, words
    "round-robin": (POLICY_COLOURS["baseline"], "round-robin"),
    "with kv-utilization": (
        POLICY_COLOURS["iteration 13"], "prefix-affinity:3, queue-depth:2, kv-utilization:2",
    ),
    "without": (POLICY_COLOURS["iteration 5"], "prefix-affinity:3, queue-depth:2"),
}  # fmt: skip


@shows(
    PACKAGE, "KV pressure with and without a memory term in the router", (2.9, 1, 2),
    expected("policy x", (
        ("round-robin", 132139, 114.64),
        ("with kv-utilization", 132139, 49.36),
        ("without", 132139, 49.52),
        ("with kv-utilization", 2000, 80.71),
        ("without", 2000, 49.52),
        ("with kv-utilization", 1000, 87.34),
    ), 1e-3, metric=TTFT),
)  # fmt: skip
def memory_term(panels: Any, table: Any) -> FigureWords:
    """Draw left the tails, right how many requests are completed."""
    places = list(reversed(BLOCKS))
    tails, completed = panels[0]
    for policy in MEMORY:
        for panel, metric, scale in ((completed, "completion_rate", 100), (tails, TTFT, 1)):
            rows = chosen(table, policy=policy, metric=metric)
            rows = rows.assign(x=[places.index(int(number)) for number in rows["x"]])
            draw_line(panel, rows, ROUTERS[policy][0], scale)
    tails.set(ylim=(0, None), ylabel="TTFT P99 (ms)", title="where every request is completed")
    completed.set(ylim=(0, 105), ylabel="% of the requests", title="completed requests")
    labels = [f"{number / 1000:g}" if number < 1e5 else "132" for number in places]
    for panel in panels[0]:
        panel.set_xticks(range(len(places)), labels)
        panel.set_xlabel("KV blocks of an instance (1,000; uneven steps)")
    return FigureWords(
        "With 1,000 blocks affinity ends runs only with a memory term; three seeds do not tell its cost",
        "The workload mixed at 50 requests/s, 300 requests, 4 instances: a stand-in, since the track's was never "
        "committed. Without a memory term, runs with 1,000 blocks are cut at 20 s, twice what the "
        "others take: requests evict each other's blocks without end. P99 of all requests of the cluster, seeds "
        "42, 123 and 7777 with BLIS's own requests; bars: 95 % interval of the mean; "
        "they overlap at 2,000 blocks.",
        [style.line_handle(words, color=colour, marker="o") for colour, words in ROUTERS.values()],
    )


# --- prefill and decode apart ---------------------------------------------------------------------


LINES = {
    SHARED: (POLICY_COLOURS["baseline"], "-", "8 shared instances, 5,000 blocks each"),
    SHARED_ALL: (POLICY_COLOURS["baseline"], "--", "8 shared instances, 132,139 blocks each"),
    PREFILL4: (POLICY_COLOURS["8-opt"], "-", "4 instances for prefill alone"),
    PREFILL2: (POLICY_COLOURS["8-opt"], "--", "2 instances for prefill alone"),
}
PANELS = {"": "as published: steps overlap", SERIAL: "one step at a time, no lost blocks"}


@shows(
    PACKAGE, "prefill and decode apart, as published and with one step at a time", (3.1, 1, 2),
    expected("policy x", (
        (SHARED, 100, 46.59),
        (SHARED, 200, 51.17),
        (SHARED, 400, 7839.83),
        (PREFILL4, 400, 32.01),
        (PREFILL2, 400, 22.96),
        (PREFILL4 + SERIAL, 400, 771.9),
    ), 1e-3, metric=WORST_TTFT),
    sharey=True,
)  # fmt: skip
def disaggregation(panels: Any, table: Any) -> FigureWords:
    """Draw TTFT P99 against the rate, one panel per way of computing steps."""
    for panel, (suffix, words) in zip(panels[0], PANELS.items(), strict=True):
        for policy, (colour, kind, _) in LINES.items():
            rows = chosen(table, policy=policy + suffix, metric=WORST_TTFT)
            draw_line(panel, rows, colour, linestyle=kind)
        panel.set_xticks((100, 200, 300, 400))
        panel.set(title=words, xlabel="arrival rate (requests/s)", xlim=(80, 420))
        style.plain_log(panel, "y", (20, 50, 100, 200, 500, 1000, 2000, 5000, 10000))
    panels[0][0].set_ylabel("TTFT P99 (ms)")
    return FigureWords(
        "A pool for prefill gains by parallel steps and by exhausted caches; without them it loses",
        "Prompts of 1,024 tokens, half of them shared in one of eight groups, for 10 s; the router weighs cached "
        "prefixes 4 and short queues 3; P99 of the worst instance. A pool for prefill gets the same prompts with one "
        "token to make. In BLIS such "
        "a request ends in its prefill step, after which the instance counts as idle from the step's start: "
        "it computes any number of steps in parallel. And the shared instances run out of their 5,000 blocks at "
        "400 requests/s. Seeds 42, 123 and 7777 with BLIS's own requests; bars: 95 % interval of the mean.",
        [
            style.line_handle(words, color=colour, linestyle=kind, marker="o")
            for colour, kind, words in LINES.values()
        ],
    )
