"""`python -m benchmarks.derivatives`: derivatives against central finite differences over many seeds."""

from __future__ import annotations

import dataclasses
import math
import sys
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np

from benchmarks.derivatives.cases import Pathwise, Smoothed, cases
from blis_jax import lazy, progress
from blis_jax.backend import prepare_backend
from blis_jax.commands import cli, values
from blis_jax.commands.options import CommandOptions, option, switch
from blis_jax.errors import ConfigError
from blis_jax.files import input_files
from blis_jax.files.atomic_write import replacing
from blis_jax.metrics.scalars import evaluate
from blis_jax.policies.seeds import FIXED
from blis_jax.runs.options import Options
from blis_jax.statistics.intervals import normal_quantile
from blis_jax.workload.table import NEVER_US
from sweeps.runs.experiment import Experiment
from sweeps.sensitivity.smoothed import decisions, perturbed, smoothed_gradients

if TYPE_CHECKING:
    from benchmarks.derivatives import table as tables
    from benchmarks.derivatives.cases import Case
    from benchmarks.derivatives.table import Line
    from blis_jax.cluster.config import ClusterConfig
    from blis_jax.runs import driver, runs
    from blis_jax.runs.derivatives import slopes as slopes_of
    from blis_jax.runs.derivatives import times as derivatives
    from blis_jax.workload.table import RequestTable
    from sweeps.runs import drawn
else:  # they load JAX, which the backend must be prepared for
    tables = lazy.Module("benchmarks.derivatives.table")
    derivatives = lazy.Module("blis_jax.runs.derivatives.times")
    driver = lazy.Module("blis_jax.runs.driver")
    runs = lazy.Module("blis_jax.runs.runs")
    slopes_of = lazy.Module("blis_jax.runs.derivatives.slopes")
    drawn = lazy.Module("sweeps.runs.drawn")

NAME = "benchmarks.derivatives"
TOLERANCE = 0.01
FIRST_SEED, SMOOTHED_SEEDS, NUM_PAIRS = 42, 64, 24
BATCH = 50  # seeds between two lines of progress
_DESCRIPTION = """\
Derivatives of the simulator against central finite differences of the simulator itself: one row for each
pair of a parameter and a metric, with the share of runs whose decisions differ between the two sides. Then
what a pathwise derivative costs next to the run. Prints a Markdown table; --output writes a CSV as well.
"""
_EXAMPLES = """\
examples:
  the table of docs/results/derivatives.md (about a quarter of an hour on one core):
    %(prog)s --output docs/results/derivatives.csv

  a quick look:
    %(prog)s --seeds 50 --cases apart,steady
"""
CASES = ("apart", "steady", "tier", "burst", "tiered", "speed")


class DerivativesOptions(
    CommandOptions, title="options", command=NAME, description=_DESCRIPTION, examples=_EXAMPLES
):
    """Options of the command."""

    seeds: int = option(values.at_least(2), 1000, "N", "seeds of the finite differences")
    cases: str | None = option(str, None, "LIST", f"cases to run, of {', '.join(CASES)}")
    surrogate: Path | None = option(
        Path, None, "FOLDER", "a surrogate of iteration 8 whose gradient is added"
    )
    output: Path | None = option(Path, None, "PATH", "CSV to write")
    resume: bool = switch("keep the rows that the CSV has")


@DerivativesOptions.as_main
def main(options: DerivativesOptions) -> int:
    """Run the command; return its exit code."""
    wanted, num_seeds, output = _wanted(options.cases), options.seeds, options.output
    if output is not None:
        cli.check_writable(output)
    prepare_backend()

    lines = _kept(output, num_seeds) if options.resume else []
    for case in cases():
        is_there = any((line.case, line.clock) == (case.name, case.clock) for line in lines)
        if case.name in wanted and not is_there:
            lines += lines_of(case, range(FIRST_SEED, FIRST_SEED + num_seeds))
            if output is not None:
                with replacing(output) as path:
                    path.write_text(tables.as_csv(lines), "utf-8")
    if options.surrogate is not None:
        seeds = range(FIRST_SEED, FIRST_SEED + num_seeds)
        lines = [line for line in lines if line.kind != "surrogate"]
        lines += tables.surrogate_lines(options.surrogate, seeds)
        if output is not None:
            with replacing(output) as path:
                path.write_text(tables.as_csv(lines), "utf-8")
    print(tables.table(lines))
    if "speed" in wanted:
        print(tables.speed())
    return 0


def _kept(output: Path | None, num_seeds: int) -> list[Line]:
    """Return the rows of an earlier, interrupted call."""
    if output is None:
        raise ConfigError("--resume goes on from a file; give its --output")
    if not output.exists():
        return []
    lines = tables.from_csv(input_files.read_text(output, "the table to go on from"))
    if any(line.kind == "pathwise" and line.num_seeds != num_seeds for line in lines):
        raise ConfigError(f"{output} has rows of another number of seeds; leave --resume out")
    return lines


