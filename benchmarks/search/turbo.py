"""TuRBO with one trust region (Eriksson et al. 2019) on BoTorch's Gaussian processes.

Processes are fitted to the points since the last restart, Thompson samples are drawn at candidates in a
box around the best of these points, and the box grows with successes and shrinks with failures. Once
it is too small, the search begins anew. The excess of every constraint has a process of its own (as in
SCBO: Eriksson and Poloczek 2021); a draw of all of them is put together to a score before its lowest
candidate is taken. Choices and branches are changed at random, as in the engine `ensemble`.

BoTorch is no dependency of blis_jax. The judged points were made with botorch 0.18.1, gpytorch 1.15.2 and torch 2.13.0:
`pip install botorch==0.18.1 gpytorch==1.15.2 torch==2.13.0`.
"""

from __future__ import annotations

import math
import warnings
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from importlib import import_module
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np
from scipy.stats import qmc

from blis_jax import lazy
from blis_jax.errors import ConfigError, closest
from surrogate.fitting import online
from sweeps.runs.experiment import Experiment, targets_of
from sweeps.runs.requests import workload_of
from sweeps.search.engines import Engine, make
from sweeps.search.engines.denoised import modelled_of, ranked
from sweeps.search.engines.encoding import Encoding, Told, generator, modelled
from sweeps.search.engines.known import BranchedStart, KnownPoints, Sobol, distinct, known_of
from sweeps.search.loop import SearchRecord
from sweeps.search.objectives import Valuation
from sweeps.strategies.parts import Search
from sweeps.strategies.space import Point, Space

if TYPE_CHECKING:
    from collections.abc import Sequence

    from blis_jax.runs.driver import Runner
    from sweeps.strategies.file import Strategy
    from sweeps.strategies.space import Space


torch = lazy.Module("torch")
botorch_fit = lazy.Module("botorch.fit")
botorch_models = lazy.Module("botorch.models")
constraints = lazy.Module("gpytorch.constraints")
kernels = lazy.Module("gpytorch.kernels")
likelihoods = lazy.Module("gpytorch.likelihoods")
mlls = lazy.Module("gpytorch.mlls")

# The paper's settings; shares of a range.
FIRST_EDGE, LEAST_EDGE, MOST_EDGE = 0.8, 2.0**-7, 1.6
SUCCESSES = 3  # batches one after the other that double the region
PROGRESS = 1e-3  # of the best score, below which a batch is a failure
LENGTHS = (0.005, 2.0)  # of the kernel
NOISE = (5e-4, 0.2)  # of the variance
CANDIDATES = 1024
MOST_MOVED = 20  # features that a candidate is moved in, about, at most


class TrustRegion(NamedTuple):
    """The state of the search: its points since the restart, and the edge of the box."""

    begin: int  # place of the first point since the restart
    edge: float


