"""The step law of `served-physics` fitted to measured times between tokens, by derivatives.

Little's law says how many requests a measured stage had in its batch: rate times E2E. So every stage is one mean
step of a known batch, and the law can be differentiated at it. All coefficients stay near what is known before."""

from __future__ import annotations

import itertools
from collections import Counter
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pandas

from blis_jax.errors import ConfigError
from blis_jax.latency.deployment import Deployment, gpu_description
from blis_jax.latency.served_physics import BETA, ServedNumbers, numbers_of, step_us
from papers.real_servers.predict.collections import VLLM_RUNS, shared_prefix_load
from papers.real_servers.predict.learned import REFERENCE_GPU, usual_pace
from papers.real_servers.predict.scene import AskedCell, Scene, StagedLoad
from papers.real_servers.predict.simulation import deployment_of

# --- the measured vLLM runs: scenes, figures, and mean steps to fit -------------------------------


ESTIMATES = {
    "blis-trained-physics": "BLIS trained-physics",
    "blis-evolved": "BLIS evolved",
    "blis-roofline": "BLIS roofline",
    "aiconfigurator-estimate": "AIConfigurator",
    "llm-optimizer-estimate": "LLM-Optimizer",
    "vidur": "Vidur",
}
LAST_BLOCK = 8  # tokens of a prompt that is in the cache but for its last block, on average


@dataclass(frozen=True)
class VllmRun:
    """A run of a server."""

    name: str
    model: str
    workload: str
    hardware: str
    scene: Scene
    cells: Mapping[tuple[str, int | None], AskedCell]  # by figure and stage
    measured: Mapping[AskedCell, float]  # ms
    published: Mapping[str, Mapping[AskedCell, float]]  # by the simulator's column


def read_runs(path: Path) -> list[VllmRun]:
    """Read the runs of a file, in order of their names.

    Raises:
        ConfigError: there is no such file, it lacks a column, or a run cannot be simulated.
    """
    if not path.is_file():
        raise ConfigError(f"{path} does not exist; give a file of measured vLLM runs with --data")
    table = pandas.read_csv(path)
    missing = [name for name in (*VLLM_RUNS.columns, "actual") if name not in table.columns]
    if missing:
        raise ConfigError(f"{path} lacks the columns {', '.join(missing)}")
    rows: list[dict[str, Any]] = table.to_dict("records")
    runs = []
    for unit in VLLM_RUNS.units(rows):
        if unit.scene is None:
            raise ConfigError(f"{path}: {unit.problem}")
        first = rows[unit.rows[0]]
        known_estimates = [name for name in ESTIMATES if name in table.columns]
        runs.append(
            VllmRun(
                str(first["run"]),
                str(first["model"]),
                shared_prefix_load(str(first["run"]))[0],
                unit.scene.server.hardware,
                unit.scene,
                {(cell.figure, cell.stage): cell for cell in unit.cells},
                {cell: float(rows[cell.row]["actual"]) for cell in unit.cells},
                {
                    name: {
                        cell: float(rows[cell.row][name])
                        for cell in unit.cells
                        if rows[cell.row][name] == rows[cell.row][name]
                    }
                    for name in known_estimates
                },
            )
        )
    return sorted(runs, key=lambda run: run.name)


def mean_steps(runs: Sequence[VllmRun]) -> list[MeanStep]:
    """Return every stage of every run as the mean step of its server, by Little's law."""
    steps = []
    for run in runs:
        load = run.scene.load
        assert isinstance(load, StagedLoad)
        for number, stage in enumerate(load.stages):
            values = {
                name: run.measured[run.cells[name, number]] for name in ("itl_mean", "e2e_mean")
            }
            decodes = stage.rate * values["e2e_mean"] / 1e3
            prompts = stage.rate * values["itl_mean"] / 1e3
            steps.append(
                MeanStep(
                    run.name,
                    deployment_of(run.scene.server),
                    1e3 * values["itl_mean"],
                    decodes,
                    decodes * (load.prompt + load.output / 2),
                    prompts,
                    LAST_BLOCK,
                    LAST_BLOCK * load.prompt,
                )
            )
    return steps


def shortened(scene: Scene, most_s: float) -> Scene:
    """Cut the scene's stages to at most `most_s` seconds."""
    load = scene.load
    assert isinstance(load, StagedLoad)
    stages = tuple(
        replace(stage, duration_s=min(stage.duration_s, most_s)) for stage in load.stages
    )
    return replace(scene, load=replace(load, stages=stages))


def warm(scene: Scene, arrival_s: np.ndarray) -> np.ndarray:
    """Return whether each request arrives after every user has sent its prompt once, `[request]`."""
    load = scene.load
    assert isinstance(load, StagedLoad)
    return arrival_s >= load.num_users / load.stages[0].rate


# --- the fit --------------------------------------------------------------------------------------


# Before any run is seen: memory at 90 and 70 % of its bandwidth, overheads known to a factor of about two.
PRIOR = BETA
LOG_SD = (0.15, 0.4, 0.5, 1.0, 0.7, 0.7, 0.7, 0.5, 0.3)
PACE_LOG_SD = 0.3
NOISE = 0.04  # standard deviation of what no law explains, of a run, in logarithms
ROUNDS = 12


@dataclass(frozen=True)
class MeanStep:
    """A measured stage as the mean step of its server."""

    run: str
    deployment: Deployment
    itl_us: float
    decodes: float  # requests in the batch
    context: float  # tokens that they have together
    mixed: float = 0.0  # share of the steps that have a prompt
    prompt_tokens: float = 0.0  # in each of these
    attended: float = 0.0  # as in `step_us`