def _wanted(text: str | None) -> tuple[str, ...]:
    wanted = tuple(text.split(",")) if text else CASES
    for name in wanted:
        if name not in CASES:
            raise ConfigError(f"--cases: {name!r} is unknown; there are {', '.join(CASES)}")
    return wanted


def lines_of(case: Case, seeds: range) -> list[Line]:
    """Return the rows of one case."""
    size = case.config.block_size_in_tokens
    tables = [drawn.table_of(case.spec, seed, size, "reference") for seed in seeds]
    differ = Differences(case, tables)
    pathwise = [pair for pair in case.pairs if isinstance(pair, Pathwise)]
    slopes = _pathwise_slopes(case, pathwise, tables) if pathwise else {}
    lines = []
    for pair in case.pairs:
        start = time.perf_counter()
        if isinstance(pair, Smoothed):
            lines += _smoothed_lines(case, pair, differ)
        else:
            lines += _pathwise_lines(case, pair, slopes, differ)
        name = pair.parameter.target if isinstance(pair, Smoothed) else pair.direction
        cli.say(NAME, f"{case.name}, {case.clock}: {name}, {time.perf_counter() - start:.1f} s")
    return lines


# --- finite differences ---------------------------------------------------------------------------


class Differences:
    """Runs both sides of a central difference on the tables of all seeds."""

    def __init__(self, case: Case, tables: Sequence[RequestTable]) -> None:
        """Compile once for all of a case's differences."""
        self.case, self.tables = case, tables
        options = Options(clock=case.clock, kv_model=case.kv_model)
        self.runner = driver.Runner(options, BATCH)
        self.runner.expect(runs.Row(case.config, table, FIXED) for table in tables)

    def run(
        self,
        metrics: Sequence[str],
        side: Callable[[float], tuple[ClusterConfig, Callable[[RequestTable], RequestTable]]],
    ) -> tuple[dict[str, np.ndarray], float]:
        """Return the difference f(+) − f(−) of each metric by seed, and the share of seeds whose two sides decide
        differently.
        """
        outcomes = []
        for sign in (1.0, -1.0):
            config, change = side(sign)
            rows = [runs.Row(config, change(table), FIXED) for table in self.tables]
            results = self.runner.run(rows, lambda r: (evaluate(r, metrics), decisions(r)))
            outcomes.append(results)
        values = {
            name: np.array(
                [ahead[name] - back[name] for (ahead, _), (back, _) in zip(*outcomes, strict=True)]
            )
            for name in metrics
        }
        changed = [first != second for (_, first), (_, second) in zip(*outcomes, strict=True)]
        return values, sum(changed) / len(changed)


def _half_width(config: ClusterConfig, pair: Pathwise) -> float:
    """Return half the width of a central difference, in the direction's unit."""
    name = pair.direction
    if name[:-1] in ("alpha", "beta"):
        return pair.half_width * float(getattr(config, f"{name[:-1]}_coeffs")[int(name[-1])])
    return pair.half_width


def _side(
    config: ClusterConfig, direction: str, step: float
) -> tuple[ClusterConfig, Callable[[RequestTable], RequestTable]]:
    """Return the configuration, and the function that changes the requests, a step along a direction."""
    if direction == "arrival_scale":
        return config, lambda table: stretched(table, 1.0 + step)
    if direction[:-1] in ("alpha", "beta"):
        field = f"{direction[:-1]}_coeffs"
        values = list(getattr(config, field))
        values[int(direction[-1])] += step
        return config.replace(**{field: tuple(values)}), _same
    base = getattr(config, direction)
    return config.replace(**{direction: round(base + step)}), _same


def _same(table: RequestTable) -> RequestTable:
    return table


def stretched(table: RequestTable, factor: float) -> RequestTable:
    """Return the requests with all arrivals stretched, in whole microseconds."""
    arrival = np.asarray(table.arrival_us)
    scaled = np.rint(np.where(arrival == NEVER_US, 0, arrival) * factor).astype(np.int64)
    moved = np.where(arrival == NEVER_US, NEVER_US, scaled)
    return dataclasses.replace(table, arrival_us=moved)


# --- pathwise -------------------------------------------------------------------------------------


def _pathwise_slopes(
    case: Case, pairs: Sequence[Pathwise], tables: Sequence[RequestTable]
) -> dict[tuple[str, str], np.ndarray]:
    """Return slopes by direction and metric, one for each seed; all directions go through the engine at once."""
    directions = list(dict.fromkeys(pair.direction for pair in pairs))
    metrics = list(dict.fromkeys(name for pair in pairs for name in pair.metrics))
    clock = case.clock if case.clock in derivatives.CLOCKS else "float64"
    options = Options(clock=clock, kv_model=case.kv_model)
    differentiate = derivatives.Differentiator(directions, options)
    differentiate.expect(runs.Row(case.config, table, FIXED) for table in tables)
    work = progress.begin(f"{case.name}: pathwise slopes", len(tables), "seeds")
    by_seed = []
    for count, requests in enumerate(tables, 1):
        slopes = slopes_of.metric_slopes(differentiate.run(case.config, requests), metrics)
        by_seed.append([slopes[name].slopes for name in metrics])
        work.show(count)
    work.clear()
    values = np.array(by_seed)  # seed, metric, direction
    return {
        (direction, metric): values[:, m, d]
        for m, metric in enumerate(metrics)
        for d, direction in enumerate(directions)
    }


