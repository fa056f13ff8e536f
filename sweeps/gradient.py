"""`python -m sweeps.gradient ARM`: smoothed gradients of metrics by settings that act through decisions."""

from __future__ import annotations

import sys
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

from blis_jax.backend import prepare_backend
from blis_jax.commands import cli
from blis_jax.commands.options import (
    AllSwitch,
    CommandOptions,
    OverwriteSwitch,
    option,
    outputs,
    word,
)
from blis_jax.commands.options.seed_options import SeedOptions, seeds_option
from blis_jax.errors import ConfigError
from blis_jax.files.atomic_write import write_json
from blis_jax.metrics.scalars import lookup
from blis_jax.reports.findings import Answer, Findings, Quantity, Row, Table
from sweeps.runs.options import ArmRequests

if TYPE_CHECKING:
    from sweeps.sensitivity.smoothed import Perturbed, SmoothedGradient

NAME = "sweeps.gradient"
NUM_SEEDS, NUM_PAIRS = 32, 24
_DESCRIPTION = """\
Smoothed gradients: how the mean of each metric over perturbed settings changes with them. Thresholds, weights,
bases and budgets act through decisions: as one of them grows, a metric jumps. Its smoothed mean does not jump.
ARM is a strategy of the library, a file, or either with a point and settings (STRATEGY@POINT:NAME=VALUE).
"""
_EXAMPLES = """\
examples:
  the token budget and a chunk threshold of iteration 8's best point:
    %(prog)s iter08_token_budget@published --perturb max_num_scheduled_tokens=64,slo_prefill_critical=24

  by the logarithm of a scorer's weight, per class:
    %(prog)s iter00_baseline --perturb routing_scorers.queue-depth=0.3:log --metrics "ttft_p99_ms[critical]"
"""


class _Gradient(CommandOptions, title="gradient"):
    """Options for the settings to perturb, and for the size and law of the steps."""

    perturb: str | None = option(
        str, None, "LIST", "NAME=WIDTH[:log],…: settings and the σ of each"
    )
    metrics: str = option(
        str, "ttft_mean_ms,ttft_p99_ms,e2e_mean_ms", "LIST", "metrics, [class] behind"
    )
    pairs: int = option(cli.whole, NUM_PAIRS, "N", "antithetic pairs of perturbed points")
    law: str = option(
        cli.one_of("normal", "uniform"), "normal", "NAME", "distribution of the perturbations"
    )
    random_state: int = option(cli.whole, 0, "N", "seed of the perturbations")


class GradientOptions(
    _Gradient, ArmRequests, SeedOptions, OverwriteSwitch, AllSwitch,
    title="output", command=NAME, description=_DESCRIPTION, examples=_EXAMPLES,
):  # fmt: skip
    """Options of the command."""

    arm: str | None = word("ARM", "the configuration")
    seeds: str | None = seeds_option(f"default: {NUM_SEEDS}")
    output: str | None = option(str, None, "PATH", "JSON to write")


def main(arguments: Sequence[str] | None = None) -> int:
    """Run the command; return its exit code."""
    return cli.run_command(NAME, _gradient, arguments)


def _gradient(arguments: Sequence[str] | None) -> int:
    options = GradientOptions.read(arguments)
    if options.arm is None:
        raise ConfigError("no arm is given; give a strategy such as iter08_token_budget@published")
    widths = _widths(options.perturb)
    output = None
    if options.output is not None:
        output = outputs.output_path(options.output, "--output", (), options.overwrite)
    prepare_backend()

    from sweeps.runs.experiment import Experiment
    from sweeps.runs.requests import requests_of, workload_of_arms
    from sweeps.sensitivity.smoothed import Perturbed, smoothed_gradients
    from sweeps.strategies.arms import arm_of, as_served

    (arm,) = as_served([arm_of(options.arm)], is_real=False)
    parameters = [Perturbed(*width) for width in widths]
    for one in parameters:
        one.centre(arm.config)
    metrics = options.metrics.split(",")
    for metric in metrics:
        lookup(metric)
    requests = requests_of(
        options, NAME, lambda: workload_of_arms(options, [arm]), [arm.config], NUM_SEEDS
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


def _widths(text: str | None) -> list[tuple[str, float, bool]]:
    """`NAME=WIDTH[:log],…` as names, widths and whether the logarithm is perturbed."""
    if not text:
        raise ConfigError(
            "--perturb: nothing to perturb; give for instance max_num_scheduled_tokens=64"
        )
    widths = []
    for part in text.split(","):
        name, equals, rest = part.partition("=")
        number, colon, scale = rest.partition(":")
        try:
            width = float(number)
        except ValueError:
            equals = ""
        if not equals or (colon and scale != "log"):
            raise ConfigError(f"--perturb: {part!r} is not NAME=WIDTH or NAME=WIDTH:log")
        widths.append((name.strip(), width, bool(colon)))
    return widths


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


if __name__ == "__main__":
    sys.exit(main())
