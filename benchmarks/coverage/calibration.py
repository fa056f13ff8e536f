"""`python -m benchmarks.coverage.calibration`: how often a calibration's intervals hold what is true.

Servers are made up: the simulator with known coefficients, whose latencies are disturbed, by factors
that are independent, or alike for neighbouring requests, or by a cost of context that is not fitted.
"""

from __future__ import annotations

import sys
from collections.abc import Iterable, Sequence
from typing import TYPE_CHECKING, NamedTuple

import numpy as np

from blis_jax.backend import prepare_backend
from blis_jax.commands import cli
from blis_jax.commands.cli import Flag, Parser

if TYPE_CHECKING:
    from jaxtyping import Bool, Float

    from blis_jax.calibrate.measured_run import MeasuredRun

NAME = "benchmarks.coverage.calibration"
TERMS = ("alpha0", "beta0", "beta1", "beta2")
TRUE = np.array([900.0, 7000.0, 38.0, 90.0])  # µs
CONTEXT = 0.2  # µs per token of context, where the server has such a cost
NOISE = 0.05  # standard deviation of the factors' logarithms
ALIKE = 0.9  # correlation of neighbours' factors
KINDS = ("independent", "neighbours alike", "context not fitted")

_DESCRIPTION = """\
Calibrate to made-up servers whose coefficients are known, and print how often the 95 % intervals hold
them, of all servers and of those where the coefficient is reported as identified: with independent
noise, with noise that neighbouring requests share, and with a cost that the fitted model does not have.
"""
_FLAGS = (
    Flag("repetitions", cli.at_least(2), 40, "N", "servers of each kind"),
    Flag("first", cli.at_least(0), 0, "N", "seed of the first server, to go on with more"),
    Flag(
        "kind", cli.one_of(*KINDS), None, "NAME", "one disturbance: independent, neighbours alike, "
        "or context not fitted (default: all)"
    ),
    Flag("num-requests", cli.at_least(20), 150, "N", "measured requests of each"),
    Flag(
        "starts", cli.at_least(1), 8, "N", "starting points of each fit, as in blis_jax.calibrate"
    ),
    Flag("explore", cli.truth, True, "BOOL", "as in blis_jax.calibrate"),
)  # fmt: skip


class Coverage(NamedTuple):
    """What became of every coefficient's interval."""

    is_held: Bool[np.ndarray, "repetition term"]  # the true one lies in it
    is_identified: Bool[np.ndarray, "repetition term"]  # as reported
    half_widths: Float[np.ndarray, " term"]  # median, as a share of the true coefficient


def main(arguments: Sequence[str] | None = None) -> int:
    """The command; returns its exit code."""
    return cli.run_command(NAME, _run, arguments)


def _run(arguments: Sequence[str] | None) -> int:
    parser = Parser(prog=f"python -m {NAME}", description=_DESCRIPTION)
    parser.add_flags("sizes", _FLAGS)
    given = parser.given(sys.argv[1:] if arguments is None else arguments)
    repetitions, requests = given.get("repetitions", 40), given.get("num_requests", 150)
    starts, explores = given.get("starts", 8), given.get("explore", True)
    first = given.get("first", 0)
    prepare_backend()
    print(f"| disturbance | {' | '.join(TERMS)} |\n|{'---|' * (1 + len(TERMS))}")
    for kind in [given["kind"]] if "kind" in given else KINDS:
        found = coverage(kind, range(first, first + repetitions), requests, starts, explores)
        print(f"| {kind} | {' | '.join(_cells(found))} |", flush=True)
    print(f"{repetitions} servers each, {requests} requests, {starts} starts; share of the 95 % intervals "
          "that hold the coefficient with its own 95 % interval, the median half width of its value, and how "
          "many of the intervals reported as identified hold it.")  # fmt: skip
    return 0


def coverage(
    kind: str, seeds: Iterable[int], requests: int, starts: int, explores: bool
) -> Coverage:
    """Calibrations to one made-up server for each seed."""
    from blis_jax.calibrate.calibration import CalibrationPlan, calibrate

    found = []
    for seed in seeds:
        run, config = server(kind, requests, seed)
        plan = CalibrationPlan(TERMS, num_starts=starts, explores=explores)
        found.append(calibrate(run, config, plan).uncertainty)
    intervals = np.array([known.intervals for known in found])  # [repetition, term, end]
    return Coverage(
        (intervals[..., 0] <= TRUE) & (intervals[..., 1] >= TRUE),
        np.array([known.is_identified for known in found]),
        np.median(np.diff(intervals, axis=-1)[..., 0], axis=0) / 2 / TRUE,
    )


def _cells(found: Coverage) -> list[str]:
    return [
        f"{_share(held)}, ±{100 * width:.0f} %; identified {held[known].sum()} of {known.sum()}"
        for held, known, width in zip(
            found.is_held.T, found.is_identified.T, found.half_widths, strict=True
        )
    ]


def server(kind: str, requests: int, seed: int) -> tuple[MeasuredRun, object]:
    """A measured run of a made-up server, and the cluster without its coefficients."""
    from blis_jax.calibrate.measured_run import MeasuredRun
    from blis_jax.calibrate.simulated import Simulator
    from blis_jax.cluster.config import ClusterConfig
    from blis_jax.traces.rows import make_rows

    cluster = ClusterConfig(corrected=True, max_num_running_reqs=12, max_num_scheduled_tokens=512)
    random = np.random.default_rng(seed)
    arrival = np.round(np.cumsum(random.exponential(40_000, requests)))
    rows = make_rows(
        arrival - arrival[0], random.integers(20, 900, requests), random.integers(2, 120, requests)
    )
    nothing = np.zeros(requests)
    fixed = {"beta3": CONTEXT} if kind == KINDS[2] else None
    true = Simulator(MeasuredRun(rows, nothing, nothing), cluster, TERMS, fixed)(TRUE)
    factors = np.exp(NOISE * disturbances(kind, requests, random))
    ttft = true.ttft_us * factors[0]
    return MeasuredRun(rows, ttft, ttft + (true.e2e_us - true.ttft_us) * factors[1]), cluster


def disturbances(kind: str, requests: int, random: np.random.Generator) -> np.ndarray:
    """Standard normal `[TTFT or decoding, request]`, neighbours correlated where the kind says so."""
    drawn = random.standard_normal((2, requests))
    if kind != KINDS[1]:
        return drawn
    for place in range(1, requests):
        drawn[:, place] = ALIKE * drawn[:, place - 1] + np.sqrt(1 - ALIKE**2) * drawn[:, place]
    return drawn


def _share(is_held: np.ndarray) -> str:
    from scipy.stats import binomtest

    found = binomtest(int(is_held.sum()), len(is_held)).proportion_ci(0.95)
    return f"{100 * is_held.mean():.1f} % [{100 * found.low:.1f}, {100 * found.high:.1f}]"


if __name__ == "__main__":
    sys.exit(main())
