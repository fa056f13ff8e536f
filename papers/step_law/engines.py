"""The step law on deployments of today's models: errors on steps and on deployments held out, beside other laws."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, NamedTuple

import numpy as np

from blis_jax.calibrate.described_steps import fit_described, held_out
from blis_jax.calibrate.step_fit import (
    FIRST,
    DeploymentFit,
    beta_across,
    errors_by_phase,
    fit_across,
    fit_deployment,
    fitted,
    law_us,
    samples_of,
    shapes,
)
from blis_jax.latency.model_description import ModelDescription, is_shipped, model_description
from blis_jax.latency.registry import SIZED
from blis_jax.latency.step_law import StepSums
from blis_jax.lazy import Module, pandas
from blis_jax.reports.render import table_text
from blis_jax.traces.measured.steps import PHASES, EngineSteps, MeasuredEngine, read_steps
from papers.real_servers.predict.collections import named
from papers.step_law.law import SERVED, MeasuredSteps, predicted_us

if TYPE_CHECKING:
    from papers.step_law import replay
else:  # it loads JAX, for which no refusal waits
    replay = Module("papers.step_law.replay")

DECODE_BAR, PREFILL_BAR = 0.01, 0.08  # median errors with every second step held out
OTHERS_WITHIN = 0.1  # logarithm of the mean context, within which other requests are like these
SERVERS = Path(__file__).resolve().parents[3] / "shared/data/real_serving_runs/inferencex_vllm.csv"
GPUS = ("b200_sxm", "b300_sxm")
GPU = "B300"  # named in the collection for one of the models


class TriedEngine(NamedTuple):
    """A deployment, its fit, and what other laws say of each step, ms, without having seen it."""

    steps: EngineSteps
    fit: DeploymentFit
    straight: tuple[
        np.ndarray, np.ndarray
    ]  # every second step held out; the second half from the first
    sized: dict[str, np.ndarray]  # laws from sizes, with nothing fitted


def tried(runs: Sequence[EngineSteps]) -> list[TriedEngine]:
    """Fit every deployment, and ask the other laws."""
    return [
        TriedEngine(steps, fit_deployment(steps), _straight(steps), _from_sizes(steps))
        for steps in runs
    ]


def _straight(steps: EngineSteps) -> tuple[np.ndarray, np.ndarray]:
    odd, half = np.arange(len(steps)) % 2 == 1, np.arange(len(steps)) >= len(steps) // 2
    every = np.empty(len(steps))
    for held in (odd, ~odd):
        every[held] = _line(steps.part(~held), steps.part(held))
    return every, _line(steps.part(~half), steps.part(half))


def _line(seen: EngineSteps, wanted: EngineSteps) -> np.ndarray:
    """Fit a constant, prompt tokens and requests in decode as robustly as the law, and predict, ms."""

    def columns(steps: EngineSteps) -> np.ndarray:
        return np.column_stack([np.ones(len(steps)), steps.sums.prompt_tokens, steps.sums.decodes])

    samples, _ = samples_of(seen, columns(seen))
    return columns(wanted) @ fitted(samples) / 1e3


def _from_sizes(steps: EngineSteps) -> dict[str, np.ndarray]:
    """Return what laws from sizes say, ms, where the model has a description."""
    sums, nothing = steps.sums, np.zeros(len(steps))
    as_batches = MeasuredSteps(
        steps.run, steps.engine.model, "", steps.engine.tp, len(steps), 0, 1e3 * steps.ms, nothing,
        new_tokens=sums.prompt_tokens, prefills=sums.prompts, decodes=sums.decodes, finished=nothing,
        context=sums.context + sums.cached_tokens + sums.prompt_tokens,
    )  # fmt: skip
    if steps.engine.model not in SERVED:
        return {}
    predicted = {name: predicted_us(as_batches, name, GPU) for name in SIZED}
    return {name: times / 1e3 for name, times in predicted.items() if times is not None}


# --- tables ---------------------------------------------------------------------------------------


def tables(path: Path) -> tuple[list[str], list[TriedEngine]]:
    """Return the tables of the page, and what they are made of."""
    file = read_steps(path)
    runs = tried(file.runs)
    rows = [
        _measured(runs),
        _held_out(runs),
        _limits(runs),
        _second_half(runs),
        _across(runs),
        _models(runs),
        _servers(runs),
    ]
    if "segment" in file.table:
        rows.append(replay.replayed(file.runs, file.table))
    return rows, runs


def _percent(value: float) -> str:
    return f"{100 * value:.1f}" if math.isfinite(value) else "–"


def _three(errors: dict[str, float]) -> str:
    return " / ".join(_percent(errors.get(name, math.nan)) for name in PHASES)


def _medians(steps: EngineSteps, ms: np.ndarray) -> str:
    return _three({name: errors.median for name, errors in errors_by_phase(steps, ms).items()})


def _measured(runs: Sequence[TriedEngine]) -> str:
    head = ["deployment", "steps", "warm-up", "slow", "booked on the step before"]
    rows = [
        [
            run.fit.run,
            *(
                str(n)
                for n in (
                    run.fit.num_steps,
                    run.fit.num_warm_up,
                    run.fit.num_slow,
                    run.fit.num_booked,
                )
            ),
        ]
        for run in runs
    ]
    return "What was measured:\n\n" + table_text(head, rows)


def _held_out(runs: Sequence[TriedEngine]) -> str:
    head = [
        "deployment",
        "step law",
        "straight line",
        *SIZED,
        "mixed steps",
        "sums with prompts",
    ]
    rows = []
    for run in runs:
        errors = run.fit.every_second
        rows.append(
            [
                run.fit.run,
                _three({name: errors[name].median for name in PHASES}),
                _medians(run.steps, run.straight[0]),
                *(
                    _medians(run.steps, run.sized[name]) if name in run.sized else ""
                    for name in SIZED
                ),
                str(errors["mixed"].steps),
                _percent(run.fit.windows),
            ]
        )
    return (
        "Every second step held out, median error in decode / prefill / mixed, %:\n\n"
        + table_text(head, rows)
    )


def _limits(runs: Sequence[TriedEngine]) -> str:
    """Return what no law of a batch can go far below: how far steps of one shape are apart."""
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
                _three({name: errors[name].median for name in PHASES}),
                _three({name: errors[name].repeats for name in PHASES}),
                _medians(run.steps.part(np.isfinite(ms)), ms[np.isfinite(ms)]),
                _percent(float(np.median(apart)) if apart.size else math.nan),
                str(apart.size),
            ]
        )
    words = "How far steps of one shape are apart, median in decode / prefill / mixed, %:"
    return f"{words}\n\n" + table_text(head, rows)


def by_repeats(steps: EngineSteps) -> np.ndarray:
    """Return the median time, ms, of the other half's steps of the same shape; NaN where it has none.

    The halves are those of a fit with every second step held out.
    """
    odd, shape = np.arange(len(steps)) % 2 == 1, shapes(steps)
    repeats = np.full(len(steps), np.nan)
    for held in (odd, ~odd):
        medians = pandas.Series(steps.ms[~held]).groupby(shape[~held]).median()
        repeats[held] = medians.reindex(shape[held]).to_numpy()
    return repeats


def by_other_requests(steps: EngineSteps) -> np.ndarray:
    """Return the median time, ms, of decode steps of as many other requests; NaN where there are not three.

    A batch stays one of the same requests while nobody comes or goes. Others are like it where the mean context is
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


