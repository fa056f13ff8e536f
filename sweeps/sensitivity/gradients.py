"""Smoothed gradients as options of `sweeps.gradient` ask for: their runs, a table, and the answer."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

from blis_jax.commands.options import (
    outputs,
)
from blis_jax.files.atomic_write import write_json
from blis_jax.metrics.scalars import lookup
from blis_jax.reports.findings import Answer, Findings, Quantity, Row, Table
from sweeps.runs.experiment import Experiment
from sweeps.runs.requests import requests_of, workload_of_arms
from sweeps.sensitivity.smoothed import Perturbed, smoothed_gradients
from sweeps.strategies.arms import arm_of, as_served

if TYPE_CHECKING:
    from pathlib import Path

    from sweeps.gradient import GradientOptions
    from sweeps.sensitivity.smoothed import SmoothedGradient


def take_gradients(
    options: GradientOptions,
    arm_text: str,
    widths: Sequence[tuple[str, float, bool]],
    output: Path | None,
) -> int:
    """Estimate the gradients that the options ask for, and print and write them; return the exit code."""
    (arm,) = as_served([arm_of(arm_text)], is_real=False)
    parameters = [Perturbed(*width) for width in widths]
    for one in parameters:
        one.centre(arm.config)
    metrics = options.metrics.split(",")
    for metric in metrics:
        lookup(metric)
    requests = requests_of(
        options,
        options.command,
        lambda: workload_of_arms(options, [arm]),
        [arm.config],
        options.usual_seeds,
    ).at_least(2, "to have a spread")
    experiment = Experiment(requests, tuple(metrics), configs_per_batch=2 * options.pairs)
    gradients = smoothed_gradients(
        experiment,
        arm.config,
        parameters,
        options.pairs,
        options.random_state,
        options.law,
    )
    files: outputs.Files = [
        (output, lambda path: write_json(path, document(arm.name, requests.seeds, gradients)))
    ]
    findings = Findings(answer(arm.name, requests.seeds, gradients), [table(gradients)])
    outputs.show(findings, lambda: outputs.write_files(files), options)
    return 0


def _unit(parameter: Perturbed) -> str:
    return f"log {parameter.target}" if parameter.is_log else parameter.target


def table(found: Mapping[str, SmoothedGradient]) -> Table:
    """Return a row for each metric and setting: the slope in the metric's unit per unit of the setting."""
    columns = (
        "metric", "per unit of", "unit", "gradient [95 %]", "s.e. by seeds", "s.e. by draws", "σ", "runs changed",
    )  # fmt: skip
    rows = [
        Row(
            (
                name,
                _unit(parameter),
                lookup(name)[0].unit,
                Quantity(float(slope.gradient[at]), float(low[at]), float(high[at])),
                Quantity(float(slope.variance_of_seeds[at] ** 0.5)),
                Quantity(float(slope.variance_of_draws[at] ** 0.5)),
                Quantity(parameter.width),
                Quantity(100 * slope.share_changed, unit=" %"),
            )
        )
        for name, slope in found.items()
        for low, high in [slope.interval()]
        for at, parameter in enumerate(slope.parameters)
    ]
    return Table(columns, tuple(rows), num_keys=3, name="gradients", brief_columns=(0, 1, 2, 3, 7))


def answer(arm: str, seeds: Sequence[int], found: Mapping[str, SmoothedGradient]) -> Answer:
    """Return which slopes are told from 0, and by how many runs."""
    slopes = [
        (f"{name} per {_unit(one)}", slope.gradient[at], slope.standard_error[at])
        for name, slope in found.items()
        for at, one in enumerate(slope.parameters)
    ]
    told = [f"{name} {value:.4g}" for name, value, error in slopes if abs(value) > 2 * error]
    pairs = max((slope.num_pairs for slope in found.values()), default=0)
    return Answer.of(
        f"How do metrics of {arm} change with its settings?",
        "; ".join(told) if told else "no slope is told from 0.",
        f"slopes above two standard errors; {len(told)} of {len(slopes)}, each judged by itself.",
        f"{2 * pairs * len(seeds)} runs: {pairs} pairs of draws on {len(seeds)} seeds.",
        "more --pairs or --seeds narrow the errors."
        if len(told) < len(slopes)
        else "python -m sweeps.optimize searches for better settings.",
    )


def document(
    arm: str, seeds: Sequence[int], found: Mapping[str, SmoothedGradient]
) -> dict[str, Any]:
    """Return everything, for other programs."""
    return {
        "arm": arm,
        "seeds": list(seeds),
        "gradients": [
            {
                "metric": name,
                "setting": parameter.target,
                "is_log": parameter.is_log,
                "width": parameter.width,
                "gradient": float(slope.gradient[place]),
                "standard_error": float(slope.standard_error[place]),
                "variance_of_seeds": float(slope.variance_of_seeds[place]),
                "variance_of_draws": float(slope.variance_of_draws[place]),
                "smoothed_value": slope.value,
                "num_pairs": slope.num_pairs,
                "num_seeds": slope.num_seeds,
                "share_changed": slope.share_changed,
            }
            for name, slope in found.items()
            for place, parameter in enumerate(slope.parameters)
        ],
    }
