"""Figures by place: arrival rates, KV blocks, cluster sizes, the cost of a step and the threshold of a gate."""

from __future__ import annotations

from typing import Any

from blis_jax.reports import style
from papers.record.figures import (
    BURST,
    POLICY_COLOURS,
    SEEDS,
    FigureWords,
    at_load,
    chosen,
    cross_handle,
    draw_line,
    draw_lines,
    expected,
    policy_handles,
    shows,
    size_axes,
)
from papers.record.measures import CLASSES
from papers.strategy_evolution.figures.data import CHUNKED, MAIN, NO_TIER, WHOLE

PACKAGE = "papers.strategy_evolution"
TAIL, CHANGE = "ttft_p99_ms", "ttft_p99_ms_change_percent"
MAIN_COLOURS = {policy: POLICY_COLOURS[policy] for policy in MAIN}
# expected below: the reference's means of seeds 42 to 44, latencies in ms


# --- figure 3: arrival rates ----------------------------------------------------------------------


FLAT = (1500, 3000, 90)  # the record: critical at about 90 ms between these rates


@shows(
    PACKAGE, "arrival rates", (2.9, 1, 3),
    expected("policy x", (
        ("baseline", 1000, 88.9),
        ("baseline", 1500, 167.7),
        ("baseline", 3000, 411.3),
        ("iteration 5", 1000, 69.3),
        ("iteration 5", 1500, 88.6),
        ("iteration 5", 3000, 94.8),
    ), slo_class="critical", metric=TAIL),
)  # fmt: skip
def rate_sweep(panels: Any, table: Any) -> FigureWords:
    """Draw one panel per class: TTFT P99 against the rate."""
    for panel, slo_class in zip(panels[0], CLASSES, strict=True):
        draw_lines(panel, table, MAIN_COLOURS, slo_class=slo_class, metric=TAIL)
        panel.set_xticks(range(0, 4001, 1000), ["0", "1", "2", "3", "4"])
        panel.set(title=slo_class, xlabel="arrival rate (1,000 requests/s)")
        panel.set(xlim=(0, 4150), ylim=(0, None))
    first, last, level = FLAT
    dashed = {"color": style.BLACK, "linewidth": 1.2, "linestyle": "--"}
    panels[0][0].plot([first, last], [level, level], zorder=6, **dashed)
    panels[0][0].set_ylabel("TTFT P99 (ms)")
    return FigureWords(
        "Critical requests hardly notice the rate once they go first",
        "1,000 requests on 8 instances at every rate: the faster they come, the shorter the burst "
        "(2 s at 500 requests/s, 0.25 s at 4,000), so a high rate is not overload for longer. "
        f"{SEEDS}. The three scales differ.",
        [
            *policy_handles(MAIN),
            style.line_handle(f"published for iteration 5: flat at about {level} ms", **dashed),
        ],
        1,
    )


# --- figure 4: KV blocks of an instance -----------------------------------------------------------


KV_PRESSURE_POLICIES = ("baseline", "iteration 5")
KV_PRESSURE_PUBLISHED = (2000, 118)  # blocks, critical TTFT P99 in ms
LEAST_ENDED = 0.02  # share of runs below which a mean says nothing
PLACES = (1750, 2000, 2500, 3000, 4000, 5000, 10000, 20000, 132139)
KV_PRESSURE_PANELS = (  # metric, class, scale, title, label of the axis
    (TAIL, "critical", 1, "critical requests", "TTFT P99 (ms)"),
    (TAIL, "sheddable", 1, "sheddable requests", "TTFT P99 (ms)"),
    ("num_preemptions", "all", 1, "preemptions", "per run of 1,000 requests"),
    ("share_ended", "all", 100, "runs that come to their end", "% of the runs"),
)


