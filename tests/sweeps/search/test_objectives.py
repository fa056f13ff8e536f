"""The worth of a point: objectives, penalties by mean or by seed, failures."""

from __future__ import annotations

import numpy as np
import pytest

from blis_jax.core.outcome import Outcome
from blis_jax.errors import ConfigError
from blis_jax.metrics.run_summary import RunSummary
from sweeps.search.objectives import NO_FIGURE, Valuation
from sweeps.strategies.file import parse_strategy
from tests.sweeps.tiny import run_of

WANTED = """
name: wanted
objectives: [{metric: ttft_p99_ms}]
constraints:
  - {metric: throughput_tps, direction: max, threshold: 100, weight: 2}
  - {metric: dropped, direction: min, threshold: 0, weight: 10}
"""


def valuation(text: str) -> Valuation:
    return Valuation(parse_strategy(text, "wanted.yaml"))


RUNS = [
    run_of(ttft_p99_ms=10.0, tokens_per_sec=80.0, num_dropped=0.0),
    run_of(ttft_p99_ms=20.0, tokens_per_sec=130.0, num_dropped=1.0),
]


def test_penalties_of_the_mean() -> None:
    worth = valuation(WANTED).worth(RUNS)
    assert worth.penalties == {"tokens_per_sec": 0.0, "num_dropped": 5.0}
    assert worth.score == 15.0 + 5.0


def test_penalties_seed_by_seed() -> None:
    worth = valuation(WANTED + "penalties: each-seed").worth(RUNS)
    assert worth.penalties == {"tokens_per_sec": 20.0, "num_dropped": 5.0}
    assert worth.score == 15.0 + 25.0 and worth.penalty == 25.0


def test_expected_penalties_count_what_other_seeds_may_do() -> None:
    """Means of 105 and 0.5, with standard errors of 25 and 0.5, against limits of 100 and 0."""
    worth = valuation(WANTED + "penalties: expected").worth(RUNS)
    draws = np.random.default_rng(1).normal(size=1_000_000)
    slow, dropped = 2 * np.maximum(-5 + 25 * draws, 0), 10 * np.maximum(0.5 + 0.5 * draws, 0)
    assert worth.penalties["tokens_per_sec"] == pytest.approx(slow.mean(), rel=0.01)
    assert worth.penalties["num_dropped"] == pytest.approx(dropped.mean(), rel=0.01)
    assert worth.excesses == (-10.0, 5.0) and worth.errors == pytest.approx((50.0, 5.0))
    assert valuation(WANTED).worth(RUNS).errors == ()


def test_a_mean_that_keeps_its_limit_is_feasible_whatever_penalty_is_expected() -> None:
    kept = valuation(WANTED.partition("  - {metric: dropped")[0] + "penalties: expected").worth(
        RUNS
    )
    assert kept.penalty > 0 and kept.is_feasible
    broken = valuation(WANTED + "penalties: expected").worth(RUNS)
    assert not broken.is_feasible


def test_one_seed_says_nothing_of_others() -> None:
    one = [
        valuation(WANTED + f"penalties: {kind}").worth(RUNS[:1])
        for kind in ("expected", "seed-mean")
    ]
    assert one[0].score == one[1].score == 10.0 + 40.0


def test_maxima_are_negated_and_weights_add_up() -> None:
    worth = valuation(
        "{name: a, objectives: [{metric: tokens_per_sec}, {metric: ttft_p99_ms, weight: 2}]}"
    ).worth(RUNS)
    assert worth.objectives == (-105.0, 15.0)
    assert worth.score == -105.0 + 2 * 15.0


def test_a_run_that_did_not_end_makes_a_finite_failure() -> None:
    failed = [*RUNS, RunSummary(Outcome.LIVELOCK), RunSummary(Outcome.LIVELOCK)]
    worth = valuation(WANTED + "search: {failure_score: 5000}").worth(failed)
    assert worth.score == 5000.0 and worth.failures == ("LIVELOCK",)


def test_a_missing_figure_makes_a_failure() -> None:
    runs = [RUNS[0], run_of(ttft_p99_ms=float("nan"), tokens_per_sec=1.0, num_dropped=0.0)]
    assert valuation(WANTED).worth(runs).failures == (NO_FIGURE,)


@pytest.mark.parametrize("key", ["objectives[0]", "constraints[0]", "success_criteria[0]"])
def test_unknown_metrics_name_their_key(key: str) -> None:
    entries = {"objectives[0]": "objectives: [{metric: ttft}]"}
    entries["constraints[0]"] = "constraints: [{metric: ttft, direction: min, threshold: 1}]"
    entries["success_criteria[0]"] = (
        "success_criteria: [{metric: ttft, direction: min, threshold: 1}]"
    )
    usual = "" if key == "objectives[0]" else "objectives: [{metric: e2e_p99_ms}]\n"
    with pytest.raises(ConfigError) as error:
        valuation(f"name: a\n{usual}{entries[key]}")
    assert str(error.value).startswith(f"wanted.yaml: {key}.metric: metric 'ttft' is unknown")


@pytest.mark.parametrize("name", ["ttft_p99_ms", "tokens_per_sec", "num_dropped"])
def test_slopes_are_what_a_metric_does_to_the_expected_score(name: str) -> None:
    judged = valuation(WANTED + "penalties: expected")
    moved = [run_of(**{**run.metrics, name: run.metrics[name] + 1e-4}) for run in RUNS]
    change = judged.worth(moved).score - judged.worth(RUNS).score
    assert judged.slopes(judged.worth(RUNS))[name] == pytest.approx(change / 1e-4, rel=1e-4)
