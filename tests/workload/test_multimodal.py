"""Multimodal prompts of the device generator against those of the reference, in law.

Two samples of NUM draws of one law stray from each other by more than TOLERANCE with probability
below 1e-6 (Dvoretzky-Kiefer-Wolfowitz for each). Seeds are fixed.
"""

import math

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from blis_jax.errors import ConfigError
from blis_jax.workload.drawing import samplers
from blis_jax.workload.drawing.draw import compile_plan, draw, params_for
from blis_jax.workload.drawing.plan_params import multimodal_params
from blis_jax.workload.go_random import Stream
from blis_jax.workload.reference.clients import modality_parts
from blis_jax.workload.spec import MultimodalSpec, parse_spec

NUM = 20_000
TOLERANCE = 2 * math.sqrt(math.log(4 / 1e-6) / (2 * NUM))


@pytest.fixture(autouse=True)
def wide_numbers():
    with jax.enable_x64(True):
        yield


def gaussian(mean, std_dev, low, high):
    return {
        "type": "gaussian",
        "params": {"mean": mean, "std_dev": std_dev, "min": low, "max": high},
    }


def constant(value):
    return {"type": "constant", "params": {"value": value}}


TEXT = gaussian(100, 30, 10, 300)
EXPONENTIAL = {"type": "exponential", "params": {"mean": 2}}
SPECS = {
    "nothing": {},
    "text": {"text_distribution": TEXT},
    "images": {
        "text_distribution": TEXT,
        "image_distribution": constant(144),
        "image_count_distribution": gaussian(2, 1, 0, 4),
    },
    "no images": {
        "text_distribution": TEXT,
        "image_distribution": constant(144),
        "image_count_distribution": gaussian(0, 0, 0, 0),
    },
    "sometimes no video": {
        "video_distribution": gaussian(40, 5, 1, 90),
        "video_count_distribution": {"type": "empirical", "params": {0: 0.5, 1: 0.3, 3: 0.2}},
    },
    "all": {
        "text_distribution": EXPONENTIAL,
        "image_distribution": gaussian(50, 20, 1, 90),
        "image_count_distribution": EXPONENTIAL,
        "audio_distribution": EXPONENTIAL,
        "audio_count_distribution": constant(2),
        "video_distribution": constant(0),
        "video_count_distribution": EXPONENTIAL,
    },
    "halves": {"text_distribution": TEXT, "audio_distribution": constant(1000)},
}


@pytest.mark.statistical
@pytest.mark.parametrize("name", SPECS)
def test_lengths_have_the_references_law(name):
    spec = MultimodalSpec.model_validate(SPECS[name])
    params = jax.tree.map(jnp.asarray, multimodal_params(spec))
    drawn = samplers.whole_tokens(params.draw(jax.random.key(2), NUM))
    parts, stream = modality_parts(spec), Stream(8)
    expected = np.array([max(sum(parts(stream)), 1) for _ in range(NUM)])
    points = np.union1d(drawn, expected)
    mine, theirs = (
        np.searchsorted(np.sort(sample), points, side="right") / NUM for sample in (drawn, expected)
    )
    assert np.abs(mine - theirs).max() < TOLERANCE
    assert np.asarray(drawn).min() == expected.min()


def scene(image_count, mean=100.0):
    law = "{type: constant, params: {value: 32}}"
    text = f"""
version: "2"
aggregate_rate: 100
num_requests: 50
clients:
  - rate_fraction: 1
    arrival: {{process: poisson}}
    input_distribution: {law}
    output_distribution: {law}
    prefix_group: p
    multimodal:
      text_distribution: {{type: exponential, params: {{mean: {mean}}}}}
      image_distribution: {law}
      image_count_distribution: {image_count}
  - rate_fraction: 1
    arrival: {{process: poisson}}
    input_distribution: {law}
    output_distribution: {law}
"""
    return parse_spec(text)


@pytest.mark.slow
def test_multimodal_clients_are_drawn_beside_others():
    plan = compile_plan(scene("{type: constant, params: {value: 3}}"))
    table, is_short = draw(plan.shape, plan.params, jax.random.key(0))
    input_len = np.asarray(table.input_len)
    is_multimodal = np.asarray(table.client) == 0
    assert not is_short
    assert np.all(input_len[~is_multimodal] == 32)
    assert np.all(input_len[is_multimodal] > 50 + 3 * 32)
    assert len(set(input_len[is_multimodal])) > 10


@pytest.mark.slow
def test_numbers_change_without_another_plan_unless_more_items_are_drawn():
    two, four = (
        f"{{type: gaussian, params: {{mean: 1, std_dev: 1, min: 0, max: {most}}}}}"
        for most in (2, 4)
    )
    plan = compile_plan(scene(two))
    other = params_for(plan.shape, scene(two, mean=900.0))
    table, _ = draw(plan.shape, other, jax.random.key(0))
    assert np.asarray(table.input_len).max() > 1500
    with pytest.raises(ConfigError, match="compile a plan of its own"):
        params_for(plan.shape, scene(four))


def test_too_many_items_are_refused():
    with pytest.raises(ConfigError) as caught:
        compile_plan(scene("{type: exponential, params: {mean: 100000}}"))
    assert "clients[0].multimodal" in str(caught.value)
    assert "--rng reference" in str(caught.value)
