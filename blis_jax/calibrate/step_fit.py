"""Robust fits of the step law to measured steps: no coefficient below 0, by deployment or across a model."""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np

from blis_jax.errors import ConfigError
from blis_jax.latency.step_law import LEAST_US, TERMS, StepSums, graph_rows, terms_of
from blis_jax.lazy import optimize, pandas
from blis_jax.traces.measured.steps import PHASES, EngineSteps, MeasuredEngine

if TYPE_CHECKING:
    from jaxtyping import Bool, Float

    from blis_jax.latency.contract import BentLaw

ALIKE, ALIKE_SPREAD = 0.04, 0.2  # logarithms within which steps count as repeats of one shape
ROUNDS = 40  # of reweighting, from squares to absolute logarithms
LEAST_ERROR = 0.003  # below which an error counts as a square
# of the same batch without its prompt: a step that took less is booked on its neighbour
BOOKED = 0.9
OFTEN = 0.1  # of the steps with prompts: an engine that books so many on their neighbours
SLOW, FIRST = 2.0, 3  # times the law, among so many first steps of a kind: warm-up
LEAST_STEPS = 20  # of a deployment
DRAWS, STRETCHES = 20, 20
DRAW_ROUNDS = 10
# how a term goes over the deployments of a model: what a step or its graph costs at all, and what tokens cost
OF_STEPS = (
    "µs per step", "µs per row of a captured decode graph, 0 to 1", "µs per step with a prompt",
    "µs per step outside captured graphs",
)  # fmt: skip
SCALES_OF_STEPS = ("1", "1 ÷ TP", "DP above 1", "log2 of the GPUs where DP is above 1")
SCALES = ("1", "1 ÷ TP", "1 ÷ GPUs", "0")
WINDOW = 8  # steps in a row, whose sum is right where single steps are booked on their neighbours


class StepSamples(NamedTuple):
    """The samples of a fit: decode shapes with their median time, steps with prompts, sums of joined steps."""

    terms: Float[np.ndarray, "sample term"]
    us: Float[np.ndarray, " sample"]
    weights: Float[np.ndarray, "sample stretch"]  # steps in each stretch of time


class Errors(NamedTuple):
    """Errors on steps that a fit had not seen, as shares of the measured time; NaN where there are none."""

    steps: int
    median: float
    p90: float
    # how far single steps are from the median of their shape: what no law can go below
    repeats: float


@dataclass(frozen=True)
class DeploymentFit:
    """The law of one deployment."""

    run: str
    engine: MeasuredEngine
    # µs, as `TERMS` says, and then the further numbers of a bent law
    beta: Float[np.ndarray, " coefficient"]
    draws: Float[np.ndarray, "draw coefficient"]  # fits to other weights of the same stretches
    num_steps: int
    num_warm_up: int
    num_slow: int  # others that took more than twice the law's time
    num_booked: int
    every_second: Mapping[str, Errors] = dataclasses.field(default_factory=dict)  # by phase
    second_half: Mapping[str, Errors] = dataclasses.field(default_factory=dict)
    windows: float = math.nan  # median error of sums of `WINDOW` steps of which some have prompts
    floor_ms: float = math.nan  # what a step with a prompt is off by at most, nine times in ten
    alone: DeploymentFit | None = None  # of a bent law that was just fitted: the step law by itself


def term_matrix(sums: StepSums) -> Float[np.ndarray, "step term"]:
    """Return the law's terms `[step, term]` of the steps."""
    return np.column_stack(terms_of(sums, np))


def law_us(
    beta: Float[np.ndarray, " coefficient"], sums: StepSums, residual: BentLaw | None = None
) -> Float[np.ndarray, " step"]:
    """Return the law's time of each step, µs; coefficients beyond `TERMS` belong to the bent law `residual`."""
    matrix = term_matrix(sums)
    if residual is not None and len(beta) > len(TERMS):
        return residual.times(beta, matrix)
    times_us: np.ndarray = np.maximum(matrix @ beta, LEAST_US)
    return times_us