@shows(
    PACKAGE, "KV blocks of an instance", (5.0, 2, 2),
    expected("policy x slo_class metric", (
        ("baseline", 5000, "critical", TAIL, 273.5),
        ("iteration 5", 2000, "all", "num_preemptions", 27.7),
        ("baseline, no CPU tier", 2000, "standard", TAIL, 558.3),
        ("iteration 5", 132139, "critical", TAIL, 90.0),
        ("iteration 5", 5000, "sheddable", TAIL, 437.0),
        ("iteration 5, no CPU tier", 2000, "critical", TAIL, 99.5),
    )),
)  # fmt: skip
def kv_pressure(panels: Any, table: Any) -> FigureWords:
    """Draw tails of critical and sheddable requests, preemptions, and how many runs end at all."""
    number, value = KV_PRESSURE_PUBLISHED
    panels[0][0].plot(PLACES.index(number), value, "x", color=style.BLACK, markersize=8, zorder=6)
    for panel, (metric, slo_class, scale, title, label) in zip(
        panels.reshape(-1), KV_PRESSURE_PANELS, strict=True
    ):
        _draw_pressure(panel, table, metric, slo_class, scale)
        if metric == TAIL:
            style.plain_log(panel, "y", (100, 200, 500, 1000, 2000))
        else:
            panel.set_ylim(bottom=0)
        labels = [f"{number / 1000:g}" if number < 1e5 else "132" for number in PLACES]
        panel.set_xticks(range(len(PLACES)), labels)
        panel.set(
            title=title, ylabel=label, xlabel="KV blocks of an instance (1,000; uneven steps)"
        )
    line = {"color": style.BLACK}
    return FigureWords(
        "Memory hardly matters down to 2,500 blocks; below, sheddable requests pay first",
        f"{BURST} The CPU tier has a third as many blocks, as in the record. Below "
        "2,500 blocks the reference crashes or never ends in some runs "
        "(in nearly all of the baseline with a CPU tier), and this simulator, which is "
        f"equal to it, says so; figures are of the runs that end. {SEEDS}. "
        "The cross is of seed 42 alone.",
        [
            *policy_handles(KV_PRESSURE_POLICIES),
            style.line_handle("with a CPU tier (solid, dots)", marker="o", **line),
            style.line_handle(
                "without a CPU tier (dotted, squares)", linestyle=":", marker="s", **line
            ),
            cross_handle("published, iteration 5"),
        ],
    )


def _draw_pressure(panel: Any, table: Any, metric: str, slo_class: str, scale: float) -> None:
    for policy in KV_PRESSURE_POLICIES:
        for tier, kind, mark in (("", "-", "o"), (NO_TIER, ":", "s")):
            rows = chosen(table, policy=policy + tier, metric=metric, slo_class=slo_class)
            ended = chosen(table, policy=policy + tier, metric="share_ended")
            if metric != "share_ended":
                rows = rows[rows["x"].isin(ended[ended["mean"] >= LEAST_ENDED]["x"])]
            rows = rows.assign(x=[PLACES.index(int(number)) for number in rows["x"]])
            draw_line(panel, rows, POLICY_COLOURS[policy], scale, linestyle=kind, marker=mark)


# --- figure 5: cluster sizes, at the published load and at equal load and duration ----------------


LOADS = {
    "published": "published load: 2,000 requests/s in all",
    "equal": "equal load: 250 requests/s an instance",
}


