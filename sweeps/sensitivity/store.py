"""The dataset of a sensitivity study."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np
import xarray as xr

from blis_jax.metrics.scalars import lookup
from blis_jax.results.schema import Provenance, new_dataset
from sweeps.sensitivity.effects import BEST_SHARE, RANGE_PERCENT
from sweeps.sensitivity.indices import FIGURES
from sweeps.sensitivity.model import MORRIS_LEVELS, STEP
from sweeps.sensitivity.study import SensitivityStudy

KIND = "sensitivity study"
SCALES = ("metric", "logarithm")
_LONG = {
    "first_order": "share of the variance that the parameter explains alone",
    "total_order": "share of the variance that the parameter has a part in",
    "second_order": "share of the variance that two parameters explain together only",
    "dummy_total_order": "total index of a dummy, which only draws new seeds",
    "total_order_of_half": "total index on every second seed, from the first and from the second",
    "total_order_of_region": "total index inside a region",
    "dummy_total_order_of_region": "total index inside a region of a new draw of the seeds",
    "region_low": "lower end of the region, as a share of the range",
    "region_high": "upper end of the region, as a share of the range",
    "morris_mu": "mean elementary effect over a whole range",
    "morris_mu_star": "mean size of elementary effects over a whole range",
    "morris_sigma": "standard deviation of elementary effects",
    "morris_dummy": "mean size of elementary effects that a new draw of the seeds gives",
    "dgsm": "mean squared derivative ÷ (π² variance), above the total index",
    "dgsm_dummy": "derivative-based measure that a new draw of the seeds gives",
    "effect": "mean along one parameter, the others drawn",
    "effect_of_points": "half interval of the effect over the points averaged",
    "effect_of_seeds": "half interval of the effect over the seeds",
    "effect_share": "share of the range at which the effect is taken",
    "pair_effect": "mean over a grid of two parameters, the others drawn",
    "share": "points of the Saltelli design, in shares of the ranges",
    "response": "values at the Saltelli design",
    "score": "score of the strategy at the Saltelli design",
    "best_low": "lower end of the best points' range",
    "best_high": "upper end of the best points' range",
}


def to_dataset(
    study: SensitivityStudy, provenance: Provenance, about: Mapping[str, str]
) -> xr.Dataset:
    """Return all findings with labels and units; NaN where a metric does not vary or was not asked for."""
    dataset = new_dataset(KIND, provenance, {}, {**about, **_attributes(study)})
    units = [lookup(name)[0].unit for name in study.metrics]
    dataset = dataset.assign_coords(
        metric=list(study.metrics),
        parameter=list(study.names),
        other_parameter=list(study.names),
        figure=list(FIGURES),
        model=list(study.findings),
        half=["first", "second"],
        unit=("metric", units),
    )
    for name in study.findings:
        _add_indices(dataset, study, name)
        _add_regions(dataset, study, name)
        _add_effects(dataset, study, name)
    first = next(iter(study.findings.values()))
    _put(dataset, "share", ("point", "parameter"), first.shares)
    for name, findings in study.findings.items():
        dims = ("point", f"{name}_seed", "metric")
        _put(dataset, f"response_{name}", dims, findings.values)
    _add_best(dataset, study)
    return dataset


def _attributes(study: SensitivityStudy) -> dict[str, Any]:
    return {
        "sizes": str(study.sizes),
        "intervals": f"percentile bootstrap over rows of the designs, "
        f"{100 * study.resampling.confidence:g} %, {study.resampling.resamples} resamples; "
        "second order: normal",
        "morris_levels": MORRIS_LEVELS,
        "derivative_step": STEP,
        "best_share": BEST_SHARE,
        "ranges": "; ".join(map(str, study.dimensions)),
    }


def _put(
    dataset: xr.Dataset, name: str, dims: tuple[str, ...], values: np.ndarray, unit: str = ""
) -> None:
    base = name.removesuffix("_simulator").removesuffix("_surrogate")
    attributes = {"long_name": _LONG[base]} | ({"units": unit} if unit else {})
    dataset[name] = (dims, values, attributes)


def _add_indices(dataset: xr.Dataset, study: SensitivityStudy, model: str) -> None:
    """Add arrays by model, metric and parameter, filled one model at a time."""
    count, findings = len(study.names), study.findings[model]
    single, two = ("parameter", "figure"), ("parameter", "other_parameter", "figure")

    def each(by_metric: Mapping[str, Any], name: str) -> dict[str, Any]:
        """Return one of the measures by metric."""
        return {metric: getattr(measures, name) for metric, measures in by_metric.items()}

    sobol, morris, slopes = findings.sobol, findings.morris, findings.gradients
    layout: dict[str, tuple[tuple[str, ...], tuple[int, ...], str, Mapping[str, Any]]] = {
        "first_order": (single, (count, 3), "1", each(sobol, "first")),
        "total_order": (single, (count, 3), "1", each(sobol, "total")),
        "second_order": (two, (count, count, 3), "1", each(sobol, "second")),
        "dummy_total_order": (("figure",), (3,), "1", each(sobol, "dummy")),
        "total_order_of_half": (("half", *single), (2, count, 3), "1", each(sobol, "halves")),
        "morris_mu": (single, (count, 3), "of the metric", each(morris, "mu")),
        "morris_mu_star": (single, (count, 3), "of the metric", each(morris, "mu_star")),
        "morris_sigma": (single, (count, 3), "of the metric", each(morris, "sigma")),
        "morris_dummy": ((), (), "of the metric", each(morris, "dummy")),
        "dgsm": (
            single,
            (count, 3),
            "1",
            {metric: slopes_of[0] for metric, slopes_of in slopes.items()},
        ),
        "dgsm_dummy": (
            ("figure",),
            (3,),
            "1",
            {metric: slopes_of[1] for metric, slopes_of in slopes.items()},
        ),
    }
    for name, (dims, shape, unit, by_metric) in layout.items():
        if name not in dataset:
            empty = np.full((len(study.findings), len(study.metrics), *shape), np.nan)
            _put(dataset, name, ("model", "metric", *dims), empty, unit)
        for metric, values in by_metric.items():
            place = list(study.findings).index(model), study.metrics.index(metric)
            dataset[name].values[place] = values


def _add_regions(dataset: xr.Dataset, study: SensitivityStudy, model: str) -> None:
    """Add total indices by region and scale; a region that needs scores is left out for a surrogate that lacks them."""
    regions = study.findings[model].regions
    shape = len(study.metrics), len(regions), len(SCALES)
    totals = np.full((*shape, len(study.names), len(FIGURES)), np.nan)
    dummies = np.full((*shape, len(FIGURES)), np.nan)
    for column, box in enumerate(regions):
        for scale, indices in enumerate((box.plain, box.log)):
            for metric, index in indices.items():
                place = study.metrics.index(metric), column, scale
                totals[place], dummies[place] = index.total, index.dummy
    dims = "metric", f"{model}_region", "scale"
    _put(dataset, f"total_order_of_region_{model}", (*dims, "parameter", "figure"), totals, "1")
    _put(dataset, f"dummy_total_order_of_region_{model}", (*dims, "figure"), dummies, "1")
    dataset.coords["scale"] = list(SCALES)
    dataset.coords[dims[1]] = [region.region.name for region in regions]
    for end in ("low", "high"):
        shares = [getattr(region.region, end) for region in regions]
        _put(dataset, f"region_{end}_{model}", (dims[1], "parameter"), np.array(shares), "1")


def _add_effects(dataset: xr.Dataset, study: SensitivityStudy, model: str) -> None:
    findings = study.findings[model]
    num_levels = max(len(effect.shares) for effect in findings.effects)
    shape = len(study.names), len(study.metrics), num_levels
    means, of_points, of_seeds = (np.full(shape, np.nan) for _ in range(3))
    shares = np.full((len(study.names), num_levels), np.nan)
    for place, effect in enumerate(findings.effects):
        size = len(effect.shares)
        shares[place, :size] = effect.shares
        means[place, :, :size] = effect.mean
        of_points[place, :, :size] = effect.of_points
        of_seeds[place, :, :size] = effect.of_seeds
    dims = "parameter", "metric", "level"
    _put(dataset, "effect_share", ("parameter", "level"), shares, "1")
    arrays = {"effect": means, "effect_of_points": of_points, "effect_of_seeds": of_seeds}
    for name, values in arrays.items():
        _put(dataset, f"{name}_{model}", dims, values, "of the metric")
    for pair in findings.pairs:
        labels = [study.names[place] for place in pair.places]
        name = f"pair_effect_{'_x_'.join(labels)}_{model}"
        levels = tuple(
            f"level_of_{label}_beside_{other}"
            for label, other in zip(labels, labels[::-1], strict=True)
        )
        dataset[name] = (("metric", *levels), pair.mean, {"long_name": _LONG["pair_effect"]})
        about = {"units": "1", "long_name": "share of the range"}
        for level, values in zip(levels, pair.shares, strict=True):
            dataset.coords[level] = (level, values, about)


def _add_best(dataset: xr.Dataset, study: SensitivityStudy) -> None:
    """Add scores and the ranges of the best points; choices have no ranges."""
    if study.scores is None:
        return
    _put(dataset, "score", ("point",), study.scores)
    for name in ("low", "high"):
        rows = [getattr(best_range, name) or (np.nan,) * 3 for best_range in study.ranges]
        dims = "parameter", "figure"
        _put(dataset, f"best_{name}", dims, np.array(rows, float), "of the parameter")
    dataset["best_place"] = ("parameter", [best_range.where for best_range in study.ranges])
    percent = " to ".join(f"{value:g}" for value in RANGE_PERCENT)
    dataset["best_place"].attrs["long_name"] = f"place of the range (percentiles {percent})"
