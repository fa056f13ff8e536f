"""`python -m benchmarks.coverage.blocks`: how often answers from one trace are right.

The first table has intervals of the difference between two strategies on made-up traces: logarithms of latencies are
sums of a part that both have, a part of each strategy, both autoregressive along the trace, and noise. So means and
percentiles are known exactly.

The second and third table have verdicts on simulated traces: *calm* at 64 % of the pace of *busy*, where requests
queue most of the time, and *waves*, whose pace swings so that queues grow for minutes. Long traces are cut into parts,
and each answer is about one of them, as if it were the whole trace.

In the second table two arms have the same router, which draws anew for each, so every verdict is false. In the third
one routers differ, and their latencies are scaled so that all have one figure on average. That is harder: one of two
such routers is better while requests are few, the other while they queue. Columns, of answers about two routers drawn
for each part, and about all pairs of six: answers with a false one, and in brackets true differences that are found.

The fourth table has false answers about neighbouring windows of 400 requests, which are runs that begin on an idle
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
from blis_jax.cluster.config import ClusterConfig
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
ROUTERS = "round-robin,least-loaded,weighted,cached-of-two,session-hashed,power-of-two"
DRAWN_ANEW = "power-of-two"  # the router of both arms that are alike
FIGURES = ("ttft_mean_ms", "ttft_p99_ms")
MORE_FIGURES = (*FIGURES, "e2e_mean_ms", "e2e_p99_ms")
LENGTHS = (500, 1500, 3000, 10_000, 30_000)
NUM_WINDOWS, OF_WINDOW = 400, 400  # windows simulated, requests of each
WINDOWS = (8, 20)  # of an answer
LONG, MOST_PARTS = 200_000, 40  # requests of a long trace; its parts of one length
RANDOM_STATES = (
    301,
    302,
    303,
    304,
    305,
)  # of long traces; rules were chosen on 5, 31 and 101 to 106
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
    metrics = {f"{name}_mean_ms": float(column.mean()) for name, column in columns.items()} | {
        f"{name}_{level}_ms": float(np.quantile(column, share))
        for name, column in columns.items()
        for level, share in LEVELS.items()
    }
    return RunSummary(Outcome.COMPLETED, metrics, fingerprint="x", requests=requests)


# --- verdicts on simulated traces -----------------------------------------------------------------


@dataclass(frozen=True)
class LongRun:
    """Latencies of every arm on one long trace, ms."""

    arrival_us: Int[np.ndarray, " request"]
    ttft_ms: Float[np.ndarray, "arm request"]
    e2e_ms: Float[np.ndarray, "arm request"]

    def parts(self, length: int) -> list[slice]:
        """Return parts of so many neighbouring requests that have none in common."""
        number = len(self.arrival_us) // length
        places = np.unique(np.linspace(0, number - 1, MOST_PARTS).astype(int))
        return [slice(place * length, (place + 1) * length) for place in places]

    def mean_of_parts(self, length: int, name: str) -> Float[np.ndarray, " arm"]:
        """Return each arm's figure of TTFT, on average over all parts of a length."""
        number = len(self.arrival_us) // length
        of_part = self.ttft_ms[:, : number * length].reshape(-1, number, length)
        by_part = of_part.mean(2) if "mean" in name else np.quantile(of_part, LEVELS["p99"], 2)
        return np.asarray(by_part.mean(axis=1))

    def arms(
        self, part: slice, scales: Float[np.ndarray, " arm"] | None = None
    ) -> list[tuple[RunSummary]]:
        """Return each arm's run of a part, with latencies multiplied by the arm's scale."""
        factors = np.ones(len(self.ttft_ms)) if scales is None else scales
        return [
            (run_of(self.arrival_us[part], factor * ttft_ms[part], factor * e2e_ms[part]),)
            for factor, ttft_ms, e2e_ms in zip(factors, self.ttft_ms, self.e2e_ms, strict=True)
        ]


def of_routers(
    world: str, state: int, num_requests: int = LONG, num_windows: int | None = None
) -> list[Sequence[RunSummary]]:
    """Simulate each router on a trace of a world: one run, or one of each window."""
    configs = [arm.config for arm in router_arms(ROUTERS, arm_of("vllm"))]
    seeds = range(1, (num_windows or 1) + 1)
    return _simulated(configs, seeds, world, state, num_requests, num_windows)


def of_one_router(world: str, state: int, num_requests: int = LONG) -> Sequence[RunSummary]:
    """Simulate one router on a trace of a world, twice with other draws."""
    config = arm_of(f"vllm:routing_policy={DRAWN_ANEW}").config
    return _simulated([config], (1, 2), world, state, num_requests)[0]


