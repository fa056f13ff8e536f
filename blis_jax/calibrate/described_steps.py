"""The time of a step from a model's description, with an interval: for models without measured steps.

It is the step law of `served-physics` with two more regimes: the launches of a step with a prompt outside captured
graphs, and ranks that wait for each other. Its numbers are fitted to the measured deployments of other models, and
pulled towards those of `served-physics`, which come from other servers. The interval is Student's t on the errors of
each measured model when it is held out, so few models make it wide.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np

from blis_jax.calibrate.step_fit import shapes
from blis_jax.latency import caches
from blis_jax.latency.deployment import Deployment, gpu_description, kv_bytes_per_token
from blis_jax.latency.model_description import ModelDescription, expert_parameters, num_parameters
from blis_jax.latency.served_physics import BETA
from blis_jax.latency.step_law import CAPTURED, LEAST_US, StepSums, graph_rows
from blis_jax.lazy import optimize, pandas, stats
from blis_jax.traces.measured.steps import PHASES, EngineSteps, MeasuredEngine

if TYPE_CHECKING:
    from jaxtyping import Float

GPU = "B300"  # of the public collection of such steps
LEVEL = 0.9
LEAST_MODELS = 2  # of which each is predicted from the others
_WEIGHTS, _KV, _LAYER, _SHARING, _, _ROWS, _MOE, _PROMPT, _FLOPS, _ = BETA
START = {  # and how far from it a number is likely to be, as a standard deviation of its logarithm
    "share of the time to load weights": (_WEIGHTS, 0.4),
    "share of the time to read the KV cache and states": (_KV, 0.4),
    "µs per layer": (_LAYER, 0.4),
    "µs per layer for each further GPU that shares it": (_SHARING, 1.0),
    "µs per 1,000,000 activations, counted once a layer": (_ROWS, 0.4),
    "µs per layer with experts": (_MOE, 0.4),
    "µs per prompt": (_PROMPT, 1.0),
    "share of the time for arithmetic at the peak": (_FLOPS, 0.4),
    "the same for attention of prompts": (_FLOPS, 0.4),
    "µs per layer of a step with a prompt": (60.0, 1.6),
    "µs per layer with experts of a step with a prompt": (60.0, 1.6),
    "µs per layer outside captured graphs, at least": (200.0, 1.6),
    "µs per layer with experts outside captured graphs, at least": (500.0, 1.6),
    "µs per layer and doubling of the GPUs where ranks wait": (20.0, 1.6),
    "µs per 1,000,000 activations of a prompt that ranks exchange": (20.0, 1.6),
}
_START, _SPREAD = (np.array(column) for column in zip(*START.values(), strict=True))
MODEL_ERROR = 0.3  # of one model, as a standard deviation of the logarithm of its times
UNITS = 2.0  # independent measurements that a model's steps count as in each of three regimes
MOST_ERROR = 1.5  # beyond which a step pulls no more
# that sparse attention reads at most, of DeepSeek-V4: 512 chosen ones and a window of 128
ENTRIES_READ = 640

Describe = Callable[[str], ModelDescription | None]


class Loads(NamedTuple):
    """The work of steps: each field is one number, or an array `[step]`; times are at the GPU's peak rates."""

    layers: float
    moe_layers: float
    shared_layers: float  # times the further GPUs that share each
    waiting_layers: float  # times the doublings of GPUs, where ranks wait for each other
    has_prompt: np.ndarray
    is_eager: np.ndarray
    prompts: np.ndarray
    weights_us: np.ndarray
    arithmetic_us: np.ndarray
    attention_us: np.ndarray
    kv_us: np.ndarray
    activations: np.ndarray  # millions, counted once a layer
    exchanged: np.ndarray  # likewise, those that ranks exchange


