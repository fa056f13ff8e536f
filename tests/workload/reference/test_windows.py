"""Windows with rates or laws of their own, and how windows share a rate."""

import numpy as np
import pytest

from blis_jax.errors import ConfigError
from blis_jax.workload.expansion import expanded
from blis_jax.workload.reference import golden_arrays
from blis_jax.workload.reference.clients import scaled
from blis_jax.workload.reference.generate import drawn
from blis_jax.workload.reference.laws import shared_rates
from blis_jax.workload.source import FIRST_REVISION, REVISED
from blis_jax.workload.spec import parse_spec

LAWS = """
    input_distribution: {type: constant, params: {value: 20}}
    output_distribution: {type: constant, params: {value: 6}}"""


def spec_of(*windows, rate=0, top="num_requests: 500", more=""):
    clients = "".join(
        f"""
  - id: c{index}
    rate_fraction: 1
    arrival: {{process: poisson}}{LAWS}
    lifecycle: {{windows: [{text}]}}
    {more}"""
        for index, text in enumerate(windows)
    )
    head = f'version: "2"\naggregate_rate: {rate}\n{top}\nclients:'
    return parse_spec(head + clients + "\n", revision=REVISED)


def window(start_s, end_s, more=""):
    return f"{{start_us: {start_s}000000, end_us: {end_s}000000{more}}}"


def test_a_window_holds_its_rate_times_its_length_less_the_one_at_its_end():
    arrays = golden_arrays(spec_of(window(1, 5, ", trace_rate: 20")), 3)
    assert len(arrays["arrival_us"]) == 79
    assert arrays["arrival_us"].min() >= 1_000_000 and arrays["arrival_us"].max() < 5_000_000


def test_windows_share_a_rate_by_their_weights_where_they_overlap():
    spec = spec_of(
        f"{window(0, 10, ', trace_rate: 3')}, {window(10, 20, ', trace_rate: 1')}",
        window(0, 10, ", trace_rate: 1"),
        rate=16,
    )
    arrays = golden_arrays(spec, 3)
    is_late = arrays["arrival_us"] >= 10_000_000
    assert np.bincount(arrays["client"][~is_late]).tolist() == [119, 39]
    assert is_late.sum() == 159


def test_a_window_may_have_laws_of_its_own():
    own = ", input_distribution: {type: constant, params: {value: 9}}, arrival: {process: constant}"
    spec = spec_of(f"{window(0, 1, own)}, {window(1, 2)}", rate=8)
    arrays = golden_arrays(spec, 3)
    is_first = arrays["arrival_us"] < 1_000_000
    assert set(arrays["input_len"][is_first].tolist()) == {9}
    assert set(arrays["input_len"][~is_first].tolist()) == {20}
    assert np.diff(arrays["arrival_us"][is_first]).tolist() == [125_000] * 6


def test_single_requests_of_such_windows_have_neither_prefix_nor_deadline():
    more = "prefix_group: g\n    timeout: 900"
    for own, prefix_len, timeout_us in (("", 50, 900), (", trace_rate: 8", 0, 0)):
        requests = drawn(spec_of(window(0, 2, own), rate=8, more=more), 3).requests
        assert {one.prefix_len for one in requests} == {prefix_len}
        late = {one.deadline_us and one.deadline_us - one.arrival_us for one in requests}
        assert late == {timeout_us}


def test_the_horizon_cuts_a_window_before_it_is_filled():
    arrays = golden_arrays(spec_of(window(0, 8, ", trace_rate: 10"), top="horizon: 2000000"), 3)
    assert len(arrays["arrival_us"]) == 19


def test_too_many_requests_of_a_window_are_refused():
    with pytest.raises(
        ConfigError, match=r"clients\[0\]\.lifecycle: 1e\+10 requests in the window"
    ):
        golden_arrays(spec_of(window(0, 10, ", trace_rate: 1000000000")), 3)


def test_only_windows_that_overlap_share_the_rate():
    spec = spec_of(window(0, 2), window(1, 3), window(2, 4), rate=6)
    assert shared_rates(spec.clients, 6.0) == [3e-6, 2e-6, 3e-6]
    first = parse_spec(
        """
version: "2"
aggregate_rate: 6
num_requests: 4
clients:"""
        + "".join(
            f"""
  - rate_fraction: 1
    arrival: {{process: poisson}}{LAWS}
    lifecycle: {{windows: [{window(begin, begin + 2)}]}}"""
            for begin in range(3)
        ),
        revision=FIRST_REVISION,
    )
    assert shared_rates(first.clients, 6.0) == [2e-6] * 3


def test_scaled_gaps_fill_the_span():
    assert scaled([1, 1, 2], 100) == [25, 25, 50]
    assert scaled([1, 1, 1], 100) == [33, 33, 34]


def test_cohorts_are_clients_with_windows():
    text = f"""
version: "2"
aggregate_rate: 10
num_requests: 9
cohorts:
  - id: k
    population: 2
    rate_fraction: 1
    arrival: {{process: poisson}}{LAWS}
    prefix_group: g
    prefix_sharing: per_member
    diurnal: {{peak_hour: 2, peak_to_trough_ratio: 4}}
    spike: {{start_time_us: 50, duration_us: 20}}
    drain: {{start_time_us: 70, ramp_duration_us: 100}}
"""
    first, second = expanded(parse_spec(text, revision=REVISED)).clients
    assert (first.id, second.id) == ("k-0", "k-1")
    assert (first.prefix_group, second.prefix_group) == ("g-0", "g-1")
    assert first.rate_fraction == 0.5
    spans = [(one.start_us, one.end_us) for one in first.active_windows]
    hour = 3_600_000_000
    assert spans[2] == (2 * hour, 3 * hour) and spans[14] == (14 * hour, 14 * hour + hour // 4)
    assert spans[24:28] == [(50, 70), (0, 70), (70, 80), (80, 89)]
    assert spans[-1] == (160, 161) and len(spans) == 24 + 1 + 1 + 10
