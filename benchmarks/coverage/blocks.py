"""`python -m benchmarks.coverage.blocks`: how often answers from one trace are right.

The first table has intervals of the difference between two strategies on made-up traces: logarithms of latencies are
sums of a part that both have, a part of each strategy, both autoregressive along the trace, and noise. So means and
percentiles are known exactly.

The second table has verdicts. Six routers serve a long simulated trace: *calm* at 64 % of the pace of *busy*, where
requests queue most of the time, and *waves*, whose pace swings so that queues grow for minutes. Each answer is about
some neighbouring requests of it, as if they were the whole trace. Latencies are scaled so that all routers have one
figure on average: then every verdict is false. Columns, of answers about two routers drawn for each part, and about all
15 pairs of six: answers with a false one, and in brackets true differences that are found.

The third table has false answers about neighbouring windows of 400 requests, which are runs that begin on an idle
cluster (`--trace-windows`).
"""

from __future__ import annotations

import csv
import math
import tempfile
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import combinations
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np
from scipy import stats
from scipy.signal import lfilter

from benchmarks.coverage.worlds import number_option
from blis_jax.backend import prepare_backend
from blis_jax.core.outcome import Outcome
from blis_jax.metrics.measure import DEFAULT_TARGETS, Measure
from blis_jax.metrics.run_summary import RequestFigures, RunSummary
from blis_jax.statistics.intervals import BY_STUDENT
from blis_jax.statistics.paired import BETTER, WORSE, Difference, Pair, differences
from blis_jax.traces.read import TraceOptions
from blis_jax.traces.source import TraceSource
from papers.pages import print_rows
from sweeps.compare.judge import OneTrace
from sweeps.compare.ranking import router_arms
from sweeps.runs.experiment import Experiment
from sweeps.runs.measured import Recorder, metric_values
from sweeps.strategies.arms import arm_of

if TYPE_CHECKING:
    from jaxtyping import Float, Int

COMMON, OWN, NOISE = (0.5, 0.4), 0.25, 0.3  # standard deviations, of the first and second strategy
SHIFT = -0.1  # of the second strategy's logarithms
GAP_US = 1e5
WARM_UP = 400
NUM_TRACES = 200
LEVELS = {"p90": 0.9, "p99": 0.99}
SIGNS = {BETTER: -1, WORSE: 1}  # of a difference with this verdict
ROUTERS = "round-robin,least-loaded,weighted,cached-of-two,kv-adaptive,power-of-two"
FIGURES = ("ttft_mean_ms", "ttft_p99_ms")
LENGTHS = (500, 1500, 3000, 10_000, 30_000)
NUM_WINDOWS, OF_WINDOW = 400, 400  # windows simulated, requests of each
WINDOWS = (8, 20)  # of an answer
LONG, RANDOM_STATE = 200_000, 47  # requests; on states 5 and 31 the blocks' length was chosen
PACES = {"calm": 45.0, "busy": 70.0, "waves": 60.0}  # requests per second
SWING, SWING_S, EVERY_S = 0.35, 5.0, 0.25  # of the logarithm of the waves' pace
DOCUMENT, MOST_LIVE, AGAIN = 6144, 40, 0.55  # tokens; documents in use; share of their requests


@dataclass(frozen=True)
class Case:
    """A kind of trace; `correlation` is that of neighbouring requests."""

    num_requests: int
    correlation: float


CASES = tuple(
    Case(count, correlation) for count in (500, 2000, 10_000) for correlation in (0.0, 0.9, 0.98)
)


# --- intervals on made-up traces ------------------------------------------------------------------


def made_up(
    case: Case, rng: np.random.Generator
) -> tuple[
    Int[np.ndarray, " request"], Float[np.ndarray, " request"], Float[np.ndarray, " request"]
]:
    """Draw a trace's arrivals in µs, and each request's latency under two strategies whose noise is partly shared."""
    count = case.num_requests
    arrival_us = np.cumsum(rng.exponential(GAP_US, count)).astype(np.int64)
    common = _correlated(case, rng)
    logarithms = [
        scale * common + OWN * _correlated(case, rng) + NOISE * rng.normal(size=count)
        for scale in COMMON
    ]
    return arrival_us, np.exp(logarithms[0]), np.exp(logarithms[1] + SHIFT)


def _correlated(case: Case, rng: np.random.Generator) -> Float[np.ndarray, " request"]:
    steps = rng.normal(size=case.num_requests + WARM_UP) * math.sqrt(1 - case.correlation**2)
    correlated: np.ndarray = lfilter([1.0], [1.0, -case.correlation], steps)[WARM_UP:]
    return correlated


