"""Goodput under every choice of the classes' TTFT limits: runs, differences, sentences and pictures."""

from __future__ import annotations

import itertools
import math
import time
from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np

from blis_jax import progress
from blis_jax.commands.options import outputs
from blis_jax.core.outcome import WHOLE
from blis_jax.errors import ConfigError
from blis_jax.files.formats import number_of
from blis_jax.metrics.measure import window_of
from blis_jax.metrics.metric import HIGHER
from blis_jax.metrics.reference import class_code
from blis_jax.metrics.summaries import latencies_us, select
from blis_jax.records.record import RunRecord
from blis_jax.reports.findings import Answer, Findings, Quantity, Row, Sentence, Table
from blis_jax.reports.pictures import Axis, Panel, Picture, Tiles, Words
from blis_jax.reports.words import cluster_line, number
from blis_jax.statistics.intervals import Inference
from blis_jax.statistics.paired import BETTER, SAME, WORSE, Difference, Pair, differences
from sweeps.runs.experiment import Experiment
from sweeps.runs.measured import versions
from sweeps.runs.options import NUM_SEEDS
from sweeps.runs.requests import check_count, requests_of, workload_of_arms
from sweeps.strategies.arms import Arm, arms_of

if TYPE_CHECKING:
    from blis_jax.commands.options.outputs import OutputPaths
    from sweeps.limits import LimitsOptions

USUAL: Mapping[str, tuple[float, ...]] = {
    "critical": (50, 100, 200),
    "standard": (150, 250, 500, 1000),
    "sheddable": (300, 500, 1000, 2000),
}
OF_OTHERS = (1000.0, 2000.0)
MOST_CHOICES = 400
MOST_IN_TITLE = 30  # letters above one of three panels
COLOURS = ("#e8946a", "#ffffff", "#8dbbe0")  # from worse to better
Choice = tuple[float, ...]  # a limit of each class, ms, the most urgent first


class Judged(NamedTuple):
    """An arm's goodput against the reference's, under one choice of limits."""

    arm: str
    choice: Choice
    difference: Difference


def ladders_of(texts: Sequence[str], classes: Sequence[str]) -> dict[str, tuple[float, ...]]:
    """Return by class the limits to try, ms, from texts `CLASS=MS,…`; refuse a class that the workload lacks."""
    ladders = {name: USUAL.get(name, OF_OTHERS) for name in classes}
    for text in texts:
        name, _, values = text.partition("=")
        if name not in ladders:
            raise ConfigError(
                f"--limits: {text!r} is not CLASS=MS,… of a class of the workload; it has {', '.join(classes)}"
            )
        try:
            ladder = sorted({float(value) for value in values.split(",")})
        except ValueError:
            ladder = [math.nan]
        if not all(0 < limit < math.inf for limit in ladder):
            raise ConfigError(f"--limits: {text!r} needs numbers of ms above 0, with commas")
        ladders[name] = tuple(ladder)
    return ladders


def choices_of(ladders: Mapping[str, Sequence[float]]) -> list[Choice]:
    """Return every choice of limits in which no class has a shorter limit than a more urgent class."""
    choices = [
        choice for choice in itertools.product(*ladders.values()) if list(choice) == sorted(choice)
    ]
    if not 1 <= len(choices) <= MOST_CHOICES:
        raise ConfigError(
            f"--limits: {len(choices)} choices give no class a shorter limit than a more urgent one; allowed are 1 to "
            f"{MOST_CHOICES}"
        )
    return choices


def map_limits(options: LimitsOptions, paths: OutputPaths, command: str) -> int:
    """Run the arms, judge goodput under every choice of limits, and write and print the results; return the exit
    code."""
    began = time.monotonic()
    arms = arms_of(options.arms, options.instances, fit=options.coefficients_from)
    configs = [arm.config for arm in arms]
    requests = requests_of(
        options, options.command, lambda: workload_of_arms(options, arms), configs, NUM_SEEDS
    )
    check_count(requests.seeds, 2, "for an interval", requests.stream)
    if len(requests.classes) < 2:
        raise ConfigError(
            "the workload has one class; blis-jax compare --targets says what a limit of it does"
        )
    ladders = ladders_of(options.limits, requests.classes)
    choices = choices_of(ladders)
    rates = _rates(Experiment(requests), arms, ladders)
    judged = judge(arms, rates, ladders, choices, options.confidence)
    setting = {
        "workload": requests.name, "seeds": list(requests.seeds), "rng": requests.stream, "versions": versions(),
        "confidence": options.confidence, "cluster": cluster_line({arm.name: arm.config for arm in arms}),
    }  # fmt: skip
    findings = findings_of(judged, ladders, setting, arms[0].name)
    document = {
        "format": number_of("limits"), "kind": "limits", **setting, "ttft_ms": ladders,
        "differences": [
            {"arm": pair.arm, "limits": dict(zip(ladders, pair.choice, strict=True)), **pair.difference.to_json()}
            for pair in judged
        ],
        "answer": findings.answer.to_json(),
    }  # fmt: skip
    took = Sentence.of(Quantity(time.monotonic() - began), " s in all.")
    shown = replace(findings, answer=replace(findings.answer, time=took))
    title = "Goodput under other limits"
    files = outputs.study_files(findings, document, paths, title, command, versions())
    outputs.show(shown, lambda: outputs.write_files(files), options)
    return 0


