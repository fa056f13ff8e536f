"""Fits of the step law in words and as a picture: errors by phase, measured against fitted, residuals by regime."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np

from blis_jax.calibrate.step_fit import (
    WINDOW,
    DeploymentFit,
    Errors,
    errors_by_phase,
    window_error,
)
from blis_jax.calibrate.step_fits import OWN, PredictedSteps, StepFits
from blis_jax.latency.step_law import CAPTURED, TERMS
from blis_jax.reports.findings import Answer
from blis_jax.reports.render import answer_lines
from blis_jax.reports.style import BLUE, GREEN, GREY, RED, figure, line_handle, save
from blis_jax.traces.measured.steps import PHASES, EngineSteps

if TYPE_CHECKING:
    from matplotlib.axes import Axes

MOST_DECODE, MOST_PROMPT = 0.03, 0.12  # median errors of a law that ranks routers
LEAST_TTFT = (
    10.0  # times what nine steps in ten with a prompt are off by at most: 10 % of such a TTFT
)
MOST_POINTS = 4000
COLOURS = dict(zip(PHASES, (BLUE, RED, GREEN), strict=True))
HEAD = (
    "deployment",
    "phase",
    "steps",
    "median error",
    "90th percentile",
    "second half",
    "repeats differ by",
)
NOTES = (
    "Median error, 90th percentile: every second step, by the fit to the others. Second half: by the fit to the",
    "first half. Repeats differ by: how far a step is from the median of its shape, which no law can go below.",
)


def text_of_fits(fits: StepFits, written: str) -> str:
    """Return what the command prints of a fit; `written` is its file."""
    found = fits.deployments
    total = sum(one.num_steps for one in found)
    counted = [
        f"{sum(getattr(one, name) for one in found)} {words}"
        for name, words in (
            ("num_warm_up", "were warm-up"),
            ("num_slow", "took more than twice the law's time"),
            ("num_booked", "are booked on the step before them"),
        )
    ]
    answer = Answer.of(
        "How long does a step take, by what its batch holds?",
        _verdict(found),
        f"median errors on steps that the fit had not seen: {_medians(found)}.",
        f"nothing was simulated: {total} measured steps of {_deployments(len(found))}; {', '.join(counted)}.",
        f"blis-jax calibrate OTHER --coefficients-from {written} gives the errors on another load; "
        f"blis-jax run --coefficients-from {_named(fits, written)} simulates with it.",
    )
    rows = [
        (
            label,
            phase,
            *_cells(every),
            _percent(late.median if late else math.nan),
            _percent(every.repeats),
        )
        for one in found
        for label, phase, every, late in _phases(one)
    ]
    return "\n".join([*answer_lines(answer), "", *_table(HEAD, rows), "", *NOTES, *_terms(fits)])


def _deployments(count: int) -> str:
    return "1 deployment" if count == 1 else f"{count} deployments"


def _named(fits: StepFits, written: str) -> str:
    found = fits.deployments
    first = next(filter(is_good, found), found[0])
    return written if len(found) == 1 else f"{written}:{first.run}"


def _verdict(found: Sequence[DeploymentFit]) -> list[str]:
    tried = [(one.run, one.every_second, one.windows, one.floor_ms) for one in found]
    return [_judged(tried)]


def _judged(tried: Sequence[tuple[str, Mapping[str, Errors], float, float]]) -> str:
    """Return a line on deployments: name, errors by phase, error of sums, what steps with prompts are off by, ms."""
    reasons = {name: _lacks(errors, windows) for name, errors, windows, _ in tried}
    floors = [floor for name, _, _, floor in tried if not reasons[name] and math.isfinite(floor)]
    limit = f"; not for a TTFT below {_rounded(LEAST_TTFT * max(floors))} ms" if floors else ""
    bad = [name for name, reason in reasons.items() if reason]
    if len(tried) == 1:
        if bad:
            return f"not good enough to rank routers: {reasons[bad[0]]}."
        return f"good enough to rank routers{limit}."
    rest = f"; not good enough: {', '.join(bad)}" if bad else ""
    good = len(tried) - len(bad)
    return f"{good} of {len(tried)} deployments are good enough to rank routers{limit}{rest}."


def is_good(one: DeploymentFit) -> bool:
    """Return whether a law is near enough to its engine that a simulation may rank routers with it."""
    return not _lacks(one.every_second, one.windows)


def _lacks(errors: Mapping[str, Errors], windows: float) -> str:
    """Return why a law is not near enough to its engine for a simulation to rank routers; "": it is."""
    there = {name: error.median for name, error in errors.items() if error.steps}
    if "decode" not in there:
        return "the file has no step that only decodes"
    if len(there) == 1:
        return "the file has no step with a prompt, so it says nothing of TTFT"
    if math.isfinite(windows):
        prompts, of_prompts = windows, f"sums of {WINDOW} steps with prompts"
    else:
        prompts, of_prompts = max(there.get(name, 0.0) for name in PHASES[1:]), "prompts"
    off = [(there["decode"], MOST_DECODE, "decode"), (prompts, MOST_PROMPT, of_prompts)]
    return " and ".join(
        f"{name} is {_percent(value)} off, {100 * most:.0f} % at most would do"
        for value, most, name in off
        if value > most
    )


def _medians(found: Sequence[DeploymentFit]) -> str:
    parts = []
    for name in PHASES:
        values = [one.every_second[name].median for one in found if one.every_second[name].steps]
        if values:
            parts.append(f"{name} {_span(values)}")
    windows = [one.windows for one in found if math.isfinite(one.windows)]
    if windows:
        parts.append(f"sums of {WINDOW} steps with prompts {_span(windows)}")
    return ", ".join(parts)


def _span(values: Sequence[float]) -> str:
    low, high = min(values), max(values)
    return _percent(low) if len(values) == 1 else f"{100 * low:.1f} to {_percent(high)}"


def _phases(one: DeploymentFit) -> Iterable[tuple[str, str, Errors, Errors | None]]:
    there = [name for name in PHASES if one.every_second[name].steps]
    for place, name in enumerate(there):
        late = one.second_half.get(name)
        yield one.run if place == 0 else "", name, one.every_second[name], late


def _cells(one: Errors) -> tuple[str, str, str]:
    return str(one.steps), _percent(one.median), _percent(one.p90)


def _percent(value: float) -> str:
    return f"{100 * value:.1f} %" if math.isfinite(value) else "–"


def _rounded(value: float) -> str:
    return f"{float(f'{value:.2g}'):g}"


def _table(head: Sequence[str], rows: Sequence[Sequence[str]]) -> list[str]:
    widths = [max(len(row[place]) for row in (head, *rows)) for place in range(len(head))]

    def line(row: Sequence[str]) -> str:
        cells = [
            cell.ljust(width) if place < 2 else cell.rjust(width)
            for place, (cell, width) in enumerate(zip(row, widths, strict=True))
        ]
        return "  ".join(cells).rstrip()

    return [line(head), *map(line, rows)]


def _terms(fits: StepFits) -> list[str]:
    """Return which coefficients of the only deployment are above 0."""
    if len(fits.deployments) > 1:
        return []
    one = fits.deployments[0]
    lines = []
    for name, value, draws in zip(TERMS, one.beta, one.draws.T, strict=True):
        if value > 0:
            low, high = np.quantile(draws, [0.025, 0.975])
            lines.append(f"{value:>12.4g}  {f'{low:.4g} to {high:.4g}':<24} {name}")
    return ["", f"{'coefficient':>12}  {'95 % interval':<24} what it is", *lines]


# --- predictions ----------------------------------------------------------------------------------


def text_of_predictions(
    runs: Sequence[EngineSteps],
    predicted: Sequence[PredictedSteps],
    fits: StepFits,
    fit: str,
    is_kept: bool,
) -> str:
    """Return what the command prints of steps that a fit predicted.

    Args:
        runs: the steps.
        predicted: what the fits say of each run.
        fits: what was asked.
        fit: its file.
        is_kept: whether the predictions are written.
    """
    pairs = list(zip(runs, predicted, strict=True))
    errors = [errors_by_phase(steps, one.ms) for steps, one in pairs]
    tried = [
        (steps.run, each, window_error(steps, one.ms), _floor_ms(steps, one.ms))
        for (steps, one), each in zip(pairs, errors, strict=True)
    ]
    spans = []
    for name in PHASES:
        values = [one[name].median for one in errors if one[name].steps]
        if values:
            spans.append(f"{name} {_span(values)}")
    used = ", ".join(
        f"{count} by {which}" for which, count in Counter(one.which for one in predicted).items()
    )
    answer = Answer.of(
        "How far are the predicted times of steps from the measured ones?",
        _judged(tried),
        f"median errors: {', '.join(spans)}; deployments: {used}; fitted to {fits.source}.{_within(pairs, fits)}",
        f"nothing was fitted or simulated: {sum(map(len, runs))} measured steps.",
        _next(pairs, fits, fit, is_kept),
    )
    rows = [
        (run.run if place == 0 else "", name, *_cells(one[name]), _percent(one[name].repeats))
        for run, one in zip(runs, errors, strict=True)
        for place, name in enumerate(name for name in PHASES if one[name].steps)
    ]
    head = (*HEAD[:5], HEAD[6])
    return "\n".join([*answer_lines(answer), "", *_table(head, rows)])


def _floor_ms(steps: EngineSteps, ms: np.ndarray) -> float:
    off = np.abs(ms - steps.ms)[steps.phase > 0]
    return float(np.quantile(off, 0.9)) if off.size else math.nan


def _next(
    pairs: Sequence[tuple[EngineSteps, PredictedSteps]], fits: StepFits, fit: str, is_kept: bool
) -> str:
    kept = "" if is_kept else "--output FILE.csv keeps each row with its predicted_ms; "
    names = [one.run for one in fits.deployments]
    steps, one = pairs[0]
    if one.which != OWN:
        return f"{kept}blis-jax calibrate with steps of this deployment fits it by itself, which is nearer."
    run = f"{fit}:{steps.run}" if len(names) > 1 and steps.run in names else _named(fits, fit)
    return f"{kept}blis-jax run --coefficients-from {run} simulates with it."


def _within(pairs: Sequence[tuple[EngineSteps, PredictedSteps]], fits: StepFits) -> str:
    """Return how many steps the interval of a model that was not measured holds; the empty text where there is none."""
    held = [
        np.abs(np.log(one.ms / steps.ms)) <= math.log(one.factor)
        for steps, one in pairs
        if one.factor is not None
    ]
    if fits.described is None or not held:
        return ""
    count, factor = len(fits.described.models), fits.described.factor
    return (
        f" Of a model that was not measured, nine steps in ten should lie within a factor of {factor:.1f}, which "
        f"{count} models tell; {_percent(float(np.mean(np.concatenate(held))))} do."
    )


# --- the picture ----------------------------------------------------------------------------------

REGIMES = (
    "decode, ≤ 8",
    "decode, 9 to 32",
    "decode, > 32",
    "captured prompt",
    "long prompt",
    "mixed, captured",
    "mixed, long",
)


def regimes_of(steps: EngineSteps) -> np.ndarray:
    """Return the place in `REGIMES` of each step."""
    decodes, phase = steps.sums.decodes, steps.phase
    is_long = steps.sums.prompt_tokens + decodes > CAPTURED[-1]
    by_size = np.where(decodes <= 8, 0, np.where(decodes <= 32, 1, 2))
    found: np.ndarray = np.where(phase == 0, by_size, np.where(phase == 1, 3, 5) + is_long)
    return found


def draw(
    runs: Sequence[EngineSteps], predicted: Sequence[np.ndarray], path: Path, title: str
) -> None:
    """Draw measured against fitted times, and the residuals of each regime."""
    measured, law = np.concatenate([one.ms for one in runs]), np.concatenate(predicted)
    phase = np.concatenate([one.phase for one in runs])
    regime = np.concatenate([regimes_of(one) for one in runs])
    legend = [
        line_handle(name, color=COLOURS[name], marker=".", linestyle="none") for name in PHASES
    ]
    with figure(3.4, 1, 2, gridspec_kw={"width_ratios": [1, 1.25]}) as (made, axes):
        _draw_against(axes[0, 0], measured, law, phase)
        _draw_residuals(axes[0, 1], 100 * (law / measured - 1), regime)
        caption = (
            "Left: a point a step; on the line both are equal. Right: the middle half of the steps (bar), four fifths "
            "of them (line) and the median (point), by what the batch holds; long: outside captured graphs."
        )
        save(made, path, title, caption, legend)


def _draw_against(axis: Axes, measured: np.ndarray, law: np.ndarray, phase: np.ndarray) -> None:
    random = np.random.default_rng(0)
    for place, name in enumerate(PHASES):
        here = np.flatnonzero(phase == place)
        if len(here) > MOST_POINTS:
            here = random.choice(here, MOST_POINTS, replace=False)
        axis.plot(measured[here], law[here], ".", markersize=2.5, alpha=0.5, color=COLOURS[name])
    ends = [min(measured.min(), law.min()), max(np.quantile(measured, 0.9995), law.max())]
    axis.plot(ends, ends, color=GREY, linewidth=0.8)
    axis.set(xscale="log", yscale="log", xlabel="measured (ms)", ylabel="fitted (ms)")


def _draw_residuals(axis: Axes, residual: np.ndarray, regime: np.ndarray) -> None:
    there = [place for place in range(len(REGIMES)) if np.any(regime == place)]
    for at, place in enumerate(there):
        low, first, middle, third, high = np.quantile(
            residual[regime == place], [0.1, 0.25, 0.5, 0.75, 0.9]
        )
        colour = COLOURS[PHASES[0 if place < 3 else 1 if place < 5 else 2]]
        axis.plot([low, high], [at, at], color=colour, linewidth=1)
        axis.plot(
            [first, third], [at, at], color=colour, linewidth=6, alpha=0.6, solid_capstyle="butt"
        )
        axis.plot(middle, at, "o", color="white", markeredgecolor=colour, markersize=4)
    axis.axvline(0, color=GREY, linewidth=0.8)
    labels = [f"{REGIMES[place]} ({int(np.sum(regime == place))})" for place in there]
    axis.set_yticks(range(len(there)), labels)
    axis.invert_yaxis()
    axis.set_xlabel("fitted less measured, %")
