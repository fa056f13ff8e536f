"""Fits of the step law as findings: errors by phase, measured against fitted, residuals by regime."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Mapping, Sequence
from typing import NamedTuple

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
from blis_jax.reports.findings import Answer, Cell, Findings, Quantity, Remarks, Row, Table
from blis_jax.reports.pictures import Axis, Guide, Mark, Panel, Picture, Series, Style
from blis_jax.reports.style import BLUE, GREEN, GREY, RED
from blis_jax.reports.words import NOTHING
from blis_jax.traces.measured.steps import PHASES, EngineSteps

MOST_DECODE, MOST_PROMPT = 0.03, 0.12  # median errors of a law that ranks routers
# times what nine steps in ten with a prompt are off by at most: 10 % of such a TTFT
LEAST_TTFT = 10.0
MOST_POINTS = 4000
COLOURS = dict(zip(PHASES, (BLUE, RED, GREEN), strict=True))
TITLE_OF_PREDICTIONS = "Measured and predicted times of steps"
HEAD = ("deployment", "phase", "steps", "median error", "90th percentile")
LATE, REPEATS = "second half", "repeats differ by"
NOTE = (
    "Median error, 90th percentile: every second step, by the fit to the others. Second half: by the fit to the first "
    "half. Repeats differ by: how far a step is from the median of its shape, which no law can go below."
)


class _Tried(NamedTuple):
    """The errors of a law on the steps of one deployment."""

    run: str
    errors: Mapping[str, Errors]  # by phase
    windows: float  # error of sums of steps
    floor_ms: float  # what nine steps in ten with a prompt are off by at most

    @property
    def phases(self) -> list[tuple[str, Errors]]:
        """Return the errors of the phases that have steps."""
        return [(name, self.errors[name]) for name in PHASES if self.errors[name].steps]


def findings_of_fits(
    fits: StepFits,
    runs: Sequence[EngineSteps],
    predicted: Sequence[np.ndarray],
    written: str,
    title: str,
) -> Findings:
    """Return the findings on new fits.

    Args:
        fits: the fits.
        runs: the steps that they were fitted to.
        predicted: the fitted times of these steps, ms.
        written: the file of the fits.
        title: the picture's title.
    """
    deployments = fits.deployments
    total, many = sum(fit.num_steps for fit in deployments), len(deployments)
    counted = [
        f"{sum(getattr(fit, name) for fit in deployments)} {words}"
        for name, words in (
            ("num_warm_up", "were warm-up"),
            ("num_slow", "took more than twice the law's time"),
            ("num_booked", "are booked on the step before them"),
        )
    ]
    tried = [_tried(fit) for fit in deployments]
    answer = Answer.of(
        "How long does a step take, by what its batch holds?",
        _judged(tried),
        f"median errors on steps that the fit had not seen: {_medians(tried)}.",
        f"nothing was simulated: {total} measured steps of {many} deployment{'s' * (many > 1)}; {', '.join(counted)}.",
        f"blis-jax calibrate OTHER --coefficients-from {written} gives the errors on another load; "
        f"{_run(fits, written)} simulates with it.",
    )
    late = [[_percent(fit.second_half[name].median) for name, _ in law.phases]
            for fit, law in zip(deployments, tried, strict=True)]  # fmt: skip
    errors = _errors_table(tried, late)
    return Findings(
        answer,
        (errors, Remarks((NOTE,), is_brief=True), _bent(fits), _coefficients(fits)),
        (picture(runs, predicted, title),),
    )


def findings_of_predictions(
    runs: Sequence[EngineSteps],
    predicted: Sequence[PredictedSteps],
    fits: StepFits,
    fit: str,
    is_kept: bool,
) -> Findings:
    """Return the findings on the errors of fits on other steps.

    Args:
        runs: the steps.
        predicted: the predicted times of each run's steps.
        fits: the fits.
        fit: the file of the fits.
        is_kept: whether the predictions are written.
    """
    pairs = list(zip(runs, predicted, strict=True))
    tried = [_tried_on(steps, times.ms) for steps, times in pairs]
    counts = Counter(times.which for times in predicted)
    used = ", ".join(f"{count} by {which}" for which, count in counts.items())
    answer = Answer.of(
        "How far are the predicted times of steps from the measured ones?",
        _judged(tried),
        f"median errors: {_medians(tried)}; deployments: {used}; fitted to {fits.source}.{_within(pairs, fits)}",
        f"nothing was fitted or simulated: {sum(map(len, runs))} measured steps.",
        _next(pairs, fits, fit, is_kept),
    )
    drawn = picture(runs, [times.ms for times in predicted], TITLE_OF_PREDICTIONS)
    return Findings(answer, (_errors_table(tried),), (drawn,))


def _run(fits: StepFits, written: str, run: str = "") -> str:
    """Return the command that simulates the named deployment, else the first one whose law is accurate enough."""
    usual = next(filter(is_good, fits.deployments), fits.deployments[0])
    fit = next((fit for fit in fits.deployments if fit.run == run), usual)
    name = written if len(fits.deployments) == 1 else f"{written}:{fit.run}"
    return f"blis-jax run --coefficients-from {name} --model {fit.engine.model or 'NAME'}"


def _tried(fit: DeploymentFit) -> _Tried:
    return _Tried(fit.run, fit.every_second, fit.windows, fit.floor_ms)


def _tried_on(steps: EngineSteps, ms: np.ndarray) -> _Tried:
    off = np.abs(ms - steps.ms)[steps.phase > 0]
    floor_ms = float(np.quantile(off, 0.9)) if off.size else math.nan
    return _Tried(steps.run, errors_by_phase(steps, ms), window_error(steps, ms), floor_ms)


def _judged(tried: Sequence[_Tried]) -> str:
    """Return a line that says for which deployments the law is accurate enough to rank routers."""
    reasons = {law.run: _lacks(law) for law in tried}
    floors = [law.floor_ms for law in tried if not reasons[law.run] and math.isfinite(law.floor_ms)]
    limit = f"; not for a TTFT below {_rounded(LEAST_TTFT * max(floors))} ms" if floors else ""
    bad = [name for name, reason in reasons.items() if reason]
    if len(tried) == 1:
        if bad:
            return f"not good enough to rank routers: {reasons[bad[0]]}."
        return f"good enough to rank routers{limit}."
    rest = f"; not good enough: {', '.join(bad)}" if bad else ""
    good = len(tried) - len(bad)
    return f"{good} of {len(tried)} deployments are good enough to rank routers{limit}{rest}."


def is_good(fit: DeploymentFit) -> bool:
    """Return whether a law is accurate enough for a simulation to rank routers with it."""
    return not _lacks(_tried(fit))


def _lacks(tried: _Tried) -> str:
    """Return why a law is too inaccurate for a simulation to rank routers with it; an empty text if it is not."""
    there = {name: errors.median for name, errors in tried.phases}
    if "decode" not in there:
        return "the file has no step that only decodes"
    if len(there) == 1:
        return "the file has no step with a prompt, so it says nothing of TTFT"
    if math.isfinite(tried.windows):
        prompts, of_prompts = tried.windows, f"sums of {WINDOW} steps with prompts"
    else:
        prompts, of_prompts = max(there.get(name, 0.0) for name in PHASES[1:]), "prompts"
    off = [(there["decode"], MOST_DECODE, "decode"), (prompts, MOST_PROMPT, of_prompts)]
    return " and ".join(
        f"{name} is {100 * value:.1f} % off, {100 * most:.0f} % at most would do"
        for value, most, name in off
        if value > most
    )


def _medians(tried: Sequence[_Tried]) -> str:
    values: dict[str, list[float]] = {name: [] for name in PHASES}
    for law in tried:
        for name, errors in law.phases:
            values[name].append(errors.median)
    windows = [law.windows for law in tried if math.isfinite(law.windows)]
    values[f"sums of {WINDOW} steps with prompts"] = windows
    return ", ".join(f"{name} {_span(medians)}" for name, medians in values.items() if medians)


def _span(values: Sequence[float]) -> str:
    low, high = (f"{100 * end:.1f}" for end in (min(values), max(values)))
    return f"{low} %" if len(values) == 1 else f"{low} to {high} %"


def _percent(value: float) -> Cell:
    return Quantity(100 * value, unit=" %", like=10.0) if math.isfinite(value) else NOTHING


def _rounded(value: float) -> str:
    return f"{float(f'{value:.2g}'):g}"


def _errors_table(tried: Sequence[_Tried], late: Sequence[Sequence[Cell]] = ()) -> Table:
    """Return a row for each phase of each deployment; `late` has their errors on the second halves."""
    rows = []
    for at, law in enumerate(tried):
        for place, (name, errors) in enumerate(law.phases):
            shares = map(_percent, (errors.median, errors.p90))
            further = [late[at][place]] if late else []
            cells = (law.run, name, Quantity.whole(errors.steps), *shares, *further)
            rows.append(Row((*cells, _percent(errors.repeats))))
    head = (*HEAD, *([LATE] if late else []), REPEATS)
    return Table(head, tuple(rows), num_keys=2, name="errors")


def _bent(fits: StepFits) -> Table:
    """Return a table of decode errors with and without the bent law; without rows if no bent law was asked for."""
    rows = []
    for fit in fits.deployments:
        if fit.alone is not None and fit.every_second["decode"].steps:
            seen, late, seen_alone, late_alone = (
                errors["decode"].median
                for law in (fit, fit.alone)
                for errors in (law.every_second, law.second_half)
            )
            is_nearer = seen < seen_alone and not late > late_alone
            advice = "keep" if is_nearer else "leave out"
            cells = map(_percent, (seen, seen_alone, late, late_alone))
            rows.append(Row((fit.run, *cells, advice)))
    head = ("decode", "bent", "step-law", "late: bent", "step-law", "--residual")
    return Table(head, tuple(rows), name="bent")


def _coefficients(fits: StepFits) -> Table:
    """Return a table of the coefficients above 0; without rows for several deployments."""
    rows = []
    for fit in fits.deployments if len(fits.deployments) == 1 else ():
        size = len(TERMS)
        for name, value, draws in zip(TERMS, fit.beta[:size], fit.draws.T[:size], strict=True):
            if value > 0:
                low, high = np.quantile(draws, [0.025, 0.975])
                rows.append(Row((name, f"{value:.4g}", f"{low:.4g} to {high:.4g}")))
    return Table(("coefficient", "value", "95 % interval"), tuple(rows), name="coefficients")


def _next(
    pairs: Sequence[tuple[EngineSteps, PredictedSteps]], fits: StepFits, fit: str, is_kept: bool
) -> str:
    kept = "" if is_kept else "--output FILE.csv keeps each row with its predicted_ms; "
    steps, times = pairs[0]
    if times.which != OWN:
        return f"{kept}blis-jax calibrate with steps of this deployment fits it by itself, which is nearer."
    return f"{kept}{_run(fits, fit, steps.run)} simulates with it."


def _within(pairs: Sequence[tuple[EngineSteps, PredictedSteps]], fits: StepFits) -> str:
    """Return a sentence on the share of steps of unmeasured models within the interval; empty if there are none."""
    held = [
        np.abs(np.log(times.ms / steps.ms)) <= math.log(times.factor)
        for steps, times in pairs
        if times.factor is not None
    ]
    if fits.described is None or not held:
        return ""
    count, factor = len(fits.described.models), fits.described.factor
    return (
        f" Of a model that was not measured, nine steps in ten should lie within a factor of {factor:.1f}, which "
        f"{count} models tell; {100 * np.mean(np.concatenate(held)):.1f} % do."
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
    regimes: np.ndarray = np.where(phase == 0, by_size, np.where(phase == 1, 3, 5) + is_long)
    return regimes


def picture(runs: Sequence[EngineSteps], predicted: Sequence[np.ndarray], title: str) -> Picture:
    """Return measured against fitted times, and the residuals of each regime."""
    measured, law = np.concatenate([steps.ms for steps in runs]), np.concatenate(predicted)
    phase = np.concatenate([steps.phase for steps in runs])
    regime = np.concatenate([regimes_of(steps) for steps in runs])
    return Picture(
        title,
        "Left: a point a step; on the line both are equal. Right: the middle half of the steps (bar), four fifths of "
        "them (line) and the median (point), by what the batch holds; long: outside captured graphs.",
        [[_against(measured, law, phase), _residuals(100 * (law / measured - 1), regime)]],
        [3.4],
        name="steps",
    )  # fmt: skip


def _against(measured: np.ndarray, law: np.ndarray, phase: np.ndarray) -> Panel:
    random, marks = np.random.default_rng(0), list[Mark]()
    for place, name in enumerate(PHASES):
        here = np.flatnonzero(phase == place)
        if len(here) > MOST_POINTS:
            here = random.choice(here, MOST_POINTS, replace=False)
        style = Style(COLOURS[name], ".", size=2.5)
        marks.append(Series(measured[here].tolist(), law[here].tolist(), style, name))
    most = max(float(np.quantile(measured, 0.9995)), float(law.max()))
    ends = [min(float(measured.min()), float(law.min())), most]
    marks.append(Series(ends, ends, Style(GREY, line="-", width=0.8)))
    return Panel(marks, Axis("measured (ms)", "log"), Axis("fitted (ms)", "log"))


def _residuals(residual: np.ndarray, regime: np.ndarray) -> Panel:
    there = [place for place in range(len(REGIMES)) if np.any(regime == place)]
    marks: list[Mark] = [Guide(0.0, style=Style(GREY, line="-", width=0.8))]
    for at, place in enumerate(there):
        low, first, middle, third, high = np.quantile(
            residual[regime == place], [0.1, 0.25, 0.5, 0.75, 0.9]
        ).tolist()
        colour = COLOURS[PHASES[0 if place < 3 else 1 if place < 5 else 2]]
        far, near = (
            Style(colour, width=1),
            Style(colour, "o", width=6, size=4, is_hollow=True, opacity=0.6),
        )
        marks.append(Series([low], [at], far, x_low=[low], x_high=[high], told="four fifths"))
        marks.append(Series([middle], [at], near, x_low=[first], x_high=[third], told="half"))
    ticks = [
        (float(at), f"{REGIMES[place]} ({int(np.sum(regime == place))})")
        for at, place in enumerate(there)
    ]
    y = Axis(ticks=ticks, limits=(len(there) - 0.4, -0.6), has_grid=False)
    return Panel(marks, Axis("fitted less measured, %"), y)