def fit_deployment(steps: EngineSteps, residual: BentLaw | None = None) -> DeploymentFit:
    """Fit the law to a deployment, and measure its errors on steps held out of further fits.

    Args:
        steps: the measured steps.
        residual: the form that bends the fitted law; None leaves the law as it is.

    Raises:
        ConfigError: there are too few steps.
    """
    refuse_few(steps)
    alone = None if residual is None else fit_deployment(steps)
    samples, is_booked = samples_of(steps)
    beta, draws = (fitted(samples), _draws(samples)) if alone is None else (alone.beta, alone.draws)
    if residual is not None:
        weights = samples.weights @ np.concatenate([np.ones((1, STRETCHES)), _chances()]).T
        found = _bent(residual, samples, weights, np.stack([beta, *draws]))
        beta, draws = found[0], found[1:]
    ratio = 1e3 * steps.ms / law_us(beta, steps.sums, residual)
    is_slow = (ratio > SLOW) & ~is_booked
    is_first = _places(_kinds(steps)) < FIRST
    seen_ms, by_window = predicted_ms(steps, residual), predicted_ms(steps, residual, WINDOW)
    late = np.arange(len(steps)) >= len(steps) // 2
    late_ms = held_out_ms(steps, late, residual)
    off = np.abs(seen_ms - steps.ms)[(steps.phase > 0) & ~is_booked & ~is_slow]
    return DeploymentFit(
        steps.run,
        steps.engine,
        beta,
        draws,
        len(steps),
        int(np.sum(is_slow & is_first)),
        int(np.sum(is_slow & ~is_first)),
        int(np.sum(is_booked)),
        errors_by_phase(steps, seen_ms),
        errors_by_phase(steps.part(late), late_ms),
        window_error(steps, by_window),
        float(np.quantile(off, 0.9)) if off.size else math.nan,
        alone,
    )


def _bent(
    residual: BentLaw, samples: StepSamples, weights: np.ndarray, beta: np.ndarray
) -> Float[np.ndarray, "fit coefficient"]:
    return np.concatenate(
        [beta, residual.further(samples.terms, samples.us, weights.T, beta)], axis=1
    )


def predicted_ms(
    steps: EngineSteps, residual: BentLaw | None = None, size: int = 1
) -> Float[np.ndarray, " step"]:
    """Return the time of every step, ms, predicted by a fit to the alternate stretches of `size` steps."""
    odd, found = np.arange(len(steps)) // size % 2 == 1, np.empty(len(steps))
    for held in (odd, ~odd):
        found[held] = held_out_ms(steps, held, residual)
    return found


def refuse_few(steps: EngineSteps) -> None:
    """Refuse a deployment of too few steps."""
    if len(steps) < LEAST_STEPS:
        raise ConfigError(
            f"run {steps.run} has {len(steps)} steps, {LEAST_STEPS} are needed; record a longer load, or take it out"
        )


def held_out_ms(
    steps: EngineSteps, held: Bool[np.ndarray, " step"], residual: BentLaw | None = None
) -> Float[np.ndarray, " held"]:
    """Return the times of the `held` steps, ms, predicted by a fit to the other steps."""
    samples, _ = samples_of(steps.part(~held))
    beta = fitted(samples)
    if residual is not None:
        weights = samples.weights.sum(axis=1, keepdims=True)
        beta = _bent(residual, samples, weights, beta[None])[0]
    return law_us(beta, steps.part(held).sums, residual) / 1e3


# --- samples --------------------------------------------------------------------------------------


