import jax
import jax.numpy as jnp
import numpy as np

from surrogate.columns import InputColumn
from surrogate.fitting.features import features, num_features
from tests.surrogate.made_data import COLUMNS


def at(*values: float) -> np.ndarray:
    return np.asarray(features(COLUMNS, jnp.asarray([values], jnp.float32)))[0]


def test_ends_of_ranges_are_minus_one_and_one() -> None:
    low, high = at(0.5, 1, 0), at(2.0, 100, 0)
    assert num_features(COLUMNS) == len(low) == 7
    np.testing.assert_allclose(low[:2], [-1, -1], atol=1e-6)  # linear and logarithm of load
    np.testing.assert_allclose(high[:2], [1, 1], atol=1e-6)
    np.testing.assert_allclose(high[3:5], [1, 1], atol=1e-6)


def test_no_limit_is_marked_and_stands_at_the_high_end() -> None:
    unlimited, high = at(1.0, 0, 0), at(1.0, 100, 0)
    assert unlimited[2] == 1 and high[2] == 0
    np.testing.assert_array_equal(unlimited[3:], high[3:])


def test_categories_have_a_number_each() -> None:
    assert at(1.0, 5, 0)[-2:].tolist() == [1, 0]
    assert at(1.0, 5, 1)[-2:].tolist() == [0, 1]


def test_log_range_is_even_in_factors() -> None:
    columns = (InputColumn("weight", "real", 1e-6, 1e-4, is_log=True),)
    seen = features(columns, jnp.asarray([[1e-6], [1e-5], [1e-4]], jnp.float32))
    np.testing.assert_allclose(np.asarray(seen)[:, 0], [-1, 0, 1], atol=1e-5)


WEIGHTS = tuple(
    InputColumn(name, "real", 0.1, 5.0, fixed_weights=1.0) for name in ("queue", "prefix")
)


def test_weights_are_also_seen_by_their_shares() -> None:
    seen = np.asarray(features(WEIGHTS, jnp.asarray([[1.0, 2.0], [4.0, 0.0]], jnp.float32)))
    np.testing.assert_allclose((seen[:, -2:] + 1) / 2, [[0.25, 0.5], [0.8, 0.0]], atol=1e-6)
    slopes = jax.jacobian(lambda x: features(WEIGHTS, x))(jnp.zeros((1, 2), jnp.float32))
    assert np.isfinite(np.asarray(slopes)).all()


def test_the_only_weight_has_no_share() -> None:
    alone = tuple(InputColumn("queue", "real", 1.0, 5.0, fixed_weights=part) for part in (0.0, 2.0))
    assert [num_features(alone[:1]), num_features(alone[1:])] == [2, 3]


def test_derivatives_are_finite_at_the_edges() -> None:
    for values in ([0.5, 0.0, 0.0], [2.0, 100.0, 1.0], [-3.0, -7.0, 0.0]):
        point = jnp.asarray([values], jnp.float32)
        slopes = jax.jacobian(lambda x: features(COLUMNS, x))(point)
        assert np.isfinite(np.asarray(slopes)).all()
