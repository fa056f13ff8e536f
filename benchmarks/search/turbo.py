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
from importlib import import_module
from typing import Any, NamedTuple

import numpy as np
from scipy.stats import qmc

from blis_jax import lazy
from blis_jax.errors import ConfigError
from surrogate.fitting import online
from sweeps.search.engines.denoised import modelled_of, ranked
from sweeps.search.engines.encoding import Encoding, Told, generator, modelled
from sweeps.search.engines.known import BranchedStart, KnownPoints, distinct, known_of
from sweeps.search.engines.points import Sobol
from sweeps.strategies.parts import Search
from sweeps.strategies.space import Point, Space

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
        """For a space; refuses to be made where BoTorch is not installed."""
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
        """Features `[candidate, feature]` within the box, each moved in some of them at least."""
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
    """One process for each target, their hyperparameters by likelihood."""
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
    """Merged scores `[draw, candidate]` of joint draws of all processes."""
    with torch.no_grad():
        draws = model.posterior(torch.as_tensor(candidates)).rsample(torch.Size([count]))
    return np.asarray(online.merged(draws.numpy().astype(np.float32), errors))


def _lowest(values: np.ndarray, count: int) -> list[int]:
    """Candidates that are lowest in one draw after the other, each once."""
    left, chosen = np.array(values), list[int]()
    for turn in range(min(count, values.shape[1])):
        place = int(left[turn % len(values)].argmin())
        chosen.append(place)
        left[:, place] = np.inf
    return chosen


@contextmanager
def _alone(seed: int) -> Iterator[None]:
    """One thread, random numbers of its own, no warnings about targets that hardly vary."""
    threads = torch.get_num_threads()
    torch.set_num_threads(1)  # more threads are slower at this size
    try:
        with torch.random.fork_rng(devices=[]), warnings.catch_warnings():
            warnings.simplefilter("ignore")
            torch.manual_seed(seed)
            yield
    finally:
        torch.set_num_threads(threads)
