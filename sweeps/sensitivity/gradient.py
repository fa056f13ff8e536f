"""`python -m sweeps.gradient ARM`: smoothed gradients of metrics by settings that act through decisions."""

from __future__ import annotations

import sys
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from blis_jax.backend import prepare_backend
from blis_jax.commands import cli
from blis_jax.commands.cli import Flag, Parser
from blis_jax.commands.flags.seed_options import seed_flags, seeds_of
from blis_jax.errors import ConfigError
from blis_jax.files.atomic_write import write_json
from blis_jax.files.overwriting import SWITCH, refuse_existing

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
_FLAGS = (
    Flag("perturb", str, None, "LIST", "NAME=WIDTH[:log],…: settings and the σ of each"),
    Flag("metrics", str, "ttft_mean_ms,ttft_p99_ms,e2e_mean_ms", "LIST", "metrics, [class] behind"),
    Flag("pairs", cli.whole, NUM_PAIRS, "N", "antithetic pairs of perturbed points"),
    Flag(
        "law",
        cli.one_of("normal", "uniform"),
        "normal",
        "NAME",
        "distribution of the perturbations",
    ),
    Flag("random-state", cli.whole, 0, "N", "seed of the perturbations"),
)
_REQUESTS = (
    Flag("workload", str, None, "NAME", "built-in workload or .yaml file (default: the arm's)"),
    Flag("num-requests", cli.whole, None, "N", "requests in place of the workload's number"),
    *seed_flags(f"default: {NUM_SEEDS}"),
)
_OUTPUT = (Flag("output", str, None, "PATH", "JSON to write"),)


def main(arguments: Sequence[str] | None = None) -> int:
    """The command; returns its exit code."""
    return cli.run_command(NAME, _gradient, arguments)


def _gradient(arguments: Sequence[str] | None) -> int:
    parser = Parser(prog=f"python -m {NAME}", description=_DESCRIPTION, epilog=_EXAMPLES)
    parser.add_argument("arm", metavar="ARM", nargs="?", help="the configuration")
    for title, flags in (("gradient", _FLAGS), ("requests", _REQUESTS), ("output", _OUTPUT)):
        parser.add_flags(title, flags)
    parser.add_switches("switches", SWITCH)
    given = parser.given(sys.argv[1:] if arguments is None else arguments)
    if given.get("arm") is None:
        raise ConfigError("no arm is given; give a strategy such as iter08_token_budget@published")
    widths = _widths(given.get("perturb"))
    if "output" in given:
        cli.check_writable(Path(given["output"]))
        refuse_existing(given, {"--output": Path(given["output"])})
    prepare_backend()

    from blis_jax.metrics.scalars import lookup
    from sweeps.runs.bench import Bench, check_seeds, workload_from, workload_of
    from sweeps.sensitivity.smoothed import Perturbed, smoothed_gradients
    from sweeps.strategies.arms import arm_of

    arm = arm_of(given["arm"])
    parameters = [Perturbed(*width) for width in widths]
    for one in parameters:
        one.centre(arm.config)
    metrics = str(given.get("metrics", _FLAGS[1].default)).split(",")
    for metric in metrics:
        lookup(metric)
    seeds = _seeds(given)
    check_seeds(seeds, "reference")
    if "workload" in given or arm.strategy is None:
        spec = workload_from(given.get("workload", "mixed"), "", None, given.get("num_requests"))
    else:
        spec = workload_of(arm.strategy, given.get("num_requests"))
    num_pairs = given.get("pairs", NUM_PAIRS)
    bench = Bench(spec, seeds, "reference", metrics, None, 2 * num_pairs)
    found = smoothed_gradients(
        bench,
        arm.config,
        parameters,
        num_pairs,
        given.get("random_state", 0),
        given.get("law", "normal"),
    )
    print(table(found))
    if "output" in given:
        write_json(Path(given["output"]), document(arm.name, seeds, found))
    return 0


def _widths(text: str | None) -> list[tuple[str, float, bool]]:
    """`NAME=WIDTH[:log],…` as names, widths and whether the logarithm is perturbed."""
    if not text:
        raise ConfigError(
            "--perturb: nothing to perturb; give for instance max_num_scheduled_tokens=64"
        )
    found = []
    for part in text.split(","):
        name, equals, rest = part.partition("=")
        number, colon, scale = rest.partition(":")
        try:
            width = float(number)
        except ValueError:
            equals = ""
        if not equals or (colon and scale != "log"):
            raise ConfigError(f"--perturb: {part!r} is not NAME=WIDTH or NAME=WIDTH:log")
        found.append((name.strip(), width, bool(colon)))
    return found


def _seeds(given: Mapping[str, Any]) -> tuple[int, ...]:
    seeds = seeds_of(given, NUM_SEEDS)
    if len(seeds) < 2:
        raise ConfigError("--seeds: one seed has no spread; give at least 2")
    return seeds


def _unit(parameter: Perturbed) -> str:
    return f"log {parameter.target}" if parameter.is_log else parameter.target


def table(found: Mapping[str, SmoothedGradient]) -> str:
    """A Markdown table; one row for each metric and setting."""
    heads = "| metric | per unit of | σ | gradient ± s.e. | of which seeds | draws | runs changed |"
    rows = [heads, "|---|---|---|---|---|---|---|"]
    for name, slope in found.items():
        for place, parameter in enumerate(slope.parameters):
            of_seeds, of_draws = (
                float(variance[place] ** 0.5)
                for variance in (slope.variance_of_seeds, slope.variance_of_draws)
            )
            rows.append(
                f"| {name} | {_unit(parameter)} | {parameter.width:g} | {slope.gradient[place]:.4g} "
                f"± {slope.standard_error[place]:.2g} | {of_seeds:.2g} | {of_draws:.2g} | "
                f"{100 * slope.share_changed:.1f} % |"
            )
    return "\n".join(rows)


def document(
    arm: str, seeds: Sequence[int], found: Mapping[str, SmoothedGradient]
) -> dict[str, Any]:
    """Everything, for other programs."""
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