def loads_of(engine: MeasuredEngine, model: ModelDescription, gpu: str, sums: StepSums) -> Loads:
    """Return the work of the steps `sums` for a described model.

    Raises:
        ConfigError: the GPU is not known.
    """
    served = Deployment(model, gpu_description(gpu), engine.tp, engine.dp)
    gpus, layers = engine.tp * engine.dp, float(model.num_layers)
    byte_us = 1.0 / (served.gpu.bandwidth_tbs * 1e6)
    has_prompt = sums.prompt_tokens > 0
    tokens = sums.prompt_tokens + sums.decodes
    rows = np.where(has_prompt, tokens, graph_rows(sums.decodes, np))
    experts = expert_parameters(model)
    others = (num_parameters(model) - experts - model.vocab_size * model.hidden_size) / engine.tp
    chosen = model.num_experts_per_tok / model.num_experts if model.is_moe else 0.0
    covered = 1.0 - (1.0 - chosen) ** (rows * engine.dp)  # all ranks are taken to have as many rows
    expert_bytes = experts * (model.expert_bytes or model.weight_bytes) / gpus
    flops = 2.0 * tokens * (others + experts * chosen / engine.tp)
    prompts = np.maximum(sums.prompts, 1.0)
    read = (sums.cached_tokens + sums.prompt_tokens / 2.0) / prompts
    if model.kinds.compressed:
        read = np.minimum(read, ENTRIES_READ)
    width = model.num_attention_layers * model.num_heads * model.head_size / engine.tp
    states = model.kinds.linear * caches.state_bytes(model.kinds, engine.tp, model.activation_bytes)
    kv = sums.context * kv_bytes_per_token(served) + 2.0 * sums.decodes * states
    moe_layers = layers if model.is_moe else 0.0
    has_ranks = engine.dp > 1
    return Loads(
        layers=layers,
        moe_layers=moe_layers,
        shared_layers=layers * (engine.tp - 1),
        waiting_layers=layers * math.log2(gpus) if has_ranks else 0.0,
        has_prompt=has_prompt,
        is_eager=has_prompt & (tokens > CAPTURED[-1]),
        prompts=sums.prompts,
        weights_us=byte_us * (others * model.weight_bytes + expert_bytes * covered),
        arithmetic_us=flops / (served.peak_tflops * 1e6),
        attention_us=4.0 * sums.prompt_tokens * read * width / (served.gpu.peak_tflops * 1e6),
        kv_us=byte_us * kv,
        activations=rows * layers * model.hidden_size / 1e6,
        exchanged=has_prompt * tokens * moe_layers * model.hidden_size / 1e6 * has_ranks,
    )


def step_us(numbers: Float[np.ndarray, " number"], loads: Loads) -> Float[np.ndarray, " step"]:
    """Return the time of each step, µs: GPU work and kernel launches, which overlap outside captured graphs."""
    (
        weights, kv, layer, sharing, rows, moe, prompt, flops, attention, piece, moe_piece, eager, moe_eager, waiting,
        exchange,
    ) = numbers  # fmt: skip
    gpu = np.maximum(weights * loads.weights_us, flops * loads.arithmetic_us)
    gpu = gpu + attention * loads.attention_us + kv * loads.kv_us
    gpu = gpu + rows * loads.activations + exchange * loads.exchanged
    shared = sharing * loads.shared_layers + waiting * loads.waiting_layers
    captured = layer * loads.layers + moe * loads.moe_layers + gpu
    captured = captured + loads.has_prompt * (piece * loads.layers + moe_piece * loads.moe_layers)
    launches = eager * loads.layers + moe_eager * loads.moe_layers
    longer = np.where(loads.is_eager, np.maximum(captured, launches), captured)
    times_us: np.ndarray = np.maximum(shared + longer + prompt * loads.prompts, LEAST_US)
    return times_us


@dataclass(frozen=True)
class DescribedLaw:
    """The law's fitted numbers, and the error factor to expect for a model that was not measured."""

    numbers: Float[np.ndarray, " number"]  # in the order of `START`
    models: tuple[str, ...]  # that it was fitted to
    gpu: str
    # nine steps in ten are within this factor of the law; inf where that cannot be told
    factor: float

    def predicted_ms(
        self, engine: MeasuredEngine, model: ModelDescription, sums: StepSums
    ) -> Float[np.ndarray, " step"]:
        """Return the times of steps of a described model, ms.

        Raises:
            ConfigError: the GPU is not known.
        """
        return step_us(self.numbers, loads_of(engine, model, self.gpu, sums)) / 1e3

    def document(self) -> dict[str, Any]:
        """Return the law as plain data; `of_document` reads it back."""
        named = zip(START, self.numbers.tolist(), strict=True)
        return {
            "numbers": {name: float(f"{value:.7g}") for name, value in named},
            "models": list(self.models),
            "gpu": self.gpu,
            "factor": self.factor,
        }

    @classmethod
    def of_document(cls, document: Mapping[str, Any]) -> DescribedLaw:
        """Return the law that `document` gave; KeyError, TypeError or ValueError for anything else."""
        numbers = np.array([document["numbers"][name] for name in START], np.float64)
        factor = float(document["factor"])
        if not (np.all(np.isfinite(numbers)) and np.all(numbers > 0) and factor >= 1):
            raise ValueError("described")
        return cls(numbers, tuple(document["models"]), str(document["gpu"]), factor)


