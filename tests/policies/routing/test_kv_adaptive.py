"""A hard switch at half full."""

import numpy as np
import pytest

from blis_jax.policies.routing.kv_adaptive import kv_adaptive
from tests.policies.made import asked, decision

pytestmark = pytest.mark.usefixtures("in_64_bits")
JUST_BELOW = float(np.nextafter(0.5, 0))


@pytest.mark.parametrize(("fullest", "instance"), [(JUST_BELOW, 0), (0.5, 1), (1.0, 1)])
def test_the_weights_switch_when_the_fullest_instance_is_half_full(fullest: float, instance: int):
    """Half the prompt is cached on the first: 3·0.5 > 2·0.5 before, 2·0.5 < 5·0.5 then."""
    context = asked([0, 0], utilization=[fullest, 0.0], matched=[2, 0])
    assert decision(kv_adaptive, context) == instance


def test_a_full_inactive_instance_does_not_switch_the_weights():
    context = asked(
        [0, 0, 0], utilization=[0.4, 0.0, 1.0], matched=[2, 0, 0], is_active=[True, True, False]
    )
    assert decision(kv_adaptive, context) == 0
