"""Prefill saved against waiting: the formula, and where it says 0.5, 0 and 1."""

import pytest

from blis_jax.policies.scorers.cost_benefit import cost_benefit
from tests.policies.made import asked, decision

pytestmark = pytest.mark.usefixtures("in_64_bits")
STEP = 6910.42 + 2.84


def test_saved_prefill_is_divided_by_saved_prefill_and_waiting():
    """70 tokens of which 48 are cached; two requests more than on the least loaded instance."""
    saved = 17.67 * 70 - 17.67 * (70 - 48)
    found = decision(cost_benefit, asked([5, 3], matched=[3, 0], input_len=70))
    assert found.tolist() == [saved / (saved + 2 * STEP), 0.5]


def test_a_cached_prompt_without_waiting_scores_1_and_waiting_for_nothing_0():
    found = decision(cost_benefit, asked([3, 4], matched=[4, 0]))
    assert found.tolist() == [1.0, 0.0]


def test_a_prompt_shorter_than_a_block_is_neutral_whatever_the_load():
    found = decision(cost_benefit, asked([0, 9], blocks=0, input_len=15))
    assert found.tolist() == [0.5, 0.5]


def test_no_less_than_no_token_is_left_to_compute():
    context = asked([1, 0], matched=[4, 0], input_len=60)  # 64 tokens would be cached
    saved = 17.67 * 60
    assert decision(cost_benefit, context)[0] == saved / (saved + STEP)


def test_the_least_load_is_that_of_active_instances():
    context = asked([5, 3, 0], matched=[4, 0, 0], is_active=[True, True, False])
    saved = 17.67 * 64
    assert decision(cost_benefit, context)[0] == saved / (saved + 2 * STEP)
