"""Sentences on a metric's indices: values of parameters, intervals, interactions, and halves of the seeds."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

import numpy as np

from blis_jax.metrics.scalars import lookup
from blis_jax.reports.words import unit_text
from sweeps.robustness.rules import shown
from sweeps.sensitivity.indices import MATTERS, do_meet
from sweeps.sensitivity.study import verdicts

if TYPE_CHECKING:
    from sweeps.sensitivity.study import SensitivityStudy


def effect_words(study: SensitivityStudy, model: str, metric: str, name: str) -> str:
    """Return a sentence with one parameter's indices, and the levels at which the metric is low and high."""
    place = study.names.index(name)
    findings = study.findings[model]
    indices, effect = findings.sobol[metric], findings.effects[place]
    along, unit = effect.mean[study.metrics.index(metric)], unit_text(lookup(metric)[0].unit)
    dimension = study.dimensions[place]
    least, most = int(np.nanargmin(along)), int(np.nanargmax(along))
    ends = [
        f"{shown(rounded(float(along[level])))}{unit} at "
        f"{value_words(dimension.at(float(effect.shares[level])))}"
        for level in (least, most)
    ]
    return (
        f"total {interval_words(indices.total[place])}, alone "
        f"{interval_words(indices.first[place])}; on average {ends[0]}, {ends[1]}."
    )


def interaction_words(study: SensitivityStudy, model: str, metric: str) -> str:
    """Return a sentence on the share that single parameters explain, and on interacting pairs, the strongest first."""
    indices = study.findings[model].sobol[metric]
    alone = float(np.clip(indices.first[:, 0].sum(), 0, 1))
    words = f"single parameters explain {100 * alone:.0f} % of the variance"
    pairs = [
        (float(indices.second[first, second, 0]), first, second)
        for first in range(len(study.names))
        for second in range(first + 1, len(study.names))
        if indices.act_together(first, second)
    ]
    if not pairs:
        rows = indices.num_rows
        return f"{words}; {rows} rows show no pair that acts together beyond noise."
    shares = [
        f"{study.names[first]} with {study.names[second]} {interval_words(indices.second[first, second])}"
        for _, first, second in sorted(pairs, reverse=True)[:3]
    ]
    return f"{words}; together act {', '.join(shares)}."


def half_words(study: SensitivityStudy, model: str, metric: str) -> str:
    """Return a sentence on how far the indices depend on the seeds drawn."""
    indices = study.findings[model].sobol[metric]
    halves = indices.halves
    change = np.abs(halves[0, :, 0] - halves[1, :, 0])
    is_strong = verdicts(study, model, metric)
    apart = [
        name
        for place, name in enumerate(study.names)
        if is_strong[name] == MATTERS and not do_meet(halves[0, place], halves[1, place])
    ]
    dummy = f"a dummy gets {interval_words(indices.dummy)}"
    if not np.isfinite(change).all():
        return f"{dummy}; on half of the seeds it does not vary."
    largest = study.names[int(change.argmax())]
    words = f"the two halves of the seeds differ by at most {change.max():.3f} ({largest})"
    return f"{dummy}; {words}" + (
        f", beyond their intervals: {', '.join(apart)}." if apart else "."
    )


def value_words(value: object) -> str:
    """Return a parameter's value as text; numbers below 1,000 that are not whole have four significant digits."""
    if isinstance(value, bool) or not isinstance(value, int | float):
        return str(value)
    return shown(value) if isinstance(value, int) or abs(value) >= 1000 else f"{value:.4g}"


def rounded(value: float) -> float:
    """Return a value rounded to four significant digits."""
    return float(f"{value:.4g}")


def interval_words(figures: Sequence[float] | np.ndarray) -> str:
    """Return an index with its interval, as text."""
    return f"{_index(figures[0])} {ends_words(figures)}"


def ends_words(figures: Sequence[float] | np.ndarray) -> str:
    """Return the interval of an index, as text."""
    return f"[{_index(figures[1])}, {_index(figures[2])}]"


def _index(value: float) -> str:
    return f"{0.0 if abs(value) < 5e-4 else value:.3f}".replace("-", "−")