def _rates(
    experiment: Experiment, arms: Sequence[Arm], ladders: Mapping[str, Sequence[float]]
) -> dict[str, np.ndarray]:
    """Return goodput by arm, 1/s: `[seed, class, limit]`, padded to most limits; NaN where a run did not finish."""
    widest, measure = max(map(len, ladders.values())), experiment.measure

    def counted(record: RunRecord) -> np.ndarray:
        """Return one run's goodput under each limit, 1/s `[class, limit]`; NaN where the run did not finish."""
        measured = select(record, None, window_of(measure, record))
        ttft_us, has_one = latencies_us(record, "ttft")
        rates = np.full((len(ladders), widest), np.nan)
        if record.outcome not in WHOLE or not measured.seconds:
            return rates
        for at, (name, ladder) in enumerate(ladders.items()):
            of_class = measured.of_class(class_code(name)).is_output & has_one
            good = [(of_class & (ttft_us <= limit * 1000)).sum() for limit in ladder]
            rates[at, : len(ladder)] = np.array(good) / measured.seconds
        return rates

    with progress.phase("simulating", len(arms), "strategies") as work:
        runs = {}
        for at, arm in enumerate(arms):
            work.show(at, arm.name)
            runs[arm.name] = np.stack(experiment.summaries([arm.config], counted)[0])
    return runs


def judge(
    arms: Sequence[Arm],
    rates: Mapping[str, np.ndarray],
    ladders: Mapping[str, Sequence[float]],
    choices: Sequence[Choice],
    confidence: float,
) -> list[Judged]:
    """Return the differences of all arms under all choices of limits, judged as one family."""

    def goodput(arm: str, choice: Choice) -> np.ndarray:
        places = [
            list(ladder).index(limit)
            for ladder, limit in zip(ladders.values(), choice, strict=True)
        ]
        return np.stack([rates[arm][:, at, place] for at, place in enumerate(places)]).sum(axis=0)

    compared = list(itertools.product([arm.name for arm in arms[1:]], choices))
    pairs = [
        Pair(goodput(arms[0].name, choice), goodput(arm, choice), HIGHER)
        for arm, choice in compared
    ]
    changes = differences(pairs, Inference(confidence))
    return [
        Judged(arm, choice, change) for (arm, choice), change in zip(compared, changes, strict=True)
    ]


# --- what is said and drawn -----------------------------------------------------------------------


def findings_of(
    judged: Sequence[Judged],
    ladders: Mapping[str, Sequence[float]],
    setting: Mapping[str, Any],
    reference: str,
) -> Findings:
    """Return the verdicts that hold under all choices, the changes under each choice, and the map."""
    by_arm = {arm: list(rows) for arm, rows in itertools.groupby(judged, key=lambda pair: pair.arm)}
    count = len(judged) // len(by_arm)
    names = " and ".join(by_arm)
    return Findings(
        Answer(
            f"Does goodput under {names} beat that under {reference}, whatever the limits? {count} choices of TTFT "
            f"limits for {', '.join(ladders)}; workload {setting['workload']}, {len(setting['seeds'])} seeds.",
            tuple(_said(arm, rows) for arm, rows in by_arm.items()),
            Sentence.of(
                f"{100 * setting['confidence']:g} % for all {len(judged)} differences at once."
            ),
            Sentence.of(Quantity.whole((len(by_arm) + 1) * len(setting["seeds"])), " runs."),
            "blis-jax compare … --targets CLASS.ttft_ms=MS,… has all figures under one choice.",
            cluster=setting["cluster"],
        ),
        (_table(judged, ladders, reference),),
        (_picture(by_arm, ladders, setting, reference),),
    )


