"""The share of lane-steps that do work in the form for GPUs: scan steps × lanes, a count and no time.

python -m benchmarks.gpu.lanes                      256 runs of the baseline in 64 lanes
python -m benchmarks.gpu.lanes --runs 64 --lanes 8

A run's own scan steps are work. The others are made by lanes that wait: for the slowest row of their call where a
call has as many rows as lanes, and for a share of all lanes where a lane takes one row after another.
"""

from __future__ import annotations

import dataclasses
import sys
from collections.abc import Sequence

import jax

from benchmarks.speed.worker import BASELINE
from blis_jax.backend import prepare_backend
from blis_jax.cluster.config import ClusterConfig
from blis_jax.core.outcome import Outcome
from blis_jax.metrics.compiled import RunFigures
from blis_jax.metrics.measure import Measure
from blis_jax.metrics.summaries import SloTargets
from blis_jax.runs.calls import Call, Group
from blis_jax.runs.driver import Runner
from blis_jax.runs.many_runs import drawn_runs
from blis_jax.runs.options import Options
from blis_jax.runs.programs import SHARE, compiled, rows_of
from blis_jax.runs.runs import Point
from blis_jax.workload.spec import load_builtin, override
from papers.pages import table_parser

RATES = tuple(20.0 * 2**place for place in range(8))  # requests per second, of points side by side

LOG_CAPACITY = 16_384


def report(num_runs: int, num_lanes: int, rates: Sequence[float]) -> list[str]:
    """Return both counts of the baseline, at one rate or seed by seed at each of several."""
    spec, config = load_builtin("mixed"), ClusterConfig(**BASELINE)
    points = [Point(config, override(spec, aggregate_rate=rate)) for rate in rates]
    seeds = range(num_runs // len(points))
    # a log that holds every run: one that has to be made again would count half a run
    options = Options(resolve_ties=False, num_slots=192, log_capacity=LOG_CAPACITY)
    runs = drawn_runs(points, seeds, options)
    finished_runs = Runner(options).stream(runs, lambda record: record.num_iterations)
    steps = {run: num_steps for finished in finished_runs for run, num_steps in finished}
    per_run = [steps[run] for run in sorted(runs, key=lambda run: run.place[::-1])]
    lanes = dataclasses.replace(options, form="lanes", num_lanes=num_lanes)
    runs = sorted(drawn_runs(points, seeds, lanes), key=lambda run: run.place[::-1])
    measured = RunFigures(["ttft_p99_ms"], SloTargets(), Measure({}))
    call = Call(Group(runs[0]), runs, len(runs), measured)
    with jax.enable_x64(True):
        ran = compiled(rows_of, *call.statics)(*call.arguments(call.given()))
    outcomes = {Outcome(code).name for code in ran.report.outcome.tolist()}
    if outcomes != {"COMPLETED"}:
        raise SystemExit(f"runs ended with {', '.join(sorted(outcomes))}")
    together = int(ran.lane_steps)
    apart = sum(
        num_lanes * max(per_run[at : at + num_lanes]) for at in range(0, len(per_run), num_lanes)
    )
    return [
        f"{len(per_run)} runs at {', '.join(f'{rate:g}' for rate in rates)} requests/s: {min(per_run):,} to "
        f"{max(per_run):,} scan steps, {sum(per_run):,} in all",
        f"  calls of {num_lanes} rows: {apart:,} lane-steps, {sum(per_run) / apart:.1%} of them work",
        f"  lanes that take the next row once one in {SHARE} is done: {together:,} lane-steps, "
        f"{sum(per_run) / together:.1%} of them work",
    ]


def main(words: Sequence[str] | None = None) -> int:
    """Count and print."""
    parser = table_parser("benchmarks.gpu.lanes", __doc__)
    parser.add_argument("--runs", type=int, default=256)
    parser.add_argument("--lanes", type=int, default=64)
    arguments = parser.parse_args(words)
    refusal = ""
    if not 1 <= arguments.lanes < arguments.runs:
        refusal = f"--lanes: got {arguments.lanes}, allowed is 1 or more and fewer than --runs"
    if arguments.runs < len(RATES):
        refusal = f"--runs: got {arguments.runs}, allowed is {len(RATES)} or more, one a rate"
    if refusal:
        print(refusal, file=sys.stderr)
        return 2
    prepare_backend()
    for rates in ((2000.0,), RATES):
        print("\n".join(report(arguments.runs, arguments.lanes, rates)), flush=True)
    return 0


if __name__ == "__main__":
    sys.exit(main())