def carried_over(
    us: Float[np.ndarray, " step"],
    source: MeasuredEngine,
    target: MeasuredEngine,
    model: ModelDescription,
    sums: StepSums,
    gpu: str = GPU,
) -> Float[np.ndarray, " step"]:
    """Return a model's step times, µs, on other GPUs, scaled from those by the law of a measured deployment.

    The scale is the ratio of the described times of target and source, at the numbers with which the fit begins. Steps
    with prompts keep their times if both have equally many GPUs: TP and DP ranks share the cost of tokens alike.

    Args:
        us: times of the steps by the law of the measured deployment.
        source: the measured deployment.
        target: the wanted one, of the same model.
        model: its description.
        sums: the steps.
        gpu: what ran them.

    Raises:
        ConfigError: the GPU is not known.
    """
    ours, theirs = (
        step_us(_START, loads_of(engine, model, gpu, sums)) for engine in (target, source)
    )
    stays = (sums.prompt_tokens > 0) & (source.tp * source.dp == target.tp * target.dp)
    carried: np.ndarray = np.where(stays, us, us * ours / theirs)
    return carried


# --- the fit --------------------------------------------------------------------------------------


class LeftOut(NamedTuple):
    """The errors of a fit on a model that it had not seen."""

    scores: Float[np.ndarray, " phase"]  # means of the deployments; NaN where none has such steps
    middles: Float[np.ndarray, " part"]  # median logarithms, of each deployment and phase


class _Prepared(NamedTuple):
    """A deployment: batch shapes with the median time of their repeats, and all its steps."""

    steps: EngineSteps
    loads: Loads  # of shapes
    us: np.ndarray
    weights: np.ndarray  # of shapes, by regime as much as the regime counts
    every: Loads  # of steps


def fit_described(
    runs: Sequence[EngineSteps], describe: Describe, gpu: str = GPU
) -> DescribedLaw | None:
    """Fit the law to deployments of models that have descriptions; return None for fewer than two such models.

    Raises:
        ConfigError: the GPU is not known.
    """
    prepared = _prepare(runs, describe, gpu)
    models = _models(prepared)
    if len(models) < LEAST_MODELS:
        return None
    return DescribedLaw(_fitted(prepared), models, gpu, factor_of(_left_out(prepared)))


def held_out(
    runs: Sequence[EngineSteps], describe: Describe, gpu: str = GPU
) -> list[tuple[EngineSteps, np.ndarray, float]]:
    """Return every run with its step times, ms, and its error factor, both from a fit to the other models.

    The factor comes from the other models alone: each of them is held out in turn.
    """
    prepared = _prepare(runs, describe, gpu)
    left_out = []
    for model in _models(prepared):
        rest = [run for run in prepared if run.steps.engine.model != model]
        numbers, factor = _fitted(rest), factor_of(_left_out(rest))
        left_out += [
            (run.steps, step_us(numbers, run.every) / 1e3, factor)
            for run in prepared
            if run.steps.engine.model == model
        ]
    return left_out


def factor_of(left_out: Sequence[LeftOut]) -> float:
    """Return the factor within which nine steps in ten of a further model lie, by Student's t.

    The scores of all phases count as draws with one standard deviation. The degrees of freedom (Satterthwaite) follow
    from how alike the errors of a model's deployments are: if equal, a model is one draw; if independent, each
    deployment is one.

    Args:
        left_out: models that were held out.
    """
    if len(left_out) < LEAST_MODELS:
        return math.inf
    size = math.sqrt(float(np.nanmean([model.scores**2 for model in left_out])))
    square = np.mean([np.mean(model.middles**2) for model in left_out])
    alike = min(
        max(float(np.mean([_product(model.middles) for model in left_out]) / square), 0.0), 1.0
    )
    counts = np.array([len(model.middles) for model in left_out])
    freedom = len(left_out) ** 2 / np.sum((1.0 + (counts - 1) * alike**2) / counts)
    return math.exp(stats.t.ppf((1.0 + LEVEL) / 2.0, freedom) * size)


