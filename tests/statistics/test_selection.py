"""Kim's and Nelson's procedure: its formula, who is left, and how often it errs."""

import math

import numpy as np
import pytest

from blis_jax.errors import ConfigError
from blis_jax.statistics.selection import (
    KEPT,
    MISSED,
    OPEN,
    Finalists,
    Slack,
    boundary,
    spread_factor,
)


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
