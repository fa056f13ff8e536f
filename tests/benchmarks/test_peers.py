"""The bench beside other simulators: what they are asked, what is said of them, and how an error reads."""

from __future__ import annotations

import sys

import numpy as np
import pytest

from benchmarks.peers.__main__ import CLUSTER, LAW, PEERS, Runs, main, of_peer, ours, rows
from benchmarks.peers.fleet_run import LinearProfile


@pytest.fixture(scope="module")
def few():
    return ours(20.0, 20, range(2))


def test_the_others_get_the_requests_of_our_runs(few) -> None:
    runs, requests = few
    assert np.shape(requests) == (2, 20, 3)
    arrival_s, prompt, output = np.array(requests).transpose(2, 0, 1)
    assert (np.diff(arrival_s) >= 0).all()
    assert not np.array_equal(requests[0], requests[1])
    # nothing is faster than its own steps, the first of them with the whole prompt
    first_us = LAW["constant_us"] + LAW["prefill_us"] * prompt
    assert (1000 * np.array(runs.ttft_ms) >= first_us - 1).all()
    later_us = (output - 1) * (LAW["constant_us"] + LAW["decode_us"])
    assert (1000 * np.array(runs.e2e_ms) >= first_us + later_us - output).all()


def test_a_request_alone_takes_what_the_law_says(few) -> None:
    runs, requests = few
    _, prompt, _ = requests[0][0]
    chunks = -(-prompt // CLUSTER["max_num_batched_tokens"])
    expected = chunks * LAW["constant_us"] + LAW["prefill_us"] * prompt
    assert 1000 * runs.ttft_ms[0][0] == pytest.approx(expected, abs=chunks)


def test_rows_say_how_far_apart_and_how_fast() -> None:
    ours_ = Runs("ours", "1", 2.0, 0.1, [[10.0, 20.0], [20.0, 30.0]], [[100.0] * 2] * 2)
    other = Runs("other", "2", 1.0, 10.0, [[11.0, 22.0], [22.0, 33.0]], [[100.0] * 2] * 2)
    first, second = rows(20.0, [ours_, other])
    assert first[2] == "40"
    assert second[2] == "0 (1/100)"
    assert first[4] == "20.0 ± 7.1"
    assert second[4] == "22.0 ± 7.8 (+10.00 %)"
    assert second[6].endswith("(+0.00 %)")


def test_the_profile_of_the_fleet_simulator_is_the_law() -> None:
    profile = LinearProfile(LAW, 512, 1000, 128)
    assert profile.iter_latency(4) == pytest.approx((7000 + 4 * 25) / 1e6)
    assert profile.prefill_iter_latency(512, 100, 1) == pytest.approx((7000 + 200 * 20) / 1e6)
    assert profile.prefill_iter_latency(512, 1000, 3) == pytest.approx(
        (7000 + 512 * 20 + 2 * 25) / 1e6
    )


@pytest.mark.parametrize("name", PEERS)
def test_an_environment_without_it_is_named(name) -> None:
    with pytest.raises(RuntimeError, match=f"{name} ended with an error: ModuleNotFoundError"):
        of_peer(sys.executable, name, [[[0.0, 10, 2]]])


def test_a_missing_interpreter_is_refused(capsys) -> None:
    assert main(["--python", "no/python"]) == 2
    assert "--help says how to make it" in capsys.readouterr().err