@shows(
    PACKAGE, "cluster sizes at the published and at equal load", (5.2, 2, 2),
    expected("policy x", (
        ("baseline", "published 4", 904.0),
        ("baseline", "published 8", 268.8),
        ("baseline", "published 16", 104.5),
        ("iteration 5", "published 4", 109.7),
        ("iteration 5", "published 16", 75.2),
        ("iteration 5", "equal 8", 90.0),
    ), slo_class="critical", metric=TAIL),
    sharex=True, sharey="row",
)  # fmt: skip
def instance_scaling(panels: Any, table: Any) -> FigureWords:
    """Draw critical tails above and their changes against the baseline below, one column per load."""
    changed = {policy: MAIN_COLOURS[policy] for policy in MAIN[1:]}
    for (above, below), (load, words) in zip(panels.T, LOADS.items(), strict=True):
        rows = at_load(table, load)
        draw_lines(above, rows, MAIN_COLOURS, slo_class="critical", metric=TAIL)
        draw_lines(below, rows, changed, slo_class="critical", metric=CHANGE)
        below.axhline(0, color=POLICY_COLOURS["baseline"])
        size_axes(above, below, 10)
        above.set_title(words)
        below.set_xlabel("instances")
    panels[0][0].set_ylabel("critical TTFT P99 (ms)")
    panels[1][0].set_ylabel("change against the baseline (%)")
    return FigureWords(
        "The gain does not shrink with the cluster, the overload does",
        "Left: 1,000 requests at every size; a larger cluster has less to do per instance, so the gain "
        "shrinks with size because the overload goes away. Right: 125 requests an instance, so that every "
        "size has the same load per instance for the same 0.5 s. At 8 instances both are the "
        "same. With 4 instances requests wait so long that 8-opt's ageing lets standard ones overtake "
        f"critical ones (after 0.18 s). {SEEDS}, in the lower row of the change paired by seed.",
        policy_handles(MAIN),
        1,
    )


# --- figure 6 -------------------------------------------------------------------------------------


COLOURS = {CHUNKED: POLICY_COLOURS["iteration 1"], WHOLE: style.SKY}
PUBLISHED_CONSTANT_MS = 6.91


@shows(
    PACKAGE, "the gain of whole prompts by the constant cost of a step", (3.1, 1, 2),
    expected("policy slo_class", (
        (CHUNKED, "critical", 134.4),
        (WHOLE, "critical", 91.6),
        (CHUNKED, "sheddable", 471.7),
        (WHOLE, "sheddable", 459.0),
    ), x=1, metric=TAIL),
)  # fmt: skip
def step_constant(panels: Any, table: Any) -> FigureWords:
    """Draw left the critical tail with and without chunks, right the change of every class."""
    tails, changes = panels[0]
    for policy, colour in COLOURS.items():
        rows = chosen(table, policy=policy, slo_class="critical", metric=TAIL)
        draw_line(tails, rows, colour, label=policy)
    tails.set(ylim=(0, None), ylabel="critical TTFT P99 (ms)", title="critical requests")
    tails.legend(loc="upper left")
    for slo_class in CLASSES:
        rows = chosen(table, policy=WHOLE, slo_class=slo_class, metric=CHANGE)
        draw_line(changes, rows, label=slo_class, **style.class_style(slo_class))
    changes.axhline(0, color="0.45", linewidth=1)
    changes.set(ylabel="change of TTFT P99 (%)", title="whole instead of in chunks, by class")
    changes.legend(loc="center right")
    dotted = {"color": style.BLACK, "linewidth": 1.1, "linestyle": (0, (1, 2))}
    for panel in panels[0]:
        panel.set_xscale("log", base=2)
        multiples = [0.25, 0.5, 1, 2, 4]
        words = [f"{multiple * PUBLISHED_CONSTANT_MS:.1f}" for multiple in multiples]
        panel.set_xticks(multiples, words)
        panel.set_xlabel("constant cost of a step, β₀ (ms)")
        panel.axvline(1, zorder=0, **dotted)
        panel.margins(x=0.06)
    return FigureWords(
        "Whole prompts save full steps, not the constant cost of a step",
        f"{BURST} Both settings have priorities by class and the default scorers; "
        "in one, prompts are cut into chunks of 256 tokens, in the other those of critical requests "
        "are not. The dotted line is the published constant (6.9 ms); it is multiplied by 0.25 to 4, "
        "everything else stays, so that the overload grows with it too. A step full of 2,048 "
        "prompt tokens costs 36 ms more than its constant, so a further chunk costs a critical request "
        f"a further full step, whatever the constant. {SEEDS}, on the right of the change paired by seed.",
        [style.line_handle("published constant", **dotted)],
    )


