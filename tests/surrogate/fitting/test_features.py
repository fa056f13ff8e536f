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


def test_derivatives_are_finite_at_the_edges() -> None:
    for values in ([0.5, 0.0, 0.0], [2.0, 100.0, 1.0], [-3.0, -7.0, 0.0]):
        point = jnp.asarray([values], jnp.float32)
        slopes = jax.jacobian(lambda x: features(COLUMNS, x))(point)
        assert np.isfinite(np.asarray(slopes)).all()
