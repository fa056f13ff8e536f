"""Failures in words: every outcome has some, and seeds are named."""

from __future__ import annotations

import pytest

from blis_jax.core.outcome import WHOLE, Outcome
from blis_jax.metrics.run_summary import RunSummary
from sweeps.runs.measured import failure_of, no_figure, pair_of


def runs(*outcomes: str) -> list[RunSummary]:
    return [RunSummary(Outcome[name]) for name in outcomes]


@pytest.mark.parametrize("outcome", [one for one in Outcome if one not in WHOLE])
def test_every_outcome_says_what_happened_and_what_to_do(outcome: Outcome) -> None:
    found = failure_of([7, 8], runs("COMPLETED", outcome.name))
    assert found is not None and found.code == outcome.name and found.seeds == (8,)
    assert found.message.startswith("on seed 8 ") and outcome.sentence in found.message
    assert len(found.message.split(": ", 1)[1]) > 15


def test_several_outcomes_are_all_listed() -> None:
    ended = runs("LIVELOCK", "COMPLETED", "REFERENCE_CRASH", "LIVELOCK", "HORIZON")
    found = failure_of(range(42, 47), ended)
    assert found is not None and found.code == "LIVELOCK" and found.seeds == (42, 44, 45)
    assert found.by_code == {"LIVELOCK": (42, 45), "REFERENCE_CRASH": (44,)}
    assert "on seeds 42, 45" in found.message and "BLIS itself crashes" in found.message
    assert found.to_json()["by_code"]["LIVELOCK"] == [42, 45]


def test_nothing_failed() -> None:
    assert failure_of([1, 2], runs("COMPLETED", "HORIZON")) is None
    assert no_figure([3], ["ttft_p99_ms[batch]"]).code == "NO_FIGURE"


def with_value(name: str, *values: float, fingerprint: str = "") -> list[RunSummary]:
    """A run for each value; without a fingerprint they differ in what is not looked at."""
    lives = [fingerprint or str(seed) for seed in range(len(values))]
    return [
        RunSummary(Outcome.COMPLETED, {name: value}, fingerprint=life)
        for value, life in zip(values, lives, strict=True)
    ]


def test_a_difference_of_runs_that_are_alike_is_exact() -> None:
    name = "num_preemptions"
    drawn = pair_of(with_value(name, 0, 0, 0), with_value(name, 4, 4, 4), name)
    assert not drawn.is_exact  # counts may agree by chance
    first = with_value(name, 0, 0, fingerprint="a")
    assert pair_of(first, with_value(name, 4, 4, fingerprint="b"), name).is_exact
    assert not pair_of(first, with_value(name, 4, 4), name).is_exact


def test_times_do_not_agree_by_chance() -> None:
    name = "ttft_mean_ms"
    same = pair_of(with_value(name, 80.2, 80.2, 80.2), with_value(name, 81.0, 81.0, 81.0), name)
    assert same.is_exact
    assert not pair_of(with_value(name, 80.2, 80.2), with_value(name, 81.0, 81.0), name).is_exact
    spread = with_value(name, 81.0, 81.0, 81.1)
    assert not pair_of(with_value(name, 80.2, 80.2, 80.2), spread, name).is_exact
