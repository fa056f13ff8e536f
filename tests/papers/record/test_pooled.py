"""Claims read with pooled percentiles, on made-up runs whose requests are known."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest

from blis_jax import simulate
from blis_jax.cluster.config import ClusterConfig
from blis_jax.core.outcome import Outcome
from blis_jax.metrics.run_summary import NUM_RANKS, kept_of, tails_of_runs
from blis_jax.workload.reference import draw
from papers.record.claims import AnyClaim
from papers.record.measures import POOLED_METRICS, record_figures, scalars
from papers.record.runs import SettingSample
from papers.record.survival import SurvivalFinding, judged_pooled
from sweeps.runs.requests import load_workload
from tests.papers.record.made_up import TAIL, claim_of, sample_of, statement_of

SEEDS = range(40)
NAMES = record_figures().names
# many short runs and a few long ones that are slow: by run and pooled are far apart
SIZES = np.where(np.arange(len(SEEDS)) % 8 == 0, 800, 100)


def latencies_us(slower: float) -> list[np.ndarray]:
    """Of critical requests, in ascending order, a run each; the same chance for every factor."""
    draws = np.random.default_rng(3)
    return [
        np.sort((slower * size * (1 + draws.exponential(1, size)) * 100).astype(np.int64))
        for size in SIZES.tolist()
    ]


def runs_of(name: str, slower: float = 1.0) -> SettingSample:
    """A setting whose critical requests have these latencies."""
    times = latencies_us(slower)
    by_run = sample_of(
        name, SEEDS, ttft_p99_ms__critical=[np.percentile(t, 99) / 1000 for t in times]
    )
    tails = tails_of_runs([kept_of(one) for one in times])
    values = np.zeros((len(SEEDS), len(NAMES)))
    values[:, : by_run.values.shape[1]] = by_run.values
    for metric in POOLED_METRICS:
        first = NAMES.index(f"{metric}/count")
        values[:, first] = tails.count
        values[:, first + 1 : first + 1 + NUM_RANKS] = tails.top_us
    return replace(by_run, names=NAMES, values=values)


def pooled_of(claim: AnyClaim, ours: SettingSample, base: SettingSample) -> SurvivalFinding | None:
    samples = {"it05_best": ours, "it00_baseline": base}
    (verdict,) = judged_pooled([claim], samples, {}, {})
    return verdict


def test_a_level_is_that_of_all_requests_together() -> None:
    ours = runs_of("it05_best")
    everything = np.percentile(np.concatenate(latencies_us(1.0)), 99) / 1000
    by_run = float(ours.column(TAIL).mean())
    assert everything > 1.5 * by_run
    found = pooled_of(claim_of("100.0 ms"), ours, runs_of("it00_baseline"))
    assert found is not None
    assert found.estimate.low < everything < found.estimate.high
    assert found.estimate.mean == pytest.approx(everything, rel=0.02)


def test_a_change_is_paired_by_seed() -> None:
    found = pooled_of(claim_of("-50.0 %"), runs_of("it05_best", 0.5), runs_of("it00_baseline"))
    assert found is not None
    assert found.estimate.mean == pytest.approx(-50, abs=0.1)
    assert found.verdict.word == "survives"


def test_statements_compare_pooled_figures() -> None:
    statement = statement_of('{of: "ttft_p99_ms[critical]", is: below, to: it00_baseline}')
    found = pooled_of(statement, runs_of("it05_best", 0.9), runs_of("it00_baseline"))
    assert found is not None
    assert found.verdict.word == "survives"
    assert "-10.0" in found.verdict.reason


@pytest.mark.parametrize(
    "claim",
    [
        claim_of("100 tokens/s", "tokens_per_sec"),
        statement_of('{of: "ttft_p99_ms[critical]", is: ever above, to: 50}'),
    ],
    ids=["throughput", "single_runs"],
)
def test_claims_that_cannot_be_pooled_have_none(claim: AnyClaim) -> None:
    assert pooled_of(claim, runs_of("it05_best"), runs_of("it00_baseline")) is None


def test_seeds_on_which_one_arm_did_not_end_are_left_out_of_both() -> None:
    ours, base = runs_of("it05_best", 0.5), runs_of("it00_baseline")
    outcomes = ours.outcomes.copy()
    outcomes[0] = Outcome.LIVELOCK
    values = ours.values.copy()
    values[0] = np.nan
    found = pooled_of(claim_of("-50.0 %"), replace(ours, values=values, outcomes=outcomes), base)
    assert found is not None
    assert found.num_seeds == len(SEEDS) - 1
    assert found.estimate.mean == pytest.approx(-50, abs=0.1)


def test_what_pooling_takes_comes_behind_the_figures_of_a_run() -> None:
    spec = load_workload("orth").model_copy(update={"num_requests": 40})
    config = ClusterConfig(num_instances=2, routing_policy="round-robin")
    record = simulate(config, draw(spec, 42)[0])
    found, plain = record_figures().of(record), scalars().of(record)
    assert np.array_equal(found[: len(plain)], plain, equal_nan=True)
    by_name = dict(zip(NAMES, found, strict=True))
    assert by_name["ttft_p99_ms/count"] == 40
    assert by_name["ttft_p99_ms/0"] == record.requests.ttft_us.max()
    assert by_name["e2e_p99_ms/0"] == record.requests.e2e_us.max()
    counts = [by_name[f"ttft_p99_ms[{c}]/count"] for c in ("critical", "standard", "sheddable")]
    assert sum(counts) == 40
