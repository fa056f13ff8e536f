"""How often a request was scheduled, read off one number."""

import numpy as np

from blis_jax.records.stays import times_scheduled


def test_a_dropped_request_was_scheduled_as_often_as_before() -> None:
    """-1 and -3 say never and once before it was dropped, -2 and -4 the same of one whose time was up."""
    column = np.array([0, 3, -1, -2, -3, -4, -7])
    assert times_scheduled(column).tolist() == [0, 3, 0, 0, 1, 1, 3]
