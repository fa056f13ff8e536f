"""`python -m benchmarks.derivatives.sawtooth`: why pathwise slopes mislead at a moderate load.

Runs go over a fine grid of β0. Where two neighbours take the same decisions, the change of a metric
is what the slope says; where they do not, the rest of it is a jump. Ramps and jumps add up to the
whole change, so both can be counted.
"""

from __future__ import annotations

import sys
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np

from benchmarks.derivatives.cases import cases
from blis_jax import lazy, progress
from blis_jax.backend import prepare_backend
from blis_jax.commands import cli, values
from blis_jax.commands.options import CommandOptions, option
from blis_jax.commands.options.outputs import figure_path
from blis_jax.policies.seeds import FIXED
from blis_jax.reports.render import table_lines
from blis_jax.reports.style import BLUE, figure, save
from blis_jax.runs.options import Options
from sweeps.sensitivity.smoothed import decisions

if TYPE_CHECKING:
    from blis_jax.runs import runs as rows
    from blis_jax.runs.derivatives import slopes as slopes_of
    from blis_jax.runs.derivatives import times as derivatives
    from sweeps.runs import drawn
else:  # they load JAX, which the backend must be prepared for
    derivatives = lazy.Module("blis_jax.runs.derivatives.times")
    rows = lazy.Module("blis_jax.runs.runs")
    slopes_of = lazy.Module("blis_jax.runs.derivatives.slopes")
    drawn = lazy.Module("sweeps.runs.drawn")

NAME = "benchmarks.derivatives.sawtooth"
METRICS = ("ttft_mean_ms", "e2e_mean_ms")
REACH = 0.01  # of β0 to either side, as in the table of derivatives
FIRST_SEED = 42
_DESCRIPTION = """\
Take the mean TTFT and E2E of a moderate load apart along β0, from 1 % below to 1 % above: how much of
the change are ramps, which pathwise slopes see, and how much are jumps where a decision flips, which
they do not. Prints both beside the whole change, and draws one request's TTFT.
"""


class SawtoothOptions(CommandOptions, title="sizes", command=NAME, description=_DESCRIPTION):
    """Options of the command."""

    seeds: int = option(values.at_least(2), 20, "N", "seeds of the requests")
    grid: int = option(values.at_least(2), 400, "N", "steps of β0")
    figure: str = option(str, "none", "PATH", "picture to write, .png")


@dataclass(frozen=True)
class Walk:
    """One seed's runs along β0: `values[place, metric]` ms, `slopes` ms per µs, `decisions[place]`."""

    beta0: np.ndarray
    values: np.ndarray
    slopes: np.ndarray
    decisions: np.ndarray
    ttft_us: np.ndarray  # [place, request]


@dataclass(frozen=True)
class Parts:
    """A metric's change along β0 in ms, `[metric]`, parted into ramps and jumps, and how far a step may be from its
    ramp.
    """

    ramps: np.ndarray
    jumps: np.ndarray
    share_flipped: float  # of the grid's steps
    worst: float  # ms: the most that a step without a flip differs from its ramp


@SawtoothOptions.as_main
def main(options: SawtoothOptions) -> int:
    """Run the command; return its exit code."""
    file = figure_path(options.figure, Path(NAME))
    if file is not None:
        cli.check_writable(file)
    prepare_backend()
    walks = walks_of(range(FIRST_SEED, FIRST_SEED + options.seeds), options.grid)
    print(table([parts_of(walk) for walk in walks], float(np.ptp(walks[0].beta0))))
    if file is not None:
        with cli.writing(file):
            draw(walks[0], file)
        print(f"Written: {file}")
    return 0


