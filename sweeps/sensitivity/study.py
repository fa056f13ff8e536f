"""A sensitivity study: run all designs through a model, and compute all indices and effects from the results."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field

import numpy as np

from blis_jax.reports.study import SEEDS, RunWords
from sweeps.search.objectives import Valuation
from sweeps.sensitivity.effects import (
    BEST,
    BestRange,
    Effect,
    PairEffect,
    Region,
    RegionIndices,
    best_ranges,
    best_region,
    effect_of,
    pair_effect_of,
    points_along,
    region_indices,
    whole,
)
from sweeps.sensitivity.indices import (
    MATTERS,
    NOISE,
    Agreement,
    MorrisMeasures,
    Resampling,
    SobolIndices,
    agreement_of,
    derivative_measures,
    morris_measures,
    sobol_indices,
    verdict,
)
from sweeps.sensitivity.model import Response, Sizes, differences, morris, saltelli, scores
from sweeps.strategies.space import Dimension


@dataclass(frozen=True)
class ModelIndices:
    """The indices and effects of one model; metrics that do not vary have no indices."""

    shares: np.ndarray  # [point, parameter], Saltelli's design
    values: np.ndarray  # [point, seed, metric] at it
    sobol: Mapping[str, SobolIndices]
    morris: Mapping[str, MorrisMeasures]
    gradients: Mapping[str, tuple[np.ndarray, np.ndarray]]
    effects: Sequence[Effect] = ()  # by parameter
    pairs: Sequence[PairEffect] = ()
    regions: list[RegionIndices] = field(default_factory=list)  # the whole space first


@dataclass
class SensitivityStudy:
    """A strategy's parameters, the metrics and regions to study, and the sizes of the designs."""

    dimensions: tuple[Dimension, ...]
    metrics: tuple[str, ...]
    sizes: Sizes
    resampling: Resampling
    findings: dict[str, ModelIndices] = field(default_factory=dict)  # by model
    ranges: list[BestRange] = field(default_factory=list)  # of the best scores
    scores: np.ndarray | None = None  # [point] of Saltelli's design
    runs: RunWords = SEEDS  # what the runs of a point are called
    regions: tuple[Region, ...] = ()  # where indices are asked for besides; `BEST` has no box yet

    @property
    def names(self) -> tuple[str, ...]:
        """Return the names of the parameters."""
        return tuple(dimension.name for dimension in self.dimensions)


Stage = Callable[[str], None]


def first_designs(study: SensitivityStudy) -> Iterator[np.ndarray]:
    """Yield the designs that depend on no run, `[point, parameter]`, in the order in which `investigate` runs them."""
    names, sizes = study.names, study.sizes
    yield saltelli(names, sizes)
    yield morris(names, sizes)
    yield differences(names, sizes)
    for place in range(len(names)):
        yield points_along(
            study.dimensions, place, sizes.levels, sizes.bases, study.resampling.state
        )


def investigate(study: SensitivityStudy, model: str, response: Response, on_stage: Stage) -> None:
    """Add the findings of one model; `on_stage` receives the name of each stage as it begins."""
    names, sizes, response = study.names, study.sizes, _Asked(response, study.metrics)
    on_stage(f"{model}: Sobol indices")
    shares = saltelli(names, sizes)
    values = response.evaluate(shares)
    indices = {
        metric: indices
        for place, metric in enumerate(study.metrics)
        if (indices := sobol_indices(values[..., place], len(names), study.resampling)) is not None
    }
    on_stage(f"{model}: Morris screening")
    routes = morris(names, sizes)
    effects = response.evaluate(routes)
    on_stage(f"{model}: derivatives")
    steps = differences(names, sizes)
    slopes = response.evaluate(steps)
    screened, gradients = {}, {}
    for place, metric in enumerate(study.metrics):
        elementary = morris_measures(routes, effects[..., place], study.resampling)
        if elementary is not None:
            screened[metric] = elementary
        measures = derivative_measures(steps, slopes[..., place], study.resampling)
        if measures is not None:
            gradients[metric] = (_without_choices(study, measures[0]), measures[1])
    on_stage(f"{model}: effects of one parameter")
    dimensions, resampling = study.dimensions, study.resampling
    along = [
        effect_of(response, dimensions, place, sizes.levels, sizes.bases, resampling)
        for place in range(len(names))
    ]
    on_stage(f"{model}: effects of two parameters")
    of_pairs = sizes.pair_levels, sizes.pair_bases, resampling.state
    pairs = [
        pair_effect_of(response, dimensions, places, *of_pairs) for places in _pairs(study, indices)
    ]
    everywhere = region_indices(
        whole(len(names)), study.metrics, values, 2 * len(names) + 2, study.resampling
    )
    study.findings[model] = ModelIndices(
        shares, values, indices, screened, gradients, along, pairs, [everywhere]
    )


