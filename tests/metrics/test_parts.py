"""Which requests BLIS lists and counts where requests are split."""

from types import SimpleNamespace

import numpy as np

from blis_jax.metrics.parts import is_listed
from blis_jax.metrics.reference import per_slo
from blis_jax.results.records import Status

# whole and completed, whole and dropped, completed, dropped at decode, dropped before, decoding at the horizon
STATUS = [Status.COMPLETED, Status.DROPPED]
STATUS += [Status.COMPLETED, Status.DROPPED, Status.DROPPED, Status.RUNNING]
RECORD = SimpleNamespace(
    requests=SimpleNamespace(
        instance=np.array([0, 1, 1, 1, 0, 1]),
        status=np.array(STATUS),
        slo_class=np.zeros(6, int),
        ttft_us=np.array([10, -1, 20, 30, -1, 40]),
        e2e_us=np.array([100, -1, 200, 300, -1, -1]),
    ),
    splits=SimpleNamespace(
        is_split=np.array([False, False, True, True, True, True]),
        is_ended=np.array([True, True, True, True, False, False]),
    ),
)


def test_split_requests_are_listed_once_their_decode_part_has_ended():
    assert is_listed(RECORD).tolist() == [True, False, True, True, False, False]
    whole = SimpleNamespace(requests=RECORD.requests, splits=None)
    assert is_listed(whole).tolist() == [True, False, True, False, False, True]


def test_classes_count_no_first_token_of_a_request_that_still_decodes():
    (figures,) = per_slo(RECORD).values()
    assert (figures["ttft_us"]["count"], figures["ttft_us"]["mean"]) == (3, 20.0)
