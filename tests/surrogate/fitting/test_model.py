import jax
import jax.numpy as jnp
import numpy as np
import pytest

from surrogate.fitting.model import LEVELS, Network, gate, quantiles


def test_quantiles_never_cross() -> None:
    steps = jax.random.normal(jax.random.key(0), (200, 3, len(LEVELS))) * 10
    assert (np.diff(np.asarray(quantiles(steps)), axis=-1) > 0).all()


@pytest.mark.slow
def test_heads_have_one_entry_an_output() -> None:
    network = Network(3, width=8, depth=1)
    params = network.init(jax.random.key(0), jnp.zeros((1, 4)))
    heads = network.apply(params, jnp.zeros((5, 4)))
    assert [head.shape for head in heads] == [(5, 3), (5, 3), (5, 3, len(LEVELS)), (5, 32)]


def test_spread_heads_do_not_move_the_trunk() -> None:
    network = Network(2, width=8, depth=1)
    x = jnp.ones((3, 4))
    params = network.init(jax.random.key(0), x)
    slopes = jax.grad(lambda p: network.apply(p, x).log_sd.sum())(params)["params"]
    assert not np.asarray(slopes["Dense_0"]["kernel"]).any()
    assert np.asarray(slopes["narrow"]["kernel"]).any()


def test_gate_is_a_smooth_rectifier() -> None:
    assert abs(float(gate(jnp.float32(-50.0)))) < 0.01
    assert abs(float(gate(jnp.float32(50.0))) - 50.0) < 0.01
    assert float(jax.grad(gate)(jnp.float32(0.0))) == 0.5
