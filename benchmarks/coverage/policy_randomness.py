"""`python -m benchmarks.coverage.policy_randomness`: how often intervals hold the truth of a random policy.

The simulator runs a gate that sheds one request in five at random as soon as anything is under way. Its draws are part
of what makes runs differ, so an interval must know of them. The truth is the mean over as many other seeds as all
intervals have together. Beside the runs whose policy draws anew on every seed, as all commands do, stand runs of
the same requests whose policy has one seed throughout, another one for each interval: this is what an experiment
with a constant policy seed reports. The last column says how wide its intervals are, as a share of the others'.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import TYPE_CHECKING

import numpy as np

from blis_jax.backend import prepare_backend
from blis_jax.cluster.config import ClusterConfig
from blis_jax.policies.seeds import policy_seed
from blis_jax.statistics.intervals import Estimate, estimate
from blis_jax.statistics.paired import difference
from blis_jax.workload.spec import parse_spec
from papers.pages import table_parser
from sweeps.claims.grammar import our_name
from sweeps.runs.experiment import Experiment

if TYPE_CHECKING:
    from jaxtyping import Float

    from blis_jax.runs.driver import Runner

SHARE, NUM_SEEDS, NUM_INTERVALS = 0.2, 20, 400
SEEDS_AT_A_TIME = 1000
FIRST_OF_TRUTH, FIRST_POLICY = 10_000_000, 20_000_000  # seeds; those of intervals begin at 0
METRICS = ("reject_rate", "ttft_mean_ms", "e2e_mean_ms", "output_tokens_per_s")
WORKLOAD = """
version: '2'
aggregate_rate: 150.0
num_requests: 40
clients:
  - {id: low, slo_class: sheddable, rate_fraction: 1.0, arrival: {process: poisson},
     input_distribution: {type: constant, params: {value: 400}},
     output_distribution: {type: constant, params: {value: 32}}}
"""
GATE = ClusterConfig(
    num_instances=2,
    admission_policy="sweeps/strategies/policies/gates.py:class_gated",
    policy_numbers={"admission.probability": SHARE, "admission.sheddable_load": 0.0},
)
ARMS = (GATE, GATE.replace(num_instances=3), ClusterConfig(num_instances=2))
FIGURES = {  # of arms: the place of the second, and of the first that is taken from it
    "gate on 2 instances": (0, None),
    "gate on 3 instances − gate on 2": (1, 0),
    "gate − no gate": (0, 2),
}


def measured(
    seeds: Sequence[int], policy_seeds: Sequence[int]
) -> Float[np.ndarray, "arm seed metric"]:
    """Run every arm on pairs of a requests' seed and a policy's seed; return its metrics."""
    names = [our_name(name) for name in METRICS]
    spec, parts = parse_spec(WORKLOAD, "workload"), []
    runner: Runner | None = None
    for start in range(0, len(seeds), SEEDS_AT_A_TIME):
        some = slice(start, start + SEEDS_AT_A_TIME)
        experiment = Experiment.on(
            spec, seeds[some], "jax", names, configs_per_batch=len(ARMS), shared=runner
        )
        parts.append(_metrics(experiment, policy_seeds[some], names))
        runner = experiment.runner
    return np.concatenate(parts, axis=1)


def _metrics(
    experiment: Experiment, policy_seeds: Sequence[int], names: Sequence[str]
) -> Float[np.ndarray, "arm seed metric"]:
    rows = [
        replace(row, policy_seed=seed)
        for arm in ARMS
        for row, seed in zip(experiment.rows(arm), policy_seeds, strict=True)
    ]
    runs = experiment.runner.run(rows, experiment.result)
    values = [[run.metrics[name] for name in names] for run in runs]
    return np.array(values, float).reshape(len(ARMS), -1, len(names))


def intervals(
    values: Float[np.ndarray, "arm seed"], places: tuple[int, int | None], num_seeds: int
) -> list[Estimate]:
    """Return an interval for each group of `num_seeds` seeds: of one arm's mean, or of two arms' paired difference."""
    second, first = places
    groups = [arm.reshape(-1, num_seeds) for arm in values]
    if first is None:
        return [estimate(group) for group in groups[second]]
    pairs = zip(groups[first], groups[second], strict=True)
    return [difference(first, second).absolute for first, second in pairs]


def table(
    anew: Float[np.ndarray, "arm seed metric"],
    alike: Float[np.ndarray, "arm seed metric"],
    others: Float[np.ndarray, "arm seed metric"],
    num_seeds: int,
) -> list[str]:
    """Return a table row for each figure and metric that the policies' random draws change."""
    lines = []
    for figure, (second, first) in FIGURES.items():
        for place, metric in enumerate(METRICS):
            means = others[:, :, place].mean(axis=1)
            truth = float(means[second] - (0.0 if first is None else means[first]))
            kinds = [
                intervals(runs[:, :, place], (second, first), num_seeds) for runs in (anew, alike)
            ]
            if not any(_width(each) for each in kinds[0]):
                continue  # the arms shed the same requests
            shares = [100 * np.mean([each.holds(truth) for each in kind]) for kind in kinds]
            widths = [np.mean([_width(each) for each in kind]) for kind in kinds]
            lines.append(
                f"| {figure} | {metric} | {shares[0]:.1f} | {shares[1]:.1f} | {widths[1] / widths[0]:.2f} |"
            )
    return lines


def _width(estimate: Estimate) -> float:
    return estimate.high - estimate.low


def main() -> None:
    """Print the table."""
    parser = table_parser(None, __doc__)
    parser.add_argument("--seeds", type=int, default=NUM_SEEDS, help="of an interval")
    parser.add_argument("--intervals", type=int, default=NUM_INTERVALS, help="of each kind")
    options = parser.parse_args()
    prepare_backend()
    count = options.seeds * options.intervals
    seeds = range(count)
    apart = range(FIRST_OF_TRUTH, FIRST_OF_TRUTH + count)
    anew = measured(seeds, [policy_seed(seed) for seed in seeds])
    alike = measured(seeds, [policy_seed(FIRST_POLICY + seed // options.seeds) for seed in seeds])
    others = measured(apart, [policy_seed(seed) for seed in apart])
    print(
        f"{options.intervals} intervals of 95 % over {options.seeds} seeds: % that hold the truth"
    )
    heads = "figure | metric | policy draws anew on every seed | one policy seed | its width"
    print(f"| {heads} |\n|{'---|' * 5}")
    for line in table(anew, alike, others, options.seeds):
        print(line)


if __name__ == "__main__":
    main()
