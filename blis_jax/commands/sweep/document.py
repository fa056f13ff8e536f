"""A sweep's tables as a JSON document; what does not exist is null."""

from __future__ import annotations

import json
import math
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

from blis_jax.commands.sweep.data import outcome_counts
from blis_jax.statistics.compared import Comparison, family_sentence
from blis_jax.statistics.intervals import CONFIDENCE, Estimate, Inference
from blis_jax.statistics.paired import Difference

if TYPE_CHECKING:
    import xarray as xr


def to_document(
    dataset: xr.Dataset,
    comparisons: Sequence[Comparison],
    inference: Inference,
    about: Mapping[str, Any],
) -> dict[str, Any]:
    """The tables as a document; what does not exist is null."""
    checks = {"open_ties": int(dataset["num_open_ties"].sum())}
    violations = json.loads(dataset.attrs["invariant_violation_counts"])
    document = {
        **about,
        "confidence": CONFIDENCE,
        "method": inference.method,
        "verdicts": family_sentence(comparisons, inference.is_anytime),
        "slo_targets": json.loads(dataset.attrs["slo_targets"]),
        "measure": json.loads(dataset.attrs["measure"]),
        "outcomes": {
            str(name): outcome_counts(dataset["outcome"].sel(strategy=name).values)
            for name in dataset["strategy"].values
        },
        **checks,
        "invariant_violations": violations,
        "points": [_point_json(comparison) for comparison in comparisons],
    }
    return _without_nan(document)


def _point_json(comparison: Comparison) -> dict[str, Any]:
    classes = {}
    for slo_class, figures in comparison.figures.items():
        classes[slo_class] = {
            figure.metric: {
                "unit": figure.unit,
                **_estimate_json(figure.value),
                "difference": figure.difference and _difference_json(figure.difference),
            }
            for figure in figures
        }
    return {
        "strategy": comparison.strategy,
        "place": dict(comparison.place),
        "reference": comparison.reference,
        "classes": classes,
    }


def _estimate_json(one: Estimate) -> dict[str, Any]:
    return {"mean": one.mean, "low": one.low, "high": one.high, "num_seeds": one.num_seeds}


def _difference_json(one: Difference) -> dict[str, Any]:
    return {
        "absolute": _estimate_json(one.absolute),
        "percent": _estimate_json(one.percent),
        "p_adjusted": one.p_adjusted,
        "verdict": one.verdict,
    }


def _without_nan(value: object) -> Any:
    if isinstance(value, dict):
        return {name: _without_nan(entry) for name, entry in value.items()}
    if isinstance(value, list | tuple):
        return [_without_nan(entry) for entry in value]
    return None if isinstance(value, float) and not math.isfinite(value) else value