# --- figure 2: the threshold of the gate for sheddable requests -----------------------------------


POLICY, NO_GATE = "iteration 3", "iteration 1"
GATES_PUBLISHED = {20: 31, 50: 21, 100: 7}  # rejected requests in %, by threshold


@shows(
    PACKAGE, "what a gate for sheddable requests costs and brings", (2.9, 1, 3),
    (
        *expected("x slo_class metric", (
            (20, "critical", TAIL, 120.3),
            (100, "critical", TAIL, 133.5),
            (100, "sheddable", TAIL, 464.3),
            (20, "sheddable", TAIL, 306.7),  # 100 seeds; the first three give 114
        ), policy=POLICY),
        *expected("x", ((20, 0.269),), 0.1, policy=POLICY, slo_class="all", metric="reject_rate"),
        *expected("x", ((50, 0.180),), 0.2, policy=POLICY, slo_class="all", metric="reject_rate"),
        *expected("x", ((20, 13306),), policy=POLICY, slo_class="all", metric="tokens_per_sec"),
    ),
)  # fmt: skip
def admission_threshold(panels: Any, table: Any) -> FigureWords:
    """Draw tails by class, rejections, and what completes, against the threshold."""
    tails, rejected, rates = panels[0]
    for slo_class in CLASSES:
        _draw_gates(tails, table, TAIL, slo_class)
    tails.set(title="who waits", ylabel="TTFT P99 of those admitted (ms)")
    for slo_class in ("sheddable", "all"):
        _draw_gates(rejected, table, "reject_rate", slo_class, 100)
    gates, shares = zip(*GATES_PUBLISHED.items(), strict=True)
    rejected.plot(gates, shares, "x", color=style.BLACK, markersize=7, zorder=5)
    rejected.set(title="who is turned away", ylabel="rejected requests (%)")
    _draw_gates(rates, table, "tokens_per_sec", "all", 1e-3)
    rates.set(title="what is served", ylabel="1,000 decode tokens per second")
    for panel, metric, scale in ((tails, TAIL, 1), (rates, "tokens_per_sec", 1e-3)):
        for level in chosen(table, policy=NO_GATE, metric=metric)["mean"]:
            panel.axhline(scale * level, color="0.45", linewidth=1, zorder=0)
    for panel in panels[0]:
        style.plain_log(panel, "x", (5, 10, 20, 50, 100, 200))
        panel.set(xlabel="gate (requests per instance)", ylim=(0, None))
    tails.set_ylim(top=560)
    (strict,) = chosen(table, x=20, slo_class="sheddable", metric=TAIL)["mean"]
    return FigureWords(
        "A gate moves the sheddable tail by rejections; critical requests gain little",
        f"{BURST} Iteration 3 rejects a sheddable request while the mean number of requests "
        f"on an instance is above the threshold. {SEEDS}. Thin grey lines: iteration 1, the same without "
        "a gate. Crosses: the record's numbers, which are of seed 42 alone. Percentiles are of "
        "admitted requests only: a strict gate improves the sheddable tail by not serving it. At a "
        "gate of 20 the record's three seeds give a sheddable tail of 114 ms, these {num_seeds} "
        f"seeds {strict:.0f} ms.",
        [
            *style.class_handles([*CLASSES, "all"]),
            style.line_handle("without a gate", color="0.45", linewidth=1),
            cross_handle("published, of all requests"),
        ],
    )


def _draw_gates(panel: Any, table: Any, metric: str, slo_class: str, scale: float = 1.0) -> None:
    """Draw one line in its class's style."""
    rows = chosen(table, policy=POLICY, metric=metric, slo_class=slo_class)
    draw_line(panel, rows, scale=scale, **style.class_style(slo_class))
