"""Rules that stop by looking: the test that holds at every look, and when they say enough."""

import math
from collections.abc import Mapping

import numpy as np
import pytest
from scipy import integrate, stats

from blis_jax.errors import ConfigError
from blis_jax.statistics.intervals import (
    EFFECT_SPREAD,
    anytime_p_value,
    anytime_quantile,
    estimate,
    t_quantile,
)
from blis_jax.statistics.paired import BETTER, UNCLEAR, Pair
from blis_jax.statistics.sequential import (
    DECIDED,
    GOES_ON,
    KEPT,
    MISSED,
    OPEN,
    PRECISE,
    SPENT,
    Finalists,
    FixedCounts,
    Look,
    Seen,
    Slack,
    StoppingRule,
    boundary,
    look,
    look_until_all_end,
    look_until_end,
    spread_factor,
)


@pytest.mark.parametrize(("score", "count"), [(0.5, 20), (3.0, 20), (2.5, 100), (4.0, 150)])
def test_the_p_value_is_one_over_the_likelihood_ratio(score: float, count: int) -> None:
    """The marginal likelihood of t, effects drawn from a normal law, by integration."""

    def at(effect: float) -> float:
        shifted = stats.nct.pdf(score, count - 1, effect * math.sqrt(count))
        return float(shifted * stats.norm.pdf(effect, scale=EFFECT_SPREAD))

    peak = score / math.sqrt(count)
    likely, _ = integrate.quad(at, -3, 3, points=[peak], limit=200)
    expected = min(1.0, stats.t.pdf(score, count - 1) / likely)
    assert anytime_p_value(score, count) == pytest.approx(expected, rel=1e-5)


@pytest.mark.parametrize("count", [20, 60, 640])
@pytest.mark.parametrize("confidence", [0.95, 0.998])
def test_intervals_agree_with_the_p_value_and_are_wider_than_students(
    count: int, confidence: float
) -> None:
    quantile = anytime_quantile(count, confidence)
    assert anytime_p_value(quantile, count) == pytest.approx(1 - confidence)
    assert 1.2 < quantile / t_quantile(count, confidence) < 2


def test_few_seeds_say_nothing() -> None:
    assert math.isinf(anytime_quantile(2, 0.998)) and math.isinf(anytime_quantile(1))
    assert anytime_p_value(3.0, 2) > 0.05


def test_looking_after_every_seed_finds_nothing_that_is_not_there() -> None:
    """400 samples of up to 400 seeds: the usual t-test errs in a third; 5 % ± 3.3 has a chance of 0.3 %."""
    values = np.random.default_rng(5).normal(size=(400, 400))
    counts = np.arange(1, 401)
    means = values.cumsum(axis=1) / counts
    squares = (values**2).cumsum(axis=1) - counts * means**2
    with np.errstate(divide="ignore", invalid="ignore"):
        scores = np.abs(means) / np.sqrt(squares / (counts - 1) / counts)
    looks = range(20, 401)
    naive = np.array([t_quantile(count) for count in looks])
    anytime = np.array([anytime_quantile(count) for count in looks])
    assert (scores[:, 19:] > naive).any(axis=1).mean() > 0.2
    assert (scores[:, 19:] > anytime).any(axis=1).mean() <= 0.05 + 0.033


def pairs(shift: float, spread: float, count: int, seed: int = 0) -> list[Pair]:
    rng = np.random.default_rng(seed)
    first = rng.normal(100, 10, count)
    return [Pair(first, first + shift + rng.normal(0, spread, count))]


def test_deciding_ends_with_a_safe_verdict() -> None:
    rule = StoppingRule(decides=True)
    assert look(pairs(-5, 5, 40), rule).end == DECIDED
    found = look(pairs(-0.2, 5, 40), rule)
    assert (found.end, found.found[0].verdict) == (GOES_ON, UNCLEAR)
    assert look(pairs(0, 5, 640), rule).end == SPENT


def test_precision_ends_with_narrow_intervals() -> None:
    rule = StoppingRule(precision=0.01)
    found = look(pairs(0, 2, 20), rule)
    assert found.end == PRECISE and found.found[0].verdict == UNCLEAR
    wide = look(pairs(0, 6, 20), rule)
    assert wide.end == GOES_ON
    assert 22 <= rule.next_count(20, wide.seen) <= 40


def test_with_both_either_is_enough() -> None:
    rule = StoppingRule(decides=True, precision=0.02)
    assert look(pairs(-30, 20, 60), rule).end == DECIDED
    found = look(pairs(0, 2, 60), rule)
    assert found.end == PRECISE
    assert found.found[0].simultaneous.method == "anytime-valid t"


def test_the_budget_is_never_passed() -> None:
    rule = StoppingRule(decides=True, most_seeds=50)
    assert rule.next_count(40, ()) == 50
    assert StoppingRule(decides=True).next_count(20, ()) == 30


def test_one_looks_until_a_look_ends_it() -> None:
    rule = StoppingRule(decides=True, most_seeds=50)

    def look_at(count: int) -> Look[str]:
        return Look(count, f"{count} seeds", end=rule.end(count, [Seen(1.0, is_decided=False)]))

    looks = look_until_end(rule, 20, look_at)
    assert [one.found for one in looks] == ["20 seeds", "30 seeds", "45 seeds", "50 seeds"]
    assert [one.end for one in looks] == [GOES_ON, GOES_ON, GOES_ON, SPENT]