def _pathwise_lines(
    case: Case, pair: Pathwise, slopes: dict[tuple[str, str], np.ndarray], differ: Differences
) -> list[Line]:
    step = _half_width(case.config, pair)
    differences, share = differ.run(
        pair.metrics, lambda sign: _side(case.config, pair.direction, sign * step)
    )
    lines = []
    for metric in pair.metrics:
        slope, by_seed = slopes[pair.direction, metric], differences[metric] / (2 * step)
        relative, error = _ratio(slope, by_seed)
        spread = math.hypot(_error(slope), _error(by_seed))
        is_clear = abs(float(slope.mean() - by_seed.mean())) > normal_quantile() * spread
        lines.append(
            _line(
                case,
                ("pathwise", pair.direction, metric),
                (float(slope.mean()), _error(slope)),
                by_seed,
                (relative, error),
                share,
                pathwise_verdict(relative, is_clear, share),
            )
        )
    return lines


def pathwise_verdict(relative: float, is_clear: bool, share: float) -> str:
    """Say what the row shows: agreement, or a bias and its cause.

    `is_clear` says that the two figures differ by more than their noise.
    """
    is_close = abs(relative) <= TOLERANCE
    if share == 0:
        name = "no decision flips" if is_close else "bias: truncation to whole µs"
        return f"{name}: within 1 %" if is_close else name
    if is_close:
        return "decisions flip, within 1 %"
    return "bias: decisions flip" if is_clear else "decisions flip, bias not told from 0"


# --- smoothed -------------------------------------------------------------------------------------


def _smoothed_lines(case: Case, pair: Smoothed, differ: Differences) -> list[Line]:
    """Return rows of the smoothed gradient on seeds of its own, beside a central difference of the same reach."""
    parameter = pair.parameter
    seeds = range(10_000, 10_000 + SMOOTHED_SEEDS)
    # the mechanism is compiled once
    experiment = Experiment.on(case.spec, seeds, "reference", pair.metrics, shared=differ.runner)
    gradients = smoothed_gradients(experiment, case.config, [parameter], NUM_PAIRS)
    # a normal law's slope and a central difference agree to third order at h = σ·√3
    reach = math.sqrt(3)
    differences, share = differ.run(
        pair.metrics,
        lambda sign: (perturbed(case.config, [parameter], np.array([sign * reach])), _same),
    )
    lines = []
    for metric in pair.metrics:
        smooth = gradients[metric]
        by_seed = differences[metric] / (2 * reach * parameter.width)
        estimate, error = float(smooth.gradient[0]), float(smooth.standard_error[0])
        mean = float(by_seed.mean())
        relative = estimate / mean - 1 if mean else math.nan
        spread = math.hypot(error, _error(by_seed))
        is_same = abs(estimate - mean) <= normal_quantile() * spread
        name = parameter.target + (" (log)" if parameter.is_log else "")
        lines.append(
            _line(
                case,
                ("smoothed", f"{name}, σ = {parameter.width:g}", metric),
                (estimate, error),
                by_seed,
                (relative, spread / abs(mean) if mean else math.nan),
                share,
                "smoothed: agree within 95 %" if is_same else "bias: smoothing",
            )
        )
    return lines


# --- statistics -----------------------------------------------------------------------------------


def _error(values: np.ndarray) -> float:
    return float(values.std(ddof=1) / math.sqrt(len(values)))


def _ratio(slope: np.ndarray, difference: np.ndarray) -> tuple[float, float]:
    """Return the ratio of two figures' means less 1, over the seeds, and its standard error by the delta method."""
    if difference.mean() == 0:
        return (0.0 if slope.mean() == 0 else math.inf), math.nan
    ratio = float(slope.mean() / difference.mean())
    residual = slope - ratio * difference
    return ratio - 1, _error(residual) / abs(float(difference.mean()))


def _line(
    case: Case,
    names: tuple[str, str, str],
    estimate: tuple[float, float],
    by_seed: np.ndarray,
    relative: tuple[float, float],
    share: float,
    verdict: str,
) -> Line:
    kind, parameter, metric = names
    mean, half = float(by_seed.mean()), normal_quantile() * _error(by_seed)
    return tables.Line(
        case.name,
        case.clock,
        kind,
        parameter,
        metric,
        *estimate,
        mean,
        mean - half,
        mean + half,
        *relative,
        share,
        len(by_seed),
        verdict,
    )


if __name__ == "__main__":
    sys.exit(main())
