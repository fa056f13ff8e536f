"""What is left of a measured deployment by the step law, with networks on it, and by any law of a batch."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import TYPE_CHECKING, NamedTuple

import numpy as np

from blis_jax.calibrate.step_fit import (
    FIRST,
    DeploymentFit,
    errors_by_phase,
    held_out_ms,
    predicted_ms,
    shapes,
)
from blis_jax.calibrate.step_fits import residual_of
from blis_jax.lazy import pandas
from blis_jax.reports.render import table_text
from blis_jax.traces.measured.steps import PHASES, EngineSteps

if TYPE_CHECKING:
    from blis_jax.latency.contract import BentLaw

OTHERS_WITHIN = 0.1  # logarithm of the mean context, within which other requests are like these
NETWORKS = "surrogate/step_network.py:network"


class TriedEngine(NamedTuple):
    """A deployment, its fit, and what other laws predict of steps that they have not seen, ms."""

    steps: EngineSteps
    fit: DeploymentFit
    # every second step held out; the second half from the first
    straight: tuple[np.ndarray, np.ndarray]
    sized: dict[str, np.ndarray]  # laws from sizes, with nothing fitted


# --- tables ---------------------------------------------------------------------------------------


def percent(value: float) -> str:
    """Return a share in percent; a dash where there is none."""
    return f"{100 * value:.1f}" if math.isfinite(value) else "–"


def three(errors: dict[str, float]) -> str:
    """Return a cell with the errors of all phases."""
    return " / ".join(percent(errors.get(name, math.nan)) for name in PHASES)


def medians_of(steps: EngineSteps, ms: np.ndarray) -> str:
    """Return the median errors of predictions by phase in one cell."""
    return three({name: errors.median for name, errors in errors_by_phase(steps, ms).items()})


def limits(runs: Sequence[TriedEngine]) -> str:
    """Return the table of how far steps of one shape differ, below which no law of a batch can go far."""
    head = ["deployment", "step law", "repeats differ by", "by the repeats that were seen"]
    head += ["by other requests, decode", "steps of these"]
    rows = []
    for run in runs:
        errors, ms = run.fit.every_second, by_repeats(run.steps)
        others = by_other_requests(run.steps)
        apart = np.abs(others / run.steps.ms - 1)[np.isfinite(others)]
        rows.append(
            [
                run.fit.run,
                three({name: errors[name].median for name in PHASES}),
                three({name: errors[name].repeats for name in PHASES}),
                medians_of(run.steps.part(np.isfinite(ms)), ms[np.isfinite(ms)]),
                percent(float(np.median(apart)) if apart.size else math.nan),
                str(apart.size),
            ]
        )
    words = "How far steps of one shape are apart, median in decode / prefill / mixed, %:"
    return f"{words}\n\n" + table_text(head, rows)


def by_repeats(steps: EngineSteps) -> np.ndarray:
    """Return for each step the median time, ms, of the other half's steps of the same shape; NaN where there are none.

    The halves are those of a fit with every second step held out.
    """
    odd, shape = np.arange(len(steps)) % 2 == 1, shapes(steps)
    repeats = np.full(len(steps), np.nan)
    for held in (odd, ~odd):
        medians = pandas.Series(steps.ms[~held]).groupby(shape[~held]).median()
        repeats[held] = medians.reindex(shape[held]).to_numpy()
    return repeats


def by_other_requests(steps: EngineSteps) -> np.ndarray:
    """Return for each decode step the median time, ms, of like steps of other requests; NaN where there are not three.

    A batch has the same requests as long as none comes or goes. Like steps have as many requests, and a mean context
    within 10 %.
    """
    sums, is_decode = steps.sums, steps.phase == 0
    grown = np.abs(np.diff(sums.context) - sums.decodes[1:]) <= sums.decodes[1:] / 2
    stays = is_decode[1:] & is_decode[:-1] & (np.diff(steps.number) == 1)
    stays &= (np.diff(sums.decodes) == 0) & grown
    batch = np.cumsum(np.concatenate([[True], ~stays]))
    predicted = np.full(len(steps), np.nan)
    for decodes in np.unique(sums.decodes[is_decode]):
        places = np.flatnonzero(is_decode & (sums.decodes == decodes))
        context = np.log(np.maximum(sums.context[places], 1.0))
        for step, its in zip(places, context, strict=True):
            near = places[(np.abs(context - its) <= OTHERS_WITHIN) & (batch[places] != batch[step])]
            if len(near) >= FIRST:
                predicted[step] = np.median(steps.ms[near])
    return predicted


def second_half(runs: Sequence[TriedEngine]) -> str:
    """Return the table of errors on the second half of the steps, of laws fitted to the first half."""
    head = [
        "deployment",
        "step law",
        "straight line",
        "same batch in both halves",
        "steps of these",
    ]
    rows = []
    for run in runs:
        late = np.arange(len(run.steps)) >= len(run.steps) // 2
        straight = errors_by_phase(run.steps.part(late), run.straight[1])["decode"].median
        apart, count = between_halves(run.steps)
        laws = (run.fit.second_half["decode"].median, straight, apart)
        rows.append([run.fit.run, *map(percent, laws), str(count)])
    return "The second half from the first, median error of decode steps, %:\n\n" + table_text(
        head, rows
    )


def between_halves(steps: EngineSteps) -> tuple[float, int]:
    """Return how far decode steps of the second half are from like steps of the first, and how many steps have such.

    Like steps have as many requests and a mean context within a factor of two; the first half must have three or more.
    """
    place, is_decode = np.arange(len(steps)), steps.phase == 0
    with np.errstate(divide="ignore", invalid="ignore"):
        context = np.log2(steps.sums.context / steps.sums.decodes)
    late = is_decode & (place >= len(steps) // 2)
    errors = []
    for decodes in np.unique(steps.sums.decodes[late]):
        is_of_size = is_decode & (steps.sums.decodes == decodes)
        before = is_of_size & ~late
        for step in np.flatnonzero(is_of_size & late):
            near = before & (np.abs(context - context[step]) <= 1)
            if near.sum() >= FIRST:
                errors.append(abs(np.median(steps.ms[near]) / steps.ms[step] - 1))
    return (float(np.median(errors)) if errors else math.nan), len(errors)


# --- networks on the law --------------------------------------------------------------------------


def networks(runs: Sequence[TriedEngine]) -> str:
    """Return the table of errors with networks on the law, and with what a hold-out within the seen steps chooses."""
    residual = residual_of(NETWORKS)
    assert residual is not None
    head = ["deployment", "step law", "with networks", "chosen", "second half: step law"]
    head += ["with networks", "chosen", "chosen by"]
    rows = []
    for run in runs:
        steps = run.steps
        late = np.arange(len(steps)) >= len(steps) // 2
        laws = [
            [predicted_ms(steps, law), held_out_ms(steps, late, law)] for law in (None, residual)
        ]
        every, halves = chosen_ms(steps, residual)
        seen = [medians_of(steps, ms) for ms in (laws[0][0], laws[1][0], every)]
        later = steps.part(late)
        of_late = (laws[0][1], laws[1][1], halves)
        then = [percent(errors_by_phase(later, ms)["decode"].median) for ms in of_late]
        who = "networks" if np.array_equal(halves, laws[1][1]) else "step law"
        rows.append([steps.run, *seen, *then, who])
    words = "Networks on the law; every second step held out, and decode steps of the second half, medians, %:"
    return f"{words}\n\n" + table_text(head, rows)


def chosen_ms(steps: EngineSteps, residual: BentLaw) -> tuple[np.ndarray, np.ndarray]:
    """Return predictions of every second step and of the second half, ms, by the law or with networks.

    A part of the seen steps is held out: what predicts its decode steps better predicts the unseen steps.
    """
    place = np.arange(len(steps))
    odd, late = place % 2 == 1, place >= len(steps) // 2
    every = np.empty(len(steps))
    for held in (odd, ~odd):
        within = np.arange(np.sum(~held)) % 2 == 1
        every[held] = _nested(steps, held, within, residual)
    within = np.arange(np.sum(~late)) >= np.sum(~late) // 2
    return every, _nested(steps, late, within, residual)


def _nested(
    steps: EngineSteps, held: np.ndarray, within: np.ndarray, residual: BentLaw
) -> np.ndarray:
    seen = steps.part(~held)
    asked = seen.part(within)

    def error(law: BentLaw | None) -> float:
        return errors_by_phase(asked, held_out_ms(seen, within, law))["decode"].median

    return held_out_ms(steps, held, residual if error(residual) < error(None) else None)