@dataclass(frozen=True)
class StepFit:
    """A fitted law."""

    beta: tuple[float, ...]
    pace: Mapping[str, float]  # of GPUs other than the reference

    def beta_on(self, hardware: str) -> tuple[float, ...]:
        """Return the step law's coefficients on this hardware."""
        pace = 1.0 if hardware == REFERENCE_GPU else self.pace.get(hardware)
        return (*self.beta[:-1], usual_pace(gpu_description(hardware)) if pace is None else pace)


# What a law may do without; weights, KV, layers and arithmetic take time in any.
OPTIONAL = (3, 4, 5, 6, 7)
ABSENT = 1e-9  # of a coefficient that is left out


class StepLaw:
    """The law on measured stages, compiled once; it can be fitted to any of them."""

    def __init__(self, steps: Sequence[MeanStep]) -> None:
        self.steps = tuple(steps)
        self.gpus = sorted({step.deployment.gpu.name for step in steps} - {REFERENCE_GPU})
        law = _law(self.steps, self.gpus)
        self._predict, self._slopes = jax.jit(law), jax.jit(jax.jacfwd(law))

    def chosen_terms(self, chosen: Collection[str], group_of: Mapping[str, str]) -> frozenset[int]:
        """Return which coefficients of `OPTIONAL` to leave out: the choice that predicts each group best from the
        others.

        Args:
            chosen: the runs that count.
            group_of: the group of each run; a group is left out as a whole.
        """
        groups = sorted({group_of[name] for name in chosen})
        choices = [
            frozenset(absent)
            for number in range(len(OPTIONAL) + 1)
            for absent in itertools.combinations(OPTIONAL, number)
        ]
        measured = np.array([each.itl_us for each in self.steps])

        def missed(absent: frozenset[int]) -> float:
            """Return the mean over groups of the median error of one that is left out."""
            sizes = []
            for group in groups:
                rest = {name for name in chosen if group_of[name] != group}
                predicted = self.predicted_us(self.fitted(rest, absent))
                left = [each.run in chosen and group_of[each.run] == group for each in self.steps]
                sizes.append(np.median(np.abs(np.log(predicted / measured)[left])))
            return float(np.mean(sizes))

        return min(choices, key=missed) if len(groups) > 1 else frozenset()

    def fitted(self, chosen: Collection[str], absent: Collection[int] = ()) -> StepFit:
        """Fit the coefficients at the maximum of the posterior, by Gauss-Newton in their logarithms; runs weigh alike.

        Args:
            chosen: the runs that count.
            absent: indices of coefficients that the law does without.
        """
        usual = [usual_pace(gpu_description(name)) for name in self.gpus]
        prior = np.log([*PRIOR[:-1], *usual])
        sd = np.array([*LOG_SD, *[PACE_LOG_SD] * len(self.gpus)])
        for place in absent:
            prior[place], sd[place] = np.log(ABSENT), ABSENT
        counts = Counter(each.run for each in self.steps)
        weight = [(each.run in chosen) / (NOISE * counts[each.run] ** 0.5) for each in self.steps]
        measured = np.log([each.itl_us for each in self.steps])
        logs = prior
        with jax.enable_x64(True):
            for _ in range(ROUNDS):
                residual = (measured - np.asarray(self._predict(logs))) * weight
                matrix = np.asarray(self._slopes(logs)) * np.array(weight)[:, None]
                matrix = np.concatenate([matrix, np.diag(1 / sd)])
                wanted = np.concatenate([residual, (prior - logs) / sd])
                logs = logs + np.linalg.lstsq(matrix, wanted, rcond=None)[0]
        values = np.exp(logs).tolist()
        for place in absent:
            values[place] = ABSENT
        number = len(LOG_SD)
        seen = {each.deployment.gpu.name for each in self.steps if each.run in chosen}
        paces = dict(zip(self.gpus, values[number:], strict=True))
        return StepFit(
            (*values[:number], 1.0), {name: each for name, each in paces.items() if name in seen}
        )

    def predicted_us(self, fit: StepFit) -> np.ndarray:
        """Predict the step times of all stages by a fit, µs."""
        paces = [fit.beta_on(name)[-1] for name in self.gpus]
        with jax.enable_x64(True):
            return np.exp(np.asarray(self._predict(np.log([*fit.beta[:-1], *paces]))))


def _law(steps: Sequence[MeanStep], gpus: Sequence[str]) -> Callable[[Any], Any]:
    """Logarithms of step times, of the logarithms of coefficients and paces."""
    sums = np.array([(s.mixed, s.prompt_tokens, s.attended, s.decodes, s.context) for s in steps])
    names = [step.deployment.gpu.name for step in steps]
    place = [gpus.index(name) if name in gpus else -1 for name in names]
    number = len(LOG_SD)

    def predict(logs: Any) -> Any:
        """Return the logarithms of the times of all steps; coefficients and paces are the exponentials of `logs`."""
        values = jnp.exp(logs)
        paces = [
            values[number + place_of_pace] if place_of_pace >= 0 else 1.0 for place_of_pace in place
        ]
        rows = [
            numbers_of((*(values[at] for at in range(number)), pace), step.deployment)
            for step, pace in zip(steps, paces, strict=True)
        ]
        columns = (
            jnp.stack([jnp.asarray(number_of_step, jnp.float64) for number_of_step in column])
            for column in zip(*rows, strict=True)
        )
        numbers = ServedNumbers(*columns)
        mixed, tokens, attended, decodes, context = sums.T
        plain = step_us(numbers, 0.0, 0.0, 0.0, decodes, context)
        with_prompt = step_us(numbers, 1.0, tokens, attended, decodes, context)
        return jnp.log(plain + mixed * (with_prompt - plain))

    return predict