def truths() -> dict[str, float]:
    """Compute the differences that intervals should hold, by figure."""
    spreads = [math.sqrt(scale**2 + OWN**2 + NOISE**2) for scale in COMMON]
    shifts = (0.0, SHIFT)
    means = [math.exp(m + s * s / 2) for m, s in zip(shifts, spreads, strict=True)]
    differences = {"mean": means[1] - means[0]}
    for name, level in LEVELS.items():
        z = float(stats.norm.ppf(level))
        ends = [math.exp(m + s * z) for m, s in zip(shifts, spreads, strict=True)]
        differences[name] = ends[1] - ends[0]
    return differences


def coverage(
    case: Case, num_traces: int, figures: Sequence[str] = ("mean", *LEVELS)
) -> dict[str, float]:
    """Return the share of traces whose 95 % interval holds the truth, by figure."""
    truth, hits = truths(), dict.fromkeys(figures, 0)
    for number in range(num_traces):
        arrival_us, *values = made_up(case, np.random.default_rng([number, case.num_requests]))
        arms = [(run_of(arrival_us, of_arm),) for of_arm in values]
        asked = [(arms[0], arms[1], f"ttft_{name}_ms") for name in figures]
        found = OneTrace(arms, BY_STUDENT).differences(asked)
        for name, difference in zip(figures, found, strict=True):
            hits[name] += difference.absolute.holds(truth[name])
    return {name: count / num_traces for name, count in hits.items()}


def run_of(
    arrival_us: Int[np.ndarray, " request"],
    ttft_ms: Float[np.ndarray, " request"],
    e2e_ms: Float[np.ndarray, " request"] | None = None,
) -> RunSummary:
    """Return a run with these latencies; without E2E they are those of TTFT."""
    columns = {"ttft": ttft_ms, "e2e": ttft_ms if e2e_ms is None else e2e_ms}
    requests = RequestFigures(
        arrival_us.tolist(),
        [0] * len(arrival_us),
        {name: column.tolist() for name, column in columns.items()},
    )
    metrics = {"ttft_mean_ms": float(ttft_ms.mean())} | {
        f"ttft_{name}_ms": float(np.quantile(ttft_ms, level)) for name, level in LEVELS.items()
    }
    return RunSummary(Outcome.COMPLETED, metrics, fingerprint="x", requests=requests)


# --- verdicts on simulated traces -----------------------------------------------------------------


@dataclass(frozen=True)
class LongRun:
    """Latencies of every router on one long trace, ms."""

    arrival_us: Int[np.ndarray, " request"]
    ttft_ms: Float[np.ndarray, "router request"]
    e2e_ms: Float[np.ndarray, "router request"]


def simulated(
    world: str, num_requests: int, num_windows: int | None = None
) -> list[Sequence[RunSummary]]:
    """Simulate each router on a trace of a world: one run, or one of each window."""
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / f"{world}.csv"
        _write_trace(path, world, num_requests)
        recorder = Recorder(FIGURES, Measure(DEFAULT_TARGETS), (), has_requests=True)
        source = TraceSource(path, TraceOptions(), num_windows)
        experiment = Experiment.on(source, range(1, (num_windows or 1) + 1), "recorded")
        configs = [arm.config for arm in router_arms(ROUTERS, arm_of("vllm"))]
        return [experiment.summaries([config], recorder)[0] for config in configs]


def long_run(world: str, num_requests: int = LONG) -> LongRun:
    """Simulate the routers on a long trace of a world."""
    runs = [of_router[0] for of_router in simulated(world, num_requests)]
    requests = [run.requests for run in runs if run.requests is not None]
    ttft_ms, e2e_ms = (
        np.array([of_run.column(name, None) for of_run in requests]) for name in ("ttft", "e2e")
    )
    return LongRun(requests[0].arrivals(), ttft_ms, e2e_ms)


def windows(world: str, num_answers: int) -> list[float]:
    """Return % of false answers by figure and number of windows, where all routers have one figure on average."""
    runs, shares = simulated(world, NUM_WINDOWS * OF_WINDOW, NUM_WINDOWS), []
    for name in FIGURES:
        values = np.array([metric_values(of_router, name) for of_router in runs])
        values *= values[0].mean() / values.mean(axis=1, keepdims=True)
        for size in WINDOWS:
            starts = np.random.default_rng(size).integers(0, NUM_WINDOWS - size, num_answers)
            parts = (values[:, start : start + size] for start in starts)
            false = [
                is_named(differences([Pair(*pair) for pair in combinations(part, 2)], BY_STUDENT))
                for part in parts
            ]
            shares.append(100 * float(np.mean(false)))
    return shares


def is_named(judged: Sequence[Difference]) -> bool:
    """Return whether an answer names any difference."""
    return any(difference.verdict in SIGNS for difference in judged)


