"""Which requests BLIS lists and counts where requests are split."""

from types import SimpleNamespace

import numpy as np

from blis_jax.metrics.distributions import is_listed
from blis_jax.metrics.figures import priority_inversions
from blis_jax.metrics.reference import per_slo
from blis_jax.records.record import Status

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


def test_inversions_are_counted_by_part_where_each_was_served():
    """Instance 0 computes prompts, 1 makes the tokens; the third request is not split and on 1 whole."""
    record = SimpleNamespace(
        has_priorities=True,
        requests=SimpleNamespace(
            status=np.zeros(3),
            instance=np.array([1, 1, 1]),
            slo_class=np.zeros(3, int),
            e2e_us=np.array([900, 800, 100]),
        ),
        splits=SimpleNamespace(
            is_split=np.array([True, True, False]),
            prefill_instance=np.array([0, 0, -1]),
            prefill_ttft_us=np.array([500, 200, -1]),
            decode_instance=np.array([1, 1, -1]),
            decode_e2e_us=np.array([250, 190, -1]),
        ),
    )
    # 500 > 2 x 200 on instance 0, 250 > 2 x 100 on instance 1; whole requests would give 2 on instance 1
    assert priority_inversions(record) == 2
    record.splits.prefill_ttft_us[0] = 400
    assert priority_inversions(record) == 1
    record.splits = None
    assert priority_inversions(record) == 2