def look_closer(study: SensitivityStudy, model: str, response: Response, on_stage: Stage) -> None:
    """Add the indices in the regions asked for; call `rate` first, which the region `best` depends on."""
    findings, response = study.findings[model], _Asked(response, study.metrics)
    design = saltelli(study.names, study.sizes, has_pairs=False)
    for region in study.regions:
        if region.name == BEST:
            if study.scores is None:
                continue
            region = best_region(study.dimensions, findings.shares, study.scores)
        on_stage(f"{model}: Sobol indices in {region.name}")
        values = response.evaluate(region.inside(design))
        findings.regions.append(
            region_indices(region, study.metrics, values, len(study.names) + 2, study.resampling)
        )


@dataclass(frozen=True)
class _Asked:
    """A model's response restricted to some of its metrics."""

    response: Response
    names: tuple[str, ...]

    def evaluate(self, shares: np.ndarray) -> np.ndarray:
        """Return values `[point, seed, metric]` at points `[point, parameter]`."""
        places = [self.response.names.index(name) for name in self.names]
        return self.response.evaluate(shares)[..., places]


def _without_choices(study: SensitivityStudy, measures: np.ndarray) -> np.ndarray:
    """Return derivative measures with NaN for choices, which have no derivative."""
    is_choice = [dimension.kind == "categorical" for dimension in study.dimensions]
    return np.where(np.array(is_choice)[:, None], np.nan, measures)


def _pairs(study: SensitivityStudy, indices: Mapping[str, SobolIndices]) -> list[tuple[int, int]]:
    """Return the pairs with the largest second-order index of any metric; those of an earlier model if there is one."""
    first = next(iter(study.findings.values()), None)
    if first is not None:
        return [pair.places for pair in first.pairs]
    count = len(study.names)
    every = [(first, second) for first in range(count) for second in range(first + 1, count)]
    if not indices:
        return []
    largest = {
        pair: max(float(of_metric.second[pair][0]) for of_metric in indices.values())
        for pair in every
    }
    return sorted(every, key=lambda pair: -largest[pair])[: study.sizes.pairs]


def rate(study: SensitivityStudy, model: str, response: Response, valuation: Valuation) -> None:
    """Add the strategy's scores, and the ranges of the best points; nothing if the model lacks a metric."""
    if not set(valuation.names) <= set(response.names):
        return
    shares = study.findings[model].shares
    rated = scores(response.names, response.evaluate(shares), valuation)
    if np.isfinite(rated).any():
        study.scores = rated
        study.ranges[:] = best_ranges(
            study.dimensions, shares, rated, study.sizes.base, study.resampling
        )


def verdicts(study: SensitivityStudy, model: str, metric: str) -> dict[str, str]:
    """Return the verdict by parameter: whether it matters for a metric."""
    indices = study.findings[model].sobol[metric]
    return {
        name: verdict(indices.total[place], indices.dummy) for place, name in enumerate(study.names)
    }


def influential(study: SensitivityStudy, model: str) -> list[str]:
    """Return the parameters that matter for some metric, the one with the largest total index first.

    A parameter that matters only in a region, or only for a metric's logarithm, is included.
    """
    largest = dict.fromkeys(study.names, -1.0)
    for region in study.findings[model].regions:
        for indices in (*region.plain.values(), *region.log.values()):
            for name, total in zip(study.names, indices.total, strict=True):
                if verdict(total, indices.dummy) == MATTERS:
                    largest[name] = max(largest[name], float(total[0]))
    return sorted((name for name in largest if largest[name] >= 0), key=lambda n: -largest[n])


def unsettled(study: SensitivityStudy, model: str, metric: str) -> list[str]:
    """Return the parameters whose Morris effects on a metric exceed noise while their total indices may be noise.

    With few rows the index of a strong parameter stays undecided; Morris's steps detect the parameter earlier.
    """
    effects = study.findings[model].morris.get(metric)
    if effects is None:
        return []
    return [
        name
        for place, name in enumerate(study.names)
        if verdicts(study, model, metric)[name] == NOISE
        and effects.mu_star[place, 1] > effects.dummy
    ]


def agreements(
    study: SensitivityStudy, first_model: str, second_model: str
) -> dict[tuple[str, str], Agreement]:
    """Return by metric and parameter the agreement of two models' total indices."""
    first, second = study.findings[first_model].sobol, study.findings[second_model].sobol
    return {
        (metric, name): agreement_of(
            (first[metric].total[place], second[metric].total[place]),
            (first[metric].dummy, second[metric].dummy),
        )
        for metric in study.metrics
        if metric in first and metric in second
        for place, name in enumerate(study.names)
    }
