"""Who wins a cell: clear winners, ties, constraints, failures, reversals, on made-up numbers."""

from __future__ import annotations

import numpy as np
import pytest

from blis_jax.core.outcome import Outcome
from blis_jax.errors import ConfigError
from blis_jax.results.schema import NOT_RUN
from sweeps.claims.grammar import parse_constraint
from sweeps.robustness import verdict
from sweeps.robustness.document import map_answer
from sweeps.robustness.store import Unrun
from sweeps.robustness.verdict import recommend, reversals
from tests.sweeps.robustness.made_map import cell, made_map

BASE = (270.0, 265.0, 17_000.0)


def said(*cells, **question):  # type: ignore[no-untyped-def]
    found = recommend(made_map(cells), **question)
    return [
        (str(who), str(why))
        for who, why in zip(found["recommended"].values, found["reason"].values, strict=True)
    ]


def test_a_clear_winner_and_its_twins() -> None:
    found = said(
        cell(BASE, (90.0, 445.0, 17_000.0)),
        cell((90.0, 265.0, 17_000.0), (270.0, 445.0, 17_000.0)),
        cell(BASE, (269.9, 265.0, 17_000.0), tuned_noise=0.3),
        cell(BASE, BASE),
    )
    assert found == [
        ("tuned", verdict.BEST),
        ("baseline", verdict.BEST),
        ("undecided", verdict.OVERLAP),
        ("undecided", verdict.OVERLAP),
    ]


def test_a_small_difference_counts_if_it_is_the_same_on_every_seed() -> None:
    """Seeds vary by a third; paired, 1 % is told apart, and not if the noise is the strategy's own."""
    small = (267.0, 265.0, 17_000.0)
    assert said(cell(BASE, small), cell(BASE, small, tuned_noise=0.2)) == [
        ("tuned", verdict.BEST),
        ("undecided", verdict.OVERLAP),
    ]


def test_constraints_are_of_the_first_strategy() -> None:
    found = said(
        cell(BASE, (90.0, 529.0, 17_000.0)),
        cell(BASE, (90.0, 540.0, 17_000.0)),
        cell(BASE, (90.0, 265.0, 16_200.0)),
        cell(BASE, (90.0, 265.0, 16_100.0)),
    )
    assert [who for who, _ in found] == ["tuned", "baseline", "tuned", "baseline"]
    assert found[1][1] == verdict.ONLY_WITHIN


def test_a_constraint_that_is_kept_only_in_some_resamples_is_undecided() -> None:
    dataset = made_map([cell(BASE, (90.0, 529.9, 17_000.0))])
    sheddable = dataset["ttft_p99_ms"].values[0, 1, :, 2]
    sheddable += np.array([60.0, -60.0] * 4)
    found = recommend(dataset)
    assert found["recommended"].values[0] == "undecided"
    assert 0.2 < float(found["probability_best"].sel(strategy="tuned")[0]) < 0.8


def test_absolute_constraints_bind_the_first_strategy_too() -> None:
    cells = [cell(BASE, (90.0, 445.0, 17_000.0))]
    assert said(*cells, constraints=["ttft_p99_ms[sheddable]<=300"]) == [
        ("baseline", verdict.ONLY_WITHIN)
    ]
    assert said(*cells, constraints=["tokens_per_sec>=20000"]) == [("none", verdict.ALL_BREAK)]
    assert said(*cells, constraints=[])[0][0] == "tuned"


@pytest.mark.parametrize("ending", [Outcome.LIVELOCK, Outcome.REFERENCE_CRASH, Unrun.SKIPPED])
def test_a_strategy_that_fails_is_not_recommended(ending: int) -> None:
    best = (90.0, 265.0, 17_000.0)
    found = said(
        cell(BASE, best, tuned_outcome=ending),
        cell(BASE, best, baseline_outcome=ending),
        cell(BASE, best, baseline_outcome=ending, tuned_outcome=ending),
        cell(BASE, best),
    )
    assert found == [
        ("baseline", verdict.ONLY_RUNNING),
        ("tuned", verdict.ONLY_RUNNING),
        ("none", verdict.ALL_FAIL),
        ("tuned", verdict.BEST),
    ]


def test_how_runs_ended_is_counted() -> None:
    best = (90.0, 265.0, 17_000.0)
    dataset = made_map(
        [cell(BASE, best, tuned_outcome=Outcome.LIVELOCK), cell(BASE, best, tuned_dropped=2)]
    )
    found = recommend(dataset)
    counts = found["num_runs"].sel(strategy="tuned")
    assert counts.sel(ending="livelock").values.tolist() == [1, 0]
    assert counts.sel(ending="completed").values.tolist() == [7, 8]
    assert counts.sel(ending="dropped").values.tolist() == [0, 1]
    assert found["has_failed"].values.tolist() == [[False, True], [False, True]]
    assert found["recommended"].values.tolist() == ["baseline", "baseline"]
    assert str(map_answer(found).price) == "32 runs."
    dataset["outcome"].values[0, 1, 1:] = Unrun.SKIPPED
    assert str(map_answer(recommend(dataset)).price) == "25 runs."