def test_questions_that_are_answered_are_left_alone() -> None:
    asked = []

    def look_at(counts: Mapping[str, int]) -> dict[str, Look[None]]:
        asked.append(dict(counts))
        ends = {"early": 32, "late": 100}
        return {
            name: Look(count, None, end=DECIDED if count >= ends[name] else GOES_ON)
            for name, count in counts.items()
        }

    looks = look_until_all_end(FixedCounts((32, 64, 100)), {"early": 32, "late": 32}, look_at)
    assert asked == [{"early": 32, "late": 32}, {"late": 64}, {"late": 100}]
    assert {name: [one.num_seeds for one in all] for name, all in looks.items()} == {
        "early": [32],
        "late": [32, 64, 100],
    }


def test_an_estimate_says_how_it_was_made() -> None:
    values = np.random.default_rng(1).normal(size=30)
    assert estimate(values, is_anytime=True).method == "anytime-valid t"
    assert look(pairs(-9, 1, 30), StoppingRule(decides=True)).found[0].verdict == BETTER


# Kim's and Nelson's procedure: its formula, who is left, and how often it errs


def run(values: np.ndarray, zone: float, slacks: np.ndarray | None = None, error: float = 0.05):
    """Looks after every tenth seed from 20 on; the selection and the seeds that it took."""
    finalists = Finalists(len(values), 20, zone, error)
    for count in range(20, values.shape[1] + 1, 10):
        kept = [
            [] if slacks is None else [Slack(slacks[at, :count], 0.2)] for at in range(len(values))
        ]
        found = finalists.look(list(values[:, :count]), kept)
        if found.is_over:
            break
    return found, count


def test_the_boundary_is_that_of_the_paper() -> None:
    """k = 2, n = 10, α = 0.05: η = (0.1^(-2/9) - 1) ÷ 2, h² = 2 η · 9; W falls to 0 at h² S² ÷ δ²."""
    eta = 0.5 * ((2 * 0.05) ** (-2 / 9) - 1)
    factor = spread_factor(10, 0.05)
    assert factor == pytest.approx(2 * eta * 9)
    assert boundary(4.0, 2.0, factor, 10) == pytest.approx(max(0, 2.0 / 2 * (factor * 4 / 4 - 10)))
    assert boundary(4.0, 2.0, factor, math.ceil(factor)) == 0


def test_the_best_is_left_and_bad_ones_go_first() -> None:
    noise = np.random.default_rng(0).normal(size=(3, 2000))
    found, count = run(noise + np.array([[0.0], [0.2], [5.0]]), 0.2)
    assert found.left == (0,) and found.out_by[1] == 0 and found.is_over
    assert 20 < count < 2000
    finalists = Finalists(3, 20, 0.3, 0.05)
    first = finalists.look(list(noise[:, :20] + np.array([[0.0], [0.0], [5.0]])), [[]] * 3)
    assert first.left == (0, 1) and not first.is_over


def test_shared_seeds_save_seeds() -> None:
    rng = np.random.default_rng(1)
    shared = rng.normal(size=(1, 4000))
    means = np.array([[0.0], [0.3]])
    _, alone = run(rng.normal(size=(2, 4000)) + means, 0.2)
    _, paired = run(0.95 * shared + 0.3 * rng.normal(size=(2, 4000)) + means, 0.2)
    assert paired < alone / 3


def test_the_wrong_one_is_chosen_in_at_most_5_percent() -> None:
    """300 samples of four systems, the best by just the zone; 5 % + 3.3 points has a chance of 0.5 %."""
    rng = np.random.default_rng(2)
    wrong = 0
    for _ in range(300):
        values = rng.normal(size=(4, 3000)) + np.array([[0.3], [0.0], [0.3], [0.3]])
        found, _ = run(values, 0.3)
        wrong += found.left != (1,)
    assert wrong / 300 <= 0.083


def test_constraints_come_first() -> None:
    """The fastest misses its constraint; the second best keeps it, and is chosen."""
    rng = np.random.default_rng(3)
    values = rng.normal(size=(3, 3000)) + np.array([[0.0], [1.0], [2.0]])
    slacks = rng.normal(size=(3, 3000)) + np.array([[-1.0], [1.0], [1.0]])
    found, _ = run(values, 0.5, slacks)
    assert found.feasible == (MISSED, KEPT, KEPT) and found.left == (1,)
    nobody, _ = run(values, 0.5, slacks - 5)
    assert nobody.left == () and nobody.is_over
    unsure = [[Slack(one, 0.05)] for one in rng.normal(size=(3, 20))]
    early = Finalists(3, 20, 0.5, 0.05).look(list(values[:, :20]), unsure)
    assert early.feasible == (OPEN,) * 3 and early.left == (0, 1, 2)


def test_what_makes_no_selection_is_refused() -> None:
    for wrong in ((1, 20, 1.0, 0.05), (2, 2, 1.0, 0.05), (2, 20, 0.0, 0.05), (2, 20, 1.0, 0.6)):
        with pytest.raises(ConfigError, match="a selection needs two systems or more"):
            Finalists(*wrong)