class Turbo:
    """Sobol points at every start, then batches of Thompson samples from the trust region."""

    def __init__(self, space: Space, search: Search) -> None:
        """Prepare the search of a space; refuse where BoTorch is not installed."""
        try:
            with warnings.catch_warnings():
                warnings.simplefilter("ignore")  # about what PyTorch will not have any more
                import_module("botorch")
        except ModuleNotFoundError:
            raise ConfigError(
                "--engines: 'turbo' needs botorch; pip install botorch gpytorch torch, or leave turbo out"
            ) from None
        self.space, self.search = space, search
        self.encoding = Encoding(space)
        self.first = BranchedStart(self.encoding, Sobol(space, search))

    def ask(self, told: Sequence[Told], count: int) -> list[Point]:
        """Return the next points: first ones after each restart, then Thompson samples inside the trust region."""
        region = region_of(told, self.search, len(self.space.dimensions))
        since = told[region.begin :]
        begun = region.begin + self.search.initial - len(told)
        if begun > 0 or all(result.has_failed for result in since):
            return self.first.ask(told, min(count, begun) if begun > 0 else count)
        known = known_of(self.encoding, since)
        random = generator(self.search, len(told), 1)
        with _alone(int(random.integers(2**31))):
            model = _fitted(known)
            candidates = self._candidates(known, region.edge * self._widths(model), random)
            values = _drawn(model, candidates, count, known.errors)
        proposed = [candidates[place] for place in _lowest(values, 3 * count)]
        points = [result.point for result in told]
        return distinct(self.encoding, self.search, proposed, points, count)

    def _widths(self, model: Any) -> np.ndarray:
        """Relative widths of the box by feature: longer where the processes change less."""
        lengths = model.covar_module.base_kernel.lengthscale.detach().numpy()
        logs = np.log(lengths.reshape(-1, self.encoding.width)).mean(axis=0)
        is_number = np.zeros(self.encoding.width, bool)
        for dimension, place in zip(self.space.dimensions, self.encoding.places, strict=True):
            is_number[place] = dimension.kind != "categorical"
        middle = logs[is_number].mean() if is_number.any() else 0.0
        widths: np.ndarray = np.exp(logs - middle)
        return widths

    def _candidates(
        self, known: KnownPoints, widths: np.ndarray, random: np.random.Generator
    ) -> np.ndarray:
        """Return features `[candidate, feature]` within the box; each candidate is moved in at least one feature."""
        width = self.encoding.width
        shares = qmc.Sobol(width, rng=random).random(CANDIDATES)
        moved = random.random((CANDIDATES, width)) < min(1.0, MOST_MOVED / width)
        moved[np.arange(CANDIDATES), random.integers(width, size=CANDIDATES)] = True
        return self.encoding.around(known.centre, (shares - 0.5) * widths * moved, random)


class LedTurbo(Turbo):
    """The same search with rungs: the processes of `denoised` say which point goes on, and which one is reported."""

    def ranked(self, told: Sequence[Told]) -> list[int]:
        """Return the places of the tried points, those best by the processes of `denoised` first."""
        return ranked(told, modelled_of(self.encoding, told))


def region_of(told: Sequence[Told], search: Search, num_dimensions: int) -> TrustRegion:
    """Return the trust region after the batches so far, replayed from the first point on."""
    scores = modelled(told)
    patience = math.ceil(max(4, num_dimensions) / search.batch)
    begin, edge, successes, failures = 0, FIRST_EDGE, 0, 0
    at = search.initial
    while at < len(told):
        before, batch = scores[begin:at].min(), scores[at : at + search.batch].min()
        is_success = batch < before - PROGRESS * abs(before)
        successes, failures = (successes + 1, 0) if is_success else (0, failures + 1)
        at += search.batch
        if successes == SUCCESSES:
            edge, successes = min(2 * edge, MOST_EDGE), 0
        elif failures == patience:
            edge, failures = edge / 2, 0
        if edge < LEAST_EDGE:
            begin, edge, successes, failures = min(at, len(told)), FIRST_EDGE, 0, 0
            at = begin + search.initial
    return TrustRegion(begin, edge)


def _fitted(known: KnownPoints) -> Any:
    """Fit one process for each target, with hyperparameters by likelihood."""
    (_, width), (_, count) = known.features.shape, known.targets.shape
    batch = torch.Size([count]) if count > 1 else torch.Size()
    kernel = kernels.MaternKernel(
        nu=2.5,
        ard_num_dims=width,
        batch_shape=batch,
        lengthscale_constraint=constraints.Interval(*LENGTHS),
    )
    model = botorch_models.SingleTaskGP(
        torch.as_tensor(known.features),
        torch.as_tensor(known.targets),
        likelihood=likelihoods.GaussianLikelihood(
            noise_constraint=constraints.Interval(*NOISE), batch_shape=batch
        ),
        covar_module=kernels.ScaleKernel(
            kernel, batch_shape=batch, outputscale_constraint=constraints.Interval(0.05, 20)
        ),
    )
    botorch_fit.fit_gpytorch_mll(mlls.ExactMarginalLogLikelihood(model.likelihood, model))
    return model