def _product(values: Float[np.ndarray, " part"]) -> float:
    """Return the mean product of two different values; the square of the only one."""
    if len(values) == 1:
        return float(values[0] ** 2)
    pairs = len(values) * (len(values) - 1)
    return float((np.sum(values) ** 2 - np.sum(values**2)) / pairs)


def _models(prepared: Sequence[_Prepared]) -> tuple[str, ...]:
    return tuple(dict.fromkeys(run.steps.engine.model for run in prepared))


def _prepare(runs: Sequence[EngineSteps], describe: Describe, gpu: str) -> list[_Prepared]:
    prepared = []
    for steps in runs:
        model = describe(steps.engine.model)
        if model is None:
            continue
        shape = shapes(steps)
        _, first = np.unique(shape, return_index=True)
        times = pandas.Series(1e3 * steps.ms).groupby(shape)
        loads = loads_of(steps.engine, model, gpu, steps.part(first).sums)
        weights = np.sqrt(times.size().to_numpy().astype(float))
        regime = np.where(loads.has_prompt, np.where(loads.is_eager, 2, 1), 0)
        weights = weights * UNITS / np.bincount(regime, weights)[regime]
        every = loads_of(steps.engine, model, gpu, steps.sums)
        prepared.append(_Prepared(steps, loads, times.median().to_numpy(), weights, every))
    return prepared


def _fitted(prepared: Sequence[_Prepared]) -> Float[np.ndarray, " number"]:
    """Return the likeliest numbers; the deployments of a model count together as one model."""
    models = [run.steps.engine.model for run in prepared]
    counts = [models.count(run.steps.engine.model) for run in prepared]

    def off(logarithms: np.ndarray) -> np.ndarray:
        parts = [(logarithms - np.log(_START)) / _SPREAD]
        for run, count in zip(prepared, counts, strict=True):
            error = np.log(step_us(np.exp(logarithms), run.loads) / run.us)
            error = np.clip(error, -MOST_ERROR, MOST_ERROR)
            parts.append(np.sqrt(run.weights / count) / MODEL_ERROR * error)
        return np.concatenate(parts)

    numbers: np.ndarray = np.exp(optimize.least_squares(off, np.log(_START), max_nfev=100).x)
    return numbers


def _left_out(prepared: Sequence[_Prepared]) -> list[LeftOut]:
    """Return the errors of each model under a fit to the others; an empty list for a single model."""
    models, left_out = _models(prepared), []
    for model in models if len(models) >= LEAST_MODELS else ():
        numbers = _fitted([run for run in prepared if run.steps.engine.model != model])
        of_model = [run for run in prepared if run.steps.engine.model == model]
        errors = [np.log(step_us(numbers, run.every) / 1e3 / run.steps.ms) for run in of_model]
        parts = [
            [error[run.steps.phase == phase] for run, error in zip(of_model, errors, strict=True)]
            for phase in range(len(PHASES))
        ]
        left_out.append(left_out_of(parts))
    return left_out


def left_out_of(phases: Sequence[Sequence[Float[np.ndarray, " step"]]]) -> LeftOut:
    """Summarise the errors of a left-out model from its logarithms of predicted ÷ measured, by phase and deployment."""
    there = [[part for part in parts if len(part)] for parts in phases]
    scores = [float(np.mean([*map(score_of, parts)])) if parts else math.nan for parts in there]
    middles = [float(np.median(part)) for parts in there for part in parts]
    return LeftOut(np.array(scores), np.array(middles))


def score_of(errors: Float[np.ndarray, " step"]) -> float:
    """Return the root mean square of `errors`, the largest tenth of them cut to their 90th percentile."""
    size = np.abs(errors)
    return float(np.sqrt(np.mean(np.minimum(size, np.quantile(size, LEVEL)) ** 2)))
