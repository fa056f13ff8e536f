"""`python -m benchmarks.coverage.calibration`: how often a calibration's intervals hold what is true.

Servers are made up: the simulator with known coefficients, whose latencies are disturbed, by factors
that are independent, or alike for neighbouring requests, or by a cost of context that is not fitted.
Each is measured twice. The first run is fitted; what the fit predicts of the second, with other
requests at another pace, is held against what is measured there.
"""

from __future__ import annotations

import json
import sys
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
from scipy.stats import binomtest

from blis_jax import lazy, progress
from blis_jax.backend import prepare_backend
from blis_jax.calibrate.validation import LATENCIES, STATISTICS, figures
from blis_jax.cluster.config import ClusterConfig
from blis_jax.commands import values
from blis_jax.commands.options import CommandOptions, option
from blis_jax.errors import ConfigError
from blis_jax.reports.render import table_lines
from blis_jax.traces.measured.run import MeasuredRun
from blis_jax.traces.rows import make_rows

if TYPE_CHECKING:
    from jaxtyping import Bool

    from blis_jax.calibrate import calibration
else:  # they load JAX, which the backend must be prepared for
    calibration = lazy.Module("blis_jax.calibrate.calibration")


NAME = "benchmarks.coverage.calibration"
TERMS = ("alpha0", "beta0", "beta1", "beta2")
TRUE = np.array([900.0, 7000.0, 38.0, 90.0])  # µs
CONTEXT = 0.2  # µs per token of context, where the server has such a cost
NOISE = 0.05  # standard deviation of the factors' logarithms
ALIKE = 0.9  # correlation of neighbours' factors
KINDS = ("independent", "neighbours alike", "context not fitted")
GAP_US, PREDICTED_GAP_US = 40_000, 34_000  # mean time between requests, fitted and predicted
PREDICTED_SEED = 500_000  # more than that of the fitted run
FIGURES = [f"{latency} {statistic}" for latency in LATENCIES for statistic in STATISTICS]

_DESCRIPTION = """\
Calibrate to made-up servers whose coefficients are known, and print how often the 95 % intervals hold
them, of all servers and of those where the coefficient is reported as identified: with independent
noise, with noise that neighbouring requests share, and with a cost that the fitted model does not have.
Then the same of what the fits predict for another run of each server. Servers are kept in a file as they
are done, so a command that is stopped goes on where it was.
"""


class CalibrationCoverageOptions(
    CommandOptions, title="sizes", command=NAME, description=_DESCRIPTION, examples=""
):
    """Options of the command."""

    repetitions: int = option(values.at_least(2), 40, "N", "servers of each kind")
    first: int = option(values.at_least(0), 0, "N", "seed of the first server")
    kind: str | None = option(
        values.OneOf(*KINDS), None, "NAME", "one disturbance: independent, neighbours alike, "
        "or context not fitted (default: all)",
    )  # fmt: skip
    num_requests: int = option(values.at_least(20), 150, "N", "measured requests of each run")
    starts: int = option(
        values.at_least(1), 8, "N", "starting points of each fit, as in blis_jax.calibrate"
    )
    explore: bool = option(values.truth, True, "BOOL", "as in blis_jax.calibrate")
    kept: str = option(str, "out/coverage/calibration.jsonl", "FILE", "servers that are done")


@CalibrationCoverageOptions.as_main
def main(options: CalibrationCoverageOptions) -> int:
    """Run the command; return its exit code."""
    kinds = list(KINDS) if options.kind is None else [options.kind]
    seeds = range(options.first, options.first + options.repetitions)
    sizes = {name: getattr(options, name) for name in ("num_requests", "starts", "explore")}
    prepare_backend()
    rows = servers(Path(options.kept), kinds, seeds, sizes)
    print("\n".join(tables(rows)))
    print(f"{len(seeds)} servers of each kind, {sizes['num_requests']} requests, {sizes['starts']} starts; share of "
          "the 95 % intervals that hold, with its own 95 % interval, and their median half width; of coefficients also "
          "how many of those reported as identified hold.")  # fmt: skip
    return 0


# --- servers --------------------------------------------------------------------------------------


def servers(
    path: Path, kinds: Sequence[str], seeds: Sequence[int], sizes: Mapping[str, Any]
) -> list[dict[str, Any]]:
    """Return each server's outcome: read from the file, or calibrated now and added to the file."""
    cases = [{"kind": kind, "seed": seed, **sizes} for seed in seeds for kind in kinds]
    done = {_key(row): row for row in _kept(path)}
    left = [case for case in cases if _key(case) not in done]
    path.parent.mkdir(parents=True, exist_ok=True)
    with progress.phase("calibrating", len(left), "servers") as work, path.open("a") as file:
        for number, case in enumerate(left):
            row = {**case, **outcome(**case)}
            file.write(json.dumps(row) + "\n")
            file.flush()
            done[_key(case)] = row
            work.show(number + 1, f"{case['kind']}, server {case['seed']}")
    return [done[_key(case)] for case in cases]


def _key(row: Mapping[str, Any]) -> tuple[Any, ...]:
    return tuple(row[name] for name in ("kind", "seed", "num_requests", "starts", "explore"))