def _drawn(model: Any, candidates: np.ndarray, count: int, errors: np.ndarray | None) -> np.ndarray:
    """Return merged scores `[draw, candidate]` of joint draws of all processes."""
    with torch.no_grad():
        draws = model.posterior(torch.as_tensor(candidates)).rsample(torch.Size([count]))
    return np.asarray(online.merged(draws.numpy().astype(np.float32), errors))


def _lowest(values: np.ndarray, count: int) -> list[int]:
    """Return the candidates that are lowest in one draw after the other, each once."""
    left, chosen = np.array(values), list[int]()
    for turn in range(min(count, values.shape[1])):
        place = int(left[turn % len(values)].argmin())
        chosen.append(place)
        left[:, place] = np.inf
    return chosen


@contextmanager
def _alone(seed: int) -> Iterator[None]:
    """Use one thread, random numbers of its own, and no warnings about targets that hardly vary."""
    threads = torch.get_num_threads()
    torch.set_num_threads(1)  # more threads are slower at this size
    try:
        with torch.random.fork_rng(devices=[]), warnings.catch_warnings():
            warnings.simplefilter("ignore")
            torch.manual_seed(seed)
            yield
    finally:
        torch.set_num_threads(threads)


# --- what is compared when searches are repeated -------------------------------------------------


FIRST_OF_SEARCHES = 1_000_000  # seed of the requests of the search with random state 0
NUM_SEEDS = 16  # of one search
MORE_SEEDS = 4  # times these, which the best points of a search with rungs get
RUNGS = (4, NUM_SEEDS)
# of an engine that says which point goes on: 16 times the seeds, and the usual batch
DEEP_RUNGS, DEEP_SEEDS = (4, 16, 64), 16
MORE_POINTS = 2  # times a batch that such a search tries at a time, on a quarter of the seeds
FIRST_FURTHER, FIRST_DEEP = 10_000_000, 20_000_000  # seeds of the further ones
MOST_SEARCHES = 100_000  # their seeds end before those that choose a reference begin, at 3,000,000


