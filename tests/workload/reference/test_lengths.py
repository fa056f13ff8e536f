"""Laws of lengths: means, bounds, rounding, and which of them draw nothing."""

import math

import numpy as np
import pytest
from pydantic import TypeAdapter

from blis_jax.workload.go_random import Stream
from blis_jax.workload.length_laws import LengthLaw, RevisedLengthLaw
from blis_jax.workload.reference.laws import length_law, whole_tokens

COUNT = 20_000


def law_of(kind, params):
    return length_law(TypeAdapter(LengthLaw).validate_python({"type": kind, "params": params}))


def drawn(kind, params, count=COUNT, seed=6):
    law, stream = law_of(kind, params), Stream(seed)
    return np.array([law(stream) for _ in range(count)])


def test_gaussian_lengths_are_rounded_and_clamped():
    params = {"mean": 100, "std_dev": 40, "min": 30, "max": 160}
    lengths = drawn("gaussian", params)
    assert (lengths.min(), lengths.max()) == (30, 160)
    first = Stream(6).norm_float64() * 40.0 + 100.0
    assert lengths[0] == round(first)
    assert abs(lengths.mean() - 100) < 5 * 40 / math.sqrt(COUNT) + 1


def test_gaussian_lengths_below_one_become_one():
    assert drawn("gaussian", {"mean": 0, "std_dev": 1, "min": 0, "max": 9}, 200).min() == 1


def test_exponential_lengths():
    lengths = drawn("exponential", {"mean": 50})
    assert lengths.min() == 1
    assert abs(lengths.mean() - 50) < 5 * 50 / math.sqrt(COUNT)
    assert lengths[0] == round(Stream(6).exp_float64() * 50)


def test_both_parts_of_the_heavy_tailed_mixture():
    heavy = {"alpha": 3.0, "xm": 40, "mu": 3.0, "sigma": 0.5}
    pareto = drawn("pareto_lognormal", {**heavy, "mix_weight": 1.0})
    assert pareto.min() == 40
    assert abs(np.median(pareto) - 40 * 2 ** (1 / 3)) < 1.5
    lognormal = drawn("pareto_lognormal", {**heavy, "mix_weight": 0.0})
    assert abs(np.median(lognormal) - math.exp(3)) < 1
    both = drawn("pareto_lognormal", {**heavy, "mix_weight": 0.5})
    assert math.isclose(both.mean(), (pareto.mean() + lognormal.mean()) / 2, rel_tol=0.05)


def test_lengths_that_do_not_fit_count_as_one():
    huge = {"alpha": 3.0, "xm": 40, "mu": 800.0, "sigma": 0.0, "mix_weight": 0.0}
    assert drawn("pareto_lognormal", huge, 3).tolist() == [1, 1, 1]
    assert whole_tokens(1e300) == whole_tokens(math.nan) == 1


def test_empirical_lengths_follow_their_weights():
    lengths = drawn("empirical", {10: 1.0, 20: 0.0, 30: 3.0})
    values, counts = np.unique(lengths, return_counts=True)
    assert values.tolist() == [10, 30]
    assert abs(counts[0] / COUNT - 0.25) < 5 * 0.44 / math.sqrt(COUNT)
    assert lengths[0] == (10 if Stream(6).float64() <= 0.25 else 30)


def test_weights_are_added_one_by_one():
    """An exact sum of ten tenths is 1; added one by one they come to less."""
    weights = dict.fromkeys(range(1, 11), 0.1)
    drawn_by_hand, total = Stream(6), 0.0
    for weight in weights.values():
        total += weight
    edges = np.cumsum(np.array(list(weights.values())) / total)
    expected = [1 + np.searchsorted(edges, drawn_by_hand.float64()) for _ in range(500)]
    assert total < 1.0
    assert drawn("empirical", weights, 500).tolist() == expected


@pytest.mark.parametrize(
    ("kind", "params", "value"),
    [
        ("constant", {"value": 7}, 7),
        ("constant", {"value": 0}, 1),
        ("empirical", {12: 2.0}, 12),
        ("empirical", {12: 2.0, 15: 0.0}, 12),
        ("gaussian", {"mean": 3, "std_dev": 9, "min": 8, "max": 8}, 8),
        ("gaussian", {"mean": 3, "std_dev": 9, "min": 0, "max": 0}, 0),
    ],
)
def test_laws_with_one_value_draw_nothing(kind, params, value):
    stream = Stream(2)
    assert law_of(kind, params)(stream) == value
    assert stream.int63() == Stream(2).int63()


def test_bounds_apply_after_rounding_and_the_upper_one_last():
    params = {"mean": 20.0, "min": 8, "max": 30}
    law = TypeAdapter(RevisedLengthLaw).validate_python({"type": "exponential", "params": params})
    plain = TypeAdapter(LengthLaw).validate_python({"type": "exponential", "params": params})
    drawn, free = (
        np.array([draw(stream) for _ in range(200)])
        for draw, stream in ((length_law(law), Stream(4)), (length_law(plain), Stream(4)))
    )
    assert np.array_equal(drawn, np.clip(free, 8, 30)) and free.min() < 8 and free.max() > 30


def test_lognormal_lengths_are_the_rounded_exponentials_of_normal_ones():
    def law_of(**params):
        law = {"type": "lognormal", "params": {"mu": 3.0, "sigma": 0.8, **params}}
        return length_law(TypeAdapter(RevisedLengthLaw).validate_python(law))

    stream, other = Stream(4), Stream(4)
    free = [law_of()(stream) for _ in range(50)]
    assert free == [max(round(math.exp(3.0 + 0.8 * other.norm_float64())), 1) for _ in range(50)]
    stream = Stream(4)
    assert [law_of(min=12, max=30)(stream) for _ in range(50)] == np.clip(free, 12, 30).tolist()
    assert {law_of(sigma=1e9, min=7)(Stream(seed)) for seed in range(20)} == {7}