def walks_of(seeds: Sequence[int], grid: int) -> list[Walk]:
    """Return the runs of every seed over the grid, on the clock without truncation."""
    case = next(case for case in cases() if case.name == "steady")
    config, size = case.config, case.config.block_size_in_tokens
    tables = [drawn.table_of(case.spec, seed, size, "reference") for seed in seeds]
    differentiate = derivatives.Differentiator(["beta0"], Options(clock="continuous"))
    differentiate.expect(rows.Row(config, table, FIXED) for table in tables)
    base, *rest = config.beta_coeffs
    values = base * (1 + REACH * np.linspace(-1, 1, grid + 1))
    walks, work = [], progress.begin("walking", len(tables), "seeds")
    for count, requests in enumerate(tables, 1):
        runs = [
            differentiate.run(config.replace(beta_coeffs=(float(value), *rest)), requests)
            for value in values
        ]
        slopes = [slopes_of.metric_slopes(run, METRICS) for run in runs]
        walks.append(
            Walk(
                values,
                np.array([[slope[name].value for name in METRICS] for slope in slopes]),
                np.array([[slope[name].slopes[0] for name in METRICS] for slope in slopes]),
                np.array([decisions(run.record) for run in runs]),
                np.array([run.record.requests.ttft_us for run in runs]),
            )
        )
        work.show(count)
    work.clear()
    return walks


def parts_of(walk: Walk) -> Parts:
    """Split a walk into ramps, by the trapezoid rule, and jumps: the rest of a step in which decisions flip."""
    ramps = (walk.slopes[1:] + walk.slopes[:-1]) / 2 * np.diff(walk.beta0)[:, None]
    rest = np.diff(walk.values, axis=0) - ramps
    is_flipped = walk.decisions[1:] != walk.decisions[:-1]
    worst = float(np.abs(rest[~is_flipped]).max(initial=0.0))
    return Parts(ramps.sum(axis=0), rest[is_flipped].sum(axis=0), float(is_flipped.mean()), worst)


def table(parts: Sequence[Parts], width_us: float) -> str:
    """Write means over the seeds per µs of β0 with standard errors, as Markdown."""
    rows = []
    for place, name in enumerate(METRICS):
        ramps = np.array([part.ramps[place] for part in parts]) / width_us
        jumps = np.array([part.jumps[place] for part in parts]) / width_us
        rows.append((name, *map(_with_error, (ramps + jumps, ramps, jumps))))
    flipped = np.mean([part.share_flipped for part in parts])
    worst = max(part.worst for part in parts)
    lines = table_lines(("metric", "whole change", "ramps", "jumps"), rows)
    lines.append(
        f"{len(parts)} seeds; ms per µs of β0. Decisions flip in {100 * flipped:.1f} % of the steps of the "
        f"grid; in the others the change differs from its ramp by at most {worst:.1g} ms."
    )
    return "\n".join(lines)


def _with_error(values: np.ndarray) -> str:
    return f"{values.mean():.4f} ± {values.std(ddof=1) / np.sqrt(len(values)):.4f}"


def draw(walk: Walk, file: Path) -> None:
    """Draw TTFT of the request that jumps most, and the mean of all, along β0."""
    ttft_ms = walk.ttft_us / 1000
    place = int(np.argmax(np.abs(np.diff(ttft_ms, axis=0)).sum(axis=0)))
    percent = 100 * (walk.beta0 / walk.beta0.mean() - 1)
    with figure(2.7, 1, 2) as (made, axes):
        panels = (
            (ttft_ms[:, place], f"request {place} of one run"),
            (walk.values[:, 0], f"mean of its {ttft_ms.shape[1]} requests"),
        )
        for panel, (values, title) in zip(axes[0], panels, strict=True):
            panel.plot(percent, values, color=BLUE, linewidth=1.2)
            panel.set_title(title)
            panel.set_xlabel("change of β0 (%)")
            panel.set_ylabel("TTFT (ms)")
        title = "TTFT grows along a slope and falls where a decision flips, so slopes mislead"
        caption = (
            f"One run of case steady, simulated at {len(percent)} values of β0, the constant cost of a step. "
            "Between two jumps all requests run on the same instances and in the same steps."
        )
        save(made, file, title, caption)


if __name__ == "__main__":
    sys.exit(main())