@dataclass(frozen=True)
class Plan:
    """The engines to compare, and the strategy to compare them on."""

    strategy: Strategy
    engines: tuple[str, ...]
    repetitions: range  # their random states
    folder: Path

    @property
    def calls(self) -> int:
        """Return the budget of a search."""
        return self.strategy.search.calls

    def record(self, engine: str, repetition: int) -> Path:
        """Return the file to which one search writes the points that it tries."""

        return self.folder / f"{searched(engine)}_{repetition:02d}.jsonl"

    def with_search(self, repetition: int, engine: str) -> Strategy:
        """Return the strategy as one search sees it: random state, engine, and seeds of its own."""

        engine = searched(engine)
        changes: dict[str, Any] = {"engine": engine, "random_state": repetition}
        seeds = seeds_of_search(repetition)
        if is_led(engine):
            changes |= {"rungs": DEEP_RUNGS, "calls": self.calls // DEEP_SEEDS}
            seeds += further_seeds(repetition, FIRST_DEEP, DEEP_SEEDS)
        elif engine in RACED:  # as many runs, on up to four times the seeds
            batch = self.strategy.search.batch * MORE_POINTS
            changes |= {"rungs": RUNGS, "calls": self.calls // MORE_SEEDS, "batch": batch}
            seeds += further_seeds(repetition)
        search = self.strategy.search.model_copy(update=changes)
        values: dict[str, Any] = {"search": search, "seeds": seeds}
        if engine in EXPECTED:
            values["penalties"] = "expected"
        return self.strategy.model_copy(update=values)


def seeds_of_search(repetition: int) -> tuple[int, ...]:
    """Return the seeds of the requests that a search sees; all engines' searches of one random state see the same."""
    first = FIRST_OF_SEARCHES + NUM_SEEDS * repetition
    return tuple(range(first, first + NUM_SEEDS))


def further_seeds(
    repetition: int, first: int = FIRST_FURTHER, times: int = MORE_SEEDS
) -> tuple[int, ...]:
    """Return further seeds for points that go on in a search with rungs; no search begins with any of these seeds."""
    count = NUM_SEEDS * (times - 1)
    return tuple(range(first + count * repetition, first + count * (repetition + 1)))


def branches_of(space: Space) -> list[tuple[str, Any]]:
    """Return the (parameter, value) pairs that open a branch of the space; every engine gets these pairs."""
    return [(space.names[column], value) for column, value in Encoding(space).branches]


def record_of(plan: Plan, space: Space, engine: str, repetition: int) -> SearchRecord:
    """Return the record of what one search tried; refuse one that was made with other settings."""
    strategy = plan.with_search(repetition, engine)
    search = strategy.search
    content = {
        "strategy": plan.strategy.name,
        "way to search": search.model_dump(exclude={"calls"}),
        "seeds": strategy.seeds,
        "branches": branches_of(space),
    }
    return SearchRecord(plan.record(engine, repetition), content)


def experiment_of(
    strategy: Strategy, seeds: Sequence[int], shared: Runner | None = None
) -> Experiment:
    """Return the experiment that runs points on seeds; `shared` is another experiment's runner, whose programs are
    used.
    """
    spec, names = workload_of(strategy), Valuation(strategy).names
    targets, batch = targets_of(strategy), strategy.search.batch
    return Experiment.on(spec, seeds, "reference", names, targets, batch, shared=shared)


# --- engines --------------------------------------------------------------------------------------

OWN = ("ensemble", "denoised", "turbo")  # know branches
PLAIN = ("random", "sobol")
SAVED = ("gp", "tpe")  # gone; their ends are in the tables that ship
# with rungs: most points on a few seeds, the best ones on more
RACED = {f"{name}-raced{more}": name for name in OWN for more in ("", "-expected")}
PLAIN_EXPECTED = {f"{name}-expected": name for name in OWN}
# with expected penalties
EXPECTED = {
    **PLAIN_EXPECTED,
    **{name: of for name, of in RACED.items() if name.endswith("-expected")},
}
SEARCHED = (*OWN, *PLAIN_EXPECTED, *RACED, *PLAIN)
DEEP = ("denoised", "turbo")  # with more rungs, since a model says which point goes on
RECOMMENDED = "-recommended"  # the same searches, judged by the points that a model recommends
NAMES = (*SEARCHED, *SAVED, *(name + RECOMMENDED for name in SEARCHED))


def check(name: str) -> None:
    """Refuse a name that is no engine's."""
    if name not in NAMES:
        raise ConfigError(
            f"--engines: {name!r} is unknown; use some of {', '.join(SEARCHED)}, each with "
            f"{RECOMMENDED} behind it or not{closest(name, NAMES)}"
        )


def searched(name: str) -> str:
    """Return the engine whose searches are judged under a name."""
    return name.removesuffix(RECOMMENDED)


def is_led(name: str) -> bool:
    """Return whether the engine says which point of a search with rungs goes on."""
    return RACED.get(searched(name)) in DEEP


def engine_of(space: Space, search: Search) -> Engine:
    """Return the engine that a search names, with the space's branches."""
    name = {**EXPECTED, **RACED}.get(search.engine, search.engine)
    if name in SAVED:
        raise ConfigError(
            f"--engines: {name!r} cannot search any more; its earlier ends are in benchmarks/results, for --ends"
        )
    is_deep = is_led(search.engine)
    search = search.model_copy(update={"engine": name})
    if name == "turbo":
        return (LedTurbo if is_deep else Turbo)(space, search)
    if name in PLAIN:
        return BranchedStart(Encoding(space), make(space, search))
    return make(space, search)