def _said(arm: str, rows: Sequence[Judged]) -> Sentence:
    verdicts = [row.difference.verdict for row in rows]
    better, worse, same = (verdicts.count(verdict) for verdict in (BETTER, WORSE, SAME))
    ends = sorted(rows, key=lambda pair: pair.difference.percent.mean)
    parts = [f"more goodput under {better}", f"less under {worse}"]
    parts += [f"equal under {same}"] * (same > 0)
    open_ones = len(rows) - better - worse - same
    parts += [f"not told from chance under {open_ones}"] * (open_ones > 0)
    said = ", ".join(parts)
    return Sentence.of(
        f"{arm}: {said} of {len(rows)}; from ", _percent(ends[0]), f" (at {_named(ends[0].choice)} ms) to ",
        _percent(ends[-1]), f" (at {_named(ends[-1].choice)} ms).",
    )  # fmt: skip


def _named(choice: Choice) -> str:
    return "/".join(f"{limit:g}" for limit in choice)


def _percent(judged: Judged) -> Quantity:
    return Quantity.of(judged.difference.simultaneous_percent, unit=" %", is_signed=True)


def _table(
    judged: Sequence[Judged], ladders: Mapping[str, Sequence[float]], reference: str
) -> Table:
    rows = tuple(
        Row((
            pair.arm, _named(pair.choice), Quantity(pair.difference.first_mean), Quantity(pair.difference.second_mean),
            _percent(pair), pair.difference.verdict,
        ), is_brief=False)
        for pair in judged
    )  # fmt: skip
    limits = f"TTFT limits, ms: {', '.join(ladders)}"
    columns = ("strategy", limits, f"{reference}, requests/s", "its own", "change", "")
    return Table(columns, rows, num_keys=2, name="choices")


def _picture(
    by_arm: Mapping[str, Sequence[Judged]],
    ladders: Mapping[str, Sequence[float]],
    setting: Mapping[str, Any],
    reference: str,
) -> Picture:
    """Return a row of panels for each arm, one for each choice of the first classes' limits; axes: the last two
    classes'."""
    *first, across, up = ladders
    heads = list(dict.fromkeys(choice[:-2] for _, choice, _ in next(iter(by_arm.values()))))
    panels = [
        [_panel(rows, head, arm, first, (across, up), ladders) for head in heads]
        for arm, rows in by_arm.items()
    ]
    caption = (
        f"Goodput: requests a second that keep the limit of their class. Workload {setting['workload']}, "
        f"{len(setting['seeds'])} seeds. Numbers are changes that are not chance, at "
        f"{100 * setting['confidence']:g} % for the whole map; ~ cannot be told from chance. Where nothing stands, a "
        "class would have a shorter limit than a more urgent one."
    )
    title = f"Goodput against {reference}, change in %, by the TTFT limits of the classes"
    tall = 0.2 * any("\n" in panel.title for row in panels for panel in row)
    heights = [0.42 * len(ladders[up]) + 0.75 + tall] * len(panels)
    return Picture(title, caption, panels, heights, name="limits")


def _panel(
    rows: Sequence[Judged],
    head: Choice,
    arm: str,
    first: Sequence[str],
    axes: tuple[str, str],
    ladders: Mapping[str, Sequence[float]],
) -> Panel:
    columns, lines = (list(ladders[name]) for name in axes)
    values: list[list[float | None]] = [[None] * len(columns) for _ in lines]
    words = []
    for _, choice, pair in (row for row in rows if row.choice[:-2] == head):
        x, y = columns.index(choice[-2]), lines.index(choice[-1])
        values[y][x] = pair.percent.mean
        is_clear = pair.verdict in (BETTER, WORSE, SAME)
        words.append(
            Words(x - 0.48, y, number(pair.percent.mean, True, 1000.0) if is_clear else "~")
        )
    edges = [[at - 0.5 for at in range(len(ladder) + 1)] for ladder in (columns, lines)]
    tiles = Tiles(edges[0], edges[1], values, COLOURS, bounds=(-50, 50), has_scale=False)
    ticks = [
        [(float(at), f"{limit:g}") for at, limit in enumerate(ladder)]
        for ladder in (columns, lines)
    ]
    named = ", ".join(f"{name} {limit:g} ms" for name, limit in zip(first, head, strict=True))
    return Panel(
        [tiles, *words], Axis(f"{axes[0]} (ms)", ticks=ticks[0], has_grid=False),
        Axis(f"{axes[1]} (ms)", ticks=ticks[1], has_grid=False), _title(arm, named),
    )  # fmt: skip


def _title(arm: str, named: str) -> str:
    """Return a panel's title, on two lines if it is wider than the panel."""
    parts = [part for part in (arm, named) if part]
    return ("; " if sum(map(len, parts)) < MOST_IN_TITLE else "\n").join(parts)