def test_a_run_without_the_objective_is_a_failure() -> None:
    dataset = made_map([cell(BASE, (90.0, 265.0, 17_000.0))])
    dataset["ttft_p99_ms"].values[0, 1, 3, 1] = np.nan
    found = recommend(dataset)
    assert found["recommended"].values[0] == "baseline"
    assert int(found["num_runs"].sel(strategy="tuned", ending="no_figure")[0]) == 1


def test_metrics_to_be_large_are() -> None:
    cells = [cell(BASE, (90.0, 445.0, 18_000.0)), cell(BASE, (90.0, 445.0, 16_500.0))]
    found = said(*cells, objective="tokens_per_sec")
    assert [who for who, _ in found] == ["tuned", "baseline"]
    assert said(*cells, objective="throughput_tps") == found


def test_changes_are_paired_and_signed() -> None:
    found = recommend(made_map([cell(BASE, (135.0, 265.0, 17_000.0))])).isel(cell=0, strategy=1)
    assert float(found["change_percent"]) == pytest.approx(-50.0)
    assert (
        float(found["change_percent_low"]) > -50.5 and float(found["change_percent_high"]) < -49.5
    )
    assert int(found["is_ahead"].sel(rival=0)) == 1


def test_only_one_of_three_strategies_is_recommended() -> None:
    names = ("baseline", "a", "b")
    entries = {
        name: {"means": means} for name, means in zip(names, (BASE, BASE, BASE), strict=True)
    }
    better = {"means": (100.0, 265.0, 17_000.0)}
    cells = [
        entries | {"b": better},
        entries | {"a": better, "b": better | {"noise": 0.05}},
        entries | {"a": better, "b": {"means": (90.0, 600.0, 17_000.0)}},
    ]
    found = recommend(made_map(cells, names))
    assert found["recommended"].values.tolist() == ["b", "undecided", "a"]
    assert found["probability_best"].sum("strategy").values == pytest.approx([1, 1, 1])


def test_reversals_are_of_the_sure_order_in_the_reference_cell() -> None:
    faster, slower = (90.0, 265.0, 17_000.0), (300.0, 265.0, 17_000.0)
    cells = [
        cell(BASE, faster),
        cell(BASE, faster, rate=100.0),
        cell(BASE, slower, rate=200.0),
        cell(BASE, (271.0, 265.0, 17_000.0), rate=300.0, tuned_noise=0.3),
        cell(BASE, slower, rate=400.0, tuned_outcome=Outcome.LIVELOCK),
    ]
    assert reversals(recommend(made_map(cells))).tolist() == [0, 0, 1, 0, 0]
    unsure = [cell(BASE, BASE), cell(BASE, slower, rate=100.0)]
    assert reversals(recommend(made_map(unsure))).tolist() == [0, 0]


def test_cells_that_have_not_been_run_are_left_out() -> None:
    dataset = made_map([cell(BASE, BASE), cell(BASE, (90.0, 265.0, 17_000.0), rate=100.0)])
    dataset["outcome"].values[0, 0, 0] = NOT_RUN
    found = recommend(dataset)
    assert found["recommended"].values.tolist() == ["tuned"]
    assert reversals(found).tolist() == [0]


def test_verdicts_are_repeatable_and_do_not_depend_on_other_cells() -> None:
    close = cell(BASE, (268.0, 265.0, 17_000.0), tuned_noise=0.1)
    alone = recommend(made_map([close]))
    among = recommend(made_map([cell(BASE, BASE), close])).isel(cell=slice(1, 2))
    assert np.array_equal(alone["probability_best"], among["probability_best"])
    other = recommend(made_map([close]), random_state=1)
    assert not np.array_equal(alone["probability_best"], other["probability_best"])


@pytest.mark.parametrize(
    ("question", "problem"),
    [
        ({"objective": "speed"}, "metric 'speed' is unknown"),
        ({"objective": "ttft_p99_ms[gold]"}, "gold"),
        ({"objective": "e2e_p99_ms"}, "the map has no metric 'e2e_p99_ms'"),
        ({"objective": "ttft_p99_ms[batch]"}, "no requests of class 'batch'"),
        ({"constraints": ["ttft_p99_ms < 3"]}, "is not METRIC<=LIMIT"),
        ({"constraints": ["ttft_p99_ms<=fast"]}, "is not METRIC<=LIMIT"),
        ({"confidence": 1.0}, "--confidence must be between 0.5 and 1"),
    ],
)
def test_bad_questions_are_refused(question, problem: str) -> None:  # type: ignore[no-untyped-def]
    with pytest.raises(ConfigError, match=problem):
        said(cell(BASE, BASE), **question)


def test_constraints_are_read_and_written_alike() -> None:
    for text in ("ttft_p99_ms[sheddable]<=200%", "tokens_per_sec>=95%", "ttft_mean_ms<=80"):
        assert str(parse_constraint(text)) == text
    assert str(parse_constraint(" throughput_tps >= 1e3 ")) == "tokens_per_sec>=1000"
