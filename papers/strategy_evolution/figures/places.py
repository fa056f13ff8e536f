"""Figures by place: arrival rates, KV blocks, cluster sizes, the cost of a step and the threshold of a gate."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from papers import figure_style as style
from papers.record.figures import Expected, chosen, read, shows
from papers.record.measures import CLASSES

PACKAGE = "papers.strategy_evolution"


# --- figure 3: arrival rates ----------------------------------------------------------------------


RATE_SWEEP_POLICIES = ("baseline", "iteration 5", "8-opt")
# the reference's means of seeds 42 to 44, ms
RATE_SWEEP_EXPECTED = tuple(
    Expected(
        {"policy": policy, "x": rate, "slo_class": "critical", "metric": "ttft_p99_ms"}, value, 0.15
    )
    for policy, rate, value in (
        ("baseline", 1000, 88.9),
        ("baseline", 1500, 167.7),
        ("baseline", 3000, 411.3),
        ("iteration 5", 1000, 69.3),
        ("iteration 5", 1500, 88.6),
        ("iteration 5", 3000, 94.8),
    )
)
FLAT = (1500, 3000, 90)  # the record: critical at about 90 ms between these rates


@shows(PACKAGE, "arrival rates", RATE_SWEEP_EXPECTED)
def rate_sweep(data: Path, path: Path) -> None:
    """Draw one panel per class: TTFT P99 against the rate."""
    table = read(data, "rate_sweep")
    num_seeds = int(table["num_seeds"].max())
    with style.figure(2.9, 1, len(CLASSES)) as (figure, panels):
        for panel, slo_class in zip(panels[0], CLASSES, strict=True):
            for policy in RATE_SWEEP_POLICIES:
                rows = chosen(table, policy=policy, slo_class=slo_class, metric="ttft_p99_ms")
                style.line(panel, rows, style.POLICY_COLOURS[policy])
            panel.set_title(slo_class)
            panel.set_xlabel("arrival rate (1,000 requests/s)")
            panel.set_xticks(range(0, 4001, 1000), ["0", "1", "2", "3", "4"])
            panel.set_xlim(0, 4150)
            panel.set_ylim(bottom=0)
        first, last, level = FLAT
        panels[0][0].plot(
            [first, last],
            [level, level],
            color=style.BLACK,
            linewidth=1.2,
            linestyle="--",
            zorder=6,
        )
        panels[0][0].set_ylabel("TTFT P99 (ms)")
        caption = (
            "1,000 requests on 8 instances at every rate: the faster they come, the shorter the burst "
            f"(2 s at 500 requests/s, 0.25 s at 4,000), so a high rate is not overload for longer. {num_seeds} "
            "seeds, requests by this simulator's generator; bars: 95 % interval of the mean. "
            "The three scales differ."
        )
        title = "Critical requests hardly notice the rate once they go first"
        published = f"published for iteration 5: flat at about {level} ms"
        legend = [
            *style.policy_handles(RATE_SWEEP_POLICIES),
            style.line_handle(published, color=style.BLACK, linewidth=1.2, linestyle="--"),
        ]
        style.save(figure, path, title, caption, legend, legend_columns=1)


# --- figure 4: KV blocks of an instance -----------------------------------------------------------


KV_PRESSURE_POLICIES = ("baseline", "iteration 5")
NO_TIER = ", no CPU tier"
KV_PRESSURE_PUBLISHED = (2000, 118)  # blocks, critical TTFT P99 in ms
# the reference's means of seeds 42 to 44, ms and preemptions
KV_PRESSURE_EXPECTED = tuple(
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


@shows(PACKAGE, "KV blocks of an instance", KV_PRESSURE_EXPECTED)
def kv_pressure(data: Path, path: Path) -> None:
    """Draw tails of critical and sheddable requests, preemptions, and how many runs end at all."""
    table = read(data, "kv_pressure")
    num_seeds = int(table["num_seeds"].max())
    with style.figure(5.0, 2, 2) as (figure, panels):
        critical, sheddable, preempted, ended = panels.reshape(-1)
        _lines(critical, table, "ttft_p99_ms", "critical")
        number, value = KV_PRESSURE_PUBLISHED
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
            *style.policy_handles(KV_PRESSURE_POLICIES),
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
    for policy in KV_PRESSURE_POLICIES:
        for tier, kind, mark in (("", "-", "o"), (NO_TIER, ":", "s")):
            rows = chosen(table, policy=policy + tier, metric=metric, slo_class=slo_class)
            few = chosen(table, policy=policy + tier, metric="share_ended")
            has_runs = few[few["mean"] >= LEAST_ENDED]["x"]
            if metric != "share_ended":
                rows = rows[rows["x"].isin(has_runs)]
            rows = rows.assign(**{name: scale * rows[name] for name in ("mean", "low", "high")})
            rows = rows.assign(x=[PLACES.index(int(number)) for number in rows["x"]])
            style.line(panel, rows, style.POLICY_COLOURS[policy], linestyle=kind, marker=mark)


# --- figure 5: cluster sizes, at the published load and at equal load and duration ----------------


INSTANCE_SCALING_POLICIES = ("baseline", "iteration 5", "8-opt")
# the reference's means of seeds 42 to 44, ms
INSTANCE_SCALING_EXPECTED = tuple(
    Expected(
        {"policy": policy, "x": f"{load} {size}", "slo_class": "critical", "metric": "ttft_p99_ms"},
        value,
        0.15,
    )
    for policy, load, size, value in (
        ("baseline", "published", 4, 904.0),
        ("baseline", "published", 8, 268.8),
        ("baseline", "published", 16, 104.5),
        ("iteration 5", "published", 4, 109.7),
        ("iteration 5", "published", 16, 75.2),
        ("iteration 5", "equal", 8, 90.0),
    )
)
LOADS = {
    "published": "published load: 2,000 requests/s in all",
    "equal": "equal load: 250 requests/s an instance",
}


@shows(PACKAGE, "cluster sizes at the published and at equal load", INSTANCE_SCALING_EXPECTED)
def instance_scaling(data: Path, path: Path) -> None:
    """Draw critical tails above and their changes against the baseline below, one column per load."""
    table = read(data, "instance_scaling")
    num_seeds = int(table["num_seeds"].max())
    with style.figure(5.2, 2, 2, sharex=True, sharey="row") as (figure, panels):
        for column, (load, words) in enumerate(LOADS.items()):
            of_load = style.at_load(table, load)
            _draw_column(panels[:, column], of_load)
            panels[0][column].set_title(words)
            panels[1][column].set_xlabel("instances")
        panels[0][0].set_ylabel("critical TTFT P99 (ms)")
        panels[1][0].set_ylabel("change against the baseline (%)")
        caption = (
            "Left: 1,000 requests at every size; a larger cluster has less to do per instance, so the gain "
            "shrinks with size because the overload goes away. Right: 125 requests an instance, so that every "
            "size has the same load per instance for the same 0.5 s. At 8 instances both are the "
            "same. With 4 instances requests wait so long that 8-opt's ageing lets standard ones overtake "
            f"critical ones (after 0.18 s). {num_seeds} seeds, requests by this simulator's generator; bars: 95 % "
            "interval of the mean, in the lower row of the change paired by seed."
        )
        title = "The gain does not shrink with the cluster, the overload does"
        legend = style.policy_handles(INSTANCE_SCALING_POLICIES)
        style.save(figure, path, title, caption, legend, legend_columns=1)


def _draw_column(panels: Any, table: Any) -> None:
    for policy in INSTANCE_SCALING_POLICIES:
        colour = style.POLICY_COLOURS[policy]
        rows = chosen(table, policy=policy, slo_class="critical", metric="ttft_p99_ms")
        style.line(panels[0], rows, colour)
        changes = chosen(
            table, policy=policy, slo_class="critical", metric="ttft_p99_ms_change_percent"
        )
        if len(changes):
            style.line(panels[1], changes, colour)
    panels[1].axhline(0, color=style.POLICY_COLOURS["baseline"])
    style.size_axes(panels[0], panels[1], 10)


# --- figure 6 -------------------------------------------------------------------------------------


CHUNKED, WHOLE = "prompts in chunks", "critical prompts whole"
COLOURS = {CHUNKED: style.POLICY_COLOURS["iteration 1"], WHOLE: style.SKY}
# the reference's means of seeds 42 to 44, ms
STEP_CONSTANT_EXPECTED = tuple(
    Expected(
        {"policy": policy, "x": 1, "slo_class": slo_class, "metric": "ttft_p99_ms"}, value, 0.15
    )
    for policy, slo_class, value in (
        (CHUNKED, "critical", 134.4),
        (WHOLE, "critical", 91.6),
        (CHUNKED, "sheddable", 471.7),
        (WHOLE, "sheddable", 459.0),
    )
)
PUBLISHED_CONSTANT_MS = 6.91


@shows(PACKAGE, "the gain of whole prompts by the constant cost of a step", STEP_CONSTANT_EXPECTED)
def step_constant(data: Path, path: Path) -> None:
    """Draw left the critical tail with and without chunks, right the change of every class."""
    table = read(data, "step_constant")
    num_seeds = int(table["num_seeds"].max())
    with style.figure(3.1, 1, 2) as (figure, panels):
        tails, changes = panels[0]
        for policy, colour in COLOURS.items():
            rows = chosen(table, policy=policy, slo_class="critical", metric="ttft_p99_ms")
            style.line(tails, rows, colour, label=policy)
        tails.set_ylim(bottom=0)
        tails.set_ylabel("critical TTFT P99 (ms)")
        tails.set_title("critical requests")
        tails.legend(loc="upper left")
        for slo_class in CLASSES:
            rows = chosen(
                table, policy=WHOLE, slo_class=slo_class, metric="ttft_p99_ms_change_percent"
            )
            style.line(
                changes, rows, label=slo_class, **style.class_style(slo_class)
            )  # fmt: skip
        changes.axhline(0, color="0.45", linewidth=1)
        changes.set_ylabel("change of TTFT P99 (%)")
        changes.set_title("whole instead of in chunks, by class")
        changes.legend(loc="center right")
        for panel in panels[0]:
            panel.set_xscale("log", base=2)
            multiples = [0.25, 0.5, 1, 2, 4]
            words = [f"{multiple * PUBLISHED_CONSTANT_MS:.1f}" for multiple in multiples]
            panel.set_xticks(multiples, words)
            panel.set_xlabel("constant cost of a step, β₀ (ms)")
            panel.axvline(1, color=style.BLACK, linewidth=1.1, linestyle=(0, (1, 2)), zorder=0)
            panel.margins(x=0.06)
        caption = (
            f"{style.BURST} Both settings have priorities by class and the default scorers; "
            "in one, prompts are cut into chunks of 256 tokens, in the other those of critical requests "
            "are not. The dotted line is the published constant (6.9 ms); it is multiplied by 0.25 to 4, "
            "everything else stays, so that the overload grows with it too. A step full of 2,048 "
            "prompt tokens costs 36 ms more than its constant, so a further chunk costs a critical request "
            "a further full step, whatever the constant. "
            f"{num_seeds} seeds, requests by this simulator's generator; bars: 95 % interval of "
            "the mean, on the right of the change paired by seed."
        )
        title = "Whole prompts save full steps, not the constant cost of a step"
        constant = style.line_handle(
            "published constant", color=style.BLACK, linewidth=1.1, linestyle=(0, (1, 2))
        )
        style.save(figure, path, title, caption, [constant])


# --- figure 2: the threshold of the gate for sheddable requests -----------------------------------


POLICY, NO_GATE = "iteration 3", "iteration 1"
# the reference's means of seeds 42 to 44
ADMISSION_THRESHOLD_EXPECTED = tuple(
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
ADMISSION_THRESHOLD_PUBLISHED = {
    100: (51.9, 7),
    50: (51.1, 21),
    20: (60.1, 31),
}  # threshold: critical gain %, rejected %


@shows(PACKAGE, "what a gate for sheddable requests costs and brings", ADMISSION_THRESHOLD_EXPECTED)
def admission_threshold(data: Path, path: Path) -> None:
    """Draw tails by class, rejections, and what completes, against the threshold."""
    table = read(data, "admission_threshold")
    num_seeds = int(table["num_seeds"].max())
    with style.figure(2.9, 1, 3) as (figure, panels):
        tails, rejected, rates = panels[0]
        for slo_class in CLASSES:
            _line(tails, table, "ttft_p99_ms", slo_class)
        tails.set_ylabel("TTFT P99 of those admitted (ms)")
        tails.set_title("who waits")
        for slo_class in ("sheddable", "all"):
            _line(rejected, table, "reject_rate", slo_class, 100)
        known = sorted(ADMISSION_THRESHOLD_PUBLISHED)
        rates_known = [ADMISSION_THRESHOLD_PUBLISHED[gate][1] for gate in known]
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
