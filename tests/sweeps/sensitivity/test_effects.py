"""Effects and best ranges of made-up responses, and surrogates in the simulator's place."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path

import numpy as np
import pytest

from blis_jax.errors import ConfigError
from surrogate.columns import InputColumn
from sweeps.sensitivity.effects import (
    ANYWHERE,
    INSIDE,
    LOWER,
    UPPER,
    best_ranges,
    effect_of,
    pair_effect_of,
)
from sweeps.sensitivity.indices import Resampling
from sweeps.sensitivity.model import Predicted, Sizes, levels_of, load_surrogate
from sweeps.strategies.file import load_strategy
from sweeps.strategies.space import Dimension, sobol_shares, space_of
from tests.sweeps.tiny import tiny_space

DIMENSIONS = (
    Dimension("x", "x", "real", 10.0, 20.0),
    Dimension("y", "y", "integer", 1, 4),
    Dimension("z", "z", "categorical", categories=("p", "q")),
    Dimension("u", "u", "real", 1e-6, 1e-4, is_log=True),
)
RESAMPLING = Resampling(resamples=200)


class Made:
    """A response of shares with four seeds."""

    names = ("metric",)

    def evaluate(self, shares: np.ndarray) -> np.ndarray:
        """3 x + 4 x u, and a shift by seed."""
        value = 3 * shares[:, 0] + 4 * shares[:, 0] * shares[:, 3]
        return value[:, None, None] + np.array([0.0, 1.0, -1.0, 0.5])[:, None]


def test_levels_are_both_ends_all_choices_and_whole_numbers_once() -> None:
    assert levels_of(DIMENSIONS[0], 5).tolist() == [0.0, 0.25, 0.5, 0.75, 1.0]
    assert [DIMENSIONS[1].at(share) for share in levels_of(DIMENSIONS[1], 9)] == [1, 2, 3, 4]
    assert [DIMENSIONS[2].at(share) for share in levels_of(DIMENSIONS[2], 9)] == ["p", "q"]


def test_an_effect_is_the_mean_over_the_other_parameters() -> None:
    found = effect_of(Made(), DIMENSIONS, 0, 5, 64, RESAMPLING)
    slope = 3 + 4 * sobol_shares(4, 64, 2)[:, 3].mean()
    shift = 0.125
    np.testing.assert_allclose(found.mean[0], slope * found.shares + shift, rtol=1e-9)
    assert slope == pytest.approx(5, abs=0.1)
    np.testing.assert_allclose(found.of_seeds, 0, atol=1e-9)  # the seeds shift all levels alike
    assert found.of_points[0].max() > 0
    flat = effect_of(Made(), DIMENSIONS, 1, 5, 64, RESAMPLING)
    assert np.ptp(flat.mean) < 1e-9


def test_a_pair_effect_has_the_interaction() -> None:
    found = pair_effect_of(Made(), DIMENSIONS, (0, 3), 5, 4, 0)
    one, other = found.shares
    expected = 3 * one[:, None] + 4 * one[:, None] * other[None, :] + 0.125
    np.testing.assert_allclose(found.mean[0], expected, rtol=1e-9)


def test_best_ranges_say_where_the_best_points_are() -> None:
    dimensions = tuple(Dimension(name, name, "real", 0.0, 10.0) for name in "abcd")
    shares = np.random.default_rng(1).random((4096, 4))
    score = shares[:, 0] + (1 - shares[:, 1]) + 4 * np.abs(shares[:, 2] - 0.5)
    score[::50] = np.nan
    found = best_ranges(dimensions, shares, score, 512, RESAMPLING)
    assert [one.where for one in found] == [LOWER, UPPER, INSIDE, ANYWHERE]
    assert found[0].low[1] <= found[0].low[0] <= found[0].low[2] < 0.5
    assert 3 < found[2].low[0] < found[2].best < found[2].high[0] < 7
    assert best_ranges(dimensions, shares, np.full(4096, np.nan), 512, RESAMPLING) == []


def test_choices_have_shares_of_the_best_points() -> None:
    shares = np.random.default_rng(1).random((2000, 4))
    score = np.where(shares[:, 2] < 0.5, 0.0, 1.0) + 0.1 * shares[:, 0]
    found = best_ranges(DIMENSIONS, shares, score, 500, RESAMPLING)
    assert found[2].best == "p" and found[2].shares == (1.0, 0.0)


class Linear:
    """A surrogate of the tiny strategy whose inputs are in another order."""

    names = ("max_num_scheduled_tokens", "slo_base_critical", "routing_scorers.queue-depth")
    outputs = ("e2e_p99_ms",)

    def __init__(self, most_tokens: float = 2048) -> None:
        self.bounds = ((600, most_tokens), (5, 20), (1, 2))

    def predict_mean(self, points: np.ndarray) -> Mapping[str, np.ndarray]:
        return {"e2e_p99_ms": points @ np.array([1.0, 10_000.0, 1e6])}


def test_a_surrogate_gets_the_values_in_its_own_order() -> None:
    space = tiny_space()
    found = Predicted(space, Linear(), ("e2e_p99_ms", "tokens_per_sec"))
    share = np.array([[0.2, 0.5, 0.9]])
    base, tokens, weight = space.at(share[0])
    value = found.evaluate(share)
    assert value.shape == (1, 1, 2)
    assert value[0, 0, 0] == pytest.approx(tokens + 10_000 * base + 1e6 * weight)
    assert np.isnan(value[0, 0, 1])


class Members(Linear):
    """Two members that differ by a constant, and a metric too many."""

    def predict_members(self, points: np.ndarray) -> Mapping[str, np.ndarray]:
        mean = self.predict_mean(points)["e2e_p99_ms"]
        return {"e2e_p99_ms": np.stack([mean - 1, mean + 1], axis=1), "other": np.zeros((1, 2))}


def test_members_take_the_place_of_seeds() -> None:
    space, share = tiny_space(), np.array([[0.2, 0.5, 0.9]])
    mean = Predicted(space, Linear(), ("e2e_p99_ms",)).evaluate(share)[0, 0, 0]
    value = Predicted(space, Members(), ("tokens_per_sec", "e2e_p99_ms")).evaluate(share)
    assert value.shape == (1, 2, 2) and np.isnan(value[..., 0]).all()
    assert value[0, :, 1] == pytest.approx([mean - 1, mean + 1])


def test_surrogates_of_another_space_are_refused() -> None:
    space = tiny_space()
    with pytest.raises(ConfigError, match="predicts none of the metrics"):
        Predicted(space, Linear(), ("tokens_per_sec",))
    with pytest.raises(ConfigError, match="fitted on max_num_scheduled_tokens from 600 to 1000"):
        Predicted(space, Linear(1000), ("e2e_p99_ms",))
    other = Linear()
    other.names = ("a", "b", "c")
    with pytest.raises(ConfigError, match=r"its inputs are a, b, c, but"):
        Predicted(space, other, ("e2e_p99_ms",))


def test_a_surrogate_that_is_not_there_is_refused_in_a_sentence() -> None:
    with pytest.raises(ConfigError, match=r"--surrogate: (this installation|nowhere does not)"):
        load_surrogate("nowhere")


def test_surrogates_of_our_own_are_found_and_refused_in_a_sentence(tmp_path: Path) -> None:
    """The package of the surrogates is where the option looks for it."""
    with pytest.raises(ConfigError):
        load_surrogate(str(tmp_path))


def test_choices_are_given_as_their_places() -> None:
    space = space_of(load_strategy("iter01_priority_cascade"))
    columns = tuple(
        InputColumn(
            one.name,
            "categorical" if one.categories else "real",
            0.0 if one.categories else one.low,
            len(one.categories) - 1.0 if one.categories else one.high,
            categories=tuple(one.categories or ()),
        )
        for one in space.dimensions
    )
    seen: list[np.ndarray] = []

    class Own:
        names = tuple(column.name for column in columns)
        bounds = tuple((column.low, column.high) for column in columns)
        outputs = ("e2e_p99_ms",)

        def predict_mean(self, points: np.ndarray) -> dict[str, np.ndarray]:
            seen.append(points)
            return {"e2e_p99_ms": points.sum(axis=1)}

    own = Own()
    own.columns = columns
    Predicted(space, own, ("e2e_p99_ms",)).evaluate(np.full((2, len(columns)), 0.999))
    place = own.names.index("slo_scorer_weight")
    assert seen[0][:, place].tolist() == [3.0, 3.0]


def test_sizes_that_give_no_index_are_refused() -> None:
    for sizes, message in (
        (Sizes(base=100), "power of two"),
        (Sizes(trajectories=1), "--trajectories: got 1"),
        (Sizes(pairs=-1), "--pairs: got -1"),
    ):
        with pytest.raises(ConfigError, match=message):
            sizes.check()