def _simulated(
    configs: Sequence[ClusterConfig],
    seeds: Sequence[int],
    world: str,
    state: int,
    num_requests: int,
    num_windows: int | None = None,
) -> list[Sequence[RunSummary]]:
    recorder = Recorder(FIGURES, Measure(DEFAULT_TARGETS), (), has_requests=True)
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / f"{world}.csv"
        _write_trace(path, world, state, num_requests)
        source = TraceSource(path, TraceOptions(), num_windows)
        experiment = Experiment.on(source, seeds, "recorded")
        return [experiment.summaries([config], recorder)[0] for config in configs]


def long_run(runs: Sequence[RunSummary]) -> LongRun:
    """Return the latencies of runs of one long trace."""
    requests = [run.requests for run in runs if run.requests is not None]
    ttft_ms, e2e_ms = (
        np.array([of_run.column(name, None) for of_run in requests]) for name in ("ttft", "e2e")
    )
    return LongRun(requests[0].arrivals(), ttft_ms, e2e_ms)


def windows(world: str, num_answers: int) -> list[float]:
    """Return % of false answers by figure and number of windows, where all routers have one figure on average."""
    runs = of_routers(world, RANDOM_STATES[0], NUM_WINDOWS * OF_WINDOW, NUM_WINDOWS)
    shares = []
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


def _write_trace(path: Path, world: str, state: int, count: int) -> None:
    rng = np.random.default_rng(state)
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


def of_alike(runs: Sequence[LongRun], length: int) -> tuple[list[float], int]:
    """Return % of false answers about two arms of one router, by figure, and of how many answers."""
    named = []
    for run in runs:
        for part in run.parts(length):
            first, second = run.arms(part)
            judge = OneTrace([first, second], BY_STUDENT)
            named.append(
                [is_named(judge.differences([(first, second, name)])) for name in MORE_FIGURES]
            )
    return [100 * float(share) for share in np.mean(named, axis=0)], len(named)


def of_scaled(
    runs: Sequence[LongRun], length: int, name: str
) -> tuple[Float[np.ndarray, "2 2"], int]:
    """Return % of false answers and of differences found, of two and of all routers, and of how many answers."""
    figures = np.mean([run.mean_of_parts(length, name) for run in runs], axis=0)
    parts = [(run, part) for run in runs for part in run.parts(length)]
    rng = np.random.default_rng(length)
    rows = [_answers(run, part, name, figures, rng) for run, part in parts]
    return 100 * np.nanmean(np.array(rows), axis=0), len(rows)


def _answers(
    run: LongRun,
    part: slice,
    name: str,
    figures: Float[np.ndarray, " router"],
    rng: np.random.Generator,
) -> list[tuple[float, float]]:
    routers = tuple(range(len(figures)))
    two, answers = tuple(sorted(rng.choice(routers, 2, replace=False))), []
    for chosen in (two, routers):
        truth = np.sign([figures[after] - figures[at] for at, after in combinations(chosen, 2)])
        alike, as_is = (
            _judged([run.arms(part, scales)[at] for at in chosen], name)
            for scales in (figures[0] / figures, None)
        )
        signs = np.array([SIGNS.get(each.verdict, 0) for each in as_is])
        found = (signs == truth)[truth != 0]
        answers.append((float(is_named(alike)), float(found.mean()) if len(found) else math.nan))
    return answers


def _judged(arms: Sequence[Sequence[RunSummary]], name: str) -> list[Difference]:
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
    print_rows(("trace", "requests", "answers", *MORE_FIGURES), ())
    for world in PACES:
        runs = [long_run(of_one_router(world, state)) for state in RANDOM_STATES]
        for length in LENGTHS:
            shares, number = of_alike(runs, length)
            _print_row(world, length, number, [f"{share:.1f}" for share in shares])
    print()
    heads = [f"{arms} routers, {figure}" for figure in ("mean", "P99") for arms in ("two", "all")]
    print_rows(("trace", "requests", "answers", *heads), ())
    for world in PACES:
        runs = [
            long_run([of_router[0] for of_router in of_routers(world, state)])
            for state in RANDOM_STATES
        ]
        for length in LENGTHS:
            cells, number = [], 0
            for name in FIGURES:
                of_figure, number = of_scaled(runs, length, name)
                cells += [f"{false:.1f} ({found:.0f})" for false, found in of_figure]
            _print_row(world, length, number, cells)
    print()
    titles = tuple(f"{name}, {size} windows" for name in ("mean", "P99") for size in WINDOWS)
    print_rows(("trace", *titles), (
        (world, *(f"{share:.1f}" for share in windows(world, num_traces))) for world in PACES
    ))  # fmt: skip


def _print_row(world: str, length: int, number: int, cells: Sequence[str]) -> None:
    print(f"| {world} | {length:,} | {number} | {' | '.join(cells)} |", flush=True)


if __name__ == "__main__":
    main()
