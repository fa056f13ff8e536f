"""Free KV blocks as a score."""

import pytest

from blis_jax.policies.scorers.cache import kv_pressure
from tests.policies.made import asked, decision

pytestmark = pytest.mark.usefixtures("in_64_bits")


def test_free_blocks_are_compared_with_the_most_that_an_instance_has():
    context = asked([0, 0, 0], free_kv_blocks=[30.0, 100.0, 0.0])
    assert decision(kv_pressure, context).tolist() == [0.3, 1.0, 0.0]


def test_without_free_blocks_every_instance_scores_0():
    """As before the first refresh of an old view, which reads 0 everywhere."""
    assert decision(kv_pressure, asked([3, 1], free_kv_blocks=[0.0, 0.0])).tolist() == [0.0, 0.0]


def test_an_inactive_instance_does_not_count():
    seen = {"free_kv_blocks": [50.0, 100.0, 900.0], "is_active": [True, True, False]}
    assert decision(kv_pressure, asked([0, 0, 0], **seen))[:2].tolist() == [0.5, 1.0]
