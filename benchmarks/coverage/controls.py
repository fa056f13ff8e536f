"""`python -m benchmarks.coverage.controls`: what control variates from the request table would save.

Seven numbers of the requests that a seed draws are known before they are served: the span of arrivals, prompt and
output tokens, the longest output, when the last output could end at the earliest, and the most arrivals within 50 and
150 ms. Their part of a figure is taken out by regression, with coefficients from the other nine tenths of the seeds, so
that nothing is estimated from the seed that it corrects: with the means of many other seeds' requests this is
unbiased exactly. Printed is the variance that is left, as a share: 0.25 means that one seed is worth four. Beside it
stand the seconds that it takes to draw the requests of a seed and to simulate them, since the means have to come from
many more seeds than are run.
"""

from __future__ import annotations

import time
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

import numpy as np

from blis_jax.backend import prepare_backend
from blis_jax.metrics.run_summary import kept_of, tails_of_runs
from blis_jax.statistics.pooled import contributions_ms
from papers.pages import print_rows, table_parser
from sweeps.runs.drawn import table_of
from sweeps.runs.experiment import Experiment
from sweeps.runs.requests import load_workload
from sweeps.strategies.arms import arm_of

if TYPE_CHECKING:
    from blis_jax.records.record import RunRecord

ARMS = ("iter00_baseline", "iter08_token_budget@published", "iter13_class_lead@found")
NUM_SEEDS, FIRST_SEED, FOLDS, CRITICAL = 256, 10_000, 10, 1
BUSY_US, TOKEN_US = (50_000, 150_000), 16_000.0
METRICS = ("output tokens/s", "TTFT mean", "TTFT P99 by run", "TTFT P99 pooled")


def controls(arrival_us: np.ndarray, input_len: np.ndarray, output_len: np.ndarray) -> list[float]:
    """Compute the seven numbers of one run's requests: times in µs, lengths in tokens."""
    ordered = np.sort(arrival_us)
    places = np.arange(len(ordered))
    busiest = [
        float((np.searchsorted(ordered, ordered + window) - places).max()) for window in BUSY_US
    ]
    last = float((arrival_us + TOKEN_US * output_len).max())
    tokens = [float(values.sum()) for values in (input_len, output_len)]
    return [float(ordered[-1]), *tokens, float(output_len.max()), last, *busiest]


def share_left(values: np.ndarray, covariates: np.ndarray) -> float:
    """Return the share of the variance that is left when each fold is corrected with the other folds' coefficients."""
    scaled = (covariates - covariates.mean(axis=0)) / covariates.std(axis=0)
    fold, left = np.arange(len(values)) % FOLDS, np.zeros(len(values))
    for here in range(FOLDS):
        is_here = fold == here
        design = np.column_stack([np.ones((~is_here).sum()), scaled[~is_here]])
        slopes = np.linalg.lstsq(design, values[~is_here], rcond=None)[0][1:]
        left[is_here] = values[is_here] - scaled[is_here] @ slopes
    return float(left.var() / values.var())


def kept(record: RunRecord) -> dict[str, Any]:
    """Return a run's controls, its output tokens/s, and the latencies of its critical requests in µs."""
    requests = record.requests
    is_critical = requests.slo_class == CRITICAL
    seconds = float(record.instances.sim_ended_time_us.max()) / 1e6
    return {
        "controls": controls(requests.arrival_us, requests.input_len, requests.output_len),
        "output tokens/s": float(requests.output_len.sum()) / seconds,
        "ttft_us": np.sort(requests.ttft_us[is_critical]),
    }


def figures(runs: Sequence[dict[str, Any]]) -> dict[str, np.ndarray]:
    """Return by metric the value of every seed."""
    times = [run["ttft_us"] / 1000 for run in runs]
    return {
        "output tokens/s": np.array([run["output tokens/s"] for run in runs]),
        "TTFT mean": np.array([ttft_ms.mean() for ttft_ms in times]),
        "TTFT P99 by run": np.array([np.percentile(ttft_ms, 99) for ttft_ms in times]),
        "TTFT P99 pooled": contributions_ms(
            tails_of_runs([kept_of(run["ttft_us"]) for run in runs])
        ),
    }


def main() -> None:
    """Print the table, and what a seed costs."""
    parser = table_parser(None, __doc__)
    parser.add_argument("--seeds", type=int, default=NUM_SEEDS)
    count = parser.parse_args().seeds
    prepare_backend(use_cache=True)

    spec, configs = load_workload("mixed"), [arm_of(text).config for text in ARMS]
    experiment = Experiment.on(spec, range(FIRST_SEED, FIRST_SEED + count), "jax")
    by_arm, seconds = [], 0.0
    for config in configs:
        experiment.summaries([config], kept)  # compiles
        start = time.perf_counter()
        (runs,) = experiment.summaries([config], kept)
        seconds += time.perf_counter() - start
        by_arm.append(runs)
    covariates = np.array([run["controls"] for run in by_arm[0]])
    figures_by_arm = [figures(runs) for runs in by_arm]
    rows = {name: figures_by_arm[at] for at, name in enumerate(("baseline", "8-opt", "row 13"))}
    for first, second in ((0, 1), (0, 2), (1, 2)):
        name = f"{list(rows)[second]} − {list(rows)[first]}"
        rows[name] = {m: figures_by_arm[second][m] - figures_by_arm[first][m] for m in METRICS}
    print_rows((f"variance left, {count} seeds, critical requests", *METRICS), (
        (name, *(f"{share_left(values[metric], covariates):.2f}" for metric in METRICS))
        for name, values in rows.items()
    ))  # fmt: skip
    start = time.perf_counter()
    for seed in range(50):
        table_of(spec, seed, 16, "jax")
    drawing = (time.perf_counter() - start) / 50
    print(
        f"\nA seed takes {1000 * drawing:.1f} ms to draw, {1000 * seconds / 3 / count:.1f} ms to simulate."
    )


if __name__ == "__main__":
    main()
