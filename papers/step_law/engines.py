"""The step law on deployments of today's models: errors on steps and on deployments held out, beside other laws."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np

from blis_jax.calibrate.described_steps import carried_over, fit_described, held_out
from blis_jax.calibrate.step_fit import (
    beta_across,
    errors_by_phase,
    fit_across,
    fit_deployment,
    fitted,
    law_us,
    samples_of,
)
from blis_jax.latency.model_description import ModelDescription, is_shipped, model_description
from blis_jax.latency.registry import SIZED
from blis_jax.latency.step_law import StepSums
from blis_jax.lazy import Module, pandas
from blis_jax.reports.render import table_text
from blis_jax.traces.measured.steps import PHASES, EngineSteps, MeasuredEngine, read_steps
from papers.real_servers.predict.collections import named
from papers.step_law import limits
from papers.step_law.law import SERVED, MeasuredSteps, predicted_us
from papers.step_law.limits import TriedEngine, medians_of, percent, three

if TYPE_CHECKING:
    from papers.step_law import replay
else:  # it loads JAX, for which no refusal waits
    replay = Module("papers.step_law.replay")

DECODE_BAR, PREFILL_BAR = 0.01, 0.08  # median errors with every second step held out
SERVERS = Path(__file__).resolve().parents[3] / "shared/data/real_serving_runs/inferencex_vllm.csv"
GPUS = ("b200_sxm", "b300_sxm")
GPU = "B300"  # named in the collection for one of the models


def tried(runs: Sequence[EngineSteps]) -> list[TriedEngine]:
    """Return every deployment with its fit and the predictions of the other laws."""
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
    """Return the predictions of laws from sizes, ms, where the model has a description."""
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
    """Return the tables of the page, and the fitted deployments that they show."""
    file = read_steps(path)
    runs = tried(file.runs)
    rows = [
        _measured(runs),
        _held_out(runs),
        limits.limits(runs),
        limits.second_half(runs),
        limits.networks(runs),
        _across(runs),
        _from_one(runs),
        _models(runs),
        _servers(runs),
    ]
    if "segment" in file.table:
        rows.append(replay.replayed(file.runs, file.table))
    return rows, runs


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
                three({name: errors[name].median for name in PHASES}),
                medians_of(run.steps, run.straight[0]),
                *(
                    medians_of(run.steps, run.sized[name]) if name in run.sized else ""
                    for name in SIZED
                ),
                str(errors["mixed"].steps),
                percent(run.fit.windows),
            ]
        )
    return (
        "Every second step held out, median error in decode / prefill / mixed, %:\n\n"
        + table_text(head, rows)
    )


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
        law = _carried(nearest, engine)
        if across is not None:
            law = law_us(beta_across(across, engine.steps.engine), engine.steps.sums)
        line = np.mean([_line(other.steps, engine.steps) for other in rest], axis=0)
        rows.append(
            [
                label,
                engine.fit.run,
                medians_of(engine.steps, law / 1e3),
                medians_of(engine.steps, line),
            ]
        )
    return rows


def _carried(source: TriedEngine, target: TriedEngine) -> np.ndarray:
    """Return the times of the target's steps, µs, by the source's law, carried over by the model's description."""
    steps, law = target.steps, law_us(source.fit.beta, target.steps.sums)
    description = _describe(steps.engine.model)
    if description is None:
        return law
    return carried_over(law, source.steps.engine, steps.engine, description, steps.sums)


def _from_one(runs: Sequence[TriedEngine]) -> str:
    """Return the table of deployments' errors by the fit to another one of the same model, means over all pairs."""
    head = ["model", "pairs", "the other's law", "carried over by the description", "nearer so in"]
    rows = []
    for model in dict.fromkeys(run.steps.engine.model for run in runs):
        of_model = [run for run in runs if run.steps.engine.model == model]
        medians = [
            [
                [errors.median for errors in errors_by_phase(target.steps, us / 1e3).values()]
                for us in (law_us(source.fit.beta, target.steps.sums), _carried(source, target))
            ]
            for source in of_model
            for target in of_model
            if source.steps.engine != target.steps.engine
        ]
        if medians:
            pairs = np.maximum(np.array(medians), 1e-6)  # `[pair, law, phase]`
            cells = [
                three(dict(zip(PHASES, means, strict=True)))
                for means in np.exp(np.nanmean(np.log(pairs), axis=0)).tolist()
            ]
            nearer = " / ".join(map(str, (pairs[:, 1] < pairs[:, 0]).sum(axis=0).tolist()))
            rows.append([model, str(len(pairs)), *cells, nearer])
    words = "By the fit to one other deployment, geometric means of the median errors, %:\n\n"
    return words + table_text(head, rows)


def _models(runs: Sequence[TriedEngine]) -> str:
    """Return the table of errors of models predicted from their descriptions, and of what their intervals hold."""
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
        rows.append([steps.run, medians_of(steps, ms), f"{factor:.1f}", three(by_phase)])
    if shares:
        rows.append(["mean of phases and deployments", "", "", percent(float(np.mean(shares)))])
    words = "Fitted to the other models, median error and share of steps held in decode / prefill / mixed, %:"
    return f"{words}\n\n" + table_text(head, rows)


def _servers(runs: Sequence[TriedEngine]) -> str:
    """Return the table of decode times of other models' servers on the same GPUs, by the law of all measured models."""
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