def samples_of(
    steps: EngineSteps, matrix: Float[np.ndarray, "step term"] | None = None
) -> tuple[StepSamples, Bool[np.ndarray, " step"]]:
    """Return the samples for a fit, and which steps have their time booked on the step before them.

    With asynchronous scheduling the time of a step may be booked on the step before it. A step with a prompt that took
    less time than its batch without the prompt counts as booked: it is joined with the step before it into one sum, or
    left out if the file lacks that step. If this happens often, every step with a prompt is joined with the step
    before it. Each step with prompts is a sample of its own, since shapes with prompts repeat too rarely for a median.
    `matrix` replaces the law's terms by those of another law.
    """
    terms, us = term_matrix(steps.sums), 1e3 * steps.ms
    is_booked = _booked(steps, terms)
    matrix = terms if matrix is None else matrix
    joins, is_left_out = _joined(steps, is_booked)
    window = np.cumsum(~joins) - 1
    size = np.bincount(window)
    first = np.flatnonzero(~joins)
    sums, total = np.add.reduceat(matrix, first), np.add.reduceat(us, first)
    is_left_out = np.add.reduceat(is_left_out.astype(int), first) > 0
    is_alone = (size > 1) | (steps.sums.prompt_tokens[first] > 0)
    shape = np.where(is_alone, len(steps) + np.arange(len(size)), shapes(steps)[first])
    kept = ~is_left_out
    _, shape = np.unique(shape[kept], return_inverse=True)
    stretch = np.minimum(first * STRETCHES // len(steps), STRETCHES - 1)[kept]
    weights = np.zeros((shape.max() + 1, STRETCHES))
    np.add.at(weights, (shape, stretch), size[kept])
    mean = np.zeros((len(weights), matrix.shape[1]))
    np.add.at(mean, shape, sums[kept])
    mean /= np.bincount(shape)[:, None]
    medians = pandas.Series(total[kept]).groupby(shape).median().to_numpy()
    return StepSamples(mean, medians, weights), is_booked


def _joined(
    steps: EngineSteps, is_booked: Bool[np.ndarray, " step"]
) -> tuple[Bool[np.ndarray, " step"], Bool[np.ndarray, " step"]]:
    """Return which steps are joined with the step before them, and which are left out."""
    has_prompt = steps.sums.prompt_tokens > 0
    follows = np.zeros(len(steps), bool)
    follows[1:] = (np.diff(steps.number) == 1) & (np.diff(steps.sequence) == 0)
    joins, is_left_out = is_booked & follows, is_booked & ~follows
    if is_booked.sum() > OFTEN * has_prompt.sum() and np.mean(follows[has_prompt]) > 0.5:
        joins, is_left_out = has_prompt & follows, has_prompt & ~follows
    return joins, is_left_out


def _booked(steps: EngineSteps, matrix: np.ndarray) -> Bool[np.ndarray, " step"]:
    has_prompt = steps.sums.prompt_tokens > 0
    if not has_prompt.any() or np.sum(~has_prompt) < LEAST_STEPS:
        return np.zeros(len(steps), bool)
    only = steps.part(~has_prompt)
    shape = shapes(only)
    medians = pandas.Series(1e3 * only.ms).groupby(shape).transform("median").to_numpy()
    places = np.unique(shape, return_index=True)[1]
    counts = np.bincount(np.unique(shape, return_inverse=True)[1]).astype(float)
    beta = fitted(StepSamples(matrix[~has_prompt][places], medians[places], counts[:, None]))
    nothing = np.zeros(len(steps))
    without = steps.sums._replace(
        prompts=nothing,
        prompt_tokens=nothing,
        cached_tokens=nothing,
        decodes=np.maximum(steps.sums.decodes, 1.0),
    )
    is_booked: np.ndarray = has_prompt & (1e3 * steps.ms < BOOKED * law_us(beta, without))
    return is_booked


def shapes(steps: EngineSteps) -> np.ndarray:
    """Return a number for each step that is the same for steps of nearly the same batch."""
    sums = steps.sums

    def near(values: np.ndarray, apart: float) -> np.ndarray:
        return np.round(np.log1p(values) / apart)

    columns = [
        sums.prompts, near(sums.prompt_tokens, ALIKE), near(sums.cached_tokens, 2 * ALIKE),
        sums.decodes, near(sums.context, ALIKE), near(sums.spread, ALIKE_SPREAD),
    ]  # fmt: skip
    shape: np.ndarray = np.unique(np.column_stack(columns), axis=0, return_inverse=True)[1].ravel()
    return shape


def _kinds(steps: EngineSteps) -> np.ndarray:
    """Return a number for each step that is the same for steps which need the same compiled programs."""
    rows = graph_rows(steps.sums.decodes, np)
    tokens = np.ceil(np.log2(np.maximum(steps.sums.prompt_tokens, 1)))
    columns = np.column_stack([steps.phase, rows, tokens])
    kind: np.ndarray = np.unique(columns, axis=0, return_inverse=True)[1].ravel()
    return kind


def _places(kind: np.ndarray) -> np.ndarray:
    """Return for each step the number of earlier steps of its kind."""
    places: np.ndarray = pandas.Series(kind).groupby(kind).cumcount().to_numpy()
    return places


# --- the fit --------------------------------------------------------------------------------------


def fitted(
    samples: StepSamples, chosen: Float[np.ndarray, " stretch"] | None = None, rounds: int = ROUNDS
) -> Float[np.ndarray, " term"]:
    """Return the coefficients, none below 0, that minimise the weighted sum of |log(fitted ÷ measured)|."""
    count = samples.weights.sum(axis=1) if chosen is None else samples.weights @ chosen
    scale = np.maximum(np.abs(samples.terms).max(axis=0), 1e-12)
    matrix, us = samples.terms / scale, samples.us
    weights = count / us**2
    beta = np.zeros(len(scale))
    for _ in range(rounds):
        root = np.sqrt(weights)
        beta = optimize.nnls(matrix * root[:, None], us * root, maxiter=50 * len(scale))[0]
        law = np.maximum(matrix @ beta, 0.2 * us)
        error = np.abs(np.log(law / us))
        weights = count / (us * law) / np.maximum(error, LEAST_ERROR)
    return beta / scale


def _draws(samples: StepSamples) -> Float[np.ndarray, "draw term"]:
    return np.stack([fitted(samples, chances, DRAW_ROUNDS) for chances in _chances()])


def _chances() -> Float[np.ndarray, "draw stretch"]:
    """Return random weights of the stretches of time for each draw: the Bayesian bootstrap."""
    return np.random.default_rng(0).exponential(size=(DRAWS, STRETCHES)) + 1e-3


# --- errors ---------------------------------------------------------------------------------------


def errors_by_phase(steps: EngineSteps, predicted_ms: np.ndarray) -> dict[str, Errors]:
    """Return the errors of predictions, by phase."""
    error = np.abs(predicted_ms / steps.ms - 1.0)
    phase, shape = steps.phase, shapes(steps)
    times = pandas.Series(steps.ms).groupby(shape)
    repeats = np.abs(steps.ms / times.transform("median").to_numpy() - 1.0)
    is_repeated = times.transform("size").to_numpy() >= FIRST
    errors = {}
    for place, name in enumerate(PHASES):
        here = phase == place
        some = repeats[here & is_repeated]
        errors[name] = Errors(
            int(here.sum()),
            float(np.median(error[here])) if here.any() else math.nan,
            float(np.quantile(error[here], 0.9)) if here.any() else math.nan,
            float(np.median(some)) if some.size else math.nan,
        )
    return errors


def window_error(steps: EngineSteps, predicted_ms: np.ndarray) -> float:
    """Return the median error of sums over `WINDOW` consecutive steps with a prompt; NaN if there are none."""
    count = len(steps) // WINDOW
    if not count:
        return math.nan

    def windows(values: np.ndarray) -> np.ndarray:
        return values[: count * WINDOW].reshape(count, WINDOW)

    is_row = np.all(np.diff(windows(steps.number), axis=1) == 1, axis=1)
    chosen = is_row & np.any(windows(steps.sums.prompt_tokens) > 0, axis=1)
    if not chosen.any():
        return math.nan
    measured, law = windows(steps.ms).sum(axis=1), windows(predicted_ms).sum(axis=1)
    return float(np.median(np.abs(law / measured - 1.0)[chosen]))


# --- across the deployments of a model ------------------------------------------------------------


def scales_of(engine: MeasuredEngine) -> Float[np.ndarray, "scale term"]:
    """Return the factors by which each term scales with TP and DP; waiting of DP ranks scales steps only."""
    gpus, has_ranks = engine.tp * engine.dp, float(engine.dp > 1)
    of_steps = np.array([1.0, 1.0 / engine.tp, has_ranks, has_ranks * math.log2(gpus)])
    of_tokens = np.array([1.0, 1.0 / engine.tp, 1.0 / gpus, 0.0])
    is_of_steps = np.array([name in OF_STEPS for name in TERMS])
    scales: np.ndarray = np.where(is_of_steps, of_steps[:, None], of_tokens[:, None])
    return scales


def fit_across(runs: Sequence[EngineSteps]) -> Float[np.ndarray, "scale term"] | None:
    """Return coefficients for all deployments of one model, runs weighted equally; None for equal engines."""
    if len({steps.engine[1:] for steps in runs}) < 2:
        return None
    parts = []
    for steps in runs:
        samples, _ = samples_of(steps)
        terms = np.concatenate([samples.terms * scale for scale in scales_of(steps.engine)], axis=1)
        weights = samples.weights.sum(axis=1, keepdims=True)
        parts.append(StepSamples(terms, samples.us, weights / weights.sum()))
    together = StepSamples(*(np.concatenate(arrays) for arrays in zip(*parts, strict=True)))
    return fitted(together).reshape(len(SCALES), len(TERMS))


def beta_across(
    across: Float[np.ndarray, "scale term"], engine: MeasuredEngine
) -> Float[np.ndarray, " term"]:
    """Return the coefficients of one deployment from a model's `fit_across`."""
    beta: np.ndarray = np.sum(scales_of(engine) * across, axis=0)
    return beta


def plain(errors: Mapping[str, Errors]) -> dict[str, Any]:
    """Return errors by phase as plain data, without NaN."""
    return {
        name: {key: value for key, value in of_phase._asdict().items() if math.isfinite(value)}
        for name, of_phase in errors.items()
    }