def _write_trace(path: Path, world: str, count: int) -> None:
    rng = np.random.default_rng(RANDOM_STATE)
    gaps = rng.exponential(1.0, count)
    if world == "waves":
        slots = int(2 * count / PACES[world] / EVERY_S)
        alike = math.exp(-EVERY_S / SWING_S)
        level = lfilter([math.sqrt(1 - alike**2)], [1.0, -alike], rng.normal(size=slots))
        passed = np.cumsum(PACES[world] * np.exp(SWING * level - SWING**2 / 2) * EVERY_S)
        at_s = np.interp(np.cumsum(gaps), passed, EVERY_S * np.arange(1, slots + 1))
    else:
        at_s = np.cumsum(gaps) / PACES[world]
    live, num_documents = list[int](), 0
    with path.open("w", newline="", encoding="utf-8") as file:
        writer = csv.writer(file)
        writer.writerow(
            ["arrival_us", "input_tokens", "output_tokens", "prefix_group", "prefix_tokens"]
        )
        for arrival_s in at_s:
            if live and rng.random() < AGAIN:
                document = live[rng.integers(len(live))]
            else:
                document = num_documents = num_documents + 1
                live = [*live, document][-MOST_LIVE:]
            lengths = (
                DOCUMENT + int(rng.integers(40, 600)),
                int(np.clip(rng.lognormal(3.6, 0.6), 9, 134)),
            )
            writer.writerow((int(arrival_s * 1e6), *lengths, f"doc_{document}", DOCUMENT))


def verdicts(run: LongRun, length: int, num_traces: int) -> Float[np.ndarray, "4 2"]:
    """Return % of false answers and of differences found: of the mean by two and by six routers, then of the P99."""
    rng = np.random.default_rng(length)
    starts = rng.integers(0, len(run.arrival_us) - length, num_traces)
    parts = [slice(start, start + length) for start in starts]
    of_figure = {
        "ttft_mean_ms": run.ttft_ms.mean(axis=1),
        "ttft_p99_ms": np.mean(
            [np.quantile(run.ttft_ms[:, part], 0.99, axis=1) for part in parts], axis=0
        ),
    }
    return np.concatenate([_shares(run, parts, *figure) for figure in of_figure.items()])


def _shares(
    run: LongRun, parts: Sequence[slice], name: str, figures: Float[np.ndarray, " router"]
) -> Float[np.ndarray, "2 2"]:
    routers, rng = tuple(range(len(figures))), np.random.default_rng(RANDOM_STATE)
    rows = []
    for part in parts:
        two = tuple(int(router) for router in rng.choice(routers, 2, replace=False))
        row = []
        for chosen in (two, routers):
            truth = np.sign([figures[after] - figures[at] for at, after in combinations(chosen, 2)])
            alike = _judged(run, part, name, chosen, figures[0] / figures)
            signs = [SIGNS.get(each.verdict, 0) for each in _judged(run, part, name, chosen)]
            found = (np.array(signs) == truth)[truth != 0]
            row.append((is_named(alike), float(found.mean()) if len(found) else np.nan))
        rows.append(row)
    return np.asarray(100 * np.nanmean(np.array(rows, float), axis=0))


def _judged(
    run: LongRun,
    part: slice,
    name: str,
    routers: Sequence[int],
    scales: Float[np.ndarray, " router"] | None = None,
) -> list[Difference]:
    arrival_us = run.arrival_us[part]
    scales = np.ones(len(run.ttft_ms)) if scales is None else scales
    arms = [
        (run_of(arrival_us, scales[at] * run.ttft_ms[at, part], scales[at] * run.e2e_ms[at, part]),)
        for at in routers
    ]
    return OneTrace(arms, BY_STUDENT).differences([(*pair, name) for pair in combinations(arms, 2)])


def main() -> None:
    """Print the tables of docs/traces.md."""
    num_traces = number_option(__doc__, "traces", NUM_TRACES)
    print_rows(("requests", "correlation of neighbours", "mean", "P90", "P99"), (
        (
            f"{case.num_requests:,}", f"{case.correlation:g}",
            *(f"{100 * share:.0f} %" for share in coverage(case, num_traces).values()),
        )
        for case in CASES
    ))  # fmt: skip
    print()
    prepare_backend(use_cache=True)
    heads = [f"{arms} routers, {figure}" for figure in ("mean", "P99") for arms in ("two", "six")]
    print_rows(("trace", "requests", *heads), ())
    for world in PACES:
        run = long_run(world)
        for length in LENGTHS:
            shares = verdicts(run, length, num_traces)
            cells = [f"{false:.1f} ({found:.0f})" for false, found in shares]
            print(f"| {world} | {length:,} | {' | '.join(cells)} |", flush=True)
    print()
    titles = tuple(f"{name}, {size} windows" for name in ("mean", "P99") for size in WINDOWS)
    print_rows(("trace", *titles), (
        (world, *(f"{share:.1f}" for share in windows(world, num_traces))) for world in PACES
    ))  # fmt: skip


if __name__ == "__main__":
    main()