def _kept(path: Path) -> Iterator[dict[str, Any]]:
    """Yield the rows of a file; remove a last row that was cut off from the file."""
    text = path.read_text(encoding="utf-8") if path.is_file() else ""
    whole, _, cut = text.rpartition("\n")
    if cut:
        path.write_text(whole + "\n" * bool(whole), encoding="utf-8")
    for number, line in enumerate(whole.splitlines()):
        try:
            row = json.loads(line)
            _key(row)
        except (ValueError, TypeError, KeyError):
            raise ConfigError(
                f"--kept: line {number + 1} of {path} is no server; give another file"
            ) from None
        yield row


def outcome(kind: str, seed: int, num_requests: int, starts: int, explore: bool) -> dict[str, Any]:
    """Return intervals of the coefficients, and predicted and measured figures of a second run, in ms."""
    run, config = server(kind, num_requests, seed)
    calibrated = calibration.calibrate(
        run, config, calibration.CalibrationPlan(TERMS, num_starts=starts, explores=explore)
    )
    known = calibrated.uncertainty
    row = {"intervals": known.intervals.tolist(), "is_identified": list(known.is_identified)}
    if calibrated.predictive is None:
        return row
    other, _ = server(kind, num_requests, seed + PREDICTED_SEED, PREDICTED_GAP_US)
    everything = np.ones(num_requests, bool)
    simulator = calibration.Simulator(other, config, calibrated.predictive.terms)
    intervals = calibrated.predictive.intervals(simulator, other, everything)
    measured = figures(other.ttft_us, other.e2e_us, other.rows.output_len)
    predicted = {" ".join(key): [measured[key], *ends] for key, ends in intervals.items()}
    return {**row, "predicted": predicted}


def server(
    kind: str, requests: int, seed: int, gap_us: float = GAP_US
) -> tuple[MeasuredRun, ClusterConfig]:
    """Make a measured run of a made-up server, and the cluster without its coefficients."""
    cluster = ClusterConfig(corrected=True, max_num_running_reqs=12, max_num_scheduled_tokens=512)
    random = np.random.default_rng(seed)
    arrival = np.round(np.cumsum(random.exponential(gap_us, requests)))
    rows = make_rows(
        arrival - arrival[0], random.integers(20, 900, requests), random.integers(2, 120, requests)
    )
    nothing = np.zeros(requests)
    fixed = {"beta3": CONTEXT} if kind == KINDS[2] else None
    true = calibration.Simulator(MeasuredRun(rows, nothing, nothing), cluster, TERMS, fixed)(TRUE)
    factors = np.exp(NOISE * disturbances(kind, requests, random))
    ttft = true.ttft_us * factors[0]
    return MeasuredRun(rows, ttft, ttft + (true.e2e_us - true.ttft_us) * factors[1]), cluster


def disturbances(kind: str, requests: int, random: np.random.Generator) -> np.ndarray:
    """Draw standard normal `[TTFT or decoding, request]`, neighbours correlated where the kind asks for it."""
    drawn = random.standard_normal((2, requests))
    if kind != KINDS[1]:
        return drawn
    for place in range(1, requests):
        drawn[:, place] = ALIKE * drawn[:, place - 1] + np.sqrt(1 - ALIKE**2) * drawn[:, place]
    return drawn


# --- tables ---------------------------------------------------------------------------------------


def tables(rows: Sequence[Mapping[str, Any]]) -> list[str]:
    """Write the coverage of the coefficients by kind, and of the predictions if any were made."""
    kinds = list(dict.fromkeys(row["kind"] for row in rows))
    groups = [(kind, [row for row in rows if row["kind"] == kind]) for kind in kinds]
    if len(kinds) > 1:
        groups.append(("all", list(rows)))
    rows_of_kinds = ((kind, *_of_coefficients(of_kind)) for kind, of_kind in groups)
    lines = table_lines(("disturbance", *TERMS), rows_of_kinds)
    if not all("predicted" in row for row in rows):
        return lines
    figures = ((name, *(_of_figure(of_kind, name) for _, of_kind in groups)) for name in FIGURES)
    return [*lines, "", *table_lines(("predicted", *(kind for kind, _ in groups)), figures)]


def _of_coefficients(rows: Sequence[Mapping[str, Any]]) -> list[str]:
    ends = np.array([row["intervals"] for row in rows])  # [server, term, end]
    is_held = (ends[..., 0] <= TRUE) & (ends[..., 1] >= TRUE)
    is_known = np.array([row["is_identified"] for row in rows])
    widths = np.median(np.diff(ends, axis=-1)[..., 0], axis=0) / 2 / TRUE
    return [
        f"{_share(held)}, ±{100 * width:.0f} %; identified {_identified(held[known])}"
        for held, known, width in zip(is_held.T, is_known.T, widths, strict=True)
    ]


def _identified(is_held: np.ndarray) -> str:
    counts = f"{is_held.sum()} of {len(is_held)}"
    return f"{counts}, {_share(is_held)}" if len(is_held) else counts


def _of_figure(rows: Sequence[Mapping[str, Any]], name: str) -> str:
    measured, low, high = np.array([row["predicted"][name] for row in rows]).T
    width = np.median((high - low) / 2 / measured)
    return f"{_share((low <= measured) & (measured <= high))}, ±{100 * width:.0f} %"


def _share(is_held: Bool[np.ndarray, " server"]) -> str:
    ends = binomtest(int(is_held.sum()), len(is_held)).proportion_ci(0.95)
    return f"{100 * is_held.mean():.1f} % [{100 * ends.low:.1f}, {100 * ends.high:.1f}]"


if __name__ == "__main__":
    sys.exit(main())