def _second_half(runs: Sequence[TriedEngine]) -> str:
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
        rows.append([run.fit.run, *map(_percent, laws), str(count)])
    return "The second half from the first, median error of decode steps, %:\n\n" + table_text(
        head, rows
    )


def between_halves(steps: EngineSteps) -> tuple[float, int]:
    """Return how far decode steps of the second half are from like ones of the first, and how many have such.

    Alike are steps of as many requests, whose mean context is within a factor of two; three in the first half or more.
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


def _across(runs: Sequence[TriedEngine]) -> str:
    head = ["held out", "deployment", "step law", "straight line"]
    rows: list[list[str]] = []
    kinds: tuple[tuple[str, Callable[[EngineSteps], int]], ...] = (
        ("TP", lambda steps: steps.engine.tp),
        ("EP", lambda steps: steps.engine.ep),
    )
    for model in dict.fromkeys(run.steps.engine.model for run in runs):
        of_model = [run for run in runs if run.steps.engine.model == model]
        for kind, number in kinds:
            values = sorted({number(engine.steps) for engine in of_model})
            for value in values if len(values) > 1 else []:
                held = [engine for engine in of_model if number(engine.steps) == value]
                rest = [engine for engine in of_model if number(engine.steps) != value]
                rows += _without(f"{kind} {value}", held, rest)
    words = "Fitted to the other deployments of the model, median error in decode / prefill / mixed, %:\n\n"
    return words + table_text(head, rows)


def _without(
    label: str, held: Sequence[TriedEngine], rest: Sequence[TriedEngine]
) -> list[list[str]]:
    across = fit_across([engine.steps for engine in rest])
    nearest = rest[0]
    rows = []
    for engine in held:
        beta = nearest.fit.beta if across is None else beta_across(across, engine.steps.engine)
        law = law_us(beta, engine.steps.sums) / 1e3
        line = np.mean([_line(other.steps, engine.steps) for other in rest], axis=0)
        rows.append(
            [label, engine.fit.run, _medians(engine.steps, law), _medians(engine.steps, line)]
        )
    return rows


def _models(runs: Sequence[TriedEngine]) -> str:
    """Return how far models are off that were predicted from their descriptions, and what their intervals hold."""
    head = ["deployment", "from its description", "interval, a factor of", "steps that it holds"]
    rows, shares = [], []
    for steps, ms, factor in held_out([run.steps for run in runs], _describe):
        inside = np.abs(np.log(ms / steps.ms)) <= math.log(factor)
        by_phase = {
            name: float(inside[steps.phase == place].mean())
            for place, name in enumerate(PHASES)
            if np.any(steps.phase == place)
        }
        shares.append(float(np.mean(list(by_phase.values()))))
        rows.append([steps.run, _medians(steps, ms), f"{factor:.1f}", _three(by_phase)])
    if shares:
        rows.append(["mean of phases and deployments", "", "", _percent(float(np.mean(shares)))])
    words = "Fitted to the other models, median error and share of steps held in decode / prefill / mixed, %:"
    return f"{words}\n\n" + table_text(head, rows)


def _servers(runs: Sequence[TriedEngine]) -> str:
    """Return what the law of all measured models says of the decoding of servers of others, on the same GPUs."""
    law = fit_described([run.steps for run in runs], _describe)
    if law is None or not SERVERS.is_file():
        return "Servers of other models: their runs are not here."
    table = pandas.read_csv(SERVERS)
    table = table[table.system.isin(GPUS)]
    measured = {run.steps.engine.model for run in runs}
    head = [
        "model",
        "weights",
        "runs",
        "predicted ÷ measured",
        "middle nine tenths",
        "within the interval, %",
    ]
    rows = []
    for (model, precision), part in table.groupby(["model_path", "precision"]):
        description = model_description(named(model, precision))
        if model in measured:
            continue
        ratio = np.concatenate(
            [
                law.predicted_ms(
                    MeasuredEngine(model, int(tp), int(dp)), description, _decoding(some)
                )
                / some.silicon_tpot_ms
                for (tp, dp), some in part.groupby(["tp_size", "attention_dp_size"])
            ]
        )
        low, middle, high = np.quantile(ratio, [0.05, 0.5, 0.95])
        inside = np.abs(np.log(ratio)) <= math.log(law.factor)
        cells = [f"{middle:.2f}", f"{low:.2f} to {high:.2f}", f"{100 * inside.mean():.0f}"]
        rows.append([model, precision, str(len(ratio)), *cells])
    words = (
        f"Decoding of servers of other models, with an interval of a factor of {law.factor:.1f}:"
    )
    return f"{words}\n\n" + table_text(head, rows)


def _decoding(runs: pandas.DataFrame) -> StepSums:
    """Return the batch in decode of servers in the middle of their answers, every user being served."""
    users = (runs.concurrency / runs.attention_dp_size).to_numpy(np.float64)
    nothing, context = np.zeros(len(runs)), users * (runs.isl + runs.osl / 2).to_numpy(np.float64)
    return StepSums(nothing, nothing, nothing, users, context, nothing)


def _describe(name: str) -> ModelDescription | None:
    return model_description(name) if is_shipped(name) else None
